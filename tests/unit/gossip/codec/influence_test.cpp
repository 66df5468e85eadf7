// How far one partner may move a replica: thresholds are checked by tables, and limits by the worst exchanges.

#include "gossip/codec/influence.hpp"

#include <cmath>
#include <limits>

#include "catch.hpp"
#include "gossip/exchange/exchange.hpp"
#include "gossip/random.hpp"
#include "gossip/test_device.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr Codec all_codecs[] = {Codec::f32, Codec::q8, Codec::q4};
constexpr float huge = std::numeric_limits<float>::max();

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes.fill(static_cast<std::uint8_t>(number * 37 + 1));
  return id;
}
constexpr Witness one_of_many(std::uint16_t partner) {
  return {.partner = partner, .alone = false};
}

/// One end of an exchange, with values of its own and no correction on its way to a client.
struct End {
  std::size_t blocks;
  std::vector<std::vector<float>> memory;
  FragmentBuffers buffers;
  BlockSteps steps;

  explicit End(std::vector<float> values)
      : blocks(values.size() / block_elements),
        memory{values, std::vector<float>(values.size()), std::vector<float>(values.size())},
        buffers({there(memory[0]), there(memory[1]), there(memory[2])}, blocks, {.generation = 1}, test_device()),
        steps(blocks) {
    steps.prime(buffers.y(), test_device());
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  HeldFragment held() { return {buffers, steps}; }
  float y(std::size_t element) const { return here(buffers.y()).at(element); }
  std::vector<float> all() const {
    std::vector<float> values;
    for (std::size_t e = 0; e < blocks * block_elements; ++e)
      values.push_back(y(e));
    return values;
  }
};

std::vector<float> random_values(std::size_t blocks, Random& random, double spread) {
  std::vector<float> values(blocks * block_elements);
  for (float& value : values)
    value = static_cast<float>(spread * (2 * random.uniform() - 1));
  return values;
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0;
  for (std::size_t e = 0; e < a.size(); ++e)
    square += (double{a[e]} - b[e]) * (double{a[e]} - b[e]);
  return std::sqrt(square);
}

EncodeTask::Result encode(End& end, Codec codec, Clip clip = {}, std::uint64_t seed = 1,
                          std::vector<std::int8_t> exponents = {}) {
  return EncodeTask{.request = {.codec = codec, .seed = seed}, .exponents = std::move(exponents), .clip = clip}.run(
      end.held());
}
AnswerTask::Result answer(End& end, const ExchangeRequest& request, Clip clip = {}, Witness witness = {}) {
  auto result = AnswerTask{.request = request, .clip = clip, .witness = witness}.run(end.held());
  if (result.commit) end.buffers.finish_commit();
  return result;
}
ConcludeTask::Result conclude(End& end, const EncodeTask::Result& sent, const ExchangeReply& reply,
                              Witness witness = {}) {
  auto result = ConcludeTask{.reply = reply,
                             .blocks = sent.blocks,
                             .exponents = sent.exponents,
                             .clip = sent.request.clip,
                             .witness = witness}
                    .run(end.held());
  if (result.commit) end.buffers.finish_commit();
  return result;
}
/// Runs an exchange with its follow-ups, as Replica does. Returns the number of follow-ups.
int exchange(End& i, End& j, Codec codec, Clip clip, std::uint64_t seed, Witness at_i = {}, Witness at_j = {}) {
  std::vector<std::uint32_t> blocks;
  std::vector<std::int8_t> exponents;
  int follow_up = 0;
  for (;; ++follow_up) {
    auto sent = EncodeTask{.request = {.codec = follow_up == 2 ? Codec::f32 : codec, .seed = seed},
                           .blocks = blocks,
                           .exponents = exponents,
                           .clip = clip}
                    .run(i.held());
    const auto answered = answer(j, sent.request, clip, at_j);
    REQUIRE(answered.reply.status == ReplyStatus::done);
    const auto concluded = conclude(i, sent, answered.reply, at_i);
    REQUIRE(concluded.accepted);
    if (concluded.wide.empty() || follow_up == 2) return follow_up;
    blocks = concluded.wide;
    exponents = follow_up == 0 ? concluded.wide_exponents : std::vector<std::int8_t>{};
  }
}

}  // namespace

// --- thresholds ---------------------------------------------------------------------------------------------------

TEST_CASE("the median is the lower one, of each partner's last distance", "[influence]") {
  DistanceRecord record;
  CHECK_FALSE(record.median().has_value());
  record.observe(node(1), 5);
  record.observe(node(2), 1);
  CHECK_FALSE(record.median().has_value());  // of two distances, nobody knows which is the odd one
  CHECK(record.witness(node(1)).alone);
  record.observe(node(3), 9);
  CHECK(record.median() == 5.0F);
  CHECK_FALSE(record.witness(node(1)).alone);
  CHECK(record.witness(node(1)).partner != record.witness(node(2)).partner);
  record.observe(node(4), 2);
  CHECK(record.median() == 2.0F);
  record.observe(node(1), 0.5);
  CHECK(record.partners() == 4);
  CHECK(record.median() == 1.0F);
  record.observe(node(2), 1e300);
  CHECK(record.median() == 2.0F);
}

TEST_CASE("what partners find usual counts once most of them have told it", "[influence]") {
  DistanceRecord record;
  record.told(node(1), 1);  // it is in no exchange yet
  CHECK(record.usual() == 0);
  for (std::uint8_t i = 1; i <= 4; ++i)
    record.observe(node(i), 10 * i);
  CHECK(record.usual() == record.median());
  CHECK_FALSE(record.told_median().has_value());
  record.told(node(2), 3);
  CHECK_FALSE(record.told_median().has_value());
  record.told(node(3), 2);
  CHECK(record.told_median() == 3.0F);
  record.told(node(1), std::numeric_limits<float>::max());
  record.told(node(4), std::numeric_limits<float>::max());
  CHECK(record.told_median() == 3.0F);
  record.observe(node(2), 50);  // a new distance leaves what was told
  CHECK(record.told_median() == 3.0F);
  record.told(node(2), 0);  // it does not know any more
  CHECK(record.told_median() == std::numeric_limits<float>::max());
  record.forget(node(1));
  record.forget(node(4));
  CHECK_FALSE(record.told_median().has_value());
  CHECK(record.usual() == 30.0F);  // the lower of two, of which there is no median
}

TEST_CASE("a minority does not move what the partners find usual beyond the others'", "[influence]") {
  const float lie = GENERATE(0.0F, 1e-30F, 1e30F);
  DistanceRecord record;
  for (std::uint8_t i = 0; i < 5; ++i) {
    record.observe(node(i), 100);
    record.told(node(i), i < 3 ? 1.0F + i : lie);
  }
  CHECK(record.told_median() >= 1.0F);
  CHECK(record.told_median() <= 3.0F);
}

TEST_CASE("a partner that is gone is no witness", "[influence]") {
  DistanceRecord record;
  for (std::uint8_t i = 0; i < 5; ++i)
    record.observe(node(i), i < 3 ? 1 : 100);
  CHECK(record.median() == 1.0F);
  record.forget(node(0));
  record.forget(node(9));
  CHECK(record.partners() == 4);
  record.observe(node(5), 100);
  CHECK(record.median() == 100.0F);
  record.forget(node(1));
  record.forget(node(2));
  CHECK(record.median() == 100.0F);
  record.forget(node(3));
  CHECK_FALSE(record.median().has_value());
}

TEST_CASE("only the latest partners are remembered", "[influence]") {
  DistanceRecord record;
  for (std::uint8_t i = 0; i < 100; ++i)
    record.observe(node(i), i);
  CHECK(record.partners() == remembered_partners);
  CHECK(record.median() == 91.0F);  // the lower median of 84 to 99
}

TEST_CASE("a minority does not move the median beyond the others', however often it speaks", "[influence]") {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    DistanceRecord record;
    for (std::uint8_t i = 0; i < 4; ++i)
      record.observe(node(i), 1 + random.uniform());
    for (int i = 0; i < 50; ++i)
      record.observe(node(static_cast<std::uint8_t>(10 + random.below(3))), random.below(2) == 0 ? 0 : 1e30);
    REQUIRE(record.median() >= 1.0F);
    REQUIRE(record.median() <= 2.0F);
  }
}

TEST_CASE("the nodes of one sponsor have one voice, however many they are", "[influence]") {
  const double lie = GENERATE(0.0, 1e30);
  DistanceRecord record;
  for (std::uint8_t i = 0; i < 3; ++i)
    record.observe(node(i), 1 + i, 100 + i);
  for (int round = 0; round < 3; ++round) {
    for (std::uint8_t i = 0; i < 40; ++i)
      record.observe(node(static_cast<std::uint8_t>(50 + i)), lie, 7);
  }
  CHECK(record.partners() == remembered_partners);
  CHECK(record.median() == (lie == 0 ? 1.0F : 2.0F));
  CHECK(record.witness(node(50), 7).partner == record.witness(node(51), 7).partner);
  CHECK(record.witness(node(50), 7).partner != record.witness(node(0), 100).partner);
}

TEST_CASE("where one sponsor has admitted all, each node has a voice", "[influence]") {
  DistanceRecord record;
  for (std::uint8_t i = 0; i < 5; ++i)
    record.observe(node(i), i, 7);
  CHECK(record.median() == 2.0F);
  CHECK(record.witness(node(0), 7).partner != record.witness(node(1), 7).partner);
}

TEST_CASE("a voice has had its part of the last exchanges, of those that are not long ago", "[influence]") {
  VoiceTurns turns;
  TimeUs now_us = 0;
  const std::uint32_t often = voice_of(node(1), no_sponsor);
  CHECK(voice_of(node(2), 7) == voice_of(node(3), 7));
  CHECK(turns.had(often, -1) == 0);
  for (std::size_t i = 0; i < remembered_partners / 4; ++i)
    turns.note(often, ++now_us);
  CHECK(turns.had(often, 0) == remembered_partners / 4);
  CHECK(turns.had(often, 1) == remembered_partners / 4 - 1);
  CHECK(turns.had(often, now_us) == 0);
  CHECK(VoiceTurns::is_its_part(4, 4, 1));
  CHECK_FALSE(VoiceTurns::is_its_part(3, 4, 1));
  CHECK_FALSE(VoiceTurns::is_its_part(5, 4, 1.5));
  CHECK(VoiceTurns::is_its_part(6, 4, 1.5));
  for (std::uint8_t i = 0; i < remembered_partners; ++i)
    turns.note(voice_of(node(10 + i), no_sponsor), ++now_us);
  CHECK(turns.had(often, 0) == 0);
}

TEST_CASE("the shift of clipping, by a table", "[influence]") {
  struct Row {
    double norm;
    float threshold;
    int shift;
  };
  const Row row = GENERATE(values<Row>({
      {5, 0, 1},  // no threshold
      {0, 1, 1},
      {1, 1, 1},
      {1.001, 1, 2},
      {2, 1, 2},
      {2.001, 1, 3},
      {4096, 1, 13},
      {1e30, 1e30F, 1},
      {1e38, 1e-30F, 227},
  }));
  CAPTURE(row.norm, row.threshold);
  CHECK(clip_shift(row.norm, row.threshold) == row.shift);
}

TEST_CASE("clipping takes the largest weight that keeps to the threshold", "[influence]") {
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    const double norm = std::exp(20 * random.uniform() - 10);
    const auto threshold = static_cast<float>(std::exp(20 * random.uniform() - 10));
    const int shift = clip_shift(norm, threshold);
    REQUIRE(std::ldexp(norm, -shift) <= threshold / 2);
    if (shift > 1) REQUIRE(std::ldexp(norm, 1 - shift) > threshold / 2);
  }
}

TEST_CASE("of two thresholds the lower counts, and none is none", "[influence]") {
  CHECK(lower_threshold(0, 0) == 0);
  CHECK(lower_threshold(0, 3) == 3);
  CHECK(lower_threshold(2, 0) == 2);
  CHECK(lower_threshold(2, 3) == 2);
}

TEST_CASE("who is always far beyond the threshold weighs less, and is forgiven", "[influence]") {
  const bool loose = GENERATE(false, true);
  ClipRecord record;
  CHECK(record.extra_shift(loose) == 0);
  for (int i = 0; i < 100; ++i)
    record.observe(0.9, loose);
  CHECK(record.extra_shift(loose) == 0);
  for (int i = 0; i < 100; ++i)
    record.observe(3, loose);  // a slow node's distance: 1.6 powers of two
  CHECK(record.extra_shift(loose) == 1);
  CHECK_FALSE(record.is_wild());
  for (int i = 0; i < 1000; ++i)
    record.observe(std::numeric_limits<double>::infinity(), loose);
  CHECK(record.is_wild());
  if (!loose) CHECK(record.extra_shift(false) == extra_shift_most);
  for (int i = 0; i < 20; ++i)
    record.observe(1, loose);
  CHECK(record.extra_shift(loose) == 0);
}

TEST_CASE("with a loose clip, who is farther than any honest replica weighs nothing at once", "[influence]") {
  ClipRecord record;
  record.observe(4, true);  // twice the norm: the most for models of equal norms
  CHECK(record.extra_shift(true) <= loose_excess_log2);
  record.observe(64, true);
  CHECK(record.is_wild());
  CHECK(record.extra_shift(true) == loose_excess_log2 + 3 * 4);
  record.observe(0x1p+20, true);
  CHECK(record.extra_shift(true) == loose_excess_log2 + 3 * 18);
}

TEST_CASE("the norm of an exchange", "[influence]") {
  const std::vector<BlockOutcome> outcomes = {{.mean_abs = 1, .mean_square = 2},
                                              {.mean_abs = 9, .mean_square = 99, .wide = true},
                                              {.mean_abs = 3, .mean_square = 14}};
  CHECK(norm_of(outcomes) == Approx(std::sqrt(16.0 * 256)));
  // Where squares exceed fp32, the norm is an upper bound from the magnitudes.
  CHECK(norm_of(std::vector<BlockOutcome>{{.mean_abs = 1e30F, .mean_square = huge / 256}}) == Approx(256e30));
}

// --- what one exchange may do -------------------------------------------------------------------------------------

TEST_CASE("whatever is sent, an exchange moves a responder within its limits", "[influence]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  const bool clips = GENERATE(false, true);
  CAPTURE(codec_name(codec), clips);
  Random random(7);
  constexpr std::size_t blocks = 3;
  double largest_move = 0;
  for (int round = 0; round < 300; ++round) {
    End victim(random_values(blocks, random, 1));
    const auto before = victim.all();
    End liar(random_values(blocks, random, std::pow(10.0, 38 * random.uniform())));
    auto sent = encode(liar, codec, {}, random.next());
    if (codec == Codec::f32) {  // the liar also claims to accept any difference
      sent.request.side = Bytes::adopt(std::vector<std::int8_t>(side_bytes(codec, blocks), max_step_exponent));
    } else {
      auto side = std::vector<std::byte>(sent.request.side.data.begin(), sent.request.side.data.end());
      for (std::size_t b = 0; b < blocks; ++b)
        side[b] = static_cast<std::byte>(random.below(201) - 100);
      // Half of the time, the liar sends what is as good as a check found by luck: the victim's own low bits.
      if (random.below(2) == 0)
        sent = encode(victim, codec, {}, random.next());
      else
        sent.request.side = Bytes::adopt(std::move(side));
    }
    REQUIRE(fits(sent.request, blocks));
    std::vector<int> limits;
    for (std::uint32_t b = 0; b < blocks; ++b)
      limits.push_back(victim.steps.limit_exponent(default_range, 1, b));
    const Clip clip = clips ? Clip{.threshold = 0.25F, .multiple = 1} : Clip{};
    const auto answered = answer(victim, sent.request, clip, one_of_many(1));
    if (answered.reply.status != ReplyStatus::done) continue;
    const auto after = victim.all();
    for (std::size_t e = 0; e < after.size(); ++e) {
      const double moved = std::fabs(double{after[e]} - before[e]);
      REQUIRE(moved <= std::ldexp(1.001, limits[e / block_elements] - 1));
      largest_move = std::max(largest_move, moved);
    }
    if (clips) REQUIRE(distance(before, after) <= 0.25 / 2 * 1.001);
  }
  if (codec == Codec::f32) CHECK(largest_move > (clips ? 1e-4 : 1));  // differences did get through
}

TEST_CASE("a responder cannot talk an initiator into steps beyond its limits", "[influence]") {
  const Codec codec = GENERATE(Codec::q8, Codec::q4);
  Random random(11);
  End initiator(random_values(2, random, 1));
  const auto sent = encode(initiator, codec, {}, 1, {max_step_exponent, max_step_exponent});
  int limits[2];
  for (std::uint32_t b = 0; b < 2; ++b) {
    limits[b] = initiator.steps.limit_exponent(default_range, 1, b);
    CHECK(sent.exponents[b] + codec_bits(codec) - 1 <= limits[b]);
  }
  const auto before = initiator.all();
  ExchangeReply reply{.status = ReplyStatus::done, .codec = codec, .shift = 1, .block_count = 2};
  reply.differences = Bytes::adopt(std::vector<std::byte>(2 * codec_block_bytes(codec), std::byte{0x77}));
  REQUIRE(conclude(initiator, sent, reply).accepted);
  const auto after = initiator.all();
  CHECK(distance(before, after) > 0);
  for (std::size_t e = 0; e < after.size(); ++e)
    REQUIRE(std::fabs(after[e] - before[e]) <= std::ldexp(1.001, limits[e / block_elements] - 1));
}

TEST_CASE("an initiator commits nothing beyond what its request allowed", "[influence]") {
  Random random(13);
  const auto reply_with = [](float difference, int shift) {
    ExchangeReply reply{.status = ReplyStatus::done, .codec = Codec::f32, .block_count = 1};
    reply.shift = static_cast<std::uint8_t>(shift);
    reply.differences = Bytes::adopt(std::vector<float>(block_elements, difference));
    return reply;
  };
  struct Row {
    float over_limit;  // difference over the limit, if nothing else is said
    float clip;        // 0: no clip; else the difference's norm over the threshold
    int shift;
    bool accepted;
  };
  const Row row = GENERATE(values<Row>({
      {0.9F, 0, 1, true},
      {1.0F, 0, 1, true},
      {1.1F, 0, 1, false},
      {1.1F, 0, 12, false},
      {1e30F, 0, 1, false},
      {0.01F, 0.9F, 1, true},
      {0.01F, 1.1F, 1, false},
      {0.01F, 1.9F, 2, true},
      {0.01F, 2.1F, 2, false},
  }));
  CAPTURE(row.over_limit, row.clip, row.shift);
  End end(random_values(1, random, 1));
  const float difference = row.over_limit * std::ldexp(1.0F, end.steps.limit_exponent(default_range, 1, 0));
  const float threshold = row.clip > 0 ? difference * 16 / row.clip : 0;
  const auto sent = encode(end, Codec::f32, {.threshold = threshold});
  CHECK(sent.request.clip == threshold);
  const auto before = end.all();
  CHECK(conclude(end, sent, reply_with(difference, row.shift)).accepted == row.accepted);
  CHECK((end.all() == before) == !row.accepted);
}

TEST_CASE("under clipping both ends commit the same, exactly, and no more than either threshold allows",
          "[influence]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  Random random(17);
  constexpr std::size_t blocks = 2;
  int clipped = 0;
  for (int round = 0; round < 400; ++round) {
    const auto dyadic = [&](double spread) {
      std::vector<float> values(blocks * block_elements);
      for (float& value : values)
        value = static_cast<float>(std::nearbyint(1024 * spread * (random.uniform() - 0.5))) / 1024;
      return values;
    };
    const auto start = dyadic(4);
    auto moved = dyadic(round % 4 == 0 ? 64 : 0.25);
    for (std::size_t e = 0; e < moved.size(); ++e)
      moved[e] += start[e];
    End i(start);
    End j(moved);
    const auto threshold = [&] {
      return static_cast<float>(std::ldexp(1 + random.uniform(), static_cast<int>(random.below(8)) - 5));
    };
    const float at_i = threshold();
    const float at_j = threshold();
    const auto sent = encode(i, codec, {.threshold = at_i}, random.next());
    const auto answered = answer(j, sent.request, {.threshold = at_j});
    const auto concluded = conclude(i, sent, answered.reply);
    REQUIRE(concluded.accepted);
    if (answered.reply.shift > 1) ++clipped;
    const auto after_i = i.all();
    const auto after_j = j.all();
    const double most = std::min(at_i, at_j) / 2 * 1.001;
    REQUIRE(distance(after_i, start) <= most);
    REQUIRE(distance(after_j, moved) <= most);
    const FragmentView view_i = here(i.buffers.y());
    const FragmentView view_j = here(j.buffers.y());
    if (!answered.commit) continue;
    for (std::size_t e = 0; e < start.size(); ++e)  // compares the corrections, of which nothing is rounded
      REQUIRE(view_i.correction[e] == -view_j.correction[e]);
  }
  CHECK(clipped > 100);
}

TEST_CASE("without an attacker a threshold out of reach changes no bit", "[influence]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  CAPTURE(codec_name(codec));
  const auto run = [&](Clip clip) {
    Random random(19);
    End i(random_values(4, random, 1));
    End j(random_values(4, random, 1));
    for (int round = 0; round < 20; ++round)
      exchange(round % 2 == 0 ? i : j, round % 2 == 0 ? j : i, codec, clip, random.next());
    auto all = i.all();
    const auto other = j.all();
    all.insert(all.end(), other.begin(), other.end());
    return all;
  };
  CHECK((run({}) == run({.threshold = 1e6F, .multiple = 3})));
  CHECK_FALSE((run({}) == run({.threshold = 1e-3F, .multiple = 3})));  // a threshold in reach makes a difference
}

TEST_CASE("a least threshold counts where only the estimates tell one", "[influence]") {
  const auto shift_with = [](Clip clip) {
    Random random(19);
    const auto values = random_values(2, random, 1);
    End i(values);
    End j(values);
    for (int round = 0; round < 40; ++round)  // both learn that they agree
      exchange(i, j, Codec::f32, {}, random.next());
    End far(random_values(2, random, 1));
    return int{answer(j, encode(far, Codec::f32).request, clip).reply.shift};
  };
  CHECK(shift_with({.multiple = 8}) > min_shift_bound);
  CHECK(shift_with({.multiple = 8, .least = 1e6F}) == min_shift_bound);
  CHECK(shift_with({.threshold = 1e-3F, .multiple = 8, .least = 1e6F}) > min_shift_bound);  // partners tell one
}

// --- honest nodes that are far apart ------------------------------------------------------------------------------

TEST_CASE("replicas that really are far apart come together in a bounded number of exchanges", "[influence]") {
  const Codec codec = GENERATE(from_range(std::begin(all_codecs), std::end(all_codecs)));
  const double apart = GENERATE(10.0, 1e3, 1e6);
  CAPTURE(codec_name(codec), apart);
  Random random(23);
  const auto near = random_values(2, random, 1);
  auto far = random_values(2, random, 1);
  for (float& value : far)
    value += static_cast<float>(apart);
  End old(far);
  // The far replica meets seven that agree with each other, and whose estimates are small.
  std::vector<std::unique_ptr<End>> others;
  for (int n = 0; n < 7; ++n) {
    others.push_back(std::make_unique<End>(near));
    const auto blocks = blocks_of({}, 2);
    for (int i = 0; i < 40; ++i)
      others.back()->steps.observe(blocks, std::vector<BlockOutcome>(2, {.mean_abs = 1e-3F}), 1);
  }
  const auto spread = [&] {
    double most = 0;
    for (const auto& other : others)
      most = std::max(most, distance(other->all(), old.all()));
    return most;
  };
  const double before = spread();
  int exchanges = 0;
  for (; exchanges < 600 && spread() > 0.01 * before; ++exchanges) {
    const auto n = static_cast<std::uint16_t>(random.below(7));
    exchange(old, *others[n], codec, {}, random.next(), one_of_many(n), one_of_many(100));
    const auto a = random.below(7);
    const auto b = random.below(7);
    if (a != b)
      exchange(*others[a], *others[b], codec, {}, random.next(), one_of_many(static_cast<std::uint16_t>(b)),
               one_of_many(static_cast<std::uint16_t>(a)));
  }
  CHECK(exchanges < 600);
}

// --- what is learned ----------------------------------------------------------------------------------------------

TEST_CASE("one partner alone raises an estimate only so far while others agree", "[influence]") {
  const bool witnesses = GENERATE(true, false);
  CAPTURE(witnesses);
  Random random(29);
  const std::vector<float> values(block_elements, 32.0F);
  BlockSteps steps(1);
  steps.prime({.publication = values.data()}, processor());
  const std::uint32_t block[] = {0};
  const auto see = [&](float mean_abs, bool wide, std::uint16_t partner) {
    steps.observe(block, std::vector<BlockOutcome>{{.mean_abs = mean_abs, .wide = wide}}, 1,
                  {.partner = partner, .alone = !witnesses});
  };
  float most = 0;
  for (int round = 0; round < 2000; ++round) {
    see(static_cast<float>(0.8 + 0.4 * random.uniform()), false, static_cast<std::uint16_t>(random.below(7)));
    for (int i = 0; i < 20; ++i) {  // the attacker speaks twenty times as often
      random.below(2) == 0 ? see(0, true, 99) : see(1000 * steps.mean(), false, 99);
      most = std::max(most, steps.mean());
    }
  }
  if (witnesses) {
    CHECK(most <= 2 * raise_most);
    for (int i = 0; i < 40; ++i)
      see(1, false, static_cast<std::uint16_t>(i % 7));
    CHECK(steps.mean() == Approx(1).epsilon(0.05));  // the attacker's effect passes
  } else {
    CHECK(most > 1e20F);  // alone, it is believed: the witnesses are what limits it
  }
}

TEST_CASE("what several partners find raises an estimate without end", "[influence]") {
  const std::vector<float> values(block_elements, 32.0F);
  BlockSteps steps(1);
  steps.prime({.publication = values.data()}, processor());
  const std::uint32_t block[] = {0};
  for (std::uint16_t i = 0; i < 120; ++i)
    steps.observe(block, std::vector<BlockOutcome>{{.mean_abs = 1e6F}}, 1, one_of_many(i % 3));
  CHECK(steps.mean() == Approx(1e6).epsilon(0.01));
}

TEST_CASE("the limit is 2^8 times the range over the estimate, a link's factor counting for 64 at most",
          "[influence]") {
  struct Row {
    float mean, range, factor;
    int exponent;
  };
  const Row row = GENERATE(values<Row>({
      {1, 8, 1, 11},
      {1, 9, 1, 12},
      {1, 8, 64, 17},
      {1, 8, 65536, 17},
      {1, 8, 0.25F, 9},
      {0x1p+95F, 8, 1, 100},
      {0, 8, 1, 10},  // zeros, without any exchange yet
  }));
  const std::vector<float> values(block_elements, 32 * row.mean);
  BlockSteps steps(1);
  steps.prime({.publication = values.data()}, processor());
  CHECK(steps.limit_exponent(row.range, row.factor, 0) == row.exponent);
}

TEST_CASE("a block without disagreement takes differences by the magnitude of its fragment", "[influence]") {
  std::vector<float> values(2 * block_elements);
  std::fill(values.begin() + block_elements, values.end(), 2.0F);  // mean magnitude of the fragment: 1
  BlockSteps steps(2);
  steps.prime({.publication = values.data()}, processor());
  CHECK(steps.limit_exponent(16, 1, 0) == 4 - 16 + 8);
}

TEST_CASE("the distance expected is that of normal differences", "[influence]") {
  const std::vector<float> values(2 * block_elements, 32.0F);
  BlockSteps steps(2);
  steps.prime({.publication = values.data()}, processor());
  const auto both = blocks_of({}, 2);
  CHECK(steps.expected_norm(1, both) == Approx(std::sqrt(512 * 1.5707963)));
  CHECK(steps.expected_norm(1000, both) == Approx(4 * std::sqrt(512 * 1.5707963)));
  CHECK(steps.expected_norm(1, {}) == 0);
  // One partner with a distance a thousand times larger raises the estimates, but the distance by a factor of two only.
  steps.observe(both, std::vector<BlockOutcome>(2, {.mean_abs = 1000}), 1, one_of_many(1));
  CHECK(steps.mean() == Approx(raise_most));
  CHECK(steps.expected_norm(1, both) == Approx(2 * std::sqrt(512 * 1.5707963)));
}
