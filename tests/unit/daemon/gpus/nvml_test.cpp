// What is read from the driver's library, in every state that a driver or GPU may have.

#include "daemon/gpus/nvml.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/gpus/fake_driver.hpp"

using namespace gossamer::gpus;
using Catch::Matchers::Contains;
using gossamer::gpus::test::FakeDriver;
using gossamer::gpus::test::whole_gpu;

namespace {

std::vector<Gpu> read(const char* library = FAKE_NVML) {
  auto nvml = Nvml::open(library);
  REQUIRE(nvml);
  auto gpus = nvml->read();
  REQUIRE(gpus);
  return *gpus;
}

}  // namespace

TEST_CASE("all that a driver tells of a GPU") {
  const FakeDriver machine("driver 550.90\n" + whole_gpu(0));
  auto nvml = Nvml::open(FAKE_NVML);
  REQUIRE(nvml);
  CHECK(nvml->driver() == "550.90");
  const auto gpus = nvml->read();
  REQUIRE(gpus);
  REQUIRE(gpus->size() == 1);
  const Gpu& gpu = gpus->front();
  CHECK(gpu.index == 0);
  CHECK(gpu.uuid == "GPU-0");
  CHECK(gpu.name == "H200");
  CHECK(gpu.pci_bus == "0000:3b:00.0");
  CHECK(gpu.memory_total_bytes == 1000U);
  CHECK(gpu.memory_used_bytes == 400U);
  CHECK(gpu.utilisation_ratio == 0.37);
  CHECK(gpu.temperature_c == 55);
  CHECK(gpu.power_w.value() == 300.5);
  CHECK(gpu.power_limit_w.value() == 700);
  CHECK(gpu.ecc_corrected == 3U);
  CHECK(gpu.ecc_uncorrected == 0U);
  CHECK(gpu.rows_remapped == 2U);
  CHECK_FALSE(gpu.remap_pending);
  CHECK_FALSE(gpu.lost);
  REQUIRE(gpu.processes.size() == 2);
  CHECK(gpu.processes[0].pid == 123);
  CHECK(gpu.processes[0].memory_bytes == 100U);
  CHECK_FALSE(gpu.processes[1].memory_bytes);
}

TEST_CASE("machines with no GPU, one and eight") {
  const FakeDriver machine("");
  CHECK(read().empty());
  machine.become(whole_gpu(0));
  CHECK(read().size() == 1);
  std::string eight;
  for (int i = 0; i < 8; ++i)
    eight += whole_gpu(i);
  machine.become(eight);
  const auto gpus = read();
  REQUIRE(gpus.size() == 8);
  for (unsigned i = 0; i < 8; ++i) {
    CHECK(gpus[i].index == i);
    CHECK(gpus[i].uuid == "GPU-" + std::to_string(i));
  }
}

TEST_CASE("what a GPU does not have is absent") {
  const FakeDriver machine("gpu uuid=GPU-0 name=Old total=1000 used=1\n");
  const Gpu gpu = read().front();
  CHECK(gpu.memory_total_bytes == 1000U);
  CHECK_FALSE(gpu.utilisation_ratio);
  CHECK_FALSE(gpu.temperature_c);
  CHECK_FALSE(gpu.power_w);
  CHECK_FALSE(gpu.ecc_uncorrected);
  CHECK_FALSE(gpu.rows_remapped);
  CHECK(gpu.processes.empty());
  CHECK(gpu.unreadable.empty());
}

TEST_CASE("a driver that is too old for some functions") {
  const FakeDriver machine("driver 390.1\n" + whole_gpu(0));
  auto nvml = Nvml::open(FAKE_OLD_NVML);
  REQUIRE(nvml);
  nvml->listen();
  CHECK_FALSE(nvml->tells_events());
  const Gpu gpu = nvml->read().value().front();
  CHECK(gpu.memory_used_bytes == 400U);
  CHECK(gpu.power_w.value() == 300.5);
  CHECK_FALSE(gpu.power_limit_w);
  CHECK_FALSE(gpu.rows_remapped);
  CHECK_FALSE(gpu.mig);
  CHECK(gpu.processes.empty());
}

TEST_CASE("pages and rows that wait to be replaced") {
  const FakeDriver machine(
      "gpu uuid=GPU-0 total=1 used=0 rows=1 pending=1\ngpu uuid=GPU-1 total=1 used=0 retired=1\n"
      "gpu uuid=GPU-2 total=1 used=0 rows=1 failed=1\n");
  const auto gpus = read();
  CHECK((gpus[0].remap_pending && gpus[1].remap_pending && !gpus[2].remap_pending));
  CHECK((!gpus[0].remap_failed && gpus[2].remap_failed));
}

TEST_CASE("the instances of a GPU that is divided") {
  const FakeDriver machine("gpu uuid=GPU-0 total=1 used=0 mig=MIG-a,MIG-b\n" + whole_gpu(1));
  const auto gpus = read();
  CHECK(gpus[0].mig);
  CHECK(gpus[0].mig_uuids == std::vector<std::string>{"MIG-a", "MIG-b"});
  CHECK_FALSE(gpus[1].mig);
}

TEST_CASE("a GPU that falls off the bus keeps its name, and its neighbours are read") {
  const FakeDriver machine(whole_gpu(0) + whole_gpu(1));
  auto nvml = Nvml::open(FAKE_NVML);
  REQUIRE(nvml->read());
  machine.become("gpu lost=1\n" + whole_gpu(1));
  const auto gpus = nvml->read().value();
  CHECK(gpus[0].lost);
  CHECK(gpus[0].uuid == "GPU-0");
  CHECK_FALSE(gpus[0].memory_used_bytes);
  CHECK_THAT(gpus[0].unreadable, Contains("GPU is lost (NVML 15)"));
  CHECK(gpus[1].memory_used_bytes == 400U);
}

TEST_CASE("a GPU that wants a reset is told with the driver's reason") {
  const FakeDriver machine("gpu uuid=GPU-0 fault=16\n");
  const Gpu gpu = read().front();
  CHECK_FALSE(gpu.lost);
  CHECK_THAT(gpu.unreadable, Contains("GPU requires reset"));
}

TEST_CASE("a driver that is unloaded ends the reading, not the process") {
  const FakeDriver machine(whole_gpu(0));
  auto nvml = Nvml::open(FAKE_NVML);
  REQUIRE(nvml->read());
  machine.become("gone\n");
  CHECK_FALSE(nvml->read());
}

TEST_CASE("libraries that are none, and drivers that do not answer, say what is wrong") {
  CHECK_THAT(Nvml::open("/nonexistent/libnvidia-ml.so.1").error(), Contains("no driver of NVIDIA's"));
  CHECK_THAT(Nvml::open("libm.so.6").error(), Contains("not NVIDIA's management library"));
  const FakeDriver machine("init 9\n");
  CHECK_THAT(Nvml::open(FAKE_NVML).error(), Contains("Driver Not Loaded (NVML 9)"));
}

TEST_CASE("errors come with the GPU that they are of") {
  const FakeDriver machine(whole_gpu(0) + whole_gpu(1) + "xid 1 79\n");
  auto nvml = Nvml::open(FAKE_NVML);
  nvml->listen();
  REQUIRE(nvml->tells_events());
  const auto event = nvml->wait_for_xid(gossamer::gpus::test::patience);
  REQUIRE(event);
  CHECK(event->uuid == "GPU-1");
  CHECK(event->code == 79);
  CHECK_FALSE(nvml->wait_for_xid(std::chrono::milliseconds(1)));
  CHECK(nvml->tells_events());
  machine.become("gone\n");
  CHECK_FALSE(nvml->wait_for_xid(std::chrono::milliseconds(1)));
  CHECK_FALSE(nvml->tells_events());
}
