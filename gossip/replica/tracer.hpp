// How fast exchanges mix, measured while they run: the effective spectral gap of the cluster's averaging.
//
// Every replica has a few numbers, drawn by chance, that are averaged along with fragment 0: the request brings the
// initiator's, the reply the responder's, and both commit the same share of their difference as they do for the
// fragment. So they are mixed as the model is, with whatever the partners' choice, links, delays, refusals and weights
// come to, but nothing trains on them: the difference between two replicas' numbers shrinks by mixing alone, in the end
// by a constant factor an exchange. This is power iteration, done by the exchanges themselves: what is left of the
// start after many of them lies in the slowest mode, and shrinks as that does (for one matrix, its second largest
// eigenvalue; Boyd et al. 2006, "Randomized gossip algorithms", section II, for pairs met by chance; Kempe & McSherry
// 2008 for finding it decentralized). With the initial numbers of order 1 and doubles there are thirty factors of e to
// be seen.
//
//   rate = −½ · slope of log(mean square difference to the partner of the moment), over this replica's exchanges
//   gap  = 1 − e^−rate
//
// The slope is the least squares one over the last two thirds of a *round*. When the numbers have become equal, or
// after most_tracer_exchanges, a replica begins the next round: it draws new ones under a larger number, and whoever
// hears of a newer round draws its own and goes along. A replica without numbers (it has just joined) takes those of
// the first partner over, so that nobody is disturbed. Rounds travel by exchanges only: of two replicas whose rounds
// stay different for long, no chain of exchanges leads from one to the other (daemon/report/watch.hpp).
//
// With a lattice codec exchanges take less of a difference that is mostly noise (gossip/exchange/mixing.hpp), and so of
// the numbers: where replicas agree and nobody trains the estimate is low, and says nothing about the cluster.
//
// It does not see what concerns single blocks (wide ones that a follow-up had to average), nor a part of the cluster
// that no exchange reaches: of that only the round tells. Shown to people; nothing is decided on it, and a member that
// makes its numbers up makes the estimate wrong, nothing else.
//
// One owner, one thread. Time and randomness come in as arguments.

#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "gossip/messages.hpp"
#include "gossip/random.hpp"

namespace gossamer::gossip {

/// A round ends after so many exchanges of fragment 0, also where mixing is so slow that little has come of it.
inline constexpr std::uint32_t most_tracer_exchanges = 4096;
/// Remembered, as another's word of its round is some seconds old when it comes.
inline constexpr std::size_t max_tracer_rounds = 32;

/// How fast differences shrink, in the root mean square.
struct MixingEstimate {
  double per_exchange = 0;  ///< by e^−this in the time between two exchanges of a fragment at this node
  double per_s = 0;         ///< and by e^−this in a second

  /// 1 − e^−per_exchange: 1 if one exchange makes all equal, 0 if nothing mixes.
  [[nodiscard]] double spectral_gap() const;
};

class Tracer {
 public:
  explicit Tracer(Random random) : random_(random) {}

  /// For a request of fragment 0; none before the replica has any.
  [[nodiscard]] const std::optional<TracerValues>& say() const { return own_; }
  /// The responder: takes its half of what came with a request and gives what goes with the reply.
  TracerValues answer(const std::optional<TracerValues>& asked, int shift, TimeUs now_us);
  /// The initiator: what it had sent, and what the reply brought.
  void conclude(const std::optional<TracerValues>& sent, const std::optional<TracerValues>& replied, int shift,
                TimeUs now_us);

  /// None yet, or nothing was exchanged lately.
  [[nodiscard]] std::optional<MixingEstimate> estimate(TimeUs now_us) const;
  /// The present round; 0: none.
  [[nodiscard]] std::uint32_t round() const { return own_ ? own_->round : 0; }
  /// The last max_tracer_rounds, the present one last.
  [[nodiscard]] const std::deque<std::uint32_t>& rounds() const { return rounds_; }

 private:
  struct Point {
    std::uint32_t exchange;
    double log_square;
  };
  /// What has been seen of one round.
  struct Seen {
    std::uint32_t exchanges = 0;
    std::uint32_t stride = 1;  ///< every so many exchanges are kept as points
    std::vector<Point> points = {};
    std::uint32_t equal_in_a_row = 0;
    std::uint32_t equal_since = 0;  ///< the first of them
    TimeUs first_us = 0;
    TimeUs last_us = 0;
  };

  /// Of the rounds that are over, those long ago counting less.
  struct Past {
    std::uint32_t last_exchanges = 0;  ///< of the last; 0: there is none
    double exchanges = 0;
    double decline = 0;  ///< in factors of e of the root mean square
    double s = 0;
  };

  void draw(std::uint32_t round);
  void enter(const TracerValues& values);
  /// Goes along with a newer round, or takes the values over if it has none; false: `theirs` are of an older round.
  bool follow(const TracerValues& theirs);
  void mix(const TracerValues& from, const TracerValues& to, int shift, TimeUs now_us);
  void observe(double square, TimeUs now_us);
  void end_round();
  [[nodiscard]] static std::optional<MixingEstimate> fit(const Seen& seen);

  Random random_;
  std::optional<TracerValues> own_;
  std::deque<std::uint32_t> rounds_;
  Seen seen_;
  Past past_;
};

}  // namespace gossamer::gossip
