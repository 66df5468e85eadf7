#include "sdk/cuda/shared_allocation.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace gossamer::client::cuda {
namespace {

/// The driver's functions; all of them, or `missing` names one that it lacks.
struct Driver {
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
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
  find("cuDeviceGetAttribute", driver.attribute, driver.missing);
  find("cuMemGetAllocationGranularity", driver.granularity, driver.missing);
  find("cuMemCreate", driver.create, driver.missing);
  find("cuMemExportToShareableHandle", driver.export_handle, driver.missing);
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

  [[nodiscard]] Status say(Status status, const char* what, const char* why) const {
    if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s: %s", what, why);
    return status;
  }
  [[nodiscard]] Status say(const char* what, CUresult result) const {
    const char* why = nullptr;
    if (driver().error_string(result, &why) != CUDA_SUCCESS || why == nullptr) why = "unknown error";
    return say(result == CUDA_ERROR_OUT_OF_MEMORY ? Status::no_memory : Status::impossible, what, why);
  }
  [[nodiscard]] Status say(const char* what, cudaError_t result) const {
    (void)cudaGetLastError();  // not to be found by the next call
    return say(result == cudaErrorMemoryAllocation ? Status::no_memory : Status::impossible, what,
               cudaGetErrorString(result));
  }
};

[[nodiscard]] void* pointer(CUdeviceptr address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the device, as the runtime has it
  return reinterpret_cast<void*>(address);
}

/// An allocation at an address of its own, and its descriptor. The destructor undoes what has been done, unless it is
/// kept.
class Allocation {
 public:
  explicit Allocation(int device) : device_(device) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (mapped_) (void)driver().unmap(at_, bytes_);
    if (at_ != 0) (void)driver().give_back(at_, bytes_);
    // A mapping keeps the memory by itself, and so does a descriptor.
    if (created_) (void)driver().release(memory_);
  }

  [[nodiscard]] Status make(std::uint64_t bytes, const Report& report) {
    CUmemAllocationProp property{};
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property.location.id = device_;
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t granularity = 0;
    CUresult result = driver().granularity(&granularity, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS) return report.say("asking for the size of the GPU's pages", result);
    if (granularity == 0) return report.say(Status::impossible, "the GPU's pages", "they have no size");
    bytes_ = (bytes + granularity - 1) / granularity * granularity;
    result = driver().create(&memory_, bytes_, &property, 0);
    if (result != CUDA_SUCCESS) return report.say("taking GPU memory that can be shared", result);
    created_ = true;
    result = driver().export_handle(&descriptor_, memory_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
      descriptor_ = -1;
      return report.say("sharing GPU memory", result);
    }
    return map(report);
  }
  [[nodiscard]] CUdeviceptr address() const { return at_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] SharedMemory keep() {
    mapped_ = false;
    return {pointer(std::exchange(at_, 0)), bytes_, std::exchange(descriptor_, -1)};
  }

 private:
  [[nodiscard]] Status map(const Report& report) {
    CUresult result = driver().reserve(&at_, bytes_, 0, 0, 0);
    if (result != CUDA_SUCCESS) return report.say("reserving addresses for shared GPU memory", result);
    result = driver().map(at_, bytes_, 0, memory_, 0);
    if (result != CUDA_SUCCESS) return report.say("mapping shared GPU memory", result);
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver().set_access(at_, bytes_, &access, 1);
    if (result != CUDA_SUCCESS) return report.say("opening shared GPU memory", result);
    return Status::done;
  }

  const int device_;
  std::uint64_t bytes_ = 0;
  CUmemGenericAllocationHandle memory_{};
  CUdeviceptr at_ = 0;
  int descriptor_ = -1;
  bool created_ = false;
  bool mapped_ = false;
};

/// Whether the GPU can share memory by a descriptor at all.
[[nodiscard]] Status check_support(int device, const Report& report) {
  if (driver().missing != nullptr) {
    return report.say(Status::impossible, driver().missing,
                      "the NVIDIA driver lacks this function: a newer driver can share GPU memory");
  }
  for (const auto attribute : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    const CUresult result = driver().attribute(&supported, attribute, device);
    if (result != CUDA_SUCCESS) return report.say("asking what the GPU supports", result);
    if (supported == 0)
      return report.say(Status::impossible, "sharing GPU memory", "this GPU or its driver does not support it");
  }
  return Status::done;
}

}  // namespace

Status share_memory(int device, std::uint64_t bytes, SharedMemory* memory, char* error,
                    std::size_t error_bytes) noexcept {
  const Report report{error, error_bytes};
  if (const Status status = check_support(device, report); status != Status::done) return status;
  Allocation allocation(device);
  if (const Status status = allocation.make(bytes, report); status != Status::done) return status;
  // The second waits for the first, whatever streams the program has.
  cudaError_t result = cudaMemset(pointer(allocation.address()), 0, allocation.bytes());
  if (result == cudaSuccess) result = cudaDeviceSynchronize();
  if (result != cudaSuccess) return report.say("clearing shared GPU memory", result);
  *memory = allocation.keep();
  return Status::done;
}

void unshare_memory(const SharedMemory& memory) noexcept {
  const auto at = reinterpret_cast<CUdeviceptr>(memory.base);
  if (driver().unmap(at, memory.bytes) == CUDA_SUCCESS) (void)driver().give_back(at, memory.bytes);
}

Status pin_memory(void* memory, std::uint64_t bytes, void** device_memory, char* error,
                  std::size_t error_bytes) noexcept {
  const Report report{error, error_bytes};
  cudaError_t result = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (result != cudaSuccess) return report.say("pinning host memory", result);
  result = cudaHostGetDevicePointer(device_memory, memory, 0);
  if (result == cudaSuccess) return Status::done;
  unpin_memory(memory);
  return report.say("finding pinned host memory on the GPU", result);
}

void unpin_memory(void* memory) noexcept {
  if (cudaHostUnregister(memory) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace gossamer::client::cuda
