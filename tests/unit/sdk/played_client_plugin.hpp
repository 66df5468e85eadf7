// What tests tell the played plug-in (played_client_plugin.cpp), beside the functions of sdk/cuda/plugin_abi.hpp: C
// functions that they find in it by name, from C++ (PlayedGpu) or from Python.
//
// Any thread.

#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

extern "C" {
/// "Device memory" of a GPU: addresses that locate() knows. adopt: the caller's memory becomes that.
void* played_allocate(int device, std::size_t bytes);
void played_free(void* memory);
void played_adopt(void* memory, std::size_t bytes, int device);
void played_disown(void* memory);

/// A stream does one thing after the other, on a thread of its own; NULL is the default one.
void* played_stream();
/// While held it begins nothing.
void played_hold(void* stream);
void played_release(void* stream);
void played_enqueue(void* stream, void (*work)(void*), void* argument);
/// Waits until it has done all that it has; it must not be held.
void played_synchronize(void* stream);

/// Passes that have been launched, in all.
std::uint64_t played_launches();
/// Contexts, shared and pinned memory that have not been given back.
int played_holdings();
/// From now on; 0 ends it.
void played_refuse_share(int refuse);
void played_refuse_pin(int refuse);
void played_be_busy(int busy);
/// The device fails once so many more passes have been launched; negative: never.
void played_fail_after(int launches);
/// What a failed device does: nothing more, until it is another one.
void played_repair();
}

namespace gossamer::test {

/// The functions, of the library that libgossamer has loaded or will load.
class PlayedGpu {
 public:
  explicit PlayedGpu(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
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

/// Calls played_…() of a PlayedGpu.
#define PLAYED(gpu, function) ((gpu).find(static_cast<decltype(&(function))>(nullptr), #function))
