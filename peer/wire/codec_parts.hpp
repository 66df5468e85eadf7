// Writes and reads the parts of the header that are not about a job's replicas. For the files codec…cpp only.
//
// Pure. The readers throw kj::Exception on a broken pointer; decode() catches it.

#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "gossip/average_messages.hpp"
#include "gossip/membership/membership_messages.hpp"
#include "peer/wire/capnp.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

template <std::size_t n>
capnp::Data::Reader data_of(const std::array<std::uint8_t, n>& bytes) {
  return {bytes.data(), bytes.size()};
}
inline capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
inline capnp::Text::Reader text_of(const std::string& text) {
  return {text.c_str(), text.size()};
}

/// Each read_…() is false if the length is not as it must be.
template <std::size_t n>
[[nodiscard]] bool read_data(capnp::Data::Reader data, std::array<std::uint8_t, n>& bytes) {
  if (data.size() != n) return false;
  std::ranges::copy(data, bytes.begin());
  return true;
}
/// An empty field is read as nothing.
template <std::size_t n>
[[nodiscard]] bool read_optional(capnp::Data::Reader data, std::optional<std::array<std::uint8_t, n>>& bytes) {
  if (data.size() == 0) return true;
  return read_data(data, bytes.emplace());
}
[[nodiscard]] inline bool read_bytes(capnp::Data::Reader data, std::size_t max_bytes, std::vector<std::byte>& bytes) {
  if (data.size() > max_bytes) return false;
  const auto read = std::as_bytes(std::span(data.begin(), data.size()));
  bytes.assign(read.begin(), read.end());
  return true;
}
[[nodiscard]] inline bool read_text(capnp::Text::Reader text, std::size_t max_bytes, std::string& out) {
  if (text.size() > max_bytes) return false;
  out.assign(text.cStr(), text.size());
  return true;
}
/// The length of a list, as Cap'n Proto counts it.
[[nodiscard]] unsigned size_of(const auto& list) {
  return static_cast<unsigned>(list.size());
}

void write_control(const ControlMessage& message, wire::Header::Builder header);
/// Nothing if a field has a wrong length, or the header holds no control message.
[[nodiscard]] std::optional<ControlMessage> read_control(wire::Header::Reader header);

void write_membership(const MembershipMessage& message, wire::Membership::Builder out);
/// True if this version knows the kind of the body.
[[nodiscard]] bool is_known_membership(wire::Membership::Reader in);
/// Nothing if a field has a wrong length or more elements than its bound. The rest is gossamer::valid()'s to check.
[[nodiscard]] std::optional<MembershipMessage> read_membership(wire::Membership::Reader in);

void write_average(const gossip::AverageNote& note, wire::Average::Builder out);
/// True if this version knows the kind of the body.
[[nodiscard]] bool is_known_average(wire::Average::Reader in);
/// Nothing if a list is too long. fault_of() checks the rest.
[[nodiscard]] std::optional<gossip::AverageNote> read_average(wire::Average::Reader in);
void write_average(const gossip::AverageValues& values, wire::AverageValues::Builder out);
[[nodiscard]] std::optional<gossip::AverageValues> read_average(wire::AverageValues::Reader in);

}  // namespace gossamer::peer
