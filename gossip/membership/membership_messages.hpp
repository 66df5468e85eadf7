// What nodes say to each other about who is in the cluster, as values. Every list has a bound named here; valid()
// checks them, and gossip::Membership checks every message that it is given, so that a garbled or hostile one of an
// admitted member costs no more than its own bytes. Times travel as microseconds, identities as 16 bytes, addresses as
// a length byte and at most 255 bytes.
//
// Pure values, any thread.

#pragma once

#include <variant>

#include "gossip/types.hpp"

namespace gossamer {

inline constexpr std::size_t max_member_address_bytes = 255;
/// Rumours that ride on one message, in number and in bytes: with its header it fits an Ethernet frame.
inline constexpr std::size_t max_message_rumours = 24;
inline constexpr std::size_t max_message_rumour_bytes = 1'200;
/// Members in one Sync; of a larger table a random part is sent.
inline constexpr std::size_t max_sync_entries = 128;
/// Members in one Shuffle or ShuffleReply.
inline constexpr std::size_t max_shuffle_records = 8;
/// Hops that a random walk (ForwardJoin, Shuffle) may be asked to take.
inline constexpr std::uint8_t max_walk_hops = 16;
/// Times a rumour is passed on from a node to the next: ends one that has outlived the memory of those who know it.
inline constexpr std::uint8_t max_rumour_hops = 24;
/// How long a node may be asked to wait for another's answer on behalf of a third.
inline constexpr std::uint32_t max_patience_us = 60'000'000;

/// A node as others may come to know it. Of two records of a node the one with the larger incarnation is right.
struct MemberRecord {
  NodeId node = {};
  std::uint64_t incarnation = 0;
  bool dial_only = false;    ///< nobody can dial it (behind a NAT): its links are those that it dials itself
  std::string address = {};  ///< where to dial it; may be empty if dial_only

  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

/// What is said of a member. The number is what goes on the wire.
enum class Claim : std::uint8_t {
  alive = 0,
  suspected = 1,
  dead = 2,
  left = 3,  ///< by its own decision
};
inline constexpr std::uint8_t max_claim = 3;

/// One piece of news. `spread` asks its receivers to pass it on; otherwise it is meant for them alone.
struct Rumour {
  Claim claim = Claim::alive;
  bool spread = true;
  std::uint8_t hops = 0;
  MemberRecord subject = {};  ///< the address only where claim is alive
  NodeId accuser = {};        ///< who suspects; only where claim is suspected
};

/// "Are you there?" Answered with an Ack of the same sequence. `neighbour`: you are in my active view.
struct Ping {
  std::uint32_t sequence = 0;
  bool neighbour = false;
};
/// "Is the target there? I hear nothing from it." Answered with an Ack, or after `patience_us` without one a Nack,
/// which shows that at least the one who asks is in reach (Dadgar et al. 2018, section IV-A).
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
/// Anti-entropy: the members that the sender knows, or its active view where it keeps only a part (`partial` of the
/// message), which tells its neighbours who else watches it.
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
/// "Let us be neighbours." `urgent`: the sender has too few and will not be turned down.
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
/// A sample of the origin's views on its random walk; who ends the walk answers with one of its own.
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
/// Nothing but rumours.
struct News {};

using MembershipBody = std::variant<Ping, PingRequest, Ack, Nack, Sync, Join, ForwardJoin, NeighbourRequest,
                                    NeighbourReply, Disconnect, Shuffle, ShuffleReply, Leave, News>;

struct MembershipMessage {
  std::uint64_t incarnation = 0;  ///< the sender's own: first-hand news of it with every message
  bool partial = false;           ///< the sender keeps a partial view
  std::vector<Rumour> rumours = {};
  MembershipBody body = News{};
};

/// All counts, lengths and enumerations are within the bounds above, and records can be used.
[[nodiscard]] bool valid(const MembershipMessage& message);
[[nodiscard]] bool valid(const MemberRecord& record);

/// Bytes on the wire before encryption and framing; who sent it is known from the link.
[[nodiscard]] std::size_t wire_bytes(const MembershipMessage& message);
[[nodiscard]] std::size_t wire_bytes(const Rumour& rumour);
[[nodiscard]] std::size_t wire_bytes(const MemberRecord& record);

}  // namespace gossamer
