#include "daemon/jobs/job_beginning.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/checkpoint/folder.hpp"
#include "gossip/check.hpp"

namespace gossamer::daemon {

namespace {

/// A disk that takes longer to read a few headers is not waited for.
constexpr TimeUs search_patience_us = 5 * us_per_s;
/// After this a newcomer no longer waits for neighbours that were dialled and have neither linked nor failed.
constexpr TimeUs settle_timeout_us = 5 * us_per_s;

}  // namespace

JobBeginning::JobBeginning(BeginningHost& job, JobHost& host, const JobInfo& description, JobMemory& memory,
                           gossip::Replica& replica, gossip::Executor& executor)
    : job_(job),
      host_(host),
      description_(description),
      memory_(memory),
      replica_(replica),
      executor_(executor),
      began_us_(host.now_us()),
      copying_(replica.fragment_count()) {}

// --- where it stands ----------------------------------------------------------------------------------------------

bool JobBeginning::replaces_pending() const {
  const bool given = std::ranges::any_of(
      replica_.fragments(), [](const gossip::Fragment& fragment) { return fragment.buffers.parts().replace; });
  return given || std::ranges::find(copying_, true) != copying_.end();
}

std::uint64_t JobBeginning::candidate_clock() const {
  return candidates_.empty() ? 0 : candidates_.front().description.clock;
}

std::uint32_t JobBeginning::fragments_pulled() const {
  if (joining() != nullptr) return joining()->fragments_pulled();
  return pulled_bytes_ > 0 ? description_.fragments : 0;
}

std::uint32_t JobBeginning::donors() const {
  return joining() == nullptr ? 0 : static_cast<std::uint32_t>(joining()->donors());
}

// --- searching ----------------------------------------------------------------------------------------------------

void JobBeginning::search() {
  if (host_.checkpoints() == nullptr) return job_.begin();
  Checkpoints& checkpoints = *host_.checkpoints();
  CheckpointQuery query{.folder = checkpoints.options().folder / description_.name,
                        .job = description_.name,
                        .layout = description_.job.layout_hash,
                        .model = client().memory().model(),
                        .clock = client().clock(),
                        .restore = checkpoints.options().restore};
  const bool taken =
      checkpoints.disk().submit([query = std::move(query)] { return find_checkpoints(query); },
                                [this, keep = job_.keep()](CheckpointsFound&& found) { searched(std::move(found)); });
  if (!taken) return job_.begin();
  stage_ = Searching{};
}

void JobBeginning::searched(CheckpointsFound&& found) {
  if (!is_searching() || job_.is_gone()) return;
  for (const std::string& refused : found.refused)
    host_.log().warn("job {}: will not begin with this checkpoint: {}", description_.name, refused);
  candidates_ = std::move(found.candidates);
  stage_ = Over{};
  job_.begin();
}

void JobBeginning::stop_searching() {
  if (host_.now_us() - began_us_ < search_patience_us) return;
  stage_ = Over{};
  host_.log().warn(
      "job {}: the folder of checkpoints has not answered for {} s, so the job begins without one: look "
      "at the disk of {}",
      description_.name, search_patience_us / us_per_s, host_.checkpoints()->options().folder.string());
  job_.begin();
}

// --- joining ------------------------------------------------------------------------------------------------------

void JobBeginning::join(std::uint64_t clock) {
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f)
    blocks.push_back(static_cast<std::uint32_t>(replica_.buffers(f).block_count()));
  stage_.emplace<gossip::Joining>(gossip::JoiningOptions{}, host_.id(), description_.job, clock, std::move(blocks));
}

template <class Feed>
void JobBeginning::decide(Feed feed) {
  if (joining() == nullptr || job_.is_gone()) return;
  gossip::Joining::Actions actions;
  feed(*joining(), actions);
  for (const auto& ask : actions.ask)
    host_.send(ask.to, ask.message);  // if it is lost, it is asked again after some time
  for (const auto& take : actions.take) {
    give(take.fragment);
    pulled_bytes_ += take.values.size();
  }
  if (actions.take.empty() && !actions.finished) return;
  client().memory().set_fragments_pulled(joining()->fragments_pulled());
  if (actions.finished) joined(gossip::Joining(std::move(*joining())));
}

void JobBeginning::joined(const gossip::Joining& joining) {
  stage_ = Over{};
  if (joining.fragments_pulled() > 0) {
    take_over(joining.clock(), joining.cursor());
    host_.log().info("job {}: pulled the model, {} bytes, in {:.2f} s", description_.name, pulled_bytes_,
                     static_cast<double>(host_.now_us() - began_us_) / us_per_s);
    if (!candidates_.empty() && candidates_.front().imported) {
      host_.log().warn(
          "job {}: {} was not taken over, since other nodes run the job already: stop the training "
          "processes of the job on all nodes, and start those of this node first",
          description_.name, candidates_.front().file->path().string());
    }
    candidates_.clear();
  } else if (!candidates_.empty()) {
    stage_ = std::make_shared<Restoring>(Restoring{.candidates = std::exchange(candidates_, {})});
    return restore_next();
  } else {
    host_.log().info("job {}: begins with this client's model", description_.name);
  }
  job_.run_if_joined();
}

void JobBeginning::link_up(const NodeId& node) {
  decide([&](gossip::Joining& joining, gossip::Joining::Actions& out) { joining.link_up(node, host_.now_us(), out); });
}

void JobBeginning::link_down(const NodeId& node) {
  decide(
      [&](gossip::Joining& joining, gossip::Joining::Actions& out) { joining.link_down(node, host_.now_us(), out); });
}

void JobBeginning::info(const NodeId& from, const JobInfo& info) {
  decide(
      [&](gossip::Joining& joining, gossip::Joining::Actions& out) { joining.info(from, info, host_.now_us(), out); });
}

void JobBeginning::tick(bool settled) {
  const TimeUs now_us = host_.now_us();
  if (is_searching()) stop_searching();
  if (joining() != nullptr) {
    for (const auto& [node, round_trip_us] : host_.round_trips_us())
      joining()->set_round_trip(node, round_trip_us);
  }
  decide([&](gossip::Joining& joining, gossip::Joining::Actions& out) {
    joining.tick(settled || now_us - began_us_ > settle_timeout_us, now_us, out);
  });
  take_held_back();
  if (is_restoring() && std::get<std::shared_ptr<Restoring>>(stage_)->waits_for_room) restore_next();
}

/// A worker copies the values to where the client will read them, and checks them there.
void JobBeginning::pulled(const NodeId& from, PullReply&& reply) {
  const std::uint32_t f = reply.fragment;
  if (joining() == nullptr || f >= copying_.size() || copying_[f]) return;
  gossip::FragmentBuffers& buffers = replica_.buffers(f);
  if (buffers.parts().with_client || buffers.parts().replace) return;  // the client has them already
  const std::size_t size_bytes = buffers.block_count() * block_elements * sizeof(float);
  if (reply.reason != RefuseReason::none || reply.values.size() != size_bytes)
    return finish_pull(from, std::move(reply));
  if (!replica_.begin_taking(f)) return hold_back(from, std::move(reply));
  struct Copied {
    int memory_error = 0;
    bool good = false;
    std::string device_failure = {};
  };
  copying_[f] = true;
  const Bytes values = reply.values;
  const std::uint64_t hash = reply.hash;
  const bool taken = host_.workers().submit(
      [values, hash, target = buffers.begin_replace(), f, blocks = buffers.block_count(), &device = buffers.device(),
       &memory = client().memory(), keep = job_.keep()] {
        if (const int error = memory.lean() ? memory.provide(f) : 0; error != 0) return Copied{.memory_error = error};
        // The sum is made in place and leaves the values as they are: it only finds NaN and infinity.
        const bool good = XXH3_64bits(values.data.data(), values.size()) == hash &&
                          device.upload(target, values.as<float>()) &&
                          device.sum({.publication = target}, blocks, target);
        return Copied{.good = good, .device_failure = good ? "" : device.failure()};
      },
      [this, keep = job_.keep(), from, reply = std::move(reply)](Copied copied) mutable {
        const std::uint32_t f = reply.fragment;
        copying_[f] = false;
        replica_.end_taking(f, {.there = copied.memory_error == 0});
        if (job_.is_gone()) return;
        if (copied.memory_error != 0) {
          job_.lacks_memory(copied.memory_error);
          return hold_back(from, std::move(reply));
        }
        if (!copied.device_failure.empty()) {
          host_.log().warn("job {}: fragment {} of the model could not be written to the client's memory: {}",
                           description_.name, f, copied.device_failure);
          reply.reason = RefuseReason::not_finite;
        } else if (!copied.good) {
          host_.log().warn("job {}: node {} sent fragment {} damaged or with NaN: asking another node",
                           description_.name, from.brief(), f);
          reply.reason = RefuseReason::not_finite;
        }
        finish_pull(from, std::move(reply));
      });
  GOSSAMER_CHECK(taken);
}

void JobBeginning::finish_pull(const NodeId& from, PullReply&& reply) {
  decide([&](gossip::Joining& joining, gossip::Joining::Actions& out) {
    joining.pulled(from, reply, host_.now_us(), out);
  });
}

/// Keeps values for which lean memory has no room yet. Only a few are kept; dropped ones are asked for again.
void JobBeginning::hold_back(const NodeId& from, PullReply&& reply) {
  if (pulls_held_back_.size() < client().memory().window_fragments())
    pulls_held_back_.emplace_back(from, std::move(reply));
}

void JobBeginning::take_held_back() {
  for (auto& [from, reply] : std::exchange(pulls_held_back_, {}))
    pulled(from, std::move(reply));
}

void JobBeginning::give(std::uint32_t fragment) {
  executor_.decide([&](gossip::Actions& out) { replica_.hand_over_taken(fragment, out); });
}

/// The clock becomes that of the donors, whatever the client had trained before on its own.
void JobBeginning::take_over(std::uint64_t clock, std::span<const std::byte> cursor) {
  const std::uint64_t own = client().memory().clock();
  client().memory().set_clock_base(clock - std::min(clock, own));
  client().take_cursor(cursor);
}

// --- restoring ----------------------------------------------------------------------------------------------------

/// The disk's thread reads the next fragment to where the client will take it from.
void JobBeginning::restore_next() {
  const std::shared_ptr<Restoring> restoring = std::get<std::shared_ptr<Restoring>>(stage_);
  const std::uint32_t f = restoring->next;
  if (f == replica_.fragment_count()) return restored();
  gossip::FragmentBuffers& buffers = replica_.buffers(f);
  // A fragment that an earlier daemon already gave to the client is read for the check only.
  const bool given = buffers.parts().with_client || buffers.parts().replace || (replica_.lean() && !restoring->checked);
  restoring->waits_for_room = !given && !replica_.begin_taking(f);
  if (restoring->waits_for_room) return;
  struct Read {
    std::shared_ptr<void> keep;
    const ClientMemory& memory;
    std::shared_ptr<checkpoint::ModelReader> file;
    std::size_t blocks;
    std::uint64_t elements;
    float* target;  // the device's memory; null: the values are only checked
    const gossip::Device& device;
    std::uint32_t fragment;

    std::string operator()() const {
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
  Read task{.keep = job_.keep(),
            .memory = client().memory(),
            .file = restoring->candidates.front().file,
            .blocks = buffers.block_count(),
            .elements = std::min<std::uint64_t>(description_.elements - first, description_.fragment_elements),
            .target = given ? nullptr : buffers.begin_replace(),
            .device = buffers.device(),
            .fragment = f};
  const bool taken = host_.checkpoints()->disk().submit(
      std::move(task), [this, keep = job_.keep(), restoring, f, given](std::string&& problem) {
        if (!given) replica_.end_taking(f, {.there = true});
        const auto* now = std::get_if<std::shared_ptr<Restoring>>(&stage_);
        if (job_.is_gone() || now == nullptr || *now != restoring) return;
        if (!problem.empty()) return restore_failed(problem);
        if (!given && replica_.lean()) give(f);
        ++restoring->next;
        client().memory().set_fragments_pulled(restoring->next);
        restore_next();
      });
  if (!taken) restore_failed("the daemon is stopping");
}

void JobBeginning::restore_failed(const std::string& why) {
  const std::shared_ptr<Restoring> restoring = std::get<std::shared_ptr<Restoring>>(stage_);
  host_.log().warn("job {}: cannot begin with this checkpoint: {}", description_.name, why);
  if (restoring->checked) {
    // A part of the model has been taken over already: the client attaches again, and restoring starts anew.
    stage_ = Over{};
    client().session().close();
    return;
  }
  restoring->candidates.erase(restoring->candidates.begin());
  restoring->next = 0;
  if (!restoring->candidates.empty()) return restore_next();
  host_.log().warn("job {}: begins with this client's model", description_.name);
  stage_ = Over{};
  job_.run_if_joined();
}

void JobBeginning::restored() {
  const std::shared_ptr<Restoring> restoring = std::get<std::shared_ptr<Restoring>>(stage_);
  const CheckpointCandidate candidate = restoring->candidates.front();
  if (!restoring->checked) {
    if (auto checked = candidate.file->check(); !checked) return restore_failed(checked.error());
  }
  if (replica_.lean() && !std::exchange(restoring->checked, true)) {
    if (auto again = candidate.file->take(client().memory().model()); !again) return restore_failed(again.error());
    restoring->next = 0;
    return restore_next();
  }
  stage_ = Over{};
  for (std::uint32_t f = 0; f < replica_.fragment_count() && !replica_.lean(); ++f) {
    const gossip::FragmentParts& parts = replica_.buffers(f).parts();
    if (!parts.with_client && !parts.replace) give(f);
  }
  take_over(candidate.description.clock, candidate.description.cursor);
  import_pending_ = candidate.imported;
  host_.log().info("job {}: begins with checkpoint {}, which has seen {} samples", description_.name,
                   candidate.file->path().string(), candidate.description.clock);
  job_.run_if_joined();
}

void JobBeginning::settle_import() {
  if (!std::exchange(import_pending_, false)) return;
  const std::filesystem::path folder = host_.checkpoints()->options().folder / description_.name;
  const bool taken = host_.checkpoints()->disk().submit(
      [from = folder / checkpoint::import_name, to = folder / checkpoint::file_name(client().clock(), "import")] {
        std::error_code error;
        std::filesystem::rename(from, to, error);
        return error ? fmt::format("{}: cannot be renamed: {}; remove it, or the job will begin with it again",
                                   from.string(), error.message())
                     : std::string();
      },
      [this, keep = job_.keep()](std::string&& problem) {
        if (!problem.empty()) host_.log().warn("job {}: {}", description_.name, problem);
      });
  if (!taken) host_.log().warn("job {}: {} stays", description_.name, (folder / checkpoint::import_name).string());
}

}  // namespace gossamer::daemon
