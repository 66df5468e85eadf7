// Clients' memory across the daemon's own death: each memfd is given to systemd's file descriptor store while its
// client is attached, and comes back when the daemon is started again (sd_pid_notify_with_fds(3), sd_listen_fds(3)).
//
// What it is for: clients hand their memory over again by themselves, so training needs no store. But only the store
// tells the new daemon whom it has to expect: who is awaited is shown, that a process has died meanwhile is noticed and
// said, and until then a memory's last state is there to be looked at. It is never worked on before its client is back.
//
// On the loop's thread. Invariants: a memory is known by its inode, which is unique while anybody holds it; what is
// awaited is let go when its client attaches, and after `patience` at the latest; at most max_kept are held.

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "daemon/system/service_manager.hpp"

namespace gossamer::daemon {

/// The number of a memfd's inode; 0 if the descriptor is not open.
[[nodiscard]] std::uint64_t inode_of(int memfd);

class KeptMemory {
 public:
  /// A client looks for its daemon every two seconds at the slowest.
  static constexpr std::chrono::milliseconds default_patience{30'000};
  /// More than this are not awaited; FileDescriptorStoreMax in the unit.
  static constexpr std::size_t max_kept = 512;

  /// All references outlive it. Takes what an earlier life has left with the service manager.
  KeptMemory(asio::io_context& loop, ServiceManager& manager, spdlog::logger& log,
             std::chrono::milliseconds patience = default_patience);

  /// Its client is attached.
  void keep(int memfd);
  /// Its client has gone: nobody will ask for it again.
  void forget(std::uint64_t inode);
  /// Clients of an earlier life of the daemon that are not back yet.
  [[nodiscard]] std::size_t awaited() const { return awaited_.size(); }

 private:
  struct Awaited {
    UniqueFd memory;
    std::string job;
  };
  void await(KeptDescriptor&& kept);
  void give_up();

  ServiceManager& manager_;
  spdlog::logger& log_;
  asio::steady_timer timer_;
  std::map<std::uint64_t, Awaited> awaited_;  // by inode
};

}  // namespace gossamer::daemon
