// A cluster under virtual time: the shipped replicas (gossip/replica/replica.hpp, gossip/replica/beginning.hpp), each
// with a client that trains, over a simulated network. Memory, clock, network and training are simulated; every
// decision and every kernel is the daemon's own.
//
// A node is a daemon and a client with the memory they share. Either may die alone. A client keeps its memory and
// trains on. The next daemon finds in that memory what is valid and what was stored for it: records of replies, and
// which halves of its own exchanges are committed. Facts that only the dead daemon knew are lost. Data are stored
// exactly when the replica asks for it. The scenario, or a simulated membership, says which nodes have a link and which
// are dead.
//
// All events run in one thread, and follow from one seed.

#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "gossip/replica/beginning.hpp"
#include "tools/sim/kept_exchanges.hpp"
#include "tools/sim/network.hpp"

namespace gossamer::sim {

struct ClusterOptions {
  std::size_t elements = 1024;          ///< elements of the model
  std::size_t fragment_elements = 512;  ///< a multiple of the block size
  /// Ranges [first, last) of elements with the role buffer. A correction takes these no further than to its target.
  std::vector<std::pair<std::size_t, std::size_t>> buffers = {};
  gossip::ReplicaOptions replica = {};
  gossip::JoiningOptions joining = {};
  TimeUs step_us = 2'000;              ///< one training step of a node of speed 1
  double step_jitter = 0.1;            ///< a step takes step_us · (1 ± this)
  TimeUs tick_us = 2'000;              ///< the period of the daemon's loop
  TimeUs task_us = 100;                ///< one task of a worker takes this and up to twice as long,
  double task_bytes_per_s = 4e9;       ///< and the time for the fragment's memory at this rate
  TimeUs pass_us = 0;                  ///< the longest pass over a due fragment, as on a GPU; 0: no time
  double serve_bytes_per_s = 0;        ///< memory traffic at this rate makes serving take time; 0: no time
  std::size_t step_budget_bytes = 0;   ///< how much a client serves in one step; 0: all due fragments
  TimeUs client_grace_us = 3'000'000;  ///< the time to finish the work under way when a client dies
  std::size_t lean_window = 0;         ///< clients keep lean memory for this many fragments; 0: resident
  double byte_scale = 1;      ///< payloads count this many times, so that a small model can stand for a large one
  bool trusts_saved = false;  ///< a fault to be found by the hunt: saved models are not checked
  bool certified = false;     ///< nodes have certificates, so that ReplicaOptions::dense_clip counts
  std::uint64_t seed = 1;
};

/// One local training step, in place on the live model; returns the samples it used.
using TrainStep = std::function<std::uint64_t(std::span<float> model)>;

/// Bytes of a message on the wire, with its header, framing and encryption (docs/reference/wire.md).
[[nodiscard]] std::size_t wire_bytes(const Message& message, double byte_scale = 1);

/// The id of the node with this number. Ids rise with numbers: schedules over sorted ids are schedules over numbers.
[[nodiscard]] NodeId id_of(std::size_t node);
[[nodiscard]] std::size_t number_of(const NodeId& id);
/// An exchange for people: its initiator's number and its counter.
[[nodiscard]] std::string name_of(const ExchangeId& id);

class Cluster {
 public:
  /// An event that has just happened at a node, for checks and measurements.
  struct Event {
    enum class Kind {
      training,   ///< the client is about to train
      trained,    ///< the client has trained
      collected,  ///< the client took a correction over and published
      replaced,   ///< the client took a pulled model over
      answered,   ///< the responder's half of `exchange` counts now
      concluded,  ///< the initiator's half of `exchange` counts now
      undone,     ///< the responder's half is undone: the initiator never will commit its own
      outer,      ///< an outer step counts now
      turned,     ///< any other turn of the daemon's loop is over
      delivered,  ///< `message` has come in from node `other` and is about to be handled
      dead,       ///< the node was told that node `other` is dead
      daemon_died,
      daemon_began,
      client_died,
      client_began,
      sent,       ///< `message` has left for node `other`, and will arrive `arrivals` times (0: lost on the way)
      blocked,    ///< `message` could not leave: no link, or no room
      answering,  ///< work on the answer to `exchange` begins
      adopted,    ///< pulled values have become the node's model; the client is to take them over
      linked,     ///< the daemon was told of a link to `other`
      unlinked,   ///< the daemon was told that the link to `other` ended
      paused,
      resumed,
      let_go,  ///< the daemon has dropped the replica of a client that died, and runs on without the job
      ran,     ///< the replica runs, with the model from joining
    };
    Kind kind;
    std::size_t node;
    std::uint32_t fragment = 0;
    ExchangeId exchange = {};
    std::size_t other = 0;
    const Message* message = nullptr;
    int arrivals = 0;
    bool done = false;    ///< answered, concluded: the exchange took place here
    bool commit = false;  ///< answered, concluded: there was something to commit
  };

  /// A model in a file.
  struct SavedValues {
    std::vector<float> values;
    std::uint64_t clock = 0;
    bool damaged = false;
  };

  struct Client {
    std::vector<float> model;                              ///< the live model
    std::vector<std::vector<std::vector<float>>> buffers;  ///< [fragment][3][elements]
    std::vector<gossip::FragmentParts> words;              ///< the shared words: they survive the daemon
    std::vector<bool> paged;    ///< in lean memory: fragments that have pages; an access to others would end the client
    std::vector<bool> serving;  ///< fragments with a pass under way: the model contains the correction already
    KeptExchanges kept;         ///< stored for a later daemon
    std::uint64_t clock = 0;
    std::uint64_t clock_base = 0;
    std::uint64_t steps = 0;
    gossip::TrainingStep step;  ///< as the daemon is told; it outlives the client
    double speed = 1;
    bool alive = false;
    bool stalled = false;    ///< takes no steps
    bool finishing = false;  ///< has stopped training, and serves due fragments
    std::size_t next_due = 0;
    TimeUs served_us = 0;  ///< time spent serving due fragments
    TimeUs told_us = 0;    ///< when the daemon was last told of served_us, and its value then
    TimeUs told_served_us = 0;
    TrainStep train;
  };
  /// A node's memory and processor as its replica's executor sees them.
  class Machine;
  struct Node {
    Node();
    ~Node();

    Client client;
    std::unique_ptr<gossip::ExchangeCounter> counter;
    gossip::ReplyCache::Seen seen;             ///< seen by earlier replicas of this daemon
    bool daemon = false;                       ///< its process runs
    std::unique_ptr<gossip::Replica> replica;  ///< null while the daemon is down or has no client
    std::unique_ptr<gossip::Executor> executor;
    JobSettings followed;                    ///< the settings from which the replica's options are made
    std::vector<JobSetting> given_settings;  ///< the settings with which its program would begin the job
    std::unique_ptr<Machine> machine;
    std::unique_ptr<gossip::Beginning> beginning;  ///< null if `replica` is null
    std::vector<SavedValues> saved;  ///< saved models with which a joining client may begin, the best first
    bool joins = false;              ///< its client is new
    bool keeps = false;              ///< its client does not train (set before start_daemon())
    bool follows = false;            ///< with `keeps`: others let it follow only, and hear it as the daemon does
    Sponsor sponsor = no_sponsor;    ///< who has admitted the node (set before it is linked)
    bool paused = false;
    bool all_dialled = true;
    std::deque<Schedule::Action> held_back;  ///< events that came while it was paused
    std::uint64_t daemon_life = 0;
    std::uint64_t replica_life = 0;
    TimeUs client_gone_us = 0;
    std::uint64_t client_life = 0;
    bool let_go = false;  ///< this daemon had a replica whose client is gone
  };

  /// `network` may also carry other traffic of the same nodes.
  Cluster(ClusterOptions options, Schedule& schedule, Network& network);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster();

  // --- nodes
  /// Adds a node whose client has this model, and which has no daemon yet. Nodes are numbered from 0, as in the
  /// network.
  std::size_t add_node(std::span<const float> model, TrainStep train = {}, double speed = 1);
  /// Starts node i's daemon. With `joins` its client is new, and pulls the model or helps to choose one; otherwise the
  /// client is part of the run already.
  void start_daemon(std::size_t i, bool joins);
  /// Attaches the client of a node to its running daemon.
  void attach(std::size_t i, bool joins);
  /// Like kill -9 of the daemon. The client trains on.
  void kill_daemon(std::size_t i);
  /// Like kill -9 of the client: its model is lost. The daemon still maps the memory and finishes its work there, drops
  /// the replica, and runs on without the job.
  void lose_client(std::size_t i);
  /// Like kill -9 of the daemon and then the client, so that the neighbours hear no more of the daemon's exchanges.
  void kill_client(std::size_t i);
  /// Starts a new client process at a node without one.
  void start_client(std::size_t i, std::span<const float> model);
  void kill_node(std::size_t i);
  /// Replaces node i's replica by this one, which has the same memory and knows of no exchange.
  void replace_replica(std::size_t i, std::unique_ptr<gossip::Replica> replica);
  /// The daemon stands still (SIGSTOP); resume() lets it go on with all that came meanwhile.
  void pause(std::size_t i);
  void resume(std::size_t i);
  /// Like a daemon that is told to stop: it finishes what is under way, and begins nothing.
  void wind_down(std::size_t i);
  /// Like the command `drain`: it takes part in no exchange, and its client trains on.
  void drain(std::size_t i);
  /// Like the command `leave`, up to the goodbye: gossip::Replica::leave().
  void leave(std::size_t i, TimeUs patience_us);
  /// The program of node i stops training and waits for the replicas to agree: gossip::Replica::set_finishing(). With
  /// `on` false it trains again.
  void finish(std::size_t i, bool on = true);
  /// Node i's operator changes the job's settings to these: gossip::Replica::take_settings().
  void change_settings(std::size_t i, std::vector<JobSetting> values);
  /// Node i asks node j for a fragment, as a joiner does; node i need not be joining.
  void pull(std::size_t i, std::size_t j, std::uint32_t f);
  /// Node i sends this message to node j, whatever its replica decides.
  void send(std::size_t i, std::size_t j, Message message) { deliver(i, j, std::move(message)); }

  // --- the overlay
  /// Makes a link, and tells both ends. Does nothing if either daemon is down.
  void link(std::size_t i, std::size_t j);
  void link_all();
  /// The transport breaks: messages under way are lost; both ends are told.
  void unlink(std::size_t i, std::size_t j);
  [[nodiscard]] bool linked(std::size_t i, std::size_t j) const { return links_.contains(std::minmax(i, j)); }
  /// Node i's failure detector declares node j dead.
  void declare_dead(std::size_t i, std::size_t j);
  /// Sets whether every neighbour to be dialled has been tried, after which a joining replica may decide. Initially
  /// true.
  void set_all_dialled(bool all_dialled) {
    all_dialled_ = all_dialled;
    for (Node& node : nodes_)
      node.all_dialled = all_dialled;
  }
  void set_all_dialled(std::size_t i, bool all_dialled) { nodes_[i].all_dialled = all_dialled; }

  // --- readings
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const Node& node(std::size_t i) const { return nodes_[i]; }
  [[nodiscard]] Node& node(std::size_t i) { return nodes_[i]; }
  [[nodiscard]] std::uint32_t fragments() const { return fragments_; }
  /// Elements [first, last) of the model that fragment f holds.
  [[nodiscard]] std::pair<std::size_t, std::size_t> range_of(std::uint32_t f) const;
  [[nodiscard]] bool daemon_alive(std::size_t i) const { return nodes_[i].daemon; }
  /// The saved model with which node i's replica has begun; null if it began with another model.
  [[nodiscard]] const SavedValues* began_with(std::size_t i) const;
  [[nodiscard]] bool client_alive(std::size_t i) const { return nodes_[i].client.alive; }
  /// The live model of a node with the corrections on their way to it; one fragment of it, or all.
  [[nodiscard]] std::vector<double> whole(std::size_t i, std::uint32_t f) const;
  [[nodiscard]] std::vector<double> whole(std::size_t i) const;
  /// Per element, over nodes with a living client: the sum, the mean, and the mean square distance from the mean.
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

  /// Called for every event after it has happened, but for `training` and `delivered` before.
  std::function<void(const Event&)> on_event;
  /// Changes the messages of a node that breaks the protocol, before they leave; false drops one.
  std::function<bool(std::size_t from, std::size_t to, Message& message)> tamper;
  /// Carries a message, by default over the network; a test may put something between. Returns the arrivals to come.
  std::function<int(std::size_t from, std::size_t to, std::size_t bytes, std::function<void()> arrive)> transport;
  /// The probability that a link's queue is full: the sender is told, as by a full socket.
  double full_probability = 0;
  /// The probability that pulled values are found damaged where the client is to read them.
  double damage_probability = 0;
  /// The probability that there is no memory for a fragment of lean memory.
  double lack_probability = 0;

 private:
  using Actions = gossip::Actions;

  void say(const Event& event) {
    if (on_event) on_event(event);
  }
  TimeUs task_time_us(std::size_t elements);
  [[nodiscard]] std::size_t elements_of(std::uint32_t f) const;
  [[nodiscard]] std::vector<gossip::ElementRange> buffers_in(std::uint32_t f) const;
  [[nodiscard]] std::size_t padded_of(std::uint32_t f) const;
  [[nodiscard]] JobInfo description(const Node& node) const;
  void make_buffers(Client& client);
  void vacate_unused(Client& client) const;

  /// Runs `action` at that time if the node still has the same replica. A paused daemon runs it later.
  void at_replica(std::size_t i, TimeUs time_us, Schedule::Action action);
  void in_replica(std::size_t i, std::uint64_t life, Schedule::Action action);
  /// Does the same for the daemon's process, with or without a replica.
  void in_daemon(std::size_t i, std::uint64_t life, Schedule::Action action);

  void step(std::size_t i, std::uint64_t life);
  void train(std::size_t i);
  /// Returns the time that serving takes.
  TimeUs serve_due(std::size_t i);
  void tell_time_taken(std::size_t i);
  void tell_finishing(std::size_t i, Actions& out);
  void serve(std::size_t i, std::uint32_t f);
  /// `clock` is the model's clock when the pass began; the client may have trained since.
  void publish(std::size_t i, std::uint32_t f, std::uint64_t clock);
  void tick(std::size_t i);
  void deliver(std::size_t from, std::size_t to, Message message);
  void receive(std::size_t from, std::size_t to, const Message& message);
  void receive_without_job(std::size_t from, std::size_t to, const Message& message);
  void let_go(std::size_t i);
  [[nodiscard]] std::size_t members_besides(std::size_t i) const;
  void told_of_link(std::size_t i, std::size_t j);
  template <class Feed>
  void decide(std::size_t i, Feed feed) {
    nodes_[i].executor->decide(feed);
  }
  /// Applies the one setting that simulated nodes know: the codec.
  void follow_settings(std::size_t i);
  void begin(std::size_t i);
  void run_if_joined(std::size_t i);

  ClusterOptions options_;
  Schedule& schedule_;
  Network& network_;
  gossip::Random random_;
  std::uint32_t fragments_;
  std::vector<bool> is_buffer_;  ///< for each element, whether its role is buffer
  std::deque<Node> nodes_;
  std::set<std::pair<std::size_t, std::size_t>> links_;
  std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> link_lives_;
  bool all_dialled_ = true;
};

}  // namespace gossamer::sim
