// What the users of this machine may do with jobs: [rights] of the configuration.
//
// An entry "WHO: JOBS" has a user's name or number, or a group's after '@', or '*' for everybody who can reach the
// sockets, and names of jobs, as patterns of fnmatch(3) with commas between them. The owners (is_owner()) may do
// everything.
// Owned by the shell, on the loop's thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/system/caller.hpp"

namespace gossamer::daemon {

/// Returns a phrase that says what is wrong with the entry, and an empty string if it is sound.
[[nodiscard]] std::string grant_problem(const std::string& entry);

class UserRights {
 public:
  /// Entries must be sound. `train`: who may train the jobs, and so read their models. `steer`: who may change their
  /// settings and have checkpoints written.
  UserRights(const std::vector<std::string>& train, const std::vector<std::string>& steer);

  /// Names of users and groups that this machine does not have. Their entries admit nobody.
  [[nodiscard]] const std::vector<std::string>& unknown() const { return unknown_; }
  /// Why the caller may not train the job, for people; nothing if it may.
  [[nodiscard]] std::optional<std::string> objection_to_training(const Caller& caller, std::string_view job) const;
  [[nodiscard]] bool may_steer(const Caller& caller, std::string_view job) const;

 private:
  /// A grant without user and group is for everyone.
  struct Grant {
    std::optional<uid_t> user;
    std::optional<gid_t> group;
    std::string jobs;
  };
  [[nodiscard]] std::vector<Grant> resolve(const std::vector<std::string>& entries);
  [[nodiscard]] static bool allow(const std::vector<Grant>& grants, const Caller& caller, std::string_view job);

  std::vector<std::string> unknown_;
  std::vector<Grant> train_;
  std::vector<Grant> steer_;
};

}  // namespace gossamer::daemon
