// All checks that need a GPU, in one program: the properties of every device on each GPU that is there, calls from
// several threads at once, memory that must not leak, sums and means over all GPUs, and the bandwidth of each kernel
// beside that of the GPU's own copy in the same run. Prints a table; the exit status is 0 if all of it passed, 1 if
// something did not, and 77, loudly, where there is no GPU to run it on. Called by tests/gpu/run and, under the label
// gpu, by CTest.
//
//   gpu_check PLUGIN [--small] [--only bits|bandwidth|sums]
//
// bits: kernels, threads, leaks, memory that is shared, a GPU without room; sums: over all GPUs.
// CTest also runs it with a plug-in that plays a GPU on the processor (--small: little of everything, and bandwidths
// are not judged), so that this program is known to work.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <thread>

#include "daemon/device/arrays.hpp"
#include "daemon/device/nccl_collectives.hpp"
#include "daemon/device/node_mean.hpp"
#include "daemon/device/properties.hpp"
#include "gossip/exchange/local_mean.hpp"
#include "gossip/exchange/outer.hpp"
#include "gossip/values.hpp"

namespace {

using namespace gossamer;
using namespace gossamer::device;
using gossip::Device;

constexpr int exit_skipped = 77;
/// A kernel must reach this share of the bandwidth of the device's own copy.
constexpr double least_share_of_copy = 0.85;

int failures = 0;

/// The amount of work.
struct Extent {
  int rounds;                     ///< rounds of calls in each thread
  int lives;                      ///< lives of a device that must not leak
  int means;                      ///< means over all GPUs
  std::size_t elements;           ///< length of an array that is not measured
  std::size_t fragment_elements;  ///< length of each fragment of a measured array
  std::size_t fragments;          ///< fragments of such an array, at most
  int pairs;                      ///< pairs of a kernel's launch and the copy that it is compared with
  bool judged;                    ///< whether the bandwidth decides about the result
  bool fills;                     ///< whether all of the GPU's memory is filled for a moment
  std::string_view only{};        ///< the only part; empty: all of them

  [[nodiscard]] bool has(std::string_view part) const { return only.empty() || only == part; }
};
constexpr Extent all_of_it{.rounds = 200,
                           .lives = 12,
                           .means = 100,
                           .elements = 1 << 20,
                           .fragment_elements = max_fragment_elements,
                           .fragments = 32,
                           .pairs = 7,
                           .judged = true,
                           .fills = true};
constexpr Extent little{.rounds = 5,
                        .lives = 5,
                        .means = 3,
                        .elements = 1 << 14,
                        .fragment_elements = 1 << 14,
                        .fragments = 2,
                        .pairs = 1,
                        .judged = false,
                        .fills = false};

void row(const std::string& what, const std::string& wrong) {
  fmt::print("{:<58} {}\n", what, wrong.empty() ? "passed" : "FAILED: " + wrong);
  if (!wrong.empty()) ++failures;
}

// ---- several threads at once

std::string threads_get_their_own_results(const CudaDevice& device, const Extent& extent) {
  constexpr std::size_t blocks_count = 64;
  const int rounds = extent.rounds;
  const auto blocks = values::all_blocks(blocks_count);
  std::vector<std::string> wrong(2 * CudaDevice::max_streams);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      values::Random random(t);
      properties::Memory memory(device);
      const auto y = values::sampled(random, blocks_count * block_elements, values::normal);
      const auto there = memory.with(y);
      for (int round = 0; round < rounds; ++round) {
        const auto encoded = [&](auto encode, const float* publication) {
          std::vector<std::int8_t> exponents(blocks_count, -9);
          std::vector<std::uint16_t> checks(blocks_count);
          std::vector<std::byte> sent(blocks_count * codec_block_bytes(Codec::q8));
          const bool finite = encode(gossip::FragmentView{publication}, exponents, checks, sent);
          return std::make_tuple(finite, exponents, checks, sent);
        };
        const std::uint64_t seed = random();
        const auto got =
            encoded([&](const auto& view, auto& exponents, auto& checks,
                        auto& sent) { return device.encode(Codec::q8, view, blocks, seed, exponents, checks, sent); },
                    there.get());
        const auto expected =
            encoded([&](const auto& view, auto& exponents, auto& checks,
                        auto& sent) { return gossip::encode(Codec::q8, view, blocks, seed, exponents, checks, sent); },
                    y.data());
        if (got != expected) wrong[t] = fmt::format("thread {}, round {}: another result", t, round);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const std::string& what : wrong) {
    if (!what.empty()) return what;
  }
  return {};
}

// ---- memory

/// The process may hold this much more after many rounds than after the first few, for the driver's own pages.
constexpr std::uint64_t allowed_growth_bytes = 8 << 20;

std::string nothing_leaks(const Plugin& plugin, int index, const Extent& extent) {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  for (int round = 0; round < extent.lives; ++round) {
    auto device = CudaDevice::open(plugin, index);
    if (!device) return device.error();
    {
      properties::Memory memory(**device);
      values::Random random(7);
      const auto y = memory.with(values::sampled(random, extent.elements, values::normal));
      const std::size_t blocks_count = extent.elements / block_elements;
      if (!(*device)->sum({y.get()}, blocks_count, y.get())) return (*device)->failure();
      for (const properties::Property& property : properties::all()) {
        if (property.name == "sum") (void)property.check(**device, memory);
      }
    }
    const auto memory = (*device)->memory();
    (round < 3 ? before : after) = memory.total_bytes - memory.free_bytes;
  }
  if (after <= before + allowed_growth_bytes) return {};
  return fmt::format("{} bytes more after {} rounds (does another process use the GPU?)", after - before,
                     extent.lives - 3);
}

// ---- memory that is shared

/// The GPU reads and writes pinned host memory at its address.
std::string host_memory_is_reached(const CudaDevice& device, const Extent& extent) {
  const std::size_t elements = extent.fragment_elements;
  constexpr std::size_t page_bytes = 4096;
  const std::unique_ptr<float, decltype(&std::free)> host(
      static_cast<float*>(std::aligned_alloc(page_bytes, elements * sizeof(float))), std::free);
  const std::span<float> values(host.get(), elements);
  for (std::size_t e = 0; e < elements; ++e)
    values[e] = static_cast<float>(e % 1024);
  const auto pinned = device.pin(std::as_writable_bytes(values));
  if (!pinned) return pinned.error();
  if (!device.sum({.publication = host.get(), .correction = host.get()}, elements / block_elements, host.get()))
    return device.failure();
  for (std::size_t e = 0; e < elements; ++e) {
    if (values[e] != 2 * static_cast<float>(e % 1024)) return fmt::format("element {} is {}", e, values[e]);
  }
  return {};
}

/// A descriptor that is no exported GPU memory is refused, and the device is unchanged.
std::string what_is_no_gpu_memory_is_refused(const CudaDevice& device) {
  constexpr std::size_t bytes = std::size_t{1} << 30;
  if (device.import(0, bytes)) return "standard input was mapped";
  if (device.import(-1, bytes)) return "no descriptor was mapped";
  const auto uneven = device.import(0, bytes + 1);
  if (uneven || uneven.error().find("not a multiple") == std::string::npos) return "an uneven size was taken";
  return device.failure();
}

// ---- a GPU without room

/// Holds all of the memory that a GPU has left, while it lives.
class Filling {
 public:
  explicit Filling(const CudaDevice& device) : device_(device) {
    constexpr std::size_t most_bytes = std::size_t{1} << 30;
    constexpr std::size_t least_bytes = 512;
    for (std::size_t bytes = most_bytes; bytes >= least_bytes;) {
      void* memory = nullptr;
      const Status status = device.plugin().allocate(&device.context(), bytes, &memory);
      if (status == Status::failed) break;
      if (status == Status::done) {
        taken_.push_back(memory);
      } else {
        bytes /= 2;
      }
    }
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;
  ~Filling() {
    for (void* const memory : taken_)
      (void)device_.plugin().release(&device_.context(), memory);
  }

 private:
  const CudaDevice& device_;
  std::vector<void*> taken_;
};

/// On a full GPU, arrays and the scratch memory of calls are in host memory, and the bits are the same.
std::string a_full_gpu_goes_on(const Plugin& plugin, int index, const CudaDevice& device) {
  const auto beside = CudaDevice::open(plugin, index);  // its calls have taken no memory yet
  if (!beside) return beside.error();
  const Filling filling(device);
  try {
    for (const properties::Property& property : properties::all()) {
      properties::Memory memory(**beside);
      if (std::string wrong = property.check(**beside, memory); !wrong.empty()) return wrong;
    }
  } catch (const std::exception& exception) {
    return exception.what();
  }
  if ((*beside)->overflow_use().most_bytes == 0) return "it was not full";
  return (*beside)->failure();
}

// ---- NCCL

/// Sums over all GPUs. With one GPU it is a copy, and still shows that NCCL is loaded and that a communicator begins
/// and ends.
std::string nccl_sums(const std::vector<std::shared_ptr<CudaDevice>>& devices) {
  constexpr std::size_t elements = 1 << 20;
  NcclCollectives collectives;
  LocalReducer reducer(collectives);
  std::vector<std::shared_ptr<float>> values_there;
  std::vector<float*> pointers;
  std::vector<float> expected(elements);
  for (std::size_t r = 0; r < devices.size(); ++r) {
    collectives.know(static_cast<Rank>(r), *devices[r]);
    (void)reducer.add(static_cast<Rank>(r));
    std::vector<float> own(elements);
    for (std::size_t e = 0; e < elements; ++e) {
      own[e] = static_cast<float>((e + r) % 1024);
      expected[e] += own[e];
    }
    pointers.push_back(values_there.emplace_back(properties::Memory(*devices[r]).with(own)).get());
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto now_us = [&] {
    const auto passed = std::chrono::steady_clock::now() - begin;
    return std::chrono::duration_cast<std::chrono::microseconds>(passed).count();
  };
  bool begun = false;
  while (now_us() < 60 * us_per_s) {
    const auto reduced = reducer.tick(now_us());
    if (reduced == LocalReducer::Reduced::failed || reducer.counters().make_failures > 0) return reducer.trouble();
    if (reduced == LocalReducer::Reduced::done) {
      for (std::size_t r = 0; r < devices.size(); ++r) {
        if (properties::Memory(*devices[r]).read(pointers[r], elements) != expected) return "a sum is wrong";
      }
      return {};
    }
    if (!begun && !reducer.ready().empty()) {
      reducer.reduce(pointers, elements, now_us());
      begun = true;
    }
    std::this_thread::yield();
  }
  return "nothing came of it within a minute";
}

/// Waits until there is a communicator of all of them.
std::string come_together(const NodeSums& sums, std::size_t gpus) {
  const auto begin = std::chrono::steady_clock::now();
  while (sums.status().ranks.size() < gpus) {
    if (sums.status().counters.make_failures > 0) return sums.status().trouble;
    if (std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) return "the GPUs did not come together";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

/// The mean of one client on each device, which all of them get: exact, and the same everywhere.
std::string mean_of_node(const NodeMean& node, const std::vector<std::shared_ptr<CudaDevice>>& devices) {
  constexpr std::size_t elements = 1 << 20;
  std::vector<float> y(elements, 3);
  const auto y_there = properties::Memory(*devices[0]).with(y);
  std::vector<std::shared_ptr<float>> arrays;
  gossip::LocalMeanTask task;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    properties::Memory memory(*devices[d]);
    std::vector<float> snapshot(elements);
    for (std::size_t e = 0; e < elements; ++e) {
      snapshot[e] = static_cast<float>((e + d) % 1024);
      y[e] += snapshot[e] / 2 - 1;
    }
    for (const auto& values : {snapshot, std::vector<float>(elements, 2), std::vector<float>(elements)})
      arrays.push_back(memory.with(values));
    task.clients.push_back({.snapshot = arrays[3 * d].get(),
                            .base = arrays[3 * d + 1].get(),
                            .take = gossip::Take::progress,
                            .weight = 0.5F,
                            .correction = arrays[3 * d + 2].get(),
                            .replace = true,
                            .device = devices[d].get()});
  }
  const auto outcomes = node.run(task, {y_there.get(), elements});
  if (properties::Memory(*devices[0]).read(y_there.get(), elements) != y) return "the mean is wrong";
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (!outcomes[d].reached || !outcomes[d].written || !outcomes[d].moved)
      return fmt::format("GPU {}: not reached", d);
    if (properties::Memory(*devices[d]).read(task.clients[d].correction, elements) != y)
      return fmt::format("GPU {} has another mean", d);
  }
  return {};
}

std::string mean_with_nccl(const std::vector<std::shared_ptr<CudaDevice>>& devices, const Extent& extent) {
  auto collectives = std::make_unique<NcclCollectives>();
  for (std::size_t r = 0; r < devices.size(); ++r)
    collectives->know(static_cast<Rank>(r), *devices[r]);
  const auto sums = std::make_shared<NodeSums>(std::move(collectives));
  for (std::size_t r = 0; r < devices.size(); ++r)
    (void)sums->add(static_cast<Rank>(r), devices[r]);
  if (auto wrong = come_together(*sums, devices.size()); !wrong.empty()) return wrong;
  const NodeMean node(devices[0], sums);
  for (int round = 0; round < extent.means; ++round) {
    if (auto wrong = mean_of_node(node, devices); !wrong.empty()) return wrong;
  }
  const auto means = static_cast<std::uint64_t>(extent.means);
  const bool summed = devices.size() == 1 || (node.counters().summed == means && node.counters().through_host == 0);
  return summed ? "" : "it did not go over NCCL: " + sums->status().trouble;
}

/// One GPU is enough for this check: it is opened as two contexts.
std::string mean_through_host(const Plugin& plugin, std::vector<std::shared_ptr<CudaDevice>> devices) {
  if (devices.size() == 1) {
    auto again = CudaDevice::open(plugin, 0);
    if (!again) return again.error();
    devices.push_back(std::move(*again));
  }
  return mean_of_node(NodeMean(devices[0]), devices);
}

// ---- bandwidth

constexpr double exponent_bytes = sizeof(std::int8_t);
constexpr double check_bytes = sizeof(std::uint16_t);
constexpr double outcome_bytes = sizeof(gossip::BlockOutcome);
constexpr double float_bytes = sizeof(float);

/// The bytes of device memory that a kernel reads and writes. Each value counts once: when a thread soon reads it
/// again, it is in a cache.
struct Traffic {
  double per_element;
  double per_block = 0;

  [[nodiscard]] double bytes(std::size_t elements) const {
    return static_cast<double>(elements) * (per_element + per_block / static_cast<double>(block_elements));
  }
};

/// The device's functions over more blocks than a fragment has, with the same arguments.
class Unbounded {
 public:
  explicit Unbounded(const CudaDevice& device) : table_(device.plugin()), context_(&device.context()) {}

  [[nodiscard]] bool encode(Codec codec, const gossip::FragmentView& y, std::span<const std::uint32_t> blocks,
                            std::uint64_t seed, std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
                            std::span<std::byte> values) const {
    return is_done(
        table_.encode(context_, codec, &y, list_of(blocks), seed, exponents.data(), checks.data(), octets(values)));
  }
  [[nodiscard]] bool difference(Codec codec, const gossip::FragmentView& y, std::span<const std::uint32_t> blocks,
                                std::uint64_t seed, std::span<const std::int8_t> exponents,
                                std::span<const std::uint16_t> checks, std::span<const std::byte> values,
                                std::span<std::byte> differences, std::span<gossip::BlockOutcome> outcomes) const {
    return is_done(table_.difference(context_, codec, &y, list_of(blocks), seed, exponents.data(), checks.data(),
                                     octets(values), octets(differences), outcomes.data()));
  }
  [[nodiscard]] bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents,
                                 std::span<const std::byte> differences, std::span<const std::byte>,
                                 std::span<gossip::BlockOutcome> outcomes) const {
    return is_done(table_.outcomes_of(context_, codec, static_cast<std::uint32_t>(outcomes.size()), exponents.data(),
                                      octets(differences), nullptr, outcomes.data()));
  }
  [[nodiscard]] bool apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
                           std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                           std::size_t block_count, const float* in, float* out) const {
    return is_done(table_.apply(context_, codec, shift, sign, list_of(blocks), exponents.data(), octets(differences),
                                static_cast<std::uint32_t>(block_count), in, out));
  }
  [[nodiscard]] bool sum(const gossip::FragmentView& y, std::size_t block_count, float* out) const {
    return is_done(table_.sum(context_, &y, static_cast<std::uint32_t>(block_count), out));
  }
  [[nodiscard]] bool outer_step(const gossip::OuterOptions& options, const gossip::OuterFragment& fragment) const {
    const auto left_out = bounds_of(fragment.left_out);
    const auto outer = arrays_of(options, fragment, left_out);
    return is_done(table_.outer_step(context_, &outer, static_cast<std::uint32_t>(fragment.block_count)));
  }
  [[nodiscard]] bool local_mean(std::span<const gossip::ClientFragment> clients, std::span<float> y,
                                std::span<gossip::LocalMeanOutcome>) const {
    std::vector<gossip::cuda::ClientArrays> arrays;
    for (const gossip::ClientFragment& client : clients)
      arrays.push_back(arrays_of(client));
    std::vector<std::uint32_t> found(clients.size());
    return is_done(table_.local_mean(context_, arrays.data(), static_cast<std::uint32_t>(arrays.size()), y.data(),
                                     static_cast<std::uint32_t>(y.size() / block_elements), found.data()));
  }
  [[nodiscard]] bool step(float* live, const float* correction, bool replace, float* snapshot,
                          std::uint32_t elements) const {
    return is_done(table_.step(context_, live, correction, replace, snapshot, elements));
  }

 private:
  [[nodiscard]] static bool is_done(Status status) { return status == Status::done; }
  [[nodiscard]] static Blocks list_of(std::span<const std::uint32_t> blocks) {
    return {blocks.data(), static_cast<std::uint32_t>(blocks.size())};
  }
  [[nodiscard]] static std::uint8_t* octets(std::span<std::byte> bytes) {
    return reinterpret_cast<std::uint8_t*>(bytes.data());
  }
  [[nodiscard]] static const std::uint8_t* octets(std::span<const std::byte> bytes) {
    return reinterpret_cast<const std::uint8_t*>(bytes.data());
  }

  const PluginTable& table_;
  Context* context_;
};

/// Measures bytes a second in one launch over arrays that are many times as long as the caches; over one fragment it
/// would take no longer than the events beside it. The copy that a kernel is compared with moves as much and alternates
/// with it, so that changing clocks change both. Times at a fragment's own size are given, too.
class Bandwidth {
 public:
  /// The largest cache of a GPU is half as large as an array of this many fragments.
  static constexpr std::size_t least_fragments = 16;

  Bandwidth(const CudaDevice& device, const Extent& extent, std::size_t fragments)
      : device_(device),
        unbounded_(device),
        extent_(extent),
        fragments_(fragments),
        elements_(fragments * extent.fragment_elements),
        blocks_(values::all_blocks(elements_ / block_elements)) {
    values::Random random(1);
    const auto fragment = values::sampled(random, extent_.fragment_elements, values::normal);
    for (auto* array : {&publication_, &correction_, &anchor_, &momentum_, &out_}) {
      *array = device_.allocate(elements_);
      if (*array == nullptr || device_.overflow_bytes() > 0) throw std::runtime_error("the GPU's room was taken");
      for (std::size_t first = 0; first < elements_; first += extent_.fragment_elements) {
        if (!device_.upload(array->get() + first, fragment)) throw std::runtime_error(device.failure());
      }
    }
    // The reply of a lattice codec is also measured at an array's length in bytes, so it has more blocks than the
    // array.
    exponents_.resize(blocks_.size() * most_per_byte);
    outcomes_.resize(blocks_.size() * most_per_byte);
    checks_.resize(blocks_.size());
    values_.resize(elements_ * sizeof(float));
    differences_.resize(elements_ * sizeof(float));
  }

  /// The number of fragments that there is room for, up to the wanted number.
  [[nodiscard]] static std::size_t fragments_with_room(const CudaDevice& device, const Extent& extent) {
    constexpr std::uint64_t spare_bytes = 256 << 20;
    // There are five arrays, and scratch memory for values, differences and the data of each block.
    const std::uint64_t each_bytes = extent.fragment_elements * (7 * sizeof(float) + 1);
    const std::uint64_t free_bytes = device.memory().free_bytes;
    if (free_bytes < spare_bytes) return 0;
    return std::min<std::uint64_t>(extent.fragments, (free_bytes - spare_bytes) / each_bytes);
  }

  void run() {
    fmt::print("\n{:<34} {:>5} {:>10} {:>9}   arrays of {} KiB\n", "bandwidth, on the device", "codec", "GB/s",
               "of copy", (elements_ * sizeof(float)) >> 10);
    for (const Codec codec : {Codec::f32, Codec::q8, Codec::q4})
      codec_kernels(codec);
    show("sum", "", {2 * float_bytes}, elements_, [&](const auto& on, const Range& range) {
      return on.sum(view(range, false), range.blocks(), at(out_, range));
    });
    outer_and_mean();
    // live += correction, snapshot = live: this reads two arrays and writes two.
    show("a training step's part", "", {4 * float_bytes}, elements_, [&](const auto& on, const Range& range) {
      return on.step(at(anchor_, range), at(momentum_, range), false, at(out_, range),
                     static_cast<std::uint32_t>(range.elements));
    });
    fmt::print("\n{:<34} {:>5} {:>10} {:>10}   nothing is asked of these\n",
               fmt::format("a fragment of {} Ki elements", extent_.fragment_elements >> 10), "codec", "call, us",
               "kernel, us");
    for (const std::string& line : fragment_lines_)
      fmt::print("{}\n", line);
  }

 private:
  /// Four bytes, the size of an f32 element, hold this many elements of q4.
  static constexpr std::size_t most_per_byte = 8;

  struct Range {
    std::size_t first = 0;
    std::size_t elements = 0;
    [[nodiscard]] std::size_t blocks() const { return elements / block_elements; }
  };

  [[nodiscard]] static float* at(const CudaDevice::Floats& array, const Range& range) {
    return array.get() + range.first;
  }
  [[nodiscard]] gossip::FragmentView view(const Range& range, bool corrected) const {
    return {at(publication_, range), corrected ? at(correction_, range) : nullptr};
  }
  template <class T>
  [[nodiscard]] static std::span<T> of_blocks(std::vector<T>& each, const Range& range) {
    return std::span(each).first(range.blocks());
  }
  [[nodiscard]] static std::span<std::byte> packed(Codec codec, std::vector<std::byte>& all, const Range& range) {
    return std::span(all).first(range.blocks() * codec_block_bytes(codec));
  }

  [[nodiscard]] static double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }
  void must(bool done) const {
    if (!done) throw std::runtime_error("a kernel failed, or found no finite numbers: " + device_.failure());
  }

  /// Measures one kernel: `work` gets the device and the arrays. `elements` are those of the long launch.
  template <class Work>
  void show(const char* what, const char* codec, const Traffic& traffic, std::size_t elements, const Work& work) {
    const double bytes = traffic.bytes(elements);
    const auto copied = std::min(elements_, static_cast<std::size_t>(bytes / (2 * float_bytes)));
    std::vector<double> speeds;
    std::vector<double> shares;
    for (int pair = -1; pair < extent_.pairs; ++pair) {
      must(work(unbounded_, Range{0, elements}));
      const double speed = bytes / device_.last_kernel_s();
      must(device_.copy(out_.get(), publication_.get(), copied));
      const double copy = 2 * float_bytes * static_cast<double>(copied) / device_.last_kernel_s();
      if (pair < 0) continue;
      speeds.push_back(speed);
      shares.push_back(speed / copy);
    }
    const double share = median(shares);
    const bool enough = share >= least_share_of_copy;
    fmt::print("{:<34} {:>5} {:>10.0f} {:>8.0f} %{}\n", what, codec, median(speeds) / 1e9, 100 * share,
               !extent_.judged ? "  not judged"
               : enough        ? ""
                               : "  BELOW THE TARGET of 85 %");
    if (extent_.judged && !enough) ++failures;
    time_fragments(what, codec, work);
  }

  /// Measures a kernel as a worker calls it, on one fragment after the other.
  template <class Work>
  void time_fragments(const char* what, const char* codec, const Work& work) {
    std::vector<double> calls_us;
    std::vector<double> kernels_us;
    for (std::size_t n = 0; n < fragments_ / 2; ++n) {
      const auto begun = std::chrono::steady_clock::now();
      must(work(device_, Range{n * extent_.fragment_elements, extent_.fragment_elements}));
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
      calls_us.push_back(took.count());
      kernels_us.push_back(device_.last_kernel_s() * 1e6);
    }
    fragment_lines_.push_back(
        fmt::format("{:<34} {:>5} {:>10.1f} {:>10.1f}", what, codec, median(calls_us), median(kernels_us)));
  }

  void codec_kernels(Codec codec) {
    const double packed_bytes = codec_bits(codec) / 8.0;
    const bool lattice = codec != Codec::f32;
    const char* const name = codec_name(codec);
    std::ranges::fill(exponents_, std::int8_t{-8});
    const auto encode = [&](const auto& on, const Range& range, bool corrected) {
      return on.encode(codec, view(range, corrected), of_blocks(blocks_, range), 7, of_blocks(exponents_, range),
                       of_blocks(checks_, range), packed(codec, values_, range));
    };
    // y is read and its packed values are written. For each block with a lattice: its exponent, which is read and
    // written, and its check.
    for (const bool corrected : {false, true}) {
      show(corrected ? "encode, with correction" : "encode", name,
           {(corrected ? 2 : 1) * float_bytes + packed_bytes, lattice ? 2 * exponent_bytes + check_bytes : 0},
           elements_, [&](const auto& on, const Range& range) { return encode(on, range, corrected); });
    }
    // y and the message are read, and differences are written. For each block: its part of the message, and its
    // outcome.
    for (const bool corrected : {true, false}) {
      must(encode(unbounded_, Range{0, elements_}, corrected));
      show(corrected ? "difference, with correction" : "difference", name,
           {(corrected ? 2 : 1) * float_bytes + 2 * packed_bytes,
            outcome_bytes + (lattice ? exponent_bytes + check_bytes : 0)},
           elements_, [&](const auto& on, const Range& range) {
             return on.difference(codec, view(range, corrected), of_blocks(blocks_, range), 7,
                                  of_blocks(exponents_, range), of_blocks(checks_, range),
                                  packed(codec, values_, range), packed(codec, differences_, range),
                                  of_blocks(outcomes_, range));
           });
    }
    // Differences are only read.
    show("outcomes of a reply", name, {packed_bytes, outcome_bytes + (lattice ? exponent_bytes : 0)},
         elements_ * 32 / static_cast<std::size_t>(codec_bits(codec)), [&](const auto& on, const Range& range) {
           return on.outcomes_of(codec, of_blocks(exponents_, range), packed(codec, differences_, range), {},
                                 of_blocks(outcomes_, range));
         });
    // Differences and `in` are read, and `out` is written, for all blocks.
    const Traffic applied{2 * float_bytes + packed_bytes, lattice ? exponent_bytes : 0};
    for (const bool in_place : {true, false}) {
      show(in_place ? "apply, in place" : "apply, elsewhere", name, applied, elements_,
           [&](const auto& on, const Range& range) {
             return on.apply(codec, 1, 1, of_blocks(blocks_, range), of_blocks(exponents_, range),
                             packed(codec, differences_, range), range.blocks(),
                             at(in_place ? out_ : correction_, range), at(out_, range));
           });
    }
  }

  void outer_and_mean() {
    // The first kernel reads y, anchor and momentum. The second reads these and `in`, and writes `out`, anchor and
    // momentum.
    show("outer step", "", {(3 + 4 + 3) * float_bytes}, elements_, [&](const auto& on, const Range& range) {
      // Without momentum the values stay where they are.
      return on.outer_step({.momentum = 1e-6F}, {.y = view(range, false),
                                                 .block_count = range.blocks(),
                                                 .in = at(correction_, range),
                                                 .out = at(out_, range),
                                                 .anchor = at(anchor_, range),
                                                 .momentum = at(momentum_, range),
                                                 .left_out = {}});
    });
    // The first kernel reads the snapshots. The second reads y, bases and snapshots, and writes y and corrections.
    show("mean of two clients", "", {(2 + 5 + 3) * float_bytes}, elements_ / 2,
         [&](const auto& on, const Range& range) { return mean(on, range); });
  }

  /// The clients are in the first halves of the arrays and their bases in the second, so that no value is read for both
  /// clients.
  template <class On>
  [[nodiscard]] bool mean(const On& on, const Range& range) const {
    const Range other{range.first + elements_ / 2, range.elements};
    std::vector<gossip::ClientFragment> clients(2);
    clients[0].snapshot = at(publication_, range);
    clients[0].base = at(publication_, other);
    clients[0].correction = at(anchor_, range);
    clients[1].snapshot = at(correction_, range);
    clients[1].base = at(correction_, other);
    clients[1].correction = at(momentum_, range);
    for (gossip::ClientFragment& client : clients)
      client.take = gossip::Take::progress;
    std::vector<gossip::LocalMeanOutcome> outcomes(2);
    return on.local_mean(clients, {at(out_, range), range.elements}, outcomes);
  }

  const CudaDevice& device_;
  Unbounded unbounded_;
  Extent extent_;
  std::size_t fragments_;
  std::size_t elements_;  // length of each array
  std::vector<std::uint32_t> blocks_;
  CudaDevice::Floats publication_{nullptr, {}}, correction_{nullptr, {}}, anchor_{nullptr, {}}, momentum_{nullptr, {}},
      out_{nullptr, {}};
  std::vector<std::int8_t> exponents_;
  std::vector<std::uint16_t> checks_;
  std::vector<std::byte> values_, differences_;
  std::vector<gossip::BlockOutcome> outcomes_;
  std::vector<std::string> fragment_lines_;
};

void measure(const CudaDevice& device, const Extent& extent) {
  const std::size_t fragments = Bandwidth::fragments_with_room(device, extent);
  const std::size_t least = std::min(Bandwidth::least_fragments, extent.fragments);
  if (fragments < least) {
    return row("bandwidths", fmt::format("the GPU has {} MiB free, too little for arrays beyond its caches: end what "
                                         "uses it, and run this again",
                                         device.memory().free_bytes >> 20));
  }
  Bandwidth(device, extent, fragments).run();
}

// ---- all of it

int skip(const std::string& why) {
  fmt::print("\n*** SKIPPED: nothing was run on a GPU ***\n*** {} ***\n\n", why);
  return exit_skipped;
}

void check_bits(const Plugin& plugin, int index, const CudaDevice& device, const Extent& extent) {
  for (const properties::Property& property : properties::all()) {
    properties::Memory memory(device);
    row("the same bits as the definition: " + property.name, property.check(device, memory));
  }
  row("calls from several threads at once", threads_get_their_own_results(device, extent));
  row("no memory of the device leaks", nothing_leaks(plugin, index, extent));
  row("host memory is reached where it is", host_memory_is_reached(device, extent));
  row("what is no GPU memory is refused", what_is_no_gpu_memory_is_refused(device));
  if (extent.fills) row("a GPU without room goes on", a_full_gpu_goes_on(plugin, index, device));
}

void check_device(const Plugin& plugin, int index, const CudaDevice& device, const Extent& extent) {
  fmt::print("\nGPU {}: {}\n", index, device.name());
  if (extent.has("bits")) check_bits(plugin, index, device, extent);
  if (extent.has("bandwidth")) measure(device, extent);
  row("the device is as sound as before", device.failure());
}

/// A machine without NCCL has nothing to check: its sums go through the host.
void nccl_row(const std::string& what, const std::string& wrong) {
  if (wrong.find("NCCL is not installed") == std::string::npos) return row(what, wrong);
  fmt::print("{:<58} NOT RUN: {}\n", what, wrong);
}

void check_sums(const Plugin& plugin, const std::vector<std::shared_ptr<CudaDevice>>& devices, const Extent& extent) {
  fmt::print("\n");
  const std::string gpus = fmt::format("{} GPU{}", devices.size(), devices.size() == 1 ? "" : "s");
  nccl_row("NCCL: a sum over " + gpus, nccl_sums(devices));
  nccl_row("the mean of a node's clients on " + gpus + ", with NCCL", mean_with_nccl(devices, extent));
  row("the mean of a node's clients, through the host", mean_through_host(plugin, devices));
}

int check(const char* path, const Extent& extent) {
  const auto plugin = Plugin::load(path);
  if (!plugin) throw std::runtime_error(plugin.error());
  const auto count = plugin->count();
  if (!count) return skip(count.error());
  if (*count == 0) return skip("the driver knows of no GPU");
  std::vector<std::shared_ptr<CudaDevice>> devices;
  for (int index = 0; index < *count; ++index) {
    auto device = CudaDevice::open(*plugin, index);
    if (!device) throw std::runtime_error(device.error());
    devices.push_back(std::move(*device));
    check_device(*plugin, index, *devices.back(), extent);
  }
  if (extent.has("sums")) check_sums(*plugin, devices, extent);
  fmt::print("\n{}\n", failures == 0 ? "all passed" : fmt::format("{} FAILED", failures));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each line is written at once: a hang shows where it is
  Extent extent = all_of_it;
  bool right = argc >= 2;
  std::string_view only;
  for (int i = 2; i < argc && right; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--small") {
      extent = little;
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      right = false;
    }
  }
  extent.only = only;
  if (!right || (!only.empty() && only != "bits" && only != "bandwidth" && only != "sums")) {
    fmt::print(stderr,
               "usage: gpu_check PLUGIN [--small] [--only bits|bandwidth|sums], the path of libgossamer_cuda.so; "
               "tests/gpu/run builds and calls it\n");
    return 2;
  }
  try {
    return check(argv[1], extent);
  } catch (const std::exception& exception) {
    fmt::print("FAILED: {}\n", exception.what());
    return 1;
  }
}
