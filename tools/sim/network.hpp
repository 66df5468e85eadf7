// A simulated network between numbered nodes: how long a message takes, whether it arrives, once or twice, and in which
// order. The two directions are independent: a node may reach another that cannot reach it.
//
// A message waits for the sender's uplink and the receiver's downlink if they are limited, and then for the pair's
// path; it then takes latency + jitter. The network does not look into messages, and draws from its own random source.
// One thread.

#pragma once

#include <map>
#include <optional>
#include <vector>

#include "gossip/random.hpp"
#include "tools/sim/schedule.hpp"

namespace gossamer::sim {

/// The conditions of one direction between two nodes.
struct PathConditions {
  TimeUs latency_us = 500;
  TimeUs jitter_us = 0;    ///< added, uniform in [0, jitter]; larger than the gap between messages, it reorders them
  double loss = 0;         ///< probability that a message does not arrive
  double duplicate = 0;    ///< probability that it arrives twice
  double reorder = 0;      ///< probability that it is held back by up to 10 latencies
  double bytes_per_s = 0;  ///< the path's rate; 0: not limited

  friend bool operator==(const PathConditions&, const PathConditions&) = default;
};

/// The path with random loss, repetition and disorder, each of them up to `most`.
[[nodiscard]] PathConditions with_faults(const PathConditions& path, gossip::Random& random, double most);

class Network {
 public:
  Network(Schedule& schedule, gossip::Random random, std::size_t nodes, PathConditions conditions);

  [[nodiscard]] std::size_t nodes() const { return nodes_.size(); }
  std::size_t add_node();

  /// Sets the conditions of all pairs that have none of their own.
  void set_default(const PathConditions& conditions) { default_ = conditions; }
  void set_path(std::size_t from, std::size_t to, const PathConditions& conditions) { own_[{from, to}] = conditions; }
  void clear_paths() { own_.clear(); }
  [[nodiscard]] const PathConditions& path(std::size_t from, std::size_t to) const;
  /// Sets a node's total rates of sending and receiving; 0: not limited.
  void set_node_rate(std::size_t node, double up_bytes_per_s, double down_bytes_per_s);

  /// A node behind a NAT cannot be dialled; two such nodes cannot have a link.
  void set_behind_nat(std::size_t node, bool behind) { nodes_[node].behind_nat = behind; }
  [[nodiscard]] bool behind_nat(std::size_t node) const { return nodes_[node].behind_nat; }
  [[nodiscard]] bool can_dial(std::size_t from, std::size_t to) const;
  [[nodiscard]] bool can_link(std::size_t i, std::size_t j) const { return can_dial(i, j) || can_dial(j, i); }

  /// Lets nothing pass between nodes of different groups. `group[i]` is node i's group.
  void partition(const std::vector<int>& group);
  void heal();
  [[nodiscard]] bool connected(std::size_t from, std::size_t to) const;

  /// Sends `bytes` and calls `deliver` at each arrival (0, 1 or 2 times). Returns the number of arrivals scheduled. A
  /// message is lost if the path is cut at its departure or at its arrival.
  int send(std::size_t from, std::size_t to, std::size_t bytes, std::function<void()> deliver);

  /// A node's totals since the beginning; messages that were lost on the way count as sent.
  [[nodiscard]] std::uint64_t bytes_sent(std::size_t node) const { return nodes_[node].bytes_sent; }
  [[nodiscard]] std::uint64_t messages_sent(std::size_t node) const { return nodes_[node].messages_sent; }
  [[nodiscard]] std::uint64_t lost() const { return lost_; }
  [[nodiscard]] std::uint64_t duplicated() const { return duplicated_; }
  [[nodiscard]] std::uint64_t held_back() const { return held_back_; }  ///< messages delayed to arrive late

 private:
  struct Node {
    double up_bytes_per_s = 0;
    double down_bytes_per_s = 0;
    TimeUs up_free_us = 0;
    TimeUs down_free_us = 0;
    bool behind_nat = false;
    int group = 0;
    std::uint64_t bytes_sent = 0;
    std::uint64_t messages_sent = 0;
  };

  [[nodiscard]] TimeUs leave(std::size_t from, std::size_t to, std::size_t bytes, const PathConditions& path);

  Schedule& schedule_;
  gossip::Random random_;
  std::vector<Node> nodes_;
  PathConditions default_;
  std::map<std::pair<std::size_t, std::size_t>, PathConditions> own_;
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> path_free_us_;
  std::uint64_t lost_ = 0;
  std::uint64_t duplicated_ = 0;
  std::uint64_t held_back_ = 0;
};

}  // namespace gossamer::sim
