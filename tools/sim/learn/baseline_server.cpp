// A parameter server whose workers never wait: each trains on its own copy, pushes its progress, and takes over the
// server's value when it arrives, plus what it has trained meanwhile. The server adds every progress with a weight.

#include <deque>
#include <optional>

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

class Server {
 public:
  explicit Server(const Population& nodes) : value_(nodes.models.front()), workers_(nodes.size()) {
    for (Worker& worker : workers_)
      worker.counted = value_;
  }

  /// One round is one step of the worker whose time has come.
  void operator()(Population& nodes) {
    const auto next = std::min_element(nodes.time_s.begin(), nodes.time_s.end());
    const auto i = static_cast<std::size_t>(next - nodes.time_s.begin());
    Worker& worker = workers_[i];
    arrive(nodes.experiment, *next);
    if (worker.reply && worker.reply->arrives_s <= *next) take_over(nodes.models[i], worker);
    nodes.train(i);
    const bool waits = worker.reply || worker.under_way;
    if (++worker.steps < nodes.experiment.period_steps || waits) return;
    worker.steps = 0;
    worker.under_way = true;
    worker.pushed = nodes.models[i];
    Push push{
        .arrives_s = nodes.time_s[i] + nodes.message_s(nodes.model_bytes()), .from = i, .progress = worker.pushed};
    for (std::size_t e = 0; e < value_.size(); ++e)
      push.progress[e] -= worker.counted[e];
    worker.counted = worker.pushed;
    nodes.bytes[i] += nodes.model_bytes();
    pushes_.push_back(std::move(push));
  }

 private:
  struct Reply {
    double arrives_s;
    std::vector<float> value;
  };
  struct Push {
    double arrives_s;
    std::size_t from;
    std::vector<float> progress;
  };
  struct Worker {
    std::vector<float> counted;  ///< its model, without the progress that is not pushed yet
    std::vector<float> pushed;   ///< its model when it last pushed
    std::size_t steps = 0;       ///< steps since the last push
    std::uint64_t saw = 0;       ///< the server's count of pushes in the value that it took over last
    bool under_way = false;      ///< its push is on the way
    std::optional<Reply> reply;
  };

  /// Adds the pushes that have arrived at the server by now, in the order of their arrival.
  void arrive(const Experiment& experiment, double now_s) {
    const auto earlier = [](const Push& a, const Push& b) { return a.arrives_s < b.arrives_s; };
    for (auto push = std::ranges::min_element(pushes_, earlier); push != pushes_.end() && push->arrives_s <= now_s;
         push = std::ranges::min_element(pushes_, earlier)) {
      Worker& worker = workers_[push->from];
      const double age = experiment.replica.age_damping ? 1 + static_cast<double>(count_ - worker.saw) : 1;
      const auto weight = static_cast<float>(experiment.outer_rate / age);
      for (std::size_t e = 0; e < value_.size(); ++e)
        value_[e] += weight * push->progress[e];
      worker.saw = ++count_;
      worker.under_way = false;
      const double way_s = static_cast<double>(experiment.path.latency_us) / us_per_s;
      worker.reply = {.arrives_s = push->arrives_s + way_s, .value = value_};
      pushes_.erase(push);
    }
  }

  static void take_over(std::vector<float>& model, Worker& worker) {
    for (std::size_t e = 0; e < model.size(); ++e) {
      const float shift = worker.reply->value[e] - worker.pushed[e];
      model[e] += shift;
      worker.counted[e] += shift;
    }
    worker.reply.reset();
  }

  std::vector<float> value_;
  std::vector<Worker> workers_;
  std::deque<Push> pushes_;  // pushes on their way
  std::uint64_t count_ = 0;  // pushes that have arrived
};

}  // namespace

Baseline make_server(const Population& nodes) {
  return Server(nodes);
}

}  // namespace gossamer::sim
