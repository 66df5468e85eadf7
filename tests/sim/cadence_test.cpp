// How the period follows the network: replicas over links of every speed, and over links that change. The shipped
// window (peer/links/pacing.hpp) runs between them and measures the rate of which the cadence takes a share.

#include <deque>
#include <map>

#include "catch.hpp"
#include "peer/links/pacing.hpp"
#include "tools/sim/cluster.hpp"

namespace gossamer::sim {
namespace {

constexpr double mbit = 1e6 / 8;
constexpr std::size_t elements = 16 * 512;
constexpr std::size_t fragment_payload = 512 + 4;  // about the bytes of an exchange in q8
constexpr std::size_t bulk_from = 1'000;
constexpr std::size_t ack_bytes = 100;
constexpr TimeUs look_us = 1'000;
constexpr TimeUs ping_us = 500'000;
constexpr TimeUs clock_begin_us = us_per_s;  // the time at the beginning: 0 means never to a window
constexpr double share = 0.5;

/// Bulk between two nodes, in one direction: it waits until the window lets its next part go.
class Line {
 public:
  Line(Schedule& schedule, Network& network, std::size_t from, std::size_t to)
      : schedule_(schedule), network_(network), from_(from), to_(to) {
    pacing_.enable();
  }

  void send(std::size_t bytes, std::function<void()> arrive) {
    waiting_bytes_ += bytes;
    waiting_.push_back({bytes, std::move(arrive)});
    pump();
  }

  void look() {
    pump();
    if (now() - pinged_at_ < ping_us && !pacing_.take_ping_wish(now())) return;
    pinged_at_ = now();
    network_.send(from_, to_, ack_bytes, [this, sent = now()] {
      network_.send(to_, from_, ack_bytes, [this, sent] { pacing_.round_trip(sent, now()); });
    });
  }

  /// Computes the load as peer/overlay/sender.cpp does.
  [[nodiscard]] gossip::LinkLoad load() const {
    if (!pacing_.measured() || pacing_.rate() <= 0) return {};
    const double takes_us = static_cast<double>(waiting_bytes_) / pacing_.rate() * us_per_s;
    return {.backlog_us = static_cast<TimeUs>(takes_us), .bytes_per_s = pacing_.rate()};
  }
  [[nodiscard]] double goodput() const { return pacing_.goodput(now()); }

 private:
  struct Waiting {
    std::size_t bytes;
    std::function<void()> arrive;
  };

  [[nodiscard]] TimeUs now() const { return clock_begin_us + schedule_.now_us(); }

  void pump() {
    while (!waiting_.empty() && pacing_.open() && pacing_.opens_at() <= now()) {
      Waiting& first = waiting_.front();
      const std::size_t part = std::min(first.bytes, pacing_.part_bytes());
      first.bytes -= part;
      waiting_bytes_ -= part;
      std::function<void()> arrive;
      if (first.bytes == 0) {
        arrive = std::move(first.arrive);
        waiting_.pop_front();
      }
      pacing_.sent(part, !waiting_.empty(), now());
      network_.send(from_, to_, part, [this, part, arrive = std::move(arrive)] {
        arrived_ += part;
        network_.send(to_, from_, ack_bytes, [this, total = arrived_, received_at = now()] {
          REQUIRE(pacing_.acknowledged(total, now(), received_at));
          pump();
        });
        if (arrive) arrive();
      });
    }
  }

  Schedule& schedule_;
  Network& network_;
  std::size_t from_;
  std::size_t to_;
  peer::Pacing pacing_;
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::uint64_t arrived_ = 0;
  TimeUs pinged_at_ = 0;
};

/// Replicas that all have links to each other, over lines of one rate.
class World {
 public:
  World(std::size_t nodes, double fragment_bytes, double bytes_per_s)
      : scale_(fragment_bytes / static_cast<double>(fragment_payload)),
        network_(schedule_, gossip::Random(1), nodes, path(bytes_per_s)),
        cluster_({.elements = elements,
                  .replica = {.period_us = 1'000},
                  .task_us = 10,
                  .task_bytes_per_s = 1e13,  // fast, so that even links of 100 Gbit/s are the slow part
                  .byte_scale = scale_},
                 schedule_, network_) {
    cluster_.transport = [this](std::size_t from, std::size_t to, std::size_t bytes, std::function<void()> arrive) {
      if (bytes < bulk_from) return network_.send(from, to, bytes, std::move(arrive));
      line(from, to).send(bytes, std::move(arrive));
      return 1;
    };
    for (std::size_t i = 0; i < nodes; ++i) {
      cluster_.add_node(std::vector<float>(elements, 1));
      cluster_.start_daemon(i, false);
    }
    cluster_.link_all();
    look();
  }

  void set_rate(double bytes_per_s) { network_.set_default(path(bytes_per_s)); }
  void run(TimeUs duration_us) { cluster_.run_until(schedule_.now_us() + duration_us); }
  [[nodiscard]] std::uint64_t bytes_sent(std::size_t i) const { return network_.bytes_sent(i); }
  [[nodiscard]] TimeUs period_us(std::size_t i) const { return cluster_.node(i).replica->pace().period_us(); }

 private:
  static PathConditions path(double bytes_per_s) { return {.latency_us = 200, .bytes_per_s = bytes_per_s}; }

  Line& line(std::size_t from, std::size_t to) {
    auto& line = lines_[{from, to}];
    if (!line) line = std::make_unique<Line>(schedule_, network_, from, to);
    return *line;
  }

  /// Tells each replica what is known of its links, as the daemon's loop does. Rates are scaled to the small model's
  /// bytes.
  void look() {
    for (std::size_t i = 0; i < cluster_.size(); ++i) {
      gossip::Replica& replica = *cluster_.node(i).replica;
      double capacity = 0;
      for (std::size_t j = 0; j < cluster_.size(); ++j) {
        if (i == j) continue;
        line(i, j).look();
        gossip::LinkLoad load = line(i, j).load();
        load.bytes_per_s /= scale_;
        replica.set_link(id_of(j), load);
        capacity = std::max(capacity, line(i, j).goodput());
      }
      replica.set_capacity(capacity / scale_);
    }
    schedule_.after(look_us, [this] { look(); });
  }

  double scale_;  ///< the bytes of a message on the wire over those of the small model
  Schedule schedule_;
  Network network_;
  Cluster cluster_;
  std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<Line>> lines_;
};

/// Checks the share that is used of each node's link, over several windows in a row.
void check_use(World& world, double bytes_per_s) {
  constexpr int windows = 4;
  constexpr TimeUs window_us = 5 * us_per_s;
  double sum[2] = {};
  for (int window = 0; window < windows; ++window) {
    const std::uint64_t before[2] = {world.bytes_sent(0), world.bytes_sent(1)};
    world.run(window_us);
    for (std::size_t i = 0; i < 2; ++i) {
      const double used = static_cast<double>(world.bytes_sent(i) - before[i]) / 5 / bytes_per_s;
      CAPTURE(window, i, used, world.period_us(i));
      CHECK(used < 2 * share);
      CHECK(used > share / 2);
      sum[i] += used / windows;
    }
  }
  CAPTURE(sum[0], sum[1]);
  for (const double used : sum)
    CHECK(used == Approx(share).epsilon(0.2));
}

}  // namespace

TEST_CASE("Gossip takes its share of a link, whatever the link carries") {
  const double rate = GENERATE(1.0, 10.0, 50.0, 1e3, 1e4, 1e5) * mbit;
  CAPTURE(rate / mbit);
  World world(2, rate / 4, rate);
  world.run(10 * us_per_s);
  check_use(world, rate);
}

TEST_CASE("Gossip takes its share ten seconds after the link has changed", "[figures]") {
  const double slow = GENERATE(1.0, 50.0, 1e3) * mbit;
  const double factor = slow < 1e3 * mbit ? GENERATE(10.0, 100.0, 1000.0) : GENERATE(10.0, 100.0);
  CAPTURE(slow / mbit, factor);
  World world(2, slow / 4, slow);
  world.run(10 * us_per_s);
  for (const double rate : {slow * factor, slow, slow * factor}) {
    CAPTURE(rate / mbit);
    world.set_rate(rate);
    world.run(10 * us_per_s);
    check_use(world, rate);
  }
}

}  // namespace gossamer::sim
