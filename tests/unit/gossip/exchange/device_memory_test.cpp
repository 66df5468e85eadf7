// Fragments in a device's memory that nobody else can touch. Whatever is done with them gives the same bits as on the
// processor, also where the other end is on the other kind of device. A call that fails changes nothing, and nothing is
// left in the end.

#include <cmath>
#include <limits>
#include <optional>

#include "catch.hpp"
#include "gossip/exchange/exchange.hpp"
#include "gossip/replica/executor.hpp"
#include "gossip/untouchable_device.hpp"
#include "gossip/values.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr std::size_t blocks = 5;
constexpr std::size_t elements = blocks * block_elements;
using Values = std::vector<float>;

/// A device, and a way for a test to read what is on it.
struct Place {
  explicit Place(bool untouchable) {
    if (untouchable) played.emplace();
  }
  [[nodiscard]] const Device& device() const { return played ? static_cast<const Device&>(*played) : processor(); }
  [[nodiscard]] float* hide(Values& memory) const { return played ? played->hide(memory) : memory.data(); }
  /// Reads y, also where it is not finite, without a call of the device.
  [[nodiscard]] Values read(const FragmentView& y) const {
    const FragmentView here = played ? played->look(y) : y;
    Values values(elements);
    for (std::size_t e = 0; e < elements; ++e)
      values[e] = here.at(e);
    return values;
  }

  std::optional<UntouchableDevice> played;
};

/// Every result of a run, bit for bit.
struct Trace {
  std::vector<std::byte> bytes;

  template <class T>
  void add(std::span<const T> what) {
    const auto more = std::as_bytes(what);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  template <class T>
  void add(T what) {
    add(std::span<const T>(&what, 1));
  }
  void add(const ExchangeMeasure& measure) {
    add(measure.mean_abs);
    add(measure.distance);
    add(measure.magnitude);
    add(measure.ratio);
  }
  bool operator==(const Trace&) const = default;
};

/// A fragment with its client, on a device.
struct End {
  End(const Place& where, int seed)
      : place(where),
        memory{start(seed), Values(elements), Values(elements)},
        x(memory[0]),
        buffers({place.hide(memory[0]), place.hide(memory[1]), place.hide(memory[2])}, blocks, {.generation = 1},
                place.device()),
        steps(blocks) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  /// The two ends are near enough for q8 and now and then too far for q4.
  static Values start(int seed) {
    values::Random common(99);
    values::Random own(static_cast<std::uint64_t>(seed));
    Values values = values::sampled(common, elements, values::normal);
    for (float& value : values)
      value += 0.05F * values::normal(own);
    return values;
  }
  HeldFragment held() { return {.buffers = buffers, .steps = steps, .outer = &outer}; }
  [[nodiscard]] Values y() const { return place.read(buffers.y()); }
  void train(values::Random& random) {
    for (float& value : x)
      value += 1e-3F * values::normal(random);
  }
  void client_step() {
    const FragmentParts parts = buffers.parts();
    for (std::size_t e = 0; e < elements; ++e) {
      if (parts.correction_valid) x[e] += memory[parts.correction][e];
      memory[parts.spare()][e] = x[e];
    }
    buffers.take_back(parts.generation + 1);
  }
  void recall() {
    if (buffers.out_of_hand()) buffers.recall();
  }

  const Place& place;
  Values memory[3];
  Values x;
  FragmentBuffers buffers;
  /// The gathered fragment is kept here, so that it outlives a daemon.
  std::array<Values, 2> copies{Values(elements), Values(elements)};
  BlockSteps steps;
  OuterState outer;
};

/// Runs a task and finishes its commit. Checks that y is unchanged if nothing was committed.
template <class Task>
auto run(Task task, End& end) {
  const Values before = end.y();
  auto result = std::move(task).run(end.held());
  if constexpr (requires { result.commit; }) {
    if (result.commit) {
      end.buffers.finish_commit();
      return result;
    }
  }
  CHECK(values::same_bits(end.y(), before));
  return result;
}

/// Runs an exchange until it ends or one step fails.
void exchange(End& initiator, End& responder, Codec codec, std::uint64_t seed, Trace& trace) {
  auto sent = run(EncodeTask{.request = {.counter = 1, .codec = codec, .seed = seed}}, initiator);
  trace.add(sent.finite);
  if (!sent.finite) return;
  trace.add(sent.request.values.as<std::byte>());
  auto answered = run(AnswerTask{.request = sent.request}, responder);
  trace.add(answered.reply.status);
  if (answered.reply.status != ReplyStatus::done) {
    CHECK_FALSE(answered.commit);
    return;
  }
  trace.add(answered.measure);
  trace.add(answered.reply.differences.as<std::byte>());
  const auto concluded =
      run(ConcludeTask{.reply = answered.reply, .blocks = sent.blocks, .exponents = sent.exponents}, initiator);
  trace.add(concluded.accepted);
  trace.add(concluded.measure);
}

void one_event(End (&ends)[2], values::Random& random, Trace& trace) {
  constexpr Codec codecs[] = {Codec::f32, Codec::q8, Codec::q4};
  End& end = ends[random() % 2];
  End& other = &end == &ends[0] ? ends[1] : ends[0];
  const bool alone = end.buffers.gathered();
  const auto event = random() % 7;
  if (event > 1) end.recall();
  if (event > 2) other.recall();
  switch (event) {
    case 0:
      if (!alone && !end.buffers.parts().with_client) end.buffers.hand_over();
      break;
    case 1:
      end.train(random);
      if (!alone && end.buffers.parts().with_client) end.client_step();
      break;
    case 2:
      trace.add(run(OuterTask{{.momentum = 0.5F}}, end).finite);
      break;
    default:
      exchange(end, other, codecs[random() % 3], random(), trace);
  }
}

void gather(End& end, Trace& trace) {
  const Values before = end.y();
  end.buffers.keep_copy_in({end.copies[0].data(), end.copies[1].data()});
  const bool done = end.buffers.gather();
  trace.add(done);
  if (done) end.buffers.finish_gather();
  CHECK(end.buffers.gathered() == done);
  CHECK(values::same_bits(end.y(), before));
}

/// Runs the lives of two fragments. The second is gathered in the middle of its life.
Trace lives(const Place& first, const Place& second, std::uint64_t seed) {
  Trace trace;
  values::Random random(seed);
  End ends[2]{{first, 1}, {second, 2}};
  for (int event = 0; event < 60; ++event) {
    if (event == 40) gather(ends[1], trace);
    one_event(ends, random, trace);
  }
  for (End& end : ends) {
    trace.add(std::span<const float>(end.y()));
    trace.add(end.buffers.pending_bytes());
    trace.add(end.outer.bytes());
  }
  return trace;
}

void nothing_is_left(const Place& place) {
  if (place.played) CHECK(place.played->allocated() == 0);
}

}  // namespace

TEST_CASE("on whatever devices the two ends are, an exchange gives the same bits", "[device_memory]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const Place host(false);
    const Trace expected = lives(host, host, seed);
    for (const auto& [first, second] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      CAPTURE(first, second);
      const Place one(first);
      const Place another(second);
      CHECK((lives(one, another, seed) == expected));
      nothing_is_left(one);
      nothing_is_left(another);
      CHECK((!first || one.played->calls() > 60));
    }
  }
}

TEST_CASE("whichever call fails, what is not committed has changed nothing, and nothing is left", "[device_memory]") {
  constexpr std::uint64_t seed = 4;
  const bool first = GENERATE(true, false);
  std::size_t calls = 0;
  {
    const Place place(true);
    const Place host(false);
    (void)(first ? lives(place, host, seed) : lives(host, place, seed));
    calls = place.played->calls();
  }
  REQUIRE(calls > 60);
  for (std::size_t failing = 0; failing < calls; ++failing) {
    CAPTURE(failing, calls);
    const Place place(true);
    const Place host(false);
    place.played->fail(failing);
    (void)(first ? lives(place, host, seed) : lives(host, place, seed));
    nothing_is_left(place);
  }
}

TEST_CASE("a device that has failed for good commits nothing any more", "[device_memory]") {
  const Place place(true);
  const Place host(false);
  values::Random random(5);
  Trace trace;
  {
    End ends[2]{{place, 1}, {host, 2}};
    for (int event = 0; event < 20; ++event)
      one_event(ends, random, trace);
    for (End& end : ends)
      end.recall();
    place.played->fail(0, UntouchableDevice::all);
    const Values before = ends[0].y();
    for (int round = 0; round < 20; ++round) {
      exchange(ends[0], ends[1], Codec::q8, random(), trace);
      exchange(ends[1], ends[0], Codec::f32, random(), trace);
    }
    gather(ends[0], trace);
    CHECK(values::same_bits(ends[0].y(), before));
    CHECK_FALSE(ends[0].buffers.gathered());
  }
  nothing_is_left(place);
}

TEST_CASE("an outer optimiser whose device fails at its beginning has not begun", "[device_memory]") {
  const Place place(true);
  for (std::size_t failing = 0; failing < 4; ++failing) {  // fails at either array, at the values, or at the zeros
    End end(place, 1);
    place.played->fail(failing);
    CHECK_FALSE(OuterTask{{.momentum = 0.5F}}.run(end.held()).finite);
    CHECK_FALSE(end.outer.begun());
    CHECK(end.outer.bytes() == 0);
    CHECK(place.played->allocated() == 0);
    CHECK(OuterTask{{.momentum = 0.5F}}.run(end.held()).finite);
    CHECK(end.outer.bytes() == 2 * elements * sizeof(float));
  }
  nothing_is_left(place);
}

TEST_CASE("first steps are learned from the blocks that are to be had", "[device_memory]") {
  const Place place(true);
  const Place host(false);
  End end(place, 1);
  End known(host, 1);
  known.steps.prime(known.buffers.y(), known.buffers.device());
  const auto read = [&] {
    std::vector<std::int8_t> exponents(blocks);
    end.steps.exponents(Codec::q8, default_range, 1, values::all_blocks(blocks), exponents);
    return exponents;
  };
  place.played->fail(0, UntouchableDevice::all);
  end.steps.prime(end.buffers.y(), end.buffers.device());
  CHECK_FALSE(end.steps.primed());  // no block could be read
  end.memory[0][2 * block_elements] = std::numeric_limits<float>::infinity();
  place.played->fail(UntouchableDevice::all, 0);
  end.steps.prime(end.buffers.y(), end.buffers.device());
  CHECK(end.steps.primed());
  std::vector<std::int8_t> expected(blocks);
  known.steps.exponents(Codec::q8, default_range, 1, values::all_blocks(blocks), expected);
  expected[2] = min_step_exponent;
  CHECK(read() == expected);
}

// --- replicas -----------------------------------------------------------------------------------------------------

namespace {

NodeId node_id(std::size_t number) {
  NodeId id;
  id.bytes[0] = static_cast<unsigned char>(number + 1);
  return id;
}

/// A replica with its client, carried out as by the daemon.
struct Node : ReplicaMemory, ReplicaHost {
  static constexpr std::uint32_t fragments = 2;

  Node(const Place& where, std::size_t number) : place(where) {
    memory.reserve(3 * fragments);
    std::vector<FragmentBuffers> buffers;
    for (std::uint32_t f = 0; f < fragments; ++f) {
      x.push_back(End::start(static_cast<int>(10 * number + f)));
      std::array<float*, 3> three{};
      for (float*& buffer : three)
        buffer = place.hide(memory.emplace_back(x[f]));
      buffers.emplace_back(three, blocks, FragmentParts{.generation = 1}, place.device());
    }
    const ReplicaOptions options{.period_us = 20 * us_per_ms,
                                 .outer = {.momentum = 0.3F, .period_us = 100 * us_per_ms},
                                 .time_share = 0,
                                 .network_share = 0};
    replica.emplace(options, node_id(number), info(ReplicaState::running), std::move(buffers), counter,
                    Random(number + 1));
    executor.emplace(*replica, *this, *this);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  static JobInfo info(ReplicaState state) { return {.job = {7, 9}, .name = "test", .state = state}; }

  /// Runs a step: the client trains, and serves its fragments.
  void step(std::uint64_t clock, TimeUs time_us, values::Random& random) {
    now_us = time_us;
    replica->set_clock(clock);
    for (std::uint32_t f = 0; f < fragments; ++f) {
      const FragmentParts parts = replica->buffers(f).parts();
      for (std::size_t e = 0; e < elements; ++e)
        x[f][e] += 1e-3F * values::normal(random);
      if (!parts.with_client) continue;
      for (std::size_t e = 0; e < elements; ++e) {
        if (parts.correction_valid) x[f][e] = (parts.replace ? 0.0F : x[f][e]) + memory[3 * f + parts.correction][e];
        memory[3 * f + parts.spare()][e] = x[f][e];
      }
      executor->decide([&](Actions& out) { replica->published(f, parts.generation + 1, clock, now_us, out); });
    }
  }

  /// Runs the tasks that were started until none is left. `send` gets each message.
  template <class Send>
  void work(Send send) {
    while (!tasks.empty() || !sent.empty()) {
      for (auto& [f, task] : std::exchange(tasks, {})) {
        task->run(replica->held(f));
        task->finish();
      }
      for (auto& [to, message] : std::exchange(sent, {}))
        send(to, std::move(message));
    }
  }

  // This test does not look at what outlives a daemon.
  void store_given_up(std::uint64_t) override {}
  void store_own_halves(std::uint32_t, const OwnHalves&) override {}
  bool write_record(std::uint32_t, const NodeId&, const ExchangeReply&, const AnsweredHalf&) override { return true; }
  void seal_record(std::uint32_t, std::uint32_t) override {}
  void note_undone(std::uint32_t, std::uint32_t) override {}
  void clear_record(std::uint32_t) override {}
  void store_parts(std::uint32_t, const FragmentBuffers&) override {}
  void tell_due() override {}
  bool recall(std::uint32_t) override { return true; }
  int provide(std::uint32_t) override { return 0; }
  void vacate(std::uint32_t) override {}

  [[nodiscard]] TimeUs replica_now_us() const override { return now_us; }
  bool send_message(const NodeId& to, const Message& message) override {
    sent.emplace_back(to, message);
    return true;
  }
  void run(std::uint32_t f, std::unique_ptr<Task> task) override { tasks.emplace_back(f, std::move(task)); }
  [[nodiscard]] std::uint64_t hash_of(std::span<const float>) const override { return 0; }
  void complete(PullReply&) override {}
  void copied(std::uint32_t, std::optional<std::vector<float>>&&, std::uint64_t) override {}
  void lacks_memory(int) override {}

  /// Offers the client values to take over.
  bool take(const PullReply& reply) {
    FragmentBuffers& buffers = replica->buffers(reply.fragment);
    if (reply.reason != RefuseReason::none || buffers.parts().with_client) return false;
    if (!place.device().upload(buffers.begin_replace(), reply.values.as<float>())) return false;
    executor->decide([&](Actions& out) { replica->hand_over_taken(reply.fragment, out); });
    return true;
  }

  const Place& place;
  std::vector<Values> memory;
  std::vector<Values> x;
  ExchangeCounter counter{1};
  std::optional<Replica> replica;
  std::optional<Executor> executor;
  TimeUs now_us = 0;
  std::vector<std::pair<std::uint32_t, std::unique_ptr<Task>>> tasks;
  std::vector<std::pair<NodeId, Message>> sent;
};

/// Two replicas that run and exchange, the second after it has pulled the model of the first.
struct Pair {
  Pair(const Place& first, const Place& second) : nodes{{first, 0}, {second, 1}} {}

  void deliver(std::size_t from, const NodeId& to, Message&& message) {
    const std::size_t other = 1 - from;
    if (to != node_id(other)) return;
    Node& node = nodes[other];
    if (const auto* pulled = std::get_if<PullReply>(&message)) {
      taken += node.take(*pulled) ? 1 : 0;
      return;
    }
    node.executor->decide(
        [&](Actions& out) { node.replica->received(node_id(from), std::move(message), now_us, out); });
  }
  void turn() {
    now_us += 5 * us_per_ms;
    for (std::size_t i = 0; i < 2; ++i) {
      nodes[i].step(static_cast<std::uint64_t>(now_us / us_per_ms), now_us, random);
      nodes[i].executor->decide([&](Actions& out) { nodes[i].replica->tick(now_us, out); });
    }
    for (int round = 0; round < 8; ++round) {
      for (std::size_t i = 0; i < 2; ++i)
        nodes[i].work([&](const NodeId& to, Message&& message) { deliver(i, to, std::move(message)); });
    }
  }
  Trace run(int turns) {
    for (std::size_t i = 0; i < 2; ++i)
      nodes[i].executor->decide([&](Actions& out) { nodes[i].replica->link_up(node_id(1 - i), out); });
    nodes[0].executor->decide([&](Actions& out) { nodes[0].replica->enter(Phase::running, out); });
    for (std::uint32_t f = 0; f < Node::fragments; ++f)
      deliver(1, node_id(0), PullRequest{.job = {7, 9}, .fragment = f});
    for (int wait = 0; wait < 20 && taken < Node::fragments; ++wait)
      turn();
    nodes[1].executor->decide([&](Actions& out) { nodes[1].replica->enter(Phase::running, out); });
    for (int t = 0; t < turns; ++t)
      turn();
    Trace trace;
    for (Node& node : nodes) {
      for (std::uint32_t f = 0; f < Node::fragments; ++f)
        trace.add(std::span<const float>(node.x[f]));
      trace.add(node.replica->counters().mean_abs_sum);
    }
    return trace;
  }

  Node nodes[2];
  TimeUs now_us = us_per_s;
  std::uint32_t taken = 0;
  values::Random random{11};
};

}  // namespace

TEST_CASE("replicas on any devices exchange, join and take outer steps with the same bits", "[device_memory]") {
  std::optional<Trace> expected;
  for (const auto& [first, second] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    CAPTURE(first, second);
    const Place one(first);
    const Place another(second);
    {
      Pair pair(one, another);
      const Trace trace = pair.run(200);
      CHECK(pair.taken == Node::fragments);
      for (Node& node : pair.nodes) {
        const ReplicaCounters& counters = node.replica->counters();
        CHECK(counters.initiated > 5);
        CHECK(counters.outer_steps > 2);
        CHECK(counters.violations == 0);
        CHECK(counters.quarantines == 0);
      }
      if (!expected) expected = trace;
      CHECK((trace == *expected));
    }
    nothing_is_left(one);
    nothing_is_left(another);
  }
}

TEST_CASE("a replica whose device fails now and then goes on, and one whose device is lost harms nobody",
          "[device_memory]") {
  const bool lost = GENERATE(false, true);
  const Place place(true);
  const Place host(false);
  {
    Pair pair(place, host);
    (void)pair.run(50);
    const std::uint64_t before = pair.nodes[1].replica->counters().answered;
    for (int t = 0; t < 100; ++t) {
      if (lost) place.played->fail(0, UntouchableDevice::all);
      if (!lost && t % 10 == 0) place.played->fail(static_cast<std::size_t>(t) / 10);
      pair.turn();
    }
    for (const Values& x : pair.nodes[1].x) {
      for (const float value : x)
        REQUIRE(std::isfinite(value));
    }
    const ReplicaCounters& counters = pair.nodes[1].replica->counters();
    CHECK((counters.answered > before + 5) == !lost);
  }
  nothing_is_left(place);
}

TEST_CASE("a mean among clients on a device takes in and gives as one on the processor", "[device_memory]") {
  std::optional<Values> expected;
  for (const bool untouchable : {false, true}) {
    const Place place(untouchable);
    {
      End group(place, 1);
      group.buffers.keep_copy_in({group.copies[0].data(), group.copies[1].data()});
      REQUIRE(group.buffers.gather());
      group.buffers.finish_gather();
      Values snapshot = End::start(2);
      Values base = End::start(3);
      Values correction(elements);
      float* const given = place.hide(correction);
      const LocalMeanTask task{{{.snapshot = place.hide(snapshot),
                                 .base = place.hide(base),
                                 .take = Take::progress,
                                 .weight = 0.5F,
                                 .correction = given}}};
      const auto outcomes = task.run(group.buffers.values(), group.buffers.device());
      CHECK((outcomes[0].finite && outcomes[0].moved && outcomes[0].differs));
      Values result = group.y();
      result.insert(result.end(), correction.begin(), correction.end());
      if (!expected) expected = result;
      CHECK(values::same_bits(result, *expected));
    }
    nothing_is_left(place);
  }
}
