// The invariants that hold whatever happens to messages, links, daemons and clients; checked after every event.
//
//   attribution   A node's model, with the corrections on their way to it, changes only by training, by its half of a
//                 named exchange, and by taking a joined model over, apart from fp32 rounding.
//   exactly once  Each end of an exchange commits at most once, the responder first, by opposite amounts, each
//                 with the share that the responder has chosen for it. One end commits alone only if something happened
//                 that may part the two. Its half is then undone, even if daemons died. If a client has died, the half
//                 may stay, and the survivor counts it.
//   weights       Both shares are equal, or in the ratio of the ends' samples a step where replicas weigh by these.
//   the ledger    The sum over the living nodes is that of their first models, their training, the lone halves, and the
//                 changes by pushes to servers and by exchanges that weigh. These changes are measured, not computed in
//                 advance.
//   bounds        A replica's tables stay within their named bounds.
//   partners      Nobody asks or answers a node that it was told is dead. A draining node answers nothing new.
//   numbers       NaN appears only where it was put.
//   settings      A node's settings of the job never become older while its client lives, whatever its daemon does. One
//                 that only follows may come to older ones if others have had them.
//   clocks        A model that is taken over has the clock of a donor, or the clock with which it was saved. The job's
//                 clock is never ahead of the furthest clock of its models.
//   the end       No program's run ends while a program in reach still trains (checked by the scenario).
//
// Models are compared through a projection: one fixed random weight for each element. A change of any element shows,
// and its exact size can be compared between two ends. One thread.

#pragma once

#include <fmt/format.h>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tools/sim/hunt/trace.hpp"

namespace gossamer::sim {

/// An invariant does not hold. The message says which one, what was expected and what was found.
class Violation : public std::runtime_error {
 public:
  /// `text` is formatted with the values.
  template <class... Values>
  Violation(Trace::Concern concern, fmt::format_string<Values...> text, Values&&... values)
      : std::runtime_error(fmt::format(text, std::forward<Values>(values)...)), concern_(concern) {}
  [[nodiscard]] const Trace::Concern& concern() const { return concern_; }

 private:
  Trace::Concern concern_;
};

class Invariants {
 public:
  /// `options` are those of the cluster's replicas. The cluster's on_event must call on().
  Invariants(const Cluster& cluster, const gossip::ReplicaOptions& options, std::uint64_t seed);

  /// Throws Violation.
  void on(const Cluster::Event& event);
  /// Some nodes lie about their clocks: at most a third, and all others see each other.
  void expect_lies(std::function<bool(std::size_t)> lies) { lies_ = std::move(lies); }
  /// allow_nan(): node i's model may hold NaN from now on. forbid_nan(): no longer after the present training step.
  void allow_nan(std::size_t i) { nodes_[i].nan_allowed = true; }
  void forbid_nan(std::size_t i) { nodes_[i].nan_allowed = false; }
  /// Call this while the two nodes have no working link, or one stands still. An exchange may then outlive its
  /// lifetime.
  void excuse(std::size_t i, std::size_t j, TimeUs now_us);
  /// Everything has been drained: exchanges that are open now stay open. Throws Violation.
  void finish();

  /// A number that depends on every element at node i.
  [[nodiscard]] double value(std::size_t i) const;
  [[nodiscard]] std::uint64_t exchanges() const { return both_; }  ///< concluded by both ends
  [[nodiscard]] std::uint64_t halves() const { return halves_; }   ///< committed by one end alone
  /// Nothing has happened that could make one end commit alone.
  [[nodiscard]] bool undisturbed() const;
  /// The replicas' count `unresolved`, including daemons that have died.
  [[nodiscard]] std::uint64_t unresolved() const;
  /// Replies whose outcome their responders still ask for.
  [[nodiscard]] std::uint64_t orphans() const;
  [[nodiscard]] std::uint64_t violations() const;
  /// The unordered pairs that have concluded an exchange since the last call of forget_pairs().
  [[nodiscard]] const std::set<std::pair<std::size_t, std::size_t>>& pairs() const { return pairs_; }
  void forget_pairs() { pairs_.clear(); }

 private:
  /// The projections of one fragment at one node.
  struct Parts {
    double model = 0;
    double correction = 0;
    double square = 0;  ///< sum of the squared terms, from which the rounding follows
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
    std::uint64_t unresolved = 0;  ///< as counted by its present daemon
    std::uint64_t violations = 0;
    TimeUs resumed_us = 0;
    JobSettings settings = {};  ///< the settings that it had last since its client began
    std::uint64_t clock_base = 0;
    std::uint64_t furthest_clock = 0;               ///< that its replica has had with a model of the job
    TimeUs furthest_us = 0;                         ///< when it came to that
    std::uint64_t paced_clock = 0;                  ///< its clock when its speed was last measured
    TimeUs paced_us = 0;                            ///< when that was
    std::vector<std::uint64_t> donors_clocks = {};  ///< of the fragments pulled since it began to join
  };
  struct Exchange {
    std::size_t initiator = 0;
    std::size_t responder = 0;
    std::uint32_t fragment = 0;
    TimeUs begun_us = -1;
    TimeUs answered_us = -1;
    int lost = 0;  ///< how many of its messages were lost
    bool answered = false;
    bool concluded = false;
    bool undone = false;
    bool lone = false;                 ///< counted as an exchange that stays at one end
    std::optional<double> given = {};  ///< change of the responder's projection; nothing if it was out of the sum
    std::optional<double> taken = {};  ///< change of the initiator's projection
    double rounding = 0;               ///< the rounding to expect in `given`
    std::optional<std::pair<int, int>> shifts = {};  ///< the initiator's and the responder's, as the responder says
  };
  /// Times of events, ascending.
  using Times = std::vector<TimeUs>;

  [[nodiscard]] Parts measure(std::size_t i, std::uint32_t f) const;
  void grow();
  void training_over(std::size_t i);
  void answered(const Cluster::Event& event);
  void concluded(const Cluster::Event& event);
  void check_shares(const Cluster::Event& event, const Exchange& exchange) const;
  void undone(const Cluster::Event& event);
  void adopted(const Cluster::Event& event);
  void check_adopted(const Cluster::Event& event) const;
  void pulled(std::size_t i, const PullReply& reply);
  void ran(const Cluster::Event& event);
  void check_clock_taken_over(const Cluster::Event& event);
  void forget_donors(std::size_t i);
  void let_go(std::size_t i);
  void daemon_died(std::size_t i);
  void client_died(std::size_t i);
  void client_began(std::size_t i);
  void sent(const Cluster::Event& event);
  /// Checks that fragment f of node i is unchanged, except for a correction that the client took over if `collected`.
  void unchanged(std::size_t i, std::uint32_t f, bool collected);
  /// The change of f's corrections, while the model stays the same. Nothing if the fragment is out of the sum.
  std::optional<double> commit_of(const Cluster::Event& event, double& rounding);
  /// Updates the ledger for a fragment that NaN adds or removes, or that changes otherwise than by an exchange.
  void account(const Parts& before, const Parts& after);
  void turned(std::size_t i);
  void measure_speed(std::size_t i);
  void check_job_clock(std::size_t i);
  void check_bounds(std::size_t i) const;
  void check_finite(std::size_t i, std::uint32_t f, const Parts& parts) const;
  [[nodiscard]] bool excused(const Exchange& exchange) const;
  /// Checks halves whose time to find the other half is over.
  void check_lone_halves(TimeUs now_us);
  void check_lone_half(const ExchangeId& id);
  [[nodiscard]] bool client_lived(std::size_t node, const Exchange& exchange) const;
  [[nodiscard]] TimeUs given_up_us(const Exchange& exchange) const;
  [[nodiscard]] bool is_over(const Exchange& exchange, TimeUs now_us) const;
  void check_ledger() const;
  [[nodiscard]] Trace::Concern concern_of(const Cluster::Event& event) const;
  template <class... Values>
  [[noreturn]] void fail(const Cluster::Event& event, fmt::format_string<Values...> text, Values&&... values) const {
    throw Violation(concern_of(event), text, std::forward<Values>(values)...);
  }

  const Cluster& cluster_;
  gossip::ReplicaOptions options_;
  std::vector<double> weights_;
  std::vector<NodeState> nodes_;
  std::map<ExchangeId, Exchange> exchanges_;
  std::map<std::pair<std::size_t, std::size_t>, Times> parted_;  ///< i < j: when they had no link, or one was told dead
  std::map<std::size_t, Times> ended_;                           ///< when the node's daemon or client ended
  std::set<std::pair<std::size_t, std::size_t>> pairs_;
  std::set<JobSettings> followed_settings_;  ///< that nodes which do not only follow have had
  std::function<bool(std::size_t)> lies_;    ///< whether the node lies about its clock; empty: nobody does
  std::uint64_t furthest_clock_ = 0;         ///< the furthest clock that a replica with a model of the job has had
  double fastest_ = 0;                       ///< the highest speed of training so far, in samples a microsecond
  double ledger_ = 0;                        ///< the expected sum over nodes, without lone halves
  double rounding_ = 0;                      ///< sum of squared roundings that exchanges may have caused
  std::uint64_t unresolved_ = 0;             ///< counted by daemons that died
  std::uint64_t violations_ = 0;
  std::deque<ExchangeId> open_;  ///< answered exchanges, in order
  int most_lost_ = 0;            ///< the most lost messages of one exchange
  std::uint64_t both_ = 0;
  std::uint64_t halves_ = 0;
};

}  // namespace gossamer::sim
