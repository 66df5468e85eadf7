// How fast a replica exchanges: when each fragment's turn is, how many exchanges may begin, and what they may cost in
// bytes. Whom to exchange with is decided elsewhere (gossip/replica/initiator.hpp).
//
// When something is due is told in periods, as Cadence::passed() counts them, so that a new period counts at once.
// Owned by a replica, on its thread.

#pragma once

#include <limits>
#include <optional>

#include "gossip/replica/byte_budget.hpp"
#include "gossip/replica/cadence.hpp"
#include "gossip/replica/replica_options.hpp"

namespace gossamer::gossip {

/// What part of the period a replica waits after a partner was busy, before it tries another.
inline constexpr int busy_wait_divisor = 8;

/// When a fragment's next exchange of the node's own is due.
struct Turn {
  double starts_at = 0;       ///< in periods
  TimeUs start_after_us = 0;  ///< it does not begin before this, whatever the period
  /// When the exchange was due that is under way, or was turned down and is tried again. The wait for the client's
  /// publication, for this node's loop or for a partner must not make the period longer.
  std::optional<double> due_at = {};

  /// Its next exchange is due then, whatever the period.
  void start_at(TimeUs start_us) {
    starts_at = 0;
    start_after_us = start_us;
  }
};

class Pace {
 public:
  Pace(const ReplicaOptions& options, std::size_t fragments);

  void set_options(const ReplicaOptions& options, TimeUs now_us);
  /// Most exchanges of the node's own that are under way at once.
  void set_in_flight(std::size_t most) { in_flight_ = most; }
  /// What the node's network can carry, in bytes per second; 0: not known.
  void set_capacity(double bytes_per_s) { capacity_ = bytes_per_s; }

  // --- the period
  [[nodiscard]] TimeUs period_us() const { return cadence_.period_us(); }
  /// What holds the period above the one that is asked for.
  [[nodiscard]] Cadence::Limit period_limit() const { return cadence_.limit(); }
  [[nodiscard]] double passed(TimeUs now_us) const { return cadence_.passed(now_us); }
  /// The client's time, in microseconds, and what was done in it.
  void add_work(const ExchangeCost::Work& work);
  /// Sets the period to what the work since the last call asks for. `distance`: of the replicas, see Cadence.
  void adjust(double distance, TimeUs now_us);

  // --- turns
  [[nodiscard]] bool due(const Turn& turn, TimeUs now_us) const;
  /// Its next exchange is due then at the latest.
  void start_by(Turn& turn, TimeUs start_us) const;
  /// The next turn is so many periods from now.
  void rest(Turn& turn, double periods, TimeUs now_us) const { turn.starts_at = cadence_.passed(now_us) + periods; }
  /// From the exchange's beginning to the next, in periods, if that was due at `due_at`. `jitter`: one period, more or
  /// less.
  [[nodiscard]] double rest_periods(double due_at, double jitter, TimeUs now_us) const;
  /// Exchanges that the node may begin now, whatever the fragments, so that they are spread over the period; negative
  /// if too many were begun.
  [[nodiscard]] double may_begin(TimeUs now_us) const;
  void count_begins(double count, TimeUs now_us);

  // --- bytes
  /// An exchange of the node's own may be begun. `fragment_bytes`: what one takes. `hurry`: the node leaves or
  /// finishes, and does not keep to its share of the network.
  [[nodiscard]] bool may_spend(std::size_t fragment_bytes, bool hurry, TimeUs now_us) const;
  [[nodiscard]] bool may_answer(std::size_t debt_bytes, TimeUs now_us) const {
    return budget_.open_in_debt(now_us, debt_bytes);
  }
  void spend(std::size_t bytes, TimeUs now_us) { budget_.spend(bytes, now_us); }
  /// Of a request of the node's own.
  void spend_own(std::size_t bytes, TimeUs now_us) { own_budget_.spend(bytes, now_us); }
  void note_request(std::size_t bytes);

  enum class Spent { on_answer, on_request };
  void note_spent(Spent last) { last_spent_ = last; }

 private:
  std::size_t fragments_;
  double time_share_ = 0;
  double network_share_ = 0;
  std::size_t in_flight_ = 0;
  Cadence cadence_;
  double capacity_ = 0;
  ExchangeCost::Work work_;  ///< since the cadence was adjusted
  ExchangeCost cost_;
  double request_bytes_ = 0;                                 ///< smoothed, of exchanges without follow-ups
  double begins_left_ = std::numeric_limits<double>::max();  ///< may_begin() at begins_left_at_
  double begins_left_at_ = 0;                                ///< in periods
  ByteBudget budget_;                                        ///< of requests and replies
  ByteBudget own_budget_;  ///< of the node's own exchanges, within its share of the network
  Spent last_spent_ = Spent::on_request;
};

}  // namespace gossamer::gossip
