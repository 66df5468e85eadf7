#include "tools/sim/hunt/average_scenario.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

#include "gossip/average/averaging.hpp"
#include "tools/sim/draw.hpp"
#include "tools/sim/network.hpp"

namespace gossamer::sim {

namespace {

using gossip::Averaging;
using gossip::Contribution;
using gossip::FoundingId;
using gossip::Participant;
using gossip::RoundPart;
using gossip::RoundPlan;

constexpr std::uint32_t average_fragments = 4;
constexpr TimeUs average_tick_us = 5'000;
constexpr TimeUs average_faults_us = 20 * us_per_s;
constexpr TimeUs average_settle_us = 10 * us_per_s;
constexpr TimeUs average_calm_us = 20 * us_per_s;
constexpr std::uint64_t calm_rounds = 5;
/// The failure detector finds each of its mistakes within this time.
constexpr TimeUs longest_mistake_us = 4 * us_per_s;

using RoundValues = std::array<float, average_fragments>;

/// Two groups that were founded apart may each have a round of the same number.
using RoundName = std::pair<FoundingId, std::uint64_t>;

struct AveragePeer {
  Participant id;
  std::unique_ptr<Averaging> averaging;
  bool alive = true;
  bool leaves = false;
  bool node_lives = false;  // true: only the process has died, and its node says so
  TimeUs paused_until_us = 0;
  std::map<std::uint64_t, RoundValues> contributions;  // by their number
  std::map<std::uint64_t, std::uint16_t> at_least;     // members that a contribution wants, by its number
  std::uint64_t number = 0;                            // number of the last contribution
  bool trains = false;
  std::array<std::map<Participant, float>, average_fragments> came;
  std::array<std::vector<float>, average_fragments> in_order_of_coming;
  RoundValues results{};
  RoundValues last_results{};
  RoundValues set_aside{};  // results of the accepted plan while another is carried out
  std::set<RoundName> used;
  std::optional<FoundingId> given_in;  // the last group that has a plan with the present contribution
  std::set<NodeId> cut_off;            // nodes that this one has no link to while it takes them for dead
  std::unique_ptr<Averaging> before;
};

class AverageRun {
 public:
  AverageRun(std::uint64_t seed, AverageFault fault);
  AverageOutcome run();

 private:
  struct Round {
    RoundPlan plan;
    RoundValues results{};
  };

  std::size_t add_peer();
  void tick(std::size_t i);
  template <class Do>
  void act(std::size_t i, Do action);
  void carry_out(std::size_t i, Averaging::Actions& out);
  void send_part(std::size_t i, const Averaging::SendPart& part);
  void part_came(std::size_t i, const Participant& from, const RoundName& round, const RoundPart& part, float value);
  void sum(std::size_t i, std::uint32_t f);
  void use(std::size_t i, std::uint64_t round, const RoundPlan& plan);
  [[nodiscard]] bool has_enough_members(const RoundName& name, const RoundPlan& plan) const;
  void look_at_contribution(std::size_t i);
  void when_awake(std::size_t i, std::function<void()> action);
  void deliver(std::size_t i, std::size_t j, std::function<void()> action);
  [[nodiscard]] float mean_of(const RoundPlan& plan, std::uint32_t f) const;
  [[nodiscard]] std::size_t number_of(const Participant& id) const { return by_node_.at(id.node); }
  void link(std::size_t i, std::size_t j);
  [[nodiscard]] std::uint64_t rounds_of(const FoundingId& founding) const;
  [[nodiscard]] const AveragePeer* first_of_oldest_group() const;
  [[nodiscard]] bool may_lose(std::size_t i) const;
  [[nodiscard]] bool has_quorum(const Averaging& averaging, std::size_t without) const;
  void say_nobody(std::size_t i, std::size_t to, bool about_node);
  void tell_dead(std::size_t i, std::size_t j, TimeUs delay_us);
  void take_for_dead(std::size_t i, std::size_t j, TimeUs while_us, bool cuts);
  void mistake();
  void wrong();
  using RoundsOf = std::map<FoundingId, std::uint64_t>;
  [[nodiscard]] RoundsOf rounds_now() const;
  void judge(const RoundsOf& rounds_then);
  void judge_others(const RoundsOf& rounds_then) const;

  AverageFault fault_;
  gossip::Random random_;
  Schedule schedule_;
  std::unique_ptr<Network> network_;
  std::deque<AveragePeer> peers_;
  std::map<NodeId, std::size_t> by_node_;
  gossip::AveragingOptions options_;
  std::map<RoundName, Round> rounds_;
  std::set<std::pair<FoundingId, Contribution>> in_rounds_;
  std::set<Contribution> taken_;  // by any group
  std::set<std::pair<RoundName, gossip::Ballot>> plans_;
  TimeUs training_us_;
  std::uint64_t most_wanted_ = 1;  // the most members that any contribution wants
  TimeUs late_links_us_ = 0;
  bool all_say_who_is_gone_ = false;  // processes die, and no nodes
  bool quorums_may_die_ = false;      // a group may stand still in the end, but no other one
  double mistakes_a_plan_ = 0;        // how often the failure detector begins to be wrong while a plan is carried out
  std::uint64_t faults_ = 0;
  AverageOutcome outcome_;
};

AverageRun::AverageRun(std::uint64_t seed, AverageFault fault) : fault_(fault), random_(seed) {
  if (chance(random_, 0.3)) options_.grace_us = between(random_, 10'000, us_per_s);
  options_.retry_us = between(random_, 20'000, 300'000);
  options_.unlinked_us = 3 * us_per_s;
  training_us_ = between(random_, 1'000, 200'000);
  if (chance(random_, 0.4)) most_wanted_ = 2 + random_.below(3);
  network_ = std::make_unique<Network>(
      schedule_, gossip::Random(random_.next()), 0,
      PathConditions{.latency_us = between(random_, 200, 20'000), .jitter_us = between(random_, 0, 20'000)});
  if (chance(random_, 0.5)) late_links_us_ = between(random_, 0, chance(random_, 0.5) ? us_per_s : longest_mistake_us);
  if (chance(random_, 0.5)) mistakes_a_plan_ = uniform(random_, 0.001, 0.05);
  all_say_who_is_gone_ = chance(random_, 0.3);
  quorums_may_die_ = !all_say_who_is_gone_ && chance(random_, 0.15);
  const auto count = static_cast<std::size_t>(between(random_, 1, 7));
  for (std::size_t i = 0; i < count; ++i)
    add_peer();
}

/// Links come up one after the other, so that two groups may be founded.
void AverageRun::link(std::size_t i, std::size_t j) {
  schedule_.after(late_links_us_ == 0 ? 0 : between(random_, 0, late_links_us_), [this, i, j] {
    if (!peers_[i].alive || !peers_[j].alive) return;
    act(i, [&](auto& averaging, auto& out) { averaging.link_up(peers_[j].id.node, out); });
  });
}

std::size_t AverageRun::add_peer() {
  const std::size_t i = peers_.size();
  AveragePeer& peer = peers_.emplace_back();
  for (std::uint8_t& byte : peer.id.node.bytes)
    byte = static_cast<std::uint8_t>(random_.next());
  peer.id.life = 2 + random_.below(3);
  by_node_[peer.id.node] = i;
  network_->add_node();
  peer.averaging = std::make_unique<Averaging>(options_, peer.id, average_fragments);
  for (std::size_t j = 0; j < i; ++j) {
    if (!peers_[j].alive) continue;
    link(i, j);
    link(j, i);
  }
  peer.averaging->allow_founding(schedule_.now_us(), schedule_.now_us() + between(random_, 1, 1'000));
  peer.averaging->join();
  schedule_.after(between(random_, 0, average_tick_us), [this, i] { tick(i); });
  return i;
}

void AverageRun::when_awake(std::size_t i, std::function<void()> action) {
  if (!peers_[i].alive && !peers_[i].node_lives) return;
  if (peers_[i].paused_until_us <= schedule_.now_us()) return action();
  schedule_.at(peers_[i].paused_until_us, [this, i, action = std::move(action)] { when_awake(i, action); });
}

void AverageRun::deliver(std::size_t i, std::size_t j, std::function<void()> action) {
  if (peers_[i].cut_off.contains(peers_[j].id.node)) return;
  network_->send(i, j, 100, [this, j, action = std::move(action)] { when_awake(j, action); });
}

void AverageRun::tick(std::size_t i) {
  if (!peers_[i].alive) return;
  when_awake(i, [this, i] { act(i, [&](auto& averaging, auto& out) { averaging.tick(schedule_.now_us(), out); }); });
  schedule_.after(average_tick_us, [this, i] { tick(i); });
}

template <class Do>
void AverageRun::act(std::size_t i, Do action) {
  AveragePeer& peer = peers_[i];
  if (!peer.alive) return;
  Averaging::Actions out;
  action(*peer.averaging, out);
  peer.averaging->check_invariants();
  carry_out(i, out);
  if (peer.alive) look_at_contribution(i);
}

void AverageRun::carry_out(std::size_t i, Averaging::Actions& out) {
  AveragePeer& peer = peers_[i];
  for (const auto& [round, plan, set_aside] : out.applied) {
    if (set_aside) peer.results = peer.set_aside;
    use(i, round, plan);
    peer.last_results = peer.results;
  }
  if (out.entered) {
    ++outcome_.entered;
    if (!rounds_.contains({peer.averaging->founding(), out.entered->round}))
      throw std::runtime_error(fmt::format("node {} enters after round {}, which nobody has", i, out.entered->round));
  }
  if (out.set_aside) peer.set_aside = peer.results;
  if (out.new_plan) {
    if (const RoundPlan* plan = peer.averaging->plan()) {
      plans_.emplace(RoundName(peer.averaging->founding(), peer.averaging->round()), plan->made_at);
      if (std::ranges::find(plan->contributions, Contribution{peer.id, peer.number}) != plan->contributions.end())
        peer.given_in = peer.averaging->founding();
      if (schedule_.now_us() < average_faults_us && chance(random_, mistakes_a_plan_)) mistake();
    }
    if (fault_ != AverageFault::stale_parts) peer.came = {};
    peer.in_order_of_coming = {};
    peer.results = out.take_back ? peer.set_aside : RoundValues{};
  }
  for (const auto& [to, message] : out.send) {
    auto copy = std::make_shared<gossip::AverageMessage>(message);
    if (auto* enter = std::get_if<gossip::RoundEnter>(&copy->body); enter && fault_ == AverageFault::taken_unknown)
      enter->taken.clear();
    if (auto* ready = std::get_if<gossip::RoundReady>(&copy->body); ready && fault_ == AverageFault::too_few)
      ready->at_least = 0;
    const std::size_t j = number_of(to);
    if (std::holds_alternative<gossip::RoundHeard>(copy->body) && fault_ == AverageFault::groups_apart) continue;
    if (std::holds_alternative<gossip::RoundNobody>(copy->body) && fault_ == AverageFault::left_unsaid) continue;
    const bool to_node = to.life == 0;
    deliver(i, j, [this, i, j, to_node, from = peer.id, copy] {
      if (!peers_[j].alive) return say_nobody(j, i, to_node);
      act(j, [&](auto& averaging, auto& next) { averaging.received(from, *copy, next); });
    });
  }
  for (const auto& part : out.parts)
    send_part(i, part);
  for (const std::uint32_t f : out.sum) {
    const gossip::Ballot made_at = peer.averaging->plan()->made_at;
    const auto delay_us = between(random_, 0, 2'000);
    schedule_.after(delay_us, [this, i, f, made_at] {
      when_awake(i, [this, i, f, made_at] {
        act(i, [&](auto& averaging, auto& next) {
          if (averaging.plan() == nullptr || averaging.plan()->made_at != made_at) return;
          sum(i, f);
          averaging.summed(f, made_at, next);
        });
      });
    });
  }
  if (!out.left || !peer.leaves) return;
  peer.alive = false;
  peer.node_lives = all_say_who_is_gone_;
  for (std::size_t j = 0; j < peers_.size(); ++j)
    tell_dead(j, i, between(random_, 0, us_per_s));
}

void AverageRun::send_part(std::size_t i, const Averaging::SendPart& part) {
  AveragePeer& peer = peers_[i];
  const std::uint32_t f = part.part.fragment;
  float value = part.round == peer.averaging->round() ? peer.results[f] : peer.last_results[f];
  const RoundPlan* plan = peer.averaging->plan();
  const bool is_aside = plan == nullptr || plan->made_at != part.part.made_at;
  if (part.round == peer.averaging->round() && is_aside) value = peer.set_aside[f];
  if (part.part.kind == RoundPart::Kind::contribution) value = peer.contributions.at(peer.number)[f];
  const std::size_t j = number_of(part.to);
  deliver(i, j,
          [this, j, from = peer.id, round = RoundName(peer.averaging->founding(), part.round), header = part.part,
           value] { part_came(j, from, round, header, value); });
}

void AverageRun::part_came(std::size_t i, const Participant& from, const RoundName& round, const RoundPart& part,
                           float value) {
  if (round.first != peers_[i].averaging->founding()) return;
  act(i, [&](auto& averaging, auto& out) {
    const bool result = part.kind == RoundPart::Kind::result;
    AveragePeer& peer = peers_[i];
    const float before = peer.results[part.fragment];
    if (result) peer.results[part.fragment] = value;  // received() may use the results at once if this part is the last
    if (averaging.received(from, round.second, part, out)) {
      if (!result) peer.came[part.fragment].emplace(from, value);
      if (!result) peer.in_order_of_coming[part.fragment].push_back(value);
    } else if (result) {
      peer.results[part.fragment] = before;
    }
  });
}

void AverageRun::sum(std::size_t i, std::uint32_t f) {
  AveragePeer& peer = peers_[i];
  const RoundPlan& plan = *peer.averaging->plan();
  float sum = 0;
  const auto own = [&](const Participant& node) { return node == peer.id; };
  if (fault_ == AverageFault::as_they_come) {
    for (const float value : peer.in_order_of_coming[f])
      sum += value;
    if (std::ranges::any_of(plan.contributions, own, &Contribution::from)) sum += peer.contributions.at(peer.number)[f];
  } else {
    for (const Contribution& contribution : plan.contributions)
      sum += own(contribution.from) ? peer.contributions.at(peer.number)[f] : peer.came[f].at(contribution.from);
  }
  peer.results[f] = sum / static_cast<float>(plan.contributions.size());
}

float AverageRun::mean_of(const RoundPlan& plan, std::uint32_t f) const {
  float sum = 0;
  for (const auto& [participant, number] : plan.contributions)
    sum += peers_[number_of(participant)].contributions.at(number)[f];
  return sum / static_cast<float>(plan.contributions.size());
}

void AverageRun::use(std::size_t i, std::uint64_t round, const RoundPlan& plan) {
  AveragePeer& peer = peers_[i];
  const auto fail = [&](const char* what) {
    throw std::runtime_error(fmt::format("round {}: node {} {}", round, i, what));
  };
  const RoundName name(peer.averaging->founding(), round);
  if (!peer.used.insert(name).second) fail("uses it twice");
  const auto [known, is_first] = rounds_.try_emplace(name, Round{plan, peer.results});
  if (known->second.plan != plan) fail("has another plan than others");
  if (known->second.results != peer.results && !plan.contributions.empty()) fail("has other results than others");
  if (!is_first) return;
  for (std::uint32_t f = 0; f < average_fragments && !plan.contributions.empty(); ++f)
    if (peer.results[f] != mean_of(plan, f)) fail("has not the mean of the contributions");
  for (const Contribution& contribution : plan.contributions) {
    if (!in_rounds_.emplace(name.first, contribution).second) fail("has a contribution that a round before had");
    if (!taken_.insert(contribution).second) fail("has a contribution that a round of another group has");
  }
  if (!std::ranges::is_sorted(plan.contributions)) fail("has contributions out of order");
  if (!has_enough_members(name, plan)) fail("has a contribution that wants more members");
  outcome_.contributions += plan.contributions.size();
}

/// Whether each contribution's wanted number of members is reached by the members that were in the round before.
bool AverageRun::has_enough_members(const RoundName& name, const RoundPlan& plan) const {
  const auto before = rounds_.find({name.first, name.second - 1});
  const auto stays = [&](const Participant& one) {
    return before == rounds_.end() || std::ranges::binary_search(before->second.plan.members, one);
  };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(plan.members, stays));
  return std::ranges::all_of(plan.contributions, [&](const Contribution& one) {
    return peers_[number_of(one.from)].at_least.at(one.number) <= count;
  });
}

/// A contribution that the member lets go must be in a round. Or the member has gone to another group, and cannot know
/// whether a round of the former group has the contribution. It then trains, and has the next contribution.
void AverageRun::look_at_contribution(std::size_t i) {
  AveragePeer& peer = peers_[i];
  if (fault_ == AverageFault::early && peer.averaging->plan() != nullptr) {
    const RoundPlan& plan = *peer.averaging->plan();
    bool all = !plan.contributions.empty();
    for (const float value : peer.results)
      all = all && value != 0;
    const RoundName name(peer.averaging->founding(), peer.averaging->round());
    if (all && !peer.used.contains(name)) {
      use(i, name.second, plan);
      peer.used.erase(name);
    }
  }
  if (peer.averaging->contribution() || peer.trains || peer.leaves) return;
  if (peer.number > 0 && !taken_.contains({peer.id, peer.number})) {
    if (!peer.given_in || *peer.given_in == peer.averaging->founding())
      throw std::runtime_error(fmt::format("node {}'s contribution {} is lost", i, peer.number));
    ++outcome_.unknown;
    if (fault_ == AverageFault::given_again)
      return act(i, [&](auto& averaging, auto& out) {
        averaging.contribute(peer.number, peer.at_least.at(peer.number), out);
      });
  }
  peer.given_in.reset();
  peer.trains = true;
  schedule_.after(between(random_, 0, training_us_), [this, i] {
    when_awake(i, [this, i] {
      AveragePeer& trained = peers_[i];
      trained.trains = false;
      if (trained.leaves) return;
      RoundValues& values = trained.contributions[++trained.number];
      for (float& value : values)
        value = static_cast<float>(uniform(random_, -1, 1));
      if (trained.averaging->contribution())
        throw std::runtime_error(fmt::format("node {} has a contribution again that it had let go", i));
      const auto wanted = static_cast<std::uint16_t>(1 + random_.below(most_wanted_));
      trained.at_least[trained.number] = wanted;
      act(i, [&](auto& averaging, auto& out) { averaging.contribute(trained.number, wanted, out); });
    });
  });
}

// --- faults -------------------------------------------------------------------------------------------------------

/// Whether, without process i, a quorum of the voters of every member's round is still alive.
bool AverageRun::may_lose(std::size_t i) const {
  return std::ranges::all_of(peers_, [&](const AveragePeer& peer) {
    return !peer.alive || !peer.averaging->is_member() || has_quorum(*peer.averaging, i);
  });
}

bool AverageRun::has_quorum(const Averaging& averaging, std::size_t without) const {
  std::set<Participant> alive;
  for (const Participant& id : averaging.voters()) {
    const AveragePeer& voter = peers_[number_of(id)];
    if (number_of(id) != without && voter.alive && !voter.leaves && voter.averaging->is_member() &&
        voter.averaging->founding() == averaging.founding())
      alive.insert(id);
  }
  return averaging.is_quorum(alive);
}

/// Sends what the node of a dead process answers in its place.
void AverageRun::say_nobody(std::size_t i, std::size_t to, bool about_node) {
  gossip::Participant nobody = peers_[i].id;
  if (about_node) nobody.life = gossip::nobodys_life;
  deliver(i, to, [this, to, nobody] {
    act(to, [&](auto& averaging, auto& next) {
      averaging.received(nobody, {.founding = {}, .round = 0, .body = gossip::RoundNobody{}}, next);
    });
  });
}

/// Tells process i that j is dead. If j is alive, the failure detector is wrong, and finds that out later.
void AverageRun::tell_dead(std::size_t i, std::size_t j, TimeUs delay_us) {
  if (i == j) return;
  schedule_.after(delay_us, [this, i, j] {
    when_awake(i, [this, i, j] {
      act(i, [&](auto& averaging, auto& out) {
        averaging.link_down(peers_[j].id.node);
        averaging.node_dead(peers_[j].id.node, out);
      });
      schedule_.after(between(random_, 0, us_per_s), [this, i, j] {
        if (!peers_[i].alive || !peers_[j].alive) return;
        peers_[i].averaging->node_alive(peers_[j].id.node);
        act(i, [&](auto& averaging, auto& out) { averaging.link_up(peers_[j].id.node, out); });
      });
    });
  });
}

/// Process i takes j, which may be alive, for dead. If `cuts`, it sends j nothing meanwhile.
void AverageRun::take_for_dead(std::size_t i, std::size_t j, TimeUs while_us, bool cuts) {
  schedule_.after(between(random_, 0, 50'000), [this, i, j, while_us, cuts] {
    const NodeId node = peers_[j].id.node;
    if (cuts) peers_[i].cut_off.insert(node);
    act(i, [&](auto& averaging, auto& out) {
      averaging.link_down(node);
      averaging.node_dead(node, out);
    });
    schedule_.after(while_us, [this, i, j, node] {
      peers_[i].cut_off.erase(node);
      if (!peers_[i].alive || (!peers_[j].alive && !peers_[j].node_lives)) return;
      peers_[i].averaging->node_alive(node);
      act(i, [&](auto& averaging, auto& out) { averaging.link_up(node, out); });
    });
  });
}

/// The failure detector is wrong for a while: some processes are dead for some of the others, in any directions.
void AverageRun::mistake() {
  const TimeUs longest_us = between(random_, 0, longest_mistake_us);
  const double suspects = uniform(random_, 0.1, 1);
  const double believers = uniform(random_, 0.1, 1);
  const bool cuts = chance(random_, 0.7);
  const bool both_ways = chance(random_, 0.5);
  for (std::size_t j = 0; j < peers_.size(); ++j) {
    if (!peers_[j].alive || !chance(random_, suspects)) continue;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (i == j || !peers_[i].alive || !chance(random_, believers)) continue;
      const TimeUs while_us = chance(random_, 0.5) ? longest_us : between(random_, 0, longest_us);
      take_for_dead(i, j, while_us, cuts);
      if (both_ways) take_for_dead(j, i, while_us, cuts);
    }
  }
  ++outcome_.mistakes;
}

void AverageRun::wrong() {
  ++faults_;
  const auto i = static_cast<std::size_t>(random_.below(peers_.size()));
  AveragePeer& peer = peers_[i];
  if (fault_ == AverageFault::amnesia && peer.alive) {
    if (peer.before && chance(random_, 0.5)) *peer.averaging = *peer.before;
    peer.before = std::make_unique<Averaging>(*peer.averaging);
  }
  switch (random_.next() % 8) {
    case 0:
      if (!peer.alive) break;
      // Where all nodes say who is gone, the others learn that a round has no quorum any more.
      if (!all_say_who_is_gone_ && !quorums_may_die_ && !may_lose(i)) break;
      ++outcome_.deaths;
      peer.alive = false;
      peer.node_lives = all_say_who_is_gone_ || chance(random_, 0.3);
      for (std::size_t j = 0; j < peers_.size() && !peer.node_lives; ++j)
        tell_dead(j, i, between(random_, 0, us_per_s));
      break;
    case 1:
      if (peer.alive) peer.paused_until_us = schedule_.now_us() + between(random_, 0, us_per_s);
      break;
    case 2:
      if (!peer.alive) break;
      tell_dead(static_cast<std::size_t>(random_.below(peers_.size())), i, 0);
      break;
    case 3:
      if (!peer.alive || peer.leaves || !may_lose(i)) break;
      peer.leaves = true;
      act(i, [](auto& averaging, auto& out) { averaging.leave(out); });
      break;
    case 4:
      if (std::ranges::count_if(peers_, &AveragePeer::alive) > 9) break;
      add_peer();
      break;
    case 5:
    case 6:
      mistake();
      break;
    default: {
      std::vector<int> group(peers_.size());
      for (int& one : group)
        one = chance(random_, 0.3) ? 1 : 0;
      network_->partition(group);
      schedule_.after(between(random_, 0, us_per_s), [this] { network_->heal(); });
    }
  }
}

AverageOutcome AverageRun::run() {
  schedule_.run_until(2 * us_per_s);
  network_->set_default(with_faults(network_->path(0, 0), random_, 0.15));
  const double between_us = uniform(random_, 0.03, 2) * us_per_s;
  while (schedule_.now_us() < average_faults_us) {
    schedule_.run_until(schedule_.now_us() + static_cast<TimeUs>(exponential(random_, between_us)) + 1);
    wrong();
  }
  network_->heal();
  network_->set_default({.latency_us = 1'000});
  late_links_us_ = 0;
  schedule_.run_until(schedule_.now_us() + longest_mistake_us);
  const auto stays = [](const AveragePeer& peer) { return peer.alive && !peer.leaves; };
  while (static_cast<std::uint64_t>(std::ranges::count_if(peers_, stays)) < most_wanted_)
    add_peer();
  schedule_.run_until(schedule_.now_us() + average_settle_us);
  const RoundsOf rounds_then = rounds_now();
  schedule_.run_until(schedule_.now_us() + average_calm_us);
  judge(rounds_then);
  std::set<FoundingId> groups;
  for (const auto& [name, round] : rounds_)
    groups.insert(name.first);
  outcome_.groups = groups.size();
  outcome_.events = schedule_.events();
  outcome_.rounds = rounds_.size();
  outcome_.repeated = plans_.size() - std::min(plans_.size(), rounds_.size());
  return outcome_;
}

const AveragePeer* AverageRun::first_of_oldest_group() const {
  const AveragePeer* first = nullptr;
  for (const AveragePeer& peer : peers_) {
    if (!peer.alive || !peer.averaging->is_member()) continue;
    if (first == nullptr || peer.averaging->founding() < first->averaging->founding()) first = &peer;
  }
  return first;
}

/// How many rounds the group has committed.
std::uint64_t AverageRun::rounds_of(const FoundingId& founding) const {
  const auto next = rounds_.lower_bound({founding, std::numeric_limits<std::uint64_t>::max()});
  if (next == rounds_.begin() || std::prev(next)->first.first != founding) return 0;
  return std::prev(next)->first.second;
}

AverageRun::RoundsOf AverageRun::rounds_now() const {
  RoundsOf rounds;
  for (const auto& [name, round] : rounds_)
    rounds[name.first] = name.second;
  return rounds;
}

/// Where the oldest group has no quorum any more, other groups that have one go on.
void AverageRun::judge_others(const RoundsOf& rounds_then) const {
  for (const auto& [founding, then] : rounds_then) {
    const auto goes_on = [&](const AveragePeer& peer) {
      return peer.alive && peer.averaging->is_member() && peer.averaging->founding() == founding &&
             peer.averaging->round() == rounds_of(founding) + 1 && has_quorum(*peer.averaging, peers_.size());
    };
    if (most_wanted_ == 1 && std::ranges::any_of(peers_, goes_on) && rounds_of(founding) < then + calm_rounds)
      throw std::runtime_error("a group that has a quorum stands still, as an older one does");
  }
}

void AverageRun::judge(const RoundsOf& rounds_then) {
  if (std::ranges::none_of(peers_, &AveragePeer::alive)) return;
  const AveragePeer* const first = first_of_oldest_group();
  if (first == nullptr) throw std::runtime_error("nobody is a member, and nobody founds");
  const FoundingId founding = first->averaging->founding();
  const std::uint64_t rounds = rounds_of(founding);
  const auto is_furthest = [&](const AveragePeer& peer) {
    return peer.alive && peer.averaging->is_member() && peer.averaging->founding() == founding &&
           peer.averaging->round() == rounds + 1;
  };
  const auto furthest = std::ranges::find_if(peers_, is_furthest);
  const bool has_lost_quorum = furthest == peers_.end() || !has_quorum(*furthest->averaging, peers_.size());
  if (has_lost_quorum && !all_say_who_is_gone_) {
    ++outcome_.blocked;  // several voters of a round died at once, after the round was agreed on
    return judge_others(rounds_then);
  }
  const auto then = rounds_then.find(founding);
  const std::uint64_t since = rounds - (then != rounds_then.end() ? then->second : 0);
  if (since < calm_rounds) {
    throw std::runtime_error(
        fmt::format("after the faults only {} rounds were committed in {} s", since, average_calm_us / us_per_s));
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const AveragePeer& peer = peers_[i];
    if (!peer.alive) continue;
    if (!peer.averaging->is_member()) throw std::runtime_error(fmt::format("node {} is no member", i));
    if (peer.averaging->founding() != founding) throw std::runtime_error(fmt::format("node {} is in another group", i));
    if (peer.averaging->round() + 1 < rounds)
      throw std::runtime_error(fmt::format("node {} is in round {}, others in {}", i, peer.averaging->round(), rounds));
  }
}

}  // namespace

AverageOutcome run_average_scenario(std::uint64_t seed, AverageFault fault) {
  return AverageRun(seed, fault).run();
}

}  // namespace gossamer::sim
