// Several clients of one job at this node: what passes between the replica, which is then in the node's own memory, and
// each of them. gossip::LocalGroup decides, gossip::LocalMeanTask computes; this carries out.

#include <algorithm>
#include <utility>

#include "daemon/jobs/job.hpp"

namespace gossamer::daemon {

namespace {

/// Fragments of which a round is begun in one turn of the loop though no exchange asks for one.
constexpr std::size_t rounds_per_tick = 64;
/// Gathering that a GPU had no room for is tried again after this; what clients that came back together bring, so
/// often.
constexpr TimeUs gather_again_us = 1 * us_per_s;
constexpr std::uint32_t most_gather_tries = 8;

/// What it published is in the copy only if it was taken before.
void note_unreached(std::uint32_t f, JobClient& client, const gossip::LocalGroup::Part& part) {
  if (part.take != gossip::Take::nothing) client.note_out_of_reach(f);
}

}  // namespace

// --- who takes part -----------------------------------------------------------------------------------------------

void Job::await_those_with(const JobClient& client) {
  awaited_clients_ = std::max(awaited_clients_, client.were());
}

bool Job::awaits_clients() const {
  const auto back =
      std::count_if(clients_.begin(), clients_.end(), [](const auto& one) { return one->session().resume(); });
  return back < awaited_clients_ && host_.now_us() - started_us_ < return_us;
}

/// The replica has just joined. Clients that come back together after a restart make the node's copy of what they hold.
void Job::begin_copies() {
  const auto with_model = std::count_if(clients_.begin(), clients_.end(), [this](const auto& client) {
    return client == memory_.first() || !client->joins();
  });
  reuniting_.assign(replica_.fragment_count(), false);
  gaps_.clear();
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f) {
    if (const auto copy = memory_.node()->copy(f)) {
      memory_.node()->add_gap(f, {.newest = copy->number, .begun = memory_.number(f)});
      gaps_.push_back(memory_.node()->gaps(f));
      continue;
    }
    reuniting_[f] = with_model > 1;
    gossip::Gap gap{.begun = memory_.number(f)};
    for (const auto& client : clients_)
      gap.newest = std::max(gap.newest, client->joins() ? 0 : client->standing(f).number);
    gaps_.push_back({gap});
  }
  if (clients_.size() > 1 || group_) return begin_group();
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f)
    memory_.first()->note_alone(f, ++memory_.number(f));
}

void Job::begin_group() {
  if (group_) {  // as a former daemon left it
    group_->advance_clock(memory_.first()->clock());
    add_to_group(*memory_.first());
  } else {
    group_.emplace(replica_.fragment_count(), memory_.first()->clock());
    group_->add(memory_.first()->number(), gossip::LocalGroup::Arrival::with_values, memory_.first()->memory().clock());
  }
  for (const auto& client : clients_) {
    if (client != memory_.first()) add_to_group(*client);
  }
  host_.log().info("job {}: several clients: their mean is what is exchanged", name());
  decide([&](Actions& out) { replica_.gather(out); });
}

void Job::add_to_group(JobClient& client) {
  using Arrival = gossip::LocalGroup::Arrival;
  const std::uint32_t count = replica_.fragment_count();
  gossip::ClientStandings standings{.due = client.due_fragments(),
                                    .untaken = std::vector<bool>(count),
                                    .unsound = std::vector<bool>(count),
                                    .were = client.were()};
  for (std::uint32_t f = 0; f < count && !client.joins(); ++f) {
    const bool gathered = replica_.buffers(f).gathered();
    if (&client == memory_.first().get() && !gathered) {  // when it is, what it holds is what it was gathered from
      standings.due[f] = false;
      continue;
    }
    const gossip::Standing standing = client.standing(f);
    standings.unsound[f] = standings.due[f] && standing.kind == gossip::Standing::Kind::unknown;
    standings.untaken[f] = !reuniting_[f] && gossip::lacks(gaps_[f], standing);
    if (standings.untaken[f] && gathered) client.note_untaken(f, memory_.number(f) + 1);
  }
  group_->add(client.number(), client.joins() ? Arrival::without_values : Arrival::back, client.memory().clock(),
              standings);
  tell_readiness(client);
}

/// What it has published is still taken in; if it had the fragment, nobody waits for it.
void Job::remove_from_group(const std::shared_ptr<JobClient>& client) {
  group_->remove(client->number());
  if (group_->needs(client->number())) departed_[client->number()] = client;
  const std::vector<std::uint32_t> rounds(group_->under_way().begin(), group_->under_way().end());
  for (const std::uint32_t f : rounds)
    end_round_if_over(f);
}

/// Runs, once it has the node's values of every fragment: its clock goes on from the node's.
void Job::tell_readiness(JobClient& client) {
  if (!client.joins()) return;
  const std::uint32_t lacking = group_->lacking(client.number());
  client.memory().set_fragments_pulled(replica_.fragment_count() - lacking);
  if (lacking > 0) return;
  client.take_cursor(cursor());
  client.set_joined();
  const std::uint64_t own = client.memory().clock();
  client.memory().set_clock_base(group_->clock() - std::min(own, group_->clock()));
  host_.log().info("job {}: process {} has the model, and takes part", name(), client.pid());
  tell_run_state(client);
}

// --- the replica's move -------------------------------------------------------------------------------------------

/// Changes nothing of the clients', so that it can be tried again.
struct Job::Gather {
  std::optional<gossip::FragmentView> from;  // none: the replica's own
  const gossip::Device* from_on = nullptr;   // null: the replica's
  gossip::LocalMeanTask progress;
  std::vector<const gossip::Device*> bases_on;  // of progress, likewise
  bool together = false;                        // of clients that came back together, or else of the first one's
  Clients clients;                              // keeps their memory
  std::vector<bool> was_due;                    // of each
  gossip::LocalGroup::Work work;
  std::shared_ptr<const device::NodeMean> over;  // null: all clients are where the replica is
  std::shared_ptr<NodeMemory> into;
  std::uint32_t f = 0;
  std::uint64_t number = 0;  // of the copy that is made
  std::uint32_t tries = 0;

  struct Result {
    bool finite = false;
    bool reached = true;  // false: some device has no room, or did not answer
    std::vector<gossip::LocalMeanTask::Outcome> outcomes = {};
  };
  Result run(gossip::HeldFragment fragment) && {
    gossip::FragmentBuffers& buffers = fragment.buffers;
    if (buffers.copy_is_kept() && !into->take_buffers(f)) return {.reached = false};
    std::vector<gossip::Device::Floats> brought;
    if (from && from_on != nullptr) {
      brought.push_back(bring(*from, *from_on, fragment.device, buffers.block_count()));
      if (brought.back() == nullptr) return {.reached = false};
      from = gossip::FragmentView{.publication = brought.back().get()};
    }
    if (!(from ? buffers.gather(*from) : buffers.gather())) return {.reached = !buffers.values().empty()};
    for (std::size_t i = 0; i < progress.clients.size(); ++i) {
      gossip::ClientFragment& client = progress.clients[i];
      if (bases_on[i] == client.device) continue;
      const auto or_home = [&](const gossip::Device* device) { return device == nullptr ? &fragment.device : device; };
      brought.push_back(bring({.publication = client.base, .correction = client.base_correction}, *or_home(bases_on[i]),
                              *or_home(client.device), buffers.block_count()));
      if (brought.back() == nullptr) return {.reached = false};
      client.base = brought.back().get();
      client.base_correction = nullptr;
    }
    const std::span<float> y = buffers.values();
    Result result{.finite = true, .outcomes = over ? over->run(progress, y) : progress.run(y, fragment.device)};
    result.reached = std::ranges::all_of(result.outcomes, &gossip::LocalMeanTask::Outcome::reached);
    return result;
  }
  /// y of a view, from one device's memory to another's. Null if it cannot be had.
  static gossip::Device::Floats bring(const gossip::FragmentView& y, const gossip::Device& from,
                                      const gossip::Device& to, std::size_t blocks) {
    std::vector<float> values(blocks * block_elements);
    gossip::Device::Floats there = to.allocate(values.size());
    if (there == nullptr || !from.read(y, blocks, values) || !to.upload(there.get(), values)) return {};
    return there;
  }
};

/// Of clients that came back together: the newest copy that one of them was handed, and what each has done since.
Job::Gather Job::gathering(std::uint32_t f) {
  Gather gather;
  gather.into = memory_.node();
  gather.f = f;
  gather.number = memory_.number(f);
  gather.together = f < reuniting_.size() && reuniting_[f];
  for (const auto& client : clients_) {
    if (client == memory_.first() || (gather.together && !client->joins())) gather.clients.push_back(client);
  }
  for (const auto& client : gather.clients)
    gather.was_due.push_back(client->due(f));
  if (!gather.together) return gather;
  std::vector<gossip::Standing> standings;
  for (const auto& client : gather.clients)
    standings.push_back(client->standing(f));
  const gossip::Reunion reunion = gossip::reunite(standings);
  if (!reunion.newest) return gather;
  const auto read = [&](const gossip::CopyAt& at) { return gather.clients[at.client]->copy(f, at.publication); };
  const auto place = [&](const gossip::CopyAt& at) { return elsewhere(*gather.clients[at.client]); };
  gather.from = read(*reunion.newest);
  gather.from_on = place(*reunion.newest);
  gather.over = node_mean_;
  const float weight = 1.0F / static_cast<float>(gather.clients.size());
  for (std::size_t i = 0; i < standings.size(); ++i) {
    if (!reunion.progress_since[i]) continue;
    const JobClient& client = *gather.clients[i];
    gather.progress.clients.push_back(client.progress_since(f, read(*reunion.progress_since[i]), weight));
    gather.progress.clients.back().device = elsewhere(client);
    gather.bases_on.push_back(place(*reunion.progress_since[i]));
    gather.work.parts.push_back({.id = client.number(), .take = gossip::Take::progress, .weight = weight});
  }
  return gather;
}

void Job::gather(std::uint32_t f) {
  ++memory_.number(f);  // what is published from now on goes into the next
  const auto task = std::make_shared<Gather>(gathering(f));
  // Once more, if it is not finite, when there is no telling any more what has been published since.
  if (task->together) reuniting_[f] = false;
  gather(f, task);
}

/// What clients that came back together bring is waited for while it is out of reach: the fragment stays held.
void Job::gather(std::uint32_t f, const std::shared_ptr<Gather>& task) {
  work(f, Gather(*task), [f, task](Job& job, Gather::Result&& result, Actions& out) {
    if (!result.reached) job.warn_of_no_room();
    if (task->together && !result.reached && ++task->tries < most_gather_tries) {
      job.to_gather_again_[f] = task;
      return;
    }
    if (result.finite) job.taken(f, task->work, result.outcomes);
    job.gathered(f, *task, result.finite, out);
  });
}

void Job::warn_of_no_room() {
  if (std::exchange(lacks_room_, true)) return;
  gather_again_at_us_ = host_.now_us() + gather_again_us;
  if (std::exchange(warned_of_no_room_, true)) return;
  host_.log().warn(
      "job {}: there is no room for the copy that several clients need, in this machine's memory or a GPU's, or that "
      "does not answer: what they learn is brought together when there is; give the training processes a little less",
      name());
}

void Job::gather_again() {
  if (!lacks_room_ || host_.now_us() < gather_again_at_us_) return;
  lacks_room_ = false;
  for (const auto& [f, task] : std::exchange(to_gather_again_, {}))
    gather(f, task);
  decide([&](Actions& out) { replica_.gather(out); });
}

void Job::gathered(std::uint32_t f, const Gather& task, bool finite, Actions& out) {
  const bool with_client = replica_.buffers(f).parts().with_client;
  if (finite) {
    for (std::size_t i = 0; i < task.clients.size(); ++i) {
      JobClient& client = *task.clients[i];
      // What they had published is in it. Those that came back together say themselves which copy they hold.
      const bool holds = !task.together && client.due(f);
      if (!task.was_due[i] || holds) client.note_copy(f, task.number, false, false);
    }
    if (!replica_.buffers(f).copy_is_kept()) {
      memory_.node()->forget_exchanges();
      memory_.node()->set_holder(0);  // a successor goes on with what any of them was handed
    }
    group_->gathered(f, with_client ? std::optional(memory_.first()->number()) : std::nullopt, task.together,
                     host_.now_us());
    if (with_client && !memory_.first()->due(f)) {  // published meanwhile: the replica has that still before it
      group_->published(memory_.first()->number(), f, host_.now_us());
      group_->end(f);
    }
  }
  replica_.finished(f, gossip::Gathered{.finite = finite}, host_.now_us(), out);
  if (finite) memory_.store_copy(f, replica_.buffers(f), task.number);
  if (finite && with_client) end_round_if_over(f);
}

// --- rounds -------------------------------------------------------------------------------------------------------

struct Job::Mean {
  gossip::LocalMeanTask task;
  Clients clients;                               // in the task's order; keeps their memory
  std::shared_ptr<const device::NodeMean> over;  // null: all clients are where the replica is
  bool takes = false;                            // counts from FragmentBuffers::finish_change() on

  std::vector<gossip::LocalMeanTask::Outcome> run(gossip::HeldFragment fragment) && {
    const std::span<float> y = takes ? fragment.buffers.begin_change() : fragment.buffers.values();
    return over ? over->run(task, y) : task.run(y, fragment.device);
  }
};

Job::Mean Job::mean_of(std::uint32_t f, const gossip::LocalGroup::Work& work) {
  Mean mean;
  for (const gossip::LocalGroup::Part& one : work.parts) {
    const auto attached =
        std::find_if(clients_.begin(), clients_.end(), [&](const auto& client) { return client->number() == one.id; });
    const std::shared_ptr<JobClient>& client = attached != clients_.end() ? *attached : departed_.at(one.id);
    mean.task.clients.push_back(client->part_of(f, one));
    mean.task.clients.back().device = elsewhere(*client);
    mean.clients.push_back(client);
  }
  mean.over = node_mean_;
  mean.takes = work.takes();
  return mean;
}

/// The number of the copy that a change beginning now makes. It stays the old one while former clients are awaited,
/// since nothing of theirs is taken in before they are back.
std::uint64_t Job::number_of_change(std::uint32_t f) const {
  const auto copy = memory_.node()->copy(f);
  return joined_us_ == 0 && copy ? copy->number : memory_.number(f);
}

/// `number` of the copy with what was taken.
void Job::mean_done(std::uint32_t f, const gossip::LocalGroup::Work& work,
                    const std::vector<gossip::LocalMeanTask::Outcome>& outcomes, std::uint64_t number) {
  if (work.takes()) replica_.buffers(f).finish_change();
  memory_.store_copy(f, replica_.buffers(f), number);
  taken(f, work, outcomes);
}

void Job::taken(std::uint32_t f, const gossip::LocalGroup::Work& work,
                const std::vector<gossip::LocalMeanTask::Outcome>& outcomes) {
  group_->done(f, work, outcomes);
  std::erase_if(departed_, [this](const auto& item) { return !group_->needs(item.first); });
}

/// Notes, before anything of it is written, which publications the next copy contains. Returns whose part is to be
/// written before the others', where the copy is not kept: gossip/group/reunion.hpp says why.
std::optional<std::size_t> Job::note_copy(std::uint32_t f, const gossip::LocalGroup::Work& work,
                                          const Clients& clients) {
  std::vector<gossip::Standing> standings;
  std::vector<std::size_t> candidates;
  std::vector<std::size_t> part_of;  // by standing
  const bool kept = replica_.buffers(f).copy_is_kept();
  for (std::size_t i = 0; i < work.parts.size() && !kept; ++i) {
    if (!work.parts[i].offer || work.parts[i].replace) continue;
    candidates.push_back(standings.size());
    standings.push_back(clients[i]->standing(f));
    part_of.push_back(i);
  }
  for (const auto& client : clients_) {  // those that have the fragment hold a copy, too
    if (!client->joins() && client->due(f)) standings.push_back(client->standing(f));
  }
  std::optional<std::size_t> first;
  if (!candidates.empty()) first = part_of[gossip::safest_to_overwrite(standings, candidates)];
  ++memory_.number(f);
  for (std::size_t i = 0; i < work.parts.size(); ++i) {
    if (work.parts[i].offer) clients[i]->note_copy(f, memory_.number(f), work.parts[i].replace, i == first);
  }
  return first;
}

/// False if it is gone, or what it was to be given could not be written.
bool Job::hand_over(std::uint32_t f, JobClient& client, const gossip::LocalGroup::Part& part,
                    const gossip::LocalMeanTask::Outcome& outcome) {
  if (!outcome.written) {
    group_->withheld(f, part);
    if (!outcome.reached) note_unreached(f, client, part);
    return false;
  }
  if (client_of(client.session()) == nullptr) return false;
  client.offer(f, part, outcome, memory_.number(f));
  client.tell_due();
  return true;
}

/// The mean, with one client's correction, in one task; when that client has been handed it, the others' in another.
void Job::offer(std::uint32_t f) {
  using Outcomes = std::vector<gossip::LocalMeanTask::Outcome>;
  gossip::LocalGroup::Work round = group_->begin(f, replica_.buffers(f).handed_changes(), host_.now_us());
  Mean mean = mean_of(f, round);
  const std::optional<std::size_t> first = note_copy(f, round, mean.clients);
  Mean rest{.task = {}, .clients = {}, .over = node_mean_};
  gossip::LocalGroup::Work rest_of_round;
  std::vector<std::size_t> rest_at;
  for (std::size_t i = 0; i < round.parts.size(); ++i) {
    if (!round.parts[i].offer || i == first) continue;
    gossip::ClientFragment& fragment = mean.task.clients[i];
    rest.task.clients.push_back({.snapshot = fragment.snapshot,
                                 .correction = std::exchange(fragment.correction, nullptr),
                                 .replace = fragment.replace,
                                 .device = fragment.device});
    rest.clients.push_back(mean.clients[i]);
    rest_of_round.parts.push_back(round.parts[i]);
    rest_at.push_back(i);
  }
  const std::shared_ptr<JobClient> first_client = first ? mean.clients[*first] : nullptr;
  work(f, std::move(mean),
       [f, number = number_of_change(f), first, first_client, round = std::move(round), rest = std::move(rest),
        rest_of_round = std::move(rest_of_round),
        rest_at = std::move(rest_at)](Job& job, Outcomes&& outcomes, Actions&) mutable {
         job.mean_done(f, round, outcomes, number);
         const bool kept = job.replica_.buffers(f).copy_is_kept();
         Outcomes taken;
         for (std::size_t i = 0; i < rest_at.size(); ++i) {
           taken.push_back(outcomes[rest_at[i]]);
           if (!taken[i].finite || !taken[i].reached) rest.task.clients[i].correction = nullptr;
           // Before anybody is handed a copy that does not contain it.
           if (!taken[i].reached) note_unreached(f, *rest.clients[i], rest_of_round.parts[i]);
         }
         const bool shown =
             first && job.hand_over(f, *first_client, round.parts[*first], outcomes[*first]) && outcomes[*first].finite;
         for (std::size_t i = 0; i < rest_at.size(); ++i) {
           if (!shown && taken[i].reached && !kept)
             rest.clients[i]->note_copy(f, job.memory_.number(f), rest_of_round.parts[i].replace, true);
         }
         job.offer_rest(f, std::move(rest), std::move(rest_of_round), std::move(taken));
       });
}

void Job::offer_rest(std::uint32_t f, Mean&& rest, gossip::LocalGroup::Work&& round,
                     std::vector<gossip::LocalMeanTask::Outcome>&& taken) {
  Clients clients = rest.clients;
  const auto report = [f, clients = std::move(clients), taken = std::move(taken), round = std::move(round)](
                          Job& job, std::vector<gossip::LocalMeanTask::Outcome> outcomes, Actions& out) {
    for (std::size_t i = 0; i < clients.size(); ++i) {
      outcomes[i].finite = taken[i].finite;
      outcomes[i].reached = taken[i].reached;
      outcomes[i].written = outcomes[i].written && taken[i].reached;
      job.hand_over(f, *clients[i], round.parts[i], outcomes[i]);
    }
    job.replica_.finished(f, gossip::Done{}, job.host_.now_us(), out);
    job.end_round_if_over(f);
  };
  if (rest.clients.empty()) {
    decide([&](Actions& out) { report(*this, {}, out); });
  } else {
    work(f, std::move(rest), report);
  }
}

void Job::take_in(std::uint32_t f) {
  gossip::LocalGroup::Work part = group_->take_in(f);
  Mean mean = mean_of(f, part);
  ++memory_.number(f);  // what is published from now on goes into the next
  work(f, std::move(mean),
       [f, number = number_of_change(f), part = std::move(part)](
           Job& job, std::vector<gossip::LocalMeanTask::Outcome>&& outcomes, Actions& out) {
         job.mean_done(f, part, outcomes, number);
         job.replica_.finished(f, gossip::Done{}, job.host_.now_us(), out);
       });
}

void Job::end_round_if_over(std::uint32_t f) {
  if (!group_->over(f, host_.now_us())) return;
  group_->end(f);
  const std::uint32_t generation = replica_.buffers(f).parts().generation + 1;
  decide([&](Actions& out) { replica_.published(f, generation, group_->clock(), host_.now_us(), out); });
}

void Job::tick_group() {
  const std::vector<std::uint32_t> rounds(group_->under_way().begin(), group_->under_way().end());
  for (const std::uint32_t f : rounds)
    end_round_if_over(f);
  gather_again();
  if (!runs()) return;
  const TimeUs period_us =
      all_stopped_ ? std::min(replica_.pace().period_us(), gossip::finish_wait_us) : replica_.pace().period_us();
  for (const std::uint32_t f : group_->wanted(period_us, host_.now_us(), rounds_per_tick))
    decide([&](Actions& out) { replica_.want_publication(f, out); });
  if (memory_.first() && memory_.first().use_count() == 1 && client_of(memory_.first()->session()) == nullptr &&
      all_gathered()) {
    memory_.set_first(nullptr);  // gone, and its memory is not needed any more
  }
}

bool Job::all_gathered() {
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f) {
    if (!replica_.buffers(f).gathered()) return false;
  }
  return true;
}

}  // namespace gossamer::daemon
