// Runs both plug-ins, as they are for a GPU, with each call of the CUDA runtime and the driver failing in turn. The
// caller is told, nothing stays allocated, mapped or page-locked, and nothing crashes or hangs. Then every later call
// fails, too, as after a fault of the GPU.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "catch.hpp"
#include "daemon/device/cuda_device.hpp"
#include "gossip/exchange/local_mean.hpp"
#include "gossip/values.hpp"
#include "sdk/cuda/plugin_abi.hpp"
#include "tests/host_cuda/runtime.hpp"

#include <dlfcn.h>

namespace {

using namespace gossamer;
using client::cuda::PassStatus;

constexpr std::size_t elements = 1024;
constexpr std::size_t fragment_bytes = elements * sizeof(float);
constexpr std::size_t pages_bytes = std::size_t{64} << 10;
constexpr std::chrono::seconds patience{20};

/// The functions that give something back. If one fails, the thing is lost, and nobody is told.
const std::set<std::string>& giving_back() {
  static const std::set<std::string> functions = {
      "cudaFree",          "cudaFreeHost", "cudaHostUnregister", "cudaEventDestroy",
      "cudaStreamDestroy", "unmap",        "give_back",          "release"};
  return functions;
}
/// Whether the caller is told when this function fails. Functions that only read figures, or that prepare giving back,
/// are ignored.
bool is_told(const std::string& function) {
  static const std::set<std::string> untold = {"cudaGetDevice",         "cudaSetDevice",
                                               "cudaMemGetInfo",        "cudaEventElapsedTime",
                                               "cudaStreamIsCapturing", "cudaThreadExchangeStreamCaptureMode"};
  return !function.empty() && !giving_back().contains(function) && !untold.contains(function);
}

/// Remembers whether all calls have gone well.
class Calls {
 public:
  bool good(bool went_well) {
    all_ = all_ && went_well;
    return went_well;
  }
  [[nodiscard]] bool all_good() const { return all_; }

 private:
  bool all_ = true;
};

/// Page-aligned host memory. It belongs to the process and not to one life: a GPU may still write to it when a life
/// ends early, until the test resets the GPU.
struct Pages {
  Pages() : at(mmap(nullptr, pages_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(at != MAP_FAILED);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(at, pages_bytes); }
  void* at;
};

// ---- the daemon's plug-in

const device::Plugin& daemon_plugin() {
  static const auto loaded = device::Plugin::load(GOSSAMER_HOST_PLUGIN);
  REQUIRE(loaded);
  return *loaded;
}

/// One call of every function that a replica uses on its device.
void arithmetic(Calls& calls, const device::CudaDevice& gpu) {
  constexpr std::size_t blocks_count = elements / block_elements;
  const auto blocks = values::all_blocks(blocks_count);
  const auto y = gpu.allocate(elements);
  const auto out = gpu.allocate(elements);
  if (!calls.good(y != nullptr) || !calls.good(out != nullptr)) return;
  std::vector<float> values(elements, 1.5F);
  calls.good(gpu.upload(y.get(), values));
  calls.good(gpu.clear(out.get(), elements));
  for (const Codec codec : {Codec::f32, Codec::q4}) {
    std::vector<std::int8_t> exponents(blocks_count, -4);
    std::vector<std::uint16_t> checks(blocks_count);
    std::vector<std::byte> sent(blocks_count * codec_block_bytes(codec));
    std::vector<std::byte> differences(sent.size());
    std::vector<gossip::BlockOutcome> outcomes(blocks_count);
    calls.good(gpu.encode(codec, {y.get()}, blocks, 7, exponents, checks, sent));
    calls.good(gpu.difference(codec, {y.get()}, blocks, 7, exponents, checks, sent, differences, outcomes));
    calls.good(gpu.outcomes_of(codec, exponents, differences, {}, outcomes));
    calls.good(gpu.apply(codec, 1, 1, blocks, exponents, differences, blocks_count, y.get(), out.get()));
  }
  calls.good(gpu.sum({y.get()}, blocks_count, out.get()));
  calls.good(gpu.copy(out.get(), y.get(), elements));
  calls.good(gpu.step(y.get(), out.get(), false, nullptr, elements));
  const gossip::ClientFragment client{.snapshot = y.get(), .base = out.get(), .take = gossip::Take::progress};
  gossip::LocalMeanOutcome outcome;
  calls.good(gpu.local_mean({&client, 1}, {out.get(), elements}, {&outcome, 1}));
  calls.good(gpu.download(values, out.get()));
  // The step has doubled `y`, and the mean has made `out` as large.
  if (calls.all_good()) CHECK(values == std::vector<float>(elements, 3));
}

/// A life of the daemon's plug-in: exported memory of a client, page-locked host memory, and arithmetic. `descriptor`
/// stands for `bytes` of GPU memory.
void daemon_life(Calls& calls, int descriptor, std::size_t bytes) {
  auto device = device::CudaDevice::open(daemon_plugin(), 0);
  if (!calls.good(device.has_value())) return;
  const device::CudaDevice& gpu = **device;
  calls.good(gpu.memory().total_bytes != 0);
  const auto mapped = gpu.import(descriptor, bytes);
  calls.good(mapped.has_value());
  static const Pages pages;
  const auto pinned = gpu.pin({static_cast<std::byte*>(pages.at), pages_bytes});
  calls.good(pinned.has_value());
  arithmetic(calls, gpu);
  if (mapped) calls.good(gpu.clear(mapped->get(), elements));
}

// ---- the client's

const client::cuda::ClientPluginTable& client_plugin() {
  static const auto* const loaded = [] {
    void* const library = dlopen(GOSSAMER_HOST_CLIENT_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    REQUIRE(library != nullptr);
    const auto entry = reinterpret_cast<client::cuda::ClientPluginEntry>(dlsym(library, client::cuda::plugin_symbol));
    REQUIRE(entry != nullptr);
    return entry();
  }();
  return *loaded;
}

/// Calls a function of the plug-in. Returns whether the work is done.
template <class Function, class... Arguments>
bool done(Calls& calls, Function function, Arguments... arguments) {
  char text[256] = "";
  const PassStatus status = function(arguments..., text, sizeof text);
  const bool is = status == PassStatus::done;
  if (!is) CHECK(std::strlen(text) > 0);
  return calls.good(is);
}

/// Waits until all launched work has ended, unless the device has failed.
void wait_for(Calls& calls, client::cuda::Context* context) {
  const auto until = std::chrono::steady_clock::now() + patience;
  bool idle = false;
  while (!idle && done(calls, client_plugin().idle, context, &idle)) {
    if (std::chrono::steady_clock::now() > until) FAIL("the passes do not end");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void pass(Calls& calls, client::cuda::Context* context, float* at, void* words) {
  const client::cuda::Piece piece{.x = at,
                                  .correction = at + elements,
                                  .snapshot = at + 2 * elements,
                                  .count = elements,
                                  .dither = 0,
                                  .fragment = 0,
                                  .element = client::cuda::Element::f32,
                                  .mode = client::cuda::Mode::add};
  const client::cuda::Publication publication{static_cast<std::uint64_t*>(words), 7};
  if (!done(calls, client_plugin().launch, context, nullptr, &piece, std::uint32_t{1}, &publication, std::uint32_t{1}))
    return;
  wait_for(calls, context);
}

/// A life of the client's plug-in: exported GPU memory, one pass, and a copy of the memory.
void client_life(Calls& calls, const std::function<void(int, std::size_t)>& exported = {}) {
  client::cuda::Context* context = nullptr;
  static const Pages words;
  std::int32_t located = 0;
  done(calls, client_plugin().locate, static_cast<const void*>(&context), &located);
  if (!done(calls, client_plugin().open, 0, client::cuda::PassLimits{4, 4}, &context)) return;
  client::cuda::SharedMemory memory{};
  void* words_there = nullptr;
  const bool shared = done(calls, client_plugin().share, context, std::uint64_t{3 * fragment_bytes}, &memory);
  const bool pinned = done(calls, client_plugin().pin, context, words.at, std::uint64_t{pages_bytes}, &words_there);
  if (shared && exported) exported(memory.descriptor, memory.bytes);
  if (shared && pinned) {
    auto* const at = static_cast<float*>(memory.base);
    pass(calls, context, at, words_there);
    if (done(calls, client_plugin().copy, context, static_cast<void*>(at + elements), static_cast<const void*>(at),
             std::uint64_t{fragment_bytes}))
      wait_for(calls, context);
  }
  if (shared) {
    close(memory.descriptor);
    client_plugin().unshare(context, &memory);
  }
  if (pinned) client_plugin().unpin(context, words.at);
  client_plugin().close(context);
}

// ---- each call failing in turn

/// `made_up_for`: functions that may fail without ending the life, because something else takes their place.
void each_call_fails(const std::function<void(Calls&)>& life, const std::set<std::string>& made_up_for = {}) {
  host_cuda::reset();
  Calls clean;
  life(clean);
  REQUIRE(clean.all_good());
  REQUIRE(host_cuda::held().empty());
  const std::uint64_t count = host_cuda::calls();
  REQUIRE(count > 50);
  for (const cudaError_t error : {cudaErrorMemoryAllocation, cudaErrorLaunchFailure}) {
    for (std::uint64_t n = 1; n <= count; ++n) {
      Calls calls;
      host_cuda::fail_call(n, error, false);
      life(calls);
      const std::string failed = host_cuda::failed_call();
      const std::string held = host_cuda::held();
      host_cuda::reset();
      INFO("call " << n << ", " << failed << ", error " << error);
      if (failed.empty() || giving_back().contains(failed)) continue;
      CHECK(held == "");
      if (is_told(failed) && !made_up_for.contains(failed)) CHECK_FALSE(calls.all_good());
    }
  }
}

void all_calls_fail_from_one_on(const std::function<void(Calls&)>& life) {
  host_cuda::reset();
  Calls clean;
  life(clean);
  const std::uint64_t count = host_cuda::calls();
  for (std::uint64_t n = 1; n <= count; ++n) {
    Calls calls;
    host_cuda::fail_call(n, cudaErrorLaunchFailure, true);
    life(calls);
    const std::string failed = host_cuda::failed_call();
    host_cuda::reset();
    INFO("from call " << n << " on, the first of them " << failed);
    if (is_told(failed)) CHECK_FALSE(calls.all_good());
  }
}

void with_exported(Calls& calls) {
  client_life(calls, [&](int descriptor, std::size_t bytes) { daemon_life(calls, descriptor, bytes); });
}

}  // namespace

TEST_CASE("a client's GPU memory is the daemon's as well") {
  Calls calls;
  bool same = false;
  client_life(calls, [&](int descriptor, std::size_t bytes) {
    auto device = device::CudaDevice::open(daemon_plugin(), 0);
    REQUIRE(device);
    const auto mapped = (*device)->import(descriptor, bytes);
    REQUIRE(mapped);
    const std::vector<float> values(elements, 2.5F);
    REQUIRE((*device)->upload(mapped->get(), values));
    const auto again = (*device)->import(descriptor, bytes);
    REQUIRE(again);
    std::vector<float> read(elements);
    REQUIRE((*device)->download(read, again->get()));
    same = read == values;
  });
  CHECK(same);
  CHECK(calls.all_good());
}

TEST_CASE("a client's life with each call failing") {
  each_call_fails([](Calls& calls) { client_life(calls); });
}

TEST_CASE("a daemon's life beside it with each call failing") {
  // Page-locked memory stands in for a full GPU's memory, and any other memory for page-locked memory.
  each_call_fails(with_exported, {"cudaMalloc", "cudaHostAlloc"});
}

TEST_CASE("both with all calls failing from one on") {
  all_calls_fail_from_one_on(with_exported);
}
