// Which processes are attached, in a file beside the clients' socket, so that the daemon that comes next knows whom to
// expect: while one that has a job's model may be about to come back, none that does not begins the job anew.
//
// On the loop's thread. The file is rewritten when a client comes or goes; if it cannot be, nobody is expected.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace gossamer::daemon {

class AttachedClients {
 public:
  /// Reads what an earlier daemon has left in this folder.
  explicit AttachedClients(const std::filesystem::path& folder);

  void came(std::uint64_t number, const std::string& job, pid_t pid);
  void went(std::uint64_t number);
  /// A process other than this one was attached to the job when the daemon before ended, still runs, and nobody of the
  /// job has come yet.
  [[nodiscard]] bool expects_others(const std::string& job, pid_t than) const;

 private:
  void write() const;

  struct Client {
    std::string job;
    pid_t pid;
  };
  const std::filesystem::path file_;
  std::map<std::string, std::set<pid_t>> before_;  // by job
  std::map<std::uint64_t, Client> now_;            // by the session's number
};

}  // namespace gossamer::daemon
