#include "gossip/exchange/local_mean.hpp"

#include <algorithm>
#include <cstdint>

#include "gossip/check.hpp"
#include "gossip/exchange/device.hpp"
#include "gossip/types.hpp"

namespace gossamer::gossip {

namespace {

/// Number of elements done for all clients before the next ones, so that y and the last inputs stay in the cache.
constexpr std::size_t chunk = 16 * block_elements;
using parts::magnitude_of;

bool all_finite(std::span<const float> values) {
  std::uint32_t bad = 0;
  for (std::size_t b = 0; b < values.size(); b += block_elements) {
    const float* block = values.data() + b;
    for (std::size_t e = 0; e < block_elements; ++e)
      bad |= magnitude_of(block[e]) >= parts::too_large_bits ? 1U : 0U;
  }
  return bad == 0;
}

/// out += weight · (s − base − base's correction), for one block. True if anything was added.
template <bool HasCorrection>
bool add(const float* snapshot, const float* base, const float* base_correction, float weight, float* __restrict out) {
  std::uint32_t any = 0;
  for (std::size_t e = 0; e < block_elements; ++e) {
    const float from = HasCorrection ? base[e] + base_correction[e] : base[e];
    const float moved = snapshot[e] - from;
    any |= magnitude_of(moved);
    out[e] = parts::with_progress(out[e], weight, moved);
  }
  return any != 0;
}

/// Adds one block of a client's progress to y.
bool take(const ClientFragment& client, std::size_t e, float* y) {
  const float* snapshot = client.snapshot + e;
  const float* base = client.base + e;
  if (client.base_correction == nullptr) return add<false>(snapshot, base, nullptr, client.weight, y);
  return add<true>(snapshot, base, client.base_correction + e, client.weight, y);
}

bool correct(const ClientFragment& client, std::size_t first, const float* y) {
  float* out = client.correction + first;
  if (client.replace) {
    std::copy_n(y, block_elements, out);
    return true;
  }
  const float* snapshot = client.snapshot + first;
  std::uint32_t any = 0;
  for (std::size_t e = 0; e < block_elements; ++e) {
    out[e] = y[e] - snapshot[e];
    any |= magnitude_of(out[e]);
  }
  return any != 0;
}

}  // namespace

std::vector<LocalMeanOutcome> LocalMeanTask::run(std::span<float> y, const Device& device) const {
  std::vector<Outcome> outcomes(clients.size());
  if (!device.local_mean(clients, y, outcomes)) {
    outcomes.assign(clients.size(), {.reached = false, .written = false});
  }
  return outcomes;
}

void local_mean(std::span<const ClientFragment> clients, std::span<float> y, std::span<LocalMeanOutcome> outcomes) {
  GOSSAMER_CHECK(y.size() % block_elements == 0);
  GOSSAMER_CHECK(outcomes.size() == clients.size());
  for (std::size_t m = 0; m < clients.size(); ++m) {
    GOSSAMER_CHECK(clients[m].device == nullptr);
    // The whole fragment is checked first: if any value of a client is not finite, none of its values is used.
    if (clients[m].take != Take::nothing) outcomes[m].finite = all_finite({clients[m].snapshot, y.size()});
  }
  for (std::size_t begin = 0; begin < y.size(); begin += chunk) {
    const std::size_t end = std::min(y.size(), begin + chunk);
    for (std::size_t m = 0; m < clients.size(); ++m) {
      if (!outcomes[m].finite || clients[m].take != Take::progress) continue;
      for (std::size_t e = begin; e < end; e += block_elements)
        outcomes[m].moved |= take(clients[m], e, y.data() + e);
    }
    for (std::size_t m = 0; m < clients.size(); ++m) {
      if (!outcomes[m].finite || clients[m].correction == nullptr) continue;
      for (std::size_t e = begin; e < end; e += block_elements)
        outcomes[m].differs |= correct(clients[m], e, y.data() + e);
    }
  }
}

}  // namespace gossamer::gossip
