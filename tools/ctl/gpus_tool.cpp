#include "tools/ctl/gpus_tool.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "daemon/gpus/monitor.hpp"
#include "daemon/gpus/nvml_types.hpp"
#include "tools/ctl/gpus.hpp"

namespace gossamer::ctl {
namespace {

constexpr std::chrono::seconds look_patience{10};
/// This environment variable names the library if the loader does not find it, for drivers in unusual places.
constexpr const char* nvml_environment = "GOSSAMER_NVML";

}  // namespace

gpus::GpuReport look_at_gpus() {
  const char* const library = std::getenv(nvml_environment);
  return gpus::look_once(library != nullptr ? library : gpus::nvml::usual_library, look_patience);
}

std::expected<GpusSeen, ControlError> see_gpus(const Invocation& call) {
  const auto answer = call.ask("gpus");
  gpus::GpuReport told;
  if (answer) {
    told = answer->get<gpus::GpuReport>();
    if (told.state == "watched" || told.state == "stuck") return GpusSeen{std::move(told), "daemon"};
  }
  // A daemon of an older version does not know the command; then this process looks itself.
  gpus::GpuReport seen = look_at_gpus();
  if (answer && !seen.gpus.empty())
    seen.note = fmt::format("the daemon does not watch them: {}{}", told.note,
                            told.state == "off" ? "" : "; its unit needs the drop-in for GPUs, or a restart");
  return GpusSeen{std::move(seen), "gossamerctl"};
}

void add_gpus_command(CLI::App& app, CommandAction& chosen) {
  CLI::App* command =
      app.add_subcommand("gpus", "This machine's GPUs: memory, use, temperature, health, and who uses them");
  command->footer(
      "Asks the daemon, which also counts the driver's errors; without one, looks itself. Clients are processes of "
      "this daemon's jobs, \"+ 1\" others. GOSSAMER_NVML names the driver's library if it is in an unusual place.");
  command->callback([&chosen] {
    chosen = [](const Invocation& call) -> CommandResult {
      const auto seen = see_gpus(call);
      if (!seen) return std::unexpected(seen.error());
      nlohmann::json json = seen->report;
      json["by"] = seen->by;
      return call.end(json, [&](const nlohmann::json&, bool colour) { return gpus_table(seen->report, colour); });
    };
  });
}

}  // namespace gossamer::ctl
