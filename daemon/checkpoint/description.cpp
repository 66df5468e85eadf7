#include "daemon/checkpoint/description.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sodium.h>

#include <charconv>
#include <ctime>

#include "sdk/layout/names.hpp"

namespace gossamer::checkpoint {
namespace {

constexpr const char* prefix = "gossamer.";
constexpr int base64_variant = sodium_base64_VARIANT_ORIGINAL;

std::string base64(const std::vector<std::byte>& bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), base64_variant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                    base64_variant);
  text.pop_back();  // the terminator
  return text;
}

std::optional<std::vector<std::byte>> from_base64(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 4 * 3 + 3);
  std::size_t size = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(), text.size(), nullptr,
                        &size, nullptr, base64_variant) != 0)
    return std::nullopt;
  bytes.resize(size);
  return bytes;
}

/// Looks up values, and remembers the first one that makes no sense.
class Values {
 public:
  explicit Values(const Metadata& metadata) : metadata_(metadata) {}

  [[nodiscard]] std::string text(const char* key) const {
    const auto found = metadata_.find(prefix + std::string(key));
    return found == metadata_.end() ? std::string() : found->second;
  }
  template <class Number>
  Number number(const char* key, int base) {
    const std::string value = text(key);
    Number parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed, base);
    if (error != std::errc() || end != value.data() + value.size()) fault(key);
    return parsed;
  }
  void fault(const char* key) {
    if (problem_.empty()) problem_ = fmt::format("its metadata's {}{} makes no sense", prefix, key);
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  const Metadata& metadata_;
  std::string problem_;
};

}  // namespace

std::string date_text(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

Metadata metadata_of(const Description& description) {
  Metadata metadata{{"format", "pt"}};
  const auto set = [&](const char* key, std::string value) { metadata[prefix + std::string(key)] = std::move(value); };
  set("job", description.job);
  set("layout", fmt::format("{:016x}", description.layout));
  set("clock", fmt::format("{}", description.clock));
  set("oldest_clock", fmt::format("{}", description.oldest_clock));
  if (!description.cursor.empty()) set("cursor", base64(description.cursor));
  set("node", description.node);
  set("node_name", description.node_name);
  set("written_at", description.written_at);
  set("version", description.version);
  set("replicas", fmt::format("{}", description.replicas));
  if (!description.settings.empty()) set("settings", description.settings);
  set("data_xxh3", fmt::format("{:016x}", description.data_xxh3));
  return metadata;
}

std::expected<std::optional<Description>, std::string> description_in(const Metadata& metadata) {
  Values values(metadata);
  if (values.text("job").empty()) return std::nullopt;
  Description description;
  description.job = values.text("job");
  if (!layout::is_job_name(description.job)) values.fault("job");
  description.layout = values.number<std::uint64_t>("layout", 16);
  description.clock = values.number<std::uint64_t>("clock", 10);
  if (description.clock > layout::max_clock_samples) values.fault("clock");
  description.oldest_clock = values.number<std::uint64_t>("oldest_clock", 10);
  if (const auto cursor = from_base64(values.text("cursor")); cursor && cursor->size() <= layout::max_cursor_bytes) {
    description.cursor = *cursor;
  } else {
    values.fault("cursor");
  }
  description.node = values.text("node");
  description.node_name = values.text("node_name");
  description.written_at = values.text("written_at");
  description.version = values.text("version");
  description.replicas = values.number<std::uint32_t>("replicas", 10);
  description.settings = values.text("settings");
  description.data_xxh3 = values.number<std::uint64_t>("data_xxh3", 16);
  if (!values.problem().empty()) return std::unexpected(values.problem());
  return description;
}

}  // namespace gossamer::checkpoint
