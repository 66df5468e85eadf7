// What a job's beginning (gossip/replica/beginning.hpp) asks of this node: checkpoints, workers, the client's memory.
//
// Owned by Job. Everything runs on the loop's thread except the copying and reading of values.

#pragma once

#include <memory>
#include <span>

#include "daemon/jobs/checkpoint_search.hpp"
#include "daemon/jobs/job_host.hpp"
#include "daemon/jobs/job_memory.hpp"
#include "gossip/replica/beginning.hpp"

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

class JobBeginning : public gossip::BeginningWork {
 public:
  JobBeginning(BeginningHost& job, JobHost& host, const JobInfo& description, JobMemory& memory)
      : job_(job), host_(host), description_(description), memory_(memory), began_us_(host.now_us()) {}

  /// Renames the imported file once its model has been taken over, so that it is not taken again.
  void settle_import();

  // --- gossip::BeginningWork
  [[nodiscard]] TimeUs beginning_now_us() const override { return host_.now_us(); }
  [[nodiscard]] bool is_gone() const override { return job_.is_gone(); }
  void begin() override { job_.begin(); }
  void run_if_joined() override { job_.run_if_joined(); }
  void lacks_memory(int error) override { job_.lacks_memory(error); }
  void ask(const NodeId& to, const Message& message) override { host_.send(to, message); }
  void copy(const NodeId& from, PullReply&& reply, float* target) override;
  bool search() override;
  bool read(const Saved& saved, std::uint32_t f, float* target) override;
  [[nodiscard]] std::uint64_t client_clock() const override { return client().memory().clock(); }
  void set_fragments_pulled(std::uint32_t count) override { client().memory().set_fragments_pulled(count); }
  void take_over(std::uint64_t base, std::span<const std::byte> cursor) override;
  void end_session() override { client().session().close(); }
  void search_is_slow() override;
  void pulled_all(const Saved& unused) override;
  void begins_with(const Saved& saved) override;
  void begins_with_own() override;
  void refused(const std::string& why) override;

 private:
  void searched(CheckpointsFound&& found);
  [[nodiscard]] JobClient& client() const { return *memory_.first(); }
  [[nodiscard]] std::filesystem::path folder() const;

  BeginningHost& job_;
  JobHost& host_;
  const JobInfo& description_;
  JobMemory& memory_;
  const TimeUs began_us_;
  bool import_pending_ = false;  // the job begins with the imported file
};

}  // namespace gossamer::daemon
