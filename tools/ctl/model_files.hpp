// What gossamerctl does with files of models by itself: the mean of several, a copy, and one for a job to begin with.
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

/// Writes the mean of the files' tensors, each with the same weight, which must be the same tensors in the same order.
/// Clock and cursor are those of the file that has seen most.
[[nodiscard]] Described write_mean(const std::vector<std::filesystem::path>& files,
                                   const std::filesystem::path& output);

/// Copies a file that Gossamer wrote, and looks on the way whether it is what was written.
[[nodiscard]] Described copy_model(const std::filesystem::path& file, const std::filesystem::path& output);

/// Places a file for a job to begin with in `folder`, that of all checkpoints. The file may be anybody's: of it, what
/// is in float32 is taken. `clock`: samples that the model has seen; else what the file says, or 0.
struct Imported {
  checkpoint::Description description;
  std::filesystem::path path;
  std::size_t left_out = 0;  ///< tensors in other types
};
[[nodiscard]] std::expected<Imported, std::string> import_model(const std::filesystem::path& file,
                                                                const std::filesystem::path& folder,
                                                                const std::string& job,
                                                                std::optional<std::uint64_t> clock);

}  // namespace gossamer::ctl
