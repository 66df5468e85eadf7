#include "daemon/device/overflow.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::device {
namespace {

[[nodiscard]] std::size_t whole_pages(std::size_t bytes) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

std::uint64_t HostAllowance::usual_bytes() {
  constexpr std::uint64_t share = 4;
  const auto pages = static_cast<std::uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L));
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / share;
}

bool HostAllowance::take(std::uint64_t bytes) {
  std::uint64_t left = left_;
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes)) return true;
  }
  return false;
}

Overflow::Overflow(Pinning pinning, std::shared_ptr<HostAllowance> allowance)
    : pinning_(std::move(pinning)), allowance_(std::move(allowance)) {}

float* Overflow::take(std::size_t bytes) {
  const std::size_t whole = whole_pages(bytes);
  if (float* const kept = take_idle(whole)) return kept;
  return make(whole);
}

float* Overflow::take_idle(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  float* const kept = arrays_.take(bytes);
  if (kept != nullptr) count_use(bytes);
  return kept;
}

float* Overflow::make(std::size_t bytes) {
  if (!allowance_->take(bytes)) return refuse("all host memory that may stand in for GPUs, a quarter of it, is in use");
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    allowance_->give_back(bytes);
    return refuse(std::strerror(errno));
  }
  if (std::string why = pinning_.pin({static_cast<std::byte*>(memory), bytes}); !why.empty()) {
    ::munmap(memory, bytes);
    allowance_->give_back(bytes);
    return refuse(std::move(why));
  }
  auto* const array = static_cast<float*>(memory);
  const std::scoped_lock lock(mutex_);
  arrays_.add(array, bytes);
  count_use(bytes);
  return array;
}

void Overflow::count_use(std::size_t bytes) {
  use_.bytes += bytes;
  use_.most_bytes = std::max(use_.most_bytes, use_.bytes);
}

float* Overflow::refuse(std::string why) {
  const std::scoped_lock lock(mutex_);
  use_.trouble = std::move(why);
  return nullptr;
}

bool Overflow::owns(const float* array) const {
  const std::scoped_lock lock(mutex_);
  return arrays_.owns(array);
}

bool Overflow::give_back(float* array, bool sound) {
  const std::scoped_lock lock(mutex_);
  use_.bytes -= arrays_.bytes_of(array);
  return sound && arrays_.keep(array);
}

void Overflow::end(float* array) {
  std::size_t bytes = 0;
  {
    const std::scoped_lock lock(mutex_);
    bytes = arrays_.end(array);
  }
  if (!pinning_.unpin(reinterpret_cast<std::byte*>(array))) return;
  ::munmap(array, bytes);
  allowance_->give_back(bytes);
}

std::vector<float*> Overflow::release_idle() {
  const std::scoped_lock lock(mutex_);
  return arrays_.take_back(KeptArrays::Idle::stale);
}

void Overflow::end_idle(bool lost) {
  if (lost) return;
  std::vector<float*> idle;
  {
    const std::scoped_lock lock(mutex_);
    idle = arrays_.take_back(KeptArrays::Idle::all);
  }
  for (float* const array : idle)
    end(array);
}

Overflow::Use Overflow::use() {
  const std::scoped_lock lock(mutex_);
  Use now = use_;
  now.idle_bytes = arrays_.idle_bytes();
  use_.most_bytes = use_.bytes;
  use_.trouble.clear();
  return now;
}

std::uint64_t Overflow::bytes() const {
  const std::scoped_lock lock(mutex_);
  return use_.bytes;
}

}  // namespace gossamer::device
