// Writes the checkpoints of one job: once a period, and when somebody asks.
//
// Fragment by fragment: the job is asked for a copy of one, made on a worker while the fragment is held; the disk's
// thread writes it; then the next is asked for. So training and gossip go on, and one fragment's copy is all the memory
// it takes. A failure is told in the log with its cause, leaves older checkpoints as they are, and the next period
// tries again.
//
// The fragments are copied one after the other, each as its client published it last; the clock and the cursor are
// those of the end. So a program that goes on from a checkpoint never trains again on what the model has seen, and what
// it saw while the checkpoint was being written may be missing from the model, but for what gossip has of it.
//
// Owned by Job; everything runs on the loop's thread but the tasks for the disk, which hold what they need.

#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/checkpoint/model_file.hpp"
#include "daemon/jobs/checkpoints.hpp"
#include "gossip/types.hpp"

namespace gossamer::daemon {

/// What it asks of its job.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  /// Has a copy of the fragment made, of a publication of `least_clock` or later: the client is asked for one if need
  /// be, and may never give it. copied() tells of it, from the loop, after this returned. False: there is none to be
  /// had.
  virtual bool copy_fragment(std::uint32_t fragment, std::uint64_t least_clock) = 0;
  /// What is known of the model now, but for what the writing knows itself.
  [[nodiscard]] virtual checkpoint::Description describe() const = 0;
};

class CheckpointWriting : public std::enable_shared_from_this<CheckpointWriting> {
 public:
  /// `model` has at least one element; fragments of `fragment_elements` but for the last. References outlive it.
  CheckpointWriting(Checkpoints& checkpoints, CheckpointSource& source, spdlog::logger& log, std::string job,
                    checkpoint::Model model, std::uint32_t fragment_elements);
  CheckpointWriting(const CheckpointWriting&) = delete;
  CheckpointWriting& operator=(const CheckpointWriting&) = delete;

  /// `running`: the job's model is agreed on, and a client is there.
  void tick(TimeUs now_us, bool running);
  /// Writes one now, or when the one under way is done. Returns its number.
  std::uint64_t request(TimeUs now_us);
  /// The copy that was asked for, padding included, of a publication of that clock; nothing: it holds NaN or infinity.
  void copied(std::uint32_t fragment, std::optional<std::vector<float>>&& values, std::uint64_t publication_clock,
              TimeUs now_us);
  /// The job ends: what is not finished is given up.
  void end();

  /// The latest that is over, well or not.
  struct Outcome {
    std::uint64_t number = 0;  ///< 0: there was none
    std::string path = {};
    std::uint64_t clock = 0;
    std::string error = {};  ///< empty: it is on the disk
  };
  [[nodiscard]] const Outcome& latest() const { return latest_; }
  /// The clock of the latest that is on the disk, and when it came there; 0: there is none.
  [[nodiscard]] std::uint64_t written_clock() const { return written_clock_; }
  [[nodiscard]] TimeUs written_us() const { return written_us_; }
  [[nodiscard]] bool under_way() const { return writing_.has_value(); }
  [[nodiscard]] std::uint64_t written() const { return written_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }

 private:
  struct Writing {
    std::filesystem::path folder = {};
    std::shared_ptr<checkpoint::ModelWriter> file = {};  // while no task has it
    std::uint32_t next = 0;
    std::uint32_t asked = 0;  // + 1, of the fragment whose copy is awaited; 0: none
    TimeUs begun_us = 0;
    TimeUs asked_us = 0;
    std::uint64_t least_clock = 0;  // of the job when it began
    std::uint64_t oldest_clock = UINT64_MAX;
  };
  using File = std::expected<std::shared_ptr<checkpoint::ModelWriter>, std::string>;

  void begin(TimeUs now_us);
  void begun(File&& file, const std::filesystem::path& folder);
  void next();
  void appended(File&& file);
  void finish();
  void finished(std::uint64_t clock, const std::filesystem::path& path);
  void fail(const std::string& why);
  void over(Outcome&& outcome);
  /// On the disk's thread; `report` on the loop, unless the job has ended.
  template <class Task, class Report>
  void on_disk(Task task, Report report);

  Checkpoints& checkpoints_;
  CheckpointSource& source_;
  spdlog::logger& log_;
  const std::string job_;
  const checkpoint::Model model_;
  const std::uint64_t elements_;
  const std::uint32_t fragment_elements_;
  std::optional<Writing> writing_;
  bool again_ = false;
  bool ended_ = false;
  std::uint64_t number_ = 0;  // of the one under way, or the latest
  TimeUs now_us_ = 0;
  TimeUs next_us_ = 0;  // 0: not known yet
  Outcome latest_;
  std::uint64_t written_clock_ = 0;
  TimeUs written_us_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace gossamer::daemon
