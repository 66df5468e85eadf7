// Which client of `gossamerctl run` gets which GPU.

#include "tools/ctl/run/placement.hpp"
#include "tests/unit/catch.hpp"

using namespace gossamer;
using namespace gossamer::ctl;
using Catch::Matchers::Contains;

namespace {

/// Two whole ones, one that is divided, one that is lost.
gpus::GpuReport machine() {
  gpus::GpuReport report{.state = "watched", .driver = "550", .age_s = 0, .note = {}, .gpus = {}};
  for (std::uint32_t index = 0; index < 4; ++index) {
    gpus::Gpu gpu;
    gpu.index = index;
    gpu.uuid = "GPU-" + std::string(4, static_cast<char>('a' + index));
    gpu.pci_bus = "0000:0" + std::to_string(index) + ":00.0";
    report.gpus.push_back(gpu);
  }
  report.gpus[2].mig = true;
  report.gpus[2].mig_uuids = {"MIG-x", "MIG-y"};
  report.gpus[3].lost = true;
  return report;
}

using Names = std::vector<std::string>;

/// The devices that each client sees, or the error.
Names seen(const PlacementRequest& request, const gpus::GpuReport& report = machine()) {
  const auto clients = place(request, report);
  if (!clients) return {"error: " + clients.error()};
  Names names;
  for (const ClientSpec& client : *clients)
    names.push_back(client.environment.empty() ? "as it is" : client.environment.front());
  return names;
}

Names seen_with(const std::string& list, const std::optional<std::string>& visible = {}) {
  return seen({.gpus = list, .clients = {}, .per_gpu = 1, .visible = visible, .cpus_near = {}});
}

std::string wrong_with(const std::string& list, const std::optional<std::string>& visible = {}) {
  const Names names = seen_with(list, visible);
  REQUIRE(names.front().starts_with("error: "));
  return names.front();
}

Names visible(const Names& uuids) {
  Names names;
  for (const std::string& uuid : uuids)
    names.push_back("CUDA_VISIBLE_DEVICES=" + uuid);
  return names;
}

const gpus::GpuReport no_gpus{.state = "none", .driver = {}, .age_s = 0, .note = "no driver", .gpus = {}};

}  // namespace

TEST_CASE("all are those that work, divided ones by their instances") {
  const Names all = visible({"GPU-aaaa", "GPU-bbbb", "MIG-x", "MIG-y"});
  CHECK(seen_with("all") == all);
  CHECK(seen({}) == all);
}

TEST_CASE("GPUs are named as people and CUDA do, in the order that is asked for") {
  CHECK(seen_with("1,0") == visible({"GPU-bbbb", "GPU-aaaa"}));
  CHECK(seen_with(" 1, GPU-aa") == visible({"GPU-bbbb", "GPU-aaaa"}));
  CHECK(seen_with("2") == visible({"MIG-x", "MIG-y"}));
  CHECK(seen_with("2:1,MIG-x") == visible({"MIG-y", "MIG-x"}));
  CHECK(seen_with("GPU-cccc") == visible({"MIG-x", "MIG-y"}));
}

TEST_CASE("what the environment hides is left alone") {
  CHECK(seen_with("all", "1,MIG-y") == visible({"GPU-bbbb", "MIG-y"}));
  CHECK(seen_with("all", "GPU-b") == visible({"GPU-bbbb"}));
  CHECK_THAT(wrong_with("0", "1"), Contains("0 is not a GPU that this process may use; there are 1"));
  CHECK_THAT(wrong_with("all", ""), Contains("CUDA_VISIBLE_DEVICES is \"\""));
  CHECK_THAT(wrong_with("all", "-1"), Contains("unset it"));
}

TEST_CASE("what cannot be had is said") {
  CHECK_THAT(wrong_with("7"), Contains("7 is not a GPU that") && Contains("there are 0, 1, 2:0, 2:1"));
  CHECK_THAT(wrong_with("3"), Contains("3 is not a GPU that"));
  CHECK_THAT(wrong_with("0,0"), Contains("named twice"));
  CHECK_THAT(wrong_with("2,2:1"), Contains("named twice"));
  CHECK_THAT(wrong_with(""), Contains("all, none, or a list"));
  CHECK_THAT(seen({.gpus = "all", .clients = 2, .per_gpu = 1, .visible = {}, .cpus_near = {}}).front(),
             Contains("--per-gpu"));
  CHECK_THAT(seen({.gpus = "all", .clients = {}, .per_gpu = 100, .visible = {}, .cpus_near = {}}).front(),
             Contains("more than the 256"));
  CHECK_THAT(seen({.gpus = "all", .clients = {}, .per_gpu = 1, .visible = {}, .cpus_near = {}}, no_gpus).front(),
             Contains("there is no GPU here (no driver)"));
  gpus::GpuReport all_lost = machine();
  for (gpus::Gpu& gpu : all_lost.gpus)
    gpu.lost = true;
  CHECK_THAT(seen({.gpus = "all", .clients = {}, .per_gpu = 1, .visible = {}, .cpus_near = {}}, all_lost).front(),
             Contains("gossamerctl gpus"));
}

TEST_CASE("clients without GPUs") {
  CHECK(seen({.gpus = {}, .clients = 2, .per_gpu = 1, .visible = {}, .cpus_near = {}}) ==
        Names{"as it is", "as it is"});
  CHECK(seen({.gpus = "none", .clients = 2, .per_gpu = 1, .visible = {}, .cpus_near = {}}) ==
        Names{"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES="});
  CHECK(seen({}, no_gpus) == Names{"as it is"});
  CHECK_FALSE(wants_gpus({.gpus = {}, .clients = 1, .per_gpu = 1, .visible = {}, .cpus_near = {}}));
  CHECK_FALSE(wants_gpus({.gpus = "none", .clients = {}, .per_gpu = 1, .visible = {}, .cpus_near = {}}));
}

TEST_CASE("several clients on a GPU, bound to the processors near it") {
  const auto clients = place({.gpus = "1,2:0",
                              .clients = {},
                              .per_gpu = 2,
                              .visible = {},
                              .cpus_near = [](const std::string& bus) { return std::vector<int>{bus[6] - '0'}; }},
                             machine());
  REQUIRE(clients);
  REQUIRE(clients->size() == 4);
  CHECK((*clients)[0].where == "GPU 1");
  CHECK((*clients)[1].where == "GPU 1");
  CHECK((*clients)[3].where == "GPU 2:0");
  CHECK((*clients)[3].cpus == std::vector<int>{2});
}

TEST_CASE("lists of processors as the kernel writes them") {
  CHECK(cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(cpu_list("5") == std::vector<int>{5});
  CHECK(cpu_list("").empty());
  CHECK(cpu_list("x,7-").size() == 1);
  CHECK(cpu_list("0-99999999").size() == 65'536);
}
