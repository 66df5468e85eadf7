// A CUDA runtime and driver on the processor: GPU memory is host memory, a stream is a thread, memory that processes
// share is a memfd, and a kernel is run as a grid (grid.hpp). The functions have NVIDIA's names and do what its manuals
// say, as far as this project calls them. Calls that the manuals leave undefined end the process with a message. As on
// a GPU, work is not done when the call that began it returns, except copies from and to memory that is not
// page-locked.
//
// The environment describes the machine once: HOST_CUDA_GPUS (default 1) and the HOST_CUDA_MEMORY_MIB of each (default
// 2048). Any thread.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace host_cuda {

/// Enqueues a grid.
cudaError_t launch(dim3 groups, dim3 threads_a_group, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> kernel);
/// Enqueues any other work on a stream; null is the default one.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// ---- for tests

/// The n-th call from now on returns an error, counted from one. With `for_good` all later calls do, too, as after a
/// fault of the GPU. 0: no call fails any more.
void fail_call(std::uint64_t n, cudaError_t error, bool for_good);
/// The number of calls since the last fail_call(), without those that were told that something is not done yet.
[[nodiscard]] std::uint64_t calls();
/// The first function that failed because of fail_call(); empty: none did.
[[nodiscard]] std::string failed_call();
/// The resources that have not been given back, in words; empty: none.
[[nodiscard]] std::string held();
/// Gives everything back, as the end of a process does. No call fails any more.
void reset();

}  // namespace host_cuda

// ---- for tests in Python (tests/python/fake_gpu.py); the other fake plug-in has functions of the same names

extern "C" {

/// Host memory that counts as GPU memory, for a framework that does not know this GPU.
void fake_adopt(void* memory, std::size_t bytes, int device);
void fake_disown(void* memory);
void* fake_stream();
/// While held, the stream does nothing.
void fake_hold(void* stream);
void fake_release(void* stream);
void fake_synchronize(void* stream);
/// The number of grids so far.
std::uint64_t fake_launches();
}
