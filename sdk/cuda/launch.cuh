// Launches a kernel by the function behind <<<>>>, with the parameter types of the kernel.
//
// Both plug-ins call it. C++17; any thread whose current device is the stream's.

#pragma once

#include <cuda_runtime.h>

#include <string>

namespace gossamer::cuda {

/// The driver that a plug-in of this CUDA needs (NVIDIA: CUDA compatibility, minor version compatibility).
inline std::string needed_driver() {
  constexpr int major = CUDART_VERSION / 1000;
  constexpr int driver = major >= 13 ? 580 : major == 12 ? 525 : 450;
  return "built with CUDA " + std::to_string(major) + ", it needs version " + std::to_string(driver) + " or later";
}

template <class T>
struct Same {
  using Type = T;
};

/// The error is also this thread's last error until cudaGetLastError() is called.
template <class... Parameters>
[[nodiscard]] cudaError_t launch(void (*kernel)(Parameters...), unsigned groups, unsigned threads_a_group,
                                 cudaStream_t stream, typename Same<Parameters>::Type... arguments) {
  void* pointers[] = {static_cast<void*>(&arguments)...};
  return cudaLaunchKernel(kernel, dim3(groups), dim3(threads_a_group), pointers, 0, stream);
}

}  // namespace gossamer::cuda
