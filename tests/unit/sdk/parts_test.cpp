// Replicas that several processes hold together. However the model is cut, the daemon and the tensors must see the same
// bits as with an uncut one. Here the parts are threads of one process, and each has a run of its own.

#include <gossamer.h>

#include <algorithm>
#include <atomic>
#include <gossamer.hpp>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "catch.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;
using gossamer::test::ContractDaemon;

namespace {

using Shape = std::vector<std::uint64_t>;

[[nodiscard]] std::uint64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

/// A box in a tensor.
struct Box {
  Shape offset;
  Shape size;

  /// Calls the function with each element's index in the box and in the whole, both row-major.
  template <class Function>
  void for_each(const Shape& whole, Function&& function) const {
    for (std::uint64_t here = 0; here < elements_of(size); ++here) {
      std::uint64_t rest = here, there = 0, stride = 1;
      for (std::size_t d = whole.size(); d-- > 0;) {
        there += (offset[d] + rest % size[d]) * stride;
        rest /= size[d];
        stride *= whole[d];
      }
      function(here, there);
    }
  }
};

/// A tensor of the whole model, and the boxes that the parts hold of it.
struct Whole {
  std::string name;
  Shape shape;
  gossamer_role role = GOSSAMER_PARAM;
  bool is_double = false;
  std::vector<Box> boxes;  ///< indexed by part
};

/// The values of a tensor, or of a part's box of it.
struct Values {
  std::vector<float> floats;
  std::vector<double> doubles;

  void resize(bool is_double, std::uint64_t count) { is_double ? doubles.resize(count) : floats.resize(count); }
  [[nodiscard]] double at(std::uint64_t i) const { return floats.empty() ? doubles.at(i) : floats.at(i); }
  void set(std::uint64_t i, double value) {
    if (floats.empty()) {
      doubles.at(i) = value;
    } else {
      floats.at(i) = static_cast<float>(value);
    }
  }
};

[[nodiscard]] Tensor tensor_of(const Whole& whole, Values& values, const Shape& shape) {
  const auto made = [&](auto& array) {
    return whole.role == GOSSAMER_BUFFER ? buffer(whole.name, array, shape) : param(whole.name, array, shape);
  };
  Tensor tensor = whole.is_double ? made(values.doubles) : made(values.floats);
  tensor.shape = shape;  // also of a scalar
  return tensor;
}

/// A model that is cut at random. A tensor is cut along a dimension, and some parts may be empty; or some parts hold it
/// whole.
struct Model {
  std::vector<Whole> tensors;
  std::uint32_t parts;

  explicit Model(std::mt19937& random, std::uint32_t parts) : parts(parts) {
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    const std::uint64_t count = 2 + below(5);
    for (std::uint64_t t = 0; t < count; ++t) {
      Whole& whole = tensors.emplace_back();
      whole.name = "t" + std::to_string(t);
      for (std::uint64_t d = below(4); d > 0; --d)
        whole.shape.push_back(1 + below(12));
      whole.role = below(4) == 0 ? GOSSAMER_BUFFER : GOSSAMER_PARAM;
      whole.is_double = below(3) == 0;
      const Shape zeros(whole.shape.size(), 0);
      if (whole.shape.empty() || below(3) == 0) {
        const std::uint64_t sure = below(parts);
        for (std::uint32_t part = 0; part < parts; ++part) {
          const bool holds = whole.shape.empty() || part == sure || below(2) == 0;
          whole.boxes.push_back({zeros, holds ? whole.shape : zeros});
        }
        continue;
      }
      const std::uint64_t dimension = below(whole.shape.size());
      std::vector<std::uint64_t> cuts = {0, whole.shape[dimension]};
      for (std::uint32_t part = 1; part < parts; ++part)
        cuts.push_back(below(whole.shape[dimension] + 1));
      std::ranges::sort(cuts);
      for (std::uint32_t part = 0; part < parts; ++part) {
        Box box{zeros, whole.shape};
        box.offset[dimension] = cuts[part];
        box.size[dimension] = cuts[part + 1] - cuts[part];
        whole.boxes.push_back(std::move(box));
      }
    }
  }
};

/// A process that trains the model or a part of it. All make the same steps for the same elements.
struct Trainer {
  const Model& model;
  std::optional<std::uint32_t> part;  ///< none: it holds all
  std::vector<Values> values;
  std::unique_ptr<Run> run;
  std::string error;
  std::string job = "test";

  Trainer(const Model& model, std::optional<std::uint32_t> part)
      : model(model), part(part), values(model.tensors.size()) {
    for_each_value([](Values& own, std::uint64_t here, std::size_t t, std::uint64_t there) {
      own.set(here, 0.25 * static_cast<double>(t) + 0.001 * static_cast<double>(there));
    });
  }

  [[nodiscard]] Box box(std::size_t t) const {
    const Whole& whole = model.tensors[t];
    return part ? whole.boxes[*part] : Box{Shape(whole.shape.size(), 0), whole.shape};
  }
  template <class Function>
  void for_each_value(Function&& function) {
    for (std::size_t t = 0; t < model.tensors.size(); ++t) {
      const Box own = box(t);
      values[t].resize(model.tensors[t].is_double, elements_of(own.size));
      own.for_each(model.tensors[t].shape,
                   [&](std::uint64_t here, std::uint64_t there) { function(values[t], here, t, there); });
    }
  }
  void open(const ContractDaemon& daemon, const std::string& replica) {
    std::vector<Tensor> tensors;
    for (std::size_t t = 0; t < model.tensors.size(); ++t) {
      const Whole& whole = model.tensors[t];
      const Box own = box(t);
      Tensor tensor = tensor_of(whole, values[t], own.size);
      if (part && !whole.shape.empty()) tensor = slice(std::move(tensor), whole.shape, own.offset);
      tensors.push_back(std::move(tensor));
    }
    try {
      run = std::make_unique<Run>(Options{.job = job,
                                          .socket_path = daemon.path(),
                                          .fragment_elements = 256,
                                          .parts = part ? model.parts : 0,
                                          .part = part.value_or(0),
                                          .replica = part ? replica : ""},
                                  tensors);
    } catch (const Error& problem) {
      error = problem.what();
    }
  }
  void train(int step) {
    for_each_value([step](Values& own, std::uint64_t here, std::size_t, std::uint64_t there) {
      own.set(here, own.at(here) + 0.01 * static_cast<double>((there * 7 + static_cast<std::uint64_t>(step)) % 11));
    });
    run->step(1);
  }
};

[[nodiscard]] std::string new_replica() {
  static std::atomic<int> last = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(++last);
}

/// All open at the same time, because each waits for the others.
void open_together(std::vector<Trainer>& trainers, const ContractDaemon& daemon, const std::string& replica) {
  std::vector<std::thread> threads;
  for (Trainer& trainer : trainers)
    threads.emplace_back([&] { trainer.open(daemon, replica); });
  for (std::thread& thread : threads)
    thread.join();
}

[[nodiscard]] std::unique_ptr<test::ContractClient> accept_run(ContractDaemon& daemon, const Run& run) {
  auto client = daemon.accept();
  client->accept();
  REQUIRE(test::eventually([&] { return run.info().attached == 1; }));
  return client;
}

[[nodiscard]] std::vector<Trainer> in_parts(const Model& model) {
  std::vector<Trainer> trainers;
  for (std::uint32_t part = 0; part < model.parts; ++part)
    trainers.emplace_back(model, part);
  return trainers;
}

/// A model of one vector, which is cut in equal parts.
[[nodiscard]] Model vector_in_parts(std::uint64_t elements, std::uint32_t parts) {
  std::mt19937 random(1);
  Model model(random, parts);
  model.tensors.assign(1, {.name = "w", .shape = {elements}, .boxes = {}});
  for (std::uint32_t part = 0; part < parts; ++part)
    model.tensors[0].boxes.push_back({{part * elements / parts}, {elements / parts}});
  return model;
}

/// A vector that is open in so many parts, and attached.
struct OpenInParts {
  Model model;
  ContractDaemon daemon;
  std::vector<Trainer> parts;
  std::unique_ptr<test::ContractClient> client;

  OpenInParts(std::uint64_t elements, std::uint32_t count)
      : model(vector_in_parts(elements, count)), parts(in_parts(model)) {
    open_together(parts, daemon, new_replica());
    client = accept_run(daemon, *parts[0].run);
  }
};

gossamer_status finish(Trainer& part, std::int64_t timeout_ms, gossamer_finish_info& info) {
  info.size = sizeof info;
  return gossamer_finish(part.run->handle(), timeout_ms, &info);
}

}  // namespace

TEST_CASE("however a model is cut, its parts publish and receive to the bit what an uncut one does") {
  std::mt19937 random(20261126);
  for (int seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Model model(random, 2 + random() % 4);
    ContractDaemon uncut_daemon, cut_daemon;
    Trainer uncut(model, std::nullopt);
    uncut.open(uncut_daemon, "");
    REQUIRE(uncut.error.empty());
    std::vector<Trainer> parts = in_parts(model);
    open_together(parts, cut_daemon, new_replica());
    for (const Trainer& part : parts)
      REQUIRE(part.error.empty());
    const auto uncut_client = accept_run(uncut_daemon, *uncut.run);
    const auto cut_client = accept_run(cut_daemon, *parts[0].run);
    CHECK(cut_client->header().layout_hash == uncut_client->header().layout_hash);
    const std::uint32_t fragments = uncut_client->header().fragment_count;

    const auto same = [&] {
      for (std::uint32_t f = 0; f < fragments; ++f)
        REQUIRE(std::ranges::equal(uncut_client->publication(f), cut_client->publication(f)));
      for (Trainer& part : parts) {
        part.for_each_value([&](Values& own, std::uint64_t here, std::size_t t, std::uint64_t there) {
          if (own.at(here) != uncut.values[t].at(there)) FAIL("tensor " << t << ", element " << there);
        });
      }
    };
    same();
    for (int step = 1; step <= 6; step += 2) {
      // The parts serve in the step after the one in which part 0 has seen that the fragment is due.
      uncut.train(step);
      for (std::uint32_t f = 0; f < fragments; ++f) {
        std::vector<float> correction(256);
        for (float& value : correction)
          value = static_cast<float>(random() % 1'000) / 4096;
        const bool none = random() % 4 == 0, replace = random() % 3 == 0;
        for (const auto& client : {uncut_client.get(), cut_client.get()})
          client->make_due(f, none ? std::vector<float>{} : correction, replace && !none);
      }
      for (const auto& client : {uncut_client.get(), cut_client.get()})
        client->announce();
      uncut.train(step + 1);
      for (const int now : {step, step + 1}) {
        for (Trainer& part : parts)
          part.train(now);
      }
      same();
      CHECK(cut_client->doorbell_rings() > 0);
    }
    CHECK(parts[0].run->info().clock_samples == 6 * model.parts);
    CHECK(cut_client->header().clock == 6 * model.parts);
    CHECK(cut_client->header().steps == 6);
    CHECK(cut_client->header().publications == std::uint64_t{3} * fragments);
  }
}

TEST_CASE("a fragment is published when the last of its parts has made its pass, and not before") {
  OpenInParts whole(200, 2);
  std::vector<Trainer>& parts = whole.parts;
  test::ContractClient* const client = whole.client.get();
  client->make_due(0, std::vector<float>(256, 1.0f));
  client->announce();
  parts[0].run->step(1);
  CHECK(client->word(0).serving);
  CHECK(parts[0].values[0].at(0) == 0);
  parts[0].run->step(1);
  CHECK(parts[0].values[0].at(0) == 1);
  CHECK(client->word(0).serving);
  parts[1].run->step(1);
  CHECK(parts[1].values[0].at(0) == 0.1f);  // its first step does not serve yet
  CHECK(client->word(0).serving);
  parts[1].run->step(1);
  CHECK(parts[1].values[0].at(0) == 0.1f + 1.0f);
  const layout::Word published = client->word(0);
  CHECK((published.generation == 2 && !published.with_client && !published.serving && !published.correction_valid));
  CHECK(client->fragment(0).publication_clock == 4);
}

TEST_CASE("waiting for readiness and finishing is of all parts together") {
  const Model model = vector_in_parts(200, 2);
  ContractDaemon daemon;
  std::vector<Trainer> parts = in_parts(model);
  open_together(parts, daemon, new_replica());
  auto client = daemon.accept();
  client->accept(layout::RunState::joining);
  client->make_due(0, std::vector<float>(256, 7.0f), true);
  client->announce();
  std::vector<std::thread> threads;
  std::atomic<int> ready = 0;
  for (Trainer& part : parts) {
    threads.emplace_back([&] {
      if (part.run->wait_ready(std::chrono::seconds(20)) == GOSSAMER_OK) ++ready;
    });
  }
  CHECK(test::eventually([&] { return !client->word(0).with_client; }));
  CHECK(ready == 0);
  client->header().state = static_cast<std::uint32_t>(layout::RunState::running);
  for (std::thread& thread : threads)
    thread.join();
  CHECK(ready == 2);
  CHECK(parts[0].values[0].at(99) == 7);
  CHECK(parts[1].values[0].at(0) == 7);

  gossamer_finish_info first{}, second{};
  CHECK(finish(parts[0], 20, first) == GOSSAMER_TIMEOUT);
  CHECK(client->header().finishing == 0);  // the other part still trains
  std::thread other([&] { CHECK(finish(parts[1], 20'000, second) == GOSSAMER_OK); });
  std::thread own([&] { CHECK(finish(parts[0], 20'000, first) == GOSSAMER_OK); });
  CHECK(test::eventually([&] { return client->header().finishing == 1; }));
  client->header().finish_answer =
      layout::FinishAnswer{.number = 1, .members = 3, .agreed = true, .saver = true}.pack();
  own.join();
  other.join();
  for (const gossamer_finish_info& info : {first, second}) {
    CHECK(info.agreed == 1);
    CHECK(info.saver == 1);
    CHECK(info.members == 3);
  }
  // They train again. The earlier end must not count for the next one.
  for (Trainer& part : parts)
    part.run->step(1);
  CHECK(finish(parts[1], 0, second) == GOSSAMER_TIMEOUT);
  CHECK(second.agreed == 0);
}

TEST_CASE("a part that closes ends the attachment of its replica, and all parts say which") {
  OpenInParts whole(300, 3);
  std::vector<Trainer>& parts = whole.parts;
  test::ContractClient* const client = whole.client.get();
  const bool of_part_0 = GENERATE(false, true);
  parts[of_part_0 ? 0 : 2].run.reset();
  CHECK(test::readable(client->socket()));
  const std::string said = of_part_0 ? "part 0 of 3" : "part 2 of 3";
  for (Trainer& part : parts) {
    if (part.run == nullptr) continue;
    const bool leads = part.part == 0u;
    if (!leads && !of_part_0) continue;  // below
    CHECK(test::eventually([&] {
      part.run->step(1);
      return std::string(part.run->info().message).contains(said);
    }));
    CHECK(part.run->info().attached == 0);
  }
  // All parts know what part 0 is told, whether or not it goes on stepping.
  if (!of_part_0) CHECK(test::eventually([&] { return std::string(parts[1].run->info().message).contains(said); }));
}

TEST_CASE("parts that have counted differently have their turns all the same, and steps without samples do not count") {
  OpenInParts whole(200, 2);
  std::vector<Trainer>& parts = whole.parts;
  test::ContractClient* const client = whole.client.get();
  const auto due = [&] {
    client->make_due(0, std::vector<float>(256, 1.0f));
    client->announce();
  };
  const auto start = [&](Trainer& part) { return part.values[0].at(0); };
  for (int i = 0; i < 50; ++i)
    parts[0].run->step(0);  // it waits for something
  due();
  parts[0].run->step(1);
  parts[1].run->step(1);
  CHECK((start(parts[0]) == 0 && start(parts[1]) == 0.1f));
  parts[0].run->step(1);
  parts[1].run->step(1);
  CHECK((start(parts[0]) == 1 && start(parts[1]) == 0.1f + 1.0f));
  // Part 0 is ahead. The other serves after it has seen the turn for two steps.
  for (int i = 0; i < 50; ++i)
    parts[0].run->step(1);
  due();
  parts[0].run->step(1);
  for (Trainer& part : parts)
    part.run->step(1);
  CHECK(start(parts[0]) == 2);
  for (int i = 0; i < 2; ++i)
    parts[1].run->step(1);
  CHECK(start(parts[1]) == 0.1f + 1.0f + 1.0f);
  CHECK_FALSE(client->word(0).serving);
  // Neither part trains.
  due();
  for (int i = 0; i < 6; ++i) {
    for (Trainer& part : parts)
      part.run->step(0);
  }
  CHECK((start(parts[0]) == 3 && start(parts[1]) == 0.1f + 3.0f));
}

TEST_CASE("all parts end finishing alike: none saves a model of which another has a part that is not finite") {
  OpenInParts whole(200, 2);
  std::vector<Trainer>& parts = whole.parts;
  test::ContractClient* const client = whole.client.get();
  gossamer_finish_info first{}, second{};
  for (auto* info : {&first, &second}) {
    CHECK(finish(parts[info == &first ? 0 : 1], 10, *info) == GOSSAMER_TIMEOUT);
    CHECK(info->saver == 0);
  }
  parts[1].values[0].set(7, std::numeric_limits<double>::quiet_NaN());
  client->header().finish_answer =
      layout::FinishAnswer{.number = 1, .members = 1, .agreed = true, .saver = true}.pack();
  gossamer_status second_status{};
  std::thread other([&] { second_status = finish(parts[1], 20'000, second); });
  CHECK(finish(parts[0], 20'000, first) == GOSSAMER_NOT_FINITE);
  other.join();
  CHECK(second_status == GOSSAMER_NOT_FINITE);
  CHECK((first.saver == 0 && second.saver == 0 && first.agreed == 0 && second.agreed == 0));
}

TEST_CASE("parts that do not make a whole are refused by name, in all of them") {
  ContractDaemon daemon;
  const std::string replica = new_replica();
  const auto refused = [&](std::vector<Trainer>& parts, const std::string& why) {
    open_together(parts, daemon, replica);
    for (const Trainer& part : parts) {
      CAPTURE(*part.part);
      CHECK(part.error.contains(why));
    }
  };
  Model lacking = vector_in_parts(200, 2);
  lacking.tensors[0].boxes[1].offset[0] += 3;
  lacking.tensors[0].boxes[1].size[0] -= 3;
  std::vector<Trainer> parts = in_parts(lacking);
  refused(parts, "'w', element 100");

  const Model model = vector_in_parts(200, 2), longer = vector_in_parts(202, 2);
  std::vector<Trainer> unlike;
  unlike.emplace_back(model, 0);
  unlike.emplace_back(longer, 1);
  refused(unlike, "another model");

  Model three = model;
  three.parts = 3;
  three.tensors[0].boxes.push_back({{0}, {0}});
  std::vector<Trainer> miscounted;
  miscounted.emplace_back(model, 0);
  miscounted.emplace_back(three, 2);
  refused(miscounted, "part 2 of 3");

  std::vector<Trainer> of_two_jobs = in_parts(model);
  of_two_jobs[1].job = "other";
  refused(of_two_jobs, "part 1 of 2 has another job");

  Trainer beyond(model, 1);
  lacking.tensors[0].boxes[1].offset[0] = 101;
  lacking.tensors[0].boxes[1].size[0] = 100;
  Trainer outside(lacking, 1);
  outside.open(daemon, replica);
  CHECK(outside.error.contains("beyond the tensor in dimension 0"));
  beyond.open(daemon, "");
  CHECK(beyond.error.contains("a replica in parts needs a name"));
  CHECK_FALSE(daemon.has_caller(0));
}

TEST_CASE("a slice without parts is refused") {
  ContractDaemon daemon;
  std::vector<float> half(10);
  const Tensor tensors[] = {slice(param("w", half), {20}, {0})};
  CHECK_THROWS_WITH(Run({.job = "test", .socket_path = daemon.path()}, tensors),
                    Catch::Contains("nobody holds the rest"));
}
