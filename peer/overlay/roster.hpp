// Tells the overlay who is in the cluster: owns gossip::Membership, feeds it time, messages and the comings and goings
// of links, and carries its messages over links.
//
// A message to a node without a link waits, bounded, as an *errand*, for which the overlay makes a link. keeps() says
// which links are to stay: those to the nodes of the view. Addresses in messages are translated for this machine first:
// a wildcard stands for the host where the speaker is seen, and a loopback address is of use on one machine only.
//
// Called by the overlay only, on its thread. Does no I/O of its own: it sends through the Host, which calls nothing
// back. What has changed about members is kept until the overlay takes it with take_changes().

#pragma once

#include <optional>
#include <utility>

#include "gossip/membership/membership.hpp"
#include "peer/address.hpp"

namespace gossamer::peer {

/// The most nodes or addresses for which messages wait until there is a link.
inline constexpr std::size_t max_errands = 64;
/// The most messages that wait for one of them. The oldest is dropped for a further one.
inline constexpr std::size_t max_errand_messages = 4;
/// Messages are given up after this long without a link. Membership says again what matters.
inline constexpr TimeUs errand_us = 10 * us_per_s;
/// A link that is not kept is ended this long after it was last needed: what is under way on it is finished by then.
inline constexpr TimeUs passing_link_us = 10 * us_per_s;

class Roster {
 public:
  using Change = gossip::Membership::Change;

  /// What the overlay does for the roster.
  class Host {
   public:
    virtual ~Host() = default;
    /// Sends over the link to this node. False if there is none.
    virtual bool send_membership(const NodeId& to, const MembershipMessage& message) = 0;
    /// The node that was found at an address.
    [[nodiscard]] virtual std::optional<NodeId> node_at(const std::string& address) const = 0;
    /// The address where this node was last seen, as tcp://HOST:PORT; empty if nowhere.
    [[nodiscard]] virtual std::string seen_address(const NodeId& node) const = 0;
    [[nodiscard]] virtual bool is_denied(const NodeId& node) const = 0;
  };
  struct MemberChange {
    NodeId node;
    Change change;
    bool own_word;  ///< the node itself has said so
  };

  /// `host` must outlive this object.
  Roster(const gossip::MembershipOptions& options, MemberRecord self, gossip::Random random, TimeUs now, Host& host);

  /// Sets the addresses to join through, as Address::text().
  void set_contacts(std::vector<std::string> addresses, TimeUs now);
  void tick(TimeUs now);
  /// `seen_host`: where the other end of the link is.
  void receive(const NodeId& from, MembershipMessage message, const std::string& seen_host, TimeUs now);
  /// `dialled`: the address, if this node has dialled the link. True if messages waited for the link; they are sent
  /// now.
  bool link_up(const NodeId& node, std::uint64_t incarnation, const std::string& dialled, TimeUs now);
  void link_down(const NodeId& node, TimeUs now);
  /// Notes the address that a node tells in its hello, translated; empty: none. Its host may have changed while it ran.
  void seen_at(const NodeId& node, const std::string& address);
  /// Makes this node known on a link that was made for another reason.
  void greet(const NodeId& node, TimeUs now);
  void leave(TimeUs now);
  /// See Membership::relocate().
  void relocate(const std::string& address) { membership_.relocate(address); }
  /// The changes in the order in which they happened. To be called after tick(), receive() and link_up(); nothing else
  /// changes members.
  [[nodiscard]] std::vector<MemberChange> take_changes() { return std::exchange(changes_, {}); }

  /// True if the link to this node is to stay.
  [[nodiscard]] bool keeps(const NodeId& node) const;
  /// True if a link to this node is wanted now, to stay or for an errand.
  [[nodiscard]] bool wants(const NodeId& node) const;
  struct Wanted {
    NodeId node;
    std::string address;
    bool unexpected;  ///< the other node does not know that it is wanted, and will not dial
  };
  /// The nodes that links are wanted to and whose addresses are known.
  [[nodiscard]] std::vector<Wanted> wanted() const;
  [[nodiscard]] const gossip::Membership& membership() const { return membership_; }
  [[nodiscard]] std::size_t errands() const { return errands_.size(); }

 private:
  struct Errand {
    NodeId to;            ///< all zeros: the node at the address, whoever it is
    std::string address;  ///< where to dial
    TimeUs since = 0;
    std::vector<MembershipMessage> messages;
  };
  /// Takes a step of the membership, and does what it asks for. `speaker`: the node that speaks of itself in this step,
  /// if any.
  template <class Step>
  void act(const NodeId& speaker, TimeUs now, Step step);
  void send(gossip::Membership::Send& item, TimeUs now);
  bool send_waiting(const NodeId& node, const std::string& dialled);

  Host& host_;
  gossip::Membership membership_;
  TimeUs tick_us_;
  TimeUs next_tick_;
  std::vector<Errand> errands_;
  std::vector<MemberChange> changes_;
};

/// `record` as it is to be understood by a node that hears of it from `from`, seen at `seen_host`. Nothing if its
/// address is of no use here and `known` is empty; `known` is where the node was last seen.
[[nodiscard]] std::optional<MemberRecord> localised(MemberRecord record, const NodeId& from,
                                                    const std::string& seen_host, const std::string& known);

}  // namespace gossamer::peer
