// gossamerctl gpus: asks the daemon, which watches the GPUs, or looks itself where none answers or the daemon sees
// none.
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
/// For drivers in unusual places: the library instead of the one that the loader finds.
inline constexpr const char* nvml_environment = "GOSSAMER_NVML";

/// What this process itself sees.
[[nodiscard]] gpus::GpuReport look_at_gpus();

class GpusTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  /// Adds the subcommand. The object outlives the parsing.
  explicit GpusTool(CLI::App& app);
  GpusTool(const GpusTool&) = delete;
  GpusTool& operator=(const GpusTool&) = delete;

  [[nodiscard]] bool chosen() const { return command_->parsed(); }
  /// What to print.
  [[nodiscard]] std::expected<std::string, ControlError> run(const Ask& ask, bool as_json, bool colour) const;

 private:
  CLI::App* command_;
};

/// The daemon's report, if it has news of GPUs, else what this process sees. `by` says which: "daemon" or
/// "gossamerctl".
struct GpusSeen {
  gpus::GpuReport report;
  const char* by;
};
[[nodiscard]] std::expected<GpusSeen, ControlError> see_gpus(const GpusTool::Ask& ask);

}  // namespace gossamer::ctl
