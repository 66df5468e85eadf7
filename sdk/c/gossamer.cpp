// The C ABI (gossamer.h) and what it is made of: a run is a replica, the memory it shares, and the attachment that
// keeps a daemon at work on that memory. All entry points are called by the program, from one thread at a time per run.
//
// Nothing thrown leaves this file. The hot path is Run::step: with nothing due it stores three counters' worth of
// progress and compares one word with the last value seen.

#include <gossamer.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "sdk/c/attachment.hpp"
#include "sdk/c/client_memory.hpp"
#include "sdk/c/error.hpp"
#include "sdk/c/replica.hpp"
#include "sdk/layout/names.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {
namespace {

constexpr std::uint64_t default_step_budget_bytes = std::uint64_t{16} << 20;
/// Larger than any due_sequence: "look at every fragment at the next step".
constexpr std::uint64_t look_again = std::uint64_t{1} << 32;
/// How often gossamer_wait_ready() looks: short beside a fragment's way over any network.
constexpr std::chrono::microseconds ready_poll_interval{500};

/// A page that reads as zero in a forked child: tells the child from the parent without a system call.
class ForkGuard {
 public:
  [[nodiscard]] static Result<ForkGuard> create() {
    void* page = mmap(nullptr, layout::page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return fail_errno("could not map a page");
    ForkGuard guard(static_cast<volatile char*>(page));
    if (madvise(page, layout::page_bytes, MADV_WIPEONFORK) != 0)
      return fail_errno("could not mark a page (Linux 4.14)");
    *guard.page_ = 1;
    return guard;
  }
  ForkGuard(ForkGuard&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  ForkGuard& operator=(ForkGuard&&) = delete;
  ~ForkGuard() {
    if (page_ != nullptr) munmap(const_cast<char*>(page_), layout::page_bytes);
  }
  [[nodiscard]] bool in_child() const { return *page_ == 0; }

 private:
  explicit ForkGuard(volatile char* page) : page_(page) {}
  volatile char* page_;
};

[[nodiscard]] gossamer_state known_state(std::uint32_t state) {
  return state <= GOSSAMER_QUARANTINED ? static_cast<gossamer_state>(state) : GOSSAMER_DETACHED;
}

void copy_text(const std::string& text, char* target, std::size_t target_bytes) {
  if (target == nullptr || target_bytes == 0) return;
  const std::size_t length = std::min(text.size(), target_bytes - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

}  // namespace
}  // namespace gossamer::client

using namespace gossamer::client;
namespace layout = gossamer::layout;

struct gossamer_run {
 public:
  gossamer_run(Replica replica, ClientMemory memory, ForkGuard guard, FileDescriptor doorbell,
               const gossamer_options& options)
      : replica_(std::move(replica)),
        memory_(std::move(memory)),
        guard_(std::move(guard)),
        doorbell_(std::move(doorbell)),
        step_budget_bytes_(options.step_budget_bytes == 0 ? default_step_budget_bytes : options.step_budget_bytes),
        clock_(options.initial_clock_samples),
        attachment_(memory_.take_file(), memory_.size_bytes(), doorbell_.get(),
                    options.socket_path == nullptr ? "" : options.socket_path, seen_due_sequence_, look_again) {}

  [[nodiscard]] static Result<std::unique_ptr<gossamer_run>> open(const gossamer_options& options,
                                                                  std::span<const gossamer_tensor> tensors);
  [[nodiscard]] Result<void> step(std::uint64_t samples);
  [[nodiscard]] Result<void> wait_ready(std::int64_t timeout_ms);
  [[nodiscard]] Result<void> set_tensor_data(std::size_t index, void* data) { return replica_.set_data(index, data); }
  void info(gossamer_run_info& info) const;
  /// Serves what is due; for the end of a run.
  void finish() { (void)serve_due(UINT64_MAX); }
  /// Gives up, without touching, what a forked child does not have.
  void abandon();
  [[nodiscard]] bool in_child() const { return guard_.in_child(); }

  /// Turns a result into a status and keeps its message.
  gossamer_status report(const Result<void>& result) {
    if (result) return GOSSAMER_OK;
    last_error_ = result.error().message;
    return result.error().status;
  }
  [[nodiscard]] const char* last_error() const { return last_error_.c_str(); }

 private:
  enum class Served { nothing, fragment, impossible };

  [[nodiscard]] Result<void> serve_due(std::uint64_t budget_bytes);
  [[nodiscard]] Result<void> serve_due_timed();
  [[nodiscard]] Served serve_fragment(std::uint32_t fragment);
  void ring_doorbell();
  [[nodiscard]] bool is_ready(const AttachmentStatus& status) const;

  Replica replica_;
  ClientMemory memory_;
  ForkGuard guard_;
  FileDescriptor doorbell_;  ///< eventfd: wakes the daemon
  const std::uint64_t step_budget_bytes_;
  std::uint64_t clock_;  ///< samples; ours, because the daemon could write the shared one
  std::uint64_t steps_ = 0;
  std::uint64_t publications_ = 0;
  std::uint64_t serving_ns_ = 0;
  std::uint32_t next_fragment_ = 0;  ///< where the next search for due fragments starts
  /// due_sequence when every fragment had been looked at, or look_again. The attachment's thread sets the latter.
  std::atomic<std::uint64_t> seen_due_sequence_{look_again};
  std::string last_error_;
  Attachment attachment_;  ///< last: its thread uses the members above
};

Result<std::unique_ptr<gossamer_run>> gossamer_run::open(const gossamer_options& options,
                                                         std::span<const gossamer_tensor> tensors) {
  if (options.job == nullptr || !layout::is_job_name(options.job)) {
    return fail(GOSSAMER_BAD_ARGUMENT, "the job needs a name of 1 to " + std::to_string(layout::max_job_bytes) +
                                           " letters, digits, '.', '_' or '-', not starting with '.'");
  }
  if (options.flags != 0) return fail(GOSSAMER_BAD_ARGUMENT, "unknown flags: this library is older than the program");
  auto replica = Replica::create(tensors, options.fragment_elements);
  if (!replica) return std::unexpected(replica.error());
  auto memory = ClientMemory::create(*replica, options.job, options.initial_clock_samples);
  if (!memory) return std::unexpected(memory.error());
  auto guard = ForkGuard::create();
  if (!guard) return std::unexpected(guard.error());
  FileDescriptor doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return fail_errno("could not create an eventfd");
  auto run = std::make_unique<gossamer_run>(std::move(*replica), std::move(*memory), std::move(*guard),
                                            std::move(doorbell), options);
  if (auto started = run->attachment_.start(); !started) return std::unexpected(started.error());
  return run;
}

inline Result<void> gossamer_run::step(std::uint64_t samples) {
  clock_ += samples;
  ++steps_;
  layout::Header& header = memory_.header();
  header.clock.store(clock_, std::memory_order_relaxed);
  header.steps.store(steps_, std::memory_order_relaxed);
  const std::uint32_t due = header.due_sequence.load(std::memory_order_acquire);
  if (due == seen_due_sequence_.load(std::memory_order_relaxed)) [[likely]]
    return {};
  return serve_due_timed();
}

/// The clock is read only when something is due: it costs as much as many idle steps.
Result<void> gossamer_run::serve_due_timed() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const std::uint64_t publications_before = publications_;
  auto result = serve_due(step_budget_bytes_);
  if (publications_ == publications_before) return result;
  serving_ns_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  memory_.header().serving_ns.store(serving_ns_, std::memory_order_relaxed);
  return result;
}

Result<void> gossamer_run::serve_due(std::uint64_t budget_bytes) {
  std::uint64_t seen = seen_due_sequence_.load(std::memory_order_acquire);
  const std::uint32_t due = memory_.header().due_sequence.load(std::memory_order_acquire);
  std::uint64_t served_bytes = 0;
  bool more_due = false;
  bool impossible = false;
  const std::uint32_t count = replica_.fragment_count();
  const std::uint32_t start = next_fragment_;
  for (std::uint32_t i = 0; i < count && !more_due; ++i) {
    const std::uint32_t fragment = (start + i) % count;
    const std::uint64_t bytes = replica_.fragment_bytes(fragment);
    // One fragment is always allowed, so that a small budget delays but does not starve.
    if (served_bytes > 0 && bytes > budget_bytes - std::min(budget_bytes, served_bytes)) {
      more_due = true;
      next_fragment_ = fragment;
      break;
    }
    const Served served = serve_fragment(fragment);
    if (served == Served::fragment) served_bytes += bytes;
    impossible = impossible || served == Served::impossible;
  }
  if (served_bytes > 0) ring_doorbell();
  // If the attachment's thread asked for another look meanwhile, its value stays.
  seen_due_sequence_.compare_exchange_strong(seen, more_due ? look_again : due, std::memory_order_relaxed);
  if (impossible) {
    return fail(GOSSAMER_BAD_MEMORY,
                "gossamerd left an impossible word in shared memory; its fragment is left alone. Training goes on; "
                "restart gossamerd, and report this if it was not tampered with");
  }
  return {};
}

gossamer_run::Served gossamer_run::serve_fragment(std::uint32_t fragment) {
  layout::FragmentEntry& entry = memory_.fragment(fragment);
  layout::Word word = layout::Word::unpack(entry.word.load(std::memory_order_acquire));
  if (!word.valid()) return Served::impossible;
  if (!word.with_client) return Served::nothing;
  const Replica::Correction mode = !word.correction_valid ? Replica::Correction::none
                                   : word.replace         ? Replica::Correction::replace
                                                          : Replica::Correction::add;
  const std::uint8_t snapshot = word.spare();
  replica_.serve(fragment, mode, memory_.buffer(fragment, word.correction), memory_.buffer(fragment, snapshot));
  entry.publication_clock.store(clock_, std::memory_order_relaxed);
  memory_.header().publications.store(++publications_, std::memory_order_relaxed);
  ++word.generation;
  word.publication = snapshot;
  word.correction_valid = word.replace = word.with_client = false;
  entry.word.store(word.pack(), std::memory_order_release);
  return Served::fragment;
}

void gossamer_run::ring_doorbell() {
  const std::uint64_t one = 1;
  // Can fail only when the counter is full, that is when the daemon has long been told.
  [[maybe_unused]] const ssize_t written = write(doorbell_.get(), &one, sizeof one);
}

bool gossamer_run::is_ready(const AttachmentStatus& status) const {
  const std::uint32_t state = memory_.header().state.load(std::memory_order_acquire);
  return status.attached && (state == GOSSAMER_RUNNING || state == GOSSAMER_QUARANTINED);
}

Result<void> gossamer_run::wait_ready(std::int64_t timeout_ms) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (true) {
    const AttachmentStatus status = attachment_.status();
    const bool ready = is_ready(status);  // before serving: what was due when it became ready is then served
    if (auto served = serve_due(UINT64_MAX); !served) return served;
    if (ready) return {};
    if (status.rejected_for_good) return fail(GOSSAMER_REJECTED, status.message);
    if (timeout_ms >= 0 && Clock::now() - begin >= std::chrono::milliseconds(timeout_ms)) {
      if (status.rejected) return fail(GOSSAMER_BUSY, status.message);
      if (!status.attached) return fail(GOSSAMER_NO_DAEMON, status.message);
      return fail(GOSSAMER_TIMEOUT, "attached, but the model has not been agreed on with the other nodes yet");
    }
    const timespec interval{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(ready_poll_interval).count()};
    nanosleep(&interval, nullptr);  // a signal ends it early: looked at again at once
  }
}

void gossamer_run::info(gossamer_run_info& info) const {
  const AttachmentStatus status = attachment_.status();
  const layout::Header& header = memory_.header();
  info.state = status.attached ? known_state(header.state.load(std::memory_order_acquire)) : GOSSAMER_DETACHED;
  info.attached = status.attached;
  info.clock_samples = clock_;
  info.global_clock_samples = std::max(clock_, header.global_clock.load(std::memory_order_relaxed));
  info.steps = steps_;
  info.exchanges = header.exchanges.load(std::memory_order_relaxed);
  info.publications = publications_;
  info.neighbours = header.neighbours.load(std::memory_order_relaxed);
  info.fragments_pulled = header.fragments_pulled.load(std::memory_order_relaxed);
  info.fragments = replica_.fragment_count();
  info.fragment_elements = replica_.fragment_elements();
  info.elements = replica_.elements();
  info.layout_hash = header.layout_hash;
  info.attachments = status.attachments;
  std::ranges::copy(status.node_id, info.node_id);
  copy_text(status.message, info.message, sizeof info.message);
}

void gossamer_run::abandon() {
  attachment_.abandon();
  memory_.abandon();
}

namespace {

/// The size of a structure's first version: what every program passes at least.
constexpr std::size_t first_options_bytes = sizeof(gossamer_options);
constexpr std::size_t first_info_bytes = sizeof(gossamer_run_info);

/// Calls `function` on the run, unless it is another process's, and turns what it throws into a status.
template <class Function>
gossamer_status call(gossamer_run* run, Function&& function) noexcept {
  if (run == nullptr) return GOSSAMER_BAD_ARGUMENT;
  if (run->in_child()) [[unlikely]]
    return GOSSAMER_FORKED;
  try {
    return run->report(function());
  } catch (const std::bad_alloc&) {
    return GOSSAMER_NO_MEMORY;
  } catch (...) {
    return GOSSAMER_SYSTEM_ERROR;
  }
}

}  // namespace

extern "C" {

void gossamer_options_init(gossamer_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->size = sizeof *options;
}

gossamer_status gossamer_open(const gossamer_options* options, const gossamer_tensor* tensors, size_t tensor_count,
                              gossamer_run** run, char* error, size_t error_bytes) {
  if (run == nullptr) return GOSSAMER_BAD_ARGUMENT;
  *run = nullptr;
  Error problem{GOSSAMER_BAD_ARGUMENT, ""};
  try {
    if (options == nullptr || options->size != first_options_bytes) {
      problem.message = "options are missing or of another version of this library: call gossamer_options_init() first";
    } else if (tensors == nullptr) {
      problem.message = "no tensors given";
    } else if (auto opened = gossamer_run::open(*options, {tensors, tensor_count}); opened) {
      *run = opened->release();
      return GOSSAMER_OK;
    } else {
      problem = std::move(opened.error());
    }
  } catch (const std::bad_alloc&) {
    problem = {GOSSAMER_NO_MEMORY, "out of memory"};
  } catch (const std::exception& exception) {
    problem = {GOSSAMER_SYSTEM_ERROR, exception.what()};
  }
  copy_text(problem.message, error, error_bytes);
  return problem.status;
}

gossamer_status gossamer_wait_ready(gossamer_run* run, int64_t timeout_ms) {
  return call(run, [&] { return run->wait_ready(timeout_ms); });
}

gossamer_status gossamer_step(gossamer_run* run, uint64_t samples) {
  return call(run, [&] { return run->step(samples); });
}

gossamer_status gossamer_info(gossamer_run* run, gossamer_run_info* info) {
  return call(run, [&]() -> Result<void> {
    if (info == nullptr || info->size != first_info_bytes) {
      return fail(GOSSAMER_BAD_ARGUMENT, "set info.size to sizeof(gossamer_run_info) before the call");
    }
    run->info(*info);
    return {};
  });
}

gossamer_status gossamer_set_tensor_data(gossamer_run* run, size_t index, void* data) {
  return call(run, [&] { return run->set_tensor_data(index, data); });
}

void gossamer_close(gossamer_run* run) {
  if (run == nullptr) return;
  if (run->in_child()) {
    run->abandon();
  } else {
    (void)call(run, [&]() -> Result<void> {
      run->finish();
      return {};
    });
  }
  delete run;
}

const char* gossamer_last_error(const gossamer_run* run) {
  return run == nullptr ? "" : run->last_error();
}

const char* gossamer_status_name(gossamer_status status) {
  switch (status) {
    case GOSSAMER_OK:
      return "GOSSAMER_OK";
    case GOSSAMER_BAD_ARGUMENT:
      return "GOSSAMER_BAD_ARGUMENT";
    case GOSSAMER_UNSUPPORTED:
      return "GOSSAMER_UNSUPPORTED";
    case GOSSAMER_NO_MEMORY:
      return "GOSSAMER_NO_MEMORY";
    case GOSSAMER_SYSTEM_ERROR:
      return "GOSSAMER_SYSTEM_ERROR";
    case GOSSAMER_NO_DAEMON:
      return "GOSSAMER_NO_DAEMON";
    case GOSSAMER_REJECTED:
      return "GOSSAMER_REJECTED";
    case GOSSAMER_TIMEOUT:
      return "GOSSAMER_TIMEOUT";
    case GOSSAMER_BAD_MEMORY:
      return "GOSSAMER_BAD_MEMORY";
    case GOSSAMER_FORKED:
      return "GOSSAMER_FORKED";
    case GOSSAMER_BUSY:
      return "GOSSAMER_BUSY";
  }
  return "unknown gossamer_status";
}

const char* gossamer_version(void) {
  return GOSSAMER_VERSION_TEXT;
}

}  // extern "C"
