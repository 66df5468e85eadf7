// A hostile member. Its messages have the proper form, but lie about its model or about differences.
//
// The attackers are the last nodes of a learning run. They take part as the others do. Instead of training, each
// replaces its model by the values that it wants to spread; `extremes` also rewrites the numbers in its messages to the
// largest that their form allows. They know the honest nodes' models, which is the worst case.
//
// One thread, with draws from its own seed.

#pragma once

#include <span>
#include <vector>

#include "gossip/messages.hpp"
#include "gossip/random.hpp"
#include "tools/sim/learn/names.hpp"

namespace gossamer::sim {

enum class AttackKind : std::uint8_t {
  none,
  silent,     ///< sends nothing, to show the result of a run without the attacker
  extremes,   ///< ±1e6 as model; each difference in a reply at the codec's edge, each f32 value ±1e30
  wild,       ///< trains for a third of the run, then has one value everywhere; its daemon is honest
  flipped,    ///< the honest mean with its sign changed
  ascent,     ///< trains the wrong way: adds its gradient instead of subtracting it
  old,        ///< the initial model
  nan,        ///< NaN and infinity in every f32 value it sends
  pull,       ///< the honest mean, half its norm farther in one direction
  dissensus,  ///< pushes others away from the mean: the honest mean plus 4 times a replica's distance from it
              ///< (after the dissensus attack of He, Karimireddy & Jaggi 2022, 2202.01545, section 3)
};

inline constexpr Named<AttackKind> attacks[] = {
    {"none", AttackKind::none},         {"silent", AttackKind::silent},
    {"extremes", AttackKind::extremes}, {"wild", AttackKind::wild},
    {"flipped", AttackKind::flipped},   {"ascent", AttackKind::ascent},
    {"old", AttackKind::old},           {"nan", AttackKind::nan},
    {"pull", AttackKind::pull},         {"dissensus", AttackKind::dissensus}};

class Attacker {
 public:
  /// `wild_value`: of `wild`.
  Attacker(AttackKind kind, float wild_value, std::span<const float> initial, std::uint64_t seed);

  [[nodiscard]] AttackKind kind() const { return kind_; }
  /// Replaces the model by what it wants to spread. `honest`: the honest nodes' models.
  void corrupt(std::span<float> model, std::span<const std::span<const float>> honest);
  /// Rewrites a message before it is sent; false: the message is not sent.
  bool tamper(Message& message);

 private:
  AttackKind kind_;
  float wild_value_;
  std::vector<float> initial_;
  gossip::Random random_;
};

}  // namespace gossamer::sim
