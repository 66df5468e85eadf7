// The common part of the subcommands that measure with a real client: a run of one tensor, and a folder for its
// sockets. One thread at a time uses each object. Failures are exceptions, which end the benchmark with a message.

#pragma once

#include <gossamer.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

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

/// A thread that waits until a run takes part in the training and then calls `step` again and again. The run and what
/// `step` uses outlive it.
class TrainingThread {
 public:
  TrainingThread(const BenchRun& run, std::int64_t ready_timeout_ms, std::function<void()> step)
      : thread_([this, &run, ready_timeout_ms, step = std::move(step)](const std::stop_token& stop) {
          status_ = gossamer_wait_ready(run.get(), ready_timeout_ms);
          status_.notify_all();
          while (status_ == GOSSAMER_OK && !stop.stop_requested())
            step();
        }) {}

  /// Waits until the run takes part, and throws if that takes too long.
  void wait_ready() const {
    status_.wait(pending);
    if (status_ == GOSSAMER_OK) return;
    const auto status = static_cast<gossamer_status>(status_.load());
    throw std::runtime_error(std::string("a client does not get ready: ") + gossamer_status_name(status));
  }
  void stop() {
    thread_.request_stop();
    thread_.join();
  }

 private:
  static constexpr int pending = -1;
  std::atomic<int> status_{pending};
  std::jthread thread_;
};

}  // namespace gossamer::bench
