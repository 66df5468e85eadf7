// CudaDevice over the played plug-in: what is shared with a client is mapped and pinned, refused with a text, and given
// back; and the same bits come from there as from the processor.

#include <sys/mman.h>
#include <unistd.h>

#include "catch.hpp"
#include "daemon/device/cuda_device.hpp"
#include "daemon/device/played_gpus.hpp"
#include "daemon/device/properties.hpp"

using namespace gossamer;
using namespace gossamer::device;
using gossamer::device::played::played_counts;
using gossamer::device::played::PlayedGpus;

namespace {

constexpr std::size_t page_bytes = 2 << 20;

Plugin played_plugin() {
  auto plugin = Plugin::load(GOSSAMER_PLAYED_PLUGIN);
  if (!plugin) FAIL(plugin.error());
  return *plugin;
}

int memory_of(std::size_t bytes) {
  const int memfd = ::memfd_create("played-gpu-memory", MFD_CLOEXEC);
  REQUIRE(::ftruncate(memfd, static_cast<off_t>(bytes)) == 0);
  return memfd;
}

}  // namespace

TEST_CASE("a client's GPU memory is mapped, computed on, and forgotten", "[device]") {
  const PlayedGpus machine;
  const Plugin plugin = played_plugin();
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
      CHECK(played_counts().mappings == 1);
      float* const buffers = mapping->get();
      CHECK((*device)->sum({.publication = buffers, .correction = buffers}, 1, buffers + block_elements));
      std::vector<float> read(block_elements);
      CHECK((*device)->download(read, buffers + block_elements));
      CHECK(read == std::vector<float>(block_elements, 1.0F));
    }
    CHECK(played_counts().mappings == 0);
    CHECK((*device)->failure().empty());
  }
  CHECK(played_counts().contexts == 0);
}

TEST_CASE("what cannot be mapped or pinned is refused with a text, and the device stays sound", "[device]") {
  const PlayedGpus machine;
  const Plugin plugin = played_plugin();
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
    CHECK(played_counts().pinned == 1);
    auto* const floats = reinterpret_cast<float*>(host.data());
    CHECK((*device)->clear(floats, 16));
  }
  CHECK(played_counts().pinned == 0);
  CHECK((*device)->failure().empty());
  ::close(memfd);
}

TEST_CASE("an address of the host's is not taken for one of the GPU's", "[device]") {
  const PlayedGpus machine;
  const Plugin plugin = played_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  std::vector<float> host(block_elements);
  CHECK_FALSE((*device)->clear(host.data(), host.size()));
  CHECK((*device)->failure().find("not in the GPU's memory") != std::string::npos);
}

TEST_CASE("memory is released by whom the device was told", "[device]") {
  const PlayedGpus machine;
  const Plugin plugin = played_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  std::vector<std::move_only_function<void()>> later;
  (*device)->release_by([&](std::move_only_function<void()> release) { later.push_back(std::move(release)); });
  (void)(*device)->allocate(block_elements);
  CHECK(played_counts().allocations == 1);
  REQUIRE(later.size() == 1);
  later[0]();
  CHECK(played_counts().allocations == 0);
}

TEST_CASE("behind the functions of a plug-in a device has the same properties", "[device]") {
  const PlayedGpus machine;
  const Plugin plugin = played_plugin();
  const auto device = CudaDevice::open(plugin, 0);
  REQUIRE(device);
  {
    properties::Memory memory(**device);
    for (const properties::Property& property : properties::all()) {
      INFO(property.name);
      CHECK(property.check(**device, memory).empty());
    }
  }
  CHECK(played_counts().allocations == 0);
}
