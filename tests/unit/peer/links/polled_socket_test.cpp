// A ZeroMQ socket in a loop that signals interrupt.

#include "peer/links/polled_socket.hpp"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace std::chrono_literals;

TEST_CASE("signals end no process and lose no message") {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  struct sigaction before = {};
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  {
    asio::io_context loop;
    zmq::context_t context(1);
    const auto receiving = std::make_shared<PolledSocket>(loop, context, zmq::socket_type::pair);
    const auto sending = std::make_shared<PolledSocket>(loop, context, zmq::socket_type::pair);
    receiving->socket().bind("inproc://interrupted");
    sending->socket().connect("inproc://interrupted");
    std::size_t received = 0;
    receiving->start(1, [&](Received&&) { ++received; });
    const auto meter = std::make_shared<std::atomic<std::size_t>>(0);
    const Frames frames{.header = Bytes::adopt(std::vector<std::uint8_t>(8, 1)), .payload = {}, .payload_count = 0};
    const std::jthread signals([loop_thread = ::pthread_self()](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(20us))
        ::pthread_kill(loop_thread, SIGUSR1);
    });
    std::size_t sent = 0;
    const auto end = std::chrono::steady_clock::now() + 500ms;
    while (std::chrono::steady_clock::now() < end || received < sent) {
      INFO(sent << " sent, " << received << " received");
      REQUIRE(std::chrono::steady_clock::now() < end + 20s);
      if (std::chrono::steady_clock::now() < end) {
        const SendResult result = sending->send("", frames, meter);
        REQUIRE(result != SendResult::no_link);
        sent += result == SendResult::sent ? 1 : 0;
      }
      loop.restart();
      loop.poll();
    }
    CHECK(sent > 0);
    receiving->close(0);  // else the context would wait for it
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}
