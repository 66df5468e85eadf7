#include "tools/sim/hunt/sabotage.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "tools/sim/membership/membership.hpp"

namespace gossamer::sim {

namespace {

using Kind = Cluster::Event::Kind;
using Event = Cluster::Event;

// --- the runs to sabotage -----------------------------------------------------------------------------------------

void as_drawn(Swarm& swarm) {
  swarm.faults_us = std::min<TimeUs>(swarm.faults_us, 3 * us_per_s);
  swarm.liveness_us = 20 * us_per_s;
}

/// Lets no other faults happen, so that only the rule can cause a violation.
void calm(Swarm& swarm) {
  const Swarm drawn = swarm;
  swarm = {.seed = drawn.seed, .nodes = 3, .faults_us = us_per_s, .liveness_us = 10 * us_per_s};
  swarm.cluster.elements = 700;
  swarm.cluster.seed = drawn.cluster.seed;
  swarm.cluster.replica.codec = drawn.cluster.replica.codec;
  swarm.cluster.replica.period_us = 10'000;
  swarm.cluster.replica.lifetime_us = 2 * us_per_s;
  swarm.cluster.replica.info_period_us = 200'000;
}

void with_copies(Swarm& swarm) {
  calm(swarm);
  swarm.path.duplicate = 0.5;
  swarm.path.jitter_us = 5'000;
}

void with_nan(Swarm& swarm) {
  calm(swarm);
  swarm.nodes += swarm.seed % 3;
  swarm.nan_stays = swarm.nodes - 2;
  swarm.faults_us = 20 * us_per_s;
}

void with_deaths(Swarm& swarm) {
  calm(swarm);
  swarm.deeds = {Deed::daemon_crash};
  swarm.between_us = 300'000;
  swarm.lasting_us = 200'000;
  swarm.faults_us = 5 * us_per_s;
  swarm.path.latency_us = 5'000;
}

void with_saved(Swarm& swarm) {
  calm(swarm);
  swarm.founders_join = true;
  swarm.saved = 0.8;
}

void with_settings(Swarm& swarm) {
  with_deaths(swarm);
  swarm.deeds.insert(Deed::settings_change);
}

void with_liar(Swarm& swarm) {
  calm(swarm);
  swarm.nodes = 4;
  swarm.liars = 1;
}

void with_end(Swarm& swarm) {
  calm(swarm);
  swarm.finishes = true;
}

void with_nan_at_end(Swarm& swarm) {
  with_end(swarm);
  swarm.nodes = std::max<std::size_t>(swarm.nodes, 3);
  swarm.ends_with_nan = 1;
}

void with_keeper(Swarm& swarm) {
  with_end(swarm);
  swarm.keepers = 1;
}

void with_server(Swarm& swarm) {
  with_keeper(swarm);
  swarm.cluster.replica.partners.policy = gossip::PartnerPolicy::owner;
}

void with_follower(Swarm& swarm) {
  with_server(swarm);
  swarm.nodes = std::max<std::size_t>(swarm.nodes, 4);
  swarm.keepers = 2;
  swarm.followers = 1;
}

void with_weights(Swarm& swarm) {
  calm(swarm);
  swarm.keepers = 0;
  swarm.cluster.replica.partners.policy = gossip::PartnerPolicy::random;
  swarm.cluster.replica.exchanges = true;
  swarm.cluster.replica.weigh_samples = true;
  swarm.step_samples = 200;
}

void with_many(Swarm& swarm) {
  calm(swarm);
  swarm.nodes = 8;
  swarm.path.latency_us = 5'000;
}

void with_membership(Swarm& swarm) {
  calm(swarm);
  swarm.nodes = 4;
  swarm.membership = true;
  swarm.probe_interval_us = 50'000;
  swarm.liveness_us = 20 * us_per_s;
}

void with_pauses(Swarm& swarm) {
  with_membership(swarm);
  swarm.deeds = {Deed::pause};
  swarm.lasting_us = us_per_s;
  swarm.faults_us = 3 * us_per_s;
}

void with_isolation(Swarm& swarm) {
  with_membership(swarm);
  swarm.deeds = {Deed::isolation};
  swarm.between_us = us_per_s;
  swarm.lasting_us = 5 * us_per_s;
  swarm.faults_us = 6 * us_per_s;
}

void with_a_death(Swarm& swarm) {
  with_membership(swarm);
  swarm.one_stays_dead = true;
}

// --- the sabotage -------------------------------------------------------------------------------------------------

/// The memory of fragment f's correction at node i; null if there is none.
float* correction_of(Cluster& cluster, std::size_t i, std::uint32_t f) {
  auto& client = cluster.node(i).client;
  if (!client.words[f].correction_valid) return nullptr;
  return client.buffers[f][client.words[f].correction].data();
}

/// Spoils the tenth correction that an event of this kind has changed.
Sabotage spoil(Kind kind, void (*change)(float& value)) {
  return {.on_event = [kind, change, commits = 0](Cluster& cluster, const Event& event) mutable {
    if (event.kind != kind || !event.commit) return;
    float* correction = correction_of(cluster, event.node, event.fragment);
    const auto [first, last] = cluster.range_of(event.fragment);
    const auto nothing = [](float value) { return value == 0; };
    if (correction == nullptr || std::all_of(correction, correction + (last - first), nothing)) return;
    if (++commits == 10) std::for_each(correction, correction + (last - first), change);
  }};
}

Sabotage other_sign(const Swarm&) {
  return spoil(Kind::answered, [](float& value) { value = -value; });
}

Sabotage lost_commit(const Swarm&) {
  return spoil(Kind::answered, [](float& value) { value = 0; });
}

Sabotage applied_twice(const Swarm&) {
  return spoil(Kind::concluded, [](float& value) { value += value; });
}

Sabotage other_weight(const Swarm&) {
  return {.tamper = [replies = 0](std::size_t, std::size_t, Message& message) mutable {
    auto* reply = std::get_if<ExchangeReply>(&message);
    if (reply != nullptr && reply->status == ReplyStatus::done && ++replies == 20) ++reply->shift;
    return true;
  }};
}

Sabotage collected_twice(const Swarm&) {
  return {.on_event = [collected = 0](Cluster& cluster, const Event& event) mutable {
    if (event.kind != Kind::collected || ++collected != 20) return;
    auto& client = cluster.node(event.node).client;
    const auto [first, last] = cluster.range_of(event.fragment);
    // The buffers still have their values, and the word still names the correction that was just taken over.
    const auto& taken = client.buffers[event.fragment][client.words[event.fragment].correction];
    for (std::size_t e = first; e < last; ++e)
      client.model[e] += taken[e - first];
  }};
}

Sabotage stray_write(const Swarm&) {
  return {.on_event = [turns = 0](Cluster& cluster, const Event& event) mutable {
    if (event.kind == Kind::turned && ++turns == 500) cluster.node(event.node).client.model[7] += 1e-3F;
  }};
}

Sabotage nan_from_nowhere(const Swarm&) {
  return {.on_event = [steps = 0](Cluster& cluster, const Event& event) mutable {
    if (event.kind != Kind::trained || ++steps != 500) return;
    cluster.node(event.node).client.model[5] = std::numeric_limits<float>::quiet_NaN();
  }};
}

/// Replaces node i's replica by one with the same memory and neighbours that knows of no exchange. Does nothing if
/// exchanges are under way: they could not go on.
void forget_replies(Cluster& cluster, std::size_t i, const gossip::ReplicaOptions& options) {
  auto& node = cluster.node(i);
  const auto held = [](const gossip::Fragment& fragment) { return fragment.is_held(); };
  if (node.replica->in_flight() > 0 || std::ranges::any_of(node.replica->fragments(), held)) return;
  std::vector<gossip::FragmentBuffers> fragments;
  for (std::uint32_t f = 0; f < cluster.fragments(); ++f) {
    auto& three = node.client.buffers[f];
    fragments.emplace_back(std::array{three[0].data(), three[1].data(), three[2].data()},
                           three[0].size() / block_elements, node.replica->buffers(f).parts());
  }
  gossip::Actions ignored;
  auto fresh = std::make_unique<gossip::Replica>(options, id_of(i), node.replica->own_info(), std::move(fragments),
                                                 *node.counter, gossip::Random(1));
  fresh->enter(gossip::Phase::running, ignored);
  for (std::size_t j = 0; j < cluster.size(); ++j) {
    if (!cluster.linked(i, j)) continue;
    fresh->link_up(id_of(j), ignored);
    fresh->received(id_of(j), cluster.node(j).replica->own_info(), cluster.now_us(), ignored);
  }
  cluster.replace_replica(i, std::move(fresh));
}

Sabotage forgotten_replies(const Swarm& swarm) {
  return {.on_event = [options = swarm.cluster.replica, answered = std::set<ExchangeId>(),
                       answering = std::set<std::size_t>()](Cluster& cluster, const Event& event) mutable {
    if (event.kind == Kind::answering) answering.insert(event.node);
    if (event.kind == Kind::answered) answering.erase(event.node);
    if (event.kind == Kind::answered && event.done) answered.insert(event.exchange);
    if (event.kind != Kind::delivered || answering.contains(event.node)) return;
    const auto* request = std::get_if<ExchangeRequest>(event.message);
    if (request == nullptr || !answered.contains({id_of(event.other), request->counter})) return;
    forget_replies(cluster, event.node, options);
  }};
}

Sabotage own_dither(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    if (auto* request = std::get_if<ExchangeRequest>(&message)) request->seed ^= 1;
    return true;
  }};
}

Sabotage asks_the_dead(const Swarm&) {
  return {.on_event = [told = false](Cluster& cluster, const Event& event) mutable {
    if (told || event.kind != Kind::concluded) return;
    told = true;
    for (std::size_t other = 0; other < cluster.size(); ++other)
      cluster.on_event({.kind = Kind::dead, .node = event.node, .other = other});
  }};
}

Sabotage no_acks(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    return std::get_if<ExchangeAck>(&message) == nullptr;
  }};
}

Sabotage no_first_ack(const Swarm&) {
  return {.tamper = [said = std::set<std::pair<std::size_t, std::uint64_t>>()](std::size_t from, std::size_t,
                                                                               Message& message) mutable {
    const auto* ack = std::get_if<ExchangeAck>(&message);
    return ack == nullptr || !said.insert({from, ack->counter}).second;
  }};
}

Sabotage early_ack(const Swarm&) {
  return {.on_event = [](Cluster& cluster, const Event& event) {
    if (event.kind != Kind::delivered) return;
    const auto* reply = std::get_if<ExchangeReply>(event.message);
    if (reply != nullptr && reply->status == ReplyStatus::done)
      cluster.send(event.node, event.other, ExchangeAck{reply->counter});
  }};
}

Sabotage no_undoing(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    const auto* ack = std::get_if<ExchangeAck>(&message);
    return ack == nullptr || ack->outcome != gossamer::Outcome::never;
  }};
}

/// Loses data that a dead daemon has left in its client's memory for the next one.
Sabotage lost_at_death(void (*lose)(Cluster::Client& client)) {
  return {.on_event = [lose](Cluster& cluster, const Event& event) {
    if (event.kind == Kind::daemon_died) lose(cluster.node(event.node).client);
  }};
}

Sabotage lost_records(const Swarm&) {
  return lost_at_death([](Cluster::Client& client) { client.kept.records.clear(); });
}

Sabotage lost_given_up(const Swarm&) {
  return lost_at_death([](Cluster::Client& client) { client.kept.given_up.counters.clear(); });
}

Sabotage lost_own_halves(const Swarm&) {
  return lost_at_death([](Cluster::Client& client) { client.kept.own_halves.clear(); });
}

Sabotage lost_settings(const Swarm&) {
  return lost_at_death([](Cluster::Client& client) { client.kept.settings = {}; });
}

/// Node 0 tells nobody of the settings.
Sabotage untold_settings(const Swarm&) {
  return {.tamper = [](std::size_t from, std::size_t, Message& message) {
    if (auto* info = std::get_if<JobInfo>(&message); info != nullptr && from == 0) info->settings = {};
    return true;
  }};
}

/// Node 0 always says that the run is over for it.
Sabotage early_end(const Swarm&) {
  return {.tamper = [](std::size_t from, std::size_t, Message& message) {
    if (auto* info = std::get_if<JobInfo>(&message); info != nullptr && from == 0) info->finishing = Finishing::over;
    return true;
  }};
}

/// Nobody hears of NaN, so the others wait at the end for replicas that nothing can mend.
Sabotage untold_nan(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    if (auto* info = std::get_if<JobInfo>(&message)) info->quarantined = false;
    return true;
  }};
}

/// A server that finishes is taken for a node that trains, so the workers' values are averaged with the server's.
Sabotage server_as_peer(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    if (auto* info = std::get_if<JobInfo>(&message); info != nullptr && info->finishing != Finishing::no)
      info->keeps = false;
    return true;
  }};
}

/// A node that may only follow is taken for a server, which owns a part of the fragments.
Sabotage follower_as_server(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    if (auto* info = std::get_if<JobInfo>(&message)) info->follows = false;
    return true;
  }};
}

/// A node that keeps the job is taken for one that trains, so others average with it.
Sabotage keeper_as_peer(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    if (auto* info = std::get_if<JobInfo>(&message)) info->keeps = false;
    // A request of the least weight would tell that its sender only takes.
    auto* const request = std::get_if<ExchangeRequest>(&message);
    if (request != nullptr && request->min_shift == max_shift_bound) --request->min_shift;
    return true;
  }};
}

/// Who counts for more counts for less.
Sabotage turned_weights(const Swarm&) {
  return {.tamper = [](std::size_t, std::size_t, Message& message) {
    auto* const request = std::get_if<ExchangeRequest>(&message);
    if (request != nullptr && request->weight > 0) request->weight = 1e3F / request->weight;
    return true;
  }};
}

Sabotage trusted_models(const Swarm&) {
  return {.options = [](ClusterOptions& options) { options.trusts_saved = true; }};
}

Sabotage both_answer(const Swarm&) {
  return {.options = [](ClusterOptions& options) { options.replica.crossing_rule = false; }};
}

Sabotage any_pace(const Swarm&) {
  return {.options = [](ClusterOptions& options) { options.replica.clock_pace = 8; }};
}

Sabotage no_mixing_budget(const Swarm&) {
  return {.options = [](ClusterOptions& options) { options.replica.mixing_budget = 1e6F; }};
}

/// Drops all further requests for a fragment to a partner that has once answered busy.
Sabotage busy_for_ever(const Swarm&) {
  using Asked = std::tuple<std::size_t, std::size_t, std::uint32_t>;
  return {.tamper = [busy = std::set<Asked>()](std::size_t from, std::size_t to, Message& message) mutable {
    const auto* reply = std::get_if<ExchangeReply>(&message);
    if (reply != nullptr && reply->status == ReplyStatus::busy) busy.insert({to, from, reply->fragment});
    const auto* request = std::get_if<ExchangeRequest>(&message);
    return request == nullptr || !busy.contains({from, to, request->fragment});
  }};
}

Sabotage never_heard(const Swarm&) {
  return {.tamper = [](std::size_t from, std::size_t to, Message& message) {
    return from + to != 1 || std::get_if<JobInfo>(&message) != nullptr;
  }};
}

Sabotage no_refutation(const Swarm&) {
  // A node's life begins with an incarnation that is a multiple of a million; refutations count on from there.
  return {.tamper_membership = [](std::size_t, std::size_t, MembershipMessage& message) {
    const auto first = [](std::uint64_t incarnation) { return incarnation % 1'000'000 == 0; };
    std::erase_if(message.rumours, [&](const Rumour& rumour) {
      return rumour.claim == Claim::alive && !first(rumour.subject.incarnation);
    });
    return first(message.incarnation);
  }};
}

Sabotage silence_for_the_dead(const Swarm&) {
  return {.tamper_membership = [buried = std::set<std::pair<std::size_t, NodeId>>()](
                                   std::size_t from, std::size_t to, MembershipMessage& message) mutable {
    for (const Rumour& rumour : message.rumours) {
      if (rumour.claim == Claim::dead) buried.insert({from, rumour.subject.node});
    }
    return !buried.contains({from, MembershipCluster::id(to)});
  }};
}

Sabotage talked_back_to_life(const Swarm&) {
  return {.tamper_membership = [](std::size_t, std::size_t, MembershipMessage& message) {
    for (Rumour& rumour : message.rumours) {
      if (rumour.claim != Claim::dead) continue;
      rumour.claim = Claim::alive;
      ++rumour.subject.incarnation;
      rumour.subject.address = MembershipCluster::address(MembershipCluster::number(rumour.subject.node));
    }
    return true;
  }};
}

constexpr SabotageRule rules[] = {
    {"weight", "a reply's weight changes on its way: the two ends move by different amounts", "exactly once: exchange",
     as_drawn, other_weight},
    {"sign", "one commit has the wrong sign", "exactly once: exchange", as_drawn, other_sign},
    {"lost-commit", "one commit is lost", "exactly once: exchange", as_drawn, lost_commit},
    {"applied-twice", "a reply is applied twice", "exactly once: exchange", as_drawn, applied_twice},
    {"answered-twice", "a replica forgets its replies, so that a repeated request is answered again",
     "exactly once: exchange", with_copies, forgotten_replies},
    {"collected-twice", "a client takes a correction over twice", "attribution", as_drawn, collected_twice},
    {"stray-write", "one element of one model changes", "attribution", as_drawn, stray_write},
    {"nan", "a model turns NaN that nobody made so", "numbers", as_drawn, nan_from_nowhere},
    {"dither", "the two ends of an exchange use dither of their own", "liveness", calm, own_dither},
    {"dead-partner", "a replica asks nodes that it was told are dead", "partners", as_drawn, asks_the_dead},
    {"no-ack", "acknowledgements never leave", "acknowledgement", as_drawn, no_acks},
    {"first-ack", "the first acknowledgement of each exchange does not leave", "acknowledgement", as_drawn,
     no_first_ack},
    {"early-ack", "a reply is acknowledged before it is committed", "acknowledgement", as_drawn, early_ack},
    {"no-undo", "a half that its initiator never takes is not undone", "exactly once: exchange", with_deaths,
     no_undoing},
    {"lost-records", "a daemon leaves its successor no records of its replies", "exactly once: exchange", with_deaths,
     lost_records},
    {"lost-own-halves", "nor which exchanges of its own were under way", "acknowledgement", with_deaths,
     lost_own_halves},
    {"lost-given-up", "nor which of them it has given up", "acknowledgement", with_deaths, lost_given_up},
    {"lost-settings", "nor the job's settings", "settings", with_settings, lost_settings},
    {"untold-settings", "a node tells nobody of the job's settings", "liveness", with_settings, untold_settings},
    {"any-pace", "a clock is followed at eight times the pace of the rest", "clocks: node", with_liar, any_pace},
    {"early-end", "a node says that the run is over while it trains", "the end", with_end, early_end},
    {"untold-nan", "nobody hears of NaN", "the end", with_nan_at_end, untold_nan},
    {"server-as-peer", "a server that finishes is taken for a node that trains", "the end", with_server,
     server_as_peer},
    {"keeper-as-peer", "a node that keeps the job is taken for one that trains", "keepers", with_keeper,
     keeper_as_peer},
    {"follower-as-server", "a node that may only follow is taken for a server", "the end", with_follower,
     follower_as_server},
    {"turned-weights", "replicas with more samples count for less", "weights", with_weights, turned_weights},
    {"damaged-model", "saved models are taken over unchecked", "restoring", with_saved, trusted_models},
    {"crossing", "two nodes that ask each other both answer", "crossing", with_many, both_answer},
    {"mixing-budget", "overlapping exchanges have no budget", "mixing budget", as_drawn, no_mixing_budget},
    {"busy-for-ever", "a partner that was busy once is not asked for that fragment again", "progress", with_nan,
     busy_for_ever},
    {"never-heard", "two nodes never hear each other", "liveness", calm, never_heard},
    {"no-refutation", "no refutation of a death arrives", "membership", with_pauses, no_refutation},
    {"silence", "nothing is said to a node that was held dead", "membership", with_isolation, silence_for_the_dead},
    {"undead", "the dead are talked back to life", "membership", with_a_death, talked_back_to_life},
};

}  // namespace

std::span<const SabotageRule> sabotage_rules() {
  return rules;
}

const SabotageRule* sabotage_called(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(rules), std::end(rules), [&](const SabotageRule& rule) { return rule.name == name; });
  return found == std::end(rules) ? nullptr : found;
}

HuntOutcome run_sabotage(const SabotageRule& rule, std::uint64_t seed) {
  Swarm swarm = draw_swarm(seed);
  rule.prepare(swarm);
  return run_scenario(swarm, nullptr, rule.make(swarm));
}

bool found_by_its_oracle(const SabotageRule& rule, const HuntOutcome& outcome) {
  return outcome.violation.find(": " + std::string(rule.oracle)) != std::string::npos;
}

}  // namespace gossamer::sim
