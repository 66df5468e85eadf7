// A look at the GPUs from a process of its own.

#include "daemon/gpus/monitor.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/gpus/fake_driver.hpp"

using namespace gossamer::gpus;
using namespace gossamer::gpus::test;
using Catch::Matchers::Contains;
using namespace std::chrono_literals;

TEST_CASE("a look tells what a monitor would") {
  const FakeDriver machine("driver 550\n" + whole_gpu(0) + "gpu lost=1\n");
  const GpuReport report = look_once(FAKE_NVML, patience);
  CHECK(report.state == "watched");
  CHECK(report.driver == "550");
  REQUIRE(report.gpus.size() == 2);
  CHECK(report.gpus[0].memory_used_bytes == 400U);
  CHECK(report.gpus[1].health == Health::ill);
}

TEST_CASE("a look without a driver, without a GPU, and at a driver that hangs or crashes") {
  CHECK_THAT(look_once("/nonexistent/libnvidia-ml.so.1", patience).note, Contains("no driver"));
  const FakeDriver machine("driver 550\n");
  CHECK(look_once(FAKE_NVML, patience).note == "the driver sees no GPU");
  machine.become("hang\n");
  const GpuReport stuck = look_once(FAKE_NVML, 50ms);
  CHECK(stuck.state == "stuck");
  CHECK_THAT(stuck.note, Contains("has not answered"));
  machine.become("crash\n");
  CHECK_THAT(look_once(FAKE_NVML, patience).note, Contains("ended the process that looked"));
}
