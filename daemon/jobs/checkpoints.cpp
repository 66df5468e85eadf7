// How the disk's thread is watched.

#include "daemon/jobs/checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gossamer::daemon {

void Checkpoints::watch(TimeUs now_us) {
  const std::uint64_t finished = disk_.finished();
  waited_us_ += watched_us_ == 0 ? 0 : std::min(now_us - watched_us_, longest_look_us);
  if (finished != finished_ || disk_.pending() == 0) waited_us_ = 0;
  finished_ = finished;
  watched_us_ = now_us;
  silent_us_ = waited_us_ < disk_patience_us ? 0 : waited_us_;
}

std::optional<FindingStatus> Checkpoints::trouble() const {
  if (silent_us_ == 0) return std::nullopt;
  return FindingStatus{
      .rule = "disk",
      .grade = "problem",
      .text = fmt::format("the disk of {} has not answered for {} s: what is to be written waits, training and gossip "
                          "go on",
                          options_.folder.string(), silent_us_ / us_per_s),
      .advice =
          "look at the disk (dmesg, df, mount), or end the daemon and set [checkpoints] folder and [node] "
          "state_dir to another"};
}

std::string Checkpoints::trouble_text() const {
  const auto found = trouble();
  return found ? fmt::format("{}; {}", found->text, found->advice) : "";
}

}  // namespace gossamer::daemon
