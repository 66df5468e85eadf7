// How a job gets its model at this node. It searches for a checkpoint, joins the nodes that run the job or decides with
// other newcomers who begins, and takes the values over from them or from the checkpoint.
//
//   searching → joining → over                    pulled from others, or this client's own model
//                  └ restoring → over             a checkpoint, if it is this node that begins
//
// The search comes first, since newcomers decide who begins by how far their models are. If this node begins, the whole
// checkpoint is read and checked before the client is given any of it, so that a damaged file leaves the client's own
// model as it is.
//
// Owned by Job. Everything runs on the loop's thread except the copying and reading of values.

#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/jobs/checkpoint_search.hpp"
#include "daemon/jobs/checkpoints.hpp"
#include "daemon/jobs/job_host.hpp"
#include "daemon/jobs/job_memory.hpp"
#include "gossip/replica/joining.hpp"

namespace gossamer::daemon {

/// The job as its beginning sees it.
class BeginningHost {
 public:
  virtual ~BeginningHost() = default;
  /// The returned pointer keeps the job, and with it all memory, while work is under way.
  [[nodiscard]] virtual std::shared_ptr<void> keep() = 0;
  /// The job has ended, or its client is gone: results are not wanted any more.
  [[nodiscard]] virtual bool is_gone() const = 0;
  /// The search is over: the other nodes are to be told of the job.
  virtual void begin() = 0;
  /// The model is decided on. The job runs once the client has taken it over.
  virtual void run_if_joined() = 0;
  /// There was no memory for a fragment; `error` is an errno value.
  virtual void lacks_memory(int error) = 0;
};

class JobBeginning {
 public:
  JobBeginning(BeginningHost& job, JobHost& host, const JobInfo& description, JobMemory& memory,
               gossip::Replica& replica, gossip::Executor& executor);

  // --- steps
  /// Searches for checkpoints, then calls BeginningHost::begin(); at once if none are kept.
  void search();
  /// Joins the nodes that run the job, with a model of this clock.
  void join(std::uint64_t clock);
  /// The node stops: nothing new is begun.
  void stop() { stage_ = Over{}; }
  /// Renames the imported file once its model has been taken over, so that it is not taken again.
  void settle_import();

  // --- where it stands
  [[nodiscard]] bool is_searching() const { return std::holds_alternative<Searching>(stage_); }
  /// The model is not decided on yet.
  [[nodiscard]] bool is_under_way() const { return !std::holds_alternative<Over>(stage_); }
  [[nodiscard]] bool is_restoring() const { return std::holds_alternative<std::shared_ptr<Restoring>>(stage_); }
  /// The client has not yet taken all values over.
  [[nodiscard]] bool replaces_pending() const;
  /// The clock of the first checkpoint that the job may begin with; 0: there is none.
  [[nodiscard]] std::uint64_t candidate_clock() const;
  [[nodiscard]] std::uint32_t fragments_pulled() const;
  [[nodiscard]] std::uint32_t donors() const;
  [[nodiscard]] std::uint64_t pulled_bytes() const { return pulled_bytes_; }

  // --- what happens
  void link_up(const NodeId& node);
  void link_down(const NodeId& node);
  void info(const NodeId& from, const JobInfo& info);
  void pulled(const NodeId& from, PullReply&& reply);
  /// `settled`: each configured peer is linked, or has failed once.
  void tick(bool settled);

 private:
  struct Searching {};
  struct Over {};
  struct Restoring {
    std::vector<CheckpointCandidate> candidates;  // the first one is tried
    std::uint32_t next = 0;                       // fragment
    // For lean memory the file is read twice: to check it, and then to offer each fragment as there is room.
    bool checked = false;
    bool waits_for_room = false;
  };

  void searched(CheckpointsFound&& found);
  void stop_searching();
  template <class Feed>
  void decide(Feed feed);
  void joined(const gossip::Joining& joining);
  void finish_pull(const NodeId& from, PullReply&& reply);
  void hold_back(const NodeId& from, PullReply&& reply);
  void take_held_back();
  void restore_next();
  void restore_failed(const std::string& why);
  void restored();
  void give(std::uint32_t fragment);
  /// The client's model has these values' clock and cursor from now on.
  void take_over(std::uint64_t clock, std::span<const std::byte> cursor);
  [[nodiscard]] gossip::Joining* joining() { return std::get_if<gossip::Joining>(&stage_); }
  [[nodiscard]] const gossip::Joining* joining() const { return std::get_if<gossip::Joining>(&stage_); }
  [[nodiscard]] JobClient& client() const { return *memory_.first(); }

  BeginningHost& job_;
  JobHost& host_;
  const JobInfo& description_;
  JobMemory& memory_;
  gossip::Replica& replica_;
  gossip::Executor& executor_;
  std::variant<Over, Searching, gossip::Joining, std::shared_ptr<Restoring>> stage_;
  TimeUs began_us_;
  std::vector<CheckpointCandidate> candidates_;                // what the job may begin with; empty once it is decided
  std::vector<bool> copying_;                                  // fragments whose pulled values are being copied
  std::vector<std::pair<NodeId, PullReply>> pulls_held_back_;  // lean memory has no room for them yet
  std::uint64_t pulled_bytes_ = 0;
  bool import_pending_ = false;  // the job begins with the imported file
};

}  // namespace gossamer::daemon
