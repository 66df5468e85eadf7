#include "peer/links/sealed_end.hpp"

#include <algorithm>

namespace gossamer::peer {

struct SealedEnd::Outgoing {
  Outgoing(const QueueMeter& queue, std::size_t size) : meter(queue), bytes(size) { *meter += bytes; }
  ~Outgoing() { *meter -= bytes; }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  SealedMessage message;  ///< empty until `sealed`
  std::atomic<bool> sealed = false;
  QueueMeter meter;
  std::size_t bytes;
};

struct SealedEnd::Incoming {
  Received received;
  Opened opened;
  bool ended = false;  ///< it has been opened, or cannot be
  bool good = false;
};

SealedEnd::SealedEnd(SealForm form, const Secret& out, const Secret& in, std::shared_ptr<SealThreads> threads, Put put)
    : form_(form),
      out_(form, out),
      in_(form, in),
      threads_(std::move(threads)),
      queues_(std::make_shared<Queues>(std::move(put))) {}

SealedEnd::~SealedEnd() {
  if (!queues_) return;  // this object was moved from
  queues_->outgoing.clear();
  queues_->incoming.clear();
}

SendResult SealedEnd::send(const Frames& frames, const QueueMeter& meter, TimeUs now) {
  if (const SendResult earlier = flush(); earlier != SendResult::sent) return earlier;
  const auto outgoing = std::make_shared<Outgoing>(meter, frames.bytes());
  queues_->outgoing.push_back(outgoing);
  const auto seal = [slip = out_.take(frames.bytes(), now), frames, outgoing] {
    outgoing->message = slip.seal(frames);
    outgoing->sealed = true;
    outgoing->sealed.notify_one();
  };
  if (threads_ && outgoing->bytes >= least_offloaded_bytes) {
    threads_->run(seal, [weak = std::weak_ptr(queues_)] {
      if (const auto queues = weak.lock()) (void)queues->flush();
    });
    return SendResult::sent;
  }
  seal();
  const SendResult result = flush();
  return result == SendResult::full ? SendResult::sent : result;
}

SendResult SealedEnd::flush() {
  return queues_->flush();
}

SendResult SealedEnd::Queues::flush() {
  while (!broken && !outgoing.empty() && outgoing.front()->sealed) {
    const std::shared_ptr<Outgoing> next = outgoing.front();
    const SendResult result = put(next->message, next->meter);
    if (result == SendResult::full) return result;
    broken = result != SendResult::sent;
    outgoing.pop_front();
  }
  return broken ? SendResult::no_link : SendResult::sent;
}

void SealedEnd::flush_all() {
  for (const auto& waiting : queues_->outgoing)
    waiting->sealed.wait(false);
  (void)flush();
}

void SealedEnd::open(Received&& received, std::size_t first, Opened opened) {
  const auto incoming = std::make_shared<Incoming>(Incoming{std::move(received), std::move(opened)});
  queues_->incoming.push_back(incoming);
  Received& message = incoming->received;
  std::optional<SealSlip> slip;
  SealTrailer trailer{};
  if (!message.too_many_frames && message.frames.size() >= first + 2 &&
      message.frames.back().size() == trailer.size()) {
    std::copy_n(static_cast<const std::uint8_t*>(message.frames.back().data()), trailer.size(), trailer.begin());
    message.frames.pop_back();
    message.bytes -= trailer.size();
    slip = in_.take(trailer);
  }
  const auto open_now = [slip, trailer, first, incoming] {
    incoming->good = slip && slip->open(std::span(incoming->received.frames).subspan(first), trailer);
  };
  if (threads_ && slip && message.bytes >= least_offloaded_bytes) {
    threads_->run(open_now, [incoming, weak = std::weak_ptr(queues_)] {
      incoming->ended = true;
      if (const auto queues = weak.lock()) queues->deliver();
    });
    return;
  }
  open_now();
  incoming->ended = true;
  const std::shared_ptr<Queues> queues = queues_;  // a handler may destroy this end, which clears the queues
  queues->deliver();
}

void SealedEnd::Queues::deliver() {
  while (!incoming.empty() && incoming.front()->ended) {
    const std::shared_ptr<Incoming> next = incoming.front();
    incoming.pop_front();
    next->opened(std::move(next->received), next->good);
  }
}

}  // namespace gossamer::peer
