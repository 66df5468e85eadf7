// Launching a kernel by the function behind <<<>>>, with the parameters' types as the kernel has them.
//
// Called by both plug-ins. C++17; any thread whose current device is the stream's.

#pragma once

#include <cuda_runtime.h>

namespace gossamer::cuda {

template <class T>
struct Same {
  using Type = T;
};

/// The error is the last one of this thread, too, until cudaGetLastError() is called.
template <class... Parameters>
[[nodiscard]] cudaError_t launch(void (*kernel)(Parameters...), unsigned groups, unsigned threads_a_group,
                                 cudaStream_t stream, typename Same<Parameters>::Type... arguments) {
  void* pointers[] = {static_cast<void*>(&arguments)...};
  return cudaLaunchKernel(kernel, dim3(groups), dim3(threads_a_group), pointers, 0, stream);
}

}  // namespace gossamer::cuda
