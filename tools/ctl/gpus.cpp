#include "tools/ctl/gpus.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/gpus/health.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using gpus::Gpu;
using gpus::GpuReport;
using gpus::Health;

/// With names of this length, the table fits into 80 columns.
constexpr std::size_t most_name_characters = 20;
/// Figures older than this are called old.
constexpr double fresh_s = 30;

Tone tone_of(Health health) {
  return health == Health::sound ? Tone::good : health == Health::ill ? Tone::bad : Tone::plain;
}

/// Every name begins with "NVIDIA", so it is left out.
std::string short_name(const Gpu& gpu) {
  std::string name = safe_text(gpu.name);
  if (name.starts_with("NVIDIA ")) name.erase(0, 7);
  return name.empty() ? "-" : name.substr(0, most_name_characters);
}

Cell figure(const std::optional<double>& value, double scale, const char* unit) {
  return {value ? fmt::format("{:.0f} {}", *value * scale, unit) : "-", true};
}

std::string memory(const Gpu& gpu) {
  if (!gpu.memory_used_bytes || !gpu.memory_total_bytes) return "-";
  return fmt::format("{} of {}", bytes_text(static_cast<double>(*gpu.memory_used_bytes)),
                     bytes_text(static_cast<double>(*gpu.memory_total_bytes)));
}

/// The number of the daemon's clients on the GPU, and of other processes.
std::string processes(const Gpu& gpu) {
  const auto clients = std::ranges::count_if(gpu.processes, [](const auto& process) { return !process.job.empty(); });
  const auto others = static_cast<std::ptrdiff_t>(gpu.processes.size()) - clients;
  return others == 0 ? fmt::format("{}", clients) : fmt::format("{} + {}", clients, others);
}

std::string name_in_text(const Gpu& gpu) {
  return fmt::format("GPU {} ({})", gpu.index, gpu.uuid.empty() ? "not known" : safe_text(gpu.uuid));
}

}  // namespace

std::string gpus_table(const GpuReport& report, bool colour) {
  Table table{.heading = {"gpu", "name", "memory", "busy", "temp", "power", "clients", "health"}, .if_empty = "no GPU"};
  std::string below;
  for (const Gpu& gpu : report.gpus) {
    table.rows.push_back({{std::to_string(gpu.index), true},
                          {short_name(gpu)},
                          {memory(gpu), true},
                          figure(gpu.utilisation_ratio, 100, "%"),
                          figure(gpu.temperature_c, 1, "C"),
                          figure(gpu.power_w, 1, "W"),
                          {processes(gpu), true},
                          {name_of(gpu.health), false, tone_of(gpu.health)}});
    for (const gpus::Ailment& ailment : gpus::examine(gpu))
      below += fmt::format("{}: {}\n-> {}\n", name_in_text(gpu), ailment.text, ailment.advice);
    if (gpu.mig)
      below += fmt::format("{} is divided into {} instances (MIG)\n", name_in_text(gpu), gpu.mig_uuids.size());
  }
  std::string text = table.render(colour);
  if (report.state == "stuck" || report.age_s > fresh_s)
    text += fmt::format("figures are {} old\n", duration_text(report.age_s));
  if (!report.note.empty()) text += safe_text(report.note) + "\n";
  return text + below;
}

std::vector<Finding> examine_gpus(const GpuReport& report) {
  std::vector<Finding> findings;
  if (report.state == "stuck") findings.push_back(problem("GPU", "the driver does not answer", report.note));
  std::size_t sound = 0;
  for (const Gpu& gpu : report.gpus) {
    const std::vector<gpus::Ailment> found = gpus::examine(gpu);
    sound += found.empty() ? 1 : 0;
    for (const gpus::Ailment& ailment : found) {
      const std::string text = fmt::format("{}: {}", name_in_text(gpu), ailment.text);
      findings.push_back(ailment.health == Health::ill ? problem("GPU", text, ailment.advice)
                                                       : warning("GPU", text, ailment.advice));
    }
  }
  if (sound > 0)
    findings.push_back(
        ok("GPU", fmt::format("{} of {} sound, as driver {} says", sound, report.gpus.size(),
                              report.driver.empty() ? "of an unknown version" : safe_text(report.driver))));
  return findings;
}

}  // namespace gossamer::ctl
