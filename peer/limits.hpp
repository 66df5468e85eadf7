// These numbers bound what peer/ takes from the network and keeps. docs/reference/wire.md shows them; a test holds the
// two equal.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::peer {

/// Protocol versions this build speaks.
inline constexpr std::uint16_t protocol_version_low = 1;
inline constexpr std::uint16_t protocol_version_high = 1;
/// Optional features within a protocol version, one bit each. Hello and welcome carry them. A link has the features
/// that both ends name. Unknown bits are ignored.
inline constexpr std::uint64_t feature_sealed_bulk = 1;  ///< bulk is sealed message by message (peer/links/seal.hpp)
inline constexpr std::uint64_t feature_fast_aes = 2;     ///< the processor has instructions for AES
inline constexpr std::uint64_t feature_plain_bulk = 4;   ///< the operator wants bulk not to be encrypted
inline constexpr std::uint64_t spoken_features = feature_sealed_bulk | feature_fast_aes | feature_plain_bulk;

/// How bulk is protected on its way (docs/explanation/security.md).
enum class BulkProtection : std::uint8_t {
  sealed,  ///< encrypted and authenticated message by message
  plain,   ///< authenticated; anybody on the way can read it
  curve,   ///< encrypted and authenticated by ZeroMQ's CURVE, as control is
};
inline constexpr const char* bulk_protection_names[] = {"sealed", "plain", "curve"};
[[nodiscard]] constexpr const char* name_of(BulkProtection protection) {
  return bulk_protection_names[static_cast<std::size_t>(protection)];
}

/// The largest header frame of an admitted node, and the largest hello of a stranger.
inline constexpr std::size_t max_header_bytes = 64 * 1024;
inline constexpr std::size_t max_hello_bytes = 2048;
/// The most payload frames of one message, and the most bytes of one frame: the values of the largest fragment in f32.
inline constexpr std::size_t max_payload_frames = 3;
inline constexpr std::size_t max_payload_frame_bytes = std::size_t{max_fragment_elements} * 4;
/// The largest frame that ZeroMQ accepts on the wire: a payload frame and CURVE's overhead around it.
inline constexpr std::size_t max_wire_frame_bytes = max_payload_frame_bytes + 1024;

/// The largest header frame of a message that travels in parts. A message whose header is larger goes whole.
inline constexpr std::size_t max_cut_header_bytes = 8192;

inline constexpr std::size_t max_name_bytes = 63;
inline constexpr std::size_t max_address_bytes = 280;
inline constexpr std::size_t max_text_bytes = 255;

/// max_members bounds the known nodes, linked or not, and the addresses to dial. max_links bounds the links that are up
/// or being made.
inline constexpr std::size_t max_members = 1024;
inline constexpr std::size_t max_links = 64;
/// Cluster keys in one ring.
inline constexpr std::size_t max_cluster_keys = 8;
/// The most retired keys that are remembered. Beyond that, the key that was retired first is forgotten.
inline constexpr std::size_t max_retired_keys = 64;
/// The most keys with which one process can listen, one after the other, before it has to be restarted.
inline constexpr std::size_t max_listening_keys = 32;
/// The most decisions about nodes (denied, or allowed again) that a node keeps, and that one message carries.
inline constexpr std::size_t max_denials = 1024;
inline constexpr std::size_t max_denials_in_message = 64;
/// The most deputies of the authority, dismissed ones included, and how many of them a hello shows.
inline constexpr std::size_t max_deputies = 32;
inline constexpr std::size_t max_deputies_in_hello = 3;
/// The most authorities that a node remembers because its operator has dropped them.
inline constexpr std::size_t max_dropped_authorities = 8;
/// The most certificates that a node keeps, and that one message carries.
inline constexpr std::size_t max_certificates = 1024;
inline constexpr std::size_t max_certificates_in_message = 32;
/// How far ahead of our clock another node may date a decision or a key.
inline constexpr TimeUs max_ahead_us = 24 * 3600 * us_per_s;
/// Addresses that an invitation names.
inline constexpr std::size_t max_invitation_addresses = 8;

/// A link whose other end sends more malformed messages than this is closed, and the node is kept out for
/// misbehaviour_ban_us.
inline constexpr std::uint32_t max_malformed_messages = 16;
inline constexpr TimeUs misbehaviour_ban_us = 60 * us_per_s;
/// The most connections to the listening port that are not admitted yet, and the time that each has. They may also take
/// no more than a quarter of the limit on open files.
inline constexpr std::size_t max_strangers = 64;
inline constexpr TimeUs stranger_patience_us = 10 * us_per_s;
/// A connection that is not admitted is closed when more bytes than this have come on it: more than a handshake and the
/// longest hello take. Otherwise each could make ZeroMQ keep an unfinished frame as large as admitted nodes may send.
/// What ZeroMQ makes of a handshake's properties is up to 37 times as large as they are.
inline constexpr std::uint64_t max_stranger_bytes = 3 * 1024;
/// How many hellos and claims are looked at in a burst, and then each second: those of one key, and those from one
/// address. The rest are dropped, and diallers try again. max_throttled keys and as many addresses are remembered.
inline constexpr std::uint32_t hello_burst = 16;
inline constexpr std::uint32_t hellos_per_s = 4;
inline constexpr std::uint32_t hello_burst_of_host = 1024;
inline constexpr std::uint32_t hellos_per_s_of_host = 1024;
inline constexpr std::size_t max_throttled = 1024;

}  // namespace gossamer::peer
