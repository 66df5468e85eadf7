// Which memory the open runs of this process work on, so that no two work on the same: each would take the other's
// corrections for training and pass them on, and the model would grow without bound on all nodes.
//
// A run holds one OpenTensors from gossamer_open() to gossamer_close(). They are in one list, the only state that runs
// share; it is guarded by a mutex, as runs may be opened and closed in different threads. A forked child begins with an
// empty list: the runs in it are the parent's.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "sdk/c/error.hpp"
#include "sdk/c/replica.hpp"

namespace gossamer::client {

class OpenTensors {
 public:
  /// Refuses, naming the tensor and the other run's job, if any of them is in another open run.
  [[nodiscard]] static Result<std::unique_ptr<OpenTensors>> enter(const Replica& replica, const std::string& job);
  OpenTensors(const OpenTensors&) = delete;
  OpenTensors& operator=(const OpenTensors&) = delete;
  ~OpenTensors();

  /// The values of the tensor were at `before`, and are at `data` from now on. Refuses likewise, and then nothing has
  /// changed.
  [[nodiscard]] Result<void> move(const Tensor& tensor, const void* before, const void* data);

 private:
  explicit OpenTensors(std::string job) : job_(std::move(job)) {}
  [[nodiscard]] static bool counts(const Tensor& tensor);
  [[nodiscard]] Result<void> objection(const Tensor& tensor, const void* data) const;
  [[nodiscard]] Result<void> enter_list(const Replica& replica);
  void insert(const Tensor& tensor, const void* data);
  [[nodiscard]] bool overlaps(std::uintptr_t begin, std::uintptr_t end) const;

  const std::string job_;
  std::multimap<std::uintptr_t, std::uintptr_t> ranges_;  // begin and end; while tensors swap places, one twice
  OpenTensors* next_ = nullptr;
};

}  // namespace gossamer::client
