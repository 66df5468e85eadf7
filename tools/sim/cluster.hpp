// A cluster under virtual time: the shipped replicas (gossip/replica/replica.hpp, gossip/replica/joining.hpp), each
// with a client that trains, over a simulated network. Only memory, clock, network and training are the simulation's;
// every decision and every kernel is the daemon's own.
//
// A node is a daemon and a client with the memory they share. Either may die alone: a client keeps its memory and
// trains on, a daemon that comes back finds in it what is valid, and what was stored there for it (records of replies,
// which halves of its own exchanges are in); what only the daemon knew is gone with it. What a replica asks to be
// stored is stored when it asks, and nothing else is. Who has a link to whom, and who is dead, is told from outside: by
// the scenario, or by a membership that runs beside.
//
// Events in one thread, from one seed.

#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "gossip/replica/executor.hpp"
#include "gossip/replica/joining.hpp"
#include "tools/sim/network.hpp"

namespace gossamer::sim {

struct ClusterOptions {
  std::size_t elements = 1024;          ///< of the model
  std::size_t fragment_elements = 512;  ///< a whole number of blocks
  gossip::ReplicaOptions replica = {};
  gossip::JoiningOptions joining = {};
  TimeUs step_us = 2'000;         ///< one training step of a node of speed 1
  double step_jitter = 0.1;       ///< a step takes step_us · (1 ± this)
  TimeUs tick_us = 2'000;         ///< of the daemon's loop
  TimeUs task_us = 100;           ///< one task of a worker takes this and up to twice as long,
  double task_bytes_per_s = 4e9;  ///< and the time for the fragment's memory at this rate
  TimeUs pass_us = 0;             ///< a pass over a fragment that is due takes up to this, as on a GPU; 0: no time
  double serve_bytes_per_s = 0;   ///< a step takes longer by the memory traffic of what is due, at this rate; 0: not
  std::size_t step_budget_bytes = 0;   ///< of fragments that a client serves in one step; 0: all that are due
  TimeUs client_grace_us = 3'000'000;  ///< what is under way when a client dies may take this long to end
  std::size_t lean_window = 0;         ///< clients keep lean memory, of so many fragments; 0: resident
  double byte_scale = 1;               ///< payloads count this many times: a small model that stands for a large one
  std::uint64_t seed = 1;
};

/// One local training step, in place on the live model; returns the samples it used.
using TrainStep = std::function<std::uint64_t(std::span<float> model)>;

/// Bytes a message takes on the wire, its header, framing and encryption included (docs/reference/wire.md).
[[nodiscard]] std::size_t wire_bytes(const Message& message, double byte_scale = 1);

/// Id of the node with this number. Ids rise with numbers, so that schedules over sorted ids are schedules over
/// numbers.
[[nodiscard]] NodeId id_of(std::size_t node);
[[nodiscard]] std::size_t number_of(const NodeId& id);

class Cluster {
 public:
  /// What has just happened at a node; for whoever checks or measures.
  struct Event {
    enum class Kind {
      training,   ///< the client is about to train
      trained,    ///< and has
      collected,  ///< the client took a correction over and published
      replaced,   ///< the client took a pulled model over
      answered,   ///< the responder's half of `exchange` counts now
      concluded,  ///< the initiator's half
      undone,     ///< the responder's half is undone: the initiator never will commit its own
      outer,      ///< an outer step counts now
      turned,     ///< any other turn of the daemon's loop is over
      delivered,  ///< `message` has come in from node `other` and is about to be handled
      dead,       ///< the node was told that node `other` is dead
      daemon_died,
      daemon_began,
      client_died,
      client_began,
      sent,       ///< `message` has left for node `other`; `arrivals` of it will come (0: lost on the way)
      blocked,    ///< `message` could not leave: no link, or no room
      answering,  ///< work on the answer to `exchange` begins
      adopted,    ///< pulled values are what the client is to take over: they are the node's model now
      linked,     ///< the daemon was told of a link to `other`
      unlinked,   ///< and of its end
      paused,
      resumed,
      let_go,  ///< the daemon has dropped the replica of a client that died; it runs on without the job
    };
    Kind kind;
    std::size_t node;
    std::uint32_t fragment = 0;
    ExchangeId exchange = {};
    std::size_t other = 0;
    const Message* message = nullptr;
    int arrivals = 0;
    bool done = false;    ///< of answered and concluded: the exchange took place here
    bool commit = false;  ///< and there was something to commit
  };

  /// Of a reply, in the shared memory.
  struct Record {
    ExchangeId id;
    ExchangeReply reply;
    gossip::AnsweredHalf half;
    std::optional<std::uint32_t> commits = {};  ///< it counts when the fragment's count has come to this
    std::optional<std::uint32_t> undone = {};   ///< and is undone at this
  };
  struct Client {
    std::vector<float> model;                              ///< the live one
    std::vector<std::vector<std::vector<float>>> buffers;  ///< [fragment][3][elements]
    std::vector<gossip::FragmentParts> words;              ///< the shared words: they survive the daemon
    std::vector<bool> serving;  ///< fragments of which a pass is under way: the correction is in the model already
    std::vector<gossip::OwnHalves> own_halves;  ///< stored for a later daemon
    gossip::GivenUp given_up;                   ///< likewise
    std::map<std::uint32_t, Record> records;    ///< likewise, by place
    std::uint64_t clock = 0;
    std::uint64_t clock_base = 0;
    std::uint64_t steps = 0;
    double speed = 1;
    bool alive = false;
    bool stalled = false;    ///< does not step
    bool finishing = false;  ///< has stopped training, and serves what is due
    std::size_t next_due = 0;
    TimeUs served_us = 0;  ///< time that serving what was due has taken
    TimeUs told_us = 0;    ///< when the daemon was last told of it, and how much it was then
    TimeUs told_served_us = 0;
    TrainStep train;
  };
  /// The memory and the processor of a node, as its replica's executor sees them.
  class Machine;
  struct Node {
    Node();
    ~Node();

    Client client;
    std::unique_ptr<gossip::ExchangeCounter> counter;
    gossip::ReplyCache::Seen seen;             ///< by replicas of this daemon that are gone
    bool daemon = false;                       ///< its process runs
    std::unique_ptr<gossip::Replica> replica;  ///< null while the daemon is down or has no client
    std::unique_ptr<gossip::Executor> executor;
    std::unique_ptr<Machine> machine;
    std::optional<gossip::Joining> joining;
    bool paused = false;
    bool settled = true;
    std::deque<Schedule::Action> held_back;  ///< what came while it was paused
    std::uint64_t daemon_life = 0;
    std::uint64_t replica_life = 0;
    TimeUs client_gone_us = 0;
    std::uint64_t client_life = 0;
    bool let_go = false;  ///< this daemon has had a replica whose client is gone
  };

  /// `network` may carry other traffic of the same nodes, too.
  Cluster(ClusterOptions options, Schedule& schedule, Network& network);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster();

  // --- nodes
  /// A client with this model and no daemon yet. Nodes are numbered from 0, as the network's.
  std::size_t add_node(std::span<const float> model, TrainStep train = {}, double speed = 1);
  /// Starts node i's daemon. `joins`: its client comes new, and pulls the model or agrees on one; otherwise the client
  /// is taken to be part of the run already.
  void start_daemon(std::size_t i, bool joins);
  /// The client of a node whose daemon runs attaches to it.
  void attach(std::size_t i, bool joins);
  /// kill -9 of the daemon. The client trains on.
  void kill_daemon(std::size_t i);
  /// kill -9 of the client: its model is lost. The daemon ends what is under way from its memory, which it still maps,
  /// lets the replica go, and runs on without the job.
  void lose_client(std::size_t i);
  /// kill -9 of both, the client's end coming second: the neighbours hear no more of what was under way.
  void kill_client(std::size_t i);
  /// A new client process at a node without one.
  void start_client(std::size_t i, std::span<const float> model);
  void kill_node(std::size_t i);
  /// Puts another replica in the place of node i's: it has the same memory, and knows of no exchange.
  void replace_replica(std::size_t i, std::unique_ptr<gossip::Replica> replica);
  /// The daemon stands still (SIGSTOP), then goes on with all that came meanwhile.
  void pause(std::size_t i);
  void resume(std::size_t i);
  void drain(std::size_t i);
  /// As the command of that name, up to the goodbye: gossip::Replica::leave().
  void leave(std::size_t i, TimeUs patience_us);
  /// The program of node i stops training and waits for the replicas to agree: gossip::Replica::set_finishing(). Off:
  /// it trains again.
  void finish(std::size_t i, bool on = true);
  /// Node i asks node j for a fragment, as a joiner does; it need not be one.
  void pull(std::size_t i, std::size_t j, std::uint32_t f);
  /// Node i sends this to node j, whatever its replica thinks of it.
  void send(std::size_t i, std::size_t j, Message message) { deliver(i, j, std::move(message)); }

  // --- the overlay
  /// Both ends are told of the link. Nothing if either daemon is down.
  void link(std::size_t i, std::size_t j);
  void link_all();
  /// The transport breaks: what is under way is lost; both ends are told.
  void unlink(std::size_t i, std::size_t j);
  [[nodiscard]] bool linked(std::size_t i, std::size_t j) const { return links_.contains(std::minmax(i, j)); }
  /// Node i's failure detector declares j dead.
  void declare_dead(std::size_t i, std::size_t j);
  /// Every neighbour that was to be dialled has been tried: a joining replica may decide. Set until told otherwise.
  void set_settled(bool settled) {
    settled_ = settled;
    for (Node& node : nodes_)
      node.settled = settled;
  }
  void set_settled(std::size_t i, bool settled) { nodes_[i].settled = settled; }

  // --- readings
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const Node& node(std::size_t i) const { return nodes_[i]; }
  [[nodiscard]] Node& node(std::size_t i) { return nodes_[i]; }
  [[nodiscard]] std::uint32_t fragments() const { return fragments_; }
  /// Elements [first, last) of the model that fragment f holds.
  [[nodiscard]] std::pair<std::size_t, std::size_t> range_of(std::uint32_t f) const;
  [[nodiscard]] bool daemon_alive(std::size_t i) const { return nodes_[i].daemon; }
  [[nodiscard]] bool client_alive(std::size_t i) const { return nodes_[i].client.alive; }
  /// The live model of a node with the corrections on their way to it; elements of one fragment, and all of them.
  [[nodiscard]] std::vector<double> whole(std::size_t i, std::uint32_t f) const;
  [[nodiscard]] std::vector<double> whole(std::size_t i) const;
  /// Over nodes with a living client: sum, mean, and mean square distance from it, an element.
  [[nodiscard]] std::vector<double> total() const;
  [[nodiscard]] std::vector<double> mean() const;
  [[nodiscard]] double distance() const;
  [[nodiscard]] TimeUs now_us() const { return schedule_.now_us(); }
  template <class Member>
  [[nodiscard]] std::uint64_t count(Member member) const {
    std::uint64_t sum = 0;
    for (const Node& node : nodes_) {
      if (node.replica) sum += node.replica->counters().*member;
    }
    return sum;
  }

  void run_until(TimeUs end_us) { schedule_.run_until(end_us); }
  /// Lets every exchange under way end and starts no new one.
  void settle();

  /// Hears every event, after it has happened (`training` and `delivered`: before).
  std::function<void(const Event&)> on_event;
  /// What a node that does not keep to the protocol does to its messages before they leave; false drops one.
  std::function<bool(std::size_t from, std::size_t to, Message& message)> tamper;
  /// How a message travels; as the network sends it, unless a test has something between. Gives the arrivals to come.
  std::function<int(std::size_t from, std::size_t to, std::size_t bytes, std::function<void()> arrive)> transport;
  /// A link's queue has no room for a message with this probability: the sender is told, as by a full socket.
  double full_probability = 0;

 private:
  using Actions = gossip::Actions;

  void say(const Event& event) {
    if (on_event) on_event(event);
  }
  TimeUs task_time_us(std::size_t elements);
  [[nodiscard]] std::size_t elements_of(std::uint32_t f) const;
  [[nodiscard]] std::size_t padded_of(std::uint32_t f) const;
  [[nodiscard]] JobInfo description() const;
  void make_buffers(Client& client);
  void vacate_unused(Client& client) const;

  /// Runs `action` at the node's replica if it is still the same one; later, if its daemon is paused.
  void at_replica(std::size_t i, TimeUs time_us, Schedule::Action action);
  void in_replica(std::size_t i, std::uint64_t life, Schedule::Action action);
  /// The same for the daemon's process, whether it has a replica or not.
  void in_daemon(std::size_t i, std::uint64_t life, Schedule::Action action);

  void step(std::size_t i, std::uint64_t life);
  void train(std::size_t i);
  /// Returns the time it takes.
  TimeUs serve_due(std::size_t i);
  void tell_time_taken(std::size_t i);
  void serve(std::size_t i, std::uint32_t f);
  void publish(std::size_t i, std::uint32_t f);
  void tick(std::size_t i);
  void deliver(std::size_t from, std::size_t to, Message message);
  void receive(std::size_t from, std::size_t to, const Message& message);
  void receive_without_job(std::size_t from, std::size_t to, const Message& message);
  void let_go(std::size_t i);
  void told_of_link(std::size_t i, std::size_t j);
  void receive_pulled(std::size_t i, const NodeId& from, const PullReply& reply);
  template <class Feed>
  void decide(std::size_t i, Feed feed) {
    nodes_[i].executor->decide(feed);
  }
  void perform(std::size_t i, gossip::Joining::Actions& actions);
  void run_if_joined(std::size_t i);
  void remember(std::size_t i);

  ClusterOptions options_;
  Schedule& schedule_;
  Network& network_;
  gossip::Random random_;
  std::uint32_t fragments_;
  std::deque<Node> nodes_;
  std::set<std::pair<std::size_t, std::size_t>> links_;
  std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> link_lives_;
  bool settled_ = true;
};

}  // namespace gossamer::sim
