// Tests the end of a sealed connection: order, and its end, while other threads seal and open.

#include "peer/links/sealed_end.hpp"

#include <catch2/catch.hpp>

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr TimeUs now = 1;
constexpr std::size_t count = 40;

Frames message(std::size_t number) {
  const std::size_t bytes = number % 3 == 0 ? 4 * least_offloaded_bytes : 10 + number;
  Frames frames;
  frames.header = Bytes::adopt(std::vector<std::byte>(8, static_cast<std::byte>(number)));
  frames.payload[0] = Bytes::adopt(std::vector<std::byte>(bytes, static_cast<std::byte>(number)));
  frames.payload_count = 1;
  return frames;
}

zmq::message_t copy_of(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size()};
}

/// Two ends of one connection, which carries messages only when it is told to.
struct Connection {
  explicit Connection(std::size_t thread_count) {
    if (thread_count > 0) threads = std::make_shared<SealThreads>(loop, thread_count);
    const Secret there(std::array<std::uint8_t, key_bytes>{1});
    const Secret back(std::array<std::uint8_t, key_bytes>{2});
    near.emplace(SealForm{}, there, back, threads, [this](const SealedMessage& sealed, const QueueMeter&) {
      if (room == 0) return SendResult::full;
      --room;
      Received received;
      received.frames.push_back(copy_of(sealed.frames.header.data));
      received.frames.push_back(copy_of(sealed.frames.payload[0].data));
      received.frames.emplace_back(sealed.trailer.data(), sealed.trailer.size());
      carried.push_back(std::move(received));
      return SendResult::sent;
    });
    far.emplace(SealForm{}, back, there, threads,
                [](const SealedMessage&, const QueueMeter&) { return SendResult::sent; });
  }
  void send_all() {
    for (std::size_t i = 0; i < count; ++i)
      CHECK(near->send(message(i), meter, now) == SendResult::sent);
  }
  void hand_over() {
    for (Received& received : std::exchange(carried, {})) {
      far->open(std::move(received), 0, [this](Received&& opened, bool good) {
        goods.push_back(good);
        numbers.push_back(std::to_integer<std::size_t>(*static_cast<std::byte*>(opened.frames[1].data())));
      });
    }
  }
  template <class Condition>
  void run_until(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      loop.restart();
      loop.run_for(std::chrono::milliseconds(1));
    }
  }

  asio::io_context loop;
  std::shared_ptr<SealThreads> threads;
  QueueMeter meter = std::make_shared<std::atomic<std::size_t>>(0);
  std::size_t room = count;
  std::vector<Received> carried;
  std::vector<bool> goods;
  std::vector<std::size_t> numbers;
  std::optional<SealedEnd> near, far;
};

}  // namespace

TEST_CASE("messages of all sizes keep their order, whoever seals and opens them") {
  Connection connection(GENERATE(0, 1, 3));
  connection.send_all();
  connection.run_until([&] { return connection.carried.size() == count && *connection.meter == 0; });
  connection.hand_over();
  connection.run_until([&] { return connection.numbers.size() == count; });
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(connection.goods[i]);
    CHECK(connection.numbers[i] == i);
  }
}

TEST_CASE("the end of a connection waits for what is being sealed") {
  Connection connection(3);
  connection.send_all();
  connection.near->flush_all();
  CHECK(connection.carried.size() == count);
}

TEST_CASE("where there is no room, what is sealed waits, and nothing more is taken") {
  Connection connection(3);
  connection.room = 0;
  CHECK(connection.near->send(message(0), connection.meter, now) == SendResult::sent);
  connection.near->flush_all();
  CHECK(connection.near->send(message(1), connection.meter, now) == SendResult::full);
  CHECK(*connection.meter > 0);
  connection.room = count;
  connection.send_all();
  connection.run_until([&] { return connection.carried.size() == count; });  // as much as there was room for
  connection.room = count;
  connection.run_until([&] { return connection.near->flush() == SendResult::sent && *connection.meter == 0; });
  CHECK(connection.carried.size() == count + 1);
}

TEST_CASE("a changed message is found in its place, on any thread") {
  Connection connection(3);
  connection.send_all();
  connection.near->flush_all();
  auto* const changed = static_cast<std::byte*>(connection.carried[9].frames[1].data());
  changed[least_offloaded_bytes] ^= std::byte{1};
  connection.hand_over();
  connection.run_until([&] { return connection.goods.size() == count; });
  for (std::size_t i = 0; i < count; ++i)
    CHECK(connection.goods[i] == (i != 9));
}

TEST_CASE("an end that is destroyed meanwhile is called no more") {
  Connection connection(3);
  connection.send_all();
  connection.near->flush_all();
  connection.hand_over();
  connection.near.reset();
  connection.far.reset();
  const std::size_t before = connection.goods.size();
  connection.threads.reset();  // waits until all work is done
  connection.loop.restart();
  connection.loop.run();
  CHECK(connection.goods.size() == before);
  CHECK(*connection.meter == 0);
}
