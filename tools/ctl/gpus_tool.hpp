// gossamerctl gpus asks the daemon, which watches the GPUs. If no daemon answers, or it sees no GPU, this process looks
// itself.
//
// Made in main. Looking blocks for at most look_patience, whatever the driver does.

#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/gpus/gpu.hpp"
#include "tools/ctl/control_client.hpp"

namespace gossamer::ctl {

inline constexpr std::chrono::seconds look_patience{10};
/// Names a library instead of the one that the loader finds, for drivers in unusual places.
inline constexpr const char* nvml_environment = "GOSSAMER_NVML";

/// The GPUs as this process sees them.
[[nodiscard]] gpus::GpuReport look_at_gpus();

class GpusTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  explicit GpusTool(CLI::App& app);
  GpusTool(const GpusTool&) = delete;
  GpusTool& operator=(const GpusTool&) = delete;

  [[nodiscard]] bool chosen() const { return command_->parsed(); }
  /// The text to print.
  [[nodiscard]] std::expected<std::string, ControlError> run(const Ask& ask, bool as_json, bool colour) const;

 private:
  CLI::App* command_;
};

/// The daemon's report if it has news of GPUs, and otherwise what this process sees. `by` says which: "daemon" or
/// "gossamerctl".
struct GpusSeen {
  gpus::GpuReport report;
  const char* by;
};
[[nodiscard]] std::expected<GpusSeen, ControlError> see_gpus(const GpusTool::Ask& ask);

}  // namespace gossamer::ctl
