// The connection to the daemon, kept by one background thread per run. The thread connects, sends the memory,
// waits for the socket to close, and tries again with a growing back-off, for as long as the run is open. The training
// thread only asks for the present state.
//
// For a run on a GPU the thread also sends the GPU memory, until a daemon answers that it cannot work there. It
// also watches the words that the GPU will store, and tells the daemon when they are stored, so that the training
// thread does not wait.
//
// Where the system allows it, the thread has a table of file descriptors of its own. No forked child then has the
// socket, so its end of file tells the daemon at once that this process has died, whatever children survive.

#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "sdk/c/error.hpp"
#include "sdk/c/words_under_way.hpp"
#include "sdk/layout/attach.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

/// Adds 1 to an eventfd, which wakes whoever waits for it.
void add_one(int event);

/// The state of the connection to the daemon.
struct AttachmentStatus {
  bool attached = false;
  std::uint64_t attachments = 0;           ///< how often a daemon accepted
  bool rejected = false;                   ///< the last answer was a refusal
  bool rejected_for_good = false;          ///< the last answer was a refusal that will not change by waiting
  std::array<std::uint8_t, 16> node_id{};  ///< id of the daemon that accepted last
  std::string message;                     ///< why no daemon has the run; while attached, why it is pinned, or empty
  /// No daemon has ever accepted the run, and at the last look none answered.
  bool nobody_answers = false;
  /// When the last attachment ended, if there is none now, or else when the run was opened.
  std::chrono::steady_clock::time_point lost_at = std::chrono::steady_clock::now();

  bool operator==(const AttachmentStatus&) const = default;
};

/// The further things that a run on a GPU sends.
struct DeviceDescriptors {
  WordsUnderWay* under_way = nullptr;  ///< null: the tensors are in host memory. It must outlive the attachment
  FileDescriptor memory;               ///< descriptor of the GPU memory; empty: the buffers are in the run's memory
  layout::DeviceOffer offer{};
  layout::Plan plan{};
  std::string why_pinned;  ///< why there is no `memory`
};

class Attachment {
 public:
  /// `attached_signal` is set to `signal_value` after each acceptance, so that the training thread looks at every
  /// fragment once. `socket_path` may be empty: the usual places are then tried.
  Attachment(FileDescriptor memory, std::uint64_t memory_bytes, int doorbell, std::string socket_path,
             std::atomic<std::uint64_t>& attached_signal, std::uint64_t signal_value, DeviceDescriptors device = {});
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  /// Ends the thread and closes the socket.
  ~Attachment();

  [[nodiscard]] Result<void> start();
  /// Call it before start(). Once the descriptor is readable the attachment ends for good, and `why` says to people
  /// why.
  void end_when_readable(int descriptor, std::function<std::string()> why);
  [[nodiscard]] AttachmentStatus status() const;
  /// For a child after fork(), where the thread does not exist: nothing is stopped or closed.
  void abandon();
  // --- for a run on a GPU
  /// Tells the thread that there are new words under way. This is the only system call of a step that has launched a
  /// pass.
  void watch() { add_one(wake_.get()); }
  /// True: the daemon cannot work in the GPU's memory. The run's own memory now has pages for its buffers, and no
  /// daemon is attached until offer_host_memory(). `attached_signal` has been set.
  [[nodiscard]] bool wants_host_memory() const {
    return host_memory_.load(std::memory_order_acquire) == HostMemory::wanted;
  }
  void offer_host_memory();
  /// Ends the attachment for good, because the run cannot be used any more.
  void end(const std::string& message);

  /// Ends the thread. The run stays as it is, without a daemon. Does nothing in a child after fork(). Idempotent.
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
  /// Host memory in place of the GPU's. The attachment's thread sets `wanted`, and the training thread sets `ready`.
  enum class HostMemory { not_wanted, wanted, ready };
  [[nodiscard]] bool offers_device() const { return thread_device_ >= 0; }
  [[nodiscard]] bool has_host_memory_instead() const {
    return offers_device() && host_memory_.load(std::memory_order_acquire) == HostMemory::ready;
  }
  void turn_to_host_memory(const std::string& why);
  void forget_device();
  void wait_for_close(int socket);
  /// Rings if the device has stored words. Returns how long to wait until the next look.
  [[nodiscard]] std::chrono::nanoseconds look_at_words(std::chrono::nanoseconds interval);
  /// Returns true if the run is being closed; otherwise it returns after the time, or as soon as there is something
  /// else to offer.
  [[nodiscard]] bool pause(int milliseconds);
  void set_message(const std::string& message);
  bool hear(int socket);
  void end_status(const std::string& message);

  FileDescriptor memory_;
  const std::uint64_t memory_bytes_;
  const int doorbell_;
  const std::string socket_path_;
  std::atomic<std::uint64_t>& attached_signal_;
  const std::uint64_t signal_value_;
  int ends_when_readable_ = -1;
  std::function<std::string()> why_ended_;

  DeviceDescriptors device_;
  FileDescriptor stop_;        ///< eventfd: readable once the run is being closed
  FileDescriptor wake_;        ///< eventfd: there are words under way, or something else to offer
  int thread_memory_ = -1;     ///< the memfd in the thread's own table; used by the thread only
  int thread_device_ = -1;     ///< the GPU's memory; -1: it is not offered (any more); used by the thread only
  int thread_kept_ = -1;       ///< the descriptor that the daemon has given to keep; used by the thread only
  std::string why_pinned_;     ///< used by the thread only
  bool device_opens_ = false;  ///< the daemon's last answer was that it opens the device; used by the thread only
  std::atomic<HostMemory> host_memory_ = HostMemory::not_wanted;
  pthread_t thread_{};
  bool started_ = false;
  pid_t owner_ = -1;                 ///< the process that the thread is in
  Attachment* next_open_ = nullptr;  ///< next in the list of open attachments; guarded by OpenAttachments

  mutable std::mutex mutex_;  ///< guards the members below; never held while waiting for anything else
  std::condition_variable descriptors_ready_;
  bool descriptors_settled_ = false;
  bool descriptors_private_ = false;
  AttachmentStatus status_;
};

}  // namespace gossamer::client
