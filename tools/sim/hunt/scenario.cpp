#include "tools/sim/hunt/scenario.hpp"

#include <fmt/format.h>
#include <cmath>
#include <limits>

#include "tools/sim/draw.hpp"
#include "tools/sim/hunt/exchange_rules.hpp"
#include "tools/sim/hunt/overlay_membership.hpp"
#include "tools/sim/hunt/overlay_oracle.hpp"
#include "tools/sim/hunt/progress.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t max_arrivals = 3;
constexpr std::size_t trained_elements = 64;     // elements trained in one step, in turn over the model
constexpr TimeUs leave_grace_us = 2 * us_per_s;  // a draining daemon ends after this time anyway
constexpr TimeUs look_us = 100'000;              // how often the end of a phase is looked for
constexpr double most_wide = 0.5;                // the most wide blocks, as a share of those exchanged
constexpr std::uint64_t least_blocks = 500;      // with fewer blocks the share is not checked
constexpr TimeUs longest_faults_us = 30 * us_per_s;
constexpr double agreed = 1e-8;       // mean square distance over mean square value
constexpr double least_share = 0.95;  // the least share of an equal share of what the last program learned
constexpr double usual_step = 0.04;   // that program's usual step, as a share of its last step
constexpr double by_chance = 4;       // standard deviations

/// A number between low and high, with every order of magnitude equally likely.
double drawn(gossip::Random& random, double low, double high) {
  return std::exp(uniform(random, std::log(low), std::log(high)));
}
TimeUs drawn_us(gossip::Random& random, double low_us, double high_us) {
  return std::llround(drawn(random, low_us, high_us));
}

/// Whether replicas clip although nobody trains. They may take too long to agree, because a threshold falls with the
/// other replicas' distances.
bool clips_at_rest(const ClusterOptions& cluster) {
  return cluster.certified || (cluster.replica.clip > 0 && cluster.replica.clip < gossip::loose_clip);
}

void draw_network(gossip::Random& random, Swarm& swarm) {
  const auto maybe = [&] { return chance(random, 0.5); };
  swarm.path.latency_us = drawn_us(random, 50, 200'000);
  if (swarm.path.latency_us > 20'000 && maybe()) swarm.path.latency_us /= 10;
  if (maybe()) swarm.path.jitter_us = drawn_us(random, 50, 2.0 * static_cast<double>(swarm.path.latency_us));
  if (maybe()) swarm.path.loss = drawn(random, 0.001, 0.2);
  if (maybe()) swarm.path.duplicate = drawn(random, 0.01, 0.3);
  if (maybe()) swarm.path.reorder = drawn(random, 0.01, 0.3);
  if (chance(random, 0.3)) swarm.node_bytes_per_s = drawn(random, 1e6, 1e9);
  if (maybe()) swarm.full = drawn(random, 0.003, 0.2);
  if (chance(random, 0.3)) swarm.behind_nat = 0.4;
  // A real connection loses a message only by breaking. In the other runs, lost messages are sent again.
  swarm.loss_breaks_links = maybe();
  if (swarm.loss_breaks_links) swarm.path.loss = std::min(swarm.path.loss, 0.02);
}

void draw_rules(gossip::Random& random, gossip::ReplicaOptions& replica) {
  using gossip::PartnerPolicy;
  if (chance(random, 0.3)) {
    constexpr PartnerPolicy policies[] = {
        PartnerPolicy::ring,    PartnerPolicy::torus, PartnerPolicy::hypercube, PartnerPolicy::base,
        PartnerPolicy::regular, PartnerPolicy::hub,   PartnerPolicy::weighted,  PartnerPolicy::one_peer_exponential};
    replica.partners.policy = policies[random.below(std::size(policies))];
  }
  if (chance(random, 0.1)) replica.outer = {.momentum = 0.5F, .period_us = 500'000};
  if (chance(random, 0.2)) replica.clip = 3;
  if (chance(random, 0.2)) replica.bytes_per_s = drawn(random, 20'000, 1e6);
  if (chance(random, 0.2)) replica.link_bytes_per_s = drawn(random, 10'000, 1e6);
}

void draw_deeds(gossip::Random& random, Swarm& swarm) {
  for (std::size_t deed = 0; deed < deed_names.size(); ++deed) {
    if (chance(random, 0.4)) swarm.deeds.insert(static_cast<Deed>(deed));
  }
  swarm.between_us = drawn_us(random, 20'000, 1e6);
  swarm.lasting_us = drawn_us(random, 30'000, 1.5e6);
  swarm.faults_us = drawn_us(random, 2e6, 10e6);
}

/// Draws from a seed of its own, so that the other draws do not depend on it.
void draw_overlay(gossip::Random random, Swarm& swarm) {
  swarm.membership = chance(random, 0.5);
  if (!swarm.membership) return;
  const TimeUs shortest_us = 2 * (swarm.path.latency_us + swarm.path.jitter_us);
  swarm.probe_interval_us = drawn_us(random, 50'000, 300'000) + shortest_us;
  swarm.one_stays_dead = chance(random, 0.5);
  if (!chance(random, 0.3)) return;
  swarm.full_view_limit = 1 + random.below(4);
  // The other policies need nodes that all know the same participants.
  auto& policy = swarm.cluster.replica.partners.policy;
  if (policy != gossip::PartnerPolicy::weighted) policy = gossip::PartnerPolicy::random;
}

/// Draws, from its own seed, whether some replicas are lost to NaN for long, so that the others have few to exchange
/// with. Half of the time no other faults happen.
void draw_nan(gossip::Random random, Swarm& swarm) {
  if (swarm.nodes < 3 || !chance(random, 0.4)) return;
  swarm.nan_stays = chance(random, 0.5) ? swarm.nodes - 2 : 1 + random.below(swarm.nodes - 2);
  if (!chance(random, 0.5)) return;
  std::erase_if(swarm.deeds, [](Deed deed) { return deed != Deed::nan; });
  swarm.faults_us = std::min(2 * allowed_us(swarm), longest_faults_us);
}

/// Draws, from its own seed, whether nodes keep the job without training it, and whether owners are asked.
void draw_keepers(gossip::Random random, Swarm& swarm) {
  if (chance(random, 0.25)) swarm.keepers = 1 + random.below(std::min<std::size_t>(2, swarm.nodes - 1));
  const bool sees_all = !swarm.membership || swarm.full_view_limit >= swarm.nodes + max_arrivals;
  if (!sees_all || !chance(random, swarm.keepers > 0 ? 0.7 : 0.1)) {
    // The training programs average by themselves, and keepers follow them.
    if (swarm.keepers > 0 && chance(random, 0.5)) swarm.cluster.replica.exchanges = false;
    return;
  }
  swarm.cluster.replica.partners.policy = gossip::PartnerPolicy::owner;
  swarm.liveness_us *= 3;  // all of a fragment's exchanges are with one node, which may have a small byte budget
}

/// Draws, from its own seed, whether nodes that keep the job may only follow it.
void draw_followers(gossip::Random random, Swarm& swarm) {
  if (swarm.keepers > 0 && chance(random, 0.3)) swarm.followers = 1 + random.below(swarm.keepers);
}

/// Draws, from its own seed, whether a client's pass over a fragment takes time, as on a GPU.
void draw_pass(gossip::Random random, Swarm& swarm) {
  if (chance(random, 0.4))
    swarm.cluster.pass_us = drawn_us(random, 100, 3.0 * static_cast<double>(swarm.cluster.step_us));
}

/// Draws, from its own seed, whether clients keep lean memory, for how many fragments, and how often there is none.
void draw_memory(gossip::Random random, Swarm& swarm) {
  if (!chance(random, 0.3)) return;
  swarm.cluster.lean_window = 2 + random.below(3);
  if (chance(random, 0.5)) swarm.lacks = drawn(random, 0.003, 0.1);
}

void draw_saved(gossip::Random random, Swarm& swarm) {
  if (chance(random, 0.5)) {
    swarm.saved = drawn(random, 0.1, 1);
    if (chance(random, 0.5)) swarm.founders_join = true;
  }
  if (chance(random, 0.5)) swarm.damaged = drawn(random, 0.01, 0.3);
}

/// Draws who has admitted the nodes. Members know this only in clusters that ask for certificates.
void draw_sponsors(gossip::Random random, Swarm& swarm) {
  if (chance(random, 0.25)) swarm.sponsors = 1 + random.below(4);
  swarm.cluster.certified = chance(random, 0.1);
}

/// Draws, from its own seed, whether the programs end in the end. With clipping, replicas may take too long to agree
/// (see World::missing()).
void draw_end(gossip::Random random, Swarm& swarm) {
  swarm.finishes = chance(random, 0.5) && !clips_at_rest(swarm.cluster);
  if (swarm.finishes && swarm.nodes > 2 && chance(random, 0.3)) swarm.ends_with_nan = 1 + random.below(swarm.nodes - 2);
}

/// Draws, from its own seed, whether replicas weigh by their samples.
void draw_weights(gossip::Random random, Swarm& swarm) {
  if (swarm.cluster.replica.partners.policy == gossip::PartnerPolicy::owner || !chance(random, 0.15)) return;
  swarm.cluster.replica.weigh_samples = true;
  swarm.step_samples = std::uint64_t{1} << (1 + random.below(8));
}

/// Draws, from its own seed, whether a third of the nodes lie about their clocks. The others must see each other: among
/// two nobody can tell who lies.
void draw_liars(gossip::Random random, Swarm& swarm) {
  const bool all_meet = !swarm.membership || swarm.full_view_limit >= swarm.nodes + max_arrivals;
  if (swarm.nodes < 4 || swarm.behind_nat > 0 || swarm.keepers > 0 || !all_meet || !chance(random, 0.2)) return;
  swarm.liars = 1 + random.below((swarm.nodes - 1) / 3);
  swarm.liars_first = chance(random, 0.5);
  swarm.deeds = {};
  swarm.founders_join = false;
  swarm.one_stays_dead = false;
  swarm.nan_stays = 0;  // clocks of replicas with NaN do not count
  swarm.ends_with_nan = 0;
}

}  // namespace

Swarm draw_swarm(std::uint64_t seed) {
  gossip::Random random(seed);
  Swarm swarm;
  swarm.seed = seed;
  swarm.nodes = 2 + random.below(chance(random, 0.7) ? 5 : 11);
  swarm.spread = drawn(random, 0.01, 10);
  swarm.learning = chance(random, 0.2) ? 0 : drawn(random, 1e-4, 0.1) * swarm.spread;
  swarm.speeds = chance(random, 0.5) ? 1 : drawn(random, 1, 10);
  swarm.founders_join = chance(random, 0.2);
  ClusterOptions& cluster = swarm.cluster;
  cluster.seed = random.next();
  cluster.fragment_elements = block_elements * (1 + random.below(2));
  cluster.elements = 16 + random.below(4 * cluster.fragment_elements);
  cluster.step_us = drawn_us(random, 1'000, 20'000);
  cluster.tick_us = drawn_us(random, 1'000, 5'000);
  cluster.task_us = drawn_us(random, 20, 5'000);
  if (chance(random, 0.3)) cluster.step_budget_bytes = 1024;
  cluster.joining = {.answer_timeout_us = 300'000, .pull_timeout_us = us_per_s};
  gossip::ReplicaOptions& replica = cluster.replica;
  constexpr Codec codecs[] = {Codec::q8, Codec::q4, Codec::f32};
  replica.codec = codecs[random.below(3)];
  replica.period_us = drawn_us(random, 2'000, 100'000);
  replica.in_flight = 1 + random.below(4);
  replica.mixing_budget = chance(random, 0.5) ? 1.0F : 0.5F;
  replica.info_period_us = drawn_us(random, 50'000, 500'000);
  draw_rules(random, replica);
  draw_network(random, swarm);
  draw_deeds(random, swarm);
  // The lifetime is long compared with the network's delays and with the time until lost messages are sent again. So an
  // exchange hardly ever outlives it unless an event has parted its two ends.
  const TimeUs slowest_us = (swarm.path.reorder > 0 ? 11 : 1) * swarm.path.latency_us + swarm.path.jitter_us;
  replica.lifetime_us = drawn_us(random, 500'000, 3e6) + 6 * slowest_us + 6 * replica.info_period_us;
  draw_overlay(gossip::Random(seed ^ 0x0e71a9ULL), swarm);
  draw_memory(gossip::Random(seed ^ 0x1ea2ULL), swarm);
  draw_nan(gossip::Random(seed ^ 0x4a4ULL), swarm);
  draw_pass(gossip::Random(seed ^ 0x9a55ULL), swarm);
  draw_saved(gossip::Random(seed ^ 0x5a7edULL), swarm);
  draw_sponsors(gossip::Random(seed ^ 0x5b05ULL), swarm);
  draw_end(gossip::Random(seed ^ 0xe4dULL), swarm);
  draw_keepers(gossip::Random(seed ^ 0x4ee9ULL), swarm);
  draw_followers(gossip::Random(seed ^ 0xf0110ULL), swarm);
  draw_weights(gossip::Random(seed ^ 0x3e19ULL), swarm);
  draw_liars(gossip::Random(seed ^ 0x11a5ULL), swarm);
  return swarm;
}

TimeUs allowed_us(const Swarm& swarm) {
  const ClusterOptions& cluster = swarm.cluster;
  const gossip::ReplicaOptions& replica = cluster.replica;
  const std::size_t count = (cluster.elements + cluster.fragment_elements - 1) / cluster.fragment_elements;
  const auto fragments = static_cast<double>(count);
  const auto times = [](TimeUs time_us, double factor) { return static_cast<double>(time_us) * factor; };
  double us = times(cluster.step_us, 4 * fragments * swarm.speeds) + times(cluster.task_us, 20) +
              times(replica.period_us, 40) + times(replica.lifetime_us, 2);
  const double bytes = fragments * static_cast<double>(cluster.fragment_elements * sizeof(float));
  for (const double rate : {replica.bytes_per_s, replica.link_bytes_per_s}) {
    if (rate > 0) us += 4 * bytes * static_cast<double>(swarm.nodes) / rate * us_per_s;
  }
  return std::llround(us);
}

std::string describe(const Swarm& swarm) {
  const auto& replica = swarm.cluster.replica;
  std::string deeds;
  const auto say = [&](bool on, const char* name) {
    if (on) deeds += fmt::format(" {}", name);
  };
  if (swarm.membership) {
    deeds += fmt::format(" membership, probes every {} us, full views up to {};", swarm.probe_interval_us,
                         swarm.full_view_limit);
  }
  say(swarm.behind_nat > 0, "NAT;");
  say(swarm.one_stays_dead, "one stays dead;");
  say(swarm.finishes, "programs that finish;");
  if (swarm.ends_with_nan > 0) deeds += fmt::format(" {} of them with NaN;", swarm.ends_with_nan);
  if (swarm.step_samples > 1) deeds += fmt::format(" steps of 1 to {} samples, which weigh;", swarm.step_samples);
  if (swarm.liars > 0) deeds += fmt::format(" {} that lie about their clocks;", swarm.liars);
  say(swarm.liars_first, "these come first;");
  if (swarm.sponsors > 0) deeds += fmt::format(" {} that have admitted the nodes;", swarm.sponsors);
  if (swarm.keepers > 0) deeds += fmt::format(" {} that keep the job;", swarm.keepers);
  if (swarm.followers > 0) deeds += fmt::format(" {} of them only follow;", swarm.followers);
  deeds += fmt::format(" partners {};", gossip::policy_name(replica.partners.policy));
  say(!replica.exchanges, "those that train exchange nothing;");
  say(replica.outer.on(), "outer steps;");
  say(clips_at_rest(swarm.cluster), "clipping;");
  say(replica.bytes_per_s > 0 || replica.link_bytes_per_s > 0, "byte budgets;");
  if (swarm.cluster.pass_us > 0) deeds += fmt::format(" passes of up to {} us;", swarm.cluster.pass_us);
  if (swarm.cluster.lean_window > 0) deeds += fmt::format(" lean memory of {} fragments;", swarm.cluster.lean_window);
  if (swarm.lacks > 0) deeds += fmt::format(" memory lacks with probability {:.3f};", swarm.lacks);
  if (swarm.damaged > 0) deeds += fmt::format(" pulls damaged with probability {:.2f};", swarm.damaged);
  if (swarm.saved > 0) deeds += fmt::format(" saved models with probability {:.2f};", swarm.saved);
  for (const Deed deed : swarm.deeds)
    say(true, deed_names[static_cast<std::size_t>(deed)]);
  if (swarm.nan_stays > 0) deeds += fmt::format(" {} with NaN that stays", swarm.nan_stays);
  return fmt::format(
      "{} nodes, {} elements in fragments of {}, {}, period {} us, {} in flight, lifetime {} us; latency {} us, jitter "
      "{} us, loss {:.3g}{}, duplicates {:.3g}, reordering {:.3g}, full {:.3g}, speeds {:.2g}; every {} us for {} "
      "us:{}",
      swarm.nodes, swarm.cluster.elements, swarm.cluster.fragment_elements, codec_name(replica.codec),
      replica.period_us, replica.in_flight, replica.lifetime_us, swarm.path.latency_us, swarm.path.jitter_us,
      swarm.path.loss, swarm.loss_breaks_links ? " (with the link)" : "", swarm.path.duplicate, swarm.path.reorder,
      swarm.full, swarm.speeds, swarm.between_us, swarm.lasting_us, deeds);
}

namespace {

class World {
 public:
  World(const Swarm& swarm, std::FILE* story, const Sabotage& sabotage)
      : swarm_(swarm),
        sabotage_(sabotage),
        random_(swarm.seed ^ 0x5ce9a410ULL),
        network_(schedule_, gossip::Random(random_.next()), swarm.nodes, swarm.path),
        cluster_(cluster_options(), schedule_, network_),
        invariants_(cluster_, swarm.cluster.replica, random_.next()),
        exchange_rules_(cluster_, swarm.cluster.replica),
        progress_(cluster_, network_, swarm.cluster.replica, allowed_us(swarm)),
        trace_(story),
        overlay_(make_overlay()) {
    cluster_.on_event = [this](const Cluster::Event& event) { on_event(event); };
    cluster_.tamper = [this](std::size_t from, std::size_t to, Message& message) {
      if (is_liar(from)) tell_another_clock(from, message);
      return !sabotage_.tamper || sabotage_.tamper(from, to, message);
    };
    if (swarm.liars > 0) invariants_.expect_lies([this](std::size_t i) { return is_liar(i); });
    overlay_->on_apart = [this](std::size_t i, std::size_t j) { invariants_.excuse(i, j, schedule_.now_us()); };
    overlay_->on_decided = [this](const std::string& what) { tell(what); };
    cluster_.full_probability = swarm.full;
    cluster_.damage_probability = swarm.damaged;
    cluster_.lack_probability = swarm.lacks;
  }

  HuntOutcome run();

 private:
  using Event = Cluster::Event;
  struct Trainer {
    std::size_t next = 0;
    std::vector<float> before_nan;  ///< the model that the client returns to after NaN; empty: it writes no NaN
    bool well = true;
  };
  /// The last program that stops. It learns until then, and most of all in its last step.
  struct Last {
    std::size_t node;
    gossip::Random random;
    double range;                     ///< of what its last step adds to an element
    std::vector<double> before = {};  ///< its model with corrections before its last step; empty: not known yet
    std::vector<double> change = {};  ///< the change of its model by that step; empty: not known yet
  };

  [[nodiscard]] ClusterOptions cluster_options() const {
    ClusterOptions options = swarm_.cluster;
    if (sabotage_.options) sabotage_.options(options);
    return options;
  }
  std::unique_ptr<HuntOverlay> make_overlay();
  void populate();
  void faults();
  void mend();
  void mourn();
  void check_nobody_died_since(std::uint64_t deaths) const;
  [[nodiscard]] bool only_way_between_others(std::size_t i) const;
  void wait_for_overlay(const std::string& what);
  void come_together();
  void finish();
  [[nodiscard]] bool has_ended(std::size_t i) const;
  /// The samples of each of node i's steps.
  [[nodiscard]] std::uint64_t samples_of(std::size_t i) const {
    return swarm_.step_samples > 1 ? 1 + gossip::Random(swarm_.seed + i).below(swarm_.step_samples) : 1;
  }
  [[nodiscard]] bool is_liar(std::size_t i) const {
    return swarm_.liars_first ? i < swarm_.liars : i < swarm_.nodes && i + swarm_.liars >= swarm_.nodes;
  }
  void tell_another_clock(std::size_t i, Message& message) const;
  void stop_program(std::size_t i);
  void stop_with_nan(std::size_t i);
  [[nodiscard]] double last_range(std::size_t i) const;
  void learn_last(std::span<float> values);
  void check_last_step() const;
  void check_end(std::size_t i);
  void check_delivered(std::size_t i) const;
  void drain();
  [[nodiscard]] bool go_apart() const;
  [[nodiscard]] std::string missing() const;

  void on_event(const Event& event);
  std::vector<float> model();
  void prepare_to_join(std::size_t i);
  std::size_t add_node();
  std::uint64_t train(std::size_t i, std::span<float> model);
  void deed();
  void act(Deed deed, std::size_t i);
  void partition(bool isolate, std::size_t i);
  void cut(std::size_t i, std::size_t j);
  void crash_daemon(std::size_t i);
  void crash_node(std::size_t i);
  void leave(std::size_t i);
  void wait_for_leave(std::size_t i, std::uint64_t life, TimeUs deadline_us);
  void restart(std::size_t i);
  std::vector<JobSetting> drawn_settings();
  void change_settings(std::size_t i);
  void sicken(std::size_t i);
  void keep_sick(std::size_t i);
  void tell(const std::string& what) { trace_.add(schedule_.now_us(), what); }
  TimeUs lasting() {
    return std::max<TimeUs>(1, std::llround(exponential(random_, static_cast<double>(swarm_.lasting_us))));
  }

  const Swarm& swarm_;
  const Sabotage& sabotage_;
  gossip::Random random_;
  Schedule schedule_;
  Network network_;
  Cluster cluster_;
  Invariants invariants_;
  ExchangeRules exchange_rules_;
  ProgressOracle progress_;
  Trace trace_;
  std::unique_ptr<HuntOverlay> overlay_;
  std::deque<Trainer> trainers_;
  std::vector<bool> joins_;        ///< a daemon that starts at the node has to join
  std::set<std::size_t> over_;     ///< nodes for whose programs the run is over
  std::set<std::size_t> spoiled_;  ///< nodes whose programs have stopped with NaN
  std::optional<Last> last_;
  std::optional<std::size_t> mourned_;  ///< the node that is not restarted
  bool calm_ = false;
  bool ending_ = false;
  std::uint64_t deeds_ = 0;
  std::uint64_t blocked_ = 0;
};

/// The membership's options, with times in the proportions of the defaults.
gossip::MembershipOptions membership_options(const Swarm& swarm) {
  gossip::MembershipOptions options;
  const TimeUs default_us = options.probe_interval_us;
  for (TimeUs* time_us :
       {&options.probe_interval_us, &options.probe_timeout_us, &options.gossip_interval_us, &options.sync_interval_us,
        &options.reconnect_interval_us, &options.shuffle_interval_us, &options.tick_us, &options.pause_us})
    *time_us = *time_us * swarm.probe_interval_us / default_us;
  options.full_view_limit = swarm.full_view_limit;
  // With half of the others as neighbours, any symmetric views are connected.
  options.active_view = std::max<std::size_t>(2, (swarm.nodes + max_arrivals) / 2);
  options.active_view = std::min(options.active_view, gossip::max_active_view);
  return options;
}

std::unique_ptr<HuntOverlay> World::make_overlay() {
  const std::uint64_t seed = random_.next();
  OverlayTimes times;
  times.link_timeout_us = drawn_us(random_, 100'000, 1e6) + 2 * swarm_.path.latency_us;
  times.dead_after_us = drawn_us(random_, 100'000, 1e6);
  times.redial_us = drawn_us(random_, 10'000, 200'000);
  if (!swarm_.membership) return std::make_unique<OverlayOracle>(times, cluster_, network_, schedule_, seed);
  auto overlay =
      std::make_unique<OverlayMembership>(membership_options(swarm_), times, cluster_, network_, schedule_, seed);
  overlay->set_tamper(sabotage_.tamper_membership);
  return overlay;
}

void World::on_event(const Event& event) {
  if (sabotage_.on_event) sabotage_.on_event(cluster_, event);
  if (event.kind == Event::Kind::blocked) ++blocked_;
  const auto note = [&] { trace_.add(schedule_.now_us(), event, invariants_.value(event.node)); };
  try {
    invariants_.on(event);
    exchange_rules_.on(event);
    if (!ending_) progress_.on(event);
  } catch (const Violation&) {
    note();
    throw;
  }
  note();
  if (event.kind == Event::Kind::turned && joins_[event.node] && cluster_.node(event.node).replica &&
      cluster_.node(event.node).replica->state() == ReplicaState::running) {
    joins_[event.node] = false;
  }
  if (ending_ && event.kind == Event::Kind::turned) check_end(event.node);
  if (event.kind == Event::Kind::sent && event.arrivals == 0 && swarm_.loss_breaks_links) {
    schedule_.after(between(random_, 10'000, 100'000),
                    [this, i = event.node, j = event.other] { cluster_.unlink(i, j); });
  }
}

// --- nodes --------------------------------------------------------------------------------------------------------

std::vector<float> World::model() {
  std::vector<float> values(swarm_.cluster.elements);
  for (float& value : values)
    value = static_cast<float>(swarm_.spread * (random_.uniform() - 0.5));
  return values;
}

/// Node i is about to join.
void World::prepare_to_join(std::size_t i) {
  if (swarm_.deeds.contains(Deed::settings_change)) cluster_.node(i).given_settings = drawn_settings();
  auto& saved = cluster_.node(i).saved;
  saved.clear();
  while (saved.size() < 3 && chance(random_, swarm_.saved))
    saved.push_back({.values = model(), .clock = random_.below(1'000), .damaged = chance(random_, 0.4)});
}

std::size_t World::add_node() {
  const std::size_t i = trainers_.size();
  trainers_.emplace_back();
  joins_.push_back(false);
  const double speed = swarm_.speeds > 1 ? drawn(random_, 1 / swarm_.speeds, swarm_.speeds) : 1;
  cluster_.set_all_dialled(false);
  const std::size_t added = cluster_.add_node(
      model(), [this, i](std::span<float> values) { return train(i, values); }, speed);
  // Invariants::check_shares() compares with it, so it is known before the first step.
  cluster_.node(added).client.step.samples = static_cast<double>(samples_of(i));
  if (swarm_.sponsors > 0) cluster_.node(added).sponsor = static_cast<Sponsor>(1 + i % swarm_.sponsors);
  return added;
}

std::uint64_t World::train(std::size_t i, std::span<float> values) {
  Trainer& trainer = trainers_[i];
  if (!trainer.well) {
    values[random_.below(values.size())] = std::numeric_limits<float>::quiet_NaN();
    return samples_of(i);
  }
  if (!trainer.before_nan.empty()) {  // the client goes back to its model before NaN
    std::copy(trainer.before_nan.begin(), trainer.before_nan.end(), values.begin());
    trainer.before_nan.clear();
    invariants_.forbid_nan(i);
    progress_.set_finite(i, true);
  }
  if (last_ && last_->node == i) learn_last(values);
  if (calm_ || swarm_.learning == 0) return samples_of(i);
  for (std::size_t n = 0; n < std::min(trained_elements, values.size()); ++n) {
    values[trainer.next] += static_cast<float>(swarm_.learning * (random_.uniform() - 0.5));
    trainer.next = (trainer.next + 1) % values.size();
  }
  return samples_of(i);
}

void World::populate() {
  for (std::size_t i = 0; i < swarm_.nodes; ++i) {
    add_node();
    if (i > 0 && chance(random_, swarm_.behind_nat)) network_.set_behind_nat(i, true);
    if (swarm_.node_bytes_per_s > 0) network_.set_node_rate(i, swarm_.node_bytes_per_s, swarm_.node_bytes_per_s);
  }
  for (std::size_t i = 0; i < swarm_.nodes; ++i) {
    cluster_.node(i).keeps = i > 0 && i <= swarm_.keepers;
    cluster_.node(i).follows = cluster_.node(i).keeps && i + swarm_.followers > swarm_.keepers;
    if (cluster_.node(i).keeps) cluster_.node(i).client.step.samples = 0;
    cluster_.set_all_dialled(i, !swarm_.founders_join);
    joins_[i] = swarm_.founders_join;
    if (joins_[i]) prepare_to_join(i);
    cluster_.start_daemon(i, swarm_.founders_join);
  }
  overlay_->begin();
  for (std::size_t i = swarm_.nodes - swarm_.nan_stays; i < swarm_.nodes; ++i)
    schedule_.after(lasting(), [this, i] { keep_sick(i); });
}

/// Starts what node i lacks: its client or its daemon.
void World::restart(std::size_t i) {
  if (mourned_ == i) return;
  if (!cluster_.client_alive(i)) {
    trainers_[i] = {};
    joins_[i] = true;
    cluster_.start_client(i, model());
  }
  if (cluster_.node(i).replica) return;
  if (joins_[i]) prepare_to_join(i);
  if (cluster_.daemon_alive(i)) return cluster_.attach(i, joins_[i]);
  cluster_.set_all_dialled(i, false);
  cluster_.start_daemon(i, joins_[i]);
}

// --- deeds --------------------------------------------------------------------------------------------------------

void World::faults() {
  const TimeUs first_us = std::llround(exponential(random_, static_cast<double>(swarm_.between_us)));
  schedule_.after(std::max<TimeUs>(1, first_us), [this] { deed(); });
  cluster_.run_until(swarm_.faults_us);
}

void World::deed() {
  if (calm_) return;
  const std::vector<Deed> kinds(swarm_.deeds.begin(), swarm_.deeds.end());
  if (kinds.empty()) return;
  // Drawn in a statement of its own: compilers evaluate the arguments of a call in different orders.
  const std::size_t i = random_.below(cluster_.size());
  act(kinds[random_.below(kinds.size())], i);
  const TimeUs next_us = std::llround(exponential(random_, static_cast<double>(swarm_.between_us)));
  schedule_.after(std::max<TimeUs>(1, next_us), [this] { deed(); });
}

void World::act(Deed deed, std::size_t i) {
  ++deeds_;
  const std::size_t j = (i + 1 + random_.below(cluster_.size() - 1)) % cluster_.size();
  switch (deed) {
    case Deed::partition:
    case Deed::isolation:
      return partition(deed == Deed::isolation, i);
    case Deed::one_way_cut:
      return cut(i, j);
    case Deed::link_break:
      tell(fmt::format("the link between {} and {} breaks", i, j));
      return cluster_.unlink(i, j);
    case Deed::daemon_crash:
      return crash_daemon(i);
    case Deed::node_crash:
      return crash_node(i);
    case Deed::arrival:
      if (cluster_.size() >= swarm_.nodes + max_arrivals) return;
      network_.add_node();
      add_node();
      tell(fmt::format("node {} arrives", cluster_.size() - 1));
      joins_.back() = true;
      return restart(cluster_.size() - 1);
    case Deed::leave:
      return leave(i);
    case Deed::pause:
      tell(fmt::format("node {}'s daemon pauses", i));
      cluster_.pause(i);
      return schedule_.after(lasting(), [this, i] { cluster_.resume(i); });
    case Deed::stall:
      tell(fmt::format("node {}'s client stalls", i));
      cluster_.node(i).client.stalled = true;
      return schedule_.after(lasting(), [this, i] { cluster_.node(i).client.stalled = false; });
    case Deed::client_crash:
      if (!cluster_.client_alive(i)) return;
      tell(fmt::format("node {}'s client is killed", i));
      cluster_.lose_client(i);
      return schedule_.after(lasting(), [this, i] { restart(i); });
    case Deed::settings_change:
      return change_settings(i);
    case Deed::nan:
      sicken(i);
      return schedule_.after(lasting(), [this, i] { trainers_[i].well = true; });
  }
}

std::vector<JobSetting> World::drawn_settings() {
  constexpr Codec codecs[] = {Codec::f32, Codec::q8, Codec::q4};
  return {{"codec", codec_name(codecs[random_.below(std::size(codecs))])}};
}

void World::change_settings(std::size_t i) {
  if (cluster_.node(i).follows) return;  // the others would not follow these
  const std::vector<JobSetting> settings = drawn_settings();
  tell(fmt::format("node {}'s operator sets codec={}", i, settings.front().value));
  cluster_.change_settings(i, settings);
}

void World::sicken(std::size_t i) {
  if (!cluster_.client_alive(i) || !trainers_[i].before_nan.empty() || joins_[i] || cluster_.node(i).keeps) return;
  tell(fmt::format("node {}'s client goes NaN", i));
  invariants_.allow_nan(i);
  progress_.set_finite(i, false);
  trainers_[i].before_nan = cluster_.node(i).client.model;
  trainers_[i].well = false;
}

/// As long as faults happen, makes the node's client write NaN again, whatever else happens to the node.
void World::keep_sick(std::size_t i) {
  if (calm_) return;
  sicken(i);
  trainers_[i].well = trainers_[i].before_nan.empty();
  schedule_.after(look_us, [this, i] { keep_sick(i); });
}

void World::partition(bool isolate, std::size_t i) {
  std::vector<int> group(cluster_.size());
  for (int& side : group)
    side = isolate ? 0 : static_cast<int>(random_.below(2));
  group[i] = 1;
  network_.partition(group);
  std::string sides;
  for (const int side : group)
    sides += static_cast<char>('0' + side);
  tell("partition " + sides);
  schedule_.after(lasting(), [this] {
    network_.heal();
    tell("healed");
  });
}

void World::cut(std::size_t i, std::size_t j) {
  tell(fmt::format("nothing gets from {} to {}", i, j));
  PathConditions nothing = swarm_.path;
  nothing.loss = 1;
  network_.set_path(i, j, nothing);
  schedule_.after(lasting(), [this, i, j] {
    if (!calm_) network_.set_path(i, j, swarm_.path);
  });
}

void World::crash_daemon(std::size_t i) {
  if (!cluster_.daemon_alive(i)) return;
  tell(fmt::format("node {}'s daemon is killed", i));
  cluster_.kill_daemon(i);
  schedule_.after(lasting(), [this, i] { restart(i); });
}

void World::crash_node(std::size_t i) {
  tell(fmt::format("node {} is killed", i));
  cluster_.kill_node(i);
  schedule_.after(lasting(), [this, i] { restart(i); });
}

void World::leave(std::size_t i) {
  if (!cluster_.node(i).replica || cluster_.node(i).paused || cluster_.node(i).beginning->is_under_way()) return;
  // The operator may have ordered a handover, or a signal may stop the node.
  const bool hands_over = cluster_.node(i).replica->counters().initiated % 2 == 0;
  tell(fmt::format("node {} {}", i, hands_over ? "hands over and leaves" : "leaves"));
  if (hands_over) {
    cluster_.leave(i, leave_grace_us / 2);
  } else {
    cluster_.wind_down(i);
  }
  wait_for_leave(i, cluster_.node(i).daemon_life, schedule_.now_us() + leave_grace_us);
}

void World::wait_for_leave(std::size_t i, std::uint64_t life, TimeUs deadline_us) {
  const Cluster::Node& node = cluster_.node(i);
  if (!node.replica || node.daemon_life != life || calm_) return;
  const bool leaving = node.replica->phase() == gossip::Phase::leaving && !node.replica->handed_over();
  if ((leaving || !node.replica->idle()) && schedule_.now_us() < deadline_us) {
    return schedule_.after(20'000, [this, i, life, deadline_us] { wait_for_leave(i, life, deadline_us); });
  }
  tell(fmt::format("node {} says goodbye", i));
  cluster_.kill_daemon(i);
  overlay_->said_goodbye(i);
  schedule_.after(lasting(), [this, i] { restart(i); });
}

// --- the second half ----------------------------------------------------------------------------------------------

void World::mend() {
  tell("calm");
  calm_ = true;
  network_.heal();
  network_.clear_paths();
  network_.set_default({.latency_us = 300});
  cluster_.full_probability = cluster_.damage_probability = cluster_.lack_probability = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    network_.set_node_rate(i, 0, 0);
    cluster_.resume(i);
    cluster_.node(i).client.stalled = false;
    trainers_[i].well = true;
    if (cluster_.node(i).replica && cluster_.node(i).replica->state() == ReplicaState::draining) {
      cluster_.kill_daemon(i);
      overlay_->said_goodbye(i);
    }
    restart(i);
  }
  invariants_.forget_pairs();
}

/// Whether several nodes train without exchanging with each other, so that nobody averages them here.
bool World::go_apart() const {
  std::size_t train = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i)
    train += cluster_.node(i).keeps ? 0 : 1;
  return !swarm_.cluster.replica.exchanges && train > 1;
}

/// A text about what is still wrong after the faults; empty if nothing is.
std::string World::missing() const {
  if (std::string lacking = overlay_->missing(); !lacking.empty()) return lacking;
  std::size_t pairs = 0;
  std::size_t reached = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (cluster_.node(i).replica->state() != ReplicaState::running) return fmt::format("node {} does not run", i);
    if (cluster_.node(i).replica->fragments().quarantined() > 0) return fmt::format("node {} is in quarantine", i);
    if (cluster_.node(i).replica->settings() != cluster_.node(0).replica->settings())
      return fmt::format("nodes 0 and {} have other settings", i);
    for (std::size_t j = i + 1; j < cluster_.size(); ++j) {
      if (!network_.can_link(i, j)) continue;
      if (!cluster_.linked(i, j)) {
        if (overlay_->partial()) continue;
        return fmt::format("nodes {} and {} have no link", i, j);
      }
      if (!progress_.are_partners(i, j)) continue;
      ++pairs;
      if (invariants_.pairs().contains({i, j})) ++reached;
    }
  }
  // Only policies that let every pair meet have to show that every pair has met.
  const auto policy = swarm_.cluster.replica.partners.policy;
  const bool anyone = policy == gossip::PartnerPolicy::random || policy == gossip::PartnerPolicy::weighted;
  if (anyone && reached < pairs)
    return fmt::format("of {} pairs of nodes, {} have concluded an exchange", pairs, reached);
  // Clipping moves distant replicas only a little, so agreement may take longer than the scenario waits. With seed
  // 300053 the median distance falls to nothing while one replica is still on its way.
  if (clips_at_rest(swarm_.cluster) || go_apart()) return {};
  const double distance = cluster_.distance();
  double square = 0;
  for (const double value : cluster_.mean())
    square += value * value / static_cast<double>(swarm_.cluster.elements);
  if (distance <= agreed * (square + swarm_.spread * swarm_.spread)) return {};
  return fmt::format("the models are {:.3g} apart (root mean square), of {:.3g}", std::sqrt(distance),
                     std::sqrt(square));
}

void World::wait_for_overlay(const std::string& what) {
  const TimeUs end_us = schedule_.now_us() + swarm_.liveness_us;
  std::string lacking = overlay_->missing();
  while (!lacking.empty() && schedule_.now_us() < end_us) {
    cluster_.run_until(schedule_.now_us() + look_us);
    lacking = overlay_->missing();
  }
  if (lacking.empty()) return;
  throw Violation({}, "membership: {} s after {}, {}", swarm_.liveness_us / us_per_s, what, lacking);
}

/// A node ends for long: the others must notice that, and must not take each other for dead.
void World::mourn() {
  wait_for_overlay("the last fault");
  if (!swarm_.one_stays_dead) return;
  std::size_t i = random_.below(cluster_.size());
  if (only_way_between_others(i)) i = (i + 1) % cluster_.size();
  tell(fmt::format("node {}'s daemon is killed for long", i));
  const std::uint64_t deaths = overlay_->deaths();
  cluster_.kill_daemon(i);
  mourned_ = i;
  wait_for_overlay(fmt::format("the end of node {}'s daemon", i));
  check_nobody_died_since(deaths);
  mourned_.reset();
  restart(i);
}

/// True if all others are behind NATs: only through this node can they reach each other.
bool World::only_way_between_others(std::size_t i) const {
  std::size_t others = 0;
  for (std::size_t j = 0; j < cluster_.size(); ++j) {
    if (j == i || !cluster_.daemon_alive(j)) continue;
    if (!network_.behind_nat(j)) return false;
    ++others;
  }
  return others > 1;
}

void World::check_nobody_died_since(std::uint64_t deaths) const {
  if (overlay_->deaths() == deaths) return;
  throw Violation({}, "membership: {} times a node was declared dead that lives, long after the last fault",
                  overlay_->deaths() - deaths);
}

void World::come_together() {
  const auto& replica = swarm_.cluster.replica;
  const TimeUs begin_us = schedule_.now_us();
  const std::uint64_t blocks_before = cluster_.count(&gossip::ReplicaCounters::blocks);
  const std::uint64_t wide_before = cluster_.count(&gossip::ReplicaCounters::wide_blocks);
  // Until this time, exchanges from the time of faults may still be given up.
  const TimeUs settled_us = begin_us + replica.lifetime_us + 3 * replica.info_period_us;
  while (schedule_.now_us() < settled_us)
    cluster_.run_until(std::min(settled_us, schedule_.now_us() + look_us));
  // A responder without a link asks much later. By then the initiator's client may have died of a fault.
  const std::uint64_t unresolved = invariants_.unresolved() + invariants_.orphans();
  std::string lacking = missing();
  while (!lacking.empty() && schedule_.now_us() < begin_us + swarm_.liveness_us) {
    cluster_.run_until(schedule_.now_us() + look_us);
    lacking = missing();
  }
  if (!lacking.empty()) {
    throw Violation({}, "liveness: {} s after the last fault, {}", swarm_.liveness_us / us_per_s, lacking);
  }
  const std::uint64_t deaths = overlay_->deaths();
  const std::uint64_t blocks = cluster_.count(&gossip::ReplicaCounters::blocks) - blocks_before;
  const std::uint64_t wide = cluster_.count(&gossip::ReplicaCounters::wide_blocks) - wide_before;
  // A replica that clipping keeps on its way stays beyond the others' quantiser range (see missing()): with few nodes,
  // half of all blocks are its own.
  const bool apart = clips_at_rest(swarm_.cluster) || go_apart();
  if (!apart && blocks >= least_blocks && static_cast<double>(wide) > most_wide * static_cast<double>(blocks)) {
    throw Violation({}, "liveness: of {} blocks exchanged since the last fault, {} were out of range", blocks, wide);
  }
  if (swarm_.finishes) {
    finish();
  } else {
    check_nobody_died_since(deaths);
  }
  drain();
  if (invariants_.unresolved() > unresolved) {
    throw Violation({}, "liveness: exchanges are left unresolved long after the last fault ({} more)",
                    invariants_.unresolved() - unresolved);
  }
}

void World::stop_program(std::size_t i) {
  if (cluster_.node(i).keeps) return;
  tell(fmt::format("node {}'s program stops", i));
  cluster_.finish(i);
}

/// The program's model is spoiled after its last publication, so that only another look can find the NaN.
void World::stop_with_nan(std::size_t i) {
  tell(fmt::format("node {}'s program holds NaN, and stops", i));
  invariants_.allow_nan(i);
  progress_.set_finite(i, false);
  spoiled_.insert(i);
  cluster_.node(i).client.model.front() = std::numeric_limits<float>::quiet_NaN();
  cluster_.finish(i);
}

/// The last step is as long as the model at most. A replica that is more than twice that away from the others has gone
/// wild (gossip::loose_excess_log2), and no end comes while it runs.
double World::last_range(std::size_t i) const {
  const std::vector<double> model = cluster_.whole(i);
  double square = 0;
  for (const double value : model)
    square += value * value / static_cast<double>(model.size());
  return std::min(swarm_.spread, std::sqrt(12 * square));  // the variance of a uniform number is range² / 12
}

void World::learn_last(std::span<float> values) {
  const bool now = !last_->before.empty();
  if (!last_->change.empty()) return;
  for (float& value : values) {
    const double change = last_->range * (now ? 1 : usual_step) * (last_->random.uniform() - 0.5);
    if (now) last_->change.push_back(change);
    value += static_cast<float>(change);
  }
  if (now) schedule_.after(0, [this] { stop_program(last_->node); });
}

/// Checks that the last step of the last program counts as much as any other program's training, and is not lost at the
/// end.
void World::check_last_step() const {
  const auto& [node, random, range, before, change] = *last_;
  const std::vector<double> after = cluster_.whole(node);
  double along = 0;
  double moved_square = 0;
  double square = 0;
  for (std::size_t e = 0; e < change.size(); ++e) {
    const double moved = after[e] - before[e];
    along += moved * change[e];
    moved_square += moved * moved;
    square += change[e] * change[e];
  }
  const double share = along / square;
  // Other changes of the model meanwhile look by chance like a part of that step.
  const double others = std::max(moved_square - share * along, 0.0);
  const double deviation = std::sqrt(others / square / static_cast<double>(change.size()));
  double sharing = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    // In lean memory workers do not push, so that they and the servers count alike.
    const bool shares = !cluster_.node(i).keeps || swarm_.cluster.lean_window > 0;
    const double ratio = static_cast<double>(samples_of(i)) / static_cast<double>(samples_of(node));
    // Each exchange moves by the power of two above or below (gossip::weight_shifts()), and few exchanges share a last
    // step, so the mean of both says little.
    if (shares) sharing += std::exp2(std::ceil(std::log2(ratio)));
    // Workers that do not reach a server believe that other nodes own its fragments, so nothing can be checked.
    for (std::size_t j = 0; j < i; ++j) {
      if (cluster_.node(i).keeps != cluster_.node(j).keeps && !cluster_.linked(i, j)) return;
    }
  }
  const double least = least_share / sharing - by_chance * deviation;
  if (share >= least) return;
  throw Violation({.node = node},
                  "the end: of what node {} learned in its last step, {:.3g} is in the model that was agreed on, of at "
                  "least {:.3g}",
                  node, share, least);
}

/// Throws if node i takes the run for over while another program that it can reach goes on.
void World::check_end(std::size_t i) {
  const Cluster::Node& node = cluster_.node(i);
  const bool over = node.replica && node.client.finishing && node.replica->finish_report().over;
  if (over && !over_.contains(i)) check_delivered(i);
  if (over && !std::isfinite(node.replica->finish_report().distance))
    throw Violation({.node = i}, "the end: node {} has agreed, at a distance that is not finite", i);
  if (over) {
    over_.insert(i);
  } else {
    over_.erase(i);
  }
  if (!over || overlay_->partial())
    return;  // with partial views the run may be over in one neighbourhood earlier than in another
  for (std::size_t j = 0; j < cluster_.size(); ++j) {
    const Cluster::Node& other = cluster_.node(j);
    if (other.client.finishing || other.keeps || !other.replica || other.paused || !network_.can_link(i, j)) continue;
    throw Violation({.node = i, .other = j}, "the end: for node {} the run is over, and node {} still trains", i, j);
  }
}

/// Checks that a program for which the run is over has all corrections, because it believes that its tensors hold the
/// mean.
void World::check_delivered(std::size_t i) const {
  const auto& words = cluster_.node(i).client.words;
  const auto lacks =
      std::ranges::find_if(words, [](const auto& word) { return word.correction_valid || word.with_client; });
  if (lacks == words.end()) return;
  const auto f = static_cast<std::uint32_t>(lacks - words.begin());
  throw Violation({.node = i, .fragment = f},
                  "the end: for node {} the run is over, and its program lacks a correction", i);
}

/// Each liar has a way of its own: an absurd clock, one far ahead, one that is hardly believable, or none.
void World::tell_another_clock(std::size_t i, Message& message) const {
  auto* const info = std::get_if<JobInfo>(&message);
  if (info == nullptr || info->state == ReplicaState::absent) return;
  constexpr std::uint64_t absurd = std::uint64_t{1} << 60;
  switch ((swarm_.seed + i) % 4) {
    case 0:
      info->clock = absurd;
      break;
    case 1:
      info->clock *= 50;
      break;
    case 2:
      info->clock = gossip::free_lead_samples;
      break;
    default:
      info->clock = 0;
  }
}

/// True if node i's program has been told how the run has ended.
bool World::has_ended(std::size_t i) const {
  const Cluster::Node& node = cluster_.node(i);
  if (node.keeps) return true;
  if (!node.client.finishing || !node.replica) return false;
  const gossip::FinishReport report = node.replica->finish_report();
  return spoiled_.contains(i) ? report.spoiled : report.over;
}

/// The programs stop, one after the other, some of them with NaN, while one or two daemons are restarted.
void World::finish() {
  ending_ = true;
  const TimeUs begin_us = schedule_.now_us();
  std::size_t last = random_.below(cluster_.size());  // this program stops long after the others
  while (cluster_.node(last).keeps)
    last = (last + 1) % cluster_.size();
  last_.emplace(last, gossip::Random(swarm_.seed ^ 0x1a575e9ULL), last_range(last));
  std::size_t to_spoil = swarm_.ends_with_nan;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    const TimeUs after_us = between(random_, 0, 2 * us_per_s);
    if (i == last) {
      schedule_.after(after_us + 6 * us_per_s, [this, i] { last_->before = cluster_.whole(i); });
    } else if (to_spoil > 0 && !cluster_.node(i).keeps) {
      --to_spoil;
      schedule_.after(after_us, [this, i] { stop_with_nan(i); });
    } else {
      schedule_.after(after_us, [this, i] { stop_program(i); });
    }
  }
  for (std::size_t n = random_.below(3); n > 0; --n) {
    const std::size_t i = (last + 1 + random_.below(cluster_.size() - 1)) % cluster_.size();
    schedule_.after(between(random_, 0, 4 * us_per_s), [this, i] {
      if (!cluster_.node(i).replica || cluster_.node(i).paused) return;
      tell(fmt::format("node {}'s daemon is started again", i));
      cluster_.kill_daemon(i);
      schedule_.after(between(random_, 10'000, 500'000), [this, i] { restart(i); });
    });
  }
  const auto trains_on = [this] {
    std::size_t i = 0;
    while (i < cluster_.size() && has_ended(i))
      ++i;
    return i;
  };
  std::size_t i = trains_on();
  while (i < cluster_.size() && schedule_.now_us() < begin_us + swarm_.liveness_us) {
    cluster_.run_until(schedule_.now_us() + look_us);
    i = trains_on();
  }
  if (i == cluster_.size()) return check_last_step();
  throw Violation({.node = i}, "the end: {} s after the programs began to stop it is not over for node {}",
                  swarm_.liveness_us / us_per_s, i);
}

void World::drain() {
  for (std::size_t i = 0; i < cluster_.size(); ++i)
    cluster_.wind_down(i);
  const TimeUs end_us = schedule_.now_us() + swarm_.cluster.replica.lifetime_us / 2 + us_per_s;
  std::size_t busy = 0;
  while (busy < cluster_.size() && schedule_.now_us() < end_us) {
    if (cluster_.node(busy).replica->idle()) {
      ++busy;
    } else {
      cluster_.run_until(schedule_.now_us() + 5'000);
    }
  }
  if (busy == cluster_.size()) return;
  throw Violation({.node = busy}, "liveness: node {} is not idle {} us after it was drained", busy,
                  swarm_.cluster.replica.lifetime_us / 2 + us_per_s);
}

HuntOutcome World::run() {
  HuntOutcome outcome{.seed = swarm_.seed};
  try {
    populate();
    faults();
    mend();
    mourn();
    come_together();
    invariants_.finish();
    if (invariants_.violations() > 0) throw Violation({}, "replicas met replies that do not fit their requests");
    if (invariants_.undisturbed() && invariants_.unresolved() > 0) {
      throw Violation({}, "exactly once: {} exchanges are unresolved though nothing ever parted their ends",
                      invariants_.unresolved());
    }
  } catch (const Violation& violation) {
    outcome.violation = fmt::format("at {:.6f} s, event {}: {}", static_cast<double>(schedule_.now_us()) / us_per_s,
                                    trace_.events(), violation.what());
    outcome.explanation = trace_.explain(violation.concern());
  }
  outcome.hash = trace_.hash();
  outcome.events = schedule_.events();
  outcome.faults = deeds_ + blocked_ + network_.lost() + network_.duplicated() + network_.held_back();
  outcome.exchanges = invariants_.exchanges();
  outcome.halves = invariants_.halves();
  outcome.virtual_us = schedule_.now_us();
  outcome.waited = static_cast<double>(progress_.longest_us()) / static_cast<double>(allowed_us(swarm_));
  return outcome;
}

}  // namespace

HuntOutcome run_scenario(const Swarm& swarm, std::FILE* story, const Sabotage& sabotage) {
  World world(swarm, story, sabotage);
  return world.run();
}

}  // namespace gossamer::sim
