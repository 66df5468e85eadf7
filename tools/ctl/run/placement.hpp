// Decides which client of `gossamerctl run` gets which GPU.
//
// Pure: the request, the GPUs and the limits of the environment come in; clients go out. A client sees only its own
// GPU, by UUID, so that no numbering can be misunderstood. A GPU that is divided (MIG) counts as its instances.

#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"
#include "tools/ctl/run/launcher.hpp"

namespace gossamer::ctl {

struct PlacementRequest {
  std::optional<std::string> gpus;       ///< all, none, or a list of indexes, INDEX:INSTANCE, or (beginnings of) UUIDs
  std::optional<std::uint32_t> clients;  ///< number of clients without GPUs
  std::uint32_t per_gpu = 1;
  std::optional<std::string> visible;  ///< CUDA_VISIBLE_DEVICES of this process
  /// Returns the processors near a PCI device, to which clients are bound. Empty: clients are not bound.
  std::function<std::vector<int>(const std::string& pci_bus)> cpus_near;
};

/// Whether GPUs have to be looked at for this request.
[[nodiscard]] bool wants_gpus(const PlacementRequest& request);

/// The clients in the order of their ranks. An error is a text for people.
[[nodiscard]] std::expected<std::vector<ClientSpec>, std::string> place(const PlacementRequest& request,
                                                                        const gpus::GpuReport& report);

/// Parses "0-3,8" as the kernel writes it; parts that cannot be read are left out.
[[nodiscard]] std::vector<int> cpu_list(const std::string& text);

}  // namespace gossamer::ctl
