// CudaDevice over the fake plug-in: memory shared with a client is mapped, pinned and given back, or refused with a
// text, and results have the same bits as on the processor.

#include <sys/mman.h>
#include <unistd.h>

#include "catch.hpp"
#include "daemon/device/cuda_device.hpp"
#include "daemon/device/fake_gpus.hpp"
#include "daemon/device/properties.hpp"

using namespace gossamer;
using namespace gossamer::device;
using gossamer::device::fake::fake_counts;
using gossamer::device::fake::FakeGpus;

namespace {

constexpr std::size_t page_bytes = 2 << 20;

Plugin fake_plugin() {
  auto plugin = Plugin::load(GOSSAMER_FAKE_PLUGIN);
  if (!plugin) FAIL(plugin.error());
  return *plugin;
}

int memory_of(std::size_t bytes) {
  const int memfd = ::memfd_create("fake-gpu-memory", MFD_CLOEXEC);
  REQUIRE(::ftruncate(memfd, static_cast<off_t>(bytes)) == 0);
  return memfd;
}

}  // namespace

TEST_CASE("a client's GPU memory is mapped, computed on, and forgotten", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  {
    const auto device = CudaDevice::open(plugin, 0);
    REQUIRE(device);
    const int memfd = memory_of(page_bytes);
    const std::vector<float> values(block_elements, 0.5F);
    REQUIRE(::pwrite(memfd, values.data(), values.size() * sizeof(float), 0) > 0);
    {
      const auto mapping = (*device)->import(memfd, page_bytes);
      REQUIRE(mapping);
      ::close(memfd);  // the mapping keeps it
      CHECK(fake_counts().mappings == 1);
      float* const buffers = mapping->get();
      CHECK((*device)->sum({.publication = buffers, .correction = buffers}, 1, buffers + block_elements));
      std::vector<float> read(block_elements);
      CHECK((*device)->download(read, buffers + block_elements));
      CHECK(read == std::vector<float>(block_elements, 1.0F));
    }
    CHECK(fake_counts().mappings == 0);
    CHECK((*device)->failure().empty());
  }
  CHECK(fake_counts().contexts == 0);
}

TEST_CASE("what cannot be mapped or pinned is refused with a text, and the device stays sound", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  const int memfd = memory_of(page_bytes);
  const auto refused = [&](int descriptor, std::size_t bytes, const std::string& why) {
    const auto mapping = (*device)->import(descriptor, bytes);
    REQUIRE_FALSE(mapping);
    CHECK(mapping.error().find(why) != std::string::npos);
  };
  refused(memfd, 2 * page_bytes, "smaller");
  refused(memfd, page_bytes - 1, "whole pages");
  refused(STDIN_FILENO, page_bytes, "");
  machine.be("import fails");
  refused(memfd, page_bytes, "not permitted");
  std::vector<std::byte> host(page_bytes);
  machine.be("pin fails");
  REQUIRE_FALSE((*device)->pin(host));
  machine.be("");
  {
    const auto pinned = (*device)->pin(host);
    REQUIRE(pinned);
    CHECK(fake_counts().pinned == 1);
    auto* const floats = reinterpret_cast<float*>(host.data());
    CHECK((*device)->clear(floats, 16));
  }
  CHECK(fake_counts().pinned == 0);
  CHECK((*device)->failure().empty());
  ::close(memfd);
}

TEST_CASE("an address of the host's is not taken for one of the GPU's", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  std::vector<float> host(block_elements);
  CHECK_FALSE((*device)->clear(host.data(), host.size()));
  CHECK((*device)->failure().find("not in the GPU's memory") != std::string::npos);
}

TEST_CASE("memory is released by whom the device was told", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  std::vector<std::move_only_function<void()>> later;
  (*device)->release_by([&](std::move_only_function<void()> release) { later.push_back(std::move(release)); });
  (void)(*device)->allocate(block_elements);
  CHECK(fake_counts().allocations == 1);
  (*device)->release_idle();  // it was in use too recently to be released
  CHECK(later.empty());
  (*device)->release_idle();
  REQUIRE(later.size() == 1);
  later[0]();
  CHECK(fake_counts().allocations == 0);
}

TEST_CASE("an array that was given back is the next of its length, and makes room on a full GPU", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  {
    const auto device = CudaDevice::open(plugin, 0);
    REQUIRE(device);
    const float* const first = (*device)->allocate(block_elements).get();
    {
      const auto again = (*device)->allocate(block_elements);
      CHECK(again.get() == first);
      const auto longer = (*device)->allocate(2 * block_elements);
      CHECK(fake_counts().allocations == 2);
    }
    std::vector<gossip::Device::Floats> many;
    for (std::size_t bytes = 0; bytes <= KeptArrays::max_idle_bytes; bytes += max_fragment_elements * sizeof(float))
      many.push_back((*device)->allocate(max_fragment_elements));
    const std::uint64_t most = fake_counts().allocations;
    many.clear();
    CHECK(fake_counts().allocations < most);  // only a part of the memory is kept
    machine.be("no memory");
    CHECK((*device)->allocate(3 * block_elements) != nullptr);  // host memory, after all idle memory was freed
    CHECK(fake_counts().allocations == 0);
    CHECK((*device)->failure().empty());
  }
  CHECK(fake_counts().contexts == 0);
}

TEST_CASE("work on a GPU counts as taken from the training there", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  const auto array = (*device)->allocate(block_elements);
  CHECK((*device)->taken_us() == 0);
  CHECK((*device)->clear(array.get(), block_elements));
  CHECK((*device)->taken_us() == CudaDevice::turn_us);
}

TEST_CASE("host memory stands in for that of a full GPU, and is kept for the next array", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  {
    const auto device = CudaDevice::open(plugin, 0);
    REQUIRE(device);
    const auto allowance = std::make_shared<HostAllowance>();
    (*device)->overflow_within(allowance);
    const auto inside = (*device)->allocate(block_elements);
    machine.be("no memory");
    {
      const auto outside = (*device)->allocate(block_elements);
      REQUIRE(outside != nullptr);
      CHECK(fake_counts().allocations == 1);
      CHECK(fake_counts().pinned == 1);
      CHECK((*device)->overflow_bytes() >= block_elements * sizeof(float));
      // The GPU works on both kinds alike.
      const std::vector<float> values(block_elements, 0.5F);
      CHECK((*device)->upload(inside.get(), values));
      CHECK((*device)->sum({.publication = inside.get(), .correction = inside.get()}, 1, outside.get()));
      std::vector<float> read(block_elements);
      CHECK((*device)->download(read, outside.get()));
      CHECK(read == std::vector<float>(block_elements, 1.0F));
    }
    CHECK((*device)->overflow_bytes() == 0);
    CHECK(fake_counts().pinned == 1);
    {
      // Idle pinned memory is used first, since nothing can be pinned any more.
      machine.be("no memory\npin fails");
      const auto again = (*device)->allocate(block_elements);
      CHECK(again != nullptr);
      CHECK((*device)->allocate(block_elements) == nullptr);
      CHECK((*device)->overflow_use().trouble.find("fake") != std::string::npos);
      CHECK((*device)->overflow_use().trouble.empty());
    }
    machine.be("");
    (*device)->release_idle();
    CHECK(fake_counts().pinned == 1);  // it was in use too recently to be released
    const auto back = (*device)->allocate(block_elements);
    CHECK(fake_counts().allocations == 2);
    (*device)->release_idle();
    CHECK(fake_counts().pinned == 0);
    CHECK((*device)->overflow_use().idle_bytes == 0);
    CHECK((*device)->failure().empty());
  }
  CHECK(fake_counts().allocations == 0);
  CHECK(fake_counts().contexts == 0);
}

TEST_CASE("no more host memory stands in than is allowed, and little of it is kept", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  {
    const auto first = CudaDevice::open(plugin, 0);
    const auto second = CudaDevice::open(plugin, 0);
    REQUIRE((first && second));
    constexpr std::size_t elements = 4 << 20;
    constexpr std::size_t bytes = elements * sizeof(float);
    constexpr std::size_t arrays = 5;
    const auto allowance = std::make_shared<HostAllowance>(arrays * bytes);
    (*first)->overflow_within(allowance);
    (*second)->overflow_within(allowance);
    machine.be("no memory");
    std::vector<gossip::Device::Floats> held;
    for (std::size_t n = 0; n < arrays; ++n) {
      held.push_back((*first)->allocate(elements));
      REQUIRE(held.back() != nullptr);
    }
    CHECK((*second)->allocate(1) == nullptr);
    CHECK((*second)->overflow_use().trouble.find("all host memory that may") != std::string::npos);
    held.clear();
    CHECK((*first)->overflow_use().most_bytes == arrays * bytes);
    CHECK((*first)->overflow_use().idle_bytes == KeptArrays::max_idle_bytes);
    CHECK(fake_counts().pinned == KeptArrays::max_idle_bytes / bytes);
    CHECK((*second)->allocate(elements) != nullptr);  // takes the memory that was given up
  }
  CHECK(fake_counts().pinned == 0);
}

TEST_CASE("host memory that stood in for a GPU that failed is not used again", "[device]") {
  const FakeGpus machine;
  const Plugin plugin = fake_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  machine.be("no memory");
  auto array = (*device)->allocate(block_elements);
  REQUIRE(array != nullptr);
  machine.be("no memory\nwork fails");
  CHECK_FALSE((*device)->clear(array.get(), block_elements));
  array.reset();
  CHECK((*device)->overflow_use().idle_bytes == 0);
  CHECK(fake_counts().pinned == 0);
  CHECK((*device)->allocate(block_elements) == nullptr);
}

TEST_CASE("behind the functions of a plug-in a device has the same properties, in its memory and beside it",
          "[device]") {
  const FakeGpus machine;
  machine.be(GENERATE("", "no memory"));
  const Plugin plugin = fake_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  {
    properties::Memory memory(**device);
    for (const properties::Property& property : properties::all()) {
      INFO(property.name);
      CHECK(property.check(**device, memory).empty());
    }
  }
  (*device)->release_idle();
  (*device)->release_idle();
  CHECK(fake_counts().allocations == 0);
}
