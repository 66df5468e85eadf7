// The report on a machine's GPUs: plain values, and their JSON, which the daemon answers with and gossamerctl
// shows.
//
// Values only, for any thread. A figure that the driver did not tell is absent, and null in the JSON. The keys are a
// contract with scripts: add keys, and never rename one.

#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

template <class Value>
struct nlohmann::adl_serializer<std::optional<Value>> {
  static void to_json(json& json, const std::optional<Value>& value) {
    if (value)
      json = *value;
    else
      json = nullptr;
  }
  static void from_json(const json& json, std::optional<Value>& value) {
    value = json.is_null() ? std::nullopt : std::optional(json.get<Value>());
  }
};

namespace gossamer::gpus {

struct GpuProcess {
  std::uint64_t pid = 0;  ///< the machine's process id, also if the process runs in a container
  std::optional<std::uint64_t> memory_bytes;
  std::string job;  ///< the job, if the process is a client of this daemon
};

/// A kind of error ("Xid") that the driver has reported while the GPU was watched.
struct XidSeen {
  std::uint32_t code = 0;
  std::uint64_t count = 0;
  double seconds_ago = 0;  ///< time since the latest
};

enum class Health : std::uint8_t { sound, warning, ill };
[[nodiscard]] const char* name_of(Health health);

struct Gpu {
  std::uint32_t index = 0;  ///< NVML's index, which nvidia-smi shows, too
  std::string uuid;         ///< "GPU-..."; empty: the GPU was lost before anybody asked
  std::string name;
  std::string pci_bus;  ///< "0000:3b:00.0", as under /sys/bus/pci/devices
  std::optional<std::uint64_t> memory_total_bytes;
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<double> utilisation_ratio;  ///< share of the last moments in which a kernel ran, 0 to 1
  std::optional<double> temperature_c;
  std::optional<double> power_w;
  std::optional<double> power_limit_w;
  std::optional<std::uint64_t> ecc_corrected;    ///< since the driver was loaded or the GPU was reset
  std::optional<std::uint64_t> ecc_uncorrected;  ///< since the driver was loaded or the GPU was reset
  std::optional<std::uint64_t> rows_remapped;    ///< memory rows that were replaced by spare rows, for good
  bool remap_pending = false;                    ///< rows or pages will be replaced at the next reset
  bool remap_failed = false;                     ///< no spare row was left
  bool lost = false;                             ///< the GPU has fallen off the bus
  bool mig = false;                              ///< the GPU is divided into instances
  std::vector<std::string> mig_uuids;            ///< the UUIDs of its instances: "MIG-..."
  std::vector<GpuProcess> processes;             ///< processes with a CUDA context
  std::vector<XidSeen> xids;                     ///< the kinds of errors seen last, the newest last
  std::string unreadable;                        ///< why the driver tells nothing about the GPU; empty if it does
  Health health = Health::sound;                 ///< what health.hpp concludes from all of these
  std::string note;                              ///< the worst problem, in words for people
};

/// All GPUs of a machine at one moment.
struct GpuReport {
  std::string
      state;  ///< watched, none (no driver or no GPU), off ([gpus] library) or stuck (the driver does not answer)
  std::string driver;  ///< the driver's version
  double age_s = 0;    ///< age of the figures
  std::string note;    ///< why there are no figures, or only old ones
  std::vector<Gpu> gpus;
};

/// The report of what the driver has told just now.
[[nodiscard]] GpuReport report_of(std::vector<Gpu> gpus, std::string driver);
/// A report without figures, and the reason.
[[nodiscard]] GpuReport report_without(std::string state, std::string note);
/// The note about a driver that does not answer.
[[nodiscard]] std::string hanging_note(std::chrono::duration<double> since);

// --- JSON
void to_json(nlohmann::json& json, const Health& health);
void from_json(const nlohmann::json& json, Health& health);
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuProcess, pid, memory_bytes, job)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(XidSeen, code, count, seconds_ago)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Gpu, index, uuid, name, pci_bus, memory_total_bytes, memory_used_bytes,
                                                utilisation_ratio, temperature_c, power_w, power_limit_w, ecc_corrected,
                                                ecc_uncorrected, rows_remapped, remap_pending, remap_failed, lost, mig,
                                                mig_uuids, processes, xids, unreadable, health, note)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuReport, state, driver, age_s, note, gpus)

}  // namespace gossamer::gpus
