#include "peer/overlay/link_table.hpp"

#include <algorithm>

namespace gossamer::peer {
namespace {

/// A node without a link for this long is forgotten if the room is needed: nothing is under way with it any more.
constexpr TimeUs forget_node_us = 600 * us_per_s;

}  // namespace

void LinkTable::remove(const LinkPtr& link) {
  std::erase(links_, link);
  for (const std::string& routing_id : link->routing_ids)
    connections_.erase(routing_id);
}

void LinkTable::clear() {
  links_.clear();
  connections_.clear();
  for (auto& [node, record] : nodes_)
    record.link = nullptr;
}

NodeRecord* LinkTable::record_of(const NodeId& node, TimeUs now) {
  if (NodeRecord* known = find(node)) return known;
  if (nodes_.size() >= max_members) {
    const auto spare = std::ranges::find_if(nodes_, [&](const auto& item) {
      const NodeRecord& record = item.second;
      const bool in_use = std::ranges::any_of(links_, [&](const LinkPtr& link) { return link->node == item.first; });
      const bool over = record.dead || !record.was_up || now - record.down_since >= forget_node_us;
      return !in_use && over && now >= record.banned_until;
    });
    if (spare == nodes_.end()) return nullptr;
    nodes_.erase(spare);
  }
  return &nodes_[node];
}

NodeRecord* LinkTable::find(const NodeId& node) {
  const auto known = nodes_.find(node);
  return known == nodes_.end() ? nullptr : &known->second;
}

const NodeRecord* LinkTable::find(const NodeId& node) const {
  const auto known = nodes_.find(node);
  return known == nodes_.end() ? nullptr : &known->second;
}

void LinkTable::note_failure(const std::string& address, const std::optional<NodeId>& node, const std::string& why) {
  for (auto& [id, record] : nodes_) {
    if (node ? id == *node : record.address == address) record.last_error = why;
  }
}

LinkPtr LinkTable::link_to(const NodeId& node) const {
  const NodeRecord* record = find(node);
  return record == nullptr ? nullptr : record->link;
}

const std::pair<LinkPtr, Channel>* LinkTable::on_connection(const std::string& routing_id) const {
  const auto known = connections_.find(routing_id);
  return known == connections_.end() ? nullptr : &known->second;
}

LinkPtr LinkTable::link_of(const OutgoingLink& outgoing) const {
  const auto found = std::ranges::find_if(links_, [&](const LinkPtr& l) { return l->outgoing.get() == &outgoing; });
  GOSSAMER_CHECK(found != links_.end());  // an ended link is closed and makes no more calls
  return *found;
}

LinkPtr LinkTable::incoming_of(const NodeId& node, std::uint64_t number) const {
  const auto found = std::ranges::find_if(links_, [&](const LinkPtr& link) {
    return !link->dialled_by_us() && !link->is_up() && link->node == node && link->number == number;
  });
  return found == links_.end() ? nullptr : *found;
}

bool LinkTable::has_admitted_incoming(const NodeId& node) const {
  return std::ranges::any_of(links_, [&](const LinkPtr& link) {
    return !link->dialled_by_us() && link->node == node && std::ranges::none_of(link->routing_ids, &std::string::empty);
  });
}

bool LinkTable::has_introduced_outgoing(const NodeId& node) const {
  return std::ranges::any_of(
      links_, [&](const LinkPtr& link) { return link->dialled_by_us() && !link->is_up() && link->node == node; });
}

}  // namespace gossamer::peer
