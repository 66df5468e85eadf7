// Tests the window over a fake network. Senders with an endless backlog, or with a little now and then, share one
// bottleneck with delays before and after it. The window must fill the bottleneck, keep the queue short, follow
// changes, and share. Then two senders face each other, and the acknowledgements of each wait in the other's queue.

#include "peer/links/pacing.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "catch.hpp"
#include "gossip/random.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr double mbit = 1e6 / 8;
constexpr TimeUs ping_us = 500 * us_per_ms;
/// The difference between the clocks of the two ends.
constexpr TimeUs clock_offset_us = 1'000 * us_per_s;

/// A queue that empties at a rate. After it, a message takes half of the delay to the receiver, and the answer takes
/// the other half. `Sender` is Pacing, or a sender with a broken rule.
template <class Sender>
class FakeNetwork {
 public:
  struct Flow {
    Sender pacing;
    TimeUs begins = 0;
    bool backlog = true;
    std::uint64_t arrived = 0;  // bytes at the receiver
    TimeUs pinged = 0;
    std::vector<TimeUs> round_trips;
    std::uint64_t counted_from = 0;
    std::uint64_t held_behind_loss = 0;  // as the sender's kernel knows
  };

  FakeNetwork(double bytes_per_s, TimeUs round_trip_us, std::size_t flows)
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
      now = std::min({until, event, now + us_per_ms / 4});
      while (!events_.empty() && events_.begin()->first <= now) {
        const auto [flow, bytes, ping, received_at, held] = events_.begin()->second;
        events_.erase(events_.begin());
        if (received_at == 0) {
          flows[flow].held_behind_loss += bytes;
          if (tells_held) flows[flow].pacing.held_behind_loss(flows[flow].held_behind_loss, now);
        } else if (ping > 0) {
          flows[flow].pacing.round_trip(ping, now);
          flows[flow].round_trips.push_back(now - ping);
        } else {
          flows[flow].arrived += bytes;
          if (held) flows[flow].held_behind_loss -= bytes;
          if (held && tells_held) flows[flow].pacing.held_behind_loss(flows[flow].held_behind_loss, now);
          REQUIRE(flows[flow].pacing.acknowledged(flows[flow].arrived, now, tells_time ? received_at : 0));
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
  /// The 95th percentile of the round trips.
  [[nodiscard]] double round_trip_ms(std::size_t flow) const {
    std::vector<TimeUs> sorted = flows[flow].round_trips;
    REQUIRE(!sorted.empty());
    std::ranges::sort(sorted);
    return static_cast<double>(sorted[sorted.size() * 95 / 100]) / us_per_ms;
  }

  TimeUs now = us_per_s;
  double rate;
  bool tells_time = true;  ///< whether acknowledgements tell times
  double lost_share = 0;   ///< of the packets with bulk; each comes a round trip later, and all behind it wait for it
  bool tells_held = true;  ///< whether senders know what waits behind a loss

 private:
  struct Event {
    std::size_t flow;
    std::size_t bytes;
    TimeUs ping;
    TimeUs received_at;  // 0: it is held behind a loss
    bool was_held;
  };

  void pass(std::size_t flow, std::size_t bytes, TimeUs ping) {
    const auto took = static_cast<TimeUs>(static_cast<double>(bytes) / rate * us_per_s);
    free_at_ = std::max(free_at_, now) + took;
    const TimeUs way_us = round_trip_us_ / 2;
    const TimeUs arrives = free_at_ + way_us;
    if (ping > 0) {
      events_.insert({arrives + way_us, Event{flow, bytes, ping, arrives + clock_offset_us, false}});
      return;
    }
    const double packets = static_cast<double>(bytes) / 1460;
    const bool lost = lost_share > 0 && random_.uniform() < 1 - std::pow(1 - lost_share, packets);
    if (lost) held_until_ = std::max(held_until_, arrives + round_trip_us_);
    const TimeUs in_order = std::max(arrives, held_until_);
    const bool held = in_order > arrives && !lost;
    if (held) events_.insert({arrives + way_us, Event{flow, bytes, 0, 0, true}});
    events_.insert({in_order + way_us, Event{flow, bytes, 0, in_order + clock_offset_us, held}});
  }

  void send(Flow& flow) {
    if (now < flow.begins) return;
    const auto index = static_cast<std::size_t>(&flow - flows.data());
    if (now - flow.pinged >= ping_us || flow.pacing.take_ping_wish(now)) {
      flow.pinged = now;
      pass(index, 100, now);
    }
    while (flow.backlog && flow.pacing.open() && flow.pacing.opens_at() <= now) {
      const std::size_t bytes = flow.pacing.part_bytes();
      flow.pacing.sent(bytes, true, now);
      pass(index, bytes, 0);
    }
  }

  TimeUs round_trip_us_;
  TimeUs free_at_ = 0;
  TimeUs held_until_ = 0;
  gossip::Random random_{7};
  TimeUs counting_since_ = 0;
  std::multimap<TimeUs, Event> events_;

 public:
  std::vector<Flow> flows;
};

/// Negative control: a sender that only ZeroMQ's and the kernel's windows limit.
struct Unpaced {
  void enable() {}
  void held_behind_loss(std::uint64_t, TimeUs) {}
  [[nodiscard]] bool open() const { return sent_ - delivered_ < (std::size_t{2} << 20); }
  void sent(std::size_t bytes, bool, TimeUs) { sent_ += bytes; }
  [[nodiscard]] bool acknowledged(std::uint64_t total, TimeUs, TimeUs) {
    delivered_ = total;
    return true;
  }
  void round_trip(TimeUs, TimeUs) {}
  [[nodiscard]] bool take_ping_wish(TimeUs) { return false; }
  [[nodiscard]] TimeUs opens_at() const { return 0; }
  [[nodiscard]] std::size_t part_bytes() const { return std::size_t{64} << 10; }
  std::uint64_t sent_ = 0, delivered_ = 0;
};

/// The larger of three times the idle round trip and 15 ms more.
double bound_ms(TimeUs idle_us) {
  const double idle_ms = static_cast<double>(idle_us) / us_per_ms;
  return std::max(3 * idle_ms, idle_ms + 15);
}

/// The bound of a probe's delay. Each loaded direction adds the allowance, the constant, a part, and bursts (about a
/// twentieth of the window).
double short_bound_ms(TimeUs idle_us, double rate, int directions) {
  const double idle_ms = static_cast<double>(idle_us) / us_per_ms;
  const double busy_ms = std::min(rate / fast_bytes_per_s, 1.0) * most_allowed_us / us_per_ms;
  const double allowance_ms = std::max({idle_ms / 3, static_cast<double>(least_allowed_us) / us_per_ms, busy_ms});
  const double parts_ms = static_cast<double>(window_constant_bytes + least_part_bytes) / rate * 1e3;
  return idle_ms + directions * (1.2 * allowance_ms + static_cast<double>(part_us) / us_per_ms + parts_ms);
}

}  // namespace

TEST_CASE("pacing: a link is filled, and its queue stays short") {
  struct Link {
    double mbit_s;
    TimeUs round_trip_us;
  };
  const bool tells_time = GENERATE(true, false);
  for (const Link& link : {Link{1, 30'000}, Link{10, 300}, Link{50, 500}, Link{50, 20'000}, Link{50, 100'000},
                           Link{1000, 200}, Link{1000, 50'000}, Link{8000, 100}}) {
    CAPTURE(link.mbit_s, link.round_trip_us, tells_time);
    FakeNetwork<Pacing> network(link.mbit_s * mbit, link.round_trip_us, 1);
    network.tells_time = tells_time;
    network.run(5 * us_per_s);
    network.count_from_now();
    network.run(17 * us_per_s);
    CHECK(network.total() > 0.93 * network.rate);
    CHECK(network.flows[0].pacing.rate() == Approx(network.rate).epsilon(0.05));
    CHECK(network.flows[0].pacing.goodput(network.now) == Approx(network.rate).epsilon(0.07));
    CHECK(network.flows[0].pacing.goodput(network.now + goodput_lifetime_us) == 0);
    if (tells_time) CHECK(network.round_trip_ms(0) < short_bound_ms(link.round_trip_us, link.mbit_s * mbit, 1));
    // 4 KiB, the least that is sent at once, take 33 ms at 1 Mbit/s.
    CHECK(network.round_trip_ms(0) < bound_ms(link.round_trip_us) + 8 * 1024 / network.rate * 1e3);
  }
}

namespace {

/// Two nodes that send to each other over a link of one speed in both directions. Bulk and acknowledgements share the
/// queue of each direction. The nodes' loops pause now and then, so that messages are read late.
class Facing {
 public:
  struct End {
    Pacing pacing;
    TimeUs free_at = 0;     // when the queue before its direction is empty
    TimeUs away_until = 0;  // when its loop goes on
    TimeUs next_away = 0;
    TimeUs pinged = 0;
    std::uint64_t sent = 0, received = 0, counted_from = 0;
    std::vector<TimeUs> round_trips;
  };

  Facing(double bytes_per_s, TimeUs round_trip_us, double away_us, double away_every_us)
      : rate_(bytes_per_s), one_way_us_(round_trip_us / 2), away_us_(away_us), away_every_us_(away_every_us) {
    for (End& end : ends)
      end.pacing.enable();
  }

  void run(TimeUs until) {
    while (now < until) {
      for (const std::size_t end : {0, 1})
        turn(end);
      now = std::max(now, std::min({until, now + us_per_ms / 4, events_.empty() ? until : events_.begin()->first}));
      while (!events_.empty() && events_.begin()->first <= now) {
        const Event event = events_.begin()->second;
        events_.erase(events_.begin());
        if (ends[event.to].away_until > now) {
          events_.insert({ends[event.to].away_until, event});
        } else {
          take(event);
        }
      }
    }
  }

  void count_from_now() {
    since_ = now;
    for (End& end : ends) {
      end.counted_from = end.received;
      end.round_trips.clear();
    }
  }
  /// The share of the link that its bulk uses.
  [[nodiscard]] double use(const End& end) const {
    const End& other = &end == ends.data() ? ends[1] : ends[0];
    return static_cast<double>(other.received - other.counted_from) / static_cast<double>(now - since_) * us_per_s /
           rate_;
  }
  [[nodiscard]] static double round_trip_ms(End& end) {
    std::ranges::sort(end.round_trips);
    return static_cast<double>(end.round_trips.at(end.round_trips.size() * 95 / 100)) / us_per_ms;
  }

  TimeUs now = us_per_s;
  std::array<End, 2> ends;
  TimeUs second_begins = 0;
  bool tells_time = true;  ///< whether acknowledgements tell times

 private:
  struct Event {
    enum class Kind { bulk, ack, ping, pong } kind;
    std::size_t to;
    std::uint64_t bytes;
    TimeUs time;
  };

  void turn(std::size_t index) {
    End& end = ends[index];
    if (away_us_ > 0 && now >= end.next_away) {
      end.away_until = now + static_cast<TimeUs>(2 * away_us_ * random_.uniform());
      end.next_away = end.away_until + static_cast<TimeUs>(2 * away_every_us_ * random_.uniform());
    }
    if (end.away_until > now || (index == 1 && now < second_begins)) return;
    if (now - end.pinged >= ping_us / 10 || end.pacing.take_ping_wish(now)) {
      end.pinged = now;
      pass(index, 150, Event::Kind::ping, 0, now);
    }
    while (end.pacing.open() && end.pacing.opens_at() <= now) {
      const std::size_t bytes = end.pacing.part_bytes();
      end.pacing.sent(bytes, true, now);
      end.sent += bytes;
      pass(index, bytes, Event::Kind::bulk, end.sent, 0);
    }
  }

  void pass(std::size_t from, std::size_t size, Event::Kind kind, std::uint64_t bytes, TimeUs time) {
    End& end = ends[from];
    const auto took = static_cast<TimeUs>(static_cast<double>(size) / rate_ * us_per_s);
    end.free_at = std::max(end.free_at, now) + took;
    events_.insert({end.free_at + one_way_us_, Event{kind, 1 - from, bytes, time}});
  }

  void take(const Event& event) {
    End& end = ends[event.to];
    const TimeUs clock = now + (event.to == 0 ? 0 : clock_offset_us);
    switch (event.kind) {
      case Event::Kind::bulk:
        end.received = event.bytes;
        pass(event.to, 150, Event::Kind::ack, event.bytes, clock);
        break;
      case Event::Kind::ack:
        REQUIRE(end.pacing.acknowledged(event.bytes, now, tells_time ? event.time : 0));
        break;
      case Event::Kind::ping:
        pass(event.to, 150, Event::Kind::pong, 0, event.time);
        break;
      case Event::Kind::pong:
        end.pacing.round_trip(event.time, now);
        end.round_trips.push_back(now - event.time);
        break;
    }
  }

  double rate_;
  TimeUs one_way_us_;
  double away_us_;
  double away_every_us_;
  TimeUs since_ = 0;
  std::multimap<TimeUs, Event> events_;
  gossip::Random random_{1};
};

}  // namespace

TEST_CASE("pacing: two that face each other both fill their ways, and the queues stay short") {
  struct Link {
    double mbit_s;
    TimeUs round_trip_us;
    double away_us;  // how long both loops pause every ten milliseconds
  };
  for (const Link& link : {Link{50, 300, 0}, Link{50, 300, 300}, Link{50, 20'000, 300}, Link{50, 40'000, 1'000},
                           Link{200, 10'000, 300}, Link{1000, 300, 300}, Link{1000, 20'000, 1'000}}) {
    CAPTURE(link.mbit_s, link.round_trip_us, link.away_us);
    Facing facing(link.mbit_s * mbit, link.round_trip_us, link.away_us, 10 * us_per_ms);
    facing.run(6 * us_per_s);
    facing.count_from_now();
    facing.run(16 * us_per_s);
    for (Facing::End& end : facing.ends) {
      // Acknowledgements of 4 KiB parts take 4 %, and draining on a long way takes 2 %.
      CHECK(facing.use(end) > 0.88);
      const double away_ms = 4 * link.away_us / us_per_ms;
      CHECK(Facing::round_trip_ms(end) < short_bound_ms(link.round_trip_us, link.mbit_s * mbit, 2) + 2 * away_ms);
      if (link.round_trip_us >= 10'000) CHECK(Facing::round_trip_ms(end) < 2.2e-3 * link.round_trip_us);
    }
  }
}

TEST_CASE("pacing: who comes second leaves the first its way, as acknowledgements tell times") {
  const bool tells_time = GENERATE(true, false);
  Facing facing(50 * mbit, 300, 0, 0);
  facing.tells_time = tells_time;
  facing.second_begins = 5 * us_per_s;
  facing.run(12 * us_per_s);
  facing.count_from_now();
  facing.run(22 * us_per_s);
  if (tells_time) {
    for (Facing::End& end : facing.ends)
      CHECK(facing.use(end) > 0.93);
  } else {
    // Negative control: one sender takes the allowance of both, in the queue that delays the other's acknowledgements.
    CHECK(facing.use(facing.ends[0]) + facing.use(facing.ends[1]) < 1.8);
  }
}

TEST_CASE("pacing: a loop that is often away does not keep a link from being filled") {
  Facing facing(50 * mbit, 300, 4 * us_per_ms, 20 * us_per_ms);
  facing.run(6 * us_per_s);
  facing.count_from_now();
  facing.run(16 * us_per_s);
  for (Facing::End& end : facing.ends) {
    CHECK(facing.use(end) > 0.88);
    CHECK(end.pacing.allowance_us() > 5 * us_per_ms);
    CHECK(end.pacing.allowance_us() <= most_allowed_us);
  }
}

TEST_CASE("pacing: whatever times the other end tells, the window is bounded and the link goes on") {
  gossip::Random random(7);
  Pacing pacing;
  pacing.enable();
  TimeUs now = us_per_s;
  std::uint64_t sent = 0;
  constexpr TimeUs most = std::numeric_limits<TimeUs>::max() / 4;
  for (int i = 0; i < 20'000; ++i) {
    while (pacing.open() && pacing.opens_at() <= now) {
      const std::size_t bytes = pacing.part_bytes();
      pacing.sent(bytes, true, now);
      sent += bytes;
    }
    REQUIRE(pacing.opens_at() < now + us_per_s);
    REQUIRE(pacing.window_bytes() <= most_window_bytes);
    REQUIRE(pacing.part_bytes() <= most_window_bytes);
    REQUIRE((pacing.least_delay_us() > 0) == (i > 0));
    now += 1 + static_cast<TimeUs>(random.below(2'000));
    const TimeUs told = i % 3 == 0 ? 0 : i % 3 == 1 ? most : static_cast<TimeUs>(random.below(most));
    REQUIRE(pacing.acknowledged(sent, now, told));
  }
}

TEST_CASE("pacing: negative control: without it the queue is seconds long") {
  FakeNetwork<Unpaced> network(50 * mbit, 20'000, 1);
  network.run(10 * us_per_s);
  CHECK(network.round_trip_ms(0) > 300);
}

TEST_CASE("pacing: losses over a long way leave no gaps, and do not make the link seem faster") {
  constexpr TimeUs round_trip_us = 100 * us_per_ms;
  const double mbit_s = GENERATE(10, 30, 100);
  CAPTURE(mbit_s);
  const auto carried = [&](bool tells_held) {
    FakeNetwork<Pacing> network(mbit_s * mbit, round_trip_us, 1);
    network.lost_share = 0.001;
    network.tells_held = tells_held;
    network.run(15 * us_per_s);
    network.count_from_now();
    while (network.now < 45 * us_per_s) {
      network.run(network.now + 100 * us_per_ms);
      if (tells_held) CHECK(network.flows[0].pacing.rate() < 1.15 * network.rate);
    }
    if (tells_held) CHECK(network.round_trip_ms(0) < 1.5 * round_trip_us / us_per_ms);
    return network.total() / network.rate;
  };
  CHECK(carried(true) > 0.95);
  CHECK(carried(false) < 0.95);
}

TEST_CASE("pacing: an idle link's first megabytes find the rate within a second") {
  for (const TimeUs round_trip_us : {TimeUs{300}, TimeUs{20'000}, TimeUs{100'000}}) {
    CAPTURE(round_trip_us);
    FakeNetwork<Pacing> network(50 * mbit, round_trip_us, 1);
    network.run(2 * us_per_s);
    CHECK(network.flows[0].pacing.rate() > 0.7 * network.rate);
  }
}

TEST_CASE("pacing: follows a bottleneck that changes") {
  FakeNetwork<Pacing> network(50 * mbit, 20'000, 1);
  network.run(6 * us_per_s);
  network.rate = 10 * mbit;
  network.run(10 * us_per_s);
  network.count_from_now();
  network.run(16 * us_per_s);
  CHECK(network.total() > 0.93 * network.rate);
  CHECK(network.round_trip_ms(0) < bound_ms(20'000));
  network.rate = 50 * mbit;
  network.run(20 * us_per_s);
  network.count_from_now();
  network.run(30 * us_per_s);
  CHECK(network.total() > 0.93 * network.rate);
  CHECK(network.round_trip_ms(0) < bound_ms(20'000));
}

TEST_CASE("pacing: senders share a bottleneck, also one that comes later, and the queue stays short") {
  for (const std::size_t count : {std::size_t{2}, std::size_t{4}}) {
    CAPTURE(count);
    FakeNetwork<Pacing> network(50 * mbit, 20'000, count);
    for (std::size_t i = 1; i < count; ++i)
      network.flows[i].begins = static_cast<TimeUs>(2 + i) * us_per_s;
    network.run(40 * us_per_s);
    network.count_from_now();
    network.run(60 * us_per_s);
    CHECK(network.total() > 0.93 * network.rate);
    for (std::size_t i = 0; i < count; ++i) {
      CAPTURE(i);
      CHECK(network.throughput(i) > 0.6 * network.rate / static_cast<double>(count));
      CHECK(network.round_trip_ms(i) < bound_ms(20'000));
    }
  }
}

TEST_CASE("pacing: loads of a moment tell what the link carries, also after it has changed") {
  const double factor = GENERATE(0.01, 0.1, 10.0, 100.0);
  CAPTURE(factor);
  FakeNetwork<Pacing> network(50 * mbit, 1 * us_per_ms, 1);
  auto& flow = network.flows[0];
  const auto run = [&](TimeUs until) {
    while (network.now < until) {
      flow.backlog = true;
      network.run(network.now + 40 * us_per_ms);
      flow.backlog = false;
      network.run(network.now + 260 * us_per_ms);
    }
    return flow.pacing.goodput(network.now);
  };
  CHECK(run(10 * us_per_s) == Approx(network.rate).epsilon(0.1));
  network.rate *= factor;
  CHECK(run(20 * us_per_s) == Approx(network.rate).epsilon(0.2));
  network.rate /= factor;
  CHECK(run(30 * us_per_s) == Approx(network.rate).epsilon(0.2));
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
  CHECK(pacing.goodput(now) == 0);  // it was never seen with a backlog
  CHECK(pacing.window_bytes() >= first_window_bytes);
}

TEST_CASE("pacing: one that is seldom full keeps the rate it was seen with") {
  constexpr double rate = 1000 * mbit;
  FakeNetwork<Pacing> network(rate, 1 * us_per_ms, 1);
  auto& flow = network.flows[0];
  network.run(network.now + 3 * us_per_s);
  for (int burst = 0; burst < 8; ++burst) {
    flow.backlog = false;
    network.run(network.now + 900 * us_per_ms);
    flow.backlog = true;
    network.run(network.now + 15 * us_per_ms);  // too short for a mean
    CAPTURE(burst);
    CHECK(flow.pacing.rate() > rate / 2);
  }
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
  FakeNetwork<Pacing> slow(50 * mbit, 20'000, 1);
  slow.run(6 * us_per_s);
  const std::size_t most = std::size_t{64} << 20;
  CHECK(slow.flows[0].pacing.waiting_bytes(most) == Approx(50 * mbit).epsilon(0.1));
  CHECK(slow.flows[0].pacing.waiting_bytes(1 << 20) == 1 << 20);
  FakeNetwork<Pacing> slower(1 * mbit, 20'000, 1);
  slower.run(6 * us_per_s);
  CHECK(slower.flows[0].pacing.waiting_bytes(most) == least_waiting_bytes);
  CHECK(Pacing().waiting_bytes(most) == most);
}
