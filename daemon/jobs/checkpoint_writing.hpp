// Writes the checkpoints of one job: once a period, and when somebody asks.
//
// A checkpoint is written fragment by fragment. The job makes a copy of one fragment, on a worker, while the fragment
// is held; the disk's thread writes the copy; then the next fragment is asked for. Training and gossip go on meanwhile,
// and the memory needed is one fragment's copy. A failure is logged with its cause and leaves older checkpoints as they
// are; the next period tries again.
//
// Each fragment is copied as its client published it last. The clock and the cursor are taken after the last fragment.
// A program that goes on from a checkpoint therefore never trains again on data that the model has seen. Training that
// was done while the checkpoint was being written may be missing from the model, except for the part that gossip has.
//
// Owned by Job. Everything runs on the loop's thread except the disk's tasks, which keep alive what they need.

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

/// The job as the writing of checkpoints sees it.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  /// Has a copy made of a publication of the fragment with `least_clock` or later. The client may first have to
  /// publish, and may never do so. copied() delivers the copy, on the loop, after this has returned. False: no copy can
  /// be had.
  virtual bool copy_fragment(std::uint32_t fragment, std::uint64_t least_clock) = 0;
  /// Describes the model as it is now, without the facts that CheckpointWriting fills in.
  [[nodiscard]] virtual checkpoint::Description describe() const = 0;
};

class CheckpointWriting : public std::enable_shared_from_this<CheckpointWriting> {
 public:
  /// `model` has at least one element. All fragments but the last have `fragment_elements`. The references outlive this
  /// object.
  CheckpointWriting(Checkpoints& checkpoints, CheckpointSource& source, spdlog::logger& log, std::string job,
                    checkpoint::Model model, std::uint32_t fragment_elements);
  CheckpointWriting(const CheckpointWriting&) = delete;
  CheckpointWriting& operator=(const CheckpointWriting&) = delete;

  /// `running`: the job's model is decided on, and a client is attached.
  void tick(TimeUs now_us, bool running);
  /// Writes a checkpoint now, or when the present one is done. Returns its number.
  std::uint64_t request(TimeUs now_us);
  /// Takes the copy that was asked for, with its padding. The publication that was copied has `publication_clock`. No
  /// values: the fragment holds NaN or infinity.
  void copied(std::uint32_t fragment, std::optional<std::vector<float>>&& values, std::uint64_t publication_clock,
              TimeUs now_us);
  /// The job ends: an unfinished checkpoint is given up.
  void end();

  /// How the latest finished attempt ended, well or not.
  struct Outcome {
    std::uint64_t number = 0;  ///< 0: there was none
    std::string path = {};
    std::uint64_t clock = 0;
    std::string error = {};  ///< empty: the checkpoint is on the disk
  };
  [[nodiscard]] const Outcome& latest() const { return latest_; }
  /// The clock of the latest checkpoint on the disk, and when it was written; 0: there is none.
  [[nodiscard]] std::uint64_t written_clock() const { return written_clock_; }
  [[nodiscard]] TimeUs written_us() const { return written_us_; }
  [[nodiscard]] bool under_way() const { return writing_.has_value(); }
  [[nodiscard]] std::uint64_t written() const { return written_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }

 private:
  struct Writing {
    std::filesystem::path folder = {};
    std::shared_ptr<checkpoint::ModelWriter> file = {};  // null while a disk task has it
    std::uint32_t next = 0;
    std::uint32_t asked = 0;  // 1 + the fragment whose copy is awaited; 0: none
    TimeUs begun_us = 0;
    TimeUs asked_us = 0;
    std::uint64_t least_clock = 0;  // the job's clock when the writing began
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
  /// Runs `task` on the disk's thread, then `report` on the loop, unless the job has ended.
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
  std::uint64_t number_ = 0;  // the number of the present or latest attempt
  TimeUs now_us_ = 0;
  TimeUs next_us_ = 0;  // when the next checkpoint is due; 0: not known yet
  Outcome latest_;
  std::uint64_t written_clock_ = 0;
  TimeUs written_us_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace gossamer::daemon
