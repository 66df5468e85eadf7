// A member that means harm: it keeps to the protocol's form and lies about its model, or about differences.
//
// The attacker is the last node of a learning run. It takes part as the others do, and when it would train, it puts
// the values it wants to spread in place of its model; `extremes` also rewrites the numbers in the messages it sends,
// to the most that their form allows. It knows the honest nodes' models: the worst case.
//
// One thread, draws from its own seed.

#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "gossip/messages.hpp"
#include "gossip/random.hpp"

namespace gossamer::sim {

enum class AttackKind : std::uint8_t {
  none,
  silent,     ///< says nothing at all: what a run without it comes to
  extremes,   ///< ±1e6 as model; every difference in a reply at the edge of the codec, every f32 value ±1e30
  flipped,    ///< the honest mean with its sign turned
  ascent,     ///< trains the wrong way: adds its gradient instead of subtracting it
  old,        ///< the model of the very beginning
  nan,        ///< NaN and infinity in every f32 value it sends
  dissensus,  ///< away from whoever it talks to: the honest mean plus 4 times what a replica is off it
              ///< (after the dissensus attack of He, Karimireddy & Jaggi 2022, 2202.01545, section 3)
};

[[nodiscard]] std::optional<AttackKind> attack_named(std::string_view name);

class Attacker {
 public:
  Attacker(AttackKind kind, std::span<const float> initial, std::uint64_t seed);

  [[nodiscard]] AttackKind kind() const { return kind_; }
  /// Puts what it wants to spread into its model. `honest`: the honest nodes' models.
  void corrupt(std::span<float> model, std::span<const std::span<const float>> honest);
  /// Rewrites a message that it sends; false: does not send it.
  bool tamper(Message& message);

 private:
  AttackKind kind_;
  std::vector<float> initial_;
  gossip::Random random_;
};

}  // namespace gossamer::sim
