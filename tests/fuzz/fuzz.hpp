// What the fuzz targets share. A target takes bytes from libFuzzer, gives them to a parser as somebody else might send
// them, and checks what the parser made of them. A broken check ends the process (GOSSAMER_CHECK), which libFuzzer
// reports as a crash, and keeps the input.
//
// libFuzzer calls a target from one thread, one input after the other. A target keeps nothing from one input to the
// next, so a failing input fails again when it is run alone.

#pragma once

#include <algorithm>
#include <string_view>

#include "gossip/check.hpp"
#include "peer/keys/cluster_keys.hpp"
#include "peer/wire/codec.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace gossamer::fuzz {

/// The time of day of all targets, in microseconds since 1970.
inline constexpr TimeUs now = 1'700'000'000'000'000;

[[nodiscard]] inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Takes messages off the front of an input. tests/fuzz/wire_seeds.py writes the same form.
class Messages {
 public:
  Messages(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  [[nodiscard]] bool ended() const { return rest_.empty(); }
  /// Reads the number of payload frames (1 byte), then the header frame and the payload frames. Each frame is a size (2
  /// bytes, little endian) and its bytes.
  [[nodiscard]] peer::Frames next() {
    peer::Frames frames;
    frames.payload_count = byte() % (peer::max_payload_frames + 1);
    frames.header = frame();
    for (std::size_t i = 0; i < frames.payload_count; ++i)
      frames.payload[i] = frame();
    return frames;
  }

 private:
  [[nodiscard]] std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }
  /// Reads a frame into memory of its own, so that the address sanitizer sees a read beyond its end.
  [[nodiscard]] Bytes frame() {
    const std::size_t low = byte();
    const auto taken = rest_.first(std::min<std::size_t>(low | std::size_t{byte()} << 8, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return Bytes::adopt(std::vector<std::uint8_t>(taken.begin(), taken.end()));
  }

  std::span<const std::uint8_t> rest_;
};

[[nodiscard]] inline peer::Frames encoded(const peer::Packet& packet) {
  return std::visit([](const auto& message) { return peer::encode(message); }, packet);
}

/// A key of which all bytes are `value`. The recorded key rings hold those of 30 and 31
/// (tests/unit/peer/wire/recorded_test.cpp).
[[nodiscard]] inline peer::ClusterKey cluster_key(std::uint8_t value) {
  std::array<std::uint8_t, peer::key_bytes> bytes{};
  bytes.fill(value);
  return {peer::Secret(bytes)};
}

}  // namespace gossamer::fuzz
