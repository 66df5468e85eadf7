// What nodes tell of each other: the newest word wins, ages add up, everything is bounded, and all hear of all.

#include "gossip/membership/summaries.hpp"

#include <algorithm>
#include <deque>
#include <set>

#include "catch.hpp"
#include "node_id.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

using gossamer::test::node_id;

NodeSummary summary(std::size_t number, std::uint64_t incarnation, std::uint64_t word, std::uint32_t age_ms = 0) {
  return {.node = node_id(number), .incarnation = incarnation, .number = word, .age_ms = age_ms};
}

}  // namespace

TEST_CASE("of each node the newest word is kept, in whatever order words come", "[summaries]") {
  SummaryTable table(node_id(1));
  table.hear({{summary(2, 7, 5)}}, 0);
  table.hear(
      {
          {summary(2, 7, 4)},
      },
      0);
  table.hear({{summary(2, 6, 9)}}, 0);
  REQUIRE(table.others(0).size() == 1);
  CHECK(table.others(0)[0].number == 5);
  table.hear({{summary(2, 8, 1)}}, 0);
  CHECK(table.others(0)[0].incarnation == 8);
}

TEST_CASE("nobody is believed about the node itself", "[summaries]") {
  SummaryTable table(node_id(1));
  table.hear({{summary(1, 99, 99)}}, 0);
  CHECK(table.others(0).empty());
  Random random(1);
  const Summaries said = table.say(summary(5, 3, 0, 1'000), 0, random);
  REQUIRE(said.nodes.size() == 1);
  CHECK(said.nodes[0].node == node_id(1));
  CHECK(said.nodes[0].number == 1);
  CHECK(said.nodes[0].age_ms == 0);
  CHECK(table.say(summary(5, 3, 0), 0, random).nodes[0].number == 2);
}

TEST_CASE("ages add up on the way, and what is a minute old is forgotten", "[summaries]") {
  SummaryTable table(node_id(1));
  table.hear({{summary(2, 1, 1, 2'000), summary(3, 1, 1, 60'000)}}, 10 * us_per_s);
  REQUIRE(table.others(15 * us_per_s).size() == 1);
  CHECK(table.others(15 * us_per_s)[0].age_ms == 7'000);
  Random random(1);
  CHECK(table.say({}, 15 * us_per_s, random).nodes.at(1).age_ms == 7'000);
  CHECK(table.others(67 * us_per_s).size() == 1);
  CHECK(table.others(68 * us_per_s).empty());
  CHECK(table.say({}, 68 * us_per_s, random).nodes.size() == 1);
}

TEST_CASE("messages and the table are bounded; of too many the oldest goes", "[summaries]") {
  SummaryTable table(node_id(0));
  for (std::size_t i = 1; i <= max_kept_summaries + 10; ++i)
    table.hear({{summary(i, 1, 1)}}, static_cast<TimeUs>(i));
  const auto others = table.others(1'000);
  CHECK(others.size() == max_kept_summaries);
  CHECK(std::ranges::none_of(others, [](const NodeSummary& s) { return s.node == node_id(10); }));
  CHECK(std::ranges::any_of(others, [](const NodeSummary& s) { return s.node == node_id(11); }));
  Random random(1);
  std::set<NodeId> told;
  for (int i = 0; i < 200; ++i) {
    const Summaries said = table.say({}, 1'000, random);
    CHECK(said.nodes.size() == max_summaries);
    std::set<NodeId> in_this;
    for (const NodeSummary& one : said.nodes)
      CHECK(in_this.insert(one.node).second);
    told.merge(in_this);
  }
  CHECK(told.size() == max_kept_summaries + 1);  // summaries are drawn by chance, so each has its turn
}

TEST_CASE("all hear of all over few links, and in larger clusters most of most", "[summaries]") {
  const std::size_t count = GENERATE(8, 32, 64, 200);
  CAPTURE(count);
  std::deque<SummaryTable> tables;
  for (std::size_t i = 0; i < count; ++i)
    tables.emplace_back(node_id(i));
  Random random(9);
  // Random links, on average eight to each node, as active views have.
  std::vector<std::vector<std::size_t>> links(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (int link = 0; link < 4; ++link) {
      const std::size_t other = (i + 1 + random.below(count - 1)) % count;
      links[i].push_back(other);
      links[other].push_back(i);
    }
  }
  TimeUs now_us = 0;
  for (int period = 0; period < 28; ++period, now_us += summary_period_us) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t to = links[i][random.below(links[i].size())];
      tables[to].hear(tables[i].say({.incarnation = 1}, now_us, random), now_us);
    }
  }
  std::size_t known = 0;
  for (const SummaryTable& table : tables)
    known += table.others(now_us).size();
  const double share = static_cast<double>(known) / static_cast<double>(count * (count - 1));
  INFO("known " << share);
  CHECK(share >= (count <= max_summaries ? 1.0 : 0.9));
}
