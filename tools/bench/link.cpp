#include "tools/bench/link.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "peer/overlay/overlay.hpp"
#include "tools/bench/thread_time.hpp"

namespace gossamer::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t source_bytes = std::size_t{96} << 20;  // larger than the caches
constexpr std::uint32_t fragment_blocks = default_fragment_elements / block_elements;
constexpr std::chrono::seconds link_timeout{10};
constexpr std::chrono::milliseconds start{700};
constexpr std::chrono::milliseconds poll_interval{5};
/// A sender that was told `full` tries again after this time; the link's queue lasts for longer.
constexpr std::chrono::milliseconds retry{2};

TimeUs now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

TimeUs time_of_day_us() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count();
}

/// An overlay on a thread of its own. It reads and counts the messages that arrive.
class End : public peer::OverlayEvents {
 public:
  End(const peer::ClusterKeys& keys, const std::vector<std::string>& peers, peer::BulkProtection bulk, int io_threads)
      : overlay_(loop_, options(peers, bulk, io_threads), peer::Identity::generate(), keys, *this,
                 std::make_shared<spdlog::logger>("bench", std::make_shared<spdlog::sinks::null_sink_mt>()),
                 gossip::Random(1), now_us, time_of_day_us) {
    const auto started = overlay_.start();
    if (!started) throw std::runtime_error(started.error());
    io_.note();
    thread_ = std::jthread([this] {
      const auto work = asio::make_work_guard(loop_);
      loop_.run();
    });
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() override {
    asio::post(loop_, [this] {
      timer_.cancel();
      overlay_.stop();
      loop_.stop();
    });
    thread_.join();
  }

  [[nodiscard]] std::string address() const { return overlay_.address(); }
  void wait_for_links(std::size_t count) {
    const auto deadline = Clock::now() + link_timeout;
    while (linked_ < count) {
      if (Clock::now() > deadline) throw std::runtime_error("no link between two overlays on loopback");
      std::this_thread::sleep_for(poll_interval);
    }
  }
  /// Keeps all links busy with replies, each of one fragment.
  void send_for_ever(Codec codec) {
    asio::post(loop_, [this, codec] {
      source_ = std::make_shared<const std::vector<std::uint64_t>>(source_bytes / 8, 1);
      frame_bytes_ = fragment_blocks * codec_block_bytes(codec);
      reply_ = {.status = ReplyStatus::done, .codec = codec, .block_count = fragment_blocks};
      send_more();
    });
  }

  [[nodiscard]] std::uint64_t bytes_received() const { return bytes_; }
  [[nodiscard]] double io_cpu_s() const { return io_.cpu_s(); }
  [[nodiscard]] std::vector<double> each_io_cpu_s() const { return io_.each_cpu_s(); }
  [[nodiscard]] double loop_cpu_s() {
    std::promise<double> used_s;
    asio::post(loop_, [&used_s] { used_s.set_value(own_cpu_s()); });
    return used_s.get_future().get();
  }

 private:
  static peer::OverlaySettings options(const std::vector<std::string>& peers, peer::BulkProtection bulk,
                                       int io_threads) {
    peer::OverlaySettings options;
    options.listen = "tcp://127.0.0.1:0";
    options.peers = peers;
    options.bulk = bulk;
    options.io_threads = io_threads;
    return options;
  }

  void link_up(const NodeId& node) override {
    nodes_.push_back(node);
    ++linked_;
  }
  void link_down(const NodeId&, const std::string&) override {}
  void node_dead(const NodeId&) override {}
  void received(const NodeId&, Message&& message) override {
    const auto* reply = std::get_if<ExchangeReply>(&message);
    if (reply == nullptr) return;
    const auto words = reply->differences.as<std::uint64_t>();
    sum_ = std::accumulate(words.begin(), words.end(), sum_);
    bytes_ += reply->differences.size();
  }

  void send_more() {
    for (bool any = true; any;) {
      any = false;
      for (const NodeId& node : nodes_) {
        const std::size_t offset = ++reply_.counter % (source_bytes / frame_bytes_) * frame_bytes_;
        reply_.differences = {source_, std::as_bytes(std::span(*source_)).subspan(offset, frame_bytes_)};
        any = overlay_.send(node, reply_) == peer::SendResult::sent || any;
      }
    }
    timer_.expires_after(retry);
    timer_.async_wait([this](const asio::error_code& error) {
      if (!error) send_more();
    });
  }

  StartedThreads io_;  ///< before overlay_, so that it can tell the threads that overlay_ starts
  asio::io_context loop_;
  peer::Overlay overlay_;
  asio::steady_timer timer_{loop_};
  std::vector<NodeId> nodes_;
  std::atomic<std::size_t> linked_{0};
  std::shared_ptr<const std::vector<std::uint64_t>> source_;
  std::size_t frame_bytes_ = 0;
  ExchangeReply reply_;
  std::uint64_t sum_ = 0;
  std::atomic<std::uint64_t> bytes_{0};
  std::jthread thread_;
};

/// The time used and the bytes moved so far.
struct Count {
  double bytes = 0, sender_io_s = 0, receiver_io_s = 0, sender_loop_s = 0, receiver_loop_s = 0;
  std::vector<double> each_io_s = {};
  Clock::time_point time = {};
};

using Ends = std::vector<std::unique_ptr<End>>;

Count count(End& sender, const Ends& receivers) {
  Count count{.sender_io_s = sender.io_cpu_s(), .sender_loop_s = sender.loop_cpu_s()};
  count.each_io_s = sender.each_io_cpu_s();
  for (const auto& receiver : receivers) {
    count.bytes += static_cast<double>(receiver->bytes_received());
    count.receiver_io_s += receiver->io_cpu_s();
    count.receiver_loop_s += receiver->loop_cpu_s();
  }
  count.time = Clock::now();
  return count;
}

/// ZeroMQ's reaper is among the threads and has nothing to do, so the idlest thread is left out.
std::vector<double> io_shares(const Count& before, const Count& after, int io_threads) {
  std::vector<double> shares;
  for (std::size_t n = 0; n < after.each_io_s.size(); ++n)
    shares.push_back((after.each_io_s[n] - before.each_io_s[n]) / (after.sender_io_s - before.sender_io_s));
  std::sort(shares.begin(), shares.end(), std::greater());
  shares.resize(static_cast<std::size_t>(io_threads));
  return shares;
}

}  // namespace

LinkRun link_run(const LinkOptions& options) {
  const peer::ClusterKeys keys({peer::ClusterKey::generate()});
  Ends receivers;
  std::vector<std::string> addresses;
  for (std::size_t n = 0; n < options.links; ++n) {
    receivers.push_back(std::make_unique<End>(keys, std::vector<std::string>{}, options.bulk, 1));
    addresses.push_back(receivers.back()->address());
  }
  End sender(keys, addresses, options.bulk, options.io_threads);
  sender.wait_for_links(options.links);
  sender.send_for_ever(options.codec);
  std::this_thread::sleep_for(start);
  const Count before = count(sender, receivers);
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  const Count after = count(sender, receivers);
  const double bytes = after.bytes - before.bytes;
  if (bytes <= 0) throw std::runtime_error("a link moved nothing over the loopback interface");
  const auto ns_per_byte = [&](double Count::*used_s) { return (after.*used_s - before.*used_s) * 1e9 / bytes; };
  return {.transport = {.bytes_per_s = bytes / std::chrono::duration<double>(after.time - before.time).count(),
                        .send_ns_per_byte = ns_per_byte(&Count::sender_io_s),
                        .receive_ns_per_byte = ns_per_byte(&Count::receiver_io_s)},
          .hand_over_ns_per_byte = ns_per_byte(&Count::sender_loop_s),
          .take_ns_per_byte = ns_per_byte(&Count::receiver_loop_s),
          .io_shares = io_shares(before, after, options.io_threads)};
}

}  // namespace gossamer::bench
