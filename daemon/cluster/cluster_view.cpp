#include "daemon/cluster/cluster_view.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "daemon/config/config.hpp"
#include "daemon/report/state_name.hpp"

namespace gossamer::daemon {

namespace {

/// Makes a number fit for a message: finite and not negative.
float sound(double value) {
  const auto number = static_cast<float>(value);
  return std::isfinite(number) && number > 0 ? number : 0;
}

}  // namespace

JobSummary summary_of(const JobStatus& job) {
  return {.name = job.job,
          .state = job.state == "joining"    ? ReplicaState::joining
                   : job.state == "draining" ? ReplicaState::draining
                                             : ReplicaState::running,
          .clock = job.clock,
          .consensus = sound(job.consensus),
          .tracer_round = job.tracer_rounds.empty() ? 0 : job.tracer_rounds.back(),
          .mixing_per_s = sound(job.mixing_per_s)};
}

ClusterView::ClusterView(asio::io_context& loop, const NodeId& self, ClusterViewHost host, gossip::Random random)
    : host_(std::move(host)), table_(self), random_(random), timer_(loop) {}

void ClusterView::start() {
  timer_.expires_after(std::chrono::microseconds(gossip::summary_period_us));
  timer_.async_wait([this](std::error_code error) {
    if (error) return;
    speak();
    start();
  });
}

void ClusterView::speak() {
  const std::vector<NodeId> neighbours = host_.neighbours();
  if (neighbours.empty()) return;
  const NodeId& to = neighbours[random_.below(neighbours.size())];
  host_.send(to, table_.say(host_.own(), host_.now_us(), random_));
}

std::vector<SummaryStatus> ClusterView::statuses() const {
  std::vector<SummaryStatus> statuses;
  for (const NodeSummary& summary : table_.others(host_.now_us())) {
    SummaryStatus status;
    status.node = summary.node.full();
    status.name = summary.name;
    status.age_s = static_cast<double>(summary.age_ms) / 1e3;
    status.neighbours = summary.neighbours;
    status.goodput_mbit_s = static_cast<double>(summary.goodput_bytes_s) / bytes_per_mbit;
    for (const std::uint32_t node : summary.linked)
      status.linked.push_back(fmt::format("{:08x}", node));
    for (const JobSummary& job : summary.jobs)
      status.jobs.push_back(
          {job.name, state_name(job.state), job.clock, job.consensus, job.tracer_round, job.mixing_per_s});
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace gossamer::daemon
