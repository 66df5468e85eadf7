// libgossamer_client_cuda.so: passes on one GPU behind the functions of sdk/cuda/plugin_abi.hpp. Each launch borrows a
// set of tables (pinned host memory, its copy on the device, counters, two events) until its second event has passed.
//
// Loaded by sdk/c/device_plugin.cpp. One thread at a time may use a context. Invariants: launch(), copy() and idle()
// never wait for the device; an error of the CUDA runtime that concerns the device is kept in the context, and nothing
// is launched after it.

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "sdk/cuda/launch.cuh"
#include "sdk/cuda/pass.cuh"
#include "sdk/cuda/shared_allocation.hpp"

namespace gossamer::client::cuda {
namespace {

/// This many passes can be under way at once. Each step with due fragments adds one, and the device may be several
/// steps behind.
constexpr std::size_t max_passes = 8;
/// Each part of the tables begins at a multiple of this.
constexpr std::size_t alignment = 16;

[[nodiscard]] constexpr std::size_t rounded(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

void say(char* error, std::size_t error_bytes, const std::string& text) {
  if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s", text.c_str());
}

/// Makes a device this thread's current one for as long as the object lives. Calls in that time do not disturb a graph
/// that the program is capturing.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    if (cudaThreadExchangeStreamCaptureMode(&capture_) != cudaSuccess) (void)cudaGetLastError();
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
    if (cudaThreadExchangeStreamCaptureMode(&capture_) != cudaSuccess) (void)cudaGetLastError();
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  [[nodiscard]] cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaStreamCaptureMode capture_ = cudaStreamCaptureModeRelaxed;  // swapped with the thread's mode
  cudaError_t error_;
};

/// The offsets of the parts of a pass in its tables.
struct Offsets {
  explicit Offsets(PassLimits limits)
      : first_group(rounded(limits.pieces * sizeof(Piece))),
        publications(first_group + rounded(limits.pieces * sizeof(std::uint32_t))),
        groups(publications + rounded(limits.publications * sizeof(Publication))),
        bytes(groups + rounded(limits.publications * sizeof(std::uint32_t))) {}
  std::size_t first_group, publications, groups, bytes;
};

struct Tables {
  std::uint8_t* host = nullptr;
  std::uint8_t* device = nullptr;
  std::uint32_t* ended = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  bool busy = false;
};

}  // namespace

struct Context {
  int device = 0;
  PassLimits limits{};
  cudaUUID_t uuid{};
  std::array<Tables, max_passes> tables;
  cudaStream_t copies = nullptr;
  cudaEvent_t copied = nullptr;
  bool copying = false;
  std::uint64_t pass_ns = 0;
  std::string failure;  ///< the device's first error; empty: none

  /// Reports an error of the device. The caller's text goes to `error`.
  [[nodiscard]] PassStatus fail(const char* what, cudaError_t result, char* error, std::size_t error_bytes) {
    (void)cudaGetLastError();  // clears the error for the next call
    if (failure.empty()) failure = std::string(what) + ": " + cudaGetErrorString(result);
    say(error, error_bytes, failure);
    return PassStatus::failed;
  }
};

namespace {

PassStatus locate(const void* address, std::int32_t* device, char* error, std::size_t error_bytes) noexcept {
  *device = -1;
  cudaPointerAttributes attributes{};
  const cudaError_t result = cudaPointerGetAttributes(&attributes, address);
  if (result == cudaErrorInvalidValue) {  // older runtimes report host memory this way
    (void)cudaGetLastError();
    return PassStatus::done;
  }
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    const bool old = result == cudaErrorInsufficientDriver;
    say(error, error_bytes,
        std::string("the NVIDIA driver: ") + cudaGetErrorString(result) +
            (old ? "; " + gossamer::cuda::needed_driver() : std::string()));
    return PassStatus::failed;
  }
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) *device = attributes.device;
  return PassStatus::done;
}

/// Frees all that a context has. A part that was not made is null.
void free_all(Context& context) {
  for (Tables& tables : context.tables) {
    if (tables.host != nullptr) (void)cudaFreeHost(tables.host);
    if (tables.device != nullptr) (void)cudaFree(tables.device);
    if (tables.begin != nullptr) (void)cudaEventDestroy(tables.begin);
    if (tables.end != nullptr) (void)cudaEventDestroy(tables.end);
  }
  if (context.copied != nullptr) (void)cudaEventDestroy(context.copied);
  if (context.copies != nullptr) (void)cudaStreamDestroy(context.copies);
  (void)cudaGetLastError();
}

[[nodiscard]] cudaError_t make_tables(const Context& context, Tables& tables) {
  const std::size_t bytes = Offsets(context.limits).bytes;
  const std::size_t counters_bytes = context.limits.publications * sizeof(std::uint32_t);
  void* memory = nullptr;
  cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  if (result != cudaSuccess) return result;
  tables.host = static_cast<std::uint8_t*>(memory);
  result = cudaMalloc(&memory, bytes + counters_bytes);
  if (result != cudaSuccess) return result;
  tables.device = static_cast<std::uint8_t*>(memory);
  tables.ended = reinterpret_cast<std::uint32_t*>(tables.device + bytes);
  result = cudaMemset(tables.ended, 0, counters_bytes);
  if (result != cudaSuccess) return result;
  result = cudaEventCreate(&tables.begin);
  if (result != cudaSuccess) return result;
  return cudaEventCreate(&tables.end);
}

[[nodiscard]] cudaError_t make_all(Context& context) {
  cudaDeviceProp properties{};
  cudaError_t result = cudaGetDeviceProperties(&properties, context.device);
  if (result != cudaSuccess) return result;
  context.uuid = properties.uuid;
  for (Tables& tables : context.tables) {
    result = make_tables(context, tables);
    if (result != cudaSuccess) return result;
  }
  result = cudaStreamCreateWithFlags(&context.copies, cudaStreamNonBlocking);
  if (result != cudaSuccess) return result;
  result = cudaEventCreateWithFlags(&context.copied, cudaEventDisableTiming);
  if (result != cudaSuccess) return result;
  return cudaDeviceSynchronize();  // so that the counters are zero from now on
}

PassStatus open(std::int32_t device, PassLimits limits, Context** context, char* error,
                std::size_t error_bytes) noexcept {
  *context = nullptr;
  std::unique_ptr<Context> made(new (std::nothrow) Context);
  if (!made) return PassStatus::no_memory;
  made->device = device;
  made->limits = limits;
  const CurrentDevice current(device);
  const cudaError_t result = current.error() == cudaSuccess ? make_all(*made) : current.error();
  if (result == cudaSuccess) {
    *context = made.release();
    return PassStatus::done;
  }
  free_all(*made);
  say(error, error_bytes, "GPU " + std::to_string(device) + ": " + cudaGetErrorString(result));
  return result == cudaErrorMemoryAllocation ? PassStatus::no_memory : PassStatus::failed;
}

// Memory is given back even if the device has failed. The current device is set only so that the runtime does not make
// a context on another GPU.

void close(Context* context) noexcept {
  if (context == nullptr) return;
  {
    const CurrentDevice current(context->device);
    free_all(*context);
  }
  delete context;
}

void uuid(const Context* context, std::uint8_t uuid[16]) noexcept {
  static_assert(sizeof context->uuid == 16);
  std::memcpy(uuid, &context->uuid, 16);
}

/// Runs `work` with the context's GPU as the current device.
template <class Work>
PassStatus on_device(Context& context, char* error, std::size_t error_bytes, const Work& work) {
  if (!context.failure.empty()) {
    say(error, error_bytes, context.failure);
    return PassStatus::failed;
  }
  const CurrentDevice current(context.device);
  if (current.error() != cudaSuccess) return context.fail("cudaSetDevice", current.error(), error, error_bytes);
  return work();
}

PassStatus share(Context* context, std::uint64_t bytes, SharedMemory* memory, char* error,
                 std::size_t error_bytes) noexcept {
  return on_device(*context, error, error_bytes,
                   [&] { return share_memory(context->device, bytes, memory, error, error_bytes); });
}

void unshare(Context* context, const SharedMemory* memory) noexcept {
  const CurrentDevice current(context->device);
  unshare_memory(*memory);
}

PassStatus pin(Context* context, void* memory, std::uint64_t bytes, void** device_memory, char* error,
               std::size_t error_bytes) noexcept {
  return on_device(*context, error, error_bytes,
                   [&] { return pin_memory(memory, bytes, device_memory, error, error_bytes); });
}

void unpin(Context* context, void* memory) noexcept {
  const CurrentDevice current(context->device);
  unpin_memory(memory);
}

/// Finds out which passes and copies have ended.
[[nodiscard]] PassStatus look(Context& context, char* error, std::size_t error_bytes) {
  for (Tables& tables : context.tables) {
    if (!tables.busy) continue;
    const cudaError_t result = cudaEventQuery(tables.end);
    if (result == cudaErrorNotReady) continue;
    if (result != cudaSuccess) return context.fail("a pass over the model", result, error, error_bytes);
    tables.busy = false;
    float ms = 0;
    if (cudaEventElapsedTime(&ms, tables.begin, tables.end) == cudaSuccess && ms > 0)
      context.pass_ns += static_cast<std::uint64_t>(ms * 1e6F);
  }
  if (context.copying) {
    const cudaError_t result = cudaEventQuery(context.copied);
    if (result != cudaSuccess && result != cudaErrorNotReady)
      return context.fail("a copy of the model", result, error, error_bytes);
    context.copying = result != cudaSuccess;
  }
  (void)cudaGetLastError();  // clears "not ready" for the next call
  return PassStatus::done;
}

/// Writes a pass into its tables. Returns the number of groups of threads that it takes.
[[nodiscard]] std::uint32_t fill(std::uint8_t* host, const Offsets& offsets, const Piece* pieces,
                                 std::uint32_t piece_count, const Publication* publications,
                                 std::uint32_t publication_count) {
  std::memcpy(host, pieces, piece_count * sizeof(Piece));
  std::memcpy(host + offsets.publications, publications, publication_count * sizeof(Publication));
  auto* const first_group = reinterpret_cast<std::uint32_t*>(host + offsets.first_group);
  auto* const groups = reinterpret_cast<std::uint32_t*>(host + offsets.groups);
  std::memset(groups, 0, publication_count * sizeof(std::uint32_t));
  std::uint32_t all = 0;
  for (std::uint32_t p = 0; p < piece_count; ++p) {
    const std::uint32_t of_piece = (pieces[p].count + group_elements - 1) / group_elements;
    first_group[p] = all;
    groups[pieces[p].fragment] += of_piece;
    all += of_piece;
  }
  return all;
}

/// Enqueues the copy of the tables to the device and the kernel, between two events.
[[nodiscard]] cudaError_t enqueue(Tables& tables, const Offsets& offsets, std::uint32_t piece_count,
                                  std::uint32_t group_count, cudaStream_t stream) {
  cudaError_t result = cudaMemcpyAsync(tables.device, tables.host, offsets.bytes, cudaMemcpyHostToDevice, stream);
  if (result != cudaSuccess) return result;
  const Pass pass{reinterpret_cast<const Piece*>(tables.device),
                  reinterpret_cast<const std::uint32_t*>(tables.device + offsets.first_group),
                  piece_count,
                  reinterpret_cast<const Publication*>(tables.device + offsets.publications),
                  reinterpret_cast<const std::uint32_t*>(tables.device + offsets.groups),
                  tables.ended};
  result = gossamer::cuda::launch(pass_kernel, group_count, threads_a_group, stream, pass);
  if (result != cudaSuccess) return result;
  return cudaEventRecord(tables.end, stream);
}

[[nodiscard]] bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t result = cudaStreamIsCapturing(stream, &status);
  if (result == cudaErrorStreamCaptureImplicit) (void)cudaGetLastError();
  return result == cudaErrorStreamCaptureImplicit || (result == cudaSuccess && status != cudaStreamCaptureStatusNone);
}

[[nodiscard]] PassStatus launch_here(Context& context, cudaStream_t stream, const Piece* pieces,
                                     std::uint32_t piece_count, const Publication* publications,
                                     std::uint32_t publication_count, char* error, std::size_t error_bytes) {
  if (is_capturing(stream)) {
    say(error, error_bytes, "the stream is being captured into a graph: call this outside of the capture");
    return PassStatus::impossible;
  }
  if (const PassStatus status = look(context, error, error_bytes); status != PassStatus::done) return status;
  Tables* tables = nullptr;
  for (Tables& candidate : context.tables) {
    if (!candidate.busy) tables = &candidate;
  }
  if (tables == nullptr) {
    say(error, error_bytes, "the device is behind with passes that were launched before");
    return PassStatus::busy;
  }
  const Offsets offsets({piece_count, publication_count});
  const std::uint32_t groups = fill(tables->host, offsets, pieces, piece_count, publications, publication_count);
  cudaError_t result = cudaEventRecord(tables->begin, stream);
  if (result == cudaErrorInvalidResourceHandle || result == cudaErrorInvalidValue) {
    (void)cudaGetLastError();
    say(error, error_bytes,
        "the stream does not belong to GPU " + std::to_string(context.device) +
            ", where the tensors are: " + cudaGetErrorString(result));
    return PassStatus::impossible;
  }
  if (result == cudaSuccess) result = enqueue(*tables, offsets, piece_count, groups, stream);
  if (result != cudaSuccess) return context.fail("launching a pass over the model", result, error, error_bytes);
  tables->busy = true;
  return PassStatus::done;
}

PassStatus launch(Context* context, void* stream, const Piece* pieces, std::uint32_t piece_count,
                  const Publication* publications, std::uint32_t publication_count, char* error,
                  std::size_t error_bytes) noexcept {
  if (piece_count == 0) return PassStatus::done;
  if (piece_count > context->limits.pieces || publication_count > context->limits.publications) {
    say(error, error_bytes, "a pass of more pieces than the run was opened for");
    return PassStatus::impossible;
  }
  return on_device(*context, error, error_bytes, [&] {
    return launch_here(*context, static_cast<cudaStream_t>(stream), pieces, piece_count, publications,
                       publication_count, error, error_bytes);
  });
}

PassStatus copy(Context* context, void* to, const void* from, std::uint64_t bytes, char* error,
                std::size_t error_bytes) noexcept {
  return on_device(*context, error, error_bytes, [&] {
    cudaError_t result = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context->copies);
    if (result == cudaSuccess) result = cudaEventRecord(context->copied, context->copies);
    if (result != cudaSuccess) return context->fail("copying the model", result, error, error_bytes);
    context->copying = true;
    return PassStatus::done;
  });
}

PassStatus idle(Context* context, bool* idle, char* error, std::size_t error_bytes) noexcept {
  *idle = false;
  return on_device(*context, error, error_bytes, [&] {
    const PassStatus status = look(*context, error, error_bytes);
    *idle = status == PassStatus::done && !context->copying;
    for (const Tables& tables : context->tables)
      *idle = *idle && !tables.busy;
    return status;
  });
}

std::uint64_t pass_ns(const Context* context) noexcept {
  return context->pass_ns;
}

constexpr ClientPluginTable table = {plugin_version,
                                     sizeof(ClientPluginTable),
                                     locate,
                                     open,
                                     close,
                                     uuid,
                                     share,
                                     unshare,
                                     pin,
                                     unpin,
                                     launch,
                                     copy,
                                     idle,
                                     pass_ns};

}  // namespace
}  // namespace gossamer::client::cuda

extern "C" __attribute__((visibility("default"))) const gossamer::client::cuda::ClientPluginTable*
gossamer_client_cuda_plugin() {
  return &gossamer::client::cuda::table;
}
