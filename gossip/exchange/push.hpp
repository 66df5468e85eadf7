// The exchange between a worker and the server that owns a fragment (method `server`). Only the worker's side differs
// from other exchanges. Let b be the server's value as the worker last took it over, and y that value after the
// worker's training. Then
//
//   the worker pushes  z = b + γ·(y − b)
//   the server moves   V ← V + 2^-a · (z − V), as in any exchange
//   the worker takes   y ← the new V + what the worker has trained since it pushed
//
// If the server moves less because the differences are rounded too coarsely, only a part of y − b counts as pushed. The
// worker then takes nothing over, and pushes the rest later. So does a worker that is alone when it pushes first, since
// the server moves half of the way at most. From the reply the worker learns b.
//
// Each push draws V back by 2^-a of what others have pushed since b, and γ makes up for that. So the server adds the
// mean of the n workers' progress, whatever their speeds and however late they are. The server needs no rule for this:
// it answers a push like any other request. See push_rule(), and docs/explanation/learning.md for figures.
//
// PushState belongs to one fragment. Only the holder of the fragment uses it, or the loop while nobody holds it.

#pragma once

#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/messages.hpp"

namespace gossamer::gossip {

struct PushRule {
  int shift = 1;      ///< a
  float ahead = 0;    ///< γ − 1; 0: this node has no progress to push, it only takes the server's value over
  bool keeps = true;  ///< this node keeps b, since it may push later
  /// No other node pushes. So y − V is all this node's progress, also where b is not known.
  bool alone = false;
};

/// `workers`: the number of nodes that push, this node included. `least_shift`: the lowest `shift` allowed.
[[nodiscard]] PushRule push_rule(std::size_t workers, int least_shift = min_shift_bound);

class PushState {
 public:
  /// Computes z. If b is not known, z is y: before the first push, or if something else than training has changed y
  /// since b was taken over. Null if there is no room, the device fails, or a value is not finite.
  [[nodiscard]] const float* begin(const Device& device, const FragmentBuffers& buffers, float ahead);
  /// Leaves 2^-halvings of the progress in each block of the push, and nothing where that is `left_out`. z moves
  /// towards b by the rest, which is pushed later.
  [[nodiscard]] bool keep_parts(const Device& device, std::span<const std::uint8_t> halvings);
  static constexpr std::uint8_t left_out = 255;
  /// True if there is progress in the push.
  [[nodiscard]] bool has_progress() const { return extra_ != nullptr; }
  /// In place of take(), if the server has moved by this share of what was asked: b ← b + share · (y − b), where y is
  /// the value at begin(), and `ahead` as there. So the rest of the progress is pushed later, and the fragment stays as
  /// it is.
  [[nodiscard]] bool count_part(const Device& device, std::size_t block_count, float ahead, float share);
  /// In place of take(), if b was not known and y − V is progress of which the server has taken only a part: b ← the
  /// new V. So the rest is pushed later, and the fragment stays as it is. If `exact` is false, `move` does not lead to
  /// V, and b stays unknown.
  template <class Move>
  [[nodiscard]] bool learn(bool exact, Move move) {
    becomes_taken_ = becomes_taken_ && exact;
    return move(pushed_.get(), pushed_.get());
  }
  /// Writes the present correction plus V − y to `target`, where y is the value at begin(). `move` adds V − z to an
  /// array.
  template <class Move>
  [[nodiscard]] bool take(const Device& device, const FragmentBuffers& buffers, const FragmentBuffers::Target& target,
                          Move move);
  /// True if b is known and belongs to this count of the fragment's commits.
  [[nodiscard]] bool knows(std::uint32_t commits) const { return taken_ != nullptr && taken_commits_ == commits; }
  /// An earlier daemon of this node has pushed, so it knew b. Others may have pushed since.
  void lose() { lost_ = true; }
  [[nodiscard]] bool is_lost() const { return lost_; }
  /// True if nothing but training has changed the fragment since begin().
  [[nodiscard]] bool is_undisturbed(std::uint32_t commits) const { return pushed_commits_ == commits; }
  /// The server's value is taken over. `commits`: the fragment's count of commits after that. b is known from now on if
  /// the exchange was `undisturbed`, this node `keeps` b, and b is known for the blocks that keep_parts() left out.
  void finish(bool undisturbed, bool keeps, std::uint32_t commits);
  /// Forgets z, because the exchange has failed or is over.
  void abandon() {
    pushed_.reset();
    extra_.reset();
  }

 private:
  [[nodiscard]] bool keep_part(const Device& device, std::size_t from, std::size_t to, std::uint8_t halvings);

  Device::Floats taken_;             // b; null: not known
  std::uint32_t taken_commits_ = 0;  // the fragment's count of commits when it was taken over
  Device::Floats pushed_;            // z, while an exchange is under way
  bool becomes_taken_ = false;       // z becomes b once the server's move is added to it
  Device::Floats extra_;             // z − y at begin(); null: 0
  std::uint32_t pushed_commits_ = 0;
  bool lost_ = false;
};

template <class Move>
bool PushState::take(const Device& device, const FragmentBuffers& buffers, const FragmentBuffers::Target& target,
                     Move move) {
  if (!move(target.in, target.out) || !move(pushed_.get(), pushed_.get())) return false;
  return extra_ == nullptr ||
         device.sum({.publication = target.out, .correction = extra_.get()}, buffers.block_count(), target.out);
}

}  // namespace gossamer::gossip
