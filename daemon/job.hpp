// One job at this node: a client's memory, the decisions about its replica, and the carrying out of what they decide.
//
// gossip::Replica and gossip::Joining decide; the job feeds them what happens (publications seen in the client's words,
// messages, finished tasks, time) and carries out their actions: sends messages, runs tasks on the workers, mirrors
// each fragment's parts into its word. Owned by Node; tasks under way hold it too, so that memory outlives them.
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

#include "daemon/client_listener.hpp"
#include "daemon/config.hpp"
#include "daemon/status.hpp"
#include "daemon/workers.hpp"
#include "gossip/joining.hpp"
#include "gossip/replica.hpp"

namespace gossamer::daemon {

/// What a job asks of its node.
class JobHost {
 public:
  virtual ~JobHost() = default;
  [[nodiscard]] virtual NodeId id() const = 0;
  [[nodiscard]] virtual TimeUs now_us() const = 0;
  /// False if it cannot be sent now: no link, or its queue is full.
  virtual bool send(const NodeId& to, const Message& message) = 0;
  /// Nodes linked now.
  [[nodiscard]] virtual std::vector<NodeId> neighbours() const = 0;
  /// To those nodes, as measured; a node to which it is not known yet is left out.
  [[nodiscard]] virtual std::map<NodeId, TimeUs> round_trips_us() const = 0;
  /// What the network takes of one job, as measured; 0: not known.
  [[nodiscard]] virtual double capacity_bytes_s() const = 0;
  [[nodiscard]] virtual gossip::LinkLoad link_load(const NodeId& node) const = 0;
  [[nodiscard]] virtual Workers& workers() = 0;
  [[nodiscard]] virtual spdlog::logger& log() = 0;
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  /// Refused if the client's words do not make sense.
  [[nodiscard]] static std::expected<std::shared_ptr<Job>, AttachRefusal> make(JobHost& host,
                                                                               std::shared_ptr<ClientSession> session,
                                                                               const GossipOptions& options,
                                                                               gossip::ExchangeCounter& counter,
                                                                               std::uint64_t seed);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Begins to join, or runs at once if the client resumes. Neighbours linked already are met here.
  void start();
  void set_options(const GossipOptions& options);

  // --- the client
  [[nodiscard]] const ClientSession& session() const { return *session_; }
  [[nodiscard]] const std::string& name() const { return session_->memory().job(); }
  [[nodiscard]] JobKey key() const { return session_->memory().key(); }
  void woken();
  /// The client is gone: finishes what is under way and takes the replica out of gossip.
  void detached();
  [[nodiscard]] bool client_gone() const { return client_gone_; }

  // --- the overlay
  void link_up(const NodeId& node);
  void link_down(const NodeId& node);
  void node_dead(const NodeId& node);
  void received(const NodeId& from, Message&& message);
  [[nodiscard]] JobInfo info() const { return replica_.own_info(); }
  /// See gossip::Replica: what one client's replica has answered, the next one's must not.
  void add_seen(gossip::ReplyCache::Seen& seen) const { replica_.add_seen(seen); }
  void begin_after(const gossip::ReplyCache::Seen& seen) { replica_.begin_after(seen); }

  /// `settled`: every configured peer is linked or has failed once.
  void tick(bool settled);
  /// Starts nothing new; done() says when nothing is left under way.
  void drain();
  /// The operator's drain: takes part in no exchange until it is ended, but keeps the client, and its place.
  void set_drained(bool drained);
  /// As drain(), after the last exchanges that hand the progress over: gossip::Replica::leave().
  void leave(TimeUs deadline_us);
  [[nodiscard]] bool leaving() const { return leaving_; }
  /// How far handing over has come, for people.
  [[nodiscard]] std::string handover_text() const;
  [[nodiscard]] bool done() const;
  /// Tells the client that no daemon looks after it any more, and stops acting on results.
  void end();

  [[nodiscard]] JobStatus status() const;

 private:
  Job(JobHost& host, std::shared_ptr<ClientSession> session, const GossipOptions& options,
      gossip::ExchangeCounter& counter, std::uint64_t seed, std::vector<gossip::FragmentBuffers> fragments);

  using Actions = gossip::Replica::Actions;
  /// Feeds the replica and carries out what it decides: `feed(actions)`.
  template <class Feed>
  void decide(Feed feed);
  void perform(Actions& actions);
  void send(std::vector<gossip::Replica::Send>& messages);
  template <class Task, class Report>
  void work(std::uint32_t fragment, Task task, Report report);
  void work_snapshot(const gossip::Replica::Snapshot& snapshot);
  void mirror(std::uint32_t fragment);

  template <class Feed>
  void decide_joining(Feed feed);
  void pulled(const NodeId& from, PullReply&& reply);
  void finish_pull(const NodeId& from, PullReply&& reply);
  void run_if_joined();
  void read_clock();
  [[nodiscard]] bool replaces_pending();
  void tell_client();
  void measure_time_taken(TimeUs now_us);
  void warn_of_strangers();

  JobHost& host_;
  std::shared_ptr<ClientSession> session_;
  GossipOptions options_;
  gossip::Replica replica_;
  std::optional<gossip::Joining> joining_;
  std::vector<bool> copying_;            // fragments whose pulled values are being copied
  std::vector<std::uint64_t> mirrored_;  // the words as the daemon stored or accepted them
  bool due_raised_ = false;
  bool client_gone_ = false;
  bool drained_ = false;  // as told; the replica is once it has joined
  bool leaving_ = false;
  bool ended_ = false;
  TimeUs started_us_ = 0;
  TimeUs joined_us_ = 0;
  TimeUs told_client_us_ = 0;
  TimeUs time_taken_at_us_ = 0;
  std::uint64_t serving_ns_then_ = 0;
  std::uint64_t pulled_bytes_ = 0;
  std::uint64_t payload_bytes_received_ = 0;
  std::optional<NodeId> warned_of_;
  std::set<NodeId> linked_;
};

}  // namespace gossamer::daemon
