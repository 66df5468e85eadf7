// The node, which main runs: its identity, its overlay, and the jobs of the clients attached to it.
//
// Node passes each event (clients, links, messages, time) to the job it concerns. Everything runs on the loop's thread.
// Invariants: at most `limits.jobs` jobs, one for each name; a job whose clients have gone is kept only until its work
// under way is finished or job_grace_us is over.

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <expected>
#include <map>
#include <memory>
#include <string>

#include "daemon/average/averages.hpp"
#include "daemon/cluster/acquaintances.hpp"
#include "daemon/cluster/cluster_commands.hpp"
#include "daemon/cluster/cluster_state.hpp"
#include "daemon/cluster/cluster_view.hpp"
#include "daemon/cluster/decision_keeper.hpp"
#include "daemon/cluster/job_rights.hpp"
#include "daemon/core.hpp"
#include "daemon/jobs/checkpoints.hpp"
#include "daemon/jobs/job.hpp"
#include "daemon/jobs/layout_search.hpp"
#include "daemon/system/state_folder.hpp"
#include "daemon/system/workers.hpp"
#include "peer/overlay/overlay.hpp"

namespace gossamer::daemon {

/// How long a job whose clients have gone may take to finish its exchanges.
inline constexpr TimeUs job_grace_us = 3 * us_per_s;

class Node final : public Core, private JobHost, private AveragesHost, private peer::OverlayEvents {
 public:
  /// Loads or makes the keys, binds the overlay's address and begins to dial. All references outlive the node.
  [[nodiscard]] static std::expected<std::unique_ptr<Node>, std::string> open(
      asio::io_context& loop, const Config& config, const StateFolder& state, Workers& workers,
      Checkpoints& checkpoints, Devices& devices, spdlog::logger& log);
  ~Node() override;

  // --- Core
  [[nodiscard]] NodeId id() const override { return identity_.node; }
  [[nodiscard]] NodeStatus node_status() const override;
  [[nodiscard]] std::vector<PeerStatus> peer_statuses() const override;
  [[nodiscard]] std::vector<ClusterMemberStatus> member_statuses() const override;
  [[nodiscard]] std::vector<JobStatus> job_statuses() const override;
  [[nodiscard]] std::vector<SummaryStatus> summary_statuses() const override { return cluster_view_.statuses(); }
  [[nodiscard]] std::vector<FindingStatus> troubles() const override;
  [[nodiscard]] Devices* devices() override { return &devices_; }
  [[nodiscard]] std::vector<ControlCommand> control_commands() override;
  void reconfigure(const Config& config) override;
  void set_operator(std::string who) override { overlay_->set_operator(std::move(who)); }
  void set_drained(bool drained) override;
  [[nodiscard]] bool drained() const override { return drained_; }
  void begin_leave(std::chrono::microseconds patience, std::function<void()> stopped) override;
  void begin_stop(std::function<void()> stopped) override;
  std::expected<void, std::string> open_averages(const std::filesystem::path& socket,
                                                 const UserRights& rights) override {
    return averages_.open(socket, rights);
  }

  // --- ClientEvents
  [[nodiscard]] const gossip::Device* home_of(const ClientMemory& memory) const override;
  std::expected<void, AttachRefusal> attach(std::shared_ptr<ClientSession> session) override;
  void woken(ClientSession& session) override;
  void detached(ClientSession& session) override;

 private:
  Node(asio::io_context& loop, const Config& config, const StateFolder& state, peer::Identity identity,
       ClusterState cluster, Workers& workers, Checkpoints& checkpoints, Devices& devices, spdlog::logger& log,
       std::uint64_t seed, std::uint64_t incarnation);

  [[nodiscard]] TimeUs certificate_ends_us() const;

  // --- JobHost
  [[nodiscard]] TimeUs now_us() const override;
  [[nodiscard]] TimeUs began_us() const override { return began_us_; }
  bool send(const NodeId& to, const Message& message) override;
  [[nodiscard]] std::vector<NodeId> neighbours() const override;
  [[nodiscard]] std::map<NodeId, TimeUs> round_trips_us() const override;
  [[nodiscard]] double capacity_bytes_s() const override;
  void settings_followed(const std::string& job, const JobSettings& settings) override;
  [[nodiscard]] std::size_t certified_members() const override { return overlay_->certified_members(); }
  [[nodiscard]] Sponsor sponsor_of(const NodeId& node) const override { return overlay_->sponsor_of(node); }
  [[nodiscard]] gossip::LinkLoad link_load(const NodeId& node) const override { return overlay_->load(node); }
  [[nodiscard]] Workers& workers() override { return workers_; }
  [[nodiscard]] spdlog::logger& log() override { return log_; }
  [[nodiscard]] Checkpoints* checkpoints() override { return &checkpoints_; }
  [[nodiscard]] GpuSums* gpu_sums() override { return &gpu_sums_; }
  [[nodiscard]] std::vector<std::string> jobs_elsewhere() const override;
  [[nodiscard]] std::string node_name() const override { return config_.node.name; }
  [[nodiscard]] std::string called(const NodeId& node) const override;

  // --- AveragesHost
  [[nodiscard]] bool may_train(const NodeId& node, std::string_view job) const override;

  // --- peer::OverlayEvents
  void link_up(const NodeId& node) override;
  void link_down(const NodeId& node, const std::string& reason) override;
  void node_dead(const NodeId& node) override;
  void received(const NodeId& from, Message&& message) override;
  std::expected<void, std::string> keep_key_ring(const peer::KeyRing& ring) override {
    return decisions_.keep(ring, now_us());
  }
  void denials_changed() override { decisions_.denials_changed(); }
  void certificates_changed() override { decisions_.certificates_changed(); }

  struct Held {
    std::shared_ptr<Job> job;
    TimeUs gone_us = 0;  // when its last client left
  };
  Job* job_of(const ClientSession& session);
  Job* job_named(std::uint64_t name_hash);
  [[nodiscard]] nlohmann::json answer_checkpoint(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json answer_job_set(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json answer_layout(const nlohmann::json& request);
  [[nodiscard]] bool admits(const NodeId& from, Message& message);
  void drain_as_needed();
  void drain_if_needed(Job& job);
  void received_without_job(const NodeId& from, const Message& message);
  void remove_oldest_without_clients();
  void remove_finished_jobs();
  void give_failed_gpus_up();
  void remove(std::map<std::uint64_t, Held>::iterator position);
  void schedule_tick();
  void tick();
  void keep_acquaintances();
  [[nodiscard]] ClusterViewHost cluster_view_host();
  [[nodiscard]] NodeSummary own_summary() const;
  [[nodiscard]] TimeUs stop_patience_us() const;
  void finish_stop_if_idle();
  [[nodiscard]] JobInfo absent(const JobKey& key) const;

  Config config_;
  peer::Identity identity_;
  ClusterState cluster_;
  Workers& workers_;
  Checkpoints& checkpoints_;
  Devices& devices_;
  spdlog::logger& log_;
  GpuSums gpu_sums_;
  gossip::Random random_;
  gossip::ExchangeCounter counter_;
  gossip::ReplyCache::Seen seen_;  // exchanges that former replicas saw, or that came while there was no replica
  std::uint64_t incarnation_;
  Acquaintances acquaintances_;
  TimeUs next_keep_us_ = 0;
  std::unique_ptr<peer::Overlay> overlay_;
  std::unique_ptr<JobRights> job_rights_;
  std::unique_ptr<ClusterCommands> commands_;
  Averages averages_;
  DecisionKeeper decisions_{cluster_, log_};
  std::map<std::uint64_t, Held> jobs_;  // key: the hash of the name
  std::set<std::uint64_t> gone_;        // name hashes of jobs whose clients were seen to go
  LayoutSearch layouts_{*this};
  ClusterView cluster_view_;
  asio::steady_timer timer_;
  std::function<void()> stopped_;  // set while stopping
  TimeUs stop_at_us_ = 0;          // the stop ends at this time, finished or not
  bool drained_ = false;
  const TimeUs began_us_ = now_us();
};

}  // namespace gossamer::daemon
