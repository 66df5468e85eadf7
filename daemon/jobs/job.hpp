// One job at this node: its clients, its replica, and what connects these to the node, the overlay and the workers.
//
// Job is made of parts, and passes to them what happens: messages, links, publications, finished tasks, time.
// - JobGpus: the GPU that the model is on, and those of other clients.
// - JobOptions: the job's settings, and the node's own options where the settings say nothing.
// - JobMemory: where the replica's memory is, and what of it outlives the daemon.
// - gossip::Replica decides about exchanges; gossip::Executor carries its decisions out over JobMemory.
// - gossip::Group: what passes between the node's copy and each of several clients.
// - gossip::Beginning decides how the job gets its model; JobBeginning carries that out.
// - gossip::Ending: how training ends.
// - CheckpointWriting: the job's checkpoints.
//
// With one client the replica is in that client's memory. From the second client on it is gathered into the node's own
// memory (daemon/clients/node_memory.hpp), and stays there until the job ends. Invariant: a replica that has not joined
// is in the first client's memory.
//
// Owned by Node; tasks under way hold it too, so that the memory lives as long as they do. Everything runs on the
// loop's thread except the tasks' arithmetic, which touches only the floats of a fragment that is held for it.

#pragma once

#include <spdlog/logger.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "daemon/clients/client_listener.hpp"
#include "daemon/clients/reply_records.hpp"
#include "daemon/config/config.hpp"
#include "daemon/config/replica_options.hpp"
#include "daemon/jobs/checkpoint_writing.hpp"
#include "daemon/jobs/job_beginning.hpp"
#include "daemon/jobs/job_client.hpp"
#include "daemon/jobs/job_gpus.hpp"
#include "daemon/jobs/job_memory.hpp"
#include "daemon/jobs/job_options.hpp"
#include "daemon/jobs/job_trouble.hpp"
#include "daemon/report/status.hpp"
#include "gossip/check.hpp"
#include "gossip/group/ending.hpp"

namespace gossamer::daemon {

class Job : public std::enable_shared_from_this<Job>,
            private CheckpointSource,
            private gossip::ReplicaHost,
            private gossip::GroupHost,
            private gossip::BeginningHost {
 public:
  /// Refuses a client whose words are not valid.
  [[nodiscard]] static std::expected<std::shared_ptr<Job>, AttachRefusal> make(JobHost& host,
                                                                               std::shared_ptr<ClientSession> session,
                                                                               const GossipOptions& options,
                                                                               gossip::ExchangeCounter& counter,
                                                                               std::uint64_t seed);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Searches for checkpoints and then joins; a client that resumes runs at once. Exchanges that the job's former
  /// replicas at this node may have answered, by `seen`, are not answered again.
  void start(const gossip::ReplyCache::Seen& seen);
  /// Sets the node's own options, which hold where the job's settings say nothing.
  void set_options(const GossipOptions& options);
  /// The options that hold: the job's settings in the place of the node's own options.
  [[nodiscard]] const JobOptions& options() const { return options_; }
  /// Gives all replicas of the job these settings, which options().changed() has made.
  SettingsStatus change_settings(const JobSettings& next);

  // --- the clients
  [[nodiscard]] const std::string& name() const { return description_.name; }
  [[nodiscard]] JobKey key() const { return description_.job; }
  /// The tensors of the clients' model from `first` on, as many as one message may have.
  [[nodiscard]] LayoutReply layout(std::uint32_t first) const;
  /// Adds a client to this job. Refused if its layout differs, or if the job is about to end.
  [[nodiscard]] std::expected<void, AttachRefusal> add(std::shared_ptr<ClientSession> session);
  /// The device whose memory holds the replica: that of the first client's buffers.
  [[nodiscard]] const gossip::Device& home() const { return gpus_.home(); }
  /// The GPU that must reach this memory before its client is added: home(). Null if there is none, or if the client
  /// would be refused anyway or has lean memory, since pinning would take all of its pages.
  [[nodiscard]] const gossip::Device* home_for(const ClientMemory& memory) const;
  /// Ends the sessions of all clients that need this GPU; of all clients, if it is home().
  void gpu_failed(const gossip::Device& gpu);
  void woken(const ClientSession& session);
  /// The client is gone. After the last one, the job finishes its exchanges and leaves gossip. False: it is not this
  /// job's client.
  bool detached(const ClientSession& session);
  [[nodiscard]] bool client_gone() const { return clients_.empty(); }

  // --- the overlay
  void link_up(const NodeId& node);
  void link_down(const NodeId& node);
  void node_dead(const NodeId& node);
  void received(const NodeId& from, Message&& message);
  [[nodiscard]] JobInfo info() const { return replica_.own_info(); }
  /// False: the search for checkpoints goes on, and nobody is to be told of the job yet.
  [[nodiscard]] bool has_begun() const { return !beginning_.is_searching(); }
  /// See gossip::Replica::farewell().
  [[nodiscard]] JobInfo farewell(gossip::ReplyCache::Seen& seen) const { return replica_.farewell(seen); }

  /// `all_dialled`: each configured peer is linked, or has failed once.
  void tick(bool all_dialled);
  /// Starts nothing new; done() says when nothing is under way.
  void drain();
  /// Carries out the operator's drain: until the operator ends it, the job takes no part in exchanges, but keeps its
  /// clients and its place.
  void set_drained(bool drained);
  /// Says whether this node's certificate lets it follow only.
  void set_follows(bool follows) { replica_.set_follows(follows); }
  /// Hands over what was learned here, in last exchanges, and then drains: see gossip::Replica::leave().
  void leave(TimeUs deadline_us);
  [[nodiscard]] gossip::TrainingStep step() const;
  /// How far the handover has come, for people; empty without one.
  [[nodiscard]] std::string handover_text() const;
  [[nodiscard]] bool done() const;
  /// Tells the clients that no daemon serves them any more, and ignores results from now on.
  void end();

  [[nodiscard]] JobStatus status() const;

  // --- checkpoints
  /// Begins a checkpoint and returns its number (see CheckpointWriting), or says why none can be written.
  [[nodiscard]] std::expected<std::uint64_t, std::string> request_checkpoint();
  /// Null if the node keeps no checkpoints.
  [[nodiscard]] const CheckpointWriting* checkpoint_writing() const { return checkpoint_writing_.get(); }

 private:
  Job(JobHost& host, std::shared_ptr<JobClient> client, const GossipOptions& options, gossip::ExchangeCounter& counter,
      std::uint64_t seed, std::vector<gossip::FragmentBuffers> fragments);

  static constexpr TimeUs return_us = std::chrono::microseconds(return_patience).count();

  using Actions = gossip::Actions;
  /// Calls `feed(actions)` on the replica and carries out what it decides.
  template <class Feed>
  void decide(Feed feed) {
    executor_.decide(feed);
  }
  void remember();

  // --- gossip::ReplicaHost
  [[nodiscard]] TimeUs replica_now_us() const override { return host_.now_us(); }
  bool send_message(const NodeId& to, const Message& message) override { return host_.send(to, message); }
  void run(std::uint32_t fragment, std::unique_ptr<gossip::Task> task) override;
  [[nodiscard]] std::uint64_t hash_of(std::span<const float> values) const override;
  void complete(PullReply& reply) override;
  void copied(std::uint32_t fragment, std::optional<std::vector<float>>&& values,
              std::uint64_t publication_clock) override;
  void lacks_memory(int error) override;  // overrides gossip::BeginningHost's, too
  // --- gossip::GroupHost
  void lacking(gossip::Member& member, std::uint32_t fragments) override;
  void lacks_room() override;
  [[nodiscard]] std::shared_ptr<const gossip::MeanOver> mean_over() const override;

  [[nodiscard]] JobClient* client_of(const ClientSession& session) const;
  [[nodiscard]] bool runs() const;
  void tell_state(layout::RunState state);

  // --- several clients
  using Clients = std::vector<std::shared_ptr<JobClient>>;
  [[nodiscard]] std::expected<void, AttachRefusal> check(const ClientMemory& memory) const;
  /// The clients of a former daemon's group are awaited, so that they go on together.
  [[nodiscard]] bool awaits_clients() const;
  void tell_of_group();
  void tick_group();

  // --- gossip::BeginningHost
  [[nodiscard]] bool is_gone() const override { return ended_ || client_gone(); }
  void begin() override;
  void run_if_joined() override;
  // --- CheckpointSource
  bool copy_fragment(std::uint32_t fragment, std::uint64_t least_clock) override;
  [[nodiscard]] checkpoint::Description describe() const override;

  void read_clock();
  /// The replica's clock, in samples.
  [[nodiscard]] std::uint64_t clock() const;
  [[nodiscard]] std::vector<std::byte> cursor() const;
  void tell_places();
  void look_whether_left_behind(TimeUs now_us);
  void tell_clients();
  void tell_run_state(JobClient& client);
  void measure_time_taken(TimeUs now_us);
  void look_for_trouble(TimeUs now_us);
  void apply_options();

  JobHost& host_;
  JobInfo description_;
  JobOptions options_;
  JobGpus gpus_;
  Clients clients_;   // attached, oldest first; at most LocalGroup::max_clients
  JobMemory memory_;  // where the replica is, and what outlives the daemon
  gossip::Replica replica_;
  gossip::Executor executor_{replica_, memory_, *this};
  gossip::Group group_{replica_, executor_, memory_, *this};
  JobBeginning beginning_work_{[this] { return shared_from_this(); }, *this, host_, description_, memory_};
  gossip::Beginning beginning_{*this, beginning_work_, replica_, executor_, host_.id(), description_.job};
  gossip::Ending ending_{replica_, executor_, group_};
  JobTrouble trouble_;
  std::optional<TimeUs> warned_of_memory_us_;
  bool warned_of_no_room_ = false;
  std::uint32_t awaited_clients_ = 0;  // clients of a former daemon's group
  bool drained_ = false;               // the operator's order; the replica follows once it has joined
  bool leaving_ = false;
  bool ended_ = false;
  TimeUs started_us_ = 0;
  TimeUs joined_us_ = 0;
  TimeUs told_clients_us_ = 0;
  TimeUs accompanied_us_ = 0;  // when the replica last ran with others that train in reach; 0: never
  TimeUs time_taken_at_us_ = 0;
  double device_taken_us_ = home().taken_us();  // home().taken_us() at time_taken_at_us_
  std::uint64_t payload_bytes_received_ = 0;
  std::set<NodeId> linked_;
  std::shared_ptr<CheckpointWriting> checkpoint_writing_;
};

}  // namespace gossamer::daemon
