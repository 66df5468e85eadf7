// What `gossamerctl doctor` makes of what it has found: one line for each thing that it looked at, and what to do about
// those that are not as they should be.
//
// Pure: facts in, findings out. Who gathers the facts: doctor_tool.cpp. What is not known is left out, or said.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ctl/finding.hpp"

namespace gossamer::ctl {

/// What this tool sees of the machine itself.
struct MachineFacts {
  struct Clock {
    bool synchronised = false;
    double error_s = 0;  ///< as the kernel estimates it
  };
  std::optional<Clock> clock;
  std::optional<std::uint64_t> shared_memory_bytes;  ///< of /dev/shm: its size, and what is free
  std::optional<std::uint64_t> shared_memory_free_bytes;
  std::optional<std::uint64_t> memory_available_bytes;
  std::optional<std::uint64_t> somaxconn;       ///< connections that may wait to be accepted
  std::optional<std::uint64_t> tcp_rmem_bytes;  ///< the most a connection's receive buffer grows to
  std::optional<std::uint64_t> tcp_wmem_bytes;
  std::optional<std::uint64_t> rmem_max_bytes;  ///< the most a program may ask for
  std::optional<std::uint64_t> wmem_max_bytes;
  std::size_t gpus = 0;       ///< device files of NVIDIA's
  std::string gpu_driver;     ///< its version; empty: none is loaded
  bool cuda_library = false;  ///< libcuda can be loaded
};

/// The daemon's answers; null where it gave none.
struct DaemonFacts {
  nlohmann::json process;  ///< of "doctor"
  nlohmann::json node;     ///< of "status"
  nlohmann::json peers;
  nlohmann::json members;
  std::size_t gpus = 0;              ///< of this machine, with a driver
  std::optional<bool> port_answers;  ///< somebody accepts connections at the address that it listens on
};

/// A file that should be a secret, as far as it can be seen.
struct KeyFile {
  std::string name;
  std::string path;
  bool present = false;
  unsigned mode = 0;
  bool own = true;  ///< belongs to the daemon's user
};

[[nodiscard]] std::vector<Finding> examine_machine(const MachineFacts& machine);
[[nodiscard]] std::vector<Finding> examine_daemon(const DaemonFacts& daemon);
[[nodiscard]] Finding examine_key(const KeyFile& file);

}  // namespace gossamer::ctl
