#include "tools/sim/hunt/invariants.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

using Kind = Cluster::Event::Kind;

/// One fp32 rounding of x is at most 2^-24 |x|. Sums of independent roundings stay within a few times their root mean
/// square. With a limit of this many there is practically no false alarm; a wrong element is thousands of them.
constexpr double deviations = 12;
/// An exchange that lost this many of its messages may outlive its lifetime.
constexpr int losses_to_outlive = 3;
/// While the first nodes meet, in samples: of two, nobody can tell which one lies.
constexpr std::uint64_t believed_samples = 200;
/// At the end of a run a claim may be followed for as long as reports take, at the highest speed so far, which is
/// measured in times of speed_us.
constexpr double believed_us = 4e6;
constexpr TimeUs speed_us = us_per_s / 2;
const double rounding_unit = std::ldexp(1.0, -24);

double tolerance(double square) {
  return deviations * rounding_unit * std::sqrt(square) + 1e-30;
}

}  // namespace

Invariants::Invariants(const Cluster& cluster, const gossip::ReplicaOptions& options, std::uint64_t seed)
    : cluster_(cluster), options_(options) {
  gossip::Random random(seed);
  const std::size_t elements = cluster.range_of(cluster.fragments() - 1).second;
  for (std::size_t e = 0; e < elements; ++e) {
    const double sign = chance(random, 0.5) ? 1 : -1;
    weights_.push_back(sign * uniform(random, 0.5, 1.5));
  }
}

Trace::Concern Invariants::concern_of(const Cluster::Event& event) const {
  Trace::Concern concern{.node = event.node, .fragment = event.fragment};
  if (event.exchange.counter != 0) {
    concern.exchange = event.exchange;
    concern.other = number_of(event.exchange.initiator);
    if (const auto found = exchanges_.find(event.exchange); found != exchanges_.end()) {
      concern.node = found->second.initiator;
      concern.other = found->second.responder;
    }
  }
  return concern;
}

// --- what is at a node --------------------------------------------------------------------------------------------

Invariants::Parts Invariants::measure(std::size_t i, std::uint32_t f) const {
  const Cluster::Node& node = cluster_.node(i);
  const auto [first, last] = cluster_.range_of(f);
  const double* weight = weights_.data() + first;
  const auto& word = node.client.words[f];
  const auto& three = node.client.buffers[f];
  Parts parts;
  const auto add = [&](const float* values, double& sum) {
    double square = 0;
    for (std::size_t e = 0; e < last - first; ++e) {
      const double term = weight[e] * static_cast<double>(values[e]);
      sum += term;
      square += term * term;
    }
    parts.square += square;
  };
  const bool taken_over = node.client.serving[f];  // the client has added the correction, and will publish
  if (!word.replace || taken_over) add(node.client.model.data() + first, parts.model);
  if (word.correction_valid && !taken_over) add(three[word.correction].data(), parts.correction);
  parts.finite = std::isfinite(parts.square) && std::isfinite(parts.whole());
  return parts;
}

double Invariants::value(std::size_t i) const {
  double sum = 0;
  if (i < nodes_.size()) {
    for (const Parts& parts : nodes_[i].parts)
      sum += parts.finite ? parts.whole() : 1;
  }
  return sum;
}

void Invariants::grow() {
  while (nodes_.size() < cluster_.size())
    nodes_.push_back({.parts = std::vector<Parts>(cluster_.fragments())});
}

void Invariants::check_finite(std::size_t i, std::uint32_t f, const Parts& parts) const {
  if (parts.finite) return;
  const Cluster::Event here{.kind = Kind::turned, .node = i, .fragment = f};
  if (!std::isfinite(parts.correction)) fail(here, "numbers: node {} has corrections with NaN or infinity", i);
  if (!nodes_[i].nan_allowed) fail(here, "numbers: node {}'s model has NaN or infinity, put there by nobody", i);
}

void Invariants::unchanged(std::size_t i, std::uint32_t f, bool collected) {
  NodeState& state = nodes_[i];
  const Parts before = state.parts[f];
  const Parts after = measure(i, f);
  check_finite(i, f, after);
  state.parts[f] = after;
  account(before, after);
  if (!before.finite || !after.finite) return;
  const double change = after.whole() - before.whole();
  const double allowed = collected ? tolerance(before.square + after.square) : 1e-12 * std::sqrt(after.square);
  if (std::fabs(change) <= allowed) return;
  fail({.kind = Kind::turned, .node = i, .fragment = f},
       "attribution: node {}'s model changed by {:.3g} (at most {:.3g} is rounding) though it neither "
       "trained nor committed an exchange",
       i, change, allowed);
}

void Invariants::account(const Parts& before, const Parts& after) {
  if (before.finite) ledger_ -= before.whole();
  if (after.finite) ledger_ += after.whole();
}

std::optional<double> Invariants::commit_of(const Cluster::Event& event, double& rounding) {
  if (!nodes_[event.node].client) return std::nullopt;  // its daemon still works in the dead client's memory
  Parts& before = nodes_[event.node].parts[event.fragment];
  const Parts after = measure(event.node, event.fragment);
  check_finite(event.node, event.fragment, after);
  const double change = after.correction - before.correction;
  if (before.finite && after.finite && after.model != before.model) {
    fail(event, "attribution: a commit at node {} changed its client's model by {:.3g}", event.node,
         after.model - before.model);
  }
  const bool moves = event.done && event.commit;
  if (!moves && change != 0) {
    fail(event, "attribution: node {}'s corrections changed by {:.3g} with an exchange that {}", event.node, change,
         event.done ? "had nothing to commit" : "it did not take part in");
  }
  const bool counts = before.finite && after.finite;
  rounding = tolerance(before.square + after.square);
  before = after;
  return counts ? std::optional(change) : std::nullopt;
}

// --- events -------------------------------------------------------------------------------------------------------

void Invariants::on(const Cluster::Event& event) {
  grow();
  const std::size_t i = event.node;
  switch (event.kind) {
    case Kind::trained:
      return training_over(i);
    case Kind::collected:
    case Kind::replaced:
      return unchanged(i, event.fragment, event.kind == Kind::collected);
    case Kind::answering:
      if (cluster_.node(i).replica->state() != ReplicaState::running) {
        fail(event, "partners: node {} answers something new though it does not run", i);
      }
      if (nodes_[i].dead.contains(event.other)) {
        fail(event, "partners: node {} answers node {}, which it was told is dead", i, event.other);
      }
      return;
    case Kind::answered:
      return answered(event);
    case Kind::concluded:
      return concluded(event);
    case Kind::undone:
      return undone(event);
    case Kind::adopted:
    case Kind::outer:
      return adopted(event);
    case Kind::turned:
      return turned(i);
    case Kind::dead:
      nodes_[i].dead.insert(event.other);
      nodes_[i].linked.erase(event.other);
      return excuse(i, event.other, cluster_.now_us());
    case Kind::linked:
      nodes_[i].dead.erase(event.other);
      nodes_[i].linked.insert(event.other);
      return;
    case Kind::unlinked:
      nodes_[i].linked.erase(event.other);
      return;
    case Kind::sent:
    case Kind::blocked:
      return sent(event);
    case Kind::let_go:
      return let_go(i);
    case Kind::ran:
      return ran(event);
    case Kind::daemon_died:
      return daemon_died(i);
    case Kind::client_died:
      return client_died(i);
    case Kind::client_began:
      return client_began(i);
    case Kind::delivered:
      if (const auto* reply = std::get_if<PullReply>(event.message)) pulled(i, *reply);
      return;
    case Kind::training:
    case Kind::daemon_began:
    case Kind::paused:
      return;
    case Kind::resumed:
      nodes_[i].resumed_us = cluster_.now_us();
      return;
  }
}

void Invariants::training_over(std::size_t i) {
  NodeState& state = nodes_[i];
  for (std::uint32_t f = 0; f < cluster_.fragments(); ++f) {
    const Parts before = state.parts[f];
    const Parts after = measure(i, f);
    check_finite(i, f, after);
    state.parts[f] = after;
    if (after.correction != before.correction) {
      fail({.kind = Kind::trained, .node = i, .fragment = f},
           "attribution: training at node {} changed its corrections by {:.3g}", i,
           after.correction - before.correction);
    }
    account(before, after);
  }
}

void Invariants::turned(std::size_t i) {
  for (std::uint32_t f = 0; f < cluster_.fragments() && nodes_[i].client; ++f)
    unchanged(i, f, false);
  if (!cluster_.node(i).replica) return;
  const JobSettings& settings = cluster_.node(i).replica->settings();
  const bool follows = cluster_.node(i).follows;
  if (settings < nodes_[i].settings && !(follows && followed_settings_.contains(settings))) {
    fail({.kind = Kind::turned, .node = i}, "settings: node {} has version {} after version {}", i, settings.version,
         nodes_[i].settings.version);
  }
  if (!follows) followed_settings_.insert(settings);
  nodes_[i].settings = settings;
  nodes_[i].unresolved = cluster_.node(i).replica->counters().unresolved;
  nodes_[i].violations = cluster_.node(i).replica->counters().violations;
  check_job_clock(i);
  check_bounds(i);
  check_lone_halves(cluster_.now_us());
}

void Invariants::measure_speed(std::size_t i) {
  NodeState& state = nodes_[i];
  const TimeUs time_us = cluster_.now_us() - state.paced_us;
  const std::uint64_t clock = cluster_.node(i).client.clock;  // without what it has taken over from others
  const bool is_new = clock < state.paced_clock;              // the client is
  if (!is_new && time_us < speed_us) return;
  if (!is_new)
    fastest_ = std::max(fastest_, static_cast<double>(clock - state.paced_clock) / static_cast<double>(time_us));
  state.paced_clock = clock;
  state.paced_us = cluster_.now_us();
}

void Invariants::check_job_clock(std::size_t i) {
  const gossip::Replica& replica = *cluster_.node(i).replica;
  if (NodeState& state = nodes_[i];
      replica.state() != ReplicaState::joining && replica.clock() > state.furthest_clock) {
    state.furthest_clock = replica.clock();
    state.furthest_us = cluster_.now_us();
    furthest_clock_ = std::max(furthest_clock_, replica.clock());
  }
  std::uint64_t most = furthest_clock_;
  if (lies_) {
    measure_speed(i);
    if (lies_(i)) return;
    // Who has ended and waits for others counts as training on, also where another is further meanwhile.
    double trained = 0;
    for (const NodeState& state : nodes_) {
      if (state.furthest_clock == 0) continue;
      const double time_us = static_cast<double>(cluster_.now_us() - state.furthest_us) + believed_us;
      trained = std::max(trained, static_cast<double>(state.furthest_clock) + fastest_ * time_us);
    }
    most = static_cast<std::uint64_t>(gossip::default_clock_pace * trained) + believed_samples;
  }
  if (replica.job_clock().value() <= most) return;
  fail({.kind = Kind::turned, .node = i},
       "clocks: node {} takes the job to be at {}, and no model has been beyond {}{}", i, replica.job_clock().value(),
       furthest_clock_, lies_ ? ", lies aside" : "");
}

void Invariants::answered(const Cluster::Event& event) {
  double rounding = 0;
  const auto change = commit_of(event, rounding);
  if (!event.done) return;
  Exchange& exchange = exchanges_[event.exchange];
  if (exchange.answered) {
    fail(event, "exactly once: exchange {} was answered by node {} at {} us and again by node {}",
         name_of(event.exchange), exchange.responder, exchange.answered_us, event.node);
  }
  exchange.initiator = number_of(event.exchange.initiator);
  exchange.responder = event.node;
  exchange.fragment = event.fragment;
  exchange.answered_us = cluster_.now_us();
  if (exchange.begun_us < 0) exchange.begun_us = exchange.answered_us;
  exchange.answered = true;
  const bool servers = options_.partners.policy == gossip::PartnerPolicy::owner;
  const Cluster::Node& asked_by = cluster_.node(exchange.initiator);
  const bool only_takes = asked_by.follows || (!servers && asked_by.keeps && !cluster_.node(event.node).keeps);
  if (event.commit && only_takes) {
    fail(event, "keepers: node {} was moved by node {}, which keeps the job and has trained nothing", event.node,
         exchange.initiator);
  }
  exchange.given = change;
  exchange.rounding = rounding;
  const gossip::ReplyCache& replies = cluster_.node(event.node).replica->book().replies();
  if (replies.standing(event.exchange) == gossip::ReplyCache::Standing::answered) {
    exchange.shifts.emplace(replies.reply(event.exchange).shift, replies.half(event.exchange).shift);
    if (!servers) check_shares(event, exchange);
  }
  open_.push_back(event.exchange);
}

void Invariants::concluded(const Cluster::Event& event) {
  double rounding = 0;
  const auto change = commit_of(event, rounding);
  if (!event.done) return;
  const auto found = exchanges_.find(event.exchange);
  const std::string name = name_of(event.exchange);
  if (found == exchanges_.end() || !found->second.answered) {
    fail(event, "exactly once: node {} concluded exchange {}, which nobody has committed", event.node, name);
  }
  Exchange& exchange = found->second;
  if (exchange.concluded) {
    fail(event, "exactly once: node {} concluded exchange {} a second time", event.node, name);
  }
  if (exchange.undone) {
    fail(event, "exactly once: node {} concluded exchange {}, which its responder has undone", event.node, name);
  }
  if (exchange.lone) --halves_;  // the half had only been late, and does not stay alone
  exchange.concluded = true;
  ++both_;
  pairs_.insert(std::minmax(exchange.initiator, exchange.responder));
  exchange.taken = change;
  if (!exchange.given || !change) return;
  const bool with_keeper = cluster_.node(exchange.responder).keeps || cluster_.node(exchange.initiator).keeps;
  if (with_keeper) {
    ledger_ += *exchange.given + *change;  // a push moves both ends differently (gossip/exchange/push.hpp)
    return;
  }
  const double times = exchange.shifts ? std::ldexp(1.0, exchange.shifts->second - exchange.shifts->first) : 1;
  const double expected = -times * *exchange.given;
  const double allowed = rounding + std::max(1.0, times) * exchange.rounding;
  rounding_ += allowed * allowed;
  ledger_ += *exchange.given + expected;
  if (std::fabs(*change - expected) <= allowed) return;
  fail(event,
       "exactly once: exchange {} changed its responder, node {}, by {:.9g} and its initiator, node {}, by "
       "{:.9g}; expected {:.9g} to within {:.3g}",
       name, exchange.responder, *exchange.given, event.node, *change, expected, allowed);
}

/// Checks by how much the two ends move. The ratio is 1, or where replicas weigh by their samples one of the two powers
/// of two next to the ratio of these. No share is below the least weight, so one that has that weight tells nothing.
void Invariants::check_shares(const Cluster::Event& event, const Exchange& exchange) const {
  const auto& [initiator, responder] = *exchange.shifts;
  if (std::max(initiator, responder) == max_shift_bound) return;
  const double of_initiator = cluster_.node(exchange.initiator).client.step.samples;
  const double of_responder = cluster_.node(exchange.responder).client.step.samples;
  const double most = std::ldexp(1.0, gossip::most_weight_shift);
  double ratio = 1;  // of the initiator's share to the responder's
  if (options_.weigh_samples && std::max(of_initiator, of_responder) > 0)
    ratio = std::clamp(of_responder / of_initiator, 1 / most, most);
  const double found = std::ldexp(1.0, responder - initiator);
  if (found > ratio / 2 && found < 2 * ratio) return;
  fail(event,
       "weights: exchange {} moves its initiator, with {} samples a step, {} times as far as its responder, with {}",
       name_of(event.exchange), of_initiator, found, of_responder);
}

void Invariants::undone(const Cluster::Event& event) {
  double rounding = 0;
  const auto change = commit_of(event, rounding);
  if (!event.done) return;
  const std::string name = name_of(event.exchange);
  const auto found = exchanges_.find(event.exchange);
  if (found == exchanges_.end() || !found->second.answered || found->second.undone) {
    fail(event, "exactly once: node {} undid exchange {}, which is not committed there", event.node, name);
  }
  Exchange& exchange = found->second;
  if (exchange.concluded) {
    fail(event, "exactly once: node {} undid exchange {}, which its initiator has concluded", event.node, name);
  }
  if (exchange.lone) --halves_;
  exchange.undone = true;
  exchange.taken = change;  // the sum has the change twice, with opposite signs
  if (!exchange.given || !change) return;
  const double allowed = rounding + exchange.rounding;
  rounding_ += allowed * allowed;
  if (std::fabs(*change + *exchange.given) <= allowed) return;
  fail(event, "exactly once: exchange {} changed node {} by {:.9g}, and undoing it by {:.9g}", name, event.node,
       *exchange.given, *change);
}

void Invariants::adopted(const Cluster::Event& event) {
  if (!nodes_[event.node].client) return;
  Parts& parts = nodes_[event.node].parts[event.fragment];
  const Parts after = measure(event.node, event.fragment);
  check_finite(event.node, event.fragment, after);
  if (event.kind == Kind::outer && parts.finite && after.finite && after.model != parts.model) {
    fail(event, "attribution: an outer step at node {} changed its client's model", event.node);
  }
  account(parts, after);
  parts = after;
  if (event.kind == Kind::adopted) check_adopted(event);
}

/// Checks that no part of a damaged saved model is given to a client.
void Invariants::check_adopted(const Cluster::Event& event) const {
  const std::vector<double> adopted = cluster_.whole(event.node, event.fragment);
  const auto first = static_cast<std::ptrdiff_t>(cluster_.range_of(event.fragment).first);
  for (const Cluster::SavedValues& saved : cluster_.node(event.node).saved) {
    if (saved.damaged && std::equal(adopted.begin(), adopted.end(), saved.values.begin() + first))
      fail(event, "restoring: node {} takes over a fragment of a damaged model", event.node);
  }
}

void Invariants::pulled(std::size_t i, const PullReply& reply) {
  if (reply.reason == RefuseReason::none) nodes_[i].donors_clocks.push_back(reply.clock);
}

void Invariants::forget_donors(std::size_t i) {
  nodes_[i].donors_clocks.clear();
  nodes_[i].clock_base = cluster_.node(i).client.clock_base;
}

/// A client that has taken over pulled fragments has the clock of one of these, and not of a model that it gave up.
void Invariants::check_clock_taken_over(const Cluster::Event& event) {
  const Cluster::Client& client = cluster_.node(event.node).client;
  const std::uint64_t clock = client.clock_base + client.clock;
  const bool kept = client.clock_base == nodes_[event.node].clock_base || client.clock_base == 0;
  const auto& donors = nodes_[event.node].donors_clocks;
  // Such a clock may not be believed if the other nodes have only just begun.
  const bool doubtful =
      std::ranges::any_of(donors, [](std::uint64_t donor) { return donor > gossip::free_lead_samples; });
  if (!kept && !doubtful && std::ranges::find(donors, clock) == donors.end())
    fail(event, "clocks: node {} begins with the clock {}, which no fragment had that it pulled", event.node, clock);
  forget_donors(event.node);
}

/// Checks that a node that begins with a saved model begins with all of it, as it was saved.
void Invariants::ran(const Cluster::Event& event) {
  const Cluster::SavedValues* saved = cluster_.began_with(event.node);
  if (saved == nullptr) return check_clock_taken_over(event);
  if (saved->damaged) fail(event, "restoring: node {} has begun with a damaged model", event.node);
  if (!std::ranges::equal(cluster_.whole(event.node), saved->values))
    fail(event, "restoring: node {} has not all of the model that it has begun with", event.node);
  const Cluster::Client& client = cluster_.node(event.node).client;
  if (client.clock_base + client.clock != saved->clock) {
    fail(event, "restoring: the clock of node {} is {}, and that of its saved model {}", event.node,
         client.clock_base + client.clock, saved->clock);
  }
  forget_donors(event.node);
}

void Invariants::let_go(std::size_t i) {
  ended_[i].push_back(cluster_.now_us());
  unresolved_ += std::exchange(nodes_[i].unresolved, 0);
  violations_ += std::exchange(nodes_[i].violations, 0);
}

void Invariants::daemon_died(std::size_t i) {
  NodeState& state = nodes_[i];
  let_go(i);
  state.linked.clear();
  state.dead.clear();
  forget_donors(i);
  for (std::uint32_t f = 0; f < cluster_.fragments() && state.client; ++f) {
    const Parts before = state.parts[f];
    const Parts after = measure(i, f);
    if (after.model != before.model && before.finite && after.finite) {
      fail({.kind = Kind::daemon_died, .node = i, .fragment = f},
           "attribution: the end of node {}'s daemon changed its client's model", i);
    }
    if (after.correction != before.correction) {
      fail({.kind = Kind::daemon_died, .node = i, .fragment = f},
           "attribution: the end of node {}'s daemon changed a correction by {:.3g}", i,
           after.correction - before.correction);
    }
    account(before, after);  // facts that only the daemon knew are lost
    state.parts[f] = after;
  }
}

void Invariants::client_died(std::size_t i) {
  ended_[i].push_back(cluster_.now_us());
  for (Parts& parts : nodes_[i].parts) {
    account(parts, {});
    parts = {};
  }
  nodes_[i].client = false;
}

void Invariants::client_began(std::size_t i) {
  nodes_[i].client = true;
  nodes_[i].client_began_us = cluster_.now_us();
  nodes_[i].nan_allowed = false;
  nodes_[i].settings = {};
  forget_donors(i);
  for (std::uint32_t f = 0; f < cluster_.fragments(); ++f) {
    nodes_[i].parts[f] = measure(i, f);
    account({}, nodes_[i].parts[f]);
  }
}

void Invariants::sent(const Cluster::Event& event) {
  const bool lost = event.kind == Kind::sent && event.arrivals == 0;
  if (const auto* reply = std::get_if<ExchangeReply>(event.message); reply != nullptr && lost) {
    const auto found = exchanges_.find({id_of(event.other), reply->counter});
    if (found != exchanges_.end()) most_lost_ = std::max(most_lost_, ++found->second.lost);
  } else if (const auto* ack = std::get_if<ExchangeAck>(event.message); ack != nullptr && lost) {
    const auto found = exchanges_.find({id_of(event.node), ack->counter});
    if (found != exchanges_.end()) most_lost_ = std::max(most_lost_, ++found->second.lost);
  }
  const auto* request = std::get_if<ExchangeRequest>(event.message);
  if (request == nullptr) return;
  const ExchangeId id{id_of(event.node), request->counter};
  Exchange& exchange = exchanges_[id];
  if (exchange.begun_us < 0) exchange.begun_us = cluster_.now_us();
  if (lost) most_lost_ = std::max(most_lost_, ++exchange.lost);
  if (!nodes_[event.node].dead.contains(event.other)) return;
  fail({.kind = event.kind, .node = event.node, .fragment = request->fragment, .exchange = id, .other = event.other},
       "partners: node {} asks node {}, which it was told is dead", event.node, event.other);
}

void Invariants::check_bounds(std::size_t i) const {
  const Cluster::Node& node = cluster_.node(i);
  if (!node.replica) return;
  const gossip::Replica& replica = *node.replica;
  const Cluster::Event here{.kind = Kind::turned, .node = i};
  if (replica.in_flight() > options_.in_flight) {
    fail(here, "bounds: node {} has {} exchanges of its own under way, of {} allowed", i, replica.in_flight(),
         options_.in_flight);
  }
  // Each linked node, and each node not yet known to be dead, has its share of the reply cache.
  const std::size_t most_kept = gossip::ReplyCache::max_unacknowledged * cluster_.size();
  if (replica.book().replies().unacknowledged() > most_kept) {
    fail(here, "bounds: node {} keeps {} replies", i, replica.book().replies().unacknowledged());
  }
  if (replica.book().unsent_acks() > most_kept) {
    fail(here, "bounds: node {} keeps {} acknowledgements to send", i, replica.book().unsent_acks());
  }
  std::size_t most = 0;
  for (std::uint32_t f = 0; f < cluster_.fragments(); ++f)
    most += node.client.buffers[f][0].size() * sizeof(float);
  if (replica.fragments().pending_bytes() > most) {
    fail(here, "bounds: node {} keeps {} bytes of corrections, more than a model", i,
         replica.fragments().pending_bytes());
  }
  if (replica.neighbours().partners() > nodes_[i].linked.size()) {
    fail(here, "partners: node {} has {} partners and {} links", i, replica.neighbours().partners(),
         nodes_[i].linked.size());
  }
}

// --- the end ------------------------------------------------------------------------------------------------------

std::uint64_t Invariants::unresolved() const {
  return cluster_.count(&gossip::ReplicaCounters::unresolved) + unresolved_;
}

std::uint64_t Invariants::orphans() const {
  std::uint64_t orphans = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i)
    orphans += cluster_.node(i).replica ? cluster_.node(i).replica->book().replies().orphans() : 0;
  return orphans;
}

std::uint64_t Invariants::violations() const {
  return cluster_.count(&gossip::ReplicaCounters::violations) + violations_;
}

bool Invariants::undisturbed() const {
  return parted_.empty() && ended_.empty() && most_lost_ < losses_to_outlive;
}

void Invariants::excuse(std::size_t i, std::size_t j, TimeUs now_us) {
  Times& times = parted_[std::minmax(i, j)];
  if (times.empty() || times.back() != now_us) times.push_back(now_us);
}

/// The time by which each end that still exists has given the exchange up.
TimeUs Invariants::given_up_us(const Exchange& exchange) const {
  return exchange.answered_us + options_.lifetime_us + 2 * options_.info_period_us;
}

/// True if an event that may part two ends happened after the exchange began, and before both ends gave it up.
bool Invariants::excused(const Exchange& exchange) const {
  if (exchange.lost >= losses_to_outlive) return true;
  const auto within = [&](const Times& times) {
    const auto first = std::lower_bound(times.begin(), times.end(), exchange.begun_us);
    return first != times.end() && *first <= given_up_us(exchange);
  };
  const auto parted = parted_.find(std::minmax(exchange.initiator, exchange.responder));
  if (parted != parted_.end() && within(parted->second)) return true;
  for (const std::size_t node : {exchange.initiator, exchange.responder}) {
    if (const auto ended = ended_.find(node); ended != ended_.end() && within(ended->second)) return true;
  }
  return false;
}

/// Whether both ends have had time to conclude the exchange or to count it. A paused end does neither.
bool Invariants::is_over(const Exchange& exchange, TimeUs now_us) const {
  if (given_up_us(exchange) >= now_us) return false;
  for (const std::size_t i : {exchange.initiator, exchange.responder}) {
    if (cluster_.node(i).paused || nodes_[i].resumed_us + 2 * options_.info_period_us >= now_us) return false;
  }
  return true;
}

void Invariants::check_lone_halves(TimeUs now_us) {
  while (!open_.empty() && is_over(exchanges_[open_.front()], now_us)) {
    check_lone_half(open_.front());
    open_.pop_front();
  }
}

void Invariants::check_lone_half(const ExchangeId& id) {
  const Exchange& exchange = exchanges_[id];
  if (exchange.concluded || exchange.undone) return;
  ++halves_;
  exchanges_[id].lone = true;
  if (excused(exchange)) return;
  throw Violation(
      {.node = exchange.initiator, .other = exchange.responder, .fragment = exchange.fragment, .exchange = id},
      "exactly once: exchange {} was committed by its responder, node {}, at {} us and never by its "
      "initiator, though nothing parted the two",
      name_of(id), exchange.responder, exchange.answered_us);
}

bool Invariants::client_lived(std::size_t node, const Exchange& exchange) const {
  return nodes_[node].client && nodes_[node].client_began_us <= exchange.begun_us;
}

/// A half may stay alone only if a client has died. A responder may still wait for an initiator that has not come back.
void Invariants::finish() {
  check_lone_halves(std::numeric_limits<TimeUs>::max());
  std::uint64_t countable = 0;
  for (const auto& [id, exchange] : exchanges_) {
    if (!exchange.lone || exchange.concluded || exchange.undone || !exchange.given) continue;
    if (!client_lived(exchange.responder, exchange)) continue;
    if (*exchange.given != 0) ++countable;
    if (!client_lived(exchange.initiator, exchange) || *exchange.given == 0) continue;
    if (!cluster_.linked(exchange.initiator, exchange.responder))
      continue;  // with partial views, they may never meet again
    throw Violation(
        {.node = exchange.initiator, .other = exchange.responder, .fragment = exchange.fragment, .exchange = id},
        "exactly once: exchange {} is committed at node {} alone, though no client has died", name_of(id),
        exchange.responder);
  }
  if (unresolved() + orphans() < countable) {
    throw Violation({},
                    "exactly once: {} exchanges were committed at one end only with a survivor, but "
                    "survivors counted {} unresolved",
                    countable, unresolved());
  }
  check_ledger();
}

void Invariants::check_ledger() const {
  double expected = ledger_;
  for (const auto& [id, exchange] : exchanges_) {
    if (exchange.given && exchange.taken) continue;
    expected += exchange.given.value_or(0) + exchange.taken.value_or(0);
  }
  double sum = 0;
  double square = 0;
  for (const NodeState& node : nodes_) {
    for (const Parts& parts : node.parts) {
      sum += parts.finite ? parts.whole() : 0;
      square += parts.finite ? parts.square : 0;
    }
  }
  const double allowed = std::sqrt(rounding_) + 1e-9 * std::sqrt(square);
  if (std::fabs(sum - expected) <= allowed) return;
  throw Violation({}, "the ledger: the sum over nodes is {:.9g}; expected {:.9g} to within {:.3g}", sum, expected,
                  allowed);
}

}  // namespace gossamer::sim
