// Watching the disk's thread.

#include "daemon/checkpoints.hpp"

#include <fmt/format.h>

namespace gossamer::daemon {

void Checkpoints::watch(TimeUs now_us, spdlog::logger& log) {
  const std::uint64_t finished = disk_.finished();
  if (finished != finished_ || disk_.pending() == 0 || got_on_us_ == 0) {
    finished_ = finished;
    if (silent_us_ != 0)
      log.info("the disk of {} answers again, after {} s", options_.folder.string(), (now_us - got_on_us_) / us_per_s);
    silent_us_ = 0;
    got_on_us_ = now_us;
    return;
  }
  if (now_us - got_on_us_ < disk_patience_us) return;
  const bool news = silent_us_ == 0;
  silent_us_ = now_us - got_on_us_;
  if (news) log.warn("{}", trouble());
}

std::string Checkpoints::trouble() const {
  if (silent_us_ == 0) return "";
  return fmt::format(
      "the disk of {} has not answered for {} s: what is to be written waits, training and gossip go on; look at the "
      "disk (dmesg, df, mount), or end the daemon and set [checkpoints] folder and [node] state_dir to another",
      options_.folder.string(), silent_us_ / us_per_s);
}

}  // namespace gossamer::daemon
