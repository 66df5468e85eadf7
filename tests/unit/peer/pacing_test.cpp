// The window over a played network: senders with an endless backlog or a little now and then, one bottleneck that they
// share, delays before and after it. It must fill the bottleneck, keep the queue short, follow a change, share.

#include "peer/pacing.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr double mbit = 1e6 / 8;
constexpr TimeUs ping_us = 500 * us_per_ms;

/// One queue that empties at a rate; what passes it takes half of the delay on to the receiver, the answer the other.
/// `Sender` stands for Pacing, or for a rule that is broken on purpose.
template <class Sender>
class Played {
 public:
  struct Flow {
    Sender pacing;
    TimeUs begins = 0;
    bool backlog = true;
    std::uint64_t arrived = 0;  // at the receiver
    TimeUs pinged = 0;
    std::vector<TimeUs> round_trips;
    std::uint64_t counted_from = 0;
  };

  Played(double bytes_per_s, TimeUs round_trip_us, std::size_t flows)
      : rate(bytes_per_s), round_trip_us_(round_trip_us), flows(flows) {
    for (Flow& flow : this->flows)
      flow.pacing.enable();
  }

  void run(TimeUs until) {
    while (now < until) {
      for (Flow& flow : flows)
        send(flow);
      // The next thing that happens, or the next heartbeat.
      const TimeUs event = events_.empty() ? until : events_.begin()->first;
      now = std::min({until, event, now + us_per_ms});
      while (!events_.empty() && events_.begin()->first <= now) {
        const auto [flow, bytes, ping] = events_.begin()->second;
        events_.erase(events_.begin());
        if (ping > 0) {
          flows[flow].pacing.round_trip(ping, now);
          flows[flow].round_trips.push_back(now - ping);
        } else {
          flows[flow].arrived += bytes;
          REQUIRE(flows[flow].pacing.acknowledged(flows[flow].arrived, now));
        }
      }
    }
  }

  void count_from_now() {
    for (Flow& flow : flows) {
      flow.counted_from = flow.arrived;
      flow.round_trips.clear();
    }
    counting_since_ = now;
  }
  [[nodiscard]] double throughput(std::size_t flow) const {
    return static_cast<double>(flows[flow].arrived - flows[flow].counted_from) /
           (static_cast<double>(now - counting_since_) / us_per_s);
  }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (std::size_t i = 0; i < flows.size(); ++i)
      sum += throughput(i);
    return sum;
  }
  /// All but the slowest twentieth are below.
  [[nodiscard]] double round_trip_ms(std::size_t flow) const {
    std::vector<TimeUs> sorted = flows[flow].round_trips;
    REQUIRE(!sorted.empty());
    std::ranges::sort(sorted);
    return static_cast<double>(sorted[sorted.size() * 95 / 100]) / us_per_ms;
  }

  TimeUs now = us_per_s;
  double rate;

 private:
  struct Event {
    std::size_t flow;
    std::size_t bytes;
    TimeUs ping;
  };

  void pass(std::size_t flow, std::size_t bytes, TimeUs ping) {
    const auto took = static_cast<TimeUs>(static_cast<double>(bytes) / rate * us_per_s);
    free_at_ = std::max(free_at_, now) + took;
    events_.insert({free_at_ + round_trip_us_, Event{flow, bytes, ping}});
  }

  void send(Flow& flow) {
    if (now < flow.begins) return;
    const auto index = static_cast<std::size_t>(&flow - flows.data());
    if (now - flow.pinged >= ping_us || flow.pacing.take_ping_wish(now)) {
      flow.pinged = now;
      pass(index, 100, now);
    }
    while (flow.backlog && flow.pacing.open()) {
      const std::size_t bytes = flow.pacing.part_bytes();
      flow.pacing.sent(bytes, true, now);
      pass(index, bytes, 0);
    }
  }

  TimeUs round_trip_us_;
  TimeUs free_at_ = 0;
  TimeUs counting_since_ = 0;
  std::multimap<TimeUs, Event> events_;

 public:
  std::vector<Flow> flows;
};

/// No window but ZeroMQ's and the kernel's: what there was before.
struct Unpaced {
  void enable() {}
  [[nodiscard]] bool open() const { return sent_ - delivered_ < (std::size_t{2} << 20); }
  void sent(std::size_t bytes, bool, TimeUs) { sent_ += bytes; }
  [[nodiscard]] bool acknowledged(std::uint64_t total, TimeUs) {
    delivered_ = total;
    return true;
  }
  void round_trip(TimeUs, TimeUs) {}
  [[nodiscard]] bool take_ping_wish(TimeUs) { return false; }
  [[nodiscard]] std::size_t part_bytes() const { return std::size_t{64} << 10; }
  std::uint64_t sent_ = 0, delivered_ = 0;
};

/// The larger of three times the idle round trip and 15 ms more.
double bound_ms(TimeUs idle_us) {
  const double idle_ms = static_cast<double>(idle_us) / us_per_ms;
  return std::max(3 * idle_ms, idle_ms + 15);
}

}  // namespace

TEST_CASE("pacing: a link is filled, and its queue stays short") {
  struct Link {
    double mbit_s;
    TimeUs round_trip_us;
  };
  for (const Link& link : {Link{1, 30'000}, Link{10, 300}, Link{50, 500}, Link{50, 20'000}, Link{50, 100'000},
                           Link{1000, 200}, Link{1000, 50'000}, Link{8000, 100}}) {
    CAPTURE(link.mbit_s, link.round_trip_us);
    Played<Pacing> played(link.mbit_s * mbit, link.round_trip_us, 1);
    played.run(5 * us_per_s);
    played.count_from_now();
    played.run(17 * us_per_s);
    CHECK(played.total() > 0.93 * played.rate);
    CHECK(played.flows[0].pacing.rate() == Approx(played.rate).epsilon(0.05));
    CHECK(played.flows[0].pacing.goodput(played.now) == Approx(played.rate).epsilon(0.07));
    CHECK(played.flows[0].pacing.goodput(played.now + goodput_lifetime_us) == 0);
    // 4 KiB, the least that is sent at once, take 33 ms at 1 Mbit/s.
    CHECK(played.round_trip_ms(0) < bound_ms(link.round_trip_us) + 8 * 1024 / played.rate * 1e3);
  }
}

TEST_CASE("pacing: negative control: without it the queue is seconds long") {
  Played<Unpaced> played(50 * mbit, 20'000, 1);
  played.run(10 * us_per_s);
  CHECK(played.round_trip_ms(0) > 300);
}

TEST_CASE("pacing: an idle link's first megabytes find the rate within a second") {
  for (const TimeUs round_trip_us : {TimeUs{300}, TimeUs{20'000}, TimeUs{100'000}}) {
    CAPTURE(round_trip_us);
    Played<Pacing> played(50 * mbit, round_trip_us, 1);
    played.run(2 * us_per_s);
    CHECK(played.flows[0].pacing.rate() > 0.7 * played.rate);
  }
}

TEST_CASE("pacing: follows a bottleneck that changes") {
  Played<Pacing> played(50 * mbit, 20'000, 1);
  played.run(6 * us_per_s);
  played.rate = 10 * mbit;
  played.run(10 * us_per_s);
  played.count_from_now();
  played.run(16 * us_per_s);
  CHECK(played.total() > 0.93 * played.rate);
  CHECK(played.round_trip_ms(0) < bound_ms(20'000));
  played.rate = 50 * mbit;
  played.run(20 * us_per_s);
  played.count_from_now();
  played.run(30 * us_per_s);
  CHECK(played.total() > 0.93 * played.rate);
  CHECK(played.round_trip_ms(0) < bound_ms(20'000));
}

TEST_CASE("pacing: senders share a bottleneck, also one that comes later, and the queue stays short") {
  for (const std::size_t count : {std::size_t{2}, std::size_t{4}}) {
    CAPTURE(count);
    Played<Pacing> played(50 * mbit, 20'000, count);
    for (std::size_t i = 1; i < count; ++i)
      played.flows[i].begins = static_cast<TimeUs>(2 + i) * us_per_s;
    played.run(40 * us_per_s);
    played.count_from_now();
    played.run(60 * us_per_s);
    CHECK(played.total() > 0.93 * played.rate);
    for (std::size_t i = 0; i < count; ++i) {
      CAPTURE(i);
      CHECK(played.throughput(i) > 0.6 * played.rate / static_cast<double>(count));
      CHECK(played.round_trip_ms(i) < bound_ms(20'000));
    }
  }
}

TEST_CASE("pacing: one that has little to send does not take the link for slow") {
  Pacing pacing;
  pacing.enable();
  TimeUs now = us_per_s;
  std::uint64_t sent = 0;
  const auto exchange = [&](std::size_t bytes, TimeUs took) {
    pacing.sent(bytes, false, now);
    sent += bytes;
    now += took;
    REQUIRE(pacing.acknowledged(sent, now));
  };
  exchange(60'000, 1'000);  // 60 MB/s
  CHECK(pacing.rate() == Approx(60e6));
  for (int i = 0; i < 1000; ++i) {
    now += 100'000;
    exchange(1'000, 1'000);
  }
  CHECK(pacing.rate() == Approx(60e6));
  CHECK(pacing.goodput(now) == 0);  // never seen with more waiting
  CHECK(pacing.window_bytes() >= first_window_bytes);
}

TEST_CASE("pacing: a receiver that stops reading stops the sender, within the window") {
  Pacing pacing;
  pacing.enable();
  std::size_t under_way = 0;
  while (pacing.open()) {
    pacing.sent(pacing.part_bytes(), true, us_per_s);
    under_way += pacing.part_bytes();
    REQUIRE(under_way <= most_window_bytes + pacing.part_bytes());
  }
  CHECK(under_way < 2 * first_window_bytes);
  CHECK_FALSE(pacing.open());
  REQUIRE(pacing.acknowledged(under_way, 100 * us_per_s));
  CHECK(pacing.open());
}

TEST_CASE("pacing: many small messages are bounded by their number") {
  Pacing pacing;
  pacing.enable();
  std::size_t count = 0;
  while (pacing.open() && count < 10 * most_under_way) {
    pacing.sent(10, true, us_per_s);
    ++count;
  }
  CHECK(count == most_under_way);
}

TEST_CASE("pacing: nothing is believed that was not sent, and nothing held until the other end acknowledges") {
  Pacing pacing;
  for (int i = 0; i < 10'000; ++i) {
    REQUIRE(pacing.open());
    pacing.sent(1 << 20, true, i);
  }
  CHECK_FALSE(pacing.acknowledged((std::uint64_t{10'000} << 20) + 1, us_per_s));
  pacing.enable();
  CHECK_FALSE(pacing.open());
  CHECK(pacing.acknowledged(std::uint64_t{10'000} << 20, us_per_s));
  CHECK(pacing.open());
}

TEST_CASE("pacing: what waits is bounded by about a second of the link") {
  Played<Pacing> slow(50 * mbit, 20'000, 1);
  slow.run(6 * us_per_s);
  const std::size_t most = std::size_t{64} << 20;
  CHECK(slow.flows[0].pacing.waiting_bytes(most) == Approx(50 * mbit).epsilon(0.1));
  CHECK(slow.flows[0].pacing.waiting_bytes(1 << 20) == 1 << 20);
  Played<Pacing> slower(1 * mbit, 20'000, 1);
  slower.run(6 * us_per_s);
  CHECK(slower.flows[0].pacing.waiting_bytes(most) == least_waiting_bytes);
  CHECK(Pacing().waiting_bytes(most) == most);
}
