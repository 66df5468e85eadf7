#include "gossip/replica/replica_data.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gossip/owner.hpp"
#include "gossip/smoothed.hpp"

namespace gossamer::gossip {

namespace {

constexpr TimeUs turn_periods = 32;  // an exchange counts as a partner's turn for this many periods
constexpr double most_parts = 1.5;   // what a partner may have of a fragment's exchanges, in even parts
constexpr double growth_max = 64;    // limit on the expected disagreement's growth, for a node that was silent for long
constexpr float only_factor_most = 4;                // of the link with the only partner
constexpr double quiet_tolerance = 1e-5;             // share of the norm; rounding leaves a twentieth of this
constexpr std::uint64_t tracer_seed = 0x7261636572;  // independent of the replica's other random numbers

}  // namespace

bool agrees(const ExchangeMeasure& measure) {
  return measure.wide_blocks == 0 && relative_distance(measure) < quiet_tolerance;
}

ReplicaData::ReplicaData(const ReplicaOptions& with, const NodeId& node, JobInfo job,
                         std::vector<FragmentBuffers> buffers, ExchangeCounter& counter, Random chance)
    : options(with),
      self(node),
      description(std::move(job)),
      fragments(std::move(buffers), with.mixing_budget),
      neighbours(node, description.job),
      pace(with, fragments.count()),
      book(counter, with.lifetime_us),
      random(chance),
      tracer(Random(chance.next() ^ tracer_seed)) {}

bool ReplicaData::settled(const Fragment& fragment) const {
  const std::size_t partners = finish ? finish->partners : 0;
  if (!has_servers() || partners == 0) return fragment.agreement.settled(partners);
  // All replicas must end with the server's value, so only agreement with the server counts.
  if (const auto server = server_of(fragment)) return fragment.agreement.has(*server);
  if (!description.keeps) return fragment.agreement.settled(partners);
  return std::ranges::all_of(neighbours, [&](const auto& item) {
    const auto& [node, neighbour] = item;
    return !neighbours.finishes(neighbour) || neighbour.info.finishing == Finishing::over ||
           fragment.agreement.has(node);
  });
}

bool ReplicaData::hurries(const Fragment& fragment) const {
  if (!finish || !finish->is_sound() || settled(fragment)) return false;
  const auto server = server_of(fragment);
  return !server || neighbours.finishes(*neighbours.find(*server));  // the server does not finish while somebody trains
}

std::size_t ReplicaData::sent_bytes(const Fragment& fragment) const {
  return fragment.buffers.block_count() * codec_block_bytes(options.adapt_codec ? Codec::q8 : options.codec);
}

void ReplicaData::spend(const NodeId& to, std::size_t bytes, TimeUs now_us, ByteBudget::Spent on) {
  counters.payload_bytes_sent += bytes;
  pace.spend(bytes, now_us, on);
  if (Neighbour* neighbour = neighbours.find(to)) neighbour->budget.spend(bytes, now_us, on);
}

Age ReplicaData::age_of(const Fragment& fragment) const {
  return {.samples = clock - std::min(clock, fragment.publication_clock),
          .cadence = static_cast<std::uint64_t>(std::llround(fragment.cadence))};
}

NodeId ReplicaData::owner(std::uint32_t f) const {
  const std::vector<NodeId> owners = neighbours.owners(description.keeps);
  return owners.empty() ? self : owner_of(f, owners);
}

std::optional<NodeId> ReplicaData::server_of(const Fragment& fragment) const {
  if (!has_servers()) return std::nullopt;
  const NodeId node = owner(fragments.index_of(fragment));
  const Neighbour* const known = neighbours.find(node);
  return known != nullptr && known->info.keeps && !known->over_before ? std::optional(node) : std::nullopt;
}

bool ReplicaData::is_over_share(const Fragment& fragment, const NodeId& partner, TimeUs now_us) const {
  const Sponsor sponsor = neighbours.sponsor_of(partner);
  if ((sponsor == no_sponsor && !density.is_dense()) || finish || leaving) return false;
  // Old turns do not count, since the other partners may hardly exchange. Where dense_clip applies, an attacker could
  // make the others slow, so old turns count as long as the fragment is exchanged at all.
  const TimeUs late_us = now_us - turn_periods * pace.period_us();
  const bool waits = density.is_dense() && fragment.last_exchange.at_us > late_us;
  const std::size_t had = fragment.turns.had(voice_of(partner, sponsor), waits ? TimeUs{-1} : late_us);
  if (had == 0) return false;  // this saves most searches through the neighbours
  if (is_only_partner(fragments.index_of(fragment), partner)) return false;
  const Neighbours::Voices voices = neighbours.voices(sponsor, has_servers(), late_us);
  const auto is_its_part = [had](std::size_t of, double times) {
    return of >= witnesses_least && VoiceTurns::is_its_part(had, of, times);
  };
  if (sponsor != no_sponsor && voices.nodes > 1) return is_its_part(voices.all, 1);
  // If nobody has wanted the fragment for a period, nobody's turn is taken. Partners that are away need no turns.
  const bool idle = fragment.last_exchange.at_us <= now_us - pace.period_us();
  return density.is_dense() && !idle && is_its_part(voices.active, most_parts);
}

Witness ReplicaData::witness_for(std::uint32_t f, const NodeId& partner) const {
  Witness witness = fragments[f].distances.witness(partner, neighbours.sponsor_of(partner));
  // Other partners will be met, so a single first partner is not believed.
  if (neighbours.partners() >= witnesses_least) witness.alone = false;
  if (is_only_partner(f, partner)) witness.alone = true;  // nobody else can confirm its values
  return witness;
}

bool ReplicaData::is_only_partner(std::uint32_t f, const NodeId& partner) const {
  return options.partners.policy == PartnerPolicy::owner && owner(f) == partner;
}

float ReplicaData::clip() const {
  return density.is_dense() ? std::min(options.clip, options.dense_clip) : options.clip;
}

double ReplicaData::least_usual_distance(const Fragment& fragment) const {
  return has_loose_clip() ? loose_threshold * fragment.norm / clip() : 0;
}

double ReplicaData::usual_distance(const Fragment& fragment) const {
  const auto median = fragment.distances.median();
  if (!median) return 0;
  if (has_loose_clip()) return std::max<double>(*median, least_usual_distance(fragment));
  return std::min(*median, fragment.distances.told_median().value_or(*median));
}

Clip ReplicaData::clip_for(const Fragment& fragment, const NodeId& partner) const {
  if (!(clip() > 0)) return {};
  const double usual = usual_distance(fragment);
  // Among so few partners nobody can tell which one is far off.
  if (has_loose_clip() && usual == 0 && neighbours.partners() < witnesses_least) return {};
  const Neighbour* neighbour = neighbours.find(partner);
  const int extra = neighbour == nullptr ? 0 : neighbour->clips.extra_shift(tells_wild());
  const float multiple = std::ldexp(clip(), -extra);
  const auto times = [multiple](double distance) {
    return static_cast<float>(std::min<double>(multiple * distance, std::numeric_limits<float>::max()));
  };
  return {.threshold = times(usual), .multiple = multiple, .least = times(least_usual_distance(fragment))};
}

float ReplicaData::factor_for(const Fragment& fragment, const NodeId& partner) const {
  double growth = 1;
  if (fragment.exchange_interval > 0) {
    const auto since = static_cast<double>(clock - std::min(clock, fragment.last_exchange.clock));
    growth = std::clamp(since / fragment.exchange_interval, 1.0, growth_max);
  }
  const Neighbour* neighbour = neighbours.find(partner);
  float link = neighbour == nullptr ? 1.0F : neighbour->factor.value();
  // With one partner, the factor and the blocks' estimates tell the same. Left alone, one grows as the other shrinks.
  if (is_only_partner(fragments.index_of(fragment), partner))
    link = std::clamp(link, 1 / only_factor_most, only_factor_most);
  return link * static_cast<float>(growth);
}

void ReplicaData::learn(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, int shift,
                        bool counts) {
  Neighbour* const neighbour = neighbours.find(partner);
  const bool gave = only_gives(neighbour);
  if (neighbour != nullptr && measure.blocks > 0) {
    const double usual = clip() * usual_distance(fragment);
    // A limited reply may be scaled down, so its distance says at least so much. Otherwise a wild partner would look
    // near.
    if (usual > 0 && measure.blocks > measure.wide_blocks && !(measure.limited && measure.distance < usual)) {
      neighbour->clips.observe(measure.distance / usual, tells_wild());
      if (measure.distance > usual) ++counters.clipped;
    }
    neighbour->factor.observe(measure.ratio, static_cast<float>(measure.wide_blocks - measure.coarse_blocks) /
                                                 static_cast<float>(measure.blocks));
  }
  if (measure.telling && measure.blocks == fragment.buffers.block_count()) {
    // A node that only follows may be far from here because it has followed others, so its distance tells nothing.
    if (!gave) fragment.distances.observe(partner, measure.distance, neighbours.sponsor_of(partner));
    fragment.norm = values_norm(measure);
    const bool wild = neighbour != nullptr && tells_wild() && neighbour->clips.is_wild();
    const double relative = relative_distance(measure);
    if (!gave && !wild) fragment.disagreement = smoothed(fragment.disagreement, measure.mean_abs);
    if (!gave && !wild && std::isfinite(relative))
      fragment.relative_distance = smoothed(fragment.relative_distance.value_or(0), relative);
    if (neighbour != nullptr && std::isfinite(relative))
      neighbour->relative_distance = smoothed(neighbour->relative_distance, relative);
  }
  if (!counts) return;
  if (neighbour != nullptr) {
    // This node exchanges with the owner whatever the owner's sponsor has had, so these turns are no part of the
    // sponsor's.
    const Sponsor sponsor = is_only_partner(fragments.index_of(fragment), partner) ? no_sponsor : neighbour->sponsor;
    fragment.turns.note(voice_of(partner, sponsor), fragment.last_exchange.at_us);
    ++neighbour->exchanges;
    neighbour->blocks += measure.blocks;
    neighbour->wide_blocks += measure.wide_blocks;
    neighbour->exchanged_us = fragment.last_exchange.at_us;
  }
  if (!gave) ++fragment.last_outer.exchanges;
  counters.blocks += measure.blocks;
  counters.wide_blocks += measure.wide_blocks;
  counters.shift_sum += shift;
  counters.mean_abs_sum += measure.mean_abs;
  counters.codec_error_sum += measure.codec_error;
  counters.ages.add(age_of(fragment));
  const auto interval = static_cast<double>(clock - std::min(clock, fragment.last_exchange.clock));
  fragment.exchange_interval = smoothed(fragment.exchange_interval, interval);
  fragment.last_exchange.clock = clock;
}

void ReplicaData::note_agreement(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure,
                                 bool counts) {
  const Neighbour* const neighbour = neighbours.find(partner);
  if (!finish || only_gives(neighbour)) return;
  const bool whole = !measure.limited && measure.wide_blocks == 0 && measure.blocks == fragment.buffers.block_count();
  // Coarse steps hide most differences and show the rest too large, so the distance does not count as measured.
  const double norm = values_norm(measure);
  const bool measured = whole && (norm == 0 || measure.coarsest_step <= finish_tolerance * norm);
  fragment.agreement.observe(
      partner, measured ? relative_distance(measure) : std::numeric_limits<double>::infinity(),
      counts && neighbour != nullptr && neighbour->info.finishing != Finishing::no && !neighbour->over_before);
}

void ReplicaData::count_unresolved(const NodeId& initiator) {
  ++counters.unresolved;
  if (Neighbour* neighbour = neighbours.find(initiator)) ++neighbour->unresolved;
}

void ReplicaData::quarantine(Fragment& fragment) {
  if (!fragment.is_quarantined()) ++counters.quarantines;
  fragment.health = Fragment::Health::quarantined;
}

}  // namespace gossamer::gossip
