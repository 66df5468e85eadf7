// Host memory in place of GPU memory. It is page-locked, so that the GPU reads and writes it at its address, over the
// bus. CudaDevice uses it where the GPU is full (daemon/device/cuda_device.hpp).
//
// Pinning is slow, and a full GPU stays full for a while. Arrays that are given back are therefore kept pinned for the
// next ones of the same length (kept_arrays.hpp); release_idle() frees those that nobody has used since its last call.
// Locked memory is lost to everybody else, so all GPUs of a process share an allowance, and requests beyond it are
// refused.
//
// Overflow: any thread, several at a time. Invariants: nothing is under way in an array that is given back. An array
// that cannot be unpinned is never freed, because the GPU may still write to it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "daemon/device/kept_arrays.hpp"

namespace gossamer::device {

/// How many bytes of host memory may stand in for GPU memory. Any thread.
class HostAllowance {
 public:
  explicit HostAllowance(std::uint64_t bytes = usual_bytes()) : left_(bytes) {}
  /// A quarter of the machine's memory.
  [[nodiscard]] static std::uint64_t usual_bytes();
  /// Takes this many bytes. False: so many are not left, and nothing has been taken.
  [[nodiscard]] bool take(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) { left_ += bytes; }

 private:
  std::atomic<std::uint64_t> left_;
};

class Overflow {
 public:
  /// Locks the pages of host memory for the GPU, and unlocks them.
  struct Pinning {
    std::function<std::string(std::span<std::byte>)> pin;  ///< why it failed; empty: it did not
    std::function<bool(std::byte*)> unpin;
  };
  Overflow(Pinning pinning, std::shared_ptr<HostAllowance> allowance);
  Overflow(const Overflow&) = delete;
  Overflow& operator=(const Overflow&) = delete;

  void share(std::shared_ptr<HostAllowance> allowance) { allowance_ = std::move(allowance); }
  /// Memory with any content, on a page's boundary. Null: there is none, and `trouble` says why.
  [[nodiscard]] float* take(std::size_t bytes);
  /// Whether take() gave this array and end() was not called for it yet.
  [[nodiscard]] bool owns(const float* array) const;
  /// The owner is done with the array. False: the array is not kept for the next (`sound` is false, or enough are
  /// kept), and the caller has to call end().
  [[nodiscard]] bool give_back(float* array, bool sound);
  /// Unpins an array that is not kept. May wait for the GPU.
  void end(float* array);
  /// Arrays that were already kept at the last call and have not been used since. The caller ends them.
  [[nodiscard]] std::vector<float*> release_idle();
  /// Call this before the GPU is closed, when no array is in use any more. `lost`: the GPU hangs, or may still write to
  /// idle arrays.
  void end_idle(bool lost);

  /// Figures for people.
  struct Use {
    std::uint64_t bytes = 0;       ///< bytes in use now
    std::uint64_t most_bytes = 0;  ///< the most in use at once since this was last asked
    std::uint64_t idle_bytes = 0;  ///< bytes kept for the next arrays
    std::string trouble;           ///< why an array was refused since this was last asked; empty: none was
  };
  [[nodiscard]] Use use();
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  [[nodiscard]] float* take_idle(std::size_t bytes);
  [[nodiscard]] float* make(std::size_t bytes);
  [[nodiscard]] float* refuse(std::string why);
  /// The caller holds the mutex.
  void count_use(std::size_t bytes);

  const Pinning pinning_;
  std::shared_ptr<HostAllowance> allowance_;
  mutable std::mutex mutex_;  // guards all members below
  KeptArrays arrays_;
  Use use_;
};

}  // namespace gossamer::device
