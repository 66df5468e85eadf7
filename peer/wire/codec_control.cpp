#include <algorithm>

#include "peer/limits.hpp"
#include "peer/wire/codec_parts.hpp"

namespace gossamer::peer {
namespace {

/// Calls `set` with the bytes of a certificate, if there is one.
template <class Set>
void write_certificate(const std::optional<Certificate>& certificate, Set set) {
  if (!certificate) return;
  const auto bytes = bytes_of(*certificate);
  set(capnp::Data::Reader(bytes.data(), bytes.size()));
}
/// False if there are bytes that are no certificate.
[[nodiscard]] bool read_certificate(capnp::Data::Reader in, std::optional<Certificate>& certificate) {
  if (in.size() == 0) return true;
  certificate = parse_certificate({in.begin(), in.size()});
  return certificate.has_value();
}

void write_deputies(const DeputyList& list, wire::Deputies::Builder out) {
  auto records = out.initRecords(size_of(list.records));
  for (unsigned i = 0; i < records.size(); ++i) {
    const Deputy& deputy = list.records[i];
    records[i].setKey(data_of(deputy.key));
    records[i].setPowers(deputy.powers);
    records[i].setDecidedAt(deputy.decided_at);
    records[i].setName(text_of(deputy.name));
    records[i].setSignature(data_of(deputy.signature));
  }
  if (list.authority) out.setAuthority(data_of(*list.authority));
}
bool read_deputies(wire::Deputies::Reader in, DeputyList& list, std::size_t most = max_deputies) {
  const auto records = in.getRecords();
  if (records.size() > most) return false;
  for (const auto record : records) {
    Deputy& deputy = list.records.emplace_back();
    deputy.powers = record.getPowers();
    deputy.decided_at = record.getDecidedAt();
    if (!read_data(record.getKey(), deputy.key) || !read_text(record.getName(), max_name_bytes, deputy.name) ||
        !read_data(record.getSignature(), deputy.signature)) {
      return false;
    }
  }
  return read_optional(in.getAuthority(), list.authority);
}

void write(const Hello& hello, wire::Header::Builder header) {
  auto out = header.initHello();
  out.setVersionLow(hello.version_low);
  out.setVersionHigh(hello.version_high);
  out.setPublicKey(data_of(hello.public_key));
  out.setIncarnation(hello.incarnation);
  out.setNonce(data_of(hello.nonce));
  out.setLink(hello.link);
  out.setChannel(static_cast<std::uint16_t>(hello.channel));
  out.setAddress(text_of(hello.address));
  out.setName(text_of(hello.name));
  out.setFeatures(hello.features);
  out.setProof(data_of(hello.proof));
  write_certificate(hello.certificate, [&](auto bytes) { out.setCertificate(bytes); });
  if (!hello.deputies.records.empty()) write_deputies(hello.deputies, out.initDeputies());
}
std::optional<ControlMessage> read(wire::Hello::Reader in) {
  Hello hello;
  hello.version_low = in.getVersionLow();
  hello.version_high = in.getVersionHigh();
  hello.incarnation = in.getIncarnation();
  hello.link = in.getLink();
  hello.features = in.getFeatures();
  if (in.getChannel() >= channel_count) return std::nullopt;
  hello.channel = static_cast<Channel>(in.getChannel());
  if (!read_data(in.getPublicKey(), hello.public_key) || !read_data(in.getNonce(), hello.nonce) ||
      !read_data(in.getProof(), hello.proof) || !read_text(in.getAddress(), max_address_bytes, hello.address) ||
      !read_text(in.getName(), max_name_bytes, hello.name) ||
      !read_certificate(in.getCertificate(), hello.certificate) ||
      !read_deputies(in.getDeputies(), hello.deputies, max_deputies_in_hello)) {
    return std::nullopt;
  }
  return hello;
}

void write(const Welcome& welcome, wire::Header::Builder header) {
  auto out = header.initWelcome();
  out.setVersion(welcome.version);
  out.setPublicKey(data_of(welcome.public_key));
  out.setIncarnation(welcome.incarnation);
  out.setAddress(text_of(welcome.address));
  out.setName(text_of(welcome.name));
  out.setFeatures(welcome.features);
  out.setProof(data_of(welcome.proof));
  write_certificate(welcome.certificate, [&](auto bytes) { out.setCertificate(bytes); });
  if (!welcome.deputies.records.empty()) write_deputies(welcome.deputies, out.initDeputies());
}
std::optional<ControlMessage> read(wire::Welcome::Reader in) {
  Welcome welcome;
  welcome.version = in.getVersion();
  welcome.incarnation = in.getIncarnation();
  welcome.features = in.getFeatures();
  if (!read_data(in.getPublicKey(), welcome.public_key) || !read_data(in.getProof(), welcome.proof) ||
      !read_text(in.getAddress(), max_address_bytes, welcome.address) ||
      !read_text(in.getName(), max_name_bytes, welcome.name) ||
      !read_certificate(in.getCertificate(), welcome.certificate) ||
      !read_deputies(in.getDeputies(), welcome.deputies, max_deputies_in_hello)) {
    return std::nullopt;
  }
  return welcome;
}

void write(const Rejected& rejected, wire::Header::Builder header) {
  auto out = header.initRejected();
  out.setReason(static_cast<std::uint16_t>(rejected.reason));
  out.setText(text_of(rejected.text));
}
std::optional<ControlMessage> read(wire::Rejected::Reader in) {
  Rejected rejected;
  rejected.reason = static_cast<RejectReason>(in.getReason());
  if (!read_text(in.getText(), max_text_bytes, rejected.text)) return std::nullopt;
  return rejected;
}

void write(const Heartbeat& ping, wire::Header::Builder header) {
  auto out = header.initPing();
  out.setSentAt(ping.sent_at);
  out.setMessages(ping.messages);
}

void write(const HeartbeatEcho& pong, wire::Header::Builder header) {
  header.initPong().setSentAt(pong.sent_at);
}

void write(const Goodbye& goodbye, wire::Header::Builder header) {
  header.initGoodbye().setText(text_of(goodbye.text));
}
std::optional<ControlMessage> read(wire::Goodbye::Reader in) {
  Goodbye goodbye;
  if (!read_text(in.getText(), max_text_bytes, goodbye.text)) return std::nullopt;
  return goodbye;
}

void write(const DenialList& list, wire::Header::Builder header) {
  auto records = header.initDenials().initRecords(size_of(list.records));
  for (unsigned i = 0; i < records.size(); ++i) {
    const Denial& denial = list.records[i];
    records[i].setNode(data_of(denial.node.bytes));
    records[i].setDenied(denial.denied);
    records[i].setDecidedAt(denial.decided_at);
    records[i].setReason(text_of(denial.reason));
    if (denial.signature) records[i].setSignature(data_of(*denial.signature));
  }
}
std::optional<ControlMessage> read(wire::Denials::Reader in) {
  const auto records = in.getRecords();
  if (records.size() > max_denials_in_message) return std::nullopt;
  DenialList list;
  list.records.resize(records.size());
  for (unsigned i = 0; i < records.size(); ++i) {
    Denial& denial = list.records[i];
    denial.denied = records[i].getDenied();
    denial.decided_at = records[i].getDecidedAt();
    if (!read_data(records[i].getNode(), denial.node.bytes) ||
        !read_text(records[i].getReason(), max_text_bytes, denial.reason) ||
        !read_optional(records[i].getSignature(), denial.signature)) {
      return std::nullopt;
    }
  }
  return list;
}

void write_ring(const RingState& ring, wire::KeyRing::Builder out) {
  auto keys = out.initKeys(size_of(ring.keys));
  for (unsigned i = 0; i < keys.size(); ++i) {
    const auto secret = ring.keys[i].key.key.bytes();
    keys[i].setKey({secret.data(), secret.size()});
    keys[i].setMadeAt(ring.keys[i].made_at);
    if (const auto& signature = ring.keys[i].signature) keys[i].setSignature(data_of(*signature));
  }
  auto retired = out.initRetired(size_of(ring.retired));
  for (unsigned i = 0; i < retired.size(); ++i) {
    retired[i].setFingerprint(data_of(ring.retired[i].fingerprint));
    retired[i].setRetiredAt(ring.retired[i].retired_at);
    if (const auto& signature = ring.retired[i].signature) retired[i].setSignature(data_of(*signature));
  }
  if (ring.authority) out.setAuthority(data_of(*ring.authority));
  if (!ring.rule) return;
  auto rule = out.initRule();
  rule.setCertificates(ring.rule->certificates);
  rule.setDecidedAt(ring.rule->decided_at);
  rule.setSignature(data_of(ring.rule->signature));
}
bool read_ring(wire::KeyRing::Reader in, RingState& ring) {
  const auto keys = in.getKeys();
  const auto retired = in.getRetired();
  if (keys.size() > max_cluster_keys || retired.size() > max_retired_keys) return false;
  for (const auto key : keys) {
    const auto bytes = key.getKey();
    RingKey& read = ring.keys.emplace_back();
    if (bytes.size() != key_bytes) return false;
    std::ranges::copy(bytes, read.key.key.writable().begin());
    read.made_at = key.getMadeAt();
    if (!read_optional(key.getSignature(), read.signature)) return false;
  }
  for (const auto key : retired) {
    RetiredKey& read = ring.retired.emplace_back();
    read.retired_at = key.getRetiredAt();
    if (!read_data(key.getFingerprint(), read.fingerprint) || !read_optional(key.getSignature(), read.signature))
      return false;
  }
  if (in.hasRule() && in.getRule().hasSignature()) {
    AdmissionRule& rule = ring.rule.emplace();
    rule.certificates = in.getRule().getCertificates();
    rule.decided_at = in.getRule().getDecidedAt();
    if (!read_data(in.getRule().getSignature(), rule.signature)) return false;
  }
  return read_optional(in.getAuthority(), ring.authority);
}

void write(const RingState& ring, wire::Header::Builder header) {
  write_ring(ring, header.initKeyRing());
}
std::optional<ControlMessage> read(wire::KeyRing::Reader in) {
  RingState ring;
  if (!read_ring(in, ring)) return std::nullopt;
  return ring;
}

void write(const InvitationClaim& claim, wire::Header::Builder header) {
  auto out = header.initInvitationClaim();
  out.setInvitation(data_of(claim.invitation));
  out.setExpiresAt(claim.expires_at);
  out.setPublicKey(data_of(claim.public_key));
  out.setNonce(data_of(claim.nonce));
  out.setProof(data_of(claim.proof));
  write_certificate(claim.certificate, [&](auto bytes) { out.setCertificate(bytes); });
}
std::optional<ControlMessage> read(wire::InvitationClaim::Reader in) {
  InvitationClaim claim;
  claim.expires_at = in.getExpiresAt();
  if (!read_data(in.getInvitation(), claim.invitation) || !read_data(in.getPublicKey(), claim.public_key) ||
      !read_data(in.getNonce(), claim.nonce) || !read_data(in.getProof(), claim.proof) ||
      !read_certificate(in.getCertificate(), claim.certificate)) {
    return std::nullopt;
  }
  return claim;
}

void write(const DeputyList& list, wire::Header::Builder header) {
  write_deputies(list, header.initDeputies());
}
std::optional<ControlMessage> read(wire::Deputies::Reader in) {
  DeputyList list;
  if (!read_deputies(in, list)) return std::nullopt;
  return list;
}

void write(const InvitationGrant& grant, wire::Header::Builder header) {
  auto out = header.initInvitationGrant();
  write_ring(grant.ring, out.initRing());
  if (!grant.deputies.records.empty()) write_deputies(grant.deputies, out.initDeputies());
}
std::optional<ControlMessage> read(wire::InvitationGrant::Reader in) {
  InvitationGrant grant;
  if (!read_ring(in.getRing(), grant.ring) || !read_deputies(in.getDeputies(), grant.deputies)) return std::nullopt;
  return grant;
}

void write(const CertificateList& list, wire::Header::Builder header) {
  auto records = header.initCertificates().initRecords(size_of(list.records));
  for (unsigned i = 0; i < records.size(); ++i)
    write_certificate(list.records[i], [&](auto bytes) { records.set(i, bytes); });
}
std::optional<ControlMessage> read(wire::Certificates::Reader in) {
  const auto records = in.getRecords();
  if (records.size() > max_certificates_in_message) return std::nullopt;
  CertificateList list;
  for (const auto record : records) {
    std::optional<Certificate> certificate;
    if (!read_certificate(record, certificate) || !certificate) return std::nullopt;
    list.records.push_back(std::move(*certificate));
  }
  return list;
}

void write(const BulkAck& ack, wire::Header::Builder header) {
  auto out = header.initBulkAck();
  out.setReceived(ack.received_bytes);
  out.setReceivedAt(ack.received_at);
}

void write(const BulkOffer& offer, wire::Header::Builder header) {
  header.initBulkOffer().setNonce(data_of(offer.nonce));
}
std::optional<ControlMessage> read(wire::BulkOffer::Reader in) {
  BulkOffer offer;
  if (!read_data(in.getNonce(), offer.nonce)) return std::nullopt;
  return offer;
}

}  // namespace

void write_control(const ControlMessage& message, wire::Header::Builder header) {
  std::visit([&](const auto& m) { write(m, header); }, message);
}

std::optional<ControlMessage> read_control(wire::Header::Reader header) {
  switch (header.which()) {
    case wire::Header::HELLO:
      return read(header.getHello());
    case wire::Header::WELCOME:
      return read(header.getWelcome());
    case wire::Header::REJECTED:
      return read(header.getRejected());
    case wire::Header::PING:
      return Heartbeat{header.getPing().getSentAt(), header.getPing().getMessages()};
    case wire::Header::PONG:
      return HeartbeatEcho{header.getPong().getSentAt()};
    case wire::Header::GOODBYE:
      return read(header.getGoodbye());
    case wire::Header::DENIALS:
      return read(header.getDenials());
    case wire::Header::KEY_RING:
      return read(header.getKeyRing());
    case wire::Header::INVITATION_CLAIM:
      return read(header.getInvitationClaim());
    case wire::Header::INVITATION_GRANT:
      return read(header.getInvitationGrant());
    case wire::Header::BULK_ACK:
      return BulkAck{header.getBulkAck().getReceived(), header.getBulkAck().getReceivedAt()};
    case wire::Header::CERTIFICATES:
      return read(header.getCertificates());
    case wire::Header::DEPUTIES:
      return read(header.getDeputies());
    case wire::Header::BULK_OFFER:
      return read(header.getBulkOffer());
    default:
      return std::nullopt;
  }
}

}  // namespace gossamer::peer
