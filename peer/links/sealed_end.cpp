#include "peer/links/sealed_end.hpp"

#include <algorithm>

namespace gossamer::peer {

SendResult SealedEnd::send(PolledSocket& socket, std::string_view routing_id, const Frames& frames,
                           const QueueMeter& meter, TimeUs now) {
  if (const SendResult earlier = flush(socket, routing_id); earlier != SendResult::sent) return earlier;
  waiting_ = Waiting{out_.take(frames.bytes(), now).seal(frames), meter};
  const SendResult result = flush(socket, routing_id);
  return result == SendResult::full ? SendResult::sent : result;
}

SendResult SealedEnd::flush(PolledSocket& socket, std::string_view routing_id) {
  if (!waiting_) return SendResult::sent;
  const SendResult result =
      socket.send(routing_id, waiting_->message.frames, waiting_->meter, waiting_->message.trailer);
  if (result != SendResult::full) waiting_.reset();
  return result;
}

bool SealedEnd::open(Received& received, std::size_t first) {
  if (received.too_many_frames || received.frames.size() < first + 2) return false;
  SealTrailer trailer{};
  if (received.frames.back().size() != trailer.size()) return false;
  std::copy_n(static_cast<const std::uint8_t*>(received.frames.back().data()), trailer.size(), trailer.begin());
  received.frames.pop_back();
  received.bytes -= trailer.size();
  const auto slip = in_.take(trailer);
  return slip && slip->open(std::span(received.frames).subspan(first), trailer);
}

}  // namespace gossamer::peer
