// Memory that the daemon shares with a client, for the plug-in: mapping GPU memory that another process has exported,
// and pinning host memory for a GPU (import, forget, pin and unpin of daemon/device/plugin_abi.hpp).
//
// The driver's functions are found through the CUDA runtime, so that nothing links the driver. Any thread. Nothing is
// launched and nothing is kept here: whoever asked for a mapping undoes it. A call that fails changes nothing.

#pragma once

#include "daemon/device/cuda_context.hpp"

namespace gossamer::device::sharing {

Status import(Context* context, int descriptor, std::size_t bytes, void** device_memory, char* error,
              std::size_t error_bytes) noexcept;
Status forget(Context* context, void* device_memory, std::size_t bytes) noexcept;
Status pin(Context* context, void* memory, std::size_t bytes, char* error, std::size_t error_bytes) noexcept;
Status unpin(Context* context, void* memory) noexcept;

}  // namespace gossamer::device::sharing
