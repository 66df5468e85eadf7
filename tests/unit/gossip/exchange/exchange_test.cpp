// One exchange end to end between two fragments, without a network: what it moves, that the two halves cancel exactly,
// what becomes of blocks out of range, and that nothing malformed or poisoned gets through.

#include "gossip/exchange/exchange.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "gossip/test_device.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr Codec all_codecs[] = {Codec::f32, Codec::q8, Codec::q4};
constexpr JobKey job{7, 9};

/// One end of an exchange: a fragment with its memory and its client.
struct End {
  std::size_t blocks;
  std::vector<std::vector<float>> memory;
  FragmentBuffers buffers;
  BlockSteps steps;
  std::vector<float> x;  // the client's live values
  PushState push = {};

  explicit End(std::size_t block_count)
      : blocks(block_count),
        memory(3, std::vector<float>(block_count * block_elements)),
        buffers({there(memory[0]), there(memory[1]), there(memory[2])}, block_count, {.generation = 1}, test_device()),
        steps(block_count),
        x(block_count * block_elements) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  /// As a task has it: the client has not begun to serve it.
  HeldFragment held() {
    if (buffers.out_of_hand()) buffers.recall();
    return {.buffers = buffers, .steps = steps, .push = &push};
  }
  /// The client trains by `by`, and publishes.
  void train(const std::vector<float>& by) {
    if (!buffers.parts().with_client) buffers.hand_over();
    for (std::size_t e = 0; e < x.size(); ++e)
      x[e] += by[e];
    client_step();
  }
  void set(const std::vector<float>& values) { memory[buffers.parts().publication] = x = values; }
  /// The live values and the correction that is on its way to them.
  std::vector<double> whole() const {
    std::vector<double> sum(x.begin(), x.end());
    const FragmentView view = here(buffers.y());
    for (std::size_t e = 0; view.correction != nullptr && e < sum.size(); ++e)
      sum[e] += view.correction[e];
    return sum;
  }
  /// A step of the client that holds the fragment.
  void client_step() {
    const FragmentParts& parts = buffers.parts();
    for (std::size_t e = 0; e < x.size(); ++e) {
      if (parts.correction_valid) x[e] += memory[parts.correction][e];
      memory[parts.spare()][e] = x[e];
    }
    buffers.take_back(parts.generation + 1);
  }
};

std::vector<float> random_values(std::size_t blocks, Random& random, double spread) {
  std::vector<float> values(blocks * block_elements);
  for (float& value : values)
    value = static_cast<float>(spread * (random.uniform() - 0.5));
  return values;
}
/// Multiples of 2^-10 below 2: sums of thousands of dyadic moves stay exact in fp32.
std::vector<float> dyadic_values(std::size_t blocks, Random& random) {
  std::vector<float> values(blocks * block_elements);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(random.below(4096)) - 2048, -10);
  return values;
}
/// Moves each block by a random distance, which is in the range of some steps and out of that of others.
std::vector<float> apart_from(const std::vector<float>& values, Random& random) {
  std::vector<float> moved = values;
  for (std::size_t block = 0; block < moved.size() / block_elements; ++block) {
    const std::uint64_t most = std::uint64_t{8} << (4 * random.below(3));
    for (std::size_t e = block * block_elements; e < (block + 1) * block_elements; ++e)
      moved[e] += std::ldexp(static_cast<float>(random.below(2 * most)) - static_cast<float>(most), -10);
  }
  return moved;
}
/// A sum of two dyadic values as an integer, exactly.
std::int64_t exact(double a, double b) {
  const double scaled = std::ldexp(a + b, 30);
  if (scaled != std::nearbyint(scaled)) FAIL("not dyadic any more: the test's own values are out of hand");
  return static_cast<std::int64_t>(scaled);
}

struct Ask {
  Codec codec = Codec::q8;
  std::vector<std::uint32_t> blocks = {};
  std::vector<std::int8_t> exponents = {};
  std::uint8_t min_shift = 1;
  int shift = 1;  // the responder's shift
  std::uint64_t seed = 1;
};

struct Exchange {
  EncodeTask::Result sent;
  AnswerTask::Result answered;
  ConcludeTask::Result concluded;
};

/// Makes the end accept any step and any difference, as a malicious end would.
void believe_anything(End& end) {
  const auto blocks = blocks_of({}, end.blocks);
  end.steps.prime(end.buffers.y(), test_device());
  end.steps.observe(blocks, std::vector<BlockOutcome>(end.blocks, {.mean_abs = 1e38F}), 1);
}

EncodeTask::Result encode(End& initiator, const Ask& ask) {
  return EncodeTask{
      .request = {.counter = 5, .job = job, .codec = ask.codec, .seed = ask.seed, .min_shift = ask.min_shift},
      .blocks = ask.blocks,
      .exponents = ask.exponents}
      .run(initiator.held());
}
AnswerTask::Result answer(End& responder, const ExchangeRequest& request, int shift = 1, WeightShifts weights = {}) {
  REQUIRE(fits(request, responder.blocks));
  auto result = AnswerTask{.request = request, .shift = shift, .weights = weights}.run(responder.held());
  if (result.commit) responder.buffers.finish_commit();
  return result;
}
ConcludeTask::Result conclude(End& initiator, const EncodeTask::Result& sent, const ExchangeReply& reply) {
  REQUIRE(fits(reply, sent.request));
  auto result = ConcludeTask{.reply = reply, .blocks = sent.blocks, .exponents = sent.exponents}.run(initiator.held());
  if (result.commit) initiator.buffers.finish_commit();
  return result;
}
/// Request, answer and conclusion. A refusal leaves the conclusion empty.
Exchange exchange(End& initiator, End& responder, const Ask& ask) {
  Exchange done;
  done.sent = encode(initiator, ask);
  REQUIRE(done.sent.finite);
  done.answered = answer(responder, done.sent.request, ask.shift);
  if (done.answered.reply.status == ReplyStatus::done) {
    done.concluded = conclude(initiator, done.sent, done.answered.reply);
  }
  return done;
}

double farthest(const End& a, const End& b, std::uint32_t block) {
  const auto left = a.whole();
  const auto right = b.whole();
  double largest = 0;
  for (std::size_t e = block * block_elements; e < (block + 1) * block_elements; ++e)
    largest = std::max(largest, std::fabs(left[e] - right[e]));
  return largest;
}

std::vector<std::uint32_t> random_subset(std::size_t blocks, Random& random) {
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    if (random.below(2) == 0) chosen.push_back(block);
  }
  return chosen;  // empty: all
}

}  // namespace

// --- pushes -------------------------------------------------------------------------------------------------------

namespace {

/// Encodes a worker's push. `exponents` are those that the server has asked for; if there are none, the worker chooses.
EncodeTask::Result encode_push(End& worker, Codec codec, const PushRule& rule, std::uint64_t seed, float factor = 1,
                               std::vector<std::int8_t> exponents = {}) {
  auto sent = EncodeTask{.request = {.counter = 5,
                                     .job = job,
                                     .codec = codec,
                                     .seed = seed,
                                     .min_shift = static_cast<std::uint8_t>(rule.shift)},
                         .exponents = std::move(exponents),
                         .factor = factor,
                         .push = rule}
                  .run(worker.held());
  REQUIRE((sent.finite && sent.pushed));
  return sent;
}

/// A worker's exchange with the server that owns the fragment.
ConcludeTask::Result push_to(End& server, End& worker, Codec codec, const PushRule& rule, std::uint64_t seed,
                             const std::vector<float>* trained_meanwhile = nullptr, int least_shift = 1) {
  auto sent = encode_push(worker, codec, rule, seed);
  const auto answered = answer(server, sent.request, least_shift);
  REQUIRE(answered.reply.status == ReplyStatus::done);
  if (trained_meanwhile != nullptr) worker.train(*trained_meanwhile);
  auto result =
      ConcludeTask{.reply = answered.reply, .blocks = sent.blocks, .exponents = sent.exponents, .push = rule}.run(
          worker.held());
  REQUIRE(result.accepted);
  if (result.commit) worker.buffers.finish_commit();
  worker.push.abandon();
  return result;
}

/// A server and a worker that begin with the same values.
struct AlikePair {
  AlikePair(std::size_t blocks, std::uint64_t seed)
      : random(seed), begin(random_values(blocks, random, 1)), server(blocks), worker(blocks) {
    server.set(begin);
    worker.set(begin);
  }

  Random random;
  std::vector<float> begin;
  End server;
  End worker;
};

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values)
    sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("a worker holds what the server holds after a push, and what it trained meanwhile on top", "[exchange]") {
  constexpr std::size_t blocks = 3;
  Random random(5);
  End server(blocks);
  End worker(blocks);
  server.set(random_values(blocks, random, 1));
  worker.set(random_values(blocks, random, 1));
  for (int turn = 0; turn < 5; ++turn) {
    worker.train(random_values(blocks, random, 0.1));
    const auto meanwhile = random_values(blocks, random, 0.1);
    push_to(server, worker, Codec::f32, push_rule(3), random.next(), turn % 2 == 0 ? &meanwhile : nullptr);
    const auto here = worker.whole();
    const auto there = server.whole();
    for (std::size_t e = 0; e < here.size(); ++e) {
      const double expected = there[e] + (turn % 2 == 0 ? meanwhile[e] : 0);
      REQUIRE(std::fabs(here[e] - expected) < 2e-6);
    }
  }
}

TEST_CASE("a server comes to add the mean of its workers' progress, whatever their speeds and turns", "[exchange]") {
  const std::size_t workers = GENERATE(1, 2, 3, 5, 8);
  const Codec codec = GENERATE(Codec::f32, Codec::q8);
  const int least_shift = GENERATE(1, 4);  // 4 as with small mixing budgets
  CAPTURE(workers, codec_name(codec), least_shift);
  constexpr std::size_t blocks = 1;
  Random random(7);
  End server(blocks);
  server.set(std::vector<float>(block_elements, 0.25F));
  std::deque<End> all;
  double mean_progress = 0;
  for (std::size_t w = 0; w < workers; ++w)
    all.emplace_back(blocks).set(std::vector<float>(block_elements, 0.25F));
  constexpr int turns = 400;
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t w = 0; w < workers; ++w) {
      const double each = 0.001 * static_cast<double>(1 + w);
      all[w].train(std::vector<float>(block_elements, static_cast<float>(each)));
      mean_progress += each / static_cast<double>(workers);
      if (w > 0 && turn % (w + 1) != 0) continue;  // this worker pushes less often
      push_to(server, all[w], codec, push_rule(workers, least_shift), random.next());
    }
  }
  CHECK(mean_of(server.whole()) - 0.25 == Approx(mean_progress).epsilon(least_shift == 1 ? 0.03 : 0.1));
}

TEST_CASE("what a server has not taken of a push because of noise is in the next one", "[exchange]") {
  constexpr std::size_t blocks = 2;
  const PushRule rule = push_rule(1);
  auto [random, begin, server, worker] = AlikePair(blocks, 3);
  push_to(server, worker, Codec::f32, rule, random.next());  // from now on the worker knows what is progress
  const std::vector<double> taken = worker.whole();
  const float progress = 0.5F;
  worker.train(std::vector<float>(begin.size(), progress));
  const Device& device = test_device();
  std::vector<float> pushed(begin.size());
  const auto pushes = [&] {
    const float* z = worker.push.begin(device, worker.held().buffers, rule.ahead);
    REQUIRE(device.read({.publication = z, .correction = nullptr}, blocks, pushed));
    return pushed[7] - taken[7];
  };
  CHECK(pushes() == Approx(2 * progress));
  REQUIRE(worker.push.count_part(device, blocks, rule.ahead, 0.25F));
  worker.push.finish(true, true, worker.buffers.parts().commits);
  CHECK(pushes() == Approx(0.25 * progress + 2 * 0.75 * progress));
}

TEST_CASE("what a server has not taken of a push because of its limits is in the next ones", "[exchange]") {
  constexpr std::size_t blocks = 3;
  const PushRule rule = push_rule(1);
  auto [random, begin, server, worker] = AlikePair(blocks, 3);
  push_to(server, worker, Codec::f32, rule, random.next());  // from now on the worker knows what is progress
  const std::vector<double> taken = worker.whole();
  const float limit = std::ldexp(1.0F, server.steps.limit_exponent(default_range, 1, 1) + rule.shift - min_shift_bound);
  believe_anything(worker);
  std::vector<float> progress(begin.size());
  std::fill_n(progress.begin() + block_elements, block_elements, 5 * limit);  // of the second block
  worker.train(progress);
  const auto far = push_to(server, worker, Codec::f32, rule, random.next());
  CHECK(far.measure.limited);
  CHECK_FALSE(far.took_all);
  // What the worker has trained is what the server has of it and what the worker still has beside the server's value.
  const std::size_t in_second = block_elements + 7;
  CHECK(worker.whole()[in_second] - taken[in_second] == Approx(5 * limit));
  CHECK(server.whole()[in_second] - taken[in_second] <= Approx(limit));
  for (int turn = 0; turn < 40; ++turn)
    push_to(server, worker, Codec::f32, rule, random.next());
  CHECK(server.whole()[in_second] - taken[in_second] == Approx(5 * limit));
  CHECK(server.whole()[7] == Approx(taken[7]));
}

TEST_CASE("a worker knows whether the server took all of what it pushed", "[exchange]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  CAPTURE(codec_name(codec));
  constexpr std::size_t blocks = 2;
  const PushRule rule = push_rule(2);
  auto [random, begin, server, worker] = AlikePair(blocks, 3);
  for (int turn = 0; turn < 8; ++turn) {  // until both estimate what usually moves
    worker.train(random_values(blocks, random, 1e-2));
    push_to(server, worker, codec, rule, random.next());
  }
  worker.train(random_values(blocks, random, 1e-2));
  CHECK(push_to(server, worker, codec, rule, random.next()).took_all);
  worker.train(random_values(blocks, random, 1e-2));
  CHECK_FALSE(push_to(server, worker, codec, rule, random.next(), nullptr, rule.shift + 2).took_all);
  // Of a push beyond its range, the server takes a part (f32) or nothing. The outcome says so.
  std::vector<float> far(begin.size());
  std::fill_n(far.begin(), block_elements, 1e6F);
  worker.train(far);
  const auto result = push_to(server, worker, codec, rule, random.next());
  CHECK((!result.took_all || !result.wide.empty()));
}

TEST_CASE("a difference beyond the responder's limit alone is told: the ends are further apart", "[exchange]") {
  constexpr std::size_t blocks = 1;
  const PushRule rule = push_rule(2);
  auto [random, begin, server, worker] = AlikePair(blocks, 5);
  push_to(server, worker, Codec::f32, rule, random.next());
  const int limit = server.steps.limit_exponent(default_range, 1, 0) + rule.shift - min_shift_bound;
  believe_anything(worker);
  worker.train(std::vector<float>(block_elements, std::ldexp(8.0F, limit)));
  const auto far = push_to(server, worker, Codec::f32, rule, random.next());
  CHECK(far.measure.limited);
  CHECK_FALSE(far.measure.telling);
  CHECK_FALSE(far.took_all);
  worker.train(std::vector<float>(block_elements, std::ldexp(1.0F, limit - 4)));
  End near(blocks);
  near.set(worker.x);
  believe_anything(near);
  const auto close = push_to(near, worker, Codec::f32, rule, random.next());
  CHECK_FALSE(close.measure.limited);
  CHECK(close.took_all);
}

TEST_CASE("a follower comes nearer with each codec, however few of the elements differ", "[exchange]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  const std::size_t every = GENERATE(1, 8, 64);
  CAPTURE(codec_name(codec), every);
  constexpr std::size_t blocks = 4;
  Random random(29);
  End followed(blocks);
  End follower(blocks);
  auto values = random_values(blocks, random, 1);
  followed.set(values);
  for (std::size_t e = 0; e < values.size(); e += every)
    values[e] += static_cast<float>(random.uniform() - 0.5);
  follower.set(values);
  const auto distance = [&] {
    const auto there = followed.whole();
    const auto here = follower.whole();
    double square = 0;
    for (std::size_t e = 0; e < values.size(); ++e)
      square += std::pow(there[e] - here[e], 2);
    return std::sqrt(square);
  };
  const double before = distance();
  for (int turn = 0; turn < 100; ++turn) {
    push_to(followed, follower, codec, PushRule{.shift = max_shift_bound, .keeps = false}, random.next());
    REQUIRE(distance() < 2 * before);
  }
  CHECK(distance() < before / 10);
}

TEST_CASE("blocks out of range take no part in a push, and are in the next", "[exchange]") {
  constexpr std::size_t blocks = 4;
  auto [random, begin, server, worker] = AlikePair(blocks, 9);
  std::vector<float> trained(begin.size(), 1e-3F);
  worker.train(trained);
  push_to(server, worker, Codec::q8, push_rule(2), random.next());
  for (std::size_t e = 2 * block_elements; e < 3 * block_elements; ++e)
    trained[e] = 1000;  // one block goes far
  worker.train(trained);
  const auto before = worker.whole();
  const auto result = push_to(server, worker, Codec::q8, push_rule(2), random.next());
  REQUIRE(result.wide == std::vector<std::uint32_t>{2});
  const auto after = worker.whole();
  for (std::size_t e = 2 * block_elements; e < 3 * block_elements; ++e)
    REQUIRE(after[e] == before[e]);
  for (int turn = 0; turn < 60; ++turn)
    push_to(server, worker, Codec::q8, push_rule(2), random.next());
  CHECK(farthest(server, worker, 2) < 1);
  // The block is a quarter of the fragment, and one push adds three quarters of its change.
  CHECK(mean_of(server.whole()) > 180);
}

TEST_CASE("a worker that has only followed meanwhile pushes all that it trains next", "[exchange]") {
  constexpr std::size_t blocks = 2;
  auto [random, begin, server, worker] = AlikePair(blocks, 15);
  push_to(server, worker, Codec::f32, push_rule(1), random.next());
  push_to(server, worker, Codec::f32, PushRule{.shift = max_shift_bound}, random.next());  // the run seemed to end
  worker.train(std::vector<float>(begin.size(), 1e-3F));
  const double before = mean_of(server.whole());
  push_to(server, worker, Codec::f32, push_rule(1), random.next());
  CHECK(mean_of(server.whole()) - before == Approx(1e-3).epsilon(0.01));
}

TEST_CASE("what a worker pushes first arrives whole if it is alone", "[exchange]") {
  constexpr std::size_t blocks = 2;
  const Codec codec = GENERATE(Codec::f32, Codec::q8);
  CAPTURE(codec_name(codec));
  auto [random, begin, server, worker] = AlikePair(blocks, 16);
  PushRule rule = push_rule(1);
  rule.alone = true;
  const double before = mean_of(server.whole());
  worker.train(std::vector<float>(begin.size(), 1e-3F));
  CHECK_FALSE(push_to(server, worker, codec, rule, random.next()).took_all);
  CHECK(mean_of(worker.whole()) - before == Approx(1e-3).epsilon(0.01));
  CHECK(push_to(server, worker, codec, rule, random.next()).took_all);
  CHECK(mean_of(server.whole()) - before == Approx(1e-3).epsilon(0.01));
  CHECK(mean_of(worker.whole()) - before == Approx(1e-3).epsilon(0.01));
}

TEST_CASE("blocks that were out of range in the first push have still to be pushed", "[exchange]") {
  constexpr std::size_t blocks = 4;
  auto [random, begin, server, worker] = AlikePair(blocks, 17);
  CHECK_FALSE(worker.push.knows(worker.buffers.parts().commits));
  std::vector<float> trained(begin.size(), 1e-3F);
  std::fill_n(trained.begin(), block_elements, 1000.0F);
  worker.train(trained);
  const auto result = push_to(server, worker, Codec::q8, push_rule(2), random.next());
  REQUIRE(result.wide == std::vector<std::uint32_t>{0});
  // What the server holds there is not known.
  CHECK_FALSE(worker.push.knows(worker.buffers.parts().commits));
}

TEST_CASE("a server asks for finer steps before it keeps their noise", "[exchange]") {
  constexpr std::size_t blocks = 2;
  const PushRule rule = push_rule(2);
  auto [random, begin, server, worker] = AlikePair(blocks, 13);
  worker.train(std::vector<float>(begin.size(), 0.01F));
  push_to(server, worker, Codec::q8, rule, random.next());
  const auto before = server.whole();
  worker.train(std::vector<float>(begin.size(), 0.01F));
  // The worker's steps are sixty-four times too coarse, as after a stall.
  auto sent = encode_push(worker, Codec::q8, rule, random.next(), 64);
  auto answered = answer(server, sent.request);
  REQUIRE((!answered.commit && !answered.reply.wide.empty()));
  CHECK(answered.measure.coarse_blocks == blocks);
  const auto asked = answered.reply.asked.as<std::int8_t>();
  for (const std::int8_t exponent : asked)
    CHECK(std::ldexp(1.0, exponent) < 0.01 / 2);
  sent = encode_push(worker, Codec::q8, rule, random.next(), 64, {asked.begin(), asked.end()});
  answered = answer(server, sent.request);
  REQUIRE((answered.commit && answered.reply.wide.empty()));
  const auto after = server.whole();
  const double pushed = 0.01 * (1 + rule.ahead) * std::ldexp(1.0, -rule.shift);
  for (std::size_t e = 0; e < after.size(); ++e)
    REQUIRE(std::fabs(after[e] - before[e] - pushed) < 0.25 * 0.01);
  // A server accepts coarse steps of a worker that only follows, because they leave it no noise.
  sent = encode_push(worker, Codec::q8, PushRule{.shift = max_shift_bound, .keeps = false}, random.next(), 64);
  CHECK(answer(server, sent.request).reply.wide.empty());
}

TEST_CASE("what other exchanges have moved is no progress", "[exchange]") {
  constexpr std::size_t blocks = 1;
  Random random(11);
  End server(blocks);
  End worker(blocks);
  End other(blocks);
  server.set(std::vector<float>(block_elements, 0));
  worker.set(std::vector<float>(block_elements, 0));
  other.set(std::vector<float>(block_elements, 8));
  push_to(server, worker, Codec::f32, push_rule(1), 1);
  believe_anything(other);
  believe_anything(worker);
  believe_anything(server);
  exchange(worker, other, {.codec = Codec::f32});  // the worker is at 4
  push_to(server, worker, Codec::f32, push_rule(1), 2);
  // If the move were taken for training, it would count twice, and the server would be at 4.
  CHECK(mean_of(server.whole()) == Approx(2));
  CHECK(mean_of(worker.whole()) == Approx(2));
}

// --- what an exchange moves ---------------------------------------------------------------------------------------

TEST_CASE("the sum of both ends is conserved exactly, in integers", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  constexpr std::size_t blocks = 5;
  Random random(3);
  std::size_t commits = 0;
  std::size_t wide = 0;
  for (int pair = 0; pair < 300; ++pair) {
    End ends[2]{End(blocks), End(blocks)};
    ends[0].set(dyadic_values(blocks, random));
    ends[1].set(apart_from(ends[0].x, random));
    std::vector<std::int64_t> before;
    for (std::size_t e = 0; e < blocks * block_elements; ++e)
      before.push_back(exact(ends[0].x[e], ends[1].x[e]));
    // In f32, every exchange halves the spacing of the difference, so that after a few it would not be exact.
    const int exchanges = codec == Codec::f32 ? 2 : 12;
    for (int i = 0; i < exchanges; ++i) {
      for (End& end : ends) {
        if (random.below(3) == 0) end.buffers.parts().with_client ? end.client_step() : end.buffers.hand_over();
      }
      Ask ask{.codec = codec,
              .blocks = random_subset(blocks, random),
              .min_shift = static_cast<std::uint8_t>(1 + random.below(3)),
              .shift = static_cast<int>(1 + random.below(4)),
              .seed = random.next()};
      const std::size_t count = ask.blocks.empty() ? blocks : ask.blocks.size();
      for (std::size_t n = 0; n < count; ++n)
        ask.exponents.push_back(static_cast<std::int8_t>(random.below(6)) - 9);
      const std::size_t initiator = random.below(2);
      const auto done = exchange(ends[initiator], ends[1 - initiator], ask);
      REQUIRE(done.answered.reply.status == ReplyStatus::done);
      REQUIRE(done.concluded.accepted);
      REQUIRE(done.concluded.commit == done.answered.commit);
      REQUIRE(done.answered.reply.shift >= std::max<int>(ask.min_shift, ask.shift));
      commits += done.concluded.commit ? 1 : 0;
      wide += done.concluded.wide.size();
      const auto left = ends[0].whole();
      const auto right = ends[1].whole();
      bool same = true;
      for (std::size_t e = 0; e < before.size(); ++e)
        same = same && exact(left[e], right[e]) == before[e];
      REQUIRE(same);
    }
  }
  CHECK(commits > 500);
  CHECK((wide > 100) == (codec != Codec::f32));
}

TEST_CASE("plain averaging brings both ends to their mean", "[exchange]") {
  Random random(5);
  End i(2);
  End j(2);
  i.set(random_values(2, random, 1));
  j.set(random_values(2, random, 1));
  const auto done = exchange(i, j, {.codec = Codec::f32});
  CHECK(done.answered.reply.shift == 1);
  CHECK(farthest(i, j, 0) < 1e-6);
  CHECK(farthest(i, j, 1) < 1e-6);
}

TEST_CASE("a gentler weight moves less, by powers of two", "[exchange]") {
  for (int shift = 1; shift <= max_shift_bound; ++shift) {
    End i(1);
    End j(1);
    i.set(std::vector<float>(block_elements, 1.0F));
    j.set(std::vector<float>(block_elements, 3.0F));
    const auto done = exchange(i, j, {.codec = Codec::f32, .shift = shift});
    CHECK(done.answered.reply.shift == shift);
    CHECK(i.whole()[7] == 1 + std::ldexp(2.0, -shift));
    CHECK(j.whole()[7] == 3 - std::ldexp(2.0, -shift));
  }
}

TEST_CASE("the initiator's budget binds the responder", "[exchange]") {
  End i(1);
  End j(1);
  i.set(std::vector<float>(block_elements, 1.0F));
  j.set(std::vector<float>(block_elements, 3.0F));
  CHECK(exchange(i, j, {.codec = Codec::f32, .min_shift = 4, .shift = 2}).answered.reply.shift == 4);
  CHECK(exchange(i, j, {.codec = Codec::f32, .min_shift = 1, .shift = 99}).answered.reply.shift == max_shift_bound);
}

TEST_CASE("at consensus nothing is moved or written", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  Random random(7);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    End i(3);
    End j(3);
    i.set(random_values(3, random, 2));
    j.set(i.x);
    const auto done = exchange(i, j, {.codec = codec, .seed = seed});
    CHECK(done.answered.reply.status == ReplyStatus::done);
    CHECK(done.concluded.accepted);
    CHECK_FALSE(done.answered.commit);
    CHECK_FALSE(done.concluded.commit);
    CHECK(done.concluded.wide.empty());
    CHECK(done.answered.reply.wide.empty());
    CHECK(done.concluded.measure.mean_abs == 0);
    CHECK_FALSE(i.buffers.has_correction());
    CHECK_FALSE(j.buffers.has_correction());
  }
}

TEST_CASE("both ends measure the same disagreement", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  End i(4);
  End j(4);
  i.set(std::vector<float>(4 * block_elements, 1.0F));
  j.set(std::vector<float>(4 * block_elements, 1.25F));
  const auto done = exchange(i, j, {.codec = codec, .blocks = {0, 2}, .exponents = {-4, -4}});
  for (const ExchangeMeasure& measure : {done.answered.measure, done.concluded.measure}) {
    CHECK(measure.blocks == 2);
    CHECK(measure.wide_blocks == 0);
    CHECK(measure.mean_abs == Approx(0.25));
    // Each D is 4 steps of 1/16: the variance that quantisation adds is at most 1/16 · 1/4, a fourth of (1/4)².
    CHECK(measure.codec_error == Approx(codec == Codec::f32 ? 0 : 0.5));
  }
  CHECK(done.answered.measure.ratio == Approx(0.25 / (1.25 / 32)));
  CHECK(done.concluded.measure.ratio == Approx(0.25 / (1.0 / 32)));
  CHECK(farthest(i, j, 0) == Approx(0).margin(0));
  CHECK(farthest(i, j, 1) == 0.25);  // this block is not in the exchange
}

TEST_CASE("a half that its initiator never takes is undone, exactly, whatever came after it", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  constexpr std::size_t blocks = 5;
  Random random(8);
  std::size_t undone = 0;
  for (int pair = 0; pair < 100; ++pair) {
    End i(blocks);
    End j(blocks);
    End other(blocks);
    i.set(dyadic_values(blocks, random));
    j.set(apart_from(i.x, random));
    other.set(apart_from(i.x, random));
    const auto subset = random_subset(blocks, random);
    const std::size_t count = subset.empty() ? blocks : subset.size();
    const auto sent = encode(
        i, {.codec = codec, .blocks = subset, .exponents = std::vector<std::int8_t>(count, -7), .seed = random.next()});
    const std::vector<double> before = j.whole();
    const WeightShifts weights{.responder = static_cast<int>(random.below(3))};
    const auto answered = answer(j, sent.request, 1, weights);
    REQUIRE(answered.reply.status == ReplyStatus::done);
    CHECK(answered.half.shift >= answered.reply.shift + weights.responder);
    if (!answered.commit) continue;
    const std::vector<double> given = j.whole();
    // Meanwhile the responder exchanges with others, and its client trains and publishes.
    if (random.below(2) == 0) exchange(j, other, {.codec = Codec::q8, .seed = random.next()});
    const std::vector<double> then = j.whole();
    if (random.below(2) == 0) {
      j.buffers.hand_over();
      j.client_step();
    }
    const UndoTask undo{.place = 0, .reply = answered.reply, .half = answered.half};
    REQUIRE(undo.run(j.held()).commit);
    j.buffers.finish_commit();
    ++undone;
    const std::vector<double> after = j.whole();
    for (std::size_t e = 0; e < after.size(); ++e)
      REQUIRE(after[e] - then[e] == Approx(before[e] - given[e]).margin(codec == Codec::f32 ? 1e-5 : 0));
  }
  CHECK(undone > 50);
}

TEST_CASE("each end moves by its own weight", "[exchange]") {
  End i(1);
  End j(1);
  i.set(std::vector<float>(block_elements, 1.0F));
  j.set(std::vector<float>(block_elements, 3.0F));
  const auto [initiator, responder] = GENERATE(std::pair{0, 2}, std::pair{2, 0}, std::pair{30, 1});
  const auto sent = encode(i, {.codec = Codec::f32});
  const auto answered = answer(j, sent.request, 1, {.initiator = initiator, .responder = responder});
  REQUIRE(conclude(i, sent, answered.reply).commit);
  CHECK(i.whole()[7] == 1 + std::ldexp(2.0, -std::min(1 + initiator, int{max_shift_bound})));
  CHECK(j.whole()[7] == 3 - std::ldexp(2.0, -(1 + responder)));
}

TEST_CASE("training during an exchange is kept", "[exchange]") {
  End i(1);
  End j(1);
  i.set(std::vector<float>(block_elements, 1.0F));
  j.set(std::vector<float>(block_elements, 3.0F));
  const auto sent = encode(i, {.codec = Codec::f32});
  i.buffers.hand_over();
  for (float& value : i.x)
    value += 16;
  i.client_step();
  const auto answered = answer(j, sent.request);
  conclude(i, sent, answered.reply);
  CHECK(i.whole()[0] == 18);
  CHECK(j.whole()[0] == 2);
}

TEST_CASE("a block whose noise nears its difference is mixed more gently", "[exchange]") {
  // One outlier makes the step large. The other differences are far smaller, so that the noise is seven times the
  // signal.
  End i(1);
  End j(1);
  std::vector<float> values(block_elements, 0.0F);
  i.set(values);
  for (float& value : values)
    value = 0.05F;
  values[9] = 1.0F;
  j.set(values);
  CHECK(exchange(i, j, {.codec = Codec::q4, .exponents = {0}}).answered.reply.shift == 4);
  End k(1);
  k.set(std::vector<float>(block_elements, 0.0F));
  CHECK(exchange(k, j, {.codec = Codec::q8, .exponents = {-7}}).answered.reply.shift == 1);
}

// --- out of range -------------------------------------------------------------------------------------------------

TEST_CASE("the step that a responder asks for is one that it accepts, however large the link's factor", "[exchange]") {
  const float factor = GENERATE(1.0F, 64.0F, 65536.0F);
  CAPTURE(factor);
  constexpr std::size_t blocks = 2;
  Random random(11);
  const auto values = random_values(blocks, random, 1);
  End i(blocks);
  End j(blocks);
  i.set(values);
  j.set(values);
  believe_anything(i);
  const auto answered_with_factor = [&](const ExchangeRequest& request) {
    return AnswerTask{.request = request, .factor = factor}.run(j.held()).reply;
  };
  const auto first = encode(i, {.blocks = {0, 1}, .exponents = std::vector<std::int8_t>(blocks, 30)});
  const auto refused = answered_with_factor(first.request);
  REQUIRE(refused.status == ReplyStatus::done);
  REQUIRE(refused.wide.data.size() == 1);
  REQUIRE(refused.asked.size() == blocks);
  const auto asked = refused.asked.as<std::int8_t>();
  const auto second = encode(i, {.blocks = {0, 1}, .exponents = {asked.begin(), asked.end()}});
  CHECK(answered_with_factor(second.request).wide.empty());
}

TEST_CASE("wide blocks are reported, and cured by the follow-ups", "[exchange]") {
  const Codec codec = GENERATE(Codec::q8, Codec::q4);
  const float apart = GENERATE(2.0F, 30.0F, 500.0F, 1e6F);
  CAPTURE(codec_name(codec), apart);
  Random random(11);
  End i(4);
  End j(4);
  auto values = random_values(4, random, 4);
  i.set(values);
  for (std::size_t e = 2 * block_elements; e < 3 * block_elements; ++e)
    values[e] += apart;
  j.set(values);
  const double before = farthest(i, j, 2);
  const auto first = exchange(i, j, {.codec = codec, .exponents = std::vector<std::int8_t>(4, -6)});
  REQUIRE(first.concluded.wide == std::vector<std::uint32_t>{2});
  CHECK(first.answered.measure.wide_blocks == 1);
  CHECK(first.concluded.measure.wide_blocks == 1);
  CHECK(farthest(i, j, 2) == before);
  const int asked = first.concluded.wide_exponents.at(0);
  CHECK(asked >= -6 + 2);
  CHECK(asked <= -6 + 6);
  const auto second =
      exchange(i, j, {.codec = codec, .blocks = first.concluded.wide, .exponents = first.concluded.wide_exponents});
  CHECK(second.sent.exponents.at(0) >= asked);
  CHECK(second.sent.request.block_count == 1);
  if (second.concluded.wide.empty()) {
    CHECK(farthest(i, j, 2) < before);
    return;
  }
  // A distance beyond the limits is moved a part at a time. Each part teaches both ends to accept more.
  const bool beyond = apart > 1000;
  for (int part = 0; part < (beyond ? 4 : 1); ++part) {
    const auto third = exchange(i, j, {.codec = Codec::f32, .blocks = second.concluded.wide});
    CHECK(third.concluded.wide.empty());
    CHECK(farthest(i, j, 2) <= before);
    if (part == 0) CHECK((farthest(i, j, 2) > before / 2) == beyond);
  }
  CHECK(farthest(i, j, 2) < 1e-6 * before);
  for (const End* end : {&i, &j})
    CHECK(end->steps.mean() > apart / 4 / 8);  // the estimates have grown with it
}

TEST_CASE("the responder's limit is on what it moves: who leaves it little weight is told all", "[exchange]") {
  const auto answered_with = [](std::uint8_t min_shift) {
    End close(1);
    close.set(std::vector<float>(block_elements, 1.0F));
    const std::vector<BlockOutcome> agreed(1, {.mean_abs = 1e-9F, .mean_square = 1e-18F});
    close.steps.prime(close.buffers.y(), test_device());
    for (int i = 0; i < 100; ++i)
      close.steps.observe(blocks_of({}, 1), agreed, 1);
    const int limit = close.steps.limit_exponent(default_range, 1, 0);
    End far(1);
    std::vector<float> values(block_elements, 1.0F);
    values[3] += std::ldexp(1.0F, limit + 8);
    far.set(values);
    believe_anything(far);
    const auto sent = encode(far, {.codec = Codec::f32, .min_shift = min_shift});
    const auto reply = answer(close, sent.request).reply;
    return std::pair{std::ldexp(reply.differences.as<float>()[3], -limit), std::ldexp(close.whole()[3] - 1, -limit)};
  };
  const auto [part, moved_half] = answered_with(min_shift_bound);
  CHECK(std::fabs(part) <= 1);
  CHECK(std::fabs(moved_half) > 0.2);
  const auto [all, moved_little] = answered_with(max_shift_bound);
  CHECK(std::fabs(all) == 256);
  CHECK(std::fabs(moved_little) > 0);
  CHECK(std::fabs(moved_little) <= 0.5);
}

TEST_CASE("no exchange moves an element by more than its weight allows", "[exchange]") {
  const Codec codec = GENERATE(Codec::q8, Codec::q4);
  Random random(13);
  for (int round = 0; round < 300; ++round) {
    End j(1);
    j.set(random_values(1, random, 1));
    const auto before = j.whole();
    // A peer may send any low bits and any check.
    const auto e = static_cast<std::int8_t>(random.below(20)) - 12;
    std::vector<std::byte> side(side_bytes(codec, 1));
    side[0] = static_cast<std::byte>(e);
    End liar(1);
    liar.set(random_values(1, random, std::ldexp(1.0, static_cast<int>(random.below(10)))));
    auto sent = encode(liar, {.codec = codec, .exponents = {static_cast<std::int8_t>(e)}, .seed = random.next()});
    const auto answered = answer(j, sent.request);
    const double bound = std::ldexp(1.0, sent.exponents[0] + codec_bits(codec) - 1 - answered.reply.shift);
    double moved = 0;
    for (std::size_t n = 0; n < before.size(); ++n)
      moved = std::max(moved, std::fabs(j.whole()[n] - before[n]));
    REQUIRE(moved <= bound);
  }
}

TEST_CASE("a step far above the responder's own is refused", "[exchange]") {
  const Codec codec = GENERATE(Codec::q8, Codec::q4);
  CAPTURE(codec_name(codec));
  Random random(17);
  End j(2);
  j.set(random_values(2, random, 1));
  j.steps.prime(j.buffers.y(), test_device());
  const int own = j.steps.exponent(codec, default_range, 1, 1);
  for (const int above : {0, 8, 9, 30, 100}) {
    CAPTURE(above);
    End victim(2);
    victim.set(j.x);
    End poisoned(2);
    believe_anything(poisoned);
    auto near = j.x;
    near[300] += std::ldexp(1.0F, own);
    poisoned.set(near);
    const auto e = static_cast<std::int8_t>(std::min(own + above, max_step_exponent));
    const auto done = exchange(poisoned, victim, {.codec = codec, .exponents = {static_cast<std::int8_t>(own), e}});
    const bool refused = std::ranges::count(done.concluded.wide, 1U) != 0;
    CHECK(refused == (e > own + 8));
    if (!refused) continue;
    CHECK(farthest(victim, j, 1) == 0);
    for (std::size_t n = 0; n < codec_block_bytes(codec); ++n)
      REQUIRE(done.answered.reply.differences.data[codec_block_bytes(codec) + n] == std::byte{0});
  }
}

TEST_CASE("a peer that insists on coarse steps does not wear the responder down", "[exchange]") {
  const Codec codec = GENERATE(Codec::q8, Codec::q4);
  Random random(19);
  End victim(1);
  victim.set(random_values(1, random, 1));
  const auto before = victim.whole();
  victim.steps.prime(victim.buffers.y(), test_device());
  const float estimate = victim.steps.mean();
  for (int round = 0; round < 100; ++round) {
    End poisoned(1);
    believe_anything(poisoned);
    poisoned.set(random_values(1, random, 1e9));
    const auto sent = encode(poisoned, {.codec = codec, .exponents = {30}, .seed = random.next()});
    answer(victim, sent.request);
  }
  CHECK((victim.whole() == before));
  CHECK(victim.steps.mean() == estimate);
}

TEST_CASE("a newcomer that expects too much learns from those it meets", "[exchange]") {
  // The others agree to a millionth. The newcomer has just pulled the model, and expects 1/32 of its magnitude.
  const Codec codec = GENERATE(Codec::q8, Codec::q4);
  CAPTURE(codec_name(codec));
  Random random(23);
  End newcomer(1);
  End settled(1);
  newcomer.set(random_values(1, random, 2));
  auto close = newcomer.x;
  for (float& value : close)
    value += static_cast<float>(2e-6 * (random.uniform() - 0.5));
  settled.set(close);
  for (int i = 0; i < 80; ++i) {
    const std::uint32_t block[] = {0};
    const BlockOutcome seen[] = {{.mean_abs = 1e-6F, .mean_square = 1e-12F}};
    if (!settled.steps.primed()) settled.steps.prime(settled.buffers.y(), test_device());
    settled.steps.observe(block, seen, 1);
  }
  std::size_t wide = 0;
  for (int round = 0; round < 60; ++round) {
    const auto done = exchange(newcomer, settled, {.codec = codec, .seed = random.next()});
    if (round >= 30) wide += done.concluded.wide.size();
    if (done.concluded.wide.empty()) continue;
    const auto again = exchange(newcomer, settled,
                                {.codec = codec,
                                 .blocks = done.concluded.wide,
                                 .exponents = done.concluded.wide_exponents,
                                 .seed = random.next()});
    if (!again.concluded.wide.empty()) exchange(newcomer, settled, {.codec = Codec::f32, .blocks = {0}});
  }
  CHECK(wide == 0);
  CHECK(newcomer.steps.mean() < 1e-3);
  CHECK(farthest(newcomer, settled, 0) < 1e-5);
}

// --- NaN and infinity ---------------------------------------------------------------------------------------------

TEST_CASE("a fragment with NaN or infinity is not sent", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity());
  End i(2);
  i.memory[0][300] = bad;
  CHECK_FALSE(encode(i, {.codec = codec}).finite);
}

TEST_CASE("a responder with NaN of its own says so and commits nothing", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  CAPTURE(codec_name(codec), bad);
  End i(2);
  End j(2);
  j.memory[0][300] = bad;
  const auto done = exchange(i, j, {.codec = codec});
  CHECK(done.answered.own_not_finite);
  CHECK(done.answered.reply.status == ReplyStatus::refused);
  CHECK(done.answered.reply.reason == RefuseReason::quarantined);
  CHECK(done.answered.reply.differences.empty());
  CHECK_FALSE(done.answered.commit);
  CHECK_FALSE(j.buffers.has_correction());
  CHECK(fits(done.answered.reply, done.sent.request));
}

TEST_CASE("numbers beyond every step are taken for infinite, and large estimates are not", "[exchange]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  const bool estimates = GENERATE(false, true);
  CAPTURE(codec_name(codec), estimates);
  End end(2);
  if (estimates) believe_anything(end);
  std::vector<float> values(2 * block_elements, 1.0F);
  for (const auto& [magnitude, averaged] : {std::pair{6e35F, true}, std::pair{7e35F, false}, std::pair{3e38F, false}}) {
    CAPTURE(magnitude);
    values[300] = -magnitude;
    end.set(values);
    CHECK(encode(end, {.codec = codec}).finite == averaged);
  }
}

TEST_CASE("replicas of the size of the finest step count as equal", "[exchange]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  CAPTURE(codec_name(codec));
  Random random(1);
  End i(2);
  End j(2);
  i.set(random_values(2, random, 1e-30));
  j.set(random_values(2, random, 1e-30));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto sent = encode(i, {.codec = codec, .seed = seed});
    const auto answered = answer(j, sent.request);
    (void)conclude(i, sent, answered.reply);
    if (seed > 1) CHECK(relative_distance(answered.measure) == 0);
  }
}

TEST_CASE("f32 values that are not finite, or too far away for a difference, are refused", "[exchange]") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F);
  End i(2);
  End j(2);
  j.set(std::vector<float>(2 * block_elements, -3e38F));
  auto sent = encode(i, {.codec = Codec::f32});
  std::vector<float> values(2 * block_elements);
  values[300] = bad;
  sent.request.values = Bytes::adopt(std::move(values));
  const auto answered = answer(j, sent.request);
  CHECK(answered.reply.status == ReplyStatus::refused);
  CHECK(answered.reply.reason == RefuseReason::not_finite);
  CHECK_FALSE(answered.own_not_finite);
  CHECK_FALSE(answered.commit);
  CHECK_FALSE(j.buffers.has_correction());
}

TEST_CASE("f32 differences that are not finite are not applied", "[exchange]") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  CAPTURE(bad);
  End i(2);
  End j(2);
  const auto sent = encode(i, {.codec = Codec::f32});
  auto answered = answer(j, sent.request);
  std::vector<float> differences(2 * block_elements);
  differences[300] = bad;
  answered.reply.differences = Bytes::adopt(std::move(differences));
  const auto concluded = conclude(i, sent, answered.reply);
  CHECK_FALSE(concluded.accepted);
  CHECK_FALSE(concluded.commit);
  CHECK_FALSE(i.buffers.has_correction());
  CHECK(std::isfinite(i.steps.mean()));
}

// --- replies that fit their requests ------------------------------------------------------------------------------

namespace {

template <class Change>
Bytes changed(const Bytes& bytes, Change change) {
  std::vector<std::byte> copy(bytes.data.begin(), bytes.data.end());
  change(copy);
  return Bytes::adopt(std::move(copy));
}
Bytes resized(const Bytes& bytes, std::ptrdiff_t by) {
  return changed(bytes,
                 [&](auto& b) { b.resize(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(b.size()) + by)); });
}
Bytes some(std::size_t size, unsigned fill = 0) {
  return Bytes::adopt(std::vector<std::byte>(size, static_cast<std::byte>(fill)));
}

}  // namespace

TEST_CASE("a request fits the fragment or is not taken", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  constexpr std::size_t blocks = 11;
  Random random(29);
  End i(blocks);
  i.set(random_values(blocks, random, 1));
  const ExchangeRequest whole = encode(i, {.codec = codec}).request;
  const ExchangeRequest part = encode(i, {.codec = codec, .blocks = {0, 4, 10}}).request;
  REQUIRE(fits(whole, blocks));
  REQUIRE(fits(part, blocks));
  REQUIRE(part.blocks.size() == 2);
  CHECK_FALSE(fits(whole, blocks - 1));
  CHECK_FALSE(fits(whole, blocks + 1));
  CHECK_FALSE(fits(part, 10));
  const auto refuses = [&](const ExchangeRequest& good, auto change) {
    ExchangeRequest request = good;
    change(request);
    return !fits(request, blocks);
  };
  for (const ExchangeRequest& good : {whole, part}) {
    CHECK(refuses(good, [](auto& r) { r.block_count = 0; }));
    CHECK(refuses(good, [](auto& r) { ++r.block_count; }));
    CHECK(refuses(good, [](auto& r) { --r.block_count; }));
    CHECK(refuses(good, [](auto& r) { r.block_count = ~0U; }));
    CHECK(refuses(good, [](auto& r) { r.values = resized(r.values, 1); }));
    CHECK(refuses(good, [](auto& r) { r.values = resized(r.values, -1); }));
    CHECK(refuses(good, [](auto& r) { r.values = {}; }));
    CHECK(refuses(good, [](auto& r) { r.side = resized(r.side, 1); }));
    CHECK(refuses(good, [](auto& r) { r.codec = r.codec == Codec::q8 ? Codec::q4 : Codec::q8; }));
    if (codec == Codec::f32) continue;
    CHECK(refuses(good, [](auto& r) { r.side = {}; }));
    CHECK(refuses(good, [](auto& r) { r.side = resized(r.side, -1); }));
    for (const int e : {-128, -101, 101, 127}) {
      for (std::size_t n = 0; n < good.block_count; ++n) {
        CHECK(refuses(good,
                      [&](auto& r) { r.side = changed(r.side, [&](auto& b) { b[n] = static_cast<std::byte>(e); }); }));
      }
    }
    CHECK_FALSE(
        refuses(good, [](auto& r) { r.side = changed(r.side, [](auto& b) { b[0] = static_cast<std::byte>(100); }); }));
  }
  CHECK(refuses(whole, [](auto& r) { r.blocks = some(2); }));
  CHECK_FALSE(refuses(whole, [](auto& r) {
    r.blocks = changed(some(2, 0xff), [](auto& b) { b[1] = std::byte{0x07}; });  // a bitmap of all blocks
  }));
  CHECK(refuses(part, [](auto& r) { r.blocks = resized(r.blocks, -1); }));
  CHECK(refuses(part, [](auto& r) { r.blocks = resized(r.blocks, 1); }));
  CHECK(refuses(part, [](auto& r) { r.blocks = {}; }));
  CHECK(refuses(part, [](auto& r) { r.blocks = changed(r.blocks, [](auto& b) { b[0] |= std::byte{2}; }); }));
  CHECK(refuses(part, [](auto& r) {  // a bit beyond the fragment, the count right
    r.blocks = changed(r.blocks, [](auto& b) {
      b[0] &= std::byte{0xfe};
      b[1] |= std::byte{0x80};
    });
  }));
}

TEST_CASE("a reply fits its request or is a violation", "[exchange]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  constexpr std::size_t blocks = 9;
  Random random(31);
  End i(blocks);
  End j(blocks);
  i.set(random_values(blocks, random, 1));
  auto values = random_values(blocks, random, 1);
  values[3] += 1000;  // block 0 will be wide
  j.set(values);
  const auto sent = encode(i, {.codec = codec, .min_shift = 2});
  const ExchangeReply reply = answer(j, sent.request).reply;
  REQUIRE(fits(reply, sent.request));
  REQUIRE(reply.wide.empty() == (codec == Codec::f32));
  const auto violates = [&](auto change) {
    ExchangeReply bad = reply;
    change(bad);
    return !fits(bad, sent.request);
  };
  CHECK(violates([](auto& r) { ++r.fragment; }));
  CHECK(violates([](auto& r) { r.job.name_hash = 1; }));
  CHECK(violates([](auto& r) { r.job.layout_hash = 1; }));
  CHECK(violates([](auto& r) { r.codec = r.codec == Codec::q8 ? Codec::q4 : Codec::q8; }));
  CHECK(violates([](auto& r) { ++r.block_count; }));
  CHECK(violates([](auto& r) { --r.block_count; }));
  CHECK(violates([](auto& r) { r.shift = 1; }));  // stronger than the initiator's budget
  CHECK(violates([](auto& r) { r.shift = 0; }));
  CHECK(violates([](auto& r) { r.shift = max_shift_bound + 1; }));
  CHECK_FALSE(violates([](auto& r) { r.shift = max_shift_bound; }));
  CHECK(violates([](auto& r) { r.differences = resized(r.differences, 1); }));
  CHECK(violates([](auto& r) { r.differences = resized(r.differences, -1); }));
  CHECK(violates([](auto& r) { r.differences = {}; }));
  if (codec == Codec::f32) {
    CHECK(violates([](auto& r) { r.wide = some(bitmap_bytes(blocks)); }));
    CHECK(violates([](auto& r) { r.asked = some(blocks); }));
  } else {
    CHECK(violates([](auto& r) { r.wide = resized(r.wide, 1); }));
    CHECK(violates([](auto& r) { r.wide = resized(r.wide, -1); }));
    CHECK(violates([](auto& r) { r.wide = {}; }));
    CHECK(violates([](auto& r) { r.asked = {}; }));
    CHECK(violates([](auto& r) { r.asked = resized(r.asked, -1); }));
    for (const int e : {-128, -101, 101, 127}) {
      CHECK(violates([&](auto& r) { r.asked = changed(r.asked, [&](auto& b) { b[8] = static_cast<std::byte>(e); }); }));
    }
  }
  for (const ReplyStatus status : {ReplyStatus::busy, ReplyStatus::refused}) {
    const ExchangeReply bare{.counter = 5, .job = job, .status = status};
    CHECK(fits(bare, sent.request));
  }
}

TEST_CASE("block lists and their bitmaps say the same", "[exchange]") {
  CHECK(blocks_of({}, 3) == std::vector<std::uint32_t>{0, 1, 2});
  CHECK(bitmap_of(std::vector<std::uint32_t>{0, 1, 2}, 3).empty());
  const std::byte bits[] = {std::byte{0b1000'0001}, std::byte{0b10}};
  CHECK(blocks_of(bits, 10) == std::vector<std::uint32_t>{0, 7, 9});
  const Bytes bitmap = bitmap_of(std::vector<std::uint32_t>{0, 7, 9}, 10);
  CHECK(std::ranges::equal(bitmap.data, bits));
  Random random(37);
  for (int round = 0; round < 500; ++round) {
    const std::size_t blocks = 1 + random.below(70);
    const auto chosen = random_subset(blocks, random);
    if (chosen.empty()) continue;
    REQUIRE(blocks_of(bitmap_of(chosen, blocks).data, blocks) == chosen);
  }
}
