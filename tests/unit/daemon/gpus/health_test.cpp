// The grades and texts for a GPU's figures and errors, and their JSON.

#include "daemon/gpus/health.hpp"
#include "tests/unit/catch.hpp"

using namespace gossamer::gpus;
using Catch::Matchers::Contains;

namespace {

Gpu sound_gpu() {
  Gpu gpu;
  gpu.index = 3;
  gpu.uuid = "GPU-3";
  gpu.ecc_uncorrected = 0;
  return gpu;
}

template <class Change>
std::vector<Ailment> ailments_with(Change change) {
  Gpu gpu = sound_gpu();
  change(gpu);
  return examine(gpu);
}

Ailment of_xid(std::uint32_t code) {
  const auto found = ailments_with([&](Gpu& gpu) { gpu.xids.push_back({code, 1, 5}); });
  REQUIRE(found.size() == 1);
  return found.front();
}

}  // namespace

TEST_CASE("a sound GPU has nothing wrong with it") {
  CHECK(examine(sound_gpu()).empty());
  Gpu gpu = sound_gpu();
  judge(gpu);
  CHECK(gpu.health == Health::sound);
  CHECK(gpu.note.empty());
}

TEST_CASE("errors are judged as NVIDIA's catalogue does") {
  const struct {
    std::uint32_t code;
    Health health;
    const char* advice;
  } expected[] = {
      {48, Health::ill, "--gpu-reset -i 3"},     {63, Health::warning, "when it suits"},
      {64, Health::ill, "--gpu-reset -i 3"},     {74, Health::ill, "nvidia-smi nvlink -s -i 3"},
      {79, Health::ill, "restart the machine"},  {94, Health::warning, "when it suits"},
      {95, Health::ill, "results may be wrong"}, {119, Health::ill, "--gpu-reset -i 3"},
      {999, Health::warning, "docs.nvidia.com"},
  };
  for (const auto& [code, health, advice] : expected) {
    CAPTURE(code);
    CHECK(of_xid(code).health == health);
    CHECK_THAT(of_xid(code).advice, Contains(advice));
    CHECK_THAT(of_xid(code).text, Contains("Xid " + std::to_string(code)));
  }
}

TEST_CASE("what a program did is not the GPU's illness") {
  for (const std::uint32_t code : {13U, 31U, 43U, 45U}) {
    CHECK(ailments_with([&](Gpu& gpu) { gpu.xids.push_back({code, 7, 1}); }).empty());
    CHECK(is_of_a_program(code));
  }
  CHECK_FALSE(is_of_a_program(79));
  CHECK_FALSE(is_of_a_program(12345));
}

TEST_CASE("figures that are not as they should be") {
  CHECK(ailments_with([](Gpu& gpu) { gpu.lost = true; }).front().health == Health::ill);
  CHECK_THAT(ailments_with([](Gpu& gpu) { gpu.unreadable = "no"; }).front().text,
             Contains("tells nothing about it: no"));
  CHECK_THAT(ailments_with([](Gpu& gpu) { gpu.remap_failed = true; }).front().advice, Contains("replaced"));
  CHECK(ailments_with([](Gpu& gpu) { gpu.remap_pending = true; }).front().health == Health::warning);
  CHECK_THAT(ailments_with([](Gpu& gpu) { gpu.ecc_uncorrected = 4; }).front().text, Contains("4 memory errors"));
}

TEST_CASE("the worst is told first, and is the note") {
  Gpu gpu = sound_gpu();
  gpu.remap_pending = true;
  gpu.xids = {{63, 1, 9}, {79, 2, 1}};
  const auto found = examine(gpu);
  REQUIRE(found.size() == 3);
  CHECK(found[0].health == Health::ill);
  CHECK(found[1].health == Health::warning);
  judge(gpu);
  CHECK(gpu.health == Health::ill);
  CHECK(gpu.note == "Xid 79: the GPU has fallen off the bus, 2 times");
}

TEST_CASE("a report survives its JSON, and what is not known is null") {
  Gpu gpu = sound_gpu();
  gpu.memory_used_bytes = 5;
  gpu.processes = {{.pid = 9, .memory_bytes = {}, .job = "digits"}};
  gpu.xids = {{79, 2, 1.5}};
  gpu.health = Health::ill;
  const GpuReport report{.state = "watched", .driver = "550", .age_s = 1.5, .note = "n", .gpus = {gpu}};
  const nlohmann::json json = report;
  CHECK(json.at("gpus").at(0).at("power_w").is_null());
  CHECK(json.at("gpus").at(0).at("processes").at(0).at("memory_bytes").is_null());
  const auto back = json.get<GpuReport>();
  CHECK(nlohmann::json(back) == json);
  CHECK(back.gpus.front().xids.front().code == 79);
  CHECK(back.gpus.front().health == Health::ill);
}
