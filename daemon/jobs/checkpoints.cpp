// How the disk's thread is watched.

#include "daemon/jobs/checkpoints.hpp"

#include <fmt/format.h>

namespace gossamer::daemon {

void Checkpoints::watch(TimeUs now_us) {
  const std::uint64_t finished = disk_.finished();
  if (finished != finished_ || disk_.pending() == 0 || got_on_us_ == 0) {
    finished_ = finished;
    got_on_us_ = now_us;
  }
  const TimeUs waited_us = now_us - got_on_us_;
  silent_us_ = waited_us < disk_patience_us ? 0 : waited_us;
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
