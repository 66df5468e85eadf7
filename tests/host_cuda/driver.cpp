#include "tests/host_cuda/driver.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/host_cuda/machine.hpp"

namespace host_cuda {

Allocation::~Allocation() {
  if (own) machine().used_bytes[device] -= bytes;
  if (descriptor >= 0) close(descriptor);
}

namespace {

/// This name marks the descriptors that were made here.
constexpr const char* file_name = "host_cuda";

CUresult told(const Entry& entry) {
  return entry.error() == cudaErrorMemoryAllocation ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

bool is_whole(std::size_t bytes) {
  return bytes != 0 && bytes % page_bytes == 0;
}

bool is_of_a_gpu(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 && location.id < machine().gpus;
}

CUresult error_string(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY   ? "out of memory"
          : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                              : "a fake error";
  return CUDA_SUCCESS;
}

CUresult attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED &&
      attribute != CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
    undefined("an attribute that the fake does not have");
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp* property, CUmemAllocationGranularity_flags) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  if (!is_of_a_gpu(property->location)) return CUDA_ERROR_INVALID_VALUE;
  *bytes = page_bytes;
  return CUDA_SUCCESS;
}

CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* property,
                unsigned long long flags) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  if (!is_whole(bytes) || flags != 0 || property->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      !is_of_a_gpu(property->location) || property->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  Machine& m = machine();
  const int device = property->location.id;
  if (!m.has_room(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Allocation>();
  made->descriptor = memfd_create(file_name, MFD_CLOEXEC);
  made->bytes = bytes;
  made->device = device;
  if (made->descriptor < 0 || ftruncate(made->descriptor, static_cast<off_t>(bytes)) != 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  made->own = true;
  m.used_bytes[device] += bytes;
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult export_handle(void* descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  const auto found = machine().handles.find(handle);
  if (found == machine().handles.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(descriptor) = fcntl(found->second->descriptor, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* os_handle, CUmemAllocationHandleType type) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  const int descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
  char name[64] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const std::string expected = std::string("/memfd:") + file_name;
  struct stat file {};
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || readlink(link.c_str(), name, sizeof name - 1) < 0 ||
      std::strncmp(name, expected.c_str(), expected.size()) != 0 || fstat(descriptor, &file) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Allocation>();
  made->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  made->bytes = static_cast<std::size_t>(file.st_size);
  *handle = machine().next_handle++;
  machine().handles[*handle] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  return machine().handles.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long flags) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  if (!is_whole(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  machine().reservations[*address] = {bytes, nullptr};
  return CUDA_SUCCESS;
}

/// The reservation with exactly this beginning and size. Parts of one are not implemented.
Reservation* reservation(CUdeviceptr address, std::size_t bytes) {
  const auto found = machine().reservations.find(address);
  return found == machine().reservations.end() || found->second.bytes != bytes ? nullptr : &found->second;
}

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

CUresult give_back(CUdeviceptr address, std::size_t bytes) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  const Reservation* const found = reservation(address, bytes);
  if (found == nullptr || found->mapped) return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer(address), bytes);
  machine().reservations.erase(address);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  Reservation* const found = reservation(address, bytes);
  const auto memory = machine().handles.find(handle);
  if (found == nullptr || found->mapped || memory == machine().handles.end() || offset != 0 || flags != 0 ||
      bytes > memory->second->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  // Nobody has access yet.
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second->descriptor, 0) == MAP_FAILED)
    return CUDA_ERROR_INVALID_VALUE;
  found->mapped = memory->second;
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  Entry entry;
  if (entry.fails()) return told(entry);
  Machine& m = machine();
  Reservation* const found = reservation(address, bytes);
  if (found == nullptr || !found->mapped) return CUDA_ERROR_INVALID_VALUE;
  m.wait_for_streams(entry.lock);
  mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  m.ranges.erase(address);
  m.reservations[address].mapped.reset();
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  const Entry entry;
  if (entry.fails()) return told(entry);
  const Reservation* const found = reservation(address, bytes);
  if (found == nullptr || !found->mapped || count != 1 || !is_of_a_gpu(access->location) ||
      access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return CUDA_ERROR_INVALID_VALUE;
  if (mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_UNKNOWN;
  machine().ranges[address] = {Kind::mapping, bytes, access->location.id};
  return CUDA_SUCCESS;
}

template <class Function>
void* untyped(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* driver_function(const char* name) {
  static const std::map<std::string, void*> functions = {
      {"cuGetErrorString", untyped(error_string)},
      {"cuDeviceGetAttribute", untyped(attribute)},
      {"cuMemGetAllocationGranularity", untyped(granularity)},
      {"cuMemCreate", untyped(create)},
      {"cuMemExportToShareableHandle", untyped(export_handle)},
      {"cuMemImportFromShareableHandle", untyped(import_handle)},
      {"cuMemRelease", untyped(release)},
      {"cuMemAddressReserve", untyped(reserve)},
      {"cuMemAddressFree", untyped(give_back)},
      {"cuMemMap", untyped(map)},
      {"cuMemUnmap", untyped(unmap)},
      {"cuMemSetAccess", untyped(set_access)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace host_cuda
