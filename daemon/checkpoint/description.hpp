// A checkpoint's description of itself, in the metadata of its safetensors header. Pure functions, for any thread.
//
// All values are texts. The keys are "format": "pt" (some loaders ask for it), and with "gossamer." before them: job,
// layout (16 hexadecimal digits), clock, oldest_clock, cursor (base64, RFC 4648), node, node_name, written_at (UTC, ISO
// 8601), version, replicas, settings, and data_xxh3 (a hash of all the tensors' bytes; 16 hexadecimal digits).

#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "daemon/checkpoint/safetensors.hpp"

namespace gossamer::checkpoint {

struct Description {
  std::string job;
  std::uint64_t layout = 0;        ///< the layout's hash
  std::uint64_t clock = 0;         ///< samples that the model has been trained on
  std::uint64_t oldest_clock = 0;  ///< the clock of the oldest fragment: no value is older
  std::vector<std::byte> cursor;   ///< the program's place in its data at `clock`; empty: none
  std::string node;                ///< id, 32 hexadecimal digits
  std::string node_name;
  std::string written_at;
  std::string version;          ///< the version of the program that wrote the file
  std::uint32_t replicas = 1;   ///< how many replicas the model is the mean of
  std::string settings;         ///< the job's settings as NAME=VALUE, separated by spaces; empty: none
  std::uint64_t data_xxh3 = 0;  ///< XXH3-64 with seed 0
};

/// Formats `seconds` since 1970 as 2026-01-31T12:00:00Z.
[[nodiscard]] std::string date_text(std::int64_t seconds);

[[nodiscard]] Metadata metadata_of(const Description& description);
/// Returns nothing if the file is not Gossamer's, and an error (a phrase) if it says that it is but its values make no
/// sense.
[[nodiscard]] std::expected<std::optional<Description>, std::string> description_in(const Metadata& metadata);

}  // namespace gossamer::checkpoint
