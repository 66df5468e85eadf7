#include "gossip/replica/beginning.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::gossip {

namespace {

/// The search for saved models is given up after this: reading a few headers takes longer only on a bad disk.
constexpr TimeUs search_patience_us = 5 * us_per_s;
/// After this a newcomer no longer waits for neighbours that were dialled and have neither linked nor failed.
constexpr TimeUs settle_timeout_us = 5 * us_per_s;

}  // namespace

Beginning::Beginning(BeginningHost& job, BeginningWork& work, Replica& replica, Executor& executor, const NodeId& self,
                     const JobKey& key, JoiningOptions options)
    : job_(job),
      work_(work),
      replica_(replica),
      executor_(executor),
      self_(self),
      key_(key),
      options_(options),
      began_us_(work.beginning_now_us()),
      copying_(replica.fragments().count()) {
  work.set_beginning(*this);
}

// --- where it stands ----------------------------------------------------------------------------------------------

bool Beginning::replaces_pending() const {
  const bool given = std::ranges::any_of(replica_.fragments(),
                                         [](const Fragment& fragment) { return fragment.buffers.parts().replace; });
  return given || std::ranges::find(copying_, true) != copying_.end();
}

std::uint64_t Beginning::candidate_clock() const {
  return candidates_.empty() ? 0 : candidates_.front()->clock();
}

std::uint32_t Beginning::fragments_pulled() const {
  if (joining() != nullptr) return joining()->fragments_pulled();
  return pulled_bytes_ > 0 ? replica_.fragments().count() : 0;
}

std::uint32_t Beginning::donors() const {
  return joining() == nullptr ? 0 : joining()->donors();
}

/// True if the client has the values already, or is to take them over.
bool Beginning::is_given(std::uint32_t f) const {
  const FragmentParts& parts = replica_.buffers(f).parts();
  return parts.with_client || parts.replace;
}

// --- searching ----------------------------------------------------------------------------------------------------

void Beginning::search() {
  if (!work_.search()) return job_.begin();
  stage_ = Searching{};
}

void Beginning::searched(std::vector<Saved> found) {
  if (!is_searching() || job_.is_gone()) return;
  candidates_ = std::move(found);
  stage_ = Over{};
  job_.begin();
}

// --- joining ------------------------------------------------------------------------------------------------------

void Beginning::join(std::uint64_t clock) {
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f)
    blocks.push_back(static_cast<std::uint32_t>(replica_.buffers(f).block_count()));
  stage_.emplace<Joining>(options_, self_, key_, clock, std::move(blocks), replica_.own_info().keeps);
}

template <class Feed>
void Beginning::decide(Feed feed) {
  if (joining() == nullptr || job_.is_gone()) return;
  Joining::Actions actions;
  feed(*joining(), actions);
  for (const auto& ask : actions.ask)
    work_.ask(ask.to, ask.message);
  for (const auto& take : actions.take) {
    give(take.fragment);
    pulled_bytes_ += take.values.size();
  }
  if (actions.take.empty() && !actions.finished) return;
  work_.set_fragments_pulled(joining()->fragments_pulled());
  if (actions.finished) joined(Joining(std::move(*joining())));
}

void Beginning::joined(const Joining& joining) {
  stage_ = Over{};
  if (joining.fragments_pulled() > 0) {
    take_over(joining.clock(), joining.cursor());
    work_.pulled(replica_.fragments().count() - joining.fragments_pulled(), joining.clock(),
                 candidates_.empty() ? nullptr : candidates_.front());
    candidates_.clear();
  } else if (!candidates_.empty()) {
    stage_ = Restoring{.saved = std::exchange(candidates_, {})};
    return read_next();
  } else {
    work_.begins_with_own();
  }
  job_.run_if_joined();
}

void Beginning::link_up(const NodeId& node) {
  decide([&](Joining& joining, Joining::Actions& out) { joining.link_up(node, work_.beginning_now_us(), out); });
}

void Beginning::link_down(const NodeId& node) {
  decide([&](Joining& joining, Joining::Actions& out) { joining.link_down(node, work_.beginning_now_us(), out); });
}

void Beginning::info(const NodeId& from, const JobInfo& info) {
  decide([&](Joining& joining, Joining::Actions& out) { joining.info(from, info, work_.beginning_now_us(), out); });
}

void Beginning::set_round_trip(const NodeId& node, TimeUs round_trip_us) {
  if (joining() != nullptr) joining()->set_round_trip(node, round_trip_us);
}

void Beginning::tick(bool all_dialled) {
  const TimeUs now_us = work_.beginning_now_us();
  if (is_searching() && now_us - began_us_ >= search_patience_us) {
    stage_ = Over{};
    work_.search_is_slow();
    job_.begin();
  }
  decide([&](Joining& joining, Joining::Actions& out) {
    joining.tick(all_dialled || now_us - began_us_ > settle_timeout_us, now_us, out);
  });
  for (auto& [from, reply] : std::exchange(pulls_held_back_, {}))
    pulled(from, std::move(reply));
  if (is_restoring() && std::get<Restoring>(stage_).waits_for_room) read_next();
}

void Beginning::pulled(const NodeId& from, PullReply&& reply) {
  const std::uint32_t f = reply.fragment;
  if (joining() == nullptr || f >= copying_.size() || copying_[f] || is_given(f)) return;
  FragmentBuffers& buffers = replica_.buffers(f);
  const std::size_t size_bytes = buffers.block_count() * block_elements * sizeof(float);
  if (reply.reason != RefuseReason::none || reply.values.size() != size_bytes) return finish_pull(from, reply);
  if (!replica_.begin_taking(f)) return hold_back(from, std::move(reply));
  copying_[f] = true;
  work_.copy(from, std::move(reply), buffers.begin_replace());
}

void Beginning::copied(const NodeId& from, PullReply&& reply, const PulledCopy& copy) {
  copying_[reply.fragment] = false;
  replica_.end_taking(reply.fragment, {.there = copy.memory_error == 0});
  if (job_.is_gone()) return;
  if (copy.memory_error != 0) {
    job_.lacks_memory(copy.memory_error);
    return hold_back(from, std::move(reply));
  }
  if (!copy.good) reply.reason = RefuseReason::not_finite;
  finish_pull(from, reply);
}

void Beginning::finish_pull(const NodeId& from, const PullReply& reply) {
  decide([&](Joining& joining, Joining::Actions& out) { joining.pulled(from, reply, work_.beginning_now_us(), out); });
}

/// Keeps a few pulled values for which there is no room yet in lean memory. Values that are dropped are asked for
/// again.
void Beginning::hold_back(const NodeId& from, PullReply&& reply) {
  const std::size_t most = replica_.lean_window() > 0 ? replica_.lean_window() : replica_.fragments().count();
  if (pulls_held_back_.size() < most) pulls_held_back_.emplace_back(from, std::move(reply));
}

void Beginning::give(std::uint32_t f) {
  executor_.decide([&](Actions& out) { replica_.hand_over_taken(f, out); });
}

/// The clock becomes that of the donors, whatever the client had trained before on its own.
void Beginning::take_over(std::uint64_t clock, std::span<const std::byte> cursor) {
  work_.take_over(clock - std::min(clock, work_.client_clock()), cursor);
}

// --- restoring ----------------------------------------------------------------------------------------------------

void Beginning::read_next() {
  auto& restoring = std::get<Restoring>(stage_);
  const std::uint32_t f = restoring.next;
  if (f == replica_.fragments().count()) return restored();
  const bool only_check = replica_.lean_window() > 0 && !restoring.checked;
  // The client may still hold a fragment that an earlier daemon gave it, perhaps of another model. Reading waits until
  // the client has taken that over.
  restoring.waits_for_room = !only_check && (is_given(f) || !replica_.begin_taking(f));
  if (restoring.waits_for_room) return;
  float* const target = only_check ? nullptr : replica_.buffers(f).begin_replace();
  if (work_.read(restoring.saved.front(), f, target)) return;
  if (!only_check) replica_.end_taking(f, {.there = false});
  restore_failed("the daemon is stopping");
}

void Beginning::read(const Saved& saved, std::uint32_t f, const float* target, const std::string& problem) {
  if (target != nullptr) replica_.end_taking(f, {.there = true});
  auto* restoring = std::get_if<Restoring>(&stage_);
  if (job_.is_gone() || restoring == nullptr || restoring->saved.front() != saved) return;
  if (!problem.empty()) return restore_failed(problem);
  if (target != nullptr && replica_.lean_window() > 0) give(f);
  work_.set_fragments_pulled(++restoring->next);
  read_next();
}

void Beginning::restore_failed(const std::string& why) {
  auto& restoring = std::get<Restoring>(stage_);
  work_.refused(restoring.saved.front(), why);
  if (restoring.checked) {
    stage_ = Over{};
    return work_.end_session();
  }
  restoring.saved.erase(restoring.saved.begin());
  restoring.next = 0;
  if (!restoring.saved.empty()) return read_next();
  stage_ = Over{};
  work_.begins_with_own();
  job_.run_if_joined();
}

void Beginning::restored() {
  auto& restoring = std::get<Restoring>(stage_);
  const Saved saved = restoring.saved.front();
  if (!restoring.checked) {
    if (auto checked = saved->check(); !checked) return restore_failed(checked.error());
  }
  if (replica_.lean_window() > 0 && !std::exchange(restoring.checked, true)) {
    if (auto again = saved->rewind(); !again) return restore_failed(again.error());
    restoring.next = 0;
    return read_next();
  }
  stage_ = Over{};
  for (std::uint32_t f = 0; f < replica_.fragments().count() && replica_.lean_window() == 0; ++f)
    give(f);
  take_over(saved->clock(), saved->cursor());
  work_.begins_with(saved);
  job_.run_if_joined();
}

}  // namespace gossamer::gossip
