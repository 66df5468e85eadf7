// How a new replica comes to its model: it takes over a running one's, or agrees with other newcomers who begins.
//
//   - If some neighbour runs the job, the newcomer pulls every fragment from the running ones, several at a time; one
//     that goes away costs only the fragments it had been asked for. Where none runs, one that is drained does as well:
//     it declines if it is about to leave.
//   - If none does, but others are joining, the one with the largest clock, then the smallest id, begins with the model
//     its client brought; the rest wait for it and pull.
//   - If there is nobody, it begins alone. So do newcomers whose last donor dies while they pull: one of them begins
//     with what it has, by the same rule, and the others pull the rest from it.
//
// A state machine: messages and time in, actions out. One owner, one thread.

#pragma once

#include <map>
#include <optional>
#include <set>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

struct JoiningOptions {
  TimeUs answer_timeout_us = 1 * us_per_s;  ///< a neighbour that does not say where it stands is passed over
  TimeUs pull_timeout_us = 10 * us_per_s;   ///< a fragment asked for and not come is asked for elsewhere
  /// Each time, the donor is given twice as long for the next, up to this: its link may be slow.
  TimeUs pull_timeout_most_us = 640 * us_per_s;
  std::size_t pulls_per_donor = 2;  ///< fragments under way from one donor
  /// Donors that have trained at least this share of what the most advanced one has are as good as it: then the nearest
  /// comes first. Less takes older models from near by.
  double as_advanced = 0.9;
};

class Joining {
 public:
  Joining(JoiningOptions options, const NodeId& self, const JobKey& job, std::uint64_t clock,
          std::vector<std::uint32_t> fragment_blocks);

  struct Ask {
    NodeId to;
    Message message;
  };
  /// Values of a fragment, checked for size, that the client is to take over.
  struct Take {
    std::uint32_t fragment;
    std::uint64_t clock;
    Bytes values;
  };
  struct Actions {
    std::vector<Ask> ask;
    std::vector<Take> take;
    bool finished = false;  ///< the model is agreed on: run
  };

  /// A neighbour is in reach. It is asked where it stands.
  void link_up(const NodeId& node, TimeUs now_us, Actions& out);
  void link_down(const NodeId& node, TimeUs now_us, Actions& out);
  void info(const NodeId& from, const JobInfo& info, TimeUs now_us, Actions& out);
  /// As measured; 0: not yet, which counts as far.
  void set_round_trip(const NodeId& node, TimeUs round_trip_us);
  void pulled(const NodeId& from, const PullReply& reply, TimeUs now_us, Actions& out);
  /// `settled`: every neighbour that was to be dialled is linked or has failed once. Nothing is decided before.
  void tick(bool settled, TimeUs now_us, Actions& out);

  [[nodiscard]] std::uint32_t fragments_pulled() const { return pulled_count_; }
  /// Donors that fragments are under way from.
  [[nodiscard]] std::uint32_t donors() const;
  /// The clock of the model taken over; the client's own if it begins.
  [[nodiscard]] std::uint64_t clock() const { return clock_; }
  /// That came with the model; empty if none did.
  [[nodiscard]] const std::vector<std::byte>& cursor() const { return cursor_; }

 private:
  struct Neighbour {
    std::optional<JobInfo> info = {};
    TimeUs asked_us = 0;
    TimeUs round_trip_us = 0;
    std::size_t pulls = 0;
    TimeUs patience_us = 0;    ///< what it has for a fragment
    TimeUs pull_after_us = 0;  ///< it declined a fragment, or did not give it in time: the others come first
    int failed_pulls = 0;      ///< in a row
  };
  struct Fragment {
    std::uint32_t blocks = 0;
    bool done = false;
    std::optional<NodeId> donor = {};
    TimeUs asked_us = 0;
    std::set<NodeId> late = {};  ///< donors that were given up: what comes from them yet is welcome
  };

  void decide(TimeUs now_us, Actions& out);
  void ask_for_fragments(TimeUs now_us, Actions& out);
  void release(Fragment& fragment);
  void forget(const NodeId& node);
  void pull_overdue(Fragment& fragment, TimeUs now_us);
  void pull_failed(Fragment& fragment, TimeUs now_us);
  [[nodiscard]] bool gives(const Neighbour& neighbour, ReplicaState state) const;
  [[nodiscard]] bool somebody_gives(ReplicaState state) const;
  /// Running replicas, or where there are none, draining ones.
  [[nodiscard]] ReplicaState state_of_givers() const;
  [[nodiscard]] std::uint64_t furthest() const;
  [[nodiscard]] std::uint64_t furthest_beside(const NodeId& donor) const;
  /// Those that can be asked now, the best first.
  [[nodiscard]] std::vector<NodeId> donors_in_order(TimeUs now_us) const;

  JoiningOptions options_;
  NodeId self_;
  JobKey job_;
  std::uint64_t own_clock_;  // of the client's model: what others compare theirs with, whatever has been pulled
  std::uint64_t clock_;
  std::vector<Fragment> fragments_;
  std::map<NodeId, Neighbour> neighbours_;
  std::uint32_t pulled_count_ = 0;
  std::vector<std::byte> cursor_;
  bool settled_ = false;
  bool finished_ = false;
};

}  // namespace gossamer::gossip
