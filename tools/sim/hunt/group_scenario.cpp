#include "tools/sim/hunt/group_scenario.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <stdexcept>

#include "gossip/check.hpp"
#include "gossip/group/ending.hpp"
#include "gossip/group/group.hpp"
#include "tools/sim/cluster.hpp"
#include "tools/sim/draw.hpp"
#include "tools/sim/kept_exchanges.hpp"
#include "tools/sim/network.hpp"

namespace gossamer::sim {

namespace {

using gossip::Actions;
using gossip::FragmentParts;
using gossip::Phase;

constexpr JobKey group_job{.name_hash = 7, .layout_hash = 9};
constexpr std::uint32_t fragments = 2;
constexpr std::uint32_t blocks = 1;
constexpr std::size_t elements = blocks * block_elements;  // elements of one fragment
constexpr TimeUs tick_us = 2'000;
constexpr std::uint64_t step_samples = 12;  // samples of one client's step; each moves the clock of its node
constexpr TimeUs await_us = 3 * us_per_s;   // how long the clients of a former daemon are awaited
constexpr TimeUs faults_us = 12 * us_per_s;
constexpr TimeUs calm_us = 40 * us_per_s;
constexpr TimeUs rest_us = 5 * us_per_s;
constexpr std::uint64_t most_at_rest = 5 * fragments;  // publications in that time; some are always asked for
constexpr int ends = 3;                                // ends in a run: the programs train a little after each
constexpr TimeUs end_us = 20 * us_per_s;               // the longest that an end may take
constexpr double end_tolerance = 1e-3;    // relative difference of models, between nodes for which the run is over
constexpr double local_tolerance = 1e-5;  // relative difference of models, between clients of such a node

/// A client's process and the memory that it shares.
struct Client {
  std::array<std::array<std::vector<float>, 3>, fragments> buffers;
  std::array<FragmentParts, fragments> words;
  std::array<std::array<std::optional<gossip::CopyReceipt>, 2>, fragments> receipts;
  std::array<float, fragments> x{};           ///< all elements of a fragment are equal
  std::array<bool, fragments> unpublished{};  ///< it has trained since it published finite values
  double trained = 0;                         ///< what it has trained, weighted by its share among its node's clients
  std::uint64_t clock = 0;
  std::array<std::uint64_t, fragments> publication_clocks{};
  std::uint64_t steps = 0;
  std::uint32_t place_count = 0;
  bool running = false;
  bool alive = true;
  bool keeps = false;          ///< it never trains, and no end waits for it
  bool sick = false;           ///< it publishes NaN
  std::uint32_t finishes = 0;  ///< its program finishes after the next step, with this number
  std::uint32_t finishing = 0;
  gossip::EndAnswer answer;
  bool left = false;  ///< the run is over for it
  int slowness = 1;   ///< it serves due fragments once in this many steps
};

/// The data that outlive a node's daemons.
struct Kept {
  std::array<std::optional<gossip::CopyMemory::Copy>, fragments> copies;
  std::array<std::optional<gossip::CopyMemory::Copy>, fragments> before;  ///< as they were before the last store
  std::array<std::array<std::vector<float>, 2>, fragments> buffers;
  std::array<std::vector<gossip::Gap>, fragments> gaps;
  KeptExchanges exchanges;
  std::optional<std::size_t> holder;
};

class Scenario;

class SimMember : public gossip::Member {
 public:
  SimMember(Scenario& scenario, std::size_t node, std::size_t index, std::uint64_t number);
  [[nodiscard]] std::uint64_t number() const override { return number_; }
  [[nodiscard]] std::uint64_t own_clock() const override { return client_.clock; }
  [[nodiscard]] std::uint64_t clock() const override { return client_.clock; }
  [[nodiscard]] std::uint64_t published_at(std::uint32_t f) const override { return client_.publication_clocks[f]; }
  [[nodiscard]] bool keeps() const override { return client_.keeps; }
  [[nodiscard]] bool is_attached() const override { return attached_; }
  void set_detached() { attached_ = false; }
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] Client& client() { return client_; }
  /// Reads whether the client has served a fragment that is due.
  [[nodiscard]] bool look(std::uint32_t f) {
    if (!due(f) || client_.words[f].with_client) return false;
    if (client_.words[f] != expected(f)) throw std::runtime_error("a client's word is not the one that must follow");
    accept(f);
    return true;
  }

 private:
  void store_word(std::uint32_t f, const FragmentParts& word) override { client_.words[f] = word; }
  bool recall_word(std::uint32_t f, const FragmentParts& due, const FragmentParts& owned) override {
    if (client_.words[f] != due) return false;
    client_.words[f] = owned;
    return true;
  }
  [[nodiscard]] std::optional<gossip::CopyReceipt> receipt(std::uint32_t f, std::uint32_t generation) const override {
    const auto& noted = client_.receipts[f][generation % 2];
    return noted && noted->generation == generation ? noted : std::nullopt;
  }
  void store_receipt(std::uint32_t f, const gossip::CopyReceipt& receipt) override {
    client_.receipts[f][receipt.generation % 2] = receipt;
  }
  [[nodiscard]] float* buffer(std::uint32_t f, std::uint8_t index) const override {
    return client_.buffers[f][index].data();
  }
  void raise_due() override {}
  [[nodiscard]] std::uint32_t finishing_asked() const override { return client_.finishing; }
  void store_finish_answer(const gossip::EndAnswer& answer) override { client_.answer = answer; }
  [[nodiscard]] std::uint32_t finish_agreed() const override {
    return client_.answer.agreed ? client_.answer.number : 0;
  }

  Client& client_;
  std::size_t index_;
  std::uint64_t number_;
  bool attached_ = true;
};

/// One daemon's life at a node, from its first client on.
class Life : public ExchangeMemory, public gossip::CopyMemory, public gossip::ReplicaHost, public gossip::GroupHost {
 public:
  Life(Scenario& scenario, std::size_t node, std::size_t first, gossip::ExchangeCounter& counter);
  void add(std::size_t index);
  void detach(std::size_t index);
  /// Whether all clients take part in the node's own copy, and nothing of a client that has gone is outstanding.
  [[nodiscard]] bool is_settled() const;
  void tick();
  void woken();

  void store_parts(std::uint32_t f, const gossip::FragmentBuffers& buffers) override {
    gossip::store_parts(f, buffers, *this, first_.get());
  }
  void tell_due() override {}
  bool recall(std::uint32_t f) override { return first_->due(f) && first_->recall(f); }
  int provide(std::uint32_t) override { return 0; }
  void vacate(std::uint32_t) override {}

  [[nodiscard]] std::uint64_t& number(std::uint32_t f) override { return numbers_[f]; }
  [[nodiscard]] std::optional<Copy> copy(std::uint32_t f) const override { return kept_.copies[f]; }
  void store_copy(std::uint32_t f, const Copy& copy) override;
  [[nodiscard]] float* copy_buffer(std::uint32_t f, std::uint8_t index) const override {
    return kept_.buffers[f][index].data();
  }
  [[nodiscard]] bool take_copy_buffers(std::uint32_t) const override { return true; }
  [[nodiscard]] std::vector<gossip::Gap> gaps(std::uint32_t f) const override { return kept_.gaps[f]; }
  void add_gap(std::uint32_t f, const gossip::Gap& gap) override { kept_.gaps[f].push_back(gap); }

  [[nodiscard]] TimeUs replica_now_us() const override;
  bool send_message(const NodeId& to, const Message& message) override;
  void run(std::uint32_t f, std::unique_ptr<gossip::Task> task) override;
  [[nodiscard]] std::uint64_t hash_of(std::span<const float>) const override { return 0; }
  void complete(PullReply&) override {}
  void copied(std::uint32_t, std::optional<std::vector<float>>&&, std::uint64_t) override {}
  void lacks_memory(int) override {}
  void turned() override {
    replica->check_invariants();
    replica->book().replies().check_invariants();
    gossip::check_places(*replica);
    group.check_invariants();
  }
  void lacking(gossip::Member& member, std::uint32_t lacking) override {
    if (lacking > 0) return;
    member.set_joined();
    static_cast<SimMember&>(member).client().running = true;
  }
  void lacks_room() override { throw std::runtime_error("no room for the copy"); }

 private:
  Scenario& scenario_;
  std::size_t node_;
  Kept& kept_;
  std::array<std::uint64_t, fragments> numbers_{};
  TimeUs began_us_;
  std::uint32_t awaited_ = 0;

  [[nodiscard]] std::uint64_t clock() const { return group.is_shared() ? group.local().clock() : first_->own_clock(); }
  void run_if_all_are_back();
  void follow();
  void tell_places();

  std::shared_ptr<SimMember> first_;  // its memory may hold the replica

 public:
  std::vector<std::shared_ptr<SimMember>> members;
  std::unique_ptr<gossip::Replica> replica;
  std::unique_ptr<gossip::Executor> executor_;
  gossip::Executor& executor;
  gossip::Group group;
  gossip::Ending ending;
};

struct GroupNode {
  std::deque<Client> clients;
  Kept kept;
  bool daemon = true;
  bool keeps = false;   ///< none of its clients ever trains
  bool pauses = false;  ///< its clients do not train, because one of them publishes NaN
  std::uint64_t life_number = 0;
  std::unique_ptr<gossip::ExchangeCounter> counter;
  std::unique_ptr<Life> life;
};

class Scenario {
 public:
  Scenario(std::uint64_t seed, GroupFault fault);
  GroupOutcome run();

  void attach(std::size_t i, std::size_t c);
  void attach_after(std::size_t i, std::size_t c, TimeUs delay_us);
  void deliver(std::size_t from, std::size_t to, const Message& message);
  void in_life(std::size_t i, TimeUs time_us, std::function<void(Life&)> action);
  /// True at one moment of a run that has this fault.
  bool goes_wrong(GroupFault fault) { return fault == fault_ && ++chances_ == 25; }
  /// The programs average by themselves, so that all that train hold one model.
  [[nodiscard]] bool is_averaged() const { return is_averaged_; }

  GroupFault fault_;
  gossip::Random random;
  Schedule schedule;
  std::deque<GroupNode> nodes;
  std::unique_ptr<Network> network;
  std::uint64_t numbers = 0;  ///< the last number given to a client's session
  GroupOutcome outcome;

 private:
  void add_client(GroupNode& node, float model, bool keeps = false);
  void step(std::size_t i, std::size_t c);
  void serve(std::size_t i, std::size_t c, std::uint32_t f);
  void begin_daemon(std::size_t i);
  void kill(std::size_t i);
  void link(std::size_t i);
  void tick(std::size_t i, std::uint64_t life);
  [[nodiscard]] bool all_run() const;
  void change_clients();
  void sicken(std::size_t i);
  void wait_for_the_sick(std::size_t i, bool was_well, std::uint64_t life_then);
  [[nodiscard]] bool is_done(const Client& client) const;
  [[nodiscard]] bool is_well(const GroupNode& node) const;
  [[nodiscard]] bool is_quiet(const GroupNode& node) const;
  void judge_rest();
  void judge();
  template <class Do>
  void for_each_client(Do action);
  void train_a_little();
  void end_run(std::uint32_t number);
  void judge_end(std::uint32_t number);

  int chances_ = 0;
  TimeUs step_least_us_ = 2'000;
  double training_chance_ = 1;  // a client trains at this share of its steps, and serves at the others
  gossip::Random late_random_;
  bool hears_late_ = false;  // daemons run some time after their clients have published
  bool is_averaged_ = false;
  float model_ = 0;  // if averaged: the model that all training clients hold after their next step
  gossip::Random keeper_random_;
  double keeper_chance_ = 0;  // the probability that a node, or a client that comes, keeps the job
  std::vector<double> begun_with_;
  bool training_ = true;
};

// --- a life ---------------------------------------------------------------------------------------------------------

SimMember::SimMember(Scenario& scenario, std::size_t node, std::size_t index, std::uint64_t number)
    : client_(scenario.nodes[node].clients[index]), index_(index), number_(number) {
  begin({client_.words.begin(), client_.words.end()}, !client_.running, client_.place_count);
}

std::unique_ptr<gossip::Replica> replica_of(Scenario& scenario, std::size_t i, Client& first,
                                            gossip::ExchangeCounter& counter) {
  std::vector<gossip::FragmentBuffers> buffers;
  for (std::uint32_t f = 0; f < fragments; ++f) {
    auto& three = first.buffers[f];
    buffers.emplace_back(std::array{three[0].data(), three[1].data(), three[2].data()}, blocks, first.words[f]);
  }
  const gossip::ReplicaOptions options{.codec = Codec::f32,
                                       .period_us = 20 * us_per_ms,
                                       .lifetime_us = 2 * us_per_s,
                                       .info_period_us = 200 * us_per_ms,
                                       .time_share = 0,
                                       .network_share = 0,
                                       .exchanges = !scenario.is_averaged()};
  JobInfo description{.job = group_job, .name = "simulated", .keeps = scenario.nodes[i].keeps};
  return std::make_unique<gossip::Replica>(options, id_of(i), std::move(description), std::move(buffers), counter,
                                           gossip::Random(scenario.random.next()));
}

Life::Life(Scenario& scenario, std::size_t node, std::size_t first, gossip::ExchangeCounter& counter)
    : ExchangeMemory(scenario.nodes[node].kept.exchanges),
      scenario_(scenario),
      node_(node),
      kept_(scenario.nodes[node].kept),
      began_us_(scenario.schedule.now_us()),
      first_(std::make_shared<SimMember>(scenario, node, first, ++scenario.numbers)),
      members{first_},
      replica(replica_of(scenario, node, first_->client(), counter)),
      executor_(std::make_unique<gossip::Executor>(*replica, *this, *this)),
      executor(*executor_),
      group(*replica, executor, *this, *this),
      ending(*replica, executor, group) {
  numbers_.fill(counter.next());
  for (std::uint32_t f = 0; f < fragments; ++f)
    numbers_[f] = std::max(numbers_[f], first_->last_noted(f));
  group.set_first(first_);
  if (!group.take_copies_over(first_->own_clock())) throw std::runtime_error("a copy could not be taken over");
  kept_.exchanges.restore(*replica, executor, replica_now_us());
  kept_.holder = first;
  awaited_ = first_->were();
  executor.decide([&](Actions& out) { replica->enter(Phase::joining, out); });
  run_if_all_are_back();
}

void Life::add(std::size_t index) {
  const auto member = std::make_shared<SimMember>(scenario_, node_, index, ++scenario_.numbers);
  awaited_ = std::max(awaited_, replica->phase() == Phase::joining && !member->joins() ? member->were() : 0);
  for (std::uint32_t f = 0; f < fragments; ++f)
    numbers_[f] = std::max(numbers_[f], member->last_noted(f));
  members.push_back(member);
  tell_places();
  if (replica->phase() == Phase::running) group.add(member, clock());
}

void Life::tell_places() {
  const bool all = scenario_.fault_ == GroupFault::keepers_counted;
  const auto trainers = std::ranges::count_if(members, [all](const auto& one) { return all || !one->keeps(); });
  for (const auto& one : members)
    one->client().place_count = std::max(static_cast<std::uint32_t>(trainers), awaited_);
}

/// Like Job::detached(), at a node that has dialled all its contacts.
void Life::detach(std::size_t index) {
  woken();
  const auto found = std::ranges::find(members, index, &SimMember::index);
  const std::shared_ptr<SimMember> gone = std::move(*found);
  members.erase(found);
  tell_places();
  gone->set_detached();
  group.remove(*gone);
}

bool Life::is_settled() const {
  const auto is_busy = [](const auto& one) {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      if (one->due(f)) return true;
    }
    return one->joins();
  };
  return replica->phase() == Phase::running && group.is_shared() && group.all_gathered() && !group.awaits_departed() &&
         group.local().under_way().empty() && std::ranges::none_of(members, is_busy);
}

void Life::run_if_all_are_back() {
  if (replica->phase() != Phase::joining) return;
  const auto is_back = [](const auto& one) { return !one->joins() && !one->keeps(); };
  const bool all = std::ranges::count_if(members, is_back) >= awaited_;
  if (!all && replica_now_us() - began_us_ < await_us) return;
  awaited_ = 0;
  const gossip::Group::Members all_members(members.begin(), members.end());
  const std::uint64_t clock = gossip::Group::clock_of(all_members).value_or(first_->own_clock());
  replica->set_clock(clock);
  follow();
  group.begin(all_members, clock);
  executor.decide([&](Actions& out) { replica->enter(Phase::running, out); });
  first_->set_joined();
  first_->client().running = true;
}

void Life::woken() {
  for (const auto& member : std::vector(members)) {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      if (!member->look(f) || !group.published(*member, f)) continue;
      executor.decide([&](Actions& out) {
        const std::uint64_t clock = member->client().publication_clocks[f];
        replica->published(f, member->word(f).generation, clock, replica_now_us(), out);
      });
    }
  }
}

void Life::follow() {
  group.follow(scenario_.fault_ == GroupFault::mean_of_equals ? gossip::Follows::mean : ending.follows());
}

void Life::tick() {
  run_if_all_are_back();
  for (const auto& member : members) {
    ending.look(*member);
    if (scenario_.fault_ != GroupFault::last_clock_unseen || member->finishing() == 0) group.observe_clock(*member);
  }
  replica->set_clock(clock());
  executor.decide([&](Actions& out) { replica->tick(replica_now_us(), out); });
  follow();
  group.tick(ending.round_period_us(replica->pace().period_us()), replica->phase() == Phase::running);
  ending.watch({members.begin(), members.end()}, replica_now_us());
}

void Life::store_copy(std::uint32_t f, const Copy& copy) {
  kept_.before[f] = std::exchange(kept_.copies[f], copy);
}

TimeUs Life::replica_now_us() const {
  return scenario_.schedule.now_us();
}

bool Life::send_message(const NodeId& to, const Message& message) {
  const std::size_t other = number_of(to);
  if (!scenario_.nodes[other].daemon) return false;
  scenario_.deliver(node_, other, message);
  return true;
}

void Life::run(std::uint32_t f, std::unique_ptr<gossip::Task> task) {
  const TimeUs end_us = replica_now_us() + between(scenario_.random, 100, 2'000);
  scenario_.in_life(node_, end_us, [f, task = std::shared_ptr<gossip::Task>(std::move(task))](Life& life) {
    task->run(life.replica->held(f));
    task->finish();
  });
}

// --- the scenario ----------------------------------------------------------------------------------------------------

Scenario::Scenario(std::uint64_t seed, GroupFault fault)
    : fault_(fault), random(seed), late_random_(seed ^ 0x1a7eULL), keeper_random_(seed ^ 0x4ee9ULL) {
  if (chance(keeper_random_, 0.3)) keeper_chance_ = 0.5;
  hears_late_ = chance(late_random_, 0.5);
  gossip::Random average_random(seed ^ 0xa4e7a9eULL);
  is_averaged_ = chance(average_random, 0.2);
  if (is_averaged_ && chance(average_random, 0.5)) keeper_chance_ = 0.5;
  if (is_averaged_) model_ = static_cast<float>(between(average_random, -8, 8));
  const auto training = static_cast<std::size_t>(between(random, 1, 3));
  const std::size_t count = training + (is_averaged_ && chance(average_random, 0.7) ? 1 : 0);
  if (chance(random, 0.3)) step_least_us_ /= 10;  // faster than the rounds
  network = std::make_unique<Network>(
      schedule, gossip::Random(random.next()), count,
      PathConditions{.latency_us = between(random, 200, 20'000), .jitter_us = between(random, 0, 20'000)});
  for (std::size_t i = 0; i < count; ++i) {
    GroupNode& node = nodes.emplace_back();
    const auto model = static_cast<float>(between(random, -8, 8));
    begun_with_.push_back(model);
    for (auto& two : node.kept.buffers)
      two.fill(std::vector<float>(elements));
    node.keeps = i >= training;
    const auto clients = static_cast<std::size_t>(between(random, count == 1 ? 2 : 1, 3));
    for (std::size_t c = 0; c < clients; ++c)
      add_client(node, c == 0 ? model : -500.0F, node.keeps);
    if (chance(keeper_random_, keeper_chance_)) add_client(node, -500.0F, true);
    node.clients[0].running = true;
  }
}

void Scenario::add_client(GroupNode& node, float model, bool keeps) {
  Client& client = node.clients.emplace_back();
  client.keeps = keeps;
  client.x.fill(model);
  client.slowness = static_cast<int>(between(random, 1, 4));
  for (std::uint32_t f = 0; f < fragments; ++f) {
    client.words[f] = {.generation = 1};
    client.buffers[f].fill(std::vector<float>(elements));
    std::ranges::fill(client.buffers[f][0], model);
  }
}

void Scenario::in_life(std::size_t i, TimeUs time_us, std::function<void(Life&)> action) {
  schedule.at(time_us, [this, i, number = nodes[i].life_number, action = std::move(action)] {
    if (nodes[i].life && nodes[i].life_number == number) action(*nodes[i].life);
  });
}

void Scenario::begin_daemon(std::size_t i) {
  GroupNode& node = nodes[i];
  node.daemon = true;
  // As in the daemon, counters begin with the time of day: a restart never uses an exchange's name again.
  node.counter = std::make_unique<gossip::ExchangeCounter>(static_cast<std::uint64_t>(schedule.now_us()) + 1);
  for (std::size_t c = 0; c < node.clients.size(); ++c)
    attach_after(i, c, between(random, 0, us_per_s));
}

void Scenario::attach_after(std::size_t i, std::size_t c, TimeUs delay_us) {
  schedule.after(delay_us, [this, i, c, number = nodes[i].life_number] {
    const GroupNode& node = nodes[i];
    if (node.daemon && node.life_number == number && node.clients[c].alive) attach(i, c);
  });
}

/// Like Job::make() and Job::add(). A client that cannot begin the job tries again later, because another may come.
void Scenario::attach(std::size_t i, std::size_t c) {
  GroupNode& node = nodes[i];
  const bool gathered = std::ranges::all_of(node.kept.copies, [](const auto& copy) { return copy.has_value(); });
  const bool holder = gathered || !node.kept.holder || *node.kept.holder == c;
  const bool refused =
      node.life ? node.clients[c].running && node.life->group.awaits_departed() : !node.clients[c].running || !holder;
  if (refused) return attach_after(i, c, 50 * us_per_ms);
  if (node.life) return node.life->add(c);
  node.life = std::make_unique<Life>(*this, i, c, *node.counter);
  link(i);
  tick(i, node.life_number);
}

void Scenario::tick(std::size_t i, std::uint64_t life) {
  in_life(i, schedule.now_us(), [this, i, life](Life& now) {
    now.tick();
    schedule.after(tick_us, [this, i, life] {
      if (nodes[i].life_number == life) tick(i, life);
    });
  });
}

void Scenario::link(std::size_t i) {
  for (std::size_t j = 0; j < nodes.size(); ++j) {
    if (j == i || !nodes[j].life) continue;
    for (const auto& [a, b] : {std::pair(i, j), std::pair(j, i)})
      nodes[a].life->executor.decide([&](Actions& out) { nodes[a].life->replica->link_up(id_of(b), out); });
  }
}

void Scenario::kill(std::size_t i) {
  GroupNode& node = nodes[i];
  if (!node.daemon) return;
  ++outcome.deaths;
  ++node.life_number;
  node.daemon = false;
  node.life.reset();
  if (fault_ == GroupFault::lost_copy) node.kept.copies = {};
  if (fault_ == GroupFault::late_copy) node.kept.copies = node.kept.before;
  if (fault_ == GroupFault::lost_records) node.kept.exchanges.records.clear();
  if (fault_ == GroupFault::lost_own_halves) node.kept.exchanges.own_halves.clear();
  for (Client& client : node.clients) {
    if (fault_ == GroupFault::lost_receipts) client.receipts = {};
    for (auto& two : client.receipts) {
      for (auto& receipt : two) {
        if (receipt && fault_ == GroupFault::publication_twice) receipt->number = 0;
      }
    }
  }
  for (std::size_t j = 0; j < nodes.size(); ++j) {
    if (j == i || !nodes[j].life) continue;
    Life& other = *nodes[j].life;
    other.replica->link_down(id_of(i));
    if (chance(random, 0.5))
      other.executor.decide([&](Actions& out) { other.replica->node_dead(id_of(i), schedule.now_us(), out); });
  }
  schedule.after(between(random, 1'000, us_per_s), [this, i] { begin_daemon(i); });
}

void Scenario::deliver(std::size_t from, std::size_t to, const Message& message) {
  const auto shared = std::make_shared<const Message>(message);
  const std::uint64_t from_life = nodes[from].life_number;
  const std::uint64_t to_life = nodes[to].life_number;
  network->send(from, to, 100, [this, from, to, from_life, to_life, shared] {
    if (nodes[from].life_number != from_life || nodes[to].life_number != to_life || !nodes[to].life) return;
    Life& life = *nodes[to].life;
    life.executor.decide(
        [&](Actions& out) { life.replica->received(id_of(from), Message(*shared), schedule.now_us(), out); });
  });
}

// --- clients ---------------------------------------------------------------------------------------------------------

/// The first client that trains, or the first one if none trains.
const Client& first_trainer(const GroupNode& node) {
  const auto found = std::ranges::find_if(node.life->members, [](const auto& one) { return !one->keeps(); });
  return (found == node.life->members.end() ? node.life->members.front() : *found)->client();
}

std::size_t trainers(const GroupNode& node) {
  return static_cast<std::size_t>(
      std::ranges::count_if(node.clients, [](const Client& client) { return client.alive && !client.keeps; }));
}

bool Scenario::all_run() const {
  return std::ranges::all_of(nodes, [](const GroupNode& node) {
    return std::ranges::all_of(node.clients, [](const Client& client) { return client.running || !client.alive; });
  });
}

void Scenario::step(std::size_t i, std::size_t c) {
  Client& client = nodes[i].clients[c];
  if (!client.alive) return;
  const bool over = client.finishing != 0 && client.answer.number == client.finishing && client.answer.agreed;
  // A client's share is one of all its node's clients, so nobody trains before all take part.
  const bool trains = training_ && !client.keeps && !nodes[i].pauses && client.finishing == 0 && all_run();
  const bool averages = is_averaged_ && client.running && !client.keeps && client.finishing == 0;
  if (averages && client.x[0] != model_) {  // the steps of the other clients count as its own, too
    client.x.fill(model_);
    client.clock += step_samples;
  }
  if (trains && (training_chance_ >= 1 || chance(random, training_chance_))) {
    const auto amount = static_cast<float>(between(random, 1, 4)) / 8;
    model_ += amount;
    for (float& x : client.x)
      x = is_averaged_ ? model_ : x + amount;
    client.unpublished.fill(true);
    client.trained += amount / static_cast<double>(trainers(nodes[i]));
    client.clock += step_samples;
    ++outcome.steps;
  }
  client.finishing = client.finishes;
  if (++client.steps % static_cast<std::uint64_t>(client.slowness) == 0 || over) {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      if (client.words[f].with_client) serve(i, c, f);
    }
    const TimeUs heard_us = schedule.now_us() + (hears_late_ ? between(late_random_, 0, 5'000) : 0);
    in_life(i, heard_us, [](Life& life) { life.woken(); });
  }
  if (over) {
    client.left = true;
    return;  // its program has served what was due when it heard of the end, and does not step any more
  }
  schedule.after(between(random, step_least_us_, 10 * step_least_us_), [this, i, c] { step(i, c); });
}

void Scenario::serve(std::size_t i, std::size_t c, std::uint32_t f) {
  Client& client = nodes[i].clients[c];
  FragmentParts& word = client.words[f];
  const std::vector<float>& correction = client.buffers[f][word.correction];
  const bool given = word.replace || word.correction_valid;
  if (is_averaged_ && !client.keeps && given && !word.replace && outcome.ends == 0 && client.finishing == 0)
    throw std::runtime_error("a program that averages exactly is given a correction");
  if (given && !std::isfinite(correction[0])) throw std::runtime_error("a correction is not finite");
  const bool torn = std::ranges::adjacent_find(correction, std::not_equal_to{}) != correction.end();
  if (torn) throw std::runtime_error("a correction is half written");
  if (word.replace) {
    client.x[f] = correction[0];
  } else if (word.correction_valid) {
    if (!goes_wrong(GroupFault::correction_lost)) client.x[f] += correction[0];
    if (goes_wrong(GroupFault::correction_twice)) client.x[f] += correction[0];
  }
  client.unpublished[f] = client.sick;
  client.publication_clocks[f] = client.clock;
  std::ranges::fill(client.buffers[f][word.spare()],
                    client.sick ? std::numeric_limits<float>::quiet_NaN() : client.x[f]);
  word = {.generation = word.generation + 1,
          .publication = word.spare(),
          .correction = word.correction,
          .commits = word.commits};
}

// --- clients that go and come ----------------------------------------------------------------------------------------

/// Whether the client is gone, or has published all that it has trained.
bool Scenario::is_done(const Client& client) const {
  if (is_averaged_) return client.running || !client.alive;  // nothing is lost
  const auto is_published = [](bool unpublished) { return !unpublished; };
  return !client.alive || (client.running && std::ranges::all_of(client.unpublished, is_published));
}

/// Whether all that the node's clients have trained is published, and the daemon has had time to take it in.
bool Scenario::is_quiet(const GroupNode& node) const {
  return node.life && std::ranges::all_of(node.clients, [this](const auto& client) { return is_done(client); }) &&
         node.life->is_settled();
}

/// A client that goes loses its unpublished training, and the shares change with the number of clients. So all clients
/// pause first. Then one goes, or another comes, unless a daemon has died meanwhile.
void Scenario::change_clients() {
  if (schedule.now_us() >= faults_us) return;
  training_ = false;
  const auto i = static_cast<std::size_t>(random.below(nodes.size()));
  schedule.after(us_per_s, [this, i] {
    const bool was_quiet = is_quiet(nodes[i]);
    schedule.after(us_per_s / 2, [this, i, was_quiet, number = nodes[i].life_number] {
      GroupNode& node = nodes[i];
      if (was_quiet && node.life_number == number && is_quiet(node) && !node.pauses) {
        ++outcome.changes;
        const std::size_t others = std::max<std::size_t>(trainers(node), 1) - 1;
        if (others > 0 && chance(random, 0.3)) {
          sicken(i);
        } else if (others > 0 && chance(random, 0.6)) {
          const auto& gone = node.life->members[random.below(node.life->members.size())];
          gone->client().alive = false;
          node.life->detach(gone->index());
        } else {
          add_client(node, -500.0F, node.keeps || chance(keeper_random_, keeper_chance_));
          const std::size_t c = node.clients.size() - 1;
          schedule.after(between(random, 0, 20'000), [this, i, c] { step(i, c); });
          attach_after(i, c, between(random, 0, us_per_s));
        }
      }
      training_ = schedule.now_us() < faults_us;
      schedule.after(us_per_s, [this] { change_clients(); });
    });
  });
}

/// A client publishes NaN for a while. Its training would be lost until its node knows that it is well again, and the
/// shares of the others are larger meanwhile. So the clients of its node pause until then.
void Scenario::sicken(std::size_t i) {
  GroupNode& node = nodes[i];
  node.pauses = true;
  Client& client = node.life->members[random.below(node.life->members.size())]->client();
  if (client.keeps) return wait_for_the_sick(i, false, 0);
  client.sick = true;
  schedule.after(between(random, 100'000, us_per_s), [this, i, &client] {
    client.sick = false;
    wait_for_the_sick(i, false, 0);
  });
}

void Scenario::wait_for_the_sick(std::size_t i, bool was_well, std::uint64_t life_then) {
  GroupNode& node = nodes[i];
  const bool well = is_well(node);
  if (well && was_well && node.life_number == life_then) {
    node.pauses = false;
    return;
  }
  schedule.after(us_per_s / 2, [this, i, well, life = node.life_number] { wait_for_the_sick(i, well, life); });
}

/// Whether all clients are back, have published what they have, and take part in the mean.
bool Scenario::is_well(const GroupNode& node) const {
  const auto alive = static_cast<std::size_t>(std::ranges::count_if(node.clients, &Client::alive));
  return node.life && node.life->members.size() == alive &&
         std::ranges::all_of(node.clients, [this](const auto& client) { return is_done(client); }) &&
         std::ranges::none_of(node.life->members,
                              [&](const auto& one) { return node.life->group.is_quarantined(*one); });
}

// --- from beginning to end -------------------------------------------------------------------------------------------

GroupOutcome Scenario::run() {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    begin_daemon(i);
    for (std::size_t c = 0; c < nodes[i].clients.size(); ++c)
      schedule.after(between(random, 0, 20'000), [this, i, c] { step(i, c); });
  }
  if (chance(random, 0.8)) schedule.after(5 * us_per_s, [this] { change_clients(); });
  schedule.run_until(4 * us_per_s);
  network->set_default(with_faults(network->path(0, 0), random, 0.1));
  const double between_deaths_us = uniform(random, 0.05, 2) * us_per_s;
  while (schedule.now_us() < faults_us) {
    schedule.run_until(schedule.now_us() + static_cast<TimeUs>(exponential(random, between_deaths_us)) + 1);
    kill(static_cast<std::size_t>(random.below(nodes.size())));
  }
  training_ = false;
  network->set_default({.latency_us = 1'000});
  for (TimeUs end_us = schedule.now_us() + calm_us; schedule.now_us() < end_us;)
    schedule.run_until(schedule.now_us() + us_per_s);
  judge_rest();
  judge();
  for (std::uint32_t number = 1; number <= ends; ++number) {
    train_a_little();
    end_run(number);
  }
  if (is_averaged_)
    schedule.run_until(schedule.now_us() + 2 * us_per_s);  // ends do not wait for those that keep the job
  judge();
  outcome.events = schedule.events();
  return outcome;
}

template <class Do>
void Scenario::for_each_client(Do action) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t c = 0; c < nodes[i].clients.size(); ++c) {
      if (nodes[i].clients[c].alive) action(i, c);
    }
  }
}

void Scenario::train_a_little() {
  for_each_client([&](std::size_t i, std::size_t c) {
    Client& client = nodes[i].clients[c];
    client.finishing = client.finishes = 0;
    if (std::exchange(client.left, false)) step(i, c);
  });
  training_ = true;
  training_chance_ = chance(random, 0.5) ? 1 : uniform(random, 0, 0.2);
  schedule.run_until(schedule.now_us() + between(random, 20'000, 200'000));
}

/// The programs stop training one by one and finish. A program for which the run is over does nothing more.
void Scenario::end_run(std::uint32_t number) {
  if (is_averaged_) {  // all stop after the same step
    training_ = false;
    schedule.run_until(schedule.now_us() + 11 * step_least_us_);
  }
  const TimeUs last_us = is_averaged_ || chance(random, 0.8) ? 300'000 : end_us / 2;
  for_each_client([&](std::size_t i, std::size_t c) {
    if (nodes[i].clients[c].keeps) return;
    schedule.after(between(random, 0, last_us), [this, i, c, number] { nodes[i].clients[c].finishes = number; });
  });
  bool over = false;
  for (const TimeUs until_us = schedule.now_us() + end_us; !over; schedule.run_until(schedule.now_us() + 10'000)) {
    if (schedule.now_us() >= until_us) throw std::runtime_error(fmt::format("end {} does not come", number));
    over = true;
    for_each_client([&](std::size_t i, std::size_t c) {
      const Client& client = nodes[i].clients[c];
      over = over && (client.keeps || client.left);
    });
  }
  training_ = false;
  ++outcome.ends;
  judge_end(number);
}

void Scenario::judge_end(std::uint32_t number) {
  const Client* some = nullptr;
  std::size_t savers = 0;
  for_each_client([&](std::size_t i, std::size_t c) {
    const Client& client = nodes[i].clients[c];
    if (client.keeps) return;
    if (some == nullptr) some = &client;
    savers += client.answer.saver ? 1 : 0;
    const Client& first = first_trainer(nodes[i]);
    for (std::uint32_t f = 0; f < fragments; ++f) {
      const double scale = std::fabs(static_cast<double>(some->x[f]));
      const auto apart = [&](const Client& other) { return std::fabs(static_cast<double>(client.x[f] - other.x[f])); };
      // Nodes need not be equal: a late exchange may still change one that has agreed.
      if (apart(first) <= local_tolerance * scale && apart(*some) <= end_tolerance * scale) continue;
      throw std::runtime_error(
          fmt::format("end {}: client {} of node {} holds {} in fragment {}, the first there {}, "
                      "and the first of all {}",
                      number, c, i, client.x[f], f, first.x[f], some->x[f]));
    }
    const auto members = std::ranges::count_if(nodes, [](const GroupNode& node) { return !node.keeps; });
    if (client.answer.members != members)
      throw std::runtime_error(fmt::format("end {}: node {} knows of {} members", number, i, client.answer.members));
    if (client.answer.clock != some->answer.clock)
      throw std::runtime_error(fmt::format("end {}: node {} takes the job to be at {}, the first of all at {}", number,
                                           i, client.answer.clock, some->answer.clock));
  });
  // A program that asks late must hear that the run is over here.
  schedule.run_until(schedule.now_us() + 50 * us_per_ms);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].keeps && !nodes[i].life->replica->finish_report().over)
      throw std::runtime_error(fmt::format("end {}: node {} does not say any more that the run is over", number, i));
  }
  if (savers != 1) throw std::runtime_error(fmt::format("end {}: {} clients are to save", number, savers));
}

/// Nobody trains any more, and all hold the same, so daemons must hardly ask clients for publications.
void Scenario::judge_rest() {
  std::vector<std::uint64_t> before;
  for (const GroupNode& node : nodes)
    before.push_back(node.life ? node.life->replica->counters().publications : 0);
  schedule.run_until(schedule.now_us() + rest_us);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::uint64_t asked = nodes[i].life ? nodes[i].life->replica->counters().publications - before[i] : 0;
    if (asked > most_at_rest)
      throw std::runtime_error(fmt::format("node {}: {} publications in {} s of rest", i, asked, rest_us / us_per_s));
  }
}

void Scenario::judge() {
  double expected = 0;
  double scale = 1;
  std::array<double, fragments> found{};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    GroupNode& node = nodes[i];
    const auto alive = static_cast<std::size_t>(std::ranges::count_if(node.clients, &Client::alive));
    if (!node.life || node.life->members.size() != alive)
      throw std::runtime_error(fmt::format("node {}: not all clients are back", i));
    const Client& sample = first_trainer(node);
    Life& life = *node.life;
    outcome.exchanges += life.replica->counters().initiated;
    expected += is_averaged_ ? static_cast<double>(model_) : begun_with_[i];
    for (const Client& client : node.clients)
      expected += is_averaged_ ? 0 : client.trained;
    for (const auto& member : life.members) {
      if (life.group.is_quarantined(*member))
        throw std::runtime_error(fmt::format("node {}: a client that is well is quarantined", i));
    }
    for (std::uint32_t f = 0; f < fragments; ++f) {
      found[f] += static_cast<double>(sample.x[f]);
      scale += std::fabs(static_cast<double>(sample.x[f]));
      for (const Client& client : node.clients) {
        if (!client.alive || client.x[f] == sample.x[f]) continue;
        // Neither rounds nor ends wait for those that keep the job.
        const double apart = std::fabs(static_cast<double>(client.x[f]) - static_cast<double>(sample.x[f]));
        if (client.keeps && (sample.left || apart <= 1e-6 * std::fabs(static_cast<double>(sample.x[f])))) continue;
        throw std::runtime_error(
            fmt::format("node {}: fragment {} of its clients is {} and {}", i, f, sample.x[f], client.x[f]));
      }
    }
    if (const auto unresolved = life.replica->counters().unresolved; unresolved > 0)
      throw std::runtime_error(fmt::format("node {}: {} exchanges are unresolved", i, unresolved));
  }
  for (std::uint32_t f = 0; f < fragments; ++f) {
    const double allowed = 1e-5 * scale;
    if (std::fabs(found[f] - expected) <= allowed) continue;
    throw std::runtime_error(
        fmt::format("fragment {}: the models add up to {:.6f} and not to {:.6f} (at most {:.6f} is "
                    "rounding)",
                    f, found[f], expected, allowed));
  }
}

}  // namespace

GroupOutcome run_group_scenario(std::uint64_t seed, GroupFault fault) {
  return Scenario(seed, fault).run();
}

}  // namespace gossamer::sim
