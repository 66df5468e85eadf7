// What must hold whatever happens to messages, links, daemons and clients; checked after every event of a cluster.
//
//   attribution   a node's model, with the corrections on their way to it, changes by training, by its half of a named
//                 exchange, and by taking a joined model over. Nothing else changes it beyond fp32 rounding.
//   exactly once  each end of an exchange commits at most once, the responder first, and by opposite amounts. One end
//                 alone commits only if something happened that may part them. Its half is undone then, unless a client
//                 has died, whatever became of the daemons; and if that is not to be, the survivor counts it.
//   the ledger    the sum over nodes is what they began with, what they trained, less what died, plus such lone halves.
//   bounds        what a replica keeps stays within its named bounds.
//   partners      nobody asks or answers a node that it was told is dead; who drains answers nothing new.
//   numbers       NaN is where it was put, and nowhere else.
//
// Models are looked at through a projection: one fixed random weight for each element, so that a change of any element
// shows, and the exact size of it can be compared between two ends. One thread.

#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "tools/sim/hunt/trace.hpp"

namespace gossamer::sim {

/// An invariant does not hold. The message says which, what was expected and what was found.
class Violation : public std::runtime_error {
 public:
  Violation(const std::string& what, Trace::Concern concern) : std::runtime_error(what), concern_(concern) {}
  [[nodiscard]] const Trace::Concern& concern() const { return concern_; }

 private:
  Trace::Concern concern_;
};

class Invariants {
 public:
  /// `options` of the replicas in the cluster, whose on_event is to call on().
  Invariants(const Cluster& cluster, const gossip::ReplicaOptions& options, std::uint64_t seed);

  /// Throws Violation.
  void on(const Cluster::Event& event);
  /// Node i's model may hold NaN from now on, or no longer after the present training step.
  void allow_nan(std::size_t i) { nodes_[i].nan_allowed = true; }
  void forbid_nan(std::size_t i) { nodes_[i].nan_allowed = false; }
  /// The two had no working link at this time, or one of them stood still: an exchange may have outlived its lifetime.
  void excuse(std::size_t i, std::size_t j, TimeUs now_us);
  /// Everything has been drained: what is still open will stay open. Throws Violation.
  void finish();

  /// Of everything at node i; a number that depends on every element.
  [[nodiscard]] double value(std::size_t i) const;
  [[nodiscard]] std::uint64_t exchanges() const { return both_; }  ///< that both ends have concluded
  [[nodiscard]] std::uint64_t halves() const { return halves_; }   ///< that one end has committed alone
  /// Nothing has happened that may leave one end of an exchange alone.
  [[nodiscard]] bool undisturbed() const;
  /// Replicas' `unresolved`, of daemons that died too.
  [[nodiscard]] std::uint64_t unresolved() const;
  [[nodiscard]] std::uint64_t violations() const;
  /// Unordered pairs between which an exchange was concluded since the last call of forget_pairs().
  [[nodiscard]] const std::set<std::pair<std::size_t, std::size_t>>& pairs() const { return pairs_; }
  void forget_pairs() { pairs_.clear(); }

 private:
  /// Projections of one fragment at one node.
  struct Parts {
    double model = 0;
    double correction = 0;
    double square = 0;  ///< sum of squares of what was added up, for the rounding to expect
    bool finite = true;

    [[nodiscard]] double whole() const { return model + correction; }
  };
  struct NodeState {
    bool client = false;
    TimeUs client_began_us = 0;
    bool nan_allowed = false;
    std::vector<Parts> parts;
    std::set<std::size_t> linked = {};
    std::set<std::size_t> dead = {};
    std::uint64_t unresolved = 0;  ///< of its present daemon
    std::uint64_t violations = 0;
    TimeUs resumed_us = 0;
  };
  struct Exchange {
    std::size_t initiator = 0;
    std::size_t responder = 0;
    std::uint32_t fragment = 0;
    TimeUs begun_us = -1;
    TimeUs answered_us = -1;
    int lost = 0;  ///< of its messages
    bool answered = false;
    bool concluded = false;
    bool undone = false;
    bool lone = false;  ///< was taken for one that stays at one end
    std::optional<double> given =
        {};  ///< what the responder's projection changed by; nothing if that was out of the sum
    std::optional<double> taken = {};  ///< the initiator's
    double rounding = 0;               ///< to expect in `given`
  };
  /// Times at which something happened, rising.
  using Times = std::vector<TimeUs>;

  [[nodiscard]] Parts measure(std::size_t i, std::uint32_t f) const;
  void grow();
  void training_over(std::size_t i);
  void answered(const Cluster::Event& event);
  void concluded(const Cluster::Event& event);
  void undone(const Cluster::Event& event);
  void adopted(const Cluster::Event& event);
  void let_go(std::size_t i);
  void daemon_died(std::size_t i);
  void client_died(std::size_t i);
  void client_began(std::size_t i);
  void sent(const Cluster::Event& event);
  /// Fragment f of node i is what it was, but for what the client took over if `collected`.
  void unchanged(std::size_t i, std::uint32_t f, bool collected);
  /// By how much the corrections of f changed, the model being what it was. Nothing if the fragment is out of the sum.
  std::optional<double> commit_of(const Cluster::Event& event, double& rounding);
  /// The fragment enters or leaves the sum with NaN, or changes for a reason of its own.
  void account(const Parts& before, const Parts& after);
  void turned(std::size_t i);
  void check_bounds(std::size_t i) const;
  void check_finite(std::size_t i, std::uint32_t f, const Parts& parts) const;
  [[nodiscard]] bool excused(const Exchange& exchange) const;
  /// Halves whose time to find the other is over, or all.
  void check_lone_halves(TimeUs now_us);
  void check_lone_half(const ExchangeId& id);
  [[nodiscard]] bool client_lived(std::size_t node, const Exchange& exchange) const;
  [[nodiscard]] TimeUs given_up_us(const Exchange& exchange) const;
  [[nodiscard]] bool is_over(const Exchange& exchange, TimeUs now_us) const;
  void check_ledger() const;
  [[noreturn]] void fail(const std::string& what, const Cluster::Event& event) const;

  const Cluster& cluster_;
  gossip::ReplicaOptions options_;
  std::vector<double> weights_;
  std::vector<NodeState> nodes_;
  std::map<ExchangeId, Exchange> exchanges_;
  std::map<std::pair<std::size_t, std::size_t>, Times> parted_;  ///< i < j: told dead, or without a working link
  std::map<std::size_t, Times> ended_;                           ///< daemon or client of the node
  std::set<std::pair<std::size_t, std::size_t>> pairs_;
  double ledger_ = 0;             ///< what the sum over nodes must be, but for lone halves
  double rounding_ = 0;           ///< sum of squares of what exchanges may have rounded away
  std::uint64_t unresolved_ = 0;  ///< of daemons that died
  std::uint64_t violations_ = 0;
  std::deque<ExchangeId> open_;  ///< answered, in order
  int most_lost_ = 0;            ///< messages of one exchange
  std::uint64_t both_ = 0;
  std::uint64_t halves_ = 0;
};

}  // namespace gossamer::sim
