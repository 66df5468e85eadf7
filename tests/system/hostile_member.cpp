// A member that does not keep to the rules: holds the cluster's key, so it is let in, and then says what it likes. For
// the system tests (hostile_test.py), which run it against real daemons.
//
//     hostile_member KEY_FILE tcp://HOST:PORT ACT [VERSION_LOW VERSION_HIGH]
//
// It makes a node key each time, or keeps it in the folder that GOSSAMER_MEMBER_STATE names.
//
// ACT is what it says once it is linked (see acts()). `listen` takes the listener's part: it prints its address and
// turns everybody away, like a node that speaks other versions only. At the end it prints one line of JSON: `rejected`,
// the text with which it was turned away or put out; `version` of the welcome; `messages`, how many it sent in its act;
// `replies`, the answered exchanges by outcome.
//
// It has one thread, and calls ZeroMQ with time-outs. Messages are made by peer/'s own codec, so they follow the
// protocol. Where the codec would refuse, it sends bytes of its own.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <zmq.hpp>

#include "gossip/random.hpp"
#include "gossip/replica/job_clock.hpp"
#include "peer/address.hpp"
#include "peer/admission/admission.hpp"
#include "peer/limits.hpp"
#include "peer/wire/codec.hpp"

namespace {

using namespace gossamer;
using namespace gossamer::peer;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{10};
/// It listens this long for the consequences of its act.
constexpr std::chrono::milliseconds aftermath{1500};
constexpr std::chrono::milliseconds poll_step{20};
/// How often it sends a message that must take effect once.
constexpr int repetitions = 50;
/// How many rumours it sends: more than any node spreads in its life.
constexpr int lies = 300;
/// Members that there are not; more than a node has room for.
constexpr std::size_t inventions = 5'000;

std::uint64_t microseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

Bytes filled(std::size_t size, std::uint8_t value) {
  return Bytes::adopt(std::vector<std::uint8_t>(size, value));
}

std::string bytes_as_text(const Bytes& bytes) {
  std::string text(bytes.size(), '\0');
  if (!text.empty()) std::memcpy(text.data(), bytes.data.data(), bytes.size());
  return text;
}

/// A message on the wire: frames with any content.
using RawFrames = std::vector<std::string>;

RawFrames raw(const Frames& frames) {
  RawFrames all{bytes_as_text(frames.header)};
  for (std::size_t i = 0; i < frames.payload_count; ++i)
    all.push_back(bytes_as_text(frames.payload[i]));
  return all;
}

bool send(zmq::socket_t& socket, const RawFrames& frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    zmq::message_t part(frames[i]);
    const auto flags = i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
    if (!socket.send(part, flags)) return false;
  }
  return true;
}

std::optional<RawFrames> receive(zmq::socket_t& socket) {
  RawFrames frames;
  for (bool more = true; more;) {
    zmq::message_t part;
    if (!socket.recv(part, frames.empty() ? zmq::recv_flags::dontwait : zmq::recv_flags::none)) return std::nullopt;
    more = part.more();
    frames.push_back(part.to_string());
  }
  return frames;
}

std::optional<Packet> decoded(const RawFrames& frames) {
  if (frames.size() > 1 + max_payload_frames) return std::nullopt;
  const auto bytes = [](const std::string& text) {
    return Bytes::adopt(std::vector<std::uint8_t>(text.begin(), text.end()));
  };
  Frames whole;
  whole.header = bytes(frames.front());
  for (std::size_t i = 1; i < frames.size(); ++i)
    whole.payload[whole.payload_count++] = bytes(frames[i]);
  auto packet = decode(whole);
  return packet ? std::optional(std::move(*packet)) : std::nullopt;
}

/// The node key in the folder that GOSSAMER_MEMBER_STATE names, or a new one.
Identity own_identity() {
  const char* const folder = std::getenv("GOSSAMER_MEMBER_STATE");
  if (folder == nullptr) return Identity::generate();
  const auto kept = load_or_create_identity(folder);
  if (!kept) throw std::runtime_error(kept.error());
  return *kept;
}

class HostileMember {
 public:
  HostileMember(const ClusterKeys& keys, const Address& address, std::uint16_t version_low, std::uint16_t version_high)
      : keys_(keys), address_(address), version_low_(version_low), version_high_(version_high) {}

  /// Dials both connections. Returns false if it was refused.
  bool link() { return connect(Channel::control) && connect(Channel::bulk) && say(ControlMessage(Heartbeat{1})); }

  bool say(const ControlMessage& message) { return say(Channel::control, raw(encode(message))); }
  bool say(const Message& message) { return say(channel_of(message), raw(encode(message))); }
  bool say(MembershipBody body, std::vector<Rumour> rumours = {}) {
    MembershipMessage message;
    message.incarnation = incarnation_;
    message.rumours = std::move(rumours);
    message.body = std::move(body);
    return say(Channel::control, raw(encode(message)));
  }
  bool say(Channel channel, const RawFrames& frames) {
    ++messages_;
    return send(socket(channel), frames);
  }

  /// Makes itself a neighbour that only dials out, and waits until it hears of a job.
  bool introduce() {
    say(Sync{.sender = record(), .answer_wanted = true});
    return hear_until([this] { return job_.has_value(); }, patience);
  }

  /// Waits for the condition, and answers only messages that keep a link up.
  bool hear_until(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      zmq::pollitem_t items[] = {{control_.handle(), 0, ZMQ_POLLIN, 0}, {bulk_.handle(), 0, ZMQ_POLLIN, 0}};
      zmq::poll(items, 2, poll_step);
      for (const Channel channel : {Channel::control, Channel::bulk}) {
        while (auto frames = receive(socket(channel)))
          hear(channel, *frames);
      }
    }
    return true;
  }

  [[nodiscard]] MemberRecord record() const { return {identity_.node, incarnation_, true, {}}; }
  [[nodiscard]] const std::optional<JobInfo>& job() const { return job_; }
  [[nodiscard]] const std::map<NodeId, MemberRecord>& others() const { return others_; }
  [[nodiscard]] bool put_out() const { return !rejected_.empty(); }
  [[nodiscard]] nlohmann::json report() const {
    return {{"rejected", rejected_}, {"version", version_}, {"messages", messages_}, {"replies", replies_}};
  }

 private:
  zmq::socket_t& socket(Channel channel) { return channel == Channel::control ? control_ : bulk_; }

  bool connect(Channel channel) {
    zmq::socket_t& dealer = socket(channel);
    const auto buffer = [](std::span<const std::uint8_t, key_bytes> key) {
      return zmq::const_buffer(key.data(), key.size());
    };
    const KeyPair listener = keys_.first().listening_keys();
    dealer.set(zmq::sockopt::curve_serverkey, buffer(listener.public_key));
    dealer.set(zmq::sockopt::curve_publickey, buffer(identity_.keys.public_key));
    dealer.set(zmq::sockopt::curve_secretkey, buffer(identity_.keys.secret_key.bytes()));
    dealer.set(zmq::sockopt::linger, 500);
    dealer.set(zmq::sockopt::sndtimeo, 2000);
    dealer.set(zmq::sockopt::reconnect_ivl, -1);
    dealer.connect(address_.text());

    Hello hello;
    hello.version_low = version_low_;
    hello.version_high = version_high_;
    hello.public_key = identity_.keys.public_key;
    hello.incarnation = incarnation_;
    hello.nonce = random_nonce();
    hello.link = 1;
    hello.channel = channel;
    hello.name = "hostile";
    hello.features = ~std::uint64_t{0};  // all features that a later build may have
    hello.proof = hello_proof(keys_.first(), hello);
    send(dealer, raw(encode(ControlMessage(hello))));
    const int before = welcomes_;
    hear_until([&] { return put_out() || welcomes_ > before; }, patience);
    return welcomes_ > before;
  }

  void hear(Channel channel, const RawFrames& frames) {
    const auto packet = decoded(frames);
    if (!packet) return;
    if (const auto* control = std::get_if<ControlMessage>(&*packet)) {
      if (const auto* ping = std::get_if<Heartbeat>(control)) {
        send(socket(channel), raw(encode(ControlMessage(HeartbeatEcho{ping->sent_at}))));
        send(socket(channel), raw(encode(ControlMessage(Heartbeat{1}))));  // a link without heartbeats is ended
      }
      if (const auto* rejected = std::get_if<Rejected>(control)) rejected_ = rejected->text;
      if (const auto* welcome = std::get_if<Welcome>(control)) {
        version_ = welcome->version;
        ++welcomes_;
      }
    } else if (const auto* membership = std::get_if<MembershipMessage>(&*packet)) {
      hear(*membership);
    } else if (const auto* message = std::get_if<Message>(&*packet)) {
      if (const auto* info = std::get_if<JobInfo>(message)) job_ = *info;
      if (const auto* reply = std::get_if<ExchangeReply>(message)) count(*reply);
    }
  }

  void hear(const MembershipMessage& message) {
    if (const auto* ping = std::get_if<gossamer::Ping>(&message.body)) say(Ack{ping->sequence});
    const auto* sync = std::get_if<Sync>(&message.body);
    if (sync == nullptr) return;
    others_[sync->sender.node] = sync->sender;
    for (const SyncEntry& entry : sync->entries)
      others_[entry.record.node] = entry.record;
    others_.erase(identity_.node);
  }

  void count(const ExchangeReply& reply) {
    const char* outcome = reply.status == ReplyStatus::done ? "done" : reply.status == ReplyStatus::busy ? "busy" : "";
    ++replies_[*outcome == '\0' ? "refused " + std::to_string(static_cast<int>(reply.reason)) : outcome];
  }

  const ClusterKeys& keys_;
  Address address_;
  std::uint16_t version_low_;
  std::uint16_t version_high_;
  Identity identity_ = own_identity();
  std::uint64_t incarnation_ = microseconds_since_1970();
  zmq::context_t context_;
  zmq::socket_t control_{context_, zmq::socket_type::dealer};
  zmq::socket_t bulk_{context_, zmq::socket_type::dealer};
  int welcomes_ = 0;
  int version_ = 0;
  int messages_ = 0;
  std::string rejected_;
  std::optional<JobInfo> job_;
  std::map<NodeId, MemberRecord> others_;
  std::map<std::string, int> replies_;
};

// --- what it does ---------------------------------------------------------------------------------------------------

/// A request for a whole fragment with zero differences, so that commits do no harm.
ExchangeRequest request(const HostileMember& member, std::uint64_t counter) {
  const JobInfo& job = *member.job();
  const auto elements = static_cast<std::uint32_t>(std::min<std::uint64_t>(job.elements, job.fragment_elements));
  const std::uint32_t blocks = (elements + block_elements - 1) / block_elements;
  ExchangeRequest request{.counter = counter, .job = job.job, .codec = Codec::q8, .seed = 1, .block_count = blocks};
  request.side = filled(side_bytes(Codec::q8, blocks), 0);
  request.values = filled(blocks * codec_block_bytes(Codec::q8), 0);
  return request;
}

/// One message of every kind that a member may send.
std::vector<Frames> specimens(const HostileMember& member) {
  const JobKey key = member.job()->job;
  MembershipMessage membership;
  membership.incarnation = 1;
  membership.body = Sync{.sender = member.record()};
  return {encode(ControlMessage(Heartbeat{1})), encode(ControlMessage(BulkAck{})),
          encode(ControlMessage(DenialList{})), encode(membership),
          encode(Message(request(member, 1))),  encode(Message(ExchangeAck{1})),
          encode(Message(*member.job())),       encode(Message(JobQuery{key})),
          encode(Message(PullRequest{key, 0}))};
}

void random_bytes(HostileMember& member) {
  gossip::Random random(1);
  for (int i = 0; i < 2 * static_cast<int>(max_malformed_messages) && !member.put_out(); ++i) {
    std::string noise(1 + random.below(500), '\0');
    for (char& byte : noise)
      byte = static_cast<char>(random.below(256));
    member.say(i % 2 == 0 ? Channel::control : Channel::bulk, {noise, noise});
  }
}

/// Sends each kind of message cut short, until it is excluded.
void truncated(HostileMember& member) {
  for (const Frames& whole : specimens(member)) {
    RawFrames frames = raw(whole);
    frames.front().resize(frames.front().size() / 2);
    member.say(Channel::control, frames);
    frames = raw(whole);
    if (frames.size() == 1) frames.emplace_back("and more");  // a frame that does not belong to it
    frames.back().resize(frames.back().size() / 2);
    member.say(Channel::bulk, frames);
  }
}

void too_large(HostileMember& member) {
  member.say(Channel::control, {std::string(max_header_bytes + 8, 'x')});
  member.say(Channel::control, RawFrames(200, "frame"));
  member.say(Channel::bulk, {std::string(8, '\0'), std::string(max_payload_frame_bytes, 'x')});
  // ZeroMQ itself hangs up on larger messages.
  member.say(Channel::bulk, {std::string(max_wire_frame_bytes + 1, 'x')});
}

void for_other_jobs(HostileMember& member) {
  std::uint64_t counter = 1;
  for (int i = 0; i < repetitions; ++i) {
    ExchangeRequest other_job = request(member, counter++);
    other_job.job.name_hash ^= 1;
    member.say(Message(other_job));
    ExchangeRequest other_layout = request(member, counter++);
    other_layout.job.layout_hash ^= 1;
    member.say(Message(other_layout));
    ExchangeRequest beyond = request(member, counter++);
    beyond.fragment = max_fragments - 1;
    member.say(Message(beyond));
    member.say(Message(PullRequest{other_job.job, 0}));
    member.say(Message(PullRequest{member.job()->job, max_fragments - 1}));
    JobInfo info = *member.job();
    info.job.layout_hash ^= 1;
    info.elements += 1;
    member.say(Message(info));
  }
  member.hear_until([] { return false; }, aftermath);
}

/// Repeats one request. Also sends answers to questions that nobody asked, and echoes of impossible times.
void repeated(HostileMember& member) {
  const ExchangeRequest once = request(member, 1);
  JobInfo info = *member.job();  // no request is answered before this
  info.state = ReplicaState::draining;
  member.say(Message(info));
  for (int i = 0; i < repetitions; ++i) {
    member.say(Message(once));
    member.say(ControlMessage(HeartbeatEcho{std::numeric_limits<TimeUs>::min()}));
    member.say(Message(ExchangeReply{
        .counter = 1, .job = once.job, .status = ReplyStatus::refused, .reason = RefuseReason::draining}));
    member.say(Message(ExchangeAck{1'000'000 + static_cast<std::uint64_t>(i)}));
    member.say(Message(PullReply{.job = once.job, .reason = RefuseReason::draining}));
  }
  member.hear_until([] { return false; }, aftermath);
  member.say(Message(ExchangeAck{1}));
  member.say(Message(once));  // the answer is no longer kept, and the request must not be done again
}

/// Takes part as a replica whose model is 2 everywhere, and stays so.
void pulls(HostileMember& member, int times, std::chrono::milliseconds interval) {
  JobInfo info = *member.job();
  info.state = ReplicaState::running;
  member.say(Message(info));
  ExchangeRequest pull = request(member, 0);
  pull.codec = Codec::f32;
  pull.side = filled(side_bytes(Codec::f32, pull.block_count), 10);  // takes differences up to 2^10
  std::vector<std::uint8_t> values(pull.block_count * codec_block_bytes(Codec::f32));
  constexpr float two = 2;
  for (std::size_t at = 0; at < values.size(); at += sizeof two)
    std::memcpy(&values[at], &two, sizeof two);
  pull.values = Bytes::adopt(std::move(values));
  for (int i = 0; i < times && !member.put_out(); ++i) {
    pull.counter = microseconds_since_1970();
    member.say(Message(pull));
    member.hear_until([] { return false; }, interval);
    member.say(Message(ExchangeAck{pull.counter}));
  }
}

/// Says that all other nodes, in this life and in later ones, are dead or have left.
void lies_about_others(HostileMember& member) {
  for (int i = 0; i < lies; ++i) {
    std::vector<Rumour> rumours;
    for (const auto& [node, record] : member.others()) {
      if (rumours.size() == max_message_rumours) break;
      const Claim claim = i % 3 == 0 ? Claim::dead : i % 3 == 1 ? Claim::left : Claim::suspected;
      const std::uint64_t ahead = i % 2 == 0 ? 0 : std::uint64_t{1} << (i % 60);
      Rumour rumour{.claim = claim, .subject = {node, record.incarnation + ahead, false, {}}};
      if (claim == Claim::suspected) rumour.accuser = member.record().node;
      rumours.push_back(rumour);
    }
    member.say(News{}, std::move(rumours));
    member.hear_until([] { return false; }, std::chrono::milliseconds(5));
  }
}

/// Tells of members that there are not, at addresses where nobody listens: by every message that can name one.
void invents(HostileMember& member) {
  gossip::Random random(1);
  std::vector<MemberRecord> invented(inventions);
  for (std::size_t i = 0; i < invented.size(); ++i) {
    for (std::uint8_t& byte : invented[i].node.bytes)
      byte = static_cast<std::uint8_t>(random.below(256));
    invented[i].incarnation = microseconds_since_1970();
    invented[i].address = "tcp://127.77." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250) + ":9";
  }
  const auto one = [&] { return invented[random.below(invented.size())]; };
  for (int i = 0; i < 10 * repetitions && !member.put_out(); ++i) {
    std::vector<Rumour> rumours;
    for (int r = 0; r < 12; ++r)
      rumours.push_back({.claim = Claim::alive, .subject = one(), .accuser = {}});
    Sync sync{.sender = member.record(), .answer_wanted = false, .entries = {}};
    while (sync.entries.size() < max_sync_entries)
      sync.entries.push_back({one(), Claim::alive});
    Shuffle shuffle{.origin = member.record(), .hops_left = 0, .records = {}};
    while (shuffle.records.size() < max_shuffle_records)
      shuffle.records.push_back(one());
    member.say(News{}, std::move(rumours));
    member.say(std::move(sync));
    member.say(std::move(shuffle));
    member.say(ForwardJoin{.newcomer = one(), .hops_left = 1});
    member.say(PingRequest{.sequence = static_cast<std::uint32_t>(i), .patience_us = 1000, .target = one()});
    member.hear_until([] { return false; }, std::chrono::milliseconds(5));
  }
}

/// Sends kinds of messages that only a later build knows.
void newer(HostileMember& member) {
  for (int i = 0; i < repetitions; ++i) {
    for (const Frames& frames : specimens(member)) {
      RawFrames unknown = raw(frames);
      // The tag of the union is the first 16 bits after the segment table and the root pointer
      // (docs/reference/wire.md).
      unknown.front()[16] = '\xe7';
      unknown.front()[17] = '\x03';
      member.say(Channel::control, unknown);
    }
  }
}

/// Claims impossible clocks: some that break the rules, and some that do not.
void impossible_clock(HostileMember& member) {
  JobInfo info = *member.job();
  info.clock = 0x11223344556677;  // our own codec would refuse the value that follows
  RawFrames frames = raw(encode(Message(info)));
  const std::string bytes(reinterpret_cast<const char*>(&info.clock), sizeof info.clock);
  frames.front().replace(frames.front().find(bytes), bytes.size(), bytes.size(), '\xff');
  member.say(Channel::control, frames);
  member.hear_until([] { return false; }, aftermath);
}
/// Claims a clock that is `times` the clock of its partner, again and again.
void ahead(HostileMember& member, std::uint64_t times) {
  for (int i = 0; i < repetitions && !member.put_out(); ++i) {
    JobInfo info = *member.job();
    info.clock = std::min(times * info.clock, gossip::max_clock_samples);
    member.say(Message(info));
    member.hear_until([] { return false; }, std::chrono::milliseconds(100));
  }
}

/// Takes part, asks for a lot, and reads none of the answers.
void reads_nothing(HostileMember& member) {
  for (int i = 0; i < 100 * repetitions; ++i) {
    if (!member.say(Message(PullRequest{member.job()->job, 0}))) break;
  }
  std::this_thread::sleep_for(aftermath);
}

/// Decides for the cluster: denies a node and adds a key. With `signs`, an authority of its own has signed both.
void decides(HostileMember& member, bool signs) {
  const SigningKey own = SigningKey::generate();
  Denial denial;
  denial.node.bytes.fill(0xee);
  denial.denied = true;
  denial.decided_at = static_cast<TimeUs>(microseconds_since_1970());
  RingKey key{ClusterKey::generate(), denial.decided_at};
  RingState ring;
  ring.keys = {key};
  if (signs) {
    denial.signature = own.sign(denial.statement());
    ring.keys[0].signature = own.sign(key.statement());
    ring.authority = own.public_half();
  }
  for (int i = 0; i < repetitions && !member.put_out(); ++i) {
    member.say(ControlMessage(DenialList{{denial}}));
    member.say(ControlMessage(ring));
    member.hear_until([] { return false; }, std::chrono::milliseconds(20));
  }
}

/// Gives the job settings of its own, as their next version.
void sets(HostileMember& member) {
  JobInfo info = *member.job();
  info.settings = {.version = info.settings.version + 1, .values = {{"codec", "f32"}, {"period_ms", "9000"}}};
  for (int i = 0; i < repetitions && !member.put_out(); ++i) {
    member.say(Message(info));
    member.hear_until([] { return false; }, std::chrono::milliseconds(20));
  }
}

const std::map<std::string, void (*)(HostileMember&)>& acts() {
  static const std::map<std::string, void (*)(HostileMember&)> all{
      {"nothing", [](HostileMember&) {}},
      {"random", random_bytes},
      {"truncated", truncated},
      {"too-large", too_large},
      {"other-jobs", for_other_jobs},
      {"repeated", repeated},
      {"lies", lies_about_others},
      {"invents", invents},
      {"newer", newer},
      {"reads-nothing", reads_nothing},
      {"decides", [](HostileMember& member) { decides(member, false); }},
      {"decides-signed", [](HostileMember& member) { decides(member, true); }},
      {"pulls", [](HostileMember& member) { pulls(member, repetitions, std::chrono::milliseconds(20)); }},
      {"pulls-on", [](HostileMember& member) { pulls(member, 40 * repetitions, std::chrono::milliseconds(5)); }},
      {"sets", sets},
      {"impossible-clock", impossible_clock},
      {"ahead", [](HostileMember& member) { ahead(member, 30); }},
      {"far-ahead", [](HostileMember& member) { ahead(member, gossip::max_clock_samples); }}};
  return all;
}

int dial(HostileMember& member, void (*act)(HostileMember&)) {
  if (member.link() && member.introduce()) {
    act(member);
    member.hear_until([&] { return member.put_out(); }, aftermath);
  }
  std::puts(member.report().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return 0;
}

/// Listens until it is killed, or nobody has come for a while.
int listen(const ClusterKeys& keys, std::uint16_t version_low, std::uint16_t version_high) {
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  const KeyPair own = keys.first().listening_keys();
  router.set(zmq::sockopt::curve_server, true);
  router.set(zmq::sockopt::curve_secretkey,
             zmq::const_buffer(own.secret_key.bytes().data(), own.secret_key.bytes().size()));
  router.set(zmq::sockopt::rcvtimeo, 60'000);
  router.bind("tcp://127.0.0.1:0");
  std::puts(router.get(zmq::sockopt::last_endpoint).c_str());
  std::fflush(stdout);
  for (zmq::message_t id; router.recv(id);) {
    RawFrames answer{id.to_string()};
    while (id.more() && router.recv(id)) {
    }
    const Rejected rejected{RejectReason::version,
                            "we speak protocol " + std::to_string(version_low) + " to " + std::to_string(version_high)};
    answer.push_back(raw(encode(ControlMessage(rejected))).front());
    send(router, answer);
  }
  return 0;
}

int fail(const std::string& message) {
  std::fprintf(stderr, "hostile_member: %s\n", message.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 6) return fail("KEY_FILE tcp://HOST:PORT ACT [VERSION_LOW VERSION_HIGH]");
  const auto keys = read_cluster_keys(argv[1]);
  if (!keys) return fail(keys.error());
  const auto address = parse_address(argv[2], AddressUse::listen);
  if (!address) return fail(address.error());
  const auto version = [&](int index, std::uint16_t usual) {
    return argc > index ? static_cast<std::uint16_t>(std::atoi(argv[index])) : usual;
  };
  const std::uint16_t low = version(4, protocol_version_low);
  const std::uint16_t high = version(5, protocol_version_high);
  const std::string act = argv[3];
  if (act == "listen") return listen(*keys, low, high);
  const auto known = acts().find(act);
  if (known == acts().end()) return fail("no such act: " + act);
  HostileMember member(*keys, *address, low, high);
  return dial(member, known->second);
}
