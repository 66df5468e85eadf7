// The life of links: dials them, brings them up, carries messages, notices silence, ends them, and follows the roster.
//
// The roster (peer/overlay/roster.hpp) is told of links and time, and decides which links stay and who is dead. A link
// that is up and kept is *shown*: the owner was told of it. A link that is not kept ends after passing_link_us. Between
// two nodes at most one link is up.
//
// Called by the overlay and its parts, by the links that this node dials, and by the roster; on the loop's thread. No
// method is called back while another one runs: the owner is told at the end of a turn (peer/overlay/turns.hpp), and
// the decisions of the roster are fetched from it.

#pragma once

#include "peer/overlay/agreement.hpp"
#include "peer/overlay/own_address.hpp"
#include "peer/overlay/roster.hpp"

namespace gossamer::peer {

/// Why a link ends that another node began to dial.
inline constexpr const char* unfinished = "the other end did not finish its dialling; its log says why";

class Links final : public OutgoingLinkEvents, private Roster::Host {
 public:
  Links(OverlaySelf& self, LinkTable& table, Sender& sender, Listener& listener, AddressBook& book,
        Agreement& agreement, const OwnAddress& own_address)
      : self_(self),
        table_(table),
        sender_(sender),
        listener_(listener),
        book_(book),
        agreement_(agreement),
        own_address_(own_address) {}

  /// Makes the roster.
  void start();
  [[nodiscard]] std::optional<Roster>& roster() { return roster_; }
  [[nodiscard]] const std::optional<Roster>& roster() const { return roster_; }
  [[nodiscard]] bool all_dialled() const;

  /// Gives the roster the addresses in the book, after these have changed.
  void tell_contacts();
  void dial_due();
  void tick();
  /// Moves time limits by `late`, because this process paused for so long and could not hear the others.
  void forgive_pause(TimeUs late);
  /// Finds out which connection to our port has ended. ZeroMQ tells only when something is sent on it.
  void probe_incoming();
  void end_broken();
  /// Says goodbye to all.
  void leave();
  void close(int linger_ms);

  /// Takes a message that came on a link's connection. False if the connection belongs to no link (any more).
  [[nodiscard]] bool receive(Arrival& arrival);
  /// Notes the name and address that a node tells of itself. `host`: where it is seen.
  void describe(const NodeId& node, const std::string& name, const std::string& address, const std::string& host);
  /// A node that comes back with another incarnation has died in between.
  void note_incarnation(const NodeId& node, std::uint64_t incarnation);
  void end(const LinkPtr& link, const std::string& reason);
  /// Ends every link for which `reason_of` gives a reason.
  void end_those(const std::function<std::string(Link&)>& reason_of);

 private:
  // Links that this node dials.
  void dial(const Address& address);
  [[nodiscard]] int idlest_io_thread() const;
  bool introduced(OutgoingLink& outgoing, const Welcome& welcome) override;
  void established(OutgoingLink& outgoing) override;
  void delivered(OutgoingLink& outgoing, Channel channel, Delivery&& delivery) override;
  void failed(OutgoingLink& outgoing, const LinkFailure& failure) override;
  void attempt_failed(const OutgoingLink& outgoing, const LinkFailure& failure);
  [[nodiscard]] bool note_failure(const Address& address, const std::string& why);

  // What becomes of links and nodes.
  void bring_up(const LinkPtr& link);
  void show(const LinkPtr& link);
  void hide(const LinkPtr& link, const std::string& reason);
  void declare_dead(const NodeId& node);
  [[nodiscard]] std::string tend(Link& link);
  [[nodiscard]] std::string tend_passing(Link& link);
  [[nodiscard]] std::string silence_of(const Link& link) const;

  // The roster.
  void follow_roster();
  void follow(const Roster::MemberChange& changed);
  bool send_membership(const NodeId& to, const MembershipMessage& message) override;
  [[nodiscard]] std::optional<NodeId> node_at(const std::string& address) const override {
    return book_.node_at(address);
  }
  [[nodiscard]] std::string seen_address(const NodeId& node) const override;
  [[nodiscard]] bool is_denied(const NodeId& node) const override { return agreement_.is_denied(node); }

  // Messages that come in.
  void deliver(const LinkPtr& link, Channel channel, Delivery&& delivery);
  void take(const LinkPtr& link, Channel channel, std::expected<Packet, DecodeError>&& packet);
  void take_part(const LinkPtr& link, const BulkPart& part);
  void handle(const LinkPtr& link, Channel channel, ControlMessage&& message);
  void note_malformed(const LinkPtr& link, std::string_view why);

  OverlaySelf& self_;
  LinkTable& table_;
  Sender& sender_;
  Listener& listener_;
  AddressBook& book_;
  Agreement& agreement_;
  const OwnAddress& own_address_;
  std::optional<Roster> roster_;  ///< made by start()
};

}  // namespace gossamer::peer
