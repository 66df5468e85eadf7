// GPU memory that processes share by a descriptor: the driver's functions for it, and its mapping at an address of its
// own. It is part of both plug-ins: the client's plug-in makes such memory, and the daemon's imports it.
//
// The functions are found through the runtime, so that nothing is linked against the driver. Any thread.

#pragma once

#include <cuda.h>

#include <cstddef>

namespace gossamer::cuda {

/// The driver's functions. If the driver lacks one, `missing` is its name.
struct Driver {
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) give_back = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  const char* missing = nullptr;

  /// The error in words. It also works where functions are missing.
  [[nodiscard]] const char* text(CUresult result) const;
};
[[nodiscard]] const Driver& driver();

/// The properties of memory that can be exported as a descriptor.
[[nodiscard]] CUmemAllocationProp shareable_memory(int device);

/// The mapping of an allocation at an address of its own, where one device can read and write. The mapping keeps the
/// allocation alive. The destructor undoes what has been done, unless the mapping is kept.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  /// Fails if the allocation is smaller than this. Call it once.
  [[nodiscard]] CUresult make(int device, CUmemGenericAllocationHandle memory, std::size_t bytes);
  /// The action of make() that failed.
  [[nodiscard]] const char* what() const { return what_; }
  [[nodiscard]] void* address() const;
  [[nodiscard]] void* keep();

 private:
  CUdeviceptr at_ = 0;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
  const char* what_ = "";
};

/// Undoes a mapping after Mapping::keep(). False if the driver refuses.
bool unmap(void* address, std::size_t bytes);

}  // namespace gossamer::cuda
