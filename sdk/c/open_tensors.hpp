// The memory that the open runs of this process work on, so that no two runs work on the same memory. Two such runs
// would each take the other's corrections for training and pass them on, and the model would grow without bound on all
// nodes.
//
// A run holds one OpenTensors from gossamer_open() to gossamer_close(). They are in one list, which is the only state
// that runs share. A mutex guards it, because runs may be opened and closed in different threads. A forked child begins
// with an empty list, because the runs in it are the parent's.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "sdk/c/client_replica.hpp"
#include "sdk/c/error.hpp"

namespace gossamer::client {

class OpenTensors {
 public:
  /// Fails if any of the tensors is in another open run. The error names the tensor and the other run's job.
  [[nodiscard]] static Result<std::unique_ptr<OpenTensors>> enter(const ClientReplica& replica, const std::string& job);
  OpenTensors(const OpenTensors&) = delete;
  OpenTensors& operator=(const OpenTensors&) = delete;
  ~OpenTensors();

  /// The tensor's values were at `before` and are at `data` from now on. On failure nothing has changed.
  [[nodiscard]] Result<void> move(const ClientTensor& tensor, const void* before, const void* data);

 private:
  explicit OpenTensors(std::string job) : job_(std::move(job)) {}
  [[nodiscard]] static bool counts(const ClientTensor& tensor);
  [[nodiscard]] Result<void> objection(const ClientTensor& tensor, const void* data) const;
  [[nodiscard]] Result<void> enter_list(const ClientReplica& replica);
  void insert(const ClientTensor& tensor, const void* data);
  [[nodiscard]] bool overlaps(std::uintptr_t begin, std::uintptr_t end) const;

  const std::string job_;
  std::multimap<std::uintptr_t, std::uintptr_t> ranges_;  // begin, end; one twice while tensors swap
  OpenTensors* next_ = nullptr;
};

}  // namespace gossamer::client
