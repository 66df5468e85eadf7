// What the runtime's and the driver's functions have in common. Everything is under one mutex, but for the work of
// streams.

#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/host_cuda/runtime.hpp"

namespace host_cuda {

/// Of a GPU's memory that can be shared.
inline constexpr std::size_t page_bytes = std::size_t{2} << 20;

/// Ends the process: the program did what the manual says that it must not.
[[noreturn]] void undefined(const std::string& what);

struct Machine;

/// Its thread keeps it alive, and ends when all is done that was enqueued before it was told to.
class Stream {
 public:
  /// Blocking: it comes after what the default stream had before, and the default stream after it.
  [[nodiscard]] static std::shared_ptr<Stream> start(Machine& machine, int device, bool is_default, bool blocking);

  // Under the machine's mutex:
  void enqueue(std::function<void()> work);
  void end();
  /// Does nothing until it is released.
  void hold(bool held);
  [[nodiscard]] bool idle() const { return done_ == enqueued_; }
  [[nodiscard]] bool is_done(std::uint64_t number) const { return done_ >= number; }
  [[nodiscard]] std::uint64_t enqueued() const { return enqueued_; }

  const int device;
  const bool is_default;
  const bool blocking;

 private:
  Stream(Machine& machine, int device, bool is_default, bool blocking)
      : device(device), is_default(is_default), blocking(blocking), machine_(machine) {}

  using Point = std::pair<std::shared_ptr<Stream>, std::uint64_t>;
  struct Work {
    std::vector<Point> after;
    std::function<void()> run;
  };
  void run();

  Machine& machine_;
  std::condition_variable wanted_;  ///< something is in the queue, or the end
  std::deque<Work> queue_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t done_ = 0;
  bool ends_ = false;
  bool held_ = false;
};

struct Event {
  int device;
  bool timed;
  std::shared_ptr<Stream> stream = {};  ///< null: not recorded yet
  std::uint64_t number = 0;
  std::shared_ptr<std::int64_t> at_ns = {};
};

enum class Kind : std::uint8_t { device, host, registered, mapping, adopted };

struct Range {
  Kind kind;
  std::size_t bytes;
  int device;
};

/// Memory that can be shared; of this process's handles and mappings.
struct Allocation {
  ~Allocation();
  int descriptor = -1;
  std::size_t bytes = 0;
  int device = 0;
  bool own = false;  ///< counts as this process's
};

struct Reservation {
  std::size_t bytes;
  std::shared_ptr<Allocation> mapped;
};

struct Machine {
  Machine();

  std::mutex mutex;
  std::condition_variable changed;  ///< a stream has done something
  int gpus = 1;
  std::size_t memory_bytes = 0;
  std::map<int, std::shared_ptr<Stream>> default_streams;
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::map<cudaEvent_t, Event> events;
  std::map<std::uintptr_t, Range> ranges;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> handles;
  std::map<std::uintptr_t, Reservation> reservations;
  std::map<int, std::size_t> used_bytes;
  std::uintptr_t next_handle = 1;
  std::uint64_t seed = 0;

  std::uint64_t launches = 0;
  std::uint64_t calls = 0;
  std::uint64_t fails_at = 0;
  bool fails_for_good = false;
  cudaError_t error = cudaErrorUnknown;
  std::string failed;  ///< the function that did

  [[nodiscard]] std::shared_ptr<Stream> stream(cudaStream_t handle, int current_device);
  [[nodiscard]] const Range* find(const void* address) const;
  /// Waits until all streams of the device, or of all devices, have nothing to do.
  void wait_for_streams(std::unique_lock<std::mutex>& lock, std::optional<int> device = std::nullopt);
  [[nodiscard]] bool has_room(int device, std::size_t bytes);
};

Machine& machine();

/// Every call begins with one: counts it, and fails() if the test wants it to. `function`: the caller's name.
class Entry {
 public:
  explicit Entry(const char* function = __builtin_FUNCTION());
  [[nodiscard]] bool fails() const { return fails_; }
  /// It is one of many, nobody knows how many, that ask whether something is done.
  void does_not_count();
  [[nodiscard]] cudaError_t error() const { return error_; }
  std::unique_lock<std::mutex> lock;

 private:
  bool fails_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace host_cuda
