#include "gossip/exchange/outer.hpp"

#include <algorithm>
#include <cmath>

#include "gossip/check.hpp"
#include "gossip/exchange/exchange.hpp"

namespace gossamer::gossip {

bool outer_step(const OuterOptions& options, const OuterFragment& fragment) {
  const std::size_t elements = fragment.block_count * block_elements;
  // A copy of y is checked and used, since y may be a client's memory.
  std::vector<float> x(elements);
  if (!sum(fragment.y, fragment.block_count, x.data())) return false;
  std::vector<float> v(elements);
  std::vector<float> push(elements);
  bool finite = true;
  for (std::size_t e = 0; e < elements; ++e) {
    const auto step = parts::outer_step(options.momentum, options.rate, x[e], fragment.anchor[e], fragment.momentum[e]);
    v[e] = step.momentum;
    push[e] = step.push;
    finite = finite && std::isfinite(x[e] + push[e]);
  }
  if (!finite) return false;
  for (const auto& [first, last] : fragment.left_out)
    std::fill(push.begin() + first, push.begin() + last, 0.0F);
  for (std::size_t e = 0; e < elements; ++e) {
    fragment.out[e] = (fragment.in == nullptr ? 0.0F : fragment.in[e]) + push[e];
    fragment.anchor[e] = x[e] + push[e];
    fragment.momentum[e] = v[e];
  }
  return true;
}

bool OuterState::begin(const Device& device, const FragmentView& y, std::size_t block_count) {
  const std::size_t elements = block_count * block_elements;
  Device::Floats anchor = device.allocate(elements);
  Device::Floats momentum = device.allocate(elements);
  if (anchor == nullptr || momentum == nullptr) return false;
  if (!device.sum(y, block_count, anchor.get()) || !device.clear(momentum.get(), elements)) return false;
  anchor_ = std::move(anchor);
  momentum_ = std::move(momentum);
  bytes_ = 2 * elements * sizeof(float);
  return true;
}

OuterTask::Result OuterTask::run(HeldFragment fragment) && {
  GOSSAMER_CHECK(fragment.outer != nullptr);
  FragmentBuffers& buffers = fragment.buffers;
  OuterState& state = *fragment.outer;
  if (!state.begun()) return {.finite = state.begin(fragment.device, buffers.y(), buffers.block_count())};
  const FragmentView y = buffers.y();
  const auto target = buffers.begin_commit();
  if (target.out == nullptr) return {};
  const bool done = fragment.device.outer_step(options, {.y = y,
                                                         .block_count = buffers.block_count(),
                                                         .in = target.in,
                                                         .out = target.out,
                                                         .anchor = state.anchor_.get(),
                                                         .momentum = state.momentum_.get(),
                                                         .left_out = state.left_out_});
  const bool kept = done && buffers.write_back();
  return {.finite = kept, .commit = kept};
}

}  // namespace gossamer::gossip
