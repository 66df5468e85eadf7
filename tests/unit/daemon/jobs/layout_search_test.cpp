// How a node learns the tensors of a job from its neighbours: which ones it asks, when it has an answer, and what it
// does with answers that differ, are late, or were not asked for.

#include "daemon/jobs/layout_search.hpp"

#include "catch.hpp"
#include "daemon/clients/client_memory.hpp"
#include "node_id.hpp"
#include "tests/unit/daemon/jobs/played_host.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using gossamer::test::node_id;

namespace {

class Neighbourhood : public gossamer::daemon::test::PlayedHost {
 public:
  std::vector<NodeId> linked{node_id(1), node_id(2)};
  std::vector<std::pair<NodeId, LayoutQuery>> asked;
  TimeUs time_us = 50 * us_per_s;

  [[nodiscard]] TimeUs now_us() const override { return time_us; }
  [[nodiscard]] TimeUs began_us() const override { return 0; }
  [[nodiscard]] std::vector<NodeId> neighbours() const override { return linked; }
  bool send(const NodeId& to, const Message& message) override {
    asked.emplace_back(to, std::get<LayoutQuery>(message));
    return true;
  }
  [[nodiscard]] Workers& workers() override { throw std::logic_error("no work is done"); }
};

LayoutReply reply_of(std::uint64_t layout, std::uint32_t first = 0, std::uint32_t count = 2) {
  LayoutReply reply{.job = {job_name_hash("digits"), layout}, .fragment_elements = 1024, .first_tensor = first};
  reply.tensor_count = count;
  if (first < count) reply.tensors = {{.name = "w" + std::to_string(first), .shape = {3, 4}}};
  return reply;
}

}  // namespace

TEST_CASE("the tensors of a job come part by part, from a node that has told the first") {
  Neighbourhood host;
  LayoutSearch search(host);
  CHECK(search.ask("digits", 0, 0) == nlohmann::json{{"asked", 2}});
  CHECK(host.asked.size() == 2);
  search.heard(node_id(1), {.job = {job_name_hash("digits"), 0}});  // does not run it
  CHECK(search.ask("digits", 0, 0).contains("asked"));
  search.heard(node_id(2), reply_of(0xabc));
  const auto first = search.ask("digits", 0, 0);
  CHECK(first.at("layout") == "0000000000000abc");
  CHECK(first.at("count") == 2);
  CHECK(first.at("tensors") == nlohmann::json::parse(R"([["w0", 0, 0, [3, 4]]])"));
  host.asked.clear();
  CHECK(search.ask("digits", 0xabc, 1).contains("asked"));
  REQUIRE(host.asked.size() == 1);
  CHECK(host.asked[0].first == node_id(2));
  search.heard(node_id(2), reply_of(0xabc, 1));
  CHECK(search.ask("digits", 0xabc, 1).at("tensors")[0][0] == "w1");
}

TEST_CASE("searches for several jobs go on side by side") {
  Neighbourhood host;
  LayoutSearch search(host);
  (void)search.ask("digits", 0, 0);
  for (int i = 0; i < 100; ++i) {  // nobody runs these
    host.time_us += us_per_s / 1000;
    (void)search.ask("other " + std::to_string(i % 20), 0, 0);
    CHECK(search.ask("digits", 0, 0).contains("asked"));
  }
  CHECK(search.asked_job(job_name_hash("digits")) == "digits");
  CHECK(search.asked_job(7).empty());
  search.heard(node_id(1), reply_of(0xabc));
  search.heard(node_id(2), reply_of(0xabc));
  CHECK(search.ask("digits", 0, 0).contains("tensors"));
  // Only the latest searches are remembered.
  for (int i = 0; i < 1000; ++i) {
    ++host.time_us;
    (void)search.ask("many " + std::to_string(i), 0, 0);
  }
  CHECK(search.asked_job(job_name_hash("digits")).empty());
  CHECK(search.asked_job(job_name_hash("many 999")) == "many 999");
}

TEST_CASE("nodes with different models under one name are told apart, and silent ones are not waited for") {
  Neighbourhood host;
  LayoutSearch search(host);
  (void)search.ask("digits", 0, 0);
  search.heard(node_id(1), reply_of(1));
  CHECK(search.ask("digits", 0, 0).contains("asked"));  // the other may have another
  host.time_us += 2 * us_per_s;
  CHECK(search.ask("digits", 0, 0).contains("tensors"));
  search.heard(node_id(2), reply_of(2));
  CHECK(search.ask("digits", 0, 0).contains("error"));
}

TEST_CASE("answers that nobody asked for, or that fit no question, are passed over") {
  Neighbourhood host;
  LayoutSearch search(host);
  search.heard(node_id(1), reply_of(1));
  (void)search.ask("digits", 7, 0);
  search.heard(node_id(1), reply_of(1));
  search.heard(node_id(2), reply_of(7, 1));
  LayoutReply other = reply_of(7);
  other.job.name_hash ^= 1;
  search.heard(node_id(2), std::move(other));
  CHECK(search.ask("digits", 7, 0).contains("asked"));
  for (std::uint8_t stranger = 10; stranger < 200; ++stranger)
    search.heard(node_id(stranger), {.job = {job_name_hash("digits"), 7}});
  CHECK(search.ask("digits", 7, 0).contains("asked"));
  host.time_us += 2 * us_per_s;
  host.asked.clear();
  (void)search.ask("digits", 7, 0);
  CHECK(host.asked.size() == 2);  // both are asked again
  search.heard(node_id(2), reply_of(7));
  CHECK(search.ask("digits", 7, 0).contains("tensors"));
}
