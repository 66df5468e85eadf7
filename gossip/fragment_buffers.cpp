#include "gossip/fragment_buffers.hpp"

#include <utility>

#include "gossip/check.hpp"

namespace gossamer::gossip {

FragmentView FragmentBuffers::y() const {
  if (is_gathered_) return {.publication = gathered_.get()};
  GOSSAMER_CHECK(!parts_.replace && !parts_.empty);
  return {.publication = buffers_[parts_.publication],
          .correction = parts_.correction_valid ? buffers_[parts_.correction] : nullptr,
          .pending = pending_.get()};
}

FragmentBuffers::Target FragmentBuffers::begin_commit() {
  if (is_gathered_) return {.in = gathered_.get(), .out = gathered_.get()};
  GOSSAMER_CHECK(!parts_.replace && !parts_.empty);
  if (parts_.with_client) {
    const bool first = pending_ == nullptr;
    if (first) pending_ = device_->allocate(elements());
    return {.in = first ? nullptr : pending_.get(), .out = pending_.get()};
  }
  GOSSAMER_CHECK(pending_ == nullptr);
  return {.in = parts_.correction_valid ? buffers_[parts_.correction] : nullptr, .out = buffers_[parts_.spare()]};
}

void FragmentBuffers::finish_commit() {
  if (is_gathered_) {
    committed_ = true;
    return;
  }
  if (parts_.with_client) return;
  parts_.correction = parts_.spare();
  parts_.correction_valid = true;
}

void FragmentBuffers::abandon_commit(const Target& target) {
  if (target.in == nullptr) pending_.reset();
}

float* FragmentBuffers::begin_replace() {
  GOSSAMER_CHECK(!is_gathered_ && !parts_.with_client && pending_ == nullptr);
  return buffers_[parts_.spare()];
}

void FragmentBuffers::finish_replace() {
  parts_.correction = parts_.spare();
  parts_.correction_valid = true;
  parts_.replace = true;
}

void FragmentBuffers::hand_over() {
  GOSSAMER_CHECK(!parts_.with_client && pending_ == nullptr);
  parts_.with_client = true;
  handed_changes_ = std::exchange(committed_, false);
}

bool FragmentBuffers::take_back(std::uint32_t generation) {
  GOSSAMER_CHECK(parts_.with_client);
  parts_.publication = parts_.spare();
  parts_.correction_valid = false;
  parts_.replace = false;
  parts_.with_client = false;
  parts_.empty = false;
  parts_.generation = generation;
  return is_gathered_ || pending_ != nullptr;
}

void FragmentBuffers::drop() {
  GOSSAMER_CHECK(!is_gathered_ && !parts_.with_client && !has_correction());
  parts_.empty = true;
}

bool FragmentBuffers::fold() {
  GOSSAMER_CHECK(pending_ != nullptr);
  return device_->copy(buffers_[parts_.spare()], pending_.get(), elements());
}

void FragmentBuffers::finish_fold() {
  if (is_gathered_) return;
  GOSSAMER_CHECK(!parts_.with_client && !parts_.correction_valid);
  parts_.correction = parts_.spare();
  parts_.correction_valid = true;
  pending_.reset();
}

bool FragmentBuffers::gather(const FragmentView& from) {
  if (gathered_ == nullptr) gathered_ = device_->allocate(elements());
  return gathered_ != nullptr && device_->sum(from, block_count_, gathered_.get());
}

void FragmentBuffers::finish_gather() {
  GOSSAMER_CHECK(!is_gathered_ && !parts_.replace);
  committed_ = has_correction();  // the clients are to collect it, whoever they are by now
  is_gathered_ = true;
  parts_.correction_valid = false;
  pending_.reset();
}

}  // namespace gossamer::gossip
