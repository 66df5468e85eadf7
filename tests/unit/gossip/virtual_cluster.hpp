// Several replicas under virtual time, in one thread, from one seed: messages are delayed, repeated and lost with their
// link, tasks take time, clients step at their own pace. The decisions and the arithmetic are the shipped ones; only
// memory, clock and network are the test's.

#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <vector>

#include "gossip/joining.hpp"
#include "gossip/replica.hpp"

namespace gossamer::gossip::test {

inline NodeId node_id(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

struct ClusterOptions {
  std::size_t nodes = 4;
  std::size_t fragments = 2;
  std::size_t blocks = 2;  // a fragment
  TimeUs step_us = 2'000;
  TimeUs latency_us = 500;        // and up to twice that
  TimeUs task_us = 100;           // likewise
  double repeat_probability = 0;  // of a message arriving twice
  double full_probability = 0;    // of a link's queue having no room for a message
  bool learning = false;          // clients add noise to their models at every step
  double spread = 1.0;            // of the initial models
  ReplicaOptions replica = {};
  std::uint64_t seed = 1;
};

class Cluster {
 public:
  struct Client {
    std::vector<float> x;                                  // the live model
    std::vector<std::vector<std::vector<float>>> buffers;  // [fragment][3][elements]
    std::uint64_t clock = 0;
    TimeUs step_us = 0;
    bool stalled = false;
  };
  struct Node {
    NodeId id;
    Client client;
    std::unique_ptr<ExchangeCounter> counter;
    std::unique_ptr<Replica> replica;
    bool alive = true;
  };

  explicit Cluster(ClusterOptions options) : options_(options), random_(options.seed) {
    for (std::size_t i = 0; i < options_.nodes; ++i)
      add_node(i);
    for (std::size_t i = 0; i < options_.nodes; ++i) {
      for (std::size_t j = 0; j < options_.nodes; ++j) {
        if (i != j) connect(i, j);
      }
    }
    for (std::size_t i = 0; i < options_.nodes; ++i) {
      at(static_cast<TimeUs>(random_.below(1000)), [this, i] { step(i); });
      at(static_cast<TimeUs>(random_.below(1000)), [this, i] { tick(i); });
    }
  }

  void run_until(TimeUs end_us) {
    while (!events_.empty() && events_.top().time_us <= end_us) {
      Event event = events_.top();
      events_.pop();
      now_us_ = event.time_us;
      event.action();
    }
    now_us_ = end_us;
  }
  [[nodiscard]] TimeUs now_us() const { return now_us_; }
  [[nodiscard]] Node& node(std::size_t i) { return nodes_[i]; }
  [[nodiscard]] std::size_t elements() const { return options_.fragments * options_.blocks * block_elements; }

  /// The live model of a node with the corrections on their way to it.
  [[nodiscard]] std::vector<double> whole(std::size_t i) const {
    const Node& node = nodes_[i];
    std::vector<double> sum(node.client.x.begin(), node.client.x.end());
    const std::size_t size = options_.blocks * block_elements;
    for (std::uint32_t f = 0; f < options_.fragments; ++f) {
      const FragmentView y = node.replica->buffers(f).y();
      for (std::size_t e = 0; e < size; ++e) {
        if (y.correction != nullptr) sum[f * size + e] += y.correction[e];
        if (y.pending != nullptr) sum[f * size + e] += y.pending[e];
      }
    }
    return sum;
  }
  /// Sum over living nodes, element by element.
  [[nodiscard]] std::vector<double> total() const {
    std::vector<double> sum(elements());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].alive) continue;
      const auto mine = whole(i);
      for (std::size_t e = 0; e < sum.size(); ++e)
        sum[e] += mine[e];
    }
    return sum;
  }
  /// Mean square distance of the living nodes from their mean, an element.
  [[nodiscard]] double distance() const {
    auto mean = total();
    double alive = 0;
    for (const Node& node : nodes_)
      alive += node.alive ? 1 : 0;
    for (double& value : mean)
      value /= alive;
    double square = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].alive) continue;
      const auto mine = whole(i);
      for (std::size_t e = 0; e < mine.size(); ++e)
        square += (mine[e] - mean[e]) * (mine[e] - mean[e]);
    }
    return square / static_cast<double>(elements()) / alive;
  }
  template <class Member>
  [[nodiscard]] std::uint64_t count(Member member) const {
    std::uint64_t sum = 0;
    for (const Node& node : nodes_)
      sum += node.replica->counters().*member;
    return sum;
  }

  /// The transport between two nodes breaks: what is in flight is lost; both hear of it.
  void break_link(std::size_t i, std::size_t j) {
    ++epoch_[{std::min(i, j), std::max(i, j)}];
    links_.erase({i, j});
    links_.erase({j, i});
    nodes_[i].replica->link_down(nodes_[j].id);
    nodes_[j].replica->link_down(nodes_[i].id);
  }
  void mend_link(std::size_t i, std::size_t j) {
    connect(i, j);
    connect(j, i);
  }
  void kill(std::size_t i) {
    nodes_[i].alive = false;
    for (std::size_t j = 0; j < nodes_.size(); ++j) {
      if (j == i || !nodes_[j].alive) continue;
      break_link(i, j);
      at(now_us_ + 20'000, [this, i, j] {
        Replica::Actions actions;
        nodes_[j].replica->node_dead(nodes_[i].id, now_us_, actions);
        perform(j, actions);
      });
    }
  }
  /// From here on every message arrives once, and links have room.
  void calm() { options_.repeat_probability = options_.full_probability = 0; }
  /// Node i asks node j for a fragment, as a joiner does.
  void pull(std::size_t i, std::size_t j, std::uint32_t f) { deliver(i, j, PullRequest{{7, 9}, f}); }
  void drain(std::size_t i) {
    Replica::Actions actions;
    nodes_[i].replica->set_state(ReplicaState::draining, actions);
    perform(i, actions);
  }
  /// Lets every exchange under way come to its end and starts no new one.
  void settle() {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      drain(i);
    run_until(now_us_ + 200'000);
  }
  /// Hears every message that is delivered: (from, to, message).
  std::function<void(std::size_t, std::size_t, const Message&)> on_message;
  /// Called after each turn of a node's replica.
  std::function<void(std::size_t)> after_turn;

 private:
  struct Event {
    TimeUs time_us;
    std::uint64_t sequence;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return time_us != other.time_us ? time_us > other.time_us : sequence > other.sequence;
    }
  };

  void at(TimeUs time_us, std::function<void()> action) { events_.push({time_us, sequence_++, std::move(action)}); }
  TimeUs about(TimeUs mean_us) {
    return mean_us + static_cast<TimeUs>(random_.below(static_cast<std::uint64_t>(mean_us) + 1));
  }

  void add_node(std::size_t i) {
    Node node;
    node.id = node_id(static_cast<std::uint8_t>(i + 1));
    node.client.step_us = options_.step_us;
    const std::size_t size = options_.blocks * block_elements;
    std::vector<FragmentBuffers> fragments;
    for (std::size_t f = 0; f < options_.fragments; ++f) {
      auto& three = node.client.buffers.emplace_back(3, std::vector<float>(size));
      for (std::size_t e = 0; e < size; ++e) {
        three[0][e] = static_cast<float>(options_.spread * (random_.uniform() - 0.5));
        node.client.x.push_back(three[0][e]);
      }
      fragments.emplace_back(std::array<float*, 3>{three[0].data(), three[1].data(), three[2].data()}, options_.blocks,
                             FragmentParts{.generation = 1});
    }
    node.counter = std::make_unique<ExchangeCounter>(1);
    const JobInfo description{
        .job = {7, 9}, .name = "test", .fragments = static_cast<std::uint32_t>(options_.fragments)};
    node.replica = std::make_unique<Replica>(options_.replica, node.id, description, std::move(fragments),
                                             *node.counter, Random(random_.next()));
    Replica::Actions actions;
    node.replica->set_state(ReplicaState::running, actions);
    nodes_.push_back(std::move(node));
  }

  void connect(std::size_t i, std::size_t j) {
    links_.insert({i, j});
    Replica::Actions actions;
    nodes_[i].replica->link_up(nodes_[j].id, actions);
    perform(i, actions);
  }

  std::size_t index_of(const NodeId& id) const { return id.bytes[0] - 1U; }

  void deliver(std::size_t from, std::size_t to, const Message& message) {
    const auto link = std::pair(std::min(from, to), std::max(from, to));
    if (!links_.contains({from, to}) || random_.uniform() < options_.full_probability) {
      nodes_[from].replica->send_failed(nodes_[to].id, message, now_us_);
      return;
    }
    const auto epoch = epoch_[link];
    const int copies = random_.uniform() < options_.repeat_probability ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      at(now_us_ + about(options_.latency_us), [this, from, to, link, epoch, message] {
        if (epoch_[link] != epoch || !nodes_[to].alive) return;
        if (on_message) on_message(from, to, message);
        receive(from, to, message);
      });
    }
  }

  void receive(std::size_t from, std::size_t to, const Message& message) {
    Replica& replica = *nodes_[to].replica;
    const NodeId& sender = nodes_[from].id;
    Replica::Actions actions;
    if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
      replica.request(sender, ExchangeRequest(*request), now_us_, actions);
    } else if (const auto* reply = std::get_if<ExchangeReply>(&message)) {
      replica.reply(sender, ExchangeReply(*reply), now_us_, actions);
    } else if (const auto* ack = std::get_if<ExchangeAck>(&message)) {
      replica.acknowledged(sender, *ack);
    } else if (const auto* info = std::get_if<JobInfo>(&message)) {
      replica.info(sender, *info);
    } else if (const auto* pull = std::get_if<PullRequest>(&message)) {
      replica.pull(sender, *pull, now_us_, actions);
    }
    perform(to, actions);
  }

  /// Runs a task's arithmetic now and reports its result later, as a worker would.
  template <class Task, class Report>
  void work(std::size_t i, std::uint32_t f, Task&& task, Report report) {
    auto result = std::make_shared<decltype(std::move(task).run(nodes_[i].replica->held(f)))>(
        std::move(task).run(nodes_[i].replica->held(f)));
    at(now_us_ + about(options_.task_us), [this, i, result, report] {
      if (!nodes_[i].alive) return;
      Replica::Actions actions;
      report(*nodes_[i].replica, std::move(*result), actions);
      perform(i, actions);
    });
  }

  void perform(std::size_t i, Replica::Actions& actions) {
    for (auto& [f, task] : actions.encode) {
      work(i, f, std::move(task), [this, f = f](Replica& r, EncodeTask::Result&& result, Replica::Actions& out) {
        r.encoded(f, std::move(result), now_us_, out);
      });
    }
    for (auto& run : actions.answer) {
      work(i, run.fragment, std::move(run.task),
           [this, f = run.fragment, to = run.to](Replica& r, AnswerTask::Result&& result, Replica::Actions& out) {
             r.answered(f, to, std::move(result), now_us_, out);
           });
    }
    for (auto& [f, task] : actions.conclude) {
      work(i, f, std::move(task), [this, f = f](Replica& r, ConcludeTask::Result&& result, Replica::Actions& out) {
        r.concluded(f, std::move(result), now_us_, out);
      });
    }
    for (const std::uint32_t f : actions.fold) {
      nodes_[i].replica->buffers(f).fold();
      at(now_us_ + about(options_.task_us), [this, i, f] {
        Replica::Actions out;
        nodes_[i].replica->folded(f, now_us_, out);
        perform(i, out);
      });
    }
    for (const auto& [f, to] : actions.snapshot)
      take_snapshot(i, f, index_of(to));
    for (auto& send : actions.send)
      deliver(i, index_of(send.to), send.message);
    if (after_turn) after_turn(i);
  }

  void take_snapshot(std::size_t i, std::uint32_t f, std::size_t to) {
    std::vector<float> values(options_.blocks * block_elements);
    const bool finite = sum(nodes_[i].replica->buffers(f).y(), options_.blocks, values.data());
    PullReply reply{.job = {7, 9}, .fragment = f, .reason = finite ? RefuseReason::none : RefuseReason::quarantined};
    if (finite) reply.values = Bytes::adopt(std::move(values));
    at(now_us_ + about(options_.task_us), [this, i, f, to, reply] {
      if (!nodes_[i].alive) return;
      Replica::Actions out;
      deliver(i, to, reply);
      nodes_[i].replica->snapshot_taken(f, now_us_, out);
      perform(i, out);
    });
  }

  /// One training step: collect what is due, publish, learn.
  void step(std::size_t i) {
    Node& node = nodes_[i];
    if (!node.alive) return;
    at(now_us_ + about(node.client.step_us), [this, i] { step(i); });
    if (node.client.stalled) return;
    node.client.clock += 1;
    node.replica->set_clock(node.client.clock);
    if (options_.learning) {
      for (float& value : node.client.x)
        value += static_cast<float>(0.01 * (random_.uniform() - 0.5));
    }
    Replica::Actions actions;
    const std::size_t size = options_.blocks * block_elements;
    for (std::uint32_t f = 0; f < options_.fragments; ++f) {
      const FragmentParts parts = node.replica->buffers(f).parts();
      if (!parts.with_client) continue;
      float* x = node.client.x.data() + f * size;
      for (std::size_t e = 0; e < size; ++e) {
        if (parts.correction_valid) x[e] += node.client.buffers[f][parts.correction][e];
        node.client.buffers[f][parts.spare()][e] = x[e];
      }
      node.replica->published(f, parts.generation + 1, node.client.clock, now_us_, actions);
    }
    perform(i, actions);
  }

  void tick(std::size_t i) {
    if (!nodes_[i].alive) return;
    Replica::Actions actions;
    nodes_[i].replica->tick(now_us_, actions);
    perform(i, actions);
    at(now_us_ + 2'000, [this, i] { tick(i); });
  }

  ClusterOptions options_;
  Random random_;
  std::vector<Node> nodes_;
  std::set<std::pair<std::size_t, std::size_t>> links_;
  std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> epoch_;
  std::priority_queue<Event> events_;
  std::uint64_t sequence_ = 0;
  TimeUs now_us_ = 0;
};

}  // namespace gossamer::gossip::test
