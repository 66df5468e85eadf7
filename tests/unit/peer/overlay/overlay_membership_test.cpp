// Tests membership over real links: which nodes are reported dead and when, partial views, nodes that only dial out,
// and clusters that heal.

#include <algorithm>
#include <set>

#include "tests/unit/peer/cluster.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

namespace {

using Nodes = std::vector<std::unique_ptr<Node>>;

bool all_linked(const Nodes& nodes) {
  return std::ranges::all_of(nodes, [&](const auto& a) {
    return std::ranges::all_of(nodes, [&](const auto& b) { return a == b || !b || !a || a->linked(*b); });
  });
}

/// The number of nodes that the first one reaches over links that are shown.
std::size_t reached(const Nodes& nodes) {
  std::set<const Node*> seen{nodes.front().get()};
  std::vector<const Node*> next{nodes.front().get()};
  while (!next.empty()) {
    const Node* node = next.back();
    next.pop_back();
    for (const auto& other : nodes) {
      if (other && !seen.contains(other.get()) && node->linked(*other)) {
        seen.insert(other.get());
        next.push_back(other.get());
      }
    }
  }
  return seen.size();
}

std::size_t neighbours(const Node& node) {
  return static_cast<std::size_t>(std::ranges::count_if(node.overlay->links(), &LinkStatus::up));
}

}  // namespace

TEST_CASE("one death is told by all to all, and the others go on") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto nodes = start_together(loop, keys, 5);
  run_until(loop, [&] { return all_linked(nodes); });
  const auto victim = std::move(nodes.back());
  nodes.pop_back();
  victim->overlay.reset();
  run_until(loop, [&] {
    return std::ranges::all_of(nodes, [&](const auto& node) { return node->count("dead", *victim) == 1; });
  });
  for (const auto& node : nodes) {
    CHECK(node->overlay->members().size() == 3);
    for (const auto& other : nodes)
      CHECK(node->count("dead", *other) == 0);
  }
  CHECK(all_linked(nodes));
}

TEST_CASE("a node that is back at its address with another key leaves nobody to be dialled") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const HeldPort port(loop);
  OverlaySettings there = quick_options();
  there.listen = port.address();
  auto before = Node::started(loop, keys, there);
  const auto stays = Node::started(loop, keys, with_peers({port.address()}));
  const auto other = Node::started(loop, keys, with_peers({port.address(), stays->overlay->address()}));
  run_until(loop, [&] { return stays->linked(*before) && stays->linked(*other) && other->linked(*before); });
  before->overlay.reset();
  const auto back = Node::started(loop, keys, there);
  run_until(loop, [&] { return stays->count("dead", *before) == 1 && other->count("dead", *before) == 1; });
  run_until(loop, [&] { return stays->linked(*back) && other->linked(*back); });
  // The dead node is dialled again and again, at an address where another node answers now.
  const TimeUs from_us = stays->now() + quick_options().membership.reconnect_interval_us;
  run_until(loop, [&] { return stays->now() >= from_us; });
  std::size_t looks = 0, dialled = 0;
  run_until(loop, [&] {
    ++looks;
    dialled += stays->overlay->all_dialled() && back->overlay->all_dialled() ? 1 : 0;
    return stays->now() >= from_us + 2 * us_per_s;
  });
  CHECK(dialled == looks);
}

TEST_CASE("beyond the limit each node keeps links to some, and all stay connected") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.membership.full_view_limit = 3;
  options.membership.active_view = 3;
  Nodes nodes;
  nodes.push_back(Node::started(loop, keys, options));
  options.peers = {nodes[0]->overlay->address()};
  for (int i = 0; i < 7; ++i)
    nodes.push_back(Node::started(loop, keys, options));
  const auto settled = [&] {
    return reached(nodes) == nodes.size() && std::ranges::all_of(nodes, [&](const auto& node) {
             const MembershipStatus status = node->overlay->membership();
             const auto links = node->overlay->links();
             return status.partial && neighbours(*node) >= 2 && neighbours(*node) == status.view &&
                    status.view <= options.membership.active_view + gossip::active_view_slack;
           });
  };
  run_until(loop, settled);

  // A node that dies is dead for its neighbours, and is replaced.
  const auto victim = std::move(nodes[4]);
  nodes.erase(nodes.begin() + 4);
  std::vector<const Node*> watchers;
  for (const auto& node : nodes) {
    if (node->linked(*victim)) watchers.push_back(node.get());
  }
  victim->overlay.reset();
  run_until(loop, [&] {
    return std::ranges::all_of(watchers, [&](const Node* node) { return node->count("dead", *victim) >= 1; });
  });
  run_until(loop, settled);
}

TEST_CASE("nodes that only dial out take part, and are never paired") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto nodes = start_together(loop, keys, 2);
  OverlaySettings options = with_peers({nodes[0]->overlay->address()});
  options.advertise = "none";
  for (int i = 0; i < 2; ++i)
    nodes.push_back(Node::started(loop, keys, options));
  // Through one node they find the other that can be dialled, and that one reaches them, too.
  run_until(loop, [&] {
    return nodes[1]->linked(*nodes[2]) && nodes[1]->linked(*nodes[3]) && nodes[0]->linked(*nodes[1]) &&
           nodes[2]->linked(*nodes[1]) && nodes[3]->linked(*nodes[1]) && nodes[2]->linked(*nodes[0]);
  });
  const auto before = nodes[2]->overlay->membership().counters.probes;
  run_until(loop, [&] { return nodes[2]->overlay->membership().counters.probes > before + 4; });
  CHECK_FALSE(nodes[2]->linked(*nodes[3]));
  CHECK(nodes[2]->overlay->members().size() == 3);
  CHECK(nodes[2]->count("dead", *nodes[3]) == 0);

  const auto victim = std::move(nodes[3]);
  nodes.pop_back();
  victim->overlay.reset();
  run_until(loop, [&] { return nodes[0]->count("dead", *victim) == 1 && nodes[1]->count("dead", *victim) == 1; });
  run_until(loop, [&] { return nodes[2]->overlay->members().size() == 2; });
}

TEST_CASE("a node that has moved is found by all, through one that it knows") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto nodes = start_together(loop, keys, 4);
  run_until(loop, [&] { return all_linked(nodes); });
  const auto before = std::move(nodes[3]);
  const std::string old_address = before->overlay->address();
  before->overlay.reset();
  OverlaySettings options = with_peers({nodes[1]->overlay->address()});
  options.incarnation = 1'000'000;
  nodes[3] = Node::started(loop, keys, options, before->identity);
  const std::string new_address = nodes[3]->overlay->address();
  CHECK(new_address != old_address);
  run_until(loop, [&] { return all_linked(nodes); });
  for (std::size_t i = 0; i < 3; ++i) {
    // The link may be up before the node's new address has been heard.
    run_until(loop, [&] {
      const auto members = nodes[i]->overlay->members();
      const auto moved = std::ranges::find(members, before->id, &KnownMember::node);
      return moved != members.end() && moved->address == new_address;
    });
    CHECK(nodes[i]->count("dead", *before) == 1);
  }
}

TEST_CASE("where a running node is to be dialled from now on is told to all, and its links stay") {
  asio::io_context loop;
  auto nodes = start_together(loop, new_keys(), 4);
  run_until(loop, [&] { return all_linked(nodes); });
  const std::string elsewhere = "tcp://127.0.0.1:7";
  REQUIRE(nodes[3]->overlay->set_advertise(elsewhere));
  const auto known_at = [&](std::size_t i) {
    const auto members = nodes[i]->overlay->members();
    const auto moved = std::ranges::find(members, nodes[3]->id, &KnownMember::node);
    return moved == members.end() ? std::string() : moved->address;
  };
  run_until(loop, [&] { return known_at(0) == elsewhere && known_at(1) == elsewhere && known_at(2) == elsewhere; });
  CHECK(nodes[0]->link(*nodes[3]).address == elsewhere);
  CHECK(nodes[3]->overlay->membership().incarnation == 2);
  CHECK(nodes[3]->logged("is down") == 0);

  CHECK_FALSE(nodes[3]->overlay->set_advertise("here and there"));
  REQUIRE(nodes[3]->overlay->set_advertise(elsewhere));  // the same address is no change
  CHECK(nodes[3]->overlay->membership().incarnation == 2);
}

TEST_CASE("a node without contacts finds its cluster through those it remembers") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto nodes = start_together(loop, keys, 3);
  run_until(loop, [&] { return all_linked(nodes); });
  OverlaySettings options = quick_options();
  options.remembered = {"nonsense", "tcp://127.0.0.1:1", nodes[2]->overlay->address()};
  options.incarnation = 1'000'000;
  const auto before = std::move(nodes[0]);
  before->overlay.reset();
  nodes[0] = Node::started(loop, keys, options, before->identity);
  CHECK_FALSE(nodes[0]->overlay->all_dialled());
  run_until(loop, [&] { return all_linked(nodes); });
}

TEST_CASE("two clusters grow together when one node of one is told of the other") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  Nodes left, right;
  for (Nodes* nodes : {&left, &right}) {
    nodes->push_back(Node::started(loop, keys));
    nodes->push_back(Node::started(loop, keys, with_peers({nodes->front()->overlay->address()})));
  }
  run_until(loop, [&] { return all_linked(left) && all_linked(right); });
  REQUIRE(left[1]->overlay->set_peers({right[1]->overlay->address()}));
  for (auto& node : right)
    left.push_back(std::move(node));
  run_until(loop, [&] { return all_linked(left); });
  for (const auto& node : left)
    CHECK(node->events.size() == 3);
}

TEST_CASE("a joining node has dialled all when it has met those that its contact knows") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto nodes = start_together(loop, keys, 3);
  run_until(loop, [&] { return all_linked(nodes); });
  const auto joins = Node::started(loop, keys, with_peers({nodes[0]->overlay->address()}));
  run_until(loop, [&] { return joins->overlay->all_dialled(); });
  CHECK(neighbours(*joins) == 3);
}
