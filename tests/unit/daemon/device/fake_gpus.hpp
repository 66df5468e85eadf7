// A machine of fake GPUs for a test: the file that tells the fake plug-in what to do, and what the plug-in has in use
// in this process. GOSSAMER_FAKE_PLUGIN is the path of the plug-in.

#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "daemon/device/fake_cuda.hpp"
#include "temporary_folder.hpp"

namespace gossamer::device::fake {

/// Sets up the machine that the plug-in reads, as long as it lives: one sound GPU, until the test says otherwise.
class FakeGpus {
 public:
  FakeGpus() { ::setenv(machine_variable, file_.c_str(), 1); }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;
  ~FakeGpus() { ::unsetenv(machine_variable); }
  /// Replaces all lines of the machine's file at once.
  void be(const std::string& lines) const {
    std::ofstream(file_ + ".new") << lines << "\n";
    std::filesystem::rename(file_ + ".new", file_);
  }
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  TemporaryFolder folder_;
  std::string file_ = (folder_.path() / "machine").string();
};

inline Counts fake_counts() {
  void* const handle = ::dlopen(GOSSAMER_FAKE_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(handle != nullptr);
  Counts now;
  reinterpret_cast<CountsFunction>(::dlsym(handle, counts_symbol))(&now);
  ::dlclose(handle);
  return now;
}

}  // namespace gossamer::device::fake
