// How far a job is, in samples, as its programs are told for their schedules: the largest clock of any replica in
// reach, as far as that can be believed. A clock is what a replica says of itself, and nobody can check it; so one that
// lies must not end the others' runs. Of what one replica alone says:
//
//   - a clock beyond `max_lead` times that of everybody else, and `free_lead_samples` more, is passed over;
//   - any other is followed, `max_pace` times as fast as the fastest of the others trains: at once where all train
//     alike, and sooner or later where one is far ahead. Where no other has trained for idle_us there is nothing to
//     compare it with, and it is followed slowly.
//
// Two replicas that say the same are believed, whoever they are; so is a replica's own clock.
//
// One owner; time comes in.

#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// No clock is larger: whole numbers up to here are exact as doubles, as which schedules, JSON and Prometheus take
/// them; a billion samples a second reach it in three months.
inline constexpr std::uint64_t max_clock_samples = std::uint64_t{1} << 53;

/// What a clock is after more has been trained. It stands still at the end of its range.
[[nodiscard]] constexpr std::uint64_t later_clock(std::uint64_t clock, std::uint64_t trained) {
  return clock + std::min(trained, max_clock_samples - std::min(clock, max_clock_samples));
}

/// A replica alone may say that it has trained this many times as much as the one that comes next, and so much more.
inline constexpr std::uint64_t max_lead = 64;
inline constexpr std::uint64_t free_lead_samples = std::uint64_t{1} << 16;

/// True if one replica can be believed that it stands at `clock` where the furthest of the others stands there.
[[nodiscard]] constexpr bool is_believable(std::uint64_t clock, std::uint64_t furthest_other) {
  return clock <= max_clock_samples &&
         (furthest_other >= max_clock_samples / max_lead || clock <= max_lead * furthest_other + free_lead_samples);
}

class JobClock {
 public:
  struct Claim {
    NodeId node;
    std::uint64_t clock = 0;
  };

  /// `own`: this replica's clock. `others`: in ascending order of their nodes. To be called often; what the others say
  /// is taken in every look_us, in which each of them says it a few times.
  void look(TimeUs now_us, std::uint64_t own, std::vector<Claim> others);
  [[nodiscard]] std::uint64_t value() const { return value_; }
  /// Whose clock was passed over in the last look.
  [[nodiscard]] const std::optional<Claim>& disbelieved() const { return disbelieved_; }

 private:
  [[nodiscard]] std::optional<Claim> furthest_believed(std::uint64_t own, const std::vector<Claim>& others);
  [[nodiscard]] std::uint64_t trained_beside(const NodeId& leader, std::uint64_t own,
                                             const std::vector<Claim>& others) const;

  static constexpr std::uint64_t max_pace = 8;
  static constexpr TimeUs look_us = 2 * us_per_s;
  static constexpr TimeUs idle_us = 60 * us_per_s;

  std::uint64_t value_ = 0;
  std::uint64_t own_ = 0;  // in the last look; likewise the others
  std::vector<Claim> others_;
  bool looked_ = false;
  TimeUs looked_us_ = 0;
  TimeUs trained_us_ = 0;  // when somebody beside the furthest had trained
  std::optional<Claim> disbelieved_;
};

}  // namespace gossamer::gossip
