// The messages of overlays about the link itself and the cluster: admission, liveness, flow of bulk, leaving, who is
// denied, which keys admit. They are values: peer/wire/codec.hpp turns them into frames and back and checks their
// limits, peer/admission/admission.hpp makes and checks the proofs.

#pragma once

#include <string>
#include <variant>
#include <vector>

#include "peer/keys/certificate.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {

/// A link is two connections, so that a heartbeat never queues behind a megabyte.
enum class Channel : std::uint8_t { control = 0, bulk = 1 };
inline constexpr std::size_t channel_count = 2;

using Nonce = std::array<std::uint8_t, 32>;

/// Who may sign in the place of the authority that the sender follows.
struct DeputyList {
  std::optional<PublicKey> authority = {};
  std::vector<Deputy> records = {};
};

struct Hello {
  std::uint16_t version_low = 0;
  std::uint16_t version_high = 0;
  PublicKey public_key{};
  std::uint64_t incarnation = 0;
  Nonce nonce{};
  std::uint64_t link = 0;
  Channel channel = Channel::control;
  std::string address;  ///< empty: cannot be dialled
  std::string name;
  std::uint64_t features = 0;
  Proof proof{};
  std::optional<Certificate> certificate = {};  ///< the dialler's; it is signed, so the proof does not cover it
  DeputyList deputies = {};                     ///< signed, too, and not in the proof; at most max_deputies_in_hello
};

struct Welcome {
  std::uint16_t version = 0;
  PublicKey public_key{};
  std::uint64_t incarnation = 0;
  std::string address;
  std::string name;
  std::uint64_t features = 0;
  Proof proof{};
  std::optional<Certificate> certificate = {};  ///< the listener's; as in Hello
  DeputyList deputies = {};
};

/// Why a node was not let in, or is put out. Unknown numbers are kept as they are.
enum class RejectReason : std::uint16_t {
  bad_proof = 0,    ///< the cluster keys differ, or a field was tampered with
  version = 1,      ///< no protocol version in common
  denied = 2,       ///< the node is on the deny list
  self = 3,         ///< the dialler has dialled itself
  full = 4,         ///< max_links
  duplicate = 5,    ///< the listener is making a link to this node itself, or has one
  stale = 6,        ///< a later start of the same node is linked
  misbehaved = 7,   ///< too many malformed messages
  invitation = 8,   ///< expired, used up, or made with a key that is no longer accepted
  certificate = 9,  ///< the cluster asks for one
};

struct Rejected {
  RejectReason reason = RejectReason::bad_proof;
  std::string text;
};

struct Heartbeat {
  TimeUs sent_at = 0;
  std::uint64_t messages = 0;  ///< sent on this channel since admission, with this one; 0: they are not counted
};
struct HeartbeatEcho {
  TimeUs sent_at = 0;
};
struct Goodbye {
  std::string text;
};

/// A decision about a node. The later of two decisions about a node holds (peer/admission/denials.hpp).
struct Denial {
  static constexpr Power power = Power::deny;
  NodeId node;
  bool denied = false;    ///< false: allowed again
  TimeUs decided_at = 0;  ///< microseconds since 1970
  std::string reason;     ///< for people; at most max_text_bytes
  std::optional<Signature> signature = {};

  friend bool operator==(const Denial&, const Denial&) = default;
  [[nodiscard]] Statement statement() const { return denial_statement(node, denied, decided_at, reason); }
};
struct DenialList {
  std::vector<Denial> records;
};

/// A cluster key and when it was made (microseconds since 1970; 0: not known).
struct RingKey {
  static constexpr Power power = Power::keys;
  ClusterKey key;
  TimeUs made_at = 0;
  std::optional<Signature> signature = {};

  [[nodiscard]] Statement statement() const { return key_statement(key.digest(), made_at); }
};
struct RetiredKey {
  static constexpr Power power = Power::keys;
  Fingerprint fingerprint{};
  TimeUs retired_at = 0;
  std::optional<Signature> signature = {};

  friend bool operator==(const RetiredKey&, const RetiredKey&) = default;
  [[nodiscard]] Statement statement() const { return retirement_statement(fingerprint, retired_at); }
};
/// What the cluster's authority demands of nodes that want a link, besides a cluster key.
struct AdmissionRule {
  static constexpr Power power = Power::none;
  bool certificates = false;
  TimeUs decided_at = 0;  ///< microseconds since 1970
  Signature signature{};

  friend bool operator==(const AdmissionRule&, const AdmissionRule&) = default;
  [[nodiscard]] Statement statement() const { return rule_statement(certificates, decided_at); }
};
/// The keys of a node's key ring (peer/admission/key_ring.hpp). The node listens with the first one.
struct RingState {
  std::vector<RingKey> keys;
  std::vector<RetiredKey> retired;
  std::optional<PublicKey> authority = {};  ///< whose signatures the sender asks for
  std::optional<AdmissionRule> rule = {};   ///< none: the cluster key is enough
};

/// Certificates of nodes that the sender has let in or heard of (peer/admission/certificates.hpp).
struct CertificateList {
  std::vector<Certificate> records;
};

/// Proves that its sender holds an invitation. A node without a cluster key can say nothing else
/// (peer/admission/invitation.hpp).
struct InvitationClaim {
  InvitationId invitation{};
  TimeUs expires_at = 0;  ///< microseconds since 1970
  PublicKey public_key{};
  Nonce nonce{};
  Proof proof{};
  std::optional<Certificate> certificate = {};  ///< made with the invitation's warrant, if it has one
};
struct InvitationGrant {
  RingState ring;
  DeputyList deputies = {};
};

/// Says that the sender takes parts and acknowledges bulk, and how much of it has arrived.
struct BulkAck {
  std::uint64_t received_bytes = 0;
  TimeUs received_at = 0;  ///< when the last of them came, by the sender's own clock; 0: not told
};

/// The listener's part of the link's keys (peer/admission/bulk_keys.hpp). It follows the welcome on the control channel
/// where both ends seal bulk. The dialler's part is the nonce of its hello.
struct BulkOffer {
  Nonce nonce{};
};

using ControlMessage =
    std::variant<Hello, Welcome, Rejected, Heartbeat, HeartbeatEcho, Goodbye, BulkAck, DenialList, RingState,
                 InvitationClaim, InvitationGrant, BulkOffer, CertificateList, DeputyList>;

/// A slice of a large message on the bulk channel; peer/wire/bulk_parts.hpp cuts and joins.
struct BulkPart {
  std::uint64_t message = 0;
  std::uint64_t offset = 0;                ///< in the message's payload, frame after frame
  std::vector<std::uint32_t> frame_bytes;  ///< first part only: sizes of the message's payload frames
  Bytes header;                            ///< first part only: the message's header frame
  std::array<Bytes, max_payload_frames> slices;
  std::size_t slice_count = 0;

  [[nodiscard]] std::size_t payload_bytes() const {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < slice_count; ++i)
      bytes += slices[i].size();
    return bytes;
  }
};

}  // namespace gossamer::peer
