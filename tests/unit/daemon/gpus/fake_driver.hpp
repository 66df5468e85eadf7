// A machine with a fake driver (fake_nvml.cpp).

#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/unit/temporary_folder.hpp"

namespace gossamer::gpus::test {

/// Waits for conditions are bounded by this.
inline constexpr std::chrono::seconds patience{60};

/// A GPU with all that the library can tell.
inline std::string whole_gpu(int index) {
  return "gpu uuid=GPU-" + std::to_string(index) +
         " name=H200 bus=3b total=1000 used=400 busy=37 celsius=55 milliwatts=300500 limit=700000 ecc=3/0 rows=2 "
         "pending=0 failed=0 retired=0 processes=123:100,124:-\n";
}

class FakeDriver {
 public:
  explicit FakeDriver(const std::string& description) {
    ::setenv("GOSSAMER_FAKE_NVML", file_.c_str(), 1);
    become(description);
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  /// Replaces the description in one step, so that nobody reads half of it.
  void become(const std::string& description) const {
    const std::string next = file_ + ".next";
    std::ofstream(next) << description;
    std::filesystem::rename(next, file_);
  }

 private:
  TemporaryFolder folder_;
  const std::string file_ = (folder_.path() / "machine").string();
};

template <class Condition>
bool becomes_true(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace gossamer::gpus::test
