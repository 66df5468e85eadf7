// Memory for a frame that a kernel is about to fill. It is then passed on as Bytes, finally to ZeroMQ, without a copy.
//
// Unlike a vector, the memory is not zeroed first, which would cost an eighth of an exchange's computing. So its user
// must write every byte before share(). The memory begins at a cache line. One owner until share(), any thread.

#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "gossip/types.hpp"

namespace gossamer::gossip {

class FrameBuffer {
 public:
  static constexpr std::align_val_t alignment{64};

  explicit FrameBuffer(std::size_t size_bytes)
      : memory_(static_cast<std::byte*>(::operator new(size_bytes, alignment))), size_bytes_(size_bytes) {}

  [[nodiscard]] std::span<std::byte> bytes() { return {memory_.get(), size_bytes_}; }
  template <class T>
  [[nodiscard]] std::span<T> as() {
    return {reinterpret_cast<T*>(memory_.get()), size_bytes_ / sizeof(T)};
  }
  /// The same memory, from now on for reading only.
  [[nodiscard]] Bytes share() && {
    const std::span<const std::byte> all = bytes();
    return {std::shared_ptr<const void>(std::move(memory_)), all};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, alignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_bytes_;
};

}  // namespace gossamer::gossip
