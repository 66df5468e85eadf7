// How Job answers CheckpointWriting (checkpoint_writing.hpp).

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "daemon/checkpoint/folder.hpp"
#include "daemon/jobs/job.hpp"
#include "gossip/job_settings.hpp"

namespace gossamer::daemon {

std::expected<std::uint64_t, std::string> Job::request_checkpoint() {
  if (!checkpoint_writing_) return std::unexpected("this node keeps no checkpoints");
  if (ended_ || client_gone() || !runs())
    return std::unexpected(fmt::format("job {} does not run here yet, or not any more: see gossamerctl jobs", name()));
  return checkpoint_writing_->request(host_.now_us());
}

bool Job::copy_fragment(std::uint32_t fragment, std::uint64_t least_clock) {
  bool begun = false;
  decide([&](Actions& out) { begun = replica_.copy(fragment, least_clock, host_.now_us(), out); });
  return begun;
}

void Job::copied(std::uint32_t f, std::optional<std::vector<float>>&& values, std::uint64_t publication_clock) {
  checkpoint_writing_->copied(f, std::move(values), publication_clock, host_.now_us());
}

checkpoint::Description Job::describe() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.job = name(),
          .layout = key().layout_hash,
          .clock = clock(),
          .oldest_clock = 0,
          .cursor = cursor(),
          .node = host_.id().full(),
          .node_name = host_.node_name(),
          .written_at = checkpoint::date_text(std::chrono::duration_cast<std::chrono::seconds>(now).count()),
          .version = GOSSAMER_VERSION,
          .replicas = 1,
          .settings = settings_text(replica_.settings().values),
          .data_xxh3 = 0};
}

}  // namespace gossamer::daemon
