// Replicas that gossip under virtual time: they agree, nothing is lost or applied twice, whatever the network does.

#include "catch.hpp"
#include "virtual_cluster.hpp"

using namespace gossamer;
using namespace gossamer::gossip;
using gossamer::gossip::test::Cluster;
using gossamer::gossip::test::ClusterOptions;

namespace {

/// Largest relative change of any element's sum: fp32 rounding only, unless a commit was lost or doubled.
double drift(const std::vector<double>& before, const std::vector<double>& after) {
  double largest = 0;
  for (std::size_t e = 0; e < before.size(); ++e)
    largest = std::max(largest, std::fabs(after[e] - before[e]));
  return largest;
}

constexpr double rounding = 2e-6;  // thousands of fp32 additions to numbers below 1

}  // namespace

TEST_CASE("replicas agree and their sum stays", "[replica]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  const std::size_t nodes = GENERATE(2, 3, 8);
  CAPTURE(codec_name(codec), nodes);
  ClusterOptions options{.nodes = nodes, .seed = nodes};
  options.replica.codec = codec;
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  const auto before = cluster.total();
  const double apart = cluster.distance();
  cluster.run_until(4 * us_per_s);
  cluster.settle();
  CHECK(drift(before, cluster.total()) < rounding * static_cast<double>(nodes));
  CHECK(cluster.distance() < apart * 1e-9);
  CHECK(cluster.count(&ReplicaCounters::unresolved) == 0);
  CHECK(cluster.count(&ReplicaCounters::violations) == 0);
  CHECK(cluster.count(&ReplicaCounters::initiated) ==
        cluster.count(&ReplicaCounters::answered) - cluster.count(&ReplicaCounters::follow_ups));
}

TEST_CASE("repeated messages are applied once", "[replica]") {
  ClusterOptions options{.nodes = 4, .repeat_probability = 0.5, .seed = 3};
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  const auto before = cluster.total();
  cluster.run_until(2 * us_per_s);
  cluster.settle();
  CHECK(cluster.count(&ReplicaCounters::repeated_requests) > 100);
  CHECK(drift(before, cluster.total()) < rounding * 4);
  CHECK(cluster.count(&ReplicaCounters::unresolved) == 0);
}

TEST_CASE("links that break and mend lose nothing", "[replica]") {
  const std::uint64_t seed = GENERATE(range(1, 9));
  ClusterOptions options{.nodes = 4, .repeat_probability = 0.1, .seed = seed};
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  const auto before = cluster.total();
  Random random(seed);
  for (int round = 0; round < 100; ++round) {
    const auto i = random.below(4);
    const auto j = (i + 1 + random.below(3)) % 4;
    cluster.break_link(i, j);
    cluster.run_until(cluster.now_us() + static_cast<TimeUs>(random.below(20'000)));
    cluster.mend_link(i, j);
    cluster.run_until(cluster.now_us() + static_cast<TimeUs>(random.below(10'000)));
  }
  cluster.run_until(cluster.now_us() + us_per_s);
  cluster.settle();
  CHECK(drift(before, cluster.total()) < rounding * 4);
  CHECK(cluster.count(&ReplicaCounters::unresolved) == 0);
  CHECK(cluster.distance() < 1e-6);
}

TEST_CASE("a client that stalls holds nobody up and loses nothing", "[replica]") {
  ClusterOptions options{.nodes = 3, .seed = 5};
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  const auto before = cluster.total();
  cluster.run_until(100'000);
  cluster.node(0).client.stalled = true;
  cluster.run_until(us_per_s);
  // The others agree with its replica as far as it is known to the daemon, though its client has seen nothing of it.
  CHECK(cluster.distance() < 1e-6);
  CHECK(drift(before, cluster.total()) < rounding * 3);
  cluster.node(0).client.stalled = false;
  cluster.run_until(2 * us_per_s);
  CHECK(drift(before, cluster.total()) < rounding * 3);
}

TEST_CASE("a killed node costs the others only its own exchanges", "[replica]") {
  ClusterOptions options{.nodes = 5, .seed = 11};
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  cluster.run_until(500'000);
  cluster.kill(2);
  cluster.run_until(520'000);
  cluster.run_until(600'000);
  const auto exchanges = cluster.count(&ReplicaCounters::initiated);
  cluster.run_until(3 * us_per_s);
  CHECK(cluster.count(&ReplicaCounters::initiated) > exchanges + 500);
  CHECK(cluster.distance() < 1e-8);
  CHECK(cluster.count(&ReplicaCounters::unresolved) <= 2 * 4 * 2);
  for (std::size_t i = 0; i < 5; ++i) {
    if (i != 2) CHECK(cluster.node(i).replica->partners() == 3);
  }
}

TEST_CASE("a draining replica finishes what is under way", "[replica]") {
  ClusterOptions options{.nodes = 3, .seed = 17};
  options.replica.period_us = 3'000;
  Cluster cluster(options);
  cluster.run_until(200'000);
  cluster.drain(0);
  cluster.run_until(300'000);
  CHECK(cluster.node(0).replica->idle());
  const auto before = cluster.whole(0);
  cluster.run_until(us_per_s);
  CHECK(drift(before, cluster.whole(0)) < rounding);
  CHECK(cluster.count(&ReplicaCounters::unresolved) == 0);
}

TEST_CASE("learners stay together, fast and slow ones alike", "[replica]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  CAPTURE(codec_name(codec));
  ClusterOptions options{.nodes = 4, .learning = true, .seed = 23};
  options.replica.codec = codec;
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  cluster.node(3).client.step_us *= 8;
  cluster.run_until(8 * us_per_s);
  // A random walk alone would be 4000 steps × (0.01²/12) = 0.033 from its start.
  CHECK(cluster.distance() < 3e-4);
  const double blocks = static_cast<double>(cluster.count(&ReplicaCounters::blocks));
  const double wide = static_cast<double>(cluster.count(&ReplicaCounters::wide_blocks));
  CAPTURE(wide / blocks, cluster.distance());
  CHECK(wide / blocks < 0.1);
  CHECK(cluster.count(&ReplicaCounters::unresolved) == 0);
}

TEST_CASE("NaN stays at home", "[replica]") {
  ClusterOptions options{.nodes = 3, .seed = 29};
  options.replica.period_us = 5'000;
  Cluster cluster(options);
  cluster.run_until(200'000);
  cluster.node(1).client.x[5] = std::nanf("");
  cluster.run_until(us_per_s);
  CHECK(cluster.node(1).replica->counters().quarantines > 0);
  for (const std::size_t i : {0, 2}) {
    for (const double value : cluster.whole(i))
      REQUIRE(std::isfinite(value));
  }
  cluster.node(1).client.x[5] = 0;
  cluster.run_until(2 * us_per_s);
  CHECK(cluster.node(1).replica->quarantined() == 0);
  CHECK(cluster.distance() < 1e-6);
}

TEST_CASE("a request that does not fit is refused and changes nothing", "[replica]") {
  ClusterOptions options{.nodes = 2, .seed = 31};
  Cluster cluster(options);
  Replica& replica = *cluster.node(0).replica;
  const NodeId other = cluster.node(1).id;
  std::uint64_t counter = 1'000'000;
  const auto ask = [&](auto change) {
    ExchangeRequest request{.counter = counter++, .job = {7, 9}, .codec = Codec::q8, .block_count = 2};
    request.side = Bytes::adopt(std::vector<std::byte>(side_bytes(Codec::q8, 2)));
    request.values = Bytes::adopt(std::vector<std::byte>(2 * codec_block_bytes(Codec::q8)));
    change(request);
    Replica::Actions actions;
    replica.request(other, std::move(request), 1, actions);
    CHECK(actions.answer.empty());
    REQUIRE(actions.send.size() == 1);
    const auto& reply = std::get<ExchangeReply>(actions.send[0].message);
    CHECK(reply.status == ReplyStatus::refused);
    return reply.reason;
  };
  CHECK(ask([](auto& r) { r.job.layout_hash = 1; }) == RefuseReason::layout_differs);
  CHECK(ask([](auto& r) { r.fragment = 2; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.block_count = 1; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.values = {}; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.side = {}; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.blocks = Bytes::adopt(std::vector<std::byte>(9)); }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.blocks = Bytes::adopt(std::vector<std::byte>{std::byte{0xff}}); }) ==
        RefuseReason::bad_request);
  CHECK(ask([](auto& r) {
          std::vector<std::byte> side(side_bytes(Codec::q8, 2));
          side[0] = std::byte{0x7f};
          r.side = Bytes::adopt(std::move(side));
        }) == RefuseReason::bad_request);
}
