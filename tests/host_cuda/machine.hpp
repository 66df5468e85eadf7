// The state that the runtime's and the driver's functions share. Everything is under one mutex, except the work of
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

/// The page size of GPU memory that can be shared.
inline constexpr std::size_t page_bytes = std::size_t{2} << 20;

/// Ends the process, because the program did something that the manual forbids.
[[noreturn]] void undefined(const std::string& what);

struct Machine;

/// The stream's own thread keeps the object alive, and ends when all work is done that was enqueued before end().
class Stream {
 public:
  /// A blocking stream comes after the earlier work of the default stream, and the default stream comes after it.
  [[nodiscard]] static std::shared_ptr<Stream> start(Machine& machine, int device, bool is_default, bool blocking);

  // The caller of these holds the machine's mutex.
  void enqueue(std::function<void()> work);
  void end();
  /// While held, the stream does nothing.
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
  std::condition_variable wanted_;  ///< there is work in the queue, or the end has come
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

/// Memory that processes can share. The handles and mappings of this process keep it alive.
struct Allocation {
  ~Allocation();
  int descriptor = -1;
  std::size_t bytes = 0;
  int device = 0;
  bool own = false;  ///< whether it counts as this process's
};

struct Reservation {
  std::size_t bytes;
  std::shared_ptr<Allocation> mapped;
};

struct Machine {
  Machine();

  std::mutex mutex;
  std::condition_variable changed;  ///< a stream has finished some work
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
  std::string failed;  ///< the function that failed

  [[nodiscard]] std::shared_ptr<Stream> stream(cudaStream_t handle, int current_device);
  [[nodiscard]] const Range* find(const void* address) const;
  /// Waits until the streams of the device, or of all devices, have nothing to do.
  void wait_for_streams(std::unique_lock<std::mutex>& lock, std::optional<int> device = std::nullopt);
  [[nodiscard]] bool has_room(int device, std::size_t bytes);
};

Machine& machine();

/// Every call begins with an Entry, which counts it; fails() says whether the test wants the call to fail. `function`
/// is the caller's name.
class Entry {
 public:
  explicit Entry(const char* function = __builtin_FUNCTION());
  [[nodiscard]] bool fails() const { return fails_; }
  /// For calls that ask whether something is done, because nobody knows how many there are.
  void does_not_count();
  [[nodiscard]] cudaError_t error() const { return error_; }
  std::unique_lock<std::mutex> lock;

 private:
  bool fails_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace host_cuda
