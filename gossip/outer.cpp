#include "gossip/outer.hpp"

#include <cmath>

namespace gossamer::gossip {

namespace {

/// Where an outer step takes x, and what becomes of v.
float outer_step(const OuterOptions& options, float anchor, float x, float& v) {
  const float g = anchor - x;
  v = options.momentum * v + g;
  if (options.kind == OuterKind::delayed) return x - options.rate * options.momentum * v;
  return anchor - options.rate * (g + options.momentum * v);
}

}  // namespace

OuterTask::Result OuterTask::run(FragmentBuffers& buffers, OuterState& state) const {
  const std::size_t elements = buffers.block_count() * block_elements;
  const FragmentView y = buffers.y();
  std::vector<float> x(elements);
  if (!sum(y, buffers.block_count(), x.data())) return {};
  if (!state.begun()) {
    state.anchor_ = std::move(x);
    state.momentum_.assign(elements, 0.0F);
    return {.finite = true};
  }
  std::vector<float> v = state.momentum_;
  std::vector<float> delta(elements);
  bool finite = true;
  for (std::size_t e = 0; e < elements; ++e) {
    const float moved = outer_step(options, state.anchor_[e], x[e], v[e]);
    delta[e] = moved - x[e];
    finite = finite && std::isfinite(moved) && std::isfinite(delta[e]);
  }
  if (!finite) return {};
  const auto target = buffers.begin_commit();
  for (std::size_t e = 0; e < elements; ++e) {
    target.out[e] = (target.in == nullptr ? 0.0F : target.in[e]) + delta[e];
    state.anchor_[e] = x[e] + delta[e];
  }
  state.momentum_ = std::move(v);
  return {.finite = true, .commit = true};
}

}  // namespace gossamer::gossip
