#include "daemon/gpus/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <utility>

#include "daemon/gpus/health.hpp"

namespace gossamer::gpus {
namespace {

using namespace nvml;

/// Looks a function up, under the first of these names that the library has.
template <class Function>
bool find(void* library, Function& function, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function != nullptr) return true;
  }
  return false;
}

/// A value, if the driver has the function and the GPU has the value.
template <class Value, class Function, class... Arguments>
std::optional<Value> value_of(Function function, Arguments... arguments) {
  Value value{};
  if (function == nullptr || function(arguments..., &value) != success) return std::nullopt;
  return value;
}

std::optional<double> divided(std::optional<unsigned> value, double by) {
  return value ? std::optional(*value / by) : std::nullopt;
}

/// NVML's "00000000:3B:00.0" becomes "0000:3b:00.0".
std::string bus_of(const PciInfo& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

std::string text_of(int (*function)(NvmlDevice, char*, unsigned), NvmlDevice device) {
  std::array<char, text_bytes> text{};
  if (function(device, text.data(), text.size()) != success) return "";
  return {text.data(), ::strnlen(text.data(), text.size())};
}

/// Whether the error concerns the driver and not one GPU, so that nothing can be read any more.
bool is_of_driver(int result) {
  return result == uninitialized || result == driver_not_loaded || result == library_version_mismatch ||
         result == library_not_found;
}

}  // namespace

std::expected<Nvml, std::string> Nvml::open(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::unexpected(fmt::format("no driver of NVIDIA's: {}", ::dlerror()));
  Nvml opened(handle);
  if (auto loaded = opened.load(); !loaded) return std::unexpected(std::move(loaded.error()));
  return opened;
}

Nvml::Nvml(Nvml&& other) noexcept
    : library_(std::exchange(other.library_, nullptr)),
      initialised_(std::exchange(other.initialised_, false)),
      call_(other.call_),
      driver_(std::move(other.driver_)),
      events_(std::exchange(other.events_, nullptr)),
      uuids_(std::move(other.uuids_)),
      known_(std::move(other.known_)) {}

Nvml::~Nvml() {
  stop_listening();
  if (initialised_) call_.shutdown();
  if (library_ != nullptr) ::dlclose(library_);
}

std::expected<void, std::string> Nvml::load() {
  const bool complete =
      find(library_, call_.init, {"nvmlInit_v2"}) && find(library_, call_.shutdown, {"nvmlShutdown"}) &&
      find(library_, call_.error_string, {"nvmlErrorString"}) &&
      find(library_, call_.count, {"nvmlDeviceGetCount_v2"}) &&
      find(library_, call_.handle_by_index, {"nvmlDeviceGetHandleByIndex_v2"}) &&
      find(library_, call_.uuid, {"nvmlDeviceGetUUID"}) && find(library_, call_.name, {"nvmlDeviceGetName"}) &&
      find(library_, call_.memory, {"nvmlDeviceGetMemoryInfo"});
  if (!complete)
    return std::unexpected("the library is not NVIDIA's management library, or is older than 2014: " +
                           std::string(::dlerror()));
  find(library_, call_.driver_version, {"nvmlSystemGetDriverVersion"});
  find(library_, call_.pci, {"nvmlDeviceGetPciInfo_v3"});
  find(library_, call_.utilization, {"nvmlDeviceGetUtilizationRates"});
  find(library_, call_.temperature, {"nvmlDeviceGetTemperature"});
  find(library_, call_.power, {"nvmlDeviceGetPowerUsage"});
  find(library_, call_.power_limit, {"nvmlDeviceGetEnforcedPowerLimit"});
  find(library_, call_.ecc_errors, {"nvmlDeviceGetTotalEccErrors"});
  find(library_, call_.remapped_rows, {"nvmlDeviceGetRemappedRows"});
  find(library_, call_.retirement_pending, {"nvmlDeviceGetRetiredPagesPendingStatus"});
  find(library_, call_.mig_mode, {"nvmlDeviceGetMigMode"});
  find(library_, call_.mig_most, {"nvmlDeviceGetMaxMigDeviceCount"});
  find(library_, call_.mig_by_index, {"nvmlDeviceGetMigDeviceHandleByIndex"});
  // The first version of the function is not used, because it fills another structure.
  find(library_, call_.processes,
       {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  find(library_, call_.event_set_create, {"nvmlEventSetCreate"});
  find(library_, call_.event_set_free, {"nvmlEventSetFree"});
  find(library_, call_.event_set_wait, {"nvmlEventSetWait_v2"});
  find(library_, call_.register_events, {"nvmlDeviceRegisterEvents"});
  if (const int result = call_.init(); result != success)
    return std::unexpected(
        fmt::format("the driver does not answer: {}; nvidia-smi should say the same", error_text(result)));
  initialised_ = true;
  std::array<char, text_bytes> version{};
  if (call_.driver_version != nullptr && call_.driver_version(version.data(), version.size()) == success)
    driver_.assign(version.data(), ::strnlen(version.data(), version.size()));
  return {};
}

void Nvml::listen() {
  stop_listening();
  uuids_.clear();
  if (call_.event_set_create == nullptr || call_.event_set_free == nullptr || call_.event_set_wait == nullptr ||
      call_.register_events == nullptr || call_.event_set_create(&events_) != success) {
    events_ = nullptr;
    return;
  }
  unsigned count = 0;
  if (call_.count(&count) != success) count = 0;
  for (unsigned index = 0; index < std::min(count, max_gpus); ++index) {
    NvmlDevice device = nullptr;
    if (call_.handle_by_index(index, &device) != success) continue;
    if (call_.register_events(device, xid_event, events_) == success) uuids_[device] = text_of(call_.uuid, device);
  }
  if (uuids_.empty()) stop_listening();  // waiting would fail at once
}

void Nvml::stop_listening() {
  if (events_ != nullptr) call_.event_set_free(std::exchange(events_, nullptr));
}

std::string Nvml::error_text(int result) const {
  const char* const text = call_.error_string(result);
  return fmt::format("{} (NVML {})", text != nullptr ? text : "an unknown error", result);
}

std::optional<XidEvent> Nvml::wait_for_xid(std::chrono::milliseconds patience) {
  EventData event{};
  const int result = call_.event_set_wait(events_, &event, static_cast<unsigned>(patience.count()));
  if (result != success && result != timeout) stop_listening();
  if (result != success || event.type != xid_event) return std::nullopt;
  const auto device = uuids_.find(event.device);
  return XidEvent{device == uuids_.end() ? "" : device->second, static_cast<std::uint32_t>(event.data)};
}

std::expected<std::vector<Gpu>, std::string> Nvml::read() {
  unsigned count = 0;
  if (const int result = call_.count(&count); result != success) return std::unexpected(error_text(result));
  std::vector<Gpu> gpus;
  for (unsigned index = 0; index < std::min(count, max_gpus); ++index) {
    Gpu gpu;
    if (const auto before = known_.find(index); before != known_.end()) gpu = before->second;
    gpu.index = index;
    NvmlDevice device = nullptr;
    int result = call_.handle_by_index(index, &device);
    if (result == success) {
      read_identity(device, gpu);
      known_[index] = gpu;
      result = read_figures(device, gpu);
    }
    if (is_of_driver(result)) return std::unexpected(error_text(result));
    if (result != success) {
      gpu.lost = result == gpu_is_lost;
      gpu.unreadable = error_text(result);
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void Nvml::read_identity(NvmlDevice device, Gpu& gpu) {
  if (const std::string uuid = text_of(call_.uuid, device); !uuid.empty()) gpu.uuid = uuid;
  if (const std::string name = text_of(call_.name, device); !name.empty()) gpu.name = name;
  if (const auto pci = value_of<PciInfo>(call_.pci, device)) gpu.pci_bus = bus_of(*pci);
}

int Nvml::read_figures(NvmlDevice device, Gpu& gpu) const {
  Memory memory{};
  const int result = call_.memory(device, &memory);
  if (result == success) {
    gpu.memory_total_bytes = memory.total;
    gpu.memory_used_bytes = memory.used;
  } else if (result != not_supported && result != no_permission) {
    return result;  // a GPU that cannot tell this can tell nothing
  }
  if (const auto utilization = value_of<Utilization>(call_.utilization, device))
    gpu.utilisation_ratio = utilization->gpu / 100.0;
  gpu.temperature_c = divided(value_of<unsigned>(call_.temperature, device, temperature_of_gpu), 1);
  gpu.power_w = divided(value_of<unsigned>(call_.power, device), 1e3);
  gpu.power_limit_w = divided(value_of<unsigned>(call_.power_limit, device), 1e3);
  read_errors(device, gpu);
  read_mig(device, gpu);
  read_processes(device, gpu);
  return success;
}

void Nvml::read_errors(NvmlDevice device, Gpu& gpu) const {
  gpu.ecc_corrected = value_of<unsigned long long>(call_.ecc_errors, device, corrected_errors, volatile_counter);
  gpu.ecc_uncorrected = value_of<unsigned long long>(call_.ecc_errors, device, uncorrected_errors, volatile_counter);
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  if (call_.remapped_rows != nullptr &&
      call_.remapped_rows(device, &corrected, &uncorrected, &pending, &failed) == success) {
    gpu.rows_remapped = std::uint64_t{corrected} + uncorrected;
    gpu.remap_pending = pending != 0;
    gpu.remap_failed = failed != 0;
  }
  // GPUs before Ampere retire pages instead of remapping rows.
  if (value_of<int>(call_.retirement_pending, device).value_or(0) != 0) gpu.remap_pending = true;
}

void Nvml::read_mig(NvmlDevice device, Gpu& gpu) const {
  unsigned now = 0;
  unsigned pending = 0;
  gpu.mig = call_.mig_mode != nullptr && call_.mig_mode(device, &now, &pending) == success && now != 0;
  if (!gpu.mig || call_.mig_by_index == nullptr) return;
  const unsigned most = value_of<unsigned>(call_.mig_most, device).value_or(0);
  for (unsigned index = 0; index < std::min(most, max_mig_devices); ++index) {
    NvmlDevice instance = nullptr;
    if (call_.mig_by_index(device, index, &instance) != success) continue;  // fewer instances exist than are possible
    if (std::string uuid = text_of(call_.uuid, instance); !uuid.empty()) gpu.mig_uuids.push_back(std::move(uuid));
  }
}

void Nvml::read_processes(NvmlDevice device, Gpu& gpu) const {
  if (call_.processes == nullptr) return;
  std::array<ProcessInfo, max_processes> processes{};
  unsigned count = max_processes;
  if (call_.processes(device, &count, processes.data()) != success) return;
  for (const ProcessInfo& one : std::span(processes).first(std::min(count, max_processes))) {
    GpuProcess process{.pid = one.pid, .memory_bytes = {}, .job = {}};
    if (one.used_gpu_memory != value_not_available) process.memory_bytes = one.used_gpu_memory;
    gpu.processes.push_back(std::move(process));
  }
}

}  // namespace gossamer::gpus
