#include "gossip/replica/initiator.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::gossip {

namespace {

constexpr int last_follow_up = 2;                         // the follow-up in f32, which leaves no block out
constexpr std::size_t schedule_window = 64;               // startable fragments among which the oldest is chosen
constexpr double others_turn_divisor = 2;                 // divides a fragment's age where the only partner is to begin
constexpr TimeUs quarantine_rest_us = 10 * us_per_s;      // a partner with NaN in a fragment is not asked for this long
constexpr TimeUs last_exchange_wait_us = 20 * us_per_ms;  // longest time between a fragment's exchanges for handover
constexpr double fast_link_bytes_per_s = 125e6;           // 1 Gbit/s
constexpr TimeUs unasked_least_us = 1 * us_per_s;  // a server that nobody has asked for this time asks others itself
constexpr TimeUs unasked_periods = 8;              // the same wait in periods; the longer one counts
constexpr TimeUs usual_factor = 2;      // exchanges that take longer than this many times the median are slow
constexpr double slow_part = 2;         // slow partners get 1 / this of the part that each would get
constexpr int quiet_rounds_least = 16;  // exchanges in a row without a difference, before a fragment rests
constexpr int quiet_doublings_most = 20;
constexpr TimeUs quiet_most_us = 7200 * us_per_s;

/// True if the partner was found to hold NaN in the fragment not long ago. It asks by itself once its values are
/// finite.
bool rests_at(const Fragment& fragment, const NodeId& partner, TimeUs now_us) {
  const auto quarantined = fragment.quarantined_at.find(partner);
  return quarantined != fragment.quarantined_at.end() && now_us < quarantined->second;
}

}  // namespace

// --- beginning an exchange ----------------------------------------------------------------------------------------

void Initiator::start_exchanges(TimeUs now_us, Actions& out) {
  if (data_.leaving) return start_last_exchanges(now_us, out);
  if (!data_.runs()) return;
  const std::size_t count = data_.fragments.count();
  std::size_t passed_over = 0;
  while (has_room() && may_spend(now_us) && (data_.finish || data_.pace.may_begin(now_us) >= 0)) {
    const auto f = oldest_startable(now_us);
    if (!f) return;
    Fragment& fragment = data_.fragments[*f];
    const auto partner = choose_partner(*f, now_us);
    if (!partner) {
      // Another fragment may have another partner to ask.
      const bool hurry = data_.hurries(fragment);
      const bool own_partners = hurry || goes_to_owner(fragment) || !fragment.quarantined_at.empty();
      if (!own_partners || ++passed_over > schedule_window) return;
      if (hurry) {
        fragment.turn.start_at(now_us + finish_wait_us);
      } else {
        data_.pace.rest(fragment.turn, data_.jitter() / busy_wait_divisor, now_us);
      }
      next_fragment_ = (*f + 1) % count;
      continue;
    }
    if (!affords(*partner, fragment, now_us)) return;
    next_fragment_ = (*f + 1) % count;
    if (!wait_for_publication(*f, out)) begin(*f, *partner, now_us, out);
  }
}

void Initiator::begin(std::uint32_t f, const NodeId& partner, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  ++fragment.begun;
  fragment.was_busy.reset();  // another partner is preferred for one try only, whatever its outcome
  data_.pace.count_begins(1, now_us);
  if (!fragment.turn.due_at) fragment.turn.due_at = fragment.turn.starts_at;
  // A push takes over all of the server's value. With q4's coarse steps, noise would let both ends move only a part of
  // the way, and most of the progress would be left for later pushes.
  Codec codec = codec_for(fragment, partner);
  if (codec == Codec::q4 && push_rule_for(fragment, partner)) codec = Codec::q8;
  start(f, partner, 0, codec, {}, {}, now_us, out);
}

bool Initiator::wait_for_publication(std::uint32_t f, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  const bool fresh = fragment.freshness == Fragment::Freshness::fresh && !data_.exchanges_last_step_only();
  const bool recent = fresh || fragment.publication_clock == data_.clock;
  if (!fragment.buffers.empty() && recent) return false;
  // A start now would average old values, so the client's publication starts the exchange.
  fragment.waiting.start = Waiting::Start::with_publication;
  ++starting_count_;
  client_.want_publication(f, out);
  return true;
}

void Initiator::note_publication(Fragment& fragment) {
  if (fragment.waiting.start != Waiting::Start::with_publication) return;
  fragment.waiting.start = Waiting::Start::now;
  --starting_count_;
}

void Initiator::begin_waiting(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (fragment.waiting.start != Waiting::Start::now) return;
  fragment.waiting.start = Waiting::Start::none;
  if (!has_room() || !may_spend(now_us)) return;
  if (data_.leaving) return start_last_exchange(f, now_us, out);
  if (!data_.runs() || !may_start(fragment, now_us)) return;
  if (const auto partner = choose_partner(f, now_us)) begin(f, *partner, now_us, out);
}

/// Starts exchanges in the order of the fragments. It looks at a bounded number of them.
void Initiator::start_last_exchanges(TimeUs now_us, Actions& out) {
  Leaving& leaving = *data_.leaving;
  const std::uint32_t count = data_.fragments.count();
  while (leaving.first < count && data_.fragments[leaving.first].handover.over(leaving.replicas))
    ++leaving.first;
  const auto end = static_cast<std::uint32_t>(std::min<std::size_t>(count, leaving.first + schedule_window));
  for (std::uint32_t f = leaving.first; f < end && may_spend(now_us); ++f) {
    if (data_.fragments[f].waiting.start == Waiting::Start::with_publication || has_room())
      start_last_exchange(f, now_us, out);
  }
}

void Initiator::start_last_exchange(std::uint32_t f, TimeUs now_us, Actions& out) {
  const Leaving& leaving = *data_.leaving;
  Fragment& fragment = data_.fragments[f];
  const bool empty = fragment.buffers.empty();
  if (fragment.waiting.start == Waiting::Start::with_publication &&
      now_us >= (empty ? leaving.deadline_us : leaving.publications_until_us)) {
    fragment.waiting.start = Waiting::Start::none;
    --starting_count_;
    fragment.freshness = Fragment::Freshness::fresh;
  }
  if (fragment.handover.over(leaving.replicas) || !may_start(fragment, now_us)) return;
  if (now_us >= leaving.deadline_us || fragment.is_quarantined() || !somebody_left_to_ask(fragment))
    return fragment.handover.give_up();
  const auto partner = choose_partner(f, now_us);
  if (!partner) return;  // the partners left are resting, or have used up their rate
  if ((empty || now_us < leaving.publications_until_us) && wait_for_publication(f, out)) return;
  begin(f, *partner, now_us, out);
}

bool Initiator::somebody_left_to_ask(const Fragment& fragment) const {
  return std::ranges::any_of(data_.neighbours, [&](const auto& item) {
    return data_.neighbours.is_partner(item.second) && fragment.handover.may_ask(item.first) &&
           !fragment.quarantined_at.contains(item.first);
  });
}

bool Initiator::may_spend(TimeUs now_us) const {
  // A request is charged when it is sent. Several requests that are encoded at once would make so much debt that no
  // other node is answered. In lean memory affords() counts them.
  const bool capped = data_.options.bytes_per_s > 0 || data_.options.link_bytes_per_s > 0;
  if (capped && encoding_count_ > 0 && (!client_.is_lean() || data_.leaving)) return false;
  const std::size_t fragment_bytes = data_.fragments.count() == 0 ? 0 : data_.sent_bytes(data_.fragments[0]);
  return data_.pace.may_spend(fragment_bytes, data_.leaving || data_.finish, now_us);
}

/// In lean memory a publication is dropped if no bytes are left to send when it comes. If the client were asked for
/// several publications and only one could be sent, the fragment that it serves last might never be exchanged.
bool Initiator::affords(const NodeId& partner, const Fragment& fragment, TimeUs now_us) const {
  const std::size_t ahead = client_.is_lean() ? starting_count_ + encoding_count_ : 0;
  const std::size_t awaited_bytes = ahead * data_.sent_bytes(fragment);
  if (awaited_bytes == 0) return true;
  const Neighbour* const neighbour = data_.neighbours.find(partner);
  return data_.pace.may_spend_after(awaited_bytes, now_us) &&
         (neighbour == nullptr || neighbour->budget.open(now_us, awaited_bytes));
}

// --- choice of fragment and partner -------------------------------------------------------------------------------

std::optional<std::uint32_t> Initiator::oldest_startable(TimeUs now_us) const {
  const std::size_t count = data_.fragments.count();
  const auto others_turn = turn_of_only_partner();
  std::optional<std::uint32_t> oldest;
  double oldest_age = 0;
  std::size_t seen = 0;
  // The search begins behind the last fragment chosen: those have waited longest, and a look at all would take long.
  for (std::size_t i = 0; i < count && seen < schedule_window; ++i) {
    const auto f = static_cast<std::uint32_t>((next_fragment_ + i) % count);
    const Fragment& fragment = data_.fragments[f];
    if (!may_start(fragment, now_us)) continue;
    ++seen;
    const bool left_to_other = others_turn == f % 2 && fragment.last_exchange.role == LastExchange::Role::responder;
    const double age = waited(fragment, now_us) / (left_to_other ? others_turn_divisor : 1);
    if (oldest && age <= oldest_age) continue;
    oldest = f;
    oldest_age = age;
  }
  return oldest;
}

/// How long a fragment has waited, for comparison with other fragments. With servers, answers to other nodes do not
/// count: they bring the fragment's owner nothing of what was trained here.
double Initiator::waited(const Fragment& fragment, TimeUs now_us) const {
  if (!data_.has_servers()) return static_cast<double>(now_us - fragment.last_exchange.at_us);
  return data_.pace.passed(now_us) - fragment.turn.due_at.value_or(fragment.turn.starts_at);
}

/// Two replicas that have only each other have the same oldest fragment. Both would ask for it at once, and every
/// second request would be turned down. So one prefers the even fragments and the other the odd ones, as long as each
/// asks for its own. Returns the partner's preference as a remainder of 2; none: there is not exactly one partner.
std::optional<std::uint32_t> Initiator::turn_of_only_partner() const {
  const NodeId* only = data_.neighbours.only_partner();
  if (only == nullptr) return std::nullopt;
  return data_.self < *only ? 1 : 0;
}

bool Initiator::may_start(const Fragment& fragment, TimeUs now_us) const {
  if (!data_.takes()) return false;
  if (data_.finish && has_ended(fragment)) return false;
  if (fragment.is_pending({Pending::work, Pending::own}) || fragment.waiting.start == Waiting::Start::with_publication)
    return false;
  return data_.pace.due(fragment.turn, now_us) && !rests(fragment, now_us);
}

/// True if the fragment needs no exchange of this node's own now. Each needless exchange may bring another
/// correction that the client must take before the run can end. It also uses bytes that other exchanges need.
bool Initiator::has_ended(const Fragment& fragment) const {
  const Finish& finish = *data_.finish;
  if (finish.stage == Finishing::over || data_.leaving) return finish.stage == Finishing::over;
  // Exchanges in lean memory take long, so there they end once this node has settled.
  if (finish.awaits_training) return client_.is_lean() && finish.stage == Finishing::settled;
  return data_.settled(fragment) && data_.is_current(fragment);
}

bool Initiator::rests(const Fragment& fragment, TimeUs now_us) const {
  return now_us < fragment.quiet.until_us && fragment.quiet.stir == data_.stir && !data_.leaving &&
         !data_.hurries(fragment);
}

void Initiator::rest_if_quiet(Fragment& fragment, const ExchangeMeasure& measure, TimeUs now_us) {
  if (!agrees(measure)) ++data_.stir;
  Quiet& quiet = fragment.quiet;
  if (quiet.stir != data_.stir) quiet = {.stir = data_.stir};
  if (!agrees(measure) || fragment.publication_clock != data_.clock || ++quiet.rounds < quiet_rounds_least) return;
  const int doublings = std::min(quiet.rounds - quiet_rounds_least, quiet_doublings_most);
  quiet.until_us = now_us + std::min(data_.pace.period_us() << doublings, quiet_most_us);
}

/// q4 where the link cannot carry q8 at the configured period within its share. In a period each fragment is begun once
/// here and answered once, spread over the partners. On fast links processors are the bottleneck, and q8 mixes better.
/// A fragment with statistics (role `buffer`) travels in f32. Variances of different layers lie side by side in it, and
/// a quantiser step that suits the largest would make the others jump, even below zero.
Codec Initiator::codec_for(const Fragment& fragment, const NodeId& partner) const {
  const ReplicaOptions& options = data_.options;
  if (fragment.outer.leaves_out()) return Codec::f32;
  if (!options.adapt_codec) return options.codec;
  const Neighbour* neighbour = data_.neighbours.find(partner);
  const double rate = neighbour == nullptr ? 0 : neighbour->load.bytes_per_s;
  if (rate <= 0 || rate >= fast_link_bytes_per_s) return Codec::q8;
  const auto period_us = static_cast<double>(std::max(options.period_us, us_per_ms));
  const double asked = 2 * static_cast<double>(data_.fragments.block_count() * codec_block_bytes(Codec::q8)) /
                       period_us * us_per_s /
                       static_cast<double>(std::max<std::size_t>(data_.neighbours.partners(), 1));
  const double share = options.network_share > 0 ? options.network_share : 1;
  return asked > share * rate ? Codec::q4 : Codec::q8;
}

bool Initiator::goes_to_owner(const Fragment& fragment) const {
  return data_.options.partners.policy == PartnerPolicy::owner && !data_.leaving &&
         (!data_.hurries(fragment) || data_.server_of(fragment));
}

std::optional<PushRule> Initiator::push_rule_for(const Fragment& fragment, const NodeId& partner) const {
  if (data_.description.keeps && !data_.leaving)
    return PushRule{.shift = max_shift_bound, .keeps = false};  // this node follows
  const Neighbour* const server = data_.neighbours.find(partner);
  if (!goes_to_owner(fragment) || client_.is_lean() || server == nullptr || !server->info.keeps) return std::nullopt;
  if (data_.finish && fragment.handed_in == HandedIn{partner, fragment.publication_clock})
    return PushRule{.shift = max_shift_bound};
  // The server may see more workers than this one does.
  const std::size_t workers = std::max<std::size_t>(data_.neighbours.trainers() + 1, server->info.trainers);
  PushRule rule = push_rule(workers, fragment.budget.own_shift());
  rule.alone = workers == 1 && !fragment.push.is_lost();
  // At first this node does not know which part of its values is progress. It pushes all of them, and the server moves
  // with twice the weight.
  if (!fragment.push.knows(fragment.buffers.parts().commits))
    rule.shift = std::max<int>(rule.shift - 1, fragment.budget.own_shift());
  return rule;
}

/// How long a partner is not to be asked if an exchange with it takes this time. Those that take longer than most get
/// half of the part that partners have if all of them are alike.
TimeUs Initiator::rest_us(TimeUs took_us) const {
  const std::size_t places = std::min<std::size_t>(client_.most_in_flight(), data_.fragments.count());
  const auto part = static_cast<double>(places) / static_cast<double>(data_.fragments.count());
  // Exchanges of this time keep no fragment waiting for longer than a period.
  const auto free_us = static_cast<TimeUs>(static_cast<double>(data_.pace.period_us()) * part);
  if (took_us <= free_us) return 0;
  const Neighbours::Holding holding = data_.neighbours.holding();
  if (holding.partners < 2) return 0;
  const TimeUs longer_us = took_us - std::max(free_us, usual_factor * holding.median_us);
  const double each = slow_part * static_cast<double>(holding.partners) / static_cast<double>(places);
  return static_cast<TimeUs>(static_cast<double>(std::max<TimeUs>(longer_us, 0)) * each);
}

bool Initiator::is_in_reach(const NodeId& node, const Neighbour& neighbour, const Fragment& fragment,
                            TimeUs now_us) const {
  const auto has_no_other = [&] { return data_.finish || data_.leaving || goes_to_owner(fragment); };
  return data_.neighbours.is_partner(neighbour) && (!neighbour.held.rests(now_us) || has_no_other()) &&
         neighbour.budget.may_begin(data_.sent_bytes(fragment), now_us) &&
         now_us >= Neighbours::rests_until_us(neighbour, data_.pace.period_us(), data_.finish.has_value()) &&
         Neighbours::has_room(neighbour, data_.sent_bytes(fragment)) && !rests_at(fragment, node, now_us) &&
         !data_.is_over_share(fragment, node, now_us) &&
         !data_.neighbours.leaves_share(neighbour, data_.pace.period_us(), now_us);
}

/// What the choice of a fragment's partner depends on, whoever is looked at.
struct Initiator::Choice {
  bool hurry = false;   ///< the run ends
  bool serves = false;  ///< the node is a server: those that train ask it
  bool asked = false;   ///< they did a short while ago
};

/// An owner that trains asks anyone. A server asks only when nobody has asked it for long: others may take another node
/// for the owner, or let this one only follow. Once they have answered, it asks them like anybody until it is asked
/// again.
Initiator::Choice Initiator::choice(const Fragment& fragment, TimeUs now_us) const {
  const bool hurry = data_.hurries(fragment);
  if (!data_.has_servers() || !data_.description.keeps || data_.leaving) return {.hurry = hurry};
  const TimeUs unasked_us = std::max(unasked_least_us, hurry ? 0 : unasked_periods * data_.pace.period_us());
  const bool was_asked = fragment.last_exchange.role == LastExchange::Role::responder;
  return {.hurry = hurry, .serves = true, .asked = was_asked && now_us - fragment.last_exchange.at_us < unasked_us};
}

/// Whether the neighbour is one of those to choose from, in reach or not.
bool Initiator::is_candidate(const NodeId& node, const Neighbour& neighbour, const Fragment& fragment,
                             const Choice& how) const {
  const JobInfo& info = neighbour.info;
  if (info.job != data_.description.job) return false;
  if (data_.is_follower(neighbour) && !(data_.leaving && data_.neighbours.trainers() == 0)) return false;
  if (data_.leaving && !fragment.handover.may_ask(node)) return false;
  if (data_.finish && data_.finish->is_sound() && info.quarantined) return false;
  if (!how.hurry) return true;
  if (!data_.neighbours.finishes(neighbour) || fragment.agreement.has(node)) return false;
  // A partner that has not settled asks the server by itself, and one for which the run is over does not answer.
  return !how.serves || (info.finishing != Finishing::over && (!how.asked || info.finishing == Finishing::settled));
}

std::optional<NodeId> Initiator::choose_partner(std::uint32_t f, TimeUs now_us) {
  const Fragment& fragment = data_.fragments[f];
  const Neighbours& neighbours = data_.neighbours;
  if (goes_to_owner(fragment)) {
    const NodeId owner = data_.owner(f);
    const Neighbour* const known = neighbours.find(owner);
    if (owner != data_.self)
      return known != nullptr && is_in_reach(owner, *known, fragment, now_us) ? std::optional(owner) : std::nullopt;
  }
  const Choice how = choice(fragment, now_us);
  if (how.asked && !how.hurry) return std::nullopt;
  std::vector<Candidate> candidates;
  std::size_t in_reach = 0;
  for (const auto& [node, neighbour] : neighbours) {
    if (!is_candidate(node, neighbour, fragment, how)) continue;
    const bool reach = is_in_reach(node, neighbour, fragment, now_us);
    in_reach += reach ? 1 : 0;
    candidates.push_back({.id = node, .goodput = neighbour.goodput, .in_reach = reach});
  }
  const auto prefer_others_to = [&](const std::optional<NodeId>& node) {
    const auto candidate =
        std::ranges::find_if(candidates, [&](const Candidate& c) { return c.in_reach && c.id == node; });
    if (in_reach < 2 || candidate == candidates.end()) return;
    candidate->in_reach = false;
    --in_reach;
  };
  prefer_others_to(fragment.was_busy);
  // What this node and its last partner have is still much the same.
  if (data_.options.partners.policy == PartnerPolicy::random) prefer_others_to(fragment.last_exchange.with);
  const auto chosen =
      gossip::choose_partner(data_.options.partners, data_.self, candidates, fragment.begun, data_.random);
  if (!chosen) return std::nullopt;
  return candidates[*chosen].id;
}

// --- one exchange -------------------------------------------------------------------------------------------------

void Initiator::start(std::uint32_t f, const NodeId& partner, int follow_up, Codec codec,
                      std::vector<std::uint32_t> blocks, std::vector<std::int8_t> exponents, TimeUs now_us,
                      Actions& out) {
  Fragment& fragment = data_.fragments[f];
  fragment.hold(stage::Encoding{});
  fragment.freshness = Fragment::Freshness::used;
  ExchangeRequest request{.counter = data_.book.take_counter(),
                          .job = data_.description.job,
                          .fragment = f,
                          .codec = codec,
                          .seed = data_.random.next(),
                          .min_shift = static_cast<std::uint8_t>(fragment.budget.begin_own()),
                          .clock = data_.clock,
                          .age = data_.age_of(fragment),
                          .usual = fragment.distances.usual()};
  if (f == 0 && follow_up == 0) request.tracer = data_.tracer.say();
  const auto push = push_rule_for(fragment, partner);
  if (push) {
    request.min_shift = std::max(request.min_shift, static_cast<std::uint8_t>(push->shift));
    request.age = {};  // a push is not damped by its age: the rule accounts for what was pushed since
  }
  if (data_.options.weigh_samples) request.weight = static_cast<float>(data_.step.samples);
  const float factor = data_.factor_for(fragment, partner);
  fragment.own = OwnExchange{.partner = partner,
                             .hands_over = data_.leaving.has_value(),
                             .follow_up = follow_up,
                             .begun_us = now_us,
                             .push = push,
                             .publication_clock = fragment.publication_clock};
  fragment.own->request.counter = request.counter;
  ++own_count_;
  ++encoding_count_;
  if (Neighbour* neighbour = data_.neighbours.find(partner)) {
    ++neighbour->own_count;
    fragment.own->rest_us = rest_us(neighbour->held.usual_us());
    neighbour->held.begin(fragment.own->rest_us, now_us);
  }
  out.run.push_back({f, EncodeTask{.request = std::move(request),
                                   .blocks = std::move(blocks),
                                   .exponents = std::move(exponents),
                                   .range = data_.options.range,
                                   .factor = factor,
                                   .clip = push ? Clip{} : data_.clip_for(fragment, partner),
                                   .push = push}});
}

void Initiator::encoded(std::uint32_t f, EncodeTask::Result&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  OwnExchange& own = *fragment.own;
  --encoding_count_;
  if (!result.finite) {
    data_.quarantine(fragment);
    return end_own(fragment, 1, now_us);
  }
  if (own.stage == OwnExchange::Stage::abandoned) return end_own(fragment, 0, now_us);
  fragment.health = Fragment::Health::sound;
  own.stage = OwnExchange::Stage::awaiting;
  own.request = std::move(result.request);
  own.blocks = std::move(result.blocks);
  own.exponents = std::move(result.exponents);
  own.factor = result.factor;
  if (!result.pushed) own.push.reset();
  if (own.follow_up == 0) data_.pace.note_request(payload_bytes(own.request));
  note_begun(f, own.request.counter, out);
  send_request(own, now_us, out);
}

void Initiator::send_request(OwnExchange& own, TimeUs now_us, Actions& out) {
  own.sent_us = now_us;
  data_.pace.spend_own(payload_bytes(own.request), now_us);
  data_.spend(own.partner, payload_bytes(own.request), now_us, ByteBudget::Spent::request);
  out.send.push_back({own.partner, own.request});
}

OwnExchange* Initiator::own_of(const NodeId& from, std::uint32_t f, std::uint64_t counter) {
  if (f >= data_.fragments.count()) return nullptr;
  Fragment& fragment = data_.fragments[f];
  if (!fragment.unanswered() || fragment.own->partner != from || fragment.own->request.counter != counter)
    return nullptr;
  return &*fragment.own;
}

bool Initiator::reply(const NodeId& from, ExchangeReply&& reply, TimeUs now_us, Actions& out) {
  OwnExchange* const own = own_of(from, reply.fragment, reply.counter);
  const bool done = reply.status == ReplyStatus::done;
  const ExchangeInquiry about{reply.counter, reply.job, reply.fragment};
  if (own == nullptr) {
    // This reply is a repeat, or came too late. inquired() says nothing while the exchange is being concluded: if this
    // node were killed then, it would have acknowledged a half that it never committed.
    if (done) inquired(from, about, out);
    return false;
  }
  data_.neighbours.note_reply(from);
  Fragment& fragment = data_.fragments[reply.fragment];
  if (!fits(reply, own->request)) {
    ++data_.counters.violations;
    give_up_own(fragment, 1, now_us);
    if (done) inquired(from, about, out);
    return false;
  }
  fragment.quarantined_at.erase(from);
  if (!done) {
    turned_down(fragment, from, reply, now_us);
    return false;
  }
  // Only requests sent once are timed: for a repeated one nobody knows which copy was answered (Karn & Partridge 1987).
  if (own->sent == OwnExchange::Sent::once && own->follow_up == 0)
    data_.neighbours.observe_answer(from, payload_bytes(own->request) + payload_bytes(reply), now_us - own->sent_us);
  if (Neighbour* partner = data_.neighbours.find(from)) partner->busy_in_a_row = 0;
  own->stage = OwnExchange::Stage::replied;
  own->reply = std::move(reply);
  return true;
}

/// The exchange had no effect, so the next one needs no new publication.
void Initiator::turned_down(Fragment& fragment, const NodeId& from, const ExchangeReply& reply, TimeUs now_us) {
  data_.pace.count_begins(-1, now_us);
  if (reply.status == ReplyStatus::busy) {
    ++data_.counters.busy_received;
    fragment.was_busy = from;
    data_.neighbours.note_busy(from, now_us);
    end_own(fragment, data_.jitter() / busy_wait_divisor, now_us);
  } else {
    ++data_.counters.refused_received;
    // An earlier copy of the request may have been committed by a replica that is gone or no longer remembers it.
    const bool forgotten = reply.reason == RefuseReason::expired || reply.reason == RefuseReason::unknown_job;
    const bool quarantined = reply.reason == RefuseReason::quarantined;
    if (Neighbour* const neighbour = data_.neighbours.find(from); quarantined && neighbour != nullptr) {
      fragment.quarantined_at[from] = now_us + quarantine_rest_us;
      neighbour->met_quarantine = true;
    }
    const double rest_periods = quarantined ? data_.jitter() / busy_wait_divisor : data_.jitter();
    if (forgotten) {
      give_up_own(fragment, rest_periods, now_us);
    } else {
      end_own(fragment, rest_periods, now_us);
    }
  }
  fragment.freshness = Fragment::Freshness::fresh;
}

bool Initiator::conclude_next(std::uint32_t f, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (!fragment.own || fragment.own->stage != OwnExchange::Stage::replied || !client_.at_hand(f, out)) return false;
  OwnExchange& own = *fragment.own;
  ExchangeReply reply = *std::exchange(own.reply, std::nullopt);
  own.stage = OwnExchange::Stage::concluding;
  own.replied = reply.tracer;
  data_.neighbours.observe_age(own.partner, reply.age);
  fragment.hold(stage::Concluding{});
  out.run.push_back({f, ConcludeTask{.reply = std::move(reply),
                                     .blocks = own.blocks,
                                     .exponents = own.exponents,
                                     .factor = own.factor,
                                     .clip = own.request.clip,
                                     .witness = data_.witness_for(f, own.partner),
                                     .push = own.push}});
  return true;
}

void Initiator::learn_from(const OwnExchange& own, const ConcludeTask::Result& result, TimeUs now_us) {
  if (!result.accepted) {
    ++data_.counters.violations;
    return;
  }
  const std::uint32_t f = own.request.fragment;
  Fragment& fragment = data_.fragments[f];
  const bool proper = own.follow_up == 0;
  ++(proper ? data_.counters.initiated : data_.counters.follow_ups);
  data_.pace.add_work(proper ? ExchangeCost::Work{.exchanges = 1} : ExchangeCost::Work{.follow_ups = 1});
  if (proper && f == 0) data_.tracer.conclude(own.request.tracer, own.replied, result.shift, now_us);
  data_.learn(fragment, own.partner, result.measure, result.shift, proper);
  const bool latest = data_.description.keeps || own.publication_clock == fragment.publication_clock;
  data_.note_agreement(fragment, own.partner, result.measure, proper && latest);
  if (proper) rest_if_quiet(fragment, result.measure, now_us);
  if (result.took_all && result.wide.empty() && own.publication_clock) {
    fragment.handed_in = {own.partner, *own.publication_clock};
  } else if (!own.push && result.shift < max_shift_bound) {
    fragment.handed_in.reset();
  }
}

/// If blocks were left out or moved only a part of the way, the partner may be asked again.
bool Initiator::may_follow_up(const OwnExchange& own, const ConcludeTask::Result& result) const {
  return !result.wide.empty() && own.follow_up < last_follow_up && data_.neighbours.is_linked(own.partner) &&
         (data_.runs() || data_.leaving) && !data_.fragments[own.request.fragment].waiting.publication;
}

void Initiator::concluded(std::uint32_t f, ConcludeTask::Result&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  const OwnExchange own = *std::move(fragment.own);
  fragment.last_exchange.at_us = now_us;
  fragment.last_exchange.with = own.partner;
  if (result.commit) {
    fragment.buffers.finish_commit();
    std::ranges::find(fragment.own_halves, own.request.counter, &OwnHalf::counter)->commits =
        fragment.buffers.parts().commits;
    out.store.push_back({.fragment = f});
  }
  learn_from(own, result, now_us);
  data_.neighbours.note_held(own.partner, std::min(now_us - own.begun_us, data_.options.lifetime_us));
  fragment.last_exchange.role = LastExchange::Role::initiator;
  fragment.wide_at.reset();
  const double due_at = std::exchange(fragment.turn.due_at, std::nullopt).value_or(data_.pace.passed(own.begun_us));
  end_own(fragment, data_.pace.rest_periods(due_at, data_.jitter(), now_us), now_us);
  if (!result.accepted) data_.book.give_up(own.request.counter);
  out.send.push_back(
      {own.partner, ExchangeAck{own.request.counter, result.accepted ? Outcome::taken : Outcome::never}});
  if (!may_follow_up(own, result)) {
    const bool whole = result.accepted && result.wide.empty() && !result.measure.limited;
    if (data_.leaving && own.hands_over && whole) fragment.handover.exchanged(own.partner, result.shift);
    return;
  }
  const bool last = own.follow_up + 1 == last_follow_up;
  start(f, own.partner, own.follow_up + 1, last ? Codec::f32 : own.request.codec, std::move(result.wide),
        last ? std::vector<std::int8_t>{} : std::move(result.wide_exponents), now_us, out);
  // If the client has published since, the follow-up sends the newer values in the wide blocks only. So the clock is
  // that of the first part.
  fragment.own->publication_clock = result.took_all ? own.publication_clock : std::nullopt;
  fragment.own->hands_over = own.hands_over && !result.measure.limited;
  fragment.turn.due_at = due_at;  // both count as one exchange for the period
}

void Initiator::end_own(Fragment& fragment, double rest_periods, TimeUs now_us) {
  // If the neighbour died and came back meanwhile, its count began anew.
  Neighbour* const neighbour = data_.neighbours.find(fragment.own->partner);
  if (neighbour != nullptr && neighbour->own_count > 0) {
    --neighbour->own_count;
    // One exchange that takes long by chance counts with a part of its time only.
    const TimeUs held_us = std::min(now_us - fragment.own->begun_us, neighbour->held.usual_us());
    neighbour->held.end(fragment.own->rest_us, rest_us(held_us));
  }
  fragment.own.reset();
  fragment.push.abandon();
  fragment.budget.end_own();
  data_.pace.rest(fragment.turn, rest_periods, now_us);
  if (data_.leaving) data_.pace.start_by(fragment.turn, now_us + last_exchange_wait_us);
  if (data_.hurries(fragment)) {
    const auto wait_us = static_cast<TimeUs>(static_cast<double>(finish_wait_us) * data_.random.uniform());
    data_.pace.start_by(fragment.turn, now_us + wait_us);
  }
  --own_count_;
}

void Initiator::give_up_own(Fragment& fragment, double rest_periods, TimeUs now_us) {
  data_.book.give_up(fragment.own->request.counter);
  end_own(fragment, rest_periods, now_us);
}

/// Stores that the exchange has begun: a daemon that takes over must know that it may be answered.
void Initiator::note_begun(std::uint32_t f, std::uint64_t counter, Actions& out) {
  *std::ranges::min_element(data_.fragments[f].own_halves, {}, &OwnHalf::counter) = {.counter = counter};
  out.store.push_back({.fragment = f});
}

// --- what may be lost ---------------------------------------------------------------------------------------------

void Initiator::remember(std::uint32_t f, const OwnHalves& halves) {
  Fragment& fragment = data_.fragments[f];
  fragment.own_halves = halves;
  for (const OwnHalf& half : halves) {
    if (half.counter == 0) continue;
    if (half.taken(fragment.buffers.parts().commits)) {
      fragment.push.lose();
    } else {  // it was under way when the earlier daemon died, or was turned down
      data_.book.give_up(half.counter);
    }
  }
}

void Initiator::inquired(const NodeId& from, const ExchangeInquiry& inquiry, Actions& out) const {
  if (inquiry.job != data_.description.job) return;
  const bool known = inquiry.fragment < data_.fragments.count();
  const auto* const own =
      known && data_.fragments[inquiry.fragment].own ? &*data_.fragments[inquiry.fragment].own : nullptr;
  if (own != nullptr && own->request.counter == inquiry.counter) return;
  out.send.push_back(
      {from, ExchangeAck{inquiry.counter, known ? data_.book.outcome_of(inquiry.counter) : Outcome::unknown}});
}

void Initiator::send_failed(const NodeId& to, const ExchangeRequest& request, TimeUs now_us) {
  OwnExchange* const own = own_of(to, request.fragment, request.counter);
  if (own == nullptr) return;
  if (own->sent != OwnExchange::Sent::once) {  // the first copy may have been answered: only the partner can end it
    own->sent = OwnExchange::Sent::to_be_again;
    return;
  }
  Fragment& fragment = data_.fragments[request.fragment];
  fragment.freshness = Fragment::Freshness::fresh;
  end_own(fragment, data_.jitter() / busy_wait_divisor, now_us);
}

/// Messages that were under way when the link broke may be lost, so they are sent again. Each end recognises a repeat.
void Initiator::link_up(const NodeId& node, Actions& out) {
  for (Fragment& fragment : data_.fragments) {
    if (!fragment.unanswered() || fragment.own->partner != node) continue;
    fragment.own->sent = OwnExchange::Sent::repeated;
    out.send.push_back({node, fragment.own->request});
  }
}

void Initiator::node_dead(const NodeId& node, TimeUs now_us) {
  for (Fragment& fragment : data_.fragments) {
    if (!fragment.own || fragment.own->partner != node) continue;
    if (fragment.unanswered()) {  // otherwise its answer may be here, and only wait for the fragment
      give_up_own(fragment, 0, now_us);
    } else if (fragment.own->stage == OwnExchange::Stage::encoding) {
      fragment.own->stage = OwnExchange::Stage::abandoned;
    }
  }
}

void Initiator::expire(TimeUs now_us) {
  for (Fragment& fragment : data_.fragments) {
    if (!fragment.unanswered() || now_us - fragment.own->begun_us < data_.options.lifetime_us) continue;
    data_.neighbours.note_unanswered(fragment.own->partner, data_.options.lifetime_us, now_us);
    give_up_own(fragment, 0, now_us);
  }
}

/// No repeat is sent in the second half of an exchange's lifetime: an answer that came after the lifetime would be
/// committed at one end only.
void Initiator::repeat_unanswered(TimeUs now_us, Actions& out) {
  const ReplicaOptions& options = data_.options;
  for (Fragment& fragment : data_.fragments) {
    if (!fragment.unanswered()) continue;
    OwnExchange& own = *fragment.own;
    if (own.sent == OwnExchange::Sent::to_be_again || !data_.neighbours.is_linked(own.partner)) continue;
    if (now_us - own.begun_us > options.lifetime_us / 2) continue;
    if (now_us - own.sent_us < data_.neighbours.patience_us(own.partner, options.info_period_us, options.lifetime_us))
      continue;
    if (own.sent == OwnExchange::Sent::once) data_.neighbours.note_overdue(own.partner, now_us);
    own.sent = OwnExchange::Sent::repeated;
    ++data_.counters.repeats_sent;
    send_request(own, now_us, out);
  }
}

void Initiator::send_again(Actions& out) {
  for (const auto& [to, ack] : data_.book.take_unsent()) {
    if (data_.neighbours.is_linked(to)) out.send.push_back({to, ack});  // otherwise the reply is repeated on a new link
  }
  for (Fragment& fragment : data_.fragments) {
    // A request that was answered is not repeated: a partner that has lost its memory would answer it again.
    if (!fragment.unanswered() || fragment.own->sent != OwnExchange::Sent::to_be_again) continue;
    if (!data_.neighbours.is_linked(fragment.own->partner)) continue;
    fragment.own->sent = OwnExchange::Sent::repeated;
    out.send.push_back({fragment.own->partner, fragment.own->request});
  }
}

}  // namespace gossamer::gossip
