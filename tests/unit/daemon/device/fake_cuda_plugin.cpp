// The plug-in for GPUs as a fake of the tests: a shared library with the functions of daemon/device/plugin_abi.hpp,
// which computes on the processor. Its GPUs' memory is host memory, but the addresses that it gives are others, which
// cannot be touched. A program that uses them as host addresses ends at once. Exported memory is a memfd.
//
// It reads the machine from the file that GOSSAMER_FAKE_CUDA names, at every call, so that a test can change it:
//
//   gpus 2              so many; 1 without the line
//   no driver           counting them fails
//   open fails          opening one
//   open hangs          opening one waits until the line is gone; likewise import, work. That something waits is told
//                       by a file of this one's name with hanging_suffix
//   import fails
//   pin fails
//   work fails          calls that compute or copy fail, and the GPU is lost
//   work fails 1        those of this GPU do
//   no memory           nothing can be allocated
//   no memory 1         nor on this GPU
//   no nccl             a communicator cannot be made
//   join waits          the call that begins one waits until the line is gone
//   join hangs          it does not come about until the line is gone
//   sums fail           a sum over it fails
//   sums hang           a sum over it does not end until the line is gone
//
// At the end of the process it writes what is still handed out to the file that GOSSAMER_FAKE_CUDA_COUNTS names.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/device/fake_cuda.hpp"
#include "daemon/device/plugin_abi.hpp"
#include "gossip/exchange/device.hpp"
#include "gossip/exchange/local_mean.hpp"
#include "gossip/exchange/outer.hpp"

namespace gossamer::device {

struct Context {
  int gpu = 0;
  std::atomic<bool> lost = false;
  std::mutex mutex;
  std::string why;  // guarded by the mutex, and constant once the GPU is lost
};

namespace {

using gossip::FragmentView;
using gossip::processor;

constexpr std::size_t page_bytes = 2 << 20;  // the page size of a real GPU's memory

// ---- what the machine's file says

std::set<std::string> machine() {
  std::set<std::string> lines;
  const char* const path = std::getenv(fake::machine_variable);
  std::ifstream file(path != nullptr ? path : "");
  for (std::string line; std::getline(file, line);)
    lines.insert(line);
  return lines;
}

bool told(const std::string& line) {
  return machine().contains(line);
}

void hang_while_told(const std::string& line) {
  if (!told(line)) return;
  std::ofstream(std::string(std::getenv(fake::machine_variable)) + fake::hanging_suffix) << line << "\n";
  while (told(line))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Status say(const std::string& text, char* error, std::size_t error_bytes) {
  std::snprintf(error, error_bytes, "%s", text.c_str());
  return Status::failed;
}

// ---- its memory

enum class Kind : std::uint8_t { allocation, mapping, pinned };

struct Region {
  std::byte* inside = nullptr;
  std::size_t bytes = 0;
  Kind kind = Kind::allocation;
  const Context* context = nullptr;
};

class Memory {
 public:
  /// Returns the address that the caller is told.
  [[nodiscard]] void* add(const Context& context, std::byte* inside, std::size_t bytes, Kind kind) {
    void* at = inside;
    if (kind != Kind::pinned) {
      at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) return nullptr;
    }
    const std::lock_guard lock(mutex_);
    regions_[static_cast<std::byte*>(at)] = {inside, bytes, kind, &context};
    return at;
  }
  /// Returns false if this memory was never given, or had another size.
  [[nodiscard]] bool remove(void* at, Kind kind, std::size_t bytes = 0) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(static_cast<std::byte*>(at));
    if (found == regions_.end() || found->second.kind != kind) return false;
    if (kind == Kind::mapping && found->second.bytes != bytes) return false;
    if (kind != Kind::pinned) {
      ::munmap(at, found->second.bytes);
      ::munmap(found->second.inside, found->second.bytes);
    }
    regions_.erase(found);
    return true;
  }
  /// Where the bytes at a GPU's address are; null: not in its memory.
  [[nodiscard]] std::byte* find(const Context& context, const void* at, std::size_t bytes) const {
    const auto* const wanted = static_cast<const std::byte*>(at);
    const std::lock_guard lock(mutex_);
    auto region = regions_.upper_bound(const_cast<std::byte*>(wanted));
    if (region == regions_.begin()) return nullptr;
    --region;
    const auto offset = static_cast<std::size_t>(wanted - region->first);
    if (region->second.context != &context || offset > region->second.bytes || bytes > region->second.bytes - offset)
      return nullptr;
    return region->second.inside + offset;
  }
  [[nodiscard]] std::uint64_t count(Kind kind) const {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    for (const auto& [at, region] : regions_)
      count += region.kind == kind ? 1 : 0;
    return count;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::byte*, Region> regions_;
};

Memory memory;
std::atomic<std::uint64_t> contexts = 0;
std::atomic<std::uint64_t> communicators = 0;
std::atomic<std::uint64_t> calls = 0;

fake::Counts counts_now() {
  return {.contexts = contexts,
          .allocations = memory.count(Kind::allocation),
          .mappings = memory.count(Kind::mapping),
          .pinned = memory.count(Kind::pinned),
          .communicators = communicators,
          .calls = calls};
}

struct AtEnd {
  ~AtEnd() {
    const char* const path = std::getenv(fake::counts_variable);
    if (path == nullptr) return;
    const fake::Counts counts = counts_now();
    std::ofstream(path) << "contexts " << counts.contexts << "\nallocations " << counts.allocations << "\nmappings "
                        << counts.mappings << "\npinned " << counts.pinned << "\ncalls " << counts.calls << "\n";
  }
} at_end;

// ---- one call that computes or copies

/// Seconds that this thread's last call took.
thread_local double worked_s = 0;

class Call {
 public:
  explicit Call(Context* context) : context_(*context), begun_(std::chrono::steady_clock::now()) {
    ++calls;
    hang_while_told("work hangs");
    if (told("work fails") || told("work fails " + std::to_string(context->gpu))) lose("fake: the GPU was lost");
  }
  ~Call() { worked_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] Status status() const { return context_.lost ? Status::failed : Status::done; }
  [[nodiscard]] bool good() const { return !context_.lost; }
  [[nodiscard]] Status finish(bool finite) const {
    if (!good()) return Status::failed;
    return finite ? Status::done : Status::not_finite;
  }

  /// The host address of this many floats of the GPU; null stays null.
  template <class T>
  [[nodiscard]] T* inside(T* at, std::size_t floats) {
    if (at == nullptr || !good()) return nullptr;
    std::byte* const found = memory.find(context_, at, floats * sizeof(float));
    if (found == nullptr) lose("fake: an address that is not in the GPU's memory");
    return reinterpret_cast<T*>(found);
  }
  [[nodiscard]] FragmentView inside(const FragmentView& y, std::size_t blocks) {
    const std::size_t floats = blocks * block_elements;
    return {.publication = inside(y.publication, floats), .correction = inside(y.correction, floats)};
  }

 private:
  void lose(const std::string& why) {
    const std::lock_guard lock(context_.mutex);
    if (context_.lost) return;
    context_.why = why;
    context_.lost = true;
  }

  Context& context_;
  const std::chrono::steady_clock::time_point begun_;
};

std::vector<std::uint32_t> listed(Blocks blocks) {
  std::vector<std::uint32_t> list(blocks.count);
  if (blocks.blocks != nullptr) {
    std::copy_n(blocks.blocks, blocks.count, list.begin());
  } else {
    std::iota(list.begin(), list.end(), 0U);
  }
  return list;
}
std::size_t blocks_of(const std::vector<std::uint32_t>& list) {
  return list.empty() ? 0 : list.back() + 1;
}
template <class T>
std::span<std::byte> bytes_at(T* at, std::size_t size) {
  return {reinterpret_cast<std::byte*>(at), size};
}
std::span<const std::byte> bytes_at(const std::uint8_t* at, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(at), size};
}

// ---- opening and memory

Status count(std::int32_t* devices, char* error, std::size_t error_bytes) {
  *devices = 0;
  if (told("no driver")) return say("fake: there is no driver", error, error_bytes);
  *devices = 1;
  for (const std::string& line : machine()) {
    if (line.starts_with("gpus ")) *devices = std::atoi(line.c_str() + 5);
  }
  return Status::done;
}

Status describe(std::int32_t device, DeviceInfo* info, char* error, std::size_t error_bytes) {
  std::int32_t devices = 0;
  if (count(&devices, error, error_bytes) != Status::done) return Status::failed;
  if (device >= devices) return say("fake: there is no such GPU", error, error_bytes);
  *info = {};
  std::snprintf(info->name, sizeof info->name, "fake GPU %d", device);
  info->memory_bytes = std::uint64_t{1} << 34;
  const auto uuid = fake::uuid_of(device);
  std::memcpy(info->uuid, uuid.data(), uuid.size());
  return Status::done;
}

Status open(std::int32_t device, std::uint32_t, Context** context, char* error, std::size_t error_bytes) {
  hang_while_told("open hangs");
  if (told("open fails")) return say("fake: it cannot be opened", error, error_bytes);
  *context = new Context{.gpu = device, .lost = false, .mutex = {}, .why = {}};
  ++contexts;
  return Status::done;
}
void close(Context* context) {
  --contexts;
  delete context;
}
const char* error_of(const Context* context) {
  return context->why.c_str();
}

Status allocate(Context* context, std::size_t bytes, void** device_memory) {
  Call call(context);
  *device_memory = nullptr;
  if (!call.good()) return Status::failed;
  if (told("no memory") || told("no memory " + std::to_string(context->gpu))) return Status::no_memory;
  void* const inside = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (inside == MAP_FAILED) return Status::no_memory;
  std::memset(inside, 0xff, bytes);  // NaN: a real GPU's new memory has old values
  *device_memory = memory.add(*context, static_cast<std::byte*>(inside), bytes, Kind::allocation);
  return *device_memory == nullptr ? Status::no_memory : Status::done;
}
Status release(Context*, void* device_memory) {
  return memory.remove(device_memory, Kind::allocation) ? Status::done : Status::failed;
}

Status upload(Context* context, void* device_to, const void* from, std::size_t bytes) {
  Call call(context);
  auto* const to = call.inside(static_cast<float*>(device_to), bytes / sizeof(float));
  if (call.good()) std::memcpy(to, from, bytes);
  return call.status();
}
Status download(Context* context, void* to, const void* device_from, std::size_t bytes) {
  Call call(context);
  const auto* const from = call.inside(static_cast<const float*>(device_from), bytes / sizeof(float));
  if (call.good()) std::memcpy(to, from, bytes);
  return call.status();
}
Status copy(Context* context, void* device_to, const void* device_from, std::size_t bytes) {
  Call call(context);
  auto* const to = call.inside(static_cast<float*>(device_to), bytes / sizeof(float));
  const auto* const from = call.inside(static_cast<const float*>(device_from), bytes / sizeof(float));
  if (call.good()) std::memcpy(to, from, bytes);
  return call.status();
}
Status clear(Context* context, float* device_memory, std::size_t elements) {
  Call call(context);
  float* const inside = call.inside(device_memory, elements);
  if (call.good()) std::fill_n(inside, elements, 0.0F);
  return call.status();
}

Status import(Context* context, int descriptor, std::size_t bytes, void** device_memory, char* error,
              std::size_t error_bytes) {
  hang_while_told("import hangs");
  if (told("import fails")) return say("fake: importing is not permitted", error, error_bytes);
  if (bytes == 0 || bytes % page_bytes != 0)
    return say("fake: not whole pages: not a multiple of their size", error, error_bytes);
  struct stat file {};
  if (::fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode))
    return say("fake: the descriptor is no GPU memory", error, error_bytes);
  if (static_cast<std::size_t>(file.st_size) < bytes) return say("fake: the allocation is smaller", error, error_bytes);
  void* const inside = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (inside == MAP_FAILED) return say("fake: the descriptor cannot be mapped", error, error_bytes);
  *device_memory = memory.add(*context, static_cast<std::byte*>(inside), bytes, Kind::mapping);
  return Status::done;
}
Status forget(Context*, void* device_memory, std::size_t bytes) {
  return memory.remove(device_memory, Kind::mapping, bytes) ? Status::done : Status::failed;
}
Status pin(Context* context, void* at, std::size_t bytes, char* error, std::size_t error_bytes) {
  if (told("pin fails")) return say("fake: pinning is not permitted", error, error_bytes);
  (void)memory.add(*context, static_cast<std::byte*>(at), bytes, Kind::pinned);
  return Status::done;
}
Status unpin(Context*, void* at) {
  return memory.remove(at, Kind::pinned) ? Status::done : Status::failed;
}

Status memory_of(Context*, std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  *free_bytes = *total_bytes = std::uint64_t{1} << 34;
  return Status::done;
}

// ---- the codec

Status encode(Context* context, Codec codec, const FragmentView* y, Blocks blocks, std::uint64_t seed,
              std::int8_t* exponents, std::uint16_t* checks, std::uint8_t* values) {
  Call call(context);
  const auto list = listed(blocks);
  const FragmentView there = call.inside(*y, blocks_of(list));
  const bool lattice = codec != Codec::f32;
  return call.finish(call.good() && processor().encode(codec, there, list, seed, {exponents, lattice ? list.size() : 0},
                                                       {checks, lattice ? list.size() : 0},
                                                       bytes_at(values, list.size() * codec_block_bytes(codec))));
}

Status difference(Context* context, Codec codec, const FragmentView* y, Blocks blocks, std::uint64_t seed,
                  const std::int8_t* exponents, const std::uint16_t* checks, const std::uint8_t* values,
                  std::uint8_t* differences, gossip::BlockOutcome* outcomes) {
  Call call(context);
  const auto list = listed(blocks);
  const FragmentView there = call.inside(*y, blocks_of(list));
  const std::size_t bytes = list.size() * codec_block_bytes(codec);
  const std::size_t lattice = codec == Codec::f32 ? 0 : list.size();
  return call.finish(call.good() && processor().difference(codec, there, list, seed, {exponents, lattice},
                                                           {checks, lattice}, bytes_at(values, bytes),
                                                           bytes_at(differences, bytes), {outcomes, list.size()}));
}

Status outcomes_of(Context* context, Codec codec, std::uint32_t count, const std::int8_t* exponents,
                   const std::uint8_t* differences, const std::uint8_t* wide, gossip::BlockOutcome* outcomes) {
  const Call call(context);
  const std::size_t wide_bytes = wide == nullptr ? 0 : (count + 7) / 8;
  const std::size_t lattice = codec == Codec::f32 ? 0 : count;
  return call.finish(call.good() && processor().outcomes_of(codec, {exponents, lattice},
                                                            bytes_at(differences, count * codec_block_bytes(codec)),
                                                            bytes_at(wide, wide_bytes), {outcomes, count}));
}

Status apply(Context* context, Codec codec, std::int32_t shift, std::int32_t sign, Blocks blocks,
             const std::int8_t* exponents, const std::uint8_t* differences, std::uint32_t block_count, const float* in,
             float* out) {
  Call call(context);
  const auto list = listed(blocks);
  const std::size_t floats = block_count * block_elements;
  const float* const from = call.inside(in, floats);
  float* const to = call.inside(out, floats);
  const std::size_t lattice = codec == Codec::f32 ? 0 : list.size();
  return call.finish(call.good() && processor().apply(codec, shift, sign, list, {exponents, lattice},
                                                      bytes_at(differences, list.size() * codec_block_bytes(codec)),
                                                      block_count, from, to));
}

Status sum(Context* context, const FragmentView* y, std::uint32_t block_count, float* out) {
  Call call(context);
  const FragmentView there = call.inside(*y, block_count);
  float* const to = call.inside(out, block_count * block_elements);
  return call.finish(call.good() && processor().sum(there, block_count, to));
}

// ---- training

Status outer_step(Context* context, const gossip::cuda::OuterArrays* outer, std::uint32_t block_count) {
  Call call(context);
  const std::size_t floats = block_count * block_elements;
  std::vector<gossip::ElementRange> left_out;
  for (std::uint32_t i = 0; i < outer->left_out_count; ++i)
    left_out.emplace_back(outer->left_out[2 * i], outer->left_out[2 * i + 1]);
  const gossip::OuterFragment fragment{.y = call.inside(outer->y, block_count),
                                       .block_count = block_count,
                                       .in = call.inside(outer->in, floats),
                                       .out = call.inside(outer->out, floats),
                                       .anchor = call.inside(outer->anchor, floats),
                                       .momentum = call.inside(outer->momentum, floats),
                                       .left_out = left_out};
  return call.finish(call.good() && processor().outer_step({.momentum = outer->mu, .rate = outer->rate}, fragment));
}

Status local_mean(Context* context, const gossip::cuda::ClientArrays* clients, std::uint32_t count, float* device_y,
                  std::uint32_t block_count, std::uint32_t* found) {
  Call call(context);
  const std::size_t floats = block_count * block_elements;
  std::vector<gossip::ClientFragment> there;
  for (std::uint32_t c = 0; c < count; ++c) {
    const gossip::cuda::ClientArrays& client = clients[c];
    there.push_back({.snapshot = call.inside(client.snapshot, floats),
                     .base = call.inside(client.base, floats),
                     .base_correction = call.inside(client.base_correction, floats),
                     .take = client.progress != 0 ? gossip::Take::progress
                             : client.check != 0  ? gossip::Take::check
                                                  : gossip::Take::nothing,
                     .weight = client.weight,
                     .correction = call.inside(client.correction, floats),
                     .replace = client.replace != 0});
  }
  float* const y = call.inside(device_y, floats);
  std::vector<gossip::LocalMeanOutcome> outcomes(count);
  if (!call.good() || !processor().local_mean(there, {y, floats}, outcomes)) return Status::failed;
  for (std::uint32_t c = 0; c < count; ++c) {
    found[c] = (outcomes[c].finite ? 0 : gossip::cuda::mean_not_finite) |
               (outcomes[c].moved ? gossip::cuda::mean_moved : 0) |
               (outcomes[c].differs ? gossip::cuda::mean_differs : 0);
  }
  return Status::done;
}

Status step(Context* context, float* device_live, const float* device_correction, bool replace, float* device_snapshot,
            std::uint32_t elements) {
  Call call(context);
  float* const live = call.inside(device_live, elements);
  const float* const correction = call.inside(device_correction, elements);
  float* const snapshot = call.inside(device_snapshot, elements);
  if (!call.good()) return Status::failed;
  for (std::uint32_t e = 0; e < elements; ++e) {
    if (correction != nullptr) live[e] = replace ? correction[e] : live[e] + correction[e];
    if (snapshot != nullptr) snapshot[e] = live[e];
  }
  return Status::done;
}

double last_kernel_s(const Context*) {
  return worked_s;
}

// ---- NCCL

}  // namespace

struct Communicator {
  std::vector<Context*> ranks;
  bool joined = false;
  std::vector<float*> values;  // of the sum under way, at host addresses
  std::vector<std::vector<float>> addends;
};

namespace {

Status join(Context* const* ranks, std::uint32_t rank_count, Communicator** communicator, char* error,
            std::size_t error_bytes) {
  *communicator = nullptr;
  hang_while_told("join waits");
  if (told("no nccl")) return say("fake: there is no NCCL", error, error_bytes);
  *communicator = new Communicator{.ranks = {ranks, ranks + rank_count}, .values = {}, .addends = {}};
  ++communicators;
  return Status::under_way;
}

Status progress(Communicator* communicator, char* error, std::size_t error_bytes) {
  if (!communicator->joined) {
    if (told("join hangs")) return Status::under_way;
    communicator->joined = true;
  }
  if (communicator->values.empty()) return Status::done;
  if (told("sums hang")) return Status::under_way;
  if (told("sums fail")) return say("fake: a rank has gone", error, error_bytes);
  std::vector<float> total = communicator->addends.back();
  communicator->addends.pop_back();
  for (const std::vector<float>& addend : communicator->addends) {
    for (std::size_t e = 0; e < total.size(); ++e)
      total[e] += addend[e];
  }
  for (float* const values : communicator->values)
    std::ranges::copy(total, values);
  communicator->values.clear();
  return Status::done;
}

/// The arrays hold values that nobody may use until the sum is done.
Status all_reduce(Communicator* communicator, float* const* device_values, std::size_t elements, char* error,
                  std::size_t error_bytes) {
  communicator->values.clear();
  communicator->addends.clear();
  for (std::size_t rank = 0; rank < communicator->ranks.size(); ++rank) {
    Call call(communicator->ranks[rank]);
    float* const values = call.inside(device_values[rank], elements);
    if (!call.good()) return say("fake: a GPU was lost", error, error_bytes);
    communicator->addends.emplace_back(values, values + elements);
    communicator->values.push_back(values);
  }
  for (float* const values : communicator->values)
    std::memset(values, 0xff, elements * sizeof(float));
  return Status::under_way;
}

void abandon(Communicator* communicator) {
  if (communicator == nullptr) return;
  --communicators;
  delete communicator;
}

constexpr PluginTable table = {
    .version = plugin_version,
    .size_bytes = sizeof(PluginTable),
    .count = count,
    .describe = describe,
    .open = open,
    .close = close,
    .error = error_of,
    .allocate = allocate,
    .release = release,
    .upload = upload,
    .download = download,
    .copy = copy,
    .import = import,
    .forget = forget,
    .pin = pin,
    .unpin = unpin,
    .clear = clear,
    .memory = memory_of,
    .encode = encode,
    .difference = difference,
    .outcomes_of = outcomes_of,
    .apply = apply,
    .sum = sum,
    .outer_step = outer_step,
    .local_mean = local_mean,
    .step = step,
    .last_kernel_s = last_kernel_s,
    .join = join,
    .progress = progress,
    .all_reduce = all_reduce,
    .abandon = abandon,
};

}  // namespace
}  // namespace gossamer::device

extern "C" __attribute__((visibility("default"))) const gossamer::device::PluginTable* gossamer_cuda_plugin() {
  return &gossamer::device::table;
}
extern "C" __attribute__((visibility("default"))) void gossamer_fake_cuda_counts(
    gossamer::device::fake::Counts* counts) {
  *counts = gossamer::device::counts_now();
}
