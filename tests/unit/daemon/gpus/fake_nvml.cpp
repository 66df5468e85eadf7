// NVIDIA's management library as a fake of the tests: a shared library with its functions, which reads the machine from
// the file that GOSSAMER_FAKE_NVML names, at every call, so that a test can change it while somebody looks.
//
//   driver 550.90                              the version
//   gpu uuid=GPU-0 name=H200 bus=3b total=1000 used=400 busy=37 celsius=55 milliwatts=300000 limit=700000 ecc=3/0
//       rows=2 pending=1 failed=0 retired=1 mig=MIG-a,MIG-b processes=123:1000,124:- lost=1 fault=16
//                                              one, on one line; what is left out is "not supported"
//   xid 0 79                                   the GPU of this index reports this error, once
//   init 9                                     nvmlInit fails so
//   gone                                       the driver was unloaded
//   hang                                       calls wait until the line is gone
//   crash                                      calls end the process
//
// With FAKE_OLD_DRIVER some functions are missing.

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/gpus/nvml_types.hpp"

using namespace gossamer::gpus::nvml;

namespace {

using Values = std::map<std::string, std::string>;

struct Machine {
  std::string driver;
  std::vector<Values> gpus;
  std::vector<std::pair<unsigned, unsigned>> xids;
  int init = success;
  bool gone = false;
  bool hangs = false;
  bool crashes = false;
};

Machine read_machine() {
  Machine machine;
  const char* const path = std::getenv("GOSSAMER_FAKE_NVML");
  std::ifstream file(path != nullptr ? path : "");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "driver") words >> machine.driver;
    if (what == "init") words >> machine.init;
    machine.gone = machine.gone || what == "gone";
    machine.hangs = machine.hangs || what == "hang";
    machine.crashes = machine.crashes || what == "crash";
    if (what == "xid") {
      auto& [index, code] = machine.xids.emplace_back();
      words >> index >> code;
    }
    if (what != "gpu") continue;
    Values& gpu = machine.gpus.emplace_back();
    std::string value;
    while (words >> value)
      gpu[value.substr(0, value.find('='))] = value.substr(value.find('=') + 1);
  }
  return machine;
}

Machine machine_now() {
  Machine machine = read_machine();
  while (machine.hangs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    machine = read_machine();
  }
  if (machine.crashes) ::raise(SIGKILL);
  return machine;
}

/// What a handle points to: a GPU, or the instance of one.
struct Handle {
  unsigned gpu;
  int instance;  // -1: the GPU itself
};
std::map<std::pair<unsigned, int>, Handle> handles;
[[maybe_unused]] std::size_t told_xids = 0;

NvmlDevice device_of(unsigned gpu, int instance = -1) {
  return reinterpret_cast<NvmlDevice>(&handles.try_emplace({gpu, instance}, Handle{gpu, instance}).first->second);
}
const Handle& handle_of(NvmlDevice device) {
  return *reinterpret_cast<const Handle*>(device);
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);)
    parts.push_back(part);
  return parts;
}

int state_of(const Values& gpu) {
  if (gpu.contains("lost")) return gpu_is_lost;
  return gpu.contains("fault") ? std::stoi(gpu.at("fault")) : success;
}

/// Calls `take` with the value, if the GPU is there and has it.
template <class Take>
int tell(NvmlDevice device, const char* name, Take take) {
  const Machine machine = machine_now();
  if (machine.gone) return uninitialized;
  const Values& gpu = machine.gpus.at(handle_of(device).gpu);
  if (const int state = state_of(gpu); state != success) return state;
  if (!gpu.contains(name)) return not_supported;
  take(gpu.at(name));
  return success;
}

int tell_number(NvmlDevice device, const char* name, unsigned* number) {
  return tell(device, name, [&](const std::string& text) { *number = static_cast<unsigned>(std::stoul(text)); });
}

int tell_text(NvmlDevice device, const char* name, char* text, unsigned bytes) {
  return tell(device, name, [&](const std::string& value) {
    std::strncpy(text, value.c_str(), bytes - 1);
    text[bytes - 1] = 0;
  });
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return machine_now().init;
}
int nvmlShutdown() {
  return success;
}
const char* nvmlErrorString(int result) {
  return result == gpu_is_lost         ? "GPU is lost"
         : result == driver_not_loaded ? "Driver Not Loaded"
         : result == reset_required    ? "GPU requires reset"
                                       : "Some error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::strncpy(text, machine_now().driver.c_str(), bytes - 1);
  return success;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  const Machine machine = machine_now();
  *count = static_cast<unsigned>(machine.gpus.size());
  return machine.gone ? uninitialized : success;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice* device) {
  const Machine machine = machine_now();
  if (machine.gone) return uninitialized;
  if (machine.gpus.at(index).contains("lost")) return gpu_is_lost;
  *device = device_of(index);
  return success;
}
int nvmlDeviceGetUUID(NvmlDevice device, char* text, unsigned bytes) {
  const int instance = handle_of(device).instance;
  if (instance < 0) return tell_text(device, "uuid", text, bytes);
  return tell(device, "mig", [&](const std::string& value) {
    std::strncpy(text, split(value, ',').at(static_cast<std::size_t>(instance)).c_str(), bytes - 1);
  });
}
int nvmlDeviceGetName(NvmlDevice device, char* text, unsigned bytes) {
  return tell_text(device, "name", text, bytes);
}
int nvmlDeviceGetMemoryInfo(NvmlDevice device, Memory* memory) {
  if (const int result = tell(device, "used", [&](const std::string& text) { memory->used = std::stoull(text); });
      result != success)
    return result;
  return tell(device, "total", [&](const std::string& text) { memory->total = std::stoull(text); });
}
int nvmlDeviceGetPciInfo_v3(NvmlDevice device, PciInfo* pci) {
  return tell(device, "bus",
              [&](const std::string& text) { pci->bus = static_cast<unsigned>(std::stoul(text, nullptr, 16)); });
}
int nvmlDeviceGetUtilizationRates(NvmlDevice device, Utilization* utilization) {
  return tell_number(device, "busy", &utilization->gpu);
}
int nvmlDeviceGetTemperature(NvmlDevice device, int, unsigned* celsius) {
  return tell_number(device, "celsius", celsius);
}
int nvmlDeviceGetPowerUsage(NvmlDevice device, unsigned* milliwatts) {
  return tell_number(device, "milliwatts", milliwatts);
}
int nvmlDeviceGetTotalEccErrors(NvmlDevice device, int kind, int, unsigned long long* count) {
  return tell(device, "ecc", [&](const std::string& text) {
    *count = std::stoull(split(text, '/').at(static_cast<std::size_t>(kind)));
  });
}
int nvmlDeviceGetRetiredPagesPendingStatus(NvmlDevice device, int* pending) {
  return tell(device, "retired", [&](const std::string& text) { *pending = std::stoi(text); });
}

#ifndef FAKE_OLD_DRIVER
int nvmlDeviceGetEnforcedPowerLimit(NvmlDevice device, unsigned* milliwatts) {
  return tell_number(device, "limit", milliwatts);
}
int nvmlDeviceGetRemappedRows(NvmlDevice device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = 0;
  tell_number(device, "pending", pending);
  tell_number(device, "failed", failed);
  return tell_number(device, "rows", uncorrected);
}
int nvmlDeviceGetMigMode(NvmlDevice device, unsigned* now, unsigned* pending) {
  *now = *pending = 0;
  return tell(device, "mig", [&](const std::string&) { *now = *pending = 1; });
}
int nvmlDeviceGetMaxMigDeviceCount(NvmlDevice, unsigned* count) {
  *count = 7;
  return success;
}
int nvmlDeviceGetMigDeviceHandleByIndex(NvmlDevice device, unsigned index, NvmlDevice* instance) {
  std::size_t made = 0;
  const int result = tell(device, "mig", [&](const std::string& text) { made = split(text, ',').size(); });
  if (result == success && index >= made) return not_found;
  *instance = device_of(handle_of(device).gpu, static_cast<int>(index));
  return result;
}
int nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice device, unsigned* count, ProcessInfo* processes) {
  return tell(device, "processes", [&](const std::string& text) {
    const unsigned room = std::exchange(*count, 0);
    for (const std::string& one : split(text, ',')) {
      if (*count == room) break;
      const std::string memory = one.substr(one.find(':') + 1);
      processes[(*count)++] = {static_cast<unsigned>(std::stoul(one)),
                               memory == "-" ? value_not_available : std::stoull(memory), 0, 0};
    }
  });
}
int nvmlEventSetCreate(EventSet* set) {
  *set = reinterpret_cast<EventSet>(&told_xids);
  return success;
}
int nvmlEventSetFree(EventSet) {
  return success;
}
int nvmlDeviceRegisterEvents(NvmlDevice device, unsigned long long, EventSet) {
  return tell(device, "uuid", [](const std::string&) {});
}
int nvmlEventSetWait_v2(EventSet, EventData* event, unsigned timeout_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  do {
    const Machine machine = machine_now();
    if (machine.gone) return uninitialized;
    if (told_xids < machine.xids.size()) {
      const auto [index, code] = machine.xids[told_xids++];
      *event = {device_of(index), xid_event, code, 0, 0};
      return success;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } while (std::chrono::steady_clock::now() < until);
  return timeout;
}
#endif
}
