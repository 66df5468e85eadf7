// Which checkpoints a job may begin with: what gossamerctl import has placed, then, where the configuration says so,
// the latest of those that fit.
//
// Runs on the disk's thread: it reads the headers of a few files, and blocks for as long as the disk does.

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "daemon/checkpoint/model_file.hpp"
#include "daemon/config/config.hpp"

namespace gossamer::daemon {

struct CheckpointQuery {
  std::filesystem::path folder;  ///< of the job
  std::string job;
  std::uint64_t layout = 0;
  checkpoint::Model model;
  std::uint64_t clock = 0;  ///< of the client's own model: what has seen less is not worth taking
  Restore restore = Restore::imported;
};

struct CheckpointCandidate {
  std::shared_ptr<checkpoint::ModelReader> file;  ///< about to read the model's first element
  checkpoint::Description description;
  bool imported = false;  ///< it is import.safetensors
};

struct CheckpointsFound {
  std::vector<CheckpointCandidate> candidates;  ///< the best first
  std::vector<std::string> refused;             ///< files that were looked at and do not fit: why, and what to do
};

/// Beyond these, older ones are not looked at.
inline constexpr std::size_t most_candidates = 4;

[[nodiscard]] CheckpointsFound find_checkpoints(const CheckpointQuery& query);

}  // namespace gossamer::daemon
