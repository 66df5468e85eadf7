// The tracer's estimate against what is known: the eigenvalues of the expected mixing matrix for pairs met by chance,
// and the decay that somebody sees who looks at all replicas at once.

#include "gossip/replica/tracer.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <utility>

#include "catch.hpp"
#include "gossip/replica/partners.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr TimeUs turn_us = 1000;

/// Tracers that exchange without delay when they are told to.
struct Play {
  explicit Play(std::size_t count, std::uint64_t seed = 1) : random(seed) {
    for (std::size_t i = 0; i < count; ++i)
      tracers.emplace_back(Random(seed * 1000 + i));
  }

  void exchange(std::size_t initiator, std::size_t responder, int shift = 1) {
    now_us += turn_us;
    const auto sent = tracers[initiator].say();
    const auto replied = tracers[responder].answer(sent, shift, now_us);
    tracers[initiator].conclude(sent, replied, shift, now_us);
  }
  /// The mean over all tracers that have an estimate.
  [[nodiscard]] double mean_gap() const {
    double sum = 0;
    int count = 0;
    for (const Tracer& tracer : tracers) {
      const auto estimate = tracer.estimate(now_us);
      if (!estimate) continue;
      sum += estimate->spectral_gap();
      ++count;
    }
    return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / count;
  }

  std::vector<Tracer> tracers;
  Random random;
  TimeUs now_us = 0;
};

using Neighbours = std::function<std::vector<std::size_t>(std::size_t)>;

Neighbours complete(std::size_t n) {
  return [n](std::size_t i) {
    std::vector<std::size_t> all;
    for (std::size_t j = 0; j < n; ++j)
      if (j != i) all.push_back(j);
    return all;
  };
}
/// Neighbours of rank i: the ranks `offsets` away on both sides. This gives the ring, and the circulant graph of the
/// rule `regular`.
Neighbours circulant(std::size_t n, std::vector<std::size_t> offsets) {
  return [n, offsets = std::move(offsets)](std::size_t i) {
    std::vector<std::size_t> all;
    for (const std::size_t offset : offsets) {
      all.push_back((i + offset) % n);
      if (2 * offset != n) all.push_back((i + n - offset) % n);
    }
    return all;
  };
}

/// Exchanges between random nodes and one random neighbour each.
void play_by_chance(Play& play, const Neighbours& neighbours, std::size_t exchanges) {
  for (std::size_t k = 0; k < exchanges; ++k) {
    const std::size_t i = play.random.below(play.tracers.size());
    const auto around = neighbours(i);
    play.exchange(i, around[play.random.below(around.size())]);
  }
}

/// E[z·zᵀ], z being the distance to the mean, after one exchange over an edge by chance:
/// C ← mean over edges of W·C·Wᵀ, where W moves both ends by `weight` of their difference.
std::vector<double> after_exchange(const std::vector<double>& before, std::size_t n, const Neighbours& neighbours,
                                   double weight) {
  std::vector<double> after(n * n);
  double edges = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::size_t j : neighbours(i)) {
      std::vector<double> moved = before;
      for (std::size_t k = 0; k < n; ++k) {
        const double difference = moved[j * n + k] - moved[i * n + k];
        moved[i * n + k] += weight * difference;
        moved[j * n + k] -= weight * difference;
      }
      for (std::size_t k = 0; k < n; ++k) {
        const double difference = moved[k * n + j] - moved[k * n + i];
        moved[k * n + i] += weight * difference;
        moved[k * n + j] -= weight * difference;
      }
      for (std::size_t k = 0; k < n * n; ++k)
        after[k] += moved[k];
      ++edges;
    }
  }
  for (double& value : after)
    value /= edges;
  return after;
}

/// With every exchange of any node, the mean square falls in the end by the largest eigenvalue of E[W ⊗ W] on what sums
/// to zero. It is found by power iteration, and lies between λ2(E[W])² and λ2(E[W]) (Boyd et al. 2006). Each of n nodes
/// takes part in 2/n of the exchanges, and the root mean square falls by the square root.
double known_gap(std::size_t n, const Neighbours& neighbours, double weight = 0.5) {
  std::vector<double> covariance(n * n, -1.0 / static_cast<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    covariance[i * n + i] += 1;
    covariance[i * n + (i + 1) % n] += 0.1;  // so that no mode is zero
    covariance[(i + 1) % n * n + i] += 0.1;
    covariance[i * n + i] -= 0.2;
  }
  double eigenvalue = 0;
  for (int k = 0; k < 1500; ++k) {
    covariance = after_exchange(covariance, n, neighbours, weight);
    const double last = std::exchange(eigenvalue, 0);
    for (std::size_t i = 0; i < n; ++i)
      eigenvalue += covariance[i * n + i] / static_cast<double>(n);
    // Rounding brings back a part that is equal everywhere and does not shrink. It is removed.
    double whole = 0;
    std::vector<double> means(n);
    for (std::size_t i = 0; i < n * n; ++i) {
      means[i % n] += covariance[i] / static_cast<double>(n);
      whole += covariance[i] / static_cast<double>(n * n);
    }
    for (std::size_t i = 0; i < n * n; ++i)
      covariance[i] = (covariance[i] - means[i % n] - means[i / n] + whole) / eigenvalue;
    if (std::abs(eigenvalue - last) < 1e-12) break;
  }
  return -std::expm1(static_cast<double>(n) / 4 * std::log(eigenvalue));
}

std::vector<std::size_t> all_offsets(std::size_t n) {
  std::vector<std::size_t> offsets;
  for (std::size_t offset = 1; offset <= n / 2; ++offset)
    offsets.push_back(offset);
  return offsets;
}

}  // namespace

TEST_CASE("the estimate is the spectral gap of pairs met by chance", "[tracer][figures]") {
  struct Case {
    const char* graph;
    std::size_t n;
    std::vector<std::size_t> offsets;
  };
  const Case cases[] = {
      {"complete, 8", 8, all_offsets(8)},
      {"complete, 32", 32, all_offsets(32)},
      {"ring, 8", 8, {1}},
      {"ring, 16", 16, {1}},
      {"regular, 16, degree 4", 16, circulant_offsets(16, 4)},
      {"regular, 32, degree 6", 32, circulant_offsets(32, 6)},
  };
  for (const Case& one : cases) {
    Play play(one.n);
    play_by_chance(play, circulant(one.n, one.offsets), one.n * 6000);
    const double known = known_gap(one.n, circulant(one.n, one.offsets));
    INFO(one.graph << ": known " << known << ", estimated " << play.mean_gap());
    CHECK(play.mean_gap() == Approx(known).epsilon(0.2));
    for (const Tracer& tracer : play.tracers) {
      REQUIRE(tracer.estimate(play.now_us));
      CHECK(tracer.estimate(play.now_us)->spectral_gap() == Approx(known).epsilon(0.4));
      // A node's own exchange comes with n/2 exchanges of any nodes, which are turn_us apart.
      const auto estimate = *tracer.estimate(play.now_us);
      CHECK(estimate.per_s == Approx(estimate.per_exchange * 2e6 / static_cast<double>(one.n * turn_us)).epsilon(0.2));
    }
  }
}

TEST_CASE("a sparser graph has a smaller estimate, and fewer weight", "[tracer]") {
  const auto gap = [](const std::vector<std::size_t>& offsets, int shift) {
    Play play(16);
    for (std::size_t k = 0; k < 40'000; ++k) {
      const std::size_t i = play.random.below(16);
      const auto around = circulant(16, offsets)(i);
      play.exchange(i, around[play.random.below(around.size())], shift);
    }
    return play.mean_gap();
  };
  const double ring = gap({1}, 1);
  const double regular = gap(circulant_offsets(16, 4), 1);
  const double all = gap(all_offsets(16), 1);
  CHECK(regular > 2 * ring);
  CHECK(all > 1.1 * regular);
  const double light = gap({1}, 3);
  CHECK(light == Approx(known_gap(16, circulant(16, {1}), 0.125)).epsilon(0.2));
  CHECK(light < 0.4 * ring);
}

TEST_CASE("schedules that reach consensus in a few rounds mix as fast as can be told", "[tracer]") {
  const std::size_t n = 16;
  // Hypercube: all pairs of one dimension, then of the next. It is exact after four rounds.
  Play play(n);
  const PartnerRule rule{.policy = PartnerPolicy::hypercube};
  for (std::uint64_t round = 0; round < 600; ++round) {
    for (std::size_t rank = 0; rank < n; ++rank) {
      const auto partner = scheduled_partner(rule, n, rank, round);
      REQUIRE(partner);
      if (rank < partner->rank) play.exchange(rank, partner->rank);
    }
  }
  CHECK(play.mean_gap() > 0.95);
  Play pair(2);
  for (int k = 0; k < 600; ++k)
    pair.exchange(0, 1);
  CHECK(pair.mean_gap() > 0.99);
}

TEST_CASE("the one-peer exponential graph's estimate is what one sees who sees all", "[tracer]") {
  // Each node asks the one 2^k further on, in its own order and time. The paper's rounds are synchronous.
  const std::size_t n = 16;
  const PartnerRule rule{.policy = PartnerPolicy::one_peer_exponential};
  Play play(n);
  std::vector<std::uint64_t> asked(n);
  std::vector<double> values(n);  // mixed in the same way, and drawn again when they are equal
  double decline = 0;
  std::size_t exchanges = 0;
  const auto spread = [&] {
    double mean = 0;
    double square = 0;
    for (const double value : values)
      mean += value / static_cast<double>(n);
    for (const double value : values)
      square += (value - mean) * (value - mean);
    return square;
  };
  double before = 0;
  for (std::size_t k = 0; k < 60'000; ++k) {
    if (k % 600 == 0) {
      if (before > 0) decline += std::log(before / spread());
      for (double& value : values)
        value = play.random.uniform();
      exchanges += 600;
      before = spread();
    }
    const std::size_t i = play.random.below(n);
    const auto partner = scheduled_partner(rule, n, i, asked[i]++);
    REQUIRE(partner);
    play.exchange(i, partner->rank);
    values[i] = values[partner->rank] = (values[i] + values[partner->rank]) / 2;
  }
  exchanges -= 600;  // the end of the last run was not measured
  const double per_exchange = decline / 2 / (2.0 * static_cast<double>(exchanges) / static_cast<double>(n));
  INFO("seen " << -std::expm1(-per_exchange) << ", estimated " << play.mean_gap());
  CHECK(play.mean_gap() == Approx(-std::expm1(-per_exchange)).epsilon(0.15));
}

TEST_CASE("a link that freezes between two halves shows as slower mixing, and its end as rounds that differ",
          "[tracer]") {
  // Two complete halves of 8, joined by the link 0 – 8.
  const auto run = [](double bridge_share, Play& play, std::size_t exchanges) {
    for (std::size_t k = 0; k < exchanges; ++k) {
      if (play.random.uniform() < bridge_share) {
        play.exchange(0, 8);
        continue;
      }
      const std::size_t half = 8 * play.random.below(2);
      const std::size_t i = play.random.below(8);
      play.exchange(half + i, half + (i + 1 + play.random.below(7)) % 8);
    }
  };
  Play open(16);
  run(0.1, open, 40'000);
  Play narrow(16);
  run(0.005, narrow, 40'000);
  CHECK(narrow.mean_gap() < open.mean_gap() / 5);

  // The bridge of the same replicas becomes narrow. The estimate shows it before a round is over.
  const double before = open.mean_gap();
  run(0.005, open, 40'000);
  CHECK(open.mean_gap() < before / 3);

  // Without the bridge, each half mixes well. Different rounds show that there are two halves.
  run(0, open, 40'000);
  CHECK(open.mean_gap() > before);
  CHECK(open.tracers[1].round() == open.tracers[7].round());
  CHECK(open.tracers[9].round() == open.tracers[15].round());
  CHECK(open.tracers[1].round() != open.tracers[9].round());
}

TEST_CASE("one that joins takes its first partner's values over and disturbs nobody", "[tracer]") {
  Play play(9);
  const auto among = [&](std::size_t count, std::size_t exchanges) {
    for (std::size_t k = 0; k < exchanges; ++k) {
      const std::size_t i = play.random.below(count);
      play.exchange(i, (i + 1 + play.random.below(count - 1)) % count);
    }
  };
  among(8, 20'000);
  const std::uint32_t round = play.tracers[3].round();
  CHECK_FALSE(play.tracers[8].say());
  const auto theirs = play.tracers[3].say();
  play.exchange(8, 3);
  CHECK(play.tracers[8].say() == theirs);
  CHECK(play.tracers[3].say() == theirs);
  CHECK(play.tracers[8].round() == round);
  // The same for a responder.
  Tracer other(Random(7));
  const auto said = other.answer(theirs, 1, play.now_us);
  CHECK(said == *theirs);
  CHECK(other.say() == theirs);
}

TEST_CASE("values of an older round are not mixed, a newer one is followed", "[tracer]") {
  Tracer tracer(Random(1));
  const TracerValues newer{.round = 5, .values = {1, 1, 1, 1}};
  (void)tracer.answer(TracerValues{.round = 3, .values = {0.5, 0.5, 0.5, 0.5}}, 1, 0);
  CHECK(tracer.round() == 3);
  (void)tracer.answer(newer, 1, 1);
  CHECK(tracer.round() == 5);
  CHECK(tracer.say() != newer);  // new numbers were drawn, and moved half of the way
  const auto own = tracer.say();
  (void)tracer.answer(TracerValues{.round = 4, .values = {}}, 1, 2);
  CHECK(tracer.say() == own);
  // Numbers sent in another round are not committed.
  tracer.conclude(TracerValues{.round = 4, .values = {}}, newer, 1, 3);
  CHECK(tracer.say() == own);
  // An older node answers without numbers, so nothing is committed.
  tracer.conclude(own, std::nullopt, 1, 4);
  CHECK(tracer.say() == own);
  // Rounds wrap around, and no round is 0.
  Tracer last(Random(2));
  (void)last.answer(TracerValues{.round = 0xffffffff, .values = {}}, 1, 0);
  (void)last.answer(TracerValues{.round = 2, .values = {1, 0, 0, 0}}, 1, 1);
  CHECK(last.round() == 2);
}

TEST_CASE("a member that makes its values up does not harm but the estimate", "[tracer]") {
  Play play(8);
  Random random(3);
  for (int k = 0; k < 20'000; ++k) {
    const std::size_t i = random.below(8);
    play.exchange(i, (i + 1 + random.below(7)) % 8);
    if (k % 8 == 0)
      (void)play.tracers[random.below(8)].answer(
          TracerValues{.round = static_cast<std::uint32_t>(1 + random.below(0xffffffff)),
                       .values = {max_tracer_value, -max_tracer_value, 0, 1e-300}},
          1, play.now_us);
  }
  for (const Tracer& tracer : play.tracers) {
    for (const double value : tracer.say()->values)
      CHECK(std::abs(value) <= max_tracer_value);
    if (const auto estimate = tracer.estimate(play.now_us)) {
      CHECK(std::isfinite(estimate->per_exchange));
      CHECK(estimate->per_exchange >= 0);
    }
  }
}

TEST_CASE("without exchanges there is no estimate after a while", "[tracer]") {
  Play play(8);
  CHECK_FALSE(play.tracers[0].estimate(0));
  play_by_chance(play, complete(8), 10'000);
  CHECK(play.tracers[0].estimate(play.now_us));
  CHECK(play.tracers[0].estimate(play.now_us + 29 * us_per_s));
  CHECK_FALSE(play.tracers[0].estimate(play.now_us + 60 * us_per_s));
}
