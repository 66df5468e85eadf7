// The records of exchanges that a daemon leaves in the node's memory for the next daemon. Only records that were
// written and count are read, whatever the memory holds.

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
    model.emplace(std::move(*mapped));
    auto made = NodeMemory::make(NodeMemory::shape_of(*model));
    REQUIRE(made);
    node = std::move(*made);
  }
  /// The count of commits of fragment 1.
  void commit(std::uint32_t count) { commits[1] = count; }
  [[nodiscard]] std::optional<ReplyRecord> read(std::uint32_t place) const {
    return read_record(*node, place, *model, commits);
  }

  test::TestMemory client;
  std::optional<ClientMemory> model;
  std::shared_ptr<NodeMemory> node;
  std::vector<std::uint32_t> commits = {0, 0, 0};
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
constexpr std::size_t entry_bytes = 56;  ///< bytes of a record before its parts

gossip::AnsweredHalf half() {
  return {.shift = 5, .exponents = {-4}};
}

}  // namespace

TEST_CASE("a record counts from the commit that it names until it is undone or cleared") {
  Memory memory;
  memory.commit(9);
  CHECK_FALSE(memory.read(2));
  REQUIRE(write_record(*memory.node, 2, initiator, reply(), half()));
  CHECK_FALSE(memory.read(2));
  REQUIRE(write_record(*memory.node, 2, initiator, reply(), half()));
  seal_record(*memory.node, 2, 10);
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
    CHECK(found->half.shift == 5);
    CHECK(found->half.exponents == half().exponents);
    note_undone(*memory.node, 2, 11);
    CHECK(memory.read(2));
    memory.commit(11);
    CHECK_FALSE(memory.read(2));
  }
  SECTION("the count has wrapped") {
    REQUIRE(write_record(*memory.node, 2, initiator, reply(), half()));
    seal_record(*memory.node, 2, layout::commits_modulus - 1);
    memory.commit(1);
    CHECK(memory.read(2));
  }
  SECTION("cleared") {
    memory.commit(10);
    clear_record(*memory.node, 2);
    CHECK_FALSE(memory.read(2));
  }
}

TEST_CASE("records that anything was written into are none, or can be undone without harm to the daemon") {
  Memory memory;
  gossip::Random random(4);
  int read = 0;
  for (int round = 0; round < 5'000; ++round) {
    memory.commit(10);
    REQUIRE(write_record(*memory.node, 0, initiator, reply(), half()));
    seal_record(*memory.node, 0, 10);
    const std::span<std::byte> bytes = memory.node->record(0);
    for (std::uint64_t n = random.below(4); n > 0; --n)
      bytes[random.below(entry_bytes + 8)] = static_cast<std::byte>(random.next());
    const auto found = memory.read(0);
    if (!found) continue;
    ++read;
    const std::uint32_t blocks = memory.model->block_count(found->reply.fragment);
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
  NodeMemory& stored = *memory.node;
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
  stored.store_own_halves(1, {{{7, gossip::OwnHalf::never}, {5, ~std::uint32_t{0}}}});  // not a count of commits
  CHECK_FALSE(stored.own_halves(1)[1].taken(3));

  stored.begin_given_up({.floor = 3'000});
  REQUIRE(stored.given_up());
  CHECK(stored.given_up()->counters.empty());
}

TEST_CASE("a record written where one was undone counts like any other") {
  Memory memory;
  REQUIRE(write_record(*memory.node, 2, initiator, reply(), half()));
  seal_record(*memory.node, 2, 10);
  note_undone(*memory.node, 2, 11);
  memory.commit(11);
  CHECK_FALSE(memory.read(2));
  clear_record(*memory.node, 2);
  REQUIRE(write_record(*memory.node, 2, initiator, reply(), half()));
  seal_record(*memory.node, 2, 12);
  memory.commit(12);
  CHECK(memory.read(2));
}
