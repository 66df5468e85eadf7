// What a checkpoint says of itself, in the metadata of its safetensors header. Pure; any thread.
//
// Keys, all texts: "format": "pt" (what some loaders ask for), and with "gossamer." before them job, layout (16
// hexadecimal digits), clock, oldest_clock, cursor (base64, RFC 4648), node, node_name, written_at (UTC, ISO 8601),
// version, replicas, and data_xxh3 (of all the tensors' bytes; 16 hexadecimal digits).

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
  std::uint64_t layout = 0;        ///< hash
  std::uint64_t clock = 0;         ///< samples that the model has seen
  std::uint64_t oldest_clock = 0;  ///< of the fragment that was published first: no value is older
  std::vector<std::byte> cursor;   ///< the program's place in the data at `clock`; empty: none
  std::string node;                ///< id, 32 hexadecimal digits
  std::string node_name;
  std::string written_at;
  std::string version;          ///< of the program that wrote it
  std::uint32_t replicas = 1;   ///< of which it is the mean
  std::uint64_t data_xxh3 = 0;  ///< XXH3-64, seed 0
};

/// `seconds` since 1970 as 2026-01-31T12:00:00Z.
[[nodiscard]] std::string date_text(std::int64_t seconds);

[[nodiscard]] Metadata metadata_of(const Description& description);
/// Nothing if the file is not Gossamer's. An error, a phrase, if it says so and what it says makes no sense.
[[nodiscard]] std::expected<std::optional<Description>, std::string> description_in(const Metadata& metadata);

}  // namespace gossamer::checkpoint
