#include "tools/ctl/model_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>

#include "daemon/checkpoint/folder.hpp"
#include "daemon/checkpoint/model_file.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::ctl {
namespace {

using checkpoint::Description;
using checkpoint::Model;
using checkpoint::ModelReader;
using checkpoint::ModelWriter;

/// A chain of symbolic links is followed for at most this many links.
constexpr int max_links = 40;
/// The number of elements that are read and written at a time.
constexpr std::uint64_t part_elements = 1u << 20;

std::expected<void, std::string> write_model(
    const std::filesystem::path& output, const std::string& partial, const Model& model, const Description& description,
    const std::function<std::expected<void, std::string>(std::span<float>)>& next) {
  const std::filesystem::path absolute = std::filesystem::absolute(output);
  auto writer = ModelWriter::begin(absolute.parent_path(), partial, model);
  if (!writer) return std::unexpected(writer.error());
  std::vector<float> part;
  for (std::uint64_t left = checkpoint::elements_of(model); left > 0; left -= part.size()) {
    part.resize(std::min(left, part_elements));
    if (auto got = next(part); !got) return got;
    if (auto written = writer->append(part); !written) return written;
  }
  return writer->finish(absolute, description);
}

/// The file to write for a user that named `output`. A symbolic link is followed. An error if something is there that
/// is no ordinary file, such as /dev/null, because the new file would replace it.
std::expected<std::filesystem::path, std::string> file_for(const std::filesystem::path& output) {
  std::error_code error;
  std::filesystem::path file = std::filesystem::absolute(output);
  for (int links = 0; links < max_links && std::filesystem::is_symlink(file, error); ++links)
    file = file.parent_path() / std::filesystem::read_symlink(file, error);
  const std::filesystem::file_status status = std::filesystem::symlink_status(file, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return std::unexpected(fmt::format(
        "{}: is no ordinary file, and would be replaced: name a file, or a path where nothing is", output.string()));
  }
  return file;
}

std::string partial_of(const std::filesystem::path& output) {
  return "." + output.filename().string() + ".partial";
}

/// The tensor that holds this element of the model.
const std::string& tensor_at(const Model& model, std::uint64_t element) {
  const auto holds = [&element](const checkpoint::ModelTensor& tensor) {
    if (element < tensor.elements) return true;
    element -= tensor.elements;
    return false;
  };
  return std::ranges::find_if(model, holds)->name;
}

/// Copies the tensors of `model` from the file to `output`. If `finite` is set, NaN or infinity among them is an error.
std::expected<void, std::string> copy(ModelReader& file, const Model& model, const std::filesystem::path& output,
                                      const std::string& partial, const Description& description, bool finite) {
  if (auto taken = file.take(model); !taken) return taken;
  const std::uint64_t elements = checkpoint::elements_of(model);
  std::uint64_t left = elements;
  return write_model(
      output, partial, model, description, [&](std::span<float> part) -> std::expected<void, std::string> {
        if (auto read = file.read(part); !read) return read;
        const auto bad = std::ranges::find_if(part, [](float value) { return !std::isfinite(value); });
        if (finite && bad != part.end())
          return std::unexpected(
              fmt::format("{}: tensor {} holds NaN or infinity, with which no job can begin: take an older file",
                          file.path().string(),
                          tensor_at(model, elements - left + static_cast<std::uint64_t>(bad - part.begin()))));
        left -= part.size();
        return left == 0 ? file.check() : std::expected<void, std::string>();
      });
}

/// A file that root has made among another user's files is given to that user, so that the daemon can read and replace
/// it.
void give_to_owner_of(const std::filesystem::path& neighbour, const std::filesystem::path& path) {
  struct stat owner {};
  if (::geteuid() != 0 || ::stat(neighbour.c_str(), &owner) != 0) return;
  [[maybe_unused]] const int given = ::lchown(path.c_str(), owner.st_uid, owner.st_gid);
}

std::string now_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return checkpoint::date_text(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

}  // namespace

Described write_mean(const std::vector<std::filesystem::path>& files, const std::filesystem::path& output) {
  const auto file = file_for(output);
  if (!file) return std::unexpected(file.error());
  std::vector<ModelReader> readers;
  Model model;
  Description description;
  std::uint32_t replicas = 0;
  for (const std::filesystem::path& path : files) {
    auto reader = ModelReader::open(path);
    if (!reader) return std::unexpected(reader.error());
    auto tensors = reader->model();
    if (!tensors) return std::unexpected(tensors.error());
    if (readers.empty()) {
      model = *tensors;
    } else if (*tensors != model) {
      return std::unexpected(
          fmt::format("{} and {} do not hold the same tensors in the same order: only checkpoints of "
                      "one job have a mean",
                      files.front().string(), path.string()));
    }
    if (!reader->description()) {
      return std::unexpected(
          fmt::format("{}: was not written by Gossamer: place it with gossamerctl import, or average "
                      "it in your program",
                      path.string()));
    }
    replicas += reader->description()->replicas;
    if (readers.empty() || reader->description()->clock > description.clock) {
      const std::uint64_t oldest = readers.empty() ? UINT64_MAX : description.oldest_clock;
      description = *reader->description();
      description.oldest_clock = std::min(oldest, description.oldest_clock);
    } else {
      description.oldest_clock = std::min(description.oldest_clock, reader->description()->oldest_clock);
    }
    if (auto taken = reader->take(model); !taken) return std::unexpected(taken.error());
    readers.push_back(std::move(*reader));
  }
  description.replicas = replicas;
  description.node.clear();
  description.node_name.clear();
  description.written_at = now_text();
  std::vector<float> values;
  std::vector<double> sum;
  std::uint64_t left = checkpoint::elements_of(model);
  const auto written = write_model(
      *file, partial_of(*file), model, description, [&](std::span<float> part) -> std::expected<void, std::string> {
        sum.assign(part.size(), 0);
        values.resize(part.size());
        left -= part.size();
        for (ModelReader& reader : readers) {
          if (auto read = reader.read(values); !read) return read;
          if (auto checked = left == 0 ? reader.check() : std::expected<void, std::string>(); !checked) return checked;
          std::ranges::transform(sum, values, sum.begin(), std::plus<>());
        }
        const auto count = static_cast<double>(readers.size());
        std::ranges::transform(sum, part.begin(), [count](double value) { return static_cast<float>(value / count); });
        return {};
      });
  if (!written) return std::unexpected(written.error());
  return description;
}

Described copy_model(const std::filesystem::path& file, const std::filesystem::path& output) {
  const auto to = file_for(output);
  if (!to) return std::unexpected(to.error());
  auto reader = ModelReader::open(file);
  if (!reader) return std::unexpected(reader.error());
  const auto model = reader->model();
  if (!model) return std::unexpected(model.error());
  const Description description = reader->description().value_or(Description{});
  if (auto copied = copy(*reader, *model, *to, partial_of(*to), description, false); !copied)
    return std::unexpected(copied.error());
  return description;
}

std::expected<Imported, std::string> import_model(const std::filesystem::path& file,
                                                  const std::filesystem::path& folder, const std::string& job,
                                                  std::optional<std::uint64_t> clock) {
  auto reader = ModelReader::open(file);
  if (!reader) return std::unexpected(reader.error());
  std::size_t left_out = 0;
  const Model model = reader->model_in_float32(left_out);
  if (model.empty())
    return std::unexpected(fmt::format("{}: holds no tensor in float32, in which models are averaged", file.string()));
  Description description = reader->description().value_or(Description{});
  if (description.written_at.empty()) description.written_at = now_text();
  description.job = job;
  description.clock = clock.value_or(description.clock);
  if (description.clock > layout::max_clock_samples)
    return std::unexpected(fmt::format("--clock: no model has seen more than {} samples", layout::max_clock_samples));
  const std::filesystem::path above = folder.parent_path();
  const auto made = checkpoint::make_job_folder(folder, job);
  if (!made) return std::unexpected(made.error());
  give_to_owner_of(above, folder);
  give_to_owner_of(above, *made);
  const std::filesystem::path path = *made / checkpoint::import_name;
  if (auto copied = copy(*reader, model, path, checkpoint::import_partial_name, description, true); !copied)
    return std::unexpected(copied.error());
  give_to_owner_of(above, path);
  return Imported{.description = description, .path = path, .left_out = left_out};
}

}  // namespace gossamer::ctl
