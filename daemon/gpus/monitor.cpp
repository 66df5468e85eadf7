#include "daemon/gpus/monitor.hpp"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/gpus/health.hpp"
#include "daemon/gpus/nvml.hpp"

namespace gossamer::gpus {
namespace {

using Clock = std::chrono::steady_clock;
/// The thread asks the driver for errors for this long at a time, and checks in between whether the monitor ends.
constexpr std::chrono::milliseconds event_patience{200};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

struct SeenAt {
  std::uint32_t code;
  std::uint64_t count;
  Clock::time_point latest;
};

}  // namespace

struct GpuMonitor::Shared {
  explicit Shared(MonitorOptions its_options) : options(std::move(its_options)) {}

  void run();
  void watch(Nvml& nvml);
  void publish(std::vector<Gpu> gpus, const std::string& driver);
  void give_up(const std::string& why);
  void note(const XidEvent& event);
  /// Makes a call into the driver, and notes when it began, so that report() can tell that the driver hangs.
  template <class Call>
  auto in_driver(Call call) {
    set_busy_since(Clock::now());
    auto result = call();
    set_busy_since(std::nullopt);
    return result;
  }
  void set_busy_since(std::optional<Clock::time_point> since) {
    const std::lock_guard lock(mutex);
    busy_since = since;
  }
  /// Waits this long. False: the monitor ends.
  bool pause(std::chrono::milliseconds duration) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, duration, [this] { return stopping; });
  }
  bool is_stopping() {
    const std::lock_guard lock(mutex);
    return stopping;
  }

  const MonitorOptions options;
  mutable std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  bool stopping = false;
  bool ended = false;
  std::optional<Clock::time_point> busy_since;
  Clock::time_point read_at = Clock::now();
  GpuReport latest = report_without("none", "not looked at yet");
  std::map<std::string, std::vector<SeenAt>> xids;  // by UUID; at most max_gpus
};

void GpuMonitor::Shared::publish(std::vector<Gpu> gpus, const std::string& driver) {
  const std::lock_guard lock(mutex);
  read_at = Clock::now();
  latest = report_of(std::move(gpus), driver);
}

void GpuMonitor::Shared::give_up(const std::string& why) {
  const std::lock_guard lock(mutex);
  read_at = Clock::now();
  latest = report_without("none", why);
}

void GpuMonitor::Shared::note(const XidEvent& event) {
  const std::lock_guard lock(mutex);
  if (!xids.contains(event.uuid) && xids.size() >= max_gpus) return;
  std::vector<SeenAt>& seen = xids[event.uuid];
  SeenAt entry{event.code, 0, {}};
  if (const auto before = std::ranges::find(seen, event.code, &SeenAt::code); before != seen.end()) {
    entry = *before;
    seen.erase(before);
  }
  ++entry.count;
  entry.latest = Clock::now();
  if (seen.size() == max_xid_kinds) seen.erase(seen.begin());
  seen.push_back(entry);
}

void GpuMonitor::Shared::watch(Nvml& nvml) {
  while (!is_stopping()) {
    auto gpus = in_driver([&] {
      // After an error, for instance when one GPU is lost, listening begins again, so that the other GPUs are still
      // heard.
      if (!nvml.tells_events()) nvml.listen();
      return nvml.read();
    });
    if (!gpus) return give_up(gpus.error());
    publish(std::move(*gpus), nvml.driver());
    Clock::time_point next = Clock::now() + options.period;
    while (nvml.tells_events() && Clock::now() < next && !is_stopping()) {
      const auto event = in_driver([&] { return nvml.wait_for_xid(std::min(event_patience, options.period)); });
      if (!event) continue;
      note(*event);
      next = std::min(next, Clock::now() + event_patience);  // an error also changes the figures
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    if (!nvml.tells_events() && left.count() > 0 && !pause(left)) return;
  }
}

void GpuMonitor::Shared::run() {
  ::pthread_setname_np(::pthread_self(), "gpus");
  do {
    auto nvml = in_driver([&] { return Nvml::open(options.library); });
    if (nvml) {
      watch(*nvml);
    } else {
      give_up(nvml.error());
    }
    set_busy_since(Clock::now());  // the destructor of Nvml also calls the driver
    nvml = std::unexpected("");
    set_busy_since(std::nullopt);
  } while (pause(options.retry));
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

GpuMonitor::GpuMonitor(MonitorOptions options) : options_(std::move(options)) {
  if (options_.library.empty()) return;
  shared_ = std::make_shared<Shared>(options_);
  thread_ = std::thread([shared = shared_] { shared->run(); });
}

GpuMonitor::~GpuMonitor() {
  if (!shared_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, options_.stop_patience, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();  // the driver hangs
  }
}

GpuReport GpuMonitor::report() const {
  if (!shared_) return report_without("off", "[gpus] library is empty");
  const std::lock_guard lock(shared_->mutex);
  const Clock::time_point now = Clock::now();
  GpuReport report = shared_->latest;
  report.age_s = seconds(now - shared_->read_at);
  for (Gpu& gpu : report.gpus) {
    const auto seen = shared_->xids.find(gpu.uuid);
    if (seen != shared_->xids.end())
      for (const SeenAt& one : seen->second)
        gpu.xids.push_back({one.code, one.count, seconds(now - one.latest)});
    judge(gpu);
  }
  if (shared_->busy_since && now - *shared_->busy_since > options_.patience) {
    report.state = "stuck";
    report.note = hanging_note(now - *shared_->busy_since);
  }
  return report;
}

}  // namespace gossamer::gpus
