// The outer optimiser: momentum on what a fragment has moved by, in training and mixing together, since the last time.
//
// Each replica keeps, for each fragment, an anchor φ (where the fragment was after the last outer step) and a momentum
// v. With x the fragment now, an outer step is
//
//   v ← μ·v + (x − φ)
//   x ← x + η·μ·v
//   φ ← x
//
// the displacement itself staying as it is: the delayed Nesterov momentum of Liu et al. 2024 (arXiv 2401.09135, alg.
// 3), with the pushes of one period already made by training and mixing. At η = 1 it is DiLoCo's outer step with outer
// learning rate 1 (Douillard et al. 2023, arXiv 2311.08105, alg. 1); the general form of that, which scales the
// displacement as well, did less in every measurement (docs/explanation/learning.md).
//
// Purely local: nothing is sent for it. It acts on the total displacement because momentum on the local part alone
// drives replicas apart; so it is taken only after the fragment has been exchanged at least twice since the last time.
// Its effect reaches the client as a correction like any other. It costs two fp32 copies of the model.
//
// OuterState belongs to one fragment and is touched by whoever holds the fragment (the loop, or a task on a worker).

#pragma once

#include <utility>
#include <vector>

#include "gossip/exchange/fragment_buffers.hpp"

namespace gossamer::gossip {

struct OuterOptions {
  float momentum = 0;                 ///< μ; 0: no outer steps. 0.9 and more drives replicas apart
  float rate = 0.7F;                  ///< η
  TimeUs period_us = 5 * us_per_s;    ///< shortest time between two outer steps of a fragment
  std::uint32_t least_exchanges = 2;  ///< of the fragment since its last outer step

  [[nodiscard]] bool on() const { return momentum > 0; }
};

/// Elements [first, last) of a fragment.
using ElementRange = std::pair<std::uint32_t, std::uint32_t>;

/// Anchor and momentum of one fragment; empty until its first outer step.
class OuterState {
 public:
  /// Elements that outer steps do not touch (statistics are averaged, not optimised). Ascending, apart.
  void leave_out(std::vector<ElementRange> ranges) { left_out_ = std::move(ranges); }
  [[nodiscard]] bool begun() const { return anchor_ != nullptr; }
  /// Of the fragment's device.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  friend struct OuterTask;
  /// Sets the anchor to y. False: as OuterTask::Result::finite.
  [[nodiscard]] bool begin(const Device& device, const FragmentView& y, std::size_t block_count);

  Device::Floats anchor_;
  Device::Floats momentum_;
  std::size_t bytes_ = 0;
  std::vector<ElementRange> left_out_;
};

/// What an outer step reads and writes: memory of the device that takes it, of `block_count` blocks each.
struct OuterFragment {
  FragmentView y;
  std::size_t block_count = 0;
  const float* in = nullptr;  ///< the present correction; null: zero
  float* out = nullptr;       ///< the new one; may be `in`, or what y is read from
  float* anchor = nullptr;
  float* momentum = nullptr;
  std::span<const ElementRange> left_out;
};

/// Takes an outer step on the processor. False if something would not be finite: then nothing is changed.
[[nodiscard]] bool outer_step(const OuterOptions& options, const OuterFragment& fragment);

struct HeldFragment;

/// One outer step of a fragment. The first one only sets the anchor.
struct OuterTask {
  OuterOptions options;

  struct Result {
    bool finite = false;  ///< false: the fragment holds NaN or infinity, or the device failed or has no room; nothing
                          ///< was changed
    bool commit = false;  ///< a correction is written; FragmentBuffers::finish_commit() makes it count
  };
  [[nodiscard]] Result run(HeldFragment fragment) &&;
};

}  // namespace gossamer::gossip
