#include "gossip/replica/client_side.hpp"

#include <algorithm>

#include "gossip/check.hpp"

namespace gossamer::gossip {

void ClientSide::want_publication(std::uint32_t f, Actions& out) {
  data_.fragments[f].waiting.wish = Waiting::Wish::publication;
  offer_if_wanted(f, out);
}

void ClientSide::look_at_quarantined(Actions& out) {
  for (std::uint32_t f = 0; f < data_.fragments.count(); ++f) {
    if (data_.fragments[f].is_quarantined()) want_publication(f, out);
  }
}

void ClientSide::look_while_alone(Actions& out) {
  std::uint32_t left = 4;
  for (std::uint32_t n = 0; n < data_.fragments.count() && left > 0; ++n) {
    const std::uint32_t f = next_look_;
    next_look_ = (next_look_ + 1) % data_.fragments.count();
    Fragment& fragment = data_.fragments[f];
    if (fragment.publication_clock == data_.clock || fragment.waiting.wish != Waiting::Wish::nothing) continue;
    fragment.waiting.wish = Waiting::Wish::look;
    --left;
    offer_if_wanted(f, out);
  }
}

void ClientSide::offer_if_wanted(std::uint32_t f, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (fragment.is_pending({Pending::work, Pending::client})) return;
  if (!fragment.is_pending({Pending::wish, Pending::correction})) return;
  if (!has_memory(f, out)) return;
  fragment.buffers.hand_over();
  if (fragment.buffers.gathered()) {
    fragment.hold(stage::Offering{});  // until every client has been given its part
    out.run.push_back({f, Actions::Offer{}});
  } else {
    out.due.push_back(f);
  }
}

bool ClientSide::at_hand(std::uint32_t f, Actions& out) {
  if (!data_.fragments[f].buffers.out_of_hand()) return true;
  out.recall.push_back(f);
  return false;
}

// --- several clients ----------------------------------------------------------------------------------------------

bool ClientSide::gather_if_wanted(std::uint32_t f, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (fragment.waiting.gather != Waiting::Gather::now) return false;
  fragment.waiting.gather = Waiting::Gather::no;
  if (fragment.buffers.gathered()) return false;
  fragment.hold(stage::Gathering{});
  out.run.push_back({f, Actions::Gather{}});
  return true;
}

void ClientSide::gathered(std::uint32_t f, const Gathered& result) {
  Fragment& fragment = data_.fragments[f];
  if (result.finite) fragment.buffers.finish_gather();
  fragment.waiting.gather = result.finite ? Waiting::Gather::no : Waiting::Gather::with_publication;
}

// --- lean memory --------------------------------------------------------------------------------------------------

void ClientSide::keep_lean(std::size_t window) {
  GOSSAMER_CHECK(window_ == 0 && window > 0);
  window_ = window;
  for (std::uint32_t f = 0; f < data_.fragments.count(); ++f) {
    const FragmentBuffers& buffers = data_.fragments[f].buffers;
    if (!buffers.empty() || buffers.parts().with_client || buffers.has_correction()) provided_.insert(f);
  }
}

std::size_t ClientSide::most_in_flight() const {
  const std::size_t most = data_.options.in_flight;
  return is_lean() ? std::min(most, std::max<std::size_t>(window_ / 2, 1)) : most;
}

bool ClientSide::has_memory(std::uint32_t f, Actions& out) {
  if (!is_lean() || provided_.contains(f)) return true;
  if (window_open()) {
    provided_.insert(f);
    data_.fragments[f].hold(stage::Providing{});
    out.run.push_back({f, Actions::Provide{}});
  } else if (std::ranges::find(wait_for_room_, f) == wait_for_room_.end()) {
    wait_for_room_.push_back(f);
  }
  return false;
}

void ClientSide::provided(std::uint32_t f, const Provided& result) {
  if (result.there) return;
  provided_.erase(f);
  memory_ = Memory::exhausted;
}

void ClientSide::vacate_if_idle(std::uint32_t f, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (!provided_.contains(f) || fragment.is_pending(PendingSet::all())) return;
  fragment.buffers.drop();
  fragment.hold(stage::Vacating{});
  out.run.push_back({f, Actions::Vacate{}});
}

void ClientSide::let_in(Actions& out) {
  while (!wait_for_room_.empty() && window_open()) {
    const std::uint32_t f = wait_for_room_.front();
    wait_for_room_.pop_front();
    offer_if_wanted(f, out);
  }
}

bool ClientSide::begin_taking(std::uint32_t f) {
  Fragment& fragment = data_.fragments[f];
  if (fragment.is_held()) return false;  // its memory is being given back
  if (is_lean() && !provided_.contains(f)) {
    if (!window_open()) return false;
    provided_.insert(f);
  }
  fragment.hold(stage::TakingOver{});
  return true;
}

void ClientSide::end_taking(std::uint32_t f, const Provided& result) {
  data_.fragments[f].let_go();
  provided(f, result);
}

}  // namespace gossamer::gossip
