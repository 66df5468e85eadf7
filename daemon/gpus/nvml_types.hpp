// The part of NVIDIA's management library (NVML) that is used here, as its interface defines it. Nothing of NVIDIA's is
// needed to build or to start. tests/unit/daemon/gpus compares it with nvml.h where that is installed.
//
// Reference: https://docs.nvidia.com/deploy/nvml-api/

#pragma once

#include <cstdint>

namespace gossamer::gpus::nvml {

inline constexpr const char* usual_library = "libnvidia-ml.so.1";

enum Result : int {
  success = 0,
  uninitialized = 1,
  not_supported = 3,
  no_permission = 4,
  not_found = 6,
  insufficient_size = 7,
  driver_not_loaded = 9,
  timeout = 10,
  library_not_found = 12,
  function_not_found = 13,
  gpu_is_lost = 15,
  reset_required = 16,
  library_version_mismatch = 18,
  unknown_error = 999,
};

struct DeviceOpaque;
using Device = DeviceOpaque*;
struct EventSetOpaque;
using EventSet = EventSetOpaque*;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;  // in percent
};

/// For nvmlDeviceGetComputeRunningProcesses_v2 and _v3.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_gpu_memory;  // all ones: not known
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);

struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(EventData) == 32);

inline constexpr unsigned long long xid_event = 8;
inline constexpr unsigned long long value_not_available = ~0ULL;
inline constexpr int temperature_of_gpu = 0;
inline constexpr int corrected_errors = 0;
inline constexpr int uncorrected_errors = 1;
inline constexpr int volatile_counter = 0;
inline constexpr unsigned text_bytes = 96;

/// The library's functions; null where the driver is too old for one. The functions above the line are in every driver
/// since 2014.
struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle_by_index)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  // ---
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;        // in milliwatts
  int (*power_limit)(Device, unsigned*) = nullptr;  // in milliwatts
  int (*ecc_errors)(Device, int, int, unsigned long long*) = nullptr;
  int (*remapped_rows)(Device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                       unsigned* failed) = nullptr;
  int (*retirement_pending)(Device, int*) = nullptr;
  int (*mig_mode)(Device, unsigned* now, unsigned* pending) = nullptr;
  int (*mig_most)(Device, unsigned*) = nullptr;
  int (*mig_by_index)(Device, unsigned, Device*) = nullptr;
  int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;
  int (*event_set_create)(EventSet*) = nullptr;
  int (*event_set_free)(EventSet) = nullptr;
  int (*event_set_wait)(EventSet, EventData*, unsigned timeout_ms) = nullptr;
  int (*register_events)(Device, unsigned long long types, EventSet) = nullptr;
};

}  // namespace gossamer::gpus::nvml
