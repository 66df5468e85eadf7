// The folder in which a node keeps checkpoints: one folder for each job, in it
//
//   CLOCK-NODE.safetensors    a daemon's checkpoint: the clock in 20 digits, and the first 8 of the node's id
//   import.safetensors        the model with which the job is to begin the next time (gossamerctl import)
//   CLOCK-import.safetensors  that model, after the job has begun with it
//   .NODE.partial             a checkpoint that is being written, or that a killed daemon left
//
// Several nodes may share the folder. Calls block for as long as the disk does, and may come from any thread.

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

/// Makes the folder of a job and those above it. The job's folder and `folder` are accessible to their owner only. An
/// error says what to do.
[[nodiscard]] std::expected<std::filesystem::path, std::string> make_job_folder(const std::filesystem::path& folder,
                                                                                const std::string& job);

/// The checkpoints in the folder, the furthest clock first, without import.safetensors. Empty if the folder cannot be
/// read.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& job_folder);

/// Removes the files that this node wrote, except for `keep` of them: `newest` and those that were written last. The
/// clock does not count here, because a job that begins again has a smaller one than before. An error says what to do.
[[nodiscard]] std::expected<void, std::string> remove_old(const std::filesystem::path& job_folder,
                                                          std::string_view node, std::size_t keep,
                                                          const std::filesystem::path& newest);

}  // namespace gossamer::checkpoint
