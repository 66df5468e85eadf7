// What the jobs of a node share to keep checkpoints: the options, and one thread that waits for the disk, so that
// neither the loop nor the workers ever do. A disk that fails, is full or hangs costs checkpoints and nothing else.
//
// Made in main; everything is called from the loop's thread. Invariant: at most disk_queue tasks wait for the thread.

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <filesystem>
#include <string>

#include "daemon/config.hpp"
#include "daemon/workers.hpp"

namespace gossamer::daemon {

class Checkpoints {
 public:
  /// More than all jobs can have waiting: each has one task under way, and a few that only free what it had.
  static constexpr std::size_t disk_queue = 1024;

  Checkpoints(asio::io_context& loop, CheckpointOptions options)
      : options_(std::move(options)), disk_(loop, 1, disk_queue) {}

  [[nodiscard]] const CheckpointOptions& options() const { return options_; }
  void set_options(const CheckpointOptions& options) { options_ = options; }
  /// Runs what blocks for as long as the disk does.
  [[nodiscard]] Workers& disk() { return disk_; }
  void stop() { disk_.stop(); }

 private:
  CheckpointOptions options_;
  Workers disk_;
};

}  // namespace gossamer::daemon
