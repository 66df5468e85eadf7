// Tests that messages cut into parts are put together to the same bytes, that the sending side copies nothing, and that
// nothing against the protocol is believed.

#include "peer/wire/bulk_parts.hpp"

#include <algorithm>
#include <numeric>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "peer/wire/validate.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

Bytes pattern(std::size_t size, int seed) {
  std::vector<std::uint8_t> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + static_cast<std::size_t>(seed));
  return Bytes::adopt(std::move(values));
}

Frames message_of(const std::vector<std::size_t>& sizes) {
  Frames frames;
  frames.header = pattern(64, 99);
  for (const std::size_t size : sizes) {
    frames.payload[frames.payload_count] = pattern(size, static_cast<int>(frames.payload_count));
    ++frames.payload_count;
  }
  return frames;
}

bool same(const Frames& a, const Frames& b) {
  if (a.payload_count != b.payload_count || !std::ranges::equal(a.header.data, b.header.data)) return false;
  for (std::size_t i = 0; i < a.payload_count; ++i) {
    if (!std::ranges::equal(a.payload[i].data, b.payload[i].data)) return false;
  }
  return true;
}

BulkPart decoded(const Frames& frames) {
  auto packet = decode(frames);
  REQUIRE(packet);
  REQUIRE(std::holds_alternative<BulkPart>(*packet));
  return std::get<BulkPart>(std::move(*packet));
}

std::vector<BulkPart> parts_of(const Frames& message, std::size_t part_bytes) {
  BulkQueue queue;
  queue.push(message);
  std::vector<BulkPart> parts;
  while (!queue.empty()) {
    const Frames next = queue.next(part_bytes);
    parts.push_back(decoded(next));
    (void)queue.pop(next);
  }
  return parts;
}

}  // namespace

TEST_CASE("parts: messages of all shapes, cut to all sizes, come out as they went in") {
  gossip::Random random(3);
  BulkQueue queue;
  BulkAssembly assembly;
  for (int round = 0; round < 300; ++round) {
    std::vector<Frames> messages;
    std::size_t bytes = 0;
    for (std::uint64_t i = 0; i <= random.below(4); ++i) {
      std::vector<std::size_t> sizes(random.below(max_payload_frames + 1));
      for (std::size_t& size : sizes)
        size = random.below(4) == 0 ? 0 : random.below(5000);
      messages.push_back(message_of(sizes));
      queue.push(messages.back());
      bytes += messages.back().bytes();
      REQUIRE(queue.bytes() == bytes);
    }
    std::size_t arrived = 0;
    while (!queue.empty()) {
      const std::size_t part_bytes = 1 + random.below(2000);
      const Frames next = queue.next(part_bytes);
      const bool complete = queue.pop(next);
      CHECK(next.payload_bytes() <= part_bytes + part_bytes / 2);
      const bool whole = same(next, messages[arrived]);
      if (!whole) {
        const auto message = assembly.add(decoded(next));
        REQUIRE(message);
        REQUIRE(message->has_value() == complete);
        if (complete) CHECK(same(**message, messages[arrived]));
      }
      arrived += complete ? 1 : 0;
    }
    CHECK(arrived == messages.size());
    CHECK(queue.bytes() == 0);
    CHECK(assembly.bytes() == 0);
  }
}

TEST_CASE("parts: are slices of the message's own memory") {
  const Frames message = message_of({3000, 9000});
  BulkQueue queue;
  queue.push(message);
  const Frames first = queue.next(4000);
  REQUIRE(first.payload_count == 2);
  CHECK(first.payload[0].data.data() == message.payload[0].data.data());
  CHECK(first.payload[1].data.data() == message.payload[1].data.data());
  CHECK(first.payload[1].size() == 1000);
  CHECK(first.payload[1].owner == message.payload[1].owner);
  CHECK_FALSE(queue.pop(first));
  const Frames second = queue.next(4000);
  CHECK(second.payload[0].data.data() == message.payload[1].data.data() + 1000);
}

TEST_CASE("parts: a message no larger than 1.5 parts goes whole") {
  BulkQueue queue;
  queue.push(message_of({1500}));
  CHECK(same(queue.next(1000), message_of({1500})));
  CHECK(queue.next(999).payload_bytes() == 999);
}

TEST_CASE("parts: what is against the protocol is refused, and the next message is taken") {
  const std::vector<BulkPart> parts = parts_of(message_of({100, 5000}), 1000);
  REQUIRE(parts.size() == 6);
  const auto refused = [&](std::vector<BulkPart> wrong) {
    BulkAssembly assembly;
    for (std::size_t i = 0; i + 1 < wrong.size(); ++i)
      REQUIRE(assembly.add(wrong[i]));
    CHECK_FALSE(assembly.add(wrong.back()));
    CHECK(assembly.bytes() == 0);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto message = assembly.add(parts[i]);
      REQUIRE(message);
      CHECK(message->has_value() == (i + 1 == parts.size()));
    }
  };
  refused({parts[1]});                      // no beginning
  refused({parts[0], parts[2]});            // a part is missing
  refused({parts[0], parts[1], parts[1]});  // twice
  refused({parts[0], parts[0]});            // begins anew
  BulkPart other = parts[1];
  other.message += 1;
  refused({parts[0], other});  // a part of another message
  BulkPart longer = parts[5];
  longer.slices[longer.slice_count++] = pattern(100, 1);
  refused({parts[0], parts[1], parts[2], parts[3], parts[4], longer});  // goes beyond the end
}

TEST_CASE("parts: headers that would take memory without bounds, or say nothing, are malformed") {
  BulkPart part = parts_of(message_of({5000}), 1000).front();
  const auto is_malformed = [](const BulkPart& wrong) { return fault_of(wrong).has_value(); };
  CHECK_FALSE(is_malformed(part));
  BulkPart wrong = part;
  wrong.frame_bytes = {static_cast<std::uint32_t>(max_payload_frame_bytes + 1)};
  CHECK(is_malformed(wrong));
  wrong = part;
  wrong.frame_bytes = {1, 1, 1, 1};
  CHECK(is_malformed(wrong));
  wrong = part;
  wrong.header = {};
  CHECK(is_malformed(wrong));
  wrong = part;
  wrong.header = pattern(max_cut_header_bytes + 8, 1);
  CHECK(is_malformed(wrong));
  wrong = part;
  wrong.slice_count = 0;
  CHECK(is_malformed(wrong));
  wrong = part;
  wrong.offset = 1000;
  CHECK(is_malformed(wrong));
}
