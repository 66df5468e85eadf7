#include "tools/bench/raw_zeromq.hpp"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "tools/bench/thread_time.hpp"

namespace gossamer::bench {
namespace {

using Clock = std::chrono::steady_clock;
using CurveKey = std::array<char, 41>;

constexpr std::size_t source_bytes = std::size_t{96} << 20;
/// The least size of the queues at both ends together, in bytes and in frames.
constexpr std::size_t queue_bytes = std::size_t{16} << 20;
constexpr std::size_t queue_frames = 16;
constexpr std::chrono::milliseconds receive_timeout{5'000};
constexpr double start_seconds = 0.1;

struct CurvePair {
  CurvePair() {
    if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) throw std::runtime_error("ZeroMQ has no CURVE");
  }
  CurveKey public_key, secret_key;
};

/// Sends frames directly from the source, as many as the socket takes, until told to stop.
void send_frames(zmq::socket_t& socket, const std::vector<std::uint64_t>& source, std::size_t frame_bytes,
                 const std::atomic<bool>& stop) {
  const auto keep = [](void*, void*) {};
  auto* const memory = const_cast<std::uint64_t*>(source.data());
  const std::size_t frames = source_bytes / frame_bytes;
  for (std::size_t n = 0; !stop; ++n) {
    zmq::message_t frame(memory + n % frames * (frame_bytes / 8), frame_bytes, keep, nullptr);
    while (!stop && !socket.send(frame, zmq::send_flags::none)) {
    }
  }
}

void connect(zmq::socket_t& pull, zmq::socket_t& push, bool curve, std::size_t frame_bytes) {
  if (curve) {
    const CurvePair server, client;
    pull.set(zmq::sockopt::curve_server, 1);
    pull.set(zmq::sockopt::curve_secretkey, server.secret_key.data());
    push.set(zmq::sockopt::curve_serverkey, server.public_key.data());
    push.set(zmq::sockopt::curve_publickey, client.public_key.data());
    push.set(zmq::sockopt::curve_secretkey, client.secret_key.data());
  }
  const auto high_water = static_cast<int>(std::max(queue_frames, queue_bytes / frame_bytes));
  pull.set(zmq::sockopt::rcvhwm, high_water);
  pull.set(zmq::sockopt::rcvtimeo, static_cast<int>(receive_timeout.count()));
  pull.bind("tcp://127.0.0.1:*");
  push.set(zmq::sockopt::sndhwm, high_water);
  push.set(zmq::sockopt::sndtimeo, 100);
  push.set(zmq::sockopt::linger, 0);
  push.connect(pull.get(zmq::sockopt::last_endpoint));
}

}  // namespace

Transport raw_zeromq(bool curve, std::size_t frame_bytes, double seconds) {
  const std::vector<std::uint64_t> source(source_bytes / 8, 1);  // outlives the contexts
  StartedThreads receivers;
  zmq::context_t receiving(1);
  zmq::socket_t pull(receiving, zmq::socket_type::pull);
  receivers.note();
  StartedThreads senders;
  zmq::context_t sending(1);
  zmq::socket_t push(sending, zmq::socket_type::push);
  senders.note();
  connect(pull, push, curve, frame_bytes);

  std::atomic<bool> stop{false};
  std::jthread sender([&] { send_frames(push, source, frame_bytes, stop); });
  std::uint64_t sum = 0, bytes = 0;
  Clock::time_point begin = Clock::now();
  double send_s = 0, receive_s = 0;
  bool started = false;
  double elapsed_s = 0;
  while (elapsed_s < seconds) {
    zmq::message_t frame;
    if (!pull.recv(frame, zmq::recv_flags::none)) break;
    const std::span words(frame.data<std::uint64_t>(), frame.size() / 8);
    sum = std::accumulate(words.begin(), words.end(), sum);
    bytes += frame.size();
    elapsed_s = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!started && elapsed_s > start_seconds) {
      started = true;
      begin = Clock::now();
      bytes = elapsed_s = 0;
      send_s = senders.cpu_s();
      receive_s = receivers.cpu_s();
    }
  }
  send_s = senders.cpu_s() - send_s;
  receive_s = receivers.cpu_s() - receive_s;
  stop = true;
  sender.join();
  if (bytes == 0 || sum == 0) throw std::runtime_error("ZeroMQ moved nothing over the loopback interface");
  const auto count = static_cast<double>(bytes);
  return {count / elapsed_s, send_s * 1e9 / count, receive_s * 1e9 / count};
}

}  // namespace gossamer::bench
