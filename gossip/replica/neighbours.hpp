// The nodes that a replica has met, and what it knows of each: the state of its replica, the rate of its link, and the
// results of exchanges with it. This class says who is a partner and who may be asked now.
//
// At most max_neighbours are kept: a new neighbour takes the place of one without a link. Owned by a replica, on its
// thread.

#pragma once

#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "gossip/codec/influence.hpp"
#include "gossip/exchange/steps.hpp"
#include "gossip/replica/byte_budget.hpp"
#include "gossip/replica/held_part.hpp"
#include "gossip/replica/link_load.hpp"
#include "gossip/replica/replica_report.hpp"

namespace gossamer::gossip {

inline constexpr std::size_t max_neighbours = 1024;

struct Neighbour {
  bool linked = false;
  Sponsor sponsor = no_sponsor;
  JobInfo info;
  TimeUs trained_us = 0;     ///< when its clock was last heard to have moved, or it was first heard
  bool over_before = false;  ///< the run was over for it before this node heard of it, or began to finish
  LinkFactor factor;
  ByteBudget budget;
  double answer_us = 0;         ///< smoothed time from request to reply
  double goodput = 0;           ///< smoothed bytes per second of the same exchanges
  bool met_quarantine = false;  ///< it holds NaN in some fragment: Fragment::quarantined_at
  int busy_in_a_row = 0;
  TimeUs busy_since_us = 0;              ///< when it turned down the first of these
  TimeUs busy_us = 0;                    ///< when it last turned a request down: see rests_until_us()
  TimeUs answered_us = 0;                ///< when this node last answered its request
  std::optional<TimeUs> waits_since_us;  ///< when note_waits() was first called since answered_us; none: it was not
  TimeUs waited_us = 0;                  ///< when note_waits() was last called
  bool waits_for_share = false;          ///< it was last called because of the share of this node's sponsor
  LinkLoad load;
  std::size_t own_count = 0;  ///< exchanges that this node has begun with it and not ended
  std::size_t window = 64;    ///< most own_count may be: one more with each answer, half when one is overdue
  int overdue_in_a_row = 0;   ///< requests without an answer in time since the last answer
  TimeUs overdue_us = 0;      ///< when an answer was last found overdue
  HeldPart held;
  ClipRecord clips;
  std::uint64_t exchanges = 0;  ///< PartnerReport describes this and the following members
  std::uint64_t busy = 0;
  TimeUs exchanged_us = 0;
  double relative_distance = 0;
  std::uint64_t blocks = 0;
  std::uint64_t wide_blocks = 0;
  std::uint64_t unresolved = 0;
  double age_intervals = 0;
};

class Neighbours {
 public:
  Neighbours(const NodeId& self, const JobKey& job) : self_(self), job_(job) {}

  [[nodiscard]] auto begin() const { return table_.begin(); }
  [[nodiscard]] auto end() const { return table_.end(); }
  /// Null: the node is not known.
  [[nodiscard]] Neighbour* find(const NodeId& node);
  [[nodiscard]] const Neighbour* find(const NodeId& node) const;
  [[nodiscard]] Sponsor sponsor_of(const NodeId& node) const;
  /// `nodes`: number of partners to average with that the sponsor has admitted. `all`: number of sponsors of all such
  /// partners, where each partner with no_sponsor counts as one. `active`: as `all`, of the partners that were
  /// exchanged with after `since_us`. A partner in quarantine, or one that answers nothing, counts only if it is
  /// active, whatever it says.
  struct Voices {
    std::size_t nodes = 0;
    std::size_t all = 0;
    std::size_t active = 0;
  };
  [[nodiscard]] std::size_t linked() const;
  [[nodiscard]] Voices voices(Sponsor sponsor, bool servers, TimeUs since_us) const;

  // --- coming and going
  /// A link to the node is up. Null: there is no room for it. `displaced`: the neighbour whose place it took.
  Neighbour* link_up(const NodeId& node, Sponsor sponsor, double bytes_per_s, std::optional<NodeId>& displaced);
  void link_down(const NodeId& node);
  void erase(const NodeId& node);
  /// The neighbour has reported its state.
  enum class News { nothing, stirring };  ///< stirring: something that may have changed a model
  News note(const NodeId& from, Neighbour& neighbour, const JobInfo& info, TimeUs now_us);
  /// How often a partner went away, for a moment or for good, while the run was not over for it.
  [[nodiscard]] std::uint64_t losses() const { return losses_; }
  /// To be called when this node begins to finish.
  void begin_finish();
  /// True if the run was over for some partner before. Such a partner may train again soon.
  [[nodiscard]] bool any_over_before() const;
  void set_rates(double bytes_per_s);
  void set_link(const NodeId& node, const LinkLoad& load);

  // --- who they are
  [[nodiscard]] bool is_linked(const NodeId& node) const;
  /// True if it is linked and runs this job with this layout, so that exchanges with it are possible.
  [[nodiscard]] bool is_partner(const Neighbour& neighbour) const;
  /// True for a partner that finishes as well, is not quarantined, and was not over before.
  [[nodiscard]] bool finishes(const Neighbour& neighbour) const;
  /// True for a partner that has not said that it holds NaN or infinity.
  [[nodiscard]] bool is_sound(const Neighbour& neighbour) const;
  [[nodiscard]] std::size_t partners() const;
  [[nodiscard]] std::size_t sound_partners() const;
  /// Partners that have not let several requests in a row wait, and the median of HeldPart::usual_us() of those where
  /// it is known (the lower one of two; 0: of none).
  struct Holding {
    std::size_t partners = 0;
    TimeUs median_us = 0;
  };
  [[nodiscard]] Holding holding() const;
  [[nodiscard]] std::size_t finishing_partners() const;
  /// Sound partners with programs that neither finish nor have trained since then.
  [[nodiscard]] std::vector<NodeId> idle_since(TimeUs then_us) const;
  /// Linked replicas in this state that train the job.
  [[nodiscard]] std::size_t trainers(ReplicaState state = ReplicaState::running) const;
  /// The smallest id of the partners that train, or of those that finish if any does. All bytes are 255 if there is
  /// none.
  [[nodiscard]] NodeId first_trainer() const;
  /// The nodes that may own fragments (gossip/owner.hpp), ascending: those that keep the job, or all if none does. The
  /// same holds for this node. Replicas in quarantine own none, nor do nodes that may only follow.
  [[nodiscard]] std::vector<NodeId> owners(bool self_keeps) const;
  /// True if there are partners with programs, and all these programs have stopped training.
  [[nodiscard]] bool trainers_finish() const;
  /// Null: there is none, or more than one.
  [[nodiscard]] const NodeId* only_partner() const;
  /// True for a partner that this node averages with: one that trains or, with `servers`, any.
  [[nodiscard]] bool averages_with(const Neighbour& neighbour, bool servers) const {
    return is_partner(neighbour) && !neighbour.info.follows && (servers || !neighbour.info.keeps);
  }
  /// This node and its partners, ascending.
  [[nodiscard]] std::vector<NodeId> members() const;
  /// A neighbour with another layout under the job's name, if there is one.
  [[nodiscard]] const std::optional<NodeId>& layout_stranger() const { return layout_stranger_; }
  /// The neighbour whose settings were last too far ahead to be believed (max_settings_leap).
  [[nodiscard]] const std::optional<NodeId>& settings_liar() const { return settings_liar_; }
  void disbelieve_settings(const NodeId& from) { settings_liar_ = from; }

  // --- what exchanges teach about them
  void note_busy(const NodeId& node, TimeUs now_us);
  /// A neighbour that has turned down several requests in a row, or owes answers to several, is not asked before this
  /// time, since each request costs bytes, or holds a fragment, for nothing. `hurry`: this node finishes.
  [[nodiscard]] static TimeUs rests_until_us(const Neighbour& neighbour, TimeUs period_us, bool hurry);
  /// The node has answered a request of this node, with whatever status.
  void note_reply(const NodeId& node);
  /// The node has not answered a request of this node in time. Each such request holds a fragment, so a neighbour that
  /// never answers would otherwise come to hold all fragments.
  void note_overdue(const NodeId& node, TimeUs now_us);
  /// A request was given up after this time.
  void note_unanswered(const NodeId& node, TimeUs took_us, TimeUs now_us);
  /// An exchange was done in this time.
  void note_held(const NodeId& node, TimeUs took_us);
  /// This node has answered a request of that node.
  void note_answer(const NodeId& node, TimeUs now_us);
  /// This node has turned a request of that node down, and could have answered it if others asked less. Do not call it
  /// when the reason lies with that node or with the link: the others would make room for it for ever, and in vain.
  /// `for_share`: it could have been answered if others with its sponsor asked less, so only those make room.
  void note_waits(const NodeId& node, TimeUs now_us, bool for_share = false);
  /// True if another neighbour has asked in vain for long while this one was answered not long ago. A node that is
  /// turned down asks more and more rarely. So without this rule, a node that many ask would always answer the same
  /// few.
  [[nodiscard]] bool is_to_yield(const Neighbour& neighbour, TimeUs period_us, TimeUs now_us) const;
  /// True if another node with its sponsor has asked in vain for long, because of their share. This node does not ask
  /// it then, since that would take from the share.
  [[nodiscard]] bool leaves_share(const Neighbour& neighbour, TimeUs period_us, TimeUs now_us) const;
  /// A request and its reply, of `bytes` in all, took `took_us`.
  void observe_answer(const NodeId& from, std::size_t bytes, TimeUs took_us);
  void observe_age(const NodeId& partner, const Age& age);
  /// True if an exchange of this size may be begun: the link's queue is short, and the neighbour owes few answers.
  [[nodiscard]] static bool has_room(const Neighbour& neighbour, std::size_t fragment_bytes);
  /// True if its link can afford an answer of this size.
  [[nodiscard]] static bool may_answer(const Neighbour& neighbour, std::size_t debt_bytes, TimeUs now_us);
  /// How long to wait for an answer or an acknowledgement before a message is sent again.
  [[nodiscard]] TimeUs patience_us(const NodeId& node, TimeUs info_period_us, TimeUs lifetime_us) const;
  /// Bytes per second that exchanges with the node have shown; 0: not known.
  [[nodiscard]] double goodput(const NodeId& node) const;

  [[nodiscard]] std::vector<PartnerReport> reports() const;

 private:
  [[nodiscard]] bool is_in(const Neighbour& neighbour, ReplicaState state) const;
  [[nodiscard]] bool has_waited(const Neighbour& neighbour, TimeUs wait_us, TimeUs period_us, TimeUs now_us) const;
  /// True for a partner for which the run is not over.
  [[nodiscard]] bool goes_on(const Neighbour& neighbour) const;

  NodeId self_;
  JobKey job_;
  std::map<NodeId, Neighbour> table_;
  TimeUs waited_for_share_us_ = std::numeric_limits<TimeUs>::min() / 2;  // when a node last waited for its share
  std::uint64_t losses_ = 0;
  std::optional<NodeId> layout_stranger_;
  std::optional<NodeId> settings_liar_;
};

}  // namespace gossamer::gossip
