// The common part of the subcommands that measure with a real client: a run of one tensor, and a folder for its
// sockets. One thread at a time uses each object. Failures are exceptions, which end the benchmark with a message.

#pragma once

#include <gossamer.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace gossamer::bench {

/// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gossamer-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make the folder " + name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A run of the client library for a model of one tensor, which must outlive the run.
class BenchRun {
 public:
  BenchRun(const std::string& socket, gossamer_dtype dtype, void* model, std::size_t elements) {
    gossamer_options options;
    gossamer_options_init(&options);
    options.job = job_name;
    options.socket_path = socket.c_str();
    const std::uint64_t shape = elements;
    gossamer_tensor tensor{};
    tensor.name = "model";
    tensor.dtype = dtype;
    tensor.role = GOSSAMER_PARAM;
    tensor.dimensions = 1;
    tensor.shape = &shape;
    tensor.data = model;
    char error[256] = "";
    if (gossamer_open(&options, &tensor, 1, &run_, error, sizeof error) != GOSSAMER_OK) throw std::runtime_error(error);
  }
  BenchRun(const BenchRun&) = delete;
  BenchRun& operator=(const BenchRun&) = delete;
  ~BenchRun() { gossamer_close(run_); }

  static constexpr const char* job_name = "bench";
  [[nodiscard]] gossamer_run* get() const { return run_; }

 private:
  gossamer_run* run_ = nullptr;
};

}  // namespace gossamer::bench
