// The table of options, with one row for each, in the order of the sample file. Private to config.cpp and its tests.

#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "daemon/config/config.hpp"

namespace gossamer::daemon {

/// A pointer to an option's value in a Config. The variant's alternative tells the option's type.
using OptionField = std::variant<std::string*, std::filesystem::path*, std::int64_t*, double*, bool*,
                                 std::vector<std::string>*, CodecChoice*, LogLevel*, gossip::PartnerPolicy*, Profile*,
                                 Restore*, LogFormat*, layout::Method*, AverageCodec*, peer::BulkProtection*, Weights*>;

/// The form that a string must have.
enum class TextForm : std::uint8_t {
  any,
  name,        ///< at most max_node_name_bytes of UTF-8; empty allowed
  listen,      ///< tcp://host:port; host may be *, port 0 means any free one
  address,     ///< tcp://host:port that others can dial
  advertised,  ///< like `address`, or "none", or empty
  invitation,  ///< a line of gossamerctl invite, or empty
  node_id,     ///< 32 hexadecimal digits
  grant,       ///< "WHO: JOBS", of [rights]
  loopback,    ///< host:port of this machine alone, port 0 for any free one, or empty
};

/// The bounds and the unit of a number.
struct NumberBounds {
  double least = 0;
  double most = 0;        ///< inclusive
  const char* unit = "";  ///< "" if it has none
};

struct Option {
  const char* key;
  OptionField (*field)(Config&);
  NumberBounds bounds = {};
  TextForm form = TextForm::any;
  bool reloads = false;  ///< can change while the daemon runs
  bool shared = false;   ///< can be one of a job's settings, which are the same at all replicas
  const char* text;      ///< what it does and what it trades away
};

struct OptionSection {
  const char* name;
  const char* text;
  std::span<const Option> options;
};

[[nodiscard]] std::span<const OptionSection> option_sections();

// The names of each enumeration's values, in its order.
inline constexpr const char* log_level_names[] = {"trace", "debug", "info", "warning", "error"};
inline constexpr const char* log_format_names[] = {"text", "keyvalue", "json"};
inline constexpr const char* profile_names[] = {"lan", "internet"};
inline constexpr const char* restore_names[] = {"imported", "latest"};
inline constexpr const char* method_names[] = {"gossip", "average", "server"};
inline constexpr const char* average_codec_names[] = {"f32", "q8"};
inline constexpr const char* weights_names[] = {"equal", "samples"};
inline constexpr const char* codec_names[] = {"f32", "q8", "q4", "auto"};
[[nodiscard]] constexpr std::span<const char* const> names_of(LogLevel) {
  return log_level_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(LogFormat) {
  return log_format_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(Profile) {
  return profile_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(Restore) {
  return restore_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(layout::Method) {
  return method_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(AverageCodec) {
  return average_codec_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(peer::BulkProtection) {
  return peer::bulk_protection_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(Weights) {
  return weights_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(CodecChoice) {
  return codec_names;
}
[[nodiscard]] constexpr std::span<const char* const> names_of(gossip::PartnerPolicy) {
  // The last policy, owner, cannot be chosen: it comes with the method `server`.
  return std::span(gossip::policy_names).first(std::size(gossip::policy_names) - 1);
}

/// Returns a phrase that says what is expected if the text is not of this form, and an empty string if it is.
[[nodiscard]] std::string text_problem(TextForm form, const std::string& text);
/// The values that this option may have, for messages and the sample.
[[nodiscard]] std::string allowed_values(const Option& option);
/// The option's value in `config`, as TOML.
[[nodiscard]] std::string toml_value(const Option& option, Config config);

}  // namespace gossamer::daemon
