// How a worker and the server that owns a fragment meet (method `server`). It is an exchange of which only the worker's
// side differs. Let b be the server's value as the worker last took it over, and y what the worker's training has made
// of it. Then
//
//   the worker pushes  z = b + γ·(y − b)
//   the server moves   V ← V + 2^-a · (z − V), as in any exchange
//   the worker takes   y ← V as it then is, and what it has trained since it pushed on top
//
// Each push draws V back by 2^-a of what others have pushed since b, and γ makes up for that: of n workers the server
// comes to add the mean of their progress, whatever their speeds and however late they are. Nothing of that depends on
// the server, which answers a request like any other. See push_rule(), and docs/explanation/learning.md for figures.
//
// PushState belongs to one fragment. Only the holder of the fragment uses it, or the loop while nobody holds it.

#pragma once

#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/messages.hpp"

namespace gossamer::gossip {

struct PushRule {
  int shift = 1;    ///< a
  float ahead = 0;  ///< γ − 1; 0: this node has no progress to push, it only takes the server's value over
};

/// `workers`: all that push, this node included. `least_shift`: the least that the server may move by.
[[nodiscard]] PushRule push_rule(std::size_t workers, int least_shift = min_shift_bound);

class PushState {
 public:
  /// Computes z. Without a b it is y: at first, or if y has changed otherwise than by training since b was taken over.
  /// Null if there is no room, the device fails, or a value is not finite.
  [[nodiscard]] const float* begin(const Device& device, const FragmentBuffers& buffers, float ahead);
  /// Only these blocks, ascending, take part: the others are as they were before begin().
  [[nodiscard]] bool keep_only(const Device& device, std::span<const std::uint32_t> blocks, std::size_t block_count);
  /// Writes the present correction and V − y to `target`, y being as it was pushed. `move` adds V − z to what it is
  /// given.
  template <class Move>
  [[nodiscard]] bool take(const Device& device, const FragmentBuffers& buffers, const FragmentBuffers::Target& target,
                          Move move);
  /// b is known, if the fragment's count of commits is this.
  [[nodiscard]] bool knows(std::uint32_t commits) const { return taken_ != nullptr && taken_commits_ == commits; }
  /// Nothing but training has changed the fragment since begin().
  [[nodiscard]] bool is_undisturbed(std::uint32_t commits) const { return pushed_commits_ == commits; }
  /// The server's value counts as taken over. `commits`: those of the fragment afterwards.
  void finish(bool undisturbed, bool keeps, std::uint32_t commits);
  /// What was pushed is not taken over: the exchange has failed.
  void abandon() {
    pushed_.reset();
    extra_.reset();
  }

 private:
  Device::Floats taken_;             // b; null: not known
  std::uint32_t taken_commits_ = 0;  // the fragment's count of commits when it was taken over
  Device::Floats pushed_;            // z, while an exchange is under way
  Device::Floats extra_;             // z − y as it was pushed; null: 0
  std::uint32_t pushed_commits_ = 0;
};

template <class Move>
bool PushState::take(const Device& device, const FragmentBuffers& buffers, const FragmentBuffers::Target& target,
                     Move move) {
  if (!move(target.in, target.out) || !move(pushed_.get(), pushed_.get())) return false;
  return extra_ == nullptr ||
         device.sum({.publication = target.out, .correction = extra_.get()}, buffers.block_count(), target.out);
}

}  // namespace gossamer::gossip
