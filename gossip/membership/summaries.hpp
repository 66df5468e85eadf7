// What nodes tell of themselves for people who look, passed on from one to the next, so that each can show the cluster.
//
// Every few seconds a node says how it stands, and what it has heard of others, to one neighbour by chance. What that
// costs does not grow with the cluster: a message has at most max_summaries, a table max_kept_summaries. In a cluster
// of at most max_summaries nodes everything is in every message, and known everywhere after about log2(n) periods; in a
// larger one a node sees a part, another one from minute to minute: of 200 nodes nine tenths, of 512 two thirds.
// Nothing is decided on it, as any member can make up what it likes; a node believes nobody about itself.
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
/// After this time without news of a node it is left out.
inline constexpr TimeUs summary_lifetime_us = 60 * us_per_s;
inline constexpr std::size_t max_kept_summaries = 512;

class SummaryTable {
 public:
  explicit SummaryTable(const NodeId& self) : self_(self) {}

  /// What a neighbour said: of each node the newest word is kept.
  void hear(const Summaries& said, TimeUs now_us);
  /// What to say to one: `own`, numbered here, and of what was heard as many as there is room for, by chance.
  [[nodiscard]] Summaries say(NodeSummary own, TimeUs now_us, Random& random);
  /// Of the others, by id, none older than summary_lifetime_us; `age_ms` as of now.
  [[nodiscard]] std::vector<NodeSummary> others(TimeUs now_us) const;

 private:
  struct Heard {
    NodeSummary summary;
    TimeUs made_us = 0;  // by this node's clock, as its age said
  };
  void forget_old(TimeUs now_us);

  NodeId self_;
  std::uint64_t number_ = 0;
  std::map<NodeId, Heard> heard_;  // at most max_kept_summaries
};

}  // namespace gossamer::gossip
