#include "gossip/average/averaging.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/overloaded.hpp"
#include "gossip/owner.hpp"

namespace gossamer::gossip {

namespace {

/// A member tries again every retry_us. It looks for other groups with one try in so many.
constexpr std::size_t look_for_others_every = 20;
/// A conductor tells whom it waits for with one try in so many.
constexpr std::size_t tell_late_every = 4;
/// Of so many former groups a participant remembers the rounds in which it may have voted.
constexpr std::size_t max_former_groups = 1024;
/// One message raises the numbers of ballots by so much at most, so that none uses them up.
constexpr std::uint64_t max_ballot_leap = std::uint64_t{1} << 32;

bool contains(std::span<const Participant> nodes, const Participant& node) {
  return std::ranges::binary_search(nodes, node);
}

bool contributes(const RoundPlan& plan, const Participant& node) {
  return std::ranges::find(plan.contributions, node, &Contribution::from) != plan.contributions.end();
}

/// True if the message tells of the round that let its sender in. If the members that committed that round are gone,
/// only the sender can tell of it.
bool tells_how_it_entered(const Participant& from, const AverageMessage& message) {
  const auto* const commit = std::get_if<RoundCommit>(&message.body);
  return commit != nullptr && contains(commit->plan.members, from);
}

}  // namespace

// --- membership ---------------------------------------------------------------------------------------------------

bool Averaging::heard_member() const {
  return search_.heard_member_us && now_us_ - *search_.heard_member_us <= 10 * options_.retry_us;
}

void Averaging::ask_to_enter(Actions& out) {
  for (const NodeId& node : linked_)
    send(Participant{node}, RoundJoin{}, out);
}

/// Asks every linked node. Founds a group if all have answered, none has a member, and no smaller participant asks.
void Averaging::seek(Actions& out) {
  if (!search_.since_us) search_.since_us = now_us_;
  ask_to_enter(out);
  std::erase_if(search_.seekers, [&](const auto& seeker) { return now_us_ - seeker.second > 10 * options_.retry_us; });
  const bool smallest = search_.seekers.empty() || self_ < search_.seekers.begin()->first;
  const bool all_heard = std::ranges::all_of(linked_, [&](const NodeId& node) {
    return search_.without.contains(node) ||
           std::ranges::any_of(search_.seekers, [&](const auto& s) { return s.first.node == node; });
  });
  const bool long_enough = now_us_ - *search_.since_us >= options_.found_after_us;
  if (time_of_day_less_now_us_ && smallest && !heard_member() && all_heard && long_enough) found();
}

void Averaging::found() {
  become_member({.at_us = now_us_ + *time_of_day_less_now_us_, .by = self_}, 1);
  last_.reset();
  begin_round({.members = {self_}, .voters = {self_}});
}

/// A round of the former group that nobody here knows the end of may have the own contribution. No other group's round
/// may have it then, so it is given up.
void Averaging::become_member(const FoundingId& founding, std::uint64_t round) {
  if (founding != founding_ && decision_.gave) own_.reset();
  member_ = true;
  wants_in_ = false;
  search_.heard_member_us.reset();
  founding_ = founding;
  round_ = round;
  taken_.clear();
}

void Averaging::leave(Actions& out) {
  leaving_ = true;
  wants_in_ = false;
  if (!decision_.work || !contributes(decision_.work->plan, self_)) own_.reset();
  if (!member_) out.left = true;
  if (!decision_.work) tell_ready(out);
  drain(out);
}

void Averaging::link_up(const NodeId& node, Actions& out) {
  linked_.insert(node);
  dead_.erase(node);
  if (member_) send(Participant{node}, RoundHeard{}, out);  // there may be another group
}

void Averaging::node_dead(const NodeId& node, Actions& out) {
  dead_.insert(node);
  linked_.erase(node);
  search_.without.erase(node);
  std::erase_if(joiners_, [&](const Participant& joiner) { return joiner.node == node; });
  std::erase_if(search_.seekers, [&](const auto& seeker) { return seeker.first.node == node; });
  if (member_ && std::ranges::find(members_, node, &Participant::node) != members_.end()) member_lost(out);
}

void Averaging::look_for_unlinked(Actions& out) {
  std::map<NodeId, TimeUs> unlinked;
  for (const auto& [node, life] : members_) {
    if (node == self_.node || linked_.contains(node) || dead_.contains(node)) continue;
    const auto found = unlinked_.find(node);
    unlinked.emplace(node, found == unlinked_.end() ? now_us_ : found->second);
  }
  unlinked_ = std::move(unlinked);
  for (const auto& [node, since_us] : unlinked_)
    if (now_us_ - since_us > options_.unlinked_us) node_dead(node, out);
}

/// The participant is gone, or will not take part in this round.
void Averaging::nobody(const Participant& from, const AverageMessage& message, Actions& out) {
  const bool has_ended = message.founding == FoundingId{};
  if (has_ended) joiners_.erase(from);
  if (!contains(members_, from) || (!has_ended && (message.founding != founding_ || message.round != round_))) return;
  if ((has_ended ? gone_ : decision_.absent).insert(from).second) member_lost(out);
}

/// Whether a quorum of the voters may still decide this round. Those that are only taken for dead may.
bool Averaging::may_have_quorum() const {
  std::set<Participant> left;
  std::ranges::copy_if(voters_, std::inserter(left, left.end()), [this](auto& one) { return !is_gone(one); });
  return is_quorum(left);
}

void Averaging::member_lost(Actions& out) {
  // Results that only the lost member had are missing. A new ballot finds out whether others have accepted the plan.
  if (decision_.lead && decision_.lead->plan) decision_.lead.reset();
  if (!decision_.work) tell_ready(out);  // it may have been the conductor
  conduct(out);
  propose_if_ready(out);
  drain(out);
}

void Averaging::answer_join(const Participant& from, Actions& out) {
  if (contains(members_, from)) {
    if (last_) send(from, round_ - 1, entrance(), out);
    return;
  }
  if (members_.size() + joiners_.size() < max_average_members) joiners_.insert(from);
  send(from, RoundHeard{}, out);
}

RoundEnter Averaging::entrance() const {
  RoundEnter message{.plan = *last_};
  for (const auto& [participant, number] : taken_)
    message.taken.push_back({participant, number});
  return message;
}

/// Whether the round is of a group that this participant has left in that round or later. It remembers only that it may
/// have voted, not how. So it must not enter the round again.
bool Averaging::is_over_for_self(const FoundingId& founding, std::uint64_t round) const {
  if (member_ && founding == founding_) return false;
  const auto voted = voted_.find(founding);
  return voted != voted_.end() && round <= voted->second;
}

void Averaging::enter(const Participant& from, const AverageMessage& message, Actions& out) {
  const auto& entrance = std::get<RoundEnter>(message.body);
  const bool wants_it = member_ ? message.founding < founding_ && !leaving_ : wants_in_;
  const bool can_count_on = message.round <= max_average_round / 2;
  if (!wants_it || !can_count_on || is_over_for_self(message.founding, message.round + 1) ||
      !contains(entrance.plan.members, self_))
    return;
  if (member_) fall_out(out);
  become_member(message.founding, message.round + 1);
  last_ = entrance.plan;
  has_last_results_ = false;
  for (const auto& [participant, number] : entrance.taken)
    taken_[participant] = number;
  let_go_if_taken();
  begin_round(entrance.plan);
  out.entered = Entered{message.round, from};
  tell_ready(out);
}

/// Forgets the own contribution if a committed round has it.
void Averaging::let_go_if_taken() {
  std::uint64_t& taken = taken_[self_];
  taken = std::min(taken, given_);  // no round can have a contribution that was never given
  if (own_ && taken >= *own_) own_.reset();
}

void Averaging::fall_out(Actions& out) {
  member_ = false;
  wants_in_ = !leaving_;
  voted_[founding_] = round_;
  if (voted_.size() > max_former_groups) voted_.erase(std::prev(voted_.end()));
  decision_.work.reset();
  decision_.lead.reset();
  search_.since_us.reset();
  out.left = true;
}

bool Averaging::is_quorum(const std::set<Participant>& nodes) const {
  const auto count = static_cast<std::size_t>(
      std::ranges::count_if(voters_, [&](const Participant& voter) { return nodes.contains(voter); }));
  return 2 * count > voters_.size() || (2 * count == voters_.size() && nodes.contains(voters_.front()));
}

const Participant& Averaging::conductor() const {
  const auto found = std::ranges::find_if_not(voters_, [this](const Participant& voter) { return is_dead(voter); });
  return found == voters_.end() ? voters_.front() : *found;
}

// --- messages -----------------------------------------------------------------------------------------------------

template <class Body>
void Averaging::send(const Participant& to, std::uint64_t round, Body&& body, Actions& out) {
  const bool seeks = !member_ && std::is_same_v<std::remove_cvref_t<Body>, RoundJoin>;
  AverageMessage message{.founding = seeks ? FoundingId{} : founding_, .round = round, .body = {}};
  message.body = std::forward<Body>(body);
  if (to == self_) {
    to_self_.push_back(std::move(message));
  } else {
    out.send.emplace_back(to, std::move(message));
  }
}

void Averaging::send_to_members(const auto& body, Actions& out) {
  for (const Participant& member : members_)
    send(member, body, out);
}

void Averaging::drain(Actions& out) {
  while (!to_self_.empty()) {
    const AverageMessage message = std::move(to_self_.front());
    to_self_.pop_front();
    if (!member_ || message.round != round_) continue;
    dispatch(self_, message, out);
  }
}

/// A message of this round, from a member.
void Averaging::dispatch(const Participant& from, const AverageMessage& message, Actions& out) {
  std::visit(
      Overloaded{[](const RoundEnter&) {}, [](const RoundJoin&) {}, [](const RoundHeard&) {}, [](const RoundNobody&) {},
                 [](const RoundGone&) {}, [&](const auto& body) { on(from, body, out); }},
      message.body);
}

/// Learns from a message, while this participant is no member, who is a member and who is not.
void Averaging::answered_outside(const Participant& from, const AverageMessage& message) {
  search_.without.erase(from.node);
  const bool is_nobody = std::holds_alternative<RoundNobody>(message.body);
  if (message.founding != FoundingId{}) {
    if (!is_nobody) search_.heard_member_us = now_us_;
    return;
  }
  if (std::holds_alternative<RoundJoin>(message.body)) search_.seekers[from] = now_us_;
  if (!is_nobody) return;
  search_.seekers.erase(from);
  if (from.life == nobodys_life) search_.without.insert(from.node);
}

/// Where two groups meet, the members of the one that was founded later ask to be let into the other. Until then they
/// go on in their own: the other may have no quorum, or may be out of reach again.
void Averaging::on_other_founding(const Participant& from, const AverageMessage& message, Actions& out) {
  if (founding_ < message.founding) return send(from, RoundHeard{}, out);
  search_.heard_member_us = now_us_;
  if (leaving_) fall_out(out);
}

void Averaging::received(const Participant& from, const AverageMessage& message, Actions& out) {
  const bool is_entrance = std::holds_alternative<RoundEnter>(message.body);
  const bool is_nobody = std::holds_alternative<RoundNobody>(message.body);
  const bool tells_of_last = is_entrance || std::holds_alternative<RoundCommit>(message.body);
  const std::uint64_t senders_round = tells_of_last ? message.round + 1 : message.round;
  if (!is_nobody && is_over_for_self(message.founding, senders_round))
    out.send.emplace_back(from, AverageMessage{message.founding, senders_round, RoundNobody{}});
  if (!member_) {
    answered_outside(from, message);
    if (is_entrance) enter(from, message, out);
    // A participant that has left still has the results of its last round.
    const bool late = !member_ && message.founding == founding_ && message.round + 1 == round_;
    if (late && !is_entrance && !is_nobody) answer_late(from, message, out);
  } else if (std::holds_alternative<RoundJoin>(message.body) &&
             (message.founding == FoundingId{} || message.founding > founding_)) {
    answer_join(from, out);
  } else if (is_nobody) {
    nobody(from, message, out);
  } else if (message.founding != founding_) {
    if (message.founding != FoundingId{}) on_other_founding(from, message, out);
    if (member_ && is_entrance) enter(from, message, out);
  } else if (std::holds_alternative<RoundJoin>(message.body)) {
    // A member of this group asks to be let into an older one.
  } else if (std::holds_alternative<RoundGone>(message.body)) {
    if (message.round > round_) fall_out(out);
  } else if (is_entrance) {
    // Nothing new.
  } else if (message.round > round_) {
    send(from, RoundAsk{.part = {.fragment = fragments_}}, out);  // the answer tells what was missed
  } else if (std::holds_alternative<RoundHeard>(message.body)) {
    // Nothing new.
  } else if (message.round < round_) {
    answer_late(from, message, out);
  } else if (contains(members_, from) || tells_how_it_entered(from, message)) {
    dispatch(from, message, out);
  }
  drain(out);
}

/// Answers a sender that is still in a round that is over here.
void Averaging::answer_late(const Participant& from, const AverageMessage& message, Actions& out) {
  if (std::holds_alternative<RoundCommit>(message.body)) return;
  if (message.round + 1 < round_) return send(from, RoundGone{}, out);
  if (!last_) return;
  const auto* ask = std::get_if<RoundAsk>(&message.body);
  const bool asks_for_result = ask != nullptr && ask->part.fragment < fragments_ &&
                               ask->part.kind == RoundPart::Kind::result && ask->part.made_at == last_->made_at;
  if (!asks_for_result) return send(from, message.round, RoundCommit{*last_}, out);
  if (has_last_results_) {
    out.parts.push_back({from, message.round, ask->part});
  } else if (!anybody_else_has_last(from)) {
    send(from, RoundGone{}, out);
  }
}

/// Members that entered after the last round do not have its results. If no other members are left, a participant that
/// missed the results must join anew.
bool Averaging::anybody_else_has_last(const Participant& late) const {
  return std::ranges::any_of(last_->contributions, [&](const Contribution& contribution) {
    return contribution.from != late && contains(members_, contribution.from) && !is_dead(contribution.from);
  });
}

// --- conducting ---------------------------------------------------------------------------------------------------

void Averaging::tell_ready(Actions& out) {
  if (member_) send(conductor(), own_ready(), out);
}

/// The first voter needs no promises for the first ballot: nobody can have accepted anything at an earlier one.
void Averaging::conduct(Actions& out) {
  if (!member_ || decision_.lead || conductor() != self_) return;
  decision_.lead = Lead{.ballot = {decision_.next_number++, self_}};
  if (decision_.lead->ballot.number > 0) send_to_members(RoundPrepare{decision_.lead->ballot}, out);
}

void Averaging::on(const Participant& from, const RoundReady& ready, Actions& out) {
  decision_.ready[from] = ready;
  conduct(out);
  propose_if_ready(out);
}

bool Averaging::take_note(const Ballot& ballot) {
  if (ballot.number > decision_.next_number + max_ballot_leap) return false;
  decision_.next_number = std::max(decision_.next_number, ballot.number + 1);
  return true;
}

/// False if the plan has a contribution of this participant that it has never made: its author breaks the rules.
bool Averaging::may_be(const RoundPlan& plan) const {
  const auto own = std::ranges::find(plan.contributions, self_, &Contribution::from);
  return own == plan.contributions.end() || (own->number > 0 && own->number <= given_);
}

void Averaging::on(const Participant& from, const RoundPrepare& prepare, Actions& out) {
  if (prepare.ballot.conductor != from || !take_note(prepare.ballot)) return;
  if (prepare.ballot < decision_.promised) return send(from, RoundRefusal{decision_.promised}, out);
  decision_.promised = prepare.ballot;
  send(from, RoundPromise{.ballot = decision_.promised, .accepted = decision_.accepted, .ready = own_ready()}, out);
}

void Averaging::on(const Participant& from, const RoundPromise& promise, Actions& out) {
  if (!decision_.lead || promise.ballot != decision_.lead->ballot) return;
  decision_.lead->promises[from] = promise;
  decision_.ready[from] = promise.ready;
  propose_if_ready(out);
}

/// Another member conducts. If it does not after all, tick() conducts again.
void Averaging::on(const Participant& /*from*/, const RoundRefusal& refusal, Actions& /*out*/) {
  if (!take_note(refusal.promised)) return;
  if (decision_.lead && refusal.promised > decision_.lead->ballot) decision_.lead.reset();
}

void Averaging::propose_if_ready(Actions& out) {
  if (!decision_.lead || decision_.lead->plan) return;
  if (decision_.lead->ballot.number > 0) {
    std::set<Participant> promised;
    std::optional<RoundPromise::Accepted> latest;
    for (const auto& [node, promise] : decision_.lead->promises) {
      promised.insert(node);
      if (promise.accepted && (!latest || promise.accepted->ballot > latest->ballot)) latest = promise.accepted;
    }
    if (!is_quorum(promised)) return;
    if (latest) decision_.lead->plan = latest->plan;
  }
  if (!decision_.lead->plan) decision_.lead->plan = make_plan();
  if (decision_.lead->plan) send_to_members(RoundProposal{decision_.lead->ballot, *decision_.lead->plan}, out);
}

/// How many members neither leave nor are dead, as far as this node knows.
std::size_t Averaging::staying() const {
  return static_cast<std::size_t>(std::ranges::count_if(members_, [this](const Participant& member) {
    const auto found = decision_.ready.find(member);
    return !is_dead(member) && !(found != decision_.ready.end() && found->second.leaves);
  }));
}

/// None while a member is still waited for. While nobody has contributed, or too few members stay for the contributions
/// that there are, a plan without contributions lets others enter and leave.
std::optional<RoundPlan> Averaging::make_plan() {
  std::set<Participant> ready;
  RoundPlan plan{.made_at = decision_.lead->ballot};
  std::set<Participant> next = joiners_;
  bool all_here = true;
  bool all_ready = true;
  bool changes = !joiners_.empty();
  bool lacks_members = false;
  const std::size_t stay = staying();
  for (const Participant& member : members_) {
    if (is_dead(member)) continue;
    const auto found = decision_.ready.find(member);
    const bool here = found != decision_.ready.end();
    const bool leaves = here && found->second.leaves;
    const bool contributes = here && found->second.contribution;
    all_here = all_here && here;
    const bool is_ready = here && found->second.is_ready();
    all_ready = all_ready && is_ready;
    changes = changes || leaves;
    if (!leaves) next.insert(member);
    if (is_ready) ready.insert(member);
    if (!contributes) continue;
    if (found->second.at_least <= stay) {
      plan.contributions.push_back({member, *found->second.contribution});
    } else {
      lacks_members = true;
    }
  }
  changes = changes || (lacks_members && std::ranges::any_of(members_, [this](auto& one) { return is_dead(one); }));
  if (is_quorum(ready) && !decision_.quorum_ready_us) decision_.quorum_ready_us = now_us_;
  const bool enough =
      options_.grace_us > 0 && is_quorum(ready) && now_us_ - *decision_.quorum_ready_us >= options_.grace_us;
  // Whoever is not here yet still needs the results of the last round.
  const bool only_members = all_here && changes && plan.contributions.empty();
  if (plan.contributions.empty() ? !only_members : !all_ready && !enough) return std::nullopt;
  plan.members.assign(next.begin(), next.end());
  plan.voters = voters_after(plan);
  return plan;
}

std::vector<Participant> Averaging::not_ready() const {
  if (!member_) return {};
  if (!decision_.lead) return decision_.late;
  std::vector<Participant> late;
  if (decision_.lead->plan) return late;
  for (const Participant& member : members_) {
    const auto found = decision_.ready.find(member);
    if ((found == decision_.ready.end() || !found->second.is_ready()) && !is_dead(member)) late.push_back(member);
  }
  return late;
}

std::vector<Participant> Averaging::voters_after(const RoundPlan& plan) const {
  std::vector<Participant> voters;
  const auto vote = [&](const Participant& one) {
    if (contains(plan.members, one)) voters.push_back(one);
  };
  std::ranges::for_each(plan.contributions, vote, &Contribution::from);
  if (plan.contributions.empty()) std::ranges::for_each(voters_, vote);
  return voters.empty() ? plan.members : voters;
}

void Averaging::on(const Participant& from, const RoundAccept& accept, Actions& out) {
  if (!decision_.lead || !decision_.lead->plan || decision_.lead->ballot != accept.ballot) return;
  decision_.lead->accepts.insert(from);
  commit_if_accepted(out);
}

void Averaging::commit_if_accepted(Actions& out) {
  if (!is_quorum(decision_.lead->accepts) || !decision_.lead->accepts.contains(self_)) return;
  const RoundPlan plan = *decision_.lead->plan;
  const std::vector<Participant> members = members_;
  const std::uint64_t round = round_;
  on(self_, RoundCommit{plan}, out);
  // The commit did not finish the round: a member has broken the rules and had another plan worked on, so that results
  // are missing here. They are sent again.
  if (round_ == round) return;
  for (const Participant& member : members) {
    if (member != self_) send(member, round_ - 1, RoundCommit{plan}, out);
  }
  for (const Participant& node : plan.members) {
    if (!contains(members, node)) send(node, round_ - 1, entrance(), out);
  }
}

// --- carrying a plan out ------------------------------------------------------------------------------------------

void Averaging::contribute(std::uint64_t number, std::uint16_t at_least, Actions& out) {
  GOSSAMER_CHECK(!own_ && number > taken_[self_]);
  at_least_ = at_least;
  own_ = given_ = number;
  tell_ready(out);
  drain(out);
}

void Averaging::on(const Participant& from, const RoundProposal& proposal, Actions& out) {
  if (proposal.ballot.conductor != from || !may_be(proposal.plan) || !take_note(proposal.ballot)) return;
  if (proposal.ballot < decision_.promised) return send(from, RoundRefusal{decision_.promised}, out);
  if (decision_.work && decision_.work->committed) return send(from, RoundCommit{decision_.work->plan}, out);
  decision_.promised = proposal.ballot;
  if (!decision_.work || decision_.work->plan.made_at != proposal.plan.made_at) work_on(proposal.plan, out);
  decision_.work->proposed = proposal.ballot;
  part_done(out);
}

void Averaging::on(const Participant& /*from*/, const RoundCommit& commit, Actions& out) {
  if ((decision_.work && decision_.work->committed) || !may_be(commit.plan)) return;
  if (!decision_.work || decision_.work->plan.made_at != commit.plan.made_at) work_on(commit.plan, out);
  decision_.work->committed = true;
  part_done(out);
}

void Averaging::work_on(const RoundPlan& plan, Actions& out) {
  GOSSAMER_CHECK(!decision_.work || !decision_.work->committed);  // a committed plan is the only one
  // This node keeps the results of the plan that it has accepted, for others, until it accepts another plan.
  const auto is_accepted = [this](const RoundPlan& one) {
    return decision_.accepted && decision_.accepted->plan == one;
  };
  out.set_aside = decision_.work && is_accepted(decision_.work->plan);
  decision_.work = Work{.plan = plan, .slots = std::vector<Slot>(plan.contributions.empty() ? 0 : fragments_)};
  out.new_plan = true;
  if (is_accepted(plan)) {
    for (Slot& slot : decision_.work->slots)
      slot.result = true;
    out.take_back = true;
    return;
  }
  std::vector<Participant> contributors;
  for (const Contribution& contribution : plan.contributions)
    contributors.push_back(contribution.from);
  for (std::uint32_t f = 0; f < decision_.work->slots.size(); ++f) {
    decision_.work->slots[f].owner = owner_of(f, contributors);
    if (contributes(plan, self_)) give(f, out);
  }
  decision_.gave = decision_.gave || contributes(plan, self_);
}

/// Gives this node's contribution to the fragment's owner.
void Averaging::give(std::uint32_t f, Actions& out) {
  const RoundPart part{.kind = RoundPart::Kind::contribution, .made_at = decision_.work->plan.made_at, .fragment = f};
  const Participant& owner = decision_.work->slots[f].owner;
  if (owner == self_) {
    came(f, self_, out);
  } else {
    out.parts.push_back({owner, round_, part});
  }
}

void Averaging::came(std::uint32_t f, const Participant& from, Actions& out) {
  Slot& slot = decision_.work->slots[f];
  slot.came.insert(from);
  if (slot.came.size() == decision_.work->plan.contributions.size()) out.sum.push_back(f);
}

bool Averaging::received(const Participant& from, std::uint64_t round, const RoundPart& part, Actions& out) {
  if (!wants(round, part)) return false;
  Slot& slot = decision_.work->slots[part.fragment];
  came_since_ = true;
  if (part.kind == RoundPart::Kind::result) {
    slot.result = true;
    part_done(out);
    drain(out);
    return true;
  }
  if (slot.owner != self_ || !contributes(decision_.work->plan, from) || slot.came.contains(from)) return false;
  came(part.fragment, from, out);
  return true;
}

void Averaging::summed(std::uint32_t fragment, const Ballot& made_at, Actions& out) {
  if (!decision_.work || decision_.work->plan.made_at != made_at || decision_.work->slots[fragment].result) return;
  decision_.work->slots[fragment].result = true;
  for (const Participant& member : members_) {
    if (member == self_) continue;
    out.parts.push_back({member, round_, {RoundPart::Kind::result, made_at, fragment}});
  }
  part_done(out);
  drain(out);
}

void Averaging::part_done(Actions& out) {
  if (!std::ranges::all_of(decision_.work->slots, &Slot::result)) return;
  if (decision_.work->committed) return apply(out);
  if (!decision_.work->proposed || *decision_.work->proposed < decision_.promised) return;
  decision_.accepted = RoundPromise::Accepted{*decision_.work->proposed, decision_.work->plan};
  send(decision_.work->proposed->conductor, RoundAccept{*decision_.work->proposed}, out);
}

void Averaging::on(const Participant& from, const RoundAsk& ask, Actions& out) {
  const RoundPart& part = ask.part;
  if (part.fragment >= fragments_) return;
  const bool is_plan =
      decision_.work && decision_.work->plan.made_at == part.made_at && part.fragment < decision_.work->slots.size();
  const bool has = part.kind == RoundPart::Kind::contribution ? is_plan && contributes(decision_.work->plan, self_)
                   : is_plan                                  ? decision_.work->slots[part.fragment].result
                             : decision_.accepted && decision_.accepted->plan.made_at == part.made_at;
  if (has) out.parts.push_back({from, round_, part});
}

void Averaging::apply(Actions& out) {
  last_ = std::exchange(decision_.work, std::nullopt)->plan;
  has_last_results_ = true;
  out.applied.push_back({round_, *last_, std::exchange(out.take_back, false)});
  decision_ = {};
  for (const auto& [participant, number] : last_->contributions)
    taken_[participant] = std::max(taken_[participant], number);
  if (taken_.size() > max_taken)
    std::erase_if(taken_, [this](const auto& one) { return !contains(last_->members, one.first); });
  let_go_if_taken();
  ++round_;
  if (!contains(last_->members, self_)) return fall_out(out);
  begin_round(*last_);
  tell_ready(out);
}

void Averaging::begin_round(const RoundPlan& before) {
  members_ = before.members;
  voters_ = before.voters;
  std::erase_if(gone_, [this](const Participant& gone) { return !contains(members_, gone); });
  decision_ = {.promised = {.number = 0, .conductor = voters_.front()},
               .next_number = voters_.front() == self_ ? 0U : 1U};
  std::erase_if(joiners_, [this](const Participant& joiner) { return contains(members_, joiner); });
}

// --- time ---------------------------------------------------------------------------------------------------------

void Averaging::tick(TimeUs now_us, Actions& out) {
  now_us_ = now_us;
  conduct(out);
  propose_if_ready(out);
  drain(out);
  if (now_us < retry_at_us_) return;
  retry_at_us_ = now_us + options_.retry_us;
  try_again(out);
  drain(out);
}

/// Messages may be lost, so those that were not answered are sent again.
void Averaging::try_again(Actions& out) {
  if (!member_) {
    if (wants_in_) seek(out);
    return;
  }
  if (!may_have_quorum()) return fall_out(out);
  if (heard_member()) ask_to_enter(out);
  look_for_unlinked(out);
  if (++beats_ % look_for_others_every == 0) tell_others(out);
  if (!decision_.work) tell_ready(out);
  if (decision_.lead && decision_.lead->ballot < decision_.promised)
    decision_.lead.reset();  // somebody else has conducted since, and may be dead
  conduct(out);
  if (decision_.lead) {
    tell_whom_it_waits_for(out);
    for (const Participant& member : members_) {
      if (decision_.lead->plan && !decision_.lead->accepts.contains(member))
        send(member, RoundProposal{decision_.lead->ballot, *decision_.lead->plan}, out);
      if (!decision_.lead->plan && decision_.lead->ballot.number > 0 && !decision_.lead->promises.contains(member))
        send(member, RoundPrepare{decision_.lead->ballot}, out);
    }
  } else if (decision_.accepted) {
    send(decision_.accepted->ballot.conductor, RoundAccept{decision_.accepted->ballot}, out);
  }
  // A member that knows that the round is over says so in its answer.
  const auto one_of = [this](std::span<const Participant> nodes) { return nodes[attempts_ % nodes.size()]; };
  const Participant some = one_of(members_);
  for (const Participant& node :
       std::set{some, decision_.work && !decision_.work->plan.members.empty() ? one_of(decision_.work->plan.members)
                                                                              : some}) {
    if (node != self_) send(node, RoundAsk{.part = {.fragment = fragments_}}, out);
  }
  ++attempts_;
  if (decision_.work && !std::exchange(came_since_, false)) ask_for_parts(some, out);
}

/// Tells those who have contributed whom the round waits for, so that they can report it.
void Averaging::tell_whom_it_waits_for(Actions& out) {
  RoundWaits waits{.late = not_ready()};
  if (waits.late.empty() || beats_ % tell_late_every != 0) return;
  waits.late.resize(std::min(waits.late.size(), max_told_late));
  for (const auto& [member, ready] : decision_.ready)
    if (ready.contribution && member != self_) send(member, waits, out);
}

/// Tells linked nodes that are not in this group that it exists. They may have founded another one before the link came
/// up.
void Averaging::tell_others(Actions& out) {
  for (const NodeId& node : linked_) {
    if (std::ranges::find(members_, node, &Participant::node) == members_.end())
      send(Participant{node}, RoundHeard{}, out);
  }
}

/// Asks the owner for missing results, and some other member too: the owner may have died after others had the result.
void Averaging::ask_for_parts(const Participant& some, Actions& out) {
  for (std::uint32_t f = 0; f < decision_.work->slots.size(); ++f) {
    const Slot& slot = decision_.work->slots[f];
    if (slot.result) continue;
    RoundPart part{.kind = RoundPart::Kind::result, .made_at = decision_.work->plan.made_at, .fragment = f};
    for (const Participant& node : std::set{slot.owner, some})
      if (node != self_) send(node, RoundAsk{part}, out);
    if (slot.owner != self_) continue;
    part.kind = RoundPart::Kind::contribution;
    for (const Contribution& contribution : decision_.work->plan.contributions)
      if (!slot.came.contains(contribution.from)) send(contribution.from, RoundAsk{part}, out);
  }
}

void Averaging::check_invariants() const {
  GOSSAMER_CHECK(!member_ || (std::ranges::is_sorted(members_) && contains(members_, self_)));
  GOSSAMER_CHECK(!member_ || !voters_.empty());
  GOSSAMER_CHECK(!decision_.accepted || decision_.accepted->ballot <= decision_.promised);
  GOSSAMER_CHECK(!decision_.lead || member_);
  GOSSAMER_CHECK(to_self_.empty());
}

}  // namespace gossamer::gossip
