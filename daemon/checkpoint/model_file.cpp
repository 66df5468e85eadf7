#include "daemon/checkpoint/model_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>

namespace gossamer::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr const char* dtype = "F32";
/// The metadata take at most this much: a cursor in base64, names, numbers and JSON around them.
constexpr std::size_t metadata_room_bytes = 8192;

std::string text_of(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const std::uint64_t dimension : shape)
    text += fmt::format("{}{}", text.empty() ? "" : " x ", dimension);
  return text.empty() ? "a single number" : text;
}

}  // namespace

std::uint64_t elements_of(const Model& model) {
  std::uint64_t elements = 0;
  for (const ModelTensor& tensor : model)
    elements += tensor.elements;
  return elements;
}

// --- writing --------------------------------------------------------------------------------------------------------

std::expected<ModelWriter, std::string> ModelWriter::begin(const std::filesystem::path& folder,
                                                           const std::string& partial, const Model& model) {
  std::vector<SafetensorsTensor> tensors;
  std::uint64_t at = 0;
  for (const ModelTensor& tensor : model) {
    const std::uint64_t end = at + tensor.elements * sizeof(float);
    tensors.push_back({.name = tensor.name, .dtype = dtype, .shape = tensor.shape, .begin = at, .end = end});
    at = end;
  }
  // The clock is known only when the last element is written, so the header is written last; its place is reserved
  // here.
  const auto header = header_bytes(tensors, {});
  if (!header) return std::unexpected(fmt::format("{}: {}", folder.string(), header.error()));
  const std::uint64_t data_at = header->size() + metadata_room_bytes;
  auto file = NewFile::begin(folder / partial, partial, data_at + at);
  if (!file) return std::unexpected(file.error());
  return ModelWriter(std::move(*file), std::move(tensors), data_at);
}

std::expected<void, std::string> ModelWriter::append(std::span<const float> elements) {
  const std::span<const std::byte> bytes = std::as_bytes(elements);
  hash_.add(bytes);
  const std::uint64_t offset = data_at_ + data_bytes_;
  data_bytes_ += bytes.size();
  return file_.write_at(bytes, offset);
}

std::expected<void, std::string> ModelWriter::finish(const std::filesystem::path& path, Description description) {
  const std::uint64_t expected = tensors_.empty() ? 0 : tensors_.back().end;
  if (data_bytes_ != expected) return std::unexpected(fmt::format("{}: is not complete", path.string()));
  description.data_xxh3 = hash_.value();
  const auto header = header_bytes(tensors_, metadata_of(description), data_at_);
  if (!header || header->size() != data_at_)
    return std::unexpected(fmt::format("{}: its description does not fit its header", path.string()));
  if (auto written = file_.write_at(std::as_bytes(std::span(*header)), 0); !written) return written;
  return file_.finish(path);
}

// --- reading --------------------------------------------------------------------------------------------------------

std::expected<ModelReader, std::string> ModelReader::open(const std::filesystem::path& path) {
  auto file = OldFile::open(path);
  if (!file) return std::unexpected(file.error());
  auto header = read_header(*file);
  if (!header) return std::unexpected(header.error());
  auto description = description_in(header->metadata);
  if (!description) return std::unexpected(fmt::format("{}: {}", path.string(), description.error()));
  return ModelReader(std::move(*file), std::move(*header), std::move(*description));
}

std::string ModelReader::bad(const std::string& what) const {
  return fmt::format("{}: {}", path().string(), what);
}

std::string ModelReader::not_float32(const SafetensorsTensor& tensor) const {
  return bad(
      fmt::format("tensor {} is {}; models are averaged in float32: save it as that", tensor.name, tensor.dtype));
}

Model ModelReader::model_in_float32(std::size_t& left_out) const {
  Model model;
  for (const SafetensorsTensor& tensor : header_.tensors) {
    if (tensor.dtype == dtype) {
      model.push_back(
          {.name = tensor.name, .shape = tensor.shape, .elements = (tensor.end - tensor.begin) / sizeof(float)});
    } else {
      ++left_out;
    }
  }
  return model;
}

std::expected<Model, std::string> ModelReader::model() const {
  const auto other =
      std::ranges::find_if(header_.tensors, [](const SafetensorsTensor& tensor) { return tensor.dtype != dtype; });
  if (other != header_.tensors.end()) return std::unexpected(not_float32(*other));
  std::size_t none = 0;
  return model_in_float32(none);
}

std::expected<void, std::string> ModelReader::take(const Model& model) {
  std::map<std::string_view, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& tensor : header_.tensors)
    by_name[tensor.name] = &tensor;
  pieces_.clear();
  std::uint64_t at = 0;
  in_order_ = true;
  missing_ = 0;
  for (const ModelTensor& wanted : model) {
    const auto found = by_name.find(wanted.name);
    if (found == by_name.end() && wanted.may_be_missing) {
      ++missing_;
      pieces_.push_back({.at = std::nullopt, .bytes = wanted.elements * sizeof(float)});
      continue;
    }
    if (found == by_name.end()) return std::unexpected(bad(fmt::format("has no tensor {}", wanted.name)));
    const SafetensorsTensor& tensor = *found->second;
    if (tensor.shape != wanted.shape)
      return std::unexpected(bad(fmt::format("tensor {} is {}, in the model it is {}", wanted.name,
                                             text_of(tensor.shape), text_of(wanted.shape))));
    if (tensor.dtype != dtype) return std::unexpected(not_float32(tensor));
    in_order_ = in_order_ && tensor.begin == at;
    at = tensor.end;
    pieces_.push_back({.at = header_.data_at + tensor.begin, .bytes = tensor.end - tensor.begin});
  }
  in_order_ = in_order_ && at == header_.data_bytes;
  std::ranges::reverse(pieces_);
  hash_ = RunningHash();
  return {};
}

std::expected<void, std::string> ModelReader::read(std::span<float> elements) {
  std::span<std::byte> wanted = std::as_writable_bytes(elements);
  while (!wanted.empty()) {
    if (pieces_.empty()) return std::unexpected(bad("ends before the model does"));
    Piece& next = pieces_.back();
    const std::span<std::byte> part = wanted.first(std::min<std::uint64_t>(wanted.size(), next.bytes));
    wanted = wanted.subspan(part.size());
    if (next.at) {
      if (auto got = file_.read_at(part, *next.at); !got) return got;
      hash_.add(part);
      *next.at += part.size();
    } else {
      std::ranges::fill(part, std::byte{0});
    }
    next.bytes -= part.size();
    if (next.bytes == 0) pieces_.pop_back();
  }
  return {};
}

std::expected<void, std::string> ModelReader::check() const {
  if (!description_ || !in_order_ || hash_.value() == description_->data_xxh3) return {};
  return std::unexpected(bad("is damaged: its data are not those that were written; use another checkpoint"));
}

}  // namespace gossamer::checkpoint
