#include "gossip/outer.hpp"

#include <algorithm>
#include <cmath>

#include "gossip/check.hpp"
#include "gossip/exchange.hpp"

namespace gossamer::gossip {

OuterTask::Result OuterTask::run(HeldFragment fragment) && {
  GOSSAMER_CHECK(fragment.outer != nullptr);
  FragmentBuffers& buffers = fragment.buffers;
  OuterState& state = *fragment.outer;
  const std::size_t elements = buffers.block_count() * block_elements;
  std::vector<float> x(elements);
  if (!sum(buffers.y(), buffers.block_count(), x.data())) return {};
  if (!state.begun()) {
    state.anchor_ = std::move(x);
    state.momentum_.assign(elements, 0.0F);
    return {.finite = true};
  }
  std::vector<float> v(elements);
  std::vector<float> push(elements);
  bool finite = true;
  for (std::size_t e = 0; e < elements; ++e) {
    v[e] = options.momentum * state.momentum_[e] + (x[e] - state.anchor_[e]);
    push[e] = options.rate * options.momentum * v[e];
    finite = finite && std::isfinite(x[e] + push[e]);
  }
  if (!finite) return {};
  for (const auto& [first, last] : state.left_out_)
    std::fill(push.begin() + first, push.begin() + last, 0.0F);
  const auto target = buffers.begin_commit();
  for (std::size_t e = 0; e < elements; ++e) {
    target.out[e] = (target.in == nullptr ? 0.0F : target.in[e]) + push[e];
    state.anchor_[e] = x[e] + push[e];
  }
  state.momentum_ = std::move(v);
  return {.finite = true, .commit = true};
}

}  // namespace gossamer::gossip
