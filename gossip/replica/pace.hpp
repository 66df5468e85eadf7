// How fast a replica exchanges: when each fragment is due, how many exchanges may begin, and how many bytes they may
// cost. The partner is chosen elsewhere (gossip/replica/initiator.hpp).
//
// Due times are kept in periods, as Cadence::passed() counts them, so that a new period counts at once.
// Owned by a replica, on its thread.

#pragma once

#include <limits>
#include <optional>

#include "gossip/replica/byte_budget.hpp"
#include "gossip/replica/cadence.hpp"
#include "gossip/replica/replica_options.hpp"
#include "gossip/smoothed.hpp"

namespace gossamer::gossip {

/// After a busy answer, a replica waits this part of the period before it tries another partner.
inline constexpr int busy_wait_divisor = 8;

/// When a fragment's next exchange of the node's own is due.
struct Turn {
  double starts_at = 0;       ///< when it is due, as Cadence::passed() counts
  TimeUs start_after_us = 0;  ///< the exchange does not begin before this, whatever the period
  /// When the present exchange was due, also if it was turned down and is tried again. The next exchange is counted
  /// from here: waiting for the client's publication, for this node's loop or for a partner must not make the period
  /// longer.
  std::optional<double> due_at = {};

  /// Makes the next exchange due at `start_us`, whatever the period.
  void start_at(TimeUs start_us) {
    starts_at = 0;
    start_after_us = start_us;
  }
};

class Pace {
 public:
  Pace(const ReplicaOptions& options, std::size_t fragments);

  void set_options(const ReplicaOptions& options, TimeUs now_us);
  /// Most exchanges that the node may have under way at once.
  void set_in_flight(std::size_t most) { in_flight_ = most; }
  /// The capacity of the node's network, in bytes per second; 0: not known.
  void set_capacity(double bytes_per_s) { capacity_ = bytes_per_s; }

  // --- the period
  [[nodiscard]] TimeUs period_us() const { return cadence_.period_us(); }
  /// What makes the period longer than configured.
  [[nodiscard]] Cadence::Limit period_limit() const { return cadence_.limit(); }
  [[nodiscard]] double passed(TimeUs now_us) const { return cadence_.passed(now_us); }
  /// Adds client time, in microseconds, and the work done in it.
  void add_work(const ExchangeCost::Work& work);
  /// Sets the period by the work since the last call. `distance`, `step_us`: see Cadence::Allowance.
  void adjust(double distance, TimeUs step_us, TimeUs now_us);

  // --- turns
  [[nodiscard]] bool due(const Turn& turn, TimeUs now_us) const;
  /// Makes the next exchange due at `start_us` at the latest.
  void start_by(Turn& turn, TimeUs start_us) const {
    if (!due(turn, start_us)) turn.start_at(start_us);
  }
  /// Makes the next exchange due after so many periods from now.
  void rest(Turn& turn, double periods, TimeUs now_us) const { turn.starts_at = cadence_.passed(now_us) + periods; }
  /// Periods from now until the next exchange, if the present one was due at `due_at`. `jitter`: about one period.
  [[nodiscard]] double rest_periods(double due_at, double jitter, TimeUs now_us) const;
  /// Number of exchanges that the node may begin now over all fragments, so that they are spread over the period.
  /// Negative: too many were begun.
  [[nodiscard]] double may_begin(TimeUs now_us) const;
  void count_begins(double count, TimeUs now_us);
  /// Number of exchanges that begin in this time at the present period.
  [[nodiscard]] std::size_t begins_within(TimeUs time_us) const;

  // --- bytes
  /// True if an own exchange may be begun. `fragment_bytes`: its size. `hurry`: the node leaves or finishes; the share
  /// does not count.
  [[nodiscard]] bool may_spend(std::size_t fragment_bytes, bool hurry, TimeUs now_us) const;
  /// Like may_spend(), but counts `awaited_bytes` as sent: requests that wait for the client's publication.
  [[nodiscard]] bool may_spend_after(std::size_t awaited_bytes, TimeUs now_us) const {
    return budget_.open(now_us, awaited_bytes) && own_budget_.open(now_us, awaited_bytes);
  }
  [[nodiscard]] bool may_answer(std::size_t debt_bytes, TimeUs now_us) const {
    return budget_.open_in_debt(now_us, debt_bytes);
  }
  void spend(std::size_t bytes, TimeUs now_us, ByteBudget::Spent on) { budget_.spend(bytes, now_us, on); }
  /// Charges a request of the node's own.
  void spend_own(std::size_t bytes, TimeUs now_us) { own_budget_.spend(bytes, now_us); }
  void note_request(std::size_t bytes) { request_bytes_ = smoothed(request_bytes_, static_cast<double>(bytes)); }

 private:
  std::size_t fragments_;
  double time_share_ = 0;
  double network_share_ = 0;
  std::size_t in_flight_ = 0;
  Cadence cadence_;
  double capacity_ = 0;
  ExchangeCost::Work work_;  ///< work since the last adjust()
  ExchangeCost cost_;
  double request_bytes_ = 0;                                 ///< smoothed size of a request, without follow-ups
  double begins_left_ = std::numeric_limits<double>::max();  ///< may_begin() at begins_left_at_
  double begins_left_at_ = 0;                                ///< when begins_left_ was set, in periods
  ByteBudget budget_;                                        ///< for requests and replies
  ByteBudget own_budget_;  ///< for the node's own exchanges, within its share of the network
};

}  // namespace gossamer::gossip
