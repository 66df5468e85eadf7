// How GPUs are shown: gossamerctl's table, doctor's findings, the metrics.

#include <sstream>

#include "daemon/gpus/health.hpp"
#include "daemon/report/metrics.hpp"
#include "tests/unit/catch.hpp"
#include "tools/ctl/gpus.hpp"

using namespace gossamer;
using Catch::Matchers::Contains;

namespace {

gpus::Gpu gpu(std::uint32_t index) {
  gpus::Gpu gpu;
  gpu.index = index;
  gpu.uuid = "GPU-" + std::to_string(index);
  gpu.name = "NVIDIA H200 with a name that is long";
  gpu.pci_bus = "0000:3b:00.0";
  gpu.memory_total_bytes = 141'000'000'000;
  gpu.memory_used_bytes = 12'300'000'000;
  gpu.utilisation_ratio = 0.37;
  gpu.temperature_c = 55;
  gpu.power_w = 300.5;
  gpu.ecc_uncorrected = 0;
  gpu.processes = {{.pid = 1, .memory_bytes = 5, .job = "digits"}, {.pid = 2, .memory_bytes = {}, .job = ""}};
  return gpu;
}

/// Three GPUs: a sound one, an unknown one, and one that has fallen off the bus.
gpus::GpuReport machine() {
  gpus::GpuReport report{.state = "watched", .driver = "550.90", .age_s = 1, .note = {}, .gpus = {gpu(0), {}, gpu(2)}};
  report.gpus[1].index = 1;
  report.gpus[2].lost = true;
  report.gpus[2].xids = {{31, 4, 9}, {79, 2, 1}};
  for (gpus::Gpu& each : report.gpus)
    gpus::judge(each);
  return report;
}

}  // namespace

TEST_CASE("the table of GPUs fits into 80 columns, and says what to do below it") {
  gpus::GpuReport report = machine();
  const std::string text = ctl::gpus_table(report, false);
  std::istringstream lines(text);
  std::string line;
  for (std::size_t i = 0; i <= report.gpus.size(); ++i) {
    std::getline(lines, line);
    CAPTURE(line);
    CHECK(line.size() <= 80);
  }
  CHECK_THAT(text, Contains("H200 with a name tha  12.3 GB of 141 GB  37 %  55 C  300 W    1 + 1  sound\n"));
  CHECK_THAT(text, Contains("  1  -"));
  CHECK_THAT(text, Contains("GPU 2 (GPU-2): has fallen off the bus\n-> restart the machine"));
  CHECK_THAT(text, Contains("Xid 79: the GPU has fallen off the bus, 2 times"));
  CHECK_THAT(text, !Contains("Xid 31") && !Contains("old"));
  report.state = "stuck";
  report.note = "it hangs";
  report.age_s = 65;
  CHECK_THAT(ctl::gpus_table(report, false), Contains("figures are 1 m 05 s old\nit hangs\n"));
  CHECK(ctl::gpus_table({.state = "none", .driver = {}, .age_s = 0, .note = "no driver", .gpus = {}}, false) ==
        "no GPU\nno driver\n");
}

TEST_CASE("doctor names the GPUs that are not sound, and nothing where there are none") {
  const auto findings = ctl::examine_gpus(machine());
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].grade == ctl::Grade::problem);
  CHECK_THAT(findings[0].text, Contains("GPU 2"));
  CHECK_FALSE(findings[0].advice.empty());
  CHECK_THAT(findings[2].text, Contains("2 of 3 sound, as driver 550.90 says"));
  CHECK(ctl::examine_gpus({}).empty());
  gpus::GpuReport stuck{.state = "stuck", .driver = {}, .age_s = 99, .note = "restart the machine", .gpus = {}};
  CHECK(ctl::worst(ctl::examine_gpus(stuck)) == ctl::Grade::problem);
}

TEST_CASE("metrics of GPUs have what the driver tells, and nothing for what it does not") {
  daemon::Observed observed;
  observed.gpus = machine();
  const std::string text = daemon::metrics_text(observed);
  for (const char* const line :
       {"gossamer_gpu_watch_state{state=\"watched\"} 1\n", "gossamer_gpu_watch_state{state=\"stuck\"} 0\n",
        "gossamer_gpu_info{gpu=\"GPU-0\",index=\"0\",name=\"NVIDIA H200 with a name that is long\",pci_bus=\"0000:3b:"
        "00.0\"} 1\n",
        "gossamer_gpu_health{gpu=\"GPU-0\",state=\"sound\"} 1\n",
        "gossamer_gpu_health{gpu=\"GPU-2\",state=\"ill\"} 1\n",
        "gossamer_gpu_xid_errors_total{gpu=\"GPU-2\",xid=\"79\"} 2\n",
        "gossamer_gpu_utilisation_ratio{gpu=\"GPU-0\"} 0.37\n", "gossamer_gpu_power_watts{gpu=\"GPU-0\"} 300.5\n",
        "gossamer_gpu_ecc_uncorrected{gpu=\"GPU-2\"} 0\n", "gossamer_gpu_clients{gpu=\"GPU-0\"} 1\n",
        "gossamer_gpu_clients{gpu=\"1\"} 0\n"})
    CHECK_THAT(text, Contains(line));
  CHECK_THAT(text, !Contains("gossamer_gpu_power_watts{gpu=\"1\"}"));
  observed.gpus = {.state = "none", .driver = {}, .age_s = 0, .note = {}, .gpus = {}};
  CHECK_THAT(daemon::metrics_text(observed),
             Contains("gossamer_gpu_watch_state{state=\"none\"} 1\n") && !Contains("gossamer_gpu_info"));
}
