// Summaries of nodes, for people. Nodes pass them on to each other, so that each node can show the whole cluster.
//
// Every few seconds a node sends its own summary, and some that it has heard, to one neighbour by chance. The cost does
// not grow with the cluster: a message has at most max_summaries, a table max_kept_summaries. In a cluster of at most
// max_summaries nodes every message has all summaries, and each is known everywhere after about log2(n) periods. In a
// larger cluster a node sees a part that changes from minute to minute: nine tenths of 200 nodes, two thirds of 512. No
// decision uses summaries, since any member can invent them; a node believes no summary about itself.
//
// One owner, one thread. Time and randomness come in as arguments.

#pragma once

#include <map>
#include <optional>
#include <vector>

#include "gossip/messages.hpp"
#include "gossip/random.hpp"

namespace gossamer::gossip {

inline constexpr TimeUs summary_period_us = 2 * us_per_s;
/// A node without news for this time is left out.
inline constexpr TimeUs summary_lifetime_us = 60 * us_per_s;
inline constexpr std::size_t max_kept_summaries = 512;

class SummaryTable {
 public:
  explicit SummaryTable(const NodeId& self) : self_(self) {}

  /// Takes in a neighbour's message. The newest summary of each node is kept.
  void hear(const Summaries& said, TimeUs now_us);
  /// The message for one neighbour: `own`, which is numbered here, and others by chance as far as there is room.
  [[nodiscard]] Summaries say(NodeSummary own, TimeUs now_us, Random& random);
  /// The summaries of other nodes, by id, none older than summary_lifetime_us; `age_ms` is as of now.
  [[nodiscard]] std::vector<NodeSummary> others(TimeUs now_us) const;

 private:
  struct Heard {
    NodeSummary summary;
    TimeUs made_us = 0;  // by this node's clock, from the summary's age
  };
  void forget_old(TimeUs now_us);

  NodeId self_;
  std::uint64_t number_ = 0;
  std::map<NodeId, Heard> heard_;  // at most max_kept_summaries
};

}  // namespace gossamer::gossip
