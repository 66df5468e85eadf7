#include "daemon/jobs/logged_values.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "gossip/plain_text.hpp"

namespace gossamer::daemon {

namespace {

static_assert(max_logged == layout::max_logged && max_logged_name_bytes == layout::max_logged_name_bytes);

std::string name_of(const layout::LoggedEntry& entry) {
  return {entry.name, ::strnlen(entry.name, sizeof entry.name)};
}

}  // namespace

std::vector<LoggedStatus> means_of_logged(std::span<layout::Logged* const> here,
                                          std::span<const std::vector<LoggedValue>> others) {
  struct Sum {
    double value = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums;
  for (layout::Logged* const memory : here) {
    for (const layout::LoggedEntry& entry : memory->known()) {
      const std::string name = name_of(entry);
      if (name.empty() || !is_plain_text(name, layout::max_logged_name_bytes)) continue;
      if (!sums.contains(name) && sums.size() == max_logged) continue;
      sums[name].value += std::bit_cast<double>(entry.value.load(std::memory_order_relaxed));
      ++sums[name].count;
    }
  }
  std::vector<LoggedStatus> means;
  for (const auto& [name, sum] : sums)
    means.push_back({.name = name, .value = sum.value / sum.count, .mean = sum.value / sum.count, .nodes = 1});
  for (const std::vector<LoggedValue>& told : others) {
    for (const auto& [name, value] : told) {
      const auto found = std::ranges::find(means, name, &LoggedStatus::name);
      if (found == means.end()) continue;
      ++found->nodes;
      found->mean += (value - found->mean) / static_cast<double>(found->nodes);
    }
  }
  return means;
}

void tell_means(layout::Logged& memory, std::span<const LoggedStatus> means) {
  for (layout::LoggedEntry& entry : memory.known()) {
    const auto found = std::ranges::find(means, name_of(entry), &LoggedStatus::name);
    if (found == means.end()) continue;
    entry.mean.store(std::bit_cast<std::uint64_t>(found->mean), std::memory_order_relaxed);
    entry.nodes.store(found->nodes, std::memory_order_release);
  }
}

}  // namespace gossamer::daemon
