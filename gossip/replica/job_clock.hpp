// How far a job is, in samples; programs use this for their schedules. The job's clock is the largest believable clock
// of any replica in reach. A replica reports its own clock, and nobody can check it. False clocks must not end the runs
// of others, even if a third of the replicas lie. So a clock is compared with *the rest*. The rest are all replicas,
// this one included, except the one that claims the clock and those that are furthest. As many of the furthest are left
// out as make a third of all, together with the claimant:
//
// - A clock beyond `max_lead` times the furthest of the rest, plus `free_lead_samples`, is ignored.
// - Any other is followed at once up to the furthest of the rest, and beyond that at `pace` times the speed of the
//   fastest of the rest, up to `pace` times the furthest of the rest. If none of them has trained for idle_us, there is
//   nothing to compare with, and the clock is followed slowly.
//
// So among three or more replicas, a third that lie make the clock at most `pace` times too large. Of two replicas
// nobody can tell which one lies, and they follow each other at `pace_of_two` or more, once there have been only those
// two for of_two_us: after a start, or when links were lost, the first to come may be the liar. A replica believes its
// own clock. The job's clock falls back once nobody has claimed as much for idle_us.
//
// Replicas whose training has ended wait for those that still train. They count as training on at their last speed, so
// that one which is no more than `pace` times as fast is still followed, beyond `pace` times the furthest of the rest,
// too. When all have ended, they must agree on one clock, as on one model. So at the end of a run the furthest
// believable claim is followed at once, as far as it may have come since the last look.
//
// One owner. Time is an argument.

#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// No clock is larger. Whole numbers up to here are exact as doubles, which schedules, JSON and Prometheus use. A
/// billion samples a second reach it in three months.
inline constexpr std::uint64_t max_clock_samples = std::uint64_t{1} << 53;

/// The clock after `trained` more samples. It stops at the end of its range.
[[nodiscard]] constexpr std::uint64_t later_clock(std::uint64_t clock, std::uint64_t trained) {
  return clock + std::min(trained, max_clock_samples - std::min(clock, max_clock_samples));
}

/// One replica alone may claim this many times the training of the next one, and free_lead_samples more.
inline constexpr std::uint64_t max_lead = 64;
inline constexpr std::uint64_t free_lead_samples = std::uint64_t{1} << 16;

inline constexpr std::uint64_t default_clock_pace = 2;
inline constexpr std::uint64_t pace_of_two = 8;

/// True if a replica's claim of `clock` is believable where `furthest_other` is the largest other clock.
[[nodiscard]] constexpr bool is_believable(std::uint64_t clock, std::uint64_t furthest_other) {
  return clock <= max_clock_samples &&
         (furthest_other >= max_clock_samples / max_lead || clock <= max_lead * furthest_other + free_lead_samples);
}

/// `said` has a number from each replica except one. Returns the largest number after those of possible liars: as many
/// of the largest are left out as make a third of all replicas, together with that one.
[[nodiscard]] std::uint64_t largest_but_lies(std::vector<std::uint64_t>& said);

class JobClock {
 public:
  struct Claim {
    NodeId node = {};
    std::uint64_t clock = 0;
    bool ended = false;  ///< its training has ended
    // look() sets these.
    double speed = 0;         ///< samples a second when it trained last
    std::uint64_t reach = 0;  ///< how far the pace lets others come: its clock, and on from there if it has ended
  };

  /// `own`: this replica's clock, and whether its training has ended. `others`: in ascending order of their nodes,
  /// without those that nobody trains: they only repeat what others claim. Call it often: the claims of others are
  /// taken once every look_us, and in that time each of them reports a few times. `trains`: false: nobody trains here.
  /// Then the clock only tells how far the model is, and it follows any believed claim at once.
  void look(TimeUs now_us, Claim own, std::vector<Claim> others, bool trains = true);
  /// Call it once the training here has stopped. `ended`: the claims of the other replicas that have stopped as well.
  /// look() deals with the clocks of replicas that train.
  void end(TimeUs now_us, std::uint64_t own, const std::vector<Claim>& ended);
  /// Sets how many times as fast as the rest a replica may be and still be followed at once.
  void set_pace(std::uint64_t pace) { pace_ = pace; }
  [[nodiscard]] std::uint64_t value() const { return value_; }
  /// The claim that the last look followed, if it is still further than the value, because its speed is not believable.
  [[nodiscard]] const std::optional<Claim>& ahead() const { return ahead_; }
  /// The claim that the last look ignored.
  [[nodiscard]] const std::optional<Claim>& disbelieved() const { return disbelieved_; }

 private:
  [[nodiscard]] std::vector<Claim> others_with(const std::vector<Claim>& ended) const;
  [[nodiscard]] std::uint64_t pace_among(std::size_t others, TimeUs now_us) const;
  [[nodiscard]] std::vector<Claim> believed(const Claim& own, const std::vector<Claim>& others);
  [[nodiscard]] const Claim* at_last_look(const NodeId& node) const;
  void measure(TimeUs now_us, Claim& own, std::vector<Claim>& others) const;
  [[nodiscard]] std::uint64_t follow(TimeUs now_us, const Claim& own, const std::vector<Claim>& others,
                                     const Claim& furthest);
  [[nodiscard]] std::uint64_t trained_beside(TimeUs now_us, const NodeId& leader, const Claim& own,
                                             const std::vector<Claim>& others) const;
  [[nodiscard]] std::uint64_t may_have_reached(TimeUs now_us, const NodeId& leader, std::uint64_t pace) const;

  static constexpr TimeUs look_us = 2 * us_per_s;
  static constexpr TimeUs idle_us = 60 * us_per_s;
  static constexpr TimeUs of_two_us = 5 * us_per_s;

  std::uint64_t pace_ = default_clock_pace;
  std::uint64_t value_ = 0;
  Claim own_;                  // this replica at the last look
  std::vector<Claim> others_;  // the others at the last look
  bool looked_ = false;
  TimeUs looked_us_ = 0;
  TimeUs met_more_us_ = 0;      // when more or less than one other was believed last
  std::uint64_t followed_ = 0;  // the value that look() has come to, without what end() has added
  TimeUs trained_us_ = 0;       // when a replica other than the furthest had last trained
  TimeUs claimed_us_ = 0;       // when somebody had last claimed as much as the value
  std::optional<Claim> ahead_;
  std::optional<Claim> disbelieved_;
};

}  // namespace gossamer::gossip
