// Who is in reach, and how to talk to them: keeps links to the nodes that membership wants links to, notices when one
// is lost or dead, carries gossip's messages.
//
// A link is two connections (control and bulk) that one end dials and both use. Between two nodes there is at most one:
// where both dial at the same time, the node with the smaller id decides whose link stays, before anything is sent on
// either, so that nothing is lost. Messages on one channel of one link arrive in order and once; with a link, those
// under way are lost. On top of that every link has heartbeats: silence for link_timeout_ms ends it. That ends a link,
// not a node. A node is dead when gossip::Membership says so and there is no link that proves otherwise, when it says
// goodbye, or when it comes back with another incarnation. Links that membership does not keep (to say something to a
// node that is no neighbour) are not shown: no event tells of them, though messages over them are carried.
//
// One thread, the io_context's. Events are told from the loop, in order, never from inside a method of this class
// (peer/overlay/turns.hpp); their handlers may call every method but must not destroy the object. Bytes that are sent
// without a copy may be released on one of ZeroMQ's own threads, so their owner's destructor must be fit for that.

#pragma once

#include <spdlog/logger.h>
#include <asio/io_context.hpp>
#include <expected>
#include <functional>

#include "gossip/membership/membership.hpp"
#include "gossip/messages.hpp"
#include "gossip/random.hpp"
#include "gossip/replica/link_load.hpp"
#include "peer/admission/denials.hpp"
#include "peer/admission/invitation.hpp"
#include "peer/admission/key_ring.hpp"
#include "peer/limits.hpp"
#include "peer/links/polled_socket.hpp"

namespace gossamer::peer {

struct OverlaySettings {
  std::string listen = "tcp://127.0.0.1:7946";  ///< port 0: any free one
  /// Where others are told to dial this node. Empty: where it listens (0.0.0.0 is replaced by the address others see);
  /// "none": nowhere, this node only dials out.
  std::string advertise;
  std::string interface;           ///< all connections go through this one of the machine's; empty: as it routes
  std::string name;                ///< for people; at most max_name_bytes
  std::vector<std::string> peers;  ///< tcp://HOST:PORT, dialled until they are members; at most max_members
  /// Members of an earlier life, dialled while no node is known. What is no address is left out.
  std::vector<std::string> remembered;
  std::vector<NodeId> denied;     ///< nodes that get no link from us, whatever key they hold or members say
  Denials denials;                ///< what this node knew of the cluster's when it stopped
  std::uint64_t incarnation = 1;  ///< larger at each start: microseconds since 1970 will do

  /// More often notices a lost node sooner and costs about 200 bytes each time.
  int ping_interval_ms = 500;
  /// Shorter ends links of nodes that only paused.
  int link_timeout_ms = 3000;
  /// Who is told dead when, and how many links are kept: full_view_limit is lowered to max_links.
  gossip::MembershipOptions membership = {};
  /// From dialling to the link being up; slow networks and many keys in the ring need more.
  int attempt_timeout_ms = 5000;
  int backoff_least_ms = 100;
  int backoff_most_ms = 5000;
  /// Timers are looked at this often.
  int tick_ms = 50;
  /// Optional abilities that are offered to the other end of each link; less only to play an older node.
  std::uint64_t features = spoken_features;
  /// ZeroMQ's threads, 1 to 64, each good for about 1 GB/s of CURVE. A connection stays with one of them. ZeroMQ deals
  /// accepted connections out in turn, two a link, so with an even number all bulk meets on half of them.
  int io_threads = 1;
  std::size_t max_links = 64;  ///< at most max_links of peer/limits.hpp
  /// Of connections to our port that are not admitted yet: how many there are at most, and how long each may take.
  std::size_t max_strangers = peer::max_strangers;
  TimeUs stranger_patience_us = peer::stranger_patience_us;
  /// Bytes queued on a link before send() says full, and messages a channel queues on either side. A link whose rate is
  /// known queues no more than goes out in about a second (peer/links/pacing.hpp).
  std::size_t max_queued_bytes = std::size_t{64} << 20;
  int control_high_water_messages = 256;
  int bulk_high_water_messages = 64;
  /// Most that is sent, over all links and on one, in bytes a second of frames with what encryption adds; 0: no limit.
  /// Bulk waits for it; control is counted and does not wait.
  double bytes_per_s = 0;
  double link_bytes_per_s = 0;
};

/// Frames of messages before encryption. `payload` is part of `bulk`.
struct Traffic {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t control_bytes_sent = 0;
  std::uint64_t control_bytes_received = 0;
  std::uint64_t bulk_bytes_sent = 0;
  std::uint64_t bulk_bytes_received = 0;
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
};

struct LinkStatus {
  NodeId node;  ///< all zeros: an address that has never answered
  std::string name;
  std::string address;
  bool up = false;       ///< and kept: a neighbour
  bool passing = false;  ///< up, but not kept
  bool dead = false;
  bool dialled_by_us = false;
  std::uint64_t features = 0;      ///< that both ends of the link have (peer/limits.hpp)
  double round_trip_ms = 0;        ///< smoothed; 0: not measured yet
  double last_round_trip_ms = 0;   ///< of one heartbeat
  double least_round_trip_ms = 0;  ///< of the last seconds; 0: not measured yet
  double goodput_bytes_s = 0;      ///< what the link took while more was waiting; 0: not seen lately
  std::uint64_t bytes_sent = 0;    ///< since this node first came up, over all its links
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  Traffic traffic;
  std::size_t queued_bytes = 0;     ///< waiting, or with ZeroMQ and not encrypted yet
  std::size_t under_way_bytes = 0;  ///< of bulk, sent and not acknowledged
  TimeUs up_since = 0;
  std::string last_error;
};

/// A node in the cluster, as membership knows it.
struct KnownMember {
  NodeId node;
  std::string name;     ///< empty: not known, there has been no link to it
  std::string address;  ///< empty: it only dials out
  std::uint64_t incarnation = 0;
  bool suspected = false;  ///< of being dead
  bool linked = false;
  TimeUs last_heard = 0;  ///< of the overlay's clock
};

/// What membership amounts to here.
struct MembershipStatus {
  bool partial = false;     ///< members are only those of the active view
  std::size_t members = 0;  ///< without this node
  std::size_t view = 0;     ///< nodes that links are kept to
  std::size_t passive = 0;  ///< others known of, to replace losses from
  std::uint64_t incarnation = 0;
  int health = 0;  ///< 0: answers in time; each more, up to 8, adds once more to its patience with others
  gossip::MembershipCounters counters;
};

/// Since the start, over all nodes.
struct OverlayCounters {
  Traffic traffic;
  std::uint64_t malformed = 0;           ///< messages against the protocol
  std::uint64_t unknown = 0;             ///< messages of a kind only newer nodes know
  std::uint64_t strangers = 0;           ///< messages of connections that are not admitted, other than a sound hello
  std::uint64_t hellos_throttled = 0;    ///< not looked at: too many at a time
  std::uint64_t admissions_refused = 0;  ///< hellos answered with `rejected`
  std::uint64_t handshakes_failed = 0;   ///< at our port, before CURVE was through
  std::uint64_t strangers_closed = 0;    ///< connections to our port: not admitted in time, or too many
  std::uint64_t attempts = 0;            ///< links dialled
  std::uint64_t attempts_failed = 0;
  std::uint64_t links_up = 0;  ///< times
  std::uint64_t links_lost = 0;
  std::uint64_t sends_full = 0;
};

/// A key of the ring, for people.
struct KeyStatus {
  Fingerprint fingerprint{};
  TimeUs made_at = 0;  ///< microseconds since 1970; 0: not known
  bool listened_with = false;
  std::size_t holders = 0;  ///< neighbours that have said that they hold it
};

class OverlayEvents {
 public:
  virtual ~OverlayEvents() = default;
  /// The node is a neighbour now.
  virtual void link_up(const NodeId& node) = 0;
  /// It is one no longer; what is under way may still be finished for a while, if the link itself is up.
  virtual void link_down(const NodeId& node, const std::string& reason) = 0;
  /// After link_down, once for each life of a node.
  virtual void node_dead(const NodeId& node) = 0;
  virtual void received(const NodeId& from, Message&& message) = 0;
  /// Overlay::denials() has changed.
  virtual void denials_changed() {}
  /// Keeps the ring for the next start. An error prevents a change that was asked for here, not one heard of. This is
  /// no event but a part of what changes the ring, which waits for it; it must not call the overlay.
  [[nodiscard]] virtual std::expected<void, std::string> keep_key_ring(const KeyRing&) { return {}; }
};

class Overlay {
 public:
  using Clock = std::function<TimeUs()>;
  using Joined = std::function<void(std::expected<void, std::string>)>;

  /// `events` outlives it. `random` spreads redials; secrets come from the operating system. `clock` is monotonic,
  /// `time_of_day` counts from 1970.
  Overlay(asio::io_context& loop, OverlaySettings options, Identity identity, KeyRing keys, OverlayEvents& events,
          std::shared_ptr<spdlog::logger> log, gossip::Random random, Clock clock, Clock time_of_day);
  /// Without stop(): like the end of the process, the others see their connections end.
  ~Overlay();
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;

  /// Listens and begins to dial. The error is fit for the user. Once.
  [[nodiscard]] std::expected<void, std::string> start();
  /// Never blocks. Which channel a message takes follows from its kind.
  [[nodiscard]] SendResult send(const NodeId& to, const Message& message);
  /// Every configured peer, and every node that links are kept to, is linked or has failed its first attempt: nobody
  /// else is to be expected soon.
  [[nodiscard]] bool settled() const;
  /// Known nodes, linked or not, by id; then addresses that have never answered.
  [[nodiscard]] std::vector<LinkStatus> links() const;
  /// By id; with partial views the active view.
  [[nodiscard]] std::vector<KnownMember> members() const;
  [[nodiscard]] MembershipStatus membership() const;
  [[nodiscard]] OverlayCounters counters() const;
  /// Where it listens, with the port found.
  [[nodiscard]] std::string address() const;
  [[nodiscard]] const NodeId& node() const;

  [[nodiscard]] std::expected<void, std::string> add_peer(const std::string& address);
  /// For a reload: links to nodes that are no longer listed stay up. Nothing changes if one address is wrong.
  [[nodiscard]] std::expected<void, std::string> set_peers(const std::vector<std::string>& addresses);
  /// As in OverlaySettings: the others are told, and find this node there from now on. Links stay up.
  [[nodiscard]] std::expected<void, std::string> set_advertise(const std::string& wish);
  /// Those that this node alone turns away, by its configuration.
  void set_denied(const std::vector<NodeId>& nodes);

  /// A decision for the whole cluster: enforced here at once, told to every member. The error is fit for the user.
  /// denials_changed() tells of it, too.
  [[nodiscard]] std::expected<Denial, std::string> decide(const NodeId& node, bool denied, const std::string& reason);
  [[nodiscard]] const Denials& denials() const;
  [[nodiscard]] std::vector<KeyStatus> key_ring() const;
  /// Adds a new key to the ring of every member; it is listened with when the neighbours hold it.
  [[nodiscard]] std::expected<Fingerprint, std::string> rotate_key();
  /// Takes a key out of every member's ring, for good.
  [[nodiscard]] std::expected<void, std::string> retire_key(const Fingerprint& fingerprint);
  /// A line that admits whoever holds it until `validity_us` from now. `addresses`: where members answer; none: where
  /// this one and its neighbours do.
  [[nodiscard]] std::expected<std::string, std::string> invite(TimeUs validity_us, std::vector<Address> addresses);
  /// Gets the key ring from a member that the invitation names, in place of our own, and dials them. `joined` is called
  /// from the loop, once; an error is fit for the user. One at a time; refused while a link is up.
  [[nodiscard]] std::expected<void, std::string> join(const Invitation& invitation, Joined joined);

  /// Of the fastest link, as measured lately: what the node's network takes at least. 0: not known.
  [[nodiscard]] double goodput_bytes_s() const;
  /// All zeros without a link.
  [[nodiscard]] gossip::LinkLoad load(const NodeId& node) const;
  /// As in OverlaySettings.
  void set_rates(double bytes_per_s, double link_bytes_per_s);
  /// Says goodbye to all and closes. What has left its link's queue is still delivered, for up to half a second, while
  /// the object is being destroyed; bulk that waits in it is not. No event comes after this.
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace gossamer::peer
