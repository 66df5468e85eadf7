#include "gossip/replica/responder.hpp"

#include <algorithm>

namespace gossamer::gossip {

namespace {

/// A request waits for a publication for at most this part of an exchange's lifetime. Its initiator sends it in the
/// first half of the lifetime, so the answer comes before the initiator gives up.
constexpr TimeUs asked_lifetime_divisor = 3;

/// True if both ends have asked each other.
bool crosses(const Fragment& fragment, const NodeId& from) {
  using Stage = OwnExchange::Stage;
  return fragment.own && (fragment.own->stage == Stage::awaiting || fragment.own->stage == Stage::replied) &&
         fragment.own->partner == from;
}

}  // namespace

void Responder::request(const NodeId& from, ExchangeRequest&& request, TimeUs now_us, Actions& out) {
  take_request(from, std::move(request), Waited::no, now_us, out);
}

bool Responder::answer_waiting(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (!fragment.waiting.request || fragment.buffers.empty() || !client_.at_hand(f, out)) return false;
  Waiting::Request asked = *std::exchange(fragment.waiting.request, std::nullopt);
  take_request(asked.from, std::move(asked.request), Waited::yes, now_us, out);
  return fragment.is_held();
}

bool Responder::is_known(const NodeId& from, const ExchangeRequest& request, TimeUs now_us, Actions& out) {
  ReplyCache& replies = data_.book.replies();
  const ExchangeId id{from, request.counter};
  switch (replies.standing(id)) {
    case ReplyCache::Standing::fresh:
      return false;
    case ReplyCache::Standing::working:
    case ReplyCache::Standing::acknowledged:
      ++data_.counters.repeated_requests;
      return true;
    case ReplyCache::Standing::answered:
      ++data_.counters.repeated_requests;
      out.send.push_back({from, replies.reply(id)});
      return true;
    case ReplyCache::Standing::expired:
      turn_down(from, request, ReplyStatus::refused, RefuseReason::expired, now_us, out);
      return true;
    case ReplyCache::Standing::declined:
    case ReplyCache::Standing::full:
      turn_down(from, request, ReplyStatus::busy, RefuseReason::none, now_us, out);
      return true;
  }
  return true;
}

void Responder::take_request(const NodeId& from, ExchangeRequest&& request, Waited waited, TimeUs now_us,
                             Actions& out) {
  if (is_known(from, request, now_us, out)) return;
  const RefuseReason reason = objection(request);
  // Only a node with finite values asks, so this node may ask it again. If both ends were quarantined, the first to
  // recover must be free to ask.
  if (reason == RefuseReason::none || reason == RefuseReason::quarantined)
    data_.fragments[request.fragment].quarantined_at.erase(from);
  if (reason != RefuseReason::none) return turn_down(from, request, ReplyStatus::refused, reason, now_us, out);
  Fragment& fragment = data_.fragments[request.fragment];
  const auto& asked = fragment.waiting.request;
  if (asked && asked->from == from && asked->request.counter == request.counter) {
    ++data_.counters.repeated_requests;
    return;
  }
  const Neighbour* const neighbour = data_.neighbours.find(from);
  // A request may overtake the report that says whether its sender trains the job.
  const bool unheard = neighbour == nullptr || neighbour->info.state == ReplicaState::absent;
  // While the processes here average exactly, no exchange may change the model before the run ends.
  const bool apart = !data_.takes() && !data_.only_gives(neighbour);
  const bool stale = data_.exchanges_last_step_only() && !data_.is_current(fragment) && !data_.only_gives(neighbour);
  const bool declines = unheard || apart || is_asked_by_server(fragment, from, *neighbour);
  if (declines && data_.finish) {  // the server has not seen any agreement, and a settled node would not ask it again
    fragment.agreement.forget();
    data_.pace.start_by(fragment.turn, now_us);
  }
  const bool too_many = !follows_up(fragment, from, now_us) && data_.is_over_share(fragment, from, now_us);
  if (!declines && !too_many && let_wait(from, request, *neighbour, now_us, out)) return;
  const bool in_vain =
      declines || stale || (data_.finish && neighbour->info.quarantined) || !link_affords(*neighbour, fragment, now_us);
  if (too_many && !in_vain) data_.neighbours.note_waits(from, now_us, true);
  if (in_vain || too_many) return turn_down(from, request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  // If both ends asked each other, the larger id answers and the smaller declines.
  const bool crossing = crosses(fragment, from);
  const auto shift = fragment.budget.answer_shift(crossing);
  if (!data_.runs() || fragment.is_held() || fragment.buffers.empty() || !shift ||
      (waited == Waited::no && (client_.is_crowded() || yields(*neighbour, now_us))) ||
      (crossing && data_.options.crossing_rule && data_.self < from) || !node_affords(fragment, now_us) ||
      (asked && fragment.buffers.out_of_hand())) {
    data_.neighbours.note_waits(from, now_us);
    return turn_down(from, request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  }
  if (request.clock != neighbour->info.clock) ++data_.stir;  // the initiator has trained since its last report
  if (!client_.at_hand(request.fragment, out)) {
    fragment.waiting.request = Waiting::Request{from, std::move(request), now_us};
    return;
  }
  answer(from, std::move(request), *shift, now_us, out);
}

void Responder::answer(const NodeId& from, ExchangeRequest&& request, int shift, TimeUs now_us, Actions& out) {
  const std::uint32_t f = request.fragment;
  Fragment& fragment = data_.fragments[f];
  const std::uint32_t place = data_.book.replies().begin({from, request.counter}, now_us);
  const int aged = data_.options.age_damping ? std::max(age_shift(request.age), age_shift(data_.age_of(fragment))) : 0;
  const int weight = std::max<int>(shift, request.min_shift) + aged;
  fragment.hold(
      stage::Answering{.initiator = from,
                       .place = place,
                       .values_clock = request.clock - std::min(request.clock, request.age.samples),
                       .part = follows_up(fragment, from, now_us) ? ExchangePart::follow_up : ExchangePart::proper,
                       .asked = f == 0 ? request.tracer : std::nullopt});
  publish_for_followers(fragment, now_us);
  data_.neighbours.observe_age(from, request.age);
  fragment.distances.told(from, request.usual);
  // Clipping limits exchanges that move both ends alike. A push does not, and a worker trusts its server.
  const bool pushes = data_.has_servers() && data_.description.keeps;
  // With the least weight the initiator only takes. A commit of that weight would bring nothing, and worse: a worker
  // whose values have changed otherwise than by its training does not know its progress any more.
  const bool only_gives = request.min_shift >= max_shift_bound || data_.only_gives(data_.neighbours.find(from));
  // Servers add what is pushed, and followers move nobody: weights are for exchanges that move both ends.
  const bool weighs = data_.options.weigh_samples && !data_.has_servers();
  const WeightShifts weights =
      weighs ? weight_shifts(request.weight, data_.step.samples, data_.random.uniform()) : WeightShifts{};
  out.run.push_back({f, Actions::Answer{from, place,
                                        AnswerTask{.request = std::move(request),
                                                   .shift = std::min<int>(weight, max_shift_bound),
                                                   .range = data_.options.range,
                                                   .factor = data_.factor_for(fragment, from),
                                                   .clip = pushes ? Clip{} : data_.clip_for(fragment, from),
                                                   .witness = data_.witness_for(f, from),
                                                   .weights = weights,
                                                   .only_gives = only_gives}}});
}

RefuseReason Responder::objection(const ExchangeRequest& request) const {
  if (request.job != data_.description.job) return RefuseReason::layout_differs;
  if (state_of(data_.phase) == ReplicaState::draining) return RefuseReason::draining;
  if (request.fragment >= data_.fragments.count()) return RefuseReason::bad_request;
  const Fragment& fragment = data_.fragments[request.fragment];
  if (!fits(request, fragment.buffers.block_count())) return RefuseReason::bad_request;
  return fragment.is_quarantined() ? RefuseReason::quarantined : RefuseReason::none;
}

bool Responder::let_wait(const NodeId& from, ExchangeRequest& request, const Neighbour& neighbour, TimeUs now_us,
                         Actions& out) {
  const std::uint32_t f = request.fragment;
  Fragment& fragment = data_.fragments[f];
  if (!fragment.buffers.empty() || fragment.waiting.request || !data_.runs() || !client_.may_provide(f)) return false;
  if (!node_affords(fragment, now_us) || !link_affords(neighbour, fragment, now_us)) return false;
  if (yields(neighbour, now_us)) return false;  // its waiting request would keep out the nodes that go first
  fragment.waiting.request = Waiting::Request{from, std::move(request), now_us};
  client_.want_publication(f, out);
  return true;
}

/// A node that has only followers asks nobody, so its turns bring no publications. Without this function, followers
/// would never get further than the last publication.
void Responder::publish_for_followers(Fragment& fragment, TimeUs now_us) {
  const bool wanted = fragment.publication_clock != data_.clock && data_.pace.due(fragment.turn, now_us);
  if (!wanted || data_.description.keeps || data_.has_servers()) return;
  const bool asks =
      data_.options.exchanges && std::ranges::any_of(data_.neighbours, [this](const auto& item) {
        return data_.neighbours.is_partner(item.second) && !item.second.info.keeps && !item.second.info.quarantined;
      });
  if (asks) return;
  fragment.waiting.wish = Waiting::Wish::publication;
  data_.pace.rest(fragment.turn, data_.jitter(), now_us);
}

bool Responder::yields(const Neighbour& neighbour, TimeUs now_us) const {
  return data_.neighbours.is_to_yield(neighbour, data_.pace.period_us(), now_us);
}

/// An answer costs as much as a request, but a request that is turned down was sent in vain. So a little debt is
/// allowed. It must be at least two fragments: otherwise two nodes that have just asked would always turn each other
/// down.
std::size_t Responder::debt_bytes(const Fragment& fragment) const {
  return 2 * data_.sent_bytes(fragment);
}

bool Responder::node_affords(const Fragment& fragment, TimeUs now_us) const {
  return data_.pace.may_answer(debt_bytes(fragment), now_us);
}

bool Responder::link_affords(const Neighbour& neighbour, const Fragment& fragment, TimeUs now_us) const {
  return Neighbours::may_answer(neighbour, debt_bytes(fragment), now_us);
}

/// True if the fragment's server asks this node, as it does when nobody has asked it for long. The request is declined:
/// otherwise each of the two would follow the other.
bool Responder::is_asked_by_server(const Fragment& fragment, const NodeId& from, const Neighbour& neighbour) const {
  return neighbour.info.keeps && !data_.leaving && data_.server_of(fragment) == from;
}

/// True if the request is probably a follow-up. This is a guess, since a request does not say so.
bool Responder::follows_up(const Fragment& fragment, const NodeId& from, TimeUs now_us) const {
  return fragment.wide_at == from && now_us - fragment.last_exchange.at_us < data_.pace.period_us() / 2;
}

void Responder::turn_down(const NodeId& from, const ExchangeRequest& request, ReplyStatus status, RefuseReason reason,
                          TimeUs now_us, Actions& out) {
  if (reason != RefuseReason::expired) data_.book.replies().decline({from, request.counter}, now_us);
  ++(status == ReplyStatus::busy ? data_.counters.busy_sent : data_.counters.refused_sent);
  out.send.push_back({from, ExchangeReply{.counter = request.counter,
                                          .job = request.job,
                                          .fragment = request.fragment,
                                          .status = status,
                                          .reason = reason,
                                          .codec = request.codec,
                                          .clock = data_.clock}});
}

void Responder::answered(std::uint32_t f, const stage::Answering& at, AnswerTask::Result&& result, TimeUs now_us,
                         Actions& out) {
  Fragment& fragment = data_.fragments[f];
  ReplyCache& replies = data_.book.replies();
  if (result.commit) {
    fragment.buffers.finish_commit();
    out.store.push_back({.fragment = f, .answered = at.place});
  }
  ExchangeReply& reply = result.reply;
  const ExchangeId id{at.initiator, reply.counter};
  reply.clock = data_.clock;
  reply.age = data_.age_of(fragment);
  if (reply.status == ReplyStatus::done) {
    fragment.budget.answered(result.half.shift);
    ++data_.counters.answered;
    data_.pace.add_work(at.part == ExchangePart::proper ? ExchangeCost::Work{.exchanges = 1}
                                                        : ExchangeCost::Work{.follow_ups = 1});
    data_.spend(at.initiator, payload_bytes(reply), now_us, ByteBudget::Spent::answer);
    data_.neighbours.note_answer(at.initiator, now_us);
    fragment.last_exchange.at_us = now_us;
    fragment.last_exchange.with = at.initiator;
    fragment.last_exchange.role = LastExchange::Role::responder;
    if (reply.shift < max_shift_bound) fragment.handed_in.reset();
    fragment.wide_at.reset();
    if (result.measure.wide_blocks > 0) fragment.wide_at = at.initiator;
    const Neighbour* const initiator = data_.neighbours.find(at.initiator);
    // A node that only follows may be far from this node because it has followed others. Its distance is no sign of
    // training.
    if (!agrees(result.measure) && !data_.only_gives(initiator)) ++data_.stir;
    data_.learn(fragment, at.initiator, result.measure, result.half.shift, true);
    const bool latest = initiator == nullptr || initiator->info.keeps || at.values_clock >= initiator->info.clock;
    data_.note_agreement(fragment, at.initiator, result.measure, latest);
    if (f == 0) reply.tracer = data_.tracer.answer(at.asked, result.half.shift, now_us);
    if (!replies.store(id, reply, std::move(result.half), now_us)) {
      replies.leave_place(at.place);
      data_.count_unresolved(at.initiator);
    }
  } else {
    replies.decline(id, now_us);
    replies.leave_place(at.place);
    ++data_.counters.refused_sent;
    if (result.own_not_finite) data_.quarantine(fragment);
  }
  out.send.push_back({at.initiator, std::move(reply)});
}

// --- after the answer ---------------------------------------------------------------------------------------------

std::optional<std::uint32_t> Responder::acknowledged(const NodeId& from, const ExchangeAck& ack) {
  ReplyCache& replies = data_.book.replies();
  const ExchangeId id{from, ack.counter};
  if (ack.outcome != Outcome::never) {
    if (replies.acknowledge(id) && ack.outcome == Outcome::unknown) data_.count_unresolved(from);
    return std::nullopt;
  }
  auto undo = replies.take_back(id);
  if (!undo) return std::nullopt;
  const std::uint32_t f = undo->reply.fragment;
  Fragment& fragment = data_.fragments[f];
  fragment.waiting.undo.push_back(*std::move(undo));
  if (fragment.buffers.empty()) fragment.waiting.wish = Waiting::Wish::publication;
  return f;
}

bool Responder::undo_next(std::uint32_t f, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (fragment.waiting.undo.empty() || fragment.buffers.empty() || !client_.at_hand(f, out)) return false;
  UndoTask task = std::move(fragment.waiting.undo.front());
  fragment.waiting.undo.pop_front();
  fragment.hold(stage::Undoing{.place = task.place});
  out.run.push_back({f, std::move(task)});
  return true;
}

void Responder::undone(std::uint32_t f, const stage::Undoing& at, const UndoTask::Result& result, Actions& out) {
  if (result.commit) {
    data_.fragments[f].buffers.finish_commit();
    data_.fragments[f].agreement.forget();
    out.store.push_back({.fragment = f, .undone = at.place});
    ++data_.counters.undone;
  } else {
    ++data_.counters.unresolved;
  }
  data_.book.replies().leave_place(at.place);
}

void Responder::turn_down_in_vain(Fragment& fragment, TimeUs now_us, Actions& out) {
  const auto& asked = fragment.waiting.request;
  const TimeUs patience_us = data_.options.lifetime_us / asked_lifetime_divisor;
  if (asked && (!data_.runs() || now_us - asked->since_us >= patience_us)) turn_down_waiting(fragment, now_us, out);
}

void Responder::turn_down_waiting(Fragment& fragment, TimeUs now_us, Actions& out) {
  auto& asked = fragment.waiting.request;
  if (!asked) return;
  data_.neighbours.note_waits(asked->from, now_us);
  turn_down(asked->from, asked->request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  asked.reset();
}

void Responder::inquire(Actions& out) const {
  for (auto& [node, inquiry] : data_.book.replies().inquiries()) {
    const Neighbour* const neighbour = data_.neighbours.find(node);
    if (neighbour == nullptr || !neighbour->linked || neighbour->info.job != data_.description.job) continue;
    if (neighbour->info.state != ReplicaState::absent) out.send.push_back({node, inquiry});
  }
}

}  // namespace gossamer::gossip
