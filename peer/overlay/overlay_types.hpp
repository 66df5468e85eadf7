// What goes into the overlay and comes out of it: its settings, what it shows of links and members, and the events that
// it tells its owner. Values, but for the owner's interface. What the overlay does with them is in
// peer/overlay/overlay.hpp.

#pragma once

#include <expected>
#include <functional>
#include <string>
#include <vector>

#include "gossip/membership/membership.hpp"
#include "gossip/messages.hpp"
#include "peer/address.hpp"
#include "peer/admission/audit.hpp"
#include "peer/admission/certificates.hpp"
#include "peer/admission/denials.hpp"
#include "peer/admission/key_ring.hpp"
#include "peer/limits.hpp"
#include "peer/links/seal.hpp"

namespace gossamer::peer {

using OverlayClock = std::function<TimeUs()>;
/// Called when this node has joined, or has failed to; the error is fit for the user.
using Joined = std::function<void(std::expected<void, std::string>)>;

struct OverlaySettings {
  std::string listen = default_listen;  ///< port 0: any free one
  /// The address that others are told to dial. Empty: where it listens (0.0.0.0 is replaced by the address that others
  /// see). "none": no address, because this node only dials out.
  std::string advertise;
  std::string interface;           ///< all connections go through this network interface; empty: as the machine routes
  std::string name;                ///< shown to people; at most max_name_bytes
  std::vector<std::string> peers;  ///< tcp://HOST:PORT, dialled until they are members; at most max_members
  /// Addresses of members of an earlier run, dialled while no node is known. Malformed ones are left out.
  std::vector<std::string> remembered;
  std::vector<NodeId> denied;      ///< nodes that this node gives no link, whatever key they hold
  Denials denials;                 ///< the cluster's denials, as this node knew them when it stopped
  Audit audit = {};                ///< the audit when this node stopped
  Certificates certificates = {};  ///< the certificates that this node knew when it stopped
  std::uint64_t incarnation = 1;   ///< must be larger at each start, like microseconds since 1970

  /// The interval between heartbeats. A shorter one notices a lost node sooner; each costs about 200 bytes.
  int ping_interval_ms = 500;
  /// A link is ended after this much silence. A shorter time also ends links of nodes that only paused.
  int link_timeout_ms = 3000;
  /// Sets when a node is declared dead, and how many links are kept. full_view_limit is lowered to max_links.
  gossip::MembershipOptions membership = {};
  /// The time for each of a link's two connections. Slow networks and many keys in the ring need more.
  int attempt_timeout_ms = 5000;
  int backoff_least_ms = 100;
  int backoff_most_ms = 5000;
  /// How often links and time limits are looked at.
  int tick_ms = 50;
  /// How bulk is protected where the other end can do the same. `plain` holds only where both ends want it.
  BulkProtection bulk = BulkProtection::sealed;
  /// Optional abilities that may be offered to the other end of each link. Tests allow fewer, as an older node would.
  std::uint64_t features = spoken_features;
  /// The number of ZeroMQ's threads, 1 to 64. Each moves about 3 GB/s, or 1 GB/s where bulk goes through CURVE, and a
  /// connection stays with one of them. ZeroMQ gives each accepted connection to the next thread, and a link has two of
  /// them, so with an even number of threads all bulk is on half of the threads.
  int io_threads = 1;
  /// The number of threads that seal and open bulk; 0: the loop does. The loop manages about 3 GB/s, and does nothing
  /// else meanwhile.
  int seal_threads = 0;
  std::size_t max_links = 64;  ///< at most max_links of peer/limits.hpp
  /// The most connections to our port that are not admitted yet, and the time that each of them has.
  std::size_t max_strangers = peer::max_strangers;
  TimeUs stranger_patience_us = peer::stranger_patience_us;
  /// If this many bytes are queued on a link, send() says full. The two numbers after it are the most messages that a
  /// channel queues on either side. A link whose rate is known queues no more than it sends in about a second
  /// (peer/links/pacing.hpp).
  std::size_t max_queued_bytes = std::size_t{64} << 20;
  int control_high_water_messages = 256;
  int bulk_high_water_messages = 64;
  /// Caps on what is sent over all links, and over each, in bytes a second of encrypted frames; 0: no cap. Control
  /// counts but does not wait; bulk waits.
  double bytes_per_s = 0;
  double link_bytes_per_s = 0;
};

/// Counts frames of messages before encryption. Payload bytes are part of bulk bytes.
struct Traffic {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t control_bytes_sent = 0;
  std::uint64_t control_bytes_received = 0;
  std::uint64_t bulk_bytes_sent = 0;
  std::uint64_t bulk_bytes_received = 0;
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;

  [[nodiscard]] std::uint64_t bytes_sent() const { return control_bytes_sent + bulk_bytes_sent; }
  [[nodiscard]] std::uint64_t bytes_received() const { return control_bytes_received + bulk_bytes_received; }
};

struct LinkStatus {
  NodeId node;  ///< all zeros: nobody has ever answered at the address
  std::string name;
  std::string address;
  bool up = false;       ///< The link is up and kept: the node is a neighbour.
  bool passing = false;  ///< The link is up, but not kept.
  bool dead = false;
  bool dialled_by_us = false;
  std::uint64_t features = 0;  ///< abilities that both ends have (peer/limits.hpp)
  BulkProtection bulk = BulkProtection::curve;
  double round_trip_ms = 0;         ///< smoothed; 0: not measured yet
  double last_round_trip_ms = 0;    ///< round trip of the newest heartbeat that came back
  double least_round_trip_ms = 0;   ///< the least lately; 0: not measured yet
  double goodput_bytes_s = 0;       ///< what the link takes while more waits; 0: not seen lately
  Traffic traffic;                  ///< over all links to this node
  std::size_t queued_bytes = 0;     ///< bulk that waits, and what ZeroMQ has not encrypted yet
  std::size_t under_way_bytes = 0;  ///< bulk that was sent and is not acknowledged
  TimeUs up_since = 0;
  std::string last_error;
};

/// A node in the cluster, as membership knows it.
struct KnownMember {
  NodeId node;
  std::string name;     ///< empty: not known, since there was no link to it
  std::string address;  ///< empty: it only dials out
  std::uint64_t incarnation = 0;
  bool suspected = false;  ///< may be dead
  bool linked = false;
  TimeUs last_heard = 0;  ///< by the overlay's clock
};

/// How membership stands at this node.
struct MembershipStatus {
  bool partial = false;     ///< members are only those of the active view
  std::size_t members = 0;  ///< without this node
  std::size_t view = 0;     ///< nodes that links are kept to
  std::size_t passive = 0;  ///< others that may replace lost ones
  std::uint64_t incarnation = 0;
  int health = 0;  ///< 0: this node answers in time; larger, up to 8: it is slow, and more patient with others
  gossip::MembershipCounters counters;
};

/// Counts since the start, over all nodes.
struct OverlayCounters {
  Traffic traffic;
  std::uint64_t malformed = 0;           ///< messages against the protocol
  std::uint64_t unknown = 0;             ///< messages of kinds that only newer nodes know
  std::uint64_t strangers = 0;           ///< messages on connections not admitted, other than sound hellos and claims
  std::uint64_t hellos_throttled = 0;    ///< hellos that were not looked at, because there were too many
  std::uint64_t decisions_refused = 0;   ///< messages with decisions for the cluster that were not followed
  std::uint64_t admissions_refused = 0;  ///< refused hellos and claims, and nodes that are denied or have another key
  std::uint64_t handshakes_failed = 0;   ///< connections to our port with another key, or another protocol
  std::uint64_t strangers_closed = 0;    ///< connections to our port closed as late, too many, or with too much sent
  std::uint64_t attempts = 0;            ///< links dialled
  std::uint64_t attempts_failed = 0;
  std::uint64_t links_up = 0;  ///< how often a link came up
  std::uint64_t links_lost = 0;
  std::uint64_t sends_full = 0;
};

/// A key of the ring, for people.
struct KeyStatus {
  Fingerprint fingerprint{};
  TimeUs made_at = 0;  ///< microseconds since 1970; 0: not known
  bool listened_with = false;
  bool is_signed = false;   ///< signed by the cluster's authority or a deputy
  std::size_t holders = 0;  ///< neighbours that have said that they hold it
};

/// A node that was turned away because it has no certificate.
struct WaitingNode {
  NodeId node;
  std::string name;
  std::string host;
  std::string why = {};
  TimeUs last_at = 0;  ///< microseconds since 1970
};

class OverlayEvents {
 public:
  virtual ~OverlayEvents() = default;
  /// The node is a neighbour now.
  virtual void link_up(const NodeId& node) = 0;
  /// The node is no longer a neighbour. If the link itself is up, what is under way may still be finished for a while.
  virtual void link_down(const NodeId& node, const std::string& reason) = 0;
  /// The node is dead. Told after link_down(), once for each life of a node.
  virtual void node_dead(const NodeId& node) = 0;
  virtual void received(const NodeId& from, Message&& message) = 0;
  /// Overlay::denials() or Overlay::audit() has changed.
  virtual void denials_changed() {}
  virtual void certificates_changed() {}
  /// Stores the ring for the next start, and logs an error. It prevents a change that was asked for here, but not a
  /// change that was heard of. This is no event: the overlay waits for the answer while it changes the ring, and must
  /// not be called.
  [[nodiscard]] virtual std::expected<void, std::string> keep_key_ring(const KeyRing&) { return {}; }
};

}  // namespace gossamer::peer
