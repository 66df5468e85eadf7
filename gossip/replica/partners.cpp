#include "gossip/replica/partners.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "gossip/check.hpp"

namespace gossamer::gossip {

namespace {

/// Number of powers of two below n, for n from 2 up. These powers are the offsets of the exponential schedules.
std::uint64_t doublings(std::size_t n) {
  return static_cast<std::uint64_t>(std::bit_width(n - 1));
}

/// Rows of the grid that n ranks fill: the largest divisor up to √n. 1: there is no grid.
std::size_t torus_rows(std::size_t n) {
  auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(n)));
  while (rows > 1 && n % rows != 0)
    --rows;
  return rows;
}

/// The pairs of a ring shift by one place each round, so that in an odd ring a different rank sits out each time.
struct RingTurn {
  std::size_t partner;
  bool paired;  ///< false: it sits out, and `partner` is the neighbour it would ask
};
RingTurn ring_turn(std::size_t n, std::size_t rank, std::uint64_t round) {
  const auto place = static_cast<std::size_t>((rank + round) % n);
  const bool first = place % 2 == 0;
  return {.partner = first ? (rank + 1) % n : (rank + n - 1) % n, .paired = !first || place + 1 < n};
}

RingTurn torus_turn(std::size_t n, std::size_t rank, std::uint64_t round) {
  const std::size_t columns = n / torus_rows(n);
  const std::size_t row = rank / columns;
  const std::size_t column = rank % columns;
  if (round % 2 == 0) {
    const RingTurn turn = ring_turn(columns, column, round / 2);
    return {.partner = row * columns + turn.partner, .paired = turn.paired};
  }
  const RingTurn turn = ring_turn(n / columns, row, round / 2);
  return {.partner = turn.partner * columns + column, .paired = turn.paired};
}

std::uint64_t base_period(std::size_t n) {
  const auto whole = static_cast<std::uint64_t>(std::bit_width(n) - 1);
  std::uint64_t period = whole;
  std::uint64_t group = 0;  // counted from 1
  for (std::uint64_t power = whole + 1; power-- > 0;) {
    if ((n >> power & 1U) == 0) continue;
    ++group;
    const bool last = (n & ((std::size_t{1} << power) - 1)) == 0;
    if (!last) period = std::max(period, whole + group + power);
  }
  return std::max<std::uint64_t>(period, 1);
}

/// The rank that the policy chooses for `rank` in this round, whether or not that rank chooses it as well.
std::optional<std::size_t> wanted_rank(const PartnerRule& rule, std::size_t n, std::size_t rank, std::uint64_t round,
                                       Random& random) {
  switch (rule.policy) {
    case PartnerPolicy::ring:
      return ring_turn(n, rank, round).partner;
    case PartnerPolicy::torus:
      return torus_turn(n, rank, round).partner;
    case PartnerPolicy::regular: {
      const auto offsets = circulant_offsets(n, rule.degree);
      const std::uint64_t draw = random.below(rule.degree < n - 1 ? rule.degree : n - 1);
      const std::size_t offset = offsets[draw / 2];
      return draw % 2 == 0 ? (rank + offset) % n : (rank + n - offset) % n;
    }
    case PartnerPolicy::hub:
      return rank == 0 ? std::nullopt : std::optional<std::size_t>{0};
    default: {
      const auto partner = scheduled_partner(rule, n, rank, round);
      return partner ? std::optional<std::size_t>{partner->rank} : std::nullopt;
    }
  }
}

std::optional<std::size_t> any_in_reach(std::span<const Candidate> candidates, Random& random) {
  const auto count = static_cast<std::uint64_t>(
      std::count_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.in_reach; }));
  if (count == 0) return std::nullopt;
  std::uint64_t left = random.below(count);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].in_reach && left-- == 0) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> by_shares(std::span<const Candidate> candidates, Random& random) {
  const auto shares = selection_shares(candidates);
  double left = random.uniform();
  std::optional<std::size_t> last;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].in_reach) continue;
    last = i;
    left -= shares[i];
    if (left < 0) break;
  }
  return last;
}

}  // namespace

std::optional<std::size_t> choose_partner(const PartnerRule& rule, const NodeId& self,
                                          std::span<const Candidate> candidates, std::uint64_t round, Random& random) {
  if (rule.policy == PartnerPolicy::weighted) return by_shares(candidates, random);
  const std::size_t n = candidates.size() + 1;
  if (rule.policy == PartnerPolicy::random || objection(rule, n)) return any_in_reach(candidates, random);
  const auto above =
      std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return self < c.id; });
  const auto rank = static_cast<std::size_t>(above - candidates.begin());
  const auto wanted = wanted_rank(rule, n, rank, round, random);
  if (!wanted || *wanted == rank) return any_in_reach(candidates, random);
  const std::size_t index = *wanted < rank ? *wanted : *wanted - 1;
  return candidates[index].in_reach ? std::optional<std::size_t>{index} : any_in_reach(candidates, random);
}

std::optional<std::string> objection(const PartnerRule& rule, std::size_t n) {
  const auto says = [n](const std::string& what) { return what + ", and there are " + std::to_string(n); };
  if (n < 2) return says("partners take two nodes at least");
  switch (rule.policy) {
    case PartnerPolicy::hypercube:
      if (!std::has_single_bit(n)) return says("a hypercube takes a power of two of nodes");
      break;
    case PartnerPolicy::torus:
      if (torus_rows(n) < 2) return says("a torus takes a number of nodes that fills a grid");
      break;
    case PartnerPolicy::regular:
      if (rule.degree < 2) return "regular takes a degree of 2 at least";
      if (rule.degree % 2 == 1 && n % 2 == 1 && rule.degree < n - 1)
        return says("regular with an odd degree takes an even number of nodes");
      break;
    default:
      break;
  }
  return std::nullopt;
}

const char* policy_name(PartnerPolicy policy) {
  return policy_names[static_cast<std::size_t>(policy)];
}

std::optional<PartnerPolicy> policy_of(std::string_view name) {
  const auto found = std::find(std::begin(policy_names), std::end(policy_names), name);
  if (found == std::end(policy_names)) return std::nullopt;
  return static_cast<PartnerPolicy>(found - std::begin(policy_names));
}

std::uint64_t schedule_period(const PartnerRule& rule, std::size_t n) {
  if (objection(rule, n)) return 0;
  switch (rule.policy) {
    case PartnerPolicy::ring:
      return n;
    case PartnerPolicy::torus:
      return 2 * std::uint64_t{n};  // a multiple of twice the rows and of twice the columns
    case PartnerPolicy::hypercube:
    case PartnerPolicy::one_peer_exponential:
      return doublings(n);
    case PartnerPolicy::base:
      return base_period(n);
    default:
      return 0;
  }
}

std::optional<ScheduledPartner> scheduled_partner(const PartnerRule& rule, std::size_t n, std::size_t rank,
                                                  std::uint64_t round) {
  GOSSAMER_CHECK(rank < n);
  if (objection(rule, n)) return std::nullopt;
  switch (rule.policy) {
    case PartnerPolicy::ring:
    case PartnerPolicy::torus: {
      const RingTurn turn = rule.policy == PartnerPolicy::ring ? ring_turn(n, rank, round) : torus_turn(n, rank, round);
      if (!turn.paired) return std::nullopt;
      return ScheduledPartner{.rank = turn.partner};
    }
    case PartnerPolicy::hypercube:
      return ScheduledPartner{.rank = rank ^ std::size_t{1} << round % doublings(n)};
    case PartnerPolicy::one_peer_exponential:
      return ScheduledPartner{.rank = (rank + (std::size_t{1} << round % doublings(n))) % n};
    case PartnerPolicy::base:
      return base_pair(n, rank, round % base_period(n));
    default:
      return std::nullopt;
  }
}

std::vector<double> schedule(const PartnerRule& rule, std::size_t n, std::uint64_t round) {
  std::vector<double> matrix(n * n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    const auto partner = scheduled_partner(rule, n, rank, round);
    const double weight = partner ? partner->weight : 0.0;
    matrix[rank * n + rank] = 1 - weight;
    if (partner) matrix[rank * n + partner->rank] += weight;
  }
  return matrix;
}

std::optional<ScheduledPartner> base_pair(std::size_t n, std::size_t rank, std::uint64_t round) {
  GOSSAMER_CHECK(rank < n);
  const auto whole = static_cast<std::uint64_t>(std::bit_width(n) - 1);
  std::size_t first = 0;    // first rank of the present group
  std::uint64_t group = 0;  // counted from 0
  for (std::uint64_t power = whole + 1; power-- > 0;) {
    const std::size_t size = std::size_t{1} << power;
    if ((n & size) == 0) continue;
    const std::size_t end = first + size;
    if (round == whole + group && rank >= first) {  // the group meets the later ranks, which are fewer
      const double weight = static_cast<double>(size) / static_cast<double>(n - first);
      if (rank >= end) return ScheduledPartner{.rank = first + (rank - end), .weight = weight};
      const std::size_t other = end + (rank - first);
      return other < n ? std::optional{ScheduledPartner{.rank = other, .weight = weight}} : std::nullopt;
    }
    if (rank < end) {  // the rank's own group: a hypercube before the meetings, and once more after its own
      const std::uint64_t again = whole + group + 1;
      const std::uint64_t turn = round < whole ? round : round - std::min(round, again);
      const bool averages = turn < power && (round < whole || (round >= again && end < n));
      if (!averages) return std::nullopt;
      return ScheduledPartner{.rank = first + ((rank - first) ^ std::size_t{1} << turn)};
    }
    first = end;
    ++group;
  }
  return std::nullopt;
}

std::vector<std::size_t> circulant_offsets(std::size_t n, std::uint32_t degree) {
  const std::size_t most = (n - 1) / 2;  // offsets with two neighbours each
  const std::size_t pairs = std::min<std::size_t>(degree / 2, most);
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double spread = std::pow(static_cast<double>(n), static_cast<double>(i) / static_cast<double>(pairs));
    const std::size_t least = offsets.empty() ? 1 : offsets.back() + 1;
    // This leaves room for the offsets that follow.
    offsets.push_back(std::clamp(static_cast<std::size_t>(std::llround(spread)), least, most - (pairs - 1 - i)));
  }
  if (n % 2 == 0 && (degree % 2 == 1 || degree >= n - 1)) offsets.push_back(n / 2);
  return offsets;
}

std::vector<double> selection_shares(std::span<const Candidate> candidates) {
  double total = 0;
  std::size_t known = 0;
  std::size_t in_reach = 0;
  for (const Candidate& candidate : candidates) {
    if (!candidate.in_reach) continue;
    ++in_reach;
    if (!(candidate.goodput > 0)) continue;
    ++known;
    total += candidate.goodput;
  }
  std::vector<double> shares(candidates.size());
  if (in_reach == 0) return shares;
  const double unknown = known > 0 ? total / static_cast<double>(known) : 1.0;
  total += unknown * static_cast<double>(in_reach - known);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].in_reach) continue;
    const double goodput = candidates[i].goodput > 0 ? candidates[i].goodput : unknown;
    shares[i] = weighted_floor / static_cast<double>(in_reach) + (1 - weighted_floor) * goodput / total;
  }
  return shares;
}

}  // namespace gossamer::gossip
