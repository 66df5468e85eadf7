#include "gossip/replica/job_clock.hpp"

#include <algorithm>
#include <functional>

namespace gossamer::gossip {
namespace {

/// How far the clock may follow in this time where nobody else trains: per second, 1/64 of the clock and 1,024 samples.
std::uint64_t idle_pace(std::uint64_t value, TimeUs elapsed_us) {
  const double per_s = static_cast<double>(value) / 64 + 1024;
  return static_cast<std::uint64_t>(per_s * static_cast<double>(elapsed_us) / us_per_s);
}

std::uint64_t trained_in(TimeUs time_us, double speed) {
  return static_cast<std::uint64_t>(
      std::min(speed * static_cast<double>(time_us) / us_per_s, static_cast<double>(max_clock_samples)));
}

/// The largest value of the rest: of the replicas other than `node`, without possible liars.
template <class ValueOf>
std::uint64_t largest_beside(const NodeId& node, const JobClock::Claim& own, const std::vector<JobClock::Claim>& others,
                             const ValueOf& value_of) {
  std::vector<std::uint64_t> beside = {std::invoke(value_of, own)};
  for (const JobClock::Claim& other : others) {
    if (other.node != node) beside.push_back(std::invoke(value_of, other));
  }
  return largest_but_lies(beside);
}

std::uint64_t furthest_beside(const NodeId& node, const JobClock::Claim& own,
                              const std::vector<JobClock::Claim>& others) {
  return largest_beside(node, own, others, &JobClock::Claim::clock);
}

/// The furthest claim that is beyond this replica's clock, if any.
std::optional<JobClock::Claim> furthest_of(std::uint64_t own, const std::vector<JobClock::Claim>& claims) {
  const auto furthest = std::ranges::max_element(claims, {}, &JobClock::Claim::clock);
  return furthest == claims.end() || furthest->clock <= own ? std::nullopt : std::optional(*furthest);
}

}  // namespace

std::uint64_t largest_but_lies(std::vector<std::uint64_t>& said) {
  const std::size_t liars = std::max<std::size_t>((said.size() + 1) / 3, 1);
  const auto place = said.begin() + static_cast<std::ptrdiff_t>(liars - 1);
  std::ranges::nth_element(said, place, std::ranges::greater{});
  return *place;
}

void JobClock::look(TimeUs now_us, Claim own, std::vector<Claim> others, bool trains) {
  value_ = std::max(value_, own.clock);
  if (looked_ && now_us - looked_us_ < look_us) return;
  if (!looked_) trained_us_ = claimed_us_ = looked_us_ = now_us;
  measure(now_us, own, others);
  const std::vector<Claim> claims = believed(own, others);
  if (!looked_ || claims.size() != 1) met_more_us_ = now_us;
  const auto furthest = furthest_of(own.clock, claims);
  const std::uint64_t reached = !furthest ? 0 : trains ? follow(now_us, own, claims, *furthest) : furthest->clock;
  followed_ = std::max({followed_, own.clock, reached});
  value_ = std::max(value_, followed_);
  ahead_ = furthest && furthest->clock > value_ ? furthest : std::nullopt;
  const std::uint64_t claimed = furthest ? furthest->clock : own.clock;
  if (!furthest) trained_us_ = now_us;
  if (claimed >= value_) claimed_us_ = now_us;
  if (now_us - claimed_us_ >= idle_us) value_ = followed_ = claimed;
  own_ = own;
  others_ = std::move(others);
  looked_ = true;
  looked_us_ = now_us;
}

/// The claim of this replica at the last look; null: there was none.
const JobClock::Claim* JobClock::at_last_look(const NodeId& node) const {
  const auto before = std::ranges::lower_bound(others_, node, {}, &Claim::node);
  return before == others_.end() || before->node != node ? nullptr : &*before;
}

/// A replica may have ended in the middle of the time since the last look. So its speed falls only slowly.
void JobClock::measure(TimeUs now_us, Claim& own, std::vector<Claim>& others) const {
  const TimeUs elapsed_us = now_us - looked_us_;
  const std::uint64_t pace = pace_among(others.size(), now_us);
  const auto measure_one = [&](Claim& claim, const Claim& before) {
    claim.speed = before.speed;
    if (claim.clock > before.clock) {
      claim.speed = std::max(0.9 * before.speed, static_cast<double>(claim.clock - before.clock) * us_per_s /
                                                     static_cast<double>(elapsed_us));
    }
    if (claim.ended)
      claim.reach = std::max(claim.reach, later_clock(before.reach, pace * trained_in(elapsed_us, claim.speed)));
  };
  own.reach = own.clock;
  for (Claim& other : others)
    other.reach = other.clock;
  if (!looked_ || elapsed_us <= 0) return;
  measure_one(own, own_);
  for (Claim& other : others) {
    if (const Claim* before = at_last_look(other.node)) measure_one(other, *before);
  }
}

/// How far the furthest claim is followed now.
std::uint64_t JobClock::follow(TimeUs now_us, const Claim& own, const std::vector<Claim>& others,
                               const Claim& furthest) {
  const std::uint64_t trained = looked_ ? trained_beside(now_us, furthest.node, own, others) : 0;
  if (trained > 0) trained_us_ = now_us;
  const std::uint64_t pace = pace_among(others.size(), now_us);
  const std::uint64_t beside = furthest_beside(furthest.node, own, others);
  const std::uint64_t known = std::max({followed_, own.clock, beside});
  const bool idle = now_us - trained_us_ >= idle_us;
  const std::uint64_t most =
      idle ? std::min(later_clock(known, idle_pace(known, now_us - looked_us_)), pace * beside)
           : std::min(later_clock(followed_, pace * trained),
                      std::max(pace * beside, largest_beside(furthest.node, own, others, &Claim::reach)));
  return std::max(beside, std::min(furthest.clock, most));
}

void JobClock::end(TimeUs now_us, std::uint64_t own, const std::vector<Claim>& ended) {
  value_ = std::max(value_, own);
  if (ended.empty()) return;  // this is called often
  const Claim here = {.clock = own};
  const std::vector<Claim> all = others_with(ended);
  std::vector<Claim> claims = believed(here, all);
  std::erase_if(claims, [](const Claim& claim) { return !claim.ended; });
  const auto furthest = furthest_of(own, claims);
  if (!furthest) return;
  const std::uint64_t pace = pace_among(all.size(), now_us);
  const std::uint64_t most =
      std::max(pace * furthest_beside(furthest->node, here, all), may_have_reached(now_us, furthest->node, pace));
  value_ = std::max(value_, std::min(furthest->clock, most));
}

/// The others at the last look, with the last clocks of those that have ended.
std::vector<JobClock::Claim> JobClock::others_with(const std::vector<Claim>& ended) const {
  std::vector<Claim> all = others_;
  for (const Claim& claim : ended) {
    auto place = std::ranges::lower_bound(all, claim.node, {}, &Claim::node);
    if (place == all.end() || place->node != claim.node) place = all.insert(place, claim);
    place->clock = claim.clock;
    place->ended = true;
  }
  return all;
}

/// How many times as fast as the rest the furthest replica may be and still be followed at once.
std::uint64_t JobClock::pace_among(std::size_t others, TimeUs now_us) const {
  return others > 1 || !looked_ || now_us - met_more_us_ < of_two_us ? pace_ : std::max(pace_, pace_of_two);
}

/// The claims without those that are too far from all others. The value followed so far is believed.
std::vector<JobClock::Claim> JobClock::believed(const Claim& own, const std::vector<Claim>& others) {
  disbelieved_.reset();
  std::vector<Claim> believed;
  for (const Claim& claim : others) {
    if (is_believable(claim.clock, std::max(value_, furthest_beside(claim.node, own, others)))) {
      believed.push_back(claim);
    } else if (!disbelieved_ || claim.clock > disbelieved_->clock) {
      disbelieved_ = claim;
    }
  }
  return believed;
}

/// How far the rest have trained since the last look.
std::uint64_t JobClock::trained_beside(TimeUs now_us, const NodeId& leader, const Claim& own,
                                       const std::vector<Claim>& others) const {
  const auto trained = [&](const Claim& claim, const Claim& before) {
    if (claim.ended) return trained_in(now_us - looked_us_, claim.speed);
    return claim.clock - std::min(claim.clock, before.clock);
  };
  std::vector<std::uint64_t> beside = {trained(own, own_)};
  for (const Claim& claim : others) {
    const Claim* before = at_last_look(claim.node);
    if (claim.node == leader || before == nullptr) continue;
    beside.push_back(trained(claim, *before));
  }
  return largest_but_lies(beside);
}

/// How far one that is `pace` times as fast as the rest may have come since the last look and in the time that reports
/// take.
std::uint64_t JobClock::may_have_reached(TimeUs now_us, const NodeId& leader, std::uint64_t pace) const {
  if (!looked_) return 0;
  const TimeUs time_us = now_us - looked_us_ + look_us;
  return largest_beside(leader, own_, others_, [&](const Claim& claim) {
    return later_clock(claim.reach, pace * trained_in(time_us, claim.speed));
  });
}

}  // namespace gossamer::gossip
