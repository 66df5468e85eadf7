#include "peer/overlay/turns.hpp"

#include "gossip/overloaded.hpp"

namespace gossamer::peer {

void Turns::happened(OverlayEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(telling_ahead_, true)) return;
  soon([] {});
}

void Turns::tell() {
  while (!events_.empty() && !stopped_) {
    OverlayEvent event = std::move(events_.front());
    events_.pop_front();
    std::visit(Overloaded{
                   [&](LinkUp& up) { owner_.link_up(up.node); },
                   [&](LinkDown& down) { owner_.link_down(down.node, down.reason); },
                   [&](NodeDead& dead) { owner_.node_dead(dead.node); },
                   [&](MessageReceived& received) { owner_.received(received.from, std::move(received.message)); },
                   [&](DenialsChanged&) { owner_.denials_changed(); },
                   [&](CertificatesChanged&) { owner_.certificates_changed(); },
                   [&](JoinEnded& ended) { ended.joined(std::move(ended.result)); },
               },
               event);
  }
  telling_ahead_ = false;
}

void Turns::stop() {
  stopped_ = true;
  events_.clear();
}

}  // namespace gossamer::peer
