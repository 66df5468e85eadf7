// How often a fragment is exchanged: as often as asked for, unless gossip then takes more than its share of the
// training's time or of the network.
//
// What an exchange costs, in time of the client and in bytes, depends little on how often exchanges are made. So the
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

/// What one exchange, begun or answered, takes of the client's time: of the last `remembered` of them.
class ExchangeCost {
 public:
  static constexpr double remembered = 64;
  /// An exchange is taken to need at most this many publications. Those for another purpose, such as a checkpoint,
  /// would otherwise raise the cost without bound where exchanges are rare.
  static constexpr double most_publications = 2;

  /// Since the last call: exchanges that were done, publications of the client, and how much time those took.
  void add(double exchanges, double publications, double taken_us) {
    const double keep = std::max(0.0, 1 - std::max(exchanges, publications) / remembered);
    exchanges_ = keep * exchanges_ + exchanges;
    publications_ = keep * publications_ + publications;
    taken_us_ = keep * taken_us_ + taken_us;
  }

  /// 0: not known.
  [[nodiscard]] double us() const {
    if (publications_ <= 0) return 0;
    return taken_us_ / std::max(exchanges_, publications_ / most_publications);
  }

 private:
  double exchanges_ = 0;
  double publications_ = 0;
  double taken_us_ = 0;
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

  void set_least(TimeUs least_us) { least_us_ = least_us; }

  /// From what an exchange of one of `fragments` takes, of the client's time and of bytes to send.
  void adjust(std::size_t fragments, double cost_us, double cost_bytes, const Allowance& allowed) {
    const double round = static_cast<double>(fragments) / own_share;
    const double time_us = allowed.time_share > 0 ? round * cost_us / allowed.time_share : 0;
    const double network_us = allowed.bytes_per_s > 0 ? round * cost_bytes / allowed.bytes_per_s * us_per_s : 0;
    time_us_ = std::min(time_us, longest_us(allowed.distance));
    network_us_ = std::min(network_us, static_cast<double>(most_us));
  }

  [[nodiscard]] TimeUs period_us() const {
    return std::max(least_us_, static_cast<TimeUs>(std::max(time_us_, network_us_)));
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
  TimeUs least_us_;
  double time_us_ = 0;  ///< the period that each share asks for
  double network_us_ = 0;
};

}  // namespace gossamer::gossip
