// The basic types that all folders share: the identity of a node, the key of a job, the codec, and time.
//
// These are values only, used everywhere; any thread.

#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gossip/arithmetic.hpp"

namespace gossamer {

/// Monotonic time in microseconds. It is read once per turn of a loop and passed down; gossip/ never reads a clock.
using TimeUs = std::int64_t;
inline constexpr TimeUs us_per_ms = 1'000;
inline constexpr TimeUs us_per_s = 1'000'000;
/// The time one microsecond later. The largest time stays as it is.
[[nodiscard]] constexpr TimeUs just_after(TimeUs time) {
  return time < std::numeric_limits<TimeUs>::max() ? time + 1 : time;
}

/// Elements in a fragment of a large model, unless the program says otherwise.
inline constexpr std::uint32_t default_fragment_elements = 1u << 20;
/// Upper bound on a fragment. It bounds every message and every allocation for a fragment.
inline constexpr std::uint32_t max_fragment_elements = 1u << 22;
inline constexpr std::uint32_t max_fragment_blocks = max_fragment_elements / block_elements;
/// Upper bound on the fragments of one job (2^22 elements each: 10^11 parameters).
inline constexpr std::uint32_t max_fragments = 1u << 16;

/// Identity of a node: the first 16 bytes of BLAKE2b-256 of its CURVE public key (peer/keys/keys.hpp computes it).
struct NodeId {
  std::array<std::uint8_t, 16> bytes{};

  /// Orders ids by their bytes, as std::array does. A call of memcmp() would be too slow: maps of nodes compare often.
  friend std::strong_ordering operator<=>(const NodeId& a, const NodeId& b) {
    const std::strong_ordering first = a.word(0) <=> b.word(0);
    return first != 0 ? first : a.word(1) <=> b.word(1);
  }
  friend bool operator==(const NodeId&, const NodeId&) = default;

  /// Eight hexadecimal digits, for logs and tables.
  [[nodiscard]] std::string brief() const { return hex(4); }
  /// The number that brief() shows.
  [[nodiscard]] std::uint32_t prefix() const { return static_cast<std::uint32_t>(word(0) >> 32); }
  /// All 32 hexadecimal digits.
  [[nodiscard]] std::string full() const { return hex(bytes.size()); }

 private:
  /// The eight bytes from 8·`index` on, as a big-endian number.
  [[nodiscard]] std::uint64_t word(std::size_t index) const {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
    return std::endian::native == std::endian::little ? std::byteswap(value) : value;
  }
  [[nodiscard]] std::string hex(std::size_t count) const {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      text.push_back(digits[bytes[i] >> 4]);
      text.push_back(digits[bytes[i] & 15]);
    }
    return text;
  }
};

/// A short name for whoever has admitted a node. no_sponsor: not known.
using Sponsor = std::uint32_t;
inline constexpr Sponsor no_sponsor = 0;

/// The key that must be equal for two replicas to gossip: hashes (64 bits) of the job's name and of its model's layout.
struct JobKey {
  std::uint64_t name_hash = 0;
  std::uint64_t layout_hash = 0;

  friend auto operator<=>(const JobKey&, const JobKey&) = default;
};

[[nodiscard]] constexpr const char* codec_name(Codec codec) {
  return codec == Codec::f32 ? "f32" : codec == Codec::q8 ? "q8" : "q4";
}

/// Read-only bytes with shared ownership: a received ZeroMQ frame, or a vector that a kernel filled. Copies share.
struct Bytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> data;

  [[nodiscard]] std::size_t size() const { return data.size(); }
  [[nodiscard]] bool empty() const { return data.empty(); }
  /// The bytes as elements of T. Frames start at allocations, so they are aligned for every T used here.
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }

  template <class T>
  [[nodiscard]] static Bytes adopt(std::vector<T>&& values) {
    auto held = std::make_shared<const std::vector<T>>(std::move(values));
    return {held, std::as_bytes(std::span<const T>(*held))};
  }
};

}  // namespace gossamer

template <>
struct std::hash<gossamer::NodeId> {
  std::size_t operator()(const gossamer::NodeId& id) const noexcept {
    std::size_t value = 0;  // the id is itself a hash, so its first bytes are uniform
    for (std::size_t i = 0; i < sizeof value; ++i)
      value = value << 8 | id.bytes[i];
    return value;
  }
};
