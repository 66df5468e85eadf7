// The exchanges of a replica: its own, from choosing a partner to the acknowledgement, and the answers it gives.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/replica/replica.hpp"
#include "gossip/smoothed.hpp"

namespace gossamer::gossip {

namespace {

constexpr double growth_max = 64;  // of the expected disagreement, for a node that has been silent for long
constexpr int last_follow_up = 2;  // the one in f32, which leaves no block out
constexpr std::size_t max_unsent_acks = 1024;
constexpr int busy_wait_divisor = 8;  // of the period, before another partner is tried
constexpr double most_taken = 0.5;    // of the period, that its exchange counts as part of it
/// For each fragment in a period: a few more than one, so that this holds nobody up who keeps to the period.
constexpr double begins_a_turn = 1.1;
constexpr std::size_t schedule_window = 64;           // startable fragments of which the oldest is taken
constexpr TimeUs begin_backlog_us = 250 * us_per_ms;  // of a link: with more, no exchange is begun over it
constexpr TimeUs answer_backlog_us = 1 * us_per_s;    // nor, with more, answered
constexpr TimeUs others_turn_divisor = 2;             // of a fragment's age, where the only partner is to begin
constexpr int busy_tolerated = 3;                     // replies in a row, before a partner is let rest
constexpr int max_rest_doublings = 8;
constexpr TimeUs least_longest_rest_us = 250 * us_per_ms;  // no rest is longer than a period, or this
constexpr TimeUs max_rest_us = 30 * us_per_s;              // nor than this, unless an eighth of the period is
constexpr TimeUs quarantine_rest_us = 10 * us_per_s;       // of a partner for a fragment that holds NaN there
constexpr TimeUs last_exchange_wait_us = 20 * us_per_ms;   // at most, of a fragment between two when its node leaves
constexpr double fast_link_bytes_per_s = 125e6;            // 1 Gbit/s
constexpr double quiet_tolerance = 1e-5;                   // of the norm: what rounding leaves is a twentieth of it
constexpr int quiet_rounds_least = 16;                     // within that, before a fragment rests
constexpr int quiet_doublings_most = 16;
constexpr TimeUs quiet_most_us = 5 * us_per_s;

bool agrees(const ExchangeMeasure& measure) {
  return measure.wide_blocks == 0 && relative_distance(measure) < quiet_tolerance;
}

}  // namespace

// --- a node's own exchanges ---------------------------------------------------------------------------------------

void Replica::start_exchanges(TimeUs now_us, Actions& out) {
  if (leaving_) return start_last_exchanges(now_us, out);
  if (state_ != ReplicaState::running) return;
  std::size_t passed_over = 0;
  while (own_count_ + starting_count_ < most_in_flight() && may_spend(now_us) && (finish_ || may_begin(now_us) >= 0)) {
    const auto f = oldest_startable(now_us);
    if (!f) return;
    Fragment& fragment = fragments_[*f];
    const auto partner = choose_partner(fragment, now_us);
    if (!partner) {
      // Another fragment may have to ask another partner.
      const bool hurry = hurries(fragment);
      if ((!hurry && fragment.quarantined_at.empty()) || ++passed_over > schedule_window) return;
      if (hurry) {
        start_at(fragment, now_us + finish_wait_us);
      } else {
        fragment.starts_at = cadence_.passed(now_us) + jitter() / busy_wait_divisor;
      }
      next_fragment_ = (*f + 1) % fragments_.size();
      continue;
    }
    next_fragment_ = (*f + 1) % fragments_.size();
    if (!wait_for_publication(*f, out)) begin(*f, *partner, now_us, out);
  }
}

void Replica::begin(std::uint32_t f, const NodeId& partner, TimeUs now_us, Actions& out) {
  ++fragments_[f].begun;
  fragments_[f].was_busy.reset();  // it counts for one try, whatever comes of that
  answered_last_ = false;
  count_begins(1, now_us);
  if (!fragments_[f].due_at) fragments_[f].due_at = fragments_[f].starts_at;
  start(f, partner, 0, codec_for(partner), {}, {}, now_us, out);
}

bool Replica::wait_for_publication(std::uint32_t f, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (!fragment.buffers.empty() && (fragment.fresh || fragment.publication_clock == clock_)) return false;
  // Old values would be averaged: the client's publication starts the exchange.
  fragment.wants_publication = fragment.starting = true;
  ++starting_count_;
  hand_over_if_wanted(f, out);
  return true;
}

/// In the order of the fragments, within a bounded look.
void Replica::start_last_exchanges(TimeUs now_us, Actions& out) {
  const auto count = static_cast<std::uint32_t>(fragments_.size());
  while (leaving_->first < count && fragments_[leaving_->first].handover.over(leaving_->replicas))
    ++leaving_->first;
  const auto end = static_cast<std::uint32_t>(std::min<std::size_t>(count, leaving_->first + schedule_window));
  for (std::uint32_t f = leaving_->first; f < end && may_spend(now_us); ++f) {
    if (fragments_[f].starting || own_count_ + starting_count_ < most_in_flight()) start_last_exchange(f, now_us, out);
  }
}

void Replica::start_last_exchange(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  const bool empty = fragment.buffers.empty();
  if (fragment.starting && now_us >= (empty ? leaving_->deadline_us : leaving_->publications_until_us)) {
    fragment.starting = false;
    --starting_count_;
    fragment.fresh = true;
  }
  if (fragment.handover.over(leaving_->replicas) || !may_start(fragment, now_us)) return;
  if (now_us >= leaving_->deadline_us || fragment.quarantined || !somebody_left_to_ask(fragment))
    return fragment.handover.give_up();
  const auto partner = choose_partner(fragment, now_us);
  if (!partner) return;  // those left are let rest, or have had their rate
  if ((empty || now_us < leaving_->publications_until_us) && wait_for_publication(f, out)) return;
  begin(f, *partner, now_us, out);
}

bool Replica::somebody_left_to_ask(const Fragment& fragment) const {
  return std::any_of(neighbours_.begin(), neighbours_.end(), [&](const auto& item) {
    return is_partner(item.second) && fragment.handover.may_ask(item.first) &&
           !fragment.quarantined_at.contains(item.first);
  });
}

/// With a debt only by turns with answers: neighbours that ask more than the rate allows would leave none for asking.
bool Replica::may_spend(TimeUs now_us) const {
  // So many may come together by chance.
  const auto chance_bytes = static_cast<std::size_t>(2 * request_bytes_);
  if (!leaving_ && !finish_ && !own_budget_.open_in_debt(now_us, chance_bytes)) return false;
  const std::size_t debt_bytes = fragments_.empty() ? 0 : 2 * sent_bytes(fragments_.front());
  return budget_.open(now_us) || (answered_last_ && budget_.open_in_debt(now_us, debt_bytes));
}

std::optional<std::uint32_t> Replica::oldest_startable(TimeUs now_us) const {
  const std::size_t count = fragments_.size();
  const auto others_turn = turn_of_only_partner();
  std::optional<std::uint32_t> oldest;
  TimeUs oldest_age_us = 0;
  std::size_t seen = 0;
  // From where the last one was: those behind it have waited longest, and a look at all of a large model's would be
  // long.
  for (std::size_t i = 0; i < count && seen < schedule_window; ++i) {
    const auto f = static_cast<std::uint32_t>((next_fragment_ + i) % count);
    if (!may_start(fragments_[f], now_us)) continue;
    ++seen;
    const bool left_to_other = others_turn == f % 2 && !fragments_[f].begun_here;
    const TimeUs age_us = (now_us - fragments_[f].exchanged_us) / (left_to_other ? others_turn_divisor : 1);
    if (oldest && age_us <= oldest_age_us) continue;
    oldest = f;
    oldest_age_us = age_us;
  }
  return oldest;
}

/// Of two replicas that have only each other the oldest fragment is the same, so both would ask for it at once, and
/// every second request be turned down. One prefers the even fragments, the other the odd ones, as long as the other
/// does ask for its own. Gives which the other's are, as a remainder of 2.
std::optional<std::uint32_t> Replica::turn_of_only_partner() const {
  const NodeId* only = nullptr;
  for (const auto& [node, neighbour] : neighbours_) {
    if (!is_partner(neighbour)) continue;
    if (only != nullptr) return std::nullopt;
    only = &node;
  }
  if (only == nullptr) return std::nullopt;
  return self_ < *only ? 1 : 0;
}

bool Replica::may_start(const Fragment& fragment, TimeUs now_us) const {
  if (finish_ && finish_->stage == Finishing::over) return false;
  // An exchange in lean memory takes long: begun without need, one after the other would put the end off for ever.
  if (finish_ && lean() && finish_->stage == Finishing::settled) return false;
  return !fragment.held && !fragment.own && !fragment.starting && due(fragment, now_us) && !rests(fragment, now_us);
}

bool Replica::rests(const Fragment& fragment, TimeUs now_us) const {
  return now_us < fragment.quiet.until_us && fragment.quiet.stir == stir_ && !leaving_ && !hurries(fragment);
}

void Replica::rest_if_quiet(Fragment& fragment, const ExchangeMeasure& measure, TimeUs now_us) {
  if (!agrees(measure)) stir();
  Quiet& quiet = fragment.quiet;
  if (quiet.stir != stir_) quiet = {.stir = stir_};
  if (!agrees(measure) || fragment.publication_clock != clock_ || ++quiet.rounds < quiet_rounds_least) return;
  const int doublings = std::min(quiet.rounds - quiet_rounds_least, quiet_doublings_most);
  quiet.until_us = now_us + std::min(period_us() << doublings, quiet_most_us);
}

std::size_t Replica::sent_bytes(const Fragment& fragment) const {
  return fragment.buffers.block_count() * codec_block_bytes(options_.adapt_codec ? Codec::q8 : options_.codec);
}

/// q4 where the link cannot carry, within its share, what the period asks of it with q8: each fragment once begun here
/// and once answered, dealt out over the partners. On fast links processors are the bottleneck, and q8 mixes better.
Codec Replica::codec_for(const NodeId& partner) const {
  if (!options_.adapt_codec) return options_.codec;
  const auto neighbour = neighbours_.find(partner);
  const double rate = neighbour == neighbours_.end() ? 0 : neighbour->second.load.bytes_per_s;
  if (rate <= 0 || rate >= fast_link_bytes_per_s) return Codec::q8;
  const auto period_us = static_cast<double>(std::max(options_.period_us, us_per_ms));
  const double asked = 2 * static_cast<double>(block_count_ * codec_block_bytes(Codec::q8)) / period_us * us_per_s /
                       static_cast<double>(std::max<std::size_t>(partners(), 1));
  const double share = options_.network_share > 0 ? options_.network_share : 1;
  return asked > share * rate ? Codec::q4 : Codec::q8;
}

bool Replica::has_room(const Neighbour& neighbour, const Fragment& fragment) const {
  const LinkLoad& load = neighbour.load;
  if (load.backlog_us > begin_backlog_us) return false;
  if (load.bytes_per_s <= 0 || neighbour.own_count == 0) return true;
  // One more than what leaves in that time: then its answer is here when the next has left.
  const double fit =
      load.bytes_per_s * static_cast<double>(begin_backlog_us) / us_per_s / static_cast<double>(sent_bytes(fragment));
  return static_cast<double>(neighbour.own_count) < 1 + fit;
}

bool Replica::is_partner(const Neighbour& neighbour) const {
  return neighbour.linked && neighbour.info.job == description_.job && neighbour.info.state == ReplicaState::running;
}

std::optional<NodeId> Replica::choose_partner(const Fragment& fragment, TimeUs now_us) {
  std::vector<Candidate> candidates;
  std::size_t in_reach = 0;
  const bool hurry = hurries(fragment);
  for (const auto& [node, neighbour] : neighbours_) {
    if (neighbour.info.job != description_.job) continue;
    if (leaving_ && !fragment.handover.may_ask(node)) continue;
    if (hurry && (!finishes(neighbour) || fragment.agreement.has(node))) continue;
    if (finish_ && finish_->sound && neighbour.info.quarantined) continue;
    const bool reach = is_partner(neighbour) && neighbour.budget.open(now_us) && now_us >= rests_until_us(neighbour) &&
                       has_room(neighbour, fragment) && !rests(fragment, node, now_us);
    in_reach += reach ? 1 : 0;
    candidates.push_back({.id = node, .goodput = neighbour.goodput, .in_reach = reach});
  }
  // Not again the one that was busy, if there is a choice.
  if (in_reach > 1 && fragment.was_busy) {
    for (Candidate& candidate : candidates) {
      if (candidate.id == *fragment.was_busy) candidate.in_reach = false;
    }
  }
  const auto chosen = gossip::choose_partner(options_.partners, self_, candidates, fragment.begun, random_);
  if (!chosen) return std::nullopt;
  return candidates[*chosen].id;
}

/// Known to hold NaN in this fragment, and asked not long ago. It asks by itself when its values are finite again.
bool Replica::rests(const Fragment& fragment, const NodeId& partner, TimeUs now_us) {
  const auto quarantined = fragment.quarantined_at.find(partner);
  return quarantined != fragment.quarantined_at.end() && now_us < quarantined->second;
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
  if (f == 0 && follow_up == 0) request.tracer = tracer_.say();
  const float factor = factor_for(fragment, partner);
  fragment.own = Own{.partner = partner, .follow_up = follow_up, .begun_us = now_us};
  fragment.own->request.counter = request.counter;
  ++own_count_;
  if (const auto neighbour = neighbours_.find(partner); neighbour != neighbours_.end()) ++neighbour->second.own_count;
  out.encode.push_back({f, EncodeTask{.request = std::move(request),
                                      .blocks = std::move(blocks),
                                      .exponents = std::move(exponents),
                                      .range = options_.range,
                                      .factor = factor,
                                      .clip = clip_for(fragment, partner)}});
}

void Replica::encoded(std::uint32_t f, EncodeTask::Result&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  GOSSAMER_CHECK(fragment.own && fragment.own->stage == Stage::encoding);
  Own& own = *fragment.own;
  if (!result.finite) {
    quarantine(fragment);
    end_own(fragment, 1, now_us);
  } else if (own.abandoned) {
    end_own(fragment, 0, now_us);
  } else {
    fragment.quarantined = false;
    own.stage = Stage::awaiting;
    own.request = std::move(result.request);
    own.blocks = std::move(result.blocks);
    own.exponents = std::move(result.exponents);
    own.factor = result.factor;
    own.sent_us = now_us;
    if (own.follow_up == 0) request_bytes_ = smoothed(request_bytes_, static_cast<double>(payload_bytes(own.request)));
    note_begun(f, own.request.counter, out);
    spend_own(own, now_us);
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
    // A repeated reply, or one that came too late. None yet to what is being concluded: a node that is killed meanwhile
    // would have acknowledged what it never took.
    if (reply.status == ReplyStatus::done) inquired(from, {reply.counter, reply.job, reply.fragment}, out);
    return;
  }
  if (!fits(reply, fragment->own->request)) {
    ++counters_.violations;
    give_up_own(*fragment, 1, now_us);
    if (reply.status == ReplyStatus::done) inquired(from, {reply.counter, reply.job, reply.fragment}, out);
    return;
  }
  fragment->quarantined_at.erase(from);
  if (reply.status == ReplyStatus::done) {
    observe_answer(from, *fragment->own, reply, now_us);
    if (const auto partner = neighbours_.find(from); partner != neighbours_.end()) partner->second.busy_in_a_row = 0;
    const std::uint32_t f = reply.fragment;
    fragment->reply = std::move(reply);
    if (!fragment->held) go_on(f, now_us, out);
    return;
  }
  count_begins(-1, now_us);  // nothing came of it
  if (reply.status == ReplyStatus::busy) {
    ++counters_.busy_received;
    if (const auto partner = neighbours_.find(from); partner != neighbours_.end()) ++partner->second.busy;
    fragment->was_busy = from;
    let_rest(from, now_us);
    end_own(*fragment, jitter() / busy_wait_divisor, now_us);
  } else {
    ++counters_.refused_received;
    // The first copy may have been committed by a replica that is gone, or is no longer remembered.
    const bool forgotten = reply.reason == RefuseReason::expired || reply.reason == RefuseReason::unknown_job;
    const bool quarantined = reply.reason == RefuseReason::quarantined;
    if (quarantined && neighbours_.contains(from)) fragment->quarantined_at[from] = now_us + quarantine_rest_us;
    const double rest_periods = quarantined ? jitter() / busy_wait_divisor : jitter();
    if (forgotten && fragment->own->repeated) {
      give_up_own(*fragment, rest_periods, now_us);
    } else {
      end_own(*fragment, rest_periods, now_us);
    }
  }
  fragment->fresh = true;  // nothing came of this one: no new publication is needed for the next
}

/// A node that turns down one request after another has no room for more: each costs bytes for nothing.
void Replica::let_rest(const NodeId& node, TimeUs now_us) {
  const auto found = neighbours_.find(node);
  if (found == neighbours_.end()) return;
  ++found->second.busy_in_a_row;
  found->second.busy_us = now_us;
}

TimeUs Replica::rests_until_us(const Neighbour& neighbour) const {
  if (neighbour.busy_in_a_row < busy_tolerated) return neighbour.busy_us;
  const int doublings = std::min(neighbour.busy_in_a_row - busy_tolerated, max_rest_doublings);
  const TimeUs busy_us = period_us() / busy_wait_divisor;
  const TimeUs base_us = finish_ ? std::min(busy_us, finish_wait_us) : busy_us;
  const TimeUs rest_us = std::max(base_us, us_per_ms) * (TimeUs{1} << doublings);
  const TimeUs longest_us = std::min(std::max(period_us(), least_longest_rest_us), max_rest_us);
  return neighbour.busy_us + std::min(rest_us, std::max(base_us, longest_us));
}

/// Of requests sent once: of a repeated one nobody knows which copy was answered (Karn & Partridge 1987).
void Replica::observe_answer(const NodeId& from, const Own& own, const ExchangeReply& reply, TimeUs now_us) {
  const auto found = neighbours_.find(from);
  if (found == neighbours_.end() || own.repeated || own.follow_up > 0 || now_us <= own.sent_us) return;
  Neighbour& neighbour = found->second;
  const auto took_us = static_cast<double>(now_us - own.sent_us);
  const double rate = static_cast<double>(payload_bytes(own.request) + payload_bytes(reply)) / took_us * us_per_s;
  neighbour.answer_us = smoothed(neighbour.answer_us, took_us);
  neighbour.goodput = smoothed(neighbour.goodput, rate);
}

void Replica::spend(const NodeId& to, std::size_t bytes, TimeUs now_us) {
  counters_.payload_bytes_sent += bytes;
  budget_.spend(bytes, now_us);
  if (const auto neighbour = neighbours_.find(to); neighbour != neighbours_.end())
    neighbour->second.budget.spend(bytes, now_us);
}

void Replica::spend_own(const Own& own, TimeUs now_us) {
  own_budget_.spend(payload_bytes(own.request), now_us);
  spend(own.partner, payload_bytes(own.request), now_us);
}

void Replica::conclude(std::uint32_t f, ExchangeReply&& reply, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (!fragment.own || fragment.own->request.counter != reply.counter) {  // given up while the reply waited
    release(f, now_us, out);
    return;
  }
  Own& own = *fragment.own;
  own.stage = Stage::concluding;
  own.replied = reply.tracer;
  observe_age(own.partner, reply.age);
  hold(fragment);
  out.conclude.push_back({f, ConcludeTask{.reply = std::move(reply),
                                          .blocks = own.blocks,
                                          .exponents = own.exponents,
                                          .factor = own.factor,
                                          .clip = own.request.clip,
                                          .witness = witness_for(fragment, own.partner)}});
}

void Replica::concluded(std::uint32_t f, ConcludeTask::Result&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  GOSSAMER_CHECK(fragment.own && fragment.own->stage == Stage::concluding);
  const Own own = std::move(*fragment.own);
  fragment.exchanged_us = now_us;
  if (result.commit) {
    fragment.buffers.finish_commit();
    std::ranges::find(fragment.own_halves, own.request.counter, &OwnHalf::counter)->commits =
        fragment.buffers.parts().commits;
    store_commit({.fragment = f}, out);
  }
  if (result.accepted) {
    if (own.follow_up == 0) ++counters_.initiated;
    ++(own.follow_up == 0 ? work_.exchanges : work_.follow_ups);
    if (own.follow_up == 0 && f == 0) tracer_.conclude(own.request.tracer, own.replied, result.shift, now_us);
    if (own.follow_up > 0) ++counters_.follow_ups;
    learn(fragment, own.partner, result.measure, result.shift, own.follow_up == 0);
    if (leaving_ && own.follow_up == 0) fragment.handover.exchanged(own.partner, result.shift);
  } else {
    ++counters_.violations;
  }
  if (result.accepted && own.follow_up == 0) rest_if_quiet(fragment, result.measure, now_us);
  fragment.begun_here = true;
  fragment.wide_at.reset();
  const double due_at = std::exchange(fragment.due_at, std::nullopt).value_or(cadence_.passed(own.begun_us));
  end_own(fragment, rest_periods(due_at, now_us), now_us);
  if (!result.accepted) give_up(own.request.counter);
  out.send.push_back(
      {own.partner, ExchangeAck{own.request.counter, result.accepted ? Outcome::taken : Outcome::never}});
  const auto partner = neighbours_.find(own.partner);
  if (!result.wide.empty() && own.follow_up < last_follow_up && partner != neighbours_.end() &&
      partner->second.linked && (state_ == ReplicaState::running || leaving_) && !fragment.publication) {
    const bool last = own.follow_up + 1 == last_follow_up;
    fragment.held = false;
    start(f, own.partner, own.follow_up + 1, last ? Codec::f32 : own.request.codec, std::move(result.wide),
          last ? std::vector<std::int8_t>{} : std::move(result.wide_exponents), now_us, out);
    fragment.due_at = due_at;  // both are one exchange, as far as the period goes
    return;
  }
  release(f, now_us, out);
}

void Replica::end_own(Fragment& fragment, double rest_periods, TimeUs now_us) {
  const auto neighbour = neighbours_.find(fragment.own->partner);
  // One that died and came back meanwhile counts anew.
  if (neighbour != neighbours_.end() && neighbour->second.own_count > 0) --neighbour->second.own_count;
  fragment.own.reset();
  fragment.budget.end_own();
  fragment.starts_at = cadence_.passed(now_us) + rest_periods;
  if (leaving_) start_by(fragment, now_us + last_exchange_wait_us);
  if (hurries(fragment)) {
    const auto wait_us = static_cast<TimeUs>(static_cast<double>(finish_wait_us) * random_.uniform());
    start_by(fragment, now_us + wait_us);
  }
  --own_count_;
}

void Replica::give_up_own(Fragment& fragment, double rest_periods, TimeUs now_us) {
  give_up(fragment.own->request.counter);
  end_own(fragment, rest_periods, now_us);
}

void Replica::give_up(std::uint64_t counter) {
  if (counter <= given_up_.floor || given_up_.counters.contains(counter)) return;
  given_up_.add(counter);
  newly_given_up_.push_back(counter);
}

/// A daemon that takes over has to know that it may be answered.
void Replica::note_begun(std::uint32_t f, std::uint64_t counter, Actions& out) {
  Fragment& fragment = fragments_[f];
  *std::ranges::min_element(fragment.own_halves, {}, &OwnHalf::counter) = {.counter = counter};
  store_commit({.fragment = f}, out);
}

std::optional<Outcome> Replica::outcome_of(std::uint32_t f, std::uint64_t counter) const {
  if (f >= fragments_.size() || counter <= given_up_.floor || counter >= counter_.next()) return Outcome::unknown;
  const Fragment& fragment = fragments_[f];
  if (fragment.own && fragment.own->request.counter == counter) return std::nullopt;
  return given_up_.counters.contains(counter) ? Outcome::never : Outcome::taken;
}

void Replica::inquired(const NodeId& from, const ExchangeInquiry& inquiry, Actions& out) {
  if (inquiry.job != description_.job) return;
  if (const auto outcome = outcome_of(inquiry.fragment, inquiry.counter))
    out.send.push_back({from, ExchangeAck{inquiry.counter, *outcome}});
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
    end_own(*fragment, jitter() / busy_wait_divisor, now_us);
  } else if (const auto* reply = std::get_if<ExchangeReply>(&message)) {
    cache_.mark_unsent(to, *reply);
  } else if (const auto* ack = std::get_if<ExchangeAck>(&message)) {
    if (unsent_acks_.size() < max_unsent_acks) unsent_acks_.emplace_back(to, *ack);
  }
}

// --- answers ------------------------------------------------------------------------------------------------------

void Replica::request(const NodeId& from, ExchangeRequest&& request, TimeUs now_us, Actions& out) {
  take_request(from, std::move(request), false, now_us, out);
}

void Replica::take_request(const NodeId& from, ExchangeRequest&& request, bool has_waited, TimeUs now_us,
                           Actions& out) {
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
  // What is asked for is finite there. Where both are quarantined, the one that is well first must be free to ask.
  if (reason == RefuseReason::none || reason == RefuseReason::quarantined)
    fragments_[request.fragment].quarantined_at.erase(from);
  if (reason != RefuseReason::none) return turn_down(from, request, ReplyStatus::refused, reason, now_us, out);
  Fragment& fragment = fragments_[request.fragment];
  if (fragment.asked && fragment.asked->from == from && fragment.asked->request.counter == request.counter) {
    ++counters_.repeated_requests;
    return;
  }
  if (let_wait(from, request, now_us, out)) return;
  // Both ends asked each other: the larger id answers, the smaller declines.
  const bool crossing = crosses(fragment, from);
  const auto shift = fragment.budget.answer_shift(crossing);
  const auto neighbour = neighbours_.find(from);
  if (state_ != ReplicaState::running || fragment.held || fragment.buffers.empty() || !shift ||
      (crowded() && !has_waited) || neighbour == neighbours_.end() ||
      (crossing && options_.crossing_rule && self_ < from) || (finish_ && neighbour->second.info.quarantined) ||
      !affordable(neighbour->second, fragment, now_us) || (fragment.asked && fragment.buffers.out_of_hand())) {
    return turn_down(from, request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  }
  if (request.clock != neighbour->second.info.clock) stir();  // it has trained since it last told
  if (!at_hand(request.fragment, out)) {
    fragment.asked = Asked{from, std::move(request), now_us};
    return;
  }
  hold(fragment);
  const std::uint32_t place = cache_.begin(id, now_us);
  const int aged = options_.age_damping ? std::max(age_shift(request.age), age_shift(age_of(fragment))) : 0;
  const int weight = std::max<int>(*shift, request.min_shift) + aged;
  const auto f = request.fragment;
  if (f == 0) tracer_asked_ = request.tracer;
  fragment.answers_follow_up = follows_up(fragment, from, now_us);
  observe_age(from, request.age);
  out.answer.push_back({f, from, place,
                        AnswerTask{.request = std::move(request),
                                   .shift = std::min<int>(weight, max_shift_bound),
                                   .range = options_.range,
                                   .factor = factor_for(fragment, from),
                                   .clip = clip_for(fragment, from),
                                   .witness = witness_for(fragment, from)}});
}

RefuseReason Replica::objection(const ExchangeRequest& request) const {
  if (request.job != description_.job) return RefuseReason::layout_differs;
  if (state_ == ReplicaState::draining) return RefuseReason::draining;
  if (request.fragment >= fragments_.size()) return RefuseReason::bad_request;
  const Fragment& fragment = fragments_[request.fragment];
  if (!fits(request, fragment.buffers.block_count())) return RefuseReason::bad_request;
  return fragment.quarantined ? RefuseReason::quarantined : RefuseReason::none;
}

/// An answer costs as much as a request, but turning one down wastes what it took to send: a little debt is made. Two
/// fragments' worth in any case, or two nodes that both have just asked would turn each other down for ever.
bool Replica::affordable(const Neighbour& neighbour, const Fragment& fragment, TimeUs now_us) const {
  const std::size_t debt_bytes = 2 * sent_bytes(fragment);
  if (!budget_.open_in_debt(now_us, debt_bytes) || !neighbour.budget.open_in_debt(now_us, debt_bytes)) return false;
  const LinkLoad& load = neighbour.load;
  const double debt_us = load.bytes_per_s > 0 ? static_cast<double>(debt_bytes) / load.bytes_per_s * us_per_s : 0;
  return static_cast<double>(load.backlog_us) <= std::max(static_cast<double>(answer_backlog_us), debt_us);
}

bool Replica::crosses(const Fragment& fragment, const NodeId& from) const {
  return fragment.own && fragment.own->stage == Stage::awaiting && fragment.own->partner == from;
}

bool Replica::follows_up(const Fragment& fragment, const NodeId& from, TimeUs now_us) const {
  return fragment.wide_at == from && now_us - fragment.exchanged_us < period_us() / 2;
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

void Replica::answered(std::uint32_t f, const NodeId& initiator, std::uint32_t place, AnswerTask::Result&& result,
                       TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (result.commit) {
    fragment.buffers.finish_commit();
    store_commit({.fragment = f, .answered = place}, out);
  }
  ExchangeReply& reply = result.reply;
  const ExchangeId id{initiator, reply.counter};
  reply.clock = clock_;
  reply.age = age_of(fragment);
  if (reply.status == ReplyStatus::done) {
    fragment.budget.answered(reply.shift);
    ++counters_.answered;
    ++(fragment.answers_follow_up ? work_.follow_ups : work_.exchanges);
    spend(initiator, payload_bytes(reply), now_us);
    answered_last_ = true;
    fragment.exchanged_us = now_us;
    fragment.begun_here = false;
    fragment.wide_at.reset();
    if (result.measure.wide_blocks > 0) fragment.wide_at = initiator;
    if (!agrees(result.measure)) stir();
    learn(fragment, initiator, result.measure, reply.shift, true);
    if (f == 0) reply.tracer = tracer_.answer(std::exchange(tracer_asked_, {}), reply.shift, now_us);
    if (!cache_.store(id, reply, std::move(result.half), now_us)) {
      cache_.leave_place(place);
      count_unresolved(initiator);
    }
  } else {
    cache_.decline(id, now_us);
    cache_.leave_place(place);
    ++counters_.refused_sent;
    if (result.own_not_finite) quarantine(fragment);
  }
  out.send.push_back({initiator, std::move(reply)});
  release(f, now_us, out);
}

void Replica::acknowledged(const NodeId& from, const ExchangeAck& ack, TimeUs now_us, Actions& out) {
  const ExchangeId id{from, ack.counter};
  if (ack.outcome != Outcome::never) {
    if (cache_.acknowledge(id) && ack.outcome == Outcome::unknown) count_unresolved(from);
    return;
  }
  auto undo = cache_.take_back(id);
  if (!undo) return;
  const std::uint32_t f = undo->reply.fragment;
  Fragment& fragment = fragments_[f];
  fragment.undo.push_back(*std::move(undo));
  if (fragment.buffers.empty()) fragment.wants_publication = true;
  if (!fragment.held) go_on(f, now_us, out);
}

bool Replica::undo_next(std::uint32_t f, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (fragment.undo.empty() || fragment.buffers.empty() || !at_hand(f, out)) return false;
  hold(fragment);
  out.undo.push_back({f, fragment.undo.front()});
  return true;
}

void Replica::undone(std::uint32_t f, const UndoTask::Result& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  const UndoTask undo = std::move(fragment.undo.front());
  fragment.undo.pop_front();
  if (result.commit) {
    fragment.buffers.finish_commit();
    store_commit({.fragment = f, .undone = undo.place}, out);
    ++counters_.undone;
  } else {
    ++counters_.unresolved;
  }
  cache_.leave_place(undo.place);
  release(f, now_us, out);
}

// --- what exchanges teach -----------------------------------------------------------------------------------------

void Replica::learn(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, int shift, bool counts) {
  const auto neighbour = neighbours_.find(partner);
  const bool known = neighbour != neighbours_.end();
  if (known && measure.blocks > 0) {
    const double usual = options_.clip * fragment.distances.median().value_or(0.0F);
    if (usual > 0 && measure.blocks > measure.wide_blocks) {
      neighbour->second.clips.observe(measure.distance / usual);
      if (measure.distance > usual) ++counters_.clipped;
    }
    neighbour->second.factor.observe(measure.ratio, static_cast<float>(measure.wide_blocks - measure.coarse_blocks) /
                                                        static_cast<float>(measure.blocks));
  }
  if (measure.telling && measure.blocks == fragment.buffers.block_count()) {
    fragment.distances.observe(partner, measure.distance);
    if (const double relative = relative_distance(measure); std::isfinite(relative)) {
      fragment.relative_distance = smoothed(fragment.relative_distance, relative);
      fragment.measured = true;
      if (known) neighbour->second.relative_distance = smoothed(neighbour->second.relative_distance, relative);
    }
  }
  if (!counts) return;
  if (known) {
    ++neighbour->second.exchanges;
    neighbour->second.blocks += measure.blocks;
    neighbour->second.wide_blocks += measure.wide_blocks;
    neighbour->second.exchanged_us = fragment.exchanged_us;
  }
  if (finish_) {
    const bool measured = measure.wide_blocks == 0 && measure.blocks == fragment.buffers.block_count();
    fragment.agreement.observe(partner, measured ? relative_distance(measure) : std::numeric_limits<double>::infinity(),
                               known && neighbour->second.info.finishing != Finishing::no);
  }
  ++fragment.outer_exchanges;
  counters_.blocks += measure.blocks;
  counters_.wide_blocks += measure.wide_blocks;
  counters_.shift_sum += shift;
  counters_.mean_abs_sum += measure.mean_abs;
  counters_.codec_error_sum += measure.codec_error;
  counters_.ages.add(age_of(fragment));
  const double interval = static_cast<double>(clock_ - std::min(clock_, fragment.exchange_clock));
  fragment.exchange_interval = smoothed(fragment.exchange_interval, interval);
  fragment.exchange_clock = clock_;
}

void Replica::count_unresolved(const NodeId& initiator) {
  ++counters_.unresolved;
  if (const auto neighbour = neighbours_.find(initiator); neighbour != neighbours_.end())
    ++neighbour->second.unresolved;
}

void Replica::observe_age(const NodeId& partner, const Age& age) {
  const auto neighbour = neighbours_.find(partner);
  if (neighbour == neighbours_.end() || age.cadence == 0) return;
  const double intervals = static_cast<double>(age.samples) / static_cast<double>(age.cadence);
  neighbour->second.age_intervals = smoothed(neighbour->second.age_intervals, intervals);
}

Age Replica::age_of(const Fragment& fragment) const {
  return {.samples = clock_ - std::min(clock_, fragment.publication_clock),
          .cadence = static_cast<std::uint64_t>(std::llround(fragment.cadence))};
}

Witness Replica::witness_for(const Fragment& fragment, const NodeId& partner) const {
  Witness witness = fragment.distances.witness(partner);
  if (partners() >= witnesses_least) witness.alone = false;  // others will be met: better not believe the first
  return witness;
}

Clip Replica::clip_for(const Fragment& fragment, const NodeId& partner) const {
  if (!(options_.clip > 0)) return {};
  const float median = fragment.distances.median().value_or(0.0F);
  const auto neighbour = neighbours_.find(partner);
  const int extra = neighbour == neighbours_.end() ? 0 : neighbour->second.clips.extra_shift();
  const float multiple = std::ldexp(options_.clip, -extra);
  return {.threshold = std::min(multiple * median, std::numeric_limits<float>::max()), .multiple = multiple};
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

/// A fragment that has not been exchanged yet need not wait for its period: of many, and with a period that the cadence
/// has lengthened, the first round would take whatever time and network give. A few beginnings may be saved up, for the
/// time when nothing could be begun.
double Replica::may_begin(TimeUs now_us) const {
  const auto saved_up = static_cast<double>(2 * most_in_flight());
  const double since =
      begins_a_turn * static_cast<double>(fragments_.size()) * (cadence_.passed(now_us) - begins_left_at_);
  return std::min(saved_up, begins_left_ + since);
}

void Replica::count_begins(double count, TimeUs now_us) {
  begins_left_ = may_begin(now_us) - count;
  begins_left_at_ = cadence_.passed(now_us);
}

bool Replica::due(const Fragment& fragment, TimeUs now_us) const {
  return now_us >= fragment.start_after_us && cadence_.passed(now_us) >= fragment.starts_at;
}

/// An exchange that took long, or began late, leaves half a period at least, in which others may ask.
double Replica::rest_periods(double due_at, TimeUs now_us) {
  return jitter() - std::min(cadence_.passed(now_us) - due_at, most_taken);
}

void Replica::start_at(Fragment& fragment, TimeUs start_us) {
  fragment.starts_at = 0;
  fragment.start_after_us = start_us;
}

void Replica::start_by(Fragment& fragment, TimeUs start_us) const {
  if (!due(fragment, start_us)) start_at(fragment, start_us);
}

double Replica::jitter() {
  return 0.75 + 0.5 * random_.uniform();
}

}  // namespace gossamer::gossip
