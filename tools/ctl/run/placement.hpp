// Which client of `gossamerctl run` gets which GPU.
//
// Pure: what was asked for, what there is and what the environment allows come in; clients go out. A client sees its
// own GPU only, by UUID, so that no numbering can be misunderstood; a GPU that is divided (MIG) counts as its
// instances.

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
  std::optional<std::string> gpus;       ///< all, none, or a list: indexes, INDEX:INSTANCE, UUIDs or how they begin
  std::optional<std::uint32_t> clients;  ///< without GPUs
  std::uint32_t per_gpu = 1;
  std::optional<std::string> visible;  ///< CUDA_VISIBLE_DEVICES of this process
  /// The processors near a PCI device, for clients that are bound to them; none: they are not bound.
  std::function<std::vector<int>(const std::string& pci_bus)> cpus_near;
};

/// Whether GPUs have to be looked at for this request.
[[nodiscard]] bool wants_gpus(const PlacementRequest& request);

/// In the order of their ranks. An error is for people.
[[nodiscard]] std::expected<std::vector<ClientSpec>, std::string> place(const PlacementRequest& request,
                                                                        const gpus::GpuReport& report);

/// "0-3,8" as the kernel writes it; what cannot be read is left out.
[[nodiscard]] std::vector<int> cpu_list(const std::string& text);

}  // namespace gossamer::ctl
