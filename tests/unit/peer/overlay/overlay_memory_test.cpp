// Tests that memory for neighbours that come and go does not grow with the number of times.
//
// Bytes in use on the heap are counted over all threads, and not pages, since what the allocator keeps for later is no
// leak. The smallest of several counts is taken, because ZeroMQ's threads release memory late.

#include <malloc.h>

#include <array>
#include <limits>

#include "tests/unit/peer/cluster.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

namespace {

/// The bound for all counted restarts together. One connection that is not released has queues of 16 KiB in each
/// direction in ZeroMQ alone. Threads that come and go change the allocator's own memory by 170 kB.
constexpr double allowed_growth_bytes = 256 * 1024;
constexpr std::size_t bytes_of_a_kept_connection = 32 * 1024;
constexpr int warm_up_restarts = 12;
constexpr int counted_restarts = 10;
constexpr int restarts_between = 30;

class Restarts {
 public:
  /// The node that is dialled keeps its port.
  explicit Restarts(bool neighbour_dials) : neighbour_dials_(neighbour_dials) {
    stays_ = quiet(neighbour_dials_ ? quick_options() : with_peers({port_.address()}), Identity::generate());
  }

  /// Runs one life of the neighbour. Returns the bytes on the heap when it is over.
  std::size_t once() {
    OverlaySettings options = neighbour_dials_ ? with_peers({stays_->overlay->address()}) : quick_options();
    if (!neighbour_dials_) options.listen = port_.address();
    options.incarnation = ++lives_;
    auto neighbour = quiet(std::move(options), identity_);
    run_until(loop_, [&] { return stays_->linked(*neighbour) && neighbour->linked(*stays_); });
    const PullReply message = pull_reply(16 * block_elements);
    REQUIRE(stays_->overlay->send(neighbour->id, message) == SendResult::sent);
    run_until(loop_, [&] { return !neighbour->messages.empty(); });
    if (lives_ % 2 == 0) neighbour->overlay->stop();  // half of them say goodbye
    neighbour.reset();
    run_until(loop_, [&] { return stays_->events.back().starts_with("d"); });  // down, or dead
    stays_->events.clear();
    stays_->events.shrink_to_fit();
    return mallinfo2().uordblks;
  }
  std::size_t least_of(int restarts) {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (int i = 0; i < restarts; ++i)
      least = std::min(least, once());
    return least;
  }

 private:
  std::unique_ptr<Node> quiet(OverlaySettings options, Identity identity) {
    auto node = std::make_unique<Node>(loop_, keys_, std::move(options), std::move(identity));
    node->log->set_level(spdlog::level::off);
    REQUIRE(node->overlay->start());
    return node;
  }

  bool neighbour_dials_;
  asio::io_context loop_;
  ClusterKeys keys_ = new_keys();
  Identity identity_ = Identity::generate();
  const HeldPort port_{loop_};
  std::unique_ptr<Node> stays_;
  std::uint64_t lives_ = 0;
};

/// The bytes that the restarts leave behind. `after_each` is called after each.
double left_behind(
    bool neighbour_dials, const std::function<void()>& after_each = [] {}) {
  Restarts restarts(neighbour_dials);
  (void)restarts.least_of(warm_up_restarts);
  const std::size_t before = restarts.least_of(counted_restarts);
  for (int i = 0; i < restarts_between; ++i) {
    (void)restarts.once();
    after_each();
  }
  const std::size_t after = restarts.least_of(counted_restarts);
  return static_cast<double>(after) - static_cast<double>(before);
}

/// Sanitizers have allocators of their own, and the address sanitizer finds leaks itself.
bool heap_is_counted() {
  const std::size_t before = mallinfo2().uordblks;
  const auto block = std::make_unique<std::array<char, 65536>>();
  if (block != nullptr && mallinfo2().uordblks >= before + block->size()) return true;
  WARN("this build's allocator does not count what is in use: nothing was tested");
  return false;
}

}  // namespace

TEST_CASE("a neighbour that dials, and restarts again and again, leaves nothing behind") {
  if (heap_is_counted()) CHECK(left_behind(true) < allowed_growth_bytes);
}

TEST_CASE("a neighbour that is dialled, and restarts again and again, leaves nothing behind") {
  if (heap_is_counted()) CHECK(left_behind(false) < allowed_growth_bytes);
}

TEST_CASE("a connection that each restart left behind would be noticed") {
  if (!heap_is_counted()) return;
  std::vector<std::vector<char>> kept;
  CHECK(left_behind(true, [&] { kept.emplace_back(bytes_of_a_kept_connection); }) > 2 * allowed_growth_bytes);
}
