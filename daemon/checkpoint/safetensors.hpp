// The safetensors format: https://github.com/huggingface/safetensors#format (as of version 0.4 of that library).
//
//   8 bytes   N, little endian: length of the header
//   N bytes   the header: a JSON object, which may end with spaces. For each tensor
//               "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}
//             and perhaps "__metadata__": {"key": "text", ...}
//   the rest  the tensors' bytes, little endian, row by row; data_offsets count from here, leave no gaps and do not
//             overlap
//
// Files come from anywhere, so a header that breaks a rule is refused, and the error says what is wrong. All functions
// but read_header() are pure. Any thread may call them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/checkpoint/file.hpp"

namespace gossamer::checkpoint {

/// The format's own limit: no reader takes a longer header.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;
inline constexpr std::size_t header_length_bytes = 8;

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  ///< as in the file: "F32"
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  ///< bytes, from the start of the data
  std::uint64_t end = 0;

  friend bool operator==(const SafetensorsTensor&, const SafetensorsTensor&) = default;
};
using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  ///< in the order of the data
  Metadata metadata;
  std::uint64_t data_at = 0;  ///< offset of the data in the file
  std::uint64_t data_bytes = 0;
};

/// The size of one element in bytes; 0 for a dtype that the format does not have.
[[nodiscard]] std::uint64_t dtype_bytes(std::string_view dtype);

/// All that stands before the data: the header's length and the header, filled up with spaces to `least_bytes` and to a
/// multiple of 8. Fails if it would be longer than the format allows.
[[nodiscard]] std::expected<std::string, std::string> header_bytes(const std::vector<SafetensorsTensor>& tensors,
                                                                   const Metadata& metadata,
                                                                   std::size_t least_bytes = 0);

/// Parses the header `json` of a file with this many bytes of data. An error is a phrase.
[[nodiscard]] std::expected<SafetensorsHeader, std::string> parse_header(std::string_view json,
                                                                         std::uint64_t data_bytes);
/// Reads a file's header. An error names the file.
[[nodiscard]] std::expected<SafetensorsHeader, std::string> read_header(const OldFile& file);

}  // namespace gossamer::checkpoint
