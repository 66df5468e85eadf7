// Tests that the numbers of an average get to where the state machine thinks they are, over links that lose, reorder
// and refuse messages, and whatever others send.

#include "daemon/average/collective_member.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "peer/wire/validate.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using gossip::AverageNote;
using gossip::AverageValues;

namespace {

constexpr JobKey collective{1, 2};

gossip::Participant participant(std::size_t i) {
  gossip::Participant one{.life = 7};
  one.node.bytes[3] = static_cast<std::uint8_t>(i + 1);
  return one;
}

/// A task that a member has given to its workers.
struct Task {
  std::size_t member;
  CollectiveMember::Work task;
  CollectiveMember::Work done;
  void end() {
    task();
    done();
  }
};

/// Processes on nodes that are linked with each other.
class Members {
 public:
  Members(std::size_t count, std::size_t size, std::uint64_t seed, double faults, AverageForm form = {})
      : random_(seed), faults_(faults), values_(count, std::vector<float>(size)) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto send = [this](const NodeId& to, const Message& message) {
        INFO(peer::fault_of(message).value_or(""));
        REQUIRE(!peer::fault_of(message));  // the daemon would end with a broken message
        if (random_.uniform() < faults_) return false;
        if (std::holds_alternative<AverageValues>(message)) {
          if (room_ == 0) return false;
          --room_;
          ++parts_;
        }
        under_way_.emplace_back(to, message);
        return true;
      };
      const auto run = [this, i](CollectiveMember::Work&& task, CollectiveMember::Work&& done) {
        tasks_.emplace_back(i, std::move(task), std::move(done));
      };
      members_.push_back(std::make_unique<CollectiveMember>(collective, participant(i),
                                                            AveragedMemory{nullptr, values_[i]}, form, send, run));
    }
    for (std::size_t i = 0; i < count; ++i) {
      members_[i]->allow_founding(0, 1);
      for (std::size_t j = 0; j < count; ++j)
        if (i != j) members_[i]->link_up(participant(j).node);
    }
  }

  /// Lets 20 ms pass, and delivers the messages under way in any order.
  void go_on() {
    now_us_ += 20 * us_per_ms;
    room_ = parts_a_turn_;
    tasks_left_ = tasks_a_turn_;
    ++turns_;
    for (const auto& member : members_)
      member->tick(now_us_);
    for (std::size_t left = 20 * members_.size(); left > 0 && !under_way_.empty(); --left) {
      std::swap(under_way_[random_.below(under_way_.size())], under_way_.back());
      const auto [to, message] = std::move(under_way_.back());
      under_way_.pop_back();
      if (random_.uniform() >= faults_) deliver(to, message);
      if (random_.uniform() < faults_) deliver(to, message);
      work();
    }
    work();
  }

  /// Lets the workers end their tasks, in any order.
  void work() {
    for (; tasks_left_ > 0 && !tasks_.empty(); --tasks_left_) {
      std::swap(tasks_[random_.below(tasks_.size())], tasks_.back());
      Task task = std::move(tasks_.back());
      tasks_.pop_back();
      task.end();
    }
  }

  void deliver(const NodeId& to, const Message& message) {
    for (const auto& member : members_) {
      if (member->self().node != to) continue;
      // The daemon, too, drops a note that is sent in the name of another node.
      if (const auto* note = std::get_if<AverageNote>(&message); note && note->from != member->self())
        member->received(*note);
      if (const auto* values = std::get_if<AverageValues>(&message); values && values->from != member->self())
        member->received(*values);
    }
  }

  [[nodiscard]] std::vector<float>& values(std::size_t i) { return values_[i]; }
  [[nodiscard]] CollectiveMember& operator[](std::size_t i) { return *members_[i]; }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] gossip::Random& random() { return random_; }
  [[nodiscard]] int turns() const { return turns_; }
  [[nodiscard]] std::size_t parts() const { return parts_; }
  /// Sets how many parts the links take in each 20 ms.
  void slow_down(std::size_t parts_a_turn) { room_ = parts_a_turn_ = parts_a_turn; }
  /// Sets how many tasks the workers end in each 20 ms.
  void slow_workers(std::size_t tasks_a_turn) { tasks_a_turn_ = tasks_a_turn; }
  /// Lets time pass while no worker ends a task, until a member gives its workers one. Returns that task.
  Task next_task() {
    slow_workers(0);
    for (int turn = 0; tasks_.empty() && turn < 1000; ++turn)
      go_on();
    REQUIRE(!tasks_.empty());
    Task task = std::move(tasks_.back());
    tasks_.pop_back();
    return task;
  }

  /// Contributes random numbers at all members, and returns what their mean is.
  std::vector<float> call_all() {
    for (std::vector<float>& values : values_)
      std::ranges::generate(values, [this] { return static_cast<float>(random_.uniform()); });
    return call_all_with_present();
  }

  /// Contributes the present values of all members. Returns their mean.
  std::vector<float> call_all_with_present() {
    std::vector<float> mean = values_[0];
    for (std::size_t i = 1; i < size(); ++i)
      for (std::size_t k = 0; k < mean.size(); ++k)
        mean[k] += values_[i][k];
    for (float& value : mean)
      value /= static_cast<float>(size());
    for (const auto& member : members_)
      member->call(size(), 0);
    return mean;
  }

  std::vector<CollectiveMember::Answer> answers() {
    std::vector<CollectiveMember::Answer> all(size());
    std::size_t left = size();
    for (int turns = 0; left > 0 && turns < 20'000; ++turns) {
      go_on();
      for (std::size_t i = 0; i < size(); ++i) {
        if (const auto answer = members_[i]->take_answer()) {
          all[i] = *answer;
          --left;
        }
      }
    }
    REQUIRE(left == 0);
    return all;
  }

 private:
  gossip::Random random_;
  double faults_;
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<CollectiveMember>> members_;
  std::vector<std::pair<NodeId, Message>> under_way_;
  std::vector<Task> tasks_;
  TimeUs now_us_ = 0;
  int turns_ = 0;
  std::size_t parts_a_turn_ = 1'000'000;
  std::size_t room_ = parts_a_turn_;
  std::size_t parts_ = 0;  // how many parts have been sent
  std::size_t tasks_a_turn_ = 1'000'000;
  std::size_t tasks_left_ = tasks_a_turn_;
};

}  // namespace

TEST_CASE("members have the mean, bit by bit, over links that lose and refuse") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const std::size_t sizes[] = {1, average_fragment_elements, average_fragment_elements + 1, 700'001, 1'400'000};
    Members members(1 + seed % 4, sizes[seed % std::size(sizes)], seed, seed % 3 == 0 ? 0.15 : 0);
    if (seed % 2 == 0) members.slow_workers(1);
    INFO(seed);
    for (std::uint64_t number = 1; number <= 6; ++number) {
      const std::vector<float> mean = members.call_all();
      for (const auto& answer : members.answers()) {
        CHECK(answer.done);
        CHECK(answer.of == members.size());
        CHECK(answer.joined == (number == 1));
      }
      for (std::size_t i = 0; i < members.size(); ++i)
        CHECK(std::memcmp(members.values(i).data(), mean.data(), mean.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("means of values rounded to 8 bits are the same everywhere, and over time nothing is lost") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const std::size_t size = seed % 2 == 0 ? 1000 : average_fragment_elements + 300;
    const std::size_t exact = std::min(size, seed % 3 == 0 ? average_fragment_elements + 10 : 10);
    Members members(1 + seed % 4, size, seed, seed % 3 == 0 ? 0.15 : 0, {.eight_bits = true, .exact = exact});
    std::vector<double> means(size), sums(size);
    // In even seeds all rounds are alike, so that an error of the mean would add up.
    const bool are_alike = seed % 2 == 0;
    std::vector<std::vector<float>> alike(members.size(), std::vector<float>(size));
    for (std::vector<float>& values : alike)
      std::ranges::generate(values, [&] { return static_cast<float>(members.random().below(128)) / 128; });
    for (int round = 0; round < 60; ++round) {
      CAPTURE(seed, round);
      for (std::size_t i = 0; i < members.size() && are_alike; ++i)
        members.values(i) = alike[i];
      const std::vector<float> mean = are_alike ? members.call_all_with_present() : members.call_all();
      for (const auto& answer : members.answers()) {
        CHECK(answer.done);
        CHECK(answer.of == members.size());
      }
      const std::vector<float>& found = members.values(0);
      for (std::size_t i = 1; i < members.size(); ++i)
        REQUIRE(std::memcmp(members.values(i).data(), found.data(), size * sizeof(float)) == 0);
      REQUIRE(std::memcmp(found.data(), mean.data(), exact * sizeof(float)) == 0);
      float furthest = 0;
      for (std::size_t k = 0; k < size; ++k) {
        means[k] += mean[k];
        sums[k] += found[k];
        furthest = std::max(furthest, std::abs(found[k] - mean[k]));
      }
      REQUIRE(furthest < 0.05F);
    }
    // Rounding takes up to 1/127 of each contribution and of the mean. The rest is carried over to the next round.
    double lost = 0;
    for (std::size_t k = 0; k < size; ++k)
      lost = std::max(lost, std::abs(sums[k] - means[k]));
    CHECK(lost < 0.05);
  }
}

TEST_CASE("without faults nothing is asked for twice, in whatever order messages come") {
  Members members(5, 10, 3, 0);
  (void)members.call_all();
  (void)members.answers();
  const int before = members.turns();
  for (std::uint64_t number = 2; number <= 100; ++number) {
    (void)members.call_all();
    (void)members.answers();
  }
  CHECK(members.turns() - before < 2 * 100);  // of 20 ms each; missing parts are asked for after 200 ms
}

TEST_CASE("over slow links each part is sent about once, in each round") {
  const std::size_t count = GENERATE(2, 3);
  constexpr std::size_t fragments = 30;
  Members members(count, fragments * average_fragment_elements, 1, 0);
  (void)members.call_all();
  (void)members.answers();
  members.slow_down(1);
  for (int round = 0; round < 4; ++round) {
    const std::size_t before = members.parts();
    const std::vector<float> mean = members.call_all();
    (void)members.answers();
    // Each fragment goes to its owner from all others, and back to them. What has not come after 200 ms is asked for.
    CHECK(members.parts() - before < 3 * fragments * (count - 1));
  }
}

TEST_CASE("values that nobody wants, or of a wrong size, change nothing") {
  Members members(3, average_fragment_elements + 5, 1, 0);
  (void)members.call_all();
  (void)members.answers();
  const std::vector<float> mean = members.call_all();
  gossip::Random& random = members.random();
  std::vector<CollectiveMember::Answer> answers;
  for (int i = 0; i < 400; ++i) {
    AverageValues wrong{.collective = collective,
                        .from = participant(random.below(4)),
                        .to = participant(0),
                        .founding = members[0].averaging().founding(),
                        .round = members[0].averaging().round() + random.below(3),
                        .part = {static_cast<gossip::RoundPart::Kind>(random.below(2)),
                                 {},
                                 static_cast<std::uint32_t>(random.below(4))},
                        .values = Bytes::adopt(std::vector<float>(random.below(9)))};
    if (const gossip::RoundPlan* plan = members[0].averaging().plan()) wrong.part.made_at = plan->made_at;
    members[0].received(wrong);
    if (i % 40 == 0) members.go_on();
  }
  for (const auto& answer : members.answers())
    CHECK(answer.done);
  for (std::size_t i = 0; i < members.size(); ++i)
    CHECK(std::ranges::equal(members.values(i), mean));
}

TEST_CASE("a process that leaves takes its contribution back where no plan has it") {
  Members members(2, 3, 1, 0);
  (void)members.call_all();
  (void)members.answers();
  members.values(0) = {1, 1, 1};
  members.values(1) = {5, 5, 5};
  members[0].call(1, 0);
  members.go_on();
  members[0].leave();
  while (!members[0].has_left())
    members.go_on();
  members[1].call(1, 0);
  std::optional<CollectiveMember::Answer> answer;
  for (int i = 0; i < 1000 && !answer; ++i) {
    members.go_on();
    answer = members[1].take_answer();
  }
  REQUIRE(answer);
  CHECK(answer->of == 1);
  CHECK(members.values(1) == std::vector<float>{5, 5, 5});
}

TEST_CASE("a sum of a plan that is no more changes nothing, and ends before the memory it reads is written") {
  const bool ends_late = GENERATE(false, true);
  Members members(3, 10, 1, 0);
  (void)members.call_all();
  (void)members.answers();
  for (std::size_t i = 0; i < members.size(); ++i) {
    members.values(i).assign(10, static_cast<float>(i));
    members[i].call(1, 0);
  }
  Task old = members.next_task();
  const std::size_t owner = old.member;
  const std::size_t other = (owner + 1) % 3;
  const std::size_t dead = (owner + 2) % 3;
  const std::vector<float> mean(10, static_cast<float>(owner + other) / 2);
  members[owner].node_dead(participant(dead).node);
  members[other].node_dead(participant(dead).node);
  Task sum = members.next_task();
  REQUIRE(sum.member == owner);
  if (!ends_late) {
    members.slow_down(0);  // the result is not sent yet
    sum.end();
    old.end();
    members.slow_down(100);
  } else {
    sum.end();
  }
  members.slow_workers(100);
  for (int turn = 0; turn < 50; ++turn)
    members.go_on();
  const auto answer = members[other].take_answer();
  REQUIRE((answer && answer->of == 2));
  CHECK(std::ranges::equal(members.values(other), mean));
  if (ends_late) {
    CHECK(members[owner].is_waiting());
    CHECK(!std::ranges::equal(members.values(owner), mean));
    old.end();
    members.go_on();
  }
  const auto last = members[owner].take_answer();
  REQUIRE((last && last->of == 2));
  CHECK(std::ranges::equal(members.values(owner), mean));
}

TEST_CASE("under false alarms whoever has a round has the bits of the others") {
  std::size_t same = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Members members(4, average_fragment_elements + 3, seed, 0.1, {.eight_bits = seed % 2 == 0, .exact = 5});
    if (seed % 4 < 2) members.slow_workers(1);
    gossip::Random& random = members.random();
    std::map<std::pair<gossip::FoundingId, std::uint64_t>, std::vector<float>> rounds;
    for (int turn = 0; turn < 600; ++turn) {
      const std::size_t i = random.below(members.size());
      const std::size_t j = random.below(members.size());
      if (i != j && random.below(4) == 0) {
        members[i].node_dead(participant(j).node);
      } else if (i != j && random.below(4) > 0) {
        members[i].node_alive(participant(j).node);
        members[i].link_up(participant(j).node);
      }
      for (std::size_t k = 0; k < members.size(); ++k) {
        if (members[k].is_waiting()) continue;
        std::ranges::generate(members.values(k), [&] { return static_cast<float>(random.uniform()); });
        members[k].call(1, random.below(2) * 50 * us_per_ms);
      }
      members.go_on();
      for (std::size_t k = 0; k < members.size(); ++k) {
        const auto answer = members[k].take_answer();
        if (!answer || !answer->done) continue;
        const auto [round, is_first] =
            rounds.try_emplace({members[k].averaging().founding(), answer->round}, members.values(k));
        same += is_first ? 0 : 1;
        REQUIRE(round->second == members.values(k));
      }
    }
    for (std::size_t i = 0; i < members.size(); ++i) {  // when there are no more alarms, all get on
      for (std::size_t j = 0; j < members.size(); ++j) {
        if (i == j) continue;
        members[i].node_alive(participant(j).node);
        members[i].link_up(participant(j).node);
      }
    }
    std::vector<int> means(members.size());
    for (int turn = 0; turn < 1'000; ++turn) {
      for (std::size_t k = 0; k < members.size(); ++k)
        if (!members[k].is_waiting()) members[k].call(1, 0);
      members.go_on();
      for (std::size_t k = 0; k < members.size(); ++k)
        if (const auto answer = members[k].take_answer(); answer && answer->done) ++means[k];
    }
    CHECK(std::ranges::min(means) > 0);
  }
  CHECK(same > 100);
}

namespace {

/// Sends messages within the bounds of the wire that a member may send, but mostly should not.
class Liar {
 public:
  explicit Liar(Members& members) : members_(members), random_(members.random()) {}

  Message message() {
    const gossip::Averaging& victim = members_[0].averaging();
    std::vector<gossip::Participant> others = victim.members();
    std::erase(others, members_[0].self());
    liar_ = others.empty() || random_.below(10) == 0 ? one() : others[random_.below(others.size())];
    const gossip::Participant from = liar_;
    const gossip::FoundingId founding = random_.below(8) > 0
                                            ? victim.founding()
                                            : gossip::FoundingId{static_cast<std::int64_t>(random_.below(3)), one()};
    const std::uint64_t round = random_.below(20) > 0
                                    ? victim.round() - std::min(victim.round(), random_.below(3)) + random_.below(3)
                                    : gossip::max_average_round - random_.below(2);
    if (random_.below(4) == 0) {
      return AverageValues{.collective = collective,
                           .from = from,
                           .to = members_[0].self(),
                           .founding = founding,
                           .round = round,
                           .part = part(),
                           .values = Bytes::adopt(std::vector<float>(random_.below(2) == 0 ? 3 : 10))};
    }
    return AverageNote{collective, from, members_[0].self(), {founding, round, body()}};
  }

 private:
  gossip::Participant one() {
    gossip::Participant some = participant(random_.below(members_.size() + 2));
    if (random_.below(10) == 0) some.life = 1 + random_.below(1000);
    return some;
  }
  std::uint64_t number() { return random_.below(10) > 0 ? random_.below(20) : gossip::max_average_round; }
  gossip::Ballot ballot() {
    const gossip::RoundPlan* plan = members_[0].averaging().plan();
    if (plan != nullptr && random_.below(2) == 0) return plan->made_at;
    if (random_.below(2) == 0) return {++number_, liar_};  // larger than those before, so that it counts
    return {random_.below(20) > 0 ? random_.below(5) : ~std::uint64_t{0}, one()};
  }
  gossip::RoundPart part() {
    return {static_cast<gossip::RoundPart::Kind>(random_.below(2)), ballot(),
            static_cast<std::uint32_t>(random_.below(4))};
  }
  std::vector<gossip::Participant> some() {
    std::set<gossip::Participant> chosen;
    for (std::uint64_t n = random_.below(5); n > 0; --n)
      chosen.insert(random_.below(2) == 0 ? one() : participant(random_.below(members_.size())));
    return {chosen.begin(), chosen.end()};
  }
  gossip::RoundPlan plan() {
    const gossip::RoundPlan* known = members_[0].averaging().plan();
    if (known != nullptr && random_.below(3) == 0) return *known;
    if (!earlier_.empty() && random_.below(2) == 0) return earlier_[random_.below(earlier_.size())];
    earlier_.push_back(new_plan());
    if (earlier_.size() > 4) earlier_.erase(earlier_.begin());
    return earlier_.back();
  }
  gossip::RoundPlan new_plan() {
    gossip::RoundPlan made{.made_at = ballot(), .members = some()};
    const auto own = members_[0].averaging().contribution();
    if (own && random_.below(2) == 0) {
      made.contributions.push_back({members_[0].self(), *own});  // it can be carried out
    } else {
      for (const gossip::Participant& from : some())
        made.contributions.push_back({from, number()});
    }
    for (const gossip::Participant& member : made.members)
      if (made.voters.empty() || random_.below(2) == 0) made.voters.push_back(member);
    return made;
  }
  gossip::RoundReady ready() {
    gossip::RoundReady told{.leaves = random_.below(4) == 0};
    if (random_.below(2) == 0) told.contribution = number();
    told.at_least = static_cast<std::uint16_t>(random_.below(8));
    return told;
  }
  decltype(gossip::AverageMessage::body) body() {
    switch (random_.below(14)) {
      case 0:
        return ready();
      case 1:
        return gossip::RoundPrepare{ballot()};
      case 2:
        return gossip::RoundPromise{ballot(), gossip::RoundPromise::Accepted{ballot(), plan()}, ready()};
      case 3:
        return gossip::RoundPromise{ballot(), {}, ready()};
      case 4:
        return gossip::RoundRefusal{ballot()};
      case 5:
        return gossip::RoundProposal{ballot(), plan()};
      case 6:
        return gossip::RoundAccept{ballot()};
      case 7:
        return gossip::RoundCommit{plan()};
      case 8: {
        gossip::RoundEnter enter{.plan = plan()};
        for (const gossip::Participant& from : some())
          enter.taken.push_back({from, number()});
        return enter;
      }
      case 9:
        return gossip::RoundJoin{};
      case 10:
        return gossip::RoundHeard{};
      case 11:
        return gossip::RoundNobody{};
      case 12:
        return gossip::RoundWaits{some()};
      default:
        return random_.below(2) == 0 ? decltype(gossip::AverageMessage::body)(gossip::RoundGone{})
                                     : gossip::RoundAsk{part()};
    }
  }

  Members& members_;
  gossip::Random& random_;
  gossip::Participant liar_;
  std::uint64_t number_ = 0;
  std::vector<gossip::RoundPlan> earlier_;
};

}  // namespace

TEST_CASE("the results of a plan that is committed after another was proposed are used") {
  Members members(1, 10, 1, 0);
  const gossip::Averaging& averaging = members[0].averaging();
  const gossip::Participant victim = members[0].self();
  const std::array liars{participant(1), participant(2)};
  const auto say = [&](const gossip::Participant& liar, const decltype(gossip::AverageMessage::body)& body) {
    const bool joins = std::holds_alternative<gossip::RoundJoin>(body);
    members.deliver(victim.node, AverageNote{collective,
                                             liar,
                                             victim,
                                             {joins ? gossip::FoundingId{} : averaging.founding(),
                                              joins ? 0 : averaging.round(), body}});
    members.work();
  };
  (void)members.call_all();
  (void)members.answers();
  for (const gossip::Participant& liar : liars)
    say(liar, gossip::RoundJoin{});
  members.call_all();
  members.answers();
  REQUIRE(averaging.members().size() == 3);
  // Until the victim's plan is accepted here, and a second voter is wanted.
  std::uint64_t number = 0;
  const auto carry_out = [&] {
    const std::vector<float> mean = members.call_all();
    ++number;
    for (const gossip::Participant& liar : liars)
      say(liar, gossip::RoundReady{.contribution = number});
    members.go_on();
    REQUIRE(averaging.plan() != nullptr);
    const gossip::Ballot ballot = averaging.plan()->made_at;
    for (const gossip::Participant& liar : liars) {
      for (const auto kind : {gossip::RoundPart::Kind::contribution, gossip::RoundPart::Kind::result}) {
        members.deliver(victim.node, AverageValues{.collective = collective,
                                                   .from = liar,
                                                   .to = victim,
                                                   .founding = averaging.founding(),
                                                   .round = averaging.round(),
                                                   .part = {kind, ballot, 0},
                                                   .values = Bytes::adopt(std::vector(mean))});
        members.work();
      }
    }
    return ballot;
  };
  const auto plan = [&](std::uint64_t ballot, bool with_liar) {
    gossip::RoundPlan made{.made_at = {ballot, liars[0]}, .members = {victim, liars[0]}, .voters = {victim}};
    made.contributions.push_back({victim, *averaging.contribution()});
    if (with_liar) made.contributions.push_back({liars[0], number + 1});
    return made;
  };
  carry_out();  // only the victim has a vote yet
  REQUIRE(members[0].take_answer());
  REQUIRE(averaging.voters().size() == 3);
  SECTION("as a member says") {
    const std::vector<float> mean = members.call_all();
    say(liars[0], gossip::RoundProposal{{5, liars[0]}, plan(5, false)});
    say(liars[0], gossip::RoundProposal{{6, liars[0]}, plan(6, true)});
    say(liars[0], gossip::RoundCommit{plan(5, false)});
    CHECK(members.values(0) == mean);
  }
  SECTION("as the conductor finds, whose own plan it is") {
    const gossip::Ballot ballot = carry_out();
    CHECK(members[0].is_waiting());
    say(liars[0], gossip::RoundProposal{{6, liars[0]}, plan(6, true)});
    say(liars[0], gossip::RoundAccept{ballot});
  }
  const auto answer = members[0].take_answer();
  REQUIRE(answer);
  CHECK(answer->done);
}

TEST_CASE("parts of a former group are used in no round of another one") {
  Members members(1, 10, 1, 0);
  const gossip::Averaging& averaging = members[0].averaging();
  const gossip::Participant self = members[0].self();
  const gossip::Participant other = participant(1);
  (void)members.call_all();
  (void)members.answers();  // in a group of its own
  const std::uint64_t round = averaging.round();
  const gossip::Ballot ballot{0, other};
  const auto give_result = [&](float value) {
    members.deliver(self.node, AverageValues{.collective = collective,
                                             .from = other,
                                             .to = self,
                                             .founding = averaging.founding(),
                                             .round = round,
                                             .part = {gossip::RoundPart::Kind::result, ballot, 0},
                                             .values = Bytes::adopt(std::vector(10, value))});
  };
  const auto say = [&](const gossip::FoundingId& founding, std::uint64_t of,
                       const decltype(gossip::AverageMessage::body)& body) {
    members.deliver(self.node, AverageNote{collective, other, self, {founding, of, body}});
    members.work();
  };
  give_result(1);  // of a plan that has not come yet, and will not
  const gossip::FoundingId older{averaging.founding().at_us - 1, other};
  const std::vector<gossip::Participant> both{self, other};
  say(older, round - 1, gossip::RoundEnter{.plan = {.members = both, .voters = both}});
  REQUIRE(averaging.founding() == older);
  REQUIRE(averaging.round() == round);
  (void)members.call_all();
  const gossip::RoundPlan plan{
      .made_at = ballot, .contributions = {{self, 2}, {other, 1}}, .members = both, .voters = both};
  say(older, round, gossip::RoundCommit{plan});
  CHECK(averaging.plan() != nullptr);  // its result is missing
  give_result(2);
  for (int turn = 0; turn < 50; ++turn)
    members.go_on();
  const auto answer = members[0].take_answer();
  REQUIRE(answer);
  CHECK(answer->done);
  CHECK(answer->joined);
  CHECK(members.values(0) == std::vector<float>(10, 2));
}

TEST_CASE("no message uses up the numbers of ballots") {
  Members members(2, 10, 1, 0);
  (void)members.call_all();
  (void)members.answers();
  const gossip::Participant liar = members[1].self();
  for (std::uint64_t number = 1; number > 0; number *= 2) {
    for (const std::uint64_t n : {number, number - 1}) {
      for (const decltype(gossip::AverageMessage::body)& body :
           {decltype(gossip::AverageMessage::body)(gossip::RoundPrepare{{n, liar}}),
            decltype(gossip::AverageMessage::body)(gossip::RoundRefusal{{n, liar}})}) {
        const auto& averaging = members[0].averaging();
        members.deliver(
            members[0].self().node,
            AverageNote{collective, liar, members[0].self(), {averaging.founding(), averaging.round(), body}});
      }
    }
  }
  const std::vector<float> mean = members.call_all();
  for (const auto& answer : members.answers())
    CHECK(answer.done);
  CHECK(std::ranges::equal(members.values(0), mean));
}

TEST_CASE("a member that lies ends no daemon, and makes none send what is against the rules") {
  std::size_t told = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO(seed);
    Members members(1 + seed % 3, 10, seed, 0.05);
    Liar liar(members);
    for (int turn = 0; turn < 300; ++turn) {
      const Message message = liar.message();
      if (!peer::fault_of(message)) {
        ++told;
        members.deliver(members[0].self().node, message);
      }
      for (std::size_t i = 0; i < members.size(); ++i) {
        (void)members[i].take_answer();
        if (!members[i].is_waiting()) members[i].call(1, 0);
      }
      if (turn % 5 == 0) members.go_on();
    }
    for (std::uint64_t life = 10; life < 10 + 400; ++life) {
      gossip::Participant joiner = participant(9);
      joiner.life = life;
      members.deliver(members[0].self().node,
                      AverageNote{collective, joiner, members[0].self(), {{}, 0, gossip::RoundJoin{}}});
    }
    for (int turn = 0; turn < 30; ++turn)
      members.go_on();
  }
  CHECK(told > 10'000);
}
