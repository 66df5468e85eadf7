// Keeps clients' memory while no daemon runs. Each memfd is given to systemd's file descriptor store while its client
// is attached, and comes back when the daemon starts again (sd_pid_notify_with_fds(3), sd_listen_fds(3)).
//
// Training needs no store, since clients send their memory again by themselves. But only the store tells the new daemon
// which clients to expect, so that it can show how many it awaits, and log which have not come back. Until then the
// last state of their memory can be examined. The daemon never works on a memory before its client is back.
//
// On the loop's thread. Invariants: a memory is known by its inode, which is unique while anybody holds it; an awaited
// memory is released when its client attaches, and after `patience` at the latest; at most max_kept are held.

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
  /// How long an awaited client has to come back. A client looks for its daemon at least every two seconds.
  static constexpr std::chrono::milliseconds default_patience{30'000};
  /// The most clients that are awaited; the same number is FileDescriptorStoreMax in the systemd unit.
  static constexpr std::size_t max_kept = 512;

  /// All references outlive the object. It takes the memory that an earlier daemon has left with the service manager.
  KeptMemory(asio::io_context& loop, ServiceManager& manager, spdlog::logger& log,
             std::chrono::milliseconds patience = default_patience);

  /// Call this when the client of this memory has attached.
  void keep(int memfd);
  /// Call this when the client of this memory has gone: nobody will ask for it again.
  void forget(std::uint64_t inode);
  /// How many clients of an earlier daemon are not back yet.
  [[nodiscard]] std::size_t awaited() const { return awaited_.size(); }

 private:
  struct Awaited {
    FileDescriptor memory;
    std::string job;
  };
  void await(KeptDescriptor&& kept);
  void give_up();

  ServiceManager& manager_;
  spdlog::logger& log_;
  asio::steady_timer timer_;
  std::map<std::uint64_t, Awaited> awaited_;  // key: the inode
};

}  // namespace gossamer::daemon
