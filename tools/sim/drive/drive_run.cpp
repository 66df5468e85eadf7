#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sdk/layout/shared_memory.hpp"
#include "tools/sim/cluster.hpp"
#include "tools/sim/commands.hpp"
#include "tools/sim/drive/drive.hpp"
#include "tools/sim/learn/gossip_run.hpp"

namespace gossamer::sim {

namespace {

bool is_finite(std::span<const float> model) {
  return std::ranges::all_of(model, [](float value) { return std::isfinite(value); });
}

/// The common part of both kinds of run: samples, faults in their order, evaluations.
class DriveRun {
 public:
  DriveRun(const Drive& drive, const Program& program) : drive_(drive), program_(program) {}
  virtual ~DriveRun() = default;

  LearningRun run() {
    LearningRun result;
    result.records.push_back(measure());
    std::size_t fault = 0;
    for (std::size_t done = 0; done < drive_.evaluations; ++done) {
      const double share = static_cast<double>(done + 1) / static_cast<double>(drive_.evaluations);
      const auto until_samples = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(drive_.samples)));
      const TimeUs until_us = drive_.end_us == 0 ? std::numeric_limits<TimeUs>::max()
                                                 : std::llround(share * static_cast<double>(drive_.end_us));
      while (now_us() < until_us && (drive_.samples == 0 || samples_ < until_samples)) {
        TimeUs turn_us = std::min(until_us, now_us() + drive_.step_us / 4 + 1);
        if (fault < drive_.faults.size()) turn_us = std::min(turn_us, drive_.faults[fault].at_us);
        advance(std::max(turn_us, now_us()));
        check_progress();
        while (fault < drive_.faults.size() && drive_.faults[fault].at_us <= now_us()) {
          check_alive(drive_.faults[fault]);
          happens(drive_.faults[fault++]);
        }
      }
      result.records.push_back(measure());
    }
    finish(result);
    return result;
  }

 protected:
  [[nodiscard]] virtual TimeUs now_us() const = 0;
  virtual void advance(TimeUs until_us) = 0;
  [[nodiscard]] virtual bool is_alive(std::size_t node) const = 0;
  virtual void happens(const NodeFault& fault) = 0;
  [[nodiscard]] virtual Record measure() const = 0;
  virtual void finish(LearningRun& run) const = 0;

  /// Throws if nobody trains any more in a run without a time limit, because only its samples would end it.
  void check_progress() {
    if (samples_ != progress_samples_) {
      progress_samples_ = samples_;
      progress_us_ = now_us();
    }
    if (drive_.end_us == 0 && now_us() - progress_us_ > std::max(most_idle_us, most_idle_steps * drive_.step_us))
      throw UsageError("nobody trains any more: say how many seconds are to be simulated, or let a node come back");
  }
  /// Throws unless the fault fits the node: a dead node can only start, and a living one cannot.
  void check_alive(const NodeFault& fault) const {
    const bool is = is_alive(fault.node);
    if (is != (fault.kind == FaultKind::start)) return;
    throw UsageError(fmt::format("a fault: node {} is {} at {:g} s", fault.node, is ? "alive" : "dead",
                                 static_cast<double>(fault.at_us) / us_per_s));
  }
  /// The share of the time that all nodes have trained. The jitter of their steps may take it just above 1.
  [[nodiscard]] double computing(double steps_s, const LearningRun& run) const {
    return std::min(1.0, steps_s / (run.records.back().time_s * static_cast<double>(drive_.nodes)));
  }
  /// Trains the node, unless the run has all its samples.
  [[nodiscard]] std::uint64_t train(std::size_t node, std::span<float> model) {
    if (drive_.samples != 0 && samples_ >= drive_.samples) return 0;
    const std::uint64_t used = program_.train(node, model);
    samples_ += used;
    return used;
  }

  const Drive& drive_;
  const Program& program_;
  std::uint64_t samples_ = 0;

 private:
  static constexpr TimeUs most_idle_us = 600 * us_per_s;
  static constexpr TimeUs most_idle_steps = 1'000;
  std::uint64_t progress_samples_ = 0;
  TimeUs progress_us_ = 0;
};

/// Gossip on the shipped replicas. The method `alone` is the same cluster without links.
class GossipDrive : public DriveRun {
 public:
  GossipDrive(const Drive& drive, const Program& program)
      : DriveRun(drive, program),
        network_(schedule_, gossip::Random(drive.seed + 1), drive.nodes, drive.path),
        cluster_({.elements = drive.elements,
                  .fragment_elements = layout::usual_fragment_elements(drive.elements),
                  .buffers = drive.buffers,
                  .replica = drive.replica,
                  .step_us = drive.step_us,
                  .step_jitter = drive.step_jitter,
                  .tick_us = std::clamp<TimeUs>(drive.step_us / 4, 1, 2 * us_per_ms),
                  .serve_bytes_per_s = memory_bytes_per_s,
                  .byte_scale = drive.byte_scale,
                  .seed = drive.seed + 2},
                 schedule_, network_),
        graph_(drive.nodes > 1 && drive.method == DriveMethod::gossip ? make_graph(drive.topology, drive.nodes)
                                                                      : Graph(drive.nodes)) {
    const std::vector<float> initial = program.start(0);
    for (std::size_t i = 0; i < drive.nodes; ++i) {
      if (i > 0) (void)program.start(i);
      if (drive.node_bytes_per_s > 0) network_.set_node_rate(i, drive.node_bytes_per_s, drive.node_bytes_per_s);
      cluster_.add_node(
          initial, [this, i](std::span<float> model) { return train(i, model); }, drive.speed(i));
      cluster_.start_daemon(i, false);
      cluster_.node(i).replica->set_capacity(seen_capacity());
    }
    for (std::size_t i = 0; i < drive.nodes; ++i)
      link(i);
  }

 private:
  /// The memory bandwidth of a client that serves fragments.
  static constexpr double memory_bytes_per_s = 1e10;

  [[nodiscard]] TimeUs now_us() const override { return schedule_.now_us(); }
  void advance(TimeUs until_us) override { cluster_.run_until(until_us); }
  [[nodiscard]] bool is_alive(std::size_t node) const override { return cluster_.client_alive(node); }

  /// The link capacity for the replica, which counts the bytes of the small model and not of the large one.
  [[nodiscard]] double seen_capacity() const { return drive_.node_bytes_per_s / drive_.byte_scale; }
  /// Links the node to all its living neighbours.
  void link(std::size_t i) {
    for (const std::size_t j : graph_[i])
      if (!cut_.contains(i) && !cut_.contains(j)) cluster_.link(i, j);
  }
  void unlink(std::size_t i) {
    for (const std::size_t j : graph_[i])
      cluster_.unlink(i, j);
    const std::uint64_t cuts = ++losses_[i];
    schedule_.after(drive_.detection_us, [this, i, cuts] {
      if (losses_[i] != cuts || (cluster_.client_alive(i) && !cut_.contains(i))) return;
      for (const std::size_t j : graph_[i]) {
        if (cluster_.daemon_alive(j)) cluster_.declare_dead(j, i);
        if (cluster_.daemon_alive(i)) cluster_.declare_dead(i, j);
      }
    });
  }

  void happens(const NodeFault& fault) override {
    const std::size_t i = fault.node;
    switch (fault.kind) {
      case FaultKind::kill:
        cluster_.kill_node(i);
        unlink(i);
        return program_.stop(i);
      case FaultKind::start:
        ++losses_[i];
        cluster_.start_client(i, program_.start(i));
        cluster_.node(i).client.stalled = false;
        cluster_.start_daemon(i, true);
        cluster_.node(i).replica->set_capacity(seen_capacity());
        return link(i);
      case FaultKind::pause:
        cluster_.node(i).client.stalled = true;
        return cluster_.pause(i);
      case FaultKind::resume:
        cluster_.node(i).client.stalled = false;
        return cluster_.resume(i);
      case FaultKind::cut:
        cut_.insert(i);
        return unlink(i);
      case FaultKind::mend:
        cut_.erase(i);
        return link(i);
      case FaultKind::speed:
        cluster_.node(i).client.speed = fault.speed;
        return;
    }
  }

  /// The models of living clients with the corrections under way to them. Exchanges conserve only this sum.
  [[nodiscard]] std::vector<std::vector<float>> models() const {
    std::vector<std::vector<float>> whole;
    for (std::size_t i = 0; i < drive_.nodes; ++i) {
      if (!cluster_.client_alive(i)) continue;
      const auto values = cluster_.whole(i);
      whole.emplace_back(values.begin(), values.end());
    }
    // Models with NaN or infinity are left out, unless all are such.
    if (std::ranges::any_of(whole, is_finite)) std::erase_if(whole, std::not_fn(is_finite));
    return whole;
  }

  [[nodiscard]] Record measure() const override {
    const auto whole = models();
    if (whole.empty()) throw UsageError("all nodes are dead");
    Record record = evaluate(program_, std::vector<std::span<const float>>(whole.begin(), whole.end()));
    record.time_s = static_cast<double>(now_us()) / us_per_s;
    record.samples = samples_;
    double bytes = 0;
    for (std::size_t i = 0; i < drive_.nodes; ++i) {
      bytes += static_cast<double>(network_.bytes_sent(i));
      if (cluster_.client_alive(i))
        record.clocks.push_back(cluster_.node(i).client.clock_base + cluster_.node(i).client.clock);
    }
    record.bytes = bytes / static_cast<double>(drive_.nodes);
    return record;
  }

  void finish(LearningRun& run) const override {
    std::vector<std::span<const float>> live;
    double steps_s = 0;
    for (std::size_t i = 0; i < drive_.nodes; ++i) {
      const auto& client = cluster_.node(i).client;
      if (client.alive) live.emplace_back(client.model);
      steps_s += static_cast<double>(client.steps) * static_cast<double>(drive_.step_us) / us_per_s / client.speed;
    }
    evaluate_nodes(program_, live, run);
    run.computing = computing(steps_s, run);
    add_counters(cluster_, run);
  }

  Schedule schedule_;
  Network network_;
  Cluster cluster_;
  Graph graph_;
  std::set<std::size_t> cut_;
  std::map<std::size_t, std::uint64_t> losses_;
};

/// The exact mean of the models after every few steps: all wait for the slowest, and for the ring of an all-reduce.
class AverageDrive : public DriveRun {
 public:
  AverageDrive(const Drive& drive, const Program& program) : DriveRun(drive, program), random_(drive.seed + 2) {
    const std::vector<float> initial = program.start(0);
    for (std::size_t i = 0; i < drive.nodes; ++i) {
      if (i > 0) (void)program.start(i);
      nodes_.push_back({.model = initial, .speed = drive.speed(i)});
    }
  }

 private:
  struct Node {
    std::vector<float> model;
    double speed = 1;
    bool alive = true;
    bool waits = false;  ///< it is paused or cut off, and everybody waits for it
    std::uint64_t clock = 0;
    std::uint64_t steps = 0;
  };

  [[nodiscard]] TimeUs now_us() const override { return now_us_; }
  [[nodiscard]] bool is_alive(std::size_t node) const override { return nodes_[node].alive; }

  void advance(TimeUs until_us) override {
    const auto alive = static_cast<std::size_t>(std::ranges::count(nodes_, true, &Node::alive));
    if (alive == 0) throw UsageError("all nodes are dead");
    const bool waits = std::ranges::any_of(nodes_, [](const Node& node) { return node.alive && node.waits; });
    if (waits || alive < drive_.average_members) {
      now_us_ = until_us;
      return;
    }
    TimeUs longest_us = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (!node.alive) continue;
      TimeUs took_us = 0;
      for (std::uint64_t step = 0; step < drive_.average_steps; ++step) {
        node.clock += train(i, node.model);
        ++node.steps;
        const double stretch = 1 + drive_.step_jitter * (2 * random_.uniform() - 1);
        took_us += std::llround(static_cast<double>(drive_.step_us) / node.speed * stretch);
      }
      longest_us = std::max(longest_us, took_us);
    }
    average();
    now_us_ += longest_us + all_reduce_us(alive);
  }

  /// Models with NaN or infinity are left out of the mean, as in the daemon, unless all are such.
  void average() {
    auto models = live();
    if (std::ranges::any_of(models, is_finite)) std::erase_if(models, std::not_fn(is_finite));
    const std::vector<float> mean = mean_of(models);
    for (Node& node : nodes_)
      if (node.alive) node.model = mean;
  }

  /// A ring: each node sends 2 (n − 1) / n of the model, in 2 (n − 1) steps (Patarasuk & Yuan 2009).
  [[nodiscard]] TimeUs all_reduce_us(std::size_t alive) {
    const auto n = static_cast<double>(alive);
    const double model_bytes = static_cast<double>(drive_.elements * sizeof(float)) * drive_.byte_scale;
    const double sent = 2 * (n - 1) / n * model_bytes;
    bytes_ += sent * n / static_cast<double>(nodes_.size());
    double rate = drive_.path.bytes_per_s;
    if (drive_.node_bytes_per_s > 0)
      rate = rate > 0 ? std::min(rate, drive_.node_bytes_per_s) : drive_.node_bytes_per_s;
    const double wire_us = rate > 0 ? sent / rate * us_per_s : 0;
    return std::llround(wire_us + 2 * (n - 1) * static_cast<double>(drive_.path.latency_us));
  }

  void happens(const NodeFault& fault) override {
    Node& node = nodes_[fault.node];
    switch (fault.kind) {
      case FaultKind::kill:  // the others notice after some time, and go on without the node
        node.alive = false;
        now_us_ += drive_.detection_us;
        return program_.stop(fault.node);
      case FaultKind::start: {
        (void)program_.start(fault.node);
        const auto other = std::ranges::find(nodes_, true, &Node::alive);
        if (other == nodes_.end()) throw UsageError("all nodes are dead");
        node.model = other->model;
        node.alive = true;
        node.waits = false;
        return;
      }
      case FaultKind::pause:
      case FaultKind::cut:
        node.waits = true;
        return;
      case FaultKind::resume:
      case FaultKind::mend:
        node.waits = false;
        return;
      case FaultKind::speed:
        node.speed = fault.speed;
        return;
    }
  }

  [[nodiscard]] std::vector<std::span<const float>> live() const {
    std::vector<std::span<const float>> models;
    for (const Node& node : nodes_)
      if (node.alive) models.emplace_back(node.model);
    return models;
  }

  [[nodiscard]] Record measure() const override {
    const auto models = live();
    if (models.empty()) throw UsageError("all nodes are dead");
    Record record = evaluate(program_, models);
    record.time_s = static_cast<double>(now_us_) / us_per_s;
    record.samples = samples_;
    record.bytes = bytes_;
    for (const Node& node : nodes_)
      if (node.alive) record.clocks.push_back(node.clock);
    return record;
  }

  void finish(LearningRun& run) const override {
    evaluate_nodes(program_, live(), run);
    double steps_s = 0;
    for (const Node& node : nodes_)
      steps_s += static_cast<double>(node.steps) * static_cast<double>(drive_.step_us) / us_per_s / node.speed;
    run.computing = computing(steps_s, run);
  }

  gossip::Random random_;
  std::vector<Node> nodes_;
  TimeUs now_us_ = 0;
  double bytes_ = 0;  ///< sent by a node, on average
};

}  // namespace

LearningRun run_drive(const Drive& drive, const Program& program) {
  if (drive.method == DriveMethod::average) return AverageDrive(drive, program).run();
  return GossipDrive(drive, program).run();
}

}  // namespace gossamer::sim
