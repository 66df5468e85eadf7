// Finds the checkpoints that a job may begin with: first the file that gossamerctl import has placed, then, where the
// configuration says so, the latest ones that fit.
//
// find_checkpoints() runs on the disk's thread: it reads a few headers, and blocks for as long as the disk does.

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
  std::filesystem::path folder;  ///< the job's folder
  std::string job;
  std::uint64_t layout = 0;
  checkpoint::Model model;
  std::uint64_t clock = 0;  ///< the clock of the client's own model: a checkpoint that has seen less is refused
  Restore restore = Restore::imported;
};

struct CheckpointCandidate {
  std::shared_ptr<checkpoint::ModelReader> file;  ///< positioned at the model's first element
  checkpoint::Description description;
  bool imported = false;  ///< the file is import.safetensors
};

struct CheckpointsFound {
  std::vector<CheckpointCandidate> candidates;  ///< the best first
  std::vector<std::string> refused;             ///< why a file does not fit, and what to do; at most most_refused
  std::size_t more_refused = 0;
  std::string import_refused = {};  ///< why the imported file does not fit; empty: it fits, or there is none
};

/// The search ends when this many files fit.
inline constexpr std::size_t most_candidates = 4;
/// Of files that do not fit, this many are named; the others are only counted.
inline constexpr std::size_t most_refused = 4;

[[nodiscard]] CheckpointsFound find_checkpoints(const CheckpointQuery& query);

}  // namespace gossamer::daemon
