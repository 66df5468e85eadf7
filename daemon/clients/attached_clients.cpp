#include "daemon/clients/attached_clients.hpp"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "sdk/layout/names.hpp"

namespace gossamer::daemon {

namespace {

constexpr const char* attached_name = "attached";
constexpr std::size_t max_read = 4096;  ///< the most clients that are read

/// Whether a process has this number now. If it is another process by now, a newcomer waits in vain for a short time.
bool runs(pid_t pid) {
  return pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
}

}  // namespace

AttachedClients::AttachedClients(const std::filesystem::path& folder) : file_(folder / attached_name) {
  std::ifstream file(file_);
  pid_t pid = 0;
  std::string job;
  for (std::size_t read = 0; read < max_read && file >> pid >> job; ++read) {
    if (layout::is_job_name(job)) before_[job].insert(pid);
  }
}

void AttachedClients::came(std::uint64_t number, const std::string& job, pid_t pid) {
  before_.erase(job);
  now_[number] = {job, pid};
  write();
}

void AttachedClients::went(std::uint64_t number) {
  if (now_.erase(number) > 0) write();
}

bool AttachedClients::expects_others(const std::string& job, pid_t than) const {
  const auto found = before_.find(job);
  return found != before_.end() &&
         std::ranges::any_of(found->second, [than](pid_t pid) { return pid != than && runs(pid); });
}

void AttachedClients::write() const {
  const std::filesystem::path beside = file_.string() + ".new";
  std::ofstream file(beside, std::ios::trunc);
  for (const auto& [number, client] : now_)
    file << client.pid << ' ' << client.job << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(beside, file_, error);
  if (!file || error) std::filesystem::remove(file_, error);
}

}  // namespace gossamer::daemon
