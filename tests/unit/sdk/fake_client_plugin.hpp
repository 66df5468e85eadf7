// What tests tell the fake plug-in (fake_client_plugin.cpp), beside the functions of sdk/cuda/plugin_abi.hpp: C
// functions that they find in it by name, from C++ (FakeGpu) or from Python.
//
// Any thread.

#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

extern "C" {
/// "Device memory" of a GPU: addresses that locate() knows. adopt: the caller's memory becomes that.
void* fake_allocate(int device, std::size_t bytes);
void fake_free(void* memory);
void fake_adopt(void* memory, std::size_t bytes, int device);
void fake_disown(void* memory);

/// A stream does one thing after the other, on a thread of its own; NULL is the default one.
void* fake_stream();
/// While held it begins nothing.
void fake_hold(void* stream);
void fake_release(void* stream);
void fake_enqueue(void* stream, void (*work)(void*), void* argument);
/// Waits until it has done all that it has; it must not be held.
void fake_synchronize(void* stream);

/// Passes that have been launched, in all.
std::uint64_t fake_launches();
/// Contexts, shared and pinned memory that have not been given back.
int fake_holdings();
/// From now on; 0 ends it.
void fake_refuse_share(int refuse);
void fake_refuse_pin(int refuse);
void fake_be_busy(int busy);
/// The device fails once so many more passes have been launched; negative: never.
void fake_fail_after(int launches);
/// What a failed device does: nothing more, until it is another one.
void fake_repair();
}

namespace gossamer::test {

/// The functions, of the library that libgossamer has loaded or will load.
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
