#include "gossip/exchange/fragment_buffers.hpp"

#include <utility>

#include "gossip/check.hpp"

namespace gossamer::gossip {

FragmentView FragmentBuffers::y() const {
  if (is_gathered_) return {.publication = computes_in_copy() ? copies_[copy_] : gathered_.get()};
  GOSSAMER_CHECK(!parts_.replace && !parts_.empty);
  return {.publication = buffers_[parts_.publication],
          .correction = parts_.correction_valid ? buffers_[parts_.correction] : nullptr};
}

FragmentBuffers::Target FragmentBuffers::begin_commit() {
  if (is_gathered_ && computes_in_copy()) return {.in = copies_[copy_], .out = copies_[1 - copy_]};
  if (is_gathered_) return {.in = gathered_.get(), .out = gathered_.get()};
  GOSSAMER_CHECK(!parts_.replace && !parts_.empty && !parts_.with_client);
  return {.in = parts_.correction_valid ? buffers_[parts_.correction] : nullptr, .out = buffers_[parts_.spare()]};
}

void FragmentBuffers::finish_commit() {
  parts_.commits = (parts_.commits + 1) % commits_modulus;
  if (is_gathered_) {
    committed_ = true;
    finish_change();
    return;
  }
  parts_.correction = parts_.spare();
  parts_.correction_valid = true;
}

void FragmentBuffers::recall() {
  GOSSAMER_CHECK(out_of_hand() && !parts_.replace);
  parts_.with_client = false;
}

float* FragmentBuffers::begin_replace() {
  GOSSAMER_CHECK(!is_gathered_ && !parts_.with_client);
  return buffers_[parts_.spare()];
}

void FragmentBuffers::finish_replace() {
  parts_.correction = parts_.spare();
  parts_.correction_valid = true;
  parts_.replace = true;
}

void FragmentBuffers::hand_over() {
  GOSSAMER_CHECK(!parts_.with_client);
  parts_.with_client = true;
  handed_changes_ = std::exchange(committed_, false);
}

void FragmentBuffers::take_back(std::uint32_t generation) {
  GOSSAMER_CHECK(parts_.with_client);
  parts_.publication = parts_.spare();
  parts_.correction_valid = false;
  parts_.replace = false;
  parts_.with_client = false;
  parts_.empty = false;
  parts_.generation = generation;
}

void FragmentBuffers::drop() {
  GOSSAMER_CHECK(!is_gathered_ && !parts_.with_client && !has_correction());
  parts_.empty = true;
}

bool FragmentBuffers::gather() {
  GOSSAMER_CHECK(!is_gathered_ && copies_[0] != nullptr);
  if (!computes_in_copy() && gathered_ == nullptr) gathered_ = device_->allocate(elements());
  const std::span<float> target = values();
  if (target.empty() || !device_->sum(y(), block_count_, target.data())) return false;
  return computes_in_copy() || device_->download({copies_[copy_], elements()}, target.data());
}

std::span<float> FragmentBuffers::values() {
  float* const y = computes_in_copy() ? copies_[copy_] : gathered_.get();
  return {y, y == nullptr ? 0 : elements()};
}

std::span<float> FragmentBuffers::begin_change() {
  if (!computes_in_copy()) return values();
  float* const y = copies_[1 - copy_];
  GOSSAMER_CHECK(device_->copy(y, copies_[copy_], elements()));  // within the host's memory
  return {y, elements()};
}

bool FragmentBuffers::write_back() {
  if (!is_gathered_ || computes_in_copy()) return true;
  if (device_->download({copies_[1 - copy_], elements()}, gathered_.get())) return true;
  (void)device_->upload(gathered_.get(), {copies_[copy_], elements()});  // if it fails, y is lost and the job ends
  return false;
}

bool FragmentBuffers::take_copy_over(std::uint8_t buffer, std::uint32_t commits) {
  GOSSAMER_CHECK(!is_gathered_ && copies_[0] != nullptr);
  if (!computes_in_copy()) {
    gathered_ = device_->allocate(elements());
    if (gathered_ == nullptr || !device_->upload(gathered_.get(), {copies_[buffer], elements()})) return false;
  }
  copy_ = buffer;
  is_gathered_ = true;
  parts_.commits = commits;
  parts_.correction_valid = parts_.replace = parts_.with_client = parts_.empty = false;
  return true;
}

void FragmentBuffers::finish_gather() {
  GOSSAMER_CHECK(!is_gathered_ && !parts_.replace);
  committed_ = has_correction();  // the clients are to collect it, even if they are other clients by then
  is_gathered_ = true;
  parts_.correction_valid = false;
}

}  // namespace gossamer::gossip
