// Writes and reads headers (safetensors.hpp). A header is read event by event, so memory is bounded by the header's
// length, however deep and often its brackets open.

#include "daemon/checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace gossamer::checkpoint {
namespace {

constexpr const char* metadata_name = "__metadata__";
constexpr std::size_t alignment = 8;  // alignment of the data, as the format's own library writes it

/// Takes the events of the header. The first error ends the reading.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool start_object(std::size_t) override {
    if (place_ == Place::outside) return enter(Place::names);
    if (place_ == Place::names && !name_.empty()) {
      if (name_ == metadata_name) return enter(Place::metadata);
      tensor_ = {.name = name_, .dtype = {}, .shape = {}};
      has_shape_ = false;
      offsets_.reset();
      return enter(Place::tensor);
    }
    return wrong_place("an object");
  }
  bool key(std::string& text) override {
    if (place_ == Place::names) {
      if (text == metadata_name && std::exchange(has_metadata_, true)) return wrong("has __metadata__ twice");
      if (text.empty()) return wrong("has a tensor without a name");
      name_ = std::move(text);
    } else {
      key_ = std::move(text);
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::names) return enter(Place::outside);
    if (place_ == Place::tensor) {
      if (tensor_.dtype.empty() || !has_shape_ || !offsets_ || offsets_->size() != 2)
        return wrong(fmt::format("tensor {}: must have dtype, shape, and data_offsets of two numbers", name_));
      tensor_.begin = (*offsets_)[0];
      tensor_.end = (*offsets_)[1];
      header_.tensors.push_back(std::move(tensor_));
    }
    name_.clear();
    return enter(Place::names);
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::tensor) return wrong_place("a list");
    if (key_ == "shape") {
      if (std::exchange(has_shape_, true)) return wrong(fmt::format("tensor {}: has shape twice", name_));
      return enter(Place::shape);
    }
    if (key_ == "data_offsets") {
      if (offsets_) return wrong(fmt::format("tensor {}: has data_offsets twice", name_));
      offsets_.emplace();
      return enter(Place::offsets);
    }
    return wrong_place("a list");
  }
  bool end_array() override { return enter(Place::tensor); }
  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      if (!header_.metadata.emplace(key_, std::move(text)).second)
        return wrong(fmt::format("has \"{}\" twice in __metadata__", key_));
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return wrong_place("a text");
    if (!tensor_.dtype.empty()) return wrong(fmt::format("tensor {}: has dtype twice", name_));
    if (dtype_bytes(text) == 0) return wrong(fmt::format("tensor {}: dtype \"{}\" is not known", name_, text));
    tensor_.dtype = std::move(text);
    return true;
  }
  bool number_unsigned(std::uint64_t number) override {
    if (place_ == Place::shape) {
      tensor_.shape.push_back(number);
    } else if (place_ == Place::offsets) {
      if (offsets_->size() == 2) return wrong(fmt::format("tensor {}: data_offsets has more than two numbers", name_));
      offsets_->push_back(number);
    } else {
      return wrong_place("a number");
    }
    return true;
  }
  bool number_integer(std::int64_t) override { return wrong_place("a negative number"); }
  bool number_float(double, const std::string&) override { return wrong_place("a fraction"); }
  bool null() override { return wrong_place("null"); }
  bool boolean(bool) override { return wrong_place("true or false"); }
  bool binary(nlohmann::json::binary_t&) override { return wrong_place("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return wrong(fmt::format("is not valid JSON, at byte {}", position));
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] SafetensorsHeader& header() { return header_; }

 private:
  enum class Place { outside, names, metadata, tensor, shape, offsets };
  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool wrong(std::string what) {
    if (problem_.empty()) problem_ = "the header " + std::move(what);
    return false;
  }
  bool wrong_place(const char* what) {
    return wrong(name_.empty() ? fmt::format("has {} where it may have none", what)
                               : fmt::format("has {} where it may have none, at {}", what, name_));
  }

  Place place_ = Place::outside;
  std::string name_;
  std::string key_;
  SafetensorsTensor tensor_;
  bool has_shape_ = false;
  bool has_metadata_ = false;
  std::optional<std::vector<std::uint64_t>> offsets_;
  SafetensorsHeader header_;
  std::string problem_;
};

/// Checks that the tensors fit their shapes and dtypes and cover all of the data without gaps or overlap. Sorts them by
/// their place in the data.
std::string check_tensors(std::vector<SafetensorsTensor>& tensors, std::uint64_t data_bytes) {
  const auto wrong = [](const SafetensorsTensor& tensor, const std::string& what) {
    return fmt::format("tensor {}: {}", tensor.name, what);
  };
  std::vector<const std::string*> names;
  for (const SafetensorsTensor& tensor : tensors) {
    names.push_back(&tensor.name);
    std::uint64_t bytes = dtype_bytes(tensor.dtype);
    bool overflows = false;
    for (const std::uint64_t dimension : tensor.shape)
      overflows = __builtin_mul_overflow(bytes, dimension, &bytes) || overflows;
    if (overflows) return wrong(tensor, "its shape overflows");
    if (tensor.begin > tensor.end || tensor.end - tensor.begin != bytes)
      return wrong(tensor, fmt::format("has {} bytes by its shape, but data_offsets are {} and {}", bytes, tensor.begin,
                                       tensor.end));
  }
  std::ranges::sort(names, {}, [](const std::string* name) -> const std::string& { return *name; });
  const auto twice = std::ranges::adjacent_find(names, [](const auto* a, const auto* b) { return *a == *b; });
  if (twice != names.end()) return fmt::format("tensor {}: is there twice", **twice);
  std::ranges::stable_sort(tensors, {},
                           [](const SafetensorsTensor& tensor) { return std::pair(tensor.begin, tensor.end); });
  std::uint64_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin != at)
      return wrong(tensor, fmt::format("begins at byte {} of the data, where {} is expected: tensors must neither "
                                       "overlap nor leave gaps",
                                       tensor.begin, at));
    at = tensor.end;
  }
  if (at != data_bytes)
    return fmt::format("the tensors have {} bytes together, but the file holds {}{}", at, data_bytes,
                       at > data_bytes ? ": it was cut off" : "");
  return {};
}

}  // namespace

std::uint64_t dtype_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, std::uint64_t> known[] = {
      {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"F64", 8}, {"I64", 8}, {"I32", 4},     {"I16", 2},    {"I8", 1},
      {"U8", 1},  {"BOOL", 1}, {"U16", 2}, {"U32", 4}, {"U64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  const auto* found = std::ranges::find(known, dtype, [](const auto& entry) { return entry.first; });
  return found == std::end(known) ? 0 : found->second;
}

std::expected<std::string, std::string> header_bytes(const std::vector<SafetensorsTensor>& tensors,
                                                     const Metadata& metadata, std::size_t least_bytes) {
  // The header is written tensor by tensor, so that the tensors stand in the order of their data. nlohmann's library
  // quotes the texts.
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string json = "{";
  if (!metadata.empty()) json += fmt::format("\"{}\":{}", metadata_name, nlohmann::json(metadata).dump());
  for (const SafetensorsTensor& tensor : tensors) {
    json += fmt::format("{}{}:{{\"dtype\":{},\"shape\":{},\"data_offsets\":[{},{}]}}", json.size() > 1 ? "," : "",
                        quoted(tensor.name), quoted(tensor.dtype), nlohmann::json(tensor.shape).dump(), tensor.begin,
                        tensor.end);
  }
  json += '}';
  std::size_t bytes = std::max(header_length_bytes + json.size(), least_bytes);
  bytes = (bytes + alignment - 1) / alignment * alignment;
  json.resize(bytes - header_length_bytes, ' ');
  if (json.size() > max_header_bytes)
    return std::unexpected(fmt::format("the names and shapes of {} tensors take {} bytes; safetensors allows {}",
                                       tensors.size(), json.size(), max_header_bytes));
  std::string out;
  for (std::size_t i = 0; i < header_length_bytes; ++i)
    out.push_back(static_cast<char>(json.size() >> (8 * i) & 0xff));
  return out + json;
}

std::expected<SafetensorsHeader, std::string> parse_header(std::string_view json, std::uint64_t data_bytes) {
  HeaderReader reader;
  const bool read = nlohmann::json::sax_parse(json, &reader);
  if (!read || !reader.problem().empty())
    return std::unexpected(reader.problem().empty() ? "the header is not valid JSON" : reader.problem());
  SafetensorsHeader header = std::move(reader.header());
  if (std::string problem = check_tensors(header.tensors, data_bytes); !problem.empty())
    return std::unexpected(std::move(problem));
  header.data_at = header_length_bytes + json.size();
  header.data_bytes = data_bytes;
  return header;
}

std::expected<SafetensorsHeader, std::string> read_header(const OldFile& file) {
  const auto bad = [&](const std::string& what) {
    return std::unexpected(fmt::format("{}: is no safetensors file, or a damaged one: {}", file.path().string(), what));
  };
  if (file.size_bytes() < header_length_bytes) return bad(fmt::format("it has {} bytes", file.size_bytes()));
  std::array<std::byte, header_length_bytes> length{};
  if (auto read = file.read_at(length, 0); !read) return std::unexpected(read.error());
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i)
    bytes |= std::to_integer<std::uint64_t>(length[i]) << (8 * i);
  if (bytes > max_header_bytes || bytes > file.size_bytes() - header_length_bytes)
    return bad(fmt::format("its header would have {} bytes", bytes));
  std::string json(bytes, '\0');
  if (auto read = file.read_at(std::as_writable_bytes(std::span(json)), header_length_bytes); !read)
    return std::unexpected(read.error());
  auto header = parse_header(json, file.size_bytes() - header_length_bytes - bytes);
  if (!header) return bad(header.error());
  return header;
}

}  // namespace gossamer::checkpoint
