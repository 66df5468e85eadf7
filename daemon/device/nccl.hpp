// NCCL for the plug-in (the last functions of daemon/device/plugin_abi.hpp). It is loaded at the first call; a machine
// without it lacks only these functions.
//
// Every communicator is non-blocking, so that nothing here waits for another GPU. The caller limits the time
// (daemon/device/reducer.hpp), and abandons the communicator when the time is up. One thread for one communicator at a
// time.

#pragma once

#include "daemon/device/cuda_context.hpp"

namespace gossamer::device::nccl {

Status join(Context* const* contexts, std::uint32_t count, Communicator** communicator, char* error,
            std::size_t error_bytes);
Status progress(Communicator* communicator, char* error, std::size_t error_bytes);
Status all_reduce(Communicator* communicator, float* const* device_values, std::size_t elements, char* error,
                  std::size_t error_bytes);
void abandon(Communicator* communicator);

}  // namespace gossamer::device::nccl
