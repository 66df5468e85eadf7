// The connection to the daemon, kept by one background thread per run: it connects, hands over the memory, waits for
// the socket to close, and begins again with growing pauses, for as long as the run is open. The training thread asks
// only for snapshots of how that stands.
//
// Of a run on a GPU it hands over that memory, too, until a daemon answers that it cannot work there; and it watches
// the words that the GPU is to store, so that the daemon is told when it has, though the training thread waits for
// nothing.
//
// The thread has a table of file descriptors of its own, where the system lets it: the socket is then in no forked
// child, so its end of file tells the daemon of the death of this process at once, whatever children survive.

#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "sdk/c/error.hpp"
#include "sdk/c/file_descriptor.hpp"
#include "sdk/c/words_under_way.hpp"
#include "sdk/layout/attach.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

/// How things stand with the daemon.
struct AttachmentStatus {
  bool attached = false;
  std::uint64_t attachments = 0;           ///< how often a daemon accepted
  bool rejected = false;                   ///< the last answer was a refusal
  bool rejected_for_good = false;          ///< ... that waiting does not mend
  std::array<std::uint8_t, 16> node_id{};  ///< of the daemon that accepted last
  std::string message;  ///< what keeps the run from a daemon; while attached why it is pinned, or empty
};

/// What a run on a GPU has beside its memory.
struct DeviceHandover {
  WordsUnderWay* under_way = nullptr;  ///< null: the tensors are in host memory. Outlives the attachment
  FileDescriptor memory;               ///< of the GPU; none: the buffers are in the run's memory
  layout::DeviceOffer offer{};
  layout::Plan plan{};
  std::string why_pinned;  ///< why there is no `memory`
};

class Attachment {
 public:
  /// `attached_signal` is set to `signal_value` after each acceptance, so that the training thread looks at every
  /// fragment once. `socket_path` may be empty: the usual places are then tried.
  Attachment(FileDescriptor memory, std::uint64_t memory_bytes, int doorbell, std::string socket_path,
             std::atomic<std::uint64_t>& attached_signal, std::uint64_t signal_value, DeviceHandover device = {});
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  /// Ends the thread and closes the socket.
  ~Attachment();

  [[nodiscard]] Result<void> start();
  [[nodiscard]] AttachmentStatus status() const;
  /// For a child after fork(), where the thread does not exist: nothing is stopped or closed.
  void abandon();
  // --- of a run on a GPU
  /// There is news among the words under way. The only system call of a step that has launched something.
  void watch();
  /// The daemon cannot work in the GPU's memory. The run's own has pages for its buffers now, and nobody is attached
  /// until offer_host_memory(). The signal was set.
  [[nodiscard]] bool wants_host_memory() const {
    return host_memory_.load(std::memory_order_acquire) == HostMemory::wanted;
  }
  void offer_host_memory();
  /// For good: the run is of no more use.
  void end(const std::string& message);

  /// Ends the thread; the run stays as it is, without a daemon. Does nothing in a child after fork(). Idempotent.
  void end_thread();

 private:
  friend class OpenAttachments;
  static void* run_thread(void* self);
  void run();
  void own_descriptors();
  [[nodiscard]] FileDescriptor attach();
  [[nodiscard]] FileDescriptor attach_at(const std::string& path);
  [[nodiscard]] Result<FileDescriptor> connect_to(const std::string& path);
  [[nodiscard]] Result<layout::AttachReply> ask(int socket);
  [[nodiscard]] Result<void> send_request(int socket);
  [[nodiscard]] Result<layout::AttachReply> receive_reply(int socket);
  void keep(int descriptor);
  /// Instead of the GPU's: `wanted` by the thread, made `ready` by the training thread.
  enum class HostMemory { not_wanted, wanted, ready };
  [[nodiscard]] bool offers_device() const { return thread_device_ >= 0; }
  [[nodiscard]] bool has_host_memory_instead() const {
    return offers_device() && host_memory_.load(std::memory_order_acquire) == HostMemory::ready;
  }
  void turn_to_host_memory(const std::string& why);
  void forget_device();
  void wait_for_close(int socket);
  /// Rings if the device has stored words; for how long to wait until the next look.
  [[nodiscard]] std::chrono::nanoseconds look_at_words(std::chrono::nanoseconds interval);
  /// True if the run is being closed, else after the time, or once there is something else to offer.
  [[nodiscard]] bool pause(int milliseconds);
  void set_message(const std::string& message);

  FileDescriptor memory_;
  const std::uint64_t memory_bytes_;
  const int doorbell_;
  const std::string socket_path_;
  std::atomic<std::uint64_t>& attached_signal_;
  const std::uint64_t signal_value_;

  DeviceHandover device_;
  FileDescriptor stop_;        ///< eventfd: readable once the run is being closed
  FileDescriptor wake_;        ///< eventfd: words are under way, or there is something else to offer
  int thread_memory_ = -1;     ///< the memfd in the thread's own table; the thread's only
  int thread_device_ = -1;     ///< likewise the GPU's memory; -1: not offered, or not any more
  int thread_kept_ = -1;       ///< what the daemon has given to keep; likewise
  std::string why_pinned_;     ///< the thread's only
  bool device_opens_ = false;  ///< says the daemon's last answer; the thread's only
  std::atomic<HostMemory> host_memory_ = HostMemory::not_wanted;
  pthread_t thread_{};
  bool started_ = false;
  pid_t owner_ = -1;                 ///< the process that the thread is in
  Attachment* next_open_ = nullptr;  ///< of the open ones; guarded by OpenAttachments

  mutable std::mutex mutex_;  ///< guards what follows; never held while waiting for anything else
  std::condition_variable descriptors_ready_;
  bool descriptors_settled_ = false;
  bool descriptors_private_ = false;
  AttachmentStatus status_;
};

}  // namespace gossamer::client
