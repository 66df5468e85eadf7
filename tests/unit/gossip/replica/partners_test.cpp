// Partner policies: every round is a doubly stochastic matrix, the finite-time schedules reach consensus when they say
// they do, random exchanges contract as the graph's spectral gap allows, and nobody is left out for good.

#include "gossip/replica/partners.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

using Matrix = std::vector<double>;  // n × n, row by row

constexpr PartnerPolicy all_policies[] = {
    PartnerPolicy::random,  PartnerPolicy::ring,    PartnerPolicy::torus, PartnerPolicy::hypercube,
    PartnerPolicy::base,    PartnerPolicy::regular, PartnerPolicy::hub,   PartnerPolicy::one_peer_exponential,
    PartnerPolicy::weighted};
constexpr PartnerPolicy scheduled[] = {PartnerPolicy::ring, PartnerPolicy::torus, PartnerPolicy::hypercube,
                                       PartnerPolicy::base, PartnerPolicy::one_peer_exponential};

Matrix identity(std::size_t n) {
  Matrix result(n * n);
  for (std::size_t i = 0; i < n; ++i)
    result[i * n + i] = 1;
  return result;
}
Matrix times(const Matrix& a, const Matrix& b, std::size_t n) {
  Matrix result(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      if (a[i * n + k] == 0) continue;
      for (std::size_t j = 0; j < n; ++j)
        result[i * n + j] += a[i * n + k] * b[k * n + j];
    }
  }
  return result;
}
/// Largest distance of an entry from 1/n: 0 for the matrix that averages everything.
double off_average(const Matrix& matrix, std::size_t n) {
  double worst = 0;
  for (const double entry : matrix)
    worst = std::max(worst, std::fabs(entry - 1.0 / static_cast<double>(n)));
  return worst;
}
Matrix product(const PartnerRule& rule, std::size_t n, std::uint64_t rounds) {
  Matrix result = identity(n);
  for (std::uint64_t round = 0; round < rounds; ++round)
    result = times(schedule(rule, n, round), result, n);
  return result;
}

/// Largest eigenvalue of a symmetric positive semidefinite matrix on the vectors whose entries sum to zero.
double second_eigenvalue(const Matrix& matrix, std::size_t n) {
  Random random(17);
  std::vector<double> vector(n);
  for (double& entry : vector)
    entry = random.uniform() - 0.5;
  double value = 0;
  for (int i = 0; i < 3000; ++i) {
    double mean = 0;
    for (const double entry : vector)
      mean += entry / static_cast<double>(n);
    double norm = 0;
    for (double& entry : vector) {
      entry -= mean;
      norm += entry * entry;
    }
    norm = std::sqrt(norm);
    std::vector<double> image(n);
    value = 0;
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t c = 0; c < n; ++c)
        image[r] += matrix[r * n + c] * vector[c] / norm;
      value += image[r] * vector[r] / norm;
    }
    vector = image;
  }
  return value;
}

NodeId node(std::size_t i) {
  NodeId id;
  id.bytes[0] = static_cast<std::uint8_t>(i >> 8);
  id.bytes[1] = static_cast<std::uint8_t>(i);
  return id;
}
/// The other n - 1 nodes as candidates of `rank`. rank_of() tells a candidate's rank.
std::vector<Candidate> others(std::size_t n, std::size_t rank) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < n; ++i) {
    if (i != rank) candidates.push_back({.id = node(i)});
  }
  return candidates;
}
std::size_t rank_of(std::size_t index, std::size_t rank) {
  return index < rank ? index : index + 1;
}

/// The expected mixing matrix of one choice by every node: I − 1/(2n) Σ P_ij (e_i − e_j)(e_i − e_j)ᵀ.
Matrix expected_mixing(const Matrix& chosen, std::size_t n) {
  Matrix result = identity(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const double half = chosen[i * n + j] / (2 * static_cast<double>(n));
      result[i * n + i] -= half;
      result[j * n + j] -= half;
      result[i * n + j] += half;
      result[j * n + i] += half;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("every round of a schedule is doubly stochastic, and symmetric where it makes pairs", "[partners]") {
  const PartnerRule rule{.policy = GENERATE(from_range(std::begin(scheduled), std::end(scheduled)))};
  for (std::size_t n = 2; n <= 40; ++n) {
    if (objection(rule, n)) continue;
    const std::uint64_t period = schedule_period(rule, n);
    REQUIRE(period > 0);
    for (std::uint64_t round = 0; round < period; ++round) {
      const Matrix matrix = schedule(rule, n, round);
      CAPTURE(policy_name(rule.policy), n, round);
      REQUIRE(schedule(rule, n, round + period) == matrix);
      std::size_t moves = 0;
      for (std::size_t i = 0; i < n; ++i) {
        double row = 0;
        double column = 0;
        for (std::size_t j = 0; j < n; ++j) {
          REQUIRE(matrix[i * n + j] >= 0);
          row += matrix[i * n + j];
          column += matrix[j * n + i];
          if (rule.policy != PartnerPolicy::one_peer_exponential) REQUIRE(matrix[i * n + j] == matrix[j * n + i]);
          if (i != j && matrix[i * n + j] > 0) ++moves;
        }
        REQUIRE(row == Approx(1));
        REQUIRE(column == Approx(1));
      }
      REQUIRE(moves > 0);
      REQUIRE(moves <= n);  // each node has one partner
    }
  }
}

TEST_CASE("a hypercube agrees after log2 n rounds, and not before", "[partners]") {
  const PartnerRule rule{.policy = PartnerPolicy::hypercube};
  for (std::size_t rounds = 1; rounds <= 6; ++rounds) {
    const std::size_t n = std::size_t{1} << rounds;
    CHECK(schedule_period(rule, n) == rounds);
    CHECK(off_average(product(rule, n, rounds), n) == 0);
    CHECK(off_average(product(rule, n, rounds - 1), n) > 0.4 / static_cast<double>(n));
  }
}

TEST_CASE("the one-peer exponential graph agrees at powers of two only", "[partners]") {
  const PartnerRule rule{.policy = PartnerPolicy::one_peer_exponential};
  for (std::size_t n = 2; n <= 64; ++n) {
    CAPTURE(n);
    const std::uint64_t period = schedule_period(rule, n);
    const double off = off_average(product(rule, n, period), n);
    CHECK((off < 1e-15) == ((n & (n - 1)) == 0));
    CHECK(off_average(product(rule, n, 12 * period), n) < 1e-3);  // for other n it comes near
  }
}

TEST_CASE("the base schedule agrees within 2 log2(n) + 2 rounds for any n", "[partners]") {
  const PartnerRule rule{.policy = PartnerPolicy::base};
  for (std::size_t n = 2; n <= 99; ++n) {
    CAPTURE(n);
    const std::uint64_t period = schedule_period(rule, n);
    CHECK(static_cast<double>(period) <= 2 * std::log2(static_cast<double>(n)) + 2);
    CHECK(off_average(product(rule, n, period), n) < 1e-14);
    // Negative control: with weights of a half, as for hypercubes, it would not agree.
    if ((n & (n - 1)) == 0) continue;
    Matrix halves = identity(n);
    for (std::uint64_t round = 0; round < period; ++round) {
      Matrix matrix = identity(n);
      for (std::size_t rank = 0; rank < n; ++rank) {
        const auto partner = scheduled_partner(rule, n, rank, round);
        if (!partner) continue;
        matrix[rank * n + rank] = matrix[rank * n + partner->rank] = 0.5;
      }
      halves = times(matrix, halves, n);
    }
    CHECK(off_average(halves, n) > 1e-4);
  }
}

TEST_CASE("the base schedule of five, by hand", "[partners]") {
  // The groups are {0, 1, 2, 3} and {4}. Two rounds make the first group a hypercube, then 0 meets 4, then two rounds
  // again.
  const auto pair = [](std::size_t rank, std::uint64_t round) { return base_pair(5, rank, round); };
  CHECK(schedule_period({.policy = PartnerPolicy::base}, 5) == 5);
  CHECK(pair(0, 0) == ScheduledPartner{.rank = 1});
  CHECK(pair(3, 1) == ScheduledPartner{.rank = 1});
  CHECK_FALSE(pair(4, 0).has_value());
  CHECK(pair(0, 2) == ScheduledPartner{.rank = 4, .weight = 0.8});
  CHECK(pair(4, 2) == ScheduledPartner{.rank = 0, .weight = 0.8});
  CHECK_FALSE(pair(1, 2).has_value());
  CHECK(pair(1, 3) == ScheduledPartner{.rank = 0});
  CHECK(pair(1, 4) == ScheduledPartner{.rank = 3});
  CHECK_FALSE(pair(4, 4).has_value());
}

TEST_CASE("nodes that keep step choose each other", "[partners]") {
  const PartnerRule rule{.policy = GENERATE(from_range(std::begin(scheduled), std::end(scheduled)))};
  Random random(3);
  for (const std::size_t n : {2, 3, 4, 6, 8, 9, 15, 16}) {
    if (objection(rule, n)) continue;
    for (std::uint64_t round = 0; round < schedule_period(rule, n); ++round) {
      for (std::size_t rank = 0; rank < n; ++rank) {
        const auto candidates = others(n, rank);
        const auto chosen = choose_partner(rule, node(rank), candidates, round, random);
        REQUIRE(chosen.has_value());
        const auto partner = scheduled_partner(rule, n, rank, round);
        if (partner) REQUIRE(rank_of(*chosen, rank) == partner->rank);
      }
    }
  }
}

TEST_CASE("an odd ring's spare node still asks a neighbour", "[partners]") {
  Random random(5);
  constexpr std::size_t n = 7;
  for (std::uint64_t round = 0; round < n; ++round) {
    for (std::size_t rank = 0; rank < n; ++rank) {
      const auto chosen = choose_partner({.policy = PartnerPolicy::ring}, node(rank), others(n, rank), round, random);
      REQUIRE(chosen.has_value());
      const std::size_t apart = (rank_of(*chosen, rank) + n - rank) % n;
      CHECK((apart == 1 || apart == n - 1));
    }
  }
}

TEST_CASE("whoever is out of reach is never chosen, and counts in the ranks", "[partners]") {
  const PartnerPolicy policy = GENERATE(from_range(std::begin(all_policies), std::end(all_policies)));
  CAPTURE(policy_name(policy));
  Random random(7);
  for (std::uint64_t round = 0; round < 300; ++round) {
    const std::size_t n = 2 + random.below(12);
    const std::size_t rank = random.below(n);
    auto candidates = others(n, rank);
    bool any = false;
    for (Candidate& candidate : candidates) {
      candidate.in_reach = random.below(3) != 0;
      candidate.goodput = random.uniform() * 1e9;
      any = any || candidate.in_reach;
    }
    const auto chosen = choose_partner({.policy = policy}, node(rank), candidates, round, random);
    REQUIRE(chosen.has_value() == any);
    if (chosen) REQUIRE(candidates[*chosen].in_reach);
  }
  CHECK_FALSE(choose_partner({.policy = policy}, node(0), {}, 0, random).has_value());
}

TEST_CASE("a schedule goes on where its partner is out of reach", "[partners]") {
  Random random(9);
  auto candidates = others(8, 0);
  candidates[rank_of(0, 0) - 1].in_reach = false;  // rank 1, which round 0 of the hypercube names
  std::map<std::size_t, int> count;
  for (int i = 0; i < 6000; ++i)
    ++count[*choose_partner({.policy = PartnerPolicy::hypercube}, node(0), candidates, 0, random)];
  CHECK(count.size() == 6);
  for (const auto& [index, times] : count)
    CHECK(times == Approx(1000).margin(150));
}

TEST_CASE("the hub is asked by all and asks anyone", "[partners]") {
  Random random(11);
  std::map<std::size_t, int> count;
  for (int i = 0; i < 3500; ++i) {
    CHECK(choose_partner({.policy = PartnerPolicy::hub}, node(5), others(8, 5), 0, random) == 0U);
    ++count[*choose_partner({.policy = PartnerPolicy::hub}, node(0), others(8, 0), 0, random)];
  }
  CHECK(count.size() == 7);
  for (const auto& [index, times] : count)
    CHECK(times == Approx(500).margin(120));
}

TEST_CASE("regular graphs have the degree asked for, alike at both ends", "[partners]") {
  for (std::size_t n = 3; n <= 33; ++n) {
    for (std::uint32_t degree = 2; degree <= 9; ++degree) {
      const PartnerRule rule{.policy = PartnerPolicy::regular, .degree = degree};
      if (objection(rule, n)) {
        CHECK((degree % 2 == 1 && n % 2 == 1));
        continue;
      }
      CAPTURE(n, degree);
      const auto offsets = circulant_offsets(n, degree);
      std::vector<std::size_t> neighbours;
      for (const std::size_t offset : offsets) {
        REQUIRE(offset >= 1);
        REQUIRE(2 * offset <= n);
        neighbours.push_back(offset);
        if (2 * offset < n) neighbours.push_back(n - offset);
      }
      std::sort(neighbours.begin(), neighbours.end());
      CHECK(std::adjacent_find(neighbours.begin(), neighbours.end()) == neighbours.end());
      CHECK(neighbours.size() == std::min<std::size_t>(degree, n - 1));
      Random random(13);
      std::map<std::size_t, int> chosen;
      for (int i = 0; i < 400; ++i)
        ++chosen[rank_of(*choose_partner(rule, node(2), others(n, 2), 0, random), 2)];
      CHECK(chosen.size() == neighbours.size());
      for (const auto& [rank, times] : chosen)
        CHECK(std::binary_search(neighbours.begin(), neighbours.end(), (rank + n - 2) % n));
    }
  }
}

TEST_CASE("random exchanges contract as the graph's spectral gap allows", "[partners]") {
  // One exchange of weight ½ on a random edge leaves at most 1 − λ2(Laplacian)/(2|E|) of the expected squared distance
  // from the mean. Only the slowest direction reaches the bound.
  struct Row {
    PartnerRule rule;
    std::size_t n;
    std::vector<std::size_t> offsets;
  };
  const std::vector<Row> rows = {{{.policy = PartnerPolicy::random}, 8, {1, 2, 3, 4}},
                                 {{.policy = PartnerPolicy::regular, .degree = 4}, 16, circulant_offsets(16, 4)},
                                 {{.policy = PartnerPolicy::ring}, 9, {1}}};
  for (const Row& row : rows) {
    const std::size_t n = row.n;
    Matrix laplacian(n * n);
    double edges = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (const std::size_t offset : row.offsets) {
        const std::size_t j = (i + offset) % n;
        if (2 * offset == n && j < i) continue;
        laplacian[i * n + i] += 1;
        laplacian[j * n + j] += 1;
        laplacian[i * n + j] -= 1;
        laplacian[j * n + i] -= 1;
        edges += 1;
      }
    }
    Matrix flipped = identity(n);  // 1 − L/(2|E|): its second eigenvalue is the bound
    for (std::size_t i = 0; i < n * n; ++i)
      flipped[i] -= laplacian[i] / (2 * edges);
    const double bound = second_eigenvalue(flipped, n);
    CAPTURE(policy_name(row.rule.policy), bound);
    REQUIRE(bound < 1);
    const int exchanges = static_cast<int>(3 * n);
    // The mean share of the squared distance after one exchange. It meets the bound, because x is the slowest
    // direction.
    double after_one = 0;
    double after_all = 0;  // the same after all exchanges, which mix the directions
    constexpr int seeds = 2000;
    for (int seed = 0; seed < seeds; ++seed) {
      Random random(static_cast<std::uint64_t>(seed) + 1);
      std::vector<double> x(n);
      for (std::size_t i = 0; i < n; ++i)
        x[i] = std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(n));
      const auto square = [&] { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); };  // the mean is 0
      const double before = square();
      for (int i = 0; i < exchanges; ++i) {
        const std::size_t rank = random.below(n);
        const auto index = choose_partner(row.rule, node(rank), others(n, rank), random.next() >> 8, random);
        const std::size_t other = rank_of(*index, rank);
        x[rank] = x[other] = (x[rank] + x[other]) / 2;
        if (i == 0) after_one += square() / before / seeds;
      }
      after_all += square() / before / seeds;
    }
    CHECK(after_all <= 1.1 * std::pow(bound, exchanges));
    CHECK(after_one <= 1.03 * bound);
    if (row.rule.policy != PartnerPolicy::regular) CHECK(after_one == Approx(bound).epsilon(0.03));
  }
}

TEST_CASE("weighted choice follows goodput and leaves nobody out", "[partners]") {
  std::vector<Candidate> candidates = others(5, 0);
  candidates[0].goodput = 9e8;
  candidates[1].goodput = 1e8;
  candidates[2].goodput = 1;
  candidates[3].goodput = 5e8;
  const auto shares = selection_shares(candidates);
  double total = 0;
  for (const double share : shares) {
    CHECK(share >= weighted_floor / 4);
    total += share;
  }
  CHECK(total == Approx(1));
  CHECK(shares[0] == Approx(weighted_floor / 4 + (1 - weighted_floor) * 9e8 / (15e8 + 1)));
  Random random(19);
  std::vector<double> count(4);
  constexpr int draws = 40000;
  for (int i = 0; i < draws; ++i)
    count[*choose_partner({.policy = PartnerPolicy::weighted}, node(0), candidates, 0, random)] += 1;
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(count[i] / draws == Approx(shares[i]).margin(0.01));
  // A candidate without a known goodput counts as the mean of the others. If none is known, the choice is uniform.
  candidates[2].goodput = 0;
  CHECK(selection_shares(candidates)[2] == Approx(0.25));
  for (Candidate& candidate : candidates)
    candidate.goodput = 0;
  for (const double share : selection_shares(candidates))
    CHECK(share == Approx(0.25));
}

TEST_CASE("the floor keeps the expected mixing away from standstill", "[partners]") {
  // Two halves that hardly see each other: a goodput of 1 byte/s across, 10^9 within.
  for (const std::size_t n : {4, 8, 16, 32}) {
    Matrix chosen(n * n);
    Matrix unfloored(n * n);
    for (std::size_t rank = 0; rank < n; ++rank) {
      auto candidates = others(n, rank);
      double total = 0;
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        candidates[i].goodput = (rank < n / 2) == (rank_of(i, rank) < n / 2) ? 1e9 : 1;
        total += candidates[i].goodput;
      }
      const auto shares = selection_shares(candidates);
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        chosen[rank * n + rank_of(i, rank)] = shares[i];
        unfloored[rank * n + rank_of(i, rank)] = candidates[i].goodput / total;
      }
    }
    CAPTURE(n);
    const double bound = 1 - weighted_floor / static_cast<double>(n - 1);
    CHECK(second_eigenvalue(expected_mixing(chosen, n), n) <= bound + 1e-12);
    // Without the floor there are no exchanges between them.
    CHECK(second_eigenvalue(expected_mixing(unfloored, n), n) > 1 - 1e-6);
  }
}

TEST_CASE("what cannot be is said, and chooses at random", "[partners]") {
  struct Row {
    PartnerRule rule;
    std::size_t n;
    const char* says;
  };
  const Row row = GENERATE(values<Row>({
      {{.policy = PartnerPolicy::hypercube}, 6, "power of two"},
      {{.policy = PartnerPolicy::torus}, 7, "grid"},
      {{.policy = PartnerPolicy::regular, .degree = 3}, 7, "even number"},
      {{.policy = PartnerPolicy::regular, .degree = 1}, 7, "degree of 2"},
      {{.policy = PartnerPolicy::random}, 1, "two nodes"},
      {{.policy = PartnerPolicy::random}, 0, "two nodes"},
  }));
  CAPTURE(policy_name(row.rule.policy), row.n);
  const auto said = objection(row.rule, row.n);
  REQUIRE(said.has_value());
  CHECK(said->find(row.says) != std::string::npos);
  CHECK(schedule_period(row.rule, row.n) == 0);
  if (row.n < 2) return;
  CHECK(schedule(row.rule, row.n, 3) == identity(row.n));
  Random random(23);
  std::map<std::size_t, int> count;
  for (int i = 0; i < 600; ++i)
    ++count[*choose_partner(row.rule, node(1), others(row.n, 1), 0, random)];
  CHECK(count.size() == row.n - 1);
}

TEST_CASE("what can be is not objected to", "[partners]") {
  for (const PartnerPolicy policy : all_policies) {
    for (const std::size_t n : {2, 4, 16})
      CHECK((policy == PartnerPolicy::torus && n == 2) == objection({.policy = policy}, n).has_value());
  }
  CHECK_FALSE(objection({.policy = PartnerPolicy::base}, 7).has_value());
  CHECK_FALSE(objection({.policy = PartnerPolicy::torus}, 15).has_value());
}

TEST_CASE("policies have names", "[partners]") {
  for (const PartnerPolicy policy : all_policies)
    CHECK(policy_of(policy_name(policy)) == policy);
  CHECK_FALSE(policy_of("star").has_value());
  CHECK_FALSE(policy_of("").has_value());
}
