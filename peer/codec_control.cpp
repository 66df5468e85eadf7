#include <algorithm>

#include "peer/codec_parts.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

template <std::size_t n>
capnp::Data::Reader data_of(const std::array<std::uint8_t, n>& bytes) {
  return {bytes.data(), bytes.size()};
}
capnp::Text::Reader text_of(const std::string& text) {
  return {text.c_str(), text.size()};
}

template <std::size_t n>
bool read_data(capnp::Data::Reader data, std::array<std::uint8_t, n>& bytes) {
  if (data.size() != n) return false;
  std::ranges::copy(data, bytes.begin());
  return true;
}
bool read_text(capnp::Text::Reader text, std::size_t max_bytes, std::string& out) {
  if (text.size() > max_bytes) return false;
  out.assign(text.cStr(), text.size());
  return true;
}

template <class Parent>
void write_members(const std::vector<Member>& members, Parent parent) {
  auto list = parent.initMembers(static_cast<unsigned>(members.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setNode(data_of(members[i].node.bytes));
    list[i].setAddress(text_of(members[i].address));
  }
}
bool read_members(capnp::List<wire::Member>::Reader list, std::size_t most, std::vector<Member>& out) {
  if (list.size() > most) return false;
  out.resize(list.size());
  for (unsigned i = 0; i < list.size(); ++i) {
    if (!read_data(list[i].getNode(), out[i].node.bytes)) return false;
    if (!read_text(list[i].getAddress(), max_address_bytes, out[i].address)) return false;
  }
  return true;
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
      !read_text(in.getName(), max_name_bytes, hello.name)) {
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
  write_members(welcome.members, out);
  out.setFeatures(welcome.features);
  out.setProof(data_of(welcome.proof));
}
std::optional<ControlMessage> read(wire::Welcome::Reader in) {
  Welcome welcome;
  welcome.version = in.getVersion();
  welcome.incarnation = in.getIncarnation();
  welcome.features = in.getFeatures();
  if (!read_data(in.getPublicKey(), welcome.public_key) || !read_data(in.getProof(), welcome.proof) ||
      !read_text(in.getAddress(), max_address_bytes, welcome.address) ||
      !read_text(in.getName(), max_name_bytes, welcome.name) ||
      !read_members(in.getMembers(), max_members_in_welcome, welcome.members)) {
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

void write(const Ping& ping, wire::Header::Builder header) {
  auto out = header.initPing();
  out.setSentAt(ping.sent_at);
  write_members(ping.members, out);
}
std::optional<ControlMessage> read(wire::Ping::Reader in) {
  Ping ping;
  ping.sent_at = in.getSentAt();
  if (!read_members(in.getMembers(), max_members_in_ping, ping.members)) return std::nullopt;
  return ping;
}

void write(const Pong& pong, wire::Header::Builder header) {
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

void write(const BulkAck& ack, wire::Header::Builder header) {
  header.initBulkAck().setReceived(ack.received_bytes);
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
      return read(header.getPing());
    case wire::Header::PONG:
      return Pong{header.getPong().getSentAt()};
    case wire::Header::GOODBYE:
      return read(header.getGoodbye());
    case wire::Header::BULK_ACK:
      return BulkAck{header.getBulkAck().getReceived()};
    default:
      return std::nullopt;
  }
}

}  // namespace gossamer::peer
