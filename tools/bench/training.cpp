#include "tools/bench/training.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tools/bench/bench_run.hpp"
#include "tools/bench/daemon_pair.hpp"
#include "tools/bench/measure.hpp"

namespace gossamer::bench {
namespace {

constexpr std::int64_t ready_timeout_ms = 300'000;
/// The daemon lengthens its period once a second until gossip keeps to its share.
constexpr std::chrono::seconds settling{10};

std::size_t element_bytes(gossamer_dtype dtype) {
  return dtype == GOSSAMER_BF16 ? 2 : 4;
}

gossamer_run_info info_of(const BenchRun& run) {
  gossamer_run_info info{};
  info.size = sizeof info;
  if (gossamer_info(run.get(), &info) != GOSSAMER_OK) throw std::runtime_error("gossamer_info fails");
  return info;
}

/// A training process in a thread. The values do not matter, and no step changes them.
class BenchTrainer {
 public:
  BenchTrainer(const std::string& socket, const TrainingOptions& options)
      : options_(options),
        model_(options.elements * element_bytes(options.dtype)),
        run_(socket, options.dtype, model_.data(), options.elements),
        thread_(run_, ready_timeout_ms, [this] { step(); }) {}

  void wait_ready() const { thread_.wait_ready(); }
  void begin() { measuring_ = true; }
  [[nodiscard]] TrainingFigures end() {
    thread_.stop();
    figures_.share = in_step_s_ / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    return figures_;
  }

 private:
  void step() {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options_.step_ms));
    const gossamer_run_info before = info_of(run_);
    const double seconds = seconds_of([&] { (void)gossamer_step(run_.get(), 1); });
    const gossamer_run_info after = info_of(run_);
    if (!measuring_) return;
    if (figures_.steps++ == 0) {
      begin_ = std::chrono::steady_clock::now();
      exchanges_before_ = before.exchanges;
    }
    const std::uint64_t fragments = after.publications - before.publications;
    const std::uint64_t elements = std::min(fragments * after.fragment_elements, after.elements);
    in_step_s_ += seconds;
    figures_.longest_step_ms = std::max(figures_.longest_step_ms, 1e3 * seconds);
    figures_.most_bytes = std::max(figures_.most_bytes, elements * sizeof(float));
    figures_.fragments += fragments;
    figures_.exchanges = after.exchanges - exchanges_before_;
  }

  const TrainingOptions& options_;
  std::vector<std::byte> model_;
  BenchRun run_;
  std::atomic<bool> measuring_{false};
  std::chrono::steady_clock::time_point begin_;
  double in_step_s_ = 0;
  std::uint64_t exchanges_before_ = 0;
  TrainingFigures figures_;
  TrainingThread thread_;  ///< last, so that it stops before the members that it uses are destroyed
};

}  // namespace

double training_bytes(const TrainingOptions& options) {
  return 2.0 * static_cast<double>(options.elements) * static_cast<double>(3 * 4 + element_bytes(options.dtype));
}

TrainingFigures measure_training(const TrainingOptions& options) {
  DaemonPair daemons(options.daemon, "", "");
  BenchTrainer first(daemons.first().client_socket(), options);
  BenchTrainer second(daemons.second().client_socket(), options);
  first.wait_ready();
  second.wait_ready();
  std::this_thread::sleep_for(settling);
  first.begin();
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  return first.end();
}

}  // namespace gossamer::bench
