#include "daemon/clients/devices.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <asio/post.hpp>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::daemon {
namespace {

using layout::AttachStatus;

/// Advice for a GPU that is full.
constexpr const char* leave_room =
    "leave it room, with torch.cuda.set_per_process_memory_fraction() or XLA_PYTHON_CLIENT_MEM_FRACTION";

AttachRefusal no_device(std::string message) {
  return {AttachStatus::no_device, std::move(message)};
}

}  // namespace

/// The state that the loop and the thread share.
struct Devices::Shared : std::enable_shared_from_this<Devices::Shared> {
  using Work = std::move_only_function<void()>;

  Shared(asio::io_context& its_loop, Devices& its_owner) : owner(&its_owner), loop(&its_loop) {}

  /// Has the thread do the work; the first work starts the thread. Once the thread has ended, the caller does the work.
  void post(Work work) {
    {
      const std::lock_guard lock(mutex);
      if (!ended) {
        queue.push_back(std::move(work));
        if (!thread.joinable() && !stopping) thread = std::thread([self = shared_from_this()] { self->run(); });
        changed.notify_all();
        return;
      }
    }
    work();
  }
  /// Called on the thread: has the loop do the work, if the loop still exists.
  void tell(Work work) {
    const std::lock_guard lock(mutex);
    if (loop != nullptr) asio::post(*loop, std::move(work));
  }
  void run() {
    ::pthread_setname_np(::pthread_self(), "devices");
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) break;
      Work work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work();
      work = nullptr;  // destroys on this thread what the work holds
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }
  /// False: the thread hangs.
  [[nodiscard]] bool stop(std::chrono::milliseconds patience) {
    owner = nullptr;
    std::unique_lock lock(mutex);
    loop = nullptr;
    stopping = true;
    if (!thread.joinable()) ended = true;
    changed.notify_all();
    const bool in_time = changed.wait_for(lock, patience, [this] { return ended; });
    lock.unlock();
    if (!in_time) {
      thread.detach();
    } else if (thread.joinable()) {
      thread.join();  // leak checkers expect that the thread is completely over
    }
    return in_time;
  }

  Devices* owner;                                    // used on the loop; null once the owner is destroyed
  std::vector<std::shared_ptr<OpenDevice>> left_to;  // GPUs kept open if the thread hangs: closing them would hang
  std::optional<device::Plugin> plugin;              // used on the thread
  std::atomic<std::uint64_t> mapped_bytes = 0;

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  asio::io_context* loop;
  std::deque<Work> queue;
  std::thread thread;  // started by the first work
  bool stopping = false;
  bool ended = false;
};

/// The GPUs that the plug-in sees.
struct Devices::Found {
  std::string missing;
  std::string without_nccl;  // why [gpus] nccl cannot be loaded
  std::vector<std::pair<Uuid, int>> gpus;
};

Devices::Devices(asio::io_context& loop, DevicesOptions options, spdlog::logger& log)
    : options_(std::move(options)),
      log_(log),
      shared_(std::make_shared<Shared>(loop, *this)),
      allowance_(std::make_shared<device::HostAllowance>(options_.overflow_bytes)) {}

Devices::~Devices() {
  if (shared_->stop(options_.stop_patience)) return;
  for (auto& [uuid, known] : gpus_)
    shared_->left_to.push_back(std::move(known.device));
}

std::uint64_t Devices::mapped_bytes() const {
  return shared_->mapped_bytes;
}

// --- finding and opening ------------------------------------------------------------------------------------------

/// The answer to a client while a GPU is being opened.
AttachRefusal Devices::opening(Clock::time_point since) const {
  if (Clock::now() - since < options_.open_patience)
    return {AttachStatus::device_opening, "the daemon opens the GPU: asking again"};
  return no_device("the NVIDIA driver does not answer gossamerd; nvidia-smi should hang, too: restart the machine");
}

void Devices::look() {
  looking_ = true;
  looked_at_ = Clock::now();
  shared_->post([shared = shared_, path = options_.plugin, nccl = options_.nccl] {
    Found found;
    if (!shared->plugin) {
      // The library stays loaded. The plug-in asks the loader for NCCL by name, and so gets this library.
      if (!nccl.empty() && dlopen(nccl.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) found.without_nccl = dlerror();
      auto loaded = device::Plugin::load(path.empty() ? device::Plugin::usual_path() : path);
      if (loaded) {
        shared->plugin = *loaded;
      } else {
        found.missing = loaded.error();
      }
    }
    if (shared->plugin) {
      const auto count = shared->plugin->count();
      if (!count) found.missing = count.error();
      for (int i = 0; count && i < *count; ++i) {
        const auto info = shared->plugin->describe(i);
        if (info) found.gpus.emplace_back(std::to_array(info->uuid), i);
      }
    }
    shared->tell([shared, found = std::move(found)]() mutable {
      if (shared->owner != nullptr) shared->owner->looked(std::move(found));
    });
  });
}

void Devices::looked(Found&& found) {
  looking_ = false;
  looked_at_ = Clock::now();
  missing_ = std::move(found.missing);
  if (!found.without_nccl.empty())
    log_.warn("[gpus] nccl cannot be loaded: {}; sums over several GPUs go through host memory", found.without_nccl);
  for (const auto& [uuid, index] : found.gpus)
    gpus_.try_emplace(uuid).first->second.index = index;
}

void Devices::open(const Uuid& uuid) {
  Known& known = gpus_.at(uuid);
  known.state = Known::State::opening;
  known.since = Clock::now();
  shared_->post([shared = shared_, uuid, index = known.index, allowance = allowance_] {
    auto opened = device::CudaDevice::open(*shared->plugin, index);
    std::shared_ptr<OpenDevice> device;
    if (opened) {
      (*opened)->overflow_within(allowance);
      (*opened)->release_by([weak = std::weak_ptr(shared)](Shared::Work work) {
        if (const auto still = weak.lock()) return still->post(std::move(work));
        work();
      });
      device = std::make_shared<OpenDevice>(device::uuid_text(uuid), std::move(*opened));
    }
    shared->tell([shared, uuid, device, why = opened ? std::string() : opened.error()] {
      if (shared->owner != nullptr) shared->owner->opened(uuid, device, why);
    });
  });
}

void Devices::opened(const Uuid& uuid, const std::shared_ptr<OpenDevice>& device, const std::string& why) {
  Known& known = gpus_.at(uuid);
  known.state = device ? Known::State::open : Known::State::closed;
  known.device = device;
  known.why = why;
  known.since = Clock::now();
  if (!device) return;
  log_.info("GPU {} ({}) is open: clients' models are averaged in its memory", device->uuid, device->cuda->name());
}

std::expected<std::shared_ptr<OpenDevice>, AttachRefusal> Devices::use(const Uuid& uuid) {
  if (!options_.enabled)
    return std::unexpected(no_device("[gpus] clients = false: this daemon does not work in clients' GPU memory"));
  const auto is_over = [&](Clock::time_point since) { return Clock::now() - since >= options_.retry; };
  const auto found = gpus_.find(uuid);
  if (found == gpus_.end()) {
    if (!looking_ && (looked_at_ == Clock::time_point{} || is_over(looked_at_))) look();
    if (looking_) return std::unexpected(opening(looked_at_));
    if (!missing_.empty()) return std::unexpected(no_device(missing_));
    return std::unexpected(no_device(fmt::format(
        "gossamerd sees no {}: let its unit use the GPUs (gpu.conf in the package's examples), and restart it if "
        "nvidia-smi lists the GPU; one divided by MIG is not used",
        device::uuid_text(uuid))));
  }
  Known& known = found->second;
  switch (known.state) {
    case Known::State::closed:
      if (!known.why.empty() && !is_over(known.since)) return std::unexpected(no_device(known.why));
      open(uuid);
      return std::unexpected(opening(known.since));
    case Known::State::opening:
      return std::unexpected(opening(known.since));
    case Known::State::open:
      if (known.device->cuda->failure().empty()) return known.device;
      break;
    case Known::State::failed:
      break;
  }
  return std::unexpected(no_device("the GPU has failed, and gossamerd does not use it until it is started anew"));
}

// --- what is shared -----------------------------------------------------------------------------------------------

void Devices::map(const Uuid& gpu, FileDescriptor descriptor, std::uint64_t bytes, Answer answer) {
  auto device = use(gpu);
  if (!device) return answer(std::unexpected(std::move(device.error())));
  shared_->post([shared = shared_, device = *device, descriptor = std::move(descriptor), bytes,
                 answer = std::move(answer)]() mutable {
    auto mapping = device->cuda->import(descriptor.get(), bytes);
    descriptor.reset();
    if (!mapping) {
      return shared->tell([answer = std::move(answer), why = mapping.error()]() mutable {
        answer(std::unexpected(no_device("the client's GPU memory cannot be mapped here: " + why)));
      });
    }
    shared->mapped_bytes += bytes;
    float* const begin = mapping->get();
    auto end = [shared, device, bytes, mapping = std::move(*mapping)]() mutable {
      shared->mapped_bytes -= bytes;
      shared->post([device = std::move(device), mapping = std::move(mapping)]() mutable { mapping.reset(); });
    };
    auto memory = std::make_shared<DeviceMemory>(device, begin, bytes, std::move(end));
    shared->tell([answer = std::move(answer), memory = std::move(memory)]() mutable { answer(std::move(memory)); });
  });
}

void Devices::pin(const gossip::Device& device, std::span<std::byte> memory, std::shared_ptr<const void> keeps,
                  Answer answer) {
  const auto found = std::ranges::find_if(gpus_, [&](const auto& item) {
    return item.second.device != nullptr && &device == item.second.device->cuda.get();
  });
  GOSSAMER_CHECK(found != gpus_.end());
  auto usable = use(found->first);
  if (!usable) return answer(cannot_attach(AttachStatus::job_busy, usable.error().message));
  shared_->post([shared = shared_, device = *usable, memory, keeps = std::move(keeps),
                 answer = std::move(answer)]() mutable {
    auto pinned = device->cuda->pin(memory);
    if (!pinned) {
      return shared->tell([answer = std::move(answer), why = pinned.error()]() mutable {
        answer(cannot_attach(
            AttachStatus::limit_reached,
            "the job is averaged on a GPU here, for which this process's memory cannot be pinned: " + why));
      });
    }
    auto end = [shared, device, keeps = std::move(keeps), pinned = std::move(*pinned)]() mutable {
      shared->post([device = std::move(device), keeps = std::move(keeps), pinned = std::move(pinned)]() mutable {
        pinned.reset();
      });
    };
    auto held =
        std::make_shared<DeviceMemory>(device, reinterpret_cast<float*>(memory.data()), memory.size(), std::move(end));
    shared->tell([answer = std::move(answer), held = std::move(held)]() mutable { answer(std::move(held)); });
  });
}

// --- failures -----------------------------------------------------------------------------------------------------

std::vector<const gossip::Device*> Devices::failed() {
  std::vector<const gossip::Device*> failed;
  for (auto& [uuid, known] : gpus_) {
    if (known.state != Known::State::open) continue;
    known.why = known.device->cuda->failure();
    if (known.why.empty()) continue;
    known.state = Known::State::failed;
    failed.push_back(known.device->cuda.get());
    log_.error(
        "GPU {} ({}) has failed: {}; it is not used again until gossamerd is started anew, and its clients go on in "
        "host memory: look at gossamerctl doctor and the kernel's log, and restart gossamerd when the GPU is sound",
        known.device->uuid, known.device->cuda->name(), known.why);
  }
  return failed;
}

// --- GPUs that are full -------------------------------------------------------------------------------------------

std::uint64_t Devices::overflow_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [uuid, known] : gpus_)
    bytes += known.device ? known.device->cuda->overflow_bytes() : 0;
  return bytes;
}

void Devices::look_at_overflow() {
  const auto now = Clock::now();
  if (now - overflow_looked_at_ < options_.overflow_look) return;
  overflow_looked_at_ = now;
  for (auto& [uuid, known] : gpus_) {
    if (known.state != Known::State::open) continue;
    const device::Overflow::Use use = known.device->cuda->overflow_use();
    tell_of_overflow(known, use);
    // The thread frees the arrays, since freeing may wait for the GPU.
    known.device->cuda->release_idle();
  }
}

void Devices::tell_of_overflow(Known& known, const device::Overflow::Use& use) {
  constexpr double mebibyte = 1 << 20;
  const bool was_full = std::exchange(known.full, use.most_bytes > 0);
  const bool was_refused = std::exchange(known.refused, !use.trouble.empty());
  const std::string gpu = fmt::format("GPU {} ({})", known.device->uuid, known.device->cuda->name());
  if (known.full && !was_full) {
    log_.warn(
        "{} has no room: {:.1f} MiB of what gossamerd keeps there for its clients are in host memory, which it reaches "
        "over the bus, slowly: {}; what lasts goes back to the GPU when training is started anew",
        gpu, static_cast<double>(use.most_bytes) / mebibyte, leave_room);
  } else if (was_full && !known.full) {
    log_.info("{} has room again: nothing of it is in host memory", gpu);
  }
  if (known.refused && !was_refused) {
    log_.warn("{} has no room, and host memory cannot stand in for it: {}; what fails for it is tried again: {}", gpu,
              use.trouble, leave_room);
  }
}

}  // namespace gossamer::daemon
