// The threads that do the long computing (kernels over fragments), so that the loop's thread only decides.
//
// submit() and stop() are called from the loop's thread. Tasks start in the order in which they were submitted and run
// side by side on any worker. A caller that submits two tasks for the same memory must wait for the first. Invariants:
// at most `capacity` tasks wait; each accepted task's `done` runs exactly once, on the loop's thread, after its task,
// unless the pool was stopped before the task began.

#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace gossamer::daemon {

class Workers {
 public:
  using Work = std::move_only_function<void()>;

  /// This many tasks may wait for a worker unless the constructor gets another number.
  static constexpr std::size_t default_capacity = 4096;

  /// `loop` outlives the pool. Without threads only run_one() runs tasks.
  Workers(asio::io_context& loop, std::size_t threads, std::size_t capacity = default_capacity);
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Runs `task` on a worker, then `done` on the loop. Neither may throw. If the queue is full or the pool stopped,
  /// this returns false and leaves both functions untouched.
  [[nodiscard]] bool submit(Work&& task, Work&& done);

  /// The same for a task that returns a value: `done` receives it.
  template <class Task, class Done>
  requires(!std::is_void_v<std::invoke_result_t<Task&>>) [[nodiscard]] bool submit(Task task, Done done) {
    using Result = std::invoke_result_t<Task&>;
    auto result = std::make_shared<std::unique_ptr<Result>>();
    return submit(Work([task = std::move(task), result]() mutable { *result = std::make_unique<Result>(task()); }),
                  Work([done = std::move(done), result]() mutable { done(std::move(**result)); }));
  }

  /// Runs the task that has waited longest on the caller's thread, and posts its `done`. Returns false if none waits.
  bool run_one();

  /// Lets running tasks finish, drops tasks that have not begun (their `done` never runs), and joins the threads. The
  /// `done` of finished tasks is still posted to the loop. Idempotent.
  void stop();
  /// Does the same, but gives up after `patience` and returns false if a task is still running. The process must then
  /// end without the destructor, which would wait for that task.
  [[nodiscard]] bool stop_within(std::chrono::milliseconds patience);

  /// The number of tasks that have run. Loop's thread only.
  [[nodiscard]] std::uint64_t finished() const;
  /// The number of tasks that wait or run. Loop's thread only.
  [[nodiscard]] std::size_t pending() const;
  [[nodiscard]] std::size_t threads() const { return threads_.size(); }

 private:
  struct Entry {
    Work task;
    Work done;
  };

  void work();
  void run_front(std::unique_lock<std::mutex>& lock);
  /// No task begins after this call, and waiting tasks are dropped.
  void refuse();

  asio::io_context& loop_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;  // notified when no task runs any more
  std::deque<Entry> queue_;       // under mutex_
  std::size_t running_ = 0;       // under mutex_
  std::uint64_t finished_ = 0;    // under mutex_
  bool stopping_ = false;         // under mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace gossamer::daemon
