// Threads that seal and open large messages, so that the loop, which decides everything else, does not spend its time
// on encryption. Every method is called on the loop's thread.

#pragma once

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>

namespace gossamer::peer {

/// Smaller messages are sealed and opened by the loop: handing one over takes about ten microseconds.
inline constexpr std::size_t least_offloaded_bytes = 64 * 1024;

class SealThreads {
 public:
  SealThreads(asio::io_context& loop, std::size_t threads) : loop_(loop), pool_(threads) {}
  ~SealThreads() { pool_.join(); }
  SealThreads(const SealThreads&) = delete;
  SealThreads& operator=(const SealThreads&) = delete;

  /// Does `work` on one of the threads, and then `done` on the loop.
  template <class Work, class Done>
  void run(Work work, Done done) {
    asio::post(pool_, [&loop = loop_, work = std::move(work), done = std::move(done)]() mutable {
      work();
      asio::post(loop, std::move(done));
    });
  }

 private:
  asio::io_context& loop_;
  asio::thread_pool pool_;
};

}  // namespace gossamer::peer
