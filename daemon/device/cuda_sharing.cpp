#include "daemon/device/cuda_sharing.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

#include "sdk/cuda/mapped_memory.hpp"

namespace gossamer::device::sharing {
namespace {

using cuda::driver;

/// Writes what went wrong, for people, where the caller wants it.
struct Report {
  char* error;
  std::size_t error_bytes;

  [[nodiscard]] Status failed(const char* what, const char* why) const {
    if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s: %s", what, why);
    return Status::failed;
  }
  [[nodiscard]] Status failed(const char* what, CUresult result) const { return failed(what, driver().text(result)); }
  [[nodiscard]] Status failed(const char* what, cudaError_t result) const {
    (void)cudaGetLastError();  // clears the error for the next call
    return failed(what, cudaGetErrorString(result));
  }
};

/// Called before memory is given back, so that the runtime does not make a context on another GPU. The result is
/// ignored, because the memory is given back in any case.
void prefer_device(const Context& context) {
  (void)cudaSetDevice(device_of(context));
  (void)cudaGetLastError();  // clears the error for the next call
}

}  // namespace

Status import(Context* context, int descriptor, std::size_t bytes, void** device_memory, char* error,
              std::size_t error_bytes) noexcept {
  *device_memory = nullptr;
  const Report report{error, error_bytes};
  const int device = device_of(*context);
  // The runtime makes the primary context current in this thread, where the driver's functions look for it.
  if (const cudaError_t result = cudaSetDevice(device); result != cudaSuccess)
    return report.failed("cudaSetDevice", result);
  if (driver().missing != nullptr)
    return report.failed(driver().missing, "the NVIDIA driver lacks this function: install a newer driver");
  std::size_t granularity = 0;
  const CUmemAllocationProp property = cuda::shareable_memory(device);
  CUresult result = driver().granularity(&granularity, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return report.failed("asking for the size of the GPU's pages", result);
  if (bytes == 0 || granularity == 0 || bytes % granularity != 0) {
    char why[128];
    std::snprintf(why, sizeof why, "%zu bytes are not a multiple of %zu, the page size of the GPU", bytes, granularity);
    return report.failed("the client's GPU memory", why);
  }
  CUmemGenericAllocationHandle memory{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the descriptor is passed as a pointer
  result = driver().import_handle(&memory, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return report.failed("importing the client's GPU memory", result);
  cuda::Mapping mapping;
  result = mapping.make(device, memory, bytes);
  (void)driver().release(memory);
  if (result != CUDA_SUCCESS) return report.failed(mapping.what(), result);
  *device_memory = mapping.keep();
  return Status::done;
}

Status forget(Context* context, void* device_memory, std::size_t bytes) noexcept {
  prefer_device(*context);
  return cuda::unmap(device_memory, bytes) ? Status::done : Status::failed;
}

Status pin(Context* context, void* memory, std::size_t bytes, char* error, std::size_t error_bytes) noexcept {
  const Report report{error, error_bytes};
  const int device = device_of(*context);
  cudaError_t result = cudaSetDevice(device);
  if (result != cudaSuccess) return report.failed("cudaSetDevice", result);
  int same_address = 0;
  result = cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
  if (result != cudaSuccess) return report.failed("cudaDeviceGetAttribute", result);
  if (same_address == 0) return report.failed("pinning host memory", "this GPU does not see it at the same address");
  result = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (result != cudaSuccess) return report.failed("pinning host memory", result);
  return Status::done;
}

Status unpin(Context* context, void* memory) noexcept {
  prefer_device(*context);
  const cudaError_t result = cudaHostUnregister(memory);
  (void)cudaGetLastError();  // clears the error for the next call
  return result == cudaSuccess ? Status::done : Status::failed;
}

}  // namespace gossamer::device::sharing
