#include "tools/sim/cluster.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "daemon/cluster/permission.hpp"
#include "gossip/check.hpp"
#include "sdk/cuda/element.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

using gossip::FragmentBuffers;
using gossip::FragmentParts;
using gossip::Phase;
using gossip::Replica;

constexpr JobKey job{.name_hash = 7, .layout_hash = 9};
/// A message's header frame, with ZeroMQ's and CURVE's framing of its frames.
constexpr std::size_t header_bytes = 240;
const peer::Rights follower_rights{.role = peer::NodeRole::follows};
constexpr std::uint64_t keeper_steps = 64;  // once in this many steps a keeper follows the clock

std::size_t payload_of(const Message& message) {
  if (const auto* request = std::get_if<ExchangeRequest>(&message)) return payload_bytes(*request);
  if (const auto* reply = std::get_if<ExchangeReply>(&message)) return payload_bytes(*reply);
  if (const auto* pulled = std::get_if<PullReply>(&message)) return pulled->values.size();
  return 0;
}

/// Fills memory that was given back with NaN, so that any later use of it shows.
void forget(std::vector<std::vector<float>>& buffers) {
  for (std::vector<float>& buffer : buffers)
    std::fill(buffer.begin(), buffer.end(), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

std::size_t wire_bytes(const Message& message, double byte_scale) {
  return header_bytes + static_cast<std::size_t>(static_cast<double>(payload_of(message)) * byte_scale);
}

NodeId id_of(std::size_t node) {
  NodeId id;
  const std::uint64_t number = node + 1;
  for (std::size_t i = 0; i < 8; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(number >> (56 - 8 * i));
  return id;
}

std::size_t number_of(const NodeId& id) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i)
    number = number << 8 | id.bytes[i];
  return static_cast<std::size_t>(number - 1);
}

std::string name_of(const ExchangeId& id) {
  return fmt::format("{}:{}", number_of(id.initiator), id.counter);
}

Cluster::Cluster(ClusterOptions options, Schedule& schedule, Network& network)
    : options_(options),
      schedule_(schedule),
      network_(network),
      random_(options.seed),
      fragments_(
          static_cast<std::uint32_t>((options.elements + options.fragment_elements - 1) / options.fragment_elements)),
      is_buffer_(options.elements) {
  GOSSAMER_CHECK(options.elements > 0 && options.fragment_elements % block_elements == 0);
  for (const auto& [first, last] : options.buffers)
    std::fill(is_buffer_.begin() + static_cast<std::ptrdiff_t>(first),
              is_buffer_.begin() + static_cast<std::ptrdiff_t>(last), true);
}

// --- a node's machine ---------------------------------------------------------------------------------------------

/// A task's arithmetic runs at the end of its time and reports at once. The fragment is held meanwhile, so nothing else
/// touches it, and the change is one event.
class Cluster::Machine : public ExchangeMemory,
                         public gossip::ReplicaHost,
                         public gossip::BeginningHost,
                         public gossip::BeginningWork {
 public:
  Machine(Cluster& cluster, std::size_t i) : ExchangeMemory(cluster.nodes_[i].client.kept), cluster_(cluster), i_(i) {}

  /// Updates the shared word to the daemon's parts, unless the client has the word or has just given it back.
  void store_parts(std::uint32_t f, const FragmentBuffers& buffers) override {
    FragmentParts& word = client().words[f];
    if (word.with_client || word.generation != buffers.parts().generation) return;
    if (word.commits != buffers.parts().commits) check_successor(f, buffers.parts().commits);
    const bool adopted = buffers.parts().replace && !word.replace;
    word = buffers.parts();
    if (adopted) cluster_.say({.kind = Event::Kind::adopted, .node = i_, .fragment = f});
  }
  void tell_due() override {}
  bool recall(std::uint32_t f) override {
    if (!client().words[f].with_client || client().serving[f]) return false;
    client().words[f].with_client = false;
    return true;
  }
  int provide(std::uint32_t f) override {
    if (goes_wrong(cluster_.lack_probability)) return ENOMEM;
    client().paged[f] = true;
    for (std::vector<float>& buffer : client().buffers[f])
      std::fill(buffer.begin(), buffer.end(), 0.0F);
    return 0;
  }
  void vacate(std::uint32_t f) override {
    client().paged[f] = false;
    forget(client().buffers[f]);
  }

  [[nodiscard]] TimeUs replica_now_us() const override { return cluster_.now_us(); }
  bool send_message(const NodeId& to, const Message& message) override {
    cluster_.deliver(i_, number_of(to), message);
    return true;
  }
  void run(std::uint32_t f, std::unique_ptr<gossip::Task> task) override {
    later(f, [this, f, task = std::shared_ptr<gossip::Task>(std::move(task))] {
      task->run(cluster_.nodes_[i_].replica->held(f));
      task->finish();
    });
  }
  [[nodiscard]] std::uint64_t hash_of(std::span<const float>) const override { return 0; }
  void complete(PullReply& reply) override { reply.clock = client().clock_base + client().clock; }
  void copied(std::uint32_t, std::optional<std::vector<float>>&&, std::uint64_t) override {}
  void lacks_memory(int) override {}

  // --- gossip::BeginningHost
  [[nodiscard]] bool is_gone() const override { return !cluster_.nodes_[i_].client.alive; }
  void begin() override { cluster_.begin(i_); }
  void run_if_joined() override { cluster_.run_if_joined(i_); }

  // --- gossip::BeginningWork
  [[nodiscard]] TimeUs beginning_now_us() const override { return cluster_.now_us(); }
  void ask(const NodeId& to, const Message& message) override {
    if (cluster_.linked(i_, number_of(to))) cluster_.deliver(i_, number_of(to), message);
  }
  void copy(const NodeId& from, PullReply&& reply, float* target) override {
    const std::uint32_t f = reply.fragment;
    later(f, [this, from, target, reply = std::move(reply)]() mutable {
      const int error = make_room(reply.fragment);
      const bool good = !goes_wrong(cluster_.damage_probability);
      if (error == 0) std::memcpy(target, reply.values.data.data(), reply.values.size());
      if (error == 0 && !good) *target = std::numeric_limits<float>::quiet_NaN();
      beginning().copied(from, std::move(reply), {.memory_error = error, .good = good});
    });
  }
  bool search() override;
  bool read(const Saved& saved, std::uint32_t f, float* target) override;
  [[nodiscard]] std::uint64_t client_clock() const override { return cluster_.nodes_[i_].client.clock; }
  void set_fragments_pulled(std::uint32_t) override {}
  void take_over(std::uint64_t base, std::span<const std::byte>) override { client().clock_base = base; }
  void end_session() override { cluster_.lose_client(i_); }
  void begins_with(const Saved& saved) override { began_with_ = saved; }
  [[nodiscard]] const Saved& began_with() const { return began_with_; }

  void begun(const gossip::Actions::Run& run) override {
    Event event{.kind = Event::Kind::outer, .node = i_, .fragment = run.fragment};
    if (const auto* answer = std::get_if<gossip::Actions::Answer>(&run.work)) {
      event.exchange = {answer->to, answer->task.request.counter};
      event.other = number_of(answer->to);
      event.kind = Event::Kind::answering;
      cluster_.say(event);
      event.kind = Event::Kind::answered;
    } else if (const auto* conclude = std::get_if<gossip::ConcludeTask>(&run.work)) {
      event.exchange = {id_of(i_), conclude->reply.counter};
      event.kind = Event::Kind::concluded;
    } else if (const auto* undo = std::get_if<gossip::UndoTask>(&run.work)) {
      event.exchange = client().kept.records.at(undo->place).id;
      event.kind = Event::Kind::undone;
    } else if (!std::holds_alternative<gossip::OuterTask>(run.work)) {
      return;
    }
    under_way_[run.fragment] = event;
  }
  void over(std::uint32_t f, bool done, bool commit) override {
    const auto found = under_way_.find(f);
    if (found == under_way_.end()) return;
    Event event = found->second;
    under_way_.erase(found);
    event.done = done;
    event.commit = commit;
    cluster_.say(event);
  }
  void turned() override {
    Replica& replica = *cluster_.nodes_[i_].replica;
    replica.check_invariants();
    replica.book().replies().check_invariants();
    gossip::check_places(replica);
    cluster_.say({.kind = Event::Kind::turned, .node = i_});
  }

 private:
  [[nodiscard]] Client& client() { return cluster_.nodes_[i_].client; }
  /// Checks that what a successor needs to know of this commit is stored before the word, after which the daemon may
  /// die.
  void check_successor(std::uint32_t f, std::uint32_t commits) {
    const auto found = under_way_.find(f);
    if (found == under_way_.end() || found->second.kind == Event::Kind::outer) return;
    const Event& event = found->second;
    const KeptExchanges& kept = client().kept;
    if (event.kind == Event::Kind::concluded) {
      const gossip::OwnHalves& halves = kept.own_halves.at(f);
      GOSSAMER_CHECK(std::ranges::count(halves, gossip::OwnHalf{event.exchange.counter, commits}) == 1);
      return;
    }
    const auto record =
        std::ranges::find_if(kept.records, [&](const auto& item) { return item.second.id == event.exchange; });
    GOSSAMER_CHECK(record != kept.records.end());
    GOSSAMER_CHECK((event.kind == Event::Kind::undone ? record->second.undone : record->second.commits) == commits);
  }
  /// In lean memory provides pages for the fragment, which may fail. Otherwise there is always room. Returns an errno
  /// value.
  int make_room(std::uint32_t f) { return cluster_.options_.lean_window > 0 ? provide(f) : 0; }
  [[nodiscard]] bool goes_wrong(double probability) { return probability > 0 && chance(cluster_.random_, probability); }
  /// Does something after the time that work on the fragment takes.
  void later(std::uint32_t f, Schedule::Action action) {
    cluster_.at_replica(i_, cluster_.now_us() + cluster_.task_time_us(cluster_.elements_of(f)), std::move(action));
  }

  Cluster& cluster_;
  std::size_t i_;
  Saved began_with_;
  std::map<std::uint32_t, Event> under_way_;  ///< the event to report when the work on the fragment is over
};

namespace {

class SimulatedModel : public gossip::SavedModel {
 public:
  SimulatedModel(const Cluster::SavedValues& saved, bool trusted) : saved_(saved), trusted_(trusted) {}
  [[nodiscard]] std::uint64_t clock() const override { return saved_.clock; }
  [[nodiscard]] std::span<const std::byte> cursor() const override { return {}; }
  [[nodiscard]] std::expected<void, std::string> check() override {
    if (saved_.damaged && !trusted_) return std::unexpected("damaged");
    return {};
  }
  [[nodiscard]] std::expected<void, std::string> rewind() override { return {}; }
  [[nodiscard]] const Cluster::SavedValues& saved() const { return saved_; }

 private:
  Cluster::SavedValues saved_;
  bool trusted_;
};

const Cluster::SavedValues& saved_in(const gossip::SavedModel& model) {
  return static_cast<const SimulatedModel&>(model).saved();
}

}  // namespace

const Cluster::SavedValues* Cluster::began_with(std::size_t i) const {
  const gossip::BeginningWork::Saved& saved = nodes_[i].machine->began_with();
  return saved == nullptr ? nullptr : &saved_in(*saved);
}

bool Cluster::Machine::search() {
  if (cluster_.nodes_[i_].saved.empty()) return false;
  std::vector<Saved> found;
  for (const SavedValues& saved : cluster_.nodes_[i_].saved) {
    if (saved.clock >= client().clock)
      found.push_back(std::make_shared<SimulatedModel>(saved, cluster_.options_.trusts_saved));
  }
  later(0, [this, found = std::move(found)] { beginning().searched(found); });
  return true;
}

bool Cluster::Machine::read(const Saved& saved, std::uint32_t f, float* target) {
  later(f, [this, saved, f, target] {
    const int error = target == nullptr ? 0 : make_room(f);
    if (target != nullptr && error == 0) {
      const auto [first, last] = cluster_.range_of(f);
      std::copy_n(saved_in(*saved).values.begin() + static_cast<std::ptrdiff_t>(first), last - first, target);
    }
    beginning().read(saved, f, target, error == 0 ? "" : "there is no memory");
  });
  return true;
}

Cluster::Node::Node() = default;
Cluster::Node::~Node() = default;
Cluster::~Cluster() = default;

void Cluster::replace_replica(std::size_t i, std::unique_ptr<Replica> replica) {
  Node& node = nodes_[i];
  node.beginning.reset();
  node.machine = std::make_unique<Machine>(*this, i);
  node.replica = std::move(replica);
  node.executor = std::make_unique<gossip::Executor>(*node.replica, *node.machine, *node.machine);
  node.beginning = std::make_unique<gossip::Beginning>(*node.machine, *node.machine, *node.replica, *node.executor,
                                                       id_of(i), job, options_.joining);
}

// --- nodes --------------------------------------------------------------------------------------------------------

std::size_t Cluster::add_node(std::span<const float> model, TrainStep train, double speed) {
  const std::size_t i = nodes_.size();
  Node& node = nodes_.emplace_back();
  node.client.train = std::move(train);
  node.client.speed = speed;
  node.all_dialled = all_dialled_;
  start_client(i, model);
  return i;
}

void Cluster::start_client(std::size_t i, std::span<const float> model) {
  Client& client = nodes_[i].client;
  GOSSAMER_CHECK(!client.alive && model.size() == options_.elements);
  if (nodes_[i].replica) let_go(i);  // the old client's memory and the work on it are given up
  client.model.assign(model.begin(), model.end());
  client.clock = client.clock_base = 0;
  client.alive = true;
  make_buffers(client);
  const std::uint64_t life = ++nodes_[i].client_life;
  const TimeUs phase_us = between(random_, 0, options_.step_us);
  schedule_.after(phase_us, [this, i, life] { step(i, life); });
  say({.kind = Event::Kind::client_began, .node = i});
}

void Cluster::make_buffers(Client& client) {
  client.buffers.clear();
  client.words.assign(fragments_, FragmentParts{.generation = 1});
  client.serving.assign(fragments_, false);
  client.paged.assign(fragments_, options_.lean_window == 0);
  client.kept = {};
  for (std::uint32_t f = 0; f < fragments_; ++f) {
    auto& three = client.buffers.emplace_back(3, std::vector<float>(padded_of(f)));
    const auto [first, last] = range_of(f);
    std::copy(client.model.begin() + static_cast<std::ptrdiff_t>(first),
              client.model.begin() + static_cast<std::ptrdiff_t>(last), three[0].begin());
  }
  if (options_.lean_window == 0) return;
  for (FragmentParts& word : client.words)
    word = {.empty = true};
  vacate_unused(client);
}

void Cluster::vacate_unused(Client& client) const {
  for (std::uint32_t f = 0; f < fragments_; ++f) {
    const FragmentParts& word = client.words[f];
    if (!word.empty || word.with_client || word.correction_valid) continue;
    client.paged[f] = false;
    forget(client.buffers[f]);
  }
}

void Cluster::start_daemon(std::size_t i, bool joins) {
  Node& node = nodes_[i];
  GOSSAMER_CHECK(!node.daemon);
  node.daemon = true;
  ++node.daemon_life;
  // As in the daemon, counters begin with the time of day: a restart never uses an exchange's name again.
  node.seen.clear();
  node.let_go = false;
  node.counter = std::make_unique<gossip::ExchangeCounter>(static_cast<std::uint64_t>(now_us()) + 1);
  say({.kind = Event::Kind::daemon_began, .node = i});
  attach(i, joins);
}

void Cluster::attach(std::size_t i, bool joins) {
  Node& node = nodes_[i];
  GOSSAMER_CHECK(node.daemon && !node.replica && node.client.alive);
  std::vector<FragmentBuffers> fragments;
  for (std::uint32_t f = 0; f < fragments_; ++f) {
    auto& three = node.client.buffers[f];
    GOSSAMER_CHECK(node.client.words[f].empty || node.client.paged[f]);
    fragments.emplace_back(std::array<float*, 3>{three[0].data(), three[1].data(), three[2].data()},
                           padded_of(f) / block_elements, node.client.words[f]);
  }
  ++node.replica_life;
  node.followed = {};
  replace_replica(i, std::make_unique<Replica>(options_.replica, id_of(i), description(node), std::move(fragments),
                                               *node.counter, gossip::Random(random_.next())));
  node.replica->set_step(node.client.step);
  for (std::uint32_t f = 0; f < fragments_; ++f)
    node.replica->outer_state(f).leave_out(buffers_in(f));
  if (options_.lean_window > 0) {
    vacate_unused(node.client);
    node.replica->keep_lean(options_.lean_window);
  }
  node.replica->book().replies().begin_after(node.seen);
  node.client.kept.restore(*node.replica, *node.executor, now_us());
  follow_settings(i);
  node.joins = joins;
  if (joins) {
    node.beginning->search();
  } else {
    begin(i);
  }
  at_replica(i, now_us() + between(random_, 0, options_.tick_us), [this, i] { tick(i); });
}

/// Like Job::begin().
void Cluster::begin(std::size_t i) {
  Node& node = nodes_[i];
  const std::uint64_t clock = std::max(node.client.clock_base + node.client.clock, node.beginning->candidate_clock());
  node.replica->set_clock(clock);
  if (node.joins) node.beginning->join(clock);
  decide(i, [&](Actions& out) { node.replica->enter(Phase::joining, out); });
  for (std::size_t j = 0; j < nodes_.size(); ++j) {
    if (linked(i, j)) told_of_link(i, j);
  }
  run_if_joined(i);
}

void Cluster::kill_daemon(std::size_t i) {
  Node& node = nodes_[i];
  if (!node.daemon) return;
  ++node.daemon_life;
  ++node.replica_life;
  for (std::size_t j = 0; j < nodes_.size(); ++j) {
    if (linked(i, j)) unlink(i, j);
  }
  node.daemon = false;
  node.beginning.reset();
  node.replica.reset();
  node.counter.reset();
  node.paused = false;
  node.held_back.clear();
  say({.kind = Event::Kind::daemon_died, .node = i});
}

void Cluster::lose_client(std::size_t i) {
  Node& node = nodes_[i];
  if (!node.client.alive) return;
  node.client.alive = false;
  ++node.client_life;
  node.client_gone_us = now_us();
  say({.kind = Event::Kind::client_died, .node = i});
  in_replica(i, node.replica_life, [this, i] {
    nodes_[i].client_gone_us = now_us();
    drain(i);
  });
}

void Cluster::let_go(std::size_t i) {
  Node& node = nodes_[i];
  const JobInfo absent = node.replica->farewell(node.seen);
  node.let_go = true;
  for (std::size_t j = 0; j < nodes_.size(); ++j) {
    if (linked(i, j)) deliver(i, j, absent);
  }
  say({.kind = Event::Kind::let_go, .node = i});
  ++node.replica_life;
  node.beginning.reset();
  node.replica.reset();
}

void Cluster::kill_client(std::size_t i) {
  Node& node = nodes_[i];
  if (!node.client.alive) return;
  kill_daemon(i);
  node.client.alive = false;
  ++node.client_life;
  say({.kind = Event::Kind::client_died, .node = i});
}

void Cluster::kill_node(std::size_t i) {
  kill_daemon(i);
  kill_client(i);
}

void Cluster::pause(std::size_t i) {
  if (!nodes_[i].daemon || nodes_[i].paused) return;
  nodes_[i].paused = true;
  say({.kind = Event::Kind::paused, .node = i});
}

void Cluster::resume(std::size_t i) {
  Node& node = nodes_[i];
  if (!node.paused) return;
  node.paused = false;
  say({.kind = Event::Kind::resumed, .node = i});
  std::deque<Schedule::Action> held_back;
  held_back.swap(node.held_back);
  const std::uint64_t life = node.daemon_life;
  for (Schedule::Action& action : held_back)
    in_daemon(i, life, std::move(action));
}

void Cluster::wind_down(std::size_t i) {
  if (!nodes_[i].replica) return;
  nodes_[i].beginning->stop();
  decide(i, [&](Actions& out) { nodes_[i].replica->enter(Phase::stopping, out); });
}

void Cluster::drain(std::size_t i) {
  if (!nodes_[i].replica) return;
  decide(i, [&](Actions& out) { nodes_[i].replica->enter(Phase::drained, out); });
}

void Cluster::leave(std::size_t i, TimeUs patience_us) {
  if (!nodes_[i].replica) return;
  nodes_[i].beginning->stop();
  decide(i, [&](Actions& out) { nodes_[i].replica->leave(now_us(), now_us() + patience_us, out); });
}

void Cluster::finish(std::size_t i, bool on) {
  nodes_[i].client.finishing = on;
  in_replica(i, nodes_[i].replica_life, [this, i] { decide(i, [&](Actions& out) { tell_finishing(i, out); }); });
}

void Cluster::tell_finishing(std::size_t i, Actions& out) {
  using gossip::Programs;
  nodes_[i].replica->set_finishing(nodes_[i].client.finishing ? Programs::finish : Programs::train, now_us(), out);
}

void Cluster::change_settings(std::size_t i, std::vector<JobSetting> values) {
  in_replica(i, nodes_[i].replica_life, [this, i, values = std::move(values)] {
    const Node& node = nodes_[i];
    const JobSettings next{node.replica->settings().version + 1, id_of(i), values};
    decide(i, [&](Actions& out) { node.replica->take_settings(next, out); });
    follow_settings(i);
  });
}

void Cluster::follow_settings(std::size_t i) {
  Node& node = nodes_[i];
  if (!node.replica || node.replica->settings() == node.followed) return;
  node.followed = node.client.kept.settings = node.replica->settings();
  gossip::ReplicaOptions options = options_.replica;
  for (const auto& [name, value] : node.replica->settings().values) {
    for (const Codec codec : {Codec::f32, Codec::q8, Codec::q4})
      if (name == "codec" && value == codec_name(codec)) options.codec = codec;
  }
  node.replica->set_options(options);
}

void Cluster::pull(std::size_t i, std::size_t j, std::uint32_t f) {
  deliver(i, j, PullRequest{job, f});
}

void Cluster::settle() {
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    drain(i);
  run_until(now_us() + options_.replica.lifetime_us / 2);
}

// --- the overlay --------------------------------------------------------------------------------------------------

void Cluster::link(std::size_t i, std::size_t j) {
  if (i == j || linked(i, j) || !nodes_[i].daemon || !nodes_[j].daemon) return;
  links_.insert(std::minmax(i, j));
  for (const auto& [a, b] : {std::pair(i, j), std::pair(j, i)}) {
    in_daemon(a, nodes_[a].daemon_life, [this, a, b] {
      say({.kind = Event::Kind::linked, .node = a, .other = b});
      if (nodes_[a].replica) told_of_link(a, b);
    });
  }
}

void Cluster::told_of_link(std::size_t i, std::size_t j) {
  if (nodes_[i].beginning->is_searching()) return;  // begin() will tell the replica of all links
  const Sponsor sponsor = nodes_[j].sponsor == nodes_[i].sponsor ? no_sponsor : nodes_[j].sponsor;
  decide(i, [&](Actions& out) { nodes_[i].replica->link_up(id_of(j), out, sponsor); });
  nodes_[i].beginning->link_up(id_of(j));
}

void Cluster::link_all() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    for (std::size_t j = i + 1; j < nodes_.size(); ++j)
      link(i, j);
  }
}

void Cluster::unlink(std::size_t i, std::size_t j) {
  if (links_.erase(std::minmax(i, j)) == 0) return;
  ++link_lives_[std::minmax(i, j)];
  for (const auto& [a, b] : {std::pair(i, j), std::pair(j, i)}) {
    in_daemon(a, nodes_[a].daemon_life, [this, a, b] {
      say({.kind = Event::Kind::unlinked, .node = a, .other = b});
      if (!nodes_[a].replica) return;
      nodes_[a].replica->link_down(id_of(b));
      nodes_[a].beginning->link_down(id_of(b));
    });
  }
}

void Cluster::declare_dead(std::size_t i, std::size_t j) {
  in_daemon(i, nodes_[i].daemon_life, [this, i, j] {
    say({.kind = Event::Kind::dead, .node = i, .other = j});
    if (!nodes_[i].replica) return;
    decide(i, [&](Actions& out) { nodes_[i].replica->node_dead(id_of(j), now_us(), out); });
  });
}

// --- readings -----------------------------------------------------------------------------------------------------

std::pair<std::size_t, std::size_t> Cluster::range_of(std::uint32_t f) const {
  const std::size_t first = f * options_.fragment_elements;
  return {first, std::min(first + options_.fragment_elements, options_.elements)};
}

std::vector<gossip::ElementRange> Cluster::buffers_in(std::uint32_t f) const {
  const auto [begin, end] = range_of(f);
  std::vector<gossip::ElementRange> ranges;
  for (const auto& [first, last] : options_.buffers) {
    if (first < end && last > begin) ranges.emplace_back(std::max(first, begin) - begin, std::min(last, end) - begin);
  }
  return ranges;
}

std::size_t Cluster::elements_of(std::uint32_t f) const {
  const auto [first, last] = range_of(f);
  return last - first;
}

std::size_t Cluster::padded_of(std::uint32_t f) const {
  return (elements_of(f) + block_elements - 1) / block_elements * block_elements;
}

JobInfo Cluster::description(const Node& node) const {
  return {.job = job,
          .name = "simulated",
          .elements = options_.elements,
          .fragments = fragments_,
          .fragment_elements = static_cast<std::uint32_t>(options_.fragment_elements),
          .keeps = node.keeps,
          .follows = node.follows};
}

std::vector<double> Cluster::whole(std::size_t i, std::uint32_t f) const {
  const Node& node = nodes_[i];
  const auto [first, last] = range_of(f);
  std::vector<double> values(node.client.model.begin() + static_cast<std::ptrdiff_t>(first),
                             node.client.model.begin() + static_cast<std::ptrdiff_t>(last));
  const FragmentParts& parts = node.client.words[f];
  const auto& three = node.client.buffers[f];
  if (node.client.serving[f]) return values;
  if (parts.replace) {  // the client will take these over, whatever its model is now
    std::copy_n(three[parts.correction].begin(), values.size(), values.begin());
  } else if (parts.correction_valid) {
    for (std::size_t e = 0; e < values.size(); ++e)
      values[e] += three[parts.correction][e];
  }
  return values;
}

std::vector<double> Cluster::whole(std::size_t i) const {
  std::vector<double> values;
  values.reserve(options_.elements);
  for (std::uint32_t f = 0; f < fragments_; ++f) {
    const auto part = whole(i, f);
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

std::vector<double> Cluster::total() const {
  std::vector<double> sum(options_.elements);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].client.alive) continue;
    const auto mine = whole(i);
    for (std::size_t e = 0; e < sum.size(); ++e)
      sum[e] += mine[e];
  }
  return sum;
}

std::vector<double> Cluster::mean() const {
  const auto alive = std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.client.alive; });
  auto values = total();
  for (double& value : values)
    value /= static_cast<double>(std::max<std::ptrdiff_t>(alive, 1));
  return values;
}

double Cluster::distance() const {
  const auto centre = mean();
  double square = 0;
  std::size_t alive = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].client.alive) continue;
    ++alive;
    const auto mine = whole(i);
    for (std::size_t e = 0; e < mine.size(); ++e)
      square += (mine[e] - centre[e]) * (mine[e] - centre[e]);
  }
  return alive == 0 ? 0 : square / static_cast<double>(options_.elements) / static_cast<double>(alive);
}

// --- the client ---------------------------------------------------------------------------------------------------

void Cluster::step(std::size_t i, std::uint64_t life) {
  Client& client = nodes_[i].client;
  if (nodes_[i].client_life != life) return;
  const double stretch = 1 + options_.step_jitter * (2 * random_.uniform() - 1);
  const double compute_us = static_cast<double>(options_.step_us) / client.speed * stretch;
  TimeUs next_us = std::max<TimeUs>(1, std::llround(compute_us));
  if (!client.stalled) {
    // A joining client waits for its model.
    const Node& node = nodes_[i];
    if (!client.finishing && (!node.replica || node.replica->state() != ReplicaState::joining)) train(i);
    const TimeUs took_us = serve_due(i);
    client.served_us += took_us;
    next_us += took_us;
  }
  schedule_.after(next_us, [this, i, life] { step(i, life); });
}

void Cluster::train(std::size_t i) {
  Node& node = nodes_[i];
  Client& client = node.client;
  if (node.keeps) {
    if (client.steps % keeper_steps == 0 && node.replica) {
      const std::uint64_t job_clock = node.replica->job_clock().value();
      client.clock = std::max(client.clock, job_clock - std::min(job_clock, client.clock_base));
    }
  } else if (client.train) {
    say({.kind = Event::Kind::training, .node = i});
    const std::uint64_t samples = client.train(client.model);
    client.clock += samples;
    if (samples > 0) client.step.trained(static_cast<double>(samples), 1);
    say({.kind = Event::Kind::trained, .node = i});
  } else {
    client.clock += 1;
    client.step.trained(1, 1);
  }
  ++client.steps;
  if (!node.replica || node.paused) return;
  node.replica->set_clock(client.clock_base + client.clock);
  node.replica->set_step(client.step);
}

TimeUs Cluster::serve_due(std::size_t i) {
  Client& client = nodes_[i].client;
  const std::size_t budget = options_.step_budget_bytes == 0 ? SIZE_MAX : options_.step_budget_bytes;
  std::size_t served_bytes = 0;
  const std::size_t first = client.next_due;
  for (std::uint32_t n = 0; n < fragments_ && served_bytes < budget; ++n) {
    const auto f = static_cast<std::uint32_t>((first + n) % fragments_);
    if (!client.words[f].with_client || client.serving[f]) continue;
    serve(i, f);
    served_bytes += elements_of(f) * sizeof(float);
    client.next_due = (f + 1) % fragments_;
  }
  run_if_joined(i);
  if (options_.serve_bytes_per_s <= 0) return 0;
  // Serving reads x and c, and writes x and s.
  const double traffic = 4 * static_cast<double>(served_bytes) * options_.byte_scale;
  return static_cast<TimeUs>(traffic / options_.serve_bytes_per_s * us_per_s);
}

/// Once a second, tells the daemon how much time the client has spent on gossip since the last time.
void Cluster::tell_time_taken(std::size_t i) {
  Client& client = nodes_[i].client;
  if (now_us() - client.told_us < us_per_s) return;
  nodes_[i].replica->add_time_taken(client.served_us - client.told_served_us);
  client.told_us = now_us();
  client.told_served_us = client.served_us;
}

/// Serves a due fragment as gossamer_step() does: x += c (or x = c), s = x, and then the word goes back.
void Cluster::serve(std::size_t i, std::uint32_t f) {
  Node& node = nodes_[i];
  Client& client = node.client;
  GOSSAMER_CHECK(client.paged[f]);
  const FragmentParts parts = client.words[f];
  auto& three = client.buffers[f];
  const auto [first, last] = range_of(f);
  for (std::size_t e = first; e < last; ++e) {
    const float correction = three[parts.correction][e - first];
    if (parts.replace) {
      client.model[e] = correction;
    } else if (parts.correction_valid && is_buffer_[e]) {
      client.model[e] = client::element::sum_within(client.model[e], correction, three[parts.publication][e - first]);
    } else if (parts.correction_valid) {
      client.model[e] += correction;
    }
    three[parts.spare()][e - first] = client.model[e];
  }
  client.serving[f] = true;
  say({.kind = parts.replace ? Event::Kind::replaced : Event::Kind::collected, .node = i, .fragment = f});
  const std::uint64_t clock = client.clock_base + client.clock;
  if (options_.pass_us == 0) return publish(i, f, clock);
  schedule_.after(between(random_, 0, options_.pass_us), [this, i, f, clock, life = node.client_life] {
    if (nodes_[i].client_life == life) publish(i, f, clock);
  });
}

void Cluster::publish(std::size_t i, std::uint32_t f, std::uint64_t clock) {
  Node& node = nodes_[i];
  Client& client = node.client;
  const FragmentParts parts = client.words[f];
  const std::uint32_t generation = parts.generation + 1;
  client.serving[f] = false;
  client.words[f] = {
      .generation = generation, .publication = parts.spare(), .correction = parts.correction, .commits = parts.commits};
  in_replica(i, node.replica_life, [this, i, f, generation, clock] {
    decide(i, [&](Actions& out) { nodes_[i].replica->published(f, generation, clock, now_us(), out); });
  });
}

// --- the daemon ---------------------------------------------------------------------------------------------------

void Cluster::at_replica(std::size_t i, TimeUs time_us, Schedule::Action action) {
  schedule_.at(time_us, [this, i, life = nodes_[i].replica_life, action = std::move(action)]() mutable {
    in_replica(i, life, std::move(action));
  });
}

void Cluster::in_replica(std::size_t i, std::uint64_t life, Schedule::Action action) {
  Node& node = nodes_[i];
  if (!node.replica || node.replica_life != life) return;
  if (node.paused) {
    node.held_back.push_back([this, i, life, action = std::move(action)]() mutable {
      if (nodes_[i].replica && nodes_[i].replica_life == life) action();
    });
  } else {
    action();
  }
}

void Cluster::in_daemon(std::size_t i, std::uint64_t life, Schedule::Action action) {
  Node& node = nodes_[i];
  if (!node.daemon || node.daemon_life != life) return;
  if (node.paused) {
    node.held_back.push_back(std::move(action));
  } else {
    action();
  }
}

/// The number of other daemons that run. Every daemon knows all of them.
std::size_t Cluster::members_besides(std::size_t i) const {
  const auto run = std::ranges::count_if(nodes_, [](const Node& node) { return node.daemon; });
  return static_cast<std::size_t>(run) - (nodes_[i].daemon ? 1 : 0);
}

void Cluster::tick(std::size_t i) {
  Node& node = nodes_[i];
  if (node.client.alive && !node.beginning->is_under_way())
    node.replica->set_clock(node.client.clock_base + node.client.clock);
  node.beginning->tick(node.all_dialled);
  tell_time_taken(i);
  if (options_.certified) node.replica->set_certified_members(members_besides(i));
  decide(i, [&](Actions& out) {
    if (node.client.alive && !node.keeps) tell_finishing(i, out);
    node.replica->tick(now_us(), out, node.all_dialled);
  });
  const bool given_up = now_us() - node.client_gone_us >= options_.client_grace_us;
  if (!node.client.alive && (node.replica->idle() || given_up)) return let_go(i);
  at_replica(i, now_us() + options_.tick_us, [this, i] { tick(i); });
}

void Cluster::deliver(std::size_t from, std::size_t to, Message message) {
  if (nodes_[from].follows && !daemon::is_heard(follower_rights, message, "simulated")) return;
  if (tamper && !tamper(from, to, message)) return;
  if (!linked(from, to) || (full_probability > 0 && chance(random_, full_probability))) {
    say({.kind = Event::Kind::blocked, .node = from, .other = to, .message = &message});
    if (nodes_[from].replica) nodes_[from].replica->send_failed(id_of(to), message, now_us());
    return;
  }
  const std::uint64_t link_life = link_lives_[std::minmax(from, to)];
  const std::size_t bytes = wire_bytes(message, options_.byte_scale);
  const auto shared = std::make_shared<const Message>(std::move(message));
  const auto arrive = [this, from, to, link_life, shared] {
    if (link_lives_[std::minmax(from, to)] != link_life) return;
    in_daemon(to, nodes_[to].daemon_life, [this, from, to, shared] { receive(from, to, *shared); });
  };
  const int arrivals = transport ? transport(from, to, bytes, arrive) : network_.send(from, to, bytes, arrive);
  say({.kind = Event::Kind::sent, .node = from, .other = to, .message = shared.get(), .arrivals = arrivals});
}

void Cluster::receive(std::size_t from, std::size_t to, const Message& message) {
  say({.kind = Event::Kind::delivered, .node = to, .other = from, .message = &message});
  Node& node = nodes_[to];
  if (!node.replica) return receive_without_job(from, to, message);
  const NodeId sender = id_of(from);
  if (const auto* pulled = std::get_if<PullReply>(&message)) return node.beginning->pulled(sender, PullReply(*pulled));
  decide(to, [&](Actions& out) {
    if (std::get_if<JobQuery>(&message) != nullptr && !node.beginning->is_searching())
      out.send.push_back({sender, node.replica->own_info()});
    node.replica->received(sender, Message(message), now_us(), out);
  });
  const auto* const info = std::get_if<JobInfo>(&message);
  if (info == nullptr) return;
  follow_settings(to);
  node.beginning->info(sender, *info);
}

/// Answers as daemon/node.cpp does for a job without a client at the node.
void Cluster::receive_without_job(std::size_t from, std::size_t to, const Message& message) {
  if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
    gossip::ReplyCache::add_seen({id_of(from), request->counter}, nodes_[to].seen);
    deliver(to, from,
            ExchangeReply{.counter = request->counter,
                          .job = request->job,
                          .fragment = request->fragment,
                          .status = ReplyStatus::refused,
                          .reason = RefuseReason::unknown_job,
                          .codec = request->codec});
  } else if (const auto* query = std::get_if<JobQuery>(&message)) {
    deliver(to, from, JobInfo{.job = query->job, .first_exchange = nodes_[to].let_go ? nodes_[to].counter->next() : 0});
  } else if (const auto* pull = std::get_if<PullRequest>(&message)) {
    deliver(to, from, PullReply{.job = pull->job, .fragment = pull->fragment, .reason = RefuseReason::unknown_job});
  }
}

void Cluster::run_if_joined(std::size_t i) {
  Node& node = nodes_[i];
  if (!node.replica || node.paused || node.replica->state() != ReplicaState::joining) return;
  if (node.beginning->is_under_way() || node.beginning->replaces_pending()) return;
  node.replica->set_clock(node.client.clock_base + node.client.clock);
  if (node.joins && node.beginning->begins_job() && !node.given_settings.empty())
    change_settings(i, node.given_settings);
  decide(i, [&](Actions& out) { node.replica->enter(Phase::running, out); });
  if (node.joins) say({.kind = Event::Kind::ran, .node = i});
}

TimeUs Cluster::task_time_us(std::size_t elements) {
  const double bytes = static_cast<double>(elements * sizeof(float)) * options_.byte_scale;
  return between(random_, options_.task_us, 2 * options_.task_us) +
         static_cast<TimeUs>(bytes / options_.task_bytes_per_s * us_per_s);
}

}  // namespace gossamer::sim
