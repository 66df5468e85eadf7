// What a daemon leaves in its client's memory for the next one, about exchanges: what is read is what was written and
// counts, whatever a client has written there.

#include "daemon/clients/reply_records.hpp"

#include <cstring>

#include "gossip/random.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

struct Memory {
  Memory() {
    client.seal();
    auto mapped = ClientMemory::map(client.fd.get(), client.plan.total_bytes, client.plan.total_bytes);
    REQUIRE(mapped);
    memory.emplace(std::move(*mapped));
  }
  /// The count of commits of fragment 1.
  void commit(std::uint32_t commits) { memory->store_word(1, {.generation = 1, .commits = commits}); }
  [[nodiscard]] std::optional<ReplyRecord> read(std::uint32_t place) const {
    const std::vector<std::uint64_t> words = memory->load_words();
    return read_record(*memory, place, words);
  }

  test::TestMemory client;
  std::optional<ClientMemory> memory;
};

const NodeId initiator{.bytes = {1, 2, 3}};

ExchangeReply reply() {
  return {.counter = 77,
          .fragment = 1,
          .status = ReplyStatus::done,
          .codec = Codec::q8,
          .shift = 3,
          .block_count = 1,
          .differences = Bytes::adopt(std::vector<std::byte>(codec_block_bytes(Codec::q8), std::byte{5}))};
}
gossip::AnsweredHalf half() {
  return {.exponents = {-4}};
}

}  // namespace

TEST_CASE("a record counts from the commit that it names until it is undone or cleared") {
  Memory memory;
  memory.commit(9);
  CHECK_FALSE(memory.read(2));
  REQUIRE(write_record(*memory.memory, 2, initiator, reply(), half()));
  CHECK_FALSE(memory.read(2));
  REQUIRE(write_record(*memory.memory, 2, initiator, reply(), half()));
  seal_record(*memory.memory, 2, 10);
  SECTION("the daemon dies before the word is stored") {
    CHECK_FALSE(memory.read(2));
  }
  SECTION("and after it") {
    memory.commit(10);
    const auto found = memory.read(2);
    REQUIRE(found);
    CHECK(found->id == ExchangeId{initiator, 77});
    CHECK(found->reply.fragment == 1);
    CHECK(found->reply.codec == Codec::q8);
    CHECK(found->reply.shift == 3);
    CHECK(found->reply.differences.data[100] == std::byte{5});
    CHECK(found->half.exponents == half().exponents);
    note_undone(*memory.memory, 2, 11);
    CHECK(memory.read(2));
    memory.commit(11);
    CHECK_FALSE(memory.read(2));
  }
  SECTION("the count has wrapped") {
    REQUIRE(write_record(*memory.memory, 2, initiator, reply(), half()));
    seal_record(*memory.memory, 2, layout::commits_modulus - 1);
    memory.commit(1);
    CHECK(memory.read(2));
  }
  SECTION("cleared") {
    memory.commit(10);
    clear_record(*memory.memory, 2);
    CHECK_FALSE(memory.read(2));
  }
}

TEST_CASE("records that a client has written anything into are none, or can be undone without harm to the daemon") {
  Memory memory;
  gossip::Random random(4);
  int read = 0;
  for (int round = 0; round < 5'000; ++round) {
    memory.commit(10);
    REQUIRE(write_record(*memory.memory, 0, initiator, reply(), half()));
    seal_record(*memory.memory, 0, 10);
    const std::span<std::byte> bytes = memory.memory->record(0);
    for (std::uint64_t n = random.below(4); n > 0; --n)
      bytes[random.below(sizeof(layout::RecordEntry) + 8)] = static_cast<std::byte>(random.next());
    const auto found = memory.read(0);
    if (!found) continue;
    ++read;
    const std::uint32_t blocks = memory.memory->block_count(found->reply.fragment);
    REQUIRE(found->reply.fragment < 3);
    REQUIRE(found->half.exponents.size() == found->reply.block_count);
    REQUIRE(gossip::blocks_of(found->half.blocks.data, blocks).size() == found->reply.block_count);
    REQUIRE(found->reply.differences.size() == found->reply.block_count * codec_block_bytes(found->reply.codec));
  }
  CHECK(read > 100);
  CHECK(read < 5'000);
}

TEST_CASE("exchanges of a node's own outlive its daemon, and the oldest that were given up are forgotten") {
  Memory memory;
  ClientMemory& stored = *memory.memory;
  CHECK_FALSE(stored.given_up());  // nobody has begun any
  stored.begin_given_up({.floor = 100});
  for (std::uint64_t counter = 101; counter <= 100 + gossip::GivenUp::most; ++counter)
    stored.store_given_up(counter);
  stored.store_given_up(105);  // again
  REQUIRE(stored.given_up());
  CHECK(stored.given_up()->floor == 100);
  CHECK(stored.given_up()->counters.size() == gossip::GivenUp::most);
  stored.store_given_up(1'000);
  CHECK(stored.given_up()->floor == 101);
  CHECK(stored.given_up()->counters.size() == gossip::GivenUp::most);
  CHECK(stored.given_up()->counters.contains(1'000));

  CHECK(stored.own_halves(1) == gossip::OwnHalves{{{0, 0}, {0, 0}}});
  const gossip::OwnHalves halves{{{7, gossip::OwnHalf::never}, {5, 3}}};
  stored.store_own_halves(1, halves);
  CHECK(stored.own_halves(1) == halves);
  memory.client.fragment(1).own_halves[1].commits = ~std::uint64_t{0};  // a client writes what it likes
  CHECK_FALSE(stored.own_halves(1)[1].taken(3));

  stored.forget_exchanges();  // several clients: what is taken from now on dies with the daemon
  CHECK_FALSE(stored.given_up());
  stored.store_given_up(2'000);
  CHECK_FALSE(stored.given_up());
  stored.begin_given_up({.floor = 3'000});
  REQUIRE(stored.given_up());
  CHECK(stored.given_up()->counters.empty());
}
