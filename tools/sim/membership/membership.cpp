#include "tools/sim/membership/membership.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

constexpr std::string_view address_begin = "tcp://sim:";
constexpr std::size_t contacts_per_node = 3;
constexpr std::uint64_t incarnation_step = 1'000'000;  // from one life to the next: far above any refutation

std::size_t node_at(const std::string& address, std::size_t nodes) {
  std::size_t node = nodes;
  if (address.starts_with(address_begin)) {
    std::from_chars(address.data() + address_begin.size(), address.data() + address.size(), node);
  }
  return node;
}

}  // namespace

MembershipCluster::MembershipCluster(Schedule& schedule, Network& network, gossip::MembershipOptions options,
                                     std::uint64_t seed)
    : schedule_(schedule), network_(network), options_(options), random_(seed), nodes_(network.nodes()) {}

/// The first bytes of the id are as random as a hash; the last bytes are the node's number.
NodeId MembershipCluster::id(std::size_t node) {
  gossip::Random bytes(node);
  NodeId id;
  const std::uint64_t high = bytes.next();
  for (std::size_t i = 0; i < 8; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(high >> 8 * i);
  for (std::size_t i = 0; i < 8; ++i)
    id.bytes[8 + i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(node) >> 8 * i);
  return id;
}

std::size_t MembershipCluster::number(const NodeId& id) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i > 0; --i)
    value = value << 8 | id.bytes[8 + i - 1];
  return value;
}

/// An address of the usual length.
std::string MembershipCluster::address(std::size_t node) {
  std::string digits = std::to_string(node);
  return std::string(address_begin) + std::string(digits.size() < 10 ? 10 - digits.size() : 0, '0') + digits;
}

void MembershipCluster::start(std::size_t node, const std::vector<std::size_t>& contacts, std::uint64_t ahead) {
  Node& started = nodes_[node];
  GOSSAMER_CHECK(started.membership == nullptr);
  ++started.life;
  started.incarnation = incarnation_step * started.life + ahead;
  started.paused = false;
  MemberRecord self{id(node), started.incarnation, network_.behind_nat(node), address(node)};
  if (self.dial_only) self.address.clear();
  started.membership =
      std::make_unique<Membership>(options_, std::move(self), gossip::Random(random_.next()), schedule_.now_us());
  std::vector<std::string> addresses;
  for (const std::size_t contact : contacts)
    addresses.push_back(address(contact));
  started.membership->join(std::move(addresses), schedule_.now_us(), actions_);
  act(node, actions_);
  schedule_.after(between(random_, 0, options_.tick_us), [this, node, life = started.life] { tick(node, life); });
}

void MembershipCluster::start_all(double per_second) {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    schedule_.after(static_cast<TimeUs>(static_cast<double>(node) / per_second * us_per_s), [this, node] {
      std::vector<std::size_t> contacts;
      for (std::size_t i = 0; i < contacts_per_node && node > 0; ++i)
        contacts.push_back(random_.below(node));
      start(node, contacts);
    });
  }
}

void MembershipCluster::crash(std::size_t node) {
  Node& crashed = nodes_[node];
  GOSSAMER_CHECK(crashed.membership != nullptr);
  crashed.membership.reset();
  ++crashed.life;
  crashed.waiting.clear();
  crashed.dialled.clear();
  crashed.paused = crashed.tick_due = false;
}

void MembershipCluster::leave(std::size_t node) {
  nodes_[node].membership->leave(schedule_.now_us(), actions_);
  act(node, actions_);
  crash(node);
}

void MembershipCluster::pause(std::size_t node, TimeUs duration_us) {
  pause(node);
  schedule_.after(duration_us, [this, node, life = nodes_[node].life] {
    if (nodes_[node].life == life) resume(node);
  });
}

void MembershipCluster::pause(std::size_t node) {
  nodes_[node].paused = true;
}

/// Waiting messages are read before the first tick, as by a process that finds its sockets full.
void MembershipCluster::resume(std::size_t node) {
  Node& resumed = nodes_[node];
  if (!resumed.paused) return;
  resumed.paused = false;
  std::vector<Waiting> waiting;
  waiting.swap(resumed.waiting);
  for (const Waiting& item : waiting)
    deliver(node, resumed.life, item.from, item.message);
  if (std::exchange(resumed.tick_due, false)) tick(node, resumed.life);
}

void MembershipCluster::tick(std::size_t node, std::uint64_t life) {
  Node& ticked = nodes_[node];
  if (ticked.life != life) return;
  if (ticked.paused) {
    ticked.tick_due = true;
    return;
  }
  ticked.membership->tick(schedule_.now_us(), actions_);
  act(node, actions_);
  schedule_.after(options_.tick_us, [this, node, life] { tick(node, life); });
}

void MembershipCluster::link_up(std::size_t node, std::size_t other) {
  nodes_[node].membership->link_up(id(other), nodes_[other].incarnation, schedule_.now_us(), actions_);
  act(node, actions_);
}

void MembershipCluster::link_down(std::size_t node, std::size_t other) {
  nodes_[node].membership->link_down(id(other), schedule_.now_us(), actions_);
  act(node, actions_);
}

void MembershipCluster::deliver(std::size_t node, std::uint64_t life, const NodeId& from,
                                const std::shared_ptr<const MembershipMessage>& message) {
  Node& receiver = nodes_[node];
  if (receiver.membership == nullptr || receiver.life != life) return;
  if (receiver.paused) {
    if (receiver.waiting.size() < max_waiting_messages) receiver.waiting.push_back({from, message});
    return;
  }
  receiver.membership->receive(from, *message, schedule_.now_us(), actions_);
  act(node, actions_);
}

bool MembershipCluster::has_link(std::size_t node, std::size_t other) const {
  return std::ranges::binary_search(nodes_[node].dialled, other);
}

void MembershipCluster::act(std::size_t node, Membership::Actions& actions) {
  nodes_[node].membership->check_invariants();
  Membership::Actions taken;
  std::swap(taken, actions);
  for (const Membership::Dial& item : taken.dial)
    dial(node, number(item.node));
  for (Membership::Send& item : taken.send)
    send(node, item);
  if (on_view && (!taken.dial.empty() || !taken.hang_up.empty())) on_view(node, taken);
  if (on_event) {
    for (const Membership::Event& event : taken.events)
      on_event(node, event);
  }
  taken.send.clear();
  taken.dial.clear();
  taken.hang_up.clear();
  taken.events.clear();
  std::swap(taken, actions);  // keeps the memory
}

void MembershipCluster::dial(std::size_t node, std::size_t other) {
  if (!network_.behind_nat(node) || has_link(node, other)) return;
  std::vector<std::size_t>& dialled = nodes_[node].dialled;
  dialled.insert(std::ranges::lower_bound(dialled, other), other);
}

void MembershipCluster::send(std::size_t from, Membership::Send& send) {
  const std::size_t to = send.to == NodeId{} ? node_at(send.address, nodes_.size()) : number(send.to);
  if (to >= nodes_.size() || to == from) return;
  dial(from, to);
  if (network_.behind_nat(to) && !has_link(to, from)) return;
  if (tamper && !tamper(from, to, send.message)) return;
  const std::size_t bytes = wire_bytes(send.message);
  auto message = std::make_shared<const MembershipMessage>(std::move(send.message));
  network_.send(from, to, bytes, [this, to, life = nodes_[to].life, sender = id(from), message = std::move(message)] {
    deliver(to, life, sender, message);
  });
}

// ----------------------------------------------------------------------------------------------------- observations

bool MembershipCluster::everybody_knows_everybody() const {
  const auto count =
      static_cast<std::size_t>(std::ranges::count_if(nodes_, [](const Node& n) { return n.membership != nullptr; }));
  for (const Node& node : nodes_) {
    if (node.membership == nullptr) continue;
    if (node.membership->members().size() + 1 != count) return false;
    for (const Membership::Member& member : node.membership->members()) {
      if (!running(number(member.record.node)) || member.suspected) return false;
    }
  }
  return true;
}

std::size_t MembershipCluster::one_sided_links() const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!running(i)) continue;
    for (const Membership::Member& member : nodes_[i].membership->members()) {
      const std::size_t other = number(member.record.node);
      if (running(other) && membership(other).find(id(i)) == nullptr) ++count;
    }
  }
  return count;
}

std::size_t MembershipCluster::largest_component() const {
  std::vector<bool> seen(nodes_.size());
  std::size_t largest = 0;
  for (std::size_t first = 0; first < nodes_.size(); ++first) {
    if (!running(first) || seen[first]) continue;
    std::vector<std::size_t> reached{first};
    seen[first] = true;
    for (std::size_t next = 0; next < reached.size(); ++next) {
      const NodeId self = id(reached[next]);
      for (const Membership::Member& member : membership(reached[next]).members()) {
        const std::size_t other = number(member.record.node);
        if (seen[other] || !running(other) || membership(other).find(self) == nullptr) continue;
        seen[other] = true;
        reached.push_back(other);
      }
    }
    largest = std::max(largest, reached.size());
  }
  return largest;
}

std::size_t MembershipCluster::wrongly_gone() const {
  std::size_t count = 0;
  for (const Node& node : nodes_) {
    if (node.membership == nullptr) continue;
    for (const gossip::HeardClaims::Heard& heard : node.membership->heard()) {
      const std::size_t other = number(heard.node);
      if (heard.claim != Claim::alive && running(other) &&
          heard.incarnation >= nodes_[other].membership->self().incarnation) {
        ++count;
      }
    }
  }
  return count;
}

double MembershipCluster::walk_eigenvalue(int iterations) const {
  std::vector<std::vector<std::size_t>> links(nodes_.size());
  double total = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!running(i)) continue;
    for (const Membership::Member& member : nodes_[i].membership->members()) {
      const std::size_t other = number(member.record.node);
      if (running(other) && membership(other).find(id(i)) != nullptr) links[i].push_back(other);
    }
    total += static_cast<double>(links[i].size());
  }
  gossip::Random random(1);
  std::vector<double> value(nodes_.size());
  for (double& v : value)
    v = normal(random);
  double eigenvalue = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    double mean = 0;  // the stationary direction, weighted by degree, is removed
    for (std::size_t i = 0; i < value.size(); ++i)
      mean += value[i] * static_cast<double>(links[i].size()) / total;
    double before = 0;
    double after = 0;
    std::vector<double> next(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (links[i].empty()) continue;
      const double own = value[i] - mean;
      double around = 0;
      for (const std::size_t other : links[i])
        around += (value[other] - mean) / static_cast<double>(links[i].size());
      next[i] = (own + around) / 2;
      before += own * own * static_cast<double>(links[i].size());
      after += next[i] * next[i] * static_cast<double>(links[i].size());
    }
    eigenvalue = std::sqrt(after / before);
    const double scale = 1 / std::sqrt(after / total);
    for (std::size_t i = 0; i < value.size(); ++i)
      value[i] = next[i] * scale;
  }
  return eigenvalue;
}

}  // namespace gossamer::sim
