// The turns of the loop in which the overlay works, and what its owner is told at the end of each.
//
// A turn is one handler of the loop: a message, a timer, a connection that has ended. Time is read once, when it
// begins. What the owner has to know is noted while the turn lasts and told when its work is done, in order. So no
// method of the overlay is half-way through when the owner is called, and the owner may call all of them. What happens
// in a call that the owner makes at another time is told in the next turn, which comes soon. After stop() there is no
// turn, and nothing is told.
//
// One thread, the loop's. Held by shared_ptr. Whoever gives it work to do later stops it before going away.

#pragma once

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <variant>

#include "peer/overlay/overlay_types.hpp"

namespace gossamer::peer {

struct LinkUp {
  NodeId node;
};
struct LinkDown {
  NodeId node;
  std::string reason;
};
struct NodeDead {
  NodeId node;
};
struct MessageReceived {
  NodeId from;
  Message message;
};
struct DenialsChanged {};
struct CertificatesChanged {};
struct JoinEnded {
  Joined joined;
  std::expected<void, std::string> result;
};
using OverlayEvent =
    std::variant<LinkUp, LinkDown, NodeDead, MessageReceived, DenialsChanged, CertificatesChanged, JoinEnded>;

class Turns : public std::enable_shared_from_this<Turns> {
 public:
  /// `owner` outlives it, or stop() comes first.
  Turns(asio::io_context& loop, OverlayClock clock, OverlayEvents& owner)
      : loop_(loop), clock_(std::move(clock)), owner_(owner) {}

  /// When this turn began.
  [[nodiscard]] TimeUs now() const { return now_; }
  /// Reads the clock anew, for calls by the owner, which may come at any time.
  TimeUs read_clock() { return now_ = clock_(); }
  [[nodiscard]] bool stopped() const { return stopped_; }

  /// Does `work` as a turn. For handlers of the loop, as the last thing that they do.
  template <class Work>
  void run(Work&& work) {
    if (stopped_) return;
    read_clock();
    telling_ahead_ = true;
    std::forward<Work>(work)();
    tell();
  }
  /// Does `work` in a turn of its own, as soon as the loop comes to it.
  template <class Work>
  void soon(Work work) {
    asio::post(loop_, [weak = weak_from_this(), work = std::move(work)] {
      if (const auto self = weak.lock()) self->run(work);
    });
  }
  /// Does `work` in a turn of its own when the time is over, unless `timer` is set anew or cancelled before.
  template <class Work>
  void after(asio::steady_timer& timer, std::chrono::microseconds time, Work work) {
    timer.expires_after(time);
    timer.async_wait([weak = weak_from_this(), work = std::move(work)](const asio::error_code& error) {
      const auto self = weak.lock();
      if (!error && self) self->run(work);
    });
  }
  /// Notes what the owner is to be told.
  void happened(OverlayEvent event);
  void stop();

 private:
  void tell();

  asio::io_context& loop_;
  OverlayClock clock_;
  OverlayEvents& owner_;
  TimeUs now_ = 0;
  std::deque<OverlayEvent> events_;  ///< the events of one turn: of one message, and of the links that it ends
  bool telling_ahead_ = false;       ///< a call of tell() is already due
  bool stopped_ = false;
};

}  // namespace gossamer::peer
