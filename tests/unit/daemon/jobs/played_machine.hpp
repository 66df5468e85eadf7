// A machine in lock-step and virtual time for tests. The daemon's own code (ClientMemory, Job, Workers) runs turn by
// turn in a child process, and its trainers run in the test. Messages go through a pair of sockets. A run is the same
// every time until the daemon is killed before one of its stores, so a store's number says which store it is. There are
// no threads here: a child forked beside a thread may wait forever for a lock of the address sanitizer that the thread
// held.
//
// Every fragment holds one value in all its elements. All values are multiples of small powers of two, so that sums are
// exact and a half-made change shows.

#pragma once

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "peer/wire/codec.hpp"
#include "store_trap.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/jobs/played_host.hpp"
#include "tests/unit/daemon/test_client.hpp"

#ifdef GOSSAMER_STORE_TRAP

namespace gossamer::daemon::test {

constexpr std::uint32_t played_fragment_elements = 256;
constexpr std::uint32_t lean_fragment_elements = 1024;  ///< a page for each buffer: the least that lean memory takes
constexpr std::uint32_t lean_window = 2;                ///< fragments that have memory at once
constexpr TimeUs turn_us = 20 * us_per_ms;
constexpr std::size_t max_datagram = 64 << 10;
constexpr int answer_within_ms = 60'000;

[[nodiscard]] inline NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

// --- messages between the two processes ---------------------------------------------------------------------------

/// A message as one datagram: sizes of its frames, then the frames.
[[nodiscard]] inline std::vector<std::byte> flatten(const Message& message) {
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

[[nodiscard]] inline Message unflatten(std::span<const std::byte> bytes) {
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

/// The input of one turn of a daemon, or its answer.
struct Turn {
  TimeUs now_us = 0;
  enum class Link : std::uint8_t { as_it_was, up, other_is_dead } link = Link::as_it_was;
  std::uint32_t present = 1;  ///< which of the machine's trainers are there, by bits; a new one attaches
  std::vector<Message> messages = {};
  std::uint64_t exchanges = 0;   ///< in an answer: how many it has done
  std::uint64_t unresolved = 0;  ///< in an answer: those whose end it does not know
};

/// The daemon's code about one job, driven turn by turn, on the caller's thread.
class Machine : private PlayedHost {
 public:
  Machine(NodeId id, NodeId other, std::uint64_t incarnation, int period_ms, TimeUs now_us)
      : id_(id),
        other_(other),
        now_us_(now_us),
        period_ms_(period_ms),
        workers_(loop_, /*threads=*/0),
        counter_(incarnation) {}
  ~Machine() override {
    if (job_) job_->end();
    workers_.stop();
  }

  /// `kept`: the node's memory that the client has kept.
  [[nodiscard]] static std::shared_ptr<ClientSession> map(const TestMemory& memory, bool resume, std::uint64_t number,
                                                          std::shared_ptr<NodeMemory> kept) {
    const std::uint64_t bytes = memory.plan.total_bytes;
    auto mapped = ClientMemory::map(memory.fd.get(), bytes, bytes);
    if (!mapped) throw std::runtime_error(mapped.error().message);
    return std::make_shared<ClientSession>(std::move(*mapped), Caller{::getpid(), ::getuid(), {}}, resume, number,
                                           std::move(kept));
  }

  /// Returns false if the client must try again.
  bool attach(const std::shared_ptr<ClientSession>& session) {
    const bool taken = job_ ? job_->add(session).has_value() : make(session);
    if (taken) sessions_.push_back(session);
    settle();
    return taken;
  }

  /// Runs one turn. Returns the messages for the other machine.
  std::vector<Message> take(Turn turn) {
    now_us_ = turn.now_us;
    if (turn.link == Turn::Link::other_is_dead) {
      job_->link_down(other_);
      job_->node_dead(other_);
    }
    if (turn.link == Turn::Link::up) job_->link_up(other_);
    for (const auto& session : sessions_) {
      job_->woken(*session);
      settle();
    }
    for (Message& message : turn.messages) {
      job_->received(other_, std::move(message));
      settle();
    }
    job_->tick(true);
    settle();
    return std::exchange(outbox_, {});
  }
  [[nodiscard]] JobStatus status() const { return job_->status(); }
  [[nodiscard]] bool has_job() const { return job_ != nullptr; }

 private:
  [[nodiscard]] NodeId id() const override { return id_; }
  [[nodiscard]] TimeUs now_us() const override { return now_us_; }
  [[nodiscard]] TimeUs began_us() const override { return began_us_; }
  bool send(const NodeId&, const Message& message) override {
    outbox_.push_back(message);
    return true;
  }
  [[nodiscard]] Workers& workers() override { return workers_; }

  bool make(const std::shared_ptr<ClientSession>& session) {
    GossipOptions options;
    options.codec = CodecChoice::f32;
    options.period_ms = period_ms_;
    options.in_flight = 1;
    options.time_share = options.bandwidth_share = 0;
    auto job = Job::make(*this, session, options, counter_, 7);
    if (!job && job.error().status == layout::AttachStatus::job_busy) return false;
    if (!job) throw std::runtime_error(job.error().message);
    job_ = *job;
    job_->start({});
    return true;
  }

  /// Runs tasks and their ends until none is left.
  void settle() {
    do {
      while (workers_.run_one()) {
      }
      loop_.restart();
    } while (loop_.poll() > 0);
  }

  const NodeId id_;
  const NodeId other_;
  TimeUs now_us_;
  const TimeUs began_us_ = now_us_;
  const int period_ms_;
  asio::io_context loop_;
  Workers workers_;
  gossip::ExchangeCounter counter_;
  std::vector<std::shared_ptr<ClientSession>> sessions_;
  std::shared_ptr<Job> job_;
  std::vector<Message> outbox_;
};

// --- the daemon in a process of its own ---------------------------------------------------------------------------

/// The head of a datagram between the two processes.
struct Envelope {
  enum Kind : std::uint32_t { message, turn } kind = turn;
  std::uint32_t link = 0;
  std::uint32_t present = 0;
  TimeUs now_us = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t unresolved = 0;
};

inline void send_turn(int socket, const Turn& turn) {
  const auto send = [&](const Envelope& envelope, std::span<const std::byte> content) {
    std::vector<std::byte> datagram(sizeof envelope + content.size());
    std::memcpy(datagram.data(), &envelope, sizeof envelope);
    std::ranges::copy(content, datagram.begin() + sizeof envelope);
    // If the other end has died, the missing answer shows it.
    [[maybe_unused]] const ssize_t sent = ::send(socket, datagram.data(), datagram.size(), MSG_NOSIGNAL);
  };
  for (const Message& message : turn.messages)
    send({.kind = Envelope::message}, flatten(message));
  send({.kind = Envelope::turn,
        .link = static_cast<std::uint32_t>(turn.link),
        .present = turn.present,
        .now_us = turn.now_us,
        .exchanges = turn.exchanges,
        .unresolved = turn.unresolved},
       {});
}

/// None if the other end is gone. Throws after a minute without an answer.
[[nodiscard]] inline std::optional<Turn> receive_turn(int socket) {
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
      turn.present = envelope.present;
      turn.now_us = envelope.now_us;
      turn.exchanges = envelope.exchanges;
      turn.unresolved = envelope.unresolved;
      return turn;
    }
    turn.messages.push_back(
        unflatten(std::span(datagram).subspan(sizeof envelope, static_cast<std::size_t>(size) - sizeof envelope)));
  }
}

/// A trainer's memory as its daemon gets it.
struct Attaching {
  const TestMemory* memory = nullptr;
  bool resume = true;  ///< what the client says
};

/// The node's memory as a daemon makes it, before any use. Every life of a machine's daemon gets it from its clients.
class KeptNodeMemory {
 public:
  explicit KeptNodeMemory(const TestMemory& model) {
    auto mapped = ClientMemory::map(model.fd.get(), model.plan.total_bytes, model.plan.total_bytes);
    if (!mapped) throw std::runtime_error(mapped.error().message);
    shape_ = NodeMemory::shape_of(*mapped);
    auto made = NodeMemory::make(shape_);
    if (!made) throw std::runtime_error(made.error());
    memory = std::move(*made);
  }
  [[nodiscard]] std::shared_ptr<NodeMemory> take_back() const {
    auto taken = NodeMemory::take_back(FileDescriptor(::fcntl(memory->to_keep(), F_DUPFD_CLOEXEC, 0)), shape_);
    if (!taken) throw std::runtime_error("the node's memory is not taken back");
    return taken;
  }
  std::shared_ptr<NodeMemory> memory;

 private:
  NodeMemory::Shape shape_;
};

/// How one life of the daemon goes.
struct Life {
  NodeId id = {};
  NodeId other = {};
  std::uint64_t incarnation = 0;
  int period_ms = 10;
  std::vector<Attaching> trainers = {};
  const KeptNodeMemory* kept = nullptr;  ///< null: the clients bring none
  /// Called for the first trainer's memory at each turn, in place of the daemon's own code; null: the daemon's code
  /// runs.
  void (*instead)(ClientMemory& memory, int turn) = nullptr;
  /// Counts the stores; null: no store is counted, and the daemon is not killed.
  std::atomic<std::uint64_t>* stores = nullptr;
  std::uint64_t kill_at = 0;
  bool bulk = false;  ///< only two of a buffer's consecutive stores count
  /// How many stores there were before each turn of a run without a kill. Watching takes long, so earlier turns than
  /// the one of `kill_at` are not watched, but taken to have as many stores.
  std::vector<std::uint64_t> stores_before = {};
};

/// Watches the stores of a daemon's process from the turn on in which it is to be killed.
class Watch {
 public:
  explicit Watch(const Life& life) : life_(life) {
    const auto end = std::ranges::lower_bound(life.stores_before, life.kill_at);
    if (end != life.stores_before.begin()) first_ = static_cast<std::size_t>(end - life.stores_before.begin()) - 1;
  }
  void begin_turn() {
    if (life_.stores == nullptr) return;
    if (turn_ == first_) {
      if (!life_.stores_before.empty()) *life_.stores = life_.stores_before[first_];
      for (const Stretch& stretch : later_)
        arm(stretch);
    }
    StoreTrap::end_run();
    ++turn_;
  }
  /// `bulk_at`: where buffers begin.
  void add(void* base, std::size_t bytes, std::size_t bulk_at) {
    if (life_.stores == nullptr) return;
    const Stretch stretch{base, bytes, life_.bulk ? bulk_at : SIZE_MAX};
    if (turn_ > first_) {
      arm(stretch);
    } else {
      later_.push_back(stretch);
    }
  }

 private:
  struct Stretch {
    void* base;
    std::size_t bytes;
    std::size_t bulk_at;
  };
  void arm(const Stretch& stretch) const {
    StoreTrap::arm(stretch.base, stretch.bytes, life_.kill_at, *life_.stores, stretch.bulk_at);
  }

  const Life& life_;
  std::size_t turn_ = 0;
  std::size_t first_ = 0;  // the first turn that is watched
  std::vector<Stretch> later_;
};

[[noreturn]] inline void be_daemon(int socket, const Life& life) {
  int turn_number = 0;
  std::optional<Machine> machine;
  std::vector<std::shared_ptr<ClientSession>> sessions(life.trainers.size());
  std::uint32_t attached = 0;
  std::shared_ptr<NodeMemory> kept = life.kept != nullptr ? life.kept->take_back() : nullptr;
  Watch watch(life);
  if (kept) watch.add(kept->bytes().data(), kept->bytes().size(), kept->tables_bytes());
  while (std::optional<Turn> turn = receive_turn(socket)) {
    watch.begin_turn();
    if (!machine) machine.emplace(life.id, life.other, life.incarnation, life.period_ms, turn->now_us);
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      const std::uint32_t bit = 1U << i;
      if ((turn->present & bit) == 0 || (attached & bit) != 0) continue;
      if (!sessions[i]) {
        const TestMemory& memory = *life.trainers[i].memory;
        sessions[i] = Machine::map(memory, life.trainers[i].resume, i + 1, kept);
        auto* base = reinterpret_cast<std::byte*>(sessions[i]->memory().buffer(0, 0)) - memory.plan.buffers_offset;
        watch.add(base, memory.plan.total_bytes, memory.plan.buffers_offset);
      }
      if (life.instead != nullptr || machine->attach(sessions[i])) attached |= bit;
    }
    if (life.instead != nullptr) {
      life.instead(sessions[0]->memory(), ++turn_number);
      send_turn(socket, {});
    } else if (!machine->has_job()) {
      send_turn(socket, {});
    } else {
      std::vector<Message> messages = machine->take(std::move(*turn));
      const JobStatus status = machine->status();
      send_turn(socket,
                {.messages = std::move(messages), .exchanges = status.exchanges, .unresolved = status.unresolved});
    }
  }
  ::_exit(0);  // destructors would make stores that belong to no turn
}

class DaemonProcess {
 public:
  explicit DaemonProcess(const Life& life) : stores_(life.stores) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      try {
        be_daemon(ends[1], life);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "a daemon's process: %s\n", error.what());
        ::_exit(1);
      }
    }
    ::close(ends[1]);
    socket_ = FileDescriptor(ends[0]);
  }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;
  ~DaemonProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  /// Runs one turn. Returns none if the daemon died.
  [[nodiscard]] std::optional<std::vector<Message>> take(const Turn& turn) {
    if (stores_ != nullptr) stores_before_.push_back(*stores_);
    send_turn(socket_.get(), turn);
    std::optional<Turn> answer = receive_turn(socket_.get());
    if (!answer) return std::nullopt;
    exchanges_ = answer->exchanges;
    unresolved_ = answer->unresolved;
    return std::move(answer->messages);
  }
  /// The counts of its last answer.
  [[nodiscard]] std::uint64_t exchanges() const { return exchanges_; }
  [[nodiscard]] std::uint64_t unresolved() const { return unresolved_; }
  /// How many stores were counted before each of its turns.
  [[nodiscard]] const std::vector<std::uint64_t>& stores_before() const { return stores_before_; }

 private:
  const std::atomic<std::uint64_t>* stores_;
  std::vector<std::uint64_t> stores_before_;
  pid_t pid_ = -1;
  FileDescriptor socket_;
  std::uint64_t exchanges_ = 0;
  std::uint64_t unresolved_ = 0;
};

// --- a trainer ----------------------------------------------------------------------------------------------------

/// Thrown when a fragment holds different values.
struct Torn : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A client that keeps to the contract. Each fragment has one value, exactly.
class PlayedTrainer {
 public:
  /// Fragment f of its model begins with first · (f + 1). In lean memory, fragments have `lean_fragment_elements`.
  PlayedTrainer(double first, std::uint32_t elements, bool lean = false)
      : memory({{"weights", layout::Role::param, {elements}}},
               lean ? lean_fragment_elements : played_fragment_elements),
        elements_(elements),
        fragment_elements_(lean ? lean_fragment_elements : played_fragment_elements) {
    memory.seal();
    if (lean) memory.header().window_bytes = layout::fragment_bytes(memory.plan) * lean_window;
    for (std::uint32_t f = 0; f < memory.plan.fragment_count; ++f) {
      x_.push_back(first * (f + 1));
      if (!lean) std::fill_n(memory.buffer(f, 0), count_of(f), static_cast<float>(x_[f]));
      memory.fragment(f).word = layout::Word{.generation = 1, .empty = lean}.pack();
    }
    unpublished_.resize(x_.size());
    published_last_.resize(x_.size());
    trained_.resize(x_.size());
  }

  void train(double change) {
    for (std::size_t f = 0; f < x_.size(); ++f) {
      x_[f] += change;
      unpublished_[f] += change;
      trained_[f] += change;
    }
  }
  /// Serves what is due.
  void step() {
    constexpr std::uint64_t samples = 8;
    memory.header().clock += samples;
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      layout::Word word = layout::Word::unpack(memory.fragment(f).word.load());
      if (!word.valid()) throw Torn("an impossible word");
      if (!word.with_client) continue;
      const double correction = word.correction_valid ? value(f, word.correction, "half a correction") : 0;
      x_[f] = word.replace ? correction : x_[f] + correction;
      std::fill_n(memory.buffer(f, word.spare()), count_of(f), static_cast<float>(x_[f]));
      word.publication = word.spare();
      word.correction_valid = word.replace = word.with_client = word.empty = false;
      ++word.generation;
      memory.fragment(f).publication_clock.store(memory.header().clock);
      memory.fragment(f).word.store(word.pack());
      published_last_[f] = std::exchange(unpublished_[f], 0);
    }
  }
  [[nodiscard]] layout::RunState state() const { return static_cast<layout::RunState>(memory.header().state.load()); }
  [[nodiscard]] double x(std::uint32_t f) const { return x_[f]; }
  [[nodiscard]] double trained(std::uint32_t f) const { return trained_[f]; }
  /// What it has trained since its last publication.
  [[nodiscard]] double unpublished(std::uint32_t f) const { return unpublished_[f]; }
  /// What it had trained between its last two publications.
  [[nodiscard]] double published_last(std::uint32_t f) const { return published_last_[f]; }
  /// Whether there is memory for a fragment of which the word says that it needs none.
  [[nodiscard]] bool keeps_vacant_memory() const {
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      if (!layout::Word::unpack(memory.fragment(f).word.load()).vacant()) continue;
      const auto begin = static_cast<off_t>(layout::buffer_offset(memory.plan, f, 0));
      const off_t data = ::lseek(memory.fd.get(), begin, SEEK_DATA);
      if (data >= 0 && data < begin + static_cast<off_t>(layout::fragment_bytes(memory.plan))) return true;
    }
    return false;
  }
  /// The fragment as the memory has it, s + c. An empty word says nothing, so the live values without unpublished
  /// training count.
  [[nodiscard]] double stored(std::uint32_t f) const {
    const layout::Word word = layout::Word::unpack(memory.fragment(f).word.load());
    if (!word.valid()) throw Torn("an impossible word");
    if (word.empty && !word.correction_valid) return x_[f] - unpublished_[f];
    if (word.empty) return value(f, word.correction, "half a correction");
    const double s = value(f, word.publication, "half a publication");
    return s + (word.correction_valid ? value(f, word.correction, "half a correction") : 0);
  }
  /// The value that the live fragment will have once it has the correction.
  [[nodiscard]] double owed(std::uint32_t f) const { return stored(f) + unpublished_[f]; }
  /// The value that exchanges alone have led to, without all training.
  [[nodiscard]] double mixed(std::uint32_t f) const { return owed(f) - trained_[f]; }

  TestMemory memory;

 private:
  [[nodiscard]] std::uint32_t count_of(std::uint32_t f) const {
    return std::min(fragment_elements_, elements_ - f * fragment_elements_);
  }
  [[nodiscard]] double value(std::uint32_t f, std::uint8_t index, const char* otherwise) const {
    const float* values = memory.buffer(f, index);
    if (!std::all_of(values, values + count_of(f), [&](float v) { return v == values[0]; })) throw Torn(otherwise);
    return static_cast<double>(values[0]);
  }

  std::uint32_t elements_;
  std::uint32_t fragment_elements_;
  std::vector<double> x_;
  std::vector<double> unpublished_;
  std::vector<double> published_last_;
  std::vector<double> trained_;
};

}  // namespace gossamer::daemon::test
#endif
