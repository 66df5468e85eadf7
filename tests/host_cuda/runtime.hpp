// A CUDA runtime and driver on the processor: memory of the GPU is memory of the host, a stream is a thread, what is
// shared between processes is a memfd, and a kernel is run as a grid (grid.hpp). The functions have NVIDIA's names and
// do what its manuals say of them, as far as this project calls them; what the manuals leave undefined ends the process
// with a text. Like on a GPU, nothing that was begun is done when the call returns, and copies from and to memory that
// is not page-locked are.
//
// The machine is told by the environment, once: HOST_CUDA_GPUS (1 without it), HOST_CUDA_MEMORY_MIB of each (2048).
// Any thread.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace host_cuda {

/// Enqueues a grid.
cudaError_t launch(dim3 groups, dim3 threads_a_group, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> kernel);
/// Enqueues anything else on a stream, null for the default one.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// ---- for tests

/// The n-th call from now returns an error, counting from one; with `for_good` all later ones do, as after a fault of
/// the GPU. 0: none does any more.
void fail_call(std::uint64_t n, cudaError_t error, bool for_good);
/// Since the last call of fail_call(), but for those that were told that something is not done yet.
[[nodiscard]] std::uint64_t calls();
/// The first function that failed since then because of it; empty: none did.
[[nodiscard]] std::string failed_call();
/// What is still handed out, in words; empty: nothing.
[[nodiscard]] std::string held();
/// What the end of a process does: nothing is handed out any more, nothing fails.
void reset();

}  // namespace host_cuda

// ---- for tests in Python (tests/python/played_gpu.py), by the names that the other plug-in which plays a GPU has

extern "C" {

/// Memory of the host that counts as a GPU's: that of a framework which knows no such GPU.
void played_adopt(void* memory, std::size_t bytes, int device);
void played_disown(void* memory);
void* played_stream();
/// The stream does nothing until it is released.
void played_hold(void* stream);
void played_release(void* stream);
void played_synchronize(void* stream);
/// Grids, so far.
std::uint64_t played_launches();
}
