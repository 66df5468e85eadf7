// Measures how fast exchanges mix, while they run: the effective spectral gap of the cluster's averaging.
//
// Every replica has a few random numbers that are averaged along with fragment 0. The request brings the initiator's
// numbers, the reply the responder's, and both ends commit the same share of their difference as for the fragment. So
// they mix as the model does, with all effects of partner choice, links, delays, refusals and weights. But nothing
// trains on them: their differences shrink by mixing alone, in the end by a constant factor an exchange. This is power
// iteration, done by the exchanges themselves: after many exchanges, what is left of the start lies in the slowest mode
// and shrinks at the rate of that mode. (For one matrix this is the second largest eigenvalue; Boyd et al. 2006,
// "Randomized gossip algorithms", section II, for pairs met by chance; Kempe & McSherry 2008 for finding it
// decentralized.) With initial numbers of order 1, doubles can show a decline by thirty factors of e.
//
//   rate = −½ · slope of log(mean square difference to the partner of the moment), over this replica's exchanges
//   gap  = 1 − e^−rate
//
// The slope is the least-squares slope over the last two thirds of a *tracer round*. When the numbers have become
// equal, or after most_tracer_exchanges, a replica begins the next round: it draws new numbers under a larger round
// number. A replica that hears of a newer round draws its own numbers and joins that round. A replica without numbers
// (it has just joined) takes over those of its first partner, so that nobody is disturbed. Rounds travel by exchanges
// only: if the rounds of two replicas stay different for long, no chain of exchanges connects them
// (daemon/report/watch.hpp).
//
// With a lattice codec, exchanges move less of a difference that is mostly noise (gossip/exchange/mixing.hpp), and the
// same share of the numbers. So where replicas agree and nobody trains, the estimate is low and tells nothing.
//
// The estimate does not show what concerns single blocks (wide blocks that a follow-up had to average). It does not
// show a part of the cluster that no exchange reaches; only the round does. It is shown to people and no decision uses
// it. A member with false numbers makes the estimate wrong and does no other harm.
//
// One owner, one thread. Time and randomness come in as arguments.

#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "gossip/messages.hpp"
#include "gossip/random.hpp"

namespace gossamer::gossip {

/// A round ends after this many exchanges of fragment 0, even where mixing is so slow that little has changed.
inline constexpr std::uint32_t most_tracer_exchanges = 4096;
/// Number of rounds remembered, since another node's report of its round is some seconds old when it comes.
inline constexpr std::size_t max_tracer_rounds = 32;

/// The rate at which differences shrink, in the root mean square.
struct MixingEstimate {
  double per_exchange = 0;  ///< they shrink by e^−this between two exchanges of a fragment at this node
  double per_s = 0;         ///< they shrink by e^−this in a second

  /// 1 − e^−per_exchange: 1 if one exchange makes all equal, 0 if nothing mixes.
  [[nodiscard]] double spectral_gap() const;
};

class Tracer {
 public:
  explicit Tracer(Random random) : random_(random) {}

  /// The numbers for a request of fragment 0; none before the replica has any.
  [[nodiscard]] const std::optional<TracerValues>& say() const { return own_; }
  /// For the responder: moves towards the numbers that came with a request, and returns the numbers for the reply.
  TracerValues answer(const std::optional<TracerValues>& asked, int shift, TimeUs now_us);
  /// For the initiator: `sent` went with the request, `replied` came with the reply.
  void conclude(const std::optional<TracerValues>& sent, const std::optional<TracerValues>& replied, int shift,
                TimeUs now_us);

  /// None before the first round, or if no exchange was made lately.
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
  /// Observations of one round.
  struct Seen {
    std::uint32_t exchanges = 0;
    std::uint32_t stride = 1;  ///< one in this many exchanges is kept as a point
    std::vector<Point> points = {};
    std::uint32_t equal_in_a_row = 0;
    std::uint32_t equal_since = 0;  ///< the first of these exchanges
    TimeUs first_us = 0;
    TimeUs last_us = 0;
  };

  /// Sums over the rounds that are over. Older rounds count less.
  struct Past {
    std::uint32_t last_exchanges = 0;  ///< exchanges of the last round; 0: there is none
    double exchanges = 0;
    double decline = 0;  ///< decline of the root mean square, in factors of e
    double s = 0;
  };

  void draw(std::uint32_t round);
  void enter(const TracerValues& values);
  /// Joins a newer round, or takes the values over if this replica has none. False: `theirs` are not of its round.
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
