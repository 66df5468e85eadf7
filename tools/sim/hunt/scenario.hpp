// One cluster's life from one seed. The kinds and strengths of faults are drawn once for the whole run, so that each
// run is rough in its own way (swarm testing, Groce et al. 2012). First faults happen, which tests safety. Then all is
// mended and must come together again, which tests liveness.
//
// The hunt and the tests run it, and get an outcome, with an explanation if an invariant broke. One thread.

#pragma once

#include <array>
#include <set>
#include <string>

#include "gossip/membership/membership_messages.hpp"
#include "tools/sim/hunt/invariants.hpp"

namespace gossamer::sim {

/// What may happen to nodes while there are faults. A change of the order changes what a seed means.
enum class Deed : std::uint8_t {
  partition,
  one_way_cut,
  isolation,
  link_break,
  daemon_crash,
  node_crash,
  arrival,
  leave,
  pause,
  stall,
  nan,
  client_crash,
  settings_change,
};
inline constexpr std::array deed_names = {
    "partitions", "one-way cuts", "isolation", "link breaks", "daemon crashes", "node crashes",       "arrivals",
    "leaves",     "pauses",       "stalls",    "NaN clients", "client crashes", "changes of settings"};

/// The faults that may happen in a run. All are drawn from the seed; a test may change them.
struct Swarm {
  std::uint64_t seed = 1;
  std::size_t nodes = 4;
  ClusterOptions cluster = {};
  PathConditions path = {};
  TimeUs faults_us = 4 * us_per_s;     ///< how long faults happen
  TimeUs liveness_us = 90 * us_per_s;  ///< the time for everything to come together after the faults
  TimeUs between_us = 100'000;         ///< mean time from one deed to the next
  TimeUs lasting_us = 300'000;         ///< mean time until a deed is undone
  double node_bytes_per_s = 0;
  double full = 0;             ///< the probability of a full queue
  double behind_nat = 0;       ///< the probability that a node is behind a NAT
  double spread = 1;           ///< how far the initial models are spread around 0
  double learning = 0.01;      ///< the size of one training step
  double speeds = 1;           ///< nodes run up to this many times slower or faster than 1
  bool founders_join = false;  ///< the nodes first choose a model together
  double saved = 0;            ///< the probability that a node which joins has a saved model; some are damaged
  double damaged = 0;          ///< the probability that a pulled fragment is damaged
  double lacks = 0;            ///< the probability that lean memory for a fragment is not there
  bool loss_breaks_links = false;
  // Options of the part that decides who has links and who is dead.
  bool membership = false;             ///< the shipped membership decides; otherwise an oracle
  TimeUs probe_interval_us = 100'000;  ///< of the membership, whose other times are in proportion to it
  std::size_t full_view_limit = 64;    ///< of the membership; with more nodes, views are partial
  bool one_stays_dead = false;         ///< after the faults one node stays dead until the others know
  bool finishes = false;               ///< in the end the programs stop, one after the other, while daemons die
  std::set<Deed> deeds = {};           ///< the deeds that may happen
  std::size_t sponsors = 0;            ///< how many have admitted the nodes, in turn; 0: each node has its own voice
  std::size_t keepers = 0;             ///< this many nodes, from the second on, hold a replica without training it
  std::size_t followers = 0;           ///< so many of them, the last ones, may only follow
  std::size_t nan_stays = 0;           ///< this many nodes, the last ones, write NaN as long as faults happen
  std::size_t ends_with_nan = 0;       ///< so many programs hold NaN when they stop
  std::uint64_t step_samples = 1;      ///< replicas weigh by their samples a step, which are so many at most; 1: alike
  std::size_t liars = 0;               ///< this many nodes, the last ones, lie about their clocks
  bool liars_first = false;            ///< not the last ones, but the first: others hear of them before the rest
};

[[nodiscard]] Swarm draw_swarm(std::uint64_t seed);
/// The longest that two healthy, linked replicas may go without an exchange of a fragment (hunt/progress.hpp).
[[nodiscard]] TimeUs allowed_us(const Swarm& swarm);
/// The scenario in a line or two.
[[nodiscard]] std::string describe(const Swarm& swarm);

struct HuntOutcome {
  std::uint64_t seed = 0;
  std::uint64_t hash = 0;
  std::uint64_t events = 0;
  std::uint64_t faults = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t halves = 0;  ///< committed at one end only, for a valid reason
  TimeUs virtual_us = 0;
  double waited = 0;           ///< the longest wait of healthy replicas for an exchange, as a share of the allowed wait
  std::string violation = {};  ///< empty: every invariant held
  std::string explanation = {};  ///< the last events around the violation
};

/// Functions that sabotage a run, to test that the oracles notice (hunt/sabotage.hpp).
struct Sabotage {
  std::function<bool(std::size_t from, std::size_t to, Message& message)> tamper = {};
  std::function<void(Cluster& cluster, const Cluster::Event& event)> on_event = {};  ///< before the invariants look
  std::function<bool(std::size_t from, std::size_t to, MembershipMessage& message)> tamper_membership = {};
  std::function<void(ClusterOptions& options)> options =
      {};  ///< of the replicas; the invariants keep to the drawn options
};

/// Every event is written to `story`, unless it is null.
[[nodiscard]] HuntOutcome run_scenario(const Swarm& swarm, std::FILE* story = nullptr, const Sabotage& sabotage = {});

}  // namespace gossamer::sim
