#include "tools/sim/network.hpp"

#include <memory>

#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

constexpr TimeUs held_back_latencies = 10;

/// The time when `bytes` have passed a channel that is free from `free_us` on. `free_us` becomes that time.
TimeUs pass(TimeUs begin_us, TimeUs& free_us, double bytes_per_s, std::size_t bytes) {
  if (bytes_per_s <= 0) return begin_us;
  const double seconds = static_cast<double>(bytes) / bytes_per_s;
  free_us = std::max(begin_us, free_us) + static_cast<TimeUs>(seconds * us_per_s);
  return free_us;
}

}  // namespace

PathConditions with_faults(const PathConditions& path, gossip::Random& random, double most) {
  PathConditions faulty = path;
  faulty.loss = most * random.uniform();
  faulty.duplicate = most * random.uniform();
  faulty.reorder = most * random.uniform();
  return faulty;
}

Network::Network(Schedule& schedule, gossip::Random random, std::size_t nodes, PathConditions conditions)
    : schedule_(schedule), random_(random), nodes_(nodes), default_(conditions) {}

std::size_t Network::add_node() {
  nodes_.emplace_back();
  return nodes_.size() - 1;
}

const PathConditions& Network::path(std::size_t from, std::size_t to) const {
  if (own_.empty()) return default_;
  const auto found = own_.find({from, to});
  return found == own_.end() ? default_ : found->second;
}

void Network::set_node_rate(std::size_t node, double up_bytes_per_s, double down_bytes_per_s) {
  nodes_[node].up_bytes_per_s = up_bytes_per_s;
  nodes_[node].down_bytes_per_s = down_bytes_per_s;
}

bool Network::can_dial(std::size_t from, std::size_t to) const {
  return !nodes_[to].behind_nat && connected(from, to) && connected(to, from);
}

void Network::partition(const std::vector<int>& group) {
  GOSSAMER_CHECK(group.size() == nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    nodes_[i].group = group[i];
}

void Network::heal() {
  for (Node& node : nodes_)
    node.group = 0;
}

bool Network::connected(std::size_t from, std::size_t to) const {
  return nodes_[from].group == nodes_[to].group && path(from, to).loss < 1;
}

TimeUs Network::leave(std::size_t from, std::size_t to, std::size_t bytes, const PathConditions& path) {
  TimeUs time_us = pass(schedule_.now_us(), nodes_[from].up_free_us, nodes_[from].up_bytes_per_s, bytes);
  if (path.bytes_per_s > 0) time_us = pass(time_us, path_free_us_[{from, to}], path.bytes_per_s, bytes);
  return pass(time_us, nodes_[to].down_free_us, nodes_[to].down_bytes_per_s, bytes);
}

int Network::send(std::size_t from, std::size_t to, std::size_t bytes, std::function<void()> deliver) {
  const PathConditions& conditions = path(from, to);
  nodes_[from].bytes_sent += bytes;
  ++nodes_[from].messages_sent;
  if (!connected(from, to) || (conditions.loss > 0 && chance(random_, conditions.loss))) {
    ++lost_;
    return 0;
  }
  const TimeUs left_us = leave(from, to, bytes, conditions);
  const int copies = conditions.duplicate > 0 && chance(random_, conditions.duplicate) ? 2 : 1;
  if (copies > 1) ++duplicated_;
  auto shared = std::make_shared<std::function<void()>>(std::move(deliver));
  for (int copy = 0; copy < copies; ++copy) {
    TimeUs arrival_us = left_us + conditions.latency_us;
    if (conditions.jitter_us > 0) arrival_us += between(random_, 0, conditions.jitter_us);
    if (conditions.reorder > 0 && chance(random_, conditions.reorder)) {
      ++held_back_;
      arrival_us += between(random_, 0, held_back_latencies * conditions.latency_us);
    }
    schedule_.at(arrival_us, [this, from, to, shared] {
      if (connected(from, to)) {
        (*shared)();
      } else {
        ++lost_;
      }
    });
  }
  return copies;
}

}  // namespace gossamer::sim
