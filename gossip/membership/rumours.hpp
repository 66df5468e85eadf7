// News on its way through the cluster: what goes with the next message, and what has been heard before.
//
// One owner, one thread.

#pragma once

#include "gossip/membership/membership_messages.hpp"

namespace gossamer::gossip {

/// Number of pieces of news that a node is still passing on.
inline constexpr std::size_t max_queued_rumours = 256;
/// For how many nodes that are not kept as members the last claim is remembered.
inline constexpr std::size_t max_heard = 512;
/// A claim younger than this makes no room for a newer one, so that a flood of news ends and does not run in circles.
inline constexpr TimeUs min_heard_us = 10 * us_per_s;
inline constexpr TimeUs max_heard_us = 600 * us_per_s;

/// Each piece is sent a bounded number of times. The pieces sent least often come first, the newest of them before the
/// others (Das et al. 2002, section 4.1). Newer news about a subject replaces older, but accusations by different nodes
/// coexist.
class RumourQueue {
 public:
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }

  /// If the queue is full, the piece that was sent most often makes room.
  void push(Rumour rumour);
  void erase(const NodeId& subject);
  /// Adds pieces to `rumours`, within `bytes` and max_message_rumours, and counts them as sent. A piece that has been
  /// sent `limit` times is forgotten. The caller handles news about `receiver`.
  void take(std::vector<Rumour>& rumours, std::size_t bytes, unsigned limit, const NodeId& receiver);

 private:
  struct Item {
    Rumour rumour;
    unsigned sent = 0;
    std::uint64_t order = 0;
  };
  /// The sort key of an item, with its place.
  struct Rank {
    unsigned sent;
    std::uint64_t order;
    std::size_t index;
  };
  static bool before(const Rank& a, const Rank& b) { return a.sent != b.sent ? a.sent < b.sent : a.order > b.order; }
  [[nodiscard]] std::size_t last() const;

  std::vector<Item> items_;
  std::vector<Rank> ranks_;  // for take(), kept for its memory
  std::uint64_t order_ = 0;
};

/// The last claim about each node that is not kept as a member. It tells old news from new: a record of a dead node
/// does not revive it.
class HeardClaims {
 public:
  struct Heard {
    NodeId node;
    std::uint64_t incarnation;
    TimeUs at_us;
    Claim claim;
  };

  [[nodiscard]] const Heard* find(const NodeId& node) const;
  /// True if the node is dead or has left, and has shown no larger incarnation.
  [[nodiscard]] bool gone(const NodeId& node, std::uint64_t incarnation) const;
  /// False if there is no room and all claims are younger than min_heard_us.
  bool put(const NodeId& node, std::uint64_t incarnation, Claim claim, TimeUs now_us);
  /// Removes the oldest claim if there is no room, however young it is.
  void make_room();
  void erase(const NodeId& node);
  void expire(TimeUs now_us);
  [[nodiscard]] const std::vector<Heard>& items() const { return items_; }

 private:
  std::vector<Heard> items_;  // by node
};

}  // namespace gossamer::gossip
