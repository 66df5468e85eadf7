// gossamerctl's own work on files of models: the mean of several, a copy, and a file for a job to begin with.
//
// Blocks for as long as the disk does, and holds a part of each file at a time. Errors are texts that say what to do.

#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "daemon/checkpoint/description.hpp"

namespace gossamer::ctl {

using Described = std::expected<checkpoint::Description, std::string>;

/// Writes the mean of the files' tensors, with equal weights. All files must have the same tensors in the same order.
/// The clock and the cursor are those of the file with the most training.
[[nodiscard]] Described write_mean(const std::vector<std::filesystem::path>& files,
                                   const std::filesystem::path& output);

/// Copies a file that Gossamer wrote, and checks that its data are those that were written.
[[nodiscard]] Described copy_model(const std::filesystem::path& file, const std::filesystem::path& output);

/// Places a file for a job to begin with in `folder`, the folder of all checkpoints. Another program may have written
/// the file; its tensors in float32 are used. `clock` is the number of samples that the model has been trained on; by
/// default the file's, or 0.
struct Imported {
  checkpoint::Description description;
  std::filesystem::path path;
  std::size_t left_out = 0;  ///< number of tensors in other types
};
[[nodiscard]] std::expected<Imported, std::string> import_model(const std::filesystem::path& file,
                                                                const std::filesystem::path& folder,
                                                                const std::string& job,
                                                                std::optional<std::uint64_t> clock);

}  // namespace gossamer::ctl
