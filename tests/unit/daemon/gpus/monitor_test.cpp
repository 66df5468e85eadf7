// The thread that watches: news, errors, drivers that come, go and hang.

#include "daemon/gpus/monitor.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/gpus/fake_driver.hpp"

using namespace gossamer::gpus;
using namespace gossamer::gpus::test;
using Catch::Matchers::Contains;
using namespace std::chrono_literals;

namespace {

MonitorOptions quick(const std::string& library = FAKE_NVML) {
  return {.library = library, .period = 10ms, .retry = 10ms, .patience = 60s, .stop_patience = 60s};
}

/// Whether the first GPU has these kinds of errors, the latest first.
bool has_xids(const GpuMonitor& monitor, const std::vector<std::uint32_t>& codes) {
  const GpuReport report = monitor.report();
  std::vector<std::uint32_t> seen;
  if (!report.gpus.empty())
    for (const XidSeen& xid : report.gpus.front().xids)
      seen.push_back(xid.code);
  return seen == codes;
}

}  // namespace

TEST_CASE("what is watched is as new as the driver's figures") {
  const FakeDriver machine("driver 550\n" + whole_gpu(0));
  const GpuMonitor monitor(quick());
  REQUIRE(becomes_true([&] { return monitor.report().state == "watched"; }));
  CHECK(monitor.report().driver == "550");
  machine.become("driver 550\n" + whole_gpu(0) + whole_gpu(1));
  CHECK(becomes_true([&] { return monitor.report().gpus.size() == 2; }));
}

TEST_CASE("errors are counted, and make a GPU ill") {
  const FakeDriver machine(whole_gpu(0) + "xid 0 31\n");
  const GpuMonitor monitor(quick());
  REQUIRE(becomes_true([&] { return has_xids(monitor, {31}); }));
  CHECK(monitor.report().gpus.front().health == Health::sound);
  machine.become(whole_gpu(0) + "xid 0 31\nxid 0 79\nxid 0 31\n");
  REQUIRE(becomes_true([&] { return has_xids(monitor, {79, 31}); }));
  const Gpu gpu = monitor.report().gpus.front();
  CHECK(gpu.xids.back().count == 2);
  CHECK(gpu.health == Health::ill);
  CHECK_THAT(gpu.note, Contains("Xid 79"));
}

TEST_CASE("errors of more kinds than are remembered leave the latest") {
  std::string xids;
  for (std::size_t i = 0; i < max_xid_kinds + 3; ++i)
    xids += "xid 0 " + std::to_string(200 + i) + "\n";
  const FakeDriver machine(whole_gpu(0) + xids);
  const GpuMonitor monitor(quick());
  CHECK(becomes_true([&] {
    const GpuReport report = monitor.report();
    return !report.gpus.empty() && report.gpus.front().xids.size() == max_xid_kinds &&
           report.gpus.front().xids.back().code == 200 + max_xid_kinds + 2;
  }));
}

TEST_CASE("after one GPU was lost, errors of the others are heard") {
  const FakeDriver machine(whole_gpu(0) + whole_gpu(1));
  const GpuMonitor monitor(quick());
  REQUIRE(becomes_true([&] { return monitor.report().gpus.size() == 2; }));
  machine.become("gone\n");
  REQUIRE(becomes_true([&] { return monitor.report().state == "none"; }));
  machine.become("gpu lost=1\n" + whole_gpu(1) + "xid 1 48\n");
  CHECK(becomes_true([&] {
    const GpuReport report = monitor.report();
    return report.gpus.size() == 2 && report.gpus[0].lost && report.gpus[1].health == Health::ill;
  }));
}

TEST_CASE("a driver that is loaded later, and unloaded") {
  const FakeDriver machine("init 9\n");
  const GpuMonitor monitor(quick());
  REQUIRE(becomes_true([&] { return monitor.report().note.find("Driver Not Loaded") != std::string::npos; }));
  CHECK(monitor.report().state == "none");
  machine.become(whole_gpu(0));
  REQUIRE(becomes_true([&] { return monitor.report().state == "watched"; }));
  machine.become("init 9\ngone\n");
  CHECK(becomes_true([&] { return monitor.report().state == "none"; }));
}

TEST_CASE("a driver that hangs does not keep whoever asks, nor the end") {
  const FakeDriver machine(whole_gpu(0));
  MonitorOptions options = quick();
  options.patience = 20ms;
  options.stop_patience = 20ms;
  auto monitor = std::make_unique<GpuMonitor>(options);
  REQUIRE(becomes_true([&] { return !monitor->report().gpus.empty(); }));
  machine.become(whole_gpu(0) + "hang\n");
  REQUIRE(becomes_true([&] { return monitor->report().state == "stuck"; }));
  const GpuReport report = monitor->report();
  CHECK(report.gpus.size() == 1);  // the last report stays
  CHECK_THAT(report.note, Contains("restart the machine"));
  REQUIRE(becomes_true([&] { return monitor->report().age_s > report.age_s; }));
  SECTION("it comes back") {
    machine.become(whole_gpu(0));
    CHECK(becomes_true([&] { return monitor->report().state == "watched"; }));
  }
  SECTION("the monitor ends meanwhile") {
    monitor.reset();
    machine.become("");
  }
}

TEST_CASE("where GPUs are not to be watched, nothing is loaded") {
  const GpuMonitor monitor({});
  CHECK(monitor.report().state == "off");
  const GpuMonitor none(quick("/nonexistent/libnvidia-ml.so.1"));
  CHECK(becomes_true([&] { return none.report().note.find("no driver") != std::string::npos; }));
}
