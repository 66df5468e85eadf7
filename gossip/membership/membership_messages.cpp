#include "gossip/membership/membership_messages.hpp"

#include <algorithm>

namespace gossamer {

namespace {

constexpr std::size_t header_bytes = 12;  // kind, flags, number of rumours, one spare byte, incarnation
constexpr std::size_t sequence_bytes = 4;
constexpr std::size_t node_bytes = sizeof(NodeId::bytes);

struct BodyValid {
  bool operator()(const PingRequest& body) const { return body.patience_us <= max_patience_us && valid(body.target); }
  bool operator()(const Sync& body) const {
    return valid(body.sender) && body.entries.size() <= max_sync_entries &&
           std::ranges::all_of(body.entries, [](const SyncEntry& entry) {
             return valid(entry.record) && (entry.claim == Claim::alive || entry.claim == Claim::suspected);
           });
  }
  bool operator()(const Join& body) const { return valid(body.sender); }
  bool operator()(const ForwardJoin& body) const { return valid(body.newcomer) && body.hops_left <= max_walk_hops; }
  bool operator()(const NeighbourRequest& body) const { return valid(body.sender); }
  bool operator()(const NeighbourReply& body) const { return valid(body.sender); }
  bool operator()(const Shuffle& body) const {
    return valid(body.origin) && body.hops_left <= max_walk_hops && valid_records(body.records);
  }
  bool operator()(const ShuffleReply& body) const { return valid_records(body.records); }
  template <class Plain>
  bool operator()(const Plain&) const {
    return true;
  }

  static bool valid_records(const std::vector<MemberRecord>& records) {
    return records.size() <= max_shuffle_records &&
           std::ranges::all_of(records, [](const MemberRecord& record) { return valid(record); });
  }
};

std::size_t records_bytes(const std::vector<MemberRecord>& records) {
  std::size_t bytes = 1;
  for (const MemberRecord& record : records)
    bytes += wire_bytes(record);
  return bytes;
}

struct BodyBytes {
  std::size_t operator()(const Ping&) const { return sequence_bytes; }
  std::size_t operator()(const PingRequest& body) const {
    return sequence_bytes + sizeof body.patience_us + wire_bytes(body.target);
  }
  std::size_t operator()(const Ack&) const { return sequence_bytes; }
  std::size_t operator()(const Nack&) const { return sequence_bytes; }
  std::size_t operator()(const Sync& body) const {
    std::size_t bytes = wire_bytes(body.sender) + 2;
    for (const SyncEntry& entry : body.entries)
      bytes += wire_bytes(entry.record) + 1;
    return bytes;
  }
  std::size_t operator()(const Join& body) const { return wire_bytes(body.sender); }
  std::size_t operator()(const ForwardJoin& body) const { return wire_bytes(body.newcomer) + 1; }
  std::size_t operator()(const NeighbourRequest& body) const { return wire_bytes(body.sender); }
  std::size_t operator()(const NeighbourReply& body) const { return wire_bytes(body.sender); }
  std::size_t operator()(const Shuffle& body) const {
    return wire_bytes(body.origin) + 1 + records_bytes(body.records);
  }
  std::size_t operator()(const ShuffleReply& body) const { return records_bytes(body.records); }
  template <class Plain>
  std::size_t operator()(const Plain&) const {
    return 0;
  }
};

bool valid(const Rumour& rumour) {
  if (static_cast<std::uint8_t>(rumour.claim) > max_claim || rumour.hops > max_rumour_hops) return false;
  return rumour.claim == Claim::alive ? gossamer::valid(rumour.subject) : rumour.subject.node != NodeId{};
}

}  // namespace

bool valid(const MemberRecord& record) {
  return record.node != NodeId{} && record.address.size() <= max_member_address_bytes &&
         (record.dial_only || !record.address.empty());
}

bool valid(const MembershipMessage& message) {
  return message.rumours.size() <= max_message_rumours &&
         std::ranges::all_of(message.rumours, [](const Rumour& rumour) { return valid(rumour); }) &&
         std::visit(BodyValid{}, message.body);
}

std::uint64_t largest_incarnation(const MembershipMessage& message) {
  std::uint64_t largest = message.incarnation;
  const auto see = [&largest](const MemberRecord& record) { largest = std::max(largest, record.incarnation); };
  std::visit(
      [&see](const auto& body) {
        if constexpr (requires { body.target; }) see(body.target);
        if constexpr (requires { body.sender; }) see(body.sender);
        if constexpr (requires { body.newcomer; }) see(body.newcomer);
        if constexpr (requires { body.origin; }) see(body.origin);
        if constexpr (requires { body.records; }) std::ranges::for_each(body.records, see);
        if constexpr (requires { body.entries; }) std::ranges::for_each(body.entries, see, &SyncEntry::record);
      },
      message.body);
  return largest;
}

std::size_t wire_bytes(const MemberRecord& record) {
  return node_bytes + sizeof record.incarnation + 1 + 1 + record.address.size();
}

std::size_t wire_bytes(const Rumour& rumour) {
  const std::size_t common = 1 + 1 + node_bytes + sizeof rumour.subject.incarnation;
  switch (rumour.claim) {
    case Claim::alive:
      return 1 + 1 + wire_bytes(rumour.subject);
    case Claim::suspected:
      return common + node_bytes;
    case Claim::dead:
    case Claim::left:
      return common;
  }
  return common;
}

std::size_t wire_bytes(const MembershipMessage& message) {
  std::size_t bytes = header_bytes + std::visit(BodyBytes{}, message.body);
  for (const Rumour& rumour : message.rumours)
    bytes += wire_bytes(rumour);
  return bytes;
}

}  // namespace gossamer
