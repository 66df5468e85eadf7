// Messages between nodes about who is in the cluster, as values. Every list has a bound that is named here. valid()
// checks the bounds, and gossip::Membership checks every message, so that a garbled or hostile message of an admitted
// member costs no more than its own bytes. Times travel as microseconds, identities as 16 bytes, addresses as a length
// byte and at most 255 bytes.
//
// These are pure values; any thread.

#pragma once

#include <variant>

#include "gossip/types.hpp"

namespace gossamer {

inline constexpr std::size_t max_member_address_bytes = 255;
/// Bound on the rumours of one message, in number and in bytes. With its header the message fits an Ethernet frame.
inline constexpr std::size_t max_message_rumours = 24;
inline constexpr std::size_t max_message_rumour_bytes = 1'200;
/// Members in one Sync. A random part of a larger table is sent.
inline constexpr std::size_t max_sync_entries = 128;
/// Members in one Shuffle or ShuffleReply.
inline constexpr std::size_t max_shuffle_records = 8;
/// Largest number of hops that a random walk (ForwardJoin, Shuffle) may be asked to take.
inline constexpr std::uint8_t max_walk_hops = 16;
/// Largest number of times that a rumour is passed on. It ends a rumour that nodes have already forgotten.
inline constexpr std::uint8_t max_rumour_hops = 24;
/// Longest time that a node may be asked to wait for another's answer on behalf of a third.
inline constexpr std::uint32_t max_patience_us = 60'000'000;

/// A node as it is described to others. Between two records of a node, the one with the larger incarnation is right.
struct MemberRecord {
  NodeId node = {};
  std::uint64_t incarnation = 0;
  bool dial_only = false;    ///< it cannot be dialled (behind a NAT), so it dials all its links itself
  std::string address = {};  ///< where to dial it; may be empty if dial_only

  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

/// A claim about a member. The number goes on the wire.
enum class Claim : std::uint8_t {
  alive = 0,
  suspected = 1,
  dead = 2,
  left = 3,  ///< by its own decision
};
inline constexpr std::uint8_t max_claim = 3;

/// One piece of news. `spread`: its receivers are to pass it on; otherwise it is only for them.
struct Rumour {
  Claim claim = Claim::alive;
  bool spread = true;
  std::uint8_t hops = 0;
  MemberRecord subject = {};  ///< has the address only if claim is alive
  NodeId accuser = {};        ///< the node that suspects; only if claim is suspected
};

/// "Are you there?" The answer is an Ack of the same sequence. `neighbour`: it is in the sender's active view.
struct Ping {
  std::uint32_t sequence = 0;
  bool neighbour = false;
};
/// "Is the target there? I hear nothing from it." The answer is an Ack, or a Nack after `patience_us` without one. A
/// Nack shows that at least the asking node is in reach (Dadgar et al. 2018, section IV-A).
struct PingRequest {
  std::uint32_t sequence = 0;
  std::uint32_t patience_us = 0;
  MemberRecord target = {};
};
struct Ack {
  std::uint32_t sequence = 0;
};
struct Nack {
  std::uint32_t sequence = 0;
};

struct SyncEntry {
  MemberRecord record = {};
  Claim claim = Claim::alive;  ///< alive or suspected
};
/// Anti-entropy: the members that the sender knows. If the message's `partial` is set, it is the sender's active view,
/// which tells its neighbours who else watches it.
struct Sync {
  MemberRecord sender = {};
  bool answer_wanted = false;
  std::vector<SyncEntry> entries = {};
};

/// A newcomer introduces itself.
struct Join {
  MemberRecord sender = {};
};
/// A newcomer on its random walk to a neighbour (Leitão et al. 2007, algorithm 1).
struct ForwardJoin {
  MemberRecord newcomer = {};
  std::uint8_t hops_left = 0;
};
/// "Let us be neighbours." `urgent`: the sender has too few neighbours, and the request must not be turned down.
struct NeighbourRequest {
  MemberRecord sender = {};
  bool urgent = false;
};
struct NeighbourReply {
  MemberRecord sender = {};
  bool accepted = false;
};
/// The sender no longer has the receiver in its active view.
struct Disconnect {};
/// A sample of the origin's views, on a random walk. The node at the end of the walk answers with a sample of its own.
struct Shuffle {
  MemberRecord origin = {};
  std::uint8_t hops_left = 0;
  std::vector<MemberRecord> records = {};
};
struct ShuffleReply {
  std::vector<MemberRecord> records = {};
};
/// The sender leaves the cluster for good.
struct Leave {};
/// A message with rumours only.
struct News {};

using MembershipBody = std::variant<Ping, PingRequest, Ack, Nack, Sync, Join, ForwardJoin, NeighbourRequest,
                                    NeighbourReply, Disconnect, Shuffle, ShuffleReply, Leave, News>;

struct MembershipMessage {
  std::uint64_t incarnation = 0;  ///< the sender's own, first-hand
  bool partial = false;           ///< the sender keeps a partial view
  std::vector<Rumour> rumours = {};
  MembershipBody body = News{};
};

/// True if all counts, lengths and enumerations are within the bounds above, and records can be used.
[[nodiscard]] bool valid(const MembershipMessage& message);
/// The largest incarnation in the message, without its rumours: the sender's, and those of the nodes in the body.
[[nodiscard]] std::uint64_t largest_incarnation(const MembershipMessage& message);
[[nodiscard]] bool valid(const MemberRecord& record);

/// Bytes on the wire before encryption and framing. The link itself tells who sent the message.
[[nodiscard]] std::size_t wire_bytes(const MembershipMessage& message);
[[nodiscard]] std::size_t wire_bytes(const Rumour& rumour);
[[nodiscard]] std::size_t wire_bytes(const MemberRecord& record);

}  // namespace gossamer
