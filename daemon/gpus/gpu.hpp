// What is told of a machine's GPUs: plain values, and their JSON, which the daemon answers with and gossamerctl shows.
//
// Values only: any thread. A figure that the driver did not tell is absent, and null in the JSON. The keys are a
// contract with scripts: add, do not rename.

#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gossamer::gpus {

struct GpuProcess {
  std::uint64_t pid = 0;  ///< as the driver counts: that of the machine, also inside a container
  std::optional<std::uint64_t> memory_bytes;
  std::string job;  ///< if it is a client of this daemon
};

/// A kind of error that the driver has reported ("Xid") since the GPU is watched.
struct XidSeen {
  std::uint32_t code = 0;
  std::uint64_t count = 0;
  double seconds_ago = 0;  ///< the latest
};

enum class Health : std::uint8_t { sound, warning, ill };
[[nodiscard]] const char* name_of(Health health);

struct Gpu {
  std::uint32_t index = 0;  ///< NVML's, which is that of nvidia-smi
  std::string uuid;         ///< "GPU-..."; empty: it was lost before anybody asked
  std::string name;
  std::string pci_bus;  ///< "0000:3b:00.0", as below /sys/bus/pci/devices
  std::optional<std::uint64_t> memory_total_bytes;
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<double> utilisation_ratio;  ///< share of the last moments in which a kernel ran, 0 to 1
  std::optional<double> temperature_c;
  std::optional<double> power_w;
  std::optional<double> power_limit_w;
  std::optional<std::uint64_t> ecc_corrected;    ///< since the driver was loaded or the GPU was reset
  std::optional<std::uint64_t> ecc_uncorrected;  ///< the same
  std::optional<std::uint64_t> rows_remapped;    ///< memory rows that spares have taken the place of, for good
  bool remap_pending = false;                    ///< rows or pages that are replaced at the next reset
  bool remap_failed = false;                     ///< no spare was left
  bool lost = false;                             ///< fallen off the bus
  bool mig = false;                              ///< divided into instances
  std::vector<std::string> mig_uuids;            ///< of its instances: "MIG-..."
  std::vector<GpuProcess> processes;             ///< with a CUDA context
  std::vector<XidSeen> xids;                     ///< the latest kinds, the newest last
  std::string unreadable;                        ///< why the driver tells nothing of it; empty if it does
  Health health = Health::sound;                 ///< what health.hpp makes of all that
  std::string note;                              ///< the worst of it, for people
};

/// All of a machine's, at one moment.
struct GpuReport {
  std::string
      state;  ///< watched, none (no driver or no GPU), off ([gpus] library) or stuck (the driver does not answer)
  std::string driver;  ///< its version
  double age_s = 0;    ///< of the figures
  std::string note;    ///< why there are none, or no news
  std::vector<Gpu> gpus;
};

/// Of what the driver has told just now.
[[nodiscard]] GpuReport report_of(std::vector<Gpu> gpus, std::string driver);
/// Of nothing, because of this.
[[nodiscard]] GpuReport report_without(std::string state, std::string note);
/// What is said of a driver that does not answer.
[[nodiscard]] std::string hanging_note(std::chrono::duration<double> since);

void to_json(nlohmann::json& json, const GpuReport& report);
void from_json(const nlohmann::json& json, GpuReport& report);

}  // namespace gossamer::gpus
