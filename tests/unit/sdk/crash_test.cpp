// The trainer is killed before each of its stores to shared memory in turn, and the daemon checks what it has left:
// nothing half published, and no correction added twice or lost. Stores count from the end of opening, because before
// that nobody else holds the memory.
//
// Every fragment holds one value in all its elements. All values are multiples of 1/8, so that sums are exact and a
// half-made change shows.

#include <gossamer.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <gossamer.hpp>
#include <map>
#include <optional>

#include "catch.hpp"
#include "sdk/layout/slots.hpp"
#include "store_trap.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"
#include "tests/unit/sdk/fake_client_plugin.hpp"

#ifdef GOSSAMER_STORE_TRAP

using namespace gossamer;
using gossamer::test::ContractDaemon;

namespace {

constexpr std::uint32_t fragments = 3;
constexpr int rounds = 3;
constexpr float trained = 0.125f;  ///< added to each element by each step
constexpr std::uint64_t samples = 8;

/// Where the weights and the fragments are.
enum class Place { host, gpu, gpu_through_pinned };

/// The kind of memory. In lean memory, each fragment is given memory before a round and has none at its beginning. Its
/// fragments are larger, because two buffers must not share a page.
struct Memory {
  gossamer_memory kind;
  std::uint32_t fragment_elements;
  Place place = Place::host;

  [[nodiscard]] bool on_gpu() const { return place != Place::host; }
  [[nodiscard]] std::uint32_t elements() const { return 2 * fragment_elements + 88; }
  [[nodiscard]] bool lean() const { return kind == GOSSAMER_MEMORY_LEAN; }
  /// Larger fragments are copied byte by byte (`rep movsb`), and the fake GPU stores element by element. A sample of
  /// these many stores is enough.
  [[nodiscard]] std::uint64_t stride() const { return kill_stride * (lean() ? 499 : on_gpu() ? 13 : 1); }
};
constexpr Memory resident{GOSSAMER_MEMORY_RESIDENT, 256};
constexpr Memory lean{GOSSAMER_MEMORY_LEAN, 1024};
constexpr Memory gpu{GOSSAMER_MEMORY_AUTO, 256, Place::gpu};
constexpr Memory gpu_through_pinned{GOSSAMER_MEMORY_AUTO, 256, Place::gpu_through_pinned};

/// The mappings of the run's memory in this process. With a GPU, these include the mappings through which the GPU
/// stores.
[[nodiscard]] std::vector<std::span<std::byte>> mapped_memory() {
  std::vector<std::span<std::byte>> mappings;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (line.find("memfd:gossamer") == std::string::npos && line.find("memfd:fake-gpu") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) != 2) continue;
    mappings.emplace_back(reinterpret_cast<std::byte*>(begin), static_cast<std::size_t>(end - begin));
  }
  return mappings;
}

/// The cursor that the trainer sets in a round. Its length differs each time. Before the first round there is none.
[[nodiscard]] std::string cursor_of(int round) {
  return round < 0 ? "" : std::string(20 + 30 * static_cast<std::size_t>(round), static_cast<char>('a' + round));
}

/// Serves the due fragments, after training.
using Step = std::function<void(Run& run, std::span<std::byte> memory, std::span<float> weights)>;

void step(Run& run, std::span<std::byte>, std::span<float>) {
  run.step(samples);
}

/// The trainer's GPU. One thread at a time stores: first the program's, then the stream's.
class TrainersGpu {
 public:
  explicit TrainersGpu(Place place) {
    setenv("GOSSAMER_CLIENT_CUDA_PLUGIN", GOSSAMER_FAKE_PLUGIN, 1);
    FAKE(fake_, fake_refuse_share)(place == Place::gpu_through_pinned ? 1 : 0);
    stream_ = FAKE(fake_, fake_stream)();
  }
  [[nodiscard]] std::span<float> allocate(std::size_t count) {
    return {static_cast<float*>(FAKE(fake_, fake_allocate)(0, count * sizeof(float))), count};
  }
  void step(Run& run) {
    FAKE(fake_, fake_hold)(stream_);
    run.step(samples);
    FAKE(fake_, fake_release)(stream_);
    FAKE(fake_, fake_synchronize)(stream_);
  }
  [[nodiscard]] void* stream() const { return stream_; }

 private:
  test::FakeGpu fake_{GOSSAMER_FAKE_PLUGIN};
  void* stream_;
};

/// The child process. It trains a round when it is told to, says when it has, and at the end closes the run.
void train(const ContractDaemon& daemon, const Memory& kind, int commands, int answers, Step serve,
           std::uint64_t kill_at, std::atomic<std::uint64_t>& stores) {
  std::vector<float> on_host(kind.elements());
  std::span<float> weights = on_host;
  std::optional<TrainersGpu> device;
  if (kind.on_gpu()) {
    device.emplace(kind.place);
    weights = device->allocate(kind.elements());
    serve = [&](Run& run, auto, auto) { device->step(run); };
  }
  std::ranges::fill(weights, 1.0f);
  const std::vector<Tensor> tensors = {param("weights", weights)};
  std::optional<Run> run(Run({.job = "test",
                              .socket_path = daemon.path(),
                              .fragment_elements = kind.fragment_elements,
                              .memory = kind.kind,
                              .device = kind.on_gpu() ? GOSSAMER_CUDA : GOSSAMER_HOST,
                              .stream = kind.on_gpu() ? device->stream() : nullptr},
                             tensors));
  while (run->info().attached == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  const std::vector<std::span<std::byte>> mappings = mapped_memory();
  for (const std::span<std::byte> memory : mappings)
    StoreTrap::arm(memory.data(), memory.size(), kill_at, stores);
  char byte = 0;
  for (int round = 0; round < rounds; ++round) {
    if (read(commands, &byte, 1) != 1) return;
    const std::string cursor = cursor_of(round);
    if (gossamer_set_cursor(run->handle(), cursor.data(), cursor.size()) != GOSSAMER_OK) return;
    for (float& weight : weights)
      weight += trained;
    serve(*run, mappings.front(), weights);
    if (write(answers, &byte, 1) != 1) return;
  }
  if (read(commands, &byte, 1) != 1) return;
  if (kind.on_gpu()) serve(*run, {}, weights);  // while closing, two threads would store at once
  run.reset();
}

/// What the daemon handed over of a fragment, and what a publication of it must then hold.
struct Expected {
  std::uint64_t bits = 0;       ///< the word before it is served
  float best = 1;               ///< y = s + c
  float since_publication = 0;  ///< what was trained before the round's step
  bool due = false;
};

/// The value of all elements of a fragment's buffer; none if they differ.
[[nodiscard]] std::optional<float> value_of(const test::ContractClient& client, std::uint32_t f, std::uint8_t index) {
  const layout::Header& header = client.header();
  const std::uint64_t used =
      std::min<std::uint64_t>(header.fragment_elements, header.elements - f * header.fragment_elements);
  const auto values = client.buffer(f, index).first(used);
  return std::ranges::all_of(values, [&](float v) { return v == values[0]; }) ? std::optional(values[0]) : std::nullopt;
}

/// The fault of a fragment after the trainer's death; empty: none.
[[nodiscard]] std::string fault(const test::ContractClient& client, std::uint32_t f, const Expected& expected) {
  const std::uint64_t bits = client.fragment(f).word.load();
  const layout::Word before = layout::Word::unpack(expected.bits);
  const layout::Word word = layout::Word::unpack(bits);
  if (!word.valid()) return "impossible word";
  layout::Word begun = before;
  begun.serving = expected.due;
  const bool not_served = bits == expected.bits || bits == begun.pack();
  if (word.empty) return not_served ? "" : "a word that nobody stores";
  const auto publication = value_of(client, f, word.publication);
  if (!publication) return "half a publication";
  float best = *publication;
  if (word.correction_valid) {
    const auto correction = value_of(client, f, word.correction);
    if (!correction) return "half a correction";
    best = word.replace ? *correction : best + *correction;
  }
  if (not_served) return best == expected.best ? "" : "what the daemon held has changed";
  if (!expected.due) return "a word that was not the trainer's has changed";
  if (word.with_client || word.correction_valid || word.generation != before.generation + 1) return "a step between";
  return best == expected.best + expected.since_publication ? "" : "not the correction and the training, once each";
}

class Trial {
 public:
  Trial(const Step& serve, std::uint64_t kill_at, const Memory& kind) : kind_(kind) {
    if (pipe(commands_) != 0 || pipe(answers_) != 0) throw std::runtime_error("pipe");
    child_ = fork();
    if (child_ == 0) {
      close(commands_[1]);
      close(answers_[0]);
      train(daemon_, kind_, commands_[0], answers_[1], serve, kill_at, *stores_);
      _exit(0);
    }
    close(commands_[0]);
    close(answers_[1]);
    client_ = daemon_.accept();
    client_->accept();
    for (std::uint32_t f = 0; f < fragments; ++f)
      expected_[f].bits = client_->fragment(f).word.load();
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    close(commands_[1]);
    close(answers_[0]);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  /// Runs the trainer until it ends or is killed. Returns the fault found then; empty: none.
  std::string run() {
    for (int round = 0; round <= rounds; ++round) {  // the last round is the closing of the run
      hand_over(round);
      char byte = 0;
      for (Expected& expected : expected_)
        expected.since_publication += round < rounds ? trained : 0;
      if (write(commands_[1], &byte, 1) != 1) return "the trainer died between two rounds";
      const bool answered = read(answers_[0], &byte, 1) == 1;
      std::string found = faults(round);
      if (!found.empty() || !answered) return found;
      take_back();
    }
    return "the trainer did not end";
  }
  [[nodiscard]] std::uint64_t stores() const { return *stores_; }

 private:
  /// Gives each fragment in turn a correction to add, one to take over, and none.
  void hand_over(int round) {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      const auto kind = (static_cast<std::uint32_t>(round) + f) % 3;
      const float value = 2.0f * static_cast<float>(round) + static_cast<float>(f) + 1;
      // Nothing can be added to an empty fragment.
      const bool empty = client_->word(f).empty;
      const bool replace = kind == 1;
      const bool none = kind == 2 || (empty && !replace);
      if (empty) client_->provide(f);
      client_->make_due(f, none ? std::vector<float>() : std::vector<float>(kind_.fragment_elements, value), replace);
      Expected& expected = expected_[f];
      expected.bits = client_->fragment(f).word.load();
      expected.due = true;
      if (replace) expected.since_publication = 0;  // the training since then is replaced, too
      expected.best = none ? expected.best : replace ? value : expected.best + value;
      replaced_[f] = replace;
    }
    client_->announce();
  }
  [[nodiscard]] std::string faults(int round) const {
    std::string all;
    auto* base = const_cast<std::byte*>(client_->bytes().data());
    const std::vector<std::byte> held = layout::load_slot(client_->header().own_cursor, base + layout::cursors_offset);
    const std::string cursor(reinterpret_cast<const char*>(held.data()), held.size());
    const int last = std::min(round, rounds - 1);
    if (cursor != cursor_of(last) && (round > last || cursor != cursor_of(last - 1))) all = "half a cursor";
    for (std::uint32_t f = 0; f < fragments; ++f) {
      Expected expected = expected_[f];
      if (replaced_[f]) expected.since_publication = 0;
      if (const std::string found = fault(*client_, f, expected); !found.empty()) all = found;
    }
    return all;
  }
  void take_back() {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      Expected& expected = expected_[f];
      expected.bits = client_->fragment(f).word.load();
      layout::Word word = client_->word(f);
      expected.best = *value_of(*client_, f, word.publication);
      if (kind_.lean() && f != 1) {  // one fragment keeps its publication
        word.empty = true;
        client_->fragment(f).word.store(word.pack(), std::memory_order_release);
        client_->vacate(f);
        expected.bits = word.pack();
      }
      expected.since_publication = 0;
      expected.due = false;
    }
  }

  const Memory kind_;
  SharedValue<std::atomic<std::uint64_t>> stores_;
  ContractDaemon daemon_;
  std::unique_ptr<test::ContractClient> client_;
  int commands_[2] = {-1, -1};
  int answers_[2] = {-1, -1};
  pid_t child_ = -1;
  std::array<Expected, fragments> expected_{};
  std::array<bool, fragments> replaced_{};
};

/// The faults found when a trainer is killed before each of its stores, and the number of stores.
struct Enumeration {
  std::uint64_t stores = 0;
  std::map<std::string, std::vector<std::uint64_t>> faults;  ///< the stores before which each fault was found
};
/// Ends early once the fault `until` is found.
[[nodiscard]] Enumeration kill_at_every_store(const Step& serve, const std::string& until = "",
                                              const Memory& kind = resident) {
  Enumeration enumeration;
  {
    Trial whole(serve, 0, kind);
    if (const std::string found = whole.run(); !found.empty()) enumeration.faults[found].push_back(0);
    enumeration.stores = whole.stores();
  }
  for (std::uint64_t kill_at = 1; kill_at <= enumeration.stores && !enumeration.faults.contains(until);
       kill_at += kind.stride()) {
    Trial trial(serve, kill_at, kind);
    if (const std::string found = trial.run(); !found.empty()) enumeration.faults[found].push_back(kill_at);
  }
  return enumeration;
}

/// A client written by hand. `serve_one` serves one due fragment.
template <class ServeOne>
Step hand_written(ServeOne serve_one) {
  return [serve_one](Run&, std::span<std::byte> memory, std::span<float> weights) {
    const auto& header = *reinterpret_cast<layout::Header*>(memory.data());
    for (std::uint32_t f = 0; f < fragments; ++f) {
      auto& entry = reinterpret_cast<layout::FragmentEntry*>(memory.data() + header.fragments_offset)[f];
      const layout::Word word = layout::Word::unpack(entry.word.load());
      if (!word.with_client) continue;
      const auto buffer = [&](std::uint8_t index) {
        return reinterpret_cast<float*>(memory.data() + header.buffers_offset +
                                        (std::uint64_t{f} * 3 + index) * header.buffer_stride);
      };
      const std::uint32_t count =
          std::min(resident.fragment_elements, resident.elements() - f * resident.fragment_elements);
      float* x = weights.data() + f * resident.fragment_elements;
      for (std::uint32_t i = 0; word.correction_valid && i < count; ++i)
        x[i] = (word.replace ? 0 : x[i]) + buffer(word.correction)[i];
      layout::Word next = word;
      next.generation += 1;
      next.publication = word.spare();
      next.correction_valid = next.replace = next.with_client = false;
      const auto publish = [&] {
        std::memcpy(buffer(word.spare()), x, count * sizeof(float));
        std::atomic_signal_fence(std::memory_order_seq_cst);
      };
      serve_one(entry, word, next, publish);
    }
  };
}

}  // namespace

TEST_CASE("a trainer killed before any of its stores leaves nothing half done and nothing done twice") {
  const Memory kind = GENERATE(resident, lean, gpu, gpu_through_pinned);
  CAPTURE(kind.lean(), static_cast<int>(kind.place));
  const Enumeration killed = kill_at_every_store(step, "", kind);
  INFO((killed.faults.empty() ? "" : killed.faults.begin()->first));
  CHECK(killed.faults.empty());
  // Each of 12 servings stores a fragment, two counters and the word; a vector has at most 64 bytes.
  CHECK(killed.stores > (rounds + 1) * kind.elements() * sizeof(float) / 64 + (rounds + 1) * fragments * 3);
  CHECK(killed.stores < (kind.lean() ? 60'000 : 12'000));
}

TEST_CASE("the same enumeration finds a wrong order of stores") {
  const Step word_first = hand_written([](auto& entry, auto, auto next, auto publish) {
    entry.word.store(next.pack());
    std::atomic_signal_fence(std::memory_order_seq_cst);
    publish();
  });
  CHECK(kill_at_every_store(word_first, "half a publication").faults.contains("half a publication"));

  // The correction stays valid until after the word has said that it was added. This client does not publish; the next
  // one does.
  const Step valid_too_long = hand_written([](auto& entry, auto word, auto next, auto) {
    layout::Word between = next;
    between.correction_valid = word.correction_valid;
    between.replace = word.replace;
    entry.word.store(between.pack());
    entry.word.store(next.pack());
  });
  CHECK(kill_at_every_store(valid_too_long, "a step between").faults.contains("a step between"));
}

#endif
