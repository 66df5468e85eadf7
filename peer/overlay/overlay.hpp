// The overlay keeps links to the nodes that membership wants links to, notices when one is lost or dead, and carries
// gossip's messages.
//
// A link is two connections (control and bulk) that one end dials and both use. Between two nodes there is at most one.
// If both dial at the same time, the node with the smaller id decides whose link stays, before anything is sent on
// either, so that nothing is lost. Messages on one channel of one link arrive in order and once. When a link ends, the
// messages under way on it are lost. Every link has heartbeats, and silence for link_timeout_ms ends it. That ends a
// link, not a node. A node is dead when gossip::Membership says so and there is no link that proves otherwise, when it
// says goodbye, or when it comes back with another incarnation. Links that membership does not keep (to say something
// to a node that is no neighbour) are not shown: no event tells of them, though messages over them are carried.
//
// One thread, the io_context's. Events are told from the loop, in order, never from inside a method of this class
// (peer/overlay/turns.hpp); their handlers may call every method but must not destroy the object. Bytes that are sent
// without a copy may be released on one of ZeroMQ's own threads, so their owner's destructor must be fit for that.

#pragma once

#include <set>

#include "peer/overlay/strangers.hpp"

namespace gossamer::peer {

/// The most hosts and nodes turned away that are remembered, so that the log tells of each only once.
inline constexpr std::size_t max_told = 256;

class Overlay {
 public:
  /// `events` must outlive this object. `random` spreads redials; secrets come from the operating system. `clock` is
  /// monotonic, `time_of_day` counts from 1970.
  Overlay(asio::io_context& loop, const OverlaySettings& options, Identity identity, KeyRing keys,
          OverlayEvents& events, std::shared_ptr<spdlog::logger> log, gossip::Random random, const OverlayClock& clock,
          OverlayClock time_of_day);
  /// If stop() was not called before, the others only see their connections end, as when a process is killed.
  ~Overlay() { close(0); }
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;

  /// Listens and begins to dial. The error is fit for the user. Once.
  [[nodiscard]] std::expected<void, std::string> start();
  /// Never blocks. The channel follows from the kind of message.
  [[nodiscard]] SendResult send(const NodeId& to, const Message& message) { return sender_.send(to, message); }
  /// True if every configured peer, and every node that links are kept to, is linked or has failed its first attempt.
  /// Then no other link is to be expected soon.
  [[nodiscard]] bool all_dialled() const { return links_.all_dialled(); }
  /// All known nodes, linked or not, ordered by id; then the addresses that have never answered.
  [[nodiscard]] std::vector<LinkStatus> links() const;
  /// The members, ordered by id. With partial views they are the active view.
  [[nodiscard]] std::vector<KnownMember> members() const;
  /// The name that the node told on its link; empty: not known.
  [[nodiscard]] std::string name_of(const NodeId& node) const;
  [[nodiscard]] MembershipStatus membership() const;
  /// How many other members have a certificate; 0 where none is asked for. Members without one may not exist, because
  /// another member may have invented them.
  [[nodiscard]] std::size_t certified_members() const;
  [[nodiscard]] OverlayCounters counters() const { return self_.counters; }
  /// The address where it listens, with the port that was found.
  [[nodiscard]] std::string address() const { return listener_.address().text(); }
  [[nodiscard]] const NodeId& node() const { return self_.identity.node; }

  /// Replaces the configured peers. Links to nodes that are no longer listed stay up. If one address is wrong, nothing
  /// changes.
  [[nodiscard]] std::expected<void, std::string> set_peers(const std::vector<std::string>& addresses);
  /// Changes OverlaySettings::advertise. The others are told, and find this node there from now on. Links stay up.
  [[nodiscard]] std::expected<void, std::string> set_advertise(const std::string& wish);
  /// Replaces the nodes that this node alone turns away, by its configuration.
  void set_denied(const std::vector<NodeId>& nodes) { agreement_.set_denied(nodes); }

  // Decisions for the whole cluster. Each is first proposed, which changes nothing, and then made. A decision that is
  // made is enforced here at once and told to every member. If the cluster has an authority, it must be signed. Errors
  // are fit for the user.

  [[nodiscard]] std::optional<PublicKey> authority() const { return agreement_.authority(); }
  /// The authority and its deputies.
  [[nodiscard]] const std::optional<Deciders>& deciders() const { return agreement_.deciders(); }
  /// From now on this node, and every member that follows no authority yet, asks for the signatures of this authority.
  /// `signatures`: its signatures on decisions that hold here. If `authority` is nothing, this node asks for no
  /// signatures, until a neighbour names another authority.
  [[nodiscard]] std::expected<void, std::string> set_authority(const std::optional<PublicKey>& authority,
                                                               const Signatures& signatures) {
    return agreement_.set_authority(authority, signatures);
  }
  /// Decides what a key may sign in the authority's place. Only the authority can sign this decision.
  [[nodiscard]] Deputy propose_deputy(const PublicKey& key, std::uint8_t powers, const std::string& name) const {
    return agreement_.propose_deputy(key, powers, name);
  }
  [[nodiscard]] std::expected<void, std::string> set_deputy(const Deputy& deputy) {
    return agreement_.set_deputy(deputy);
  }
  [[nodiscard]] RingState ring_state() const { return agreement_.ring_state(); }
  [[nodiscard]] const KeyRing& keys() const { return agreement_.ring(); }
  [[nodiscard]] std::expected<Denial, std::string> propose(const NodeId& node, bool denied, const std::string& reason) {
    return agreement_.propose(node, denied, reason);
  }
  /// Also causes denials_changed().
  [[nodiscard]] std::expected<void, std::string> decide(const Denial& denial) { return agreement_.decide(denial); }
  [[nodiscard]] const Denials& denials() const { return agreement_.denials(); }
  /// By the cluster's decision or by this node's own list. `node`: also the id of an invitation.
  [[nodiscard]] bool is_denied(const NodeId& node) const { return agreement_.is_denied(node); }
  /// The decisions that this node has followed and refused, with those noted by note_taken() and note_refused().
  [[nodiscard]] const Audit& audit() const { return agreement_.audit(); }
  void note_taken(const NodeId& by, std::string what) { agreement_.note_taken(by, std::move(what)); }
  void note_refused(const NodeId& told_by, const std::string& what) { agreement_.note_refused(told_by, what); }
  /// Sets who gives the command that is being answered, for the audit; empty: nobody.
  void set_operator(std::string who) { agreement_.set_operator(std::move(who)); }
  [[nodiscard]] std::vector<KeyStatus> key_ring() const { return agreement_.key_ring(); }
  /// Adds a new key to the ring of every member. Members listen with it when their neighbours hold it.
  [[nodiscard]] std::expected<void, std::string> add_key(const RingKey& key) { return agreement_.add_key(key); }
  [[nodiscard]] std::expected<RingKey, std::string> propose_key() { return agreement_.propose_key(); }
  /// Takes a key out of every member's ring, for good.
  [[nodiscard]] std::expected<void, std::string> retire_key(const RetiredKey& key) {
    return agreement_.retire_key(key);
  }
  [[nodiscard]] std::expected<RetiredKey, std::string> propose_retirement(const Fingerprint& fingerprint) {
    return agreement_.propose_retirement(fingerprint);
  }
  [[nodiscard]] const Certificates& certificates() const { return agreement_.certificates(); }
  /// The nodes that this node has turned away because they have no certificate.
  [[nodiscard]] std::vector<WaitingNode> waiting() const { return agreement_.waiting(); }
  /// Says, for people, that the node has a certificate that does not hold here, because others have used its invitation
  /// up; nothing if it has not.
  [[nodiscard]] std::optional<std::string> used_up_for(const NodeId& node) const {
    return agreement_.used_up_for(node);
  }
  /// Takes a certificate that the operator has made for a node, and tells everyone of it.
  [[nodiscard]] std::expected<void, std::string> certify(const Certificate& certificate) {
    return agreement_.certify(certificate);
  }
  /// Null: the node has no certificate that counts.
  [[nodiscard]] const Certificate* certificate_of(const NodeId& node) const { return agreement_.certificate_of(node); }
  [[nodiscard]] Sponsor sponsor_of(const NodeId& node) const { return agreement_.sponsor_of(node); }
  /// What the node may do in jobs: everything, where certificates are not asked for.
  [[nodiscard]] Rights rights_of(const NodeId& node) const { return agreement_.rights_of(node); }
  [[nodiscard]] bool asks_for_certificates() const { return agreement_.asks_for_certificates(); }
  [[nodiscard]] AdmissionRule propose_rule(bool certificates) const { return agreement_.propose_rule(certificates); }
  [[nodiscard]] std::expected<void, std::string> set_rule(const AdmissionRule& rule) {
    return agreement_.set_rule(rule);
  }
  /// An invitation that admits whoever holds it until `validity_us` from now. `addresses` are those where members
  /// answer; if there are none, the addresses of this node and its neighbours are taken. An invitation that
  /// `needs_warrant` admits nobody until it is given a warrant.
  [[nodiscard]] std::expected<Invitation, std::string> invite(TimeUs validity_us, std::vector<Address> addresses,
                                                              bool needs_warrant = false) {
    return agreement_.invite(validity_us, std::move(addresses), own_address_.text(), needs_warrant);
  }
  /// Gets the key ring from a member that the invitation names, replaces our own by it, and dials those members.
  /// `joined` is called from the loop, once; an error is fit for the user. One at a time; refused while a link is up.
  [[nodiscard]] std::expected<void, std::string> join(const Invitation& invitation, Joined joined);

  /// The goodput of the fastest link lately. The node's network carries at least this. 0: not known.
  [[nodiscard]] double goodput_bytes_s() const { return sender_.goodput_bytes_s(); }
  /// The load of the link to this node; all zeros without a link.
  [[nodiscard]] gossip::LinkLoad load(const NodeId& node) const { return sender_.load(node); }
  /// Changes the caps of OverlaySettings.
  void set_rates(double bytes_per_s, double link_bytes_per_s) { sender_.set_rates(bytes_per_s, link_bytes_per_s); }
  /// Says goodbye to all and closes. Messages that have left their link's queue are still delivered, for up to half a
  /// second, while the object is being destroyed. Bulk that waits in the queue is not. No event comes after this.
  void stop();

 private:
  [[nodiscard]] Listener::Handlers handlers(OverlayClock clock);
  void note_closing(const Connections::Closing& closing);
  void note_failed_handshake(const std::string& host, HandshakeFailure why);
  void note_denied(const NodeId& node, const std::string& host);
  [[nodiscard]] bool is_news(const std::string& who);
  void schedule_tick();
  void tick();
  void forgive_own_pause();
  void close(int linger_ms);

  OverlaySelf self_;
  asio::steady_timer timer_;
  TimeUs last_tick_ = 0;
  bool probe_wanted_ = false;
  std::set<std::string> told_;  ///< hosts and nodes turned away that the log has told of; at most max_told
  // The parts. Each may know those above it, which are made before it.
  Listener listener_;
  AddressBook book_;
  LinkTable table_;
  Sender sender_;
  OwnAddress own_address_;
  Agreement agreement_;
  Links links_;
  Strangers strangers_;
};

}  // namespace gossamer::peer
