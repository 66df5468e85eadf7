// The exact mean over the members of a collective, round by round.
//
// In a round each member contributes numbers: a model, gradients, a metric. Each fragment has an owner among the
// contributors (gossip/owner.hpp), which adds the contributions in the order of their participants and gives
// the same bytes to all. So a member sends and receives about twice the numbers, however many members there are.
//
// Who contributes is decided before the data move, and nobody uses a result before the round is committed:
//
//   ready → proposed → accepted → committed
//
// The conductor is the voter with the smallest id that is not dead. When all are ready it proposes a plan: the
// contributions, and the members of the next round. A member that has all results of the plan accepts it. A quorum of
// the voters commits it. When somebody dies before that, the conductor, or the next one, tries again without them at a
// later ballot. Whoever accepted an earlier plan says so, and that plan is proposed again; it may have been committed.
// This is Paxos for each round (Lamport 2001, "Paxos made simple"), with the members of a round decided by the round
// before. The voters are the members that contributed to the round before, so a participant that enters and dies at
// once stops nobody. A quorum is more than half of the voters, or half of them with the smallest id.
//
// A member keeps its contribution until a committed round has it. Each contribution has a number, so that none is lost
// or counts twice. A process that starts again is a new participant. A member that a round has left out joins anew.
// A participant remembers in which rounds of former groups it may have voted, and enters none of them again.
//
// A participant that wants to be a member asks all nodes that are linked. A member lets it in with the next round. If
// nobody has contributed yet, that is a round without contributions. Where nobody is a member, the smallest participant
// that asks founds a group. Two participants that do not know of each other may both found one, also when one of them
// is taken for dead wrongly. When their groups meet, the members of the later group ask to be let into the other, and
// go on in their own until they are. A group is left, too, if so many voters are gone that no quorum can come together.
// "Gone" is what their nodes or they themselves have said; who is only taken for dead is waited for.
//
// A member that goes to another group may leave a round that it does not know the end of. If a plan of that round had
// its contribution, the contribution is given up: the round may be committed, and no other group may have it then. So
// each contribution is in at most one round of all groups. It is in exactly one if its participant changes no group.
//
// Which message goes from whom to whom, and what the receiver does with it. Messages of this round, from a member, come
// to on(). What is about other rounds, groups or membership is told apart in received().
//
//   RoundJoin      who wants in → all linked       a member names it in its next plan, and answers RoundHeard
//   RoundHeard     a member → who wants in, others knows of members: it does not found. Two groups meet by it, and a
//                                                  member of an earlier round asks for what it has missed.
//   RoundReady     a member → the conductor        proposes a plan when all are ready
//   RoundPrepare   the conductor → members         promises, or refuses; not sent for a round's first ballot
//   RoundPromise   a member → the conductor        proposes a plan when a quorum has promised
//   RoundRefusal   a member → the conductor        gives its ballot up: a later one was promised
//   RoundProposal  the conductor → members         works on the plan, and accepts it when all results are here
//   RoundPart      a contributor → a fragment's owner, which sums; the owner → members: the result. With values.
//   RoundAsk       a member → the owner, another   sends the part again, or says that the round is over
//   RoundAccept    a member → the conductor        commits when a quorum has accepted
//   RoundCommit    the conductor → members; also anyone → who is a round behind: applies the plan
//   RoundEnter     the conductor → who is let in   is a member from the next round on
//   RoundWaits     the conductor → contributors    can say whom the round waits for
//   RoundGone      a member → who is further behind: is no member any more, and joins anew
//   RoundNobody    a node → who asks for a process that is gone: counts it as dead, or as nowhere to be found;
//                  who has left the round undecided → who is in it: counts it as dead in this round
//
// This is a state machine without the values: messages and time come in, actions come out, and the caller that carries
// the actions out keeps the values. One owner, one thread.

#pragma once

#include <deque>
#include <map>
#include <set>
#include <span>

#include "gossip/average_messages.hpp"

namespace gossamer::gossip {

struct AveragingOptions {
  TimeUs retry_us = 200 * us_per_ms;  ///< what is not answered is sent again after this
  /// Once a quorum is ready, the other members are waited for this long; 0: without a limit. A member that is late
  /// contributes to the next round instead.
  TimeUs grace_us = 0;
  /// A participant founds a group only after it has asked for this long and every linked node has answered.
  TimeUs found_after_us = 300 * us_per_ms;
  /// A member without a link for this long counts as dead. The failure detector says nothing of a node that died before
  /// this node had heard of it.
  TimeUs unlinked_us = 10 * us_per_s;
};

class Averaging {
 public:
  Averaging(AveragingOptions options, const Participant& self, std::uint32_t fragments)
      : options_(options), self_(self), fragments_(fragments) {}

  struct SendPart {
    Participant to;
    std::uint64_t round;  ///< this round or the last one, whose results are kept
    RoundPart part;
  };
  struct Applied {
    std::uint64_t round;
    RoundPlan plan;
    bool set_aside;  ///< its results were set aside earlier
  };
  struct Entered {
    std::uint64_t round;  ///< the last round that the model must contain
    Participant from;     ///< a member that has that model
  };
  /// The caller carries these out in the order of the fields.
  struct Actions {
    std::vector<std::pair<Participant, AverageMessage>> send = {};
    std::vector<SendPart> parts = {};
    /// The former plan's results are complete and accepted. They are kept aside while another plan is carried out.
    bool set_aside = false;
    bool new_plan = false;           ///< another plan has begun: the parts kept for the former plan are of no use
    bool take_back = false;          ///< the new plan is the one whose results were set aside
    std::vector<std::uint32_t> sum;  ///< fragments whose contributions are all here: add them up, then call summed()
    /// The results of the plan are to be used. They are kept for others until the next round is applied. If there are
    /// several rounds, only the first has contributions.
    std::vector<Applied> applied = {};
    std::optional<Entered> entered = {};  ///< this participant is a member: it takes the model over, then contributes
    /// This participant is no member any more, or has gone to another group (`entered`).
    bool left = false;
  };

  // --- membership
  /// Asks every linked node until this participant is a member, or founds a group.
  void join() { wants_in_ = true; }
  /// From now on this participant may found a group. Call it once the nodes that will soon be linked are linked.
  /// `time_of_day_us` counts from 1970.
  void allow_founding(TimeUs now_us, TimeUs time_of_day_us) { time_of_day_less_now_us_ = time_of_day_us - now_us; }
  /// Leaves with the next round. A contribution is withdrawn unless the present plan has it.
  void leave(Actions& out);
  [[nodiscard]] bool is_member() const { return member_; }
  /// The group that this participant is a member of, or was a member of last.
  [[nodiscard]] const FoundingId& founding() const { return founding_; }
  [[nodiscard]] std::uint64_t round() const { return round_; }
  [[nodiscard]] const std::vector<Participant>& members() const { return members_; }
  /// The members of which a quorum decides this round.
  [[nodiscard]] const std::vector<Participant>& voters() const { return voters_; }
  [[nodiscard]] bool is_quorum(const std::set<Participant>& nodes) const;
  /// The members that are waited for, as far as the conductor has told.
  [[nodiscard]] std::vector<Participant> not_ready() const;

  void link_up(const NodeId& node, Actions& out);
  void link_down(const NodeId& node) { linked_.erase(node); }
  /// The failure detector, which may be wrong, takes the node for dead.
  void node_dead(const NodeId& node, Actions& out);
  void node_alive(const NodeId& node) { dead_.erase(node); }

  // --- data
  /// Gives the next contribution. Allowed only once a round has taken the last one. `number`: larger than that of the
  /// last one. `at_least`: RoundReady::at_least.
  void contribute(std::uint64_t number, std::uint16_t at_least, Actions& out);
  /// The contribution that no committed round has yet, as far as this node knows. None, too, if it was given up because
  /// a round of a former group may have it.
  [[nodiscard]] std::optional<std::uint64_t> contribution() const { return own_; }
  /// The plan whose parts are collected.
  [[nodiscard]] const RoundPlan* plan() const { return decision_.work ? &decision_.work->plan : nullptr; }
  /// How long others are waited for from now on.
  void set_grace(TimeUs grace_us) { options_.grace_us = grace_us; }
  /// Whether this result is still missing, so that received() will take it.
  [[nodiscard]] bool wants(std::uint64_t round, const RoundPart& part) const {
    return member_ && round == round_ && decision_.work && decision_.work->plan.made_at == part.made_at &&
           part.fragment < decision_.work->slots.size() && !decision_.work->slots[part.fragment].result;
  }
  /// A part has come. True: the caller must keep its values.
  [[nodiscard]] bool received(const Participant& from, std::uint64_t round, const RoundPart& part, Actions& out);
  /// The caller has added up a fragment's contributions, as Actions::sum asked for.
  void summed(std::uint32_t fragment, const Ballot& made_at, Actions& out);

  // --- messages and time
  void received(const Participant& from, const AverageMessage& message, Actions& out);
  void tick(TimeUs now_us, Actions& out);

  /// Ends the process if what must always hold does not.
  void check_invariants() const;

 private:
  struct Slot {
    Participant owner = {};
    std::set<Participant> came = {};  // contributors whose part is here, at the owner
    bool result = false;
  };
  /// The plan that is being carried out.
  struct Work {
    RoundPlan plan;
    std::optional<Ballot> proposed = {};  // the last ballot that proposed it
    bool committed = false;
    std::vector<Slot> slots = {};
  };
  /// The round as this node conducts it.
  struct Lead {
    Ballot ballot;
    std::map<Participant, RoundPromise> promises = {};
    std::optional<RoundPlan> plan = {};
    std::set<Participant> accepts = {};
  };
  /// How far the present round is decided. It begins anew with each round.
  struct Decision {
    Ballot promised = {};
    bool gave = false;              // a plan had the own contribution, and its parts were sent to their owners
    std::uint64_t next_number = 0;  // the number of this node's next ballot
    std::optional<RoundPromise::Accepted> accepted = {};
    std::optional<Work> work = {};
    std::optional<Lead> lead = {};
    std::map<Participant, RoundReady> ready = {};
    std::set<Participant> absent = {};  // members that have said that they will not take part in this round
    std::optional<TimeUs> quorum_ready_us = {};
    std::vector<Participant> late = {};  // members that are waited for, as the conductor has told
  };
  /// The knowledge of others, while this participant is no member, or knows of an older group.
  struct Search {
    std::optional<TimeUs> since_us = {};
    std::optional<TimeUs> heard_member_us = {};  // when a member (of an older group) was heard last
    std::map<Participant, TimeUs> seekers = {};  // when they were heard of last
    std::set<NodeId> without = {};               // nodes where nobody averages
  };

  /// Remembers the ballot's number. False: no member that keeps to the rules can have so large a number.
  [[nodiscard]] bool take_note(const Ballot& ballot);
  [[nodiscard]] bool may_be(const RoundPlan& plan) const;
  void on(const Participant& from, const RoundReady& ready, Actions& out);
  void on(const Participant& from, const RoundPrepare& prepare, Actions& out);
  void on(const Participant& from, const RoundPromise& promise, Actions& out);
  void on(const Participant& from, const RoundRefusal& refusal, Actions& out);
  void on(const Participant& from, const RoundProposal& proposal, Actions& out);
  void on(const Participant& from, const RoundAccept& accept, Actions& out);
  void on(const Participant& from, const RoundAsk& ask, Actions& out);
  void on(const Participant& /*from*/, const RoundWaits& waits, Actions& /*out*/) { decision_.late = waits.late; }
  void on(const Participant& from, const RoundCommit& commit, Actions& out);
  void on_other_founding(const Participant& from, const AverageMessage& message, Actions& out);
  void answered_outside(const Participant& from, const AverageMessage& message);
  void dispatch(const Participant& from, const AverageMessage& message, Actions& out);
  void member_lost(Actions& out);
  [[nodiscard]] bool may_have_quorum() const;
  void look_for_unlinked(Actions& out);
  void nobody(const Participant& from, const AverageMessage& message, Actions& out);
  [[nodiscard]] bool is_over_for_self(const FoundingId& founding, std::uint64_t round) const;
  void enter(const Participant& from, const AverageMessage& message, Actions& out);
  [[nodiscard]] bool heard_member() const;
  void ask_to_enter(Actions& out);
  void seek(Actions& out);
  void found();
  void become_member(const FoundingId& founding, std::uint64_t round);
  [[nodiscard]] RoundEnter entrance() const;
  void answer_join(const Participant& from, Actions& out);
  void answer_late(const Participant& from, const AverageMessage& message, Actions& out);
  void let_go_if_taken();
  void fall_out(Actions& out);

  [[nodiscard]] const Participant& conductor() const;
  [[nodiscard]] RoundReady own_ready() const {
    return {.contribution = own_, .leaves = !own_ && leaving_, .at_least = at_least_};
  }
  void tell_ready(Actions& out);
  void conduct(Actions& out);
  void propose_if_ready(Actions& out);
  [[nodiscard]] bool is_gone(const Participant& member) const {
    return gone_.contains(member) || decision_.absent.contains(member);
  }
  [[nodiscard]] bool is_dead(const Participant& member) const { return dead_.contains(member.node) || is_gone(member); }
  [[nodiscard]] std::optional<RoundPlan> make_plan();
  [[nodiscard]] std::size_t staying() const;
  [[nodiscard]] std::vector<Participant> voters_after(const RoundPlan& plan) const;
  [[nodiscard]] bool anybody_else_has_last(const Participant& late) const;
  void work_on(const RoundPlan& plan, Actions& out);
  void give(std::uint32_t f, Actions& out);
  void came(std::uint32_t f, const Participant& from, Actions& out);
  void part_done(Actions& out);
  void commit_if_accepted(Actions& out);
  void apply(Actions& out);
  void begin_round(const RoundPlan& before);
  template <class Body>
  void send(const Participant& to, std::uint64_t round, Body&& body, Actions& out);
  template <class Body>
  void send(const Participant& to, Body&& body, Actions& out) {
    send(to, round_, std::forward<Body>(body), out);
  }
  void send_to_members(const auto& body, Actions& out);
  void drain(Actions& out);
  void try_again(Actions& out);
  void tell_whom_it_waits_for(Actions& out);
  void tell_others(Actions& out);
  void ask_for_parts(const Participant& some, Actions& out);

  AveragingOptions options_;
  Participant self_;
  std::uint32_t fragments_;

  bool member_ = false;
  bool wants_in_ = false;
  bool leaving_ = false;
  // The group, and the round that it commits next. While this participant is no member: the group that it was in last,
  // and the last round in which it may have voted.
  FoundingId founding_;
  std::map<FoundingId, std::uint64_t> voted_;  // former groups, and the last round in which it may have voted there
  std::uint64_t round_ = 0;
  std::vector<Participant> members_;
  std::vector<Participant> voters_;
  std::set<NodeId> linked_;
  std::set<NodeId> dead_;
  std::map<NodeId, TimeUs> unlinked_;           // members without a link, and since when
  std::set<Participant> gone_;                  // members whose processes are gone
  std::map<Participant, std::uint64_t> taken_;  // each participant's last contribution that a committed round has
  std::optional<std::uint64_t> own_;
  std::uint16_t at_least_ = 0;  // RoundReady::at_least of the own contribution
  std::uint64_t given_ = 0;     // the largest number of an own contribution

  Decision decision_;
  std::optional<RoundPlan> last_;  // the plan of the round before
  bool has_last_results_ = false;  // false: this node entered after that round

  std::set<Participant> joiners_;
  Search search_;
  std::optional<TimeUs> time_of_day_less_now_us_;  // none: this participant may not found a group yet

  TimeUs now_us_ = 0;
  TimeUs retry_at_us_ = 0;
  std::size_t attempts_ = 0;
  std::size_t beats_ = 0;
  bool came_since_ = false;  // parts came since the last attempt: more may be under way
  std::deque<AverageMessage> to_self_;
};

}  // namespace gossamer::gossip
