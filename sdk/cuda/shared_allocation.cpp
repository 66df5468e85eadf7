#include "sdk/cuda/shared_allocation.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "sdk/cuda/mapped_memory.hpp"

namespace gossamer::client::cuda {
namespace {

using gossamer::cuda::driver;

/// Writes to the caller's buffer what went wrong, for people.
struct Report {
  char* error;
  std::size_t error_bytes;

  [[nodiscard]] PassStatus say(PassStatus status, const char* what, const char* why) const {
    if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s: %s", what, why);
    return status;
  }
  [[nodiscard]] PassStatus say(const char* what, CUresult result) const {
    const PassStatus status = result == CUDA_ERROR_OUT_OF_MEMORY ? PassStatus::no_memory : PassStatus::impossible;
    return say(status, what, driver().text(result));
  }
  [[nodiscard]] PassStatus say(const char* what, cudaError_t result) const {
    (void)cudaGetLastError();  // clears the error for the next call
    return say(result == cudaErrorMemoryAllocation ? PassStatus::no_memory : PassStatus::impossible, what,
               cudaGetErrorString(result));
  }
};

/// An allocation at an address of its own, and its descriptor. The destructor undoes what has been done, unless the
/// allocation is kept.
class Allocation {
 public:
  explicit Allocation(int device) : device_(device) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (descriptor_ >= 0) ::close(descriptor_);
    // After this release the mapping and the descriptor still keep the memory alive.
    if (created_) (void)driver().release(memory_);
  }

  [[nodiscard]] PassStatus make(std::uint64_t bytes, const Report& report) {
    const CUmemAllocationProp property = gossamer::cuda::shareable_memory(device_);
    std::size_t granularity = 0;
    CUresult result = driver().granularity(&granularity, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS) return report.say("asking for the size of the GPU's pages", result);
    if (granularity == 0) return report.say(PassStatus::impossible, "the GPU's pages", "they have no size");
    bytes_ = (bytes + granularity - 1) / granularity * granularity;
    result = driver().create(&memory_, bytes_, &property, 0);
    if (result != CUDA_SUCCESS) return report.say("taking GPU memory that can be shared", result);
    created_ = true;
    result = driver().export_handle(&descriptor_, memory_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
      descriptor_ = -1;
      return report.say("sharing GPU memory", result);
    }
    result = mapping_.make(device_, memory_, bytes_);
    return result == CUDA_SUCCESS ? PassStatus::done : report.say(mapping_.what(), result);
  }
  [[nodiscard]] void* address() const { return mapping_.address(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] SharedMemory keep() { return {mapping_.keep(), bytes_, std::exchange(descriptor_, -1)}; }

 private:
  const int device_;
  std::uint64_t bytes_ = 0;
  CUmemGenericAllocationHandle memory_{};
  int descriptor_ = -1;
  bool created_ = false;
  gossamer::cuda::Mapping mapping_;
};

/// Whether the GPU can share memory by a descriptor at all.
[[nodiscard]] PassStatus check_support(int device, const Report& report) {
  if (driver().missing != nullptr) {
    return report.say(PassStatus::impossible, driver().missing,
                      "the NVIDIA driver lacks this function: a newer driver can share GPU memory");
  }
  for (const auto attribute : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    const CUresult result = driver().attribute(&supported, attribute, device);
    if (result != CUDA_SUCCESS) return report.say("asking what the GPU supports", result);
    if (supported == 0)
      return report.say(PassStatus::impossible, "sharing GPU memory", "this GPU or its driver does not support it");
  }
  return PassStatus::done;
}

}  // namespace

PassStatus share_memory(int device, std::uint64_t bytes, SharedMemory* memory, char* error,
                        std::size_t error_bytes) noexcept {
  const Report report{error, error_bytes};
  if (const PassStatus status = check_support(device, report); status != PassStatus::done) return status;
  Allocation allocation(device);
  if (const PassStatus status = allocation.make(bytes, report); status != PassStatus::done) return status;
  // The second call waits for the first, whatever streams the program has.
  cudaError_t result = cudaMemset(allocation.address(), 0, allocation.bytes());
  if (result == cudaSuccess) result = cudaDeviceSynchronize();
  if (result != cudaSuccess) return report.say("clearing shared GPU memory", result);
  *memory = allocation.keep();
  return PassStatus::done;
}

void unshare_memory(const SharedMemory& memory) noexcept {
  (void)gossamer::cuda::unmap(memory.base, memory.bytes);
}

PassStatus pin_memory(void* memory, std::uint64_t bytes, void** device_memory, char* error,
                      std::size_t error_bytes) noexcept {
  const Report report{error, error_bytes};
  cudaError_t result = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (result != cudaSuccess) return report.say("pinning host memory", result);
  result = cudaHostGetDevicePointer(device_memory, memory, 0);
  if (result == cudaSuccess) return PassStatus::done;
  unpin_memory(memory);
  return report.say("finding pinned host memory on the GPU", result);
}

void unpin_memory(void* memory) noexcept {
  if (cudaHostUnregister(memory) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace gossamer::client::cuda
