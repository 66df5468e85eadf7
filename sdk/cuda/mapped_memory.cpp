#include "sdk/cuda/mapped_memory.hpp"

#include <cuda_runtime_api.h>

namespace gossamer::cuda {
namespace {

template <class Function>
void find(const char* name, Function& function, const char*& missing) {
  void* address = nullptr;
#if CUDART_VERSION >= 12050
  constexpr unsigned since = 11000;  // CUDA 11.0 has all of these functions, in the form of cuda.h
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, &address, since, cudaEnableDefault, &found);
#else
  const cudaError_t result = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault);
#endif
  if (result != cudaSuccess) (void)cudaGetLastError();  // clears the error for the next call
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
  find("cuMemImportFromShareableHandle", driver.import_handle, driver.missing);
  find("cuMemRelease", driver.release, driver.missing);
  find("cuMemAddressReserve", driver.reserve, driver.missing);
  find("cuMemAddressFree", driver.give_back, driver.missing);
  find("cuMemMap", driver.map, driver.missing);
  find("cuMemUnmap", driver.unmap, driver.missing);
  find("cuMemSetAccess", driver.set_access, driver.missing);
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

const char* Driver::text(CUresult result) const {
  const char* why = nullptr;
  if (error_string == nullptr || error_string(result, &why) != CUDA_SUCCESS || why == nullptr) return "unknown error";
  return why;
}

CUmemAllocationProp shareable_memory(int device) {
  CUmemAllocationProp property{};
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  property.location.id = device;
  property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return property;
}

Mapping::~Mapping() {
  if (mapped_) (void)driver().unmap(at_, bytes_);
  if (at_ != 0) (void)driver().give_back(at_, bytes_);
}

CUresult Mapping::make(int device, CUmemGenericAllocationHandle memory, std::size_t bytes) {
  bytes_ = bytes;
  what_ = "reserving addresses for shared GPU memory";
  CUresult result = driver().reserve(&at_, bytes_, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  what_ = "mapping shared GPU memory";
  result = driver().map(at_, bytes_, 0, memory, 0);
  if (result != CUDA_SUCCESS) return result;
  mapped_ = true;
  what_ = "opening shared GPU memory";
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver().set_access(at_, bytes_, &access, 1);
}

void* Mapping::address() const {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the runtime takes the device's addresses as pointers
  return reinterpret_cast<void*>(at_);
}

void* Mapping::keep() {
  void* const kept = address();
  mapped_ = false;
  at_ = 0;
  return kept;
}

bool unmap(void* address, std::size_t bytes) {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  return driver().unmap(at, bytes) == CUDA_SUCCESS && driver().give_back(at, bytes) == CUDA_SUCCESS;
}

}  // namespace gossamer::cuda
