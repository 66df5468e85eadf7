// Tests that the payload of a message is never copied between the kernels and ZeroMQ, in either direction
// (docs/design.md, "Copies"). ZeroMQ's inproc transport hands a message's memory from one socket to the other. So if
// nobody copies, a worker at one end reads the memory that a kernel wrote at the other.

#include <algorithm>
#include <chrono>

#include "catch.hpp"
#include "gossip/exchange/exchange.hpp"
#include "peer/links/polled_socket.hpp"
#include "peer/wire/bulk_parts.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr std::chrono::seconds patience{20};

/// Two sockets joined within the process. The last message that arrives at the second is kept.
struct Joined {
  asio::io_context loop;
  zmq::context_t context{1};
  std::shared_ptr<PolledSocket> from = std::make_shared<PolledSocket>(loop, context, zmq::socket_type::pair);
  std::shared_ptr<PolledSocket> to = std::make_shared<PolledSocket>(loop, context, zmq::socket_type::pair);
  std::optional<Delivery> delivery;
  QueueMeter meter = std::make_shared<std::atomic<std::size_t>>(0);

  Joined() {
    to->socket().bind("inproc://copies");
    from->socket().connect("inproc://copies");
    to->start(1 + max_payload_frames, [this](Received&& received) { delivery = delivery_of(std::move(received), 0); });
  }
  ~Joined() {
    from->close(0);
    to->close(0);
  }
  Message carry(const Message& message) {
    REQUIRE(from->send({}, encode(message), meter) == SendResult::sent);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!delivery && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(std::chrono::milliseconds(20));
    }
    REQUIRE(delivery);
    auto packet = decode(delivery->frames);
    REQUIRE(packet);
    return std::get<Message>(std::move(*packet));
  }
};

/// Makes a request as an initiator's worker does.
ExchangeRequest encoded(Codec codec, std::size_t blocks) {
  std::vector<float> memory(3 * blocks * block_elements, 1.0F);
  float* const first = memory.data();
  const std::size_t size = blocks * block_elements;
  gossip::FragmentBuffers buffers({first, first + size, first + 2 * size}, blocks, {});
  gossip::BlockSteps steps(blocks);
  auto result = gossip::EncodeTask{.request = {.codec = codec}}.run({buffers, steps});
  REQUIRE(result.finite);
  return result.request;
}

}  // namespace

TEST_CASE("payload passes from the kernel that made it to the one that reads it in the same memory", "[copies]") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  const ExchangeRequest sent = encoded(codec, 64);
  Joined sockets;
  const auto received = std::get<ExchangeRequest>(sockets.carry(sent));
  CHECK(received.values.data.data() == sent.values.data.data());
  CHECK(received.values.size() == sent.values.size());
  CHECK(sockets.meter->load() >= sent.values.size());  // still lent, not copied
}

TEST_CASE("a frame too small to be worth sharing is copied", "[copies]") {
  const ExchangeRequest sent = encoded(Codec::q4, 2);
  REQUIRE(sent.values.size() <= copied_frame_bytes);
  Joined sockets;
  const auto received = std::get<ExchangeRequest>(sockets.carry(sent));
  CHECK(received.values.data.data() != sent.values.data.data());  // so the comparison above can fail
  CHECK(std::ranges::equal(received.values.data, sent.values.data));
}

TEST_CASE("parts of a message lie in its own memory", "[copies]") {
  const ExchangeRequest sent = encoded(Codec::q8, 64);
  BulkQueue queue;
  queue.push(encode(Message(sent)));
  const std::byte* const begin = sent.values.data.data();
  std::size_t within = 0;
  while (!queue.empty()) {
    const Frames part = queue.next(4096);
    for (std::size_t i = 0; i < part.payload_count; ++i) {
      const std::byte* const data = part.payload[i].data.data();
      if (data >= begin && data + part.payload[i].size() <= begin + sent.values.size())
        within += part.payload[i].size();
    }
    (void)queue.pop(part);
  }
  CHECK(within == sent.values.size());
}
