#include "gossip/replica/replica.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/overloaded.hpp"
#include "gossip/smoothed.hpp"

namespace gossamer::gossip {

namespace {

constexpr std::size_t max_waiting_pulls = 8;
/// A joiner is given a publication that is at most this many publication intervals of the replica old.
constexpr std::uint64_t pull_cadences = 2;
/// How long a joiner's pull waits for a client that does not publish: this time, or this many of its steps if longer.
constexpr TimeUs pull_patience_us = 3 * us_per_s;
constexpr int pull_patience_steps = 3;
constexpr std::uint32_t copies_ahead = 8;  // fragments that are asked for before they are copied
/// At a pull, the client is also asked for this many bytes of the next fragments. A joiner pulls all fragments, and the
/// client publishes only at its next step.
constexpr std::size_t pull_ahead_bytes = std::size_t{16} << 20;

/// True if the program's last values were checked and hold NaN or infinity.
bool is_spoiled(const ReplicaData& data) {
  return std::ranges::any_of(data.fragments, [](const Fragment& fragment) {
    return fragment.is_quarantined() && fragment.freshness == Fragment::Freshness::used &&
           !fragment.is_pending({Pending::work, Pending::wish, Pending::client});
  });
}

bool averages_with_anyone(const ReplicaData& data) {
  return std::ranges::any_of(data.neighbours, [&data](const auto& item) {
    return data.neighbours.averages_with(item.second, data.has_servers());
  });
}

/// Settings of such a version are believed only if they are signed; the caller has checked the signature. The authority
/// may choose any version.
bool leaps(const JobSettings& settings, const JobSettings& own) {
  return !settings.signature && settings.version > own.version + max_settings_leap;
}

/// The largest settings of the partners that give; null: there is none.
const JobSettings* settings_of_givers(const ReplicaData& data) {
  const JobSettings* largest = nullptr;
  for (const auto& [node, neighbour] : data.neighbours) {
    const JobSettings& theirs = neighbour.info.settings;
    if (!data.neighbours.is_partner(neighbour) || neighbour.info.follows) continue;
    if (leaps(theirs, data.description.settings) || (largest != nullptr && theirs <= *largest)) continue;
    largest = &theirs;
  }
  return largest;
}

/// The clock that a joining replica reports belongs to a model that it may still give up. So its clock is ignored, and
/// it does not look at the clocks of others.
void look_at_clocks(const ReplicaData& data, JobClock& clock, TimeUs now_us) {
  if (data.phase == Phase::joining) return;
  std::vector<JobClock::Claim> others;
  for (const auto& [node, neighbour] : data.neighbours) {
    const ReplicaState state = neighbour.info.state;
    if (neighbour.linked && neighbour.info.job == data.description.job && !neighbour.info.keeps &&
        state != ReplicaState::absent && state != ReplicaState::joining)
      others.push_back({node, neighbour.info.clock, neighbour.info.finishing != Finishing::no});
  }
  clock.set_pace(data.options.clock_pace);
  clock.look(now_us, {data.self, data.clock, data.finish.has_value()}, std::move(others), !data.description.keeps);
}

/// Raises the job's clock to what the replicas that have stopped training say, as far as that is believed. Neighbours
/// that have left count, too: a replica may leave as soon as the run is over for it.
void look_at_last_clocks(const ReplicaData& data, JobClock& clock, TimeUs now_us) {
  if (!data.finish || data.description.keeps) return;
  std::vector<JobClock::Claim> ended;
  for (const auto& [node, neighbour] : data.neighbours) {
    // The state does not matter here: a neighbour that has left said in its last report that it leaves.
    const JobInfo& info = neighbour.info;
    const bool ends = info.job == data.description.job && info.finishing != Finishing::no && !neighbour.over_before;
    if (ends && !info.quarantined && !info.keeps) ended.push_back({node, info.clock});
  }
  clock.end(now_us, data.clock, ended);
}

// --- the parts of a look at a finish: Replica::update_finishing()

void look_at_partners(const ReplicaData& data, Finish& finish) {
  finish.partners = data.neighbours.finishing_partners();
  finish.awaits_training = std::ranges::any_of(data.neighbours, [&data](const auto& item) {
    return data.neighbours.averages_with(item.second, data.has_servers()) &&
           item.second.info.finishing == Finishing::no;
  });
}

Finish::Health health_at_end(const ReplicaData& data) {
  const Finish& finish = *data.finish;
  if (data.fragments.quarantined() == 0 && !finish.spoiled_programs) return Finish::Health::sound;
  const bool known = finish.health == Finish::Health::spoiled || finish.spoiled_programs || is_spoiled(data);
  return known ? Finish::Health::spoiled : Finish::Health::quarantined;
}

/// An exchange that is under way may still move the fragment, and then nobody agrees with it any more.
bool is_settled_at_end(const ReplicaData& data, const Fragment& fragment) {
  static constexpr PendingSet moving{Pending::own, Pending::start, Pending::request, Pending::undo};
  return data.settled(fragment) && !fragment.is_pending(moving) &&
         (data.finish->partners == 0 || data.is_current(fragment));
}

void look_at_agreement(const ReplicaData& data, Finish& finish, bool all_settled) {
  if (finish.partners > 0) {
    finish.agrees = all_settled && data.runs();
    return;
  }
  // The last partner may have gone while an exchange with it was under way here. That exchange ended in agreement.
  if (!finish.over.empty() && std::ranges::all_of(data.fragments, [&](const Fragment& fragment) {
        return fragment.agreement.settled(finish.over.size()) && data.is_current(fragment);
      }))
    finish.agrees = true;
}

/// Partners that are gone may come back soon: the daemon may just have been restarted, or a link may have broken. Those
/// for which the run is over, after this replica agreed with them, are not waited for.
bool may_go_alone(const Finish& finish) {
  return !finish.over.empty() && finish.agrees;
}

bool may_train_again(const ReplicaData& data, TimeUs now_us) {
  return data.neighbours.any_over_before() && now_us - data.finish->began_us < finish_alone_us;
}

/// The last corrections must have reached the client as well.
bool is_delivered(const ReplicaData& data) {
  return std::ranges::none_of(data.fragments, [](const Fragment& fragment) {
    return fragment.is_pending({Pending::work, Pending::own, Pending::client, Pending::correction});
  });
}

bool others_have_settled(const ReplicaData& data) {
  return std::ranges::all_of(data.neighbours, [&data](const auto& item) {
    const JobInfo& info = item.second.info;
    return !data.neighbours.averages_with(item.second, data.has_servers()) || info.quarantined ||
           info.finishing >= Finishing::settled || data.finish->over.contains(item.first);
  });
}

}  // namespace

Replica::Replica(const ReplicaOptions& options, const NodeId& self, JobInfo description,
                 std::vector<FragmentBuffers> fragments, ExchangeCounter& counter, Random random)
    : data_(options, self, std::move(description), std::move(fragments), counter, random) {
  data_.pace.set_in_flight(client_.most_in_flight());
}

void Replica::set_options(const ReplicaOptions& options) {
  data_.options = options;
  for (Fragment& fragment : data_.fragments)
    fragment.budget.set(options.mixing_budget);
  data_.pace.set_options(options, ticked_us_);
  data_.pace.set_in_flight(client_.most_in_flight());
  data_.neighbours.set_rates(options.link_bytes_per_s);
}

void Replica::keep_lean(std::size_t window) {
  client_.keep_lean(window);
  data_.pace.set_in_flight(client_.most_in_flight());
}

// --- phases -------------------------------------------------------------------------------------------------------

bool Replica::enter(Phase phase, Actions& out) {
  if (!may_follow(data_.phase, phase)) return false;
  data_.phase = phase;
  ++data_.stir;
  tell_neighbours(out);
  for (std::uint32_t f = 0; f < data_.fragments.count(); ++f)
    client_.offer_if_wanted(f, out);  // an earlier daemon may not have offered everything
  return true;
}

void Replica::leave(TimeUs now_us, TimeUs deadline_us, Actions& out) {
  if (data_.leaving) return;
  const bool joined = has_model(data_.phase);
  data_.leaving = {.deadline_us = deadline_us,
                   .publications_until_us = now_us + (deadline_us - now_us) / 2,
                   .replicas = data_.neighbours.partners() + 1};
  for (Fragment& fragment : data_.fragments) {
    fragment.turn.start_at(now_us);
    fragment.freshness = Fragment::Freshness::used;  // the client may have trained while the node was drained
    // Nothing is handed over if this replica has no training, or if the others hold the same model.
    if (!joined || !data_.options.exchanges) fragment.handover.give_up();
  }
  enter(Phase::leaving, out);
  initiator_.start_exchanges(now_us, out);
}

bool Replica::handed_over() const {
  return data_.leaving && std::ranges::all_of(data_.fragments, [this](const Fragment& fragment) {
           return fragment.handover.over(data_.leaving->replicas) && !fragment.own;
         });
}

bool Replica::idle() const {
  const bool busy = std::ranges::any_of(data_.fragments, [](const Fragment& fragment) {
    return fragment.is_pending({Pending::work, Pending::own, Pending::request});
  });
  return !busy && data_.book.idle();
}

JobInfo Replica::own_info() const {
  JobInfo info = data_.description;
  info.state = state();
  info.clock = data_.clock;
  info.finishing = data_.finish ? data_.finish->stage : Finishing::no;
  info.first_exchange = data_.book.first_counter();
  if (info.keeps) {
    info.trainers = static_cast<std::uint32_t>(
        data_.neighbours.trainers(info.state == ReplicaState::joining ? ReplicaState::joining : ReplicaState::running));
    info.first_trainer = data_.neighbours.first_trainer();
  }
  info.quarantined = data_.fragments.quarantined() > 0 || (data_.finish && data_.finish->spoiled_programs);
  return info;
}

JobInfo Replica::farewell(ReplyCache::Seen& seen) const {
  data_.book.replies().add_seen(seen);
  JobInfo info = own_info();
  info.state = ReplicaState::absent;
  info.first_exchange = data_.book.next_counter();
  return info;
}

void Replica::tell_neighbours(Actions& out) const {
  const JobInfo info = own_info();
  for (const auto& [node, neighbour] : data_.neighbours) {
    if (neighbour.linked) out.send.push_back({node, info});
  }
}

// --- finishing ----------------------------------------------------------------------------------------------------

void Replica::set_finishing(Programs programs, TimeUs now_us, Actions& out) {
  if ((programs != Programs::train) == data_.finish.has_value()) return;
  ++data_.stir;
  data_.finish.reset();
  if (programs == Programs::train) return tell_neighbours(out);
  data_.finish = Finish{.spoiled_programs = programs == Programs::finish_spoiled, .began_us = now_us};
  if (programs == Programs::have_finished) {
    data_.finish->stage = Finishing::over;
    return tell_neighbours(out);
  }
  data_.neighbours.begin_finish();
  for (std::uint32_t f = 0; f < data_.fragments.count(); ++f) {
    Fragment& fragment = data_.fragments[f];
    fragment.agreement = {};
    fragment.turn.start_at(now_us);
    // A program may have mended a model without training it.
    const bool old = fragment.publication_clock != data_.clock || fragment.is_quarantined();
    // The last values are looked at here: partners that hold NaN themselves find none in them.
    if (old && !fragment.buffers.empty()) fragment.waiting.wish = Waiting::Wish::look;
    client_.offer_if_wanted(f, out);
  }
  tell_neighbours(out);
  update_finishing(now_us, out);
  initiator_.start_exchanges(now_us, out);
}

void Replica::set_keeps(bool keeps, TimeUs now_us, Actions& out) {
  if (std::exchange(data_.description.keeps, keeps) == keeps) return;
  if (!keeps) set_finishing(Programs::train, now_us, out);
  tell_neighbours(out);
}

/// No program here says when a node that keeps the job finishes. As a server it finishes with the nodes that train,
/// which may be connected through it only.
void Replica::finish_with_others(TimeUs now_us, Actions& out) {
  if (!data_.description.keeps || !data_.runs()) return;
  set_finishing(data_.has_servers() && data_.neighbours.trainers_finish() ? Programs::finish : Programs::train, now_us,
                out);
}

void Replica::update_finishing(TimeUs now_us, Actions& out) {
  const bool alone = !averages_with_anyone(data_);
  if (!data_.runs() || !alone || !all_dialled_ || accompanied_us_ == 0) accompanied_us_ = now_us;
  if (!data_.finish) return;
  look_at_last_clocks(data_, job_clock_, now_us);
  Finish& finish = *data_.finish;
  look_at_partners(data_, finish);
  if (finish.stage == Finishing::over) return;
  const auto health = health_at_end(data_);
  const bool changed = std::exchange(finish.health, health) != health;
  const bool all_settled = std::ranges::all_of(
      data_.fragments, [this](const Fragment& fragment) { return is_settled_at_end(data_, fragment); });
  look_at_agreement(data_, finish, all_settled);
  // A partner that has just gone may be back soon, and a new daemon may not be linked with all its partners yet.
  const bool may_return = now_us - expects_since_us_.value_or(now_us) < finish_alone_us;
  const bool waits = may_return || may_train_again(data_, now_us) ||
                     (alone && !may_go_alone(finish) && now_us - accompanied_us_ < finish_alone_us);
  const bool settled = !waits && finish.is_sound() && data_.runs() && all_settled;
  const Finishing stage = !settled                                            ? Finishing::begun
                          : is_delivered(data_) && others_have_settled(data_) ? Finishing::over
                                                                              : Finishing::settled;
  if (stage == finish.stage && !changed) return;
  // This replica does not agree with those for which the run is over, so it ends without them and saves its own model.
  if (stage == Finishing::over && finish.partners == 0 && !finish.agrees) finish.over.clear();
  finish.stage = stage;
  if (stage == Finishing::over) finish.distance = data_.fragments.end_distance(true);
  tell_neighbours(out);
}

FinishReport Replica::finish_report() const {
  FinishReport report;
  report.clock = std::max(data_.clock, job_clock_.value());
  if (!data_.finish) return report;
  const Finish& finish = *data_.finish;
  report.begun = true;
  report.over = finish.stage == Finishing::over;
  report.distance = report.over ? finish.distance : data_.fragments.end_distance(false);
  std::set<NodeId> members = finish.over;
  for (const auto& [node, neighbour] : data_.neighbours) {
    if (data_.neighbours.finishes(neighbour)) members.insert(node);
  }
  if (members.empty()) report.distance = 0;
  std::size_t told = 0;
  for (const auto& [node, neighbour] : data_.neighbours) {
    if (!neighbour.info.keeps) continue;
    members.erase(node);  // a node that keeps the job has no program that could save
    if (!data_.has_servers() || !data_.neighbours.is_partner(neighbour)) continue;
    told = std::max<std::size_t>(told, neighbour.info.trainers);  // that number includes this node
    if (neighbour.info.trainers > 0 && neighbour.info.first_trainer != data_.self)
      members.insert(neighbour.info.first_trainer);
  }
  if (!finish.is_sound()) {
    FinishReport without_it = spoiled_report(members.size() + 1, report.clock);
    without_it.begun = true;
    without_it.spoiled = finish.health == Finish::Health::spoiled;
    return without_it;
  }
  report.members = std::max(members.size() + 1, told);
  report.saver = members.empty() || data_.self < *members.begin();
  return report;
}

// --- the client ---------------------------------------------------------------------------------------------------

void Replica::set_clock(std::uint64_t clock) {
  if (clock != data_.clock) ++data_.stir;
  data_.clock = clock;
}

void Replica::add_time_taken(TimeUs taken_us) {
  data_.pace.add_work({.taken_us = static_cast<double>(taken_us)});
}

void Replica::published(std::uint32_t f, std::uint32_t generation, std::uint64_t clock, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  fragment.waiting.publication = {generation, clock};
  if (!fragment.is_held()) go_on(f, now_us, out);
}

bool Replica::take_publication(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  if (!fragment.waiting.publication) return false;
  const Waiting::Publication publication = *std::exchange(fragment.waiting.publication, std::nullopt);
  if (publication.clock > fragment.publication_clock && fragment.publication_clock > 0) {
    fragment.cadence = smoothed(fragment.cadence, static_cast<double>(publication.clock - fragment.publication_clock));
  }
  const bool trained = publication.clock != fragment.publication_clock && !data_.description.keeps;
  if (data_.finish && trained) fragment.agreement.forget();
  fragment.publication_clock = publication.clock;
  fragment.freshness = Fragment::Freshness::fresh;
  const bool looks = std::exchange(fragment.waiting.wish, Waiting::Wish::nothing) == Waiting::Wish::look;
  // Other replicas wait to hear whether the fragment is still quarantined.
  if (data_.finish && fragment.is_quarantined()) data_.pace.start_by(fragment.turn, now_us);
  if (fragment.waiting.gather == Waiting::Gather::with_publication) fragment.waiting.gather = Waiting::Gather::now;
  initiator_.note_publication(fragment);
  ++data_.counters.publications;
  data_.pace.add_work({.publications = 1});
  fragment.buffers.take_back(publication.generation);
  if (fragment.buffers.gathered()) {  // the publications of several clients must be taken in first
    fragment.hold(stage::TakingIn{});
    out.run.push_back({f, Actions::TakeIn{}});
  } else if (fragment.is_quarantined() || looks) {
    fragment.hold(stage::Looking{});
    out.run.push_back({f, LookTask{}});
  }
  return fragment.is_held();
}

void Replica::recalled(std::uint32_t f, bool done, TimeUs now_us, Actions& out) {
  if (!done) return;  // the client is serving it: waiting work goes on when it has published
  data_.fragments[f].buffers.recall();
  if (!data_.fragments[f].is_held()) go_on(f, now_us, out);
}

void Replica::gather(Actions& out) {
  for (std::uint32_t f = 0; f < data_.fragments.count(); ++f) {
    Fragment& fragment = data_.fragments[f];
    fragment.waiting.gather = fragment.buffers.gathered() ? Waiting::Gather::no : Waiting::Gather::now;
    if (!fragment.is_held()) client_.gather_if_wanted(f, out);
  }
}

void Replica::hand_over_taken(std::uint32_t f, Actions& out) {
  FragmentBuffers& buffers = data_.fragments[f].buffers;
  buffers.finish_replace();
  buffers.hand_over();
  out.due.push_back(f);
}

// --- finished work ------------------------------------------------------------------------------------------------

void Replica::finished(std::uint32_t f, Finished&& result, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  const Stage over = fragment.stage;
  fragment.let_go();
  const bool vacated = std::holds_alternative<stage::Vacating>(over);
  std::visit(
      Overloaded{
          [&](EncodeTask::Result& encoded) { initiator_.encoded(f, std::move(encoded), now_us, out); },
          [&](AnswerTask::Result& answered) {
            responder_.answered(f, std::get<stage::Answering>(over), std::move(answered), now_us, out);
          },
          [&](ConcludeTask::Result& concluded) { initiator_.concluded(f, std::move(concluded), now_us, out); },
          [&](const UndoTask::Result& undone) { responder_.undone(f, std::get<stage::Undoing>(over), undone, out); },
          [&](const OuterTask::Result& outer) { outer_done(f, outer, out); },
          [&](const LookTask::Result& looked) {
            if (looked.finite) {
              fragment.health = Fragment::Health::sound;
            } else {
              data_.quarantine(fragment);
              fragment.freshness = Fragment::Freshness::used;  // these values were checked: is_spoiled()
              // Noted at once: in lean memory the fragment is wanted again before the next look at the finish.
              if (data_.finish && is_spoiled(data_)) data_.finish->health = Finish::Health::spoiled;
            }
          },
          [&](const Provided& provided) {
            client_.provided(f, provided);
            if (!provided.there) responder_.turn_down_waiting(fragment, now_us, out);
          },
          [&](const Gathered& gathered) { client_.gathered(f, gathered); },
          [&](const Done&) {
            if (vacated) client_.vacated(f);
          },
      },
      result);
  if (!fragment.is_held()) go_on(f, now_us, out);  // otherwise a follow-up has begun
  if (vacated) client_.let_in(out);
}

/// Waiting work goes on in this order, until something holds the fragment again: the client's publication, the undo of
/// a half, the reply to this node's request, the move into the node's own memory, another node's request, a checkpoint
/// or a joiner's pull, an outer step.
void Replica::go_on(std::uint32_t f, TimeUs now_us, Actions& out) {
  const bool held = take_publication(f, now_us, out) || responder_.undo_next(f, out) ||
                    initiator_.conclude_next(f, out) || client_.gather_if_wanted(f, out) ||
                    responder_.answer_waiting(f, now_us, out) || give_model(f, now_us, out) ||
                    take_outer_step(f, now_us, out);
  if (held) return;
  initiator_.begin_waiting(f, now_us, out);
  client_.offer_if_wanted(f, out);
  initiator_.start_exchanges(now_us, out);
  client_.vacate_if_idle(f, out);
}

HeldFragment Replica::held(std::uint32_t f) {
  Fragment& fragment = data_.fragments[f];
  return {.buffers = fragment.buffers, .steps = fragment.steps, .outer = &fragment.outer, .push = &fragment.push};
}

bool Replica::take_outer_step(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  const OuterOptions& outer = data_.options.outer;
  if (!outer.on() || data_.finish || !data_.runs() || fragment.is_quarantined()) return false;
  if (fragment.buffers.empty() || fragment.buffers.out_of_hand()) return false;
  const LastOuterStep& last = fragment.last_outer;
  if (last.exchanges < outer.least_exchanges || now_us - last.at_us < outer.period_us) return false;
  // A fragment's server adds the momentum of what all workers push together. Whoever only follows adds none.
  if (data_.description.keeps ? !data_.is_server_of(f) : data_.server_of(fragment).has_value()) return false;
  fragment.last_outer = {.at_us = now_us};
  fragment.hold(stage::TakingOuterStep{});
  out.run.push_back({f, OuterTask{outer}});
  return true;
}

void Replica::outer_done(std::uint32_t f, const OuterTask::Result& result, Actions& out) {
  if (!result.commit) return;
  data_.fragments[f].buffers.finish_commit();
  out.store.push_back({.fragment = f});
  ++data_.stir;
  ++data_.counters.outer_steps;
}

// --- the overlay --------------------------------------------------------------------------------------------------

void Replica::link_up(const NodeId& node, Actions& out, Sponsor sponsor) {
  std::optional<NodeId> displaced;
  const Neighbour* const neighbour = data_.neighbours.link_up(node, sponsor, data_.options.link_bytes_per_s, displaced);
  if (displaced) data_.fragments.forget_quarantine(*displaced);
  if (neighbour == nullptr) return;
  ++data_.stir;
  accompanied_us_ = 0;
  out.send.push_back({node, own_info()});
  initiator_.link_up(node, out);
  data_.book.replies().mark_unsent(node);
}

void Replica::node_dead(const NodeId& node, TimeUs now_us, Actions& out) {
  data_.neighbours.erase(node);
  data_.fragments.forget_quarantine(node);
  data_.book.replies().orphan(node, std::numeric_limits<std::uint64_t>::max());
  for (Fragment& fragment : data_.fragments) {
    std::erase(fragment.waiting.pulls, node);
    fragment.distances.forget(node);
    if (fragment.waiting.request && fragment.waiting.request->from == node) fragment.waiting.request.reset();
  }
  initiator_.node_dead(node, now_us);
  initiator_.start_exchanges(now_us, out);
}

void Replica::received(const NodeId& from, Message&& message, TimeUs now_us, Actions& out) {
  std::visit(Overloaded{
                 [&](ExchangeRequest& request) { responder_.request(from, std::move(request), now_us, out); },
                 [&](ExchangeReply& reply) {
                   const std::uint32_t f = reply.fragment;
                   if (initiator_.reply(from, std::move(reply), now_us, out) && !data_.fragments[f].is_held())
                     go_on(f, now_us, out);
                 },
                 [&](const ExchangeAck& ack) {
                   const auto f = responder_.acknowledged(from, ack);
                   if (f && !data_.fragments[*f].is_held()) go_on(*f, now_us, out);
                 },
                 [&](const ExchangeInquiry& inquiry) { initiator_.inquired(from, inquiry, out); },
                 [&](const JobInfo& info) { hear(from, info, out); },
                 [&](const PullRequest& request) { pull(from, request, now_us, out); },
                 [](const auto&) {},
             },
             message);
}

void Replica::take_settings(const JobSettings& settings, Actions& out) {
  if (settings <= data_.description.settings) return;
  data_.description.settings = settings;
  tell_neighbours(out);
}

/// Nobody believes what a node that only follows says of the settings, unless they are signed. So its own are not kept
/// because they are larger: those that it follows may have begun the job anew, and never come to them.
void Replica::follow_settings(Actions& out) {
  const JobSettings* const theirs = settings_of_givers(data_);
  if (theirs == nullptr || *theirs == data_.description.settings) return;
  if (data_.description.settings.signature) return take_settings(*theirs, out);
  data_.description.settings = *theirs;
  tell_neighbours(out);
}

void Replica::hear(const NodeId& from, const JobInfo& info, Actions& out) {
  if (info.job.name_hash != data_.description.job.name_hash) return;
  const bool is_leap = leaps(info.settings, data_.description.settings);
  if (info.job == data_.description.job && !is_leap && !data_.description.follows) take_settings(info.settings, out);
  Neighbour* const neighbour = data_.neighbours.find(from);
  if (neighbour == nullptr) return;
  ReplyCache& replies = data_.book.replies();
  const std::uint64_t first_before = neighbour->info.first_exchange;
  if (info.state != ReplicaState::absent) {
    // A successor may know the outcome of these exchanges. It is asked at once, since it forgets them after many of its
    // own.
    replies.orphan(from, info.first_exchange);
    if (info.first_exchange > first_before) ask_at_once_ = true;
  } else {
    for (const ExchangeId& lost : replies.drop(from, info.first_exchange))
      data_.count_unresolved(lost.initiator);
  }
  if (info.first_exchange < first_before) return;  // a successor's report has come before this one
  // The neighbour may be asked again if its replica is gone or is another one, or if it reports that it holds no NaN:
  // it may not ask anybody by itself. This goes through all fragments, so it is not done at each report.
  const bool another = info.first_exchange > first_before || info.state == ReplicaState::absent;
  if (another || (neighbour->met_quarantine && !info.quarantined)) {
    data_.fragments.forget_quarantine(from);
    neighbour->met_quarantine = false;
  }
  if (data_.neighbours.note(from, *neighbour, info, ticked_us_) == Neighbours::News::stirring) ++data_.stir;
  if (is_leap) data_.neighbours.disbelieve_settings(from);
  if (data_.description.follows) follow_settings(out);
  const bool is_over = info.finishing == Finishing::over && info.job == data_.description.job;
  if (data_.finish && is_over && !neighbour->over_before && data_.finish->over.size() < max_neighbours)
    data_.finish->over.insert(from);
  look_at_last_clocks(data_, job_clock_, ticked_us_);
}

void Replica::send_failed(const NodeId& to, const Message& message, TimeUs now_us) {
  if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
    initiator_.send_failed(to, *request, now_us);
  } else if (const auto* reply = std::get_if<ExchangeReply>(&message)) {
    data_.book.replies().mark_unsent(to, *reply);
  } else if (const auto* ack = std::get_if<ExchangeAck>(&message)) {
    data_.book.keep_unsent(to, *ack);
  }
}

// --- its model for others -----------------------------------------------------------------------------------------

void Replica::pull(const NodeId& from, const PullRequest& request, TimeUs now_us, Actions& out) {
  PullReply answer{.job = data_.description.job, .fragment = request.fragment};
  if (!has_model(data_.phase)) {
    answer.reason = RefuseReason::draining;
  } else if (request.job != data_.description.job) {
    answer.reason = RefuseReason::layout_differs;
  } else if (request.fragment >= data_.fragments.count()) {
    answer.reason = RefuseReason::bad_request;
  } else if (Fragment& fragment = data_.fragments[request.fragment]; fragment.is_quarantined()) {
    answer.reason = RefuseReason::quarantined;
  } else {
    auto& pulls = fragment.waiting.pulls;
    if (pulls.size() >= max_waiting_pulls) return;  // the joiner asks elsewhere after its time-out
    if (pulls.empty()) fragment.waiting.pulls_since_us = now_us;
    pulls.push_back(from);
    give_model(request.fragment, now_us, out);
    return;
  }
  out.send.push_back({from, std::move(answer)});
}

bool Replica::copy(std::uint32_t f, std::uint64_t least_clock, TimeUs now_us, Actions& out) {
  if (!has_model(data_.phase) || data_.fragments[f].is_quarantined()) return false;
  data_.fragments[f].waiting.copy_clock = least_clock;
  // In lean memory a publication is dropped if it is not used at once.
  const std::uint32_t end = std::min(f + (client_.is_lean() ? 1 : copies_ahead), data_.fragments.count());
  for (std::uint32_t next = f; next < end; ++next) {
    const Fragment& fragment = data_.fragments[next];
    if (fragment.publication_clock < least_clock || fragment.buffers.empty()) client_.want_publication(next, out);
  }
  give_model(f, now_us, out);
  return true;
}

/// Gives the fragment to this node's checkpoint, or to the first joiner that waits for it, if it can.
bool Replica::give_model(std::uint32_t f, TimeUs now_us, Actions& out) {
  Fragment& fragment = data_.fragments[f];
  Waiting& waiting = fragment.waiting;
  if (fragment.is_held()) return false;
  const bool empty = fragment.buffers.empty();
  const auto give = [&](const NodeId& to) {
    fragment.hold(stage::Copying{});
    out.run.push_back({f, Actions::Snapshot{to}});
    return true;
  };
  if (waiting.copy_clock && !empty && fragment.publication_clock >= *waiting.copy_clock) {
    waiting.copy_clock.reset();
    return give(data_.self);
  }
  if (waiting.pulls.empty()) return false;
  // A node that trained alone was never asked for a publication, so its publication may be as old as the job. The wait
  // for a new one is limited, since the client may stand still.
  const Age age = data_.age_of(fragment);
  const bool stale = age.samples > pull_cadences * age.cadence;
  const TimeUs patience_us = std::max(pull_patience_us, pull_patience_steps * data_.step.us);
  if (empty || (stale && now_us - waiting.pulls_since_us < patience_us)) {
    client_.want_publication(f, out);
    if (!client_.is_lean()) ask_for_what_follows(f, out);
    return fragment.is_held();
  }
  const NodeId to = waiting.pulls.front();
  waiting.pulls.pop_front();
  return give(to);
}

void Replica::ask_for_what_follows(std::uint32_t f, Actions& out) {
  std::size_t bytes = 0;
  for (std::uint32_t next = f + 1; next < data_.fragments.count() && bytes < pull_ahead_bytes; ++next) {
    const Fragment& fragment = data_.fragments[next];
    bytes += fragment.buffers.block_count() * block_elements * sizeof(float);
    const Age age = data_.age_of(fragment);
    if (!fragment.is_quarantined() && age.samples > pull_cadences * age.cadence) client_.want_publication(next, out);
  }
}

// --- time ---------------------------------------------------------------------------------------------------------

void Replica::tick(TimeUs now_us, Actions& out, bool all_dialled) {
  ticked_us_ = now_us;
  all_dialled_ = all_dialled;
  const std::uint64_t losses = data_.neighbours.losses();
  if (std::exchange(losses_, losses) != losses || !expects_since_us_) expects_since_us_ = now_us;
  if (now_us - info_sent_us_ >= data_.options.info_period_us) {
    data_.pace.adjust(data_.fragments.consensus(), data_.step.us, now_us);
    info_sent_us_ = now_us;
    tell_neighbours(out);
    end_the_old(now_us, out);
    if (has_model(data_.phase)) client_.look_at_quarantined(out);
    if (data_.runs() && !data_.description.keeps && !data_.finish && !averages_with_anyone(data_))
      client_.look_while_alone(out);
    ask_at_once_ = true;
  }
  if (std::exchange(ask_at_once_, false)) responder_.inquire(out);
  for (auto& [to, reply] : data_.book.replies().take_unsent())
    out.send.push_back({to, std::move(reply)});
  initiator_.send_again(out);
  data_.density.look(now_us, data_.clock, data_.step.us, data_.neighbours);
  look_at_clocks(data_, job_clock_, now_us);
  finish_with_others(now_us, out);
  update_finishing(now_us, out);
  look_after_window(now_us, out);
  initiator_.start_exchanges(now_us, out);
}

void Replica::end_the_old(TimeUs now_us, Actions& out) {
  ReplyCache& replies = data_.book.replies();
  for (const ExchangeId& lost : replies.expire(now_us))
    data_.count_unresolved(lost.initiator);
  client_.forgive_memory();
  for (std::uint32_t f = 0; f < data_.fragments.count(); ++f)
    give_model(f, now_us, out);  // for joiners that have waited long enough
  for (Fragment& fragment : data_.fragments)
    responder_.turn_down_in_vain(fragment, now_us, out);
  initiator_.expire(now_us);
  initiator_.repeat_unanswered(now_us, out);
  const ReplicaOptions& options = data_.options;
  for (const auto& [node, neighbour] : data_.neighbours) {
    if (!neighbour.linked) continue;
    const TimeUs patience_us = data_.neighbours.patience_us(node, options.info_period_us, options.lifetime_us);
    data_.counters.repeats_sent += replies.mark_overdue(node, now_us, patience_us);
  }
}

void Replica::look_after_window(TimeUs now_us, Actions& out) {
  if (!client_.is_lean()) return;
  const std::vector<std::uint32_t> provided(client_.provided().begin(), client_.provided().end());
  for (const std::uint32_t f : provided) {
    responder_.turn_down_in_vain(data_.fragments[f], now_us, out);
    client_.vacate_if_idle(f, out);
  }
  client_.let_in(out);
}

// --- for people, and for tests ------------------------------------------------------------------------------------

std::vector<PartnerReport> Replica::partner_reports() const {
  std::map<NodeId, std::uint32_t> quarantined;
  for (const Fragment& fragment : data_.fragments) {
    for (const auto& [partner, until_us] : fragment.quarantined_at)
      ++quarantined[partner];
  }
  std::vector<PartnerReport> reports = data_.neighbours.reports();
  for (PartnerReport& report : reports) {
    const auto found = quarantined.find(report.node);
    report.quarantined_fragments = found == quarantined.end() ? 0 : found->second;
  }
  return reports;
}

void Replica::check_invariants() const {
  std::size_t own = 0;
  for (const Fragment& fragment : data_.fragments) {
    fragment.check_invariants();
    own += fragment.own ? 1 : 0;
  }
  GOSSAMER_CHECK(own == initiator_.in_flight());
  GOSSAMER_CHECK(data_.leaving.has_value() == (data_.phase == Phase::leaving));
}

void check_places(const Replica& replica) {
  std::size_t in_work = 0;
  for (const Fragment& fragment : replica.fragments()) {
    const bool works = std::holds_alternative<stage::Answering>(fragment.stage) ||
                       std::holds_alternative<stage::Undoing>(fragment.stage);
    in_work += fragment.waiting.undo.size() + (works ? 1 : 0);
  }
  GOSSAMER_CHECK(replica.book().replies().places_in_work() == in_work);
}

}  // namespace gossamer::gossip
