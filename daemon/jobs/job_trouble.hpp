// JobTrouble finds what is wrong with a job's training, and says what to do. Programs read its text as the message of
// their run, and people as the note of gossamerctl jobs, status and explain, and in the log. JobTrouble does not change
// what the job does.
//
// Owned by a Job, on the loop's thread.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "daemon/jobs/growth.hpp"
#include "daemon/jobs/job_host.hpp"
#include "daemon/jobs/job_options.hpp"
#include "gossip/replica/replica.hpp"

namespace gossamer::daemon {

[[nodiscard]] std::string cannot_follow(const JobOptions& options);

class JobTrouble {
 public:
  struct Program {
    pid_t pid = 0;
    bool finishes = false;
    TimeUs stepped_us = 0;  ///< when it last trained
  };
  struct Scene {
    const std::string& job;
    const JobOptions& options;
    const gossip::Replica& replica;
    const JobHost& host;
    TimeUs now_us = 0;
    TimeUs step_us = 0;                  ///< the longest of the clients' steps
    bool alone = false;                  ///< there has been no partner for a while
    bool trains = false;                 ///< the replica runs, and some program is to train it
    std::vector<Program> programs = {};  ///< of this node, without those that only keep the job
    std::string dropped;                 ///< a text about a model that joining has replaced; empty: none
  };
  void look(const Scene& scene);
  /// Logs once who runs another layout under the job's name, and whose settings or clock are not believed.
  void warn(const std::string& job, const JobOptions& options, const gossip::Replica& replica, JobHost& host);
  /// Logs, at most once a minute, that `quarantines` fragments of the model have held NaN or infinity so far.
  void warn_of_quarantines(const std::string& job, std::uint64_t quarantines, JobHost& host);
  /// Empty: nothing is known to be wrong.
  [[nodiscard]] const std::string& for_programs() const { return for_programs_; }
  [[nodiscard]] const std::string& for_people() const { return for_people_; }

 private:
  [[nodiscard]] const std::string& grows(const Scene& scene);
  [[nodiscard]] const std::string& runs_ahead(const Scene& scene);
  [[nodiscard]] std::string stands_still(const Scene& scene);

  Growth growth_;
  std::string grows_;
  std::string ahead_;
  std::uint64_t clock_ = 0;
  TimeUs trained_us_ = 0;  // when the clock was last seen to move; 0: never
  struct {
    std::optional<NodeId> layout, settings, clock, pace;
  } warned_;  // the nodes that were warned of last
  std::uint64_t warned_quarantines_ = 0;
  std::optional<TimeUs> warned_quarantines_us_;
  std::string for_programs_;
  std::string for_people_;
};

}  // namespace gossamer::daemon
