#include "gossip/replica/replica.hpp"

#include <algorithm>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/smoothed.hpp"

// Where the replica stands, its client and its neighbours. The exchanges themselves are in replica_exchange.cpp.

namespace gossamer::gossip {

namespace {

constexpr std::size_t max_neighbours = 1024;
constexpr std::size_t max_waiting_pulls = 8;
constexpr std::uint64_t pull_cadences =
    2;  // of a replica's usual publication interval: what a joiner is given is younger
constexpr TimeUs pull_patience_us = 3 * us_per_s;    // with a client that does not publish
constexpr std::uint32_t copies_ahead = 8;            // fragments that are asked for before they are copied
constexpr std::uint64_t tracer_seed = 0x7261636572;  // apart from the replica's other random numbers
constexpr double patience_answers = 4;  // times the usual time of an answer, before a request is said again

}  // namespace

Replica::Replica(ReplicaOptions options, const NodeId& self, JobInfo description,
                 std::vector<FragmentBuffers> fragments, ExchangeCounter& counter, Random random)
    : options_(options),
      self_(self),
      description_(std::move(description)),
      counter_(counter),
      first_counter_(counter.next()),
      random_(random),
      cache_(options.lifetime_us),
      budget_(options.bytes_per_s),
      cadence_(options.period_us),
      tracer_(Random(random.next() ^ tracer_seed)) {
  fragments_.reserve(fragments.size());
  for (FragmentBuffers& buffers : fragments) {
    BlockSteps steps(buffers.block_count());
    block_count_ += buffers.block_count();
    fragments_.push_back(
        {.buffers = std::move(buffers), .steps = std::move(steps), .budget = MixingBudget(options.mixing_budget)});
  }
  given_up_.floor = counter_.take();  // a number that no exchange has
}

void Replica::remember(std::uint32_t f, const OwnHalves& halves) {
  Fragment& fragment = fragments_[f];
  fragment.own_halves = halves;
  for (const OwnHalf& half : halves) {
    // It was under way when the daemon died, or was turned down.
    if (half.counter != 0 && !half.taken(fragment.buffers.parts().commits)) give_up(half.counter);
  }
}

void Replica::set_options(const ReplicaOptions& options) {
  options_ = options;
  budget_.set_rate(options.bytes_per_s);
  cadence_.set_least(options.period_us, ticked_us_);
  for (auto& [node, neighbour] : neighbours_)
    neighbour.budget.set_rate(options.link_bytes_per_s);
}

void Replica::set_state(ReplicaState state, Actions& out) {
  state_ = state;
  drained_ = false;
  stir();
  tell_neighbours(out);
  for (std::uint32_t f = 0; f < fragments_.size(); ++f)
    hand_over_if_wanted(f, out);  // of a life before this one
}

void Replica::set_drained(bool drained, Actions& out) {
  if (drained == drained_ || leaving_) return;
  if (state_ != (drained ? ReplicaState::running : ReplicaState::draining)) return;
  set_state(drained ? ReplicaState::draining : ReplicaState::running, out);
  drained_ = drained;
}

void Replica::leave(TimeUs now_us, TimeUs deadline_us, Actions& out) {
  if (leaving_) return;
  const bool joined = state_ == ReplicaState::running || drained_;
  leaving_ = {.deadline_us = deadline_us,
              .publications_until_us = now_us + (deadline_us - now_us) / 2,
              .replicas = partners() + 1};
  for (Fragment& fragment : fragments_) {
    start_at(fragment, now_us);
    if (!joined) fragment.handover.give_up();
  }
  set_state(ReplicaState::draining, out);
  start_exchanges(now_us, out);
}

// --- finishing ----------------------------------------------------------------------------------------------------

void Replica::set_finishing(bool on, TimeUs now_us, Actions& out) {
  if (on == finish_.has_value()) return;
  stir();
  if (!on) {
    finish_.reset();
    tell_neighbours(out);
    return;
  }
  finish_ = Finish{};
  for (std::uint32_t f = 0; f < fragments_.size(); ++f) {
    Fragment& fragment = fragments_[f];
    fragment.agreement = {};
    start_at(fragment, now_us);
    // A program may have mended a model without training it.
    const bool old = (fragment.publication_clock != clock_ || fragment.quarantined) && !fragment.buffers.empty();
    fragment.wants_publication = fragment.wants_publication || old;
    hand_over_if_wanted(f, out);
  }
  tell_neighbours(out);
  update_finishing(now_us, out);
  start_exchanges(now_us, out);
}

bool Replica::settled(const Fragment& fragment) const {
  return fragment.agreement.settled(finishing_partners_);
}

std::size_t Replica::finishing_partners() const {
  return static_cast<std::size_t>(std::count_if(neighbours_.begin(), neighbours_.end(),
                                                [this](const auto& item) { return finishes(item.second); }));
}

bool Replica::finishes(const Neighbour& neighbour) const {
  return is_partner(neighbour) && neighbour.info.finishing != Finishing::no && !neighbour.info.quarantined;
}

bool Replica::spoiled() const {
  return std::any_of(fragments_.begin(), fragments_.end(), [](const Fragment& f) {
    const bool looked_at = !f.fresh && !f.held && !f.wants_publication && !f.buffers.parts().with_client;
    return f.quarantined && looked_at;
  });
}

void Replica::update_finishing(TimeUs now_us, Actions& out) {
  finishing_partners_ = finish_ ? finishing_partners() : 0;
  const bool alone = partners() == 0;
  if (state_ != ReplicaState::running || !alone) accompanied_us_ = now_us;
  if (!finish_ || finish_->stage == Finishing::over) return;
  const bool was_sound = std::exchange(finish_->sound, quarantined() == 0);
  // Partners may be about to come back: the daemon may just have been started again, or a link broken.
  const bool deserted = alone && finish_->over.empty() && now_us - accompanied_us_ < finish_alone_us;
  const bool agreed = !deserted && finish_->sound && state_ == ReplicaState::running &&
                      std::all_of(fragments_.begin(), fragments_.end(), [&](const Fragment& f) {
                        return settled(f) && (finishing_partners_ == 0 || f.publication_clock == clock_);
                      });
  // What was decided last is with the client, too.
  const bool delivered = agreed && std::none_of(fragments_.begin(), fragments_.end(), [](const Fragment& f) {
                           return f.held || f.own || f.buffers.parts().with_client || f.buffers.has_correction();
                         });
  const bool others = std::all_of(neighbours_.begin(), neighbours_.end(), [this](const auto& item) {
    return !is_partner(item.second) || item.second.info.quarantined ||
           item.second.info.finishing >= Finishing::settled || finish_->over.contains(item.first);
  });
  const Finishing stage = !agreed ? Finishing::begun : delivered && others ? Finishing::over : Finishing::settled;
  if (stage == finish_->stage && was_sound == finish_->sound) return;
  finish_->stage = stage;
  tell_neighbours(out);
}

FinishReport Replica::finish_report() const {
  FinishReport report;
  if (!finish_) return report;
  report.over = finish_->stage == Finishing::over;
  for (const Fragment& fragment : fragments_)
    report.distance = std::max(report.distance, fragment.agreement.distance());
  std::set<NodeId> members = finish_->over;
  for (const auto& [node, neighbour] : neighbours_) {
    if (finishes(neighbour)) members.insert(node);
  }
  if (!finish_->sound) {
    FinishReport without_it = spoiled_report(members.size() + 1);
    without_it.spoiled = spoiled();
    return without_it;
  }
  report.members = members.size() + 1;
  report.saver = members.empty() || self_ < *members.begin();
  return report;
}

bool Replica::handed_over() const {
  return leaving_ && std::all_of(fragments_.begin(), fragments_.end(), [this](const Fragment& fragment) {
           return fragment.handover.over(leaving_->replicas) && !fragment.own;
         });
}

std::uint32_t Replica::fragments_handed_over() const {
  return static_cast<std::uint32_t>(std::count_if(fragments_.begin(), fragments_.end(),
                                                  [](const Fragment& f) { return f.handover.exchanges() > 0; }));
}

bool Replica::idle() const {
  const bool busy =
      std::any_of(fragments_.begin(), fragments_.end(), [](const Fragment& f) { return f.held || f.asked; });
  return own_count_ == 0 && !busy && cache_.unacknowledged() == 0 && unsent_acks_.empty();
}

// --- the client ---------------------------------------------------------------------------------------------------

void Replica::published(std::uint32_t f, std::uint32_t generation, std::uint64_t clock, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  const Publication publication{generation, clock};
  if (fragment.held) {
    fragment.publication = publication;
  } else {
    take_publication(f, publication, now_us, out);
  }
}

void Replica::take_publication(std::uint32_t f, Publication publication, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (publication.clock > fragment.publication_clock && fragment.publication_clock > 0) {
    fragment.cadence = smoothed(fragment.cadence, static_cast<double>(publication.clock - fragment.publication_clock));
  }
  if (finish_ && publication.clock != fragment.publication_clock) fragment.agreement.forget();
  fragment.publication_clock = publication.clock;
  fragment.fresh = true;
  fragment.wants_publication = false;
  if (finish_ && fragment.quarantined) start_by(fragment, now_us);  // others wait to hear whether it still is
  if (std::exchange(fragment.gather_next, false)) fragment.gather = true;
  if (std::exchange(fragment.starting, false)) {
    --starting_count_;
    fragment.begins = true;
  }
  ++counters_.publications;
  ++work_.publications;
  fragment.buffers.take_back(publication.generation);
  if (fragment.buffers.gathered()) {  // what its clients have published is taken in first
    hold(fragment);
    out.fold.push_back(f);
    return;
  }
  go_on(f, now_us, out);
}

void Replica::folded(std::uint32_t f, TimeUs now_us, Actions& out) {
  release(f, now_us, out);
}

bool Replica::at_hand(std::uint32_t f, Actions& out) {
  if (!fragments_[f].buffers.out_of_hand()) return true;
  out.recall.push_back(f);
  return false;
}

void Replica::recalled(std::uint32_t f, bool done, TimeUs now_us, Actions& out) {
  if (!done) return;  // the client is serving it: what waits goes on when it has published
  fragments_[f].buffers.recall();
  if (!fragments_[f].held) go_on(f, now_us, out);
}

/// What is in a copy that is not kept outlives the daemon when a client has been handed it.
void Replica::store_commit(const Store& commit, Actions& out) {
  if (fragments_[commit.fragment].buffers.commits_are_kept()) out.store.push_back(commit);
}

void Replica::hold(Fragment& fragment) {
  GOSSAMER_CHECK(!fragment.held);
  fragment.held = true;
}

void Replica::release(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  fragment.held = false;
  fragment.disagreement = fragment.steps.mean();
  go_on(f, now_us, out);
}

/// What waits for the fragment goes on, in this order: the client's publication, a half to undo, our partner's reply,
/// its move to the node's own memory, another's request, joiners' pulls, corrections for the client, the next exchange.
void Replica::go_on(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (fragment.publication) {
    const Publication publication = *fragment.publication;
    fragment.publication.reset();
    return take_publication(f, publication, now_us, out);
  }
  if (undo_next(f, out)) return;
  if (fragment.reply && at_hand(f, out)) {
    ExchangeReply reply = std::move(*fragment.reply);
    fragment.reply.reset();
    return conclude(f, std::move(reply), now_us, out);
  }
  if (gather_if_wanted(f, out)) return;
  if (answer_asked(f, now_us, out)) return;
  if (serve_pull(f, now_us, out)) return;
  if (take_outer_step(f, now_us, out)) return;
  begin_if_wanted(f, now_us, out);
  hand_over_if_wanted(f, out);
  start_exchanges(now_us, out);
  vacate_if_idle(f, out);
}

bool Replica::take_outer_step(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (!options_.outer.on() || finish_ || state_ != ReplicaState::running || fragment.quarantined) return false;
  if (fragment.buffers.empty() || fragment.buffers.out_of_hand()) return false;
  if (fragment.outer_exchanges < options_.outer.least_exchanges) return false;
  if (now_us - fragment.outer_us < options_.outer.period_us) return false;
  fragment.outer_us = now_us;
  fragment.outer_exchanges = 0;
  hold(fragment);
  out.outer.push_back({f, OuterTask{options_.outer}});
  return true;
}

void Replica::outer_done(std::uint32_t f, const OuterTask::Result& result, TimeUs now_us, Actions& out) {
  if (result.commit) {
    fragments_[f].buffers.finish_commit();
    store_commit({.fragment = f}, out);
    stir();
    ++counters_.outer_steps;
  }
  release(f, now_us, out);
}

void Replica::hand_over_if_wanted(std::uint32_t f, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (fragment.held || fragment.buffers.parts().with_client) return;
  if (!fragment.buffers.has_correction() && !fragment.wants_publication) return;
  if (!has_memory(f, out)) return;
  fragment.buffers.hand_over();
  if (fragment.buffers.gathered()) hold(fragment);  // until every client has been given its own
  out.due.push_back(f);
}

// --- several clients ----------------------------------------------------------------------------------------------

void Replica::gather(Actions& out) {
  for (std::uint32_t f = 0; f < fragments_.size(); ++f) {
    fragments_[f].gather = !fragments_[f].buffers.gathered();
    if (!fragments_[f].held) gather_if_wanted(f, out);
  }
}

bool Replica::gather_if_wanted(std::uint32_t f, Actions& out) {
  if (!std::exchange(fragments_[f].gather, false) || fragments_[f].buffers.gathered()) return false;
  hold(fragments_[f]);
  out.gather.push_back(f);
  return true;
}

void Replica::gathered(std::uint32_t f, bool finite, TimeUs now_us, Actions& out) {
  if (finite) fragments_[f].buffers.finish_gather();
  fragments_[f].gather_next = !finite;
  release(f, now_us, out);
}

void Replica::offered(std::uint32_t f, TimeUs now_us, Actions& out) {
  release(f, now_us, out);
}

void Replica::want_publication(std::uint32_t f, Actions& out) {
  fragments_[f].wants_publication = true;
  hand_over_if_wanted(f, out);
}

// --- the overlay --------------------------------------------------------------------------------------------------

void Replica::link_up(const NodeId& node, Actions& out) {
  if (neighbours_.size() >= max_neighbours && !neighbours_.contains(node)) {
    const auto unlinked =
        std::find_if(neighbours_.begin(), neighbours_.end(), [](const auto& item) { return !item.second.linked; });
    if (unlinked == neighbours_.end()) return;
    forget_quarantine(unlinked->first);
    neighbours_.erase(unlinked);
  }
  Neighbour& neighbour = neighbours_[node];
  neighbour.linked = true;
  stir();
  neighbour.budget.set_rate(options_.link_bytes_per_s);
  out.send.push_back({node, own_info()});
  // What was under way when the link broke may not have arrived: say it again; each end knows what it has had.
  for (Fragment& fragment : fragments_) {
    if (!fragment.unanswered() || fragment.own->partner != node) continue;
    fragment.own->repeated = true;
    fragment.own->unsent = false;
    out.send.push_back({node, fragment.own->request});
  }
  cache_.mark_unsent(node);
}

void Replica::link_down(const NodeId& node) {
  if (const auto found = neighbours_.find(node); found != neighbours_.end()) found->second.linked = false;
}

void Replica::node_dead(const NodeId& node, TimeUs now_us, Actions& out) {
  neighbours_.erase(node);
  forget_quarantine(node);
  if (layout_stranger_ == node) layout_stranger_.reset();
  cache_.orphan(node, std::numeric_limits<std::uint64_t>::max());
  for (Fragment& fragment : fragments_) {
    std::erase(fragment.pulls, node);
    if (fragment.asked && fragment.asked->from == node) fragment.asked.reset();
    if (!fragment.own || fragment.own->partner != node) continue;
    if (fragment.unanswered()) {  // else its answer may be here, and only wait for the fragment
      give_up_own(fragment, 0, now_us);
    } else if (fragment.own->stage == Stage::encoding) {
      fragment.own->abandoned = true;
    }
  }
  start_exchanges(now_us, out);
}

void Replica::info(const NodeId& from, const JobInfo& info) {
  if (info.job.name_hash != description_.job.name_hash) return;
  const auto found = neighbours_.find(from);
  if (found == neighbours_.end()) return;
  if (info.state != ReplicaState::absent) {
    // Its successor may know what has become of them, and does so best before it has begun many of its own.
    cache_.orphan(from, info.first_exchange);
    if (info.first_exchange > found->second.info.first_exchange) ask_at_once_ = true;
  } else {
    for (const ExchangeId& lost : cache_.drop(from, info.first_exchange))
      count_unresolved(lost.initiator);
  }
  if (info.first_exchange < found->second.info.first_exchange) return;  // overtaken by what its successor says
  if (info.first_exchange > found->second.info.first_exchange || info.state == ReplicaState::absent)
    forget_quarantine(from);
  const JobInfo& before = found->second.info;
  if (info.clock != before.clock || info.state != before.state || info.finishing != before.finishing ||
      info.quarantined != before.quarantined || info.job != before.job)
    stir();
  found->second.info = info;
  if (finish_ && info.finishing == Finishing::over && finish_->over.size() < max_neighbours) finish_->over.insert(from);
  if (info.job == description_.job || info.state == ReplicaState::absent) {
    if (layout_stranger_ == from) layout_stranger_.reset();
  } else {
    layout_stranger_ = from;
  }
}

void Replica::forget_quarantine(const NodeId& partner) {
  for (Fragment& fragment : fragments_)
    fragment.quarantined_at.erase(partner);
}

void Replica::set_link(const NodeId& node, const LinkLoad& load) {
  if (const auto found = neighbours_.find(node); found != neighbours_.end()) found->second.load = load;
}

void Replica::pull(const NodeId& from, const PullRequest& request, TimeUs now_us, Actions& out) {
  PullReply answer{.job = description_.job, .fragment = request.fragment};
  if (state_ != ReplicaState::running && !drained_) {
    answer.reason = RefuseReason::draining;
  } else if (request.job != description_.job) {
    answer.reason = RefuseReason::layout_differs;
  } else if (request.fragment >= fragments_.size()) {
    answer.reason = RefuseReason::bad_request;
  } else if (Fragment& fragment = fragments_[request.fragment]; fragment.quarantined) {
    answer.reason = RefuseReason::quarantined;
  } else {
    if (fragment.pulls.size() >= max_waiting_pulls) return;  // the joiner asks elsewhere after its time-out
    if (fragment.pulls.empty()) fragment.pulls_since_us = now_us;
    fragment.pulls.push_back(from);
    serve_pull(request.fragment, now_us, out);
    return;
  }
  out.send.push_back({from, std::move(answer)});
}

bool Replica::serve_pull(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = fragments_[f];
  if (fragment.held) return false;
  const bool empty = fragment.buffers.empty();
  if (fragment.copy_clock && !empty && fragment.publication_clock >= *fragment.copy_clock) {
    fragment.copy_clock.reset();
    hold(fragment);
    out.snapshot.push_back({f, self_});
    return true;
  }
  if (fragment.pulls.empty()) return false;
  // A node that trained alone was never asked for a publication: what there is may be as old as the job. A client that
  // stands still is not waited for.
  const Age age = age_of(fragment);
  const bool stale = age.samples > pull_cadences * age.cadence;
  if (empty || (stale && now_us - fragment.pulls_since_us < pull_patience_us)) {
    want_publication(f, out);
    return fragment.held;
  }
  const NodeId to = fragment.pulls.front();
  fragment.pulls.pop_front();
  hold(fragment);
  out.snapshot.push_back({f, to});
  return true;
}

bool Replica::copy(std::uint32_t f, std::uint64_t least_clock, TimeUs now_us, Actions& out) {
  if ((state_ != ReplicaState::running && !drained_) || fragments_[f].quarantined) return false;
  fragments_[f].copy_clock = least_clock;
  // In lean memory a publication is dropped if it is not used at once.
  const std::uint32_t end = std::min(f + (lean() ? 1 : copies_ahead), fragment_count());
  for (std::uint32_t next = f; next < end; ++next) {
    if (fragments_[next].publication_clock < least_clock || fragments_[next].buffers.empty())
      want_publication(next, out);
  }
  serve_pull(f, now_us, out);
  return true;
}

void Replica::snapshot_taken(std::uint32_t f, TimeUs now_us, Actions& out) {
  release(f, now_us, out);
}

JobInfo Replica::own_info() const {
  JobInfo info = description_;
  info.state = state_;
  info.clock = clock_;
  info.finishing = finish_ ? finish_->stage : Finishing::no;
  info.first_exchange = first_counter_;
  info.quarantined = quarantined() > 0;
  return info;
}

void Replica::tell_neighbours(Actions& out) const {
  const JobInfo info = own_info();
  for (const auto& [node, neighbour] : neighbours_) {
    if (neighbour.linked) out.send.push_back({node, info});
  }
}

// --- time ---------------------------------------------------------------------------------------------------------

void Replica::tick(TimeUs now_us, Actions& out) {
  ticked_us_ = now_us;
  if (now_us - info_sent_us_ >= options_.info_period_us) {
    adjust_cadence();
    info_sent_us_ = now_us;
    tell_neighbours(out);
    end_the_old(now_us, out);
    repeat_unanswered(now_us, out);
    ask_at_once_ = true;
  }
  if (std::exchange(ask_at_once_, false)) inquire(out);
  send_again(out);
  look_at_clocks(now_us);
  update_finishing(now_us, out);
  look_after_window(now_us, out);
  start_exchanges(now_us, out);
}

/// Not before this replica has a model: until then its clock is that of what it began with.
void Replica::look_at_clocks(TimeUs now_us) {
  if (state_ == ReplicaState::joining) return;
  std::vector<JobClock::Claim> others;
  for (const auto& [node, neighbour] : neighbours_) {
    if (neighbour.linked && neighbour.info.job == description_.job && neighbour.info.state != ReplicaState::absent)
      others.push_back({node, neighbour.info.clock});
  }
  job_clock_.look(now_us, clock_, std::move(others));
}

void Replica::end_the_old(TimeUs now_us, Actions& out) {
  for (const ExchangeId& lost : cache_.expire(now_us))
    count_unresolved(lost.initiator);
  out_of_memory_ = false;
  for (std::uint32_t f = 0; f < fragments_.size(); ++f)
    serve_pull(f, now_us, out);  // those that waited long enough
  for (Fragment& fragment : fragments_) {
    turn_down_in_vain(fragment, now_us, out);
    if (!fragment.unanswered()) continue;
    if (now_us - fragment.own->begun_us < options_.lifetime_us) continue;
    give_up_own(fragment, 0, now_us);
  }
}

/// Says again what was sent over a link that stands, and not answered: it, or the answer, was lost. Nothing is begun
/// towards the end of an exchange's lifetime: an answer that came after it would be committed at one end only.
void Replica::repeat_unanswered(TimeUs now_us, Actions& out) {
  for (Fragment& fragment : fragments_) {
    if (!fragment.unanswered()) continue;
    Own& own = *fragment.own;
    if (own.unsent || !linked(own.partner) || now_us - own.begun_us > options_.lifetime_us / 2) continue;
    if (now_us - own.sent_us < patience_us(own.partner)) continue;
    own.repeated = true;
    own.sent_us = now_us;
    ++counters_.repeats_sent;
    spend_own(own, now_us);
    out.send.push_back({own.partner, own.request});
  }
  for (const auto& [node, neighbour] : neighbours_) {
    if (neighbour.linked) counters_.repeats_sent += cache_.mark_overdue(node, now_us, patience_us(node));
  }
}

/// Asks what has become of replies that should long have been acknowledged.
void Replica::inquire(Actions& out) {
  for (auto& [node, inquiry] : cache_.inquiries()) {
    const auto neighbour = neighbours_.find(node);
    if (neighbour == neighbours_.end() || !neighbour->second.linked) continue;
    if (neighbour->second.info.job != description_.job || neighbour->second.info.state == ReplicaState::absent)
      continue;
    out.send.push_back({node, inquiry});
  }
}

TimeUs Replica::patience_us(const NodeId& node) const {
  const auto neighbour = neighbours_.find(node);
  const double usual_us = neighbour == neighbours_.end() ? 0 : neighbour->second.answer_us;
  return std::clamp(static_cast<TimeUs>(usual_us * patience_answers), options_.info_period_us,
                    std::max(options_.lifetime_us / 4, options_.info_period_us));
}

void Replica::adjust_cadence() {
  cost_.add(std::exchange(work_, {}));
  const double allowed_bytes_per_s = options_.network_share * capacity_;
  const double least_bytes_per_s =
      static_cast<double>(fragments_.size()) * request_bytes_ / static_cast<double>(Cadence::most_us) * us_per_s;
  own_budget_.set_rate(allowed_bytes_per_s > 0 ? std::max(Cadence::own_share * allowed_bytes_per_s, least_bytes_per_s)
                                               : 0);
  cadence_.adjust(fragments_.size(), cost_.us(), request_bytes_,
                  {.time_share = options_.time_share, .bytes_per_s = allowed_bytes_per_s, .distance = consensus()},
                  ticked_us_);
}

/// What a full queue or a broken link kept from being sent, and what the other end must hear nevertheless.
void Replica::send_again(Actions& out) {
  for (auto& [to, reply] : cache_.take_unsent())
    out.send.push_back({to, std::move(reply)});
  for (const auto& [to, ack] : std::exchange(unsent_acks_, {})) {
    if (linked(to)) out.send.push_back({to, ack});  // else its reply comes again with the next link
  }
  for (Fragment& fragment : fragments_) {
    // If its answer has come meanwhile, by the first copy: a partner that has lost its memory would answer again.
    if (!fragment.unanswered() || !fragment.own->unsent || !linked(fragment.own->partner)) continue;
    fragment.own->unsent = false;
    out.send.push_back({fragment.own->partner, fragment.own->request});
  }
}

bool Replica::linked(const NodeId& node) const {
  const auto found = neighbours_.find(node);
  return found != neighbours_.end() && found->second.linked;
}

// --- for people ---------------------------------------------------------------------------------------------------

std::size_t Replica::partners() const {
  return static_cast<std::size_t>(std::count_if(neighbours_.begin(), neighbours_.end(),
                                                [this](const auto& item) { return is_partner(item.second); }));
}

std::vector<NodeId> Replica::members() const {
  std::vector<NodeId> members{self_};
  for (const auto& [node, neighbour] : neighbours_) {
    if (is_partner(neighbour)) members.push_back(node);
  }
  std::sort(members.begin(), members.end());
  return members;
}

std::size_t Replica::quarantined() const {
  return static_cast<std::size_t>(
      std::count_if(fragments_.begin(), fragments_.end(), [](const Fragment& f) { return f.quarantined; }));
}

std::uint64_t Replica::age_samples() const {
  std::uint64_t oldest = 0;
  for (const Fragment& fragment : fragments_)
    oldest = std::max(oldest, age_of(fragment).samples);
  return oldest;
}

TimeUs Replica::oldest_exchange_us() const {
  TimeUs oldest_us = std::numeric_limits<TimeUs>::max();
  for (const Fragment& fragment : fragments_) {
    if (!fragment.quarantined) oldest_us = std::min(oldest_us, fragment.exchanged_us);
  }
  return oldest_us == std::numeric_limits<TimeUs>::max() ? 0 : oldest_us;
}

std::size_t Replica::pending_bytes() const {
  std::size_t bytes = 0;
  for (const Fragment& fragment : fragments_)
    bytes += fragment.buffers.pending_bytes();
  return bytes;
}

double Replica::goodput(const NodeId& node) const {
  const auto neighbour = neighbours_.find(node);
  return neighbour == neighbours_.end() ? 0 : neighbour->second.goodput;
}

double Replica::consensus() const {
  double sum = 0;
  std::size_t measured = 0;
  for (const Fragment& fragment : fragments_) {
    if (!fragment.measured) continue;
    sum += fragment.relative_distance;
    ++measured;
  }
  return measured == 0 ? 0 : sum / static_cast<double>(measured);
}

std::vector<PartnerReport> Replica::partner_reports() const {
  std::map<NodeId, std::uint32_t> quarantined;
  for (const Fragment& fragment : fragments_) {
    for (const auto& [node, until_us] : fragment.quarantined_at)
      ++quarantined[node];
  }
  std::vector<PartnerReport> reports;
  for (const auto& [node, neighbour] : neighbours_)
    reports.push_back(
        {.node = node,
         .info = neighbour.info,
         .linked = neighbour.linked,
         .other_layout = neighbour.info.state != ReplicaState::absent && neighbour.info.job != description_.job,
         .exchanges = neighbour.exchanges,
         .busy = neighbour.busy,
         .exchanged_us = neighbour.exchanged_us,
         .answer_us = neighbour.answer_us,
         .bytes_per_s = neighbour.goodput,
         .relative_distance = neighbour.relative_distance,
         .blocks = neighbour.blocks,
         .wide_blocks = neighbour.wide_blocks,
         .unresolved = neighbour.unresolved,
         .age_intervals = neighbour.age_intervals,
         .quarantined_fragments = quarantined[node]});
  return reports;
}

double Replica::disagreement() const {
  double sum = 0;
  for (const Fragment& fragment : fragments_)
    sum += fragment.disagreement;
  return fragments_.empty() ? 0 : sum / static_cast<double>(fragments_.size());
}

}  // namespace gossamer::gossip
