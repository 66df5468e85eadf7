// News on its way through the cluster: which of it rides on the next message, and which has been heard before.
//
// One owner, one thread.

#pragma once

#include "gossip/membership/membership_messages.hpp"

namespace gossamer::gossip {

/// Pieces of news that a node is still passing on.
inline constexpr std::size_t max_queued_rumours = 256;
/// Nodes of which a node remembers the last it heard though it does not keep them as members.
inline constexpr std::size_t max_heard = 512;
/// No younger memory makes room for a newer one: a flood of news is cut short instead of running in circles.
inline constexpr TimeUs min_heard_us = 10 * us_per_s;
inline constexpr TimeUs max_heard_us = 600 * us_per_s;

/// Each piece is sent a bounded number of times, those sent least often first, among them the newest (Das et al. 2002,
/// section 4.1). Newer news about a subject replaces older, but accusations by different nodes stand side by side.
class RumourQueue {
 public:
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }

  /// When full, what was sent most often makes room.
  void push(Rumour rumour);
  void erase(const NodeId& subject);
  /// Adds what fits to `rumours`, within `bytes` and max_message_rumours, and counts it as sent. What has been sent
  /// `limit` times is forgotten. News about `receiver` is left to the caller.
  void take(std::vector<Rumour>& rumours, std::size_t bytes, unsigned limit, const NodeId& receiver);

 private:
  struct Item {
    Rumour rumour;
    unsigned sent = 0;
    std::uint64_t order = 0;
  };
  /// What orders an item, to be sorted in its place.
  struct Rank {
    unsigned sent;
    std::uint64_t order;
    std::size_t index;
  };
  static bool before(const Rank& a, const Rank& b) { return a.sent != b.sent ? a.sent < b.sent : a.order > b.order; }
  [[nodiscard]] std::size_t last() const;

  std::vector<Item> items_;
  std::vector<Rank> ranks_;  // of take(), kept for its memory
  std::uint64_t order_ = 0;
};

/// The last that was heard of nodes that are not kept as members: tells old news from new, and keeps records of a dead
/// node from bringing it back.
class HeardClaims {
 public:
  struct Heard {
    NodeId node;
    std::uint64_t incarnation;
    TimeUs at_us;
    Claim claim;
  };

  [[nodiscard]] const Heard* find(const NodeId& node) const;
  /// A node that is dead or gone, and has shown no larger incarnation.
  [[nodiscard]] bool gone(const NodeId& node, std::uint64_t incarnation) const;
  /// False if there is no room and everything is younger than min_heard_us.
  bool put(const NodeId& node, std::uint64_t incarnation, Claim claim, TimeUs now_us);
  /// The oldest makes room if there is none, however young.
  void make_room();
  void erase(const NodeId& node);
  void expire(TimeUs now_us);
  [[nodiscard]] const std::vector<Heard>& items() const { return items_; }

 private:
  std::vector<Heard> items_;  // by node
};

}  // namespace gossamer::gossip
