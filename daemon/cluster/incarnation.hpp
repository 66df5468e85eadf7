// Numbers the lives of a node: each start gets a larger number than every earlier one, also where the clock has been
// set back in between (a battery is empty, a clock was wrong and is put right).
//
// Others take a smaller number for an older life and do not listen; and exchanges, which are counted from this number
// on, must not carry a number twice. The time of day in microseconds is such a number, and needs no disk, as long as it
// goes up; the last one used is kept in the state folder for when it does not. Called once, at start.

#pragma once

#include <spdlog/logger.h>

#include <cstdint>

#include "daemon/system/state_folder.hpp"

namespace gossamer::daemon {

/// How far above the last life's number a life begins that the clock would put below it: more exchanges than that life
/// can have begun (ten thousand a second for a hundred days).
inline constexpr std::uint64_t incarnation_gap = std::uint64_t{24} * 3600 * 1'000'000;

/// `previous`: 0 if there was none.
[[nodiscard]] std::uint64_t incarnation_after(std::uint64_t previous, std::uint64_t time_of_day_us);

/// Also keeps it. A file that cannot be read or written is warned of, and the time of day has to do.
[[nodiscard]] std::uint64_t next_incarnation(const StateFolder& state, std::uint64_t time_of_day_us,
                                             spdlog::logger& log);

}  // namespace gossamer::daemon
