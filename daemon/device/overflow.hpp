// Host memory in place of a GPU's: page-locked, so that the GPU reads and writes it at its address, over the bus. It is
// what CudaDevice gives where the GPU is full (daemon/device/cuda_device.hpp).
//
// Pinning is slow, and a GPU that is full is full for a while. So arrays that are given back are kept for the next
// that are as long, still pinned, up to max_idle_bytes; release_idle() lets go those that nobody has wanted since it
// was called last. Memory that is locked is lost to everybody else: all GPUs of a process share an allowance, and what
// goes beyond it is refused.
//
// Overflow: any thread, several at a time. Invariants: what is given back has nothing under way in it; what cannot be
// unpinned is left where it is until the process ends, since the GPU may still write to it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace gossamer::device {

/// Bytes of host memory that may stand in for the memory of GPUs. Any thread.
class HostAllowance {
 public:
  explicit HostAllowance(std::uint64_t bytes = usual_bytes()) : left_(bytes) {}
  /// A quarter of the machine's memory.
  [[nodiscard]] static std::uint64_t usual_bytes();
  /// False: so much is not left, and nothing has been taken.
  [[nodiscard]] bool take(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) { left_ += bytes; }

 private:
  std::atomic<std::uint64_t> left_;
};

class Overflow {
 public:
  /// Of arrays that nobody uses, kept for the next.
  static constexpr std::size_t max_idle_bytes = std::size_t{64} << 20;

  /// What locks the pages of host memory for the GPU, and lets them go.
  struct Pinning {
    std::function<std::string(std::span<std::byte>)> pin;  ///< why it cannot be done; empty: it is
    std::function<bool(std::byte*)> unpin;
  };
  Overflow(Pinning pinning, std::shared_ptr<HostAllowance> allowance);
  Overflow(const Overflow&) = delete;
  Overflow& operator=(const Overflow&) = delete;

  void share(std::shared_ptr<HostAllowance> allowance) { allowance_ = std::move(allowance); }
  /// Of any value, on a page's boundary. Null: it is not to be had, and trouble is why.
  [[nodiscard]] float* take(std::size_t bytes);
  /// Whether take() gave it, and it has not ended.
  [[nodiscard]] bool owns(const float* array) const;
  /// The owner is done with it. False: it is not kept for the next (`sound` false, or enough is), and end() is to be
  /// called.
  [[nodiscard]] bool give_back(float* array, bool sound);
  /// Unpins an array that is not kept. May wait for the GPU.
  void end(float* array);
  /// Those that were kept at the last call already, and not used since: to be ended.
  [[nodiscard]] std::vector<float*> release_idle();
  /// Before the GPU is closed, when nothing is in use any more. `lost`: it may still write to what is idle, or hang.
  void end_idle(bool lost);

  /// For people.
  struct Use {
    std::uint64_t bytes = 0;       ///< in use now
    std::uint64_t most_bytes = 0;  ///< at once, since this was last asked
    std::uint64_t idle_bytes = 0;  ///< kept for the next
    std::string trouble;           ///< why an array was refused, since this was last asked; empty: none was
  };
  [[nodiscard]] Use use();
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  struct Array {
    std::size_t bytes = 0;
    bool idle = false;
    bool stale = false;  // idle since release_idle() was called last
  };
  [[nodiscard]] float* take_idle(std::size_t bytes);
  [[nodiscard]] float* make(std::size_t bytes);
  [[nodiscard]] float* refuse(std::string why);
  /// Under the mutex.
  void count_use(std::size_t bytes);

  const Pinning pinning_;
  std::shared_ptr<HostAllowance> allowance_;
  mutable std::mutex mutex_;  // over all below
  std::map<const float*, Array> arrays_;
  Use use_;
};

}  // namespace gossamer::device
