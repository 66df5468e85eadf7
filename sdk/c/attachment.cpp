#include "sdk/c/attachment.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sdk/c/run_memory.hpp"
#include "sdk/layout/datagram.hpp"
#include "sdk/layout/shared_memory.hpp"
#include "sdk/layout/socket_path.hpp"

namespace gossamer::client {
namespace {

using layout::AttachReply;
using layout::AttachRequest;
using layout::AttachStatus;

constexpr int min_pause_ms = 100;
constexpr int max_pause_ms = 2'000;
/// ThreadSanitizer believes that equal numbers in two tables of descriptors mean the same file.
#ifdef __SANITIZE_THREAD__
constexpr bool wants_private_descriptors = false;
#else
constexpr bool wants_private_descriptors = true;
#endif
/// A daemon maps and checks the memory before it answers. A daemon that takes longer counts as dead.
constexpr int reply_timeout_ms = 10'000;
/// The thread looks for words that a GPU has stored after these times, each time twice the last. The first look is
/// soon, because the launched pass may be next on the GPU. The longest time is still short beside the time between two
/// steps.
constexpr std::chrono::microseconds first_look{200};
constexpr std::chrono::microseconds longest_look{2'000};
constexpr std::chrono::nanoseconds no_look{-1};

void drain(const FileDescriptor& event) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event.get(), &count, sizeof count);
}

[[nodiscard]] constexpr std::uint32_t as_number(AttachStatus status) {
  return static_cast<std::uint32_t>(status);
}

[[nodiscard]] const char* rejection_name(AttachStatus status) {
  constexpr std::array names = {"accepted",
                                "its version differs from this library's",
                                "it does not accept this model",
                                "its job is between two processes",
                                "a limit is reached",
                                "it is stopping",
                                "it cannot work in this GPU's memory",
                                "it is opening this GPU",
                                "it may not"};  // indexed by the number of the status
  return as_number(status) < names.size() ? names[as_number(status)] : "unknown reason";
}

/// Guards the list of open attachments. It is held during a fork(), so that a child finds it free.
constinit std::mutex open_mutex;

[[gnu::constructor]] void hold_open_mutex_in_fork() {
  pthread_atfork([] { open_mutex.lock(); }, [] { open_mutex.unlock(); }, [] { open_mutex.unlock(); });
}

}  // namespace

void add_one(int event) {
  const std::uint64_t one = 1;
  // This can fail only when the counter is full, and then the other side was told long ago.
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
}

/// A program may unload the library, or end, without closing its runs. The threads must then end before their code is
/// unloaded. Nothing here is ever destroyed, so that a run may also be closed later.
class OpenAttachments {
 public:
  static void add(Attachment& attachment) {
    const std::lock_guard lock(open_mutex);
    attachment.next_open_ = std::exchange(first_, &attachment);
  }
  static void remove(const Attachment& attachment) {
    const std::lock_guard lock(open_mutex);
    Attachment** link = &first_;
    while (*link != nullptr && *link != &attachment)
      link = &(*link)->next_open_;
    if (*link != nullptr) *link = attachment.next_open_;
  }
  [[gnu::destructor]] static void end_threads() {
    const std::lock_guard lock(open_mutex);
    for (Attachment* attachment = first_; attachment != nullptr; attachment = attachment->next_open_)
      attachment->end_thread();
  }

 private:
  inline static Attachment* first_ = nullptr;
};

Attachment::Attachment(FileDescriptor memory, std::uint64_t memory_bytes, int doorbell, std::string socket_path,
                       std::atomic<std::uint64_t>& attached_signal, std::uint64_t signal_value,
                       DeviceDescriptors device)
    : memory_(std::move(memory)),
      memory_bytes_(memory_bytes),
      doorbell_(doorbell),
      socket_path_(std::move(socket_path)),
      attached_signal_(attached_signal),
      signal_value_(signal_value),
      device_(std::move(device)),
      why_pinned_(device_.why_pinned) {
  status_.message = "no daemon has been tried yet";
}

void Attachment::end_when_readable(int descriptor, std::function<std::string()> why) {
  ends_when_readable_ = descriptor;
  why_ended_ = std::move(why);
}

Result<void> Attachment::start() {
  stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_ || !wake_) return fail_errno("could not create an eventfd");
  sigset_t every_signal;
  sigset_t callers_mask;
  sigfillset(&every_signal);
  pthread_sigmask(SIG_SETMASK, &every_signal, &callers_mask);  // signals are for the program's own threads
  const int error = pthread_create(&thread_, nullptr, &Attachment::run_thread, this);
  pthread_sigmask(SIG_SETMASK, &callers_mask, nullptr);
  if (error != 0) {
    return fail(GOSSAMER_SYSTEM_ERROR, std::string("could not start a thread: ") + std::strerror(error));
  }
  started_ = true;
  owner_ = getpid();
  OpenAttachments::add(*this);
  std::unique_lock lock(mutex_);
  descriptors_ready_.wait(lock, [this] { return descriptors_settled_; });
  if (!descriptors_private_) return {};
  // The thread has descriptors of its own. Child processes would inherit these.
  memory_.reset();
  device_.memory.reset();
  return {};
}

Attachment::~Attachment() {
  OpenAttachments::remove(*this);
  end_thread();
}

void Attachment::end_thread() {
  if (!started_ || owner_ != getpid()) return;
  started_ = false;
  add_one(stop_.get());
  pthread_join(thread_, nullptr);
}

void Attachment::abandon() {
  started_ = false;
  (void)memory_.release();
  (void)stop_.release();
  (void)wake_.release();
  (void)device_.memory.release();
}

void Attachment::offer_host_memory() {
  host_memory_.store(HostMemory::ready, std::memory_order_release);
  add_one(wake_.get());
}

void Attachment::end(const std::string& message) {
  end_thread();
  end_status(message);
}

void Attachment::end_status(const std::string& message) {
  const std::lock_guard lock(mutex_);
  status_.attached = false;
  status_.rejected = status_.rejected_for_good = true;
  status_.message = message;
}

AttachmentStatus Attachment::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void Attachment::set_message(const std::string& message) {
  const std::lock_guard lock(mutex_);
  status_.message = message;
}

void* Attachment::run_thread(void* self) {
  static_cast<Attachment*>(self)->run();
  return nullptr;
}

void Attachment::run() {
  own_descriptors();
  int pause_ms = min_pause_ms;
  bool closing = false;
  while (!closing) {
    if (has_host_memory_instead()) forget_device();
    if (!wants_host_memory()) {
      if (const FileDescriptor socket = attach()) {
        pause_ms = min_pause_ms;
        wait_for_close(socket.get());
      }
    }
    closing = pause(device_opens_ ? min_pause_ms : pause_ms);
    pause_ms = std::min(2 * pause_ms, max_pause_ms);
    if (const std::string why = why_ended_ ? why_ended_() : ""; !why.empty()) {
      end_status(why);
      closing = true;
    }
  }
  keep(-1);
}

/// Keeps the descriptor for the next daemon that the run attaches to.
void Attachment::keep(int descriptor) {
  if (thread_kept_ >= 0) close(thread_kept_);
  thread_kept_ = descriptor;
}

void Attachment::own_descriptors() {
  thread_memory_ = memory_.get();
  thread_device_ = device_.memory.get();
  const bool is_private = wants_private_descriptors && unshare(CLONE_FILES) == 0;  // a sandbox may forbid it
  if (is_private) {
    // All other copies are dropped: otherwise the program's own pipes and sockets would not close when the program
    // closes them. The standard streams stay, so that a crash can print.
    std::vector<unsigned> kept = {static_cast<unsigned>(memory_.get()), static_cast<unsigned>(doorbell_),
                                  static_cast<unsigned>(stop_.get()), static_cast<unsigned>(wake_.get())};
    if (thread_device_ >= 0) kept.push_back(static_cast<unsigned>(thread_device_));
    if (ends_when_readable_ >= 0) kept.push_back(static_cast<unsigned>(ends_when_readable_));
    std::ranges::sort(kept);
    unsigned next = STDERR_FILENO + 1;
    for (const unsigned descriptor : kept) {
      if (descriptor > next) close_range(next, descriptor - 1, 0);
      next = std::max(next, descriptor + 1);
    }
    close_range(next, ~0u, 0);
  }
  {
    const std::lock_guard lock(mutex_);
    descriptors_private_ = is_private;
    descriptors_settled_ = true;
  }
  descriptors_ready_.notify_one();
}

FileDescriptor Attachment::attach() {
  const std::vector<std::string> paths =
      socket_path_.empty() ? layout::client_sockets() : std::vector<std::string>{socket_path_};
  for (const std::string& path : paths) {
    if (FileDescriptor socket = attach_at(path)) return socket;
    if (status().rejected) break;  // a daemon lives there, and its answer is the message to keep
  }
  const std::lock_guard lock(mutex_);
  if (paths.empty()) {
    status_.rejected = status_.rejected_for_good = false;
    status_.message =
        "no gossamerd is running on this machine, or its socket is elsewhere: start it, or set GOSSAMER_SOCKET";
  }
  status_.nobody_answers = status_.attachments == 0 && !status_.rejected;
  return {};
}

FileDescriptor Attachment::attach_at(const std::string& path) {
  auto socket = connect_to(path);
  const auto reply = socket ? ask(socket->get()) : Result<AttachReply>(std::unexpected(socket.error()));
  const bool turned_down = reply && offers_device() && reply->status == as_number(AttachStatus::no_device);
  device_opens_ = reply && offers_device() && reply->status == as_number(AttachStatus::device_opening);
  if (turned_down) turn_to_host_memory(reply->message);
  const std::lock_guard lock(mutex_);
  status_.rejected = status_.rejected_for_good = false;
  if (!reply) {
    status_.message = "no gossamerd answers: " + reply.error().message + " (" + path + ")";
    return {};
  }
  const auto answer = static_cast<AttachStatus>(reply->status);
  if (answer != AttachStatus::accepted) {
    status_.rejected = true;
    status_.rejected_for_good = answer == AttachStatus::version_differs || answer == AttachStatus::bad_layout ||
                                answer == AttachStatus::not_permitted;
    status_.message = "gossamerd at " + path + " refuses this run: " + rejection_name(answer);
    if (reply->message[0] != '\0') status_.message += std::string(": ") + reply->message;
    if (turned_down) status_.message = why_pinned_;
    return {};
  }
  status_.attached = true;
  status_.nobody_answers = false;
  ++status_.attachments;
  std::ranges::copy(reply->node_id, status_.node_id.begin());
  status_.message = why_pinned_;
  attached_signal_.store(signal_value_, std::memory_order_release);
  return std::move(*socket);
}

/// Takes the host memory in this thread, so that the training thread does not have to.
void Attachment::turn_to_host_memory(const std::string& why) {
  why_pinned_ = "the run exchanges through pinned host memory, because gossamerd cannot work in the GPU's: " + why;
  if (auto taken = take_buffers(thread_memory_, device_.plan); !taken) {
    why_pinned_ += ". " + taken.error().message;
    return;  // the GPU's memory is offered again, and refused again
  }
  host_memory_.store(HostMemory::wanted, std::memory_order_release);
  attached_signal_.store(signal_value_, std::memory_order_release);
}

/// Closes the descriptor, so that the memory can be freed.
void Attachment::forget_device() {
  const std::lock_guard lock(mutex_);
  if (descriptors_private_) {
    close(thread_device_);
  } else {
    device_.memory.reset();
  }
  thread_device_ = -1;
}

Result<FileDescriptor> Attachment::connect_to(const std::string& path) {
  const auto address = layout::socket_address(path);
  if (!address) return fail(GOSSAMER_BAD_ARGUMENT, address.error());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_errno("could not create a socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (errno == EACCES) return fail(GOSSAMER_SYSTEM_ERROR, "the socket may not be used: " + layout::no_right_to(path));
    return fail_errno("could not connect");
  }
  return socket;
}

Result<AttachReply> Attachment::ask(int socket) {
  if (auto sent = send_request(socket); !sent) return std::unexpected(sent.error());
  return receive_reply(socket);
}

Result<void> Attachment::send_request(int socket) {
  const bool with_device = offers_device();
  AttachRequest request{.magic = layout::attach_magic,
                        .version = layout::attach_version,
                        .flags = (status().attachments > 0 ? layout::attach_resume : 0) |
                                 (with_device ? layout::attach_device : 0) |
                                 (thread_kept_ >= 0 ? layout::attach_kept : 0),
                        .memory_bytes = memory_bytes_,
                        .process_id = static_cast<std::uint64_t>(getpid())};
  std::array<int, 4> descriptors = {thread_memory_, doorbell_};
  std::size_t count = 2;
  if (with_device) descriptors[count++] = thread_device_;
  if (thread_kept_ >= 0) descriptors[count++] = thread_kept_;
  std::array<iovec, 2> data = {iovec{.iov_base = &request, .iov_len = sizeof request},
                               iovec{.iov_base = &device_.offer, .iov_len = sizeof device_.offer}};
  const std::size_t bytes = sizeof request + (with_device ? sizeof device_.offer : 0);
  const ssize_t sent =
      send_datagram(socket, std::span(data).first(with_device ? 2 : 1), std::span(descriptors).first(count));
  if (sent != static_cast<ssize_t>(bytes)) {
    return fail_errno("could not send the request to attach");
  }
  return {};
}

Result<AttachReply> Attachment::receive_reply(int socket) {
  std::array<pollfd, 2> waits = {pollfd{socket, POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
  const int ready = poll(waits.data(), waits.size(), reply_timeout_ms);
  if (ready <= 0) return fail(GOSSAMER_NO_DAEMON, "no reply to the request to attach");
  if (waits[1].revents != 0) return fail(GOSSAMER_NO_DAEMON, "the run is being closed");
  std::array<std::byte, sizeof(AttachReply) + 1> bytes{};
  ReceivedDatagram datagram = receive_datagram(socket, bytes);
  const ssize_t received = datagram.size;
  if (received > 0 && datagram.descriptors.size() == 1) keep(datagram.descriptors.front().release());
  if (received == 0) return fail(GOSSAMER_NO_DAEMON, "the other end closed the connection without a reply");
  if (received < 0) return fail_errno("could not receive the reply");
  AttachReply reply{};
  std::memcpy(&reply, bytes.data(), sizeof reply);
  if (received != sizeof reply || reply.magic != layout::attach_magic) {
    return fail(GOSSAMER_NO_DAEMON, "what replied is not gossamerd");
  }
  if (reply.version != layout::attach_version) {
    reply.status = static_cast<std::uint32_t>(AttachStatus::version_differs);
  }
  reply.message[sizeof reply.message - 1] = '\0';
  return reply;
}

void Attachment::wait_for_close(int socket) {
  // A negative descriptor is never ready.
  std::array<pollfd, 4> waits = {pollfd{socket, POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0},
                                 pollfd{wake_.get(), POLLIN, 0}, pollfd{ends_when_readable_, POLLIN, 0}};
  bool open = true;
  std::chrono::nanoseconds interval = look_at_words(first_look);
  while (open) {
    const timespec limit{.tv_sec = 0, .tv_nsec = interval.count()};
    // Every signal is blocked here. A failure is not expected, and not fatal.
    if (ppoll(waits.data(), waits.size(), interval == no_look ? nullptr : &limit, nullptr) < 0) continue;
    if (waits[2].revents != 0) {
      drain(wake_);
      interval = first_look;
    }
    interval = look_at_words(interval);
    const bool ended = waits[0].revents != 0 && !hear(socket);
    open = !ended && waits[1].revents == 0 && waits[3].revents == 0;
  }
  const std::lock_guard lock(mutex_);
  status_.attached = false;
  status_.lost_at = std::chrono::steady_clock::now();
  status_.message = "gossamerd went away: training goes on alone until it is back";
}

/// Receives a message that the daemon sends after its answer: what keeps the run apart from other nodes, or nothing
/// once nothing does. False: the daemon has closed the connection.
bool Attachment::hear(int socket) {
  AttachReply said{};
  const ssize_t received = recv(socket, &said, sizeof said, MSG_DONTWAIT | MSG_TRUNC);
  if (received <= 0) return received < 0 && errno == EAGAIN;
  if (received != sizeof said || said.magic != layout::attach_magic) return true;  // a message of a later version
  said.message[sizeof said.message - 1] = '\0';
  set_message(said.message[0] == '\0' ? why_pinned_ : said.message);
  return true;
}

std::chrono::nanoseconds Attachment::look_at_words(std::chrono::nanoseconds interval) {
  if (device_.under_way == nullptr) return no_look;
  const WordsUnderWay::Look look = device_.under_way->look();
  if (look.stored > 0) add_one(doorbell_);
  if (look.left == 0) return no_look;
  return std::min<std::chrono::nanoseconds>(interval == no_look ? first_look : 2 * interval, longest_look);
}

bool Attachment::pause(int milliseconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(milliseconds);
  std::array<pollfd, 3> waits = {pollfd{stop_.get(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0},
                                 pollfd{ends_when_readable_, POLLIN, 0}};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (poll(waits.data(), waits.size(), std::max(static_cast<int>(left.count()), 0)) <= 0) return false;
    if (waits[0].revents != 0) return true;
    if (waits[2].revents != 0) return false;
    drain(wake_);
    if (has_host_memory_instead()) return false;
  }
}

}  // namespace gossamer::client
