#include "gossip/group/local_group.hpp"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "gossip/check.hpp"
#include "gossip/replica/job_clock.hpp"

namespace gossamer::gossip {

namespace {

constexpr std::uint64_t never_offered = std::numeric_limits<std::uint64_t>::max();

}  // namespace

LocalGroup::LocalGroup(std::uint32_t fragment_count, std::uint64_t clock) : rounds_(fragment_count), clock_(clock) {}

// --- who takes part -----------------------------------------------------------------------------------------------

void LocalGroup::add(ClientId id, Arrival arrival, std::uint64_t clock, const ClientStandings& standings) {
  GOSSAMER_CHECK(clients() < max_clients && !clients_.contains(id));
  const auto count = static_cast<std::uint32_t>(rounds_.size());
  Client client{.slots = std::vector<Slot>(count), .clock = clock, .were = standings.were, .keeps = standings.keeps};
  const auto says = [](const std::vector<bool>& what, std::uint32_t f) { return !what.empty() && what[f]; };
  for (std::uint32_t f = 0; f < count; ++f) {
    Slot& slot = client.slots[f];
    if (arrival == Arrival::without_values) slot.adoption = Adoption::none;
    if (says(standings.due, f)) slot.offer = Offer::late;
    slot.of_before = slot.learned = says(standings.untaken, f);
    if (slot.of_before) slot.progress = Progress::untaken;
    slot.quarantined = says(standings.unsound, f);
    client.quarantined += slot.quarantined ? 1 : 0;
    client.untaken += slot.is_untaken() ? 1 : 0;
    slot.published_at = standings.published_at.empty() ? clock : standings.published_at[f];
    slot.changes = arrival == Arrival::with_values ? rounds_[f].changes : never_offered;
  }
  if (arrival == Arrival::without_values) client.lacking = count;
  clients_.emplace(id, std::move(client));
}

void LocalGroup::remove(ClientId id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  found->second.gone = true;
  for (Slot& slot : found->second.slots)
    slot.offer = Offer::none;
  forget_gone();
}

void LocalGroup::forget_gone() {
  std::erase_if(clients_, [](const auto& item) {
    const Client& client = item.second;
    return client.gone && client.untaken == 0 && client.in_tasks == 0;
  });
}

std::size_t LocalGroup::clients() const {
  return static_cast<std::size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const auto& item) { return !item.second.gone; }));
}

std::uint32_t LocalGroup::lacking(ClientId id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? 0 : found->second.lacking;
}

bool LocalGroup::quarantined(ClientId id) const {
  const auto found = clients_.find(id);
  return found != clients_.end() && found->second.quarantined > 0;
}

bool LocalGroup::Work::takes() const {
  return std::ranges::any_of(parts,
                             [](const Part& part) { return part.take == Take::progress || part.take == Take::values; });
}

// --- the clock ----------------------------------------------------------------------------------------------------

void LocalGroup::observe_clock(ClientId id, std::uint64_t clock) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  const std::uint64_t trained = clock - std::min(clock, found->second.clock);
  found->second.clock = clock;
  if (!counts(found->second)) return;
  trained_ += trained;
  const std::uint64_t count = taking_part();
  if (count == 0 || found->second.lacking > 0) return;
  clock_remainder_ += trained % count;
  clock_ = later_clock(clock_, trained / count + clock_remainder_ / count);
  clock_remainder_ %= count;
}

/// Number of clients whose mean clock is the node's.
std::uint64_t LocalGroup::taking_part() const {
  return static_cast<std::uint64_t>(std::count_if(clients_.begin(), clients_.end(), [this](const auto& item) {
    return !item.second.gone && item.second.lacking == 0 && counts(item.second);
  }));
}

std::uint64_t LocalGroup::publication_clock(std::uint32_t f) const {
  std::uint64_t since = 0;
  if (followed(f) == Follows::one) {
    const Client* const followed = leader(f);
    since = followed == nullptr ? clock_ : trained_since(*followed, f);  // without a leader nothing new is claimed
  } else {
    const std::uint64_t count = std::max<std::uint64_t>(taking_part(), 1);
    for (const Client& client : std::views::values(clients_)) {
      const Slot& slot = client.slots[f];
      // A client that this round did not ask, or that has not answered, counts like the others.
      const bool is_to_come = !client.gone && slot.adoption == Adoption::done && !slot.quarantined && counts(client);
      if (is_to_come) since += (trained_since(client, f) + count - 1) / count;
    }
  }
  return clock_ - std::min(clock_, since);
}

std::uint64_t LocalGroup::trained_since(const Client& client, std::uint32_t f) {
  return client.clock - std::min(client.clock, client.slots[f].published_at);
}

const LocalGroup::Client* LocalGroup::leader(std::uint32_t f) const {
  const auto found = std::ranges::find_if(clients_, [f](const auto& item) {
    const Slot& slot = item.second.slots[f];
    return slot.is_untaken() && !item.second.keeps && !slot.quarantined;
  });
  return found == clients_.end() ? nullptr : &found->second;
}

// --- a round ------------------------------------------------------------------------------------------------------

void LocalGroup::follow(Follows follows) {
  if (std::exchange(follows_, follows) == follows) return;
  // Some clients may have published after the client that y follows, so one more round sets y to one client's values.
  for (Round& round : rounds_)
    round.owes_one = follows == Follows::mean && round.stage != Round::Stage::ungathered;
}

Follows LocalGroup::followed(std::uint32_t f) const {
  const Round& round = rounds_[f];
  if (round.is_under_way()) return round.follows;
  return round.owes_one ? Follows::one : follows_;
}

void LocalGroup::gathered(std::uint32_t f, std::optional<ClientId> holder, bool uneven, TimeUs now_us) {
  Round& round = rounds_[f];
  if (round.stage == Round::Stage::ungathered) round.stage = Round::Stage::between;
  if (uneven) ++round.changes;
  if (!holder) return;
  begin_round(f, now_us);
  if (const auto found = clients_.find(*holder); found != clients_.end() && !found->second.gone) {
    found->second.slots[f].offer = Offer::awaited;
  }
}

void LocalGroup::begin_round(std::uint32_t f, TimeUs now_us) {
  Round& round = rounds_[f];
  round.follows = followed(f);
  round.owes_one = false;
  round.stage = Round::Stage::under_way;
  round.begun_us = now_us;
  round.first_us = 0;
  round.trained = trained_;
  under_way_.insert(f);
}

Take LocalGroup::take_of(const Client& client, const Slot& slot, Follows follows) const {
  if (slot.quarantined) return Take::check;  // the progress came from values that are not finite
  // A client that only follows y has learned nothing, and its rounding must not get into y.
  const bool learned = is_led(client, slot, follows) && counts(client) && !slot.passed;
  if (slot.is_untaken()) return learned ? Take::progress : Take::check;
  // A former daemon may have found NaN in a publication that is not to be taken. The first correction is made from that
  // publication, so it is checked.
  const bool first = slot.changes == never_offered && slot.adoption == Adoption::done;
  return first ? Take::check : Take::nothing;
}

bool LocalGroup::counts(const Client& client) const {
  return !client.keeps ||
         std::ranges::all_of(clients_, [](const auto& item) { return item.second.gone || item.second.keeps; });
}

bool LocalGroup::is_led(const Client& client, const Slot& slot, Follows follows) {
  return follows == Follows::mean || client.keeps || slot.is_apart();
}

/// Number of clients whose mean y is: those that take part and are not quarantined.
std::size_t LocalGroup::in_mean(std::uint32_t f) const {
  const auto count = std::count_if(clients_.begin(), clients_.end(), [f](const auto& item) {
    const Slot& slot = item.second.slots[f];
    return !item.second.keeps && slot.adoption == Adoption::done && !slot.quarantined &&
           (!item.second.gone || slot.is_untaken());
  });
  return static_cast<std::size_t>(count);
}

/// The client's share of the mean. For progress under an earlier daemon, absent clients count as well.
float LocalGroup::weight_of(const Client& client, const Slot& slot, std::size_t in_mean) {
  const std::size_t sharing = slot.of_before ? std::max<std::size_t>(client.were, in_mean) : in_mean;
  return 1.0F / static_cast<float>(std::max<std::size_t>(sharing, 1));
}

void LocalGroup::begin_taking(Client& client, Slot& slot) {
  if (!slot.is_untaken()) return;
  slot.progress = Progress::in_task;
  --client.untaken;
  ++client.in_tasks;
}

void LocalGroup::end_taking(Client& client, Slot& slot, bool reached) {
  if (slot.progress != Progress::in_task) return;
  slot.progress = Progress::none;
  --client.in_tasks;
  if (reached) slot.passed = slot.learned = false;
  if (reached || (client.gone && ++client.tries >= farewell_tries)) return;
  slot.progress = Progress::untaken;
  ++client.untaken;
}

LocalGroup::Work LocalGroup::begin(std::uint32_t f, bool exchanged, TimeUs now_us) {
  Round& round = rounds_[f];
  GOSSAMER_CHECK(round.stage == Round::Stage::between);
  if (exchanged) ++round.changes;
  // If a slow client were given the fragment each time that it comes late, it would be late again every time.
  const bool asks = exchanged || trained_ != round.trained || followed(f) == Follows::one || !only_repeats(f);
  begin_round(f, now_us);
  Work work;
  const std::size_t before = in_mean(f);
  for (auto& [id, client] : clients_) {
    Slot& slot = client.slots[f];
    // A client that has had the fragment since an earlier round may be the only one that y can follow.
    if (slot.is_due()) slot.offer = round.follows == Follows::one ? Offer::awaited : Offer::late;
    const bool offer = !client.gone && (asks || slot.is_apart() || slot.changes != round.changes);
    if (slot.is_due() || (!offer && !slot.is_untaken())) continue;
    work.parts.push_back({.id = id,
                          .take = take_of(client, slot, round.follows),
                          .weight = weight_of(client, slot, before),
                          .offer = offer,
                          .correct = offer && is_led(client, slot, round.follows),
                          .replace = slot.is_apart()});
    begin_taking(client, slot);
    if (!offer) continue;
    slot.offer = Offer::awaited;
    if (slot.is_apart()) slot.adoption = Adoption::under_way;
  }
  return work;
}

void LocalGroup::published(ClientId id, std::uint32_t f, TimeUs now_us, std::optional<std::uint64_t> own_clock) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  Slot& slot = client.slots[f];
  GOSSAMER_CHECK(slot.is_due());
  const bool answers = rounds_[f].follows == Follows::mean || counts(client);
  // A publication that comes late from an earlier round counts here too. Without that, a round that awaits only clients
  // that stand still would not end.
  if (rounds_[f].is_under_way() && answers && rounds_[f].first_us == 0) rounds_[f].first_us = now_us;
  slot.offer = Offer::none;
  slot.learned = slot.learned || own_clock != slot.published_at;
  slot.published_at = own_clock.value_or(client.clock);
  // The client has trained since it published, and may never train again. So the round counts as begun before that
  // training, and another round will follow.
  if (slot.published_at < client.clock && counts(client)) rounds_[f].trained = trained_ - 1;
  if (slot.is_apart()) return;  // the offer was from the client's earlier life: it still has to take y over
  if (slot.adoption == Adoption::under_way) {  // it has published what it was given
    slot.adoption = Adoption::done;
    --client.lacking;
    return;
  }
  slot.progress = Progress::untaken;
  slot.of_before = false;
  ++client.untaken;
}

void LocalGroup::end(std::uint32_t f) {
  GOSSAMER_CHECK(rounds_[f].stage == Round::Stage::under_way);
  rounds_[f].stage = Round::Stage::ending;
}

bool LocalGroup::over(std::uint32_t f, TimeUs now_us) const {
  const Round& round = rounds_[f];
  if (round.stage != Round::Stage::under_way) return false;
  bool awaited = false;
  bool apart = false;
  for (const auto& [id, client] : clients_) {
    awaited = awaited || client.slots[f].offer == Offer::awaited;
    apart = apart || (client.slots[f].is_apart() && !client.gone);
  }
  if (!awaited) return true;
  if (round.first_us == 0) return apart && now_us - round.begun_us > unanswered_us;
  return now_us - round.begun_us > std::max(patience * (round.first_us - round.begun_us), least_patience_us);
}

LocalGroup::Work LocalGroup::take_in(std::uint32_t f) {
  Round& round = rounds_[f];
  GOSSAMER_CHECK(round.stage != Round::Stage::ungathered);
  const Follows follows = followed(f);
  round.stage = Round::Stage::between;
  if (follows != followed(f)) ++round.changes;  // from now on all clients are to be given y
  under_way_.erase(f);
  Work work;
  const std::size_t before = in_mean(f);
  const Client* const followed_one = follows == Follows::one ? leader(f) : nullptr;
  for (auto& [id, client] : clients_) {
    Slot& slot = client.slots[f];
    if (slot.is_due()) slot.offer = Offer::late;
    slot.passed = slot.passed || follows == Follows::one;
    if (!slot.is_untaken()) continue;
    work.parts.push_back({.id = id,
                          .take = &client == followed_one ? Take::values : take_of(client, slot, follows),
                          .weight = weight_of(client, slot, before)});
    begin_taking(client, slot);
  }
  return work;
}

/// True if y was moved by what a client has learned, and not by rounding alone.
bool LocalGroup::has_learned(std::uint32_t f, const Work& work,
                             const std::vector<LocalMeanTask::Outcome>& outcomes) const {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto found = clients_.find(work.parts[i].id);
    if (!outcomes[i].moved || found == clients_.end()) continue;
    const Slot& slot = found->second.slots[f];
    if (slot.learned || slot.of_before) return true;
  }
  return false;
}

void LocalGroup::count_move(std::uint32_t f, bool learned) {
  Round& round = rounds_[f];
  if (std::exchange(round.moved_at, trained_) != trained_) round.moves = 0;
  if (learned || round.moves < most_moves) ++round.changes;
  round.moves = std::min(round.moves + 1, most_moves);
}

void LocalGroup::done(std::uint32_t f, const Work& work, const std::vector<LocalMeanTask::Outcome>& outcomes) {
  GOSSAMER_CHECK(outcomes.size() == work.parts.size());
  if (std::ranges::any_of(outcomes, &LocalMeanTask::Outcome::moved)) count_move(f, has_learned(f, work, outcomes));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto found = clients_.find(work.parts[i].id);
    if (found == clients_.end()) continue;
    Slot& slot = found->second.slots[f];
    end_taking(found->second, slot, outcomes[i].reached);
    if (work.parts[i].offer) slot.changes = rounds_[f].changes;
    if (work.parts[i].take == Take::nothing || !outcomes[i].reached) continue;
    if (slot.quarantined == !outcomes[i].finite) continue;
    slot.quarantined = !outcomes[i].finite;
    if (!slot.quarantined) slot.changes = never_offered;  // no correction was made from what was not finite
    found->second.quarantined += slot.quarantined ? 1U : -1U;
    quarantines_ += slot.quarantined ? 1 : 0;
  }
  forget_gone();
}

void LocalGroup::withheld(std::uint32_t f, const Part& part) {
  const auto found = clients_.find(part.id);
  if (found == clients_.end()) return;
  Slot& slot = found->second.slots[f];
  slot.offer = Offer::none;
  slot.changes = never_offered;
  if (part.replace) slot.adoption = Adoption::withheld;
}

bool LocalGroup::only_repeats(std::uint32_t f) const {
  const auto is_late = [f](const auto& item) { return item.second.slots[f].is_untaken(); };
  return std::ranges::any_of(clients_, is_late) && std::ranges::none_of(clients_, [&](const auto& item) {
           const Slot& slot = item.second.slots[f];
           return slot.is_untaken() && (slot.learned || slot.quarantined);
         });
}

bool LocalGroup::anyone_behind(std::uint32_t f, bool idle, const std::set<ClientId>& without) const {
  const Follows follows = followed(f);
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& item) {
    const Slot& slot = item.second.slots[f];
    return !item.second.gone && !without.contains(item.first) && slot.changes != rounds_[f].changes &&
           !(idle && slot.is_due()) && is_led(item.second, slot, follows);
  });
}

bool LocalGroup::even(const std::set<ClientId>& without) const {
  const bool clients_even = std::all_of(clients_.begin(), clients_.end(), [&](const auto& item) {
    const Client& client = item.second;
    return client.gone || without.contains(item.first) ||
           (client.lacking == 0 && client.untaken == 0 && std::ranges::none_of(client.slots, &Slot::is_due));
  });
  if (!clients_even || !under_way_.empty()) return false;
  for (std::uint32_t f = 0; f < rounds_.size(); ++f) {
    if (rounds_[f].stage == Round::Stage::ungathered || followed(f) == Follows::one || anyone_behind(f, false, without))
      return false;
    if (clients() > 1 && rounds_[f].trained != trained_) return false;
  }
  return true;
}

std::vector<std::uint32_t> LocalGroup::wanted(TimeUs period_us, TimeUs now_us, std::size_t most) {
  std::vector<std::uint32_t> fragments;
  const auto count = static_cast<std::uint32_t>(rounds_.size());
  const std::uint32_t first = next_;
  for (std::uint32_t i = 0; i < count && fragments.size() < most; ++i) {
    const std::uint32_t f = (first + i) % count;
    next_ = (f + 1) % count;
    if (wants(f, period_us, now_us)) fragments.push_back(f);
  }
  return fragments;
}

bool LocalGroup::wants(std::uint32_t f, TimeUs period_us, TimeUs now_us) const {
  const Round& round = rounds_[f];
  if (round.stage != Round::Stage::between) return false;
  std::size_t present = 0;
  std::size_t led = 0;
  const Follows follows = followed(f);
  bool untaken = false;  // a publication that came after its round was over
  bool sick = false;
  for (const auto& [id, client] : clients_) {
    const Slot& slot = client.slots[f];
    if (!client.gone && slot.adoption == Adoption::none && !slot.is_due()) return true;
    present += client.gone ? 0 : 1;
    led += !client.gone && is_led(client, slot, follows) ? 1 : 0;
    untaken = untaken || (slot.is_untaken() && is_led(client, slot, follows));
    sick = sick || (slot.quarantined && !client.gone);
  }
  if (now_us - round.begun_us < period_us) return false;
  if (sick && now_us - round.begun_us >= recovery_us) return true;
  return round.owes_one || untaken || anyone_behind(f, true) || (present > 1 && led > 0 && trained_ != round.trained);
}

void LocalGroup::check_invariants() const {
  for (std::uint32_t f = 0; f < rounds_.size(); ++f)
    GOSSAMER_CHECK(rounds_[f].is_under_way() == under_way_.contains(f));
  for (const Client& client : std::views::values(clients_)) {
    GOSSAMER_CHECK(client.slots.size() == rounds_.size());
    const auto count = [&](auto holds) {
      return static_cast<std::uint32_t>(std::ranges::count_if(client.slots, holds));
    };
    GOSSAMER_CHECK(client.lacking == count([](const Slot& slot) { return slot.adoption != Adoption::done; }));
    GOSSAMER_CHECK(client.quarantined == count([](const Slot& slot) { return slot.quarantined; }));
    GOSSAMER_CHECK(client.untaken == count([](const Slot& slot) { return slot.is_untaken(); }));
    GOSSAMER_CHECK(client.in_tasks == count([](const Slot& slot) { return slot.progress == Progress::in_task; }));
    for (std::uint32_t f = 0; f < rounds_.size(); ++f) {
      const Slot& slot = client.slots[f];
      GOSSAMER_CHECK(slot.changes <= rounds_[f].changes || slot.changes == never_offered);
      GOSSAMER_CHECK(slot.offer != Offer::awaited || rounds_[f].is_under_way());
      GOSSAMER_CHECK(slot.progress == Progress::none || slot.adoption == Adoption::done);
    }
  }
}

}  // namespace gossamer::gossip
