// The plug-in for GPUs (sdk/cuda/plugin_abi.hpp), loaded into this process when the first run wants it. It stays loaded
// until the process ends: the CUDA runtime cannot be unloaded in safety. Any thread.

#pragma once

#include <string>

#include "sdk/c/error.hpp"
#include "sdk/cuda/plugin_abi.hpp"

namespace gossamer::client {

/// The plug-in's functions. Errors say what to install.
[[nodiscard]] Result<const cuda::PluginTable*> load_device_plugin();

/// Calls one of the functions, whose last two parameters are where the text of an error goes.
struct DeviceOutcome {
  cuda::Status status = cuda::Status::done;
  std::string error;

  [[nodiscard]] bool done() const { return status == cuda::Status::done; }
};
template <class Function, class... Arguments>
[[nodiscard]] DeviceOutcome call_device(Function function, Arguments... arguments) {
  char text[512] = "";
  const cuda::Status status = function(arguments..., text, sizeof text);
  return {status, text};
}

}  // namespace gossamer::client
