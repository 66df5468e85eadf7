#include "daemon/report/self_report.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/device/cuda_device.hpp"
#include "peer/keys/cluster_keys.hpp"

namespace gossamer::daemon {
namespace {

using nlohmann::json;

/// Null means no limit.
json limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return nullptr;
  return static_cast<std::uint64_t>(limit.rlim_cur);
}

json open_files() {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error))
    ++count;
  return error ? json() : json(count);
}

/// Whether models in GPU memory are to be averaged there, and whether the plug-in for that is present.
json gpu_plugin(const GpuOptions& options) {
  const std::filesystem::path path = options.plugin.empty() ? device::Plugin::usual_path() : options.plugin;
  std::error_code error;
  return {{"wanted", options.clients}, {"path", path.string()}, {"present", std::filesystem::exists(path, error)}};
}

json mode_of(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? json(info.st_mode & 07777U) : json();
}

json key_file(const char* name, const std::filesystem::path& path) {
  struct stat info {};
  const bool present = ::stat(path.c_str(), &info) == 0;
  json key{{"name", name}, {"path", path.string()}, {"present", present}};
  if (!present) {
    key["error"] = std::strerror(errno);
    return key;
  }
  key["mode"] = info.st_mode & 07777U;
  key["own"] = info.st_uid == ::geteuid();
  return key;
}

}  // namespace

json self_report(const Config& config) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(config.node.state_dir, error);
  return {{"process",
           {{"pid", ::getpid()},
            {"user", ::geteuid()},
            {"open_files", open_files()},
            {"max_open_files", limit_of(RLIMIT_NOFILE)},
            {"max_locked_bytes", limit_of(RLIMIT_MEMLOCK)},
            {"state_dir", config.node.state_dir.string()},
            {"state_mode", mode_of(config.node.state_dir)},
            {"state_free_bytes", error ? json() : json(space.available)},
            {"listen", config.overlay.listen},
            {"advertise", config.overlay.advertise},
            {"interface", config.overlay.interface},
            {"peers", config.overlay.peers},
            {"gpu_plugin", gpu_plugin(config.gpus)},
            {"keys",
             {key_file("node key", config.node.state_dir / peer::node_key_file_name),
              key_file("cluster key", config.overlay.cluster_key_file)}}}}};
}

}  // namespace gossamer::daemon
