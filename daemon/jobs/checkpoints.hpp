// The checkpoint options that the jobs of a node share, and one thread that waits for the disk, so that neither the
// loop nor the workers ever do. A disk that fails, is full or hangs costs checkpoints and nothing else. The thread also
// does the daemon's other writes that may wait.
//
// Made in main; everything is called from the loop's thread. Invariant: at most disk_queue tasks wait for the thread.

#pragma once

#include <asio/io_context.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "daemon/config/config.hpp"
#include "daemon/report/status.hpp"
#include "daemon/system/workers.hpp"
#include "gossip/types.hpp"

namespace gossamer::daemon {

class Checkpoints {
 public:
  /// More tasks than all jobs can have waiting: each job has one task under way, and a few that only free memory.
  static constexpr std::size_t disk_queue = 1024;
  /// A disk that takes longer than this for one task is reported.
  static constexpr TimeUs disk_patience_us = 10 * us_per_s;
  /// If the disk is not looked at for longer than this, this process was stopped, and the disk's thread with it.
  static constexpr TimeUs longest_look_us = 2 * us_per_s;

  Checkpoints(asio::io_context& loop, CheckpointOptions options)
      : options_(std::move(options)), disk_(loop, 1, disk_queue) {}

  [[nodiscard]] const CheckpointOptions& options() const { return options_; }
  void set_options(const CheckpointOptions& options) { options_ = options; }
  /// The thread for work that blocks for as long as the disk does.
  [[nodiscard]] Workers& disk() { return disk_; }

  /// Checks that the thread makes progress. To be called regularly.
  void watch(TimeUs now_us);
  /// How long the disk has not answered, as of the latest watch(); 0 while that is within disk_patience_us.
  [[nodiscard]] TimeUs silent_us() const { return silent_us_; }
  /// Nothing unless the disk is silent.
  [[nodiscard]] std::optional<FindingStatus> trouble() const;
  /// The trouble in a sentence; empty if there is none.
  [[nodiscard]] std::string trouble_text() const;

  /// False: the disk still hangs, and the process must end without running the destructor.
  [[nodiscard]] bool stop_within(std::chrono::milliseconds patience) { return disk_.stop_within(patience); }

 private:
  CheckpointOptions options_;
  Workers disk_;
  std::uint64_t finished_ = 0;  // how many tasks were over when watch() last saw progress
  TimeUs watched_us_ = 0;       // when watch() was last called; 0: never
  TimeUs waited_us_ = 0;        // how long this process has run since watch() saw progress, or no task waiting
  TimeUs silent_us_ = 0;
};

}  // namespace gossamer::daemon
