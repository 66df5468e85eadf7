// A run: a replica, the memory that it shares with the daemon, and the attachment that keeps a daemon at work on that
// memory. gossamer.cpp calls it for the program, from one thread at a time.
//
// The hot path is step(): with nothing due it stores the clock and the number of steps, and compares one word with the
// last value seen.

#pragma once

#include <gossamer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "sdk/c/attachment.hpp"
#include "sdk/c/average_client.hpp"
#include "sdk/c/client_replica.hpp"
#include "sdk/c/device_pass.hpp"
#include "sdk/c/error.hpp"
#include "sdk/c/fork_guard.hpp"
#include "sdk/c/open_tensors.hpp"
#include "sdk/c/replica_parts.hpp"
#include "sdk/c/run_memory.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

/// The memory of a run, its device if it has one, the doorbell (an eventfd that wakes the daemon), and the run's side
/// of a replica in parts.
struct Placed {
  RunMemory memory;
  std::unique_ptr<DevicePass> device;
  FileDescriptor doorbell;
  std::unique_ptr<ReplicaParts> parts;
};

class ClientRun {
 public:
  /// If `placed.device` is null, the tensors are in host memory. Otherwise it works in `placed.memory`, where every
  /// fragment has been published.
  ClientRun(ClientReplica replica, std::unique_ptr<OpenTensors> open_tensors, Placed placed, ForkGuard guard,
            const gossamer_options& options);

  [[nodiscard]] static Result<std::unique_ptr<ClientRun>> open(const gossamer_options& options,
                                                               std::span<const gossamer_tensor> tensors);
  [[nodiscard]] Result<void> step(std::uint64_t samples);
  /// Counts a step. True: fragments may be due.
  [[nodiscard]] Result<bool> count_step(std::uint64_t samples);
  /// Passes over the fragments that are due, up to the step budget, and tells the daemon how long that took.
  [[nodiscard]] Result<void> serve_due();
  [[nodiscard]] Result<void> wait_ready(std::int64_t timeout_ms);
  [[nodiscard]] Result<void> set_tensor_data(std::size_t index, void* data);
  [[nodiscard]] Result<void> set_stream(void* stream);
  [[nodiscard]] Result<void> set_transfer(gossamer_load load, gossamer_store store, void* context);
  void info(gossamer_run_info& info) const;
  [[nodiscard]] Result<void> log(std::string_view name, double value);
  [[nodiscard]] Result<void> logged(std::string_view name, double& value, double& mean, std::uint32_t& nodes) const;
  [[nodiscard]] Result<void> set_cursor(std::span<const std::byte> cursor);
  [[nodiscard]] Result<void> get_cursor(std::span<std::byte> buffer, std::size_t& length) const;
  [[nodiscard]] std::vector<std::byte> members() const;
  [[nodiscard]] Result<void> finish(std::int64_t timeout_ms, gossamer_finish_info& info);
  [[nodiscard]] Result<void> average(std::span<float> values, const gossamer_average_options& options,
                                     gossamer_average_info& info);
  void leave_average(const char* name) { averages_.erase(name == nullptr ? default_average : name); }
  /// Serves what is still due, for the end of a run.
  void serve_the_last();
  /// Gives up everything that a forked child does not have, without touching it.
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
  /// Larger than any due_sequence; it means "look at every fragment at the next step".
  static constexpr std::uint64_t look_again = std::uint64_t{1} << 32;
  static constexpr const char* default_average = "average";

  /// The budget of calls that wait: they serve all that is due. In a replica in parts such a call makes turns at once,
  /// without waiting for the turns' step.
  static constexpr std::uint64_t no_budget = UINT64_MAX;

  enum class Served { nothing, fragment, impossible, not_loaded, no_memory };

  [[nodiscard]] Result<void> serve_due(std::uint64_t budget_bytes);
  [[nodiscard]] Served serve_fragment(std::uint32_t fragment);
  [[nodiscard]] Served serve(std::uint32_t fragment, layout::Word word);
  void pass(std::uint32_t fragment, const layout::Word& word, std::uint32_t dither);
  void store_published(std::uint32_t fragment, layout::Word word, std::uint64_t publications);
  [[nodiscard]] bool sees_due() const {
    return memory_.header().due_sequence.load(std::memory_order_acquire) !=
           seen_due_sequence_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool attaches() const { return parts_ == nullptr || parts_->leads(); }
  [[nodiscard]] Result<bool> count_step_with_parts(std::uint64_t samples);
  [[nodiscard]] Served make_turn(std::uint32_t fragment, const layout::Word& word);
  [[nodiscard]] bool make_turns(bool waits);
  [[nodiscard]] Result<void> finish_with_parts(gossamer_finish_info& info, bool& spoiled, bool& ended);
  void tend_parts();
  void tend_finishing();
  [[nodiscard]] Result<void> parts_are_whole();
  [[nodiscard]] AttachmentStatus attachment_status() const;
  [[nodiscard]] Served add_to_pass(std::uint32_t fragment, const layout::Word& word);
  [[nodiscard]] bool prepare(std::uint32_t fragment, const layout::Word& word) const;
  [[nodiscard]] bool load(std::uint32_t fragment) const;
  void store(std::uint32_t fragment) const;
  [[nodiscard]] DeviceDescriptors device_descriptors();
  [[nodiscard]] Result<bool> tend_device();
  [[nodiscard]] Result<bool> move_to_host_memory();
  void count_launched(const DevicePass::Launch& launch);
  void give_device_up();
  [[nodiscard]] Result<void> look_at_device();
  [[nodiscard]] Result<void> settle();
  /// Counts a step, and returns how many there have been.
  std::uint64_t one_more_step() {
    const std::uint64_t steps = steps_.load(std::memory_order_relaxed) + 1;
    steps_.store(steps, std::memory_order_relaxed);
    return steps;
  }
  void ring_doorbell() { add_one(doorbell_.get()); }
  [[nodiscard]] bool is_ready(const AttachmentStatus& status) const;
  [[nodiscard]] bool all_had_turns() { return parts_ == nullptr || !parts_->leads() || parts_->quiet(); }
  void take_finishing_back();
  [[nodiscard]] static bool is_alone(const AttachmentStatus& status);
  [[nodiscard]] gossamer_finish_info finish_so_far(const AttachmentStatus& status, bool& spoiled) const;
  [[nodiscard]] Result<void> end_finish(gossamer_finish_info& info, bool spoiled);
  /// The value of Header::clock: the samples that this process has counted, or all parts together.
  [[nodiscard]] std::uint64_t counted() const {
    return parts_ == nullptr ? clock_.load(std::memory_order_relaxed) : parts_->clock();
  }
  [[nodiscard]] std::uint64_t clock() const;
  [[nodiscard]] std::uint64_t global_clock(std::uint64_t clock) const;
  [[nodiscard]] bool is_silent() const;

  ClientReplica replica_;
  std::unique_ptr<OpenTensors> open_tensors_;
  RunMemory memory_;
  std::unique_ptr<DevicePass> device_;  ///< null: the tensors are in host memory
  bool given_up_ = false;               ///< the device has failed, and the attachment was ended
  ForkGuard guard_;
  FileDescriptor doorbell_;              ///< eventfd: wakes the daemon
  std::unique_ptr<ReplicaParts> parts_;  ///< null: this process holds all of the model
  const std::uint64_t layout_hash_;      ///< this copy is used, because the daemon could change the shared one
  const std::uint64_t step_budget_bytes_;
  const std::uint64_t initial_clock_;
  /// Header::clock, in samples. This copy is used, because the daemon could change the shared one. It does not include
  /// the samples that a model that was taken over had seen.
  std::atomic<std::uint64_t> clock_ = initial_clock_;
  /// One thread counts these two. Another one that closes the run may read them, in info().
  std::atomic<std::uint64_t> steps_ = 0;
  std::uint64_t publications_ = 0;
  std::uint64_t corrections_ = 0;  ///< publications for which the tensors' values were changed
  std::uint64_t serving_ns_ = 0;
  std::uint32_t dither_ = std::random_device()();  ///< the dither of the last pass
  std::uint32_t next_fragment_ = 0;                ///< the next search for due fragments starts here
  /// The value of due_sequence when every fragment was last looked at, or look_again, which the attachment's thread
  /// sets.
  std::atomic<std::uint64_t> seen_due_sequence_{look_again};
  std::uint32_t finishing_ = 0;  ///< Header::finishing as it was last stored
  /// The last value of finishing_ that was not 0. In a part other than part 0: the number of the last finish whose end
  /// it knows.
  std::uint32_t last_finishing_ = 0;
  std::uint64_t trained_steps_ = 0;  ///< number of steps with samples
  std::uint64_t turns_at_ = 0;       ///< turns that begin now are made in the step of this number
  std::uint32_t verdict_of_ = 0;     ///< number of the last finish for which this part has told its verdict
  /// Header::job_cursor when the program set its own cursor; if it differs now, the job's cursor is newer
  std::uint64_t job_cursor_then_ = 0;
  mutable std::uint64_t heartbeat_ = 0;  ///< Header::heartbeat when info() last looked
  mutable std::chrono::steady_clock::time_point heard_at_ = std::chrono::steady_clock::now();
  mutable std::uint64_t global_clock_ = 0;  ///< the largest value reported; it never goes back
  std::string last_error_;
  gossamer_load load_ = nullptr;  ///< set together with store_ if the values are elsewhere
  gossamer_store store_ = nullptr;
  void* transfer_context_ = nullptr;
  std::string job_;
  std::string socket_path_;
  std::map<std::string, AverageClient> averages_;  ///< by name
  Attachment attachment_;                          ///< last: its thread uses the members above
};

inline Result<bool> ClientRun::count_step(std::uint64_t samples) {
  if (parts_ != nullptr) [[unlikely]]
    return count_step_with_parts(samples);
  const std::uint64_t before = clock_.load(std::memory_order_relaxed);
  if (samples > layout::max_clock_samples - before) [[unlikely]]
    return fail(GOSSAMER_BAD_ARGUMENT, "the number of samples is negative, or brings the clock beyond 2^53");
  layout::Header& header = memory_.header();
  clock_.store(before + samples, std::memory_order_relaxed);
  header.clock.store(before + samples, std::memory_order_relaxed);
  header.steps.store(one_more_step(), std::memory_order_relaxed);
  trained_steps_ += samples > 0 ? 1 : 0;
  header.trained_steps.store(trained_steps_, std::memory_order_relaxed);
  return sees_due();
}

inline Result<void> ClientRun::step(std::uint64_t samples) {
  const auto due = count_step(samples);
  if (!due) [[unlikely]]
    return std::unexpected(due.error());
  if (!*due) [[likely]]
    return {};
  return serve_due();
}

}  // namespace gossamer::client
