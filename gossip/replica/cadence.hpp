// The time between two exchanges of a fragment. It is the configured period, unless gossip would then take more than
// its share of the training's time or of the network, or the training's steps are longer: between two steps there is
// little to average.
//
// One exchange costs about the same client time and the same bytes, however often exchanges are made. So the cost is
// estimated, and the period follows from it directly:
//
//   period = fragments · cost / (own_share · what is allowed a second)
//
// The period does not depend on the period before, so there is no loop that could swing or run away, and the period
// falls as fast as it rises. Extra bytes, such as blocks that are sent again or requests that are turned down, are
// charged to a budget of the same rate in the replica. The period limits only the exchanges that the node begins
// itself. They may take half of the allowance, since other nodes begin as many with it. If their exchanges counted
// against the node's own, one node would in the end begin all of them and the rest none. One owner, one thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// The client time that one exchange (begun or answered) takes, with its follow-ups. The estimate uses the exchanges
/// since the last look and about `remembered` before them. So it falls as fast as it rises: cheap exchanges are many,
/// and plain counting would remember them for long.
class ExchangeCost {
 public:
  static constexpr double remembered = 8;
  /// One exchange or follow-up needs at most this many publications. Publications for another purpose, such as a
  /// checkpoint, would otherwise raise the cost without bound where exchanges are rare.
  static constexpr double most_publications = 2;

  /// The work of one stretch of time; `taken_us` is the time that its publications took.
  struct Work {
    double exchanges = 0;
    double follow_ups = 0;
    double publications = 0;
    double taken_us = 0;
  };

  /// Adds the work since the last look.
  void add(const Work& work) {
    const double known = std::max(sum_.exchanges, sum_.publications / most_publications);
    const bool idle = work.exchanges + work.publications + work.taken_us <= 0;
    const double keep = idle || known <= remembered ? 1 : remembered / known;
    sum_ = {.exchanges = keep * sum_.exchanges + work.exchanges,
            .follow_ups = keep * sum_.follow_ups + work.follow_ups,
            .publications = keep * sum_.publications + work.publications,
            .taken_us = keep * sum_.taken_us + work.taken_us};
    seen_ = std::min(seen_ + work.exchanges, remembered);
  }

  /// In microseconds; 0: not known. The first few exchanges count for less than they took: they touch memory for the
  /// first time, and a high estimate would delay the next exchange, which gives a better one.
  [[nodiscard]] double us() const { return seen_ / remembered * mean_us(); }

 private:
  [[nodiscard]] double mean_us() const {
    if (sum_.publications <= 0) return 0;
    const double publication_us = sum_.taken_us / sum_.publications;
    if (sum_.exchanges <= 0) return most_publications * publication_us;
    const double needed = most_publications * (sum_.exchanges + sum_.follow_ups);
    return publication_us * std::min(sum_.publications, needed) / sum_.exchanges;
  }

  Work sum_;         ///< old work counts less
  double seen_ = 0;  ///< number of exchanges added so far, at most `remembered`
};

class Cadence {
 public:
  /// What makes the period longer than configured: a share, or the steps.
  enum class Limit { none, time, network, step };
  /// 0 stands for no limit.
  struct Allowance {
    double time_share = 0;   ///< largest part of the client's time that gossip takes
    double bytes_per_s = 0;  ///< most that gossip sends over the network
    double distance = 0;     ///< ‖y_j − y_i‖ / ‖y‖ of the replicas now; see longest_us()
    TimeUs step_us = 0;      ///< time between two training steps; 0: not known
  };

  /// A node may begin this many exchanges of each fragment in a training step. Others begin as many.
  static constexpr double begun_a_step = 2;

  /// Longest period: whatever an exchange costs, a fragment is exchanged at least this often.
  static constexpr TimeUs most_us = 600 * us_per_s;
  /// Replicas within this distance count as together.
  static constexpr double together = 0.05;
  /// However far apart the replicas are, the time share may lengthen the period to this part of most_us.
  static constexpr double apart_least = 0.1;
  /// The part of the allowance that is for exchanges that the node begins.
  static constexpr double own_share = 0.5;

  /// `least_us`: the period as configured; 0: as short as the shares allow, however long steps are.
  explicit Cadence(TimeUs least_us) : least_us_(least_us) {}

  void set_least(TimeUs least_us, TimeUs now_us) {
    turn(now_us);
    least_us_ = least_us;
  }

  /// Sets the period from the cost of one fragment's exchange: client time and bytes to send.
  void adjust(std::size_t fragments, double cost_us, double cost_bytes, const Allowance& allowed, TimeUs now_us) {
    turn(now_us);
    const double round = static_cast<double>(fragments) / own_share;
    const double time_us = allowed.time_share > 0 ? round * cost_us / allowed.time_share : 0;
    const double network_us = allowed.bytes_per_s > 0 ? round * cost_bytes / allowed.bytes_per_s * us_per_s : 0;
    time_us_ = std::min(time_us, longest_us(allowed.distance));
    network_us_ = std::min(network_us, static_cast<double>(most_us));
    const double part_us = static_cast<double>(allowed.step_us) / begun_a_step;
    step_us_ = least_us_ == 0 ? 0 : std::min(part_us, static_cast<double>(most_us));
  }

  [[nodiscard]] TimeUs period_us() const {
    return std::max(least_us_, static_cast<TimeUs>(std::max({time_us_, network_us_, step_us_})));
  }
  /// How many periods have passed until now, with fractions, since an arbitrary beginning. Each period counts with the
  /// length that it had at the time. Due times are kept in this unit. So a new period takes effect at once, and
  /// fragments whose turns are spread evenly over the period stay so.
  [[nodiscard]] double passed(TimeUs now_us) const {
    return passed_ + static_cast<double>(now_us - turned_us_) / static_cast<double>(std::max<TimeUs>(period_us(), 1));
  }
  [[nodiscard]] Limit limit() const {
    if (period_us() == least_us_) return Limit::none;
    if (step_us_ > std::max(time_us_, network_us_)) return Limit::step;
    return time_us_ >= network_us_ ? Limit::time : Limit::network;
  }

  /// The longest period that the time share may ask for: ten minutes while the replicas are together, and less the
  /// farther apart they are, down to one minute. So replicas that drift are averaged even if that takes more than the
  /// training's time share. The network share is never exceeded for this, since others use the network as well.
  [[nodiscard]] static double longest_us(double distance) {
    return static_cast<double>(most_us) * std::clamp(together / std::max(distance, together), apart_least, 1.0);
  }

 private:
  void turn(TimeUs now_us) {
    passed_ = passed(now_us);
    turned_us_ = now_us;
  }

  TimeUs least_us_;
  double passed_ = 0;
  TimeUs turned_us_ = 0;
  double time_us_ = 0;  ///< the period that the time share asks for
  double network_us_ = 0;
  double step_us_ = 0;
};

}  // namespace gossamer::gossip
