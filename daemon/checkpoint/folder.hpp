// The folder in which a node keeps checkpoints: one folder for each job, in it
//
//   CLOCK-NODE.safetensors    what a daemon wrote: 20 digits, and the first 8 of the node's id
//   import.safetensors        what the job is to begin with, the next time that it begins (gossamerctl import)
//   CLOCK-import.safetensors  the same, after a job has begun with it
//   .NODE.partial             one that is being written, or was when its daemon was killed
//
// Several nodes may share it. Blocks for as long as the disk does. Any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer::checkpoint {

inline constexpr const char* import_name = "import.safetensors";
inline constexpr const char* import_partial_name = ".import.partial";
/// The name of a file holds this many digits of the node's id.
inline constexpr std::size_t node_digits = 8;

/// `node` is the first node_digits of the node's id, or "import".
[[nodiscard]] std::string file_name(std::uint64_t clock, std::string_view node);
[[nodiscard]] std::string partial_name(std::string_view node);

/// Makes the folder of a job and those above it, accessible to their owner only. An error says what to do.
[[nodiscard]] std::expected<std::filesystem::path, std::string> make_job_folder(const std::filesystem::path& folder,
                                                                                const std::string& job);

/// The checkpoints in the folder, the furthest clock first, without import.safetensors. Empty if the folder cannot be
/// read.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& job_folder);

/// Removes the files that this node wrote, except for the latest `keep` files and `newest`. The latest files are those
/// that were written last: a job that begins again has a smaller clock than before. Returns what could not be removed.
[[nodiscard]] std::expected<void, std::string> remove_old(const std::filesystem::path& job_folder,
                                                          std::string_view node, std::size_t keep,
                                                          const std::filesystem::path& newest);

}  // namespace gossamer::checkpoint
