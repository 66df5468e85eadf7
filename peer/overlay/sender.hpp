// Sends what leaves over the links. Control goes at once. Bulk waits in its link's queue until the link's window
// (peer/links/pacing.hpp) and the caps on links and node let the next part go. What has arrived is acknowledged once a
// turn of the loop.
//
// A link that turns out to be unusable is marked as broken and ended in another turn, so that sending ends no link.
// Called by the other parts of the overlay, on the loop's thread.

#pragma once

#include "gossip/replica/link_load.hpp"
#include "peer/overlay/link_table.hpp"
#include "peer/overlay/self.hpp"

namespace gossamer::peer {

class Sender {
 public:
  /// `end_broken` is called in a turn of its own when links have been marked as broken.
  Sender(OverlaySelf& self, LinkTable& table, Listener& listener, std::function<void()> end_broken)
      : self_(self), table_(table), listener_(listener), end_broken_(std::move(end_broken)), timer_(self.loop) {}

  /// Sends a message of the owner's: see Overlay::send().
  [[nodiscard]] SendResult send(const NodeId& to, const Message& message);
  [[nodiscard]] SendResult post(Link& link, Channel channel, const Frames& frames);
  /// Sends a message that may be lost, because it is said again later or need not be heard.
  void say(Link& link, Channel channel, const ControlMessage& message) { (void)post(link, channel, encode(message)); }
  /// Sends a heartbeat, by which the other end can see whether all messages have arrived.
  void ping(Link& link, Channel channel);
  void set_broken(Link& link, std::string why);

  void set_rates(double bytes_per_s, double link_bytes_per_s);
  [[nodiscard]] double goodput_bytes_s() const;
  [[nodiscard]] gossip::LinkLoad load(const NodeId& node) const;

  /// Counts bulk that has come in on the link, and acknowledges it soon.
  void bulk_arrived(Link& link, std::size_t bytes);
  /// The other end has said how much bulk it has got. False if that cannot be.
  [[nodiscard]] bool acknowledged(Link& link, const BulkAck& ack);
  /// Acknowledges what is left, and tries again what could not be sent.
  void tick();
  void close() { timer_.cancel(); }

 private:
  [[nodiscard]] SendResult send_bulk(Link& link, const Message& message);
  bool look_for_loss(Link& link);
  [[nodiscard]] bool has_room(Link& link);
  bool pump_one(Link& link);
  void pump(Link& link);
  void pump_all();
  void pump_later(TimeUs when);
  void charge(Link& link, const Frames& frames);
  void send_acks(std::size_t least_bytes);

  OverlaySelf& self_;
  LinkTable& table_;
  Listener& listener_;
  std::function<void()> end_broken_;
  asio::steady_timer timer_;  ///< fires when a cap or the pace lets bulk go on
  gossip::ByteBudget budget_{0, cap_burst_us};
  std::size_t pump_first_ = 0;  ///< the link with which pump_all() begins, since links take turns
  TimeUs pump_at_ = 0;          ///< when timer_ fires; 0: not set
  bool acks_queued_ = false;
  bool broken_queued_ = false;
};

}  // namespace gossamer::peer
