
#include "gossip/replica/tracer.hpp"

#include <algorithm>
#include <cmath>
#include <ranges>

namespace gossamer::gossip {
namespace {

/// A mean square below this is rounding: the values differ by 1e-14 of their initial size.
constexpr double equal_square = 1e-28;
/// Two replicas that meet twice in a row are equal, others may not be. This many equal meetings are not by chance.
constexpr std::uint32_t equal_enough = 8;
/// A round lasts at least this many exchanges. The usual partners may be equal while others, met rarely, are not.
constexpr std::uint32_t least_round_exchanges = 256;
/// The round number grows by a random step up to this, so that separate parts of a cluster keep different rounds.
constexpr std::uint64_t most_round_step = 4096;
/// The weight of the rounds before the last.
constexpr double remembered = 0.5;
constexpr std::size_t max_points = 512;
constexpr std::size_t least_points = 8;
/// A fit needs this much: factors of e in the mean square, or exchanges. A round shows only the fast modes if others
/// ended it soon, or if some began it equal, as replicas that have just joined do.
constexpr double least_decline = 20;
constexpr std::uint32_t least_exchanges = 1024;
constexpr TimeUs stale_us = 30 * us_per_s;
constexpr double stale_intervals = 20;

/// Round numbers wrap (RFC 1982).
bool is_newer(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) > 0;
}

double mean_interval_us(TimeUs first_us, TimeUs last_us, std::uint32_t exchanges) {
  return exchanges < 2 ? 0 : static_cast<double>(last_us - first_us) / (exchanges - 1);
}

}  // namespace

double MixingEstimate::spectral_gap() const {
  return -std::expm1(-per_exchange);
}

void Tracer::draw(std::uint32_t round) {
  TracerValues drawn{.round = round == 0 ? 1 : round};
  for (double& value : drawn.values)
    value = 2 * random_.uniform() - 1;
  enter(drawn);
}

void Tracer::enter(const TracerValues& values) {
  own_ = values;
  seen_ = {};
  rounds_.push_back(values.round);
  if (rounds_.size() > max_tracer_rounds) rounds_.pop_front();
}

bool Tracer::follow(const TracerValues& theirs) {
  if (!own_) {
    enter(theirs);
  } else if (is_newer(theirs.round, own_->round)) {
    end_round();
    draw(theirs.round);
  }
  return theirs.round == own_->round;
}

TracerValues Tracer::answer(const std::optional<TracerValues>& asked, int shift, TimeUs now_us) {
  const bool together = asked && follow(*asked);
  if (!own_) draw(1);
  const TracerValues said = *own_;
  if (together) mix(said, *asked, shift, now_us);
  return said;
}

void Tracer::conclude(const std::optional<TracerValues>& sent, const std::optional<TracerValues>& replied, int shift,
                      TimeUs now_us) {
  if (!replied) return;
  // The responder has moved by the values that were sent. Values drawn since then have no part in it.
  const bool same = sent && own_ && sent->round == own_->round && sent->round == replied->round;
  if (!follow(*replied)) return;
  if (same) mix(*sent, *replied, shift, now_us);
}

void Tracer::mix(const TracerValues& from, const TracerValues& to, int shift, TimeUs now_us) {
  double square = 0;
  for (std::size_t i = 0; i < tracer_values; ++i) {
    const double difference = to.values[i] - from.values[i];
    const double moved = own_->values[i] + std::ldexp(difference, -shift);
    own_->values[i] = std::clamp(moved, -max_tracer_value, max_tracer_value);
    square += difference * difference;
  }
  observe(square / static_cast<double>(tracer_values), now_us);
}

void Tracer::observe(double square, TimeUs now_us) {
  if (++seen_.exchanges == 1) seen_.first_us = now_us;
  seen_.last_us = now_us;
  if (square < equal_square) {
    if (++seen_.equal_in_a_row == 1) seen_.equal_since = seen_.exchanges;
  } else {
    seen_.equal_in_a_row = 0;
    if (seen_.exchanges % seen_.stride == 0) seen_.points.push_back({seen_.exchanges, std::log(square)});
    if (seen_.points.size() >= max_points) {
      seen_.stride *= 2;
      std::erase_if(seen_.points, [&](const Point& point) { return point.exchange % seen_.stride != 0; });
    }
  }
  // At least half of the round's exchanges must have found equal values in a row, because nodes behind a slow part of
  // the network become equal later.
  const std::uint32_t enough = std::max(equal_enough, seen_.exchanges / 2);
  const bool equal = seen_.equal_in_a_row >= enough && seen_.exchanges >= least_round_exchanges;
  if (!equal && seen_.exchanges < most_tracer_exchanges) return;
  end_round();
  draw(own_->round + 1 + static_cast<std::uint32_t>(random_.below(most_round_step)));
}

void Tracer::end_round() {
  const auto fitted = fit(seen_);
  if (!fitted) return;
  // Rounds are weighted by their exchanges: a round that others ended soon says less.
  past_.last_exchanges = seen_.exchanges;
  past_.exchanges = remembered * past_.exchanges + seen_.exchanges;
  past_.decline = remembered * past_.decline + fitted->per_exchange * seen_.exchanges;
  past_.s = remembered * past_.s + static_cast<double>(seen_.last_us - seen_.first_us) / us_per_s;
}

std::optional<MixingEstimate> Tracer::fit(const Seen& seen) {
  const double interval_us = mean_interval_us(seen.first_us, seen.last_us, seen.exchanges);
  if (interval_us <= 0) return std::nullopt;
  const auto estimate = [&](double slope) {
    const double per_exchange = std::max(0.0, -slope / 2);
    return MixingEstimate{.per_exchange = per_exchange, .per_s = per_exchange / interval_us * us_per_s};
  };
  if (seen.points.empty()) return std::nullopt;
  // The first third is left out: faster modes are still there. The fit uses the largest square still to come: two
  // replicas that are closer for the moment are no nearer to the others.
  double count = 0;
  double mean_x = 0;
  double mean_y = 0;
  std::vector<Point> points;
  double largest = seen.points.back().log_square;
  for (const Point& point : std::views::reverse(seen.points)) {
    if (point.exchange <= seen.points.back().exchange / 3) break;
    largest = std::max(largest, point.log_square);
    points.push_back({point.exchange, largest});
  }
  for (const Point& point : points) {
    ++count;
    mean_x += (point.exchange - mean_x) / count;
    mean_y += (point.log_square - mean_y) / count;
  }
  if (count < static_cast<double>(least_points)) {
    // The values were equal after a handful of exchanges: mixing is as fast as can be measured.
    if (seen.equal_in_a_row < equal_enough) return std::nullopt;
    const Point& first = seen.points.front();
    if (seen.equal_since <= first.exchange) return std::nullopt;
    return estimate((std::log(equal_square) - first.log_square) / (seen.equal_since - first.exchange));
  }
  double covariance = 0;
  double variance = 0;
  for (const Point& point : points) {
    covariance += (point.exchange - mean_x) * (point.log_square - mean_y);
    variance += (point.exchange - mean_x) * (point.exchange - mean_x);
  }
  if (variance == 0) return std::nullopt;
  const auto fitted = estimate(covariance / variance);
  const bool firm = seen.exchanges >= least_exchanges || 2 * fitted.per_exchange * seen.exchanges >= least_decline;
  return firm ? std::optional(fitted) : std::nullopt;
}

std::optional<MixingEstimate> Tracer::estimate(TimeUs now_us) const {
  const auto since_us = static_cast<double>(now_us - seen_.last_us);
  const double interval_us = mean_interval_us(seen_.first_us, seen_.last_us, seen_.exchanges);
  if (seen_.exchanges > 0 && since_us > stale_us && since_us > stale_intervals * interval_us) return std::nullopt;
  // A round that takes long shows that mixing has become slower, before it is over.
  if (seen_.exchanges > 2 * past_.last_exchanges) {
    if (const auto present = fit(seen_)) return present;
  }
  if (past_.last_exchanges == 0) return std::nullopt;
  return MixingEstimate{.per_exchange = past_.decline / past_.exchanges, .per_s = past_.decline / past_.s};
}

}  // namespace gossamer::gossip
