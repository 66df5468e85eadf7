#include "gossip/average/averaging.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "gossip/average/owner.hpp"
#include "gossip/check.hpp"
#include "gossip/overloaded.hpp"

namespace gossamer::gossip {

namespace {

bool contains(std::span<const NodeId> nodes, const NodeId& node) {
  return std::ranges::binary_search(nodes, node);
}

bool contributes(const RoundPlan& plan, const NodeId& node) {
  return std::ranges::find(plan.contributions, node, &Contribution::node) != plan.contributions.end();
}

}  // namespace

// --- membership ---------------------------------------------------------------------------------------------------

void Averaging::found() {
  member_ = true;
  round_ = 1;
  begin_round({.made_at = {}, .contributions = {}, .members = {self_}});
}

void Averaging::node_dead(const NodeId& node, Actions& out) {
  dead_.insert(node);
  joiners_.erase(node);
  if (!member_ || !contains(members_, node)) return;
  // Results that only it had are missing. A new ballot finds out whether others have accepted the plan.
  if (lead_ && lead_->plan) lead_.reset();
  if (!work_) tell_ready(out);  // it may have been the conductor
  conduct(out);
  propose_if_ready(out);
  drain(out);
}

/// A node that was a member tells its round, which is over.
void Averaging::answer_join(const NodeId& from, Actions& out) {
  if (!contains(members_, from)) {
    joiners_.insert(from);
    return;
  }
  if (last_) send(from, {round_ - 1, entrance()}, out);
}

RoundEnter Averaging::entrance() const {
  RoundEnter message{.plan = *last_};
  for (const auto& [node, number] : taken_)
    message.taken.push_back({node, number});
  return message;
}

void Averaging::enter(const NodeId& from, std::uint64_t round, const RoundEnter& message, Actions& out) {
  // A vote is remembered by its round only, so no round is entered twice.
  if (!wants_in_ || round < round_ || !contains(message.plan.members, self_)) return;
  member_ = true;
  wants_in_ = false;
  round_ = round + 1;
  last_ = message.plan;
  has_last_results_ = false;
  taken_.clear();
  for (const auto& [node, number] : message.taken)
    taken_[node] = number;
  let_go_if_taken();
  begin_round(message.plan);
  out.entered = Entered{round, from};
  tell_ready(out);
}

/// The contribution is in a committed round.
void Averaging::let_go_if_taken() {
  if (own_ && taken_[self_] >= *own_) own_.reset();
}

void Averaging::fall_out(Actions& out) {
  member_ = false;
  wants_in_ = !leaving_;
  work_.reset();
  lead_.reset();
  out.left = true;
}

bool Averaging::is_quorum(const std::set<NodeId>& nodes) const {
  const auto count = static_cast<std::size_t>(
      std::ranges::count_if(voters_, [&](const NodeId& voter) { return nodes.contains(voter); }));
  return 2 * count > voters_.size() || (2 * count == voters_.size() && nodes.contains(voters_.front()));
}

const NodeId& Averaging::conductor() const {
  const auto found =
      std::ranges::find_if(voters_, [this](const NodeId& voter) { return voter == self_ || !dead_.contains(voter); });
  return found == voters_.end() ? voters_.front() : *found;
}

// --- messages -----------------------------------------------------------------------------------------------------

void Averaging::send(const NodeId& to, AverageMessage&& message, Actions& out) {
  if (to == self_) {
    to_self_.push_back(std::move(message));
  } else {
    out.send.emplace_back(to, std::move(message));
  }
}

void Averaging::send_to_members(const AverageMessage& message, Actions& out) {
  for (const NodeId& member : members_)
    send(member, AverageMessage(message), out);
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
void Averaging::dispatch(const NodeId& from, const AverageMessage& message, Actions& out) {
  std::visit(Overloaded{[](const RoundEnter&) {}, [](const RoundJoin&) {}, [](const RoundGone&) {},
                        [&](const auto& body) { on(from, body, out); }},
             message.body);
}

void Averaging::received(const NodeId& from, const AverageMessage& message, Actions& out) {
  const auto* entrance = std::get_if<RoundEnter>(&message.body);
  if (!member_ && entrance != nullptr) enter(from, message.round, *entrance, out);
  // Who has left still has the results of its last round.
  if (!member_ && entrance == nullptr && message.round + 1 == round_) answer_late(from, message, out);
  if (!member_ || entrance != nullptr) return drain(out);
  if (std::holds_alternative<RoundJoin>(message.body)) {
    answer_join(from, out);
  } else if (std::holds_alternative<RoundGone>(message.body)) {
    if (message.round > round_) fall_out(out);
  } else if (message.round < round_) {
    answer_late(from, message, out);
  } else if (message.round > round_) {
    send(from, {round_, RoundAsk{.part = {.fragment = fragments_}}}, out);  // it answers with what is to be known
  } else if (contains(members_, from)) {
    dispatch(from, message, out);
  }
  drain(out);
}

/// The sender is in a round that is over.
void Averaging::answer_late(const NodeId& from, const AverageMessage& message, Actions& out) {
  if (std::holds_alternative<RoundCommit>(message.body)) return;
  if (message.round + 1 < round_) return send(from, {round_, RoundGone{}}, out);
  if (!last_) return;
  const auto* ask = std::get_if<RoundAsk>(&message.body);
  const bool asks_for_result = ask != nullptr && ask->part.fragment < fragments_ &&
                               ask->part.kind == RoundPart::Kind::result && ask->part.made_at == last_->made_at;
  if (!asks_for_result) return send(from, {message.round, RoundCommit{*last_}}, out);
  if (has_last_results_) out.parts.push_back({from, message.round, ask->part});
}

// --- conducting ---------------------------------------------------------------------------------------------------

std::optional<RoundReady> Averaging::own_ready() const {
  if (own_) return RoundReady{own_};
  return leaving_ ? std::optional(RoundReady{}) : std::nullopt;
}

void Averaging::tell_ready(Actions& out) {
  if (const auto ready = own_ready(); member_ && ready) send(conductor(), {round_, *ready}, out);
}

/// The first voter needs no promises for the first ballot: nobody can have accepted anything at an earlier one.
void Averaging::conduct(Actions& out) {
  if (!member_ || lead_ || conductor() != self_) return;
  lead_ = Lead{.ballot = {next_number_++, self_}};
  if (lead_->ballot.number > 0) send_to_members({round_, RoundPrepare{lead_->ballot}}, out);
}

void Averaging::on(const NodeId& from, const RoundReady& ready, Actions& out) {
  ready_[from] = ready;
  conduct(out);
  propose_if_ready(out);
}

void Averaging::on(const NodeId& from, const RoundPrepare& prepare, Actions& out) {
  next_number_ = std::max(next_number_, prepare.ballot.number + 1);
  if (prepare.ballot < promised_) return send(from, {round_, RoundRefusal{promised_}}, out);
  promised_ = prepare.ballot;
  send(from, {round_, RoundPromise{.ballot = promised_, .accepted = accepted_, .ready = own_ready()}}, out);
}

void Averaging::on(const NodeId& from, const RoundPromise& promise, Actions& out) {
  if (!lead_ || promise.ballot != lead_->ballot) return;
  lead_->promises[from] = promise;
  if (promise.ready) ready_[from] = *promise.ready;
  propose_if_ready(out);
}

/// Somebody else conducts; if not, tick() begins again.
void Averaging::on(const NodeId& /*from*/, const RoundRefusal& refusal, Actions& /*out*/) {
  next_number_ = std::max(next_number_, refusal.promised.number + 1);
  if (lead_ && refusal.promised > lead_->ballot) lead_.reset();
}

void Averaging::propose_if_ready(Actions& out) {
  if (!lead_ || lead_->plan) return;
  if (lead_->ballot.number > 0) {
    std::set<NodeId> promised;
    std::optional<RoundPromise::Accepted> latest;
    for (const auto& [node, promise] : lead_->promises) {
      promised.insert(node);
      if (promise.accepted && (!latest || promise.accepted->ballot > latest->ballot)) latest = promise.accepted;
    }
    if (!is_quorum(promised)) return;
    if (latest) lead_->plan = latest->plan;
  }
  if (!lead_->plan) lead_->plan = make_plan();
  if (lead_->plan) send_to_members({round_, RoundProposal{lead_->ballot, *lead_->plan}}, out);
}

/// None: somebody is still waited for.
std::optional<RoundPlan> Averaging::make_plan() {
  std::set<NodeId> ready;
  RoundPlan plan{.made_at = lead_->ballot};
  std::set<NodeId> next = joiners_;
  bool all = true;
  for (const NodeId& member : members_) {
    if (dead_.contains(member) && member != self_) continue;
    const auto found = ready_.find(member);
    all = all && found != ready_.end();
    if (found == ready_.end() || found->second.contribution) next.insert(member);
    if (found == ready_.end()) continue;
    ready.insert(member);
    if (const auto number = found->second.contribution) plan.contributions.push_back({member, *number});
  }
  if (is_quorum(ready) && !quorum_ready_us_) quorum_ready_us_ = now_us_;
  const bool enough = options_.grace_us > 0 && is_quorum(ready) && now_us_ - *quorum_ready_us_ >= options_.grace_us;
  if (!all && !enough) return std::nullopt;
  plan.members.assign(next.begin(), next.end());
  return plan;
}

void Averaging::on(const NodeId& from, const RoundAccept& accept, Actions& out) {
  if (!lead_ || !lead_->plan || lead_->ballot != accept.ballot) return;
  lead_->accepts.insert(from);
  commit_if_accepted(out);
}

void Averaging::commit_if_accepted(Actions& out) {
  if (!is_quorum(lead_->accepts) || !lead_->accepts.contains(self_)) return;
  const RoundPlan plan = *lead_->plan;
  const std::vector<NodeId> members = members_;
  apply(out);
  for (const NodeId& member : members) {
    if (member != self_) send(member, {round_ - 1, RoundCommit{plan}}, out);
  }
  for (const NodeId& node : plan.members) {
    if (!contains(members, node)) send(node, {round_ - 1, entrance()}, out);
  }
}

// --- carrying a plan out ------------------------------------------------------------------------------------------

void Averaging::contribute(std::uint64_t number, Actions& out) {
  GOSSAMER_CHECK(!own_ && number > taken_[self_]);
  own_ = number;
  tell_ready(out);
  drain(out);
}

void Averaging::on(const NodeId& from, const RoundProposal& proposal, Actions& out) {
  next_number_ = std::max(next_number_, proposal.ballot.number + 1);
  if (proposal.ballot < promised_) return send(from, {round_, RoundRefusal{promised_}}, out);
  if (work_ && work_->committed) return send(from, {round_, RoundCommit{work_->plan}}, out);
  promised_ = proposal.ballot;
  if (!work_ || work_->plan.made_at != proposal.plan.made_at) work_on(proposal.plan, out);
  work_->proposed = proposal.ballot;
  part_done(out);
}

void Averaging::on(const NodeId& /*from*/, const RoundCommit& commit, Actions& out) {
  if (!work_ || work_->plan.made_at != commit.plan.made_at) work_on(commit.plan, out);
  work_->committed = true;
  part_done(out);
}

void Averaging::work_on(const RoundPlan& plan, Actions& out) {
  GOSSAMER_CHECK(!work_ || !work_->committed);  // a committed plan is the only one
  // What this node has accepted it can give, until it accepts something else.
  const auto is_accepted = [this](const RoundPlan& one) { return accepted_ && accepted_->plan.made_at == one.made_at; };
  out.set_aside = work_ && is_accepted(work_->plan);
  work_ = Work{.plan = plan, .slots = std::vector<Slot>(plan.contributions.empty() ? 0 : fragments_)};
  out.new_plan = true;
  if (is_accepted(plan)) {
    for (Slot& slot : work_->slots)
      slot.result = true;
    out.take_back = true;
    return;
  }
  std::vector<NodeId> contributors;
  for (const Contribution& contribution : plan.contributions)
    contributors.push_back(contribution.node);
  for (std::uint32_t f = 0; f < work_->slots.size(); ++f) {
    work_->slots[f].owner = owner_of(f, contributors);
    if (contributes(plan, self_)) give(f, out);
  }
}

/// Gives this node's contribution to the fragment's owner.
void Averaging::give(std::uint32_t f, Actions& out) {
  const RoundPart part{.kind = RoundPart::Kind::contribution, .made_at = work_->plan.made_at, .fragment = f};
  const NodeId& owner = work_->slots[f].owner;
  if (owner == self_) {
    came(f, self_, out);
  } else {
    out.parts.push_back({owner, round_, part});
  }
}

void Averaging::came(std::uint32_t f, const NodeId& from, Actions& out) {
  Slot& slot = work_->slots[f];
  slot.came.insert(from);
  if (slot.came.size() == work_->plan.contributions.size()) out.sum.push_back(f);
}

bool Averaging::received(const NodeId& from, std::uint64_t round, const RoundPart& part, Actions& out) {
  if (!member_ || round != round_ || !work_ || work_->plan.made_at != part.made_at ||
      part.fragment >= work_->slots.size())
    return false;
  Slot& slot = work_->slots[part.fragment];
  if (slot.result) return false;
  if (part.kind == RoundPart::Kind::result) {
    slot.result = true;
    part_done(out);
    drain(out);
    return true;
  }
  if (slot.owner != self_ || !contributes(work_->plan, from) || slot.came.contains(from)) return false;
  came(part.fragment, from, out);
  return true;
}

void Averaging::summed(std::uint32_t fragment, const Ballot& made_at, Actions& out) {
  if (!work_ || work_->plan.made_at != made_at || work_->slots[fragment].result) return;
  work_->slots[fragment].result = true;
  for (const NodeId& member : members_) {
    if (member == self_) continue;
    out.parts.push_back({member, round_, {RoundPart::Kind::result, made_at, fragment}});
  }
  part_done(out);
  drain(out);
}

void Averaging::part_done(Actions& out) {
  if (!std::ranges::all_of(work_->slots, &Slot::result)) return;
  if (work_->committed) return apply(out);
  if (!work_->proposed || *work_->proposed < promised_) return;
  accepted_ = RoundPromise::Accepted{*work_->proposed, work_->plan};
  send(work_->proposed->conductor, {round_, RoundAccept{*work_->proposed}}, out);
}

void Averaging::on(const NodeId& from, const RoundAsk& ask, Actions& out) {
  const RoundPart& part = ask.part;
  if (part.fragment >= fragments_) return;
  const bool is_plan = work_ && work_->plan.made_at == part.made_at && part.fragment < work_->slots.size();
  const bool has = part.kind == RoundPart::Kind::contribution ? is_plan && contributes(work_->plan, self_)
                   : is_plan                                  ? work_->slots[part.fragment].result
                                                              : accepted_ && accepted_->plan.made_at == part.made_at;
  if (has) out.parts.push_back({from, round_, part});
}

void Averaging::apply(Actions& out) {
  last_ = std::exchange(work_, std::nullopt)->plan;
  has_last_results_ = true;
  out.applied = Applied{round_, *last_};
  for (const auto& [node, number] : last_->contributions)
    taken_[node] = std::max(taken_[node], number);
  let_go_if_taken();
  ++round_;
  if (!contains(last_->members, self_)) return fall_out(out);
  begin_round(*last_);
  tell_ready(out);
}

void Averaging::begin_round(const RoundPlan& before) {
  members_ = before.members;
  voters_.clear();
  for (const Contribution& contribution : before.contributions) {
    if (contains(members_, contribution.node)) voters_.push_back(contribution.node);
  }
  if (voters_.empty()) voters_ = members_;
  promised_ = {.number = 0, .conductor = voters_.front()};
  accepted_.reset();
  work_.reset();
  lead_.reset();
  next_number_ = voters_.front() == self_ ? 0 : 1;
  ready_.clear();
  quorum_ready_us_.reset();
  std::erase_if(joiners_, [this](const NodeId& node) { return contains(members_, node); });
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

/// Messages may be lost, so what has not been answered is said again.
void Averaging::try_again(Actions& out) {
  if (!member_) {
    for (const NodeId& node : linked_)
      if (wants_in_) send(node, {round_, RoundJoin{}}, out);
    return;
  }
  if (!work_) tell_ready(out);
  if (lead_ && lead_->ballot < promised_) lead_.reset();  // somebody else has conducted since, and may be dead
  conduct(out);
  if (lead_) {
    for (const NodeId& member : members_) {
      if (lead_->plan && !lead_->accepts.contains(member))
        send(member, {round_, RoundProposal{lead_->ballot, *lead_->plan}}, out);
      if (!lead_->plan && lead_->ballot.number > 0 && !lead_->promises.contains(member))
        send(member, {round_, RoundPrepare{lead_->ballot}}, out);
    }
  } else if (accepted_) {
    send(accepted_->ballot.conductor, {round_, RoundAccept{accepted_->ballot}}, out);
  }
  if (!own_ready() && !work_) return;
  // Whoever knows that the round is over answers so.
  const auto one_of = [this](std::span<const NodeId> nodes) { return nodes[attempts_ % nodes.size()]; };
  const NodeId some = one_of(members_);
  for (const NodeId& node :
       std::set{some, work_ && !work_->plan.members.empty() ? one_of(work_->plan.members) : some}) {
    if (node != self_) send(node, {round_, RoundAsk{.part = {.fragment = fragments_}}}, out);
  }
  ++attempts_;
  if (work_) ask_for_parts(some, out);
}

/// The owner is asked, and some other member too: the owner may have died after it had given the result to others.
void Averaging::ask_for_parts(const NodeId& some, Actions& out) {
  for (std::uint32_t f = 0; f < work_->slots.size(); ++f) {
    const Slot& slot = work_->slots[f];
    if (slot.result) continue;
    RoundPart part{.kind = RoundPart::Kind::result, .made_at = work_->plan.made_at, .fragment = f};
    for (const NodeId& node : std::set{slot.owner, some})
      if (node != self_) send(node, {round_, RoundAsk{part}}, out);
    if (slot.owner != self_) continue;
    part.kind = RoundPart::Kind::contribution;
    for (const Contribution& contribution : work_->plan.contributions)
      if (!slot.came.contains(contribution.node)) send(contribution.node, {round_, RoundAsk{part}}, out);
  }
}

void Averaging::check_invariants() const {
  GOSSAMER_CHECK(!member_ || (std::ranges::is_sorted(members_) && contains(members_, self_)));
  GOSSAMER_CHECK(!member_ || !voters_.empty());
  GOSSAMER_CHECK(!accepted_ || accepted_->ballot <= promised_);
  GOSSAMER_CHECK(!lead_ || member_);
  GOSSAMER_CHECK(to_self_.empty());
}

}  // namespace gossamer::gossip
