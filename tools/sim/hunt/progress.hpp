// Checks that exchanges go on, also while faults last. Two replicas are healthy if their daemons run, their clients
// train and their models are finite. Two healthy replicas with a working link exchange each of their fragments, with
// each other or with others, within a time that follows from the scenario's options. Faults elsewhere, such as a third
// replica with NaN, are no excuse.
//
// World (hunt/scenario.cpp) runs it and passes every event to it. One thread.

#pragma once

#include <map>
#include <vector>

#include "tools/sim/hunt/invariants.hpp"

namespace gossamer::sim {

class ProgressOracle {
 public:
  /// `bound_us`: see allowed_us() of hunt/scenario.hpp.
  ProgressOracle(const Cluster& cluster, const Network& network, const gossip::ReplicaOptions& options,
                 TimeUs bound_us);

  /// Throws Violation.
  void on(const Cluster::Event& event);
  /// Node i's client writes NaN from now on, or has gone back to finite values.
  void set_finite(std::size_t i, bool finite);
  /// Whether two nodes with a link exchange with each other.
  [[nodiscard]] bool are_partners(std::size_t i, std::size_t j) const;
  /// The longest time that two healthy replicas have gone without an exchange of some fragment.
  [[nodiscard]] TimeUs longest_us() const { return longest_us_; }

 private:
  struct NodeState {
    bool finite = true;
    std::uint64_t replica_life = 0;
    TimeUs well_since_us = 0;
    std::vector<TimeUs> exchanged_us = {};  ///< when each fragment was last exchanged
  };

  void grow();
  void look();
  [[nodiscard]] bool well(std::size_t i) const;
  [[nodiscard]] bool joined(std::size_t i, std::size_t j) const;
  void look_at(std::size_t i, std::size_t j);
  void look_at(std::size_t i, std::size_t j, TimeUs since_us);

  const Cluster& cluster_;
  const Network& network_;
  gossip::ReplicaOptions options_;
  TimeUs bound_us_;
  TimeUs next_look_us_ = 0;
  TimeUs longest_us_ = 0;
  std::vector<NodeState> nodes_;
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> joined_since_us_;  ///< i < j: since when the link works
};

}  // namespace gossamer::sim
