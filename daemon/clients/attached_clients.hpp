// Lists the attached processes in a file beside the clients' socket, so that the next daemon knows whom to expect.
// While a process that has a job's model may come back, a newcomer does not begin the job anew.
//
// On the loop's thread. The file is rewritten when a client comes or goes. If that fails, nobody is expected.

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
  /// Reads the file that an earlier daemon has left in this folder.
  explicit AttachedClients(const std::filesystem::path& folder);

  void came(std::uint64_t number, const std::string& job, pid_t pid);
  void went(std::uint64_t number);
  /// True if a process other than this one was attached to the job when the former daemon ended, still runs, and no
  /// process of the job has attached since.
  [[nodiscard]] bool expects_others(const std::string& job, pid_t than) const;

 private:
  void write() const;

  struct Client {
    std::string job;
    pid_t pid;
  };
  const std::filesystem::path file_;
  std::map<std::string, std::set<pid_t>> before_;  // key: the job
  std::map<std::uint64_t, Client> now_;            // key: the session's number
};

}  // namespace gossamer::daemon
