// Tests what a participant of exact averages does when it is taken for dead wrongly, groups meet, and voters are gone.

#include "gossip/average/averaging.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr std::uint32_t fragments = 2;

Participant participant(std::size_t i) {
  Participant one{.life = 7};
  one.node.bytes[0] = static_cast<std::uint8_t>(i + 1);
  return one;
}

/// Participants whose messages arrive at once, unless their path is cut. Values are left out.
class Participants {
 public:
  explicit Participants(std::size_t count) : contributions_(count) {
    for (std::size_t i = 0; i < count; ++i)
      all_.push_back(std::make_unique<Averaging>(AveragingOptions{}, participant(i), fragments));
  }

  Averaging& operator[](std::size_t i) { return *all_[i]; }

  /// The participant founds a group as soon as nobody hinders it. The first to be told so founds the oldest group.
  void allow_founding(std::size_t i) {
    all_[i]->allow_founding(now_us_, now_us_ + 1);
    all_[i]->join();
  }
  void link(std::size_t i, std::size_t j) {
    act(i, [&](auto& one, auto& out) { one.link_up(participant(j).node, out); });
    act(j, [&](auto& one, auto& out) { one.link_up(participant(i).node, out); });
  }
  void contribute(std::size_t i) {
    act(i, [&](auto& one, auto& out) { one.contribute(++contributions_[i], 1, out); });
  }
  void take_for_dead(std::size_t i, std::size_t dead) {
    act(i, [&](auto& one, auto& out) { one.node_dead(participant(dead).node, out); });
  }
  void receive(std::size_t i, const Participant& from, const AverageMessage& message) {
    act(i, [&](auto& one, auto& out) { one.received(from, message, out); });
  }
  /// Nothing gets from i to j any more.
  void cut(std::size_t i, std::size_t j) { cut_.insert({i, j}); }
  void lose_commits() { lose_commits_ = true; }
  void go_on(TimeUs for_us) {
    constexpr TimeUs tick_us = 20 * us_per_ms;
    for (const TimeUs end_us = now_us_ + for_us; now_us_ < end_us;) {
      now_us_ += tick_us;
      for (std::size_t i = 0; i < all_.size(); ++i)
        act(i, [&](auto& one, auto& out) { one.tick(now_us_, out); });
    }
  }

  /// In how many committed rounds the contribution is, over all groups.
  [[nodiscard]] std::size_t rounds_with(const Contribution& contribution) const {
    return static_cast<std::size_t>(std::ranges::count_if(rounds_, [&](const auto& round) {
      return std::ranges::find(round.second.contributions, contribution) != round.second.contributions.end();
    }));
  }
  /// The messages that were sent to somebody who is not here.
  [[nodiscard]] const std::vector<AverageMessage>& sent_away() const { return sent_away_; }

 private:
  template <class Do>
  void act(std::size_t i, Do action) {
    Averaging::Actions out;
    action(*all_[i], out);
    all_[i]->check_invariants();
    carry_out(i, out);
    if (std::exchange(delivering_, true)) return;
    while (!under_way_.empty()) {
      const auto next = std::move(under_way_.front());
      under_way_.pop_front();
      next();
    }
    delivering_ = false;
  }

  void carry_out(std::size_t i, const Averaging::Actions& out) {
    for (const auto& applied : out.applied) {
      const auto known = rounds_.try_emplace({applied.round, all_[i]->founding()}, applied.plan).first;
      CHECK(known->second == applied.plan);
    }
    for (const auto& [to, message] : out.send)
      send(
          i, to, [this, from = participant(i), message](std::size_t j) { receive(j, from, message); }, &message);
    for (const auto& part : out.parts) {
      send(i, part.to, [this, from = participant(i), founding = all_[i]->founding(), part](std::size_t j) {
        if (founding != all_[j]->founding()) return;
        act(j, [&](auto& one, auto& next) { (void)one.received(from, part.round, part.part, next); });
      });
    }
    for (const std::uint32_t f : out.sum) {
      under_way_.push_back([this, i, f, made_at = all_[i]->plan()->made_at] {
        act(i, [&](auto& one, auto& next) { one.summed(f, made_at, next); });
      });
    }
  }

  void send(std::size_t i, const Participant& to, std::function<void(std::size_t)> action,
            const AverageMessage* message = nullptr) {
    if (lose_commits_ && message != nullptr && std::holds_alternative<RoundCommit>(message->body)) return;
    for (std::size_t j = 0; j < all_.size(); ++j) {
      if (to.node != participant(j).node) continue;
      if (!cut_.contains({i, j})) under_way_.push_back([action, j] { action(j); });
      return;
    }
    if (message != nullptr) sent_away_.push_back(*message);
  }

  std::vector<std::unique_ptr<Averaging>> all_;
  std::vector<std::uint64_t> contributions_;
  std::set<std::pair<std::size_t, std::size_t>> cut_;
  std::deque<std::function<void()>> under_way_;
  std::map<std::pair<std::uint64_t, FoundingId>, RoundPlan> rounds_;
  std::vector<AverageMessage> sent_away_;
  TimeUs now_us_ = 0;
  bool lose_commits_ = false;
  bool delivering_ = false;
};

/// The participants 1 and 2 are the voters of a group, and 0 has one of its own, which is older.
Participants two_groups() {
  Participants all(3);
  all.allow_founding(0);
  all.go_on(us_per_s);
  all.link(1, 2);
  all.allow_founding(1);
  all.allow_founding(2);
  all.go_on(us_per_s);
  for (const std::size_t i : {1, 2})
    all.contribute(i);
  all.go_on(us_per_s);
  REQUIRE(all[1].founding() == all[2].founding());
  REQUIRE(all[0].founding() < all[1].founding());
  REQUIRE(all[1].voters().size() == 2);
  REQUIRE(all.rounds_with({participant(2), 1}) == 1);
  return all;
}

AverageMessage heard(const FoundingId& founding) {
  return {.founding = founding, .round = 1, .body = RoundHeard{}};
}

}  // namespace

TEST_CASE("a contribution that a round of one group may have is given in no other group") {
  Participants all = two_groups();
  const Contribution second{participant(2), 2};
  all.contribute(2);
  const bool is_given = GENERATE(false, true);
  if (is_given) {
    all.lose_commits();  // participant 1 has the round, and 2 does not know that
    all.contribute(1);
    REQUIRE(all.rounds_with(second) == 1);
    REQUIRE(all[2].contribution() == 2);
  }
  all.cut(1, 2);
  all.cut(2, 1);
  all.link(0, 2);
  all.go_on(10 * us_per_s);
  REQUIRE(all[2].founding() == all[0].founding());
  CHECK(all[2].contribution().has_value() != is_given);
  if (is_given) all.contribute(2);
  all.contribute(0);
  all.go_on(us_per_s);
  CHECK(all.rounds_with(second) == 1);
  CHECK(all.rounds_with({participant(2), 3}) == (is_given ? 1 : 0));
}

TEST_CASE("the members of a later group go on in it until the older group lets them in") {
  Participants all = two_groups();
  const FoundingId own = all[1].founding();
  for (const std::size_t i : {1, 2})
    all.receive(i, participant(0), heard(all[0].founding()));  // and it is out of reach again
  for (const std::size_t i : {1, 2})
    all.contribute(i);
  all.go_on(us_per_s);
  CHECK(all[1].founding() == own);
  CHECK(all.rounds_with({participant(2), 2}) == 1);
  all.link(0, 1);
  all.go_on(10 * us_per_s);
  CHECK(all[1].is_member());
  CHECK(all[1].founding() == all[0].founding());
}

TEST_CASE("a group whose voters are gone is left, and one whose voters are only taken for dead is not") {
  Participants all = two_groups();
  const FoundingId own = all[2].founding();
  all.cut(1, 2);
  all.cut(2, 1);
  all.take_for_dead(2, 1);
  all.go_on(30 * us_per_s);
  CHECK(all[2].is_member());
  CHECK(all[2].founding() == own);
  SECTION("their process is gone") {
    all.receive(2, participant(1), {.founding = {}, .round = 0, .body = RoundNobody{}});
  }
  SECTION("they will not vote in this round again") {
    all.receive(2, participant(1), {.founding = own, .round = all[2].round(), .body = RoundNobody{}});
  }
  all.go_on(2 * us_per_s);
  CHECK(all[2].is_member());
  CHECK(all[2].founding() != own);
  all.contribute(2);
  all.go_on(us_per_s);
  CHECK(all.rounds_with({participant(2), 2}) == 1);
}

TEST_CASE("what is said of a former round makes nobody gone in this one") {
  Participants all = two_groups();
  const FoundingId own = all[2].founding();
  all.receive(2, participant(1), {.founding = own, .round = all[2].round() - 1, .body = RoundNobody{}});
  all.go_on(us_per_s);
  CHECK(all[2].founding() == own);
}

TEST_CASE("a participant enters no round of a former group again, also if it has been in others since") {
  Participants all(1);
  const Participant other = participant(5);
  const auto of_group = [&](std::int64_t number) { return FoundingId{number, other}; };
  const auto let_in = [&](std::int64_t group, std::uint64_t round) {
    const RoundEnter enter{.plan = {.members = {participant(0), other}, .voters = {other}}};
    all.receive(0, other, {of_group(group), round, enter});
    return all[0].is_member() && all[0].founding() == of_group(group) && all[0].round() == round + 1;
  };
  const auto leave = [&] {
    all.receive(0, other, {all[0].founding(), all[0].round() + 2, RoundGone{}});
    return !all[0].is_member();
  };
  all[0].join();
  REQUIRE(let_in(1, 3));
  REQUIRE(leave());
  REQUIRE(let_in(2, 1));
  REQUIRE(leave());
  CHECK(!let_in(1, 2));
  const auto said = [&] { return all.sent_away().back(); };
  CHECK(std::holds_alternative<RoundNobody>(said().body));  // so that nobody waits for it there
  CHECK(said().founding == of_group(1));
  CHECK(said().round == 3);
  CHECK(!let_in(1, 1));
  CHECK(let_in(1, 4));
}

TEST_CASE("a member that others have passed learns so from any of them") {
  Participants all = two_groups();
  all.receive(2, participant(5), {.founding = all[2].founding(), .round = all[2].round() + 5, .body = RoundHeard{}});
  CHECK(std::holds_alternative<RoundAsk>(all.sent_away().back().body));
}
