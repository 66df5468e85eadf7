// The bookkeeping of kept_memory.hpp.

#include "daemon/clients/kept_memory.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <limits>
#include <utility>

#include "daemon/clients/client_memory.hpp"

namespace gossamer::daemon {
namespace {

std::string name_of(std::uint64_t inode) {
  return fmt::format("memory-{}", inode);
}

}  // namespace

std::uint64_t inode_of(int memfd) {
  struct stat file {};
  return ::fstat(memfd, &file) == 0 ? file.st_ino : 0;
}

KeptMemory::KeptMemory(asio::io_context& loop, ServiceManager& manager, spdlog::logger& log,
                       std::chrono::milliseconds patience)
    : manager_(manager), log_(log), timer_(loop) {
  for (KeptDescriptor& kept : manager_.take_kept())
    await(std::move(kept));
  if (awaited_.empty()) return;
  log_.info("{} clients were attached when the last daemon ended: waiting for them", awaited_.size());
  timer_.expires_after(patience);
  timer_.async_wait([this](std::error_code error) {
    if (!error) give_up();
  });
}

void KeptMemory::await(KeptDescriptor&& kept) {
  const std::uint64_t inode = inode_of(kept.descriptor.get());
  struct stat file {};
  std::string job;
  if (awaited_.size() < max_kept && kept.name == name_of(inode) && ::fstat(kept.descriptor.get(), &file) == 0) {
    // The client could write to the memory while no daemon ran, so it is checked like any client's memory.
    const auto memory = ClientMemory::map(kept.descriptor.get(), static_cast<std::uint64_t>(file.st_size),
                                          std::numeric_limits<std::uint64_t>::max());
    if (memory) job = memory->job();
  }
  if (job.empty()) return manager_.forget(kept.name);
  awaited_[inode] = {std::move(kept.descriptor), std::move(job)};
}

void KeptMemory::keep(int memfd) {
  const std::uint64_t inode = inode_of(memfd);
  if (awaited_.erase(inode) == 0) manager_.keep(name_of(inode), memfd);
}

void KeptMemory::forget(std::uint64_t inode) {
  manager_.forget(name_of(inode));
}

void KeptMemory::give_up() {
  for (const auto& [inode, awaited] : awaited_) {
    log_.warn(
        "job {}: the process that trained it when the last daemon ended has not come back: its memory is let go; "
        "start it again if it is to train on",
        awaited.job);
    manager_.forget(name_of(inode));
  }
  awaited_.clear();
}

}  // namespace gossamer::daemon
