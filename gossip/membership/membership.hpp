// Who is in the cluster, who is dead, and which links to keep. This is a node's only failure detector: all exchanges
// and transfers with a node that it declares dead are ended.
//
// - Failure detection is SWIM (Das, Gupta & Motivala 2002) with Lifeguard (Dadgar et al. 2018, arXiv 1707.00788):
//   probes in shuffled round robin, indirect probes through others, suspicion that a larger incarnation refutes,
//   news on every message, and more patience while this node itself is slow.
// - Up to full_view_limit members all nodes know each other and keep links to all.
// - Beyond that a node keeps two lists. It probes its active view, which is symmetric, and keeps links to it. The
//   passive view replaces losses: HyParView (Leitão, Pereira & Rodrigues 2007). Neighbours tell each other their
//   active views, so that the watchers of a silent node can ask each other. All nodes hear that a node is dead, has
//   left or is back; each keeps such claims in a bounded memory. Only a node's watchers hear that it is suspected.
//
// This is a state machine: messages, time and links come in, Actions come out. `from` is known to be the sender, since
// the link is authenticated; nothing else in a message is trusted. A node's own word counts more than claims about it:
// a node that has just heard a member takes the claim of its death for a suspicion only. This rule, the bounds on every
// table, and the limits on claimed incarnations bound what an admitted liar can do.
//
// The caller ticks it every tick_us. A gap of pause_us or more between ticks counts as a pause of this node, after
// which it refutes and does not accuse. One owner, one thread.
//
//   membership.cpp        claims that are heard, and their effects
//   membership_probe.cpp  the failure detector
//   membership_views.cpp  partial views

#pragma once

#include <optional>

#include "gossip/membership/rumours.hpp"
#include "gossip/membership/suspicion.hpp"
#include "gossip/random.hpp"

namespace gossamer::gossip {

/// Largest allowed full_view_limit. It bounds the table of members.
inline constexpr std::size_t max_full_view = 256;
/// Largest allowed active_view.
inline constexpr std::size_t max_active_view = 32;
inline constexpr std::size_t max_passive_view = 256;
/// Neighbours beyond active_view that are accepted on request, so that a node that looks for one finds one.
inline constexpr std::size_t active_view_slack = 2;
/// Most neighbours of a node with a partial view, those included that can only dial out. The rest of the overlay's
/// links are left for connections that are not kept.
inline constexpr std::size_t most_neighbours = 48;
static_assert(most_neighbours > max_active_view + active_view_slack);
/// Most addresses to join through that are kept.
inline constexpr std::size_t max_contacts = 64;
/// Number of dead members whose addresses are still tried.
inline constexpr std::size_t max_lost = 64;
/// A neighbour is dropped when this many probes in a row were answered only through others: there is no way to it, or
/// it does not know that it is a neighbour.
inline constexpr std::uint8_t max_unheard = 3;
/// Most probes under way on behalf of others.
inline constexpr std::size_t max_relays = 64;
/// The largest incarnation. It is the year 2112 in microseconds: no start is numbered so by the time of day
/// (daemon/cluster/incarnation.hpp). Larger ones are not believed, not even of the node itself: whoever holds its key
/// could say one that the node cannot outbid later. At this one, the own word always counts.
inline constexpr std::uint64_t last_incarnation = std::uint64_t{1} << 52;
/// Hops of a newcomer's random walk, and the hops left when it enters a passive view (Leitão et al. 2007, section 4.2).
inline constexpr std::uint8_t active_walk_hops = 6;
inline constexpr std::uint8_t passive_walk_hops = 3;

/// The defaults suit a LAN.
struct MembershipOptions {
  /// One member is probed in each interval. A shorter one notices a crash sooner and costs about 80 bytes each time.
  TimeUs probe_interval_us = 1 * us_per_s;
  /// Wait for an answer before others are asked; it must exceed the network's round trips.
  TimeUs probe_timeout_us = 500 * us_per_ms;
  std::size_t indirect_probes = 3;  ///< nodes that are asked to probe as well
  unsigned suspicion_mult = 4;      ///< see suspicion_bounds()
  unsigned suspicion_max_mult = 6;
  unsigned retransmit_mult = 4;  ///< see retransmission_limit()
  /// While there is news, it is sent to gossip_fanout other nodes this often.
  TimeUs gossip_interval_us = 200 * us_per_ms;
  std::size_t gossip_fanout = 3;
  /// Tables are compared with one other node this often, which repairs what news has missed.
  TimeUs sync_interval_us = 30 * us_per_s;
  /// One dead member's address is tried this often, for reconnect_for_us. This heals partitions.
  TimeUs reconnect_interval_us = 10 * us_per_s;
  TimeUs reconnect_for_us = 24 * 3600 * us_per_s;
  /// Passive views are mixed this often.
  TimeUs shuffle_interval_us = 20 * us_per_s;
  TimeUs tick_us = 100 * us_per_ms;
  TimeUs pause_us = 2 * us_per_s;
  /// Largest number of other members for full views. With more members, views are partial. At most max_full_view.
  std::size_t full_view_limit = 64;
  /// Neighbours in a partial view. More neighbours mix faster and survive more losses at once, and each costs a link.
  std::size_t active_view = 8;
  std::size_t passive_view = 32;

  [[nodiscard]] static MembershipOptions lan() { return {}; }
  /// For round trips of up to a second: five times the patience, at the same cost.
  [[nodiscard]] static MembershipOptions wan();
};

/// Counts since the beginning. They are shown to people; no decision uses them.
struct MembershipCounters {
  std::uint64_t malformed = 0;    ///< messages outside their bounds
  std::uint64_t implausible = 0;  ///< claims whose incarnation is too large
  std::uint64_t probes = 0;
  std::uint64_t probes_failed = 0;
  std::uint64_t suspicions = 0;   ///< raised or joined
  std::uint64_t refutations = 0;  ///< of claims about this node
  std::uint64_t deaths = 0;       ///< declared by this node's own timers
  std::uint64_t deaths_doubted = 0;
  std::uint64_t pauses = 0;  ///< of this node
  std::uint64_t news_forgotten = 0;
};

class Membership {
 public:
  struct Send {
    NodeId to;            ///< all zeros: the node at the address
    std::string address;  ///< where to dial if there is no link; empty: send over the link or not at all
    MembershipMessage message;
  };
  /// Keep a link to this node until told to hang up.
  struct Dial {
    NodeId node;
    std::string address;
  };
  enum class Change : std::uint8_t {
    joined,       ///< is now a member (with partial views: a neighbour)
    suspected,    ///< of being dead
    refuted,      ///< no longer suspected
    died,         ///< everything under way with it ends now
    left,         ///< like died, by its own decision
    alive_again,  ///< back after died or left
  };
  struct Event {
    Change change;
    NodeId node;
  };
  struct Actions {
    std::vector<Send> send;
    std::vector<Dial> dial;
    std::vector<NodeId> hang_up;
    std::vector<Event> events;
  };

  struct Member {
    MemberRecord record = {};
    /// Incarnation of the address's record. Every message tells its sender's incarnation, few its address.
    std::uint64_t addressed_at = 0;
    TimeUs last_heard_us = 0;  ///< from the member itself
    bool met = false;          ///< it has spoken to this node itself; others may have invented it
    bool suspected = false;
    bool leaving = false;      ///< suspected because another node says that it has left
    bool urgent = false;       ///< probe it next
    std::uint8_t unheard = 0;  ///< probes in a row that only others answered for it (partial views)
    Suspicion suspicion = {};
    std::vector<MemberRecord> watchers = {};  ///< its active view, as it reported it (partial views)
  };

  /// A node that may become a neighbour (partial views).
  struct Reserve {
    MemberRecord record;
    bool met;                   ///< was a member that had spoken to this node itself
    std::uint8_t refusals = 0;  ///< how often it has refused to be this node's neighbour
  };

  /// `self.incarnation` must be larger at each start; microseconds since 1970 will do.
  Membership(const MembershipOptions& options, MemberRecord self, Random random, TimeUs now_us);

  /// Introduces itself at these addresses (at most max_contacts are kept), and repeats this while it knows nobody.
  void join(std::vector<std::string> addresses, TimeUs now_us, Actions& out);
  void receive(const NodeId& from, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void tick(TimeUs now_us, Actions& out);
  /// Tells the others that it leaves. After that it is silent.
  void leave(TimeUs now_us, Actions& out);
  /// There is a link to this node for another reason than membership (a configured address, for example). The two nodes
  /// are made known to each other. Nothing happens if it is a member.
  void greet(const NodeId& node, TimeUs now_us, Actions& out);
  /// `incarnation`: the one with which the node at the other end began, as that node says. It shows that later news of
  /// an earlier life of that node is old.
  void link_up(const NodeId& node, std::uint64_t incarnation, TimeUs now_us, Actions& out);
  /// A member has shown, on its own authority, that its address differs from its record.
  void seen_at(const NodeId& node, const std::string& address);
  /// This node's address has changed; empty: it cannot be dialled and only dials out. All nodes are told, under a
  /// larger incarnation. Also used with the same address, if the others' view of it has changed.
  void relocate(const std::string& address);
  /// A hint: the node is probed next.
  void link_down(const NodeId& node, TimeUs now_us, Actions& out);

  [[nodiscard]] const MemberRecord& self() const { return self_; }
  /// All known members of the cluster (full view) or the active view (partial), by id, without this node.
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] const Member* find(const NodeId& node) const;
  /// The nodes to keep links to, by id.
  [[nodiscard]] const std::vector<NodeId>& view() const { return view_; }
  [[nodiscard]] const std::vector<Reserve>& passive_view() const { return passive_; }
  [[nodiscard]] bool partial() const { return partial_; }
  /// True if the node is said to be dead or to have left, and not to have returned.
  [[nodiscard]] bool considers_gone(const NodeId& node) const;
  /// Claims about nodes that are not members here, by id.
  [[nodiscard]] const std::vector<HeardClaims::Heard>& heard() const { return heard_.items(); }
  [[nodiscard]] int health_score() const { return health_.score(); }
  [[nodiscard]] const MembershipCounters& counters() const { return counters_; }
  [[nodiscard]] std::size_t queued_rumours() const { return rumours_.size(); }

  /// Ends the process if what must always hold does not.
  void check_invariants() const;

 private:
  struct Probe {
    NodeId target;
    std::uint32_t sequence;
    TimeUs ask_others_us;
    TimeUs end_us;
    bool others_asked = false;
    std::size_t helpers = 0;
    std::size_t nacks = 0;
  };
  struct Relay {
    NodeId origin;
    std::uint32_t origin_sequence;
    NodeId target;
    std::uint32_t sequence;
    TimeUs nack_us;
  };
  struct Lost {
    MemberRecord record;
    TimeUs since_us;
    bool due;  ///< there are signs that it is back
  };
  struct Pending {
    MemberRecord record;
    TimeUs deadline_us;
    bool urgent;
    int attempts;
  };

  /// How much a node that asks to be a neighbour needs neighbours.
  enum class Need : std::uint8_t { none, few, knows_nobody };

  // membership.cpp
  Member* member_of(const NodeId& node);
  void send(const NodeId& to, const std::string& address, MembershipBody body, Actions& out);
  void send(const MemberRecord& to, MembershipBody body, Actions& out) {
    send(to.node, to.address, std::move(body), out);
  }
  void answer(const NodeId& to, MembershipBody body, Actions& out);
  [[nodiscard]] const std::string& address_of(const NodeId& node) const;
  [[nodiscard]] std::optional<Rumour> claim_about(const NodeId& node) const;
  [[nodiscard]] std::size_t assumed_nodes() const;
  [[nodiscard]] SuspicionBounds bounds() const;
  void pass_on(Claim claim, const MemberRecord& subject, const NodeId& accuser, bool spread, std::uint8_t hops);
  void notice_pause(TimeUs now_us);
  void first_hand(const NodeId& from, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void own_word(Member& member, std::uint64_t incarnation, TimeUs now_us, Actions& out);
  void returned(const NodeId& node, std::uint64_t incarnation, TimeUs now_us, Actions& out);
  void hear(const Rumour& rumour, TimeUs now_us, Actions& out);
  /// True if a claimed incarnation is larger than any can be. Such claims are counted.
  bool disbelieves(std::uint64_t claimed);
  void hear_alive(const MemberRecord& record, bool spread, std::uint8_t hops, TimeUs now_us, Actions& out);
  void hear_address(Member& member, const MemberRecord& record, bool spread, std::uint8_t hops);
  void hear_alive_elsewhere(const MemberRecord& record, bool spread, std::uint8_t hops, TimeUs now_us, Actions& out);
  void hear_suspected(const NodeId& node, std::uint64_t incarnation, const NodeId& accuser, bool leaving, TimeUs now_us,
                      Actions& out);
  void hear_gone(const Rumour& rumour, TimeUs now_us, Actions& out);
  void refute(Claim claim, std::uint64_t incarnation);
  void trust(Member& member, TimeUs now_us, Actions& out);
  Member& add_member(const MemberRecord& record, TimeUs now_us, Actions& out);
  void remove_member(const NodeId& node);
  void bury(const NodeId& node, Claim claim, std::uint8_t hops, TimeUs now_us, Actions& out);
  void note_lost(const MemberRecord& record, TimeUs now_us);
  std::optional<MemberRecord> take_lost(const NodeId& node);
  void settle(Actions& out);
  void introduce(TimeUs now_us, Actions& out);
  void spread_news(TimeUs now_us, Actions& out);
  void synchronise(TimeUs now_us, Actions& out);
  void reconnect(TimeUs now_us, Actions& out);
  [[nodiscard]] Sync make_sync(bool answer_wanted);
  [[nodiscard]] std::vector<std::size_t> some_members(std::size_t count);

  void on(const NodeId& from, const Ping& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const PingRequest& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const Ack& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const Nack& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const Sync& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const Join& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const ForwardJoin& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const NeighbourRequest& body, const MembershipMessage& message, TimeUs now_us,
          Actions& out);
  void on(const NodeId& from, const NeighbourReply& body, const MembershipMessage& message, TimeUs now_us,
          Actions& out);
  void on(const NodeId& from, const Disconnect& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const Shuffle& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const ShuffleReply& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const Leave& body, const MembershipMessage& message, TimeUs now_us, Actions& out);
  void on(const NodeId& from, const News& body, const MembershipMessage& message, TimeUs now_us, Actions& out);

  // membership_probe.cpp
  void advance_probe(TimeUs now_us, Actions& out);
  void start_probe(TimeUs now_us, Actions& out);
  void ask_others(TimeUs now_us, Actions& out);
  void conclude_failed_probe(TimeUs now_us, Actions& out);
  void advance_relays(TimeUs now_us, Actions& out);
  void expire_suspicions(TimeUs now_us, Actions& out);
  [[nodiscard]] Member* next_target();
  [[nodiscard]] bool reachable(const MemberRecord& record) const;

  // membership_views.cpp
  [[nodiscard]] bool shows_large_cluster(const MembershipMessage& message) const;
  void become_partial(TimeUs now_us, Actions& out);
  void become_partial_if_large(TimeUs now_us, Actions& out);
  [[nodiscard]] bool knows_many() const;
  [[nodiscard]] bool is_full_of_hearsay() const;
  void drop_hearsay();
  void become_full_if_small(TimeUs now_us, Actions& out);
  void tend_views(TimeUs now_us, Actions& out);
  void drop_unreachable(Actions& out);
  void look_for_neighbours(TimeUs now_us, Actions& out);
  void request_neighbour(const MemberRecord& record, bool urgent, TimeUs now_us, Actions& out);
  [[nodiscard]] std::size_t neighbours(bool dial_only) const;
  [[nodiscard]] std::size_t estimated_others() const;
  [[nodiscard]] std::size_t needed_neighbours() const;
  [[nodiscard]] TimeUs search_backoff_us() const;
  void note_refusal();
  bool make_room(const MemberRecord& record, Need need, Actions& out);
  void take_neighbour(const MemberRecord& record, TimeUs now_us, Actions& out);
  void taken_for_neighbour(const NodeId& node, TimeUs now_us, Actions& out);
  void taken_for_member(const NodeId& node, Actions& out);
  void drop_neighbour(const NodeId& node, Actions& out);
  void shuffle_views(TimeUs now_us, Actions& out);
  void push_view(TimeUs now_us, Actions& out);
  void remember(const MemberRecord& record, bool replace, TimeUs now_us, Actions& out, bool met = false);
  void forget(const NodeId& node);
  [[nodiscard]] std::vector<MemberRecord> sample_views(std::size_t active, std::size_t passive);
  [[nodiscard]] const Member* random_neighbour(const NodeId& but, const NodeId& nor);
  [[nodiscard]] bool has_room(const MemberRecord& record) const;
  [[nodiscard]] bool has_guest_room(std::size_t most) const;

  MembershipOptions options_;
  MemberRecord self_;
  Random random_;
  MembershipCounters counters_;
  LocalHealth health_;
  bool left_ = false;
  bool partial_ = false;
  bool small_again_ = false;   ///< had a partial view, and has returned to a full one
  bool view_changed_ = false;  ///< view_ must be computed again
  bool view_untold_ = false;   ///< neighbours have not been told the active view

  NodeId speaking_ = {};  ///< the sender of the message that is being handled; zeros: none is

  std::vector<Member> members_;  // by node
  std::vector<NodeId> view_;     // by node
  std::vector<Reserve> passive_;
  std::vector<Pending> pending_;
  std::vector<Lost> lost_;
  std::vector<std::string> contacts_;
  RumourQueue rumours_;
  HeardClaims heard_;

  std::optional<Probe> probe_;
  std::vector<Relay> relays_;
  std::vector<NodeId> probe_order_;
  std::size_t probe_next_ = 0;
  std::uint32_t sequence_ = 0;

  TimeUs last_tick_us_;
  TimeUs next_probe_us_;
  TimeUs next_news_us_;
  TimeUs next_sync_us_;
  TimeUs next_reconnect_us_;
  TimeUs next_expire_us_;
  /// When this node may next write to a node that seems not to know it, or not to know claims about itself.
  TimeUs next_introduction_us_ = 0;
  TimeUs next_join_us_ = 0;
  TimeUs join_backoff_us_ = 0;
  TimeUs next_shuffle_us_ = 0;
  TimeUs searched_us_ = 0;
  TimeUs refusals_backoff_us_ = 0;  ///< grows with refusals; see search_backoff_us()
  TimeUs next_push_us_ = 0;
  TimeUs crowded_us_ = 0;  ///< when there last were more nodes than the views could hold, or a neighbour said so
};

}  // namespace gossamer::gossip
