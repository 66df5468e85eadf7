// A hostile daemon. It writes anything anywhere in the shared memory at any time, answers with garbage, and closes when
// it likes. The trainer must not crash or stop. Its tensors change by corrections only, its own figures not at all, and
// an honest daemon that comes later finds it in order.

#include <gossamer.h>

#include <cstring>
#include <gossamer.hpp>
#include <random>

#include "catch.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;
using gossamer::test::ContractDaemon;

namespace {

using Random = std::mt19937_64;
constexpr std::uint32_t elements = 1'500;
constexpr std::uint32_t fragment_elements = 256;
constexpr std::uint64_t samples = 3;
/// The length of each of two phases. A sanitizer's build makes fewer steps in it.
constexpr std::chrono::milliseconds duration{700};

[[nodiscard]] std::uint64_t chosen_seed() {
  const char* given = std::getenv("GOSSAMER_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// A tensor with marked memory on both sides, which must not change.
struct Guarded {
  static constexpr std::size_t guard = 1'024;
  static constexpr float mark = 42.5f;
  std::vector<float> memory = std::vector<float>(guard + elements + guard, mark);
  std::vector<float> local = std::vector<float>(100, mark);
  [[nodiscard]] std::span<float> tensor() { return std::span(memory).subspan(guard, elements); }
  [[nodiscard]] std::vector<Tensor> tensors() {
    return {param("first", tensor().first(700)), gossamer::local("local", GOSSAMER_F32, {100}),
            param("second", tensor().subspan(700))};
  }
  [[nodiscard]] bool surroundings_intact() const {
    const auto is_mark = [](float value) { return value == mark; };
    return std::all_of(memory.begin(), memory.begin() + guard, is_mark) &&
           std::all_of(memory.end() - guard, memory.end(), is_mark) && std::all_of(local.begin(), local.end(), is_mark);
  }
};

/// Which bits of a word the hostile daemon leaves clear.
struct Harm {
  std::uint64_t never = 0;
};

/// Damages the memory once: a word, a counter, random bytes, or all buffers.
void scribble(const test::ContractClient& client, std::uint32_t fragments, std::uint64_t fragments_offset,
              std::uint64_t buffers_offset, const Harm& harm, Random& random) {
  constexpr std::size_t entry_bytes = sizeof(layout::FragmentEntry);
  auto* bytes = const_cast<std::byte*>(client.bytes().data());
  const std::size_t size = client.bytes().size();
  const auto is_word = [&](std::size_t at) {
    return at >= fragments_offset && at < fragments_offset + fragments * entry_bytes &&
           (at - fragments_offset) % entry_bytes == 0;
  };
  const auto store = [&](std::size_t at, std::uint64_t bits) {
    if (is_word(at)) bits &= ~harm.never;
    reinterpret_cast<std::atomic<std::uint64_t>*>(bytes + at)->store(bits, std::memory_order_release);
  };
  switch (random() % 4) {
    case 0: {  // a word that may well be possible
      const std::uint64_t bits = random() & 0xfffffffffffffff7;
      store(fragments_offset + random() % fragments * entry_bytes, random() % 8 == 0 ? random() : bits);
      break;
    }
    case 1:
      store(random() % (buffers_offset / 8) * 8, random());
      break;
    case 2:
      for (std::size_t at = random() % size / 8 * 8, n = 0; n < 64 && at < size; at += 8, ++n)
        store(at, random() % 4 == 0 ? 0x7fc000007fc00000 : random());
      break;
    default:
      for (int i = 0; i < 32; ++i)
        store(buffers_offset + random() % ((size - buffers_offset) / 8) * 8, random());
  }
  client.header().due_sequence.fetch_add(1, std::memory_order_release);
}

/// Answers a request to attach: correctly, with garbage, with too many bytes, or not at all.
void answer(test::ContractClient& client, Random& random) {
  switch (random() % 4) {
    case 0: {
      layout::AttachReply reply{};
      auto* bytes = reinterpret_cast<std::byte*>(&reply);
      std::generate(bytes, bytes + sizeof reply, [&] { return static_cast<std::byte>(random()); });
      if (random() % 2 == 0) reply.magic = layout::attach_magic;
      if (random() % 2 == 0) reply.version = layout::attach_version;
      [[maybe_unused]] const ssize_t sent = send(client.socket(), &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT);
      break;
    }
    case 1: {
      const std::vector<char> bytes(random() % 100'000, 'x');
      [[maybe_unused]] const ssize_t sent =
          send(client.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      break;
    }
    case 2:
      break;
    default:
      client.reply(layout::AttachStatus::accepted);
  }
}

/// Accepts, answers, damages the memory and closes, until it is told to stop.
void be_hostile(ContractDaemon& daemon, std::uint32_t fragments, std::uint64_t fragments_offset,
                std::uint64_t buffers_offset, const Harm& harm, std::uint64_t seed, const std::atomic<bool>& stop) {
  Random random(seed);
  bool first = true;
  while (!stop) {
    if (!daemon.has_caller(5)) continue;
    const auto client = daemon.accept();
    if (std::exchange(first, false)) {
      client->accept();
    } else {
      answer(*client, random);
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50 + random() % 150);
    while (!stop && std::chrono::steady_clock::now() < until)
      scribble(*client, fragments, fragments_offset, buffers_offset, harm, random);
  }
}

struct Outcome {
  std::uint64_t steps = 0;
  std::uint64_t bad_memory = 0;
  bool statuses_allowed = true;
  bool figures_own = true;
};

/// Steps beside the hostile daemon for a while.
[[nodiscard]] Outcome train(Run& run, ContractDaemon& daemon, const Harm& harm, std::uint64_t seed) {
  const gossamer_run_info before = run.info();
  const layout::Plan plan = layout::plan(elements, fragment_elements, 3, std::strlen("firstlocalsecond"));
  std::atomic<bool> stop = false;
  std::thread hostile(
      [&] { be_hostile(daemon, before.fragments, plan.fragments_offset, plan.buffers_offset, harm, seed, stop); });
  Outcome outcome;
  const auto until = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < until) {
    const gossamer_status status = gossamer_step(run.handle(), samples);
    ++outcome.steps;
    outcome.bad_memory += status == GOSSAMER_BAD_MEMORY ? 1 : 0;
    outcome.statuses_allowed &= status == GOSSAMER_OK || status == GOSSAMER_BAD_MEMORY;
    if (outcome.steps % 64 != 0) continue;
    const gossamer_run_info info = run.info();
    outcome.figures_own &=
        info.steps == before.steps + outcome.steps &&
        info.trained_samples == before.trained_samples + outcome.steps * samples &&
        info.clock_samples >= info.trained_samples && info.clock_samples <= layout::max_clock_samples &&
        info.fragments == before.fragments && info.elements == elements && info.layout_hash == before.layout_hash &&
        info.global_clock_samples >= info.clock_samples && std::memchr(info.message, 0, sizeof info.message) != nullptr;
    const gossamer_status waited = gossamer_wait_ready(run.handle(), 0);
    outcome.statuses_allowed &= waited != GOSSAMER_SYSTEM_ERROR && waited != GOSSAMER_NO_MEMORY;
  }
  stop = true;
  hostile.join();
  return outcome;
}

}  // namespace

TEST_CASE("a daemon that writes anything anywhere at any time harms nothing but what it may correct") {
  const std::uint64_t seed = chosen_seed();
  INFO("GOSSAMER_SEED=" << seed);
  Guarded model;
  ContractDaemon daemon;
  Run run({.job = "test", .socket_path = daemon.path(), .fragment_elements = fragment_elements}, model.tensors());

  // Without a valid correction nothing of the tensors may change, whatever else is written.
  const Outcome without = train(run, daemon, {.never = 2}, seed);
  CHECK(without.statuses_allowed);
  CHECK(without.figures_own);
  CHECK(without.steps > 100);
  CHECK(model.surroundings_intact());
  CHECK(std::ranges::all_of(model.tensor(), [](float value) { return value == Guarded::mark; }));

  const Outcome with = train(run, daemon, {}, seed + 1);
  CHECK(with.statuses_allowed);
  CHECK(with.figures_own);
  CHECK(with.bad_memory > 0);
  CHECK(model.surroundings_intact());
  CHECK_FALSE(std::ranges::all_of(model.tensor(), [](float value) { return value == Guarded::mark; }));

  // An honest daemon restores the words to those of a new run, and gives the model to the client.
  std::unique_ptr<test::ContractClient> honest;
  REQUIRE(test::eventually([&] {
    if (!daemon.has_caller(0)) return false;
    honest = daemon.accept();
    return true;
  }));
  const layout::Plan plan = layout::plan(elements, fragment_elements, 3, std::strlen("firstlocalsecond"));
  auto* base = const_cast<std::byte*>(honest->bytes().data());
  for (std::uint32_t f = 0; f < plan.fragment_count; ++f) {
    auto* values = reinterpret_cast<float*>(base + layout::buffer_offset(plan, f, 1));
    std::fill_n(values, fragment_elements, 7.0f);
    const layout::Word due{.generation = 1,
                           .publication = 0,
                           .correction = 1,
                           .correction_valid = true,
                           .replace = true,
                           .with_client = true};
    reinterpret_cast<layout::FragmentEntry*>(base + plan.fragments_offset)[f].word.store(due.pack());
  }
  honest->accept();
  honest->announce();
  // Until then, the run shows what a hostile daemon said last.
  REQUIRE(test::eventually([&] { return run.info().attached == 1; }));
  CHECK(run.wait_ready(std::chrono::milliseconds(test::patience_ms)) == GOSSAMER_OK);
  CHECK(std::ranges::all_of(model.tensor(), [](float value) { return value == 7.0f; }));
  CHECK(model.surroundings_intact());
}
