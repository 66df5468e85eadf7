// After a daemon has died, its successor reads in receipts which publications it still has to take in.

#include "gossip/group/receipts.hpp"

#include <array>
#include <map>

#include "catch.hpp"
#include "gossip/group/member.hpp"

using namespace gossamer::gossip;

namespace {

using Kind = Standing::Kind;

}  // namespace

TEST_CASE("what a client published that comes back later is lacking unless a copy that is there contains it") {
  const std::array copy{Gap{.newest = 2, .begun = 3}, Gap{.newest = 7, .begun = 20}};
  CHECK(lacks(copy, {Kind::moved, 5}));
  CHECK(lacks(copy, {Kind::moved, 5, 8}));  // the copy was never given out, or to no client that was there
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 7}));
  CHECK(lacks(copy, {Kind::moved, 1, 3}));         // lost with a daemon before the last one
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 21}));  // this daemon's copies from 21 on contain it
  CHECK_FALSE(lacks(copy, {Kind::holds, 5}));
  CHECK_FALSE(lacks(copy, {Kind::alone, 5}));
  CHECK_FALSE(lacks(copy, {}));
}

namespace {

/// A client of one fragment whose memory is here.
class LoneMember final : public Member {
 public:
  LoneMember() { begin({FragmentParts{.generation = 1}}, false, 2); }
  std::map<std::uint32_t, CopyReceipt> receipts;  // by the generation's last bit

  [[nodiscard]] LocalGroup::ClientId number() const override { return 1; }
  [[nodiscard]] std::uint64_t own_clock() const override { return 0; }
  [[nodiscard]] std::uint64_t clock() const override { return 0; }
  [[nodiscard]] std::uint64_t published_at(std::uint32_t) const override { return 0; }
  [[nodiscard]] bool is_attached() const override { return true; }

 protected:
  void store_word(std::uint32_t, const FragmentParts&) override {}
  bool recall_word(std::uint32_t, const FragmentParts&, const FragmentParts&) override { return true; }
  [[nodiscard]] std::optional<CopyReceipt> receipt(std::uint32_t, std::uint32_t generation) const override {
    const auto found = receipts.find(generation % 2);
    return found == receipts.end() || found->second.generation != generation ? std::nullopt
                                                                             : std::optional(found->second);
  }
  void store_receipt(std::uint32_t, const CopyReceipt& receipt) override { receipts[receipt.generation % 2] = receipt; }
  [[nodiscard]] float* buffer(std::uint32_t, std::uint8_t) const override { return nullptr; }
  void raise_due() override {}
  [[nodiscard]] std::uint32_t finishing_asked() const override { return 0; }
  void store_finish_answer(const EndAnswer&) override {}
  [[nodiscard]] std::uint32_t finish_agreed() const override { return 0; }
};

}  // namespace

TEST_CASE("a client that published what it took over lacks nothing, whoever was there to note it") {
  const bool noted = GENERATE(false, true);  // else its daemon was dead
  LoneMember member;
  member.note_copy(0, 7, true);
  LocalMeanTask::Outcome outcome;
  outcome.differs = true;
  member.offer(0, {.replace = true}, outcome, 7);
  member.accept(0);
  if (noted) member.note_copy(0, 8, false);
  const Standing standing = member.standing(0);
  CHECK(standing.kind == Kind::moved);
  CHECK_FALSE(lacks(std::array{Gap{.newest = 7, .begun = 20}}, standing));
}
