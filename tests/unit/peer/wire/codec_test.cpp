// Tests frames and back: every message survives, every wrong one is refused, and random damage never gives an invalid
// message.

#include "peer/wire/codec.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "catch.hpp"
#include "gossip/plain_text.hpp"
#include "gossip/random.hpp"
#include "gossip/replica/job_clock.hpp"
#include "peer/wire/capnp.hpp"
#include "peer/wire/validate.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

Bytes bytes(std::vector<std::uint8_t> values) {
  return Bytes::adopt(std::move(values));
}
Bytes filled(std::size_t size, int value) {
  return bytes(std::vector<std::uint8_t>(size, static_cast<std::uint8_t>(value)));
}

constexpr TracerValues tracer_of_test{.round = 6, .values = {0.25, -1e-12, 0, max_tracer_value}};

ExchangeRequest a_request(Codec codec = Codec::q8, std::uint32_t blocks = 3) {
  ExchangeRequest request;
  request.counter = 0x0123456789abcdef;
  request.job = {11, 12};
  request.fragment = 5;
  request.codec = codec;
  request.seed = 99;
  request.tracer = tracer_of_test;
  request.min_shift = 2;
  request.clock = 1000;
  request.age = {3, 4};
  request.clip = 0.375F;
  request.weight = 48;
  request.usual = 0.75F;
  request.block_count = blocks;
  std::vector<std::uint8_t> bitmap(bitmap_bytes(2 * blocks));
  for (std::uint32_t i = 0; i < blocks; ++i)
    bitmap[2 * i / 8] |= static_cast<std::uint8_t>(1 << 2 * i % 8);
  request.blocks = bytes(bitmap);
  request.side = filled(side_bytes(codec, blocks), 0);
  request.values = filled(blocks * codec_block_bytes(codec), 0x5a);
  return request;
}
ExchangeReply a_reply(Codec codec = Codec::q4, std::uint32_t blocks = 3) {
  ExchangeReply reply;
  reply.counter = 7;
  reply.job = {11, 12};
  reply.fragment = 5;
  reply.status = ReplyStatus::done;
  reply.codec = codec;
  reply.shift = 3;
  reply.clock = 1000;
  reply.age = {3, 4};
  reply.tracer = tracer_of_test;
  reply.block_count = blocks;
  if (codec != Codec::f32) {
    reply.wide = filled(bitmap_bytes(blocks), 1);
    reply.asked = filled(blocks, 0xf0);  // −16
  }
  reply.differences = filled(blocks * codec_block_bytes(codec), 0xa5);
  return reply;
}
JobInfo a_job() {
  return {{1, 2}, "digits-é", ReplicaState::running, 9, 1000, 4, 256};
}
PullReply a_pull() {
  PullReply reply;
  reply.job = {1, 2};
  reply.fragment = 3;
  reply.clock = 4;
  reply.hash = 5;
  reply.values = filled(2048, 7);
  return reply;
}
Hello hello_of_test() {
  Hello hello;
  hello.version_low = 1;
  hello.version_high = 3;
  hello.public_key.fill(1);
  hello.incarnation = 2;
  hello.nonce.fill(3);
  hello.link = 4;
  hello.channel = Channel::bulk;
  hello.address = "tcp://10.0.0.1:7946";
  hello.name = "näme";
  hello.proof.fill(5);
  return hello;
}
Welcome welcome_of_test() {
  Welcome welcome;
  welcome.version = 1;
  welcome.public_key.fill(6);
  welcome.incarnation = 7;
  welcome.address = "tcp://[::1]:1";
  welcome.name = "b";
  welcome.proof.fill(8);
  return welcome;
}

DenialList denials_of_test() {
  return {{{NodeId{{1}}, true, 77, "stolen"}, {NodeId{{2}}, false, -1, ""}}};
}
RingState ring_of_test() {
  RingState ring;
  for (std::uint8_t i = 1; i <= max_cluster_keys; ++i) {
    ring.keys.push_back({});
    ring.keys.back().key.key.writable()[0] = i;
    ring.keys.back().made_at = i;
  }
  ring.retired.resize(max_retired_keys, {{7}, 9});
  return ring;
}
DeputyList deputies_of_test() {
  DeputyList deputies;
  deputies.authority.emplace().fill(9);
  for (std::uint8_t i = 0; i < max_deputies; ++i) {
    Deputy& deputy = deputies.records.emplace_back();
    deputy.key.fill(i);
    deputy.powers = i;
    deputy.decided_at = i;
    deputy.name.assign(max_name_bytes, 'n');
    deputy.signature.fill(i);
  }
  return deputies;
}
InvitationClaim claim_of_test() {
  InvitationClaim claim;
  claim.invitation.fill(1);
  claim.expires_at = 2;
  claim.public_key.fill(3);
  claim.nonce.fill(4);
  claim.proof.fill(5);
  return claim;
}

bool same(const Bytes& a, const Bytes& b) {
  return std::ranges::equal(a.data, b.data);
}
bool same(const Frames& a, const Frames& b) {
  if (a.payload_count != b.payload_count || !same(a.header, b.header)) return false;
  for (std::size_t i = 0; i < a.payload_count; ++i) {
    if (!same(a.payload[i], b.payload[i])) return false;
  }
  return true;
}

/// The largest allowed message.
Summaries fullest_summaries() {
  NodeSummary node{.incarnation = 1, .number = 2, .age_ms = max_summary_age_ms, .neighbours = 3, .goodput_bytes_s = 4};
  node.name = std::string(max_summary_name_bytes, 'n');
  const JobSummary job{std::string(max_job_name_bytes, 'j'), ReplicaState::running, 5, 0.5F, 6, 7.5F};
  node.jobs.assign(max_summary_jobs, job);
  node.linked.assign(max_summary_links, 8);
  return {std::vector(max_summaries, node)};
}

std::vector<Message> all_messages() {
  ExchangeRequest whole = a_request(Codec::q4, 4);
  whole.blocks = {};
  ExchangeReply narrow = a_reply(Codec::q8, 8);
  narrow.wide = {};
  narrow.asked = {};
  ExchangeReply busy;
  busy.counter = 3;
  ExchangeReply refused;
  refused.status = ReplyStatus::refused;
  refused.reason = RefuseReason::expired;
  PullReply nothing;
  nothing.reason = RefuseReason::unknown_job;
  return {a_request(Codec::q8),
          a_request(Codec::q4, 1),
          a_request(Codec::f32, 2),
          whole,
          a_reply(Codec::q8),
          a_reply(Codec::q4, 16),
          a_reply(Codec::f32),
          narrow,
          busy,
          refused,
          ExchangeAck{42},
          ExchangeAck{42, Outcome::never},
          ExchangeInquiry{42, {1, 2}, 3},
          a_job(),
          JobInfo{},
          JobQuery{{1, 2}},
          LayoutQuery{{1, 2}, 64},
          LayoutReply{{1, 2}, 1024, 3, 1, {{"weights", 0, 0, {3, 4}}, {"count", 7, 2, {}}}},
          LayoutReply{.job = {1, 2}},
          fullest_summaries(),
          Summaries{},
          PullRequest{{1, 2}, 3},
          a_pull(),
          nothing};
}
std::vector<ControlMessage> all_control() {
  return {hello_of_test(),
          welcome_of_test(),
          Rejected{RejectReason::denied, "no"},
          Heartbeat{123, 4},
          HeartbeatEcho{-5},
          Goodbye{"bye"},
          denials_of_test(),
          ring_of_test(),
          claim_of_test(),
          InvitationGrant{ring_of_test(), deputies_of_test()},
          deputies_of_test()};
}

}  // namespace

TEST_CASE("the longest hello is no longer than a member reads") {
  Hello hello = hello_of_test();
  hello.address = "tcp://" + std::string(253, 'a') + ":26746";
  hello.name.assign(max_name_bytes, 'n');
  Certificate& certificate = hello.certificate.emplace();
  certificate.warrant.rights.jobs.assign(max_jobs_text_bytes, 'j');
  hello.deputies = deputies_of_test();
  hello.deputies.records.resize(max_deputies_in_hello);
  CHECK(encode(ControlMessage(hello)).header.data.size() <= max_hello_bytes);
}

TEST_CASE("every message comes back as it was") {
  for (const Message& message : all_messages()) {
    INFO(message.index());
    const Frames frames = encode(message);
    const auto packet = decode(frames);
    REQUIRE(packet);
    const Message& back = std::get<Message>(*packet);
    CHECK(back.index() == message.index());
    CHECK(same(encode(back), frames));
  }
  for (const ControlMessage& message : all_control()) {
    INFO(message.index());
    const Frames frames = encode(message);
    const auto packet = decode(frames);
    REQUIRE(packet);
    const ControlMessage& back = std::get<ControlMessage>(*packet);
    CHECK(back.index() == message.index());
    CHECK(same(encode(back), frames));
  }
}

TEST_CASE("payload is shared, not copied") {
  const PullReply sent = a_pull();
  const auto packet = decode(encode(Message(sent)));
  CHECK(std::get<PullReply>(std::get<Message>(*packet)).values.data.data() == sent.values.data.data());
}

TEST_CASE("every field of the messages with most fields comes back") {
  const ExchangeRequest sent = a_request();
  const auto packet = decode(encode(Message(sent)));
  const auto& request = std::get<ExchangeRequest>(std::get<Message>(*packet));
  CHECK(request.counter == sent.counter);
  CHECK(request.job == sent.job);
  CHECK(request.fragment == sent.fragment);
  CHECK(request.codec == sent.codec);
  CHECK(request.seed == sent.seed);
  CHECK(request.min_shift == sent.min_shift);
  CHECK(request.tracer == tracer_of_test);
  CHECK(request.clip == sent.clip);
  CHECK(request.weight == sent.weight);
  CHECK(request.usual == sent.usual);
  CHECK(request.clock == sent.clock);
  CHECK((request.age.samples == 3 && request.age.cadence == 4));
  CHECK(request.block_count == sent.block_count);
  CHECK((same(request.blocks, sent.blocks) && same(request.side, sent.side) && same(request.values, sent.values)));

  const ExchangeReply answered = a_reply();
  const auto reply_packet = decode(encode(Message(answered)));
  const auto& reply = std::get<ExchangeReply>(std::get<Message>(*reply_packet));
  CHECK((reply.counter == 7 && reply.job == answered.job && reply.fragment == 5 && reply.clock == 1000));
  CHECK((reply.status == answered.status && reply.reason == answered.reason && reply.codec == answered.codec));
  CHECK((reply.shift == 3 && reply.age.samples == 3 && reply.age.cadence == 4 && reply.block_count == 3));
  CHECK((same(reply.wide, answered.wide) && same(reply.asked, answered.asked)));
  CHECK(same(reply.differences, answered.differences));
  CHECK(reply.tracer == tracer_of_test);
  CHECK_FALSE(reply.limited);
  ExchangeReply limited = a_reply(Codec::f32);
  limited.limited = true;
  CHECK(std::get<ExchangeReply>(std::get<Message>(*decode(encode(Message(limited))))).limited);

  const auto job_packet = decode(encode(Message(a_job())));
  const auto& job = std::get<JobInfo>(std::get<Message>(*job_packet));
  CHECK((job.job == JobKey{1, 2} && job.name == "digits-é" && job.state == ReplicaState::running && job.clock == 9));
  CHECK((job.elements == 1000 && job.fragments == 4 && job.fragment_elements == 256));
  JobInfo finishing = a_job();
  finishing.finishing = Finishing::settled;
  finishing.first_exchange = 77;
  finishing.quarantined = true;
  finishing.keeps = true;
  const auto finishing_packet = decode(encode(Message(finishing)));
  CHECK(std::get<JobInfo>(std::get<Message>(*finishing_packet)).finishing == Finishing::settled);
  CHECK(std::get<JobInfo>(std::get<Message>(*finishing_packet)).first_exchange == 77);
  CHECK(std::get<JobInfo>(std::get<Message>(*finishing_packet)).quarantined);
  CHECK(std::get<JobInfo>(std::get<Message>(*finishing_packet)).keeps);

  JobInfo logging = a_job();
  logging.logged = {{"loss", 0.25}, {"accuracy", -1e300}};
  const auto logging_packet = decode(encode(Message(logging)));
  const auto& logged = std::get<JobInfo>(std::get<Message>(*logging_packet)).logged;
  REQUIRE(logged.size() == 2);
  CHECK(logged[1].name == "accuracy");
  CHECK(logged[1].value == -1e300);
  logging.logged.assign(max_logged + 1, {"loss", 0});
  CHECK_FALSE(decode(encode(Message(logging))));
  for (const std::string& name : {std::string(), std::string(max_logged_name_bytes + 1, 'a'), std::string("a\nb")}) {
    logging.logged = {{name, 0}};
    CHECK(fault_of(Message(logging)));
  }
  JobInfo set = a_job();
  set.settings = {7, NodeId{{1, 2, 3}}, {{"codec", "q4"}, {"later", "größer"}}};
  const auto set_packet = decode(encode(Message(set)));
  CHECK(std::get<JobInfo>(std::get<Message>(*set_packet)).settings == set.settings);
  CHECK(job.settings == JobSettings{});

  PullReply pull = a_pull();
  pull.cursor = {std::byte{1}, std::byte{0}, std::byte{255}};
  const auto pull_packet = decode(encode(Message(pull)));
  CHECK(std::get<PullReply>(std::get<Message>(*pull_packet)).cursor == pull.cursor);

  const auto hello_packet = decode(encode(ControlMessage(hello_of_test())));
  const auto& hello = std::get<Hello>(std::get<ControlMessage>(*hello_packet));
  CHECK((hello.version_low == 1 && hello.version_high == 3 && hello.incarnation == 2 && hello.link == 4));
  CHECK((hello.public_key[31] == 1 && hello.nonce[31] == 3 && hello.proof[31] == 5 && hello.channel == Channel::bulk));
  CHECK((hello.address == "tcp://10.0.0.1:7946" && hello.name == "näme"));
}

TEST_CASE("requests against the rules are refused") {
  const auto faulty = [](auto change) {
    ExchangeRequest request = a_request();
    change(request);
    return fault_of(Message(request)).has_value();
  };
  CHECK_FALSE(faulty([](auto&) {}));
  CHECK(faulty([](auto& r) { r.codec = static_cast<Codec>(3); }));
  CHECK(faulty([](auto& r) { r.fragment = max_fragments; }));
  CHECK(faulty([](auto& r) { r.min_shift = 0; }));
  CHECK_FALSE(faulty([](auto& r) { r.tracer.reset(); }));
  CHECK(faulty([](auto& r) { r.tracer->round = 0; }));
  CHECK(faulty([](auto& r) { r.tracer->values[1] = std::numeric_limits<double>::quiet_NaN(); }));
  CHECK(faulty([](auto& r) { r.tracer->values[3] = -1.1 * max_tracer_value; }));
  CHECK(faulty([](auto& r) { r.min_shift = max_shift_bound + 1; }));
  CHECK_FALSE(faulty([](auto& r) { r.clock = gossip::max_clock_samples; }));
  CHECK(faulty([](auto& r) { r.clock = gossip::max_clock_samples + 1; }));
  CHECK(faulty([](auto& r) { r.clip = -1; }));
  CHECK(faulty([](auto& r) { r.clip = std::numeric_limits<float>::infinity(); }));
  CHECK(faulty([](auto& r) { r.clip = std::numeric_limits<float>::quiet_NaN(); }));
  CHECK_FALSE(faulty([](auto& r) { r.clip = 0; }));
  CHECK(faulty([](auto& r) { r.weight = -1; }));
  CHECK(faulty([](auto& r) { r.weight = std::numeric_limits<float>::quiet_NaN(); }));
  CHECK(faulty([](auto& r) { r.weight = std::numeric_limits<float>::infinity(); }));
  CHECK(faulty([](auto& r) { r.usual = -1; }));
  CHECK(faulty([](auto& r) { r.usual = std::numeric_limits<float>::quiet_NaN(); }));
  CHECK(faulty([](auto& r) { r.usual = std::numeric_limits<float>::infinity(); }));
  CHECK(faulty([](auto& r) { r.block_count = 0; }));
  CHECK(faulty([](auto& r) { r.block_count = 4; }));
  CHECK(faulty([](auto& r) { r.block_count = max_fragment_blocks + 1; }));
  CHECK(faulty([](auto& r) { r.blocks = filled(1, 0xff); }));
  CHECK(faulty([](auto& r) { r.blocks = filled(bitmap_bytes(max_fragment_blocks) + 1, 0); }));
  CHECK(faulty([](auto& r) { r.side = filled(side_bytes(Codec::q8, 3) + 1, 0); }));
  CHECK(faulty([](auto& r) { r.side = {}; }));
  CHECK(faulty([](auto& r) { r.values = filled(3 * 256 - 1, 0); }));
  CHECK(faulty([](auto& r) { r.side = bytes({101, 0, 0, 0, 0, 0, 0, 0, 0, 0}); }));
  CHECK(faulty([](auto& r) { r.side = bytes({0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0}); }));
  CHECK(faulty([](auto& r) { r.side = bytes({0, 0, 0, 1, 0, 0, 0, 0, 0, 0}); }));  // the pad byte
  CHECK_FALSE(faulty([](auto& r) { r.side = bytes({100, 0x9c, 0, 0, 255, 255, 1, 2, 3, 4}); }));
}

TEST_CASE("a tracer of another size is passed over") {
  const Frames sent = encode(Message(a_request()));
  std::vector<capnp::word> words(sent.header.size() / sizeof(capnp::word));
  std::memcpy(static_cast<void*>(words.data()), sent.header.data.data(), sent.header.size());
  capnp::FlatArrayMessageReader reader(kj::arrayPtr(words.data(), words.size()));
  capnp::MallocMessageBuilder builder;
  builder.setRoot(reader.getRoot<wire::Header>());
  builder.getRoot<wire::Header>().getExchangeRequest().initTracer(tracer_values + 1);
  const auto changed = capnp::messageToFlatArray(builder);
  Frames newer = sent;
  newer.header = Bytes::adopt(std::vector<std::uint8_t>(changed.asBytes().begin(), changed.asBytes().end()));
  const auto packet = decode(newer);
  REQUIRE(packet);
  CHECK_FALSE(std::get<ExchangeRequest>(std::get<Message>(*packet)).tracer);
}

TEST_CASE("replies against the rules are refused") {
  const auto faulty = [](auto change) {
    ExchangeReply reply = a_reply();
    change(reply);
    return fault_of(Message(reply)).has_value();
  };
  CHECK_FALSE(faulty([](auto&) {}));
  CHECK_FALSE(faulty([](auto& r) { r.tracer.reset(); }));
  CHECK(faulty([](auto& r) { r.tracer->values[0] = std::numeric_limits<double>::infinity(); }));
  CHECK(faulty([](auto& r) { r.status = static_cast<ReplyStatus>(3); }));
  CHECK(faulty([](auto& r) { r.reason = static_cast<RefuseReason>(max_refuse_reason + 1); }));
  CHECK(faulty([](auto& r) { r.reason = RefuseReason::expired; }));
  CHECK(faulty([](auto& r) { r.shift = 0; }));
  CHECK(faulty([](auto& r) { r.shift = 13; }));
  CHECK(faulty([](auto& r) { r.clock = gossip::max_clock_samples + 1; }));
  CHECK(faulty([](auto& r) { r.block_count = 2; }));
  CHECK(faulty([](auto& r) { r.wide = filled(1, 8); }));
  CHECK(faulty([](auto& r) { r.wide = filled(2, 0); }));
  CHECK(faulty([](auto& r) { r.wide = {}; }));
  CHECK(faulty([](auto& r) { r.asked = filled(2, 0); }));
  CHECK(faulty([](auto& r) { r.asked = filled(3, 120); }));
  CHECK(faulty([](auto& r) { r.differences = {}; }));
  CHECK(faulty([](auto& r) { r.status = ReplyStatus::busy; }));
  CHECK(faulty([](auto& r) { r.codec = Codec::f32; }));
  CHECK(faulty([](auto& r) { r.limited = true; }));
  ExchangeReply limited = a_reply(Codec::f32);
  limited.limited = true;
  CHECK_FALSE(fault_of(Message(limited)));
  limited.halvings = filled(limited.block_count, 9);
  CHECK_FALSE(fault_of(Message(limited)));
  CHECK(std::get<ExchangeReply>(std::get<Message>(*decode(encode(Message(limited))))).halvings.size() ==
        limited.block_count);
  limited.limited = false;
  CHECK(fault_of(Message(limited)));
  limited.limited = true;
  limited.halvings = filled(limited.block_count + 1, 9);
  CHECK(fault_of(Message(limited)));
  ExchangeReply refused;
  refused.status = ReplyStatus::refused;
  CHECK(fault_of(Message(refused)));
  refused.reason = RefuseReason::draining;
  CHECK_FALSE(fault_of(Message(refused)));
  refused.limited = true;
  CHECK(fault_of(Message(refused)));
}

TEST_CASE("the other messages against the rules are refused") {
  const auto job_faulty = [](auto change) {
    JobInfo job = a_job();
    change(job);
    return fault_of(Message(job)).has_value();
  };
  CHECK_FALSE(job_faulty([](auto&) {}));
  CHECK(job_faulty([](auto& j) { j.name = std::string(64, 'x'); }));
  CHECK(job_faulty([](auto& j) { j.name = "a\nb"; }));
  CHECK(job_faulty([](auto& j) { j.name = "\xff"; }));
  CHECK(job_faulty([](auto& j) { j.state = static_cast<ReplicaState>(4); }));
  CHECK(job_faulty([](auto& j) { j.fragment_elements = 0; }));
  CHECK(job_faulty([](auto& j) { j.fragment_elements = 257; }));
  CHECK(job_faulty([](auto& j) { j.fragment_elements = 2 * max_fragment_elements; }));
  CHECK(job_faulty([](auto& j) { j.fragments = 3; }));
  CHECK(job_faulty([](auto& j) { j.elements = std::uint64_t{1} << 60; }));
  CHECK_FALSE(job_faulty([](auto& j) { j.clock = gossip::max_clock_samples; }));
  CHECK(job_faulty([](auto& j) { j.clock = gossip::max_clock_samples + 1; }));
  const auto settings_faulty = [&](std::uint64_t version, std::vector<JobSetting> values) {
    return job_faulty([&](auto& j) { j.settings = {version, {}, values}; });
  };
  CHECK_FALSE(settings_faulty(max_settings_version, {}));
  CHECK_FALSE(settings_faulty(1, {{std::string(31, 'a'), std::string(63, 'v')}, {"b_2", "-1.5"}}));
  CHECK(settings_faulty(max_settings_version + 1, {}));
  CHECK(settings_faulty(1, {{"", "v"}}));
  CHECK(settings_faulty(1, {{std::string(32, 'a'), "v"}}));
  CHECK(settings_faulty(1, {{"Codec", "v"}}));
  CHECK(settings_faulty(1, {{"a=b", "v"}}));
  CHECK(settings_faulty(1, {{"a", ""}}));
  CHECK(settings_faulty(1, {{"a", std::string(64, 'v')}}));
  CHECK(settings_faulty(1, {{"a", "v\nb=w"}}));
  CHECK(settings_faulty(1, {{"b", "v"}, {"a", "v"}}));
  CHECK(settings_faulty(1, {{"a", "v"}, {"a", "w"}}));
  std::vector<JobSetting> many;
  for (char c = 'a'; many.size() <= max_job_settings; c == 'z' ? c = 'a' : ++c)
    many.push_back({std::string(1 + many.size() / 26, 'z') + c, "v"});
  CHECK(settings_faulty(1, many));
  many.pop_back();
  CHECK_FALSE(settings_faulty(1, many));
  CHECK(job_faulty([](auto& j) { j.clock = std::numeric_limits<std::uint64_t>::max(); }));
  CHECK(fault_of(Message(PullRequest{{}, max_fragments})));
  PullReply pull = a_pull();
  pull.clock = gossip::max_clock_samples + 1;
  CHECK(fault_of(Message(pull)));
  pull = a_pull();
  pull.values = filled(1000, 0);
  CHECK(fault_of(Message(pull)));
  pull = a_pull();
  pull.reason = RefuseReason::draining;
  CHECK(fault_of(Message(pull)));
  pull = a_pull();
  pull.cursor.resize(max_cursor_bytes);
  CHECK_FALSE(fault_of(Message(pull)));
  pull.cursor.resize(max_cursor_bytes + 1);
  CHECK(fault_of(Message(pull)));
  pull = {.job = {1, 2}, .reason = RefuseReason::draining, .cursor = std::vector<std::byte>(1)};
  CHECK(fault_of(Message(pull)));
  CHECK(job_faulty([](auto& j) { j.finishing = static_cast<Finishing>(4); }));
  Welcome welcome = welcome_of_test();
  welcome.address = "nowhere";
  CHECK(fault_of(ControlMessage(welcome)));
  Hello hello = hello_of_test();
  hello.version_low = 4;
  CHECK(fault_of(ControlMessage(hello)));
  CHECK(fault_of(ControlMessage(Goodbye{std::string(256, 'x')})));
  CHECK(fault_of(ControlMessage(Rejected{RejectReason::full, "\x1b[2J"})));
}

TEST_CASE("text that is fit for a terminal") {
  CHECK(is_plain_text("", 0));
  CHECK(is_plain_text("aé€😀", 100));
  CHECK_FALSE(is_plain_text("abc", 2));
  for (const char* bad : {"\x01", "\x7f", "\x80", "\xc2", "\xc2\x9b", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                          "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xe2\x82"}) {
    CHECK_FALSE(is_plain_text(bad, 100));
  }
  CHECK_FALSE(is_plain_text(std::string_view("\0", 1), 100));
  for (const char* unseen :
       {"\u00ad", "\u061c", "a\u200bb", "\u200e", "\u200f", "\u2028", "\u202e", "\u2060", "\u2066", "\u206f", "\ufeff",
        "\ufff9", "\uffff", "\U00013430", "\U0001bca0", "\U0001d173", "\U000e0001"}) {
    CHECK_FALSE(is_plain_text(unseen, 100));
  }
  for (const char* seen :
       {"\u200a", "\u2010", "\u2030", "\u205f", "\u2070", "\u061b", "\u00ac", "\ufffd", "\U0001f600"})
    CHECK(is_plain_text(seen, 100));
}

TEST_CASE("a wrong number of frames, or wrong sizes, are refused") {
  for (const Message& message : all_messages()) {
    const Frames sound = encode(message);
    Frames more = sound;
    if (more.payload_count < max_payload_frames) {
      more.payload[more.payload_count++] = filled(1, 0);
      CHECK_FALSE(decode(more));
    }
    if (sound.payload_count > 0) {
      Frames fewer = sound;
      fewer.payload_count -= 1;
      CHECK_FALSE(decode(fewer));
    }
    for (std::size_t i = 0; i < sound.payload_count; ++i) {
      Frames longer = sound;
      longer.payload[i] = filled(sound.payload[i].size() + 1, 0);
      CHECK_FALSE(decode(longer));
    }
  }
  Frames empty;
  CHECK_FALSE(decode(empty));
  empty.header = filled(max_header_bytes + 8, 0);
  CHECK_FALSE(decode(empty));
  Frames huge = encode(Message(a_pull()));
  huge.payload[0] = filled(max_payload_frame_bytes + 1024, 0);
  CHECK_FALSE(decode(huge));
}

TEST_CASE("a header may lie at any address") {
  const Frames sound = encode(Message(a_job()));
  std::vector<std::byte> shifted(sound.header.size() + 8);
  for (std::size_t offset = 0; offset < 8; ++offset) {
    std::ranges::copy(sound.header.data, shifted.begin() + static_cast<long>(offset));
    Frames frames;
    frames.header = {nullptr, std::span<const std::byte>(shifted).subspan(offset, sound.header.size())};
    CHECK(decode(frames));
  }
}

TEST_CASE("a kind of message that only newer nodes know is told apart") {
  capnp::MallocMessageBuilder builder;
  builder.initRoot<wire::Header>().initExchangeAck();
  auto words = capnp::messageToFlatArray(builder);
  // The union's tag is the first 16 bits of the root struct's data: after the segment table and the root pointer.
  const std::uint16_t future = 999;
  std::memcpy(words.asBytes().begin() + 16, &future, sizeof future);
  Frames frames;
  const auto view = words.asBytes();
  frames.header = bytes({view.begin(), view.end()});
  const auto packet = decode(frames);
  REQUIRE_FALSE(packet);
  CHECK(packet.error().kind == DecodeError::Kind::unknown);
}

TEST_CASE("random damage never gives an invalid message") {
  gossip::Random random(20'240'607);
  std::vector<Frames> sound;
  for (const Message& message : all_messages())
    sound.push_back(encode(message));
  for (const ControlMessage& message : all_control())
    sound.push_back(encode(message));
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    Frames frames = sound[random.below(sound.size())];
    std::vector<std::uint8_t> header(frames.header.size());
    std::memcpy(header.data(), frames.header.data.data(), header.size());
    const std::uint64_t kind = random.below(4);
    if (kind == 0) header.resize(random.below(header.size() + 16));
    for (std::uint64_t flips = kind == 1 ? 0 : 1 + random.below(6); flips > 0 && !header.empty(); --flips) {
      header[random.below(header.size())] = static_cast<std::uint8_t>(random.next() >> (8 * random.below(8)));
    }
    frames.header = bytes(header);
    if (kind == 1) {
      const std::size_t which = random.below(max_payload_frames);
      frames.payload[which] = filled(random.below(4096), static_cast<int>(random.below(256)));
      frames.payload_count = random.below(max_payload_frames + 1);
    }
    const auto packet = decode(frames);
    if (!packet) {
      ++refused;
      continue;
    }
    ++accepted;
    // A message that is accepted is within its limits, and can be sent again.
    if (const auto* message = std::get_if<Message>(&*packet)) {
      REQUIRE_FALSE(fault_of(*message));
      REQUIRE(decode(encode(*message)));
    } else if (const auto* control = std::get_if<ControlMessage>(&*packet)) {
      REQUIRE_FALSE(fault_of(*control));
      REQUIRE(decode(encode(*control)));
    } else {
      REQUIRE(valid(std::get<MembershipMessage>(*packet)));
    }
  }
  // Both happen often, or the test would show nothing.
  CHECK(accepted > 3'000);
  CHECK(refused > 10'000);
}

TEST_CASE("noise is never a message") {
  gossip::Random random(5);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::uint8_t> header(8 * random.below(64));
    for (auto& byte : header)
      byte = static_cast<std::uint8_t>(random.next() & (round % 2 == 0 ? 0xff : 0x03));
    Frames frames;
    frames.header = bytes(header);
    const auto packet = decode(frames);
    if (packet && std::holds_alternative<Message>(*packet)) REQUIRE_FALSE(fault_of(std::get<Message>(*packet)));
  }
}

TEST_CASE("the channel of each message") {
  CHECK(channel_of(a_request()) == Channel::bulk);
  CHECK(channel_of(a_reply()) == Channel::bulk);
  CHECK(channel_of(PullRequest{}) == Channel::bulk);
  CHECK(channel_of(a_pull()) == Channel::bulk);
  CHECK(channel_of(ExchangeAck{}) == Channel::control);
  CHECK(channel_of(ExchangeInquiry{}) == Channel::control);
  CHECK(channel_of(JobInfo{}) == Channel::control);
  CHECK(channel_of(JobQuery{}) == Channel::control);
  CHECK(channel_of(Summaries{}) == Channel::control);
}

TEST_CASE("summaries out of bounds are refused") {
  const auto fault = [](auto change) {
    Summaries summaries = fullest_summaries();
    change(summaries);
    return fault_of(Message(summaries)).has_value();
  };
  CHECK_FALSE(fault([](Summaries&) {}));
  CHECK(encode(Message(fullest_summaries())).header.size() < 25'000);
  CHECK(fault([](Summaries& s) { s.nodes.emplace_back(); }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs.emplace_back(); }));
  CHECK(fault([](Summaries& s) { s.nodes[1].linked.emplace_back(); }));
  CHECK(fault([](Summaries& s) { s.nodes[1].name += 'n'; }));
  CHECK(fault([](Summaries& s) { s.nodes[1].name[3] = '\x1b'; }));
  CHECK(fault([](Summaries& s) { ++s.nodes[1].age_ms; }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs[2].name += 'j'; }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs[2].state = static_cast<ReplicaState>(4); }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs[2].consensus = -1; }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs[2].mixing_per_s = -1; }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs[2].mixing_per_s = std::numeric_limits<float>::infinity(); }));
  CHECK(fault([](Summaries& s) { s.nodes[1].jobs[2].consensus = std::numeric_limits<float>::quiet_NaN(); }));
}
