#include "sdk/c/available_memory.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace gossamer::client {
namespace {

/// At most this many control groups are looked at, from the process's own upwards.
constexpr int max_group_depth = 32;

/// The file's text; "" if it cannot be read.
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

/// The number after `name`, where a line begins with `name`.
[[nodiscard]] std::optional<std::uint64_t> field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(name)) return number(line.substr(name.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

/// The place where a version of control groups is mounted, below /sys/fs/cgroup, and the names of its files.
struct Hierarchy {
  std::string_view controller;  ///< its name in /proc/self/cgroup
  const char* folder;
  const char* maximum;
  const char* current;
};
constexpr Hierarchy version_2{"", "", "memory.max", "memory.current"};
constexpr Hierarchy version_1{"memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"};

/// Version 1 reports a number near 2^63 where there is no limit.
constexpr std::uint64_t no_limit = std::uint64_t{1} << 62;

/// The process's group in the hierarchy of this controller. The line is "number:controllers:/path", with commas between
/// controllers; version 2 has "" as its controllers.
[[nodiscard]] std::optional<std::string> group_path(std::string_view groups, std::string_view controller) {
  while (!groups.empty()) {
    const std::string_view line = groups.substr(0, groups.find('\n'));
    groups.remove_prefix(std::min(line.size() + 1, groups.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos || line.substr(second + 1).substr(0, 1) != "/") continue;
    const std::string listed = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (listed.find("," + std::string(controller) + ",") == listed.npos) continue;
    return std::string(line.substr(second + 2));
  }
  return std::nullopt;
}

/// The least memory that the group, or one above it, leaves. In a container the path may be the host's while only the
/// mount itself is visible, so the mount is looked at last.
[[nodiscard]] std::optional<std::uint64_t> least_of_groups(const std::filesystem::path& mounted,
                                                           const std::filesystem::path& path,
                                                           const Hierarchy& hierarchy) {
  std::optional<std::uint64_t> least;
  std::filesystem::path below = path;
  for (int depth = 0; depth < max_group_depth; ++depth, below = below.parent_path()) {
    const std::filesystem::path group = mounted / below;
    const auto left = group_available_bytes(text_of(group / hierarchy.maximum), text_of(group / hierarchy.current),
                                            text_of(group / "memory.stat"));
    if (left) least = std::min(least.value_or(*left), *left);
    if (below.empty()) break;
  }
  return least;
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
  if (!limit || !used || *limit >= no_limit) return std::nullopt;
  const auto cached = [statistics](std::string_view name) {
    // Version 1 counts the group's own pages, and with the prefix "total_" also those of the groups below. `current`
    // counts both.
    const auto of_all = field(statistics, "total_" + std::string(name));
    return of_all ? *of_all : field(statistics, name).value_or(0);
  };
  const std::uint64_t cache = cached("inactive_file ") + cached("active_file ");
  const std::uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

std::optional<std::uint64_t> available_memory_bytes(const std::filesystem::path& root) {
  std::optional<std::uint64_t> least = machine_available_bytes(text_of(root / "proc/meminfo"));
  const std::string groups = text_of(root / "proc/self/cgroup");
  const std::filesystem::path mounted = root / "sys/fs/cgroup";
  for (const Hierarchy& hierarchy : {version_2, version_1}) {
    const auto path = group_path(groups, hierarchy.controller);
    const auto left = path ? least_of_groups(mounted / hierarchy.folder, *path, hierarchy) : std::nullopt;
    if (left) least = std::min(least.value_or(*left), *left);
  }
  return least;
}

}  // namespace gossamer::client
