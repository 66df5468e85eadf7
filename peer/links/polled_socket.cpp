#include "peer/links/polled_socket.hpp"

#include <asio/post.hpp>
#include <atomic>
#include <cstring>
#include <thread>

#include "gossip/check.hpp"

namespace gossamer::peer {
namespace {

constexpr std::size_t payload_alignment = 8;
/// How long receive_while() may go on after its call has returned.
constexpr long receiving_pause_ms = 5;

/// What ZeroMQ holds while a frame of ours is in its queue.
struct InFlight {
  Bytes bytes;
  QueueMeter meter;
  /// Orders the writes here before the reads in release(). ZeroMQ orders them, too, but the thread sanitizer cannot see
  /// that.
  std::atomic<bool> complete = false;
};

void release(void*, void* hint) {
  const std::unique_ptr<InFlight> held(static_cast<InFlight*>(hint));
  (void)held->complete.load(std::memory_order_acquire);
  held->meter->fetch_sub(held->bytes.size(), std::memory_order_relaxed);
}

zmq::message_t message_of(const Bytes& bytes, const QueueMeter& meter) {
  if (bytes.size() <= copied_frame_bytes) return {bytes.data.data(), bytes.size()};
  auto held = std::make_unique<InFlight>(bytes, meter);
  held->complete.store(true, std::memory_order_release);
  // ZeroMQ takes a pointer to mutable bytes but only reads a message that is sent.
  void* data = const_cast<std::byte*>(bytes.data.data());
  zmq::message_t message(data, bytes.size(), release, held.get());
  (void)held.release();
  meter->fetch_add(bytes.size(), std::memory_order_relaxed);
  return message;
}

Bytes bytes_of(zmq::message_t&& frame) {
  auto held = std::make_shared<zmq::message_t>(std::move(frame));
  const auto* data = static_cast<const std::byte*>(held->data());
  const std::size_t size = held->size();
  if (reinterpret_cast<std::uintptr_t>(data) % payload_alignment == 0) return {std::move(held), {data, size}};
  return Bytes::adopt(std::vector<std::byte>(data, data + size));
}

}  // namespace

PolledSocket::PolledSocket(asio::io_context& loop, zmq::context_t& context, zmq::socket_type type)
    : loop_(loop), socket_(context, type), descriptor_(loop) {
  socket_.set(zmq::sockopt::linger, 0);
}

void PolledSocket::start(std::size_t max_frames, Handler handler) {
  max_frames_ = max_frames;
  handler_ = std::move(handler);
  descriptor_.assign(socket_.get(zmq::sockopt::fd));
  drain_soon();
  wait();
}

void PolledSocket::wait() {
  descriptor_.async_wait(asio::posix::descriptor_base::wait_read,
                         [self = shared_from_this()](const asio::error_code& error) {
                           if (error || !self->open_) return;
                           self->drain();
                           if (self->open_) self->wait();
                         });
}

void PolledSocket::drain_soon() {
  if (drain_queued_ || !open_ || !handler_) return;
  drain_queued_ = true;
  asio::post(loop_, [self = shared_from_this()] {
    self->drain_queued_ = false;
    self->drain();
  });
}

void PolledSocket::drain() {
  for (std::size_t handled = 0; handled < messages_per_turn; ++handled) {
    if (!handle_one()) return;
  }
  drain_soon();
}

void PolledSocket::drain_rest() {
  for (std::size_t handled = 0; handled < messages_at_end && handle_one(); ++handled) {
  }
}

bool PolledSocket::handle_one() {
  if (!open_) return false;
  Received received;
  if (!received_.empty()) {
    received = std::move(received_.front());
    received_.pop_front();
  } else if (!has_message() || !receive(received)) {
    return false;
  }
  handler_(std::move(received));
  return true;
}

void PolledSocket::receive_while(const std::function<void()>& call) {
  drain_soon();
  std::jthread receiver;
  try {
    receiver = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        zmq::pollitem_t item{.socket = socket_.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
        (void)zmq_poll(&item, 1, receiving_pause_ms);
        for (Received received; receive(received); received = {})
          received_.push_back(std::move(received));
      }
    });
  } catch (const std::system_error&) {
    // There is no thread to be had. The call hardly ever has to wait.
  }
  call();
}

bool PolledSocket::has_message() {
  return (uninterrupted([this] { return socket_.get(zmq::sockopt::events); }) & ZMQ_POLLIN) != 0;
}

bool PolledSocket::receive(Received& received) {
  try {
    for (bool more = true; more;) {
      zmq::message_t frame;
      // ZeroMQ hands over messages whole: after the first frame the others are there.
      if (!uninterrupted([&] { return socket_.recv(frame, zmq::recv_flags::dontwait); })) return false;
      more = frame.more();
      received.bytes += frame.size();
      if (received.frames.size() < max_frames_) {
        received.frames.push_back(std::move(frame));
      } else {
        received.too_many_frames = true;
      }
    }
    return true;
  } catch (const zmq::error_t&) {
    return false;  // the context is ending
  }
}

SendResult PolledSocket::send(std::string_view routing_id, const Frames& frames, const QueueMeter& meter,
                              std::span<const std::uint8_t> trailer) {
  if (!open_) return SendResult::no_link;
  std::vector<zmq::message_t> parts;
  parts.reserve(3 + frames.payload_count);
  if (!routing_id.empty()) parts.emplace_back(routing_id.data(), routing_id.size());
  parts.push_back(message_of(frames.header, meter));
  for (std::size_t i = 0; i < frames.payload_count; ++i)
    parts.push_back(message_of(frames.payload[i], meter));
  if (!trailer.empty()) parts.emplace_back(trailer.data(), trailer.size());

  SendResult result = SendResult::sent;
  try {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      const auto flags = last ? zmq::send_flags::dontwait : zmq::send_flags::dontwait | zmq::send_flags::sndmore;
      if (uninterrupted([&] { return socket_.send(parts[i], flags); })) continue;
      // Only the first frame can find the queue full; a later one fails if the connection went meanwhile.
      result = i == 0 ? SendResult::full : SendResult::no_link;
      break;
    }
  } catch (const zmq::error_t&) {
    result = SendResult::no_link;  // EHOSTUNREACH of a ROUTER, or the context is ending
  }
  if (result != SendResult::no_link && has_message()) drain_soon();
  return result;
}

void PolledSocket::close(int linger_ms) {
  if (!open_) return;
  open_ = false;
  if (descriptor_.is_open()) descriptor_.release();  // ZeroMQ closes the descriptor
  socket_.set(zmq::sockopt::linger, linger_ms);
  socket_.close();
}

Delivery delivery_of(Received&& received, std::size_t first) {
  GOSSAMER_CHECK(received.frames.size() > first);
  Delivery delivery;
  delivery.too_many_frames = received.too_many_frames;
  delivery.bytes = received.bytes;
  for (std::size_t i = 0; i < first; ++i)
    delivery.bytes -= received.frames[i].size();
  delivery.frames.header = bytes_of(std::move(received.frames[first]));
  std::size_t count = received.frames.size() - first - 1;
  if (count > max_payload_frames) {  // the last frame is where sealed messages have a trailer
    delivery.too_many_frames = true;
    count = max_payload_frames;
  }
  for (std::size_t i = 0; i < count; ++i) {
    delivery.frames.payload[i] = bytes_of(std::move(received.frames[first + 1 + i]));
  }
  delivery.frames.payload_count = count;
  return delivery;
}

}  // namespace gossamer::peer
