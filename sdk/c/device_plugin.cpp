#include "sdk/c/device_plugin.hpp"

#include <dlfcn.h>
#include <stdlib.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace gossamer::client {
namespace {

constexpr const char* file_name = "libgossamer_client_cuda.so";
constexpr const char* advice = "; a model in a GPU's memory needs the package gossamer-cuda of this library's version";

/// The places where the plug-in may be, best first: where it was installed or built with this library, and where it is
/// usually installed.
[[nodiscard]] std::vector<std::filesystem::path> candidates() {
  std::vector<std::filesystem::path> paths;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&load_device_plugin), &here) != 0 && here.dli_fname != nullptr) {
    const std::filesystem::path folder = std::filesystem::path(here.dli_fname).parent_path();
    paths.push_back(folder / "gossamer" / file_name);
    paths.push_back(folder / file_name);
  }
  paths.emplace_back(GOSSAMER_CLIENT_PLUGIN_PATH);
  return paths;
}

[[nodiscard]] std::filesystem::path plugin_path() {
  // The variable is ignored in a program that has more rights than the user who started it.
  if (const char* named = secure_getenv(cuda::plugin_variable); named != nullptr && *named != '\0') return named;
  const std::vector<std::filesystem::path> paths = candidates();
  for (const std::filesystem::path& path : paths) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return paths.back();
}

}  // namespace

Result<const cuda::ClientPluginTable*> load_device_plugin() {
  const std::filesystem::path path = plugin_path();
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return fail(GOSSAMER_NO_DEVICE, std::string(dlerror()) + advice);
  const auto entry = reinterpret_cast<cuda::ClientPluginEntry>(dlsym(handle, cuda::plugin_symbol));
  const cuda::ClientPluginTable* const table = entry == nullptr ? nullptr : entry();
  // Version and size are checked before anything else. They stand first in the table of every version.
  if (table == nullptr || table->version != cuda::plugin_version ||
      table->size_bytes != sizeof(cuda::ClientPluginTable))
    return fail(GOSSAMER_NO_DEVICE, path.string() + " is not the plug-in of this library" + advice);
  return table;
}

}  // namespace gossamer::client
