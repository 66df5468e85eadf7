// How a new replica gets its model: it takes over a running replica's, or the newcomers choose who begins (founding).
//
// - If a neighbour runs the job, the newcomer pulls every fragment from running replicas, several at a time. If
//   one of them goes away, only the fragments that were asked of it are asked for again. Where none runs, a drained
//   one serves as well; it declines if it is about to leave.
// - If no neighbour runs the job but others are joining, the one with the largest clock, then the smallest id,
//   begins with its client's model. The others wait for it and pull.
// - If there is nobody, it begins alone. Newcomers whose last donor is gone, and does not come back in a while, choose
//   again by the same rule: one of them begins with what it has, and the others pull the rest from it.
//
// This is a state machine: messages and time come in, actions come out. One owner, one thread.

#pragma once

#include <map>
#include <optional>
#include <set>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

struct JoiningOptions {
  TimeUs answer_timeout_us = 1 * us_per_s;  ///< a neighbour that does not report its state is passed over
  TimeUs pull_timeout_us = 10 * us_per_s;   ///< a fragment that has not come after this is asked for elsewhere
  /// After each delay the donor is given twice as long for the next fragment, up to this: its link may be slow.
  TimeUs pull_timeout_most_us = 640 * us_per_s;
  /// A donor whose link is lost is waited for this long, since only the link may have failed. To go on without it could
  /// mix two models, or start another model beside the job's.
  TimeUs donor_return_us = 20 * us_per_s;
  std::size_t pulls_per_donor = 2;  ///< fragments under way from one donor
  /// Donors that have trained at least this share of the most advanced one count as equal to it. The nearest of them
  /// comes first. A smaller share takes older models from nearby.
  double as_advanced = 0.9;
};

class Joining {
 public:
  /// `own_clock`: clock of the model that this node would begin with. `keeps`: nobody trains the job here. Such a node
  /// begins only if its model has been trained and is needed by newcomers that train, or by trainers whose own model
  /// cannot be pulled. Silent nodes alone do not make it begin: they may have trained more.
  Joining(JoiningOptions options, const NodeId& self, const JobKey& job, std::uint64_t own_clock,
          std::vector<std::uint32_t> fragment_blocks, bool keeps = false);

  struct Ask {
    NodeId to;
    Message message;
  };
  /// Values of a fragment that the client is to take over. Their size has been checked.
  struct Take {
    std::uint32_t fragment;
    std::uint64_t clock;
    Bytes values;
  };
  struct Actions {
    std::vector<Ask> ask;
    std::vector<Take> take;
    bool finished = false;  ///< joining is over: the job may run
  };

  /// A neighbour is in reach. It is asked for its state.
  void link_up(const NodeId& node, TimeUs now_us, Actions& out);
  void link_down(const NodeId& node, TimeUs now_us, Actions& out);
  void info(const NodeId& from, const JobInfo& info, TimeUs now_us, Actions& out);
  /// The round trip as measured. 0: not yet measured; the neighbour then counts as far away.
  void set_round_trip(const NodeId& node, TimeUs round_trip_us);
  void pulled(const NodeId& from, const PullReply& reply, TimeUs now_us, Actions& out);
  /// `all_dialled`: every neighbour to be dialled is linked or has failed once. Nothing is decided before that.
  void tick(bool all_dialled, TimeUs now_us, Actions& out);

  [[nodiscard]] std::uint32_t fragments_pulled() const { return pulled_count_; }
  /// Number of donors that fragments are being pulled from.
  [[nodiscard]] std::uint32_t donors() const;
  /// The clock of the model taken over; 0: nothing was pulled.
  [[nodiscard]] std::uint64_t clock() const { return clock_; }
  /// The cursor that came with the model; empty if none did.
  [[nodiscard]] const std::vector<std::byte>& cursor() const { return cursor_; }

 private:
  struct Neighbour {
    std::optional<JobInfo> info = {};
    TimeUs asked_us = 0;
    TimeUs round_trip_us = 0;
    std::size_t pulls = 0;
    TimeUs patience_us = 0;    ///< how long it may take for a fragment
    TimeUs pull_after_us = 0;  ///< not asked before this, because it declined a fragment or was late
    int failed_pulls = 0;      ///< failed pulls in a row
  };
  struct Fragment {
    std::uint32_t blocks = 0;
    bool done = false;
    std::optional<NodeId> donor = {};
    TimeUs asked_us = 0;
    std::set<NodeId> late = {};  ///< donors that were given up; a late reply of theirs is still used
  };

  void decide(TimeUs now_us, Actions& out);
  void ask_for_fragments(TimeUs now_us, Actions& out);
  void release(Fragment& fragment);
  void forget(const NodeId& node);
  void pull_overdue(Fragment& fragment, TimeUs now_us);
  void pull_failed(Fragment& fragment, TimeUs now_us, int counts_as);
  [[nodiscard]] bool gives(const Neighbour& neighbour, ReplicaState state) const;
  [[nodiscard]] bool somebody_gives(ReplicaState state) const;
  /// The state of the neighbours that give the model: running, or draining if none runs.
  [[nodiscard]] ReplicaState state_of_givers() const;
  [[nodiscard]] std::uint64_t furthest() const;
  [[nodiscard]] std::uint64_t furthest_beside(const NodeId& donor) const;
  /// Donors that can be asked now, the best first.
  [[nodiscard]] std::vector<NodeId> donors_in_order(TimeUs now_us) const;

  JoiningOptions options_;
  NodeId self_;
  JobKey job_;
  bool keeps_;
  std::uint64_t own_clock_;  // others compare this with their clock, whatever was pulled
  std::uint64_t clock_ = 0;
  std::vector<Fragment> fragments_;
  std::map<NodeId, Neighbour> neighbours_;
  std::uint32_t pulled_count_ = 0;
  std::vector<std::byte> cursor_;
  std::optional<TimeUs> donor_lost_us_;  // when a link to a donor was last lost
  bool all_dialled_ = false;
  bool finished_ = false;
};

}  // namespace gossamer::gossip
