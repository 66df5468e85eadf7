// One seed's life of a cluster: which faults may happen and how strong they are (drawn for the whole run, so that each
// run is rough in its own way: swarm testing, Groce et al. 2012), first while they happen, for safety; then everything
// is mended and must come together again, for liveness.
//
// Who runs it (the hunt, the tests) gets an outcome, with an explanation if an invariant broke. One thread.

#pragma once

#include <string>

#include "gossip/membership/membership_messages.hpp"
#include "tools/sim/hunt/invariants.hpp"

namespace gossamer::sim {

/// What may happen in a run. All of it is drawn from the seed; a test may change what was drawn.
struct Swarm {
  std::uint64_t seed = 1;
  std::size_t nodes = 4;
  ClusterOptions cluster = {};
  PathConditions path = {};
  TimeUs faults_us = 4 * us_per_s;     ///< how long faults happen
  TimeUs liveness_us = 90 * us_per_s;  ///< after it everything must have come together in this time
  TimeUs between_us = 100'000;         ///< from one deed to the next, in the mean
  TimeUs lasting_us = 300'000;         ///< what a deed does is undone after this, in the mean
  double node_bytes_per_s = 0;
  double full = 0;             ///< probability of a full queue
  double behind_nat = 0;       ///< of a node
  double spread = 1;           ///< of initial models, around 0
  double learning = 0.01;      ///< of a training step
  double speeds = 1;           ///< nodes run between 1 and this many times slower and faster
  bool founders_join = false;  ///< nodes agree on a model first
  bool loss_breaks_links = false;
  // Who is there, and who is dead.
  bool membership = false;             ///< by the shipped membership; otherwise by an oracle
  TimeUs probe_interval_us = 100'000;  ///< of the membership, whose other times keep their proportion to it
  std::size_t full_view_limit = 64;    ///< of the membership; with more nodes views are partial
  bool one_stays_dead = false;         ///< once all is calm, until the others know
  // Deeds.
  bool partitions = false;
  bool one_way = false;
  bool isolation = false;
  bool link_breaks = false;
  bool daemon_crashes = false;
  bool client_crashes = false;
  bool node_crashes = false;
  bool arrivals = false;
  bool leaves = false;
  bool pauses = false;
  bool stalls = false;
  bool nan_clients = false;
  std::size_t nan_stays = 0;  ///< the last so many nodes write NaN for as long as faults happen
};

[[nodiscard]] Swarm draw_swarm(std::uint64_t seed);
/// Longest that two healthy, linked replicas may go without an exchange of one of their fragments (hunt/progress.hpp).
[[nodiscard]] TimeUs allowed_us(const Swarm& swarm);
/// In a line or two.
[[nodiscard]] std::string describe(const Swarm& swarm);

struct HuntOutcome {
  std::uint64_t seed = 0;
  std::uint64_t hash = 0;
  std::uint64_t events = 0;
  std::uint64_t faults = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t halves = 0;  ///< committed at one end only, for a reason
  TimeUs virtual_us = 0;
  double waited = 0;             ///< the longest wait of healthy replicas for an exchange, over what is allowed
  std::string violation = {};    ///< empty: every invariant held
  std::string explanation = {};  ///< the last events around it
};

/// What is done to a run in order to see it caught (hunt/sabotage.hpp).
struct Sabotage {
  std::function<bool(std::size_t from, std::size_t to, Message& message)> tamper = {};
  std::function<void(Cluster& cluster, const Cluster::Event& event)> on_event = {};  ///< before the invariants look
  std::function<bool(std::size_t from, std::size_t to, MembershipMessage& message)> tamper_membership = {};
  std::function<void(ClusterOptions& options)> options =
      {};  ///< of the replicas; the invariants keep to what was drawn
};

/// `story`: where every event is written; null: nowhere.
[[nodiscard]] HuntOutcome run_scenario(const Swarm& swarm, std::FILE* story = nullptr, const Sabotage& sabotage = {});

}  // namespace gossamer::sim
