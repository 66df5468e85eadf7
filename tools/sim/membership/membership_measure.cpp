#include "tools/sim/membership/membership_measure.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "tools/sim/commands.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t most_nodes = 100'000;
constexpr double least_starts_per_s = 5;
constexpr double start_duration_s = 60;
constexpr int eigenvalue_iterations = 200;
constexpr double pause_seconds[2] = {10, 60};
constexpr double partition_seconds = 60;
constexpr TimeUs look_interval_us = us_per_s / 2;
constexpr double wrong_share_allowed = 1e-3;

TimeUs seconds(double value) {
  return static_cast<TimeUs>(value * us_per_s);
}
double in_seconds(TimeUs value_us) {
  return static_cast<double>(value_us) / us_per_s;
}

void median_and_worst(std::vector<double> values, double (&result)[2]) {
  if (values.empty()) {
    result[0] = result[1] = -1;
    return;
  }
  std::ranges::sort(values);
  result[0] = values[values.size() / 2];
  result[1] = values.back();
}

/// Takes one cluster through all measurements.
class Measurement {
 public:
  explicit Measurement(const MembershipPlan& plan)
      : plan_(plan),
        patience_(plan.options.probe_interval_us),
        network_(schedule_, gossip::Random(plan.seed + 1), plan.nodes, membership_network(plan.profile)),
        cluster_(schedule_, network_, plan.options, plan.seed + 2),
        random_(plan.seed + 3) {
    cluster_.on_event = [this](std::size_t node, const gossip::Membership::Event& event) { note(node, event); };
  }

  MembershipFigures run() {
    figures_.nodes = plan_.nodes;
    settle();
    rest();
    for (std::size_t i = 0; i < plan_.crashes && plan_.nodes > 2; ++i)
      crash_one();
    median_and_worst(suspected_s_, figures_.suspected_s);
    median_and_worst(declared_s_, figures_.declared_s);
    median_and_worst(known_s_, figures_.known_s);
    look_at_views();
    if (plan_.with_loss) lose();
    for (int which = 0; which < 2 && plan_.with_pauses; ++which)
      pause_some(which);
    if (plan_.with_partition) divide();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    figures_.memory_mib = static_cast<double>(usage.ru_maxrss) / 1024;
    return figures_;
  }

 private:
  using Change = gossip::Membership::Change;

  void note(std::size_t node, const gossip::Membership::Event& event) {
    const std::size_t subject = MembershipCluster::number(event.node);
    if (event.change != Change::died && event.change != Change::suspected) return;
    if (cluster_.running(subject)) {
      (event.change == Change::died ? died_ : suspected_).insert(subject);
    } else if (subject == crashed_) {
      if (event.change == Change::suspected) {
        if (first_suspected_us_ < 0) first_suspected_us_ = schedule_.now_us();
        return;
      }
      if (first_declared_us_ < 0) first_declared_us_ = schedule_.now_us();
      last_known_us_ = schedule_.now_us();
      knowing_ += !knows_[node];
      knows_[node] = true;
    }
  }

  /// Runs until `done` or until the time is over; returns whether it was done.
  template <class Done>
  bool run_until(double limit_s, Done done) {
    const TimeUs end_us = schedule_.now_us() + seconds(limit_s);
    while (schedule_.now_us() < end_us) {
      schedule_.run_until(std::min(end_us, schedule_.now_us() + look_interval_us));
      if (done()) return true;
    }
    return false;
  }
  void run_for(double duration_s) { schedule_.run_until(schedule_.now_us() + seconds(duration_s)); }
  /// Converts a limit for the LAN profile: it is as many times longer as this profile's probes are slower.
  [[nodiscard]] double patient(double lan_s) const { return lan_s * in_seconds(patience_); }

  [[nodiscard]] std::size_t running() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < cluster_.nodes(); ++i)
      count += cluster_.running(i);
    return count;
  }
  [[nodiscard]] bool partial() const {
    for (std::size_t i = 0; i < cluster_.nodes(); ++i) {
      if (cluster_.running(i)) return cluster_.membership(i).partial();
    }
    return false;
  }
  [[nodiscard]] bool one_cluster() const { return cluster_.largest_component() == running(); }
  [[nodiscard]] bool complete() const {
    return partial() ? one_cluster() && cluster_.one_sided_links() == 0 : cluster_.everybody_knows_everybody();
  }

  void settle() {
    const double rate = std::max(least_starts_per_s, static_cast<double>(plan_.nodes) / start_duration_s);
    cluster_.start_all(rate);
    run_for(static_cast<double>(plan_.nodes) / rate);
    const TimeUs begin_us = schedule_.now_us();
    if (run_until(patient(120), [&] { return complete(); })) {
      figures_.settle_s = in_seconds(schedule_.now_us() - begin_us);
    }
    run_for(patient(60));
    figures_.partial = partial();
    suspected_.clear();
    died_.clear();
  }

  /// The bytes that each node has sent since the beginning.
  [[nodiscard]] std::vector<double> bytes() const {
    std::vector<double> sent(plan_.nodes);
    for (std::size_t i = 0; i < sent.size(); ++i)
      sent[i] = static_cast<double>(network_.bytes_sent(i));
    return sent;
  }
  [[nodiscard]] double messages() const {
    double sum = 0;
    for (std::size_t i = 0; i < plan_.nodes; ++i)
      sum += static_cast<double>(network_.messages_sent(i));
    return sum;
  }

  void rest() {
    const std::vector<double> before = bytes();
    const double messages_before = messages();
    const std::clock_t begin = std::clock();  // processor time, so that the machine's other work does not count
    run_for(plan_.seconds);
    const double took_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    figures_.speed = plan_.seconds / std::max(took_s, 1e-9);
    const std::vector<double> after = bytes();
    for (std::size_t i = 0; i < plan_.nodes; ++i) {
      const double rate = (after[i] - before[i]) / plan_.seconds;
      figures_.bytes_per_s += rate / static_cast<double>(plan_.nodes);
      figures_.bytes_per_s_most = std::max(figures_.bytes_per_s_most, rate);
    }
    figures_.messages_per_s = (messages() - messages_before) / plan_.seconds / static_cast<double>(plan_.nodes);
    figures_.suspected_rest = suspected_.size();
    figures_.died_rest = died_.size();
  }

  [[nodiscard]] std::size_t any_running() {
    while (true) {
      const std::size_t node = random_.below(plan_.nodes);
      if (cluster_.running(node)) return node;
    }
  }

  void crash_one() {
    crashed_ = any_running();
    knows_.assign(plan_.nodes, false);
    knowing_ = 0;
    first_suspected_us_ = first_declared_us_ = last_known_us_ = -1;
    const TimeUs begin_us = schedule_.now_us();
    cluster_.crash(crashed_);
    const std::size_t others = running();
    const bool known = run_until(patient(180), [&] { return knowing_ == others; });
    if (first_suspected_us_ >= 0) suspected_s_.push_back(in_seconds(first_suspected_us_ - begin_us));
    if (first_declared_us_ >= 0) declared_s_.push_back(in_seconds(first_declared_us_ - begin_us));
    if (known) known_s_.push_back(in_seconds(last_known_us_ - begin_us));
    const double share = static_cast<double>(knowing_) / static_cast<double>(others);
    figures_.known_share = crashes_++ == 0 ? share : std::min(figures_.known_share, share);
    run_for(patient(10));
    cluster_.start(crashed_, {any_running(), any_running(), any_running()});
    crashed_ = plan_.nodes;
    run_for(patient(20));
  }

  void look_at_views() {
    if (plan_.nodes < 3) return;
    figures_.eigenvalue = cluster_.walk_eigenvalue(eigenvalue_iterations);
    figures_.degree[0] = static_cast<double>(plan_.nodes);
    for (std::size_t i = 0; i < plan_.nodes; ++i) {
      const auto degree = static_cast<double>(cluster_.membership(i).members().size());
      figures_.degree[0] = std::min(figures_.degree[0], degree);
      figures_.degree[1] += degree / static_cast<double>(plan_.nodes);
      figures_.degree[2] = std::max(figures_.degree[2], degree);
    }
  }

  void lose() {
    PathConditions conditions = membership_network(plan_.profile);
    conditions.loss = plan_.loss;
    network_.set_default(conditions);
    suspected_.clear();
    died_.clear();
    const std::vector<double> before = bytes();
    run_for(plan_.seconds);
    const std::vector<double> after = bytes();
    figures_.bytes_per_s_loss = 0;
    for (std::size_t i = 0; i < plan_.nodes; ++i)
      figures_.bytes_per_s_loss += (after[i] - before[i]) / plan_.seconds / static_cast<double>(plan_.nodes);
    figures_.suspected_loss = suspected_.size();
    figures_.died_loss = died_.size();
    network_.set_default(membership_network(plan_.profile));
    run_for(patient(60));
  }

  void pause_some(int which) {
    const std::size_t count = std::max<std::size_t>(1, plan_.nodes / (plan_.nodes > 1'000 ? 100 : 10));
    std::set<std::size_t> chosen;
    while (chosen.size() < std::min(count, plan_.nodes))
      chosen.insert(any_running());
    died_.clear();
    for (const std::size_t node : chosen)
      cluster_.pause(node, seconds(pause_seconds[which]));
    run_for(pause_seconds[which] + patient(60));
    figures_.paused = chosen.size();
    for (const std::size_t node : died_)
      ++(chosen.contains(node) ? figures_.paused_died : figures_.healthy_died)[which];
    run_for(patient(60));
  }

  /// The share of ordered pairs of nodes in which the first takes the second for dead.
  [[nodiscard]] double wrong_share() const {
    const auto nodes = static_cast<double>(running());
    return static_cast<double>(cluster_.wrongly_gone()) / (nodes * (nodes - 1));
  }

  void divide() {
    if (plan_.nodes < 4) return;
    figures_.joined_s = figures_.converged_s = -1;
    std::vector<int> group(plan_.nodes);
    for (std::size_t i = 0; i < group.size(); ++i)
      group[i] = static_cast<int>(i % 2);
    network_.partition(group);
    run_for(partition_seconds);
    network_.heal();
    const TimeUs begin_us = schedule_.now_us();
    if (run_until(patient(120), [&] { return one_cluster(); })) {
      figures_.joined_s = in_seconds(schedule_.now_us() - begin_us);
    }
    if (run_until(patient(120), [&] { return complete() && wrong_share() < wrong_share_allowed; })) {
      figures_.converged_s = in_seconds(schedule_.now_us() - begin_us);
    }
    run_for(patient(30));
    figures_.wrong_share = wrong_share();
  }

  const MembershipPlan& plan_;
  TimeUs patience_;
  Schedule schedule_;
  Network network_;
  MembershipCluster cluster_;
  gossip::Random random_;
  MembershipFigures figures_;

  std::set<std::size_t> suspected_;  ///< live nodes that were suspected
  std::set<std::size_t> died_;
  std::size_t crashed_ = ~std::size_t{0};
  std::vector<bool> knows_;
  std::size_t knowing_ = 0;
  std::size_t crashes_ = 0;
  TimeUs first_suspected_us_ = -1;
  TimeUs first_declared_us_ = -1;
  TimeUs last_known_us_ = -1;
  std::vector<double> suspected_s_;
  std::vector<double> declared_s_;
  std::vector<double> known_s_;
};

}  // namespace

gossip::MembershipOptions membership_profile(const std::string& name) {
  if (name == "lan") return gossip::MembershipOptions::lan();
  if (name == "wan") return gossip::MembershipOptions::wan();
  throw UsageError("there is no profile '" + name + "'; there are lan and wan");
}

PathConditions membership_network(const std::string& profile) {
  if (profile == "wan") return {.latency_us = 40'000, .jitter_us = 60'000};
  return {.latency_us = 250, .jitter_us = 500};
}

MembershipFigures measure_membership(const MembershipPlan& plan) {
  if (plan.nodes == 0) throw UsageError("a cluster has at least one node");
  if (plan.nodes > most_nodes) throw UsageError("at most " + std::to_string(most_nodes) + " nodes are simulated");
  if (!(plan.loss >= 0 && plan.loss < 1)) throw UsageError("loss is a probability below 1");
  if (!(plan.seconds > 0)) throw UsageError("the time measured is above 0 seconds");
  return Measurement(plan).run();
}

}  // namespace gossamer::sim
