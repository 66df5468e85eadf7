#include "daemon/cluster/incarnation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "gossip/membership/membership.hpp"

namespace gossamer::daemon {
namespace {

constexpr const char* incarnation_name = "incarnation";

/// The number of the life before, or 0 if the file has none that can be used.
std::uint64_t previous_incarnation(const StateFolder& state, spdlog::logger& log) {
  const auto kept = state.load(incarnation_name);
  if (!kept) {
    log.warn("{}", kept.error());
    return 0;
  }
  if (!*kept) return 0;
  const std::string& text = **kept;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && std::string_view(end, text.data() + text.size()) == "\n") return number;
  log.warn("{}: not a number; taking the time of day to number this start", (state.path() / incarnation_name).string());
  return 0;
}

}  // namespace

std::uint64_t incarnation_after(std::uint64_t previous, std::uint64_t time_of_day_us) {
  const bool sound = time_of_day_us >= first_sound_clock_us && time_of_day_us <= last_sound_clock_us;
  const std::uint64_t clock_us = sound ? time_of_day_us : first_sound_clock_us;
  if (clock_us > previous || previous > gossip::last_incarnation) return clock_us;
  return std::min(previous + incarnation_gap, gossip::last_incarnation);
}

bool has_lived_before(const StateFolder& state) {
  std::error_code ignored;
  return std::filesystem::exists(state.path() / incarnation_name, ignored);
}

std::uint64_t next_incarnation(const StateFolder& state, std::uint64_t time_of_day_us, spdlog::logger& log) {
  const std::uint64_t previous = previous_incarnation(state, log);
  const std::uint64_t incarnation = incarnation_after(previous, time_of_day_us);
  if (incarnation != time_of_day_us) {
    log.warn(
        "the clock is behind the time of an earlier start of this node, or in another century: was it set? Look at "
        "timedatectl; this start is numbered after all earlier ones all the same");
  }
  if (const auto stored = state.store(incarnation_name, fmt::format("{}\n", incarnation)); !stored) {
    log.warn("{}; other nodes may not listen to this one if the clock is set back before its next start",
             stored.error());
  }
  return incarnation;
}

}  // namespace gossamer::daemon
