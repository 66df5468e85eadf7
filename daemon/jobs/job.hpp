// One job at this node: its clients, the decisions about its replica, and the carrying out of what they decide.
//
// gossip::Replica and gossip::Joining decide; the job feeds them what happens (publications seen in the clients' words,
// messages, finished tasks, time) and carries out their actions: sends messages, runs tasks on the workers, mirrors
// each fragment's parts into its word. Owned by Node; tasks under way hold it too, so that memory outlives them.
//
// With one client the replica lives in that client's memory. With the second one the clients become a group: the
// replica is gathered into the node's own memory (daemon/clients/node_memory.hpp), and gossip::LocalGroup decides what
// passes between it and each of them (job_group.cpp). It stays so until the job ends. Invariant: a replica that has not
// joined is the first client's.
//
// Everything runs on the loop's thread but the tasks' arithmetic, which touches only the floats of a fragment that is
// held for it.

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
#include "daemon/device/node_mean.hpp"
#include "daemon/jobs/checkpoint_writing.hpp"
#include "daemon/jobs/job_beginning.hpp"
#include "daemon/jobs/job_client.hpp"
#include "daemon/jobs/job_ending.hpp"
#include "daemon/jobs/job_memory.hpp"
#include "daemon/report/status.hpp"
#include "gossip/check.hpp"

namespace gossamer::daemon {

class Job : public std::enable_shared_from_this<Job>,
            private CheckpointSource,
            private gossip::ReplicaHost,
            private gossip::GroupHost,
            private BeginningHost {
 public:
  /// Refused if the client's words do not make sense.
  [[nodiscard]] static std::expected<std::shared_ptr<Job>, AttachRefusal> make(JobHost& host,
                                                                               std::shared_ptr<ClientSession> session,
                                                                               const GossipOptions& options,
                                                                               gossip::ExchangeCounter& counter,
                                                                               std::uint64_t seed);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Begins to join, after a look for checkpoints, or runs at once if the client resumes.
  void start();
  void set_options(const GossipOptions& options);

  // --- the clients
  [[nodiscard]] const std::string& name() const { return description_.name; }
  [[nodiscard]] JobKey key() const { return description_.job; }
  /// One more client of this job. Refused if its layout is another, or the job is about to end.
  [[nodiscard]] std::expected<void, AttachRefusal> add(std::shared_ptr<ClientSession> session);
  /// The device in whose memory the replica is: that of its first client's buffers.
  [[nodiscard]] const gossip::Device& home() const { return home_; }
  /// The GPU that must reach this memory before its client is added, for it is home(). Null: none, or the client would
  /// not be taken in any case: lean memory above all, of which pinning would take all pages.
  [[nodiscard]] const gossip::Device* home_for(const ClientMemory& memory) const;
  /// Ends the sessions of all clients that cannot go on without this GPU: of all, if it is home().
  void gpu_failed(const gossip::Device& gpu);
  void woken(const ClientSession& session);
  /// The client is gone. With the last one, finishes what is under way and takes the replica out of gossip. False: it
  /// was none of this job's.
  bool detached(const ClientSession& session);
  [[nodiscard]] bool client_gone() const { return clients_.empty(); }

  // --- the overlay
  void link_up(const NodeId& node);
  void link_down(const NodeId& node);
  void node_dead(const NodeId& node);
  void received(const NodeId& from, Message&& message);
  [[nodiscard]] JobInfo info() const { return replica_.own_info(); }
  /// False: where it stands is not known yet, and nobody is to be told anything.
  [[nodiscard]] bool has_begun() const { return !beginning_.is_searching(); }
  /// See gossip::Replica: what one client's replica has answered, the next one's must not.
  void add_seen(gossip::ReplyCache::Seen& seen) const { replica_.book().replies().add_seen(seen); }
  void begin_after(const gossip::ReplyCache::Seen& seen) { replica_.book().replies().begin_after(seen); }

  /// `settled`: every configured peer is linked or has failed once.
  void tick(bool settled);
  /// Starts nothing new; done() says when nothing is left under way.
  void drain();
  /// The operator's drain: takes part in no exchange until it is ended, but keeps the client, and its place.
  void set_drained(bool drained);
  /// As drain(), after the last exchanges that hand the progress over: gossip::Replica::leave().
  void leave(TimeUs deadline_us);
  [[nodiscard]] bool leaving() const { return leaving_; }
  /// Of the client whose steps take longest; 0: not known.
  [[nodiscard]] TimeUs longest_step_us() const;
  /// How far handing over has come, for people.
  [[nodiscard]] std::string handover_text() const;
  [[nodiscard]] bool done() const;
  /// Tells the client that no daemon looks after it any more, and stops acting on results.
  void end();

  [[nodiscard]] JobStatus status() const;

  // --- checkpoints
  /// Begins one, or says why there is none to be had. Returns its number: see CheckpointWriting.
  [[nodiscard]] std::expected<std::uint64_t, std::string> request_checkpoint();
  /// Null if the node keeps none.
  [[nodiscard]] const CheckpointWriting* checkpoint_writing() const { return checkpoint_writing_.get(); }

 private:
  Job(JobHost& host, std::shared_ptr<JobClient> client, const GossipOptions& options, gossip::ExchangeCounter& counter,
      std::uint64_t seed, std::vector<gossip::FragmentBuffers> fragments);

  static constexpr TimeUs return_us = std::chrono::microseconds(return_patience).count();

  using Actions = gossip::Actions;
  /// Feeds the replica and carries out what it decides: `feed(actions)`.
  template <class Feed>
  void decide(Feed feed) {
    executor_.decide(feed);
  }
  void remember();

  // --- gossip::ReplicaHost
  [[nodiscard]] TimeUs replica_now_us() const override;
  bool send_message(const NodeId& to, const Message& message) override;
  void run(std::uint32_t fragment, std::unique_ptr<gossip::Task> task) override;
  [[nodiscard]] std::uint64_t hash_of(std::span<const float> values) const override;
  void complete(PullReply& reply) override;
  void copied(std::uint32_t fragment, std::optional<std::vector<float>>&& values,
              std::uint64_t publication_clock) override;
  void gather(std::uint32_t fragment) override { group_.gather(fragment); }
  void offer(std::uint32_t fragment) override { group_.offer(fragment); }
  void take_in(std::uint32_t fragment) override { group_.take_in(fragment); }
  void lacks_memory(int error) override;
  // --- gossip::GroupHost
  void lacking(gossip::Member& member, std::uint32_t fragments) override;
  void lacks_room() override;
  [[nodiscard]] std::shared_ptr<const gossip::MeanOver> mean_over() const override;

  [[nodiscard]] JobClient* client_of(const ClientSession& session) const;
  [[nodiscard]] bool runs() const;
  void tell_state(layout::RunState state);
  void published(JobClient& client, std::uint32_t fragment);

  // --- several clients
  using Clients = std::vector<std::shared_ptr<JobClient>>;
  /// Clients on another GPU than home()'s (daemon/device/node_mean.hpp).
  [[nodiscard]] bool is_elsewhere(const JobClient& client) const { return !client.memory().reached_by(home_); }
  [[nodiscard]] std::optional<AttachRefusal> objection_to(const ClientMemory& memory) const;
  void include_gpu_of(const JobClient& client);
  void leave_gpu_of(const JobClient& client);
  /// Clients that were a former daemon's group are waited for, so that they go on together.
  [[nodiscard]] bool awaits_clients() const;
  void await_those_with(const JobClient& client);
  void tell_of_group();
  void tick_group();
  void set_first(std::shared_ptr<JobClient> client);

  // --- BeginningHost
  [[nodiscard]] std::shared_ptr<void> keep() override { return shared_from_this(); }
  [[nodiscard]] bool is_gone() const override { return ended_ || client_gone(); }
  void search_over() override { begin(); }
  void model_decided() override { run_if_joined(); }
  void warn_of_memory(int error) override { lacks_memory(error); }

  void begin();
  // --- CheckpointSource
  bool copy_fragment(std::uint32_t fragment, std::uint64_t least_clock) override;
  [[nodiscard]] checkpoint::Description describe() const override;

  void run_if_joined();
  void read_clock();
  /// Of the replica, in samples.
  [[nodiscard]] std::uint64_t clock() const;
  [[nodiscard]] std::vector<std::byte> cursor() const;
  void tell_place(JobClient& client);
  void tell_places();
  void tell_clients();
  void tell_run_state(JobClient& client);
  [[nodiscard]] ClientStatus client_status(const JobClient& client) const;
  [[nodiscard]] PartnerStatus partner_status(const gossip::PartnerReport& report) const;
  void measure_time_taken(TimeUs now_us);
  void warn_of_strangers();
  void warn_of_clock();

  JobHost& host_;
  JobInfo description_;
  GossipOptions options_;
  const gossip::Device& home_;
  std::shared_ptr<const OpenDevice> home_opened_;  // null: the processor; until the replica's is released
  std::shared_ptr<device::NodeMean> node_mean_;    // once a client is on another GPU
  Clients clients_;   // attached, in the order of their coming; at most LocalGroup::max_clients
  JobMemory memory_;  // what outlives the daemon
  gossip::Replica replica_;
  gossip::Executor executor_{replica_, memory_, *this};
  gossip::Group group_{replica_, executor_, memory_, *this};
  JobBeginning beginning_{*this, host_, description_, memory_, replica_, executor_};
  JobEnding ending_{replica_, executor_, group_};
  std::optional<TimeUs> warned_of_memory_us_;
  bool warned_of_no_room_ = false;
  std::uint32_t awaited_clients_ = 0;  // of a former daemon's group
  bool drained_ = false;               // as told; the replica is once it has joined
  bool leaving_ = false;
  bool ended_ = false;
  TimeUs started_us_ = 0;
  TimeUs joined_us_ = 0;
  TimeUs told_clients_us_ = 0;
  TimeUs time_taken_at_us_ = 0;
  std::uint64_t global_clock_ = 0;     // the largest told
  std::optional<NodeId> disbelieved_;  // warned of
  std::uint64_t payload_bytes_received_ = 0;
  std::optional<NodeId> warned_of_;
  std::set<NodeId> linked_;
  std::shared_ptr<CheckpointWriting> checkpoint_writing_;
};

}  // namespace gossamer::daemon
