// What a step does to the tensors and the shared memory, and what it does not do.

#include <fcntl.h>
#include <gossamer.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <gossamer.hpp>
#include <limits>
#include <numeric>

#include "catch.hpp"
#include "sdk/layout/hash.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;
using gossamer::test::ContractDaemon;

namespace {

/// A model whose tensors cross fragment borders: 700 floats, 1,000 doubles and 33 floats in fragments of 256.
struct Model {
  std::vector<float> first = std::vector<float>(700);
  std::vector<double> second = std::vector<double>(1'000);
  std::vector<float> empty;
  std::vector<float> third = std::vector<float>(33);
  std::vector<float> statistics = std::vector<float>(5);

  Model() {
    std::iota(first.begin(), first.end(), 1.0f);
    std::iota(second.begin(), second.end(), 10'000.5);
    std::iota(third.begin(), third.end(), -40.0f);
    std::iota(statistics.begin(), statistics.end(), 0.25f);
  }
  [[nodiscard]] std::vector<Tensor> tensors() {
    return {param("first", first, {7, 100}), local("counter", GOSSAMER_I64, {}),
            param("second", second),         param("empty", empty, {0, 3}),
            param("third", third),           buffer("statistics", statistics)};
  }
  /// The replica as the contract defines it.
  [[nodiscard]] std::vector<float> flat() const {
    std::vector<float> all(first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    all.insert(all.end(), third.begin(), third.end());
    all.insert(all.end(), statistics.begin(), statistics.end());
    return all;
  }
};
constexpr std::uint32_t model_elements = 700 + 1'000 + 33 + 5;
constexpr std::uint32_t model_fragments = 7;

[[nodiscard]] Run open(Model& model, const ContractDaemon& daemon, std::uint64_t step_budget_bytes = 0) {
  return Run(
      {.job = "test", .socket_path = daemon.path(), .fragment_elements = 256, .step_budget_bytes = step_budget_bytes},
      model.tensors());
}

/// What a run asks to load and to store back: tensor, first element, number of elements.
struct Transfers {
  using Range = std::array<std::uint64_t, 3>;
  std::vector<Range> loaded;
  std::vector<Range> stored;
  bool fails = false;
  std::function<void()> while_loading = [] {};

  void give_to(const Run& run) {
    const auto load = [](void* context, size_t tensor, std::uint64_t first, std::uint64_t count) {
      auto& self = *static_cast<Transfers*>(context);
      if (self.fails) return 1;
      self.while_loading();
      self.loaded.push_back({tensor, first, count});
      return 0;
    };
    const auto store = [](void* context, size_t tensor, std::uint64_t first, std::uint64_t count) {
      static_cast<Transfers*>(context)->stored.push_back({tensor, first, count});
    };
    REQUIRE(gossamer_set_transfer(run.handle(), load, store, this) == GOSSAMER_OK);
  }
};

/// Accepts the run's client, and waits until the run has heard of it.
[[nodiscard]] std::unique_ptr<test::ContractClient> attach(const Run& run, ContractDaemon& daemon) {
  auto client = daemon.accept();
  client->accept();
  if (!test::eventually([&] { return run.info().attached == 1; })) throw std::runtime_error("the run did not attach");
  return client;
}

[[nodiscard]] std::vector<float> publications(const test::ContractClient& client) {
  std::vector<float> all;
  for (std::uint32_t f = 0; f < client.header().fragment_count; ++f) {
    const auto snapshot = client.publication(f);
    all.insert(all.end(), snapshot.begin(), snapshot.end());
  }
  all.resize(client.header().elements);
  return all;
}

[[nodiscard]] std::vector<float> ramp(float start) {
  std::vector<float> values(256);
  std::iota(values.begin(), values.end(), start);
  return values;
}

}  // namespace

TEST_CASE("opening describes the model and publishes it in every fragment") {
  Model model;
  ContractDaemon daemon;
  const Run run = open(model, daemon);
  const auto client = daemon.accept();
  const layout::Header& header = client->header();
  CHECK(header.version.load(std::memory_order_acquire) == layout::version);
  CHECK(header.magic == layout::magic);
  CHECK(client->request.magic == layout::attach_magic);
  CHECK(client->request.version == layout::attach_version);
  CHECK(client->request.flags == 0);
  CHECK(client->request.process_id == static_cast<std::uint64_t>(getpid()));
  CHECK(header.elements == model_elements);
  CHECK(header.fragment_elements == 256);
  REQUIRE(header.fragment_count == model_fragments);
  CHECK(header.header_bytes == sizeof(layout::Header));
  CHECK(std::string(header.job) == "test");
  REQUIRE(header.tensor_count == 6);

  const layout::Plan plan = layout::plan(model_elements, 256, 6, header.names_bytes);
  CHECK(header.total_bytes == plan.total_bytes);
  CHECK(client->request.memory_bytes == plan.total_bytes);
  CHECK(header.tensors_offset == plan.tensors_offset);
  CHECK(header.names_offset == plan.names_offset);
  CHECK(header.fragments_offset == plan.fragments_offset);
  CHECK(header.buffers_offset == plan.buffers_offset);
  CHECK(header.buffer_stride == plan.buffer_stride);

  const char* names[] = {"first", "counter", "second", "empty", "third", "statistics"};
  const std::uint64_t first_elements[] = {0, 0, 700, 1'700, 1'700, 1'733};
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(client->tensor_name(i) == names[i]);
    CHECK(client->tensor(i).first_element == first_elements[i]);
  }
  CHECK(client->tensor(0).dimensions == 2);
  CHECK(client->tensor(0).shape[1] == 100);
  CHECK(client->tensor(1).role == static_cast<std::uint8_t>(layout::Role::local));
  CHECK(client->tensor(1).elements == 1);
  CHECK(client->tensor(2).dtype == static_cast<std::uint8_t>(layout::Dtype::f64));

  CHECK(publications(*client) == model.flat());
  for (std::uint32_t f = 0; f < model_fragments; ++f) {
    CHECK(client->fragment(f).word.load() == layout::Word{.generation = 1}.pack());
  }
  const auto last = client->publication(model_fragments - 1);
  CHECK(std::all_of(last.begin() + model_elements % 256, last.end(), [](float value) { return value == 0; }));
  CHECK(client->header().layout_hash == run.info().layout_hash);
}

TEST_CASE("neither side can resize the memory") {
  Model model;
  ContractDaemon daemon;
  const Run run = open(model, daemon);
  const auto client = daemon.accept();
  CHECK(ftruncate(client->memory_file(), 0) != 0);
  CHECK(ftruncate(client->memory_file(), static_cast<off_t>(2 * client->request.memory_bytes)) != 0);
  CHECK((fcntl(client->memory_file(), F_GET_SEALS) & F_SEAL_SEAL) != 0);
}

TEST_CASE("a due correction is added and the result published, across tensors and dtypes") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  std::vector<float> expected = model.flat();
  for (std::uint32_t f = 0; f < model_fragments; ++f) {
    const std::vector<float> correction = ramp(0.125f * static_cast<float>(f) - 3);
    client->make_due(f, correction);
    for (std::uint32_t i = 0; i < 256 && f * 256 + i < model_elements; ++i)
      expected[f * 256 + i] += correction[i];
  }
  client->announce();
  run.step(32);
  CHECK(model.flat() == expected);
  CHECK(publications(*client) == expected);
  for (std::uint32_t f = 0; f < model_fragments; ++f) {
    const layout::Word word = client->word(f);
    REQUIRE(word.valid());
    CHECK(word.generation == 2);
    CHECK_FALSE(word.with_client);
    CHECK_FALSE(word.correction_valid);
    CHECK(word.publication != 0);  // not the old buffer, which is not overwritten
    CHECK(client->fragment(f).publication_clock.load() == 32);
  }
  CHECK(client->doorbell_rings() == 1);
  CHECK(client->header().clock.load() == 32);
  CHECK(client->header().steps.load() == 1);
  CHECK(client->header().publications.load() == model_fragments);
}

TEST_CASE("a step may be counted first, and served once its tensors are where they are") {
  Model model;
  ContractDaemon daemon;
  const Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  CHECK(gossamer_count_step(run.handle(), 8) == GOSSAMER_DUE);  // a new daemon may want anything
  CHECK(gossamer_serve_due(run.handle()) == GOSSAMER_OK);
  client->make_due(0, ramp(1));
  client->announce();
  const std::vector<float> before = model.flat();
  CHECK(gossamer_count_step(run.handle(), 24) == GOSSAMER_DUE);
  CHECK(model.flat() == before);
  CHECK(client->header().clock.load() == 32);
  CHECK(client->header().steps.load() == 2);
  CHECK(client->word(0).with_client);
  CHECK(gossamer_serve_due(run.handle()) == GOSSAMER_OK);
  CHECK(model.flat()[1] == before[1] + 2);
  CHECK_FALSE(client->word(0).with_client);
  CHECK(client->header().steps.load() == 2);
  CHECK(gossamer_count_step(run.handle(), 1) == GOSSAMER_OK);
  CHECK(client->header().steps.load() == 3);
  CHECK(gossamer_count_step(run.handle(), static_cast<std::uint64_t>(-1)) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_count_step(nullptr, 1) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_serve_due(nullptr) == GOSSAMER_BAD_ARGUMENT);
}

namespace {
[[nodiscard]] bfloat16 upper_half(float value) {
  return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)};
}
[[nodiscard]] float value_of(bfloat16 half) {
  return std::bit_cast<float>(std::uint32_t{half.bits} << 16);
}
}  // namespace

TEST_CASE("a bfloat16 tensor takes corrections smaller than its spacing, in the mean") {
  constexpr float correction = 0.0003f;  // the spacing at 1 is 2^-7
  constexpr int rounds = 200;
  std::vector<bfloat16> values(256, upper_half(1.0f));
  ContractDaemon daemon;
  const std::vector<Tensor> tensors = {param("values", values)};
  Run run({.job = "test", .socket_path = daemon.path()}, tensors);
  const auto client = attach(run, daemon);
  for (int round = 0; round < rounds; ++round) {
    client->make_due(0, std::vector<float>(256, correction));
    client->announce();
    run.step(1);
    for (std::size_t i = 0; i < values.size(); ++i)
      REQUIRE(client->publication(0)[i] == value_of(values[i]));
  }
  double sum = 0, squares = 0;
  for (const bfloat16 value : values) {
    sum += value_of(value);
    squares += double{value_of(value)} * value_of(value);
  }
  const double mean = sum / 256;
  const double deviation = std::sqrt(squares / 256 - mean * mean);
  // A step up is a spacing or nothing: the variance of a round is correction times (spacing less correction).
  const double expected_deviation = std::sqrt(rounds * double{correction} * (0.0078125 - correction));
  CHECK(mean == Approx(1 + rounds * correction).margin(4 * expected_deviation / 16));
  CHECK(deviation == Approx(expected_deviation).epsilon(0.3));
}

TEST_CASE("a bfloat16 tensor keeps values that need no rounding, and those that are none") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<bfloat16> values(256, upper_half(3.0f));
  ContractDaemon daemon;
  const std::vector<Tensor> tensors = {param("values", values)};
  Run run({.job = "test", .socket_path = daemon.path()}, tensors);
  const auto client = attach(run, daemon);
  std::vector<float> correction(256, 0.5f);
  correction[0] = infinity;
  correction[1] = -infinity;
  correction[2] = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half is infinity's
  correction[3] = 0;
  client->make_due(0, correction);
  client->announce();
  run.step(1);
  CHECK(value_of(values[0]) == infinity);
  CHECK(value_of(values[1]) == -infinity);
  CHECK(std::isnan(value_of(values[2])));
  CHECK(value_of(values[3]) == 3.0f);
  CHECK(std::ranges::all_of(std::span(values).subspan(4), [](bfloat16 v) { return value_of(v) == 3.5f; }));
  // Taken over rather than added.
  std::ranges::fill(correction, -0.25f);
  client->make_due(0, correction, true);
  client->announce();
  run.step(1);
  CHECK(std::ranges::all_of(values, [](bfloat16 v) { return value_of(v) == -0.25f; }));
}

TEST_CASE("a correction to a double tensor keeps the double's precision") {
  std::vector<double> values = {1.0 + 1e-12, 2.0};
  ContractDaemon daemon;
  const std::vector<Tensor> tensors = {param("values", values)};
  Run run({.job = "test", .socket_path = daemon.path()}, tensors);
  const auto client = attach(run, daemon);
  client->make_due(0, {0.5f, -0.25f});
  client->announce();
  run.step(1);
  CHECK(values[0] == 1.0 + 1e-12 + 0.5);
  CHECK(values[1] == 1.75);
  CHECK(client->publication(0)[0] == static_cast<float>(values[0]));
}

TEST_CASE("a buffer that has moved on by itself takes no more of a correction than leads to its target") {
  ContractDaemon daemon;
  Model model;
  model.statistics = {1, 1, 1, 1, 1};
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  const std::uint32_t last = model_fragments - 1;
  const std::uint32_t offset = 700 + 1'000 + 33 - last * 256;
  // The publication was 1. A correction of -0.5 makes the target 0.5, and one of 0.25 makes it 1.25.
  model.statistics = {0.125F, 0.75F, 2, 0.125F, 1.125F};
  model.third.back() = 100;  // a parameter takes the whole correction, whatever its value
  std::vector<float> correction(256, -0.5F);
  correction[offset + 3] = correction[offset + 4] = 0.25F;
  client->make_due(last, correction);
  client->announce();
  run.step(1);
  CHECK(model.statistics == std::vector<float>{0.125F, 0.5F, 1.5F, 0.375F, 1.25F});
  CHECK(model.third.back() == 99.5F);
  const auto snapshot = client->publication(last).subspan(offset, 5);
  CHECK(std::ranges::equal(snapshot, model.statistics));
}

TEST_CASE("a due fragment without a correction is published as it is") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  model.first[3] = 777;
  const std::vector<float> before = model.flat();
  client->make_due(0);
  client->announce();
  run.step(1);
  CHECK(model.flat() == before);
  CHECK(client->publication(0)[3] == 777);
  CHECK(client->word(0).generation == 2);
  CHECK(client->word(1).generation == 1);
}

TEST_CASE("replace takes values over instead of adding them") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  std::vector<float> expected = model.flat();
  const std::vector<float> values = ramp(5'000);
  client->make_due(2, values, true);  // half of `first`, then `second`
  std::ranges::copy(values, expected.begin() + 512);
  client->announce();
  run.step(1);
  CHECK(model.flat() == expected);
  CHECK(publications(*client) == expected);
}

TEST_CASE("a replaced value wipes out what was not a number") {
  Model model;
  model.first[0] = std::numeric_limits<float>::quiet_NaN();
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  client->make_due(0, ramp(1), true);
  client->announce();
  run.step(1);
  CHECK(model.first[0] == 1.0f);
}

TEST_CASE("a step serves no more than its budget, and the rest at the steps after it") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon, 2 * 256 * sizeof(float));
  const auto client = attach(run, daemon);
  for (std::uint32_t f = 0; f < model_fragments; ++f)
    client->make_due(f, ramp(1));
  client->announce();
  std::vector<std::uint64_t> served;
  for (int step = 0; step < 5; ++step) {
    run.step(1);
    served.push_back(client->header().publications.load());
  }
  CHECK(served == std::vector<std::uint64_t>{2, 4, 6, 7, 7});
  // The last fragment holds 202 elements; a second one fits beside it only at the next step.
  CHECK(run.info().publications == model_fragments);
}

TEST_CASE("a budget smaller than a fragment serves one fragment a step, all in turn") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon, 1);
  const auto client = attach(run, daemon);
  std::vector<int> times_served(model_fragments, 0);
  for (std::uint32_t step = 0; step < 3 * model_fragments; ++step) {
    for (std::uint32_t f = 0; f < model_fragments; ++f) {
      if (!client->word(f).with_client) client->make_due(f);
    }
    client->announce();
    run.step(1);
    for (std::uint32_t f = 0; f < model_fragments; ++f)
      times_served[f] += client->word(f).with_client ? 0 : 1;
  }
  CHECK(times_served == std::vector<int>(model_fragments, 3));
}

TEST_CASE("a fragment of lean memory is published when it is wanted, and taken over into an empty one") {
  std::vector<float> weights(3'000);
  std::iota(weights.begin(), weights.end(), 1.0f);
  ContractDaemon daemon;
  const Tensor tensors[] = {param("weights", weights)};
  Run run({.job = "test", .socket_path = daemon.path(), .fragment_elements = 1024, .memory = GOSSAMER_MEMORY_LEAN},
          tensors);
  const auto client = attach(run, daemon);
  const auto taken_bytes = [&] {
    struct stat file {};
    REQUIRE(fstat(client->memory_file(), &file) == 0);
    return static_cast<std::uint64_t>(file.st_blocks) * 512;
  };
  const std::uint64_t tables_bytes = client->header().buffers_offset;
  CHECK(taken_bytes() <= tables_bytes);
  run.step(8);
  CHECK(taken_bytes() <= tables_bytes);

  client->provide(1);
  client->make_due(1);
  client->announce();
  run.step(8);
  layout::Word word = client->word(1);
  CHECK((!word.empty && !word.with_client && word.generation == 1));
  CHECK(client->publication(1)[0] == 1'025.0f);
  CHECK(client->fragment(1).publication_clock == 16);
  CHECK(client->word(0).vacant());
  CHECK(taken_bytes() <= tables_bytes + 3 * 4096);

  client->make_due(1, std::vector<float>(1024, 0.5f));
  client->provide(2);
  client->make_due(2, std::vector<float>(1024, -3.0f), true);
  client->announce();
  run.step(8);
  CHECK(weights[1'024] == 1'025.5f);
  CHECK(client->publication(1)[0] == 1'025.5f);
  CHECK(weights[2'047] == 2'048.5f);
  CHECK(weights[2'048] == -3.0f);
  CHECK(weights[2'999] == -3.0f);
  CHECK(client->publication(2)[951] == -3.0f);
  word = client->word(2);
  CHECK((!word.empty && !word.replace && !word.correction_valid && word.generation == 1));

  // This word has a correction to add to an empty fragment.
  layout::Word impossible{.correction_valid = true, .with_client = true, .empty = true};
  client->fragment(0).word.store(impossible.pack(), std::memory_order_release);
  client->announce();
  CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_BAD_MEMORY);
  CHECK(weights[0] == 1.0f);
}

TEST_CASE("impossible words from a hostile daemon are reported and change nothing") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  const layout::Word due{.generation = 1, .with_client = true};
  const std::uint64_t impossible[] = {
      0xffffffffffffffff,
      due.pack() | 1u << 3,  // empty, in memory that is not lean
      layout::Word{.generation = 1, .serving = true}.pack(),
      layout::Word{.publication = 3, .correction = 1, .with_client = true}.pack(),
      layout::Word{.publication = 1, .correction = 3, .correction_valid = true, .with_client = true}.pack(),
      layout::Word{.publication = 2, .correction = 2, .with_client = true}.pack(),
      layout::Word{.publication = 0, .correction = 1, .replace = true, .with_client = true}.pack(),
  };
  for (const std::uint64_t bits : impossible) {
    const std::vector<float> before = model.flat();
    client->fragment(1).word.store(bits, std::memory_order_release);
    client->make_due(3, ramp(1));  // other fragments are still served
    client->announce();
    const std::uint32_t generation = client->word(3).generation;
    CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_BAD_MEMORY);
    CHECK(run.last_error().find("impossible word") != std::string::npos);
    CHECK(client->fragment(1).word.load() == bits);
    CHECK(client->word(3).generation == generation + 1);
    for (std::uint32_t i = 256; i < 512; ++i)
      REQUIRE(model.flat()[i] == before[i]);
    CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_OK);  // the error is reported once, not at every step
  }
}

TEST_CASE("what a hostile daemon writes to the header does not mislead the client") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  layout::Header& header = client->header();
  header.fragment_count = 0xffffffff;
  header.fragments_offset = std::uint64_t{1} << 60;
  header.buffers_offset = std::uint64_t{1} << 60;
  header.buffer_stride = std::uint64_t{1} << 40;
  header.elements = ~std::uint64_t{0};
  header.clock.store(1'000'000);
  header.global_clock.store(3);
  header.clock_base.store(~std::uint64_t{0});
  header.state.store(4'711);
  header.due_sequence.store(0xffffffff);
  run.step(10);
  const gossamer_run_info info = run.info();
  CHECK(info.trained_samples == 10);
  CHECK(info.clock_samples == layout::max_clock_samples);  // the largest possible clock
  CHECK(info.global_clock_samples == layout::max_clock_samples);
  CHECK(gossamer_step(run.handle(), 10) == GOSSAMER_OK);  // training goes on
  CHECK(info.fragments == model_fragments);
  CHECK(info.elements == model_elements);
  CHECK(info.state == GOSSAMER_DETACHED);
}

TEST_CASE("tensors that move are followed") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  const std::vector<float> old = model.first;
  std::vector<float> moved = model.first;
  run.set_tensor_data(0, moved.data());
  client->make_due(0, std::vector<float>(256, 1.0f));
  client->announce();
  run.step(1);
  CHECK(model.first == old);
  CHECK(moved[0] == old[0] + 1);
  CHECK_THROWS_AS(run.set_tensor_data(6, moved.data()), Error);
  CHECK_THROWS_AS(run.set_tensor_data(0, nullptr), Error);
  CHECK_THROWS_AS(run.set_tensor_data(0, reinterpret_cast<char*>(moved.data()) + 1), Error);
}

TEST_CASE("tensors that come to share memory are named by the step that would correct them twice") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  std::vector<float> one(model.first.size());
  run.set_tensor_data(0, model.third.data());  // only for a moment
  run.set_tensor_data(0, one.data());
  run.step(1);
  std::vector<float> other(model.first.size());
  run.set_tensor_data(0, other.data());
  run.set_tensor_data(4, other.data());
  client->make_due(0, std::vector<float>(256, 1.0f));
  client->announce();
  const std::vector<float> before = other;
  CHECK_THROWS_WITH(run.step(1), Catch::Contains("share memory, so corrections would be added twice"));
  CHECK_THROWS_AS(run.step(1), Error);
  CHECK(other == before);
  run.set_tensor_data(0, one.data());
  run.step(1);
  CHECK(one[0] == 1);
  CHECK(other == before);
}

TEST_CASE("values that live elsewhere are brought before they are read, and named when they have changed") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  Transfers transfers;
  transfers.while_loading = [&] { model.first[699] = 5; };  // `data` held an old value
  transfers.give_to(run);
  run.step(1);
  CHECK(transfers.loaded.empty());

  client->make_due(0);                                       // published without a correction
  client->make_due(2, std::vector<float>(256, 1.0f));        // the end of the first tensor, the begin of the second
  client->make_due(6, std::vector<float>(256, 2.0f), true);  // replaced, so nothing has to be loaded
  client->announce();
  run.step(1);
  using Ranges = std::vector<Transfers::Range>;
  CHECK(transfers.loaded == Ranges{{0, 0, 256}, {0, 512, 188}, {2, 0, 68}});
  CHECK(transfers.stored == Ranges{{0, 512, 188}, {2, 0, 68}, {2, 836, 164}, {4, 0, 33}, {5, 0, 5}});
  CHECK(model.first[699] == 6);
  CHECK(client->publication(2)[187] == 6);
  CHECK(model.third[0] == 2);

  CHECK(gossamer_set_transfer(run.handle(), nullptr, nullptr, nullptr) == GOSSAMER_OK);
  transfers.loaded.clear();
  client->make_due(0);
  client->announce();
  run.step(1);
  CHECK(transfers.loaded.empty());
  CHECK(gossamer_set_transfer(
            run.handle(), [](void*, size_t, std::uint64_t, std::uint64_t) { return 0; }, nullptr, nullptr) ==
        GOSSAMER_BAD_ARGUMENT);
}

TEST_CASE("a fragment whose values cannot be brought stays due, and its correction is not lost") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  Transfers transfers;
  transfers.give_to(run);
  const std::vector<float> before = model.flat();
  transfers.fails = true;
  client->make_due(1, std::vector<float>(256, 1.0f));
  client->announce();
  CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_NOT_LOADED);
  CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_NOT_LOADED);
  CHECK(run.last_error().find("host memory") != std::string::npos);
  CHECK(model.flat() == before);
  CHECK(transfers.stored.empty());
  CHECK(client->word(1).generation == 1);

  transfers.fails = false;
  run.step(1);
  CHECK(model.first[256] == before[256] + 1);
  CHECK(client->word(1).generation == 2);
}

TEST_CASE("closing serves what is due") {
  Model model;
  ContractDaemon daemon;
  auto run = std::make_unique<Run>(open(model, daemon));
  const auto client = attach(*run, daemon);
  const float before = model.first[0];
  client->make_due(0, std::vector<float>(256, 2.0f));
  run.reset();
  CHECK(model.first[0] == before + 2);
  CHECK(client->publication(0)[0] == before + 2);
  CHECK(client->doorbell_rings() == 1);
  REQUIRE(test::readable(client->socket()));
  char end;
  CHECK(recv(client->socket(), &end, 1, 0) == 0);
}

namespace {

/// From now on, any system call but one that ends the process kills the calling thread's process.
void forbid_system_calls() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog filter{.len = std::size(program), .filter = program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    _exit(99);
}

/// Runs `body` in a child process and returns what waitpid() says of it.
[[nodiscard]] int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    syscall(SYS_exit_group, 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("a step with nothing due makes no system call") {
  const int control = in_child([] {
    forbid_system_calls();
    syscall(SYS_getppid);
  });
  REQUIRE(WIFSIGNALED(control));  // the filter works

#ifndef __SANITIZE_THREAD__  // it makes some itself
  const int status = in_child([] {
    Model model;
    Run run({.job = "test", .socket_path = "/nonexistent/socket", .fragment_elements = 256}, model.tensors());
    run.step(1);  // the first looks at every fragment once
    forbid_system_calls();
    for (int i = 0; i < 100'000; ++i)
      run.step(1);
    syscall(SYS_exit_group, 42);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
#endif
}

TEST_CASE("what others take of the processor is not counted as serving") {
  constexpr int others = 4;
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ContractDaemon daemon;
  std::vector<float> values(1 << 20);
  const std::vector<Tensor> tensors{param("values", values, {1 << 20})};
  Run run({.job = "test", .socket_path = daemon.path()}, tensors);
  auto client = attach(run, daemon);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  std::vector<pid_t> spinning;
  for (int i = 0; i < others; ++i) {
    spinning.push_back(fork());
    if (spinning.back() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::atomic<std::uint64_t> spins{0};
    for (;;)
      spins.fetch_add(1, std::memory_order_relaxed);
  }
  using Clock = std::chrono::steady_clock;
  const auto now = [] {
    timespec processor{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor);
    return std::pair(Clock::now(),
                     std::chrono::seconds(processor.tv_sec) + std::chrono::nanoseconds(processor.tv_nsec));
  };
  const auto [begin, processor_begin] = now();
  std::chrono::nanoseconds passed{};
  std::chrono::nanoseconds processor{};
  // Runs until most of the time has gone to other programs.
  while (passed < 2 * processor || processor < std::chrono::milliseconds(50)) {
    if (!client->word(0).with_client) client->make_due(0);
    client->announce();
    run.step(1);
    const auto [end, processor_end] = now();
    passed = end - begin;
    processor = processor_end - processor_begin;
    if (passed > std::chrono::seconds(60)) break;
  }
  for (const pid_t pid : spinning) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  sched_setaffinity(0, sizeof before, &before);
  REQUIRE(passed > 2 * processor);
  const auto serving = static_cast<double>(run.info().serving_ns);
  CAPTURE(passed.count(), processor.count());
  CHECK(serving > 0.3 * static_cast<double>(processor.count()));
  CHECK(serving < 1.3 * static_cast<double>(processor.count()));
}

// Under a sanitizer a step takes a hundred times as long, which shows nothing.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a step with nothing due takes a few nanoseconds") {
  Model model;
  Run run({.job = "test", .socket_path = "/nonexistent/socket", .fragment_elements = 256}, model.tensors());
  run.step(1);
  // The best of many short runs, which alternate, so that other work on the machine hardly counts.
  constexpr int calls = 20'000;
  auto step = std::chrono::nanoseconds::max();
  auto system_call = std::chrono::nanoseconds::max();
  auto atomic_add = std::chrono::nanoseconds::max();
  std::atomic<int> sum{0};
  // Tests are not optimized: Run::handle() would take longer than the step.
  gossamer_run* const handle = run.handle();
  const auto take = [](std::chrono::nanoseconds& best, const auto& call) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i)
      call();
    best = std::min<std::chrono::nanoseconds>(best, std::chrono::steady_clock::now() - begin);
  };
  for (int attempt = 0; attempt < 200; ++attempt) {
    take(step, [handle] { gossamer_step(handle, 1); });
    take(system_call, [] { syscall(SYS_getppid); });
    take(atomic_add, [&sum] { sum.fetch_add(1); });
  }
  // A step takes 2.2 ns (docs/reference/c-api.md). On a slow machine it may exceed the limit, where a system call takes
  // longer, too, or an atomic addition, which takes 9 ns on some processors.
  constexpr std::chrono::nanoseconds limit(20);
  CHECK(step < std::max({limit * calls, system_call / 8, 4 * atomic_add}));
}
#endif

TEST_CASE("after fork the child's handle does nothing and the parent's goes on") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  client->make_due(0, std::vector<float>(256, 1.0f));
  client->announce();
  const float before = model.first[0];
  const int status = in_child([&] {
    gossamer_run_info info{};
    info.size = sizeof info;
    const bool inert = gossamer_step(run.handle(), 1) == GOSSAMER_FORKED &&
                       gossamer_info(run.handle(), &info) == GOSSAMER_FORKED &&
                       gossamer_wait_ready(run.handle(), 0) == GOSSAMER_FORKED && model.first[0] == before;
    gossamer_close(run.handle());
    syscall(SYS_exit_group, inert ? 42 : 1);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
  CHECK(client->word(0).with_client);
  run.step(1);
  CHECK(model.first[0] == before + 1);
  CHECK_FALSE(test::readable(client->socket(), 0));  // still attached
}

TEST_CASE("what is logged is in the memory for the daemon, and its means come back") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  auto& logged =
      *reinterpret_cast<layout::Logged*>(reinterpret_cast<std::byte*>(&client->header()) + layout::logged_offset);
  CHECK(logged.count == 0);
  run.log("loss", 0.5);
  run.log("accuracy", 0.25);
  run.log("loss", 0.125);
  REQUIRE(logged.count == 2);
  CHECK(std::string(logged.entries[0].name) == "loss");
  CHECK(std::bit_cast<double>(logged.entries[0].value.load()) == 0.125);
  double value = 0;
  double mean = 0;
  std::uint32_t nodes = 9;
  REQUIRE(gossamer_logged(run.handle(), "loss", &value, &mean, &nodes) == GOSSAMER_OK);
  CHECK((value == 0.125 && mean == 0.125 && nodes == 0));
  logged.entries[0].mean.store(std::bit_cast<std::uint64_t>(0.75));
  logged.entries[0].nodes.store(3);
  REQUIRE(gossamer_logged(run.handle(), "loss", &value, &mean, &nodes) == GOSSAMER_OK);
  CHECK((value == 0.125 && mean == 0.75 && nodes == 3));
  for (const char* const name : {"", "a\nb", "a name that is much longer than may be"})
    CHECK(gossamer_log(run.handle(), name, 1) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_log(run.handle(), nullptr, 1) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_logged(run.handle(), "losses", &value, &mean, &nodes) == GOSSAMER_BAD_ARGUMENT);
  for (int i = 2; i < 8; ++i)
    run.log("value " + std::to_string(i), i);
  CHECK_THROWS_WITH(run.log("ninth", 9), Catch::Contains("at most 8"));
  CHECK(logged.count == 8);
  logged.count.store(4'000'000'000);  // a count that no program should write
  run.log("loss", 1);
  CHECK_THROWS_WITH(run.log("ninth", 9), Catch::Contains("at most 8"));
}

TEST_CASE("a negative number of samples is refused, not counted as a large one") {
  Model model;
  Run run({.job = "test", .socket_path = "/nonexistent/socket"}, model.tensors());
  run.step(10);
  CHECK(gossamer_step(run.handle(), static_cast<std::uint64_t>(-1)) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(gossamer_last_error(run.handle())).find("negative") != std::string::npos);
  CHECK(run.info().clock_samples == 10);
  CHECK_THROWS_AS(Run({.job = "test", .initial_clock_samples = std::uint64_t{1} << 63}, model.tensors()), Error);
}

TEST_CASE("a clock does not leave its range, whatever is asked of it") {
  constexpr std::uint64_t most = std::uint64_t{1} << 53;
  Model model;
  CHECK_THROWS_WITH(Run({.job = "test", .initial_clock_samples = most + 1}, model.tensors()),
                    Catch::Contains("beyond 2^53"));
  Run run({.job = "test", .socket_path = "/nonexistent/socket", .initial_clock_samples = most - 10}, model.tensors());
  run.step(4);
  for (const std::uint64_t samples : {std::uint64_t{7}, most, std::uint64_t{1} << 62, ~std::uint64_t{0} - most + 11}) {
    CHECK(gossamer_step(run.handle(), samples) == GOSSAMER_BAD_ARGUMENT);
    CHECK(std::string(gossamer_last_error(run.handle())).find("beyond 2^53") != std::string::npos);
  }
  run.step(6);
  run.step(0);
  CHECK(run.info().clock_samples == most);
  CHECK(run.info().global_clock_samples == most);
  CHECK(run.info().steps == 3);
}
