#include "tools/sim/hunt/exchange_rules.hpp"

#include <fmt/format.h>
#include <cmath>
#include <utility>

namespace gossamer::sim {

namespace {

using Kind = Cluster::Event::Kind;

double weight_of(int shift) {
  return std::ldexp(1.0, -shift);
}

}  // namespace

ExchangeRules::ExchangeRules(const Cluster& cluster, const gossip::ReplicaOptions& options)
    : cluster_(cluster), options_(options) {}

ExchangeRules::NodeState& ExchangeRules::state_of(std::size_t i) {
  while (nodes_.size() <= i)
    nodes_.push_back({.own = std::vector<std::optional<Own>>(cluster_.fragments())});
  return nodes_[i];
}

void ExchangeRules::on(const Cluster::Event& event) {
  NodeState& state = state_of(event.node);
  switch (event.kind) {
    case Kind::sent:
    case Kind::blocked:
      return left(event);
    case Kind::delivered:
      return delivered(event);
    case Kind::answering:
      state.kept[event.exchange] = cluster_.now_us();
      return;
    case Kind::answered:
      return answered(event);
    case Kind::concluded:
      return concluded(event);
    case Kind::turned:
      return turned(event.node);
    case Kind::dead:
      for (auto& own : state.own)
        if (own && own->partner == event.other) own.reset();
      return;
    case Kind::daemon_died:
    case Kind::let_go:
      return forget(event.node);
    case Kind::resumed:
      state.resumed_us = cluster_.now_us();
      return;
    default:
      return;
  }
}

void ExchangeRules::forget(std::size_t i) {
  nodes_[i] = {.own = std::vector<std::optional<Own>>(cluster_.fragments()), .resumed_us = nodes_[i].resumed_us};
}

ExchangeRules::Own* ExchangeRules::open(std::size_t i, std::uint32_t f) {
  std::optional<Own>& own = state_of(i).own[f];
  if (own && cluster_.now_us() - exchanges_[own->id].begun_us >= options_.lifetime_us) own.reset();  // it is given up
  return own ? &*own : nullptr;
}

// --- messages that leave ------------------------------------------------------------------------------------------

void ExchangeRules::left(const Cluster::Event& event) {
  if (const auto* request = std::get_if<ExchangeRequest>(event.message)) left(event, *request);
  if (const auto* reply = std::get_if<ExchangeReply>(event.message)) left(event, *reply);
  if (const auto* ack = std::get_if<ExchangeAck>(event.message)) left(event, *ack);
}

void ExchangeRules::left(const Cluster::Event& event, const ExchangeRequest& request) {
  const ExchangeId id{id_of(event.node), request.counter};
  const auto [found, first] = exchanges_.try_emplace(id);
  if (first) {
    found->second = {.initiator = event.node, .begun_us = cluster_.now_us(), .min_shift = request.min_shift};
    if (event.kind == Kind::blocked) return;  // the request could not leave
    state_of(event.node).own[request.fragment] =
        Own{.id = id, .partner = event.other, .weight = weight_of(request.min_shift)};
  }
}

void ExchangeRules::left(const Cluster::Event& event, const ExchangeReply& reply) {
  if (reply.status != ReplyStatus::done) return;
  const ExchangeId id{id_of(event.other), reply.counter};
  Exchange& exchange = exchanges_[id];
  if (exchange.heard && state_of(event.node).kept.contains(id))
    throw Violation({.node = event.node, .other = event.other, .fragment = reply.fragment, .exchange = id},
                    "kept replies: node {} says the reply of exchange {} again, which was acknowledged", event.node,
                    name_of(id));
  if (std::exchange(exchange.replied, true)) return;
  const double weight = weight_of(reply.shift);
  if (weight > weight_of(exchange.min_shift) || weight > options_.mixing_budget / 2) {
    throw Violation({.node = event.node, .other = event.other, .fragment = reply.fragment, .exchange = id},
                    "mixing budget: node {} answers exchange {} with a weight of {:.3g}, of {:.3g} asked for and half "
                    "of {:.3g} allowed",
                    event.node, name_of(id), weight, weight_of(exchange.min_shift), options_.mixing_budget);
  }
  Own* own = open(event.node, reply.fragment);
  if (own == nullptr) return;
  const gossip::ReplyCache& replies = cluster_.node(event.node).replica->book().replies();
  const bool kept = replies.standing(id) == gossip::ReplyCache::Standing::answered;
  own->answers += kept ? weight_of(replies.half(id).shift) : weight;
  const double all = own->answers + (own->partner == event.other ? 0 : own->weight);  // the partner refuses ours
  if (all <= options_.mixing_budget) return;
  throw Violation({.node = event.node, .other = event.other, .fragment = reply.fragment, .exchange = id},
                  "mixing budget: with its own exchange {} out, node {} has given weights of {:.3g} in all, of {:.3g} "
                  "allowed, with that of exchange {}",
                  name_of(own->id), event.node, all, options_.mixing_budget, name_of(id));
}

void ExchangeRules::left(const Cluster::Event& event, const ExchangeAck& ack) {
  const ExchangeId id{id_of(event.node), ack.counter};
  Exchange& exchange = exchanges_[id];
  state_of(event.node).unacknowledged.erase(id);
  if (ack.outcome == gossamer::Outcome::taken && !exchange.concluded) {
    throw Violation({.node = event.node, .other = event.other, .fragment = 0, .exchange = id},
                    "acknowledgement: node {} acknowledges exchange {}, which it has not committed", event.node,
                    name_of(id));
  }
  if (ack.outcome != gossamer::Outcome::never) return;
  exchange.denied = true;
  if (!exchange.committed) return;
  throw Violation({.node = event.node, .other = event.other, .fragment = 0, .exchange = id},
                  "acknowledgement: node {} says of exchange {}, which it has committed, that it never will",
                  event.node, name_of(id));
}

// --- messages that arrive, and their outcome ----------------------------------------------------------------------

void ExchangeRules::delivered(const Cluster::Event& event) {
  if (const auto* request = std::get_if<ExchangeRequest>(event.message)) {
    Exchange& exchange = exchanges_[{id_of(event.other), request->counter}];
    if (std::exchange(exchange.delivered, true) || request->fragment >= cluster_.fragments()) return;
    const Own* own = open(event.node, request->fragment);
    if (own != nullptr && own->partner == event.other) exchange.crossing = own->id;
  } else if (const auto* reply = std::get_if<ExchangeReply>(event.message)) {
    if (reply->status == ReplyStatus::done || reply->fragment >= cluster_.fragments()) return;
    std::optional<Own>& own = state_of(event.node).own[reply->fragment];
    if (own && own->id == ExchangeId{id_of(event.node), reply->counter}) own.reset();
  } else if (const auto* ack = std::get_if<ExchangeAck>(event.message)) {
    const ExchangeId id{id_of(event.other), ack->counter};
    if (state_of(event.node).kept.erase(id) > 0) exchanges_[id].heard = true;
  }
}

void ExchangeRules::answered(const Cluster::Event& event) {
  if (!event.done) {
    state_of(event.node).kept.erase(event.exchange);
    return;
  }
  Exchange& exchange = exchanges_[event.exchange];
  exchange.answered = true;
  if (!exchange.crossing) return;
  const Exchange& other = exchanges_[*exchange.crossing];
  if (!other.answered || other.crossing != event.exchange) return;
  throw Violation(
      {.node = event.node, .other = exchange.initiator, .fragment = event.fragment, .exchange = event.exchange},
      "crossing: nodes {} and {} asked each other, and both answered (exchanges {} and {})", event.node,
      exchange.initiator, name_of(event.exchange), name_of(*exchange.crossing));
}

void ExchangeRules::concluded(const Cluster::Event& event) {
  NodeState& state = state_of(event.node);
  Exchange& exchange = exchanges_[event.exchange];
  exchange.concluded = event.done;
  exchange.committed = event.done && event.commit;
  std::optional<Own>& own = state.own[event.fragment];
  if (own && own->id == event.exchange) own.reset();
  if (exchange.committed && exchange.denied)
    throw Violation(
        {.node = event.node, .other = exchange.initiator, .fragment = event.fragment, .exchange = event.exchange},
        "acknowledgement: node {} commits exchange {}, after it said that it never would", event.node,
        name_of(event.exchange));
  state.unacknowledged.insert(event.exchange);
}

void ExchangeRules::turned(std::size_t i) {
  NodeState& state = state_of(i);
  if (!cluster_.node(i).replica) return;
  const gossip::Replica& replica = *cluster_.node(i).replica;
  if (!state.unacknowledged.empty()) {
    const ExchangeId id = *state.unacknowledged.begin();
    throw Violation({.node = i, .other = i, .fragment = 0, .exchange = id},
                    "acknowledgement: node {} has concluded exchange {} and not acknowledged it", i, name_of(id));
  }
  const TimeUs patience_us = 2 * options_.info_period_us;
  if (cluster_.now_us() - state.resumed_us < patience_us) return;
  std::erase_if(state.kept, [&](const auto& item) {
    return cluster_.now_us() - item.second >= options_.lifetime_us + patience_us;
  });
  if (replica.book().replies().unacknowledged() <= state.kept.size()) return;
  throw Violation({.node = i, .other = i, .fragment = 0},
                  "kept replies: node {} keeps {} though only {} are neither acknowledged nor past their lifetime", i,
                  replica.book().replies().unacknowledged(), state.kept.size());
}

}  // namespace gossamer::sim
