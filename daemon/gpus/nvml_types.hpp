// The part of NVIDIA's management library (NVML) that is used here, as its interface defines it. Nothing of NVIDIA's is
// needed to build or to start. tests/unit/daemon/gpus compares it with nvml.h where that is installed.
//
// Reference: https://docs.nvidia.com/deploy/nvml-api/

#pragma once

#include <cstdint>

namespace gossamer::gpus::nvml {

inline constexpr const char* usual_library = "libnvidia-ml.so.1";

enum NvmlResult : int {
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
using NvmlDevice = DeviceOpaque*;
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
  NvmlDevice device;
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
  int (*handle_by_index)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, Memory*) = nullptr;
  // ---
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, PciInfo*) = nullptr;
  int (*utilization)(NvmlDevice, Utilization*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;        // in milliwatts
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;  // in milliwatts
  int (*ecc_errors)(NvmlDevice, int, int, unsigned long long*) = nullptr;
  int (*remapped_rows)(NvmlDevice, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                       unsigned* failed) = nullptr;
  int (*retirement_pending)(NvmlDevice, int*) = nullptr;
  int (*mig_mode)(NvmlDevice, unsigned* now, unsigned* pending) = nullptr;
  int (*mig_most)(NvmlDevice, unsigned*) = nullptr;
  int (*mig_by_index)(NvmlDevice, unsigned, NvmlDevice*) = nullptr;
  int (*processes)(NvmlDevice, unsigned*, ProcessInfo*) = nullptr;
  int (*event_set_create)(EventSet*) = nullptr;
  int (*event_set_free)(EventSet) = nullptr;
  int (*event_set_wait)(EventSet, EventData*, unsigned timeout_ms) = nullptr;
  int (*register_events)(NvmlDevice, unsigned long long types, EventSet) = nullptr;
};

}  // namespace gossamer::gpus::nvml
