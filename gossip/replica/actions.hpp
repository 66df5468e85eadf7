// The decisions of a replica, as values. gossip/replica/executor.hpp carries the decisions out and states their order.

#pragma once

#include <utility>
#include <variant>
#include <vector>

#include "gossip/exchange/exchange.hpp"

namespace gossamer::gossip {

struct Actions {
  struct Send {
    NodeId to;
    Message message;
  };
  /// The fragment's parts are to be stored where they outlive the daemon, together with notes about the commit.
  struct Store {
    std::uint32_t fragment;
    std::optional<std::uint32_t> answered = {};  ///< place of the record of a reply that counts from this commit on
    std::optional<std::uint32_t> undone = {};    ///< place of a record whose half is undone by this commit
  };

  // Each kind of work runs on a fragment that is held for it. Its result goes to Replica::finished().
  struct Answer {
    NodeId to;
    std::uint32_t place;  ///< place of the reply's record, which outlives the daemon
    AnswerTask task;
  };
  struct Snapshot {  ///< read y for a joiner, or for this node's checkpoint: see Replica::copy()
    NodeId to;
  };
  struct Provide {};  ///< take memory for the fragment's buffers
  struct Vacate {};   ///< store the fragment's parts, then give its buffers' memory back
  struct Gather {};   ///< several clients: move y into the node's own memory
  struct Offer {};    ///< several clients: give each of them its part of a round
  struct TakeIn {};   ///< several clients: take their publications into y
  using Work = std::variant<EncodeTask, Answer, ConcludeTask, UndoTask, OuterTask, LookTask, Snapshot, Provide, Vacate,
                            Gather, Offer, TakeIn>;
  struct Run {
    std::uint32_t fragment;
    Work work;
  };

  std::vector<Store> store;
  std::vector<std::uint32_t> due;  ///< fragments that the client is given now: store their parts
  std::vector<Run> run;
  std::vector<Send> send;
  std::vector<std::uint32_t> recall;  ///< take these back unless the client is serving them; call Replica::recalled()
};

/// The results of work, for Replica::finished().
struct Provided {
  bool there;  ///< false: no memory is available
};
struct Gathered {
  bool finite;  ///< false: y holds NaN or infinity, or there is no room; y stays where it was
};
struct Done {};  ///< for all other work, which has no result
using Finished = std::variant<EncodeTask::Result, AnswerTask::Result, ConcludeTask::Result, UndoTask::Result,
                              OuterTask::Result, LookTask::Result, Provided, Gathered, Done>;

}  // namespace gossamer::gossip
