// A replica in lean memory: which fragments have a publication, and memory for it, and what waits for that.
//
// At most `window_` fragments have memory at once. One is given it when something is to be done with it: an exchange of
// the node's own, another's request, a joiner's pull, values to take over. The client is asked to publish, what waited
// goes on, the client is given its correction, and the memory goes back. The node's own exchanges take half of the
// window at most, or two nodes that ask each other would have no room for answers; a request that finds none hears
// busy, a pull and an exchange of its own wait their turn.
//
// In resident memory none of this does anything.

#include <algorithm>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/replica/replica.hpp"

namespace gossamer::gossip {

namespace {

/// Of an exchange's lifetime: a request waits no longer for a publication. Its initiator sends it in the first half of
/// the lifetime, so that the answer comes before it is given up.
constexpr TimeUs asked_lifetime_divisor = 3;

}  // namespace

void Replica::keep_lean(std::size_t window) {
  GOSSAMER_CHECK(window_ == 0 && window > 0);
  window_ = window;
  for (std::uint32_t f = 0; f < fragments_.size(); ++f) {
    const FragmentBuffers& buffers = fragments_[f].buffers;
    if (!buffers.empty() || buffers.parts().with_client || buffers.has_correction()) provided_.insert(f);
  }
}

std::size_t Replica::most_in_flight() const {
  return lean() ? std::min(options_.in_flight, std::max<std::size_t>(window_ / 2, 1)) : options_.in_flight;
}

bool Replica::has_memory(std::uint32_t f, Actions& out) {
  if (!lean() || provided_.contains(f)) return true;
  Fragment& fragment = fragments_[f];
  if (window_open()) {
    provided_.insert(f);
    hold(fragment);
    out.provide.push_back(f);
  } else if (!std::exchange(fragment.wants_room, true)) {
    wait_for_room_.push_back(f);
  }
  return false;
}

void Replica::provided(std::uint32_t f, bool there, TimeUs now_us, Actions& out) {
  if (!there) {
    provided_.erase(f);
    out_of_memory_ = true;
    turn_down_asked(fragments_[f], now_us, out);
  }
  release(f, now_us, out);
}

void Replica::vacate_if_idle(std::uint32_t f, Actions& out) {
  if (!provided_.contains(f)) return;
  Fragment& fragment = fragments_[f];
  const bool wanted = fragment.held || fragment.own || fragment.starting || fragment.asked || fragment.publication ||
                      fragment.reply || !fragment.undo.empty() || fragment.taking || fragment.wants_publication ||
                      fragment.copy_clock || !fragment.pulls.empty();
  if (wanted || fragment.buffers.parts().with_client || fragment.buffers.has_correction()) return;
  hold(fragment);
  fragment.buffers.drop();
  out.vacate.push_back(f);
}

void Replica::vacated(std::uint32_t f, TimeUs now_us, Actions& out) {
  provided_.erase(f);
  release(f, now_us, out);
  let_in(out);
}

void Replica::let_in(Actions& out) {
  while (!wait_for_room_.empty() && window_open()) {
    const std::uint32_t f = wait_for_room_.front();
    wait_for_room_.pop_front();
    fragments_[f].wants_room = false;
    hand_over_if_wanted(f, out);
  }
}

bool Replica::begin_taking(std::uint32_t f) {
  if (fragments_[f].held) return false;  // its memory is being given back
  if (lean() && !provided_.contains(f)) {
    if (!window_open()) return false;
    provided_.insert(f);
  }
  fragments_[f].taking = true;
  return true;
}

void Replica::end_taking(std::uint32_t f, bool there) {
  fragments_[f].taking = false;
  if (there) return;
  provided_.erase(f);
  out_of_memory_ = true;
}

void Replica::look_after_window(TimeUs now_us, Actions& out) {
  if (!lean()) return;
  const std::vector<std::uint32_t> provided(provided_.begin(), provided_.end());
  for (const std::uint32_t f : provided) {
    turn_down_in_vain(fragments_[f], now_us, out);
    vacate_if_idle(f, out);
  }
  let_in(out);
}

bool Replica::let_wait(const NodeId& from, ExchangeRequest& request, TimeUs now_us, Actions& out) {
  const std::uint32_t f = request.fragment;
  Fragment& fragment = fragments_[f];
  if (!fragment.buffers.empty() || fragment.asked || state_ != ReplicaState::running) return false;
  if (!provided_.contains(f) && !window_open()) return false;
  const auto neighbour = neighbours_.find(from);
  if (neighbour == neighbours_.end() || !affordable(neighbour->second, fragment, now_us)) return false;
  fragment.asked = Asked{from, std::move(request), now_us};
  fragment.wants_publication = true;
  hand_over_if_wanted(f, out);
  return true;
}

/// What has memory is to be done with soon, and answers nobody else meanwhile: where requests come faster than that,
/// those that wait for room would wait for ever.
bool Replica::crowded() const {
  return !wait_for_room_.empty();
}

bool Replica::answer_asked(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (!fragment.asked || fragment.buffers.empty() || !at_hand(f, out)) return false;
  Asked asked = std::move(*fragment.asked);
  fragment.asked.reset();
  take_request(asked.from, std::move(asked.request), true, now_us, out);
  return fragment.held;
}

void Replica::turn_down_in_vain(Fragment& fragment, TimeUs now_us, Actions& out) {
  const TimeUs patience_us = options_.lifetime_us / asked_lifetime_divisor;
  if (!fragment.asked || (state_ == ReplicaState::running && now_us - fragment.asked->since_us < patience_us)) return;
  turn_down_asked(fragment, now_us, out);
}

void Replica::turn_down_asked(Fragment& fragment, TimeUs now_us, Actions& out) {
  if (!fragment.asked) return;
  turn_down(fragment.asked->from, fragment.asked->request, ReplyStatus::busy, RefuseReason::none, now_us, out);
  fragment.asked.reset();
}

void Replica::begin_if_wanted(std::uint32_t f, TimeUs now_us, Actions& out) {
  if (!std::exchange(fragments_[f].begins, false)) return;
  if (own_count_ + starting_count_ >= most_in_flight() || !may_spend(now_us)) return;
  if (leaving_) return start_last_exchange(f, now_us, out);
  if (state_ != ReplicaState::running || !may_start(fragments_[f], now_us)) return;
  if (const auto partner = choose_partner(fragments_[f], now_us)) begin(f, *partner, now_us, out);
}

}  // namespace gossamer::gossip
