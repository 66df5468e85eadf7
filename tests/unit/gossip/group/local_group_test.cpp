// Clients of one job at one node, played: each trains and serves at its own speed, and the node's copy must be the mean
// of what they have learned, exactly, whatever happens. Values are multiples of 2^-10 and the weights powers of two, so
// that fp32 rounds nothing.

#include "gossip/group/local_group.hpp"

#include <cmath>
#include <limits>

#include "catch.hpp"
#include "gossip/played_device.hpp"
#include "gossip/random.hpp"
#include "gossip/test_device.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr std::size_t elements = 2 * block_elements;
constexpr float lattice = 1.0F / 1024;

using Values = std::vector<float>;

/// A client with the three buffers of one fragment.
struct Trainer {
  Values x = Values(elements);
  std::array<Values, 3> buffers{Values(elements), Values(elements), Values(elements)};
  std::array<float*, 3> on_device{there(buffers[0]), there(buffers[1]), there(buffers[2])};
  std::uint8_t publication = 0;
  std::uint8_t correction = 1;
  bool valid = false;
  bool replace = false;
  bool was_corrected = false;
  bool due = false;
  double progress = 0;  // what element 0 has trained since the client takes part

  [[nodiscard]] std::uint8_t spare() const { return static_cast<std::uint8_t>(3 - publication - correction); }
  void train(float step) {
    for (float& value : x)
      value += step;
    progress += step;
  }
  void serve() {
    for (std::size_t e = 0; e < elements; ++e) {
      if (valid) x[e] = (replace ? 0.0F : x[e]) + buffers[correction][e];
      buffers[spare()][e] = x[e];
    }
    if (replace) progress = 0;
    was_corrected = valid && !replace;
    publication = spare();
    valid = replace = due = false;
  }
};

/// A device that cannot reach the memory of some clients at some tasks. Either nothing is taken from a client and
/// nothing written, or only the writing fails.
class HalfDeaf final : public PlayedDevice {
 public:
  explicit HalfDeaf(std::uint64_t seed) : random_(seed) {}
  double deaf = 0;  // how often a client is not reached,
  double mute = 0;  // how often the correction of a reached client is not written

  bool local_mean(std::span<const ClientFragment> clients, std::span<float> y,
                  std::span<LocalMeanOutcome> outcomes) const override {
    std::vector<ClientFragment> some(clients.begin(), clients.end());
    std::vector<LocalMeanOutcome> lost(clients.size());
    for (std::size_t i = 0; i < some.size(); ++i) {
      lost[i].reached = random_.uniform() >= deaf;
      lost[i].written = lost[i].reached && (some[i].correction == nullptr || random_.uniform() >= mute);
      if (!lost[i].reached) some[i].take = Take::nothing;
      if (!lost[i].written) some[i].correction = nullptr;
    }
    if (!test_device().local_mean(some, y, outcomes)) return false;
    for (std::size_t i = 0; i < some.size(); ++i) {
      outcomes[i].reached = lost[i].reached;
      outcomes[i].written = lost[i].written;
    }
    return true;
  }

 private:
  mutable Random random_;
};

/// The node: one fragment, and what the daemon does with LocalGroup's decisions.
struct Played {
  Values y = Values(elements);
  std::span<float> y_on_device{there(y), elements};
  LocalGroup group{1, 0};
  std::map<LocalGroup::ClientId, Trainer> trainers;
  TimeUs now_us = 0;
  bool broken_rule = false;  // negative control: a late publication is taken in twice
  const Device* device = &test_device();
  std::uint32_t withheld = 0;
  bool hands_over_all = false;  // negative control: hands over corrections that were not written

  explicit Played(std::size_t count) {
    for (LocalGroup::ClientId id = 1; id <= count; ++id) {
      trainers[id];
      group.add(id, LocalGroup::Arrival::with_values, 0);
    }
    group.gathered(0, std::nullopt, false, now_us);
  }
  ClientFragment part_of(const LocalGroup::Part& part) {
    Trainer& trainer = trainers.at(part.id);
    ClientFragment fragment{
        .snapshot = trainer.on_device[trainer.publication], .take = part.take, .weight = part.weight};
    if (part.take == Take::progress) {
      fragment.base = trainer.on_device[trainer.spare()];
      fragment.base_correction = trainer.was_corrected ? trainer.on_device[trainer.correction] : nullptr;
    }
    if (part.correct) fragment.correction = trainer.on_device[trainer.spare()];
    fragment.replace = part.replace;
    return fragment;
  }
  void run(const LocalGroup::Work& work) {
    LocalMeanTask task;
    for (const auto& part : work.parts)
      task.clients.push_back(part_of(part));
    if (broken_rule) {
      for (auto& client : task.clients)
        client.base = client.base == nullptr ? nullptr : y_on_device.data();
    }
    const auto outcomes = task.run(y_on_device, *device);
    group.done(0, work, outcomes);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (!work.parts[i].offer) continue;
      if (!outcomes[i].written && !hands_over_all) {
        group.withheld(0, work.parts[i]);
        ++withheld;
        continue;
      }
      Trainer& trainer = trainers.at(work.parts[i].id);
      if (outcomes[i].differs) trainer.correction = trainer.spare();
      trainer.valid = outcomes[i].differs;
      trainer.replace = outcomes[i].differs && work.parts[i].replace;
      trainer.due = true;
    }
  }
  void begin() {
    if (group.under_way().empty()) run(group.begin(0, false, now_us));
  }
  void serve(LocalGroup::ClientId id) {
    Trainer& trainer = trainers.at(id);
    if (!trainer.due) return;
    trainer.serve();
    group.published(id, 0, now_us);
  }
  bool end_if_over() {
    if (!group.over(0, now_us)) return false;
    group.end(0);
    run(group.take_in(0));
    return true;
  }
  /// A round in which all serve, at once.
  void round() {
    begin();
    for (auto& [id, trainer] : trainers)
      serve(id);
    REQUIRE(end_if_over());
  }
};

}  // namespace

TEST_CASE("what each client learned is in the node's copy by its share, and comes back to all", "[local_group]") {
  Played node(4);
  for (int step = 0; step < 50; ++step) {
    for (auto& [id, trainer] : node.trainers)
      trainer.train(static_cast<float>(id) * lattice);
    node.round();
    CHECK(node.y[0] == static_cast<float>((step + 1) * (1 + 2 + 3 + 4)) * lattice / 4);
    CHECK(node.y[elements - 1] == node.y[0]);
  }
  node.round();
  node.round();
  for (auto& [id, trainer] : node.trainers)
    CHECK(trainer.x == node.y);
}

TEST_CASE("clients of any speed count with what they did, once", "[local_group]") {
  const bool broken = GENERATE(false, true);
  Random random(7);
  bool kept = true;
  for (int life = 0; life < 20; ++life) {
    Played node(2);
    node.broken_rule = broken;
    double exchanged = 0;
    for (int turn = 0; turn < 300; ++turn) {
      node.now_us += 1000;
      const LocalGroup::ClientId id = random.uniform() < 0.9 ? 1 : 2;  // one is nine times as fast
      node.trainers[id].train(static_cast<float>(random.next() % 8) * lattice);
      node.serve(id);
      node.end_if_over();
      if (random.uniform() < 0.3) node.begin();
      if (random.uniform() < 0.1) {  // an exchange with another node
        const float moved = static_cast<float>(random.next() % 16) * lattice;
        exchanged += moved;
        for (float& value : node.y)
          value += moved;
      }
    }
    // In the last rounds all is served. Then the copy is the mean of their progress and the exchanges, and all clients
    // hold it.
    for (int i = 0; i < 4; ++i) {
      node.begin();
      node.serve(1);
      node.serve(2);
      node.now_us += 1000;
      node.end_if_over();
    }
    const double expected = exchanged + (node.trainers[1].progress + node.trainers[2].progress) / 2;
    kept = kept && node.y[0] == static_cast<float>(expected);
    kept = kept && node.trainers[1].x == node.y && node.trainers[2].x == node.y;
  }
  CHECK(kept != broken);
}

TEST_CASE("clients whose memory is out of reach at times count with what they did, once", "[local_group]") {
  const bool broken = GENERATE(false, true);
  bool kept = true;
  std::uint32_t withheld = 0;
  for (std::uint64_t life = 0; life < 40; ++life) {
    Random random(life);
    HalfDeaf device(life + 1000);
    Played node(2);
    node.device = &device;
    node.hands_over_all = broken;
    device.deaf = 0.3;
    device.mute = life % 2 == 0 ? 0 : 0.3;
    double exchanged = 0;
    for (int turn = 0; turn < 300; ++turn) {
      node.now_us += 1000;
      const LocalGroup::ClientId id = random.uniform() < 0.7 ? 1 : 2;
      node.trainers[id].train(static_cast<float>(random.next() % 8) * lattice);
      node.serve(id);
      node.end_if_over();
      if (random.uniform() < 0.3) node.begin();
      if (random.uniform() < 0.1) {  // an exchange with another node
        const float moved = static_cast<float>(random.next() % 16) * lattice;
        exchanged += moved;
        for (float& value : node.y)
          value += moved;
      }
    }
    // At the end every client can be reached and is served.
    device.deaf = device.mute = 0;
    for (int i = 0; i < 6; ++i) {
      node.begin();
      for (auto& [id, trainer] : node.trainers)
        node.serve(id);
      node.now_us += us_per_s;
      node.end_if_over();
    }
    const double expected = exchanged + (node.trainers[1].progress + node.trainers[2].progress) / 2;
    kept = kept && node.y[0] == static_cast<float>(expected);
    kept = kept && node.trainers[1].x == node.y && node.trainers[2].x == node.y && node.group.even();
    withheld += node.withheld;
  }
  CHECK(kept != broken);
  CHECK((broken || withheld > 1000));
}

TEST_CASE("clients that are even hold the copy, each whole, however they have trained, served and come",
          "[local_group]") {
  std::uint32_t evens = 0;
  for (std::uint64_t life = 0; life < 300; ++life) {
    Random random(life);
    Played node(2);
    std::map<LocalGroup::ClientId, std::uint64_t> clocks{{1, 0}, {2, 0}};
    for (int turn = 0; turn < 120; ++turn) {
      node.now_us += 1500;
      const LocalGroup::ClientId id = 1 + random.next() % node.trainers.size();
      switch (random.next() % 8) {
        case 0:
          if (random.uniform() < 0.5) break;
          node.trainers[id].train(lattice);
          node.group.observe_clock(id, ++clocks[id]);
          break;
        case 1:
        case 2:
        case 3:
          node.serve(id);
          break;
        case 4:
          if (!node.group.wanted(1000, node.now_us, 1).empty()) node.begin();
          break;
        case 5:
          if (node.trainers.size() > 2 || turn < 50) break;
          node.trainers[3].train(static_cast<float>(random.next() % 4) * lattice);
          node.group.add(3, LocalGroup::Arrival::without_values, clocks[3]);
          break;
        default:
          node.end_if_over();
      }
      if (!node.group.even()) continue;
      ++evens;
      for (const auto& [number, trainer] : node.trainers) {
        INFO("life " << life << ", turn " << turn << ", client " << number);
        REQUIRE(std::abs(trainer.x[0] - node.y[0]) < lattice / 64);  // thirds are rounded
      }
    }
  }
  CHECK(evens > 1000);
}

TEST_CASE("clients whose values are rounded for ever are even once nobody trains", "[local_group]") {
  LocalGroup group(1, 0);
  for (const LocalGroup::ClientId id : {1, 2})
    group.add(id, LocalGroup::Arrival::with_values, 0);
  TimeUs now_us = 0;
  group.gathered(0, std::nullopt, false, now_us);
  std::map<LocalGroup::ClientId, std::uint64_t> clocks;
  const auto round = [&] {
    now_us += us_per_s;
    const LocalGroup::Work offers = group.begin(0, false, now_us);
    group.done(0, offers, std::vector<LocalMeanTask::Outcome>(offers.parts.size()));
    for (const LocalGroup::Part& part : offers.parts)
      group.published(part.id, 0, now_us, clocks[part.id]);
    const LocalGroup::Work taken = group.take_in(0);
    group.done(0, taken, std::vector<LocalMeanTask::Outcome>(taken.parts.size(), {.moved = true}));
  };
  for (std::uint64_t clock = 1; clock <= 3; ++clock) {
    group.observe_clock(1, clock);
    clocks[1] = clock;
    round();
    CHECK_FALSE(group.even());  // it trained, and the other has yet to be given that
    for (std::uint32_t i = 0; i < LocalGroup::most_moves; ++i)
      round();
    CHECK(group.even());
  }
  // Rounding has moved the copy many times. All clients must still get what one of them learns now.
  clocks[2] = 1;
  round();
  CHECK_FALSE(group.even());
  round();
  CHECK(group.even());
}

TEST_CASE("what a client trains between the first and the last fragment that it takes over is asked for",
          "[local_group]") {
  LocalGroup group(2, 0);
  group.add(1, LocalGroup::Arrival::with_values, 0);
  TimeUs now_us = 0;
  const auto round = [&](std::uint32_t f) {
    const LocalGroup::Work offers = group.begin(f, false, now_us);
    group.done(f, offers, std::vector<LocalMeanTask::Outcome>(offers.parts.size()));
    for (const LocalGroup::Part& part : offers.parts)
      group.published(part.id, f, now_us);
    const LocalGroup::Work taken = group.take_in(f);
    group.done(f, taken, std::vector<LocalMeanTask::Outcome>(taken.parts.size()));
    now_us += 1000;
  };
  for (const std::uint32_t f : {0U, 1U})
    group.gathered(f, std::nullopt, false, now_us);
  group.add(2, LocalGroup::Arrival::without_values, 0);
  round(0);
  group.observe_clock(2, 1);
  round(1);
  CHECK_FALSE(group.even());
  CHECK(group.wanted(1000, now_us, 2) == std::vector<std::uint32_t>{0});
  round(0);
  round(1);
  CHECK(group.even());
}

TEST_CASE("clients are not even while what one of them has published is out of reach", "[local_group]") {
  Played node(2);
  HalfDeaf device(1);
  node.device = &device;
  node.round();
  REQUIRE(node.group.even());
  node.begin();
  node.trainers[1].train(lattice);
  node.serve(1);
  node.serve(2);
  device.deaf = 1;
  node.end_if_over();
  CHECK_FALSE(node.group.even());
  device.deaf = 0;
  for (int i = 0; i < 3; ++i)
    node.round();
  CHECK(node.group.even());
  CHECK(node.y[0] == lattice / 2);
}

TEST_CASE("a client that joins while its memory is out of reach takes the copy over when it can, and is not pressed",
          "[local_group]") {
  HalfDeaf device(3);
  Played node(2);
  node.device = &device;
  node.trainers[1].train(4 * lattice);
  node.round();
  node.trainers[3].train(-100);
  node.group.add(3, LocalGroup::Arrival::without_values, 0);
  device.deaf = 1;
  node.round();
  CHECK(node.group.lacking(3) > 0);
  CHECK(node.group.lacking(3) == 1);
  CHECK_FALSE(node.group.even());
  CHECK(node.group.wanted(us_per_s, node.now_us, 8).empty());
  node.now_us += us_per_s;
  CHECK(node.group.wanted(us_per_s, node.now_us, 8).size() == 1);
  device.deaf = 0;
  node.round();
  CHECK(node.group.lacking(3) == 0);
  CHECK(node.trainers[3].x == node.y);
}

TEST_CASE("what a client published that is gone is taken in when its memory can be reached, or given up in the end",
          "[local_group]") {
  HalfDeaf device(3);
  Played node(2);
  node.device = &device;
  node.trainers[2].train(8 * lattice);
  node.begin();
  node.serve(1);
  node.serve(2);
  const bool while_taken = GENERATE(false, true);
  device.deaf = 1;
  if (while_taken) {
    REQUIRE(node.group.over(0, node.now_us));
    node.group.end(0);
    const auto work = node.group.take_in(0);
    node.group.remove(2);  // the client goes while a worker has its fragment
    CHECK(node.group.needs(2));
    node.group.done(0, work, std::vector<LocalMeanTask::Outcome>(work.parts.size(), {.reached = false}));
  } else {
    node.group.remove(2);
    REQUIRE(node.end_if_over());
  }
  CHECK(node.group.needs(2));
  node.now_us += us_per_s;
  SECTION("it can be reached") {
    device.deaf = 0;
    node.round();
    CHECK(node.y[0] == 4 * lattice);
    CHECK_FALSE(node.group.needs(2));
  }
  SECTION("it cannot be") {
    for (std::uint32_t i = 0; i < LocalGroup::farewell_tries; ++i) {
      node.begin();
      node.serve(1);
      node.end_if_over();
    }
    CHECK_FALSE(node.group.needs(2));
    CHECK(node.y[0] == 0);
  }
}

TEST_CASE("a round ends when all have published, or after twice the time of the first", "[local_group]") {
  Played node(2);
  node.now_us = 1000;
  node.begin();
  CHECK_FALSE(node.end_if_over());
  node.now_us += 10'000;
  node.serve(1);
  CHECK_FALSE(node.end_if_over());
  node.now_us += 10'001;
  CHECK(node.end_if_over());

  // The slow client still has the fragment, and is not part of the next round.
  node.begin();
  node.now_us += 5000;
  node.serve(1);
  CHECK(node.end_if_over());

  SECTION("it comes late, and is handed the next one") {
    node.serve(2);
    node.begin();
    node.serve(1);
    CHECK_FALSE(node.end_if_over());
    node.serve(2);
    CHECK(node.end_if_over());
  }
  SECTION("nobody publishes") {
    node.serve(2);
    node.begin();
    node.now_us += 60 * us_per_s;
    CHECK_FALSE(node.end_if_over());
    node.trainers[3];
    node.group.add(3, LocalGroup::Arrival::without_values, 0);
    CHECK(node.end_if_over());  // the new client waits for the values
    node.begin();
    CHECK(node.trainers[3].replace);
  }
}

TEST_CASE("a round that waits for a client that stands still ends after one that comes late from the round before",
          "[local_group]") {
  Played node(2);
  node.now_us = 1000;
  node.begin();
  node.now_us += 1000;
  node.serve(2);
  node.now_us += 10'000;
  REQUIRE(node.end_if_over());  // the first still has the fragment
  node.group.observe_clock(1, 10);
  node.begin();  // only the second gets the fragment, and it now stands still
  REQUIRE(node.trainers[2].due);
  node.now_us += 5000;
  node.serve(1);
  CHECK_FALSE(node.end_if_over());
  node.now_us += 5001;
  REQUIRE(node.end_if_over());
  node.group.observe_clock(1, 20);
  node.begin();
  CHECK(node.trainers[1].due);
}

TEST_CASE("a client that joins takes the copy over and moves nobody", "[local_group]") {
  Played node(2);
  node.trainers[1].train(4 * lattice);
  node.round();
  const Values before = node.y;
  node.trainers[3].train(-100);
  node.group.add(3, LocalGroup::Arrival::without_values, 50);
  CHECK(node.group.lacking(3) > 0);
  CHECK(node.group.wanted(us_per_s, node.now_us, 8) == std::vector<std::uint32_t>{0});
  node.round();
  CHECK(node.group.lacking(3) == 0);
  CHECK(node.y == before);
  CHECK(node.trainers[3].x == before);

  // From now on it counts for a third.
  node.trainers[3].train(3);
  node.round();
  CHECK(node.y[0] == Approx(before[0] + 1));

  // One that died with its daemon while it joined may have the fragment: it is not asked for again and again.
  node.trainers[4].due = true;
  node.group.add(4, LocalGroup::Arrival::without_values, 0, {.due = {true}});
  CHECK(node.group.wanted(us_per_s, node.now_us, 8).empty());
  node.serve(4);
  CHECK(node.group.lacking(4) > 0);
  CHECK(node.group.wanted(us_per_s, node.now_us, 8) == std::vector<std::uint32_t>{0});
  node.round();
  CHECK(node.trainers[4].x == node.y);
}

TEST_CASE("of a client that goes, what it published stays", "[local_group]") {
  Played node(2);
  node.trainers[2].train(8 * lattice);
  node.begin();
  SECTION("before it published") {
    node.group.remove(2);
    CHECK_FALSE(node.group.needs(2));
    node.serve(1);
    CHECK(node.end_if_over());
    CHECK(node.y[0] == 0);
  }
  SECTION("after that") {
    node.serve(2);
    node.group.remove(2);
    CHECK(node.group.needs(2));  // its memory is needed until the round ends
    node.serve(1);
    CHECK(node.end_if_over());
    CHECK(node.y[0] == 4 * lattice);
    CHECK_FALSE(node.group.needs(2));
  }
  CHECK(node.group.clients() == 1);
  node.trainers[1].train(lattice);
  const float before = node.y[0];
  node.trainers.erase(2);
  node.round();
  CHECK(node.y[0] == before + lattice);  // the client that is left counts alone
}

TEST_CASE("a client whose values are not finite is left out, whole, until they are", "[local_group]") {
  Played node(2);
  node.round();
  node.trainers[1].train(lattice);
  node.trainers[2].train(2);
  node.trainers[2].x[300] = GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  node.round();
  CHECK(node.y == Values(elements, lattice / 2));  // it was known only now: the client's share still counted
  CHECK(node.group.quarantined(2));
  CHECK(node.group.quarantines() == 1);

  node.trainers[1].train(lattice);
  node.round();
  CHECK(node.y == Values(elements, lattice * 3 / 2));
  CHECK(node.trainers[2].x[0] == 2);  // it gets no correction either

  node.trainers[2].x[300] = 0;
  node.round();
  CHECK_FALSE(node.group.quarantined(2));
  node.round();
  CHECK(node.trainers[2].x == node.y);
  node.trainers[2].train(2 * lattice);
  node.round();
  CHECK(node.y == Values(elements, lattice * 5 / 2));
}

TEST_CASE("clients are not even until one that was not finite, and was mended, holds the copy again", "[local_group]") {
  Played node(2);
  node.round();
  node.trainers[2].x[300] = std::numeric_limits<float>::quiet_NaN();
  node.round();
  REQUIRE(node.group.quarantined(2));
  node.trainers[2].x[300] = 1;  // finite again, and nobody has trained
  node.round();
  CHECK_FALSE(node.group.quarantined(2));
  CHECK(node.trainers[2].x != node.y);
  CHECK_FALSE(node.group.even());
  node.round();
  CHECK(node.trainers[2].x == node.y);
  CHECK(node.group.even());
}

TEST_CASE("a client that was not finite, and is mended while nobody trains, is looked at within a second",
          "[local_group]") {
  Played node(2);
  node.round();
  node.trainers[2].x[300] = std::numeric_limits<float>::quiet_NaN();
  node.round();
  REQUIRE(node.group.quarantined(2));
  node.round();
  CHECK(node.group.wanted(1, node.now_us + LocalGroup::recovery_us - 1, 1).empty());
  CHECK(node.group.wanted(1, node.now_us + LocalGroup::recovery_us, 1).size() == 1);
}

TEST_CASE("what a client learned under an earlier daemon counts by its share of then, later progress by today's",
          "[local_group]") {
  Played node(0);
  Trainer& trainer = node.trainers[1];
  trainer.x.assign(elements, 2);
  trainer.buffers[trainer.publication].assign(elements, 2);
  node.group.add(1, LocalGroup::Arrival::back, 0, {.untaken = {true}, .were = 2});
  node.round();
  CHECK(node.y == Values(elements, 1));
  CHECK(trainer.x == node.y);
  trainer.train(2);
  node.round();
  CHECK(node.y == Values(elements, 3));  // the absent client is no part of the mean
}

TEST_CASE("a client that comes back does not draw the others back, and counts with what it publishes from then on",
          "[local_group]") {
  Played node(1);
  node.trainers[2].x.assign(elements, 4);
  node.trainers[2].buffers[0].assign(elements, 4);
  SECTION("its fragment with the daemon") {
    node.group.add(2, LocalGroup::Arrival::back, 0);
    CHECK(node.group.lacking(2) == 0);
    node.round();
    CHECK(node.y == Values(elements, 0));
  }
  SECTION("its fragment in its hands, and trained on") {
    node.trainers[2].due = true;
    node.group.add(2, LocalGroup::Arrival::back, 0, {.due = {true}});
    node.trainers[2].train(2);
    node.serve(2);
    node.round();
    CHECK(node.y == Values(elements, 1));
  }
  node.round();
  CHECK(node.trainers[2].x == node.y);
  CHECK(node.trainers[1].x == node.y);
}

TEST_CASE("a copy that not all clients hold is handed to them, though nobody trains", "[local_group]") {
  LocalGroup group(1, 0);
  group.add(1, LocalGroup::Arrival::with_values, 0);
  group.add(2, LocalGroup::Arrival::with_values, 0);
  const bool uneven = GENERATE(false, true);
  group.gathered(0, std::nullopt, uneven, 0);
  CHECK(group.even() != uneven);
  CHECK(group.wanted(us_per_s, us_per_s, 1).size() == (uneven ? 1 : 0));
}

TEST_CASE("the group's clock is the mean of what its clients have trained, and never goes back", "[local_group]") {
  LocalGroup group(1, 100);
  group.add(1, LocalGroup::Arrival::with_values, 40);
  group.add(2, LocalGroup::Arrival::with_values, 7000);
  group.add(3, LocalGroup::Arrival::with_values, 0);
  group.observe_clock(1, 40 + 30);
  CHECK(group.clock() == 110);
  for (std::uint64_t clock = 7001; clock <= 7010; ++clock)
    group.observe_clock(2, clock);  // fractions of a third are not lost
  CHECK(group.clock() == 113);
  group.observe_clock(3, 2);
  CHECK(group.clock() == 114);
  group.observe_clock(1, 0);
  CHECK(group.clock() == 114);
  group.remove(2);
  CHECK(group.clock() == 114);
  group.observe_clock(3, 12);
  CHECK(group.clock() == 119);
  group.add(4, LocalGroup::Arrival::without_values, 5);
  group.observe_clock(4, 1000);  // training before it has the values does not count
  CHECK(group.clock() == 119);
}

TEST_CASE("a client that keeps the job follows the copy, and counts for no mean while another trains",
          "[local_group]") {
  LocalGroup group(1, 100);
  group.add(1, LocalGroup::Arrival::with_values, 100, {.keeps = true});
  group.observe_clock(1, 110);  // nobody trains: it follows the job
  CHECK(group.clock() == 110);
  group.gathered(0, std::nullopt, false, 0);
  group.add(2, LocalGroup::Arrival::without_values, 0);
  const auto given = group.begin(0, false, 1'000);
  for (const LocalGroup::Part& part : given.parts)
    CHECK(part.replace == (part.id == 2));
  group.done(0, given, std::vector<LocalMeanTask::Outcome>(given.parts.size()));
  for (const LocalGroup::ClientId id : {1, 2})
    group.published(id, 0, 2'000);
  group.end(0);
  const auto first = group.take_in(0);
  group.done(0, first, std::vector<LocalMeanTask::Outcome>(first.parts.size()));
  group.observe_clock(1, 210);
  CHECK(group.clock() == 110);
  group.observe_clock(2, 50);
  CHECK(group.clock() == 160);
  const auto offered = group.begin(0, true, 3'000);
  group.done(0, offered, std::vector<LocalMeanTask::Outcome>(offered.parts.size()));
  group.published(2, 0, 4'000);
  group.end(0);
  const auto taken = group.take_in(0);
  REQUIRE(taken.parts.size() == 1);
  CHECK(taken.parts[0].id == 2);
  CHECK(taken.parts[0].weight == 1.0F);
}

TEST_CASE("of clients that hold one model the copy follows one, and only those that keep the job are corrected",
          "[local_group]") {
  constexpr TimeUs period_us = 1'000;
  LocalGroup group(1, 0);
  TimeUs now_us = 0;
  const auto begin = [&] {
    now_us += 2 * period_us;
    const auto work = group.begin(0, false, now_us);
    group.done(0, work, std::vector<LocalMeanTask::Outcome>(work.parts.size()));
    return work;
  };
  const auto end = [&] {
    group.end(0);
    const auto work = group.take_in(0);
    std::vector<LocalMeanTask::Outcome> outcomes(work.parts.size());
    for (std::size_t i = 0; i < work.parts.size(); ++i)
      outcomes[i].moved = work.parts[i].take == Take::values;
    group.done(0, work, outcomes);
    return work;
  };
  const auto takes = [](const LocalGroup::Work& work) {
    std::map<LocalGroup::ClientId, Take> all;
    for (const LocalGroup::Part& part : work.parts)
      all[part.id] = part.take;
    return all;
  };
  for (const LocalGroup::ClientId trains : {1, 2})
    group.add(trains, LocalGroup::Arrival::with_values, 0);
  group.gathered(0, std::nullopt, false, now_us);
  group.follow(Follows::one);
  group.observe_clock(1, 32);
  CHECK(group.wanted(period_us, 2 * period_us, 8).empty());  // nobody follows
  group.add(3, LocalGroup::Arrival::with_values, 0, {.keeps = true});
  CHECK_FALSE(group.wanted(period_us, 2 * period_us, 8).empty());

  for (const LocalGroup::Part& part : begin().parts)
    CHECK((part.offer && part.correct == (part.id == 3)));
  group.published(3, 0, now_us);
  CHECK_FALSE(group.over(0, now_us + us_per_s));  // there is nothing to follow yet
  group.published(2, 0, now_us, 0);
  group.observe_clock(2, 32);
  CHECK(group.publication_clock(0) == 0);  // y must have an earlier clock
  CHECK(takes(end()) == std::map<LocalGroup::ClientId, Take>{{2, Take::values}, {3, Take::check}});

  // The first client came late. It and the second already have the other's training, by y or by their own averaging.
  group.published(1, 0, now_us, 32);
  group.follow(Follows::mean);
  CHECK_FALSE(group.even());
  CHECK(takes(begin())[1] == Take::check);
  for (const LocalGroup::ClientId id : {1, 2, 3})
    group.published(id, 0, now_us, 32);
  CHECK(group.publication_clock(0) == group.clock());
  CHECK(takes(end()) == std::map<LocalGroup::ClientId, Take>{{1, Take::values}, {2, Take::check}, {3, Take::check}});
  CHECK_FALSE(group.even());
  for (const LocalGroup::Part& part : begin().parts)
    CHECK((part.offer && part.correct));
  for (const LocalGroup::ClientId id : {1, 2, 3})
    group.published(id, 0, now_us, 32);
  CHECK(takes(end()) ==
        std::map<LocalGroup::ClientId, Take>{{1, Take::progress}, {2, Take::progress}, {3, Take::check}});
}

TEST_CASE("after exact averages all are given the node's copy, also if the last to be followed was out of reach",
          "[local_group]") {
  LocalGroup group(1, 0);
  TimeUs now_us = 1000;
  for (const LocalGroup::ClientId id : {1, 2})
    group.add(id, LocalGroup::Arrival::with_values, 0);
  group.gathered(0, std::nullopt, false, now_us);
  group.follow(Follows::one);
  const auto round = [&](bool reached) {
    const LocalGroup::Work given = group.begin(0, false, ++now_us);
    group.done(0, given, std::vector<LocalMeanTask::Outcome>(given.parts.size()));
    for (const LocalGroup::Part& part : given.parts) {
      if (part.offer) group.published(part.id, 0, ++now_us, 0);
    }
    group.end(0);
    const LocalGroup::Work taken = group.take_in(0);
    std::vector<LocalMeanTask::Outcome> outcomes(taken.parts.size());
    for (LocalMeanTask::Outcome& outcome : outcomes)
      outcome.reached = reached;
    group.done(0, taken, outcomes);
    return given;
  };
  (void)round(true);
  group.follow(Follows::mean);
  (void)round(false);  // the last one of its kind
  const LocalGroup::Work next = round(true);
  REQUIRE(next.parts.size() == 2);
  for (const LocalGroup::Part& part : next.parts)
    CHECK((part.offer && part.correct));
}

TEST_CASE("rounds begin once a period while somebody trains, and once more to share the last", "[local_group]") {
  Played node(2);
  const auto wanted = [&] { return !node.group.wanted(1000, node.now_us, 8).empty(); };
  node.now_us = 5000;
  CHECK_FALSE(wanted());
  node.trainers[1].train(lattice);
  node.group.observe_clock(1, 8);
  CHECK(wanted());
  node.round();
  CHECK_FALSE(wanted());  // the period is not over
  node.now_us += 1000;
  CHECK(wanted());  // the other has not got it
  node.round();
  node.now_us += 1000;
  CHECK_FALSE(wanted());
  CHECK(node.trainers[2].x == node.y);

  // A client that publishes after its round is not forgotten, although nobody trains any more.
  node.trainers[2].train(2 * lattice);
  node.begin();
  node.serve(1);
  node.now_us += us_per_s;
  CHECK(node.end_if_over());
  node.now_us += 1000;
  CHECK_FALSE(wanted());
  node.serve(2);
  CHECK(wanted());
  node.round();
  node.now_us += 1000;
  CHECK_FALSE(wanted());  // this round has given it to all
  CHECK(node.trainers[1].x == node.y);
  CHECK(node.trainers[2].x == node.y);
}

TEST_CASE("a client that had the fragment in its hands while a round passed is handed what it missed",
          "[local_group]") {
  Played node(2);
  node.now_us = 5000;
  node.begin();  // to both; the second does not serve it
  node.trainers[1].train(lattice);
  node.serve(1);
  node.now_us += us_per_s;
  REQUIRE(node.end_if_over());
  node.begin();  // to the first only
  node.serve(1);
  node.now_us += us_per_s;
  REQUIRE(node.end_if_over());
  CHECK_FALSE(node.group.even());
  CHECK(node.group.wanted(1000, node.now_us, 8).empty());  // no client could be given it
  node.serve(2);                                           // the second client has not trained
  REQUIRE(node.group.wanted(1000, node.now_us, 8).size() == 1);
  node.round();
  CHECK(node.trainers[2].x == node.y);
  CHECK(node.group.even());
}

TEST_CASE("what an exchange changed is handed to a client that had the fragment in its hands then", "[local_group]") {
  LocalGroup group(1, 0);
  group.add(1, LocalGroup::Arrival::with_values, 0);
  group.gathered(0, std::nullopt, false, 0);
  CHECK(group.even());
  const bool exchanged = GENERATE(false, true);
  group.add(2, LocalGroup::Arrival::with_values, 0, {.due = {true}});
  const auto work = group.begin(0, exchanged, us_per_s);
  REQUIRE(work.parts.size() == 1);
  group.done(0, work, std::vector<LocalMeanTask::Outcome>(1));
  group.published(1, 0, us_per_s);
  group.end(0);
  const auto take_in = [&] {
    const auto taken = group.take_in(0);
    group.done(0, taken, std::vector<LocalMeanTask::Outcome>(taken.parts.size()));
  };
  take_in();
  CHECK_FALSE(group.even());
  group.published(2, 0, us_per_s);
  take_in();
  CHECK(group.even() != exchanged);
}

TEST_CASE("whatever a client writes where it was looked at before, the copy stays finite", "[local_group]") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -3e38F);
  Values y(elements, 1);
  const Values snapshot(elements, 3);
  Values base(elements, 2);
  base[5] = bad;
  const Values correction(elements, 0);
  const LocalMeanTask task{{{.snapshot = snapshot.data(),
                             .base = base.data(),
                             .base_correction = correction.data(),
                             .take = Take::progress,
                             .weight = 0.5F}}};
  CHECK(task.run(y, processor())[0].finite);
  CHECK(y[4] == 1.5F);
  CHECK(y[5] == 1);
}

TEST_CASE("clients are not even while one has trained after what it published", "[local_group]") {
  LocalGroup group(1, 0);
  const auto done = [&](const LocalGroup::Work& work) {
    group.done(0, work, std::vector<LocalMeanTask::Outcome>(work.parts.size()));
  };
  group.add(1, LocalGroup::Arrival::with_values, 0);
  group.add(2, LocalGroup::Arrival::with_values, 0);
  group.gathered(0, std::nullopt, false, 1);
  // A round that the second one does not answer in time.
  group.observe_clock(1, 10);
  done(group.begin(0, false, 10));
  group.published(1, 0, 11, 10);
  REQUIRE(group.over(0, 1 * us_per_s));
  group.end(0);
  done(group.take_in(0));
  // The second client publishes, trains its last step and stops. Its clock is seen before its publication.
  group.observe_clock(2, 22);
  done(group.begin(0, false, 2 * us_per_s));
  group.published(2, 0, 2 * us_per_s + 1, 0);
  group.published(1, 0, 2 * us_per_s + 2, 10);
  group.end(0);
  done(group.take_in(0));
  CHECK_FALSE(group.even());
  CHECK(group.wanted(1000, 9 * us_per_s, 8).size() == 1);
}

TEST_CASE("a publication claims nothing of what a client has trained that did not publish", "[local_group]") {
  constexpr TimeUs period_us = 1'000;
  LocalGroup group(1, 0);
  const auto done = [&](const LocalGroup::Work& work) {
    group.done(0, work, std::vector<LocalMeanTask::Outcome>(work.parts.size()));
  };
  group.add(1, LocalGroup::Arrival::with_values, 0);
  group.add(2, LocalGroup::Arrival::back, 100, {.published_at = {90}});
  group.gathered(0, std::nullopt, false, 0);
  group.observe_clock(1, 10);
  done(group.begin(0, false, period_us));
  group.published(1, 0, period_us + 1, 10);
  REQUIRE(group.clock() == 5);
  CHECK(group.publication_clock(0) == 0);  // the second one is late, and has trained 10 samples since it published
  group.observe_clock(2, 120);
  REQUIRE(group.clock() == 15);
  CHECK(group.publication_clock(0) == 0);
  group.published(2, 0, period_us + 2, 120);
  CHECK(group.publication_clock(0) == 15);
  group.observe_clock(1, 14);
  CHECK(group.publication_clock(0) == 15);
  group.remove(2);  // its training after the publication is lost, and not to come
  CHECK(group.publication_clock(0) == 13);
}
