// The daemon is killed in front of each of its stores to a client's memory in turn, and another one takes over: nothing
// half applied, nothing applied twice, and the sum over the replicas what it was.
//
// Two machines in lock-step and virtual time: the daemon's own code (ClientMemory, Job, Workers) about each in a child
// process, and here both trainers. Messages go through pairs of sockets. So a run is the same every time until the
// kill, and the number of a store says which it is. Nothing here has threads: a child that was forked beside one may
// wait for ever for a lock of the address sanitizer's that the thread held.
//
// Every fragment holds one value in all its elements, and all values are multiples of small powers of two, so that sums
// are exact and a part of anything shows.

#include <poll.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <semaphore>
#include <thread>

#include "daemon/job.hpp"
#include "peer/codec.hpp"
#include "store_trap.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/test_client.hpp"

#ifdef GOSSAMER_STORE_TRAP

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

constexpr std::uint32_t elements = 600;
constexpr std::uint32_t fragments = 3;
constexpr std::uint32_t fragment_elements = 256;
constexpr TimeUs turn_us = 20 * us_per_ms;
constexpr std::uint64_t samples = 8;           ///< of a step
constexpr double first_b = 8;                  ///< what machine B's model begins with
constexpr int turns = 14;                      ///< of a run that nobody kills
constexpr int train_every = 4;                 ///< turns
constexpr TimeUs patience_us = 60 * us_per_s;  ///< of virtual time, for joining
constexpr int most_turns = 200;                ///< until the replicas have settled
constexpr std::size_t max_datagram = 64 << 10;
constexpr int answer_within_ms = 60'000;
const std::vector<test::TestTensor> model = {{"weights", layout::Role::param, {elements}}};

[[nodiscard]] NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

[[nodiscard]] std::uint32_t count_of(std::uint32_t f) {
  return std::min(fragment_elements, elements - f * fragment_elements);
}

// --- messages between the two processes ---------------------------------------------------------------------------

/// A message as one datagram: sizes of its frames, then the frames.
[[nodiscard]] std::vector<std::byte> flatten(const Message& message) {
  const peer::Frames frames = peer::encode(message);
  std::vector<std::byte> bytes;
  const auto put = [&](const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
  };
  const auto put_frame = [&](const Bytes& frame) {
    const std::uint64_t size = frame.size();
    put(&size, sizeof size);
    put(frame.data.data(), frame.size());
  };
  put_frame(frames.header);
  for (std::size_t i = 0; i < frames.payload_count; ++i)
    put_frame(frames.payload[i]);
  return bytes;
}

[[nodiscard]] Message unflatten(std::span<const std::byte> bytes) {
  const auto take_frame = [&] {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    auto held = std::make_shared<std::vector<std::uint64_t>>((size + 7) / 8);  // aligned
    if (size > 0) std::memcpy(held->data(), bytes.data() + sizeof size, size);
    bytes = bytes.subspan(sizeof size + size);
    return Bytes{held, std::as_bytes(std::span(*held)).first(size)};
  };
  peer::Frames frames;
  frames.header = take_frame();
  while (!bytes.empty())
    frames.payload[frames.payload_count++] = take_frame();
  auto packet = peer::decode(frames);
  if (!packet) throw std::runtime_error(packet.error().text);
  return std::get<Message>(std::move(*packet));
}

// --- a machine's daemon -------------------------------------------------------------------------------------------

/// What happens in one turn of a daemon; what it answers.
struct Turn {
  TimeUs now_us = 0;
  enum class Link : std::uint8_t { as_it_was, up, other_is_dead } link = Link::as_it_was;
  std::vector<Message> messages;
  std::uint64_t exchanges = 0;   ///< that it has done: of an answer
  std::uint64_t unresolved = 0;  ///< of which it does not know the end: of an answer
};

/// The daemon's code about one job, driven turn by turn. The worker and the loop take turns, too: one thread at a time.
class Machine : private JobHost {
 public:
  Machine(NodeId id, NodeId other, const test::TestMemory& memory, bool resume, std::uint64_t incarnation,
          TimeUs now_us)
      : id_(id), other_(other), now_us_(now_us), workers_(loop_, 1), counter_(incarnation) {
    const std::uint64_t bytes = memory.plan.total_bytes;
    auto mapped = ClientMemory::map(memory.fd.get(), bytes, bytes);
    if (!mapped) throw std::runtime_error(mapped.error().message);
    session_ = std::make_shared<ClientSession>(std::move(*mapped), ::getpid(), ::getuid(), resume, 1);
  }
  ~Machine() override {
    if (job_) job_->end();
    workers_.stop();
  }

  [[nodiscard]] ClientSession& session() { return *session_; }

  void start() {
    in_turn([&] {
      GossipOptions options;
      options.codec = CodecChoice::f32;
      options.period_ms = 10;
      options.in_flight = 1;
      options.time_share = options.bandwidth_share = 0;
      auto job = Job::make(*this, session_, options, counter_, 7);
      if (!job) throw std::runtime_error(job.error().message);
      job_ = *job;
      job_->start();
    });
    settle();
  }

  /// Returns the messages for the other machine.
  std::vector<Message> take(Turn turn) {
    now_us_ = turn.now_us;
    if (turn.link == Turn::Link::other_is_dead) {
      in_turn([&] {
        job_->link_down(other_);
        job_->node_dead(other_);
      });
    }
    if (turn.link == Turn::Link::up) in_turn([&] { job_->link_up(other_); });
    in_turn([&] { job_->woken(*session_); });
    settle();
    for (Message& message : turn.messages) {
      in_turn([&] { job_->received(other_, std::move(message)); });
      settle();
    }
    in_turn([&] { job_->tick(true); });
    settle();
    return std::exchange(outbox_, {});
  }
  [[nodiscard]] JobStatus status() const { return job_->status(); }

 private:
  [[nodiscard]] NodeId id() const override { return id_; }
  [[nodiscard]] TimeUs now_us() const override { return now_us_; }
  bool send(const NodeId&, const Message& message) override {
    outbox_.push_back(message);
    return true;
  }
  [[nodiscard]] std::vector<NodeId> neighbours() const override { return {}; }
  [[nodiscard]] std::map<NodeId, TimeUs> round_trips_us() const override { return {}; }
  [[nodiscard]] double capacity_bytes_s() const override { return 0; }
  [[nodiscard]] gossip::LinkLoad link_load(const NodeId&) const override { return {}; }
  [[nodiscard]] Workers& workers() override { return workers_; }
  [[nodiscard]] spdlog::logger& log() override { return log_; }

  /// Runs `action` while the worker stands still, then lets the worker do all it was given.
  template <class Action>
  void in_turn(Action action) {
    std::binary_semaphore gate{0};
    if (!workers_.submit([&gate] { gate.acquire(); }, [] {})) throw std::runtime_error("no worker");
    action();
    gate.release();
    while (workers_.pending() > 0)
      std::this_thread::yield();
  }
  /// Until no task's end is left to be told: each turn leaves the end of its own gate.
  void settle() {
    std::size_t handled = 2;
    while (handled > 1) {
      in_turn([&] {
        loop_.restart();
        handled = loop_.poll();
      });
    }
  }

  const NodeId id_;
  const NodeId other_;
  TimeUs now_us_;
  asio::io_context loop_;
  Workers workers_;
  spdlog::logger log_{"none", std::make_shared<spdlog::sinks::null_sink_mt>()};
  gossip::ExchangeCounter counter_;
  std::shared_ptr<ClientSession> session_;
  std::shared_ptr<Job> job_;
  std::vector<Message> outbox_;
};

// --- the daemon in a process of its own ---------------------------------------------------------------------------

/// What the child does to the memory; the daemon's own code, or something wrong.
enum class Conduct { as_built, word_before_buffer, correction_twice };

/// Tells the two processes' datagrams apart.
struct Envelope {
  enum Kind : std::uint32_t { message, turn } kind = turn;
  std::uint32_t link = 0;
  TimeUs now_us = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t unresolved = 0;
};

void send_turn(int socket, const Turn& turn) {
  const auto send = [&](const Envelope& envelope, std::span<const std::byte> content) {
    std::vector<std::byte> datagram(sizeof envelope + content.size());
    std::memcpy(datagram.data(), &envelope, sizeof envelope);
    std::ranges::copy(content, datagram.begin() + sizeof envelope);
    // The other end may have died: seen when it does not answer.
    [[maybe_unused]] const ssize_t sent = ::send(socket, datagram.data(), datagram.size(), MSG_NOSIGNAL);
  };
  for (const Message& message : turn.messages)
    send({.kind = Envelope::message}, flatten(message));
  send({.kind = Envelope::turn,
        .link = static_cast<std::uint32_t>(turn.link),
        .now_us = turn.now_us,
        .exchanges = turn.exchanges,
        .unresolved = turn.unresolved},
       {});
}

/// None if the other end is gone. Throws after a minute without an answer.
[[nodiscard]] std::optional<Turn> receive_turn(int socket) {
  Turn turn;
  std::vector<std::byte> datagram(max_datagram);
  while (true) {
    pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, answer_within_ms) == 0) throw std::runtime_error("a daemon's process stands still");
    const ssize_t size = ::recv(socket, datagram.data(), datagram.size(), 0);
    if (size < static_cast<ssize_t>(sizeof(Envelope))) return std::nullopt;
    Envelope envelope;
    std::memcpy(&envelope, datagram.data(), sizeof envelope);
    if (envelope.kind == Envelope::turn) {
      turn.link = static_cast<Turn::Link>(envelope.link);
      turn.now_us = envelope.now_us;
      turn.exchanges = envelope.exchanges;
      turn.unresolved = envelope.unresolved;
      return turn;
    }
    turn.messages.push_back(
        unflatten(std::span(datagram).subspan(sizeof envelope, static_cast<std::size_t>(size) - sizeof envelope)));
  }
}

/// A daemon that breaks the contract: makes a correction of one to each fragment that it holds.
void misbehave(ClientMemory& memory, Conduct conduct, int turn) {
  for (std::uint32_t f = 0; f < memory.fragment_count(); ++f) {
    layout::Word word = memory.load_word(f);
    if (word.with_client) continue;
    const std::vector<float> correction(count_of(f), static_cast<float>(turn));
    if (conduct == Conduct::correction_twice && turn > 1) {
      word.correction_valid = true;  // the one that was served already
    } else {
      word.correction = word.spare();
      word.correction_valid = true;
    }
    float* target = memory.buffer(f, word.correction);
    word.with_client = conduct == Conduct::correction_twice;
    if (conduct == Conduct::word_before_buffer) memory.store_word(f, word);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memcpy(target, correction.data(), correction.size() * sizeof(float));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    memory.store_word(f, word);
  }
  memory.raise_due();
}

/// How one life of the daemon goes.
struct Life {
  NodeId id = {};
  NodeId other = {};
  std::uint64_t incarnation = 0;
  bool resume = true;  ///< as the client says
  Conduct conduct = Conduct::as_built;
  std::uint64_t kill_at = 0;
};

[[noreturn]] void be_daemon(int socket, const test::TestMemory& memory, const Life& life,
                            std::atomic<std::uint64_t>& stores) {
  int turn_number = 0;
  std::optional<Machine> machine;
  while (std::optional<Turn> turn = receive_turn(socket)) {
    if (!machine) {
      machine.emplace(life.id, life.other, memory, life.resume, life.incarnation, turn->now_us);
      auto* base = reinterpret_cast<std::byte*>(machine->session().memory().buffer(0, 0)) - memory.plan.buffers_offset;
      StoreTrap::arm(base, memory.plan.total_bytes, life.kill_at, stores);
      if (life.conduct == Conduct::as_built) machine->start();
    }
    if (life.conduct == Conduct::as_built) {
      std::vector<Message> messages = machine->take(std::move(*turn));
      const JobStatus status = machine->status();
      send_turn(socket,
                {.messages = std::move(messages), .exchanges = status.exchanges, .unresolved = status.unresolved});
    } else {
      misbehave(machine->session().memory(), life.conduct, ++turn_number);
      send_turn(socket, {});
    }
  }
  ::_exit(0);  // without the destructors: their stores are of no daemon's life
}

class DaemonProcess {
 public:
  DaemonProcess(const test::TestMemory& memory, const Life& life, std::atomic<std::uint64_t>& stores) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      try {
        be_daemon(ends[1], memory, life, stores);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "a daemon's process: %s\n", error.what());
        ::_exit(1);
      }
    }
    ::close(ends[1]);
    socket_ = UniqueFd(ends[0]);
  }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;
  ~DaemonProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  /// None if it died.
  [[nodiscard]] std::optional<std::vector<Message>> take(const Turn& turn) {
    send_turn(socket_.get(), turn);
    std::optional<Turn> answer = receive_turn(socket_.get());
    if (!answer) return std::nullopt;
    exchanges_ = answer->exchanges;
    unresolved_ = answer->unresolved;
    return std::move(answer->messages);
  }
  /// As of its last answer.
  [[nodiscard]] std::uint64_t exchanges() const { return exchanges_; }
  [[nodiscard]] std::uint64_t unresolved() const { return unresolved_; }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
  std::uint64_t exchanges_ = 0;
  std::uint64_t unresolved_ = 0;
};

// --- a trainer ----------------------------------------------------------------------------------------------------

/// Thrown when a fragment holds different values.
struct Torn : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A client by the contract: one value a fragment, exact.
class Trainer {
 public:
  explicit Trainer(double first) : memory(model, fragment_elements) {
    memory.seal();
    for (std::uint32_t f = 0; f < fragments; ++f) {
      x_[f] = first * (f + 1);
      std::fill_n(memory.buffer(f, 0), count_of(f), static_cast<float>(x_[f]));
      memory.fragment(f).word = layout::Word{.generation = 1}.pack();
    }
  }

  void train(double change) {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      x_[f] += change;
      unpublished_[f] += change;
      trained_[f] += change;
    }
  }
  /// Serves what is due.
  void step() {
    memory.header().clock += samples;
    for (std::uint32_t f = 0; f < fragments; ++f) {
      layout::Word word = layout::Word::unpack(memory.fragment(f).word.load());
      if (!word.valid()) throw Torn("an impossible word");
      if (!word.with_client) continue;
      const double correction = word.correction_valid ? value(f, word.correction, "half a correction") : 0;
      x_[f] = word.replace ? correction : x_[f] + correction;
      std::fill_n(memory.buffer(f, word.spare()), count_of(f), static_cast<float>(x_[f]));
      word.publication = word.spare();
      word.correction_valid = word.replace = word.with_client = false;
      ++word.generation;
      memory.fragment(f).publication_clock.store(memory.header().clock);
      memory.fragment(f).word.store(word.pack());
      unpublished_[f] = 0;
    }
  }
  [[nodiscard]] double x(std::uint32_t f) const { return x_[f]; }
  /// What the memory says that the live fragment is to be: s + c, and what was trained since.
  [[nodiscard]] double owed(std::uint32_t f) const {
    const layout::Word word = layout::Word::unpack(memory.fragment(f).word.load());
    if (!word.valid()) throw Torn("an impossible word");
    const double s = value(f, word.publication, "half a publication");
    const double c = word.correction_valid ? value(f, word.correction, "half a correction") : 0;
    return s + c + unpublished_[f];
  }
  /// The same without all training: moved by exchanges only.
  [[nodiscard]] double mixed(std::uint32_t f) const { return owed(f) - trained_[f]; }

  test::TestMemory memory;

 private:
  [[nodiscard]] double value(std::uint32_t f, std::uint8_t index, const char* otherwise) const {
    const float* values = memory.buffer(f, index);
    if (!std::all_of(values, values + count_of(f), [&](float v) { return v == values[0]; })) throw Torn(otherwise);
    return static_cast<double>(values[0]);
  }

  std::array<double, fragments> x_{};
  std::array<double, fragments> unpublished_{};
  std::array<double, fragments> trained_{};
};

// --- a trial ------------------------------------------------------------------------------------------------------

using Values = std::array<double, fragments>;

class Trial {
 public:
  /// `joins`: machine A's model is to be taken over from B; otherwise both run already.
  Trial(Conduct conduct, std::uint64_t kill_at, bool joins = false)
      : b_(trainer_b_.memory, {.id = node(2), .other = node(1), .incarnation = 1'000}, *stores_of_b_) {
    start_a({.incarnation = 2'000, .resume = !joins, .conduct = conduct, .kill_at = kill_at}, *stores_);
    b_link_ = a_link_ = Turn::Link::up;
    note();
    for (std::uint32_t f = 0; f < fragments; ++f)
      sum_[f] = trainer_a_.mixed(f) + trainer_b_.mixed(f);
  }

  /// What was wrong; empty if nothing was.
  std::string run() {
    try {
      for (int turn = 0; turn < turns; ++turn) {
        if (turn % train_every == train_every - 1) trainer_a_.train(0.5);
        if (!exchange()) return after_death();
        note();
      }
      const bool still = settled();
      if (died_) return after_death();
      return still ? lost(Values{}) : "the replicas do not settle";
    } catch (const Torn& torn) {
      return torn.what();
    }
  }
  /// The same for a newcomer: in the end it has the other's model, of which nothing has changed.
  std::string run_joining() {
    try {
      bool taken = false;
      while (!died_ && !taken && now_us_ < patience_us) {
        exchange();
        taken = has_the_others_model();
      }
      const bool resume = heard_of_;
      if (died_) {
        b_link_ = Turn::Link::other_is_dead;
        to_a_.clear();
        now_us_ += turn_us;
        (void)take_b({});
        trainer_a_.step();
        start_a({.incarnation = 3'000, .resume = resume}, *later_stores_);
        a_link_ = b_link_ = Turn::Link::up;
        taken = false;
        while (!taken && now_us_ < patience_us) {
          if (!exchange()) return "the successor died";
          taken = has_the_others_model();
        }
      }
      if (!taken) return "the newcomer has not the others' model";
      for (std::uint32_t f = 0; f < fragments; ++f)
        if (trainer_b_.x(f) != first_b * (f + 1)) return "the newcomer's own values came among the others'";
      return "";
    } catch (const Torn& torn) {
      return torn.what();
    }
  }
  [[nodiscard]] std::uint64_t stores() const { return *stores_; }
  [[nodiscard]] std::uint64_t exchanges() const { return b_.exchanges(); }

 private:
  [[nodiscard]] bool has_the_others_model() const {
    const auto state = static_cast<layout::RunState>(trainer_a_.memory.header().state.load());
    bool same = state == layout::RunState::running;
    for (std::uint32_t f = 0; f < fragments; ++f)
      same = same && trainer_a_.x(f) == first_b * (f + 1);
    return same;
  }

  void start_a(Life life, std::atomic<std::uint64_t>& stores) {
    life.id = node(1);
    life.other = node(2);
    a_.emplace(trainer_a_.memory, life, stores);
  }
  /// A turn of machine B, whose daemon nobody kills.
  std::vector<Message> take_b(std::vector<Message> messages) {
    auto answer = b_.take(
        {.now_us = now_us_, .link = std::exchange(b_link_, Turn::Link::as_it_was), .messages = std::move(messages)});
    if (!answer) throw std::runtime_error("machine B's daemon died");
    return std::move(*answer);
  }

  /// One turn of both machines and their trainers; false if machine A's daemon died in it.
  bool exchange() {
    now_us_ += turn_us;
    auto from_a = a_->take({.now_us = now_us_,
                            .link = std::exchange(a_link_, Turn::Link::as_it_was),
                            .messages = std::exchange(to_a_, {})});
    died_ = !from_a;
    if (died_) return false;
    heard_of_ = true;
    trainer_a_.step();
    to_a_ = take_b(std::move(*from_a));
    trainer_b_.step();
    return true;
  }

  void note() {
    Values a{};
    Values b{};
    for (std::uint32_t f = 0; f < fragments; ++f) {
      a[f] = trainer_a_.mixed(f);
      b[f] = trainer_b_.mixed(f);
    }
    history_a_.push_back(a);
    history_b_.push_back(b);
  }

  /// Turns until nothing moves any more.
  bool settled() {
    int still = 0;
    for (int turn = 0; turn < most_turns && still < 8; ++turn) {
      if (!exchange()) return false;
      note();
      const auto last = history_a_.size() - 1;
      const bool same = history_a_[last] == history_a_[last - 1] && history_b_[last] == history_b_[last - 1];
      bool equal = true;
      for (std::uint32_t f = 0; f < fragments; ++f)
        equal = equal && trainer_a_.owed(f) == trainer_b_.owed(f);
      still = same && equal ? still + 1 : 0;
    }
    return still == 8;
  }

  /// Whether the sum is other than it was but for `allowed`.
  [[nodiscard]] std::string lost(const Values& allowed) const {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      if (trainer_a_.mixed(f) + trainer_b_.mixed(f) != sum_[f] + allowed[f]) return "the sum has changed";
    }
    return "";
  }

  std::string after_death() {
    b_link_ = Turn::Link::other_is_dead;
    to_a_.clear();
    // Machine B ends what was under way, and its trainer takes what is kept for it.
    for (int turn = 0; turn < 4; ++turn) {
      now_us_ += turn_us;
      (void)take_b({});
      trainer_b_.step();
    }
    Values left{};
    if (const std::string found = judge_death(left); !found.empty()) return found;

    // The successor, still alone: the trainer gets what the memory says, once.
    Values owed{};
    for (std::uint32_t f = 0; f < fragments; ++f)
      owed[f] = trainer_a_.owed(f);
    start_a({.incarnation = 3'000}, *later_stores_);
    for (int turn = 0; turn < 3; ++turn) {
      now_us_ += turn_us;
      trainer_a_.step();
      if (!a_->take({.now_us = now_us_, .messages = {}})) return "the successor died";
    }
    for (std::uint32_t f = 0; f < fragments; ++f) {
      const bool served = !layout::Word::unpack(trainer_a_.memory.fragment(f).word.load()).correction_valid;
      if (trainer_a_.owed(f) != owed[f] || (served && trainer_a_.x(f) != owed[f])) return "not what was owed, once";
    }
    a_link_ = b_link_ = Turn::Link::up;
    return settled() ? lost(left) : "the replicas do not settle";
  }

  /// What the sum is off by, for each fragment: nothing, or one exchange of which one machine has its half and the
  /// other has lost, or never had, its own.
  std::string judge_death(Values& left) {
    const bool unresolved = b_.unresolved() > 0;
    for (std::uint32_t f = 0; f < fragments; ++f) {
      const double a = trainer_a_.mixed(f);
      const double b = trainer_b_.mixed(f);
      left[f] = a + b - sum_[f];
      const auto moved_by = [&](const std::vector<Values>& history, double now) {
        return std::any_of(history.begin(), history.end(),
                           [&](const Values& then) { return now - then[f] == left[f]; });
      };
      const bool lost_by_a = moved_by(history_b_, b);
      const bool not_heard_by_b = unresolved && moved_by(history_a_, a);
      if (left[f] != 0 && !lost_by_a && !not_heard_by_b) return "an exchange was done in part, or twice";
    }
    return "";
  }

  TimeUs now_us_ = us_per_s;
  SharedValue<std::atomic<std::uint64_t>> stores_;
  SharedValue<std::atomic<std::uint64_t>> later_stores_;
  SharedValue<std::atomic<std::uint64_t>> stores_of_b_;
  Trainer trainer_a_{64};
  Trainer trainer_b_{first_b};
  std::optional<DaemonProcess> a_;
  DaemonProcess b_;
  Turn::Link a_link_ = Turn::Link::as_it_was;
  Turn::Link b_link_ = Turn::Link::as_it_was;
  std::vector<Message> to_a_;
  std::vector<Values> history_a_;  ///< by exchanges only, at the end of each turn
  std::vector<Values> history_b_;
  Values sum_{};
  bool died_ = false;      ///< machine A's daemon
  bool heard_of_ = false;  ///< it has been there at all: its client resumes
};

}  // namespace

TEST_CASE("a daemon killed before any of its stores leaves nothing half done and nothing done twice") {
  std::uint64_t stores = 0;
  {
    Trial whole(Conduct::as_built, 0);
    REQUIRE(whole.run() == "");
    stores = whole.stores();
    CHECK(whole.exchanges() >= 2 * fragments);
  }
  // A correction to each fragment at least, each with its words; a vector has at most 64 bytes.
  CHECK(stores > 2 * elements * sizeof(float) / 64);
  REQUIRE(stores < 5'000);
  std::map<std::string, std::vector<std::uint64_t>> faults;
  for (std::uint64_t kill_at = 1; kill_at <= stores; kill_at += kill_stride) {
    Trial trial(Conduct::as_built, kill_at);
    if (const std::string found = trial.run(); !found.empty()) faults[found].push_back(kill_at);
  }
  for (const auto& [fault, at] : faults)
    FAIL_CHECK(fault << ", killed before store " << at.front() << " and " << at.size() - 1 << " others of " << stores);
}

TEST_CASE("a daemon killed before any of its stores while a model is taken over leaves none half taken over") {
  std::uint64_t stores = 0;
  {
    Trial whole(Conduct::as_built, 0, /*joins=*/true);
    REQUIRE(whole.run_joining() == "");
    stores = whole.stores();
  }
  CHECK(stores > elements * sizeof(float) / 64 + 2 * fragments);
  REQUIRE(stores < 5'000);
  for (std::uint64_t kill_at = 1; kill_at <= stores; kill_at += kill_stride) {
    Trial trial(Conduct::as_built, kill_at, /*joins=*/true);
    const std::string found = trial.run_joining();
    if (!found.empty()) FAIL_CHECK(found << ", killed before store " << kill_at << " of " << stores);
  }
}

TEST_CASE("the same trial finds a daemon that stores in the wrong order, or applies a correction twice") {
  std::string found;
  for (std::uint64_t kill_at = 1; found.empty() && kill_at < 200; kill_at += 1)
    found = Trial(Conduct::word_before_buffer, kill_at).run();
  CHECK(found == "half a correction");
  CHECK(Trial(Conduct::correction_twice, 0).run() != "");
}

#endif
