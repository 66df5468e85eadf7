#include "daemon/device/cuda_sharing.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <utility>

namespace gossamer::device::sharing {
namespace {

/// The driver's functions; all of them, or `missing` names one that it lacks.
struct Driver {
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemImportFromShareableHandle) import = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) give_back = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  const char* missing = nullptr;
};

template <class Function>
void find(const char* name, Function& function, const char*& missing) {
  void* address = nullptr;
#if CUDART_VERSION >= 12050
  constexpr unsigned since = 11000;  // has them all, in the form of cuda.h
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, &address, since, cudaEnableDefault, &found);
#else
  const cudaError_t result = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault);
#endif
  if (result != cudaSuccess) (void)cudaGetLastError();  // not to be found by the next call
  if (result != cudaSuccess || address == nullptr) missing = name;
  function = reinterpret_cast<Function>(address);
}

Driver load() {
  Driver driver;
  find("cuGetErrorString", driver.error_string, driver.missing);
  find("cuMemGetAllocationGranularity", driver.granularity, driver.missing);
  find("cuMemImportFromShareableHandle", driver.import, driver.missing);
  find("cuMemRelease", driver.release, driver.missing);
  find("cuMemAddressReserve", driver.reserve, driver.missing);
  find("cuMemAddressFree", driver.give_back, driver.missing);
  find("cuMemMap", driver.map, driver.missing);
  find("cuMemUnmap", driver.unmap, driver.missing);
  find("cuMemSetAccess", driver.set_access, driver.missing);
  return driver;
}

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

/// What went wrong, for people; where it is to be told.
struct Report {
  char* error;
  std::size_t error_bytes;

  [[nodiscard]] Status failed(const char* what, const char* why) const {
    if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s: %s", what, why);
    return Status::failed;
  }
  [[nodiscard]] Status failed(const char* what, CUresult result) const {
    const char* why = nullptr;
    if (driver().error_string(result, &why) != CUDA_SUCCESS || why == nullptr) why = "unknown error";
    return failed(what, why);
  }
  [[nodiscard]] Status failed(const char* what, cudaError_t result) const {
    (void)cudaGetLastError();  // not to be found by the next call
    return failed(what, cudaGetErrorString(result));
  }
};

CUmemAllocationProp property_of(int device) {
  CUmemAllocationProp property{};
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  property.location.id = device;
  property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return property;
}

/// An imported allocation at an address of its own. Its destructor undoes what has been done, unless it is kept.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (mapped_) (void)driver().unmap(at_, bytes_);
    if (at_ != 0) (void)driver().give_back(at_, bytes_);
    // A mapping keeps the memory by itself.
    if (imported_) (void)driver().release(memory_);
  }

  [[nodiscard]] Status make(int device, int descriptor, const Report& report) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the descriptor is passed as a pointer
    CUresult result = driver().import(&memory_, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return report.failed("importing the client's GPU memory", result);
    imported_ = true;
    result = driver().reserve(&at_, bytes_, 0, 0, 0);
    if (result != CUDA_SUCCESS) return report.failed("reserving addresses for the client's GPU memory", result);
    // Fails if the allocation has not so many bytes.
    result = driver().map(at_, bytes_, 0, memory_, 0);
    if (result != CUDA_SUCCESS) return report.failed("mapping the client's GPU memory", result);
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver().set_access(at_, bytes_, &access, 1);
    if (result != CUDA_SUCCESS) return report.failed("opening the client's GPU memory", result);
    return Status::done;
  }
  [[nodiscard]] void* keep() {
    mapped_ = false;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the device, as the runtime has it
    return reinterpret_cast<void*>(std::exchange(at_, 0));
  }

 private:
  const std::size_t bytes_;
  CUmemGenericAllocationHandle memory_{};
  CUdeviceptr at_ = 0;
  bool imported_ = false;
  bool mapped_ = false;
};

}  // namespace

Status import(Context* context, int descriptor, std::size_t bytes, void** device_memory, char* error,
              std::size_t error_bytes) noexcept {
  *device_memory = nullptr;
  const Report report{error, error_bytes};
  const int device = device_of(*context);
  // The runtime makes the primary context this thread's, where the driver's functions look for it.
  if (const cudaError_t result = cudaSetDevice(device); result != cudaSuccess)
    return report.failed("cudaSetDevice", result);
  if (driver().missing != nullptr)
    return report.failed(driver().missing, "the NVIDIA driver lacks this function: install a newer driver");
  std::size_t granularity = 0;
  const CUmemAllocationProp property = property_of(device);
  const CUresult result = driver().granularity(&granularity, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return report.failed("asking for the size of the GPU's pages", result);
  if (bytes == 0 || granularity == 0 || bytes % granularity != 0) {
    char why[128];
    std::snprintf(why, sizeof why, "%zu bytes are no multiple of %zu, the size of its pages", bytes, granularity);
    return report.failed("the client's GPU memory", why);
  }
  Mapping mapping(bytes);
  if (const Status status = mapping.make(device, descriptor, report); status != Status::done) return status;
  *device_memory = mapping.keep();
  return Status::done;
}

Status forget(Context* context, void* device_memory, std::size_t bytes) noexcept {
  if (cudaSetDevice(device_of(*context)) != cudaSuccess) {
    (void)cudaGetLastError();
    return Status::failed;
  }
  const auto at = reinterpret_cast<CUdeviceptr>(device_memory);
  if (driver().unmap(at, bytes) != CUDA_SUCCESS) return Status::failed;
  return driver().give_back(at, bytes) == CUDA_SUCCESS ? Status::done : Status::failed;
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
  if (cudaSetDevice(device_of(*context)) == cudaSuccess && cudaHostUnregister(memory) == cudaSuccess)
    return Status::done;
  (void)cudaGetLastError();
  return Status::failed;
}

}  // namespace gossamer::device::sharing
