#include "gossip/replica/joining.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "gossip/replica/job_clock.hpp"

namespace gossamer::gossip {

namespace {

/// A neighbour that has failed this many pulls in a row is no donor: it is better to begin without it than never.
constexpr int max_failed_pulls = 8;
/// A refusal because of NaN counts as this many failed pulls: NaN seldom goes away by itself, so two tries are enough.
constexpr int failed_pulls_for_nan = max_failed_pulls / 2;

}  // namespace

Joining::Joining(JoiningOptions options, const NodeId& self, const JobKey& job, std::uint64_t own_clock,
                 std::vector<std::uint32_t> fragment_blocks, bool keeps)
    : options_(options), self_(self), job_(job), keeps_(keeps), own_clock_(own_clock) {
  for (const std::uint32_t blocks : fragment_blocks)
    fragments_.push_back({.blocks = blocks});
}

bool Joining::gives(const Neighbour& neighbour, ReplicaState state) const {
  return neighbour.info && neighbour.info->job == job_ && neighbour.info->state == state && !neighbour.info->follows &&
         neighbour.failed_pulls < max_failed_pulls;
}

bool Joining::somebody_gives(ReplicaState state) const {
  return std::any_of(neighbours_.begin(), neighbours_.end(), [&](const auto& n) { return gives(n.second, state); });
}

void Joining::link_up(const NodeId& node, TimeUs now_us, Actions& out) {
  forget(node);
  neighbours_[node] = {.asked_us = now_us, .patience_us = options_.pull_timeout_us};
  out.ask.push_back({node, JobQuery{job_}});
}

void Joining::link_down(const NodeId& node, TimeUs now_us, Actions& out) {
  const auto found = neighbours_.find(node);
  if (found == neighbours_.end()) return;
  if (gives(found->second, ReplicaState::running) || gives(found->second, ReplicaState::draining))
    donor_lost_us_ = now_us;
  neighbours_.erase(found);
  forget(node);
  decide(now_us, out);
}

void Joining::info(const NodeId& from, const JobInfo& info, TimeUs now_us, Actions& out) {
  const auto neighbour = neighbours_.find(from);
  if (neighbour == neighbours_.end() || info.job.name_hash != job_.name_hash) return;
  neighbour->second.info = info;
  decide(now_us, out);
}

void Joining::set_round_trip(const NodeId& node, TimeUs round_trip_us) {
  if (const auto found = neighbours_.find(node); found != neighbours_.end())
    found->second.round_trip_us = round_trip_us;
}

std::uint32_t Joining::donors() const {
  return static_cast<std::uint32_t>(
      std::count_if(neighbours_.begin(), neighbours_.end(), [](const auto& n) { return n.second.pulls > 0; }));
}

void Joining::pulled(const NodeId& from, const PullReply& reply, TimeUs now_us, Actions& out) {
  if (finished_ || reply.fragment >= fragments_.size()) return;
  Fragment& fragment = fragments_[reply.fragment];
  const bool late = fragment.late.erase(from) > 0 && fragment.donor != from;
  if (fragment.done || (!late && fragment.donor != from)) return;
  if (reply.reason != RefuseReason::none || reply.job != job_ ||
      reply.values.size() != fragment.blocks * block_elements * sizeof(float)) {
    const bool has_nan = reply.reason == RefuseReason::quarantined;
    // Not available now; if it is leaving, its next JobInfo will say so.
    if (!late) pull_failed(fragment, now_us, has_nan ? failed_pulls_for_nan : 1);
  } else {
    if (fragment.donor) release(fragment);
    neighbours_[from].failed_pulls = 0;
    fragment.done = true;
    ++pulled_count_;
    clock_ = std::max(clock_, is_believable(reply.clock, furthest_beside(from)) ? reply.clock : furthest());
    if (reply.fragment == 0) cursor_ = reply.cursor;  // it is asked for first, of one of the most advanced donors
    out.take.push_back({reply.fragment, reply.clock, reply.values});
  }
  decide(now_us, out);
}

void Joining::tick(bool all_dialled, TimeUs now_us, Actions& out) {
  all_dialled_ = all_dialled_ || all_dialled;
  for (auto& [node, neighbour] : neighbours_) {
    if (now_us - neighbour.asked_us < options_.answer_timeout_us) continue;
    neighbour.asked_us = now_us;
    out.ask.push_back({node, JobQuery{job_}});
    if (!neighbour.info) neighbour.info = JobInfo{};  // passed over until it answers
  }
  for (Fragment& fragment : fragments_) {
    if (fragment.donor && now_us - fragment.asked_us >= neighbours_[*fragment.donor].patience_us)
      pull_overdue(fragment, now_us);
  }
  decide(now_us, out);
}

void Joining::release(Fragment& fragment) {
  if (const auto donor = neighbours_.find(*fragment.donor); donor != neighbours_.end()) --donor->second.pulls;
  fragment.donor.reset();
}

/// The node's link is new or gone, so no pull from it is under way.
void Joining::forget(const NodeId& node) {
  for (Fragment& fragment : fragments_) {
    fragment.late.erase(node);
    if (fragment.donor == node) fragment.donor.reset();
  }
}

void Joining::pull_overdue(Fragment& fragment, TimeUs now_us) {
  Neighbour& donor = neighbours_[*fragment.donor];
  // The time that this fragment took counts, not the donor's present patience: several may be overdue at once.
  donor.patience_us =
      std::max(donor.patience_us, std::min(2 * (now_us - fragment.asked_us), options_.pull_timeout_most_us));
  fragment.late.insert(*fragment.donor);
  pull_failed(fragment, now_us, 1);
}

void Joining::pull_failed(Fragment& fragment, TimeUs now_us, int counts_as) {
  Neighbour& donor = neighbours_[*fragment.donor];
  donor.failed_pulls += counts_as;
  donor.pull_after_us = now_us + options_.answer_timeout_us;
  release(fragment);
}

void Joining::decide(TimeUs now_us, Actions& out) {
  if (finished_) return;
  if (pulled_count_ == fragments_.size()) {
    finished_ = out.finished = true;
    return;
  }
  if (!all_dialled_) return;
  if (somebody_gives(ReplicaState::running) || somebody_gives(ReplicaState::draining))
    return ask_for_fragments(now_us, out);
  if (donor_lost_us_ && now_us - *donor_lost_us_ < options_.donor_return_us) return;
  bool wanted = !keeps_;
  for (const auto& [node, neighbour] : neighbours_) {
    if (!neighbour.info) return;  // it has not reported its state
    if (neighbour.info->job != job_) continue;
    const bool joins = neighbour.info->state == ReplicaState::joining;
    // A node that could not give its model may hold NaN in it. It then needs another model.
    const bool needs_model = joins || neighbour.failed_pulls >= max_failed_pulls;
    wanted = wanted || (needs_model && (!neighbour.info->keeps || neighbour.info->trainers > 0));
    if (!joins) continue;
    if (neighbour.info->keeps && neighbour.info->clock == 0) continue;  // that node waits for another to begin
    const bool before_us = neighbour.info->clock != own_clock_ ? neighbour.info->clock > own_clock_ : node < self_;
    if (before_us) return;  // that node begins; this one pulls from it
  }
  if (!wanted || (keeps_ && own_clock_ == 0)) {  // the model must come from a neighbour: all are tried again
    for (auto& [node, neighbour] : neighbours_)
      neighbour.failed_pulls = 0;
    return;
  }
  // Nobody is left to pull from. Values pulled from donors now gone are mixed with this node's own. They are good
  // enough to train on, and gossip evens them out.
  finished_ = out.finished = true;
}

ReplicaState Joining::state_of_givers() const {
  return somebody_gives(ReplicaState::running) ? ReplicaState::running : ReplicaState::draining;
}

/// The largest believed clock of the neighbours that give the model.
std::uint64_t Joining::furthest() const {
  const ReplicaState state = state_of_givers();
  std::uint64_t most = 0;
  for (const auto& [node, neighbour] : neighbours_) {
    if (gives(neighbour, state) && is_believable(neighbour.info->clock, furthest_beside(node)))
      most = std::max(most, neighbour.info->clock);
  }
  return most;
}

/// The largest clock of the other neighbours that give the model, without possible liars. Without any other neighbours,
/// the donor's clock is not doubted.
std::uint64_t Joining::furthest_beside(const NodeId& donor) const {
  const ReplicaState state = state_of_givers();
  std::vector<std::uint64_t> said;
  for (const auto& [node, neighbour] : neighbours_) {
    if (node != donor && gives(neighbour, state)) said.push_back(neighbour.info->clock);
  }
  return said.empty() ? max_clock_samples : largest_but_lies(said);
}

std::vector<NodeId> Joining::donors_in_order(TimeUs now_us) const {
  const ReplicaState state = state_of_givers();
  std::vector<NodeId> donors;
  for (const auto& [node, neighbour] : neighbours_) {
    if (gives(neighbour, state) && now_us >= neighbour.pull_after_us) donors.push_back(node);
  }
  const std::uint64_t most = furthest();
  const auto lag = [&](const Neighbour& neighbour) {
    const bool advanced =
        static_cast<double>(neighbour.info->clock) >= options_.as_advanced * static_cast<double>(most);
    return advanced ? 0 : most - neighbour.info->clock;
  };
  const auto distance = [](const Neighbour& neighbour) {
    return neighbour.round_trip_us > 0 ? neighbour.round_trip_us : std::numeric_limits<TimeUs>::max();
  };
  std::stable_sort(donors.begin(), donors.end(), [&](const NodeId& a, const NodeId& b) {
    const Neighbour& first = neighbours_.at(a);
    const Neighbour& second = neighbours_.at(b);
    return std::pair(lag(first), distance(first)) < std::pair(lag(second), distance(second));
  });
  return donors;
}

/// Asks the donors that have room for fragments, one donor after the other.
void Joining::ask_for_fragments(TimeUs now_us, Actions& out) {
  const std::vector<NodeId> donors = donors_in_order(now_us);
  std::size_t turn = 0;
  for (std::uint32_t f = 0; f < fragments_.size(); ++f) {
    Fragment& fragment = fragments_[f];
    if (fragment.done || fragment.donor) continue;
    std::size_t tried = 0;
    while (tried < donors.size() && neighbours_[donors[turn]].pulls >= options_.pulls_per_donor) {
      turn = (turn + 1) % donors.size();
      ++tried;
    }
    if (tried == donors.size()) return;
    const NodeId& donor = donors[turn];
    turn = (turn + 1) % donors.size();
    ++neighbours_[donor].pulls;
    fragment.donor = donor;
    fragment.asked_us = now_us;
    out.ask.push_back({donor, PullRequest{job_, f}});
  }
}

}  // namespace gossamer::gossip
