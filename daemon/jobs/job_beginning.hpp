// Carries out what the beginning of a job (gossip/replica/beginning.hpp) asks of its node: it reads checkpoints, and
// writes pulled values to the client's memory.
//
// Owned by Job. Everything runs on the loop's thread except the copying and reading of values.

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "daemon/jobs/checkpoint_search.hpp"
#include "daemon/jobs/job_host.hpp"
#include "daemon/jobs/job_memory.hpp"
#include "gossip/replica/beginning.hpp"

namespace gossamer::daemon {

class JobBeginning : public gossip::BeginningWork {
 public:
  /// `keep` returns a pointer that keeps the job alive, and with it all memory, while work is under way.
  JobBeginning(std::function<std::shared_ptr<void>()> keep, const gossip::BeginningHost& job, JobHost& host,
               const JobInfo& description, JobMemory& memory)
      : keep_(std::move(keep)),
        job_(job),
        host_(host),
        description_(description),
        memory_(memory),
        began_us_(host.now_us()) {}

  /// Renames the imported file once its model has been taken over, so that it is not taken again.
  void settle_import();
  /// The settings of the checkpoint that the job begins with, as text; empty: none.
  [[nodiscard]] const std::string& settings() const { return settings_; }
  /// A text which says that the pulled model has replaced a program's model that had seen more samples; empty: it has
  /// not.
  [[nodiscard]] const std::string& dropped() const { return dropped_; }

  /// A text which says why the job has not begun with the imported file; empty: it has, or there was none.
  [[nodiscard]] const std::string& import_refused() const { return import_refused_; }

  // --- gossip::BeginningWork
  [[nodiscard]] TimeUs beginning_now_us() const override { return host_.now_us(); }
  void ask(const NodeId& to, const Message& message) override { host_.send(to, message); }
  void copy(const NodeId& from, PullReply&& reply, float* target) override;
  bool search() override;
  bool read(const Saved& saved, std::uint32_t f, float* target) override;
  [[nodiscard]] std::uint64_t client_clock() const override { return client().memory().clock(); }
  void set_fragments_pulled(std::uint32_t count) override { client().memory().set_fragments_pulled(count); }
  void take_over(std::uint64_t base, std::span<const std::byte> cursor) override;
  void end_session() override { client().session().close(); }
  void search_is_slow() override;
  void pulled(std::uint32_t missing, std::uint64_t clock, const Saved& unused) override;
  void begins_with(const Saved& saved) override;
  void begins_with_own() override;
  void refused(const Saved& saved, const std::string& why) override;

 private:
  void searched(CheckpointsFound&& found);
  void refuse_import(std::string why);
  [[nodiscard]] JobClient& client() const { return *memory_.first(); }
  [[nodiscard]] std::filesystem::path folder() const;

  const std::function<std::shared_ptr<void>()> keep_;
  const gossip::BeginningHost& job_;
  JobHost& host_;
  const JobInfo& description_;
  JobMemory& memory_;
  const TimeUs began_us_;
  bool import_pending_ = false;  // the job begins with the imported file
  std::string dropped_;
  std::string import_refused_;
  std::string settings_;
};

}  // namespace gossamer::daemon
