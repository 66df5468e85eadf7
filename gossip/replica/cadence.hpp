// How often a fragment is exchanged: as often as asked for, unless gossip then takes more than its share of the
// training's time or of the network.
//
// An exchange costs the same time of the client, and the same bytes, nearly however often exchanges are made. So the
// cost is estimated, and the period follows from it directly:
//
//   period = fragments · cost / (own_share · what is allowed a second)
//
// Nothing is scaled by what the last period led to, so there is no loop that could swing or run away, and the period
// comes down as fast as it goes up. What requests take beyond their usual size, such as blocks that are sent again or
// requests that are turned down, the replica draws from a budget of the same rate. The period rules over the exchanges
// that the node begins, and those may take half of what is allowed: as many are begun by others, where all do so. If
// what others begin counted against a node's own, one node would come to begin all of them and the rest none. One
// owner, one thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// What one exchange, begun or answered, takes of the client's time, with what follows up on it: of those of the last
/// look, and of as many as `remembered` before. So many and few weigh alike, and the estimate comes down as fast as it
/// goes up: what was cheap was often, and would otherwise be remembered for long.
class ExchangeCost {
 public:
  static constexpr double remembered = 8;
  /// An exchange, or what follows up on it, is taken to need at most this many publications. Those for another purpose,
  /// such as a checkpoint, would otherwise raise the cost without bound where exchanges are rare.
  static constexpr double most_publications = 2;

  /// Exchanges were done, others followed up on them, and the client published; its publications took so much time.
  struct Work {
    double exchanges = 0;
    double follow_ups = 0;
    double publications = 0;
    double taken_us = 0;
  };

  /// Since the last look.
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

  /// 0: not known. Of the first few it is less than they took: memory is touched for the first time then, and one that
  /// seems dear would put the next, which tells better, off for long.
  [[nodiscard]] double us() const { return seen_ / remembered * mean_us(); }

 private:
  [[nodiscard]] double mean_us() const {
    if (sum_.publications <= 0) return 0;
    const double publication_us = sum_.taken_us / sum_.publications;
    if (sum_.exchanges <= 0) return most_publications * publication_us;
    const double needed = most_publications * (sum_.exchanges + sum_.follow_ups);
    return publication_us * std::min(sum_.publications, needed) / sum_.exchanges;
  }

  Work sum_;         ///< the older, the less it counts
  double seen_ = 0;  ///< exchanges, up to as many as are remembered
};

class Cadence {
 public:
  /// What holds the period above the one that is asked for.
  enum class Limit { none, time, network };
  /// 0 stands for no limit.
  struct Allowance {
    double time_share = 0;   ///< of the client's time
    double bytes_per_s = 0;  ///< of the network
    double distance = 0;     ///< ‖y_j − y_i‖ / ‖y‖ of the replicas now; see longest_us()
  };

  /// Longest period: a fragment is exchanged at least this often, whatever it costs.
  static constexpr TimeUs most_us = 600 * us_per_s;
  /// Up to this distance replicas are together.
  static constexpr double together = 0.05;
  /// Of most_us: however far apart they are, the time share may ask for a period as long as this.
  static constexpr double apart_least = 0.1;
  /// Of the allowance, for the exchanges that a node begins.
  static constexpr double own_share = 0.5;

  explicit Cadence(TimeUs least_us) : least_us_(least_us) {}

  void set_least(TimeUs least_us, TimeUs now_us) {
    turn(now_us);
    least_us_ = least_us;
  }

  /// From what an exchange of one of `fragments` takes, of the client's time and of bytes to send.
  void adjust(std::size_t fragments, double cost_us, double cost_bytes, const Allowance& allowed, TimeUs now_us) {
    turn(now_us);
    const double round = static_cast<double>(fragments) / own_share;
    const double time_us = allowed.time_share > 0 ? round * cost_us / allowed.time_share : 0;
    const double network_us = allowed.bytes_per_s > 0 ? round * cost_bytes / allowed.bytes_per_s * us_per_s : 0;
    time_us_ = std::min(time_us, longest_us(allowed.distance));
    network_us_ = std::min(network_us, static_cast<double>(most_us));
  }

  [[nodiscard]] TimeUs period_us() const {
    return std::max(least_us_, static_cast<TimeUs>(std::max(time_us_, network_us_)));
  }
  /// How many periods have passed until now, each as long as it was at the time. When something is due is told in this
  /// measure: a new period counts at once, shorter or longer, and fragments whose turns are spread evenly over the
  /// period stay so. Whole and fractional, from an arbitrary beginning.
  [[nodiscard]] double passed(TimeUs now_us) const {
    return passed_ + static_cast<double>(now_us - turned_us_) / static_cast<double>(std::max<TimeUs>(period_us(), 1));
  }
  [[nodiscard]] Limit limit() const {
    if (period_us() == least_us_) return Limit::none;
    return time_us_ >= network_us_ ? Limit::time : Limit::network;
  }

  /// The longest period that the time share may ask for: ten minutes while the replicas are together, and the shorter
  /// the farther apart they are, down to one minute. So replicas that drift are averaged although it costs more of the
  /// training's time than its share. The network belongs to others as well: its share is not exceeded for that.
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
  double time_us_ = 0;  ///< the period that each share asks for
  double network_us_ = 0;
};

}  // namespace gossamer::gossip
