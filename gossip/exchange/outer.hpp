// The outer optimiser: momentum on a fragment's movement since the last outer step, by training and mixing together.
//
// For each fragment a replica keeps an anchor φ (the fragment after the last outer step) and a momentum v. With x the
// present fragment, an outer step is
//
//   v ← μ·v + (x − φ)
//   x ← x + η·μ·v
//   φ ← x
//
// The displacement itself is not scaled. This is the delayed Nesterov momentum of Liu et al. 2024 (arXiv 2401.09135,
// alg. 3), where training and mixing have already made the pushes of one period. At η = 1 it is DiLoCo's outer step
// with outer learning rate 1 (Douillard et al. 2023, arXiv 2311.08105, alg. 1). DiLoCo's general form scales the
// displacement as well; it was worse in every measurement (docs/explanation/learning.md).
//
// An outer step is purely local: nothing is sent for it. It uses the total displacement, because momentum on the local
// part alone drives replicas apart. So it is taken only after at least two exchanges of the fragment since the last
// one. Its effect reaches the client as a correction. It costs two fp32 copies of the model.
//
// OuterState belongs to one fragment. Only the holder of the fragment uses it (the loop, or a task on a worker).

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
  /// Ranges that outer steps do not change (statistics are averaged, not optimised): ascending, without overlap.
  void leave_out(std::vector<ElementRange> ranges) { left_out_ = std::move(ranges); }
  /// True if outer steps leave part of the fragment out.
  [[nodiscard]] bool leaves_out() const { return !left_out_.empty(); }
  [[nodiscard]] bool begun() const { return anchor_ != nullptr; }
  /// Bytes of the device's memory that it uses.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  friend struct OuterTask;
  /// Sets the anchor to y. The result is false in the cases of OuterTask::Result::finite.
  [[nodiscard]] bool begin(const Device& device, const FragmentView& y, std::size_t block_count);

  Device::Floats anchor_;
  Device::Floats momentum_;
  std::size_t bytes_ = 0;
  std::vector<ElementRange> left_out_;
};

/// The arrays of an outer step. They are in the memory of the device that takes it, with `block_count` blocks each.
struct OuterFragment {
  FragmentView y;
  std::size_t block_count = 0;
  const float* in = nullptr;  ///< the present correction; null: zero
  float* out = nullptr;       ///< the new correction; may be `in`, or the correction of y
  float* anchor = nullptr;
  float* momentum = nullptr;
  std::span<const ElementRange> left_out;
};

/// Takes an outer step on the processor. False if a result would not be finite: nothing is changed then.
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
