// GPU memory that another process can map, and host memory that a GPU reads and writes. sdk/cuda/client_plugin.cu uses
// it from the thread of the run, with the GPU as the current device. The functions are those of the table in
// sdk/cuda/plugin_abi.hpp. A failure undoes everything.

#pragma once

#include "sdk/cuda/plugin_abi.hpp"

namespace gossamer::client::cuda {

[[nodiscard]] PassStatus share_memory(int device, std::uint64_t bytes, SharedMemory* memory, char* error,
                                      std::size_t error_bytes) noexcept;
void unshare_memory(const SharedMemory& memory) noexcept;
[[nodiscard]] PassStatus pin_memory(void* memory, std::uint64_t bytes, void** device_memory, char* error,
                                    std::size_t error_bytes) noexcept;
void unpin_memory(void* memory) noexcept;

}  // namespace gossamer::client::cuda
