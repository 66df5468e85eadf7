// What needs a GPU, in one program: the properties of every device on each GPU that is there, calls from several
// threads at once, memory that must not leak, sums and means over all GPUs, and the bandwidth of each kernel beside
// that of the GPU's own copy in the same run. Prints a table; the exit status is 0 if all of it passed, 1 if something
// did not, and 77, loudly, where there is no GPU to run it on. Called by tests/gpu/run and, under the label gpu, by
// CTest.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <thread>

#include "daemon/device/nccl_collectives.hpp"
#include "daemon/device/node_mean.hpp"
#include "daemon/device/properties.hpp"
#include "gossip/local_mean.hpp"
#include "gossip/outer.hpp"
#include "gossip/values.hpp"

namespace {

using namespace gossamer;
using namespace gossamer::device;
using gossip::Device;

constexpr int exit_skipped = 77;
/// Of the device's own copy: what a kernel must reach.
constexpr double least_share_of_copy = 0.85;

int failures = 0;

void row(const std::string& what, const std::string& wrong) {
  fmt::print("{:<58} {}\n", what, wrong.empty() ? "passed" : "FAILED: " + wrong);
  if (!wrong.empty()) ++failures;
}

// ---- several threads at once

std::string threads_get_their_own_results(const CudaDevice& device) {
  constexpr std::size_t blocks_count = 64;
  constexpr int rounds = 200;
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

/// What the process may hold more after many rounds than after the first few: nothing, but for the driver's own pages.
constexpr std::uint64_t allowed_growth_bytes = 8 << 20;

std::string nothing_leaks(const Plugin& plugin, int index) {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  for (int round = 0; round < 12; ++round) {
    auto device = CudaDevice::open(plugin, index);
    if (!device) return device.error();
    {
      properties::Memory memory(**device);
      values::Random random(7);
      const auto y = memory.with(values::sampled(random, std::size_t{1} << 20, values::normal));
      const std::size_t blocks_count = (std::size_t{1} << 20) / block_elements;
      if (!(*device)->sum({y.get()}, blocks_count, y.get())) return (*device)->failure();
      for (const properties::Property& property : properties::all()) {
        if (property.name == "sum") (void)property.check(**device, memory);
      }
    }
    const auto memory = (*device)->memory();
    (round < 3 ? before : after) = memory.total_bytes - memory.free_bytes;
  }
  if (after <= before + allowed_growth_bytes) return {};
  return fmt::format("{} bytes more after nine rounds (does another process use the GPU?)", after - before);
}

// ---- memory that is shared

/// Pinned host memory, read and written at its address.
std::string host_memory_is_reached(const CudaDevice& device) {
  constexpr std::size_t elements = 4 << 20;
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

/// What is no exported GPU memory is refused, and the device stays as it was.
std::string what_is_no_gpu_memory_is_refused(const CudaDevice& device) {
  constexpr std::size_t bytes = std::size_t{1} << 30;
  if (device.import(0, bytes)) return "standard input was mapped";
  if (device.import(-1, bytes)) return "no descriptor was mapped";
  const auto uneven = device.import(0, bytes + 1);
  if (uneven || uneven.error().find("no multiple") == std::string::npos) return "an uneven size was taken";
  return device.failure();
}

// ---- NCCL

/// Sums over all GPUs; of one alone it is a copy, and shows that NCCL is loaded, comes about and ends.
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

/// Until there is a communicator of all of them.
std::string come_together(const NodeSums& sums, std::size_t gpus) {
  const auto begin = std::chrono::steady_clock::now();
  while (sums.status().ranks.size() < gpus) {
    if (sums.status().counters.make_failures > 0) return sums.status().trouble;
    if (std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) return "the GPUs did not come together";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

/// The mean of one client on each device, which all are given: exact, and the same everywhere.
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

std::string mean_with_nccl(const std::vector<std::shared_ptr<CudaDevice>>& devices) {
  auto collectives = std::make_unique<NcclCollectives>();
  for (std::size_t r = 0; r < devices.size(); ++r)
    collectives->know(static_cast<Rank>(r), *devices[r]);
  const auto sums = std::make_shared<NodeSums>(std::move(collectives));
  for (std::size_t r = 0; r < devices.size(); ++r)
    (void)sums->add(static_cast<Rank>(r), devices[r]);
  if (auto wrong = come_together(*sums, devices.size()); !wrong.empty()) return wrong;
  const NodeMean node(devices[0], sums);
  for (int round = 0; round < 100; ++round) {
    if (auto wrong = mean_of_node(node, devices); !wrong.empty()) return wrong;
  }
  const bool summed = devices.size() == 1 || (node.counters().summed == 100 && node.counters().through_host == 0);
  return summed ? "" : "it did not go over NCCL: " + sums->status().trouble;
}

/// Two contexts of one GPU are enough for it.
std::string mean_through_host(const Plugin& plugin, std::vector<std::shared_ptr<CudaDevice>> devices) {
  if (devices.size() == 1) {
    auto again = CudaDevice::open(plugin, 0);
    if (!again) return again.error();
    devices.push_back(std::move(*again));
  }
  return mean_of_node(NodeMean(devices[0]), devices);
}

// ---- bandwidth

constexpr std::size_t fragment_elements = max_fragment_elements;
constexpr std::size_t fragment_blocks = fragment_elements / block_elements;
/// Arrays are this many fragments long, far beyond every cache.
constexpr std::size_t fragments = 32;
constexpr int rounds = 5;

class Bandwidth {
 public:
  explicit Bandwidth(const CudaDevice& device)
      : device_(device), memory_(device), blocks_(values::all_blocks(fragment_blocks)) {
    values::Random random(1);
    const auto fragment = values::sampled(random, fragment_elements, values::normal);
    for (auto* array : {&publication_, &correction_, &anchor_, &momentum_, &out_}) {
      *array = device_.allocate(fragments * fragment_elements);
      if (*array == nullptr) throw std::runtime_error("there is no room for the bandwidth's arrays (2.5 GiB)");
      for (std::size_t n = 0; n < fragments; ++n) {
        if (!device_.upload(array->get() + n * fragment_elements, fragment)) throw std::runtime_error(device.failure());
      }
    }
  }

  void run() {
    fmt::print("\n{:<34} {:>5} {:>10} {:>9}\n", "bandwidth, on the device", "codec", "GB/s", "of copy");
    copy_ =
        measure(8, [&](std::size_t n) { return device_.copy(at(out_, n), at(publication_, n), fragment_elements); });
    fmt::print("{:<34} {:>5} {:>10.0f}\n", "copy, the device's own", "", copy_ / 1e9);
    for (const Codec codec : {Codec::f32, Codec::q8, Codec::q4})
      codec_kernels(codec);
    show("sum", "", 8, [&](std::size_t n) { return device_.sum(view(n, false), fragment_blocks, at(out_, n)); });
    show("outer step", "", 40, [&](std::size_t n) {
      // No momentum: the values stay where they are.
      return device_.outer_step({.momentum = 1e-6F}, {.y = view(n, false),
                                                      .block_count = fragment_blocks,
                                                      .in = at(correction_, n),
                                                      .out = at(out_, n),
                                                      .anchor = at(anchor_, n),
                                                      .momentum = at(momentum_, n),
                                                      .left_out = {}});
    });
    show("mean of two clients", "", 40, [&](std::size_t n) { return mean(n); });
    show("a training step's part", "", 16, [&](std::size_t n) {
      return device_.step(at(anchor_, n), at(momentum_, n), false, at(out_, n), fragment_elements);
    });
  }

 private:
  using Work = std::function<bool(std::size_t)>;

  [[nodiscard]] static float* at(const CudaDevice::Floats& array, std::size_t n) {
    return array.get() + n * fragment_elements;
  }
  [[nodiscard]] gossip::FragmentView view(std::size_t n, bool corrected) const {
    return {at(publication_, n), corrected ? at(correction_, n) : nullptr};
  }

  /// Bytes a second, from the median of all calls.
  [[nodiscard]] double measure(double bytes_per_element, const Work& work) const {
    std::vector<double> seconds;
    for (int round = -1; round < rounds; ++round) {
      for (std::size_t n = 0; n < fragments; ++n) {
        if (!work(n)) throw std::runtime_error("a kernel failed: " + device_.failure());
        if (round >= 0) seconds.push_back(device_.last_kernel_s());
      }
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return bytes_per_element * fragment_elements / seconds[seconds.size() / 2];
  }

  void show(const char* what, const char* codec, double bytes_per_element, const Work& work) {
    const double speed = measure(bytes_per_element, work);
    const bool enough = speed >= least_share_of_copy * copy_;
    fmt::print("{:<34} {:>5} {:>10.0f} {:>8.0f} %{}\n", what, codec, speed / 1e9, 100 * speed / copy_,
               enough ? "" : "  BELOW THE TARGET of 85 %");
    if (!enough) ++failures;
  }

  void codec_kernels(Codec codec) {
    const double packed = codec_bits(codec) / 8.0;
    const char* const name = codec_name(codec);
    exponents_.assign(fragment_blocks, -8);
    checks_.resize(fragment_blocks);
    values_.resize(fragment_blocks * codec_block_bytes(codec));
    differences_.resize(values_.size());
    outcomes_.resize(fragment_blocks);
    for (const bool corrected : {false, true}) {
      show(corrected ? "encode, with correction" : "encode", name, (corrected ? 8 : 4) + packed, [&](std::size_t n) {
        return device_.encode(codec, view(n, corrected), blocks_, 7, exponents_, checks_, values_);
      });
    }
    for (const bool corrected : {true, false}) {
      (void)device_.encode(codec, view(0, corrected), blocks_, 7, exponents_, checks_, values_);
      show(corrected ? "difference, with correction" : "difference", name, (corrected ? 8 : 4) + 2 * packed,
           [&](std::size_t n) {
             return device_.difference(codec, view(n, corrected), blocks_, 7, exponents_, checks_, values_,
                                       differences_, outcomes_);
           });
    }
    show("outcomes of a reply", name, packed,
         [&](std::size_t) { return device_.outcomes_of(codec, exponents_, differences_, {}, outcomes_); });
    show("apply, in place", name, 8 + packed, [&](std::size_t n) { return applied(codec, at(out_, n), at(out_, n)); });
    show("apply, elsewhere", name, 8 + packed,
         [&](std::size_t n) { return applied(codec, at(correction_, n), at(out_, n)); });
  }

  [[nodiscard]] bool applied(Codec codec, const float* in, float* out) const {
    return device_.apply(codec, 1, 1, blocks_, exponents_, differences_, fragment_blocks, in, out);
  }

  [[nodiscard]] bool mean(std::size_t n) const {
    std::vector<gossip::ClientFragment> clients(2);
    for (gossip::ClientFragment& client : clients) {
      client.snapshot = at(publication_, n);
      client.base = at(publication_, n);
      client.take = gossip::Take::progress;
    }
    // Each reads its own arrays: the snapshot of one is the base of the other.
    clients[0].base = at(correction_, n);
    clients[1].snapshot = at(correction_, n);
    clients[0].correction = at(anchor_, n);
    clients[1].correction = at(momentum_, n);
    std::vector<gossip::LocalMeanOutcome> outcomes(2);
    return device_.local_mean(clients, {at(out_, n), fragment_elements}, outcomes);
  }

  const CudaDevice& device_;
  properties::Memory memory_;
  std::vector<std::uint32_t> blocks_;
  CudaDevice::Floats publication_{nullptr, {}}, correction_{nullptr, {}}, anchor_{nullptr, {}}, momentum_{nullptr, {}},
      out_{nullptr, {}};
  std::vector<std::int8_t> exponents_;
  std::vector<std::uint16_t> checks_;
  std::vector<std::byte> values_, differences_;
  std::vector<gossip::BlockOutcome> outcomes_;
  double copy_ = 0;
};

// ---- all of it

int skip(const std::string& why) {
  fmt::print("\n*** SKIPPED: nothing was run on a GPU ***\n*** {} ***\n\n", why);
  return exit_skipped;
}

void check_device(const Plugin& plugin, int index, const CudaDevice& device) {
  fmt::print("\nGPU {}: {}\n", index, device.name());
  for (const properties::Property& property : properties::all()) {
    properties::Memory memory(device);
    row("the same bits as the definition: " + property.name, property.check(device, memory));
  }
  row("calls from several threads at once", threads_get_their_own_results(device));
  row("no memory of the device leaks", nothing_leaks(plugin, index));
  row("host memory is reached where it is", host_memory_is_reached(device));
  row("what is no GPU memory is refused", what_is_no_gpu_memory_is_refused(device));
  Bandwidth(device).run();
  row("the device is as sound as before", device.failure());
}

int check(const char* path) {
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
    check_device(*plugin, index, *devices.back());
  }
  fmt::print("\n");
  const std::string gpus = fmt::format("{} GPU{}", *count, *count == 1 ? "" : "s");
  row("NCCL: a sum over " + gpus, nccl_sums(devices));
  row("the mean of a node's clients on " + gpus + ", with NCCL", mean_with_nccl(devices));
  row("the mean of a node's clients, through the host", mean_through_host(*plugin, devices));
  fmt::print("\n{}\n", failures == 0 ? "all passed" : fmt::format("{} FAILED", failures));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: gpu_check PLUGIN, the path of libgossamer_cuda.so; tests/gpu/run builds and calls it\n");
    return 2;
  }
  try {
    return check(argv[1]);
  } catch (const std::exception& exception) {
    fmt::print("FAILED: {}\n", exception.what());
    return 1;
  }
}
