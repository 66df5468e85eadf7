#include "daemon/clients/logged_values.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "gossip/plain_text.hpp"

namespace gossamer::daemon {

namespace {

template <class Logged>
auto entries_of(Logged& memory) {
  const std::uint32_t count = memory.count.load(std::memory_order_acquire);
  return std::span(memory.entries).first(std::min<std::size_t>(count, layout::max_logged));
}

std::string name_of(const layout::LoggedEntry& entry) {
  return {entry.name, ::strnlen(entry.name, sizeof entry.name)};
}

}  // namespace

std::vector<LoggedMean> means_of_logged(std::span<const layout::Logged* const> here,
                                        std::span<const std::vector<LoggedValue>> others) {
  struct Sum {
    double value = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums;
  for (const layout::Logged* const memory : here) {
    for (const layout::LoggedEntry& entry : entries_of(*memory)) {
      const std::string name = name_of(entry);
      if (name.empty() || !is_plain_text(name, layout::max_logged_name_bytes)) continue;
      if (!sums.contains(name) && sums.size() == max_logged) continue;
      sums[name].value += std::bit_cast<double>(entry.value.load(std::memory_order_relaxed));
      ++sums[name].count;
    }
  }
  std::vector<LoggedMean> means;
  for (const auto& [name, sum] : sums)
    means.push_back({.name = name, .value = sum.value / sum.count, .mean = sum.value / sum.count, .nodes = 1});
  for (const std::vector<LoggedValue>& told : others) {
    for (const auto& [name, value] : told) {
      const auto found = std::ranges::find(means, name, &LoggedMean::name);
      if (found == means.end()) continue;
      ++found->nodes;
      found->mean += (value - found->mean) / static_cast<double>(found->nodes);
    }
  }
  return means;
}

void tell_means(layout::Logged& memory, std::span<const LoggedMean> means) {
  for (layout::LoggedEntry& entry : entries_of(memory)) {
    const auto found = std::ranges::find(means, name_of(entry), &LoggedMean::name);
    if (found == means.end()) continue;
    entry.mean.store(std::bit_cast<std::uint64_t>(found->mean), std::memory_order_relaxed);
    entry.nodes.store(found->nodes, std::memory_order_release);
  }
}

}  // namespace gossamer::daemon
