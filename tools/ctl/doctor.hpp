// The findings of `gossamerctl doctor`: one line for each thing that it looked at, and what to do if something is
// wrong.
//
// Pure: facts go in, findings come out. doctor_tool.cpp gathers the facts. A fact that is not known is left out, or
// said to be unknown.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ctl/finding.hpp"

namespace gossamer::ctl {

/// The facts that this tool sees on the machine itself.
struct MachineFacts {
  struct Clock {
    bool synchronised = false;
    double error_s = 0;  ///< as the kernel estimates it
  };
  std::optional<Clock> clock;
  std::optional<std::uint64_t> shared_memory_bytes;  ///< size and free space of /dev/shm
  std::optional<std::uint64_t> shared_memory_free_bytes;
  std::optional<std::uint64_t> memory_available_bytes;
  std::optional<std::uint64_t> somaxconn;       ///< connections that may wait to be accepted
  std::optional<bool> has_bbr;                  ///< a program may choose BBR as the congestion control
  std::optional<std::uint64_t> tcp_rmem_bytes;  ///< the most a connection's receive buffer grows to
  std::optional<std::uint64_t> tcp_wmem_bytes;
  std::optional<std::uint64_t> rmem_max_bytes;  ///< the most a program may ask for
  std::optional<std::uint64_t> wmem_max_bytes;
  std::size_t gpus = 0;       ///< number of NVIDIA's device files
  std::string gpu_driver;     ///< the driver's version; empty: none is loaded
  bool cuda_library = false;  ///< libcuda can be loaded
};

/// The daemon's answers; null where it gave none.
struct DaemonFacts {
  nlohmann::json process;  ///< the answer to "doctor"
  nlohmann::json node;     ///< the answer to "status"
  nlohmann::json peers;
  nlohmann::json members;
  std::size_t gpus = 0;              ///< GPUs of this machine, with a driver
  std::optional<bool> port_answers;  ///< whether connections are accepted at the address that the daemon listens on
};

/// A file that should be a secret, as far as this tool can see it.
struct KeyFile {
  std::string name;
  std::string path;
  bool present = false;
  unsigned mode = 0;
  bool own = true;  ///< whether it belongs to the daemon's user
};

[[nodiscard]] std::vector<Finding> examine_machine(const MachineFacts& machine);
[[nodiscard]] std::vector<Finding> examine_daemon(const DaemonFacts& daemon);
[[nodiscard]] Finding examine_key(const KeyFile& file);

}  // namespace gossamer::ctl
