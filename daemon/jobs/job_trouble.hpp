// What is wrong with a job's training, and what to do: in words that its programs are told (the message of an
// attachment), and in words for people (the note of gossamerctl jobs, status and explain). Nothing here changes what
// the job does.
//
// Owned by a Job, on the loop's thread.

#pragma once

#include <string>

#include "daemon/jobs/growth.hpp"
#include "daemon/jobs/job_host.hpp"
#include "daemon/jobs/job_options.hpp"
#include "gossip/replica/replica.hpp"

namespace gossamer::daemon {

[[nodiscard]] std::string cannot_follow(const JobOptions& options);
[[nodiscard]] std::string of_another_layout(const NodeId& stranger);

class JobTrouble {
 public:
  struct Scene {
    const std::string& job;
    const JobOptions& options;
    const gossip::Replica& replica;
    const JobHost& host;
    TimeUs now_us = 0;
    TimeUs step_us = 0;   ///< the longest of the clients' steps
    bool alone = false;   ///< there has been no partner for a while
    bool trains = false;  ///< the replica runs, and some program is to train it
    std::string dropped;  ///< what joining has replaced, if it is to be told; empty: nothing
  };
  void look(const Scene& scene);
  /// Empty: nothing is known to be wrong.
  [[nodiscard]] const std::string& for_programs() const { return for_programs_; }
  [[nodiscard]] const std::string& for_people() const { return for_people_; }

 private:
  [[nodiscard]] const std::string& grows(const Scene& scene);
  [[nodiscard]] std::string stands_still(const Scene& scene);

  Growth growth_;
  std::string grows_;
  std::uint64_t clock_ = 0;
  TimeUs trained_us_ = 0;  // when the clock was last seen to move; 0: never
  std::string for_programs_;
  std::string for_people_;
};

}  // namespace gossamer::daemon
