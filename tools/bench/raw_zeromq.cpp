#include "tools/bench/raw_zeromq.hpp"

#include <zmq.h>

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

namespace gossamer::bench {
namespace {

using Clock = std::chrono::steady_clock;
using CurveKey = std::array<char, 41>;

constexpr std::size_t source_frames = 96;
constexpr int queue_frames = 16;
constexpr std::chrono::milliseconds receive_timeout{5'000};
constexpr double start_seconds = 0.1;

struct CurvePair {
  CurvePair() {
    if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) throw std::runtime_error("ZeroMQ has no CURVE");
  }
  CurveKey public_key, secret_key;
};

/// Frames straight from the source, as many as are taken, until told to stop.
void send_frames(zmq::socket_t& socket, const std::vector<std::uint64_t>& source, const std::atomic<bool>& stop) {
  const auto keep = [](void*, void*) {};
  auto* const memory = const_cast<std::uint64_t*>(source.data());
  for (std::size_t n = 0; !stop; ++n) {
    zmq::message_t frame(memory + n % source_frames * (raw_frame_bytes / 8), raw_frame_bytes, keep, nullptr);
    while (!stop && !socket.send(frame, zmq::send_flags::none)) {
    }
  }
}

}  // namespace

double raw_zeromq_bytes_per_s(double seconds) {
  const std::vector<std::uint64_t> source(source_frames * raw_frame_bytes / 8, 1);  // outlives the contexts
  const CurvePair server, client;
  zmq::context_t receiving(1), sending(1);
  zmq::socket_t pull(receiving, zmq::socket_type::pull), push(sending, zmq::socket_type::push);
  pull.set(zmq::sockopt::curve_server, 1);
  pull.set(zmq::sockopt::curve_secretkey, server.secret_key.data());
  pull.set(zmq::sockopt::rcvhwm, queue_frames);
  pull.set(zmq::sockopt::rcvtimeo, static_cast<int>(receive_timeout.count()));
  pull.bind("tcp://127.0.0.1:*");
  push.set(zmq::sockopt::curve_serverkey, server.public_key.data());
  push.set(zmq::sockopt::curve_publickey, client.public_key.data());
  push.set(zmq::sockopt::curve_secretkey, client.secret_key.data());
  push.set(zmq::sockopt::sndhwm, queue_frames);
  push.set(zmq::sockopt::sndtimeo, 100);
  push.set(zmq::sockopt::linger, 0);
  push.connect(pull.get(zmq::sockopt::last_endpoint));

  std::atomic<bool> stop{false};
  std::jthread sender([&] { send_frames(push, source, stop); });
  std::uint64_t sum = 0, bytes = 0;
  Clock::time_point begin = Clock::now();
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
    }
  }
  stop = true;
  sender.join();
  if (bytes == 0 || sum == 0) throw std::runtime_error("ZeroMQ moved nothing over the loopback interface");
  return static_cast<double>(bytes) / elapsed_s;
}

}  // namespace gossamer::bench
