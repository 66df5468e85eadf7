// The links of this node and the nodes that it knows: the tables, and how to find something in them.
//
// A Link is in the table from the moment that it is known until it ends. A link that is up is in its node's record,
// too. Both tables are bounded: links by OverlaySettings::max_links, which their makers look at, nodes by max_members.
//
// The table decides nothing: what happens to links is decided in peer/overlay/links.hpp. One thread, the loop's.

#pragma once

#include <map>
#include <unordered_map>

#include "gossip/check.hpp"
#include "gossip/replica/byte_budget.hpp"
#include "peer/links/listener.hpp"
#include "peer/links/outgoing_link.hpp"
#include "peer/links/pacing.hpp"
#include "peer/overlay/overlay_types.hpp"
#include "peer/wire/bulk_parts.hpp"

namespace gossamer::peer {

/// The index of a channel in arrays with one element for each.
[[nodiscard]] inline std::size_t index_of(Channel channel) {
  return static_cast<std::size_t>(channel);
}

/// After a pause a cap lets as much pass at once as it otherwise does in this time. The time is short, so that the cap
/// holds over seconds, but longer than a timer is late.
inline constexpr TimeUs cap_burst_us = 50 * us_per_ms;

/// The phases of a link's life. A link that is up is passing or shown, and may change between the two.
enum class LinkPhase {
  making,   ///< dialled or let in, but not up on both channels yet
  passing,  ///< up; the owner does not know of it, because it is not kept
  shown,    ///< up; the owner was told that the node is a neighbour
  ended,
};

/// A ChannelRecord counts the messages of one channel of a link, and remembers when the last ones came.
struct ChannelRecord {
  TimeUs heard = 0;            ///< when something last came
  TimeUs beaten = 0;           ///< when a heartbeat last came
  TimeUs pinged = 0;           ///< when this node last sent one
  std::uint64_t sent = 0;      ///< messages since admission
  std::uint64_t received = 0;  ///< messages since admission
};

struct Link {
  LinkPhase phase = LinkPhase::making;
  std::shared_ptr<OutgoingLink> outgoing;              ///< set if this node dialled
  int bulk_io_thread = 0;                              ///< set if this node dialled
  std::array<std::string, channel_count> routing_ids;  ///< set if the other end dialled; empty: not admitted yet
  int bulk_descriptor = -1;                            ///< of the bulk connection; set when the link comes up
  bool uses_bbr = false;                               ///< it was chosen for bulk, where the kernel has it
  std::string user_id;                                 ///< public key of the other end in hex, to check what comes in
  std::string host;                                    ///< where the other end is, as seen from here
  std::uint64_t number = 0;                            ///< chosen by the end that dialled
  std::uint64_t features = 0;                          ///< abilities that both ends have
  std::optional<SealForm> bulk_form;                   ///< set when the link comes up; nothing: bulk goes through CURVE
  NodeId node;                                         ///< all zeros until it is known
  Rights rights;                                       ///< the other end's rights when the link came up
  std::string broken;                                  ///< why the link is unusable; another turn ends it
  TimeUs opened = 0;
  TimeUs up_since = 0;
  TimeUs last_kept = 0;  ///< when it was last kept or needed
  TimeUs last_greeted = 0;
  TimeUs last_heard = 0;
  std::array<ChannelRecord, channel_count> channels;
  double round_trip_ms = 0;       ///< smoothed
  double last_round_trip_ms = 0;  ///< round trip of the newest heartbeat that came back
  std::uint32_t malformed = 0;
  QueueMeter meter = std::make_shared<std::atomic<std::size_t>>(0);
  BulkQueue waiting;
  Pacing pacing;
  gossip::ByteBudget budget{0, cap_burst_us};
  BulkAssembly assembly;
  std::uint64_t bulk_received = 0;  ///< bytes of frames, without heartbeats
  TimeUs bulk_received_at = 0;
  std::uint64_t bulk_acked = 0;  ///< how much of bulk_received this node has acknowledged

  [[nodiscard]] ChannelRecord& on(Channel channel) { return channels[index_of(channel)]; }
  [[nodiscard]] const ChannelRecord& on(Channel channel) const { return channels[index_of(channel)]; }
  [[nodiscard]] bool dialled_by_us() const { return outgoing != nullptr; }
  [[nodiscard]] bool is_up() const { return phase == LinkPhase::passing || phase == LinkPhase::shown; }
  [[nodiscard]] bool is_shown() const { return phase == LinkPhase::shown; }
  /// The only way from one phase to another. A link that is shown is hidden before it ends, since the owner must be
  /// told.
  void enter(LinkPhase next) {
    GOSSAMER_CHECK(phase != next && phase != LinkPhase::ended && next != LinkPhase::making);
    GOSSAMER_CHECK(phase != LinkPhase::making || next != LinkPhase::shown);
    GOSSAMER_CHECK(phase != LinkPhase::shown || next == LinkPhase::passing);
    phase = next;
  }
};
using LinkPtr = std::shared_ptr<Link>;

struct NodeRecord {
  std::string name;
  std::string address;  ///< where the node can be dialled; empty: nowhere
  std::uint64_t incarnation = 0;
  LinkPtr link;         ///< the link that is up, if there is one
  bool was_up = false;  ///< the owner has been told of the node
  bool dead = false;
  TimeUs down_since = 0;
  TimeUs banned_until = 0;
  std::string last_error;  ///< why there is no link: the newest reason
  Traffic traffic;
};

class LinkTable {
 public:
  [[nodiscard]] const std::vector<LinkPtr>& links() const { return links_; }
  [[nodiscard]] const std::map<NodeId, NodeRecord>& nodes() const { return nodes_; }

  void add(LinkPtr link) { links_.push_back(std::move(link)); }
  /// The link has ended. Its connections are no longer known.
  void remove(const LinkPtr& link);
  void clear();
  /// Messages that come on this connection are the link's.
  void connect(const std::string& routing_id, LinkPtr link, Channel channel) {
    connections_[routing_id] = {std::move(link), channel};
  }

  /// Messages that come on this connection are a stranger's.
  void disconnect(const std::string& routing_id) { connections_.erase(routing_id); }

  /// The node's record, made if need be. Null if there are max_members and all of them are still needed.
  [[nodiscard]] NodeRecord* record_of(const NodeId& node, TimeUs now);
  /// Null if the node is not known.
  [[nodiscard]] NodeRecord* find(const NodeId& node);
  [[nodiscard]] const NodeRecord* find(const NodeId& node) const;
  /// Notes why there is no link to who is at this address: to `node`, or if that is not known, to whoever told it.
  void note_failure(const std::string& address, const std::optional<NodeId>& node, const std::string& why);
  /// The link to this node that is up, or null.
  [[nodiscard]] LinkPtr link_to(const NodeId& node) const;
  [[nodiscard]] bool is_linked(const NodeId& node) const { return link_to(node) != nullptr; }
  /// Null if the connection is of no link.
  [[nodiscard]] const std::pair<LinkPtr, Channel>* on_connection(const std::string& routing_id) const;
  [[nodiscard]] LinkPtr link_of(const OutgoingLink& outgoing) const;
  /// The link that this node is dialling to us under this number, or null.
  [[nodiscard]] LinkPtr incoming_of(const NodeId& node, std::uint64_t number) const;
  [[nodiscard]] bool has_admitted_incoming(const NodeId& node) const;
  [[nodiscard]] bool has_introduced_outgoing(const NodeId& node) const;

 private:
  std::vector<LinkPtr> links_;
  std::map<NodeId, NodeRecord> nodes_;
  std::unordered_map<std::string, std::pair<LinkPtr, Channel>> connections_;  ///< admitted, by routing id
};

}  // namespace gossamer::peer
