#include "tests/host_cuda/runtime.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/host_cuda/driver.hpp"
#include "tests/host_cuda/grid.hpp"
#include "tests/host_cuda/machine.hpp"

namespace host_cuda {

namespace {

/// GPU memory begins with a value that shows: floats that are NaN.
constexpr int garbage = 0xff;
/// More memory than this is left as it comes, because filling it would touch it.
constexpr std::size_t most_garbage_bytes = std::size_t{16} << 20;
/// The driver copies memory that is not page-locked at once if it is small, and otherwise waits for it.
constexpr std::size_t most_staged_bytes = std::size_t{64} << 10;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

constexpr std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Memory between two pages that cannot be touched, as close to the second as its alignment allows. A program that
/// writes beyond its end, or far before its beginning, ends at once.
class Fenced {
 public:
  explicit Fenced(std::size_t bytes) : used_(rounded(bytes, alignment)), all_(rounded(used_, page) + 2 * page) {}

  [[nodiscard]] void* map() const {
    void* const all = mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return nullptr;
    auto* const first = static_cast<char*>(all) + page;
    if (mprotect(first, all_ - 2 * page, PROT_READ | PROT_WRITE) != 0) return nullptr;
    return first + (all_ - 2 * page - used_);
  }
  void unmap(void* memory) const { munmap(static_cast<char*>(memory) - (all_ - page - used_), all_); }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t alignment = 256;  // alignment of all memory from cudaMalloc()
  std::size_t used_;
  std::size_t all_;
};

std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

void undefined(const std::string& what) {
  std::fprintf(stderr, "host_cuda: %s\n", what.c_str());
  std::abort();
}

Machine::Machine()
    : gpus(static_cast<int>(number_of("HOST_CUDA_GPUS", 1))),
      memory_bytes(number_of("HOST_CUDA_MEMORY_MIB", 2048) << 20),
      seed(number_of("HOST_CUDA_SEED", 1)) {}

Machine& machine() {
  // The machine is never destroyed, because the streams' threads may outlive everything else.
  static auto* const the_machine = new Machine;
  return *the_machine;
}

Entry::Entry(const char* function) : lock(machine().mutex) {
  Machine& m = machine();
  ++m.calls;
  fails_ = m.fails_at != 0 && (m.calls == m.fails_at || (m.fails_for_good && m.calls > m.fails_at));
  error_ = m.error;
  if (fails_ && m.failed.empty()) m.failed = function;
}

void Entry::does_not_count() {
  --machine().calls;
}

// ---- streams

std::shared_ptr<Stream> Stream::start(Machine& machine, int device, bool is_default, bool blocking) {
  const std::shared_ptr<Stream> made(new Stream(machine, device, is_default, blocking));
  std::thread([made] { made->run(); }).detach();
  return made;
}

void Stream::hold(bool held) {
  held_ = held;
  wanted_.notify_all();
}

void Stream::end() {
  ends_ = true;
  wanted_.notify_all();
}

void Stream::enqueue(std::function<void()> work) {
  Work item{.after = {}, .run = std::move(work)};
  if (is_default) {
    for (const auto& [handle, other] : machine_.streams) {
      if (other->device == device && other->blocking && !other->idle())
        item.after.emplace_back(other, other->enqueued_);
    }
  } else if (blocking) {
    const auto other = machine_.default_streams.find(device);
    if (other != machine_.default_streams.end() && !other->second->idle())
      item.after.emplace_back(other->second, other->second->enqueued_);
  }
  queue_.push_back(std::move(item));
  ++enqueued_;
  wanted_.notify_all();
}

void Stream::run() {
  std::unique_lock lock(machine_.mutex);
  while (true) {
    wanted_.wait(lock, [this] { return queue_.empty() ? ends_ : !held_; });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    machine_.changed.wait(lock, [&] {
      return std::all_of(work.after.begin(), work.after.end(),
                         [](const Point& p) { return p.first->is_done(p.second); });
    });
    lock.unlock();
    work.run();
    work = {};
    lock.lock();
    ++done_;
    machine_.changed.notify_all();
  }
}

std::shared_ptr<Stream> Machine::stream(cudaStream_t handle, int device) {
  if (handle == nullptr) {
    auto& made = default_streams[device];
    if (!made) made = Stream::start(*this, device, true, true);
    return made;
  }
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

void Machine::wait_for_streams(std::unique_lock<std::mutex>& lock, std::optional<int> device) {
  changed.wait(lock, [&] {
    const auto idle = [&](const auto& entry) {
      return entry.second->idle() || (device && entry.second->device != *device);
    };
    return std::all_of(streams.begin(), streams.end(), idle) &&
           std::all_of(default_streams.begin(), default_streams.end(), idle);
  });
}

// ---- memory

const Range* Machine::find(const void* address) const {
  auto after = ranges.upper_bound(number(address));
  if (after == ranges.begin()) return nullptr;
  --after;
  return number(address) < after->first + after->second.bytes ? &after->second : nullptr;
}

bool Machine::has_room(int device, std::size_t bytes) {
  return used_bytes[device] + bytes <= memory_bytes;
}

namespace {

/// Whether the stream does copies of this memory later, which is so for memory that CUDA knows. The memory must not go
/// beyond one range.
bool is_asynchronous(const void* address, std::size_t bytes) {
  const Machine& m = machine();
  const Range* const range = m.find(address);
  const auto* const last = static_cast<const char*>(address) + (bytes - 1);
  if (range != m.find(last)) undefined("a copy goes beyond the end of an allocation");
  return range != nullptr;
}

cudaError_t release(void* memory, Kind kind, const char* function) {
  if (memory == nullptr) return cudaSuccess;
  Entry entry(function);
  if (entry.fails()) return told(entry.error());
  Machine& m = machine();
  const auto found = m.ranges.find(number(memory));
  if (found == m.ranges.end() || found->second.kind != kind) return told(cudaErrorInvalidValue);
  m.wait_for_streams(entry.lock, found->second.device);
  const Range range = found->second;
  m.ranges.erase(found);
  if (kind == Kind::device) m.used_bytes[range.device] -= range.bytes;
  if (kind != Kind::registered) Fenced(range.bytes).unmap(memory);
  return cudaSuccess;
}

cudaError_t enqueue_on(cudaStream_t stream, std::function<void()> work) {
  const auto found = machine().stream(stream, current_device);
  if (!found) return told(cudaErrorInvalidResourceHandle);
  found->enqueue(std::move(work));
  return cudaSuccess;
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  return enqueue_on(stream, std::move(work));
}

cudaError_t launch(dim3 groups, dim3 threads_a_group, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> kernel) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  constexpr unsigned most_groups = 0x7fffffff;
  const bool flat = groups.y == 1 && groups.z == 1 && threads_a_group.y == 1 && threads_a_group.z == 1;
  if (!flat || shared_bytes != 0) undefined("a grid of a shape that the fake does not have");
  if (groups.x == 0 || groups.x > most_groups || threads_a_group.x == 0 || threads_a_group.x > max_threads_a_group)
    return told(cudaErrorInvalidConfiguration);
  const auto found = machine().stream(stream, current_device);
  if (!found || found->device != current_device) return told(cudaErrorInvalidResourceHandle);
  const std::uint64_t seed = machine().seed++;
  ++machine().launches;
  return enqueue_on(stream, [groups = groups.x, threads = threads_a_group.x, kernel = std::move(kernel), seed] {
    const std::string wrong = run_grid(groups, threads, kernel, seed);
    if (!wrong.empty()) undefined("a kernel: " + wrong);
  });
}

// ---- for tests

void fail_call(std::uint64_t n, cudaError_t error, bool for_good) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  m.calls = 0;
  m.fails_at = n;
  m.error = error;
  m.fails_for_good = for_good;
  m.failed.clear();
}

std::string failed_call() {
  const std::lock_guard lock(machine().mutex);
  return machine().failed;
}

std::uint64_t calls() {
  const std::lock_guard lock(machine().mutex);
  return machine().calls;
}

std::string held() {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  std::string text;
  const auto add = [&](const char* what, std::size_t count) {
    if (count != 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  std::map<Kind, std::size_t> ranges;
  for (const auto& [address, range] : m.ranges)
    ++ranges[range.kind];
  add("allocations", ranges[Kind::device]);
  add("page-locked allocations", ranges[Kind::host]);
  add("registered ranges", ranges[Kind::registered]);
  add("mappings", ranges[Kind::mapping]);
  add("reservations", m.reservations.size());
  add("shareable allocations", m.handles.size());
  add("streams", m.streams.size());
  add("events", m.events.size());
  return text;
}

void reset() {
  fail_call(0, cudaSuccess, false);
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  m.wait_for_streams(lock);
  for (const auto& [address, range] : m.ranges) {
    if (range.kind == Kind::device || range.kind == Kind::host)
      Fenced(range.bytes).unmap(reinterpret_cast<void*>(address));
  }
  m.ranges.clear();
  for (const auto& [address, reservation] : m.reservations)
    munmap(reinterpret_cast<void*>(address), reservation.bytes);
  m.reservations.clear();
  m.handles.clear();
  for (const auto& [handle, stream] : m.streams)
    stream->end();
  m.streams.clear();
  m.events.clear();
  m.used_bytes.clear();
}

}  // namespace host_cuda

// ---- the runtime's functions, as NVIDIA's manual has them

using namespace host_cuda;  // NOLINT(google-build-using-namespace): these are outside of every namespace

extern "C" {

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    default:
      return "a fake error";
  }
}

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *count = machine().gpus;
  return machine().gpus == 0 ? told(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (device < 0 || device >= machine().gpus) return told(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (device < 0 || device >= machine().gpus) return told(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "the processor as GPU %d", device);
  std::memset(&properties->uuid, 0x40 + device, sizeof properties->uuid);
  properties->totalGlobalMem = machine().memory_bytes;
  properties->major = 8;
  properties->minor = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (device < 0 || device >= machine().gpus) return told(cudaErrorInvalidDevice);
  if (bytes < 13) return told(cudaErrorInvalidValue);
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 0x30 + device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (attribute != cudaDevAttrCanUseHostPointerForRegisteredMem) undefined("an attribute that the fake does not have");
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  machine().wait_for_streams(entry.lock, current_device);
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  Machine& m = machine();
  if (!m.has_room(current_device, bytes)) return told(cudaErrorMemoryAllocation);
  *memory = bytes == 0 ? nullptr : Fenced(bytes).map();
  if (bytes == 0) return cudaSuccess;
  if (*memory == nullptr) return told(cudaErrorMemoryAllocation);
  if (bytes <= most_garbage_bytes) std::memset(*memory, garbage, bytes);
  m.ranges[number(*memory)] = {Kind::device, bytes, current_device};
  m.used_bytes[current_device] += bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  return release(memory, Kind::device, __func__);
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *memory = Fenced(bytes).map();
  if (*memory == nullptr) return told(cudaErrorMemoryAllocation);
  machine().ranges[number(*memory)] = {Kind::host, bytes, current_device};
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  return release(memory, Kind::host, __func__);
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (memory == nullptr || bytes == 0) return told(cudaErrorInvalidValue);
  Machine& m = machine();
  const auto* const last = static_cast<const char*>(memory) + (bytes - 1);
  const auto next = m.ranges.lower_bound(number(memory));
  const bool overlaps = next != m.ranges.end() && next->first <= number(last);
  if (m.find(memory) != nullptr || overlaps) return told(cudaErrorHostMemoryAlreadyRegistered);
  m.ranges[number(memory)] = {Kind::registered, bytes, current_device};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  return release(memory, Kind::registered, __func__);
}

cudaError_t cudaHostGetDevicePointer(void** device_memory, void* memory, unsigned) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  const Range* const range = machine().find(memory);
  if (range == nullptr || (range->kind != Kind::host && range->kind != Kind::registered))
    return told(cudaErrorInvalidValue);
  *device_memory = memory;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *total_bytes = machine().memory_bytes;
  *free_bytes = machine().memory_bytes - machine().used_bytes[current_device];
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = cudaInvalidDeviceId;
  const Range* const range = machine().find(address);
  if (range == nullptr) return cudaSuccess;
  const bool of_host = range->kind == Kind::host || range->kind == Kind::registered;
  attributes->type = of_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = range->device;
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (bytes == 0) return cudaSuccess;
  if (!is_asynchronous(memory, bytes)) return told(cudaErrorInvalidValue);
  return enqueue_on(stream, [=] { std::memset(memory, value, bytes); });
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  if (bytes == 0) return cudaSuccess;
  const bool from_pageable = !is_asynchronous(from, bytes);
  const auto* const begin = static_cast<const char*>(from);
  std::shared_ptr<std::vector<char>> staged;
  if (from_pageable && bytes <= most_staged_bytes) staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
  const bool waits = !is_asynchronous(to, bytes) || (from_pageable && !staged);
  const cudaError_t error = enqueue_on(stream, [=] { std::memmove(to, staged ? staged->data() : begin, bytes); });
  if (error != cudaSuccess || !waits) return error;
  const auto found = machine().stream(stream, current_device);
  const std::uint64_t enqueued = found->enqueued();
  machine().changed.wait(entry.lock, [&] { return found->is_done(enqueued); });
  return cudaSuccess;
}

// ---- streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  Machine& m = machine();
  *stream = reinterpret_cast<cudaStream_t>(m.next_handle++);
  m.streams[*stream] = Stream::start(m, current_device, false, flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

/// Work that was enqueued on the stream still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  Machine& m = machine();
  const auto found = m.streams.find(stream);
  if (found == m.streams.end()) return told(cudaErrorInvalidResourceHandle);
  found->second->end();
  m.streams.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  const auto found = machine().stream(stream, current_device);
  if (!found) return told(cudaErrorInvalidResourceHandle);
  if (found->idle()) return cudaSuccess;
  entry.does_not_count();
  return told(cudaErrorNotReady);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  Entry entry;
  if (entry.fails()) return told(entry.error());
  std::swap(*mode, current);
  return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  Machine& m = machine();
  *event = reinterpret_cast<cudaEvent_t>(m.next_handle++);
  m.events[*event] = {.device = current_device, .timed = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  return machine().events.erase(event) == 1 ? cudaSuccess : told(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  Machine& m = machine();
  const auto event = m.events.find(handle);
  const auto found = m.stream(stream, current_device);
  if (event == m.events.end() || !found || found->device != event->second.device)
    return told(cudaErrorInvalidResourceHandle);
  const auto at_ns = std::make_shared<std::int64_t>(0);
  found->enqueue([at_ns] { *at_ns = now_ns(); });
  event->second.stream = found;
  event->second.number = found->enqueued();
  event->second.at_ns = at_ns;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  const auto event = machine().events.find(handle);
  if (event == machine().events.end()) return told(cudaErrorInvalidResourceHandle);
  const auto& stream = event->second.stream;
  if (!stream || stream->is_done(event->second.number)) return cudaSuccess;
  entry.does_not_count();
  return told(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  const auto& events = machine().events;
  const auto from = events.find(begin);
  const auto to = events.find(end);
  for (const auto& event : {from, to}) {
    if (event == events.end() || !event->second.stream || !event->second.timed)
      return told(cudaErrorInvalidResourceHandle);
  }
  for (const auto& event : {from, to}) {
    if (!event->second.stream->is_done(event->second.number)) return told(cudaErrorNotReady);
  }
  *ms = static_cast<float>(static_cast<double>(*to->second.at_ns - *from->second.at_ns) / 1e6);
  return cudaSuccess;
}

// ---- for tests in Python

void fake_adopt(void* memory, std::size_t bytes, int device) {
  const std::lock_guard lock(machine().mutex);
  machine().ranges[number(memory)] = {Kind::adopted, bytes, device};
}

void fake_disown(void* memory) {
  const std::lock_guard lock(machine().mutex);
  machine().ranges.erase(number(memory));
}

void* fake_stream() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) undefined("no stream");
  return stream;
}

void fake_hold(void* stream) {
  const std::lock_guard lock(machine().mutex);
  machine().stream(static_cast<cudaStream_t>(stream), current_device)->hold(true);
}

void fake_release(void* stream) {
  const std::lock_guard lock(machine().mutex);
  machine().stream(static_cast<cudaStream_t>(stream), current_device)->hold(false);
}

void fake_synchronize(void* stream) {
  std::unique_lock lock(machine().mutex);
  const auto found = machine().stream(static_cast<cudaStream_t>(stream), current_device);
  machine().changed.wait(lock, [&] { return found->idle(); });
}

std::uint64_t fake_launches() {
  const std::lock_guard lock(machine().mutex);
  return machine().launches;
}

// ---- the driver's functions

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  Entry entry;
  if (entry.fails()) return told(entry.error());
  *function = driver_function(name);
  *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
