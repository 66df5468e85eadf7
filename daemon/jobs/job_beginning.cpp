#include "daemon/jobs/job_beginning.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/checkpoint/folder.hpp"
#include "gossip/check.hpp"

namespace gossamer::daemon {

namespace {

/// A checkpoint that the search has found.
class FoundCheckpoint : public gossip::SavedModel {
 public:
  FoundCheckpoint(CheckpointCandidate&& found, checkpoint::Model model)
      : found_(std::move(found)), model_(std::move(model)) {}
  [[nodiscard]] std::uint64_t clock() const override { return found_.description.clock; }
  [[nodiscard]] std::span<const std::byte> cursor() const override { return found_.description.cursor; }
  [[nodiscard]] std::expected<void, std::string> check() override { return found_.file->check(); }
  [[nodiscard]] std::expected<void, std::string> rewind() override { return found_.file->take(model_); }

  [[nodiscard]] const std::shared_ptr<checkpoint::ModelReader>& file() const { return found_.file; }
  [[nodiscard]] bool imported() const { return found_.imported; }
  [[nodiscard]] const std::string& settings() const { return found_.description.settings; }

 private:
  CheckpointCandidate found_;
  checkpoint::Model model_;
};

const FoundCheckpoint& found(const gossip::BeginningWork::Saved& saved) {
  return static_cast<const FoundCheckpoint&>(*saved);
}

/// Reads the next fragment of a file to `target`, which is in the device's memory. If `target` is null, it only checks
/// the values.
struct ReadFragment {
  std::shared_ptr<void> keep;
  const ClientMemory& memory;
  std::shared_ptr<checkpoint::ModelReader> file;
  std::size_t blocks;
  std::uint64_t elements;
  float* target;
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

}  // namespace

std::filesystem::path JobBeginning::folder() const {
  return host_.checkpoints()->options().folder / description_.name;
}

void JobBeginning::take_over(std::uint64_t base, std::span<const std::byte> cursor) {
  client().memory().set_clock_base(base);
  client().take_cursor(cursor);
}

// --- pulled fragments ---------------------------------------------------------------------------------------------

/// A worker copies the values to where the client will read them, and checks them there.
void JobBeginning::copy(const NodeId& from, PullReply&& reply, float* target) {
  struct Copied {
    gossip::PulledCopy outcome;
    std::string device_failure = {};
  };
  const std::uint32_t f = reply.fragment;
  const Bytes values = reply.values;
  const std::uint64_t hash = reply.hash;
  const ClientMemory& memory = client().memory();
  const bool taken = host_.workers().submit(
      [values, hash, target, f, &device = memory.device(), &memory, keep = keep_()] {
        if (const int error = memory.lean() ? memory.provide(f) : 0; error != 0) return Copied{{.memory_error = error}};
        // The sum finds NaN and infinity. It is made in place and leaves the values as they are.
        const std::size_t blocks = values.size() / (block_elements * sizeof(float));
        const bool good = XXH3_64bits(values.data.data(), values.size()) == hash &&
                          device.upload(target, values.as<float>()) &&
                          device.sum({.publication = target}, blocks, target);
        return Copied{{.good = good}, good ? "" : device.failure()};
      },
      [this, keep = keep_(), from, f, reply = std::move(reply)](Copied copied) mutable {
        const bool lost = copied.outcome.memory_error == 0 && !copied.outcome.good && !job_.is_gone();
        if (lost && !copied.device_failure.empty()) {
          host_.log().warn("job {}: fragment {} of the model could not be written to the client's memory: {}",
                           description_.name, f, copied.device_failure);
        } else if (lost) {
          host_.log().warn("job {}: node {} sent fragment {} damaged or with NaN: asking another node",
                           description_.name, host_.called(from), f);
        }
        beginning().copied(from, std::move(reply), copied.outcome);
      });
  GOSSAMER_CHECK(taken);
}

// --- checkpoints --------------------------------------------------------------------------------------------------

bool JobBeginning::search() {
  if (host_.checkpoints() == nullptr) return false;
  CheckpointQuery query{.folder = folder(),
                        .job = description_.name,
                        .layout = description_.job.layout_hash,
                        .model = client().memory().model(),
                        .clock = client().clock(),
                        .restore = host_.checkpoints()->options().restore};
  return host_.checkpoints()->disk().submit(
      [query = std::move(query)] { return find_checkpoints(query); },
      [this, keep = keep_()](CheckpointsFound&& found) { searched(std::move(found)); });
}

void JobBeginning::searched(CheckpointsFound&& found) {
  if (!beginning().is_searching() || job_.is_gone()) return;
  for (const std::string& refused : found.refused)
    host_.log().warn("job {}: will not begin with this checkpoint: {}", description_.name, refused);
  if (!found.import_refused.empty()) refuse_import(std::move(found.import_refused));
  if (found.more_refused > 0)
    host_.log().warn("job {}: nor with {} other files of its folder", description_.name, found.more_refused);
  std::vector<Saved> all;
  for (CheckpointCandidate& candidate : found.candidates)
    all.push_back(std::make_shared<FoundCheckpoint>(std::move(candidate), client().memory().model()));
  beginning().searched(std::move(all));
}

/// The disk's thread reads the fragment to where the client will take it from.
bool JobBeginning::read(const Saved& saved, std::uint32_t f, float* target) {
  const ClientMemory& memory = client().memory();
  const std::uint64_t first = std::uint64_t{f} * description_.fragment_elements;
  const std::uint64_t elements = std::min<std::uint64_t>(description_.elements - first, description_.fragment_elements);
  ReadFragment task{.keep = keep_(),
                    .memory = memory,
                    .file = found(saved).file(),
                    .blocks = (elements + block_elements - 1) / block_elements,
                    .elements = elements,
                    .target = target,
                    .device = memory.device(),
                    .fragment = f};
  return host_.checkpoints()->disk().submit(
      std::move(task),
      [this, keep = keep_(), saved, f, target](std::string&& problem) { beginning().read(saved, f, target, problem); });
}

void JobBeginning::settle_import() {
  if (!std::exchange(import_pending_, false)) return;
  const std::filesystem::path from = folder() / checkpoint::import_name;
  const bool taken = host_.checkpoints()->disk().submit(
      [from, to = folder() / checkpoint::file_name(client().clock(), "import")] {
        std::error_code error;
        std::filesystem::rename(from, to, error);
        return error ? fmt::format("{}: cannot be renamed: {}; remove it, or the job will begin with it again",
                                   from.string(), error.message())
                     : std::string();
      },
      [this, keep = keep_()](std::string&& problem) {
        if (!problem.empty()) host_.log().warn("job {}: {}", description_.name, problem);
      });
  if (!taken) host_.log().warn("job {}: {} stays", description_.name, from.string());
}

// --- what people are told -----------------------------------------------------------------------------------------

void JobBeginning::search_is_slow() {
  host_.log().warn(
      "job {}: the folder of checkpoints has not answered for {:.0f} s, so the job begins without one: look at the "
      "disk of {}",
      description_.name, static_cast<double>(host_.now_us() - began_us_) / us_per_s,
      host_.checkpoints()->options().folder.string());
}

void JobBeginning::pulled(std::uint32_t missing, std::uint64_t clock, const Saved& unused) {
  host_.log().info("job {}: pulled the model, {} bytes, in {:.2f} s", description_.name, beginning().pulled_bytes(),
                   static_cast<double>(host_.now_us() - began_us_) / us_per_s);
  // A program that has trained while it joined is not told: it may be only a little further than the others for that.
  if (client_clock() > clock && client().joins() && client().memory().steps().all == 0) {
    dropped_ = fmt::format(
        "the job's model, which has seen {} samples, has replaced the program's, which had seen {}: to go on from a "
        "checkpoint, start the programs that load it before any other, or give all of them the same one",
        clock, client_clock());
    host_.log().warn("job {}: {}", description_.name, dropped_);
  }
  if (missing > 0)
    host_.log().warn(
        "job {}: {} of {} fragments of the model are this node's own: whoever could give them is gone, or holds NaN or "
        "infinity there",
        description_.name, missing, beginning().fragments_pulled());
  if (unused == nullptr || !found(unused).imported()) return;
  host_.log().warn(
      "job {}: {} was not taken over, since other nodes run the job already: stop the training processes of the job on "
      "all nodes, and start those of this node first",
      description_.name, found(unused).file()->path().string());
}

void JobBeginning::begins_with(const Saved& saved) {
  import_pending_ = found(saved).imported();
  settings_ = found(saved).settings();
  const checkpoint::ModelReader& file = *found(saved).file();
  host_.log().info("job {}: begins with checkpoint {}, which has seen {} samples{}", description_.name,
                   file.path().string(), saved->clock(),
                   file.missing() == 0 ? "" : " and has no second moments: they begin with zeros");
}

void JobBeginning::begins_with_own() {
  host_.log().info("job {}: begins with this client's model", description_.name);
}

void JobBeginning::refused(const Saved& saved, const std::string& why) {
  host_.log().warn("job {}: cannot begin with this checkpoint: {}", description_.name, why);
  if (found(saved).imported()) refuse_import(why);
}

/// `why` begins with the file's path. The log has it; a program's text is short and leaves it out.
void JobBeginning::refuse_import(std::string why) {
  const std::string path = (folder() / checkpoint::import_name).string() + ": ";
  if (why.starts_with(path)) why.erase(0, path.size());
  import_refused_ = fmt::format(
      "the job has not begun with the imported model: {}; end it everywhere and import a file that fits", why);
}

}  // namespace gossamer::daemon
