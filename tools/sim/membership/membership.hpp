// A cluster of gossip::Membership state machines on a simulated network. Nodes start, join, crash, pause, leave and are
// cut off; messages take the network's time and losses. Each node is ticked at its own phase.
//
// `on_event` and `on_view` are told what happens at a node; `tamper` may change or drop messages on their way. A node
// behind a NAT gets messages only from nodes that it has dialled or sent to. While a node is paused its messages wait,
// as in the buffers of its sockets. One thread.

#pragma once

#include <memory>

#include "gossip/membership/membership.hpp"
#include "tools/sim/network.hpp"

namespace gossamer::sim {

/// How many messages may wait for a paused node; further ones are lost.
inline constexpr std::size_t max_waiting_messages = 4'096;

class MembershipCluster {
 public:
  using Membership = gossip::Membership;

  /// The nodes are those of the network, and none of them runs yet. `schedule` and `network` outlive the object.
  MembershipCluster(Schedule& schedule, Network& network, gossip::MembershipOptions options, std::uint64_t seed);

  std::function<void(std::size_t node, const Membership::Event& event)> on_event;
  std::function<void(std::size_t node, const Membership::Actions& actions)> on_view;
  std::function<bool(std::size_t from, std::size_t to, MembershipMessage& message)> tamper;

  /// Starts a new life of the node, with a larger incarnation than before. The node joins through `contacts`. `ahead`:
  /// how far its clock is ahead, so that the next life may have a smaller incarnation.
  void start(std::size_t node, const std::vector<std::size_t>& contacts, std::uint64_t ahead = 0);
  /// Starts all nodes at `per_second` in the order of their numbers; each joins through at most three earlier ones.
  void start_all(double per_second);
  /// The node stops without a message.
  void crash(std::size_t node);
  void pause(std::size_t node, TimeUs duration_us);
  /// Pauses the node until resume().
  void pause(std::size_t node);
  void resume(std::size_t node);
  void leave(std::size_t node);
  /// Adds a node that the network already has; the node does not run yet.
  void add_node() { nodes_.emplace_back(); }
  /// Tells the node of a link to another, or of its end.
  void link_up(std::size_t node, std::size_t other);
  void link_down(std::size_t node, std::size_t other);

  [[nodiscard]] std::size_t nodes() const { return nodes_.size(); }
  [[nodiscard]] bool running(std::size_t node) const { return nodes_[node].membership != nullptr; }
  [[nodiscard]] bool paused(std::size_t node) const { return nodes_[node].paused; }
  [[nodiscard]] const Membership& membership(std::size_t node) const { return *nodes_[node].membership; }
  /// A node's identity, address and number.
  [[nodiscard]] static NodeId id(std::size_t node);
  [[nodiscard]] static std::string address(std::size_t node);
  [[nodiscard]] static std::size_t number(const NodeId& id);

  /// Whether every running node has exactly the running nodes that it can reach as members (with full views).
  [[nodiscard]] bool everybody_knows_everybody() const;
  /// The number of links between running nodes that only one end has in its view.
  [[nodiscard]] std::size_t one_sided_links() const;
  /// The number of running nodes in the largest set that is connected by links in both ends' views.
  [[nodiscard]] std::size_t largest_component() const;
  /// The number of pairs of running nodes in which the first considers the second gone.
  [[nodiscard]] std::size_t wrongly_gone() const;
  /// The second largest absolute eigenvalue of the lazy random walk over the views. Mixing takes about 1 / (1 - value)
  /// rounds. Computed by power iteration.
  [[nodiscard]] double walk_eigenvalue(int iterations) const;

 private:
  struct Waiting {
    NodeId from;
    std::shared_ptr<const MembershipMessage> message;
  };
  struct Node {
    std::unique_ptr<Membership> membership;
    std::uint64_t life = 0;
    std::uint64_t incarnation = 0;  ///< that the life began with
    bool paused = false;
    bool tick_due = false;  ///< a tick came while the node was paused
    std::vector<Waiting> waiting;
    std::vector<std::size_t> dialled;  ///< for a node behind a NAT: the nodes that it has dialled, sorted
  };

  void tick(std::size_t node, std::uint64_t life);
  void deliver(std::size_t node, std::uint64_t life, const NodeId& from,
               const std::shared_ptr<const MembershipMessage>& message);
  void act(std::size_t node, Membership::Actions& actions);
  void dial(std::size_t node, std::size_t other);
  void send(std::size_t from, Membership::Send& send);
  [[nodiscard]] bool has_link(std::size_t node, std::size_t other) const;

  Schedule& schedule_;
  Network& network_;
  gossip::MembershipOptions options_;
  gossip::Random random_;
  std::vector<Node> nodes_;
  Membership::Actions actions_;
};

}  // namespace gossamer::sim
