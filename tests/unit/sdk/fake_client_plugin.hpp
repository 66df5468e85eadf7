// How tests control the fake plug-in (fake_client_plugin.cpp), beside the functions of sdk/cuda/plugin_abi.hpp. These
// are C functions that tests find in the library by name, from C++ (FakeGpu) or from Python.
//
// Any thread.

#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

extern "C" {
/// Memory that locate() takes for a GPU's. fake_adopt() makes the caller's memory such memory.
void* fake_allocate(int device, std::size_t bytes);
void fake_free(void* memory);
void fake_adopt(void* memory, std::size_t bytes, int device);
void fake_disown(void* memory);

/// A stream does its work in order, on a thread of its own. NULL is the default stream.
void* fake_stream();
/// While it is held, a stream begins no work.
void fake_hold(void* stream);
void fake_release(void* stream);
void fake_enqueue(void* stream, void (*work)(void*), void* argument);
/// Waits until the stream has done all its work. It must not be held.
void fake_synchronize(void* stream);

/// Passes that have been launched, in all.
std::uint64_t fake_launches();
/// Contexts, shared and pinned memory that have not been given back.
int fake_holdings();
/// These take effect at once, and 0 ends them.
void fake_refuse_share(int refuse);
void fake_refuse_pin(int refuse);
void fake_be_busy(int busy);
/// The device fails after this many more launches; negative: never.
void fake_fail_after(int launches);
/// A failed device does nothing more until this call, which replaces it.
void fake_repair();
}

namespace gossamer::test {

/// Finds the functions in the library that libgossamer has loaded or will load.
class FakeGpu {
 public:
  explicit FakeGpu(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
  }
  template <class Function>
  [[nodiscard]] Function* find(Function*, const char* name) const {
    void* const found = dlsym(library_, name);
    if (found == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* library_;
};

}  // namespace gossamer::test

/// Calls fake_…() of a FakeGpu.
#define FAKE(gpu, function) ((gpu).find(static_cast<decltype(&(function))>(nullptr), #function))
