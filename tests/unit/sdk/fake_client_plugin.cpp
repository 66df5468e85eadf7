// A plug-in of libgossamer that does on host memory what client_plugin.cu does on a GPU. Device memory is a mapping
// whose address the plug-in knows, a stream is a thread, shared memory is a memfd, and pinned memory has one address
// for the device and another for the host. Tests hold streams, and choose what is refused or fails.
//
// Any thread may call it, but one at a time for a context. Nothing is ever destroyed: the threads of streams live until
// the process ends.

#include "tests/unit/sdk/fake_client_plugin.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "sdk/cuda/element.hpp"
#include "sdk/cuda/plugin_abi.hpp"

namespace gossamer::client::cuda {

struct Context {
  int device = 0;
  PassLimits limits{};
  std::atomic<int> under_way{0};
  std::atomic<std::uint64_t> pass_ns{0};
};

namespace {

/// The page size of NVIDIA's GPUs.
constexpr std::size_t page_bytes = std::size_t{2} << 20;
/// The real plug-in has as many.
constexpr int max_passes = 8;

class Stream {
 public:
  void enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !working_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !held_ && !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      working_ = true;
      lock.unlock();
      work();
      lock.lock();
      working_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool started_ = false;
  bool held_ = false;
  bool working_ = false;
};

struct Range {
  std::size_t bytes;
  int device;
  bool mapped;
};

struct Machine {
  std::mutex mutex;
  std::map<const std::byte*, Range> ranges;
  std::set<Context*> contexts;                            // with those that their run has abandoned
  std::map<void*, std::pair<void*, std::size_t>> pinned;  // by the address on the host
  Stream default_stream;
  Stream copies;
  std::atomic<std::uint64_t> launches{0};
  std::atomic<int> holdings{0};
  std::atomic<bool> refuses_share{false};
  std::atomic<bool> refuses_pin{false};
  std::atomic<bool> is_busy{false};
  std::atomic<int> fails_after{-1};
  std::atomic<bool> failed{false};
  std::atomic<int> failures{0};  // work launched before a failure is never done
};

Machine& machine() {
  static auto* const the_machine = new Machine;
  return *the_machine;
}

/// For processes in which the test cannot call functions. FAKE_GPU may have "no-share", "no-pin" and "no-gpu".
bool environment_says(std::string_view what) {
  const char* const said = std::getenv("FAKE_GPU");
  return said != nullptr && std::string_view(said).find(what) != std::string_view::npos;
}

PassStatus say(PassStatus status, char* error, std::size_t error_bytes, const char* text) {
  std::snprintf(error, error_bytes, "%s", text);
  return status;
}
PassStatus failed(char* error, std::size_t error_bytes) {
  return say(PassStatus::failed, error, error_bytes, "fake failure");
}

Stream& stream_of(void* stream) {
  return stream == nullptr ? machine().default_stream : *static_cast<Stream*>(stream);
}

void add_range(void* memory, std::size_t bytes, int device, bool mapped) {
  const std::lock_guard lock(machine().mutex);
  machine().ranges[static_cast<const std::byte*>(memory)] = {bytes, device, mapped};
}

PassStatus locate(const void* address, std::int32_t* device, char* error, std::size_t error_bytes) {
  *device = -1;
  if (environment_says("no-gpu")) return say(PassStatus::failed, error, error_bytes, "no fake GPU");
  const std::lock_guard lock(machine().mutex);
  const auto* const at = static_cast<const std::byte*>(address);
  auto after = machine().ranges.upper_bound(at);
  if (after == machine().ranges.begin()) return PassStatus::done;
  --after;
  if (at < after->first + after->second.bytes) *device = after->second.device;
  return PassStatus::done;
}

PassStatus open(std::int32_t device, PassLimits limits, Context** context, char* error, std::size_t error_bytes) {
  if (machine().failed) return failed(error, error_bytes);
  *context = new Context{.device = device, .limits = limits};
  ++machine().holdings;
  const std::lock_guard lock(machine().mutex);
  machine().contexts.insert(*context);
  return PassStatus::done;
}

void close(Context* context) {
  if (context->under_way != 0 && !machine().failed) std::abort();  // closing is not allowed while work is running
  {
    const std::lock_guard lock(machine().mutex);
    machine().contexts.erase(context);
  }
  delete context;
  --machine().holdings;
}

void uuid(const Context* context, std::uint8_t uuid[16]) {
  std::memset(uuid, 0xa5, 16);  // the UUID of the daemon's fake GPUs
  uuid[15] = static_cast<std::uint8_t>(context->device);
}

PassStatus share(Context* context, std::uint64_t bytes, SharedMemory* memory, char* error, std::size_t error_bytes) {
  if (machine().failed) return failed(error, error_bytes);
  if (machine().refuses_share || environment_says("no-share"))
    return say(PassStatus::impossible, error, error_bytes, "fake refusal to share");
  const std::uint64_t rounded = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  const int descriptor = memfd_create("fake-gpu", MFD_CLOEXEC);
  void* base = MAP_FAILED;
  if (ftruncate(descriptor, static_cast<off_t>(rounded)) == 0)
    base = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) std::abort();
  add_range(base, rounded, context->device, true);
  *memory = {base, rounded, descriptor};
  ++machine().holdings;
  return PassStatus::done;
}

void unshare(Context*, const SharedMemory* memory) {
  fake_free(memory->base);
  --machine().holdings;
}

PassStatus pin(Context*, void* memory, std::uint64_t bytes, void** device_memory, char* error,
               std::size_t error_bytes) {
  if (machine().failed) return failed(error, error_bytes);
  if (machine().refuses_pin || environment_says("no-pin"))
    return say(PassStatus::impossible, error, error_bytes, "fake refusal to pin");
  // The same pages, at another address.
  void* const there = mremap(memory, 0, bytes, MREMAP_MAYMOVE);
  if (there == MAP_FAILED) return say(PassStatus::no_memory, error, error_bytes, std::strerror(errno));
  *device_memory = there;
  const std::lock_guard lock(machine().mutex);
  machine().pinned[memory] = {there, bytes};
  ++machine().holdings;
  return PassStatus::done;
}

void unpin(Context*, void* memory) {
  const std::lock_guard lock(machine().mutex);
  const auto found = machine().pinned.find(memory);
  if (found == machine().pinned.end()) std::abort();
  munmap(found->second.first, found->second.second);
  machine().pinned.erase(found);
  --machine().holdings;
}

template <class T>
void serve(const Piece& piece) {
  T* const x = static_cast<T*>(piece.x);
  const std::uint32_t random = element::mixed(piece.dither);
  for (std::uint32_t i = 0; i < piece.count; ++i) {
    const std::uint32_t sequence = random + i * element::golden_ratio;
    switch (piece.mode) {
      case Mode::none:
        piece.snapshot[i] = element::snapshot_of(x[i]);
        break;
      case Mode::add:
        piece.snapshot[i] = element::store(x[i], element::sum(x[i], piece.correction[i]), sequence);
        break;
      case Mode::replace:
        piece.snapshot[i] = element::store(x[i], piece.correction[i], sequence);
        break;
      case Mode::add_within:
        piece.snapshot[i] =
            element::store(x[i], element::sum_within(x[i], piece.correction[i], piece.before[i]), sequence);
        break;
    }
  }
}

void work_on(const std::vector<Piece>& pieces, const std::vector<Publication>& publications) {
  for (std::uint32_t f = 0; f < publications.size(); ++f) {
    for (const Piece& piece : pieces) {
      if (piece.fragment != f) continue;
      if (piece.element == Element::f32) serve<float>(piece);
      if (piece.element == Element::f64) serve<double>(piece);
      if (piece.element == Element::bf16) serve<Bfloat16>(piece);
    }
    std::atomic_ref(*publications[f].word).store(publications[f].value, std::memory_order_release);
  }
}

PassStatus launch(Context* context, void* stream, const Piece* pieces, std::uint32_t piece_count,
                  const Publication* publications, std::uint32_t publication_count, char* error,
                  std::size_t error_bytes) {
  if (piece_count > context->limits.pieces || publication_count > context->limits.publications) std::abort();
  if (machine().fails_after == 0 && !machine().failed.exchange(true)) ++machine().failures;
  if (machine().failed) return failed(error, error_bytes);
  if (machine().is_busy || context->under_way >= max_passes)
    return say(PassStatus::busy, error, error_bytes, "fake lack of tables");
  if (machine().fails_after > 0) --machine().fails_after;
  ++machine().launches;
  ++context->under_way;
  stream_of(stream).enqueue([context, failures = machine().failures.load(),
                             pieces = std::vector(pieces, pieces + piece_count),
                             publications = std::vector(publications, publications + publication_count)] {
    if (machine().failures != failures) return;
    work_on(pieces, publications);
    context->pass_ns += 1'000'000;
    --context->under_way;
  });
  return PassStatus::done;
}

PassStatus copy(Context* context, void* to, const void* from, std::uint64_t bytes, char* error,
                std::size_t error_bytes) {
  if (machine().failed) return failed(error, error_bytes);
  ++context->under_way;
  machine().copies.enqueue([=] {
    std::memcpy(to, from, bytes);
    --context->under_way;
  });
  return PassStatus::done;
}

PassStatus idle(Context* context, bool* idle, char* error, std::size_t error_bytes) {
  *idle = false;
  if (machine().failed) return failed(error, error_bytes);
  *idle = context->under_way == 0;
  return PassStatus::done;
}

std::uint64_t pass_ns(const Context* context) {
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

using gossamer::client::cuda::machine;
using gossamer::client::cuda::Stream;
using gossamer::client::cuda::stream_of;

extern "C" {

const gossamer::client::cuda::ClientPluginTable* gossamer_client_cuda_plugin() {
  return &gossamer::client::cuda::table;
}

void* fake_allocate(int device, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  gossamer::client::cuda::add_range(memory, bytes, device, true);
  return memory;
}

void fake_free(void* memory) {
  const std::lock_guard lock(machine().mutex);
  const auto found = machine().ranges.find(static_cast<const std::byte*>(memory));
  if (found == machine().ranges.end()) std::abort();
  if (found->second.mapped) munmap(memory, found->second.bytes);
  machine().ranges.erase(found);
}

void fake_adopt(void* memory, std::size_t bytes, int device) {
  gossamer::client::cuda::add_range(memory, bytes, device, false);
}
void fake_disown(void* memory) {
  fake_free(memory);
}

void* fake_stream() {
  return new Stream;
}
void fake_hold(void* stream) {
  stream_of(stream).hold(true);
}
void fake_release(void* stream) {
  stream_of(stream).hold(false);
}
void fake_enqueue(void* stream, void (*work)(void*), void* argument) {
  stream_of(stream).enqueue([=] { work(argument); });
}
void fake_synchronize(void* stream) {
  stream_of(stream).synchronize();
}

std::uint64_t fake_launches() {
  return machine().launches;
}
int fake_holdings() {
  return machine().holdings;
}
void fake_refuse_share(int refuse) {
  machine().refuses_share = refuse != 0;
}
void fake_refuse_pin(int refuse) {
  machine().refuses_pin = refuse != 0;
}
void fake_be_busy(int busy) {
  machine().is_busy = busy != 0;
}
void fake_fail_after(int launches) {
  machine().fails_after = launches;
}
void fake_repair() {
  machine().fails_after = -1;
  machine().failed = false;
}
}
