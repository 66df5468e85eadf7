#include "daemon/device/node_sums.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::device {
namespace {

using std::chrono::microseconds;

/// Pause between two looks at a reduction, which takes tenths of milliseconds.
constexpr microseconds reduction_poll{20};
/// Pause between two looks at a communicator that is being made, or will be.
constexpr microseconds making_poll{5'000};

TimeUs clock_us() {
  return std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

class NodeSums::Thread {
 public:
  Thread(std::unique_ptr<Collectives> collectives, const SumLimits& limits)
      : limits_(limits), collectives_(std::move(collectives)), reducer_(*collectives_, limits.reducer) {}
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void run();

  // --- any thread
  bool add(Rank rank, std::shared_ptr<const gossip::Device> device);
  void remove(Rank rank);
  [[nodiscard]] Result add_up(std::vector<Part>& parts, std::size_t elements);
  [[nodiscard]] Status status() const;
  /// Waits until the thread has ended its work, for a limited time. False: it hangs.
  [[nodiscard]] bool stop();

 private:
  using Devices = std::map<Rank, std::shared_ptr<const gossip::Device>>;
  struct Request {
    enum class State : std::uint8_t { waiting, under_way, over } state = State::waiting;
    Devices held;  // keeps the GPUs open for the parts; before `parts`, so that it is destroyed after them
    std::vector<Part> parts;
    std::size_t elements = 0;
    Result result = Result::not_ready;
  };
  struct Gpu {
    std::shared_ptr<const gossip::Device> device;
    std::uint32_t users = 0;
  };

  void take_changes();
  void begin_next();
  [[nodiscard]] bool begin(Request& request);
  [[nodiscard]] std::vector<float*> arrays_of(Request& request);
  [[nodiscard]] float* zeros_on(Rank rank, const gossip::Device& device, std::size_t elements);
  void end(LocalReducer::Reduced reduced);
  void tell(std::shared_ptr<Request>&& request, Result result);
  void end_all();
  void update_status();
  void wait_for_news();

  const SumLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;                  // wakes the thread: there is something to do
  std::condition_variable over_;                  // wakes those who wait: something has changed
  std::map<Rank, Gpu> gpus_;                      // under mutex_
  bool changed_ = false;                          // whether gpus_ has changed; under mutex_
  std::deque<std::shared_ptr<Request>> waiting_;  // under mutex_
  Status status_;                                 // under mutex_
  bool stopping_ = false;                         // under mutex_
  bool ended_ = false;                            // under mutex_
  Devices known_;                                 // used by the thread alone, like all members below
  std::unique_ptr<Collectives> collectives_;
  LocalReducer reducer_;
  std::map<Rank, Part> zeros_;  // arrays of zeros that GPUs without a part add
  std::shared_ptr<Request> current_;
};

NodeSums::NodeSums(std::unique_ptr<Collectives> collectives, SumLimits limits)
    : thread_(std::make_shared<Thread>(std::move(collectives), limits)) {
  runs_ = std::thread([thread = thread_] { thread->run(); });
}
NodeSums::~NodeSums() {
  if (thread_->stop()) {
    runs_.join();
  } else {
    runs_.detach();
  }
}
bool NodeSums::add(Rank rank, std::shared_ptr<const gossip::Device> device) {
  return thread_->add(rank, std::move(device));
}
void NodeSums::remove(Rank rank) {
  thread_->remove(rank);
}
NodeSums::Result NodeSums::add_up(std::vector<Part>& parts, std::size_t elements) {
  return thread_->add_up(parts, elements);
}
NodeSums::Status NodeSums::status() const {
  return thread_->status();
}

// --- who takes part -----------------------------------------------------------------------------------------------

bool NodeSums::Thread::add(Rank rank, std::shared_ptr<const gossip::Device> device) {
  const std::scoped_lock lock(mutex_);
  if (gpus_.size() == LocalReducer::max_ranks && !gpus_.contains(rank)) return false;
  Gpu& gpu = gpus_[rank];
  GOSSAMER_CHECK(gpu.device == nullptr || gpu.device == device);
  gpu.device = std::move(device);
  ++gpu.users;
  changed_ = true;
  wake_.notify_one();
  return true;
}

void NodeSums::Thread::remove(Rank rank) {
  const std::scoped_lock lock(mutex_);
  const auto found = gpus_.find(rank);
  if (found == gpus_.end() || --found->second.users > 0) return;
  gpus_.erase(found);
  changed_ = true;
  wake_.notify_one();
}

NodeSums::Status NodeSums::Thread::status() const {
  const std::scoped_lock lock(mutex_);
  return status_;
}

// --- who asks -----------------------------------------------------------------------------------------------------

NodeSums::Result NodeSums::Thread::add_up(std::vector<Part>& parts, std::size_t elements) {
  using State = Request::State;
  std::unique_lock lock(mutex_);
  if (stopping_ || waiting_.size() >= max_waiting) return Result::not_ready;
  const auto request = std::make_shared<Request>();
  request->parts = std::move(parts);
  request->elements = elements;
  waiting_.push_back(request);
  wake_.notify_one();
  if (!over_.wait_for(lock, microseconds(limits_.turn_us), [&] { return request->state != State::waiting; })) {
    std::erase(waiting_, request);
    parts = std::move(request->parts);
    return Result::not_ready;
  }
  const microseconds patience(limits_.reducer.reduce_us + limits_.grace_us);
  if (!over_.wait_for(lock, patience, [&] { return request->state == State::over; })) return Result::failed;
  if (request->result != Result::failed) parts = std::move(request->parts);
  return request->result;
}

// --- the thread ---------------------------------------------------------------------------------------------------

void NodeSums::Thread::run() {
  ::pthread_setname_np(::pthread_self(), "gpu-sums");
  while (true) {
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_) break;
    }
    take_changes();
    if (!current_) begin_next();
    const LocalReducer::Reduced reduced = reducer_.tick(clock_us());
    update_status();
    if (reduced != LocalReducer::Reduced::no) end(reduced);
    wait_for_news();
  }
  end_all();
}

void NodeSums::Thread::end_all() {
  for (const auto& [rank, device] : known_)
    reducer_.remove(rank);
  zeros_.clear();
  if (current_) end(LocalReducer::Reduced::failed);
  known_.clear();
  const std::scoped_lock lock(mutex_);
  for (const auto& request : std::exchange(waiting_, {}))
    request->state = Request::State::over;
  gpus_.clear();
  ended_ = true;
  over_.notify_all();
}

bool NodeSums::Thread::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
  return over_.wait_for(lock, microseconds(limits_.stop_us), [this] { return ended_; });
}

void NodeSums::Thread::take_changes() {
  Devices wanted;
  {
    const std::scoped_lock lock(mutex_);
    if (!std::exchange(changed_, false)) return;
    for (const auto& [rank, gpu] : gpus_)
      wanted[rank] = gpu.device;
  }
  for (const auto& [rank, device] : known_) {
    if (wanted.contains(rank)) continue;
    reducer_.remove(rank);
    // A sum that was broken off may still use these zeros until tick() has reported its end.
    if (!current_) zeros_.erase(rank);
  }
  for (const auto& [rank, device] : wanted)
    GOSSAMER_CHECK(reducer_.add(rank));
  known_ = std::move(wanted);
}

void NodeSums::Thread::begin_next() {
  std::shared_ptr<Request> next;
  {
    const std::scoped_lock lock(mutex_);
    if (waiting_.empty()) return;
    next = std::move(waiting_.front());
    waiting_.pop_front();
    next->state = Request::State::under_way;
  }
  if (begin(*next)) {
    current_ = std::move(next);
  } else {
    tell(std::move(next), Result::not_ready);
  }
}

bool NodeSums::Thread::begin(Request& request) {
  const std::vector<float*> arrays = arrays_of(request);
  if (arrays.empty()) return false;
  request.held = known_;
  reducer_.reduce(arrays, request.elements, clock_us());
  return true;
}

/// One array for every rank that can be summed over, in their order. Empty if a part is on a GPU that is not among
/// these ranks, or if memory is lacking.
std::vector<float*> NodeSums::Thread::arrays_of(Request& request) {
  std::vector<float*> arrays;
  std::size_t parts = 0;
  for (const Rank rank : reducer_.ready()) {
    const gossip::Device* const device = known_.at(rank).get();
    const auto part = std::ranges::find(request.parts, device, &Part::device);
    parts += part == request.parts.end() ? 0 : 1;
    float* const array = part == request.parts.end() ? zeros_on(rank, *device, request.elements) : part->values.get();
    if (array == nullptr) return {};
    arrays.push_back(array);
  }
  if (parts != request.parts.size()) return {};
  return arrays;
}

float* NodeSums::Thread::zeros_on(Rank rank, const gossip::Device& device, std::size_t elements) {
  Part& zeros = zeros_[rank];
  if (zeros.capacity < elements) zeros = {.device = &device, .values = device.allocate(elements), .capacity = elements};
  if (zeros.values != nullptr && device.clear(zeros.values.get(), elements)) return zeros.values.get();
  zeros_.erase(rank);
  return nullptr;
}

void NodeSums::Thread::end(LocalReducer::Reduced reduced) {
  GOSSAMER_CHECK(current_ != nullptr);
  const bool done = reduced == LocalReducer::Reduced::done;
  if (!done) {
    zeros_.clear();
    current_->parts.clear();
  }
  tell(std::move(current_), done ? Result::done : Result::failed);
}

void NodeSums::Thread::tell(std::shared_ptr<Request>&& request, Result result) {
  {
    const std::scoped_lock lock(mutex_);
    request->result = result;
    request->state = Request::State::over;
  }
  over_.notify_all();
  request.reset();
}

void NodeSums::Thread::update_status() {
  const std::scoped_lock lock(mutex_);
  const std::span<const Rank> ready = reducer_.ready();
  if (!reducer_.reducing()) status_.ranks.assign(ready.begin(), ready.end());
  status_.counters = reducer_.counters();
  status_.trouble = reducer_.trouble();
}

void NodeSums::Thread::wait_for_news() {
  std::unique_lock lock(mutex_);
  const auto news = [this] { return stopping_ || changed_ || (!waiting_.empty() && !current_); };
  if (current_) {
    wake_.wait_for(lock, reduction_poll, news);
  } else if (!reducer_.settled()) {
    wake_.wait_for(lock, std::max(making_poll, microseconds(reducer_.rests_until_us() - clock_us())), news);
  } else {
    wake_.wait(lock, news);
  }
}

}  // namespace gossamer::device
