// Averaging without learning: the schedules reach consensus when theory says, CHOCO converges where rounding alone
// stalls, and replicas agree at least as fast as the spectral gap of their graph promises.

#include "tools/sim/learn/consensus_run.hpp"

#include <cmath>
#include <functional>

#include "catch.hpp"
#include "tools/sim/commands.hpp"
#include "usage_error.hpp"

namespace gossamer::sim {
namespace {

double error_after(const char* method, std::size_t round, ConsensusOptions options) {
  options.rounds = round;
  return run_consensus(method, options).points.back().error;
}

}  // namespace

TEST_CASE("Schedules end in exact consensus for the numbers of nodes that suit them") {
  // Base: at most 2·log2(n) + 2 rounds for any n. Exponential: log2(n), for powers of two only.
  CHECK(error_after("schedule:base", 10, {.nodes = 25, .elements = 64}) < 1e-25);
  CHECK(error_after("schedule:base", 6, {.nodes = 64, .elements = 64}) < 1e-25);
  CHECK(error_after("schedule:one-peer-exponential", 6, {.nodes = 64, .elements = 64}) < 1e-25);
  CHECK(error_after("schedule:one-peer-exponential", 6, {.nodes = 25, .elements = 64}) > 1e-5);
  CHECK(error_after("schedule:ring", 6, {.nodes = 64, .elements = 64}) > 1e-2);
}

TEST_CASE("CHOCO converges linearly, and rounding without its memory stalls") {
  const ConsensusOptions options{.nodes = 9, .elements = 512};
  const double early = error_after("choco:q8", 15, options);
  const double later = error_after("choco:q8", 30, options);
  const double latest = error_after("choco:q8", 45, options);
  CHECK(later < 0.2 * early);
  CHECK(std::log(latest / later) == Approx(std::log(later / early)).epsilon(0.2));
  CHECK(error_after("plain:q4", 300, options) > 1e-3);
}

TEST_CASE("Replicas that exchange at random agree as fast as their graph allows") {
  // One exchange on a random edge keeps at most 1 − λ2(Laplacian)/(2·edges) of the squared distance; in a round each of
  // n nodes starts one. For the ring of 9: λ2 = 2 − 2·cos(2π/9), 9 edges. Starts that find the other end busy are lost:
  // half of the rate is asked for.
  constexpr std::size_t rounds = 30;
  const double left = 1 - (2 - 2 * std::cos(2 * std::acos(-1.0) / 9)) / 18;
  const ConsensusOptions ring{.nodes = 9, .elements = 512};
  for (const char* method : {"gossip:f32", "gossip:q8"})
    CHECK(error_after(method, rounds, ring) < std::pow(left, 9.0 * rounds / 2));
  CHECK(error_after("gossip:q4", rounds, ring) < std::pow(left, 9.0 * rounds / 4));
  CHECK(error_after("gossip:q8", 25, {.nodes = 9, .elements = 512, .topology = "complete"}) < 1e-6);
}

TEST_CASE("What cannot be averaged is refused with a reason") {
  CHECK(message_of([] { (void)run_consensus("magic", {}); }).find("unknown method") != std::string::npos);
  CHECK(message_of([] { (void)run_consensus("gossip:q2", {}); }).find("unknown codec") != std::string::npos);
  CHECK(message_of([] { (void)run_consensus("schedule:random", {}); }).find("no schedule") != std::string::npos);
  CHECK(message_of([] { (void)run_consensus("mixing", {.nodes = 1}); }).find("2 nodes") != std::string::npos);
}

}  // namespace gossamer::sim
