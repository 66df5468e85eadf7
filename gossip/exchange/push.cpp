#include "gossip/exchange/push.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "gossip/exchange/outer.hpp"

namespace gossamer::gossip {

PushRule push_rule(std::size_t workers, int least_shift) {
  const auto n = std::max<std::size_t>(workers, 1);
  const int shift = std::clamp<int>(std::bit_width(n - 1), least_shift, max_shift_bound);
  // Let each of n workers make the progress g and push once in a turn. A push is to add p = g / n, so that the n pushes
  // add D = g. Since this worker's last push the others have added D − p. So p = 2^-a · (γ·g − (D − p)).
  return {.shift = shift, .ahead = (std::ldexp(1.0F, shift) - 1) / static_cast<float>(n)};
}

namespace {

/// Writes rate · (y − anchor) to `out`, and moves the anchor to y and so much beyond it: an outer step without momentum
/// so far.
bool move_beyond(const Device& device, const FragmentView& y, std::size_t blocks, float rate, float* anchor,
                 float* out) {
  const std::size_t elements = blocks * block_elements;
  const Device::Floats momentum = device.allocate(elements);
  return momentum != nullptr && device.clear(momentum.get(), elements) &&
         device.outer_step({.momentum = 1, .rate = rate}, {.y = y,
                                                           .block_count = blocks,
                                                           .in = nullptr,
                                                           .out = out,
                                                           .anchor = anchor,
                                                           .momentum = momentum.get(),
                                                           .left_out = {}});
}

}  // namespace

const float* PushState::begin(const Device& device, const FragmentBuffers& buffers, float ahead) {
  const std::size_t blocks = buffers.block_count();
  const std::size_t elements = blocks * block_elements;
  abandon();
  pushed_commits_ = buffers.parts().commits;
  becomes_taken_ = true;
  if (!knows(pushed_commits_)) taken_.reset();
  pushed_ = device.allocate(elements);
  if (pushed_ == nullptr) return nullptr;
  bool done = false;
  if (taken_ == nullptr || ahead == 0) {
    done = device.sum(buffers.y(), blocks, pushed_.get());
  } else {
    extra_ = device.allocate(elements);
    done = extra_ != nullptr && device.copy(pushed_.get(), taken_.get(), elements) &&
           move_beyond(device, buffers.y(), blocks, ahead, pushed_.get(), extra_.get());
  }
  if (done) return pushed_.get();
  abandon();
  return nullptr;
}

bool PushState::keep_parts(const Device& device, std::span<const std::uint8_t> halvings) {
  if (extra_ == nullptr) {  // z is y, which holds training that the server does not have
    becomes_taken_ = std::ranges::find(halvings, left_out) == halvings.end();
    return true;
  }
  for (std::size_t from = 0, to = 0; from < halvings.size(); from = to) {
    while (to < halvings.size() && halvings[to] == halvings[from])
      ++to;
    if (halvings[from] > 0 && !keep_part(device, from, to, halvings[from])) return false;
  }
  return true;
}

bool PushState::keep_part(const Device& device, std::size_t from, std::size_t to, std::uint8_t halvings) {
  const std::size_t first = from * block_elements;
  const std::size_t count = (to - from) * block_elements;
  float* const extra = extra_.get() + first;
  float* const pushed = pushed_.get() + first;
  const float* const taken = taken_.get() + first;
  if (halvings == left_out) return device.clear(extra, count) && device.copy(pushed, taken, count);
  const float rate = std::ldexp(1.0F, -halvings) - 1;
  const Device::Floats towards = device.allocate(count);
  const Device::Floats rest = device.allocate(count);
  const auto keep = [&](float* values) {  // values ← towards + 2^-halvings · (values − towards)
    return move_beyond(device, {.publication = values, .correction = nullptr}, to - from, rate, towards.get(),
                       rest.get()) &&
           device.copy(values, towards.get(), count);
  };
  return towards != nullptr && rest != nullptr && device.clear(towards.get(), count) && keep(extra) &&
         device.copy(towards.get(), taken, count) && keep(pushed);
}

bool PushState::count_part(const Device& device, std::size_t block_count, float ahead, float share) {
  // z − b is (1 + ahead) · (y − b), so this goes from b a part of the way to z.
  const float rate = share / (1 + ahead) - 1;
  if (!move_beyond(device, {.publication = pushed_.get(), .correction = nullptr}, block_count, rate, taken_.get(),
                   extra_.get()))
    return false;
  std::swap(pushed_, taken_);  // finish() makes this one b
  return true;
}

void PushState::finish(bool undisturbed, bool keeps, std::uint32_t commits) {
  taken_ = undisturbed && keeps && becomes_taken_ ? std::move(pushed_) : nullptr;
  taken_commits_ = commits;
  abandon();
}

}  // namespace gossamer::gossip
