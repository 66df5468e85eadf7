// The plug-in for GPUs (sdk/cuda/plugin_abi.hpp), loaded into this process for the first run that wants it. It stays
// loaded until the process ends, because the CUDA runtime cannot be unloaded safely. Any thread.

#pragma once

#include <string>

#include "sdk/c/error.hpp"
#include "sdk/cuda/plugin_abi.hpp"

namespace gossamer::client {

/// The plug-in's functions. Errors say what to install.
[[nodiscard]] Result<const cuda::ClientPluginTable*> load_device_plugin();

/// The result of call_device(), which calls one of the plug-in's functions. The last two parameters of each function
/// receive the text of an error.
struct DeviceOutcome {
  cuda::PassStatus status = cuda::PassStatus::done;
  std::string error;

  [[nodiscard]] bool done() const { return status == cuda::PassStatus::done; }
};
template <class Function, class... Arguments>
[[nodiscard]] DeviceOutcome call_device(Function function, Arguments... arguments) {
  char text[512] = "";
  const cuda::PassStatus status = function(arguments..., text, sizeof text);
  return {status, text};
}

}  // namespace gossamer::client
