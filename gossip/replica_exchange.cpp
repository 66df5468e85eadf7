// The exchanges of a replica: its own, from choosing a partner to the acknowledgement, and the answers it gives.

#include <algorithm>
#include <cmath>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/replica.hpp"

namespace gossamer::gossip {

namespace {

constexpr double interval_smoothing = 0.25;
constexpr double growth_max = 64;  // of the expected disagreement, for a node that has been silent for long
constexpr int last_follow_up = 2;  // the one in f32, which leaves no block out
constexpr std::size_t max_unsent_acks = 1024;
constexpr int busy_wait_divisor = 8;  // of the period, before another partner is tried

}  // namespace

// --- a node's own exchanges ---------------------------------------------------------------------------------------

void Replica::start_exchanges(TimeUs now_us, Actions& out) {
  if (state_ != ReplicaState::running) return;
  const std::size_t count = fragments_.size();
  const std::size_t first = next_fragment_;  // round robin: with equal periods this takes the oldest first
  for (std::size_t i = 0; i < count && own_count_ + starting_count_ < options_.in_flight; ++i) {
    const auto f = static_cast<std::uint32_t>((first + i) % count);
    Fragment& fragment = fragments_[f];
    if (!may_start(fragment, now_us)) continue;
    const auto partner = choose_partner(fragment);
    if (!partner) return;
    if (!fragment.fresh && fragment.publication_clock != clock_) {
      // Old values would be averaged: ask the client for a publication first; it starts the exchange.
      fragment.wants_publication = fragment.starting = true;
      ++starting_count_;
      hand_over_if_wanted(f, out);
      continue;
    }
    start(f, *partner, 0, options_.codec, {}, {}, now_us, out);
    next_fragment_ = (f + 1) % count;
  }
}

bool Replica::may_start(const Fragment& fragment, TimeUs now_us) const {
  return !fragment.held && !fragment.own && !fragment.starting && now_us >= fragment.start_after_us;
}

bool Replica::is_partner(const Neighbour& neighbour) const {
  return neighbour.linked && neighbour.info.job == description_.job && neighbour.info.state == ReplicaState::running;
}

std::optional<NodeId> Replica::choose_partner(const Fragment& fragment) {
  std::vector<NodeId> candidates;
  for (const auto& [node, neighbour] : neighbours_) {
    if (is_partner(neighbour)) candidates.push_back(node);
  }
  // Not again the one that was busy, if there is a choice.
  if (candidates.size() > 1 && fragment.was_busy) std::erase(candidates, *fragment.was_busy);
  if (candidates.empty()) return std::nullopt;
  return candidates[random_.below(candidates.size())];
}

void Replica::start(std::uint32_t f, const NodeId& partner, int follow_up, Codec codec,
                    std::vector<std::uint32_t> blocks, std::vector<std::int8_t> exponents, TimeUs now_us,
                    Actions& out) {
  Fragment& fragment = fragments_[f];
  hold(fragment);
  fragment.fresh = false;
  ExchangeRequest request{.counter = counter_.take(),
                          .job = description_.job,
                          .fragment = f,
                          .codec = codec,
                          .seed = random_.next(),
                          .min_shift = static_cast<std::uint8_t>(fragment.budget.begin_own()),
                          .clock = clock_,
                          .age = age_of(fragment)};
  const float factor = factor_for(fragment, partner);
  fragment.own = Own{.partner = partner, .follow_up = follow_up, .begun_us = now_us};
  fragment.own->request.counter = request.counter;
  ++own_count_;
  out.encode.push_back({f, EncodeTask{.request = std::move(request),
                                      .blocks = std::move(blocks),
                                      .exponents = std::move(exponents),
                                      .range = options_.range,
                                      .factor = factor}});
}

void Replica::encoded(std::uint32_t f, EncodeTask::Result&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  GOSSAMER_CHECK(fragment.own && fragment.own->stage == Stage::encoding);
  Own& own = *fragment.own;
  if (!result.finite) {
    quarantine(fragment);
    end_own(fragment, options_.period_us, now_us);
  } else if (own.abandoned) {
    end_own(fragment, 0, now_us);
  } else {
    fragment.quarantined = false;
    own.stage = Stage::awaiting;
    own.request = std::move(result.request);
    own.blocks = std::move(result.blocks);
    own.exponents = std::move(result.exponents);
    own.factor = result.factor;
    counters_.payload_bytes_sent += payload_bytes(own.request);
    out.send.push_back({own.partner, own.request});
  }
  release(f, now_us, out);
}

/// Until an encode finds a publication finite again: the replica goes on trying, once a period.
void Replica::quarantine(Fragment& fragment) {
  if (!std::exchange(fragment.quarantined, true)) ++counters_.quarantines;
}

Replica::Fragment* Replica::own_of(const NodeId& from, std::uint32_t f, std::uint64_t counter) {
  if (f >= fragments_.size()) return nullptr;
  Fragment& fragment = fragments_[f];
  if (!fragment.own || fragment.own->stage != Stage::awaiting) return nullptr;
  if (fragment.own->partner != from || fragment.own->request.counter != counter) return nullptr;
  return &fragment;
}

void Replica::reply(const NodeId& from, ExchangeReply&& reply, TimeUs now_us, Actions& out) {
  Fragment* fragment = own_of(from, reply.fragment, reply.counter);
  if (fragment == nullptr) {
    // A repeated reply, or one to an exchange that was given up: in both cases it need not be kept.
    if (reply.status == ReplyStatus::done) out.send.push_back({from, ExchangeAck{reply.counter}});
    return;
  }
  if (!fits(reply, fragment->own->request)) {
    ++counters_.violations;
    ++counters_.unresolved;
    end_own(*fragment, options_.period_us, now_us);
    return;
  }
  if (reply.status == ReplyStatus::done) {
    if (fragment->held) {
      fragment->reply = std::move(reply);
    } else {
      conclude(reply.fragment, std::move(reply), now_us, out);
    }
    return;
  }
  if (reply.status == ReplyStatus::busy) {
    ++counters_.busy_received;
    fragment->was_busy = from;
    end_own(*fragment, jittered_period() / busy_wait_divisor, now_us);
  } else {
    ++counters_.refused_received;
    end_own(*fragment, jittered_period(), now_us);
  }
  fragment->fresh = true;  // nothing came of this one: no new publication is needed for the next
}

void Replica::conclude(std::uint32_t f, ExchangeReply&& reply, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (!fragment.own || fragment.own->request.counter != reply.counter) {  // given up while the reply waited
    release(f, now_us, out);
    return;
  }
  Own& own = *fragment.own;
  own.stage = Stage::concluding;
  hold(fragment);
  out.conclude.push_back(
      {f, ConcludeTask{
              .reply = std::move(reply), .blocks = own.blocks, .exponents = own.exponents, .factor = own.factor}});
}

void Replica::concluded(std::uint32_t f, ConcludeTask::Result&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  GOSSAMER_CHECK(fragment.own && fragment.own->stage == Stage::concluding);
  const Own own = std::move(*fragment.own);
  if (result.commit) fragment.buffers.finish_commit();
  if (result.accepted) {
    if (own.follow_up == 0) ++counters_.initiated;
    if (own.follow_up > 0) ++counters_.follow_ups;
    learn(fragment, own.partner, result.measure, result.shift, own.follow_up == 0);
  } else {
    ++counters_.violations;
    ++counters_.unresolved;
  }
  fragment.was_busy.reset();
  end_own(fragment, jittered_period() - std::min(now_us - own.begun_us, options_.period_us / 2), now_us);
  out.send.push_back({own.partner, ExchangeAck{own.request.counter}});
  const auto partner = neighbours_.find(own.partner);
  if (!result.wide.empty() && own.follow_up < last_follow_up && partner != neighbours_.end() &&
      partner->second.linked && state_ == ReplicaState::running && !fragment.publication) {
    const bool last = own.follow_up + 1 == last_follow_up;
    fragment.held = false;
    start(f, own.partner, own.follow_up + 1, last ? Codec::f32 : own.request.codec, std::move(result.wide),
          last ? std::vector<std::int8_t>{} : std::move(result.wide_exponents), now_us, out);
    return;
  }
  release(f, now_us, out);
}

void Replica::end_own(Fragment& fragment, TimeUs wait_us, TimeUs now_us) {
  fragment.own.reset();
  fragment.budget.end_own();
  fragment.start_after_us = now_us + std::max<TimeUs>(wait_us, 0);
  --own_count_;
}

void Replica::send_failed(const NodeId& to, const Message& message, TimeUs now_us) {
  if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
    Fragment* fragment = own_of(to, request->fragment, request->counter);
    if (fragment == nullptr) return;
    if (fragment->own->repeated) {  // the first copy may have been answered: only the partner can end it
      fragment->own->unsent = true;
      return;
    }
    fragment->fresh = true;
    end_own(*fragment, jittered_period() / busy_wait_divisor, now_us);
  } else if (const auto* reply = std::get_if<ExchangeReply>(&message)) {
    cache_.mark_unsent(to, *reply);
  } else if (const auto* ack = std::get_if<ExchangeAck>(&message)) {
    if (unsent_acks_.size() < max_unsent_acks) unsent_acks_.emplace_back(to, *ack);
  }
}

// --- answers ------------------------------------------------------------------------------------------------------

void Replica::request(const NodeId& from, ExchangeRequest&& request, TimeUs now_us, Actions& out) {
  const ExchangeId id{from, request.counter};
  switch (cache_.standing(id)) {
    case ReplyCache::Standing::fresh:
      break;
    case ReplyCache::Standing::working:
    case ReplyCache::Standing::acknowledged:
      ++counters_.repeated_requests;
      return;
    case ReplyCache::Standing::answered:
      ++counters_.repeated_requests;
      out.send.push_back({from, cache_.reply(id)});
      return;
    case ReplyCache::Standing::expired:
      return turn_down(from, request, ReplyStatus::refused, RefuseReason::expired, now_us, out);
    case ReplyCache::Standing::declined:
    case ReplyCache::Standing::full:
      return turn_down(from, request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  }
  const RefuseReason reason = objection(request);
  if (reason != RefuseReason::none) return turn_down(from, request, ReplyStatus::refused, reason, now_us, out);
  Fragment& fragment = fragments_[request.fragment];
  // Both ends asked each other: the larger id answers, the smaller declines.
  const bool crossing = crosses(fragment, from);
  const auto shift = fragment.budget.answer_shift(crossing);
  const auto neighbour = neighbours_.find(from);
  if (state_ != ReplicaState::running || fragment.held || !shift || neighbour == neighbours_.end() ||
      (crossing && self_ < from)) {
    return turn_down(from, request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  }
  hold(fragment);
  cache_.begin(id, now_us);
  const int aged = std::max(age_shift(request.age), age_shift(age_of(fragment)));
  const int weight = std::max<int>(*shift, request.min_shift) + aged;
  const auto f = request.fragment;
  out.answer.push_back({f, from,
                        AnswerTask{.request = std::move(request),
                                   .shift = std::min<int>(weight, max_shift_bound),
                                   .range = options_.range,
                                   .factor = factor_for(fragment, from)}});
}

RefuseReason Replica::objection(const ExchangeRequest& request) const {
  if (request.job != description_.job) return RefuseReason::layout_differs;
  if (state_ == ReplicaState::draining) return RefuseReason::draining;
  if (request.fragment >= fragments_.size()) return RefuseReason::bad_request;
  const Fragment& fragment = fragments_[request.fragment];
  if (!fits(request, fragment.buffers.block_count())) return RefuseReason::bad_request;
  return fragment.quarantined ? RefuseReason::quarantined : RefuseReason::none;
}

bool Replica::crosses(const Fragment& fragment, const NodeId& from) const {
  return fragment.own && fragment.own->stage == Stage::awaiting && fragment.own->partner == from;
}

void Replica::turn_down(const NodeId& from, const ExchangeRequest& request, ReplyStatus status, RefuseReason reason,
                        TimeUs now_us, Actions& out) {
  if (reason != RefuseReason::expired) cache_.decline({from, request.counter}, now_us);
  ++(status == ReplyStatus::busy ? counters_.busy_sent : counters_.refused_sent);
  out.send.push_back({from, ExchangeReply{.counter = request.counter,
                                          .job = request.job,
                                          .fragment = request.fragment,
                                          .status = status,
                                          .reason = reason,
                                          .codec = request.codec,
                                          .clock = clock_}});
}

void Replica::answered(std::uint32_t f, const NodeId& initiator, AnswerTask::Result&& result, TimeUs now_us,
                       Actions& out) {
  Fragment& fragment = fragments_[f];
  if (result.commit) fragment.buffers.finish_commit();
  ExchangeReply& reply = result.reply;
  const ExchangeId id{initiator, reply.counter};
  reply.clock = clock_;
  reply.age = age_of(fragment);
  if (reply.status == ReplyStatus::done) {
    fragment.budget.answered(reply.shift);
    ++counters_.answered;
    counters_.payload_bytes_sent += payload_bytes(reply);
    learn(fragment, initiator, result.measure, reply.shift, true);
    if (!cache_.store(id, reply)) ++counters_.unresolved;
  } else {
    cache_.decline(id, now_us);
    ++counters_.refused_sent;
    if (result.own_not_finite) quarantine(fragment);
  }
  out.send.push_back({initiator, std::move(reply)});
  release(f, now_us, out);
}

void Replica::acknowledged(const NodeId& from, const ExchangeAck& ack) {
  cache_.acknowledge({from, ack.counter});
}

// --- what exchanges teach -----------------------------------------------------------------------------------------

void Replica::learn(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, int shift, bool counts) {
  if (const auto neighbour = neighbours_.find(partner); neighbour != neighbours_.end() && measure.blocks > 0) {
    neighbour->second.factor.observe(measure.ratio, static_cast<float>(measure.wide_blocks - measure.coarse_blocks) /
                                                        static_cast<float>(measure.blocks));
  }
  if (!counts) return;
  counters_.blocks += measure.blocks;
  counters_.wide_blocks += measure.wide_blocks;
  counters_.shift_sum += shift;
  counters_.mean_abs_sum += measure.mean_abs;
  const double interval = static_cast<double>(clock_ - std::min(clock_, fragment.exchange_clock));
  fragment.exchange_interval =
      fragment.exchange_interval == 0
          ? interval
          : fragment.exchange_interval + interval_smoothing * (interval - fragment.exchange_interval);
  fragment.exchange_clock = clock_;
}

Age Replica::age_of(const Fragment& fragment) const {
  return {.samples = clock_ - std::min(clock_, fragment.publication_clock),
          .cadence = static_cast<std::uint64_t>(std::llround(fragment.cadence))};
}

float Replica::factor_for(const Fragment& fragment, const NodeId& partner) {
  double growth = 1;
  if (fragment.exchange_interval > 0) {
    const auto since = static_cast<double>(clock_ - std::min(clock_, fragment.exchange_clock));
    growth = std::clamp(since / fragment.exchange_interval, 1.0, growth_max);
  }
  const auto neighbour = neighbours_.find(partner);
  const float link = neighbour == neighbours_.end() ? 1.0F : neighbour->second.factor.value();
  return link * static_cast<float>(growth);
}

TimeUs Replica::jittered_period() {
  return static_cast<TimeUs>(static_cast<double>(options_.period_us) * (0.75 + 0.5 * random_.uniform()));
}

}  // namespace gossamer::gossip
