// The pool of workers.hpp: one queue, and one lock held only to move entries.

#include "daemon/system/workers.hpp"

#include <pthread.h>

#include <asio/post.hpp>

namespace gossamer::daemon {

Workers::Workers(asio::io_context& loop, std::size_t threads, std::size_t capacity) : loop_(loop), capacity_(capacity) {
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this] { work(); });
}

bool Workers::submit(Work&& task, Work&& done) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= capacity_) return false;
    queue_.push_back({std::move(task), std::move(done)});
  }
  wake_.notify_one();
  return true;
}

void Workers::work() {
  pthread_setname_np(pthread_self(), "worker");  // for people who look at the process, and for the benchmark
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    run_front(lock);
  }
}

bool Workers::run_one() {
  std::unique_lock lock(mutex_);
  if (queue_.empty()) return false;
  run_front(lock);
  return true;
}

void Workers::run_front(std::unique_lock<std::mutex>& lock) {
  Entry entry = std::move(queue_.front());
  queue_.pop_front();
  ++running_;
  lock.unlock();
  [&]() noexcept { entry.task(); }();  // noexcept: an exception here is a broken invariant and ends the process
  entry.task = nullptr;                // its memory is released before `done` runs
  lock.lock();
  ++finished_;
  if (--running_ == 0) idle_.notify_all();
  asio::post(loop_, std::move(entry.done));  // under the lock, so that `done` never finds its own task still counted
}

void Workers::refuse() {
  std::deque<Entry> dropped;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  wake_.notify_all();
}

void Workers::stop() {
  refuse();
  for (std::jthread& thread : threads_)
    if (thread.joinable()) thread.join();
}

bool Workers::stop_within(std::chrono::milliseconds patience) {
  refuse();
  {
    std::unique_lock lock(mutex_);
    if (!idle_.wait_for(lock, patience, [this] { return running_ == 0; })) return false;
  }
  stop();
  return true;
}

std::uint64_t Workers::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

std::size_t Workers::pending() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + running_;
}

}  // namespace gossamer::daemon
