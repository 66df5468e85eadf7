// These numbers bound what peer/ takes from the network and keeps. docs/reference/wire.md shows them; a test holds the
// two equal.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::peer {

/// Protocol versions this build speaks.
inline constexpr std::uint16_t protocol_version_low = 1;
inline constexpr std::uint16_t protocol_version_high = 1;
/// Features that a node may lack within a version, a bit each, as hello and welcome tell them. A link has the features
/// that both ends name. Unknown bits are ignored.
inline constexpr std::uint64_t feature_sealed_bulk = 1;  ///< bulk is sealed message by message (peer/links/seal.hpp)
inline constexpr std::uint64_t feature_fast_aes = 2;     ///< the processor has instructions for AES
inline constexpr std::uint64_t feature_plain_bulk = 4;   ///< the operator wants bulk not to be encrypted
inline constexpr std::uint64_t spoken_features = feature_sealed_bulk | feature_fast_aes | feature_plain_bulk;

/// How bulk is protected on its way (docs/explanation/security.md).
enum class BulkProtection : std::uint8_t {
  sealed,  ///< encrypted and authenticated message by message
  plain,   ///< authenticated; anybody on the way can read it
  curve,   ///< by ZeroMQ's CURVE, as control is
};
inline constexpr const char* bulk_protection_names[] = {"sealed", "plain", "curve"};
[[nodiscard]] constexpr const char* name_of(BulkProtection protection) {
  return bulk_protection_names[static_cast<std::size_t>(protection)];
}

/// A header frame of an admitted node, and the hello of a stranger.
inline constexpr std::size_t max_header_bytes = 64 * 1024;
inline constexpr std::size_t max_hello_bytes = 2048;
/// Payload frames of one message, and bytes of one: the values of the largest fragment in fp32.
inline constexpr std::size_t max_payload_frames = 3;
inline constexpr std::size_t max_payload_frame_bytes = std::size_t{max_fragment_elements} * 4;
/// What ZeroMQ takes on the wire: a frame and CURVE's overhead around it.
inline constexpr std::size_t max_wire_frame_bytes = max_payload_frame_bytes + 1024;

/// The largest header frame of a message that travels in parts. A message with a larger one goes whole.
inline constexpr std::size_t max_cut_header_bytes = 8192;

inline constexpr std::size_t max_name_bytes = 63;
inline constexpr std::size_t max_address_bytes = 280;
inline constexpr std::size_t max_text_bytes = 255;

/// Nodes known, whether linked or not, and addresses to dial; and links at a time, being made or up.
inline constexpr std::size_t max_members = 1024;
inline constexpr std::size_t max_links = 64;
/// Cluster keys in one ring.
inline constexpr std::size_t max_cluster_keys = 8;
/// Keys that are remembered as retired; beyond that the one retired first is forgotten.
inline constexpr std::size_t max_retired_keys = 64;
/// Keys that one process can have listened with.
inline constexpr std::size_t max_listening_keys = 32;
/// Decisions about nodes that are kept, and told in one message.
inline constexpr std::size_t max_denials = 1024;
inline constexpr std::size_t max_denials_in_message = 64;
/// Deputies of the authority, those that are none any more among them, and how many a hello shows.
inline constexpr std::size_t max_deputies = 32;
inline constexpr std::size_t max_deputies_in_hello = 3;
/// Authorities that an operator has dropped at a node and that are remembered there.
inline constexpr std::size_t max_dropped_authorities = 8;
/// Certificates that are kept, and told in one message.
inline constexpr std::size_t max_certificates = 1024;
inline constexpr std::size_t max_certificates_in_message = 32;
/// A decision or key of another node may be dated so far ahead of our clock.
inline constexpr TimeUs max_ahead_us = 24 * 3600 * us_per_s;
/// Addresses that an invitation names.
inline constexpr std::size_t max_invitation_addresses = 8;

/// A link whose other end sends more malformed messages than this is closed and the node kept out for a while.
inline constexpr std::uint32_t max_malformed_messages = 16;
inline constexpr TimeUs misbehaviour_ban_us = 60 * us_per_s;
/// The most connections to the listening port that are not admitted yet, and the time that each has. There are fewer if
/// the limit on open files is below four times as many.
inline constexpr std::size_t max_strangers = 256;
inline constexpr TimeUs stranger_patience_us = 10 * us_per_s;
/// A connection that has brought more than this and is not admitted is closed. ZeroMQ keeps what it has of a frame,
/// whose size bounds what admitted nodes send.
inline constexpr std::uint64_t max_stranger_bytes = 16 * 1024;
/// Hellos and claims of one key that are looked at at once, and then in a second; and those from one address. The rest
/// are dropped; diallers try again. So many of both are remembered.
inline constexpr std::uint32_t hello_burst = 16;
inline constexpr std::uint32_t hellos_per_s = 4;
inline constexpr std::uint32_t hello_burst_of_host = 1024;
inline constexpr std::uint32_t hellos_per_s_of_host = 1024;
inline constexpr std::size_t max_throttled = 1024;

}  // namespace gossamer::peer
