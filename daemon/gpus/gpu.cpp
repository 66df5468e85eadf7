#include "daemon/gpus/gpu.hpp"

#include <fmt/format.h>

#include <utility>

namespace gossamer::gpus {

const char* name_of(Health health) {
  return health == Health::sound ? "sound" : health == Health::warning ? "warning" : "ill";
}

GpuReport report_of(std::vector<Gpu> gpus, std::string driver) {
  GpuReport report = gpus.empty() ? report_without("none", "the driver sees no GPU") : report_without("watched", "");
  report.driver = std::move(driver);
  report.gpus = std::move(gpus);
  return report;
}

GpuReport report_without(std::string state, std::string note) {
  return {.state = std::move(state), .driver = {}, .age_s = 0, .note = std::move(note), .gpus = {}};
}

std::string hanging_note(std::chrono::duration<double> since) {
  return fmt::format(
      "the driver has not answered for {:.0f} s; nvidia-smi should hang, too, and dmesg may say why; restart the "
      "machine",
      since.count());
}

void to_json(nlohmann::json& json, const Health& health) {
  json = name_of(health);
}
void from_json(const nlohmann::json& json, Health& health) {
  const auto name = json.get<std::string>();
  health = Health::ill;  // for a name that only a newer daemon knows, too
  for (const Health known : {Health::sound, Health::warning})
    if (name == name_of(known)) health = known;
}

}  // namespace gossamer::gpus
