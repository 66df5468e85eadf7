// Turns the driver's answers into the values of gpu.hpp, and these into JSON.

#include "daemon/gpus/gpu.hpp"

#include <fmt/format.h>

#include <utility>

namespace gossamer::gpus {
namespace {

using nlohmann::json;

template <class Value>
json known(const std::optional<Value>& value) {
  return value ? json(*value) : json();
}

template <class Value>
std::optional<Value> known(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? std::nullopt : std::optional(found->get<Value>());
}

Health health_named(const std::string& name) {
  for (const Health health : {Health::sound, Health::warning})
    if (name == name_of(health)) return health;
  return Health::ill;
}

}  // namespace

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

// The library finds these by its own lookup, for elements of lists.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(XidSeen, code, count, seconds_ago)

void to_json(json& object, const GpuProcess& process) {
  object = {{"pid", process.pid}, {"memory_bytes", known(process.memory_bytes)}, {"job", process.job}};
}
void from_json(const json& object, GpuProcess& process) {
  process = {.pid = object.at("pid").get<std::uint64_t>(),
             .memory_bytes = known<std::uint64_t>(object, "memory_bytes"),
             .job = object.value("job", "")};
}

void to_json(json& object, const Gpu& gpu) {
  object = {{"index", gpu.index},
            {"uuid", gpu.uuid},
            {"name", gpu.name},
            {"pci_bus", gpu.pci_bus},
            {"memory_total_bytes", known(gpu.memory_total_bytes)},
            {"memory_used_bytes", known(gpu.memory_used_bytes)},
            {"utilisation_ratio", known(gpu.utilisation_ratio)},
            {"temperature_c", known(gpu.temperature_c)},
            {"power_w", known(gpu.power_w)},
            {"power_limit_w", known(gpu.power_limit_w)},
            {"ecc_corrected", known(gpu.ecc_corrected)},
            {"ecc_uncorrected", known(gpu.ecc_uncorrected)},
            {"rows_remapped", known(gpu.rows_remapped)},
            {"remap_pending", gpu.remap_pending},
            {"remap_failed", gpu.remap_failed},
            {"lost", gpu.lost},
            {"mig", gpu.mig},
            {"mig_uuids", gpu.mig_uuids},
            {"processes", gpu.processes},
            {"xids", gpu.xids},
            {"unreadable", gpu.unreadable},
            {"health", name_of(gpu.health)},
            {"note", gpu.note}};
}
void from_json(const json& object, Gpu& gpu) {
  gpu = {.index = object.at("index").get<std::uint32_t>(),
         .uuid = object.value("uuid", ""),
         .name = object.value("name", ""),
         .pci_bus = object.value("pci_bus", ""),
         .memory_total_bytes = known<std::uint64_t>(object, "memory_total_bytes"),
         .memory_used_bytes = known<std::uint64_t>(object, "memory_used_bytes"),
         .utilisation_ratio = known<double>(object, "utilisation_ratio"),
         .temperature_c = known<double>(object, "temperature_c"),
         .power_w = known<double>(object, "power_w"),
         .power_limit_w = known<double>(object, "power_limit_w"),
         .ecc_corrected = known<std::uint64_t>(object, "ecc_corrected"),
         .ecc_uncorrected = known<std::uint64_t>(object, "ecc_uncorrected"),
         .rows_remapped = known<std::uint64_t>(object, "rows_remapped"),
         .remap_pending = object.value("remap_pending", false),
         .remap_failed = object.value("remap_failed", false),
         .lost = object.value("lost", false),
         .mig = object.value("mig", false),
         .mig_uuids = object.value("mig_uuids", std::vector<std::string>{}),
         .processes = object.value("processes", std::vector<GpuProcess>{}),
         .xids = object.value("xids", std::vector<XidSeen>{}),
         .unreadable = object.value("unreadable", ""),
         .health = health_named(object.value("health", "sound")),
         .note = object.value("note", "")};
}

void to_json(json& object, const GpuReport& report) {
  object = {{"state", report.state},
            {"driver", report.driver},
            {"age_s", report.age_s},
            {"note", report.note},
            {"gpus", report.gpus}};
}
void from_json(const json& object, GpuReport& report) {
  report = {.state = object.at("state").get<std::string>(),
            .driver = object.value("driver", ""),
            .age_s = object.value("age_s", 0.0),
            .note = object.value("note", ""),
            .gpus = object.value("gpus", std::vector<Gpu>{})};
}

}  // namespace gossamer::gpus
