// libgossamer_cuda.so puts one GPU behind the functions of daemon/device/plugin_abi.hpp. Each call borrows a lane: a
// stream with scratch memory of its own, which grows to the largest need. The call copies what came from the network to
// the device, launches one kernel, copies what goes to the network back, and waits for its own stream only.
//
// Both copies lead through the lane's staging memory in the host. It is page-locked, so that the copies over the bus
// are enqueued beside the kernel and nothing waits in between. Where no memory can be locked, the driver copies
// pageable memory and waits. Where the GPU has no room for scratch memory, the kernels work in the staging memory, over
// the bus.
//
// Loaded by daemon/device/cuda_device.cpp. Any thread may call, several at a time; the lanes are handed out under a
// mutex. Invariants: an error of the CUDA runtime is kept in the context, and nothing is launched after it. Work on a
// lane touches no host memory but the lane's staging memory, so the caller's memory is free again when the call
// returns, whatever becomes of the work. (A transfer of a whole array goes directly to or from pageable memory; the
// driver is done with that memory when its own call returns.)

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "daemon/device/cuda_sharing.hpp"
#include "daemon/device/nccl.hpp"
#include "daemon/device/plugin_abi.hpp"
#include "gossip/check.hpp"
#include "gossip/cuda/kernels.cuh"
#include "sdk/cuda/launch.cuh"

namespace gossamer::device {

namespace {

using gossip::BlockOutcome;
using gossip::FragmentView;
using gossip::cuda::BlockList;
using gossip::cuda::ClientArrays;
using gossip::cuda::OuterArrays;
using gossip::cuda::threads_a_group;
using gossip::cuda::warp_lanes;

/// Each part of the scratch memory begins at a multiple of this.
constexpr std::size_t alignment = 256;
/// The scratch memory grows by at least this much, so that growing is rare.
constexpr std::size_t least_growth_bytes = std::size_t{1} << 20;
/// Staging memory is filled in chunks of this size. So one chunk is filled while the one before it is copied to the
/// device.
constexpr std::size_t chunk_bytes = std::size_t{512} << 10;
/// A call gets at most this many parts back from the device.
constexpr std::size_t max_fetches = 4;
/// A lane that works in host memory asks the GPU for room again after this time.
constexpr std::chrono::seconds between_tries{1};

/// Work that takes longer than this will never be done: the GPU hangs and is lost. No call works for a whole second.
constexpr std::chrono::seconds patience{30};
/// A wait spins for about as long as a short call takes, and then sleeps between looks.
constexpr std::chrono::microseconds spinning{50};
constexpr std::chrono::microseconds pause{30};

thread_local double kernel_s = 0;

void say(char* error, std::size_t error_bytes, const std::string& text) {
  if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s", text.c_str());
}

std::string text_of(const char* what, cudaError_t error) {
  return std::string(what) + ": " + cudaGetErrorString(error);
}

/// A stream, two events around its kernel, and memory: scratch on the device and staging in the host, with the same
/// parts at the same offsets.
struct Lane {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  std::uint8_t* scratch = nullptr;  ///< null: the GPU had no room, and the kernels work in the staging memory
  std::uint8_t* staging = nullptr;
  bool locked = false;    ///< whether the pages of the staging memory are locked
  std::size_t bytes = 0;  ///< size of each
  std::chrono::steady_clock::time_point tried;

  /// Frees all of the memory and returns the first error. Nothing may be under way in the lane.
  cudaError_t free_memory() {
    cudaError_t error = cudaSuccess;
    const auto keep = [&](cudaError_t result) {
      if (error == cudaSuccess) error = result;
    };
    if (scratch != nullptr) keep(cudaFree(scratch));
    if (locked) {
      keep(cudaFreeHost(staging));
    } else {
      std::free(staging);
    }
    scratch = staging = nullptr;
    locked = false;
    bytes = 0;
    return error;
  }
};

}  // namespace

struct Context {
  int device = 0;
  std::uint32_t max_lanes = 1;
  std::size_t warps = 1;  // warps that the GPU runs at once
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Lane*> idle;
  bool lost = false;
  bool hangs = false;  // work may be under way that never ends
  std::string why;

  void lose(const std::string& text) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!lost) why = text;
      lost = true;
    }
    returned.notify_all();
  }
};

int device_of(const Context& context) {
  return context.device;
}

namespace {

/// One call. It holds a lane while it lives, and knows whether all has gone well so far. Steps after a failure do
/// nothing.
class Call {
 public:
  explicit Call(Context& context) : context_(context) {
    std::unique_lock<std::mutex> lock(context.mutex);
    context.returned.wait(
        lock, [&] { return context.lost || !context.idle.empty() || context.lanes.size() < context.max_lanes; });
    if (context.lost) {
      status_ = Status::failed;
      return;
    }
    if (context.idle.empty()) {
      context.lanes.push_back(std::make_unique<Lane>());
      lane_ = context.lanes.back().get();
    } else {
      lane_ = context.idle.back();
      context.idle.pop_back();
    }
    lock.unlock();
    check("cudaSetDevice", cudaSetDevice(context.device));
    // The last call on this lane had no memory for these, so they are made now.
    if (good() && lane_->stream == nullptr)
      check("cudaStreamCreate", cudaStreamCreateWithFlags(&lane_->stream, cudaStreamNonBlocking));
    for (cudaEvent_t* const event : {&lane_->begin, &lane_->end}) {
      if (good() && *event == nullptr) check("cudaEventCreate", cudaEventCreate(event));
    }
  }
  ~Call() {
    if (lane_ == nullptr) return;
    // Work that began before the failure may still be under way in the lane's own memory.
    if (!good() && lane_->stream != nullptr && !waits_in_vain_) (void)wait();
    if (waits_in_vain_) return;  // the lane is not returned, so nobody else gets it
    {
      const std::lock_guard<std::mutex> lock(context_.mutex);
      context_.idle.push_back(lane_);
    }
    context_.returned.notify_one();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] bool good() const { return status_ == Status::done; }
  [[nodiscard]] Status status() const { return status_; }
  [[nodiscard]] cudaStream_t stream() const { return lane_->stream; }

  void check(const char* what, cudaError_t error) {
    if (error == cudaSuccess || !good()) return;
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // clears the error for the next call
      status_ = Status::no_memory;
      return;
    }
    status_ = Status::failed;
    context_.lose(text_of(what, error));
  }

  /// Reserves memory for parts of these sizes, behind a flag that is set to zero.
  void reserve(std::initializer_list<std::size_t> parts) {
    std::size_t bytes = alignment;
    for (const std::size_t part : parts)
      bytes += rounded(part);
    used_ = 0;
    if (good() && bytes > lane_->bytes) {
      make_memory(bytes + least_growth_bytes);
    } else if (good() && lane_->scratch == nullptr) {
      make_scratch();
    }
    flag_ = take_zeros<std::uint32_t>(1);
  }
  /// Takes the next part of the reserved memory.
  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    if (!good()) return nullptr;
    auto* const part = reinterpret_cast<T*>(on_device() + used_);
    used_ += rounded(count * sizeof(T));
    return part;
  }
  template <class T>
  [[nodiscard]] T* take_zeros(std::size_t count) {
    T* const part = take<T>(count);
    if (!good()) return part;
    if (lane_->scratch == nullptr) {
      std::memset(part, 0, count * sizeof(T));
    } else {
      check("cudaMemsetAsync", cudaMemsetAsync(part, 0, count * sizeof(T), stream()));
    }
    return part;
  }
  /// Takes the next part and fills it with the host's values. Null gives null.
  template <class T>
  [[nodiscard]] T* bring(const T* from, std::size_t count) {
    if (from == nullptr) return nullptr;
    T* const part = take<T>(count);
    if (!good()) return part;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(from);
    std::uint8_t* const there = on_host(part);
    for (std::size_t at = 0, size = count * sizeof(T); good() && at < size; at += chunk_bytes) {
      const std::size_t chunk = std::min(chunk_bytes, size - at);
      std::memcpy(there + at, bytes + at, chunk);
      if (lane_->scratch == nullptr) continue;
      auto* const to = reinterpret_cast<std::uint8_t*>(part) + at;
      check("copy to the device", cudaMemcpyAsync(to, there + at, chunk, cudaMemcpyHostToDevice, stream()));
    }
    return part;
  }
  /// `to` has the values when finish() returns, if all went well; otherwise nothing has been written there.
  template <class T>
  void fetch(T* to, const T* part, std::size_t count) {
    if (!good() || count == 0) return;
    GOSSAMER_CHECK(fetches_ < max_fetches);
    const Fetch fetch{to, on_host(part), count * sizeof(T)};
    fetched_[fetches_++] = fetch;
    if (lane_->scratch == nullptr) return;
    // A copy to memory that is not locked waits inside the driver, and would hang there with the GPU.
    if (!lane_->locked) check("the device's work", wait());
    if (!good()) return;
    check("copy from the device", cudaMemcpyAsync(fetch.staged, part, fetch.bytes, cudaMemcpyDeviceToHost, stream()));
  }

  /// Launches `lanes` threads for each of `count` items, and nothing if there are no items.
  template <class... Parameters, class... Arguments>
  void launch(void (*kernel)(Parameters...), std::size_t count, std::size_t lanes, Arguments... arguments) {
    if (!good() || count == 0) return;
    const auto groups = static_cast<unsigned>((count * lanes + threads_a_group - 1) / threads_a_group);
    check("kernel launch",
          cuda::launch(kernel, groups, threads_a_group, stream(), static_cast<Parameters>(arguments)...));
  }
  void begin_timing() {
    if (good()) check("cudaEventRecord", cudaEventRecord(lane_->begin, stream()));
    timed_ = true;
  }
  void end_timing() {
    if (good()) check("cudaEventRecord", cudaEventRecord(lane_->end, stream()));
  }

  [[nodiscard]] std::uint32_t* flag() const { return flag_; }
  /// Waits for all of the call's work.
  [[nodiscard]] Status finish() {
    std::uint32_t raised = 0;
    if (flag_ != nullptr) fetch(&raised, flag_, 1);
    if (good()) check("the device's work", wait());
    if (good() && timed_) {
      float ms = 0;
      check("cudaEventElapsedTime", cudaEventElapsedTime(&ms, lane_->begin, lane_->end));
      kernel_s = static_cast<double>(ms) / 1000;
    }
    if (!good()) return status_;
    for (std::size_t n = 0; n < fetches_; ++n)
      std::memcpy(fetched_[n].to, fetched_[n].staged, fetched_[n].bytes);
    return raised == 0 ? Status::done : Status::not_finite;
  }

 private:
  /// Waits until the stream is empty. After `patience` the device counts as lost.
  [[nodiscard]] cudaError_t wait() {
    const auto begun = std::chrono::steady_clock::now();
    while (true) {
      const cudaError_t error = cudaStreamQuery(lane_->stream);
      if (error != cudaErrorNotReady) return error;
      (void)cudaGetLastError();  // clears the error for the next call
      const auto waited = std::chrono::steady_clock::now() - begun;
      if (waited > patience) break;
      if (waited > spinning) std::this_thread::sleep_for(pause);
    }
    waits_in_vain_ = true;
    status_ = Status::failed;
    {
      const std::lock_guard<std::mutex> lock(context_.mutex);
      context_.hangs = true;
    }
    context_.lose("the GPU hangs: its work was not done within " + std::to_string(patience.count()) + " s");
    return cudaErrorNotReady;
  }

  /// Makes the memory again with this size. Without room for scratch memory the lane does without it, if staging memory
  /// can be locked.
  void make_memory(std::size_t bytes) {
    Lane& lane = *lane_;
    check("freeing memory", lane.free_memory());
    if (!good()) return;
    void* memory = nullptr;
    // If the memory cannot be locked, the lane does without; a real failure shows at the next call.
    lane.locked = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped) == cudaSuccess;
    if (!lane.locked) (void)cudaGetLastError();  // clears the error for the next call
    lane.staging = static_cast<std::uint8_t*>(lane.locked ? memory : std::malloc(bytes));
    lane.bytes = bytes;
    lane.tried = {};
    if (lane.staging != nullptr) make_scratch();
    if (lane.staging != nullptr && (lane.scratch != nullptr || lane.locked)) return;
    (void)lane.free_memory();
    check("memory for a call", cudaErrorMemoryAllocation);
  }
  /// Makes scratch memory as long as the staging memory if the GPU has room. Does nothing soon after a try that failed.
  void make_scratch() {
    const auto now = std::chrono::steady_clock::now();
    if (now - lane_->tried < between_tries) return;
    lane_->tried = now;
    void* memory = nullptr;
    const cudaError_t room = cudaMalloc(&memory, lane_->bytes);
    if (room == cudaSuccess) {
      lane_->scratch = static_cast<std::uint8_t*>(memory);
    } else if (room == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // clears the error for the next call
    } else {
      check("cudaMalloc", room);
    }
  }
  [[nodiscard]] std::uint8_t* on_device() const {
    // Every GPU on 64-bit Linux has unified addresses, so locked memory has the same address for host and device.
    return lane_->scratch != nullptr ? lane_->scratch : lane_->staging;
  }
  /// The place of a part in the staging memory.
  [[nodiscard]] std::uint8_t* on_host(const void* part) const {
    return lane_->staging + (static_cast<const std::uint8_t*>(part) - on_device());
  }

  [[nodiscard]] static std::size_t rounded(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /// A part that finish() copies to the caller.
  struct Fetch {
    void* to;
    std::uint8_t* staged;
    std::size_t bytes;
  };

  Context& context_;
  Lane* lane_ = nullptr;
  Status status_ = Status::done;
  bool timed_ = false;
  bool waits_in_vain_ = false;
  std::size_t used_ = 0;
  std::uint32_t* flag_ = nullptr;
  std::array<Fetch, max_fetches> fetched_{};
  std::size_t fetches_ = 0;
};

/// Brings the list to the device. A list of the first blocks without a gap becomes null: no copy, and no search there.
BlockList listed(Call& call, const Blocks& blocks) {
  const bool gapless = blocks.count > 0 && blocks.blocks[blocks.count - 1] == blocks.count - 1;
  return {gapless ? nullptr : call.bring(blocks.blocks, blocks.count), blocks.count};
}

// ---- opening and memory

Status count_devices(std::int32_t* devices, char* error, std::size_t error_bytes) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  *devices = count;
  if (result == cudaSuccess) return Status::done;
  *devices = 0;
  if (result == cudaErrorNoDevice) return Status::done;
  const bool driver = result == cudaErrorInsufficientDriver;
  say(error, error_bytes,
      driver ? "there is no NVIDIA driver, or it is too old for this plug-in: " + cuda::needed_driver()
             : text_of("looking for GPUs", result));
  return Status::failed;
}

Status describe(std::int32_t device, DeviceInfo* info, char* error, std::size_t error_bytes) {
  cudaDeviceProp properties{};
  cudaError_t result = cudaGetDeviceProperties(&properties, device);
  if (result == cudaSuccess)
    result = cudaDeviceGetPCIBusId(info->bus_id, static_cast<int>(sizeof info->bus_id), device);
  if (result != cudaSuccess) {
    say(error, error_bytes, text_of("asking for a GPU's properties", result));
    return Status::failed;
  }
  std::snprintf(info->name, sizeof info->name, "%s", properties.name);
  info->memory_bytes = properties.totalGlobalMem;
  info->major = properties.major;
  info->minor = properties.minor;
  static_assert(sizeof info->uuid == sizeof properties.uuid);
  std::memcpy(info->uuid, &properties.uuid, sizeof info->uuid);
  return Status::done;
}

/// Launches every kernel without any blocks. The driver loads a kernel's code at its first launch, for which a GPU
/// might have no room later. A GPU for which the code was not compiled also fails here.
Status load_kernels(Context* context) {
  using gossip::cuda::apply_kernel, gossip::cuda::difference_kernel, gossip::cuda::encode_kernel;
  const FragmentView y{};
  const BlockList list{};
  const OuterArrays outer{};
  Call call(*context);
  call.reserve({});
  call.launch(gossip::cuda::copy_kernel, 1, 1, y, list, nullptr, nullptr);
  call.launch(encode_kernel<8>, 1, 1, y, list, 0, nullptr, nullptr, nullptr, nullptr);
  call.launch(encode_kernel<4>, 1, 1, y, list, 0, nullptr, nullptr, nullptr, nullptr);
  call.launch(gossip::cuda::difference_f32_kernel, 1, 1, y, list, nullptr, nullptr, nullptr, nullptr);
  call.launch(difference_kernel<8>, 1, 1, y, list, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  call.launch(difference_kernel<4>, 1, 1, y, list, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  call.launch(gossip::cuda::outcomes_f32_kernel, 1, 1, 0, nullptr, nullptr, nullptr, nullptr);
  call.launch(gossip::cuda::outcomes_kernel<8>, 1, 1, 0, nullptr, nullptr, nullptr, nullptr);
  call.launch(gossip::cuda::outcomes_kernel<4>, 1, 1, 0, nullptr, nullptr, nullptr, nullptr);
  call.launch(apply_kernel<Codec::f32>, 1, 1, 0, 0, list, nullptr, nullptr, 0, nullptr, nullptr);
  call.launch(apply_kernel<Codec::q8>, 1, 1, 0, 0, list, nullptr, nullptr, 0, nullptr, nullptr);
  call.launch(apply_kernel<Codec::q4>, 1, 1, 0, 0, list, nullptr, nullptr, 0, nullptr, nullptr);
  call.launch(gossip::cuda::outer_check_kernel, 1, 1, outer, 0, nullptr);
  call.launch(gossip::cuda::outer_write_kernel, 1, 1, outer, 0, nullptr);
  call.launch(gossip::cuda::mean_check_kernel, 1, 1, nullptr, 0, 0, nullptr);
  call.launch(gossip::cuda::mean_kernel, 1, 1, nullptr, 0, nullptr, 0, nullptr);
  call.launch(gossip::cuda::step_kernel, 1, 1, nullptr, nullptr, false, nullptr, 0);
  return call.finish();
}

void close_context(Context* context) {
  if (context == nullptr) return;
  if (context->hangs) return;  // freeing would hang as well; the process's end frees it
  // Errors are ignored here, because nothing more is done with the context. A lost device has freed everything itself.
  (void)cudaSetDevice(context->device);
  for (const auto& lane : context->lanes) {
    (void)lane->free_memory();
    if (lane->begin != nullptr) (void)cudaEventDestroy(lane->begin);
    if (lane->end != nullptr) (void)cudaEventDestroy(lane->end);
    if (lane->stream != nullptr) (void)cudaStreamDestroy(lane->stream);
  }
  (void)cudaGetLastError();
  delete context;
}

Status open_context(std::int32_t device, std::uint32_t max_streams, Context** context, char* error,
                    std::size_t error_bytes) {
  *context = nullptr;
  cudaError_t result = cudaSetDevice(device);
  // This makes the primary context, and shows whether the device can be used.
  if (result == cudaSuccess) result = cudaFree(nullptr);
  cudaDeviceProp properties{};
  if (result == cudaSuccess) result = cudaGetDeviceProperties(&properties, device);
  if (result != cudaSuccess) {
    say(error, error_bytes, text_of("opening a GPU", result));
    return Status::failed;
  }
  auto* const made = new (std::nothrow) Context;
  if (made == nullptr) {
    say(error, error_bytes, "opening a GPU: out of memory");
    return Status::failed;
  }
  made->device = device;
  made->max_lanes = max_streams == 0 ? 1 : max_streams;
  const int threads = properties.multiProcessorCount * properties.maxThreadsPerMultiProcessor;
  made->warps = static_cast<std::size_t>(std::max(threads, static_cast<int>(threads_a_group))) / warp_lanes;
  if (const Status loaded = load_kernels(made); loaded != Status::done) {
    const bool full = loaded == Status::no_memory;
    say(error, error_bytes, "opening a GPU: " + (full ? "it has no room for the kernels" : made->why));
    close_context(made);
    return Status::failed;
  }
  *context = made;
  return Status::done;
}

const char* error_of(const Context* context) {
  return context->why.c_str();
}

Status allocate(Context* context, std::size_t bytes, void** device_memory) {
  Call call(*context);
  *device_memory = nullptr;
  if (call.good()) call.check("cudaMalloc", cudaMalloc(device_memory, bytes));
  return call.status();
}

/// This is also tried on a device that counts as lost, because the driver may have survived the error.
Status release(Context* context, void* device_memory) {
  {
    const std::lock_guard<std::mutex> lock(context->mutex);
    if (context->hangs) return Status::failed;  // freeing would hang as well
  }
  cudaError_t result = cudaSetDevice(context->device);
  const cudaError_t freed = cudaFree(device_memory);
  if (result == cudaSuccess) result = freed;
  if (result == cudaSuccess) return Status::done;
  context->lose(text_of("cudaFree", result));
  return Status::failed;
}

Status transfer(Context* context, void* to, const void* from, std::size_t bytes) {
  Call call(*context);
  call.begin_timing();
  if (call.good()) call.check("copy", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, call.stream()));
  call.end_timing();
  return call.finish();
}

/// A float of all zero bits is zero.
Status clear(Context* context, float* device_memory, std::size_t elements) {
  Call call(*context);
  call.begin_timing();
  if (call.good()) {
    call.check("cudaMemsetAsync", cudaMemsetAsync(device_memory, 0, elements * sizeof(float), call.stream()));
  }
  call.end_timing();
  return call.finish();
}

Status memory_of(Context* context, std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  Call call(*context);
  std::size_t free = 0;
  std::size_t total = 0;
  if (call.good()) call.check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
  *free_bytes = free;
  *total_bytes = total;
  return call.status();
}

// ---- the codec

Status encode(Context* context, Codec codec, const FragmentView* y, Blocks blocks, std::uint64_t seed,
              std::int8_t* exponents, std::uint16_t* checks, std::uint8_t* values) {
  const std::size_t count = blocks.count;
  const std::size_t values_bytes = count * codec_block_bytes(codec);
  Call call(*context);
  call.reserve({count * sizeof(std::uint32_t), count, count * sizeof(std::uint16_t), values_bytes});
  const BlockList list = listed(call, blocks);
  auto* const used = codec == Codec::f32 ? nullptr : call.bring(exponents, count);
  auto* const sums = call.take<std::uint16_t>(count);
  auto* const packed = call.take<std::uint8_t>(values_bytes);
  call.begin_timing();
  if (codec == Codec::f32) {
    call.launch(gossip::cuda::copy_kernel, count, warp_lanes, *y, list, reinterpret_cast<float*>(packed), call.flag());
  } else {
    const auto kernel = codec == Codec::q8 ? gossip::cuda::encode_kernel<8> : gossip::cuda::encode_kernel<4>;
    call.launch(kernel, std::min(count, context->warps), warp_lanes, *y, list, seed, used, sums, packed, call.flag());
  }
  call.end_timing();
  call.fetch(values, packed, values_bytes);
  if (codec != Codec::f32) {
    call.fetch(exponents, used, count);
    call.fetch(checks, sums, count);
  }
  return call.finish();
}

Status difference(Context* context, Codec codec, const FragmentView* y, Blocks blocks, std::uint64_t seed,
                  const std::int8_t* exponents, const std::uint16_t* checks, const std::uint8_t* values,
                  std::uint8_t* differences, BlockOutcome* outcomes) {
  const std::size_t count = blocks.count;
  const std::size_t bytes = count * codec_block_bytes(codec);
  const bool lattice = codec != Codec::f32;
  Call call(*context);
  call.reserve({count * sizeof(std::uint32_t), count, count * sizeof(std::uint16_t), bytes, bytes,
                count * sizeof(BlockOutcome)});
  const BlockList list = listed(call, blocks);
  const auto* const used = lattice ? call.bring(exponents, count) : nullptr;
  const auto* const sums = lattice ? call.bring(checks, count) : nullptr;
  const auto* const sent = call.bring(values, bytes);
  auto* const out = call.take<std::uint8_t>(bytes);
  auto* const found = call.take<BlockOutcome>(count);
  call.begin_timing();
  if (lattice) {
    const auto kernel = codec == Codec::q8 ? gossip::cuda::difference_kernel<8> : gossip::cuda::difference_kernel<4>;
    call.launch(kernel, std::min(count, context->warps), warp_lanes, *y, list, seed, used, sums, sent, out, found,
                call.flag());
  } else {
    call.launch(gossip::cuda::difference_f32_kernel, count, gossip::cuda::sum_lanes, *y, list,
                reinterpret_cast<const float*>(sent), reinterpret_cast<float*>(out), found, call.flag());
  }
  call.end_timing();
  call.fetch(differences, out, bytes);
  call.fetch(outcomes, found, count);
  return call.finish();
}

Status outcomes_of(Context* context, Codec codec, std::uint32_t count, const std::int8_t* exponents,
                   const std::uint8_t* differences, const std::uint8_t* wide, BlockOutcome* outcomes) {
  const std::size_t bytes = count * codec_block_bytes(codec);
  const std::size_t wide_bytes = (count + 7) / 8;
  Call call(*context);
  call.reserve({count, bytes, wide_bytes, count * sizeof(BlockOutcome)});
  const auto* const used = codec == Codec::f32 ? nullptr : call.bring(exponents, count);
  const auto* const packed = call.bring(differences, bytes);
  const auto* const bitmap = call.bring(wide, wide_bytes);
  auto* const found = call.take<BlockOutcome>(count);
  call.begin_timing();
  if (codec == Codec::f32) {
    call.launch(gossip::cuda::outcomes_f32_kernel, count, gossip::cuda::sum_lanes, count,
                reinterpret_cast<const float*>(packed), bitmap, found, call.flag());
  } else {
    const bool q8 = codec == Codec::q8;
    call.launch(q8 ? gossip::cuda::outcomes_kernel<8> : gossip::cuda::outcomes_kernel<4>, count,
                q8 ? gossip::cuda::outcome_lanes<8> : gossip::cuda::outcome_lanes<4>, count, used, packed, bitmap,
                found);
  }
  call.end_timing();
  call.fetch(outcomes, found, count);
  return call.finish();
}

Status apply(Context* context, Codec codec, std::int32_t shift, std::int32_t sign, Blocks blocks,
             const std::int8_t* exponents, const std::uint8_t* differences, std::uint32_t block_count, const float* in,
             float* out) {
  const std::size_t count = blocks.count;
  const std::size_t bytes = count * codec_block_bytes(codec);
  Call call(*context);
  call.reserve({count * sizeof(std::uint32_t), count, bytes});
  const BlockList list = listed(call, blocks);
  const auto* const used = codec == Codec::f32 ? nullptr : call.bring(exponents, count);
  const auto* const packed = call.bring(differences, bytes);
  const auto kernel = codec == Codec::f32  ? gossip::cuda::apply_kernel<Codec::f32>
                      : codec == Codec::q8 ? gossip::cuda::apply_kernel<Codec::q8>
                                           : gossip::cuda::apply_kernel<Codec::q4>;
  call.begin_timing();
  call.launch(kernel, block_count, warp_lanes, shift, sign, list, used, packed, block_count, in, out);
  call.end_timing();
  return call.finish();
}

Status sum(Context* context, const FragmentView* y, std::uint32_t block_count, float* out) {
  Call call(*context);
  call.reserve({});
  call.begin_timing();
  call.launch(gossip::cuda::copy_kernel, block_count, warp_lanes, *y, BlockList{nullptr, block_count}, out,
              call.flag());
  call.end_timing();
  return call.finish();
}

// ---- training

Status outer_step(Context* context, const OuterArrays* outer, std::uint32_t block_count) {
  const auto elements = static_cast<std::uint32_t>(block_count * block_elements);
  Call call(*context);
  call.reserve({2 * outer->left_out_count * sizeof(std::uint32_t)});
  OuterArrays there = *outer;
  there.left_out = call.bring(outer->left_out, 2 * std::size_t{outer->left_out_count});
  call.begin_timing();
  call.launch(gossip::cuda::outer_check_kernel, elements, 1, there, elements, call.flag());
  call.launch(gossip::cuda::outer_write_kernel, elements, 1, there, elements, call.flag());
  call.end_timing();
  return call.finish();
}

Status local_mean(Context* context, const ClientArrays* clients, std::uint32_t count, float* y,
                  std::uint32_t block_count, std::uint32_t* found) {
  const auto elements = static_cast<std::uint32_t>(block_count * block_elements);
  Call call(*context);
  call.reserve({count * sizeof(ClientArrays), count * sizeof(std::uint32_t)});
  const auto* const there = call.bring(clients, count);
  auto* const words = call.take_zeros<std::uint32_t>(count);
  call.begin_timing();
  call.launch(gossip::cuda::mean_check_kernel, elements / 4, 1, there, count, elements, words);
  call.launch(gossip::cuda::mean_kernel, elements / 4, 1, there, count, y, elements, words);
  call.end_timing();
  call.fetch(found, words, count);
  return call.finish();
}

Status step(Context* context, float* live, const float* correction, bool replace, float* snapshot,
            std::uint32_t elements) {
  Call call(*context);
  call.begin_timing();
  call.launch(gossip::cuda::step_kernel, elements, 1, live, correction, replace, snapshot, elements);
  call.end_timing();
  return call.finish();
}

double last_kernel_s(const Context*) {
  return kernel_s;
}

/// No exception leaves the plug-in. The functions throw only if the host has no memory for them.
template <auto function>
struct Guarded;
template <class... Parameters, Status (*function)(Context*, Parameters...)>
struct Guarded<function> {
  static Status call(Context* context, Parameters... parameters) noexcept {
    try {
      return function(context, parameters...);
    } catch (const std::bad_alloc&) {
      return Status::no_memory;
    }
  }
};

constexpr PluginTable table = {
    plugin_version,
    sizeof(PluginTable),
    count_devices,
    describe,
    open_context,
    close_context,
    error_of,
    Guarded<allocate>::call,
    Guarded<release>::call,
    Guarded<transfer>::call,
    Guarded<transfer>::call,
    Guarded<transfer>::call,
    sharing::import,
    sharing::forget,
    sharing::pin,
    sharing::unpin,
    Guarded<clear>::call,
    Guarded<memory_of>::call,
    Guarded<encode>::call,
    Guarded<difference>::call,
    Guarded<outcomes_of>::call,
    Guarded<apply>::call,
    Guarded<sum>::call,
    Guarded<outer_step>::call,
    Guarded<local_mean>::call,
    Guarded<step>::call,
    last_kernel_s,
    nccl::join,
    nccl::progress,
    nccl::all_reduce,
    nccl::abandon,
};

}  // namespace
}  // namespace gossamer::device

extern "C" __attribute__((visibility("default"))) const gossamer::device::PluginTable* gossamer_cuda_plugin() {
  return &gossamer::device::table;
}
