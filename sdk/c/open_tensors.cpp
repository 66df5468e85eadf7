#include "sdk/c/open_tensors.hpp"

#include <pthread.h>

#include <mutex>

namespace gossamer::client {
namespace {

constinit std::mutex mutex;
constinit OpenTensors* first = nullptr;

/// Keeps the list from being half changed when the process forks.
void prepare_for_forks() {
  [[maybe_unused]] static const int registered = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                                                [] {
                                                                  first = nullptr;
                                                                  mutex.unlock();
                                                                });
}

[[nodiscard]] std::uintptr_t begin_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}
[[nodiscard]] std::uintptr_t end_of(const ClientTensor& tensor, const void* data) {
  return begin_of(data) + tensor.held * element_bytes(tensor.dtype);
}

}  // namespace

bool OpenTensors::counts(const ClientTensor& tensor) {
  return tensor.role != layout::Role::local && tensor.held > 0;
}

/// The ranges of a run do not overlap each other, so of the ranges that begin before `end` the last one reaches
/// furthest.
bool OpenTensors::overlaps(std::uintptr_t begin, std::uintptr_t end) const {
  const auto behind = ranges_.lower_bound(end);
  return behind != ranges_.begin() && std::prev(behind)->second > begin;
}

Result<void> OpenTensors::objection(const ClientTensor& tensor, const void* data) const {
  if (!counts(tensor)) return {};
  for (const OpenTensors* other = first; other != nullptr; other = other->next_) {
    if (other == this || !other->overlaps(begin_of(data), end_of(tensor, data))) continue;
    return fail(GOSSAMER_BAD_ARGUMENT,
                "tensor '" + tensor.name + "' is in an open run of this process already, of job '" + other->job_ +
                    "': two runs would take each other's corrections for training. Close that run first");
  }
  return {};
}

void OpenTensors::insert(const ClientTensor& tensor, const void* data) {
  if (counts(tensor)) ranges_.emplace(begin_of(data), end_of(tensor, data));
}

Result<std::unique_ptr<OpenTensors>> OpenTensors::enter(const ClientReplica& replica, const std::string& job) {
  prepare_for_forks();
  std::unique_ptr<OpenTensors> own(new OpenTensors(job));
  for (const ClientTensor& tensor : replica.tensors())
    own->insert(tensor, tensor.data);
  if (auto entered = own->enter_list(replica); !entered) return std::unexpected(entered.error());
  return own;
}

Result<void> OpenTensors::enter_list(const ClientReplica& replica) {
  const std::scoped_lock lock(mutex);
  for (const ClientTensor& tensor : replica.tensors()) {
    if (auto apart = objection(tensor, tensor.data); !apart) return apart;
  }
  next_ = first;
  first = this;
  return {};
}

OpenTensors::~OpenTensors() {
  const std::scoped_lock lock(mutex);
  for (OpenTensors** link = &first; *link != nullptr; link = &(*link)->next_) {
    if (*link != this) continue;
    *link = next_;
    return;
  }
}

Result<void> OpenTensors::move(const ClientTensor& tensor, const void* before, const void* data) {
  const std::scoped_lock lock(mutex);
  if (auto apart = objection(tensor, data); !apart) return apart;
  const auto [begin, end] = ranges_.equal_range(begin_of(before));
  if (begin != end) ranges_.erase(begin);
  insert(tensor, data);
  return {};
}

}  // namespace gossamer::client
