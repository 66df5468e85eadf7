// Between a job and its checkpoints: what the writing of one (checkpoint_writing.hpp) asks of the job, and how a job
// that begins here takes one over.
//
// Before a job says anything to others, it is looked for files that it could begin with (checkpoint_search.hpp), since
// newcomers agree on who begins by how far their models are. If it is this node that begins, the model is read into the
// places where a joiner's would be pulled to, all of it, before the client is given any: a file that turns out to be
// damaged leaves the client's own model as it is.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "daemon/checkpoint/folder.hpp"
#include "daemon/jobs/job.hpp"

namespace gossamer::daemon {

namespace {

/// A disk that takes longer to give a few headers is passed over.
constexpr TimeUs search_patience_us = 5 * us_per_s;

}  // namespace

// --- writing one ----------------------------------------------------------------------------------------------------

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
          .data_xxh3 = 0};
}

// --- beginning with one ---------------------------------------------------------------------------------------------

void Job::search_checkpoints() {
  Checkpoints& checkpoints = *host_.checkpoints();
  const ClientMemory& memory = memory_.first()->memory();
  CheckpointQuery query{.folder = checkpoints.options().folder / name(),
                        .job = name(),
                        .layout = key().layout_hash,
                        .model = memory.model(),
                        .clock = memory_.first()->clock(),
                        .restore = checkpoints.options().restore};
  searching_ = checkpoints.disk().submit(
      [query = std::move(query)] { return find_checkpoints(query); },
      [self = shared_from_this()](CheckpointsFound&& found) { self->searched(std::move(found)); });
  if (!searching_) begin();
}

void Job::searched(CheckpointsFound&& found) {
  if (!std::exchange(searching_, false) || ended_ || client_gone()) return;
  for (const std::string& refused : found.refused)
    host_.log().warn("job {}: will not begin with this checkpoint: {}", name(), refused);
  candidates_ = std::move(found.candidates);
  begin();
}

void Job::stop_searching(TimeUs now_us) {
  if (now_us - started_us_ < search_patience_us) return;
  searching_ = false;
  host_.log().warn(
      "job {}: the folder of checkpoints has not answered for {} s, so the job begins without one: look "
      "at the disk of {}",
      name(), search_patience_us / us_per_s, host_.checkpoints()->options().folder.string());
  begin();
}

/// Reads the next fragment to where the client will take it from, on the disk's thread.
void Job::restore_next() {
  const std::uint32_t f = restoring_->next;
  if (f == replica_.fragment_count()) return restored();
  gossip::FragmentBuffers& buffers = replica_.buffers(f);
  // One that a daemon before this gave to the client is not to be had: it is read all the same, for the check.
  const bool given =
      buffers.parts().with_client || buffers.parts().replace || (replica_.lean() && !restoring_->checked);
  restoring_->waits_for_room = !given && !replica_.begin_taking(f);
  if (restoring_->waits_for_room) return;
  struct Read {
    std::shared_ptr<Job> job;  // keeps the memory
    std::shared_ptr<checkpoint::ModelReader> file;
    std::size_t blocks;
    std::uint64_t elements;
    float* target;  // the device's memory; null: nowhere
    const gossip::Device& device;
    std::uint32_t fragment;

    std::string operator()() const {
      const ClientMemory& memory = job->memory_.first()->memory();
      if (const int error = target != nullptr && memory.lean() ? memory.provide(fragment) : 0; error != 0)
        return fmt::format("there is no memory for a fragment of the model: {}", std::strerror(error));
      const bool in_place = target != nullptr && &device == &gossip::processor();
      std::vector<float> elsewhere(in_place ? 0 : blocks * block_elements);
      float* const values = in_place ? target : elsewhere.data();
      if (auto read = file->read({values, elements}); !read) return read.error();
      std::fill(values + elements, values + blocks * block_elements, 0.0F);
      const gossip::FragmentView view{.publication = values};
      if (!gossip::sum(view, blocks, values)) return fmt::format("{}: holds NaN or infinity", file->path().string());
      if (in_place || target == nullptr || device.upload(target, elsewhere)) return "";
      return fmt::format("{} could not be given the model: {}", device.name(), device.failure());
    }
  };
  const std::uint64_t first = std::uint64_t{f} * description_.fragment_elements;
  Read task{.job = shared_from_this(),
            .file = restoring_->candidates.front().file,
            .blocks = buffers.block_count(),
            .elements = std::min<std::uint64_t>(description_.elements - first, description_.fragment_elements),
            .target = given ? nullptr : buffers.begin_replace(),
            .device = buffers.device(),
            .fragment = f};
  const bool taken = host_.checkpoints()->disk().submit(
      std::move(task), [self = shared_from_this(), restoring = restoring_, f, given](std::string&& problem) {
        if (!given) self->replica_.end_taking(f, {.there = true});
        if (self->ended_ || self->restoring_ != restoring) return;
        if (!problem.empty()) return self->restore_failed(problem);
        if (!given && self->replica_.lean())
          self->decide([&](Actions& out) { self->replica_.hand_over_taken(f, out); });
        ++restoring->next;
        self->memory_.first()->memory().set_fragments_pulled(restoring->next);
        self->restore_next();
      });
  if (!taken) restore_failed("the daemon is stopping");
}

void Job::restore_failed(const std::string& why) {
  host_.log().warn("job {}: cannot begin with this checkpoint: {}", name(), why);
  if (restoring_->checked) {
    // A part of it has been taken over: the client comes back, and all of it is tried again.
    restoring_.reset();
    memory_.first()->session().close();
    return;
  }
  restoring_->candidates.erase(restoring_->candidates.begin());
  restoring_->next = 0;
  if (!restoring_->candidates.empty()) return restore_next();
  host_.log().warn("job {}: begins with this client's model", name());
  restoring_.reset();
  run_if_joined();
}

void Job::restored() {
  const CheckpointCandidate candidate = restoring_->candidates.front();
  if (!restoring_->checked) {
    if (auto checked = candidate.file->check(); !checked) return restore_failed(checked.error());
  }
  if (replica_.lean() && !std::exchange(restoring_->checked, true)) {
    if (auto again = candidate.file->take(memory_.first()->memory().model()); !again)
      return restore_failed(again.error());
    restoring_->next = 0;
    return restore_next();
  }
  restoring_.reset();
  for (std::uint32_t f = 0; f < replica_.fragment_count() && !replica_.lean(); ++f) {
    const gossip::FragmentParts& parts = replica_.buffers(f).parts();
    if (!parts.with_client && !parts.replace) decide([&](Actions& out) { replica_.hand_over_taken(f, out); });
  }
  // As for a model that was pulled.
  const std::uint64_t own = memory_.first()->memory().clock();
  const std::uint64_t clock = candidate.description.clock;
  memory_.first()->memory().set_clock_base(clock - std::min(clock, own));
  memory_.first()->take_cursor(candidate.description.cursor);
  import_pending_ = candidate.imported;
  host_.log().info("job {}: begins with checkpoint {}, which has seen {} samples", name(),
                   candidate.file->path().string(), clock);
  run_if_joined();
}

/// What was imported has been taken over, and is not to be again.
void Job::settle_import() {
  if (!std::exchange(import_pending_, false)) return;
  const std::filesystem::path folder = host_.checkpoints()->options().folder / name();
  const bool taken = host_.checkpoints()->disk().submit(
      [from = folder / checkpoint::import_name,
       to = folder / checkpoint::file_name(memory_.first()->clock(), "import")] {
        std::error_code error;
        std::filesystem::rename(from, to, error);
        return error ? fmt::format("{}: cannot be renamed: {}; remove it, or the job will begin with it again",
                                   from.string(), error.message())
                     : std::string();
      },
      [self = shared_from_this()](std::string&& problem) {
        if (!problem.empty()) self->host_.log().warn("job {}: {}", self->name(), problem);
      });
  if (!taken) host_.log().warn("job {}: {} stays", name(), (folder / checkpoint::import_name).string());
}

}  // namespace gossamer::daemon
