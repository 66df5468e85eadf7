#include "daemon/average/collective_member.hpp"

#include <algorithm>
#include <ranges>
#include <tuple>

#include "gossip/check.hpp"
#include "gossip/codec/frame_buffer.hpp"

namespace gossamer::daemon {

using gossip::AverageMessage;
using gossip::AverageNote;
using gossip::AverageValues;
using gossip::Averaging;
using gossip::Contribution;
using gossip::Participant;
using gossip::RoundPart;
using gossip::RoundPlan;

namespace {

/// How many fragments one task puts into a process's memory.
constexpr std::size_t fragments_a_task = 16;

}  // namespace

CollectiveMember::CollectiveMember(const JobKey& collective, const Participant& self, AveragedMemory memory,
                                   AverageForm form, Send send, Run run)
    : collective_(collective),
      self_(self),
      memory_(std::move(memory)),
      form_(form),
      send_(std::move(send)),
      run_(std::move(run)),
      averaging_({}, self,
                 static_cast<std::uint32_t>((memory_.values.size() + average_fragment_elements - 1) /
                                            average_fragment_elements)) {
  came_.resize((memory_.values.size() + average_fragment_elements - 1) / average_fragment_elements);
  for (Results* results : {&results_, &aside_, &last_})
    results->resize(came_.size());
  if (form_.eight_bits) {
    rounded_.resize(came_.size());
    carried_.resize(memory_.values.size());
  }
  averaging_.join();
}

std::span<float> CollectiveMember::slice(std::span<float> all, std::uint32_t fragment) {
  const std::size_t begin = fragment * average_fragment_elements;
  return all.subspan(begin, std::min(average_fragment_elements, all.size() - begin));
}

// --- events -------------------------------------------------------------------------------------------------------

void CollectiveMember::link_up(const NodeId& node) {
  Averaging::Actions out;
  averaging_.link_up(node, out);
  carry_out(out);
}

void CollectiveMember::node_dead(const NodeId& node) {
  Averaging::Actions out;
  averaging_.node_dead(node, out);
  carry_out(out);
}

void CollectiveMember::received(const AverageNote& note) {
  Averaging::Actions out;
  averaging_.received(note.from, note.message, out);
  carry_out(out);
  take_early();
}

void CollectiveMember::received(const AverageValues& values) {
  const RoundPart& part = values.part;
  if (values.founding != averaging_.founding() || part.fragment >= came_.size()) return;
  if (values.values.size() != form_.bytes(part.fragment, slice(memory_.values, part.fragment).size())) return;
  if (may_be_early(values)) {
    early_.push_back(values);
  } else {
    take(values);
    take_early();
  }
}

/// Whether the plan of this part may still be on its way: the part's sender may have heard of the plan before this
/// member. No more parts are kept than one of each fragment for each member.
bool CollectiveMember::may_be_early(const AverageValues& values) const {
  const RoundPlan* const plan = averaging_.plan();
  const bool soon = values.round == averaging_.round() || values.round == averaging_.round() + 1;
  const bool is_known = values.round == averaging_.round() && plan != nullptr && plan->made_at == values.part.made_at;
  return averaging_.is_member() && soon && !is_known && early_.size() < averaging_.members().size() * came_.size();
}

void CollectiveMember::take_early() {
  while (std::exchange(plan_is_new_, false)) {
    std::vector<AverageValues> early = std::exchange(early_, {});
    std::erase_if(early, [this](const AverageValues& values) { return values.round < averaging_.round(); });
    for (const AverageValues& values : early) {
      if (may_be_early(values)) {
        early_.push_back(values);
      } else {
        take(values);
      }
    }
  }
}

void CollectiveMember::take(const AverageValues& values) {
  const RoundPart& part = values.part;
  Averaging::Actions out;
  // averaging_.received() may decide to use the results at once, so the values have to be in their place before.
  const bool is_result = part.kind == RoundPart::Kind::result;
  if (is_result && averaging_.wants(values.round, part)) results_[part.fragment] = values.values;
  if (averaging_.received(values.from, values.round, part, out) && !is_result)
    came_[part.fragment].insert_or_assign(values.from, values.values);
  carry_out(out);
}

void CollectiveMember::tick(TimeUs now_us) {
  contribute_if_enough();
  send_waiting();
  Averaging::Actions out;
  averaging_.tick(now_us, out);
  averaging_.check_invariants();
  carry_out(out);
  take_early();
}

void CollectiveMember::call(std::size_t at_least, TimeUs grace_us) {
  GOSSAMER_CHECK(!called_);
  called_ = true;
  contributed_ = false;
  at_least_ = at_least;
  averaging_.set_grace(grace_us);
  contribute_if_enough();
}

void CollectiveMember::contribute_if_enough() {
  if (!called_ || contributed_ || !averaging_.is_member() || averaging_.members().size() < at_least_) return;
  contributed_ = true;
  encode_contribution();
  Averaging::Actions out;
  averaging_.contribute(++number_, static_cast<std::uint16_t>(at_least_), out);
  carry_out(out);
  take_early();
}

void CollectiveMember::leave() {
  leaving_ = true;
  called_ = false;
  Averaging::Actions out;
  averaging_.leave(out);
  carry_out(out);
}

// --- actions ------------------------------------------------------------------------------------------------------

void CollectiveMember::carry_out(Averaging::Actions& out) {
  if (const auto founding = averaging_.founding(); std::exchange(founding_, founding) != founding) {
    waiting_.clear();  // Another group has rounds and ballots of the same numbers.
    early_.clear();
  }
  for (const Averaging::Applied& applied : out.applied)
    use(applied);
  if (out.set_aside) aside_ = std::exchange(results_, Results(came_.size()));
  if (out.new_plan) new_plan(out);
  for (auto& [to, message] : out.send)
    send(to, std::move(message));
  waiting_.insert(out.parts.begin(), out.parts.end());
  if (!out.parts.empty()) send_waiting();
  for (const std::uint32_t fragment : out.sum)
    sum(fragment);
  joined_ = joined_ || out.left;  // the next answer will say that it has joined anew
  left_ = left_ || (out.left && leaving_);
  // A round has the contribution, but the results of that round have not come here.
  if (called_ && contributed_ && !averaging_.contribution() && !answer_ && !taking_over_) {
    answer_ = Answer{.done = false, .round = averaging_.round(), .joined = std::exchange(joined_, false)};
    called_ = false;
  }
}

void CollectiveMember::use(const Averaging::Applied& applied) {
  const auto& contributions = applied.plan.contributions;
  if (contributions.empty()) return;
  last_ = std::exchange(applied.set_aside ? aside_ : results_, Results(came_.size()));
  aside_.assign(came_.size(), {});
  // Results of this round stay: slower members still want them.
  std::erase_if(waiting_, [&](const Averaging::SendPart& part) {
    return part.round != applied.round || part.part.made_at != applied.plan.made_at ||
           part.part.kind == RoundPart::Kind::contribution;
  });
  const auto own = std::ranges::find(contributions, self_, &Contribution::from);
  if (!called_ || !contributed_ || own == contributions.end() || own->number != number_) return;
  GOSSAMER_CHECK(!taking_over_ && std::ranges::none_of(last_, &Bytes::empty));
  taking_over_ = TakingOver{.answer = {.done = true,
                                       .round = applied.round,
                                       .of = contributions.size(),
                                       .joined = std::exchange(joined_, false)},
                            .results = std::make_shared<Results>(last_),
                            .left = (last_.size() + fragments_a_task - 1) / fragments_a_task};
  take_over();
}

/// Begins as soon as no sum reads the memory any more.
void CollectiveMember::take_over() {
  if (!taking_over_ || taking_over_->results == nullptr || summing_ > 0) return;
  const std::shared_ptr<const Results> results = std::exchange(taking_over_->results, nullptr);
  for (std::size_t begin = 0; begin < results->size(); begin += fragments_a_task) {
    const auto decode = [form = form_, memory = memory_, results, begin] {
      for (std::size_t f = begin; f < std::min(begin + fragments_a_task, results->size()); ++f) {
        const auto fragment = static_cast<std::uint32_t>(f);
        form.decode(fragment, (*results)[f].data, slice(memory.values, fragment));
      }
    };
    run_(decode, [this] { taken_over(); });
  }
}

void CollectiveMember::taken_over() {
  if (--taking_over_->left > 0) return;
  if (std::exchange(called_, false)) answer_ = taking_over_->answer;
  taking_over_.reset();
}

void CollectiveMember::new_plan(const Averaging::Actions& out) {
  plan_is_new_ = true;
  for (auto& parts : came_)
    parts.clear();
  results_ = out.take_back ? aside_ : Results(came_.size());
  const std::uint64_t round = averaging_.round();
  std::erase_if(waiting_, [round](const Averaging::SendPart& part) { return part.round == round; });
}

void CollectiveMember::send(const Participant& to, AverageMessage&& message) {
  (void)send_(to.node, AverageNote{collective_, self_, to, std::move(message)});
}

/// False: its link takes no more now.
bool CollectiveMember::send_part(const Averaging::SendPart& part) {
  Bytes values;
  if (part.part.kind == RoundPart::Kind::contribution) {
    values = contribution(part.part.fragment);
  } else {
    const RoundPlan* plan = averaging_.plan();
    const bool is_current = plan != nullptr && plan->made_at == part.part.made_at;
    const Results& from = part.round != averaging_.round() ? last_ : is_current ? results_ : aside_;
    values = from[part.part.fragment];
    if (values.empty()) return true;
  }
  return send_(part.to.node, AverageValues{collective_, self_, part.to, averaging_.founding(), part.round, part.part,
                                           std::move(values)});
}

void CollectiveMember::send_waiting() {
  std::set<NodeId> full;
  std::erase_if(waiting_, [&](const Averaging::SendPart& part) {
    if (full.contains(part.to.node)) return false;
    const bool sent = send_part(part);
    if (!sent) full.insert(part.to.node);
    return sent;
  });
}

bool CollectiveMember::InTurn::operator()(const Averaging::SendPart& a, const Averaging::SendPart& b) const {
  const auto order = [](const Averaging::SendPart& one) {
    return std::tie(one.round, one.part.fragment, one.part.kind, one.part.made_at, one.to);
  };
  return order(a) < order(b);
}

/// Encodes this process's contribution once, so that it has the same bytes each time it is sent.
void CollectiveMember::encode_contribution() {
  if (!form_.eight_bits) return;
  for (std::uint32_t f = 0; f < rounded_.size(); ++f)
    rounded_[f] = form_.encode(f, slice(memory_.values, f), slice(carried_, f));
}

/// This process's contribution to a fragment, as it is sent.
Bytes CollectiveMember::contribution(std::uint32_t fragment) const {
  if (form_.eight_bits) return rounded_[fragment];
  return {memory_.owner, std::as_bytes(slice(memory_.values, fragment))};
}

/// Adds the contributions in the order of their participants.
void CollectiveMember::sum(std::uint32_t fragment) {
  const RoundPlan& plan = *averaging_.plan();
  const RoundPart part{.kind = RoundPart::Kind::result, .made_at = plan.made_at, .fragment = fragment};
  std::vector<Bytes> contributions;
  for (const Contribution& one : plan.contributions)
    contributions.push_back(one.from == self_ ? contribution(fragment) : came_[fragment].at(one.from));
  came_[fragment].clear();
  const std::size_t elements = slice(memory_.values, fragment).size();
  const auto sum = std::make_shared<Sum>();
  ++summing_;
  run_(
      [form = form_, fragment, elements, contributions = std::move(contributions), sum] {
        gossip::FrameBuffer buffer(elements * sizeof(float));
        const std::span<float> mean = buffer.as<float>();
        form.mean(fragment, contributions, mean);
        if (form.eight_bits) {
          sum->lost.resize(elements);
          sum->result = form.encode(fragment, mean, sum->lost);
        } else {
          sum->result = std::move(buffer).share();
        }
      },
      [this, round = averaging_.round(), part, n = static_cast<float>(plan.contributions.size()), sum] {
        summed(round, part, n, *sum);
      });
}

/// What rounding has taken from the mean of n contributions is added n times to this process's next contribution.
void CollectiveMember::summed(std::uint64_t round, const RoundPart& part, float n, const Sum& sum) {
  --summing_;
  if (averaging_.wants(round, part)) {
    results_[part.fragment] = sum.result;
    const std::span<float> carried = form_.eight_bits ? slice(carried_, part.fragment) : std::span<float>();
    for (std::size_t i = 0; i < carried.size(); ++i)
      carried[i] += n * sum.lost[i];
    Averaging::Actions out;
    averaging_.summed(part.fragment, part.made_at, out);
    carry_out(out);
    take_early();
  }
  take_over();
}

}  // namespace gossamer::daemon
