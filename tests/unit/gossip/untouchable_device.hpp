// A device for tests whose memory nobody else can touch, as with a GPU. Its addresses are pages without access. The
// processor's memory behind each page is known to the device only. A program that follows such a pointer dies. A
// program that gives the device a foreign or released pointer dies, too, with a message.
//
// It counts its calls and allocations, and fails when it is told to. Any thread may call it, several at a time.

#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>

#include "gossip/played_device.hpp"

namespace gossamer::gossip {

class UntouchableDevice final : public PlayedDevice {
 public:
  UntouchableDevice() : space_(reserve()), next_(space_) {}
  ~UntouchableDevice() override {
    if (allocated() > 0) die("memory is left when it goes", nullptr);
    ::munmap(reinterpret_cast<void*>(space_), space_bytes);
  }

  /// Gives client memory an address on the device, valid as long as the device lives. The client reads and writes the
  /// memory at its own address, and the device at the new one.
  [[nodiscard]] float* hide(std::span<float> memory) const {
    const std::lock_guard lock(mutex_);
    return place({.host = memory.data(), .elements = memory.size()});
  }
  /// The address at which the processor finds the element, for a test that looks at it.
  [[nodiscard]] const float* look(const float* memory) const {
    return memory == nullptr ? nullptr : memory + distance(memory);
  }
  [[nodiscard]] FragmentView look(const FragmentView& y) const {
    return {.publication = look(y.publication), .correction = look(y.correction)};
  }

  /// Arrays that are allocated now.
  [[nodiscard]] std::size_t allocated() const { return allocated_; }
  /// Calls so far, failed ones too.
  [[nodiscard]] std::size_t calls() const { return calls_; }
  /// `times` calls fail, after `after` more that do not.
  void fail(std::size_t after, std::size_t times = 1) const {
    const auto sum = [](std::size_t a, std::size_t b) { return b > all - a ? all : a + b; };
    fail_at_ = sum(calls_, after);
    fail_before_ = sum(fail_at_, times);
  }
  static constexpr std::size_t all = std::numeric_limits<std::size_t>::max();

  Floats allocate(std::size_t elements) const override {
    if (!begins("allocate")) return {};
    Floats memory = processor().allocate(elements);
    const std::lock_guard lock(mutex_);
    float* const host = memory.get();
    ++allocated_;
    return Floats(place({.host = host, .elements = elements, .own = std::move(memory)}), Release{this});
  }

 private:
  struct Array {
    float* host = nullptr;
    std::size_t elements = 0;
    Floats own = {};  // null: a client's memory
  };
  static constexpr std::size_t space_bytes = std::size_t{1} << 36;
  static constexpr std::uintptr_t page = 4096;

  static std::uintptr_t reserve() {
    void* const space = ::mmap(nullptr, space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) die("no addresses are to be had", nullptr);
    return reinterpret_cast<std::uintptr_t>(space);
  }
  [[noreturn]] static void die(const char* why, const float* memory) {
    std::fprintf(stderr, "untouchable device: %s: %p\n", why, static_cast<const void*>(memory));
    std::abort();
  }

  /// No address is given twice, and a page between two arrays belongs to neither.
  float* place(Array array) const {
    const std::uintptr_t at = next_;
    next_ += (array.elements * sizeof(float) + 2 * page - 1) / page * page;
    if (next_ > space_ + space_bytes) die("a test that needs more addresses than there are", nullptr);
    arrays_.emplace(at, std::move(array));
    return reinterpret_cast<float*>(at);
  }

  bool begins(const char* /*call*/) const override {
    const std::size_t call = calls_++;
    return call < fail_at_ || call >= fail_before_;
  }
  std::ptrdiff_t distance(const float* memory) const override {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    const auto after = arrays_.upper_bound(at);
    if (after == arrays_.begin()) die("none of its memory", memory);
    const auto& [first, array] = *std::prev(after);
    if (at - first >= array.elements * sizeof(float)) die("none of its memory", memory);
    return static_cast<std::ptrdiff_t>(reinterpret_cast<std::intptr_t>(array.host) -
                                       static_cast<std::intptr_t>(first)) /
           static_cast<std::ptrdiff_t>(sizeof(float));
  }
  void release(float* memory) const override {
    const std::lock_guard lock(mutex_);
    const auto found = arrays_.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == arrays_.end() || !found->second.own) die("released, but not allocated", memory);
    arrays_.erase(found);
    --allocated_;
  }

  const std::uintptr_t space_;
  mutable std::mutex mutex_;
  mutable std::uintptr_t next_;                     // guarded by mutex_
  mutable std::map<std::uintptr_t, Array> arrays_;  // guarded by mutex_
  mutable std::atomic<std::size_t> allocated_ = 0;
  mutable std::atomic<std::size_t> calls_ = 0;
  mutable std::atomic<std::size_t> fail_at_ = all;
  mutable std::atomic<std::size_t> fail_before_ = all;
};

}  // namespace gossamer::gossip
