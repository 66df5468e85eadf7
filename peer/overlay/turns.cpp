#include "peer/overlay/turns.hpp"

namespace gossamer::peer {
namespace {

struct Teller {
  OverlayEvents& owner;

  void operator()(LinkUp& event) const { owner.link_up(event.node); }
  void operator()(LinkDown& event) const { owner.link_down(event.node, event.reason); }
  void operator()(NodeDead& event) const { owner.node_dead(event.node); }
  void operator()(MessageReceived& event) const { owner.received(event.from, std::move(event.message)); }
  void operator()(DenialsChanged&) const { owner.denials_changed(); }
  void operator()(JoinEnded& event) const { event.joined(std::move(event.result)); }
};

}  // namespace

void Turns::happened(OverlayEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(telling_ahead_, true)) return;
  soon([] {});
}

void Turns::tell() {
  while (!events_.empty() && !stopped_) {
    OverlayEvent event = std::move(events_.front());
    events_.pop_front();
    std::visit(Teller{owner_}, event);
  }
  telling_ahead_ = false;
}

void Turns::stop() {
  stopped_ = true;
  events_.clear();
}

}  // namespace gossamer::peer
