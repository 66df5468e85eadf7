// The outer optimiser: momentum on what a replica has moved by, in training and mixing together, since the last time.
//
// Each replica keeps, for each fragment, an anchor φ (where the fragment was after the last outer step) and a momentum
// v. With x the fragment now and g = φ − x its displacement, an outer step is
//
//   v ← μ·v + g
//   nesterov:  x ← φ − η·(g + μ·v)       DiLoCo's outer step (Douillard et al. 2023, arXiv 2311.08105, alg. 1)
//   delayed:   x ← x − η·μ·v             the displacement stays as it is and momentum is added to it once a period:
//                                        delayed Nesterov (Liu et al. 2024, arXiv 2401.09135, alg. 3) with the pushes
//                                        of one period already made by training and mixing
//   φ ← x
//
// Purely local: nothing is sent for it. It acts on the total displacement because momentum on the local part alone
// drives replicas apart; so it is taken only after the fragment has been exchanged at least twice since the last time.
// Its effect reaches the client as a correction like any other. At η = 1, μ = 0 it changes nothing.
//
// OuterState belongs to one fragment and is touched by whoever holds the fragment (the loop, or a task on a worker).

#pragma once

#include "gossip/fragment_buffers.hpp"

namespace gossamer::gossip {

enum class OuterKind : std::uint8_t { none, nesterov, delayed };

struct OuterOptions {
  OuterKind kind = OuterKind::none;
  float rate = 0.7F;                  ///< η
  float momentum = 0.5F;              ///< μ
  TimeUs period_us = 5 * us_per_s;    ///< shortest time between two outer steps of a fragment
  std::uint32_t least_exchanges = 2;  ///< of the fragment since its last outer step
};

/// Anchor and momentum of one fragment; empty until its first outer step.
class OuterState {
 public:
  [[nodiscard]] bool begun() const { return !anchor_.empty(); }
  [[nodiscard]] std::size_t bytes() const { return (anchor_.capacity() + momentum_.capacity()) * sizeof(float); }

 private:
  friend struct OuterTask;
  std::vector<float> anchor_;
  std::vector<float> momentum_;
};

/// One outer step of a fragment. The first one only sets the anchor.
struct OuterTask {
  OuterOptions options;

  struct Result {
    bool finite = false;  ///< false: the fragment holds NaN or infinity; nothing was changed
    bool commit = false;  ///< a correction is written; FragmentBuffers::finish_commit() makes it count
  };
  [[nodiscard]] Result run(FragmentBuffers& buffers, OuterState& state) const;
};

}  // namespace gossamer::gossip
