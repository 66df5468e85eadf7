// Bulk on its way out: it waits in its link's queue until the link's window (peer/links/pacing.hpp) and the caps on
// links and node let the next part go; and what has arrived is acknowledged, once a turn of the loop.

#include <algorithm>

#include "peer/overlay/links.hpp"

namespace gossamer::peer {
namespace {

/// What CURVE and ZMTP add to a frame: command name, nonce, flags, authentication; length and flags around that.
constexpr std::size_t frame_overhead_bytes = 42;
/// Under a cap, a part is at most what the cap lets pass in this time, so that links take turns.
constexpr TimeUs capped_part_us = 10 * us_per_ms;

}  // namespace

void Overlay::Core::set_rates(double bytes_per_s, double link_bytes_per_s) {
  options_.bytes_per_s = bytes_per_s;
  options_.link_bytes_per_s = link_bytes_per_s;
  budget_.set_rate(bytes_per_s);
  for (const LinkPtr& link : links_)
    link->budget.set_rate(link_bytes_per_s);
}

double Overlay::Core::goodput_bytes_s() const {
  double largest = 0;
  for (const LinkPtr& link : links_)
    largest = std::max(largest, link->pacing.goodput(now()));
  return largest;
}

gossip::LinkLoad Overlay::Core::load(const NodeId& node) const {
  const auto record = nodes_.find(node);
  if (record == nodes_.end() || !record->second.link) return {};
  const Link& link = *record->second.link;
  gossip::LinkLoad load;
  const auto consider = [&load](std::size_t waiting_bytes, double rate) {
    if (rate <= 0) return;
    const double takes_us = static_cast<double>(waiting_bytes) / rate * us_per_s;
    load.backlog_us = std::max(load.backlog_us, static_cast<TimeUs>(takes_us));
    load.bytes_per_s = load.bytes_per_s == 0 ? rate : std::min(load.bytes_per_s, rate);
  };
  if (link.pacing.measured()) consider(link.waiting.bytes(), link.pacing.rate());
  consider(link.waiting.bytes(), options_.link_bytes_per_s);
  std::size_t all_waiting = 0;
  for (const LinkPtr& other : links_)
    all_waiting += other->waiting.bytes();
  consider(all_waiting, options_.bytes_per_s);
  return load;
}

SendResult Overlay::Core::send_bulk(const LinkPtr& link, const Message& message) {
  const std::size_t queued = link->waiting.bytes() + link->meter->load(std::memory_order_relaxed);
  if (queued >= link->pacing.waiting_bytes(options_.max_queued_bytes)) return SendResult::full;
  turns_->read_clock();
  link->waiting.push(encode(message));
  pump(link);
  return link->broken.empty() ? SendResult::sent : SendResult::no_link;
}

/// Sends the next part, if there is one and it may go.
bool Overlay::Core::pump_one(const LinkPtr& link) {
  if (link->waiting.empty() || !link->is_up() || !link->broken.empty() || !link->pacing.open()) return false;
  if (const TimeUs opens = link->pacing.opens_at(); opens > now()) {
    pump_later(opens);
    return false;
  }
  if (const TimeUs opens = std::max(budget_.opens_at(now()), link->budget.opens_at(now())); opens > now()) {
    link->pacing.held_back();
    pump_later(opens);
    return false;
  }
  std::size_t part_bytes =
      link->pacing.enabled() ? link->pacing.part_bytes() : max_payload_frames * max_payload_frame_bytes;
  for (const gossip::ByteBudget* budget : {&budget_, &link->budget}) {
    if (budget->rate() <= 0 || !link->pacing.enabled()) continue;
    const double capped = budget->rate() * static_cast<double>(capped_part_us) / us_per_s;
    part_bytes = std::min(part_bytes, std::max(static_cast<std::size_t>(capped), least_part_bytes));
  }
  const Frames next = link->waiting.next(part_bytes);
  if (post(*link, Channel::bulk, next) != SendResult::sent) return false;  // the tick tries again
  (void)link->waiting.pop(next);
  link->pacing.sent(next.bytes(), !link->waiting.empty(), now());
  return true;
}

void Overlay::Core::pump(const LinkPtr& link) {
  while (pump_one(link)) {
  }
}

/// Links take turns: what a cap over all lets pass is dealt out a part at a time.
void Overlay::Core::pump_all() {
  const std::size_t count = links_.size();
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < count; ++i)
      any = pump_one(links_[(pump_first_ + i) % count]) || any;
    ++pump_first_;
  }
}

void Overlay::Core::pump_later(TimeUs when) {
  if (pump_at_ != 0 && pump_at_ <= when) return;
  pump_at_ = when;
  turns_->after(bulk_timer_, std::chrono::microseconds(when - now()), [this] {
    pump_at_ = 0;
    pump_all();
  });
}

void Overlay::Core::charge(Link& link, const Frames& frames) {
  const std::size_t bytes = frames.bytes() + (1 + frames.payload_count) * frame_overhead_bytes;
  budget_.spend(bytes, now());
  link.budget.spend(bytes, now());
}

// --- acknowledgements ---------------------------------------------------------------------------------------------

void Overlay::Core::bulk_arrived(Link& link, std::size_t bytes) {
  link.bulk_received += bytes;
  link.bulk_received_at = now();
  if (acks_queued_ || link.bulk_received - link.bulk_acked < ack_every_bytes) return;
  acks_queued_ = true;
  turns_->soon([this] {
    acks_queued_ = false;
    send_acks(ack_every_bytes);
  });
}

void Overlay::Core::send_acks(std::size_t least_bytes) {
  for (const LinkPtr& link : links_) {
    if (!link->is_up() || link->bulk_received - link->bulk_acked < least_bytes) continue;
    if (post(*link, Channel::control, encode(ControlMessage(BulkAck{link->bulk_received, link->bulk_received_at}))) !=
        SendResult::sent)
      continue;
    link->bulk_acked = link->bulk_received;
  }
}

void Overlay::Core::acknowledged(const LinkPtr& link, const BulkAck& ack) {
  link->pacing.enable();
  if (!link->pacing.acknowledged(ack.received_bytes, now(), ack.received_at)) {
    return note_malformed(link, "more bulk is acknowledged than was sent");
  }
  if (link->pacing.take_ping_wish(now())) ping(*link);
  pump(link);
}

}  // namespace gossamer::peer
