#include "sdk/c/available_memory.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace gossamer::client {
namespace {

/// Control groups that are looked at, from the process's own upwards.
constexpr int max_group_depth = 32;

/// "" if it cannot be read.
[[nodiscard]] std::string text_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

[[nodiscard]] std::optional<std::uint64_t> number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

/// The number behind `name` at the beginning of a line.
[[nodiscard]] std::optional<std::uint64_t> field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(name)) return number(line.substr(name.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> machine_available_bytes(std::string_view meminfo) {
  const auto kibibytes = field(meminfo, "MemAvailable:");
  if (!kibibytes) return std::nullopt;
  return *kibibytes << 10;
}

std::optional<std::uint64_t> group_available_bytes(std::string_view maximum, std::string_view current,
                                                   std::string_view statistics) {
  const auto limit = number(maximum);  // "max" is no number
  const auto used = number(current);
  if (!limit || !used) return std::nullopt;
  const std::uint64_t cache =
      field(statistics, "inactive_file ").value_or(0) + field(statistics, "active_file ").value_or(0);
  const std::uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

std::optional<std::uint64_t> available_memory_bytes() {
  std::optional<std::uint64_t> least = machine_available_bytes(text_of("/proc/meminfo"));
  const std::string groups = text_of("/proc/self/cgroup");
  const std::size_t own = groups.find("0::/");  // the line of version 2
  if (own == std::string::npos) return least;
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::filesystem::path group = root / groups.substr(own + 4, groups.find('\n', own) - own - 4);
  for (int depth = 0; depth < max_group_depth; ++depth, group = group.parent_path()) {
    const auto left = group_available_bytes(text_of(group / "memory.max"), text_of(group / "memory.current"),
                                            text_of(group / "memory.stat"));
    if (left) least = std::min(least.value_or(*left), *left);
    if (group == root || !group.has_relative_path()) break;
  }
  return least;
}

}  // namespace gossamer::client
