// Numbers the lives of a node. Each start gets a larger number than every earlier one, even if the clock has been set
// back in between (an empty battery, a wrong clock that was corrected).
//
// Other nodes take a smaller number for an older life and ignore it. Exchanges are counted from this number on, so no
// number may be used twice. The time of day in microseconds is such a number as long as it goes up. The last number
// used is kept in the state folder for the case that it does not. Called once, at start.
//
// A clock of another century numbers nothing: other nodes believe no number above gossip::last_incarnation.

#pragma once

#include <spdlog/logger.h>

#include <cstdint>

#include "daemon/system/state_folder.hpp"

namespace gossamer::daemon {

/// If the clock is behind the last life's number, the next life begins this far above it. The gap is larger than the
/// number of exchanges that one life can have begun (ten thousand a second for a hundred days).
inline constexpr std::uint64_t incarnation_gap = std::uint64_t{24} * 3600 * 1'000'000;

/// Clocks before 2024 or after 2099 are wrong.
inline constexpr std::uint64_t first_sound_clock_us = std::uint64_t{1'704'067'200} * 1'000'000;
inline constexpr std::uint64_t last_sound_clock_us = std::uint64_t{4'102'444'799} * 1'000'000;

/// `previous` is 0 if there was no earlier life. One that no start can have had does not count.
[[nodiscard]] std::uint64_t incarnation_after(std::uint64_t previous, std::uint64_t time_of_day_us);

/// Whether a node has been started with this state folder.
[[nodiscard]] bool has_lived_before(const StateFolder& state);

/// Chooses the number of this life and saves it. If the file cannot be read or written, this warns and uses the time of
/// day.
[[nodiscard]] std::uint64_t next_incarnation(const StateFolder& state, std::uint64_t time_of_day_us,
                                             spdlog::logger& log);

}  // namespace gossamer::daemon
