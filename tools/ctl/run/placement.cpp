#include "tools/ctl/run/placement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace gossamer::ctl {
namespace {

/// More processors than any machine has. It limits what a broken list can ask for.
constexpr int max_cpu = 65'536;

/// A device that one client can have: a GPU, or an instance of one.
struct ClientDevice {
  std::string index;  ///< "0", or "0:1" for an instance
  std::string gpu;    ///< "0"
  std::string uuid;
  std::string gpu_uuid;
  std::string pci_bus;
};

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    std::erase(part, ' ');
    if (!part.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<ClientDevice> devices_of(const gpus::GpuReport& report) {
  std::vector<ClientDevice> devices;
  for (const gpus::Gpu& gpu : report.gpus) {
    if (gpu.lost || !gpu.unreadable.empty() || gpu.uuid.empty()) continue;
    const std::string index = std::to_string(gpu.index);
    if (!gpu.mig) devices.push_back({index, index, gpu.uuid, gpu.uuid, gpu.pci_bus});
    for (std::size_t i = 0; gpu.mig && i < gpu.mig_uuids.size(); ++i)
      devices.push_back({fmt::format("{}:{}", index, i), index, gpu.mig_uuids[i], gpu.uuid, gpu.pci_bus});
  }
  return devices;
}

/// Whether this name, as people or CUDA write it, means this device.
bool is_named(const ClientDevice& device, const std::string& name) {
  if (name == device.index || name == device.gpu) return true;
  const bool is_uuid = name.starts_with("GPU-") || name.starts_with("MIG-");
  return is_uuid && (device.uuid.starts_with(name) || device.gpu_uuid.starts_with(name));
}

std::vector<ClientDevice> allowed_of(const std::vector<ClientDevice>& devices,
                                     const std::optional<std::string>& visible) {
  if (!visible) return devices;
  const std::vector<std::string> names = parts_of(*visible);
  std::vector<ClientDevice> allowed;
  for (const ClientDevice& device : devices)
    if (std::ranges::any_of(names, [&](const std::string& name) { return is_named(device, name); }))
      allowed.push_back(device);
  return allowed;
}

std::string what_there_is(const std::vector<ClientDevice>& devices) {
  std::vector<std::string> names;
  std::ranges::transform(devices, std::back_inserter(names), &ClientDevice::index);
  return fmt::format("there are {}", fmt::join(names, ", "));
}

std::string why_none(const PlacementRequest& request, const gpus::GpuReport& report, bool has_devices) {
  if (has_devices)
    return fmt::format("CUDA_VISIBLE_DEVICES is \"{}\", which leaves none of the GPUs: unset it", *request.visible);
  if (!report.gpus.empty()) return "no GPU can be used: 'gossamerctl gpus' says why";
  return fmt::format("there is no GPU here ({}): --clients N starts clients without", report.note);
}

std::expected<std::vector<ClientDevice>, std::string> chosen_of(const std::string& list,
                                                                const std::vector<ClientDevice>& allowed) {
  std::vector<ClientDevice> chosen;
  for (const std::string& name : parts_of(list)) {
    bool found = false;
    for (const ClientDevice& device : allowed) {
      if (!is_named(device, name)) continue;
      found = true;
      if (std::ranges::find(chosen, device.uuid, &ClientDevice::uuid) != chosen.end())
        return std::unexpected(
            fmt::format("--gpus {}: {} is named twice; for several clients on a GPU, --per-gpu", list, device.index));
      chosen.push_back(device);
    }
    if (!found)
      return std::unexpected(
          fmt::format("--gpus {}: {} is not a GPU that this process may use; {}", list, name, what_there_is(allowed)));
  }
  if (chosen.empty())
    return std::unexpected("--gpus: it is all, none, or a list as 0,2 or GPU-1f2e...; " + what_there_is(allowed));
  return chosen;
}

std::expected<std::vector<ClientSpec>, std::string> without_gpus(const PlacementRequest& request) {
  ClientSpec spec;
  if (request.gpus) spec.environment.emplace_back("CUDA_VISIBLE_DEVICES=");  // the request was "none"
  return std::vector<ClientSpec>(request.clients.value_or(1), spec);
}

}  // namespace

bool wants_gpus(const PlacementRequest& request) {
  return request.gpus ? *request.gpus != "none" : !request.clients;
}

std::expected<std::vector<ClientSpec>, std::string> place(const PlacementRequest& request,
                                                          const gpus::GpuReport& report) {
  if (!wants_gpus(request)) return without_gpus(request);
  if (request.clients)
    return std::unexpected("--clients is for clients without GPUs: with --gpus, it is --per-gpu, or --gpus none");
  const std::vector<ClientDevice> devices = devices_of(report);
  const std::vector<ClientDevice> allowed = allowed_of(devices, request.visible);
  if (allowed.empty() && !request.gpus) return without_gpus(request);  // the request names no GPUs
  if (allowed.empty()) return std::unexpected("--gpus: " + why_none(request, report, !devices.empty()));
  auto chosen = request.gpus.value_or("all") == "all" ? allowed : chosen_of(*request.gpus, allowed);
  if (!chosen) return std::unexpected(chosen.error());
  if (chosen->size() * request.per_gpu > max_run_clients)
    return std::unexpected(fmt::format("{} GPUs with {} clients each are more than the {} that there can be",
                                       chosen->size(), request.per_gpu, max_run_clients));
  std::vector<ClientSpec> clients;
  for (const ClientDevice& device : *chosen)
    for (std::uint32_t i = 0; i < request.per_gpu; ++i)
      clients.push_back({.where = "GPU " + device.index,
                         .environment = {"CUDA_VISIBLE_DEVICES=" + device.uuid},
                         .cpus = request.cpus_near ? request.cpus_near(device.pci_bus) : std::vector<int>{}});
  return clients;
}

std::vector<int> cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string& part : parts_of(text)) {
    int first = 0;
    const char* const end = part.data() + part.size();
    const auto [behind, error] = std::from_chars(part.data(), end, first);
    if (error != std::errc()) continue;
    int last = first;
    if (behind != end && *behind == '-') std::from_chars(behind + 1, end, last);
    for (int cpu = first; cpu <= last && cpu < max_cpu; ++cpu)
      cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace gossamer::ctl
