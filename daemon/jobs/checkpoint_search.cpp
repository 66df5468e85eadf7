#include "daemon/jobs/checkpoint_search.hpp"

#include <fmt/format.h>

#include <expected>
#include <utility>

#include "daemon/checkpoint/folder.hpp"

namespace gossamer::daemon {

namespace {

std::expected<CheckpointCandidate, std::string> look_at(const std::filesystem::path& path,
                                                        const CheckpointQuery& query) {
  auto file = checkpoint::ModelReader::open(path);
  if (!file) return std::unexpected(file.error());
  const auto refused = [&](const std::string& why) {
    return std::unexpected(fmt::format("{}: {}", path.string(), why));
  };
  if (!file->description()) return refused("does not say what it is a checkpoint of: place it with gossamerctl import");
  checkpoint::Description description = *file->description();
  const bool imported = path.filename() == checkpoint::import_name;
  if (description.job != query.job) return refused(fmt::format("is of job {}", description.job));
  // An imported file may come from a program that knows nothing of layouts, so only its names and shapes have to fit.
  if (!imported && description.layout != query.layout)
    return refused("is of a model with another layout: names, shapes, types or order of the tensors differ");
  if (auto taken = file->take(query.model); !taken) return std::unexpected(taken.error());
  if (description.clock < query.clock)
    return refused(fmt::format("has seen {} samples, and the training process comes with a model that has seen {}",
                               description.clock, query.clock));
  return CheckpointCandidate{.file = std::make_shared<checkpoint::ModelReader>(std::move(*file)),
                             .description = std::move(description),
                             .imported = imported};
}

}  // namespace

CheckpointsFound find_checkpoints(const CheckpointQuery& query) {
  CheckpointsFound found;
  const auto consider = [&](const std::filesystem::path& path) {
    auto candidate = look_at(path, query);
    if (candidate) {
      found.candidates.push_back(std::move(*candidate));
    } else if (found.refused.size() == most_refused) {
      ++found.more_refused;
    } else {
      found.refused.push_back(std::move(candidate.error()));
    }
  };
  std::error_code error;
  const std::filesystem::path import = query.folder / checkpoint::import_name;
  if (std::filesystem::exists(import, error)) consider(import);
  if (!found.refused.empty()) found.import_refused = found.refused.front();
  if (query.restore != Restore::latest) return found;
  for (const std::filesystem::path& path : checkpoint::checkpoints_in(query.folder)) {
    if (found.candidates.size() == most_candidates) break;
    consider(path);
  }
  return found;
}

}  // namespace gossamer::daemon
