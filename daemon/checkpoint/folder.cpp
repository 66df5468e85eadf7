#include "daemon/checkpoint/folder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "daemon/checkpoint/file.hpp"

namespace gossamer::checkpoint {
namespace {

constexpr std::size_t clock_digits = 20;
constexpr std::string_view ending = ".safetensors";
/// The most checkpoints of a folder that are looked at; further ones are ignored.
constexpr std::size_t most_files = 100'000;

/// Whether the name is CLOCK-….safetensors, with a middle that is not empty.
bool is_checkpoint(std::string_view name) {
  return name.size() > clock_digits + 1 + ending.size() && name.ends_with(ending) && name[clock_digits] == '-' &&
         name.find_first_not_of("0123456789") == clock_digits;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator() && files.size() < most_files; entry.increment(error))
    if (is_checkpoint(entry->path().filename().string())) files.push_back(entry->path());
  return files;
}

}  // namespace

std::string file_name(std::uint64_t clock, std::string_view node) {
  return fmt::format("{:020}-{}{}", clock, node.substr(0, node_digits), ending);
}

std::string partial_name(std::string_view node) {
  return fmt::format(".{}.partial", node.substr(0, node_digits));
}

std::expected<std::filesystem::path, std::string> make_job_folder(const std::filesystem::path& folder,
                                                                  const std::string& job) {
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  std::filesystem::path path = folder / job;
  for (const std::filesystem::path& made : {folder, path})
    if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST)
      return std::unexpected(failed(made, "the folder for checkpoints cannot be made", errno));
  return path;
}

std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& job_folder) {
  std::vector<std::filesystem::path> files = files_in(job_folder);
  std::ranges::sort(files, std::greater<>(), [](const auto& path) { return path.filename(); });
  return files;
}

std::expected<void, std::string> remove_old(const std::filesystem::path& job_folder, std::string_view node,
                                            std::size_t keep, const std::filesystem::path& newest) {
  const std::string own = fmt::format("-{}{}", node.substr(0, node_digits), ending);
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> files;
  std::error_code error;
  for (const std::filesystem::path& path : files_in(job_folder)) {
    if (path != newest && path.filename().string().ends_with(own))
      files.emplace_back(std::filesystem::last_write_time(path, error), path);
  }
  std::ranges::sort(files, std::greater<>());
  std::error_code failure;
  for (std::size_t i = keep - 1; i < files.size(); ++i) {
    std::filesystem::remove(files[i].second, error);
    if (error) failure = error;
  }
  if (failure)
    return std::unexpected(fmt::format("{}: old checkpoints cannot be removed: {}; remove them by hand",
                                       job_folder.string(), failure.message()));
  return {};
}

}  // namespace gossamer::checkpoint
