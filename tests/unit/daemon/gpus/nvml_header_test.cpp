// Compares our declarations of NVIDIA's library with NVIDIA's own header, where that is installed. The test is that
// this file compiles.

#include "daemon/gpus/nvml_types.hpp"

#if __has_include(<nvml.h>)
#include <nvml.h>

#include <cstddef>

namespace nvml = gossamer::gpus::nvml;

static_assert(int{NVML_SUCCESS} == nvml::success && int{NVML_ERROR_UNINITIALIZED} == nvml::uninitialized &&
              int{NVML_ERROR_NOT_SUPPORTED} == nvml::not_supported &&
              int{NVML_ERROR_NO_PERMISSION} == nvml::no_permission && int{NVML_ERROR_NOT_FOUND} == nvml::not_found &&
              int{NVML_ERROR_INSUFFICIENT_SIZE} == nvml::insufficient_size &&
              int{NVML_ERROR_DRIVER_NOT_LOADED} == nvml::driver_not_loaded &&
              int{NVML_ERROR_TIMEOUT} == nvml::timeout && int{NVML_ERROR_GPU_IS_LOST} == nvml::gpu_is_lost &&
              int{NVML_ERROR_LIBRARY_NOT_FOUND} == nvml::library_not_found &&
              int{NVML_ERROR_FUNCTION_NOT_FOUND} == nvml::function_not_found &&
              int{NVML_ERROR_RESET_REQUIRED} == nvml::reset_required &&
              int{NVML_ERROR_LIB_RM_VERSION_MISMATCH} == nvml::library_version_mismatch &&
              int{NVML_ERROR_UNKNOWN} == nvml::unknown_error);
static_assert(nvmlEventTypeXidCriticalError == nvml::xid_event);
static_assert(int{NVML_TEMPERATURE_GPU} == nvml::temperature_of_gpu);
static_assert(int{NVML_MEMORY_ERROR_TYPE_CORRECTED} == nvml::corrected_errors &&
              int{NVML_MEMORY_ERROR_TYPE_UNCORRECTED} == nvml::uncorrected_errors &&
              int{NVML_VOLATILE_ECC} == nvml::volatile_counter);
static_assert(NVML_DEVICE_UUID_V2_BUFFER_SIZE <= nvml::text_bytes &&
              NVML_DEVICE_NAME_V2_BUFFER_SIZE <= nvml::text_bytes &&
              NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE <= nvml::text_bytes);
static_assert(sizeof(nvmlPciInfo_t) == sizeof(nvml::PciInfo) &&
              offsetof(nvmlPciInfo_t, domain) == offsetof(nvml::PciInfo, domain) &&
              offsetof(nvmlPciInfo_t, bus) == offsetof(nvml::PciInfo, bus) &&
              offsetof(nvmlPciInfo_t, device) == offsetof(nvml::PciInfo, device));
static_assert(sizeof(nvmlMemory_t) == sizeof(nvml::Memory) &&
              offsetof(nvmlMemory_t, total) == offsetof(nvml::Memory, total) &&
              offsetof(nvmlMemory_t, used) == offsetof(nvml::Memory, used));
static_assert(sizeof(nvmlUtilization_t) == sizeof(nvml::Utilization) &&
              offsetof(nvmlUtilization_t, gpu) == offsetof(nvml::Utilization, gpu));
static_assert(sizeof(nvmlProcessInfo_t) == sizeof(nvml::ProcessInfo) &&
              offsetof(nvmlProcessInfo_t, usedGpuMemory) == offsetof(nvml::ProcessInfo, used_gpu_memory));
static_assert(sizeof(nvmlEventData_t) == sizeof(nvml::EventData) &&
              offsetof(nvmlEventData_t, eventType) == offsetof(nvml::EventData, type) &&
              offsetof(nvmlEventData_t, eventData) == offsetof(nvml::EventData, data));
#endif
