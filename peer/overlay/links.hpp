// Overlay's inside: the tables of links and nodes and what happens to them. overlay.cpp is its frame (start, stop,
// timer, what the user asks for); links.cpp lets nodes in, brings links up and down, and carries messages;
// links_bulk.cpp lets bulk out, as fast as links and caps allow; agreement.cpp keeps what the members agree on:
// denials, keys, invitations; relocation.cpp tells the others where this one is to be dialled.
//
// Which links stay and who is dead is decided by the roster (peer/overlay/roster.hpp), which is told of links and time.
// A link that is up and kept is *shown*: its owner was told of it. One that is not kept ends after passing_link_us.
//
// One thread, the loop's. A Link is in `links_` from the first thing known of it to its end; one that is up is in its
// node's record, too. The owner is told of what happens at the end of a turn (peer/overlay/turns.hpp), so no method
// here is called while another one runs.

#pragma once

#include <asio/steady_timer.hpp>
#include <map>
#include <set>
#include <unordered_map>

#include "gossip/check.hpp"
#include "gossip/replica/byte_budget.hpp"
#include "peer/admission/spread.hpp"
#include "peer/links/claim_attempt.hpp"
#include "peer/links/listener.hpp"
#include "peer/links/outgoing_link.hpp"
#include "peer/links/pacing.hpp"
#include "peer/overlay/address_book.hpp"
#include "peer/overlay/overlay.hpp"
#include "peer/overlay/roster.hpp"
#include "peer/overlay/turns.hpp"
#include "peer/throttle.hpp"
#include "peer/wire/bulk_parts.hpp"

namespace gossamer::peer {

/// Its place in arrays with one element for each channel.
[[nodiscard]] inline std::size_t index_of(Channel channel) {
  return static_cast<std::size_t>(channel);
}

/// What a cap lets pass at once after a pause: short, so that it holds over seconds, and longer than a timer is late.
inline constexpr TimeUs cap_burst_us = 50 * us_per_ms;
/// Bulk is acknowledged when so much has arrived, and what is less with the next tick.
inline constexpr std::size_t ack_every_bytes = 4 * 1024;

/// The phases of a link's life. One that is up is passing or shown, and may change between the two.
enum class LinkPhase {
  making,   ///< dialled, or let in: not on both channels yet
  passing,  ///< up; the owner does not know of it, because it is not kept
  shown,    ///< up; the owner was told that the node is a neighbour
  ended,
};

struct Link {
  LinkPhase phase = LinkPhase::making;
  std::shared_ptr<OutgoingLink> outgoing;              ///< if dialled by us
  int bulk_io_thread = 0;                              ///< likewise
  std::array<std::string, channel_count> routing_ids;  ///< if dialled by the other end; empty: not admitted yet
  std::string user_id;                                 ///< of the other end, for checking what comes in
  std::string host;                                    ///< the other end's, as seen from here
  std::uint64_t number = 0;                            ///< chosen by the dialler
  std::uint64_t features = 0;                          ///< that both ends have
  NodeId node;                                         ///< zeros until known
  std::string broken;                                  ///< why it is unusable; another turn ends it
  TimeUs opened = 0;
  TimeUs up_since = 0;
  TimeUs last_kept = 0;  ///< or last needed
  TimeUs last_greeted = 0;
  TimeUs last_heard = 0;
  std::array<TimeUs, channel_count> heard{};  ///< the same for each channel
  TimeUs last_ping = 0;
  TimeUs last_bulk_ping = 0;
  double round_trip_ms = 0;       ///< smoothed
  double last_round_trip_ms = 0;  ///< of the newest heartbeat that came back
  std::uint32_t malformed = 0;
  QueueMeter meter = std::make_shared<std::atomic<std::size_t>>(0);
  BulkQueue waiting;
  Pacing pacing;
  gossip::ByteBudget budget{0, cap_burst_us};
  BulkAssembly assembly;
  std::uint64_t bulk_received = 0;  ///< bytes of frames, heartbeats apart
  TimeUs bulk_received_at = 0;
  std::uint64_t bulk_acked = 0;  ///< of them

  [[nodiscard]] bool dialled_by_us() const { return outgoing != nullptr; }
  [[nodiscard]] bool is_up() const { return phase == LinkPhase::passing || phase == LinkPhase::shown; }
  [[nodiscard]] bool is_shown() const { return phase == LinkPhase::shown; }
  /// The only way from one phase to another. A link that is shown is hidden before it ends, since its owner is told.
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
  std::string address;  ///< where it can be dialled; empty: nowhere
  std::uint64_t incarnation = 0;
  LinkPtr link;         ///< if one is up
  bool was_up = false;  ///< our owner has had something to do with it
  bool dead = false;
  TimeUs down_since = 0;
  TimeUs banned_until = 0;
  std::string last_error;
  Traffic traffic;
};

class Overlay::Core : public OutgoingLinkEvents, private Roster::Host {
 public:
  Core(asio::io_context& loop, OverlayOptions options, Identity identity, KeyRing keys, OverlayEvents& events,
       std::shared_ptr<spdlog::logger> log, gossip::Random random, Clock clock, Clock time_of_day);
  ~Core() override;

  std::expected<void, std::string> start();
  SendResult send(const NodeId& to, const Message& message);
  [[nodiscard]] bool settled() const;
  [[nodiscard]] std::vector<LinkStatus> links() const;
  [[nodiscard]] std::vector<MemberStatus> members() const;
  [[nodiscard]] MembershipStatus membership() const;
  [[nodiscard]] OverlayCounters counters() const { return counters_; }
  [[nodiscard]] std::string address() const { return listener_.address().text(); }
  [[nodiscard]] const NodeId& node() const { return identity_.node; }
  std::expected<void, std::string> set_peers(const std::vector<std::string>& addresses);
  std::expected<void, std::string> add_peer(const std::string& address);
  std::expected<void, std::string> set_advertise(const std::string& wish);
  void set_denied(const std::vector<NodeId>& nodes);
  std::expected<Denial, std::string> decide(const NodeId& node, bool denied, const std::string& reason);
  [[nodiscard]] const Denials& denials() const { return spread_.denials(); }
  [[nodiscard]] std::vector<KeyStatus> key_ring() const;
  std::expected<Fingerprint, std::string> rotate_key();
  std::expected<void, std::string> retire_key(const Fingerprint& fingerprint);
  std::expected<std::string, std::string> invite(TimeUs validity_us, std::vector<Address> addresses);
  std::expected<void, std::string> join(const Invitation& invitation, Joined joined);
  void set_rates(double bytes_per_s, double link_bytes_per_s);
  [[nodiscard]] double goodput_bytes_s() const;
  [[nodiscard]] gossip::LinkLoad load(const NodeId& node) const;
  void stop();
  /// Ends every connection at once, without a word.
  void close(int linger_ms);

 private:
  void tell_contacts();
  void note_closing(const Connections::Closing& closing);

  // overlay.cpp: time passes
  void schedule_tick();
  void tick();
  void forgive_own_pause();
  [[nodiscard]] std::string tend(Link& link);
  [[nodiscard]] std::string tend_passing(Link& link);
  [[nodiscard]] std::string silence_of(const Link& link) const;
  void probe_incoming();
  void dial_due();
  void dial(const Address& address);
  [[nodiscard]] int idlest_io_thread() const;

  // relocation.cpp
  [[nodiscard]] std::expected<std::string, std::string> address_to_tell(const std::string& wish) const;
  void tend_address();

  // links.cpp: strangers at our port
  void arrived(Arrival&& arrival);
  void admit(Arrival&& arrival);
  struct Refusal {
    RejectReason reason;
    std::string text;
  };
  std::optional<Refusal> refusal_of(const Hello& hello, const Arrival& arrival);
  std::optional<Refusal> admit_control(const Hello& hello, const Arrival& arrival);
  std::optional<Refusal> admit_bulk(const Hello& hello, const Arrival& arrival);
  void refuse(const Arrival& arrival, const Refusal& refusal);
  bool welcome(const Hello& hello, const Arrival& arrival, const LinkPtr& link);

  // links.cpp: links that we dial
  bool introduced(OutgoingLink& outgoing, const Welcome& welcome) override;
  void established(OutgoingLink& outgoing) override;
  void delivered(OutgoingLink& outgoing, Channel channel, Delivery&& delivery) override;
  void failed(OutgoingLink& outgoing, const LinkFailure& failure) override;
  void attempt_failed(const OutgoingLink& outgoing, const LinkFailure& failure);

  // links.cpp: a link's life
  NodeRecord* record_of(const NodeId& node);
  void describe(NodeRecord& record, const std::string& name, const std::string& address, const std::string& host);
  void note_incarnation(const NodeId& node, std::uint64_t incarnation);
  void bring_up(const LinkPtr& link);
  void end(const LinkPtr& link, const std::string& reason);
  /// Ends every link for which `reason_of` gives a reason.
  void end_those(const std::function<std::string(Link&)>& reason_of);
  void declare_dead(const NodeId& node);
  void set_broken(Link& link, std::string why);
  void end_broken();

  // links.cpp: messages
  void deliver(const LinkPtr& link, Channel channel, Delivery&& delivery);
  void handle(const LinkPtr& link, Channel channel, ControlMessage&& message);
  void note_malformed(const LinkPtr& link, std::string_view why);
  void take(const LinkPtr& link, Channel channel, std::expected<Packet, DecodeError>&& packet);
  void take_part(const LinkPtr& link, const BulkPart& part);
  SendResult post(Link& link, Channel channel, const Frames& frames);
  void say(Link& link, Channel channel, const ControlMessage& message);
  void ping(Link& link);

  // links.cpp: the roster's host
  bool send_membership(const NodeId& to, const MembershipMessage& message) override;
  [[nodiscard]] std::optional<NodeId> node_at(const std::string& address) const override;
  [[nodiscard]] std::string seen_address(const NodeId& node) const override;
  [[nodiscard]] bool is_denied(const NodeId& node) const override { return denied_.contains(node); }
  void follow_roster();
  void member_changed(const Roster::MemberChange& change);
  void show_links();
  void hide(const LinkPtr& link, const std::string& reason);

  // agreement.cpp
  void tend_spread();
  void enforce_denials();
  void hear(const LinkPtr& link, const DenialList& list);
  void hear(const LinkPtr& link, const RingState& state);
  std::expected<void, std::string> change_ring(KeyRing ring);
  void use_ring();
  void listen_with_slot();
  void answer_claim(const InvitationClaim& claim, const Arrival& arrival);
  [[nodiscard]] std::optional<Refusal> refusal_of(const InvitationClaim& claim, const Arrival& arrival) const;
  std::expected<void, std::string> claim_ended(const Invitation& invitation,
                                               std::expected<InvitationGrant, std::string> grant);

  // links_bulk.cpp: bulk
  SendResult send_bulk(const LinkPtr& link, const Message& message);
  bool pump_one(const LinkPtr& link);
  void pump(const LinkPtr& link);
  void pump_all();
  void pump_later(TimeUs when);
  void charge(Link& link, const Frames& frames);
  void bulk_arrived(Link& link, std::size_t bytes);
  void send_acks(std::size_t least_bytes);
  void acknowledged(const LinkPtr& link, const BulkAck& ack);

  [[nodiscard]] TimeUs now() const { return turns_->now(); }
  [[nodiscard]] bool is_linked(const NodeId& node) const;
  [[nodiscard]] LinkPtr link_of(const OutgoingLink& outgoing) const;
  [[nodiscard]] LinkPtr incoming_of(const NodeId& node, std::uint64_t number) const;
  [[nodiscard]] bool has_admitted_incoming(const NodeId& node) const;
  [[nodiscard]] bool has_introduced_outgoing(const NodeId& node) const;

  asio::io_context& loop_;
  OverlayOptions options_;
  Identity identity_;
  ClusterKeys keys_;  ///< spread_'s ring
  OverlayEvents& owner_;
  std::shared_ptr<spdlog::logger> log_;
  gossip::Random random_;
  Clock time_of_day_;
  std::shared_ptr<Turns> turns_;
  TimeUs last_tick_ = 0;
  TimeUs started_at_ = 0;

  zmq::context_t context_;
  asio::steady_timer timer_;
  asio::steady_timer bulk_timer_;
  Listener listener_;
  AddressBook book_;
  std::string advertised_;                                 ///< empty: this node only dials out
  std::optional<std::vector<std::string>> own_addresses_;  ///< of the machine, when last looked at
  TimeUs look_at_addresses_ = 0;
  TimeUs tell_again_at_ = 0;      ///< 0: no need to
  std::optional<Roster> roster_;  ///< since start()
  Spread spread_;
  std::set<NodeId> denied_here_;  ///< by configuration
  std::set<NodeId> denied_;       ///< those and spread_'s
  std::shared_ptr<ClaimAttempt> claim_;
  bool cannot_change_key_ = false;                                            ///< said so in the log
  std::map<NodeId, NodeRecord> nodes_;                                        ///< at most max_members
  std::vector<LinkPtr> links_;                                                ///< at most options_.max_links
  std::unordered_map<std::string, std::pair<LinkPtr, Channel>> connections_;  ///< admitted, by routing id
  Throttle hello_throttle_{hello_burst, hellos_per_s};
  Throttle log_throttle_{20, 2};
  OverlayCounters counters_;
  gossip::ByteBudget budget_{0, cap_burst_us};
  std::size_t pump_first_ = 0;  ///< where pump_all() begins: links take turns
  TimeUs pump_at_ = 0;          ///< when bulk_timer_ fires; 0: not set
  bool acks_queued_ = false;
  bool probe_wanted_ = false;
  bool broken_queued_ = false;
};

}  // namespace gossamer::peer
