#include "peer/overlay/sender.hpp"

#include <algorithm>

#include "peer/links/tcp_connection.hpp"

namespace gossamer::peer {
namespace {

/// Bulk is acknowledged once this many bytes have arrived. Fewer bytes are acknowledged with the next tick.
constexpr std::size_t ack_every_bytes = 4 * 1024;
/// CURVE adds a command name, a nonce, flags and authentication to a frame; ZMTP adds length and flags around that.
constexpr std::size_t frame_overhead_bytes = 42;
/// Under a cap, no part is larger than what the cap lets pass in this time, so that links take turns.
constexpr TimeUs capped_part_us = 10 * us_per_ms;
/// A round trip from which a loss costs much. Nearer links keep the congestion control that the machine has, since BBR
/// takes more processor time (6 % of what an exchange takes on loopback).
constexpr TimeUs far_us = 10 * us_per_ms;
/// How often in a round trip the kernel is asked for what waits behind a loss.
constexpr TimeUs looks_in_round_trip = 8;

}  // namespace

SendResult Sender::send(const NodeId& to, const Message& message) {
  const LinkPtr link = table_.link_to(to);
  if (!link || !link->broken.empty()) return SendResult::no_link;
  const bool bulk = channel_of(message) == Channel::bulk;
  const SendResult result = bulk ? send_bulk(*link, message) : post(*link, Channel::control, encode(message));
  if (result == SendResult::full) ++self_.counters.sends_full;
  return result;
}

SendResult Sender::post(Link& link, Channel channel, const Frames& frames) {
  const SendResult result = link.outgoing ? link.outgoing->send(channel, frames, link.meter, self_.now())
                                          : listener_.send(link.routing_ids[index_of(channel)], frames, link.meter);
  if (result == SendResult::no_link) {
    if (!link.outgoing) listener_.read_rest_soon();  // before another turn ends the link
    set_broken(link, "the connection ended");
  }
  if (result != SendResult::sent) return result;
  ++link.on(channel).sent;
  charge(link, frames);
  for (Traffic* traffic : {&self_.counters.traffic, &table_.find(link.node)->traffic}) {
    ++traffic->messages_sent;
    (channel == Channel::control ? traffic->control_bytes_sent : traffic->bulk_bytes_sent) += frames.bytes();
    traffic->payload_bytes_sent += frames.payload_bytes();
  }
  return result;
}

void Sender::ping(Link& link, Channel channel) {
  ChannelRecord& record = link.on(channel);
  record.pinged = self_.now();
  say(link, channel, Heartbeat{.sent_at = self_.now(), .messages = record.sent + 1});
}

void Sender::set_broken(Link& link, std::string why) {
  link.broken = std::move(why);
  if (std::exchange(broken_queued_, true)) return;
  self_.turns->soon([this] {
    broken_queued_ = false;
    end_broken_();
  });
}

// --- bulk: how fast --------------------------------------------------------------------------------------------------

void Sender::set_rates(double bytes_per_s, double link_bytes_per_s) {
  self_.options.bytes_per_s = bytes_per_s;
  self_.options.link_bytes_per_s = link_bytes_per_s;
  budget_.set_rate(bytes_per_s);
  for (const LinkPtr& link : table_.links())
    link->budget.set_rate(link_bytes_per_s);
}

double Sender::goodput_bytes_s() const {
  double largest = 0;
  for (const LinkPtr& link : table_.links())
    largest = std::max(largest, link->pacing.goodput(self_.now()));
  return largest;
}

gossip::LinkLoad Sender::load(const NodeId& node) const {
  const LinkPtr link = table_.link_to(node);
  if (!link) return {};
  gossip::LinkLoad load;
  const auto consider = [&load](std::size_t waiting_bytes, double rate) {
    if (rate <= 0) return;
    const double takes_us = static_cast<double>(waiting_bytes) / rate * us_per_s;
    load.backlog_us = std::max(load.backlog_us, static_cast<TimeUs>(takes_us));
    load.bytes_per_s = load.bytes_per_s == 0 ? rate : std::min(load.bytes_per_s, rate);
  };
  if (link->pacing.measured()) consider(link->waiting.bytes(), link->pacing.rate());
  consider(link->waiting.bytes(), self_.options.link_bytes_per_s);
  std::size_t all_waiting = 0;
  for (const LinkPtr& other : table_.links())
    all_waiting += other->waiting.bytes();
  consider(all_waiting, self_.options.bytes_per_s);
  return load;
}

// --- bulk: on its way out --------------------------------------------------------------------------------------------

SendResult Sender::send_bulk(Link& link, const Message& message) {
  const std::size_t queued = link.waiting.bytes() + link.meter->load(std::memory_order_relaxed);
  if (queued >= link.pacing.waiting_bytes(self_.options.max_queued_bytes)) return SendResult::full;
  self_.turns->read_clock();
  link.waiting.push(encode(message));
  pump(link);
  return link.broken.empty() ? SendResult::sent : SendResult::no_link;
}

/// Asks the kernel what waits behind a loss, if the way is long: TCP then waits for a round trip until what was lost
/// has come again. False if the way is not long.
bool Sender::look_for_loss(Link& link) {
  if (link.pacing.least_delay_us() < far_us) return false;
  if (!std::exchange(link.uses_bbr, true)) use_bbr(link.bulk_descriptor);
  link.pacing.held_behind_loss(tcp_bytes(link.bulk_descriptor).held_behind_loss, self_.now());
  return true;
}

/// True if the window has room for a part.
bool Sender::has_room(Link& link) {
  if (link.pacing.open()) return true;
  if (!look_for_loss(link)) return false;
  if (link.pacing.open()) return true;
  pump_later(self_.now() + link.pacing.least_delay_us() / looks_in_round_trip);
  return false;
}

/// Sends the next part if there is one and it may go.
bool Sender::pump_one(Link& link) {
  if (link.waiting.empty() || !link.is_up() || !link.broken.empty() || !has_room(link)) return false;
  if (const TimeUs opens = link.pacing.opens_at(); opens > self_.now()) {
    pump_later(opens);
    return false;
  }
  if (const TimeUs opens = std::max(budget_.opens_at(self_.now()), link.budget.opens_at(self_.now()));
      opens > self_.now()) {
    link.pacing.held_back();
    pump_later(opens);
    return false;
  }
  std::size_t part_bytes =
      link.pacing.enabled() ? link.pacing.part_bytes() : max_payload_frames * max_payload_frame_bytes;
  for (const gossip::ByteBudget* budget : {&budget_, &link.budget}) {
    if (budget->rate() <= 0 || !link.pacing.enabled()) continue;
    const double capped = budget->rate() * static_cast<double>(capped_part_us) / us_per_s;
    part_bytes = std::min(part_bytes, std::max(static_cast<std::size_t>(capped), least_part_bytes));
  }
  const Frames next = link.waiting.next(part_bytes);
  if (post(link, Channel::bulk, next) != SendResult::sent) return false;  // the tick tries again
  (void)link.waiting.pop(next);
  link.pacing.sent(next.bytes(), !link.waiting.empty(), self_.now());
  return true;
}

void Sender::pump(Link& link) {
  while (pump_one(link)) {
  }
}

/// Lets links take turns, so that a cap over all links is dealt out a part at a time.
void Sender::pump_all() {
  const std::size_t count = table_.links().size();
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < count; ++i)
      any = pump_one(*table_.links()[(pump_first_ + i) % count]) || any;
    ++pump_first_;
  }
}

void Sender::pump_later(TimeUs when) {
  if (pump_at_ != 0 && pump_at_ <= when) return;
  pump_at_ = when;
  self_.turns->after(timer_, std::chrono::microseconds(when - self_.now()), [this] {
    pump_at_ = 0;
    pump_all();
  });
}

void Sender::charge(Link& link, const Frames& frames) {
  const std::size_t bytes = frames.bytes() + (1 + frames.payload_count) * frame_overhead_bytes;
  budget_.spend(bytes, self_.now());
  link.budget.spend(bytes, self_.now());
}

// --- bulk: acknowledgements ------------------------------------------------------------------------------------------

void Sender::bulk_arrived(Link& link, std::size_t bytes) {
  link.bulk_received += bytes;
  link.bulk_received_at = self_.now();
  if (acks_queued_ || link.bulk_received - link.bulk_acked < ack_every_bytes) return;
  acks_queued_ = true;
  self_.turns->soon([this] {
    acks_queued_ = false;
    send_acks(ack_every_bytes);
  });
}

void Sender::send_acks(std::size_t least_bytes) {
  for (const LinkPtr& link : table_.links()) {
    if (!link->is_up() || link->bulk_received - link->bulk_acked < least_bytes) continue;
    if (post(*link, Channel::control, encode(ControlMessage(BulkAck{link->bulk_received, link->bulk_received_at}))) !=
        SendResult::sent)
      continue;
    link->bulk_acked = link->bulk_received;
  }
}

bool Sender::acknowledged(Link& link, const BulkAck& ack) {
  link.pacing.enable();
  look_for_loss(link);
  if (!link.pacing.acknowledged(ack.received_bytes, self_.now(), ack.received_at)) return false;
  if (link.pacing.take_ping_wish(self_.now())) ping(link, Channel::control);
  pump(link);
  return true;
}

void Sender::tick() {
  send_acks(1);
  for (const LinkPtr& link : table_.links())
    link->outgoing ? link->outgoing->flush() : listener_.flush(link->routing_ids[index_of(Channel::bulk)]);
  pump_all();
}

}  // namespace gossamer::peer
