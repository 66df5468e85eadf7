// Tests that older peers are understood. Frames that earlier builds sent are kept as bytes in
// tests/unit/peer/recorded/, and must decode to the values that they were made from. Newer peers are understood as far
// as possible: fields and kinds that this build does not know are ignored.
//
// A file has what one build sent, one message a line: a name, then the header frame and each payload frame in
// hexadecimal digits, or "-" for an empty frame. A file is never changed. When the protocol gains something, the
// samples below get another entry, and a new file is written by
//
//     GOSSAMER_RECORD=tests/unit/peer/recorded/NAME peer_test "write down what this build sends"
//
// and added to the list of files. The proofs of hellos and welcomes are made for one connection, so here they are no
// proofs.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "catch.hpp"
#include "peer/wire/capnp.hpp"
#include "peer/wire/codec.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

/// A file, and how many samples existed when it was written.
struct Recording {
  std::string name;
  std::size_t messages;
};
const std::vector<Recording> files{
    {"version-1", 32},           {"version-1-agreement", 46},    {"version-1-summaries", 48}, {"version-1-tracer", 51},
    {"version-1-outcome", 54},   {"version-1-settings", 55},     {"version-1-keeping", 58},   {"version-1-limited", 59},
    {"version-1-authority", 61}, {"version-1-certificates", 65}, {"version-1-deputies", 67},  {"version-1-linked", 68},
    {"version-1-hello", 71},     {"version-1-scaled", 72},       {"version-1-weighted", 73},  {"version-1-usual", 74},
    {"version-1-counted", 75}};

Bytes filled(std::size_t size, std::uint8_t value) {
  return Bytes::adopt(std::vector<std::uint8_t>(size, value));
}
NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes.fill(number);
  return id;
}
MemberRecord record(std::uint8_t number) {
  return {node(number), 0x0123456789abcdefULL + number, false, "tcp://10.0.0.1:" + std::to_string(7000 + number)};
}

Frames membership(MembershipBody body) {
  MembershipMessage message;
  message.incarnation = 42;
  message.partial = true;
  message.rumours = {{Claim::alive, true, 3, record(20), {}},
                     {Claim::suspected, false, 1, {node(21), 5, false, {}}, node(22)},
                     {Claim::dead, true, 24, {node(23), 6, true, {}}, {}},
                     {Claim::left, true, 0, {node(24), 7, false, {}}, {}}};
  message.body = std::move(body);
  return encode(message);
}

Frames request(Codec codec, std::uint32_t blocks) {
  ExchangeRequest message{.counter = 0x0123456789abcdef,
                          .job = {11, 12},
                          .fragment = 5,
                          .codec = codec,
                          .seed = 99,
                          .min_shift = 2,
                          .clock = 1000,
                          .age = {3, 4},
                          .clip = 0.375F,
                          .block_count = blocks};
  message.side = filled(side_bytes(codec, blocks), 0);
  message.values = filled(blocks * codec_block_bytes(codec), 0x5a);
  return encode(Message(message));
}
Frames weighted_request() {
  ExchangeRequest message{.counter = 73, .job = {11, 12}, .codec = Codec::f32, .weight = 48, .block_count = 1};
  message.side = filled(side_bytes(Codec::f32, 1), 0);
  message.values = filled(codec_block_bytes(Codec::f32), 0x5a);
  return encode(Message(message));
}
Frames request_with_usual() {
  ExchangeRequest message{.counter = 74, .job = {11, 12}, .codec = Codec::f32, .usual = 0.75F, .block_count = 1};
  message.side = filled(side_bytes(Codec::f32, 1), 0);
  message.values = filled(codec_block_bytes(Codec::f32), 0x5a);
  return encode(Message(message));
}
Frames reply(Codec codec, std::uint32_t blocks) {
  ExchangeReply message{.counter = 7,
                        .job = {11, 12},
                        .fragment = 5,
                        .status = ReplyStatus::done,
                        .codec = codec,
                        .shift = 3,
                        .clock = 1000,
                        .age = {3, 4},
                        .block_count = blocks};
  if (codec != Codec::f32) {
    message.wide = filled(bitmap_bytes(blocks), 1);
    message.asked = filled(blocks, 0xf0);
  }
  message.differences = filled(blocks * codec_block_bytes(codec), 0xa5);
  return encode(Message(message));
}
Frames refusal(ReplyStatus status, RefuseReason reason) {
  return encode(
      Message(ExchangeReply{.counter = 8, .job = {11, 12}, .fragment = 6, .status = status, .reason = reason}));
}
Frames pull_reply() {
  return encode(Message(PullReply{.job = {1, 2}, .fragment = 3, .clock = 4, .hash = 5, .values = filled(2048, 7)}));
}

Frames summaries() {
  NodeSummary own{.node = node(50), .incarnation = 51, .number = 52, .name = "left", .neighbours = 3};
  own.jobs = {{"digits", ReplicaState::running, 53, 0.25F}, {"words", ReplicaState::joining, 0, 0}};
  const NodeSummary other{.node = node(54), .incarnation = 55, .age_ms = 56, .goodput_bytes_s = 57};
  return encode(Message(Summaries{{own, other}}));
}

constexpr TracerValues tracer{.round = 60, .values = {0.5, -0.25, 1e-9, -61}};
Frames traced_request() {
  ExchangeRequest message{.counter = 62, .job = {11, 12}, .codec = Codec::q8, .block_count = 1, .tracer = tracer};
  message.side = filled(side_bytes(Codec::q8, 1), 0);
  message.values = filled(codec_block_bytes(Codec::q8), 0x5a);
  return encode(Message(message));
}
Frames traced_reply() {
  ExchangeReply message{.counter = 63,
                        .job = {11, 12},
                        .status = ReplyStatus::done,
                        .codec = Codec::q8,
                        .block_count = 1,
                        .tracer = tracer};
  message.differences = filled(codec_block_bytes(Codec::q8), 0xa5);
  return encode(Message(message));
}
Frames limited_reply() {
  ExchangeReply message{.counter = 69,
                        .job = {11, 12},
                        .status = ReplyStatus::done,
                        .codec = Codec::f32,
                        .block_count = 1,
                        .limited = true};
  message.differences = filled(codec_block_bytes(Codec::f32), 0xa5);
  return encode(Message(message));
}
Frames scaled_reply() {
  ExchangeReply message{.counter = 72,
                        .job = {11, 12},
                        .status = ReplyStatus::done,
                        .codec = Codec::f32,
                        .block_count = 2,
                        .limited = true,
                        .halvings = Bytes::adopt(std::vector<std::uint8_t>{0, 9})};
  message.differences = filled(2 * codec_block_bytes(Codec::f32), 0xa5);
  return encode(Message(message));
}
Frames traced_summaries() {
  NodeSummary own{.node = node(64), .incarnation = 65, .number = 66};
  own.jobs = {{"digits", ReplicaState::running, 67, 0.25F, 68, 6.5F}};
  return encode(Message(Summaries{{own}}));
}

Frames linked_summaries() {
  const NodeSummary own{.node = node(70), .incarnation = 71, .number = 72, .neighbours = 2, .linked = {0xa1b2c3d4, 73}};
  return encode(Message(Summaries{{own}}));
}

Denial denial(std::uint8_t number, bool denied) {
  return {node(number), denied, 1'700'000'000'000'000 + number, denied ? "lost in a taxi" : ""};
}
ClusterKey cluster_key(std::uint8_t value) {
  std::array<std::uint8_t, key_bytes> bytes{};
  bytes.fill(value);
  return {Secret(bytes)};
}
RingState ring() {
  RingState state;
  state.keys = {{cluster_key(30), 1'700'000'000'000'000}, {cluster_key(31), 0}};
  state.retired = {{cluster_key(32).fingerprint(), 1'600'000'000'000'000}};
  return state;
}
Signature signature(std::uint8_t value) {
  Signature signature{};
  signature.fill(value);
  return signature;
}
DenialList signed_denials() {
  DenialList list{{denial(40, true), denial(41, false)}};
  list.records[0].signature = signature(50);
  return list;
}
RingState signed_ring() {
  RingState state = ring();
  state.keys[0].signature = signature(51);
  state.retired[0].signature = signature(52);
  state.authority.emplace().fill(53);
  return state;
}
Certificate certificate(std::uint8_t value) {
  Certificate certificate;
  certificate.warrant.invitation.fill(54);
  certificate.warrant.key.fill(55);
  certificate.warrant.nodes = 3;
  certificate.warrant.rights = {.role = peer::NodeRole::follows, .jobs = "lab-*"};
  certificate.warrant.usable_until = 1'700'000'000'000'000;
  certificate.warrant.valid_until = 1'800'000'000'000'000;
  certificate.warrant.signature = signature(56);
  certificate.node = node(value);
  certificate.made_at = 1'600'000'000'000'000;
  certificate.signature = signature(57);
  return certificate;
}
DeputyList deputies() {
  const PublicKey key{1, 2, 3};
  return {PublicKey{4, 5, 6},
          {{.key = key, .powers = 9, .decided_at = 1'700'000'000'000'000, .name = "anna", .signature = signature(59)}}};
}
RingState ring_with_rule() {
  RingState state = signed_ring();
  state.rule = {.certificates = true, .decided_at = 1'700'000'000'000'000, .signature = signature(58)};
  return state;
}
InvitationClaim claim() {
  InvitationClaim claim;
  claim.invitation.fill(33);
  claim.expires_at = 1'800'000'000'000'000;
  claim.public_key.fill(34);
  claim.nonce.fill(35);
  claim.proof.fill(36);
  return claim;
}
InvitationClaim warranted_claim() {
  InvitationClaim warranted = claim();
  warranted.certificate = certificate(59);
  return warranted;
}
/// The header of pull_reply() when parts were recorded. The test does not look into what a part carries.
constexpr std::string_view header_in_part =
    "000000000900000000000000010001000c00000000000000000000000300010003000000000000000400000000000000"
    "0500000000000000000000000200000001000000000000000200000000000000";
Bytes header_of_part() {
  std::vector<std::uint8_t> bytes;
  for (std::size_t at = 0; at < header_in_part.size(); at += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(std::string(header_in_part.substr(at, 2)), nullptr, 16)));
  return Bytes::adopt(std::move(bytes));
}

Frames part(bool first) {
  BulkPart part;
  part.message = 9;
  part.offset = first ? 0 : 600;
  if (first) {
    part.frame_bytes = {100, 1000};
    part.header = header_of_part();
    part.slices = {filled(100, 37), filled(500, 38)};
    part.slice_count = 2;
  } else {
    part.slices = {filled(500, 38)};
    part.slice_count = 1;
  }
  return encode(part);
}

Hello hello() {
  Hello hello;
  hello.version_low = 1;
  hello.version_high = 2;
  hello.incarnation = 63;
  hello.link = 64;
  hello.channel = Channel::bulk;
  hello.public_key.fill(65);
  hello.nonce.fill(66);
  hello.address = "tcp://10.0.0.1:7000";
  hello.name = "node-a";
  hello.features = spoken_features;
  hello.proof.fill(67);
  return hello;
}

Frames certified_hello() {
  Hello shown = hello();
  shown.channel = Channel::control;
  shown.certificate = certificate(60);
  shown.deputies = deputies();
  return encode(ControlMessage(shown));
}

Frames welcome() {
  Welcome welcome;
  welcome.version = 1;
  welcome.incarnation = 68;
  welcome.address = "tcp://10.0.0.2:7000";
  welcome.name = "node-b";
  welcome.public_key.fill(69);
  welcome.features = spoken_features;
  welcome.proof.fill(70);
  welcome.certificate = certificate(61);
  welcome.deputies = deputies();
  return encode(ControlMessage(welcome));
}

Frames job_with_settings() {
  JobInfo info{{1, 2}, "digits", ReplicaState::running, 9, 1000, 4, 256};
  info.settings = {5, node(50), {{"codec", "q4"}, {"period_ms", "1000"}}};
  return encode(Message(info));
}

Frames job_with_signed_settings() {
  JobInfo info{{1, 2}, "digits", ReplicaState::running, 9, 1000, 4, 256};
  info.settings = {5, node(50), {{"codec", "q4"}}, signature(62)};
  return encode(Message(info));
}

/// The messages by name. An entry is never changed, only added.
std::map<std::string, Frames> samples() {
  return {
      {"ping", encode(ControlMessage(Heartbeat{123}))},
      {"ping.counted", encode(ControlMessage(Heartbeat{123, 75}))},
      {"pong", encode(ControlMessage(HeartbeatEcho{-5}))},
      {"hello", encode(ControlMessage(hello()))},
      {"hello.certificate", certified_hello()},
      {"welcome", welcome()},
      {"goodbye", encode(ControlMessage(Goodbye{"stopping"}))},
      {"exchangeRequest.q8", request(Codec::q8, 3)},
      {"exchangeRequest.q4", request(Codec::q4, 2)},
      {"exchangeRequest.f32", request(Codec::f32, 1)},
      {"exchangeReply.q8", reply(Codec::q8, 3)},
      {"exchangeReply.q4", reply(Codec::q4, 2)},
      {"exchangeReply.f32", reply(Codec::f32, 1)},
      {"exchangeReply.busy", refusal(ReplyStatus::busy, RefuseReason::none)},
      {"exchangeReply.refused", refusal(ReplyStatus::refused, RefuseReason::expired)},
      {"exchangeAck", encode(Message(ExchangeAck{42}))},
      {"exchangeAck.never", encode(Message(ExchangeAck{42, Outcome::never}))},
      {"exchangeAck.unknown", encode(Message(ExchangeAck{42, Outcome::unknown}))},
      {"exchangeInquiry", encode(Message(ExchangeInquiry{42, {1, 2}, 3}))},
      {"jobInfo", encode(Message(JobInfo{{1, 2}, "digits", ReplicaState::running, 9, 1000, 4, 256}))},
      {"jobInfo.draining", encode(Message(JobInfo{{1, 2}, "digits", ReplicaState::draining, 9, 1000, 4, 256}))},
      {"jobInfo.settings", job_with_settings()},
      {"jobInfo.settings.signed", job_with_signed_settings()},
      {"jobInfo.keeps", encode(Message(JobInfo{.job = {1, 2}, .name = "digits", .keeps = true}))},
      {"layoutQuery", encode(Message(LayoutQuery{{1, 2}, 64}))},
      {"layoutReply", encode(Message(LayoutReply{{1, 2}, 256, 4, 2, {{"weights", 0, 0, {3, 4}}, {"steps", 7, 2}}}))},
      {"summaries", summaries()},
      {"summaries.none", encode(Message(Summaries{}))},
      {"summaries.tracer", traced_summaries()},
      {"summaries.linked", linked_summaries()},
      {"exchangeRequest.tracer", traced_request()},
      {"exchangeReply.tracer", traced_reply()},
      {"exchangeReply.limited", limited_reply()},
      {"exchangeReply.scaled", scaled_reply()},
      {"exchangeRequest.weighted", weighted_request()},
      {"exchangeRequest.usual", request_with_usual()},
      {"jobQuery", encode(Message(JobQuery{{1, 2}}))},
      {"pullRequest", encode(Message(PullRequest{{1, 2}, 3}))},
      {"pullReply", pull_reply()},
      {"pullReply.declined",
       encode(Message(PullReply{.job = {1, 2}, .fragment = 3, .reason = RefuseReason::draining}))},
      {"membership.news", membership(News{})},
      {"membership.ping", membership(Ping{7, true})},
      {"membership.pingRequest", membership(PingRequest{8, 400'000, record(9)})},
      {"membership.ack", membership(Ack{10})},
      {"membership.nack", membership(Nack{11})},
      {"membership.sync",
       membership(Sync{record(1), true, {{record(2), Claim::alive}, {record(3), Claim::suspected}}})},
      {"membership.join", membership(Join{record(4)})},
      {"membership.forwardJoin", membership(ForwardJoin{record(5), 6})},
      {"membership.neighbourRequest", membership(NeighbourRequest{record(6), true})},
      {"membership.neighbourReply", membership(NeighbourReply{record(7), true})},
      {"membership.disconnect", membership(Disconnect{})},
      {"membership.shuffle", membership(Shuffle{record(8), 5, {record(9), record(10)}})},
      {"membership.shuffleReply", membership(ShuffleReply{{record(11)}})},
      {"membership.leave", membership(Leave{})},
      {"rejected", encode(ControlMessage(Rejected{RejectReason::version, "we speak protocol 1 to 1"}))},
      {"rejected.invitation", encode(ControlMessage(Rejected{RejectReason::invitation, "expired"}))},
      {"denials", encode(ControlMessage(DenialList{{denial(40, true), denial(41, false)}}))},
      {"denials.none", encode(ControlMessage(DenialList{}))},
      {"denials.signed", encode(ControlMessage(signed_denials()))},
      {"keyRing.signed", encode(ControlMessage(signed_ring()))},
      {"keyRing.rule", encode(ControlMessage(ring_with_rule()))},
      {"certificates", encode(ControlMessage(CertificateList{{certificate(60), certificate(61)}}))},
      {"deputies", encode(ControlMessage(deputies()))},
      {"invitationGrant.deputies", encode(ControlMessage(InvitationGrant{ring(), deputies()}))},
      {"invitationClaim.certificate", encode(ControlMessage(warranted_claim()))},
      {"keyRing", encode(ControlMessage(ring()))},
      {"keyRing.one", encode(ControlMessage(RingState{{{cluster_key(30), 0}}, {}}))},
      {"invitationClaim", encode(ControlMessage(claim()))},
      {"invitationGrant", encode(ControlMessage(InvitationGrant{ring()}))},
      {"bulkPart.first", part(true)},
      {"bulkPart.next", part(false)},
      {"bulkAck", encode(ControlMessage(BulkAck{0x0123456789abcdef}))},
      {"bulkAck.none", encode(ControlMessage(BulkAck{}))},
      {"pullReply.bad", encode(Message(PullReply{.job = {1, 2}, .reason = RefuseReason::bad_request}))},
      {"exchangeReply.layout", refusal(ReplyStatus::refused, RefuseReason::layout_differs)}};
}

Frames encoded(const Packet& packet) {
  return std::visit([](const auto& message) { return encode(message); }, packet);
}
bool same(const Frames& a, const Frames& b) {
  if (a.payload_count != b.payload_count || !std::ranges::equal(a.header.data, b.header.data)) return false;
  for (std::size_t i = 0; i < a.payload_count; ++i) {
    if (!std::ranges::equal(a.payload[i].data, b.payload[i].data)) return false;
  }
  return true;
}

// --- files --------------------------------------------------------------------------------------------------------

std::string hexadecimal(const Bytes& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  if (bytes.data.empty()) return "-";
  std::string text;
  for (const std::byte byte : bytes.data) {
    text += digits[std::to_integer<unsigned>(byte) >> 4];
    text += digits[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}
Bytes bytes_of(const std::string& text) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; text != "-" && i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return Bytes::adopt(std::move(bytes));
}

std::map<std::string, Frames> read_recording(const std::string& name) {
  std::ifstream file(std::string(GOSSAMER_RECORDED_DIR "/") + name);
  std::map<std::string, Frames> recording;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    std::string text;
    Frames frames;
    words >> kind >> text;
    frames.header = bytes_of(text);
    while (words >> text)
      frames.payload.at(frames.payload_count++) = bytes_of(text);
    recording[kind] = frames;
  }
  return recording;
}

// --- a newer peer -------------------------------------------------------------------------------------------------

void grow(capnp::AnyStruct::Reader from, capnp::AnyPointer::Builder to, int levels);

/// Makes `to` a struct like `from` with another word of data and another pointer. The structs that it points to grow
/// likewise.
void grow(capnp::AnyStruct::Reader from, capnp::AnyPointer::Builder to, int levels) {
  const auto data = from.getDataSection();
  const auto pointers = from.getPointerSection();
  auto grown = to.initAsAnyStruct(static_cast<std::uint16_t>(data.size() / 8 + 1),
                                  static_cast<std::uint16_t>(pointers.size() + 1));
  std::memset(grown.getDataSection().begin(), 0xaa, grown.getDataSection().size());
  std::memcpy(grown.getDataSection().begin(), data.begin(), data.size());
  for (unsigned i = 0; i < pointers.size(); ++i) {
    if (pointers[i].isStruct() && levels > 0) {
      grow(pointers[i].getAs<capnp::AnyStruct>(), grown.getPointerSection()[i], levels - 1);
    } else {
      grown.getPointerSection()[i].set(pointers[i]);
    }
  }
  grown.getPointerSection()[static_cast<unsigned>(pointers.size())].setAs<capnp::Text>("what only newer nodes know");
}

Frames from_a_newer_node(const Frames& frames) {
  std::vector<capnp::word> words(frames.header.size() / sizeof(capnp::word));
  std::memcpy(static_cast<void*>(words.data()), frames.header.data.data(), frames.header.size());
  capnp::FlatArrayMessageReader reader(kj::arrayPtr(words.data(), words.size()));
  capnp::MallocMessageBuilder builder;
  grow(reader.getRoot<capnp::AnyStruct>(), builder.getRoot<capnp::AnyPointer>(), 3);
  const auto grown = capnp::messageToFlatArray(builder);
  Frames newer = frames;
  newer.header = Bytes::adopt(std::vector<std::uint8_t>(grown.asBytes().begin(), grown.asBytes().end()));
  return newer;
}

}  // namespace

TEST_CASE("what earlier builds sent is read to the same values") {
  const auto expected = samples();
  CHECK(files.back().messages == expected.size());
  for (const Recording& file : files) {
    INFO(file.name);
    const auto recording = read_recording(file.name);
    CHECK(recording.size() == file.messages);
    for (const auto& [name, frames] : recording) {
      INFO(name);
      REQUIRE(expected.contains(name));
      const auto packet = decode(frames);
      REQUIRE(packet);
      CHECK(same(encoded(*packet), expected.at(name)));
    }
  }
}

TEST_CASE("the comparison with what was recorded tells messages apart") {
  auto recording = read_recording(files.front().name);
  const auto expected = samples();
  Frames& changed = recording.at("exchangeAck");
  std::vector<std::uint8_t> header;
  for (const std::byte byte : changed.header.data)
    header.push_back(std::to_integer<std::uint8_t>(byte));
  header.back() ^= 1;  // changes a bit of the counter
  changed.header = Bytes::adopt(std::move(header));
  const auto packet = decode(changed);
  REQUIRE(packet);
  CHECK_FALSE(same(encoded(*packet), expected.at("exchangeAck")));
}

TEST_CASE("fields that only newer nodes know are passed over") {
  for (const auto& [name, frames] : samples()) {
    INFO(name);
    const Frames newer = from_a_newer_node(frames);
    REQUIRE(newer.header.size() > frames.header.size() + 32);
    const auto packet = decode(newer);
    REQUIRE(packet);
    CHECK(same(encoded(*packet), frames));
  }
}

TEST_CASE("a kind that only newer nodes know is unknown, not malformed, whatever comes with it") {
  for (const auto& [name, frames] : samples()) {
    INFO(name);
    Frames newer = frames;
    std::vector<std::uint8_t> header;
    for (const std::byte byte : frames.header.data)
      header.push_back(std::to_integer<std::uint8_t>(byte));
    // The union's tag: the first 16 bits after the segment table and the root pointer.
    header.at(16) = 0xe7;
    header.at(17) = 0x03;
    newer.header = Bytes::adopt(std::move(header));
    const auto packet = decode(newer);
    REQUIRE_FALSE(packet);
    CHECK(packet.error().kind == DecodeError::Kind::unknown);
  }
}

TEST_CASE("write down what this build sends", "[.]") {
  const char* path = std::getenv("GOSSAMER_RECORD");
  REQUIRE(path != nullptr);
  std::ofstream file(path, std::ios::out | std::ios::trunc);
  for (const auto& [name, frames] : samples()) {
    file << name << ' ' << hexadecimal(frames.header);
    for (std::size_t i = 0; i < frames.payload_count; ++i)
      file << ' ' << hexadecimal(frames.payload[i]);
    file << '\n';
  }
  REQUIRE(file.flush());
}
