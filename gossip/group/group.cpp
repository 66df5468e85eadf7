#include "gossip/group/group.hpp"

#include <algorithm>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::gossip {

namespace {

/// Rounds that begin in one turn of the loop without a request by an exchange.
constexpr std::size_t rounds_per_tick = 64;
/// After a lack of room, gathering is tried again after this time.
constexpr TimeUs gather_again_us = 1 * us_per_s;

/// Makes y the client's values, if they were found finite.
void adopt(const ClientFragment& client, const Device& home, std::span<float> y, LocalMeanOutcome& outcome) {
  if (!outcome.finite || !outcome.reached) return;
  if (client.device == nullptr || client.device == &home) {
    outcome.reached = home.copy(y.data(), client.snapshot, y.size());
  } else {
    std::vector<float> values(y.size());
    outcome.reached = client.device->download(values, client.snapshot) && home.upload(y.data(), values);
  }
  outcome.moved = outcome.reached;
}

/// The member's own clock at its last publication of each fragment.
std::vector<std::uint64_t> publication_clocks(const Member& member, std::uint32_t count) {
  std::vector<std::uint64_t> clocks(count);
  for (std::uint32_t f = 0; f < count; ++f)
    clocks[f] = member.published_at(f);
  return clocks;
}

/// Notes that the copy lacks a publication that a task was to take and could not reach.
void note_unreached(std::uint32_t f, Member& member, const LocalGroup::Part& part) {
  if (part.take != Take::nothing) member.note_out_of_reach(f);
}

}  // namespace

void store_parts(std::uint32_t f, const FragmentBuffers& buffers, CopyMemory& copies, Member* first) {
  if (buffers.gathered()) {
    auto copy = copies.copy(f);
    if (!copy) return;
    copy->buffer = buffers.copy();
    copy->commits = buffers.parts().commits;
    return copies.store_copy(f, *copy);
  }
  const FragmentParts& parts = buffers.parts();
  const FragmentParts& stored = first->word(f);
  if (parts == stored || stored.with_client) return;
  if (stored.generation != parts.generation) return;  // the replica has yet to take a publication
  if (parts.with_client) first->note_alone(f, ++copies.number(f));
  first->store(f, parts);
}

template <class Work, class Report>
void Group::work(std::uint32_t f, Work work, Report report) {
  executor_.work(
      f, [work = std::move(work)](HeldFragment fragment) mutable { return std::move(work).run(fragment); },
      std::move(report));
}

// --- the beginning ------------------------------------------------------------------------------------------------

bool Group::take_copies_over(std::uint64_t clock) {
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f) {
    FragmentBuffers& buffers = replica_.buffers(f);
    buffers.keep_copy_in({copies_.copy_buffer(f, 0), copies_.copy_buffer(f, 1)});
    const auto copy = copies_.copy(f);
    if (!copy) continue;
    if (!buffers.take_copy_over(copy->buffer, copy->commits)) return false;
    copies_.number(f) = std::max(copies_.number(f), copy->number);
    if (!local_) make_local(clock);
    local_->gathered(f, std::nullopt, true, host_.replica_now_us());
  }
  return true;
}

std::optional<std::uint64_t> Group::clock_of(const Members& members) {
  const auto counts = [](const auto& member) { return !member->keeps() && !member->joins(); };
  const auto count = static_cast<std::uint64_t>(std::ranges::count_if(members, counts));
  if (count == 0) return std::nullopt;
  std::uint64_t clock = 0;
  for (const auto& member : members)
    clock += counts(member) ? member->clock() / count : 0;
  return clock;
}

void Group::make_local(std::uint64_t clock) {
  local_.emplace(replica_.fragments().count(), clock);
  local_->follow(follows_);
}

void Group::follow(Follows follows) {
  follows_ = follows;
  if (local_) local_->follow(follows);
}

void Group::begin(const Members& members, std::uint64_t clock) {
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f) {
    if (const auto copy = copies_.copy(f)) {
      copies_.add_gap(f, {.newest = copy->number, .begun = copies_.number(f)});
      gaps_.push_back(copies_.gaps(f));
      continue;
    }
    Gap gap{.begun = copies_.number(f)};
    for (const auto& member : members)
      gap.newest = std::max(gap.newest, member->joins() ? 0 : member->standing(f).number);
    gaps_.push_back({gap});
  }
  if (members.size() > 1 || is_shared()) return begin_sharing(members, clock);
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f)
    first_->note_alone(f, ++copies_.number(f));
}

void Group::begin_sharing(const Members& members, std::uint64_t clock) {
  if (local_) {  // copies of a former daemon were taken over
    local_->advance_clock(clock);
    add_with_standing(first_);
  } else {
    make_local(clock);
    local_->add(first_->number(), LocalGroup::Arrival::with_values, first_->own_clock(),
                {.published_at = publication_clocks(*first_, replica_.fragments().count()), .keeps = first_->keeps()});
    members_[first_->number()] = first_;
  }
  for (const auto& member : members) {
    if (member != first_) add_with_standing(member);
  }
  executor_.decide([&](Actions& out) { replica_.gather(out); });
}

// --- who takes part -----------------------------------------------------------------------------------------------

void Group::add(const std::shared_ptr<Member>& member, std::uint64_t clock) {
  if (is_shared()) {
    add_with_standing(member);
  } else {
    begin_sharing({first_, member}, clock);
  }
}

void Group::add_with_standing(const std::shared_ptr<Member>& member) {
  using Arrival = LocalGroup::Arrival;
  const std::uint32_t count = replica_.fragments().count();
  ClientStandings standings{.due = member->due_fragments(),
                            .untaken = std::vector<bool>(count),
                            .unsound = std::vector<bool>(count),
                            .published_at = publication_clocks(*member, count),
                            .were = member->were(),
                            .keeps = member->keeps()};
  for (std::uint32_t f = 0; f < count && !member->joins(); ++f) {
    const bool gathered = replica_.buffers(f).gathered();
    if (member == first_ && !gathered) {  // it will be gathered from this client's memory
      standings.due[f] = false;
      continue;
    }
    const Standing standing = member->standing(f);
    standings.unsound[f] = standings.due[f] && standing.kind == Standing::Kind::unknown;
    standings.untaken[f] = lacks(gaps_[f], standing);
    if (standings.untaken[f] && gathered) member->note_untaken(f, copies_.number(f) + 1);
  }
  members_[member->number()] = member;
  local_->add(member->number(), member->joins() ? Arrival::without_values : Arrival::back, member->own_clock(),
              standings);
  tell_readiness(*member);
}

void Group::remove(const Member& member) {
  local_->remove(member.number());
  if (!local_->needs(member.number())) members_.erase(member.number());
  const std::vector<std::uint32_t> rounds(local_->under_way().begin(), local_->under_way().end());
  for (const std::uint32_t f : rounds)
    end_round_if_over(f);
}

void Group::tell_readiness(Member& member) {
  if (member.joins()) host_.lacking(member, local_->lacking(member.number()));
}

bool Group::published(Member& member, std::uint32_t f) {
  if (!replica_.buffers(f).gathered() && &member == first_.get()) {
    if (is_shared()) member.note_copy(f, copies_.number(f) + 1, false);  // the copy being gathered lacks it
    return true;
  }
  if (!is_shared()) return false;
  // The next copy contains the publication, even if the client goes before that and comes back. Before begin() it is
  // not known which copy will contain it, so nothing is noted.
  if (has_begun()) member.note_copy(f, copies_.number(f) + 1, false);
  local_->published(member.number(), f, host_.replica_now_us(), member.published_at(f));
  end_round_if_over(f);
  tell_readiness(member);
  return false;
}

void Group::observe_clock(const Member& member) {
  if (local_) local_->observe_clock(member.number(), member.own_clock());
}

bool Group::is_quarantined(const Member& member) const {
  return local_ && local_->quarantined(member.number());
}

bool Group::awaits_departed() const {
  return std::ranges::any_of(members_, [](const auto& item) { return !item.second->is_attached(); });
}

bool Group::all_gathered() const {
  return std::ranges::all_of(replica_.fragments(),
                             [](const Fragment& fragment) { return fragment.buffers.gathered(); });
}

// --- moving the replica -------------------------------------------------------------------------------------------

void Group::gather(std::uint32_t f) {
  struct Gather {
    const CopyMemory& into;
    std::uint32_t f;
    struct Result {
      bool finite = false;
      bool has_room = false;
    };
    Result run(HeldFragment fragment) && {
      if (!into.take_copy_buffers(f)) return {};
      const bool done = fragment.buffers.gather();
      return {.finite = done, .has_room = done || !fragment.buffers.values().empty()};
    }
  };
  const std::uint64_t number = ++copies_.number(f);  // later publications go into the next copy
  work(f, Gather{copies_, f}, [this, f, number, was_due = first_->due(f)](Gather::Result&& result, Actions& out) {
    if (!result.has_room && std::exchange(room_, Room::lacking) == Room::there) {
      gather_again_at_us_ = host_.replica_now_us() + gather_again_us;
      host_.lacks_room();
    }
    gathered(f, was_due, number, result.finite, out);
  });
}

void Group::gather_again() {
  if (room_ == Room::there || host_.replica_now_us() < gather_again_at_us_) return;
  room_ = Room::there;
  executor_.decide([&](Actions& out) { replica_.gather(out); });
}

void Group::gathered(std::uint32_t f, bool was_due, std::uint64_t number, bool finite, Actions& out) {
  const bool with_client = replica_.buffers(f).parts().with_client;
  if (finite) {
    Member& first = *first_;
    if (!was_due || first.due(f)) first.note_copy(f, number, false);  // the copy contains what it had published
    local_->gathered(f, with_client ? std::optional(first.number()) : std::nullopt, false, host_.replica_now_us());
    if (with_client && !first.due(f)) {  // published meanwhile: the replica has still to take this publication
      local_->published(first.number(), f, host_.replica_now_us(), first.published_at(f));
      local_->end(f);
    }
  }
  replica_.finished(f, Gathered{.finite = finite}, host_.replica_now_us(), out);
  if (!finite) return;
  store_copy(f, number);
  if (with_client) end_round_if_over(f);
}

void Group::store_copy(std::uint32_t f, std::uint64_t number) {
  const FragmentBuffers& buffers = replica_.buffers(f);
  copies_.store_copy(f, {.buffer = buffers.copy(), .commits = buffers.parts().commits, .number = number});
}

// --- rounds -------------------------------------------------------------------------------------------------------

struct Group::Mean {
  LocalMeanTask task;
  Members members;                       // in the task's order; keeps their memory alive
  std::shared_ptr<const MeanOver> over;  // null: all clients are where the copy is
  bool takes = false;                    // the change counts from FragmentBuffers::finish_change() on

  struct Result {
    std::vector<LocalMeanOutcome> outcomes;
    bool kept = true;  // false: y is unchanged, and no result counts
  };
  Result run(HeldFragment fragment) && {
    if (task.clients.empty()) return {};
    const std::span<float> y = takes ? fragment.buffers.begin_change() : fragment.buffers.values();
    Result result{.outcomes = over ? over->run(task, y) : task.run(y, fragment.device)};
    for (std::size_t i = 0; i < task.clients.size(); ++i) {
      if (task.clients[i].take == Take::values) adopt(task.clients[i], fragment.device, y, result.outcomes[i]);
    }
    result.kept = !takes || fragment.buffers.write_back();
    for (LocalMeanOutcome& outcome : result.outcomes)
      outcome.reached = outcome.reached && result.kept;
    return result;
  }
};

Group::Mean Group::mean_of(std::uint32_t f, const LocalGroup::Work& work) {
  Mean mean{.task = {}, .members = {}, .over = host_.mean_over(), .takes = work.takes()};
  for (const LocalGroup::Part& part : work.parts) {
    mean.members.push_back(members_.at(part.id));
    mean.task.clients.push_back(mean.members.back()->part_of(f, part));
  }
  return mean;
}

/// The number of the copy that results from a change that begins now. Before begin() it is the present number, because
/// no progress is taken in then.
std::uint64_t Group::number_of_change(std::uint32_t f) const {
  const auto copy = copies_.copy(f);
  return !has_begun() && copy ? copy->number : copies_.number(f);
}

/// `number`: the number of the copy that contains the progress taken.
void Group::mean_done(std::uint32_t f, bool kept, const LocalGroup::Work& work,
                      const std::vector<LocalMeanOutcome>& outcomes, std::uint64_t number) {
  if (work.takes() && kept) replica_.buffers(f).finish_change();
  store_copy(f, number);
  local_->done(f, work, outcomes);
  std::erase_if(members_, [this](const auto& item) { return !local_->needs(item.first); });
}

/// Notes which publications the next copy contains, before any of that copy is written.
void Group::note_copy(std::uint32_t f, const LocalGroup::Work& work) {
  const std::uint64_t number = ++copies_.number(f);
  for (const LocalGroup::Part& part : work.parts) {
    if (part.offer) members_.at(part.id)->note_copy(f, number, part.replace);
  }
}

/// Offers nothing if the client is gone, or if its correction could not be written.
void Group::offer_to(std::uint32_t f, Member& member, const LocalGroup::Part& part, const LocalMeanOutcome& outcome) {
  if (!outcome.written) {
    local_->withheld(f, part);
    if (!outcome.reached) note_unreached(f, member, part);
    return;
  }
  if (!member.is_attached()) return;
  member.offer(f, part, outcome, copies_.number(f));
  member.tell_due();
}

/// First the clients' progress is taken into y, and the changed copy counts. Only then the corrections are written,
/// since they overwrite the data that shows this progress.
void Group::offer(std::uint32_t f) {
  LocalGroup::Work round = local_->begin(f, replica_.buffers(f).handed_changes(), host_.replica_now_us());
  Mean mean = mean_of(f, round);
  note_copy(f, round);
  Mean rest{.task = {}, .members = {}, .over = mean.over};
  LocalGroup::Work offers;
  std::vector<std::size_t> offer_at;
  for (std::size_t i = 0; i < round.parts.size(); ++i) {
    if (!round.parts[i].offer) continue;
    ClientFragment& fragment = mean.task.clients[i];
    rest.task.clients.push_back({.snapshot = fragment.snapshot,
                                 .correction = std::exchange(fragment.correction, nullptr),
                                 .replace = fragment.replace,
                                 .device = fragment.device});
    rest.members.push_back(mean.members[i]);
    offers.parts.push_back(round.parts[i]);
    offer_at.push_back(i);
  }
  work(f, std::move(mean),
       [this, f, number = number_of_change(f), round = std::move(round), rest = std::move(rest),
        offers = std::move(offers), offer_at = std::move(offer_at)](Mean::Result&& result, Actions&) mutable {
         mean_done(f, result.kept, round, result.outcomes, number);
         std::vector<LocalMeanOutcome> taken;
         for (std::size_t i = 0; i < offer_at.size(); ++i) {
           taken.push_back(result.outcomes[offer_at[i]]);
           if (!taken[i].finite || !taken[i].reached) rest.task.clients[i].correction = nullptr;
           // This is noted before any client is given a copy that does not contain the publication.
           if (!taken[i].reached) note_unreached(f, *rest.members[i], offers.parts[i]);
         }
         offer_rest(f, std::move(rest), std::move(offers), std::move(taken));
       });
}

void Group::offer_rest(std::uint32_t f, Mean&& rest, LocalGroup::Work&& round, std::vector<LocalMeanOutcome>&& taken) {
  Members members = rest.members;
  work(f, std::move(rest),
       [this, f, members = std::move(members), taken = std::move(taken), round = std::move(round)](
           Mean::Result&& result, Actions& out) {
         for (std::size_t i = 0; i < members.size(); ++i) {
           LocalMeanOutcome& outcome = result.outcomes[i];
           outcome.finite = taken[i].finite;
           outcome.reached = taken[i].reached;
           outcome.written = outcome.written && taken[i].reached;
           offer_to(f, *members[i], round.parts[i], outcome);
         }
         replica_.finished(f, Done{}, host_.replica_now_us(), out);
         end_round_if_over(f);
       });
}

void Group::take_in(std::uint32_t f) {
  LocalGroup::Work part = local_->take_in(f);
  Mean mean = mean_of(f, part);
  ++copies_.number(f);  // later publications go into the next copy
  work(f, std::move(mean),
       [this, f, number = number_of_change(f), part = std::move(part)](Mean::Result&& result, Actions& out) {
         mean_done(f, result.kept, part, result.outcomes, number);
         replica_.finished(f, Done{}, host_.replica_now_us(), out);
       });
}

void Group::end_round_if_over(std::uint32_t f) {
  if (!local_->over(f, host_.replica_now_us())) return;
  const std::uint64_t clock = local_->publication_clock(f);
  local_->end(f);
  const std::uint32_t generation = replica_.buffers(f).parts().generation + 1;
  executor_.decide([&](Actions& out) { replica_.published(f, generation, clock, host_.replica_now_us(), out); });
}

void Group::tick(TimeUs period_us, bool runs) {
  if (!is_shared()) return;
  const std::vector<std::uint32_t> rounds(local_->under_way().begin(), local_->under_way().end());
  for (const std::uint32_t f : rounds)
    end_round_if_over(f);
  gather_again();
  if (!runs) return;
  for (const std::uint32_t f : local_->wanted(period_us, host_.replica_now_us(), rounds_per_tick))
    executor_.decide([&](Actions& out) { replica_.want_publication(f, out); });
  if (first_ && !first_->is_attached() && all_gathered()) first_.reset();  // nothing of the replica is in its memory
}

void Group::check_invariants() const {
  if (!local_) return;
  local_->check_invariants();
  for (const auto& [number, member] : members_) {
    GOSSAMER_CHECK(member != nullptr && member->number() == number);
    GOSSAMER_CHECK(member->is_attached() || local_->needs(number));
  }
  for (std::uint32_t f = 0; has_begun() && f < replica_.fragments().count(); ++f)
    GOSSAMER_CHECK(replica_.buffers(f).gathered() || first_ != nullptr);
}

}  // namespace gossamer::gossip
