#include "gossip/replica/neighbours.hpp"

#include <algorithm>
#include <set>

#include "gossip/replica/finishing.hpp"
#include "gossip/replica/pace.hpp"
#include "gossip/smoothed.hpp"

namespace gossamer::gossip {

namespace {

constexpr TimeUs begin_backlog_us = 250 * us_per_ms;  // with a longer queue on a link, no exchange is begun over it
constexpr TimeUs answer_backlog_us = 1 * us_per_s;    // with a longer queue, no request over it is answered
constexpr int busy_tolerated = 3;                     // busy replies in a row before a partner rests
constexpr int max_rest_doublings = 20;
// The longest rest of a partner that is busy is the longest of a period, least_longest_rest_us, and the time for which
// it has been busy, divided by rest_share. It is also at most max_rest_us, unless a busy wait is longer.
constexpr TimeUs least_longest_rest_us = 250 * us_per_ms;
constexpr TimeUs rest_share = 8;
constexpr TimeUs max_rest_us = 30 * us_per_s;
constexpr TimeUs yield_factor = 8;  // a neighbour that has waited this many times as long as another goes first
constexpr TimeUs yield_least_us = 1 * us_per_s;  // a neighbour goes first only after this wait, if it still asks
constexpr std::size_t max_window = 4096;
constexpr int mute_overdue = 3;        // requests in a row without an answer in time, after which not much is expected
constexpr int unanswered_overdue = 5;  // a request that was given up counts at least as many: a rest of 16 s
constexpr TimeUs max_overdue_rest_us = 60 * us_per_s;  // longest rest of a neighbour that answers nothing
constexpr double patience_answers = 4;                 // a message is sent again after this many usual answer times

/// How long after its last request a node counts as one that still asks.
TimeUs still_asks_us(TimeUs period_us) {
  return std::max(yield_least_us, 2 * std::min(period_us, max_rest_us));
}

/// True as long as it has let several requests in a row wait.
bool answers_nothing(const Neighbour& neighbour) {
  return neighbour.overdue_in_a_row >= mute_overdue;
}

bool have_one_sponsor(const Neighbour& one, const Neighbour& other) {
  return one.sponsor != no_sponsor && one.sponsor == other.sponsor;
}

}  // namespace

Neighbour* Neighbours::find(const NodeId& node) {
  const auto found = table_.find(node);
  return found == table_.end() ? nullptr : &found->second;
}

const Neighbour* Neighbours::find(const NodeId& node) const {
  const auto found = table_.find(node);
  return found == table_.end() ? nullptr : &found->second;
}

Sponsor Neighbours::sponsor_of(const NodeId& node) const {
  const Neighbour* neighbour = find(node);
  return neighbour == nullptr ? no_sponsor : neighbour->sponsor;
}

std::size_t Neighbours::linked() const {
  return static_cast<std::size_t>(std::ranges::count_if(table_, [](const auto& item) { return item.second.linked; }));
}

Neighbours::Voices Neighbours::voices(Sponsor sponsor, bool servers, TimeUs since_us) const {
  Voices voices;
  std::set<Sponsor> of_all;
  std::set<Sponsor> of_active;
  const auto is_new = [](std::set<Sponsor>& sponsors, Sponsor one) {
    return one == no_sponsor || sponsors.insert(one).second;
  };
  for (const auto& [node, neighbour] : table_) {
    if (!averages_with(neighbour, servers)) continue;
    const bool active = neighbour.exchanged_us > since_us;
    const bool may_be_mute = neighbour.info.quarantined || answers_nothing(neighbour);
    if (may_be_mute && !active) continue;
    if (neighbour.sponsor == sponsor) ++voices.nodes;
    if (is_new(of_all, neighbour.sponsor)) ++voices.all;
    if (active && is_new(of_active, neighbour.sponsor)) ++voices.active;
  }
  return voices;
}

// --- coming and going ---------------------------------------------------------------------------------------------

Neighbour* Neighbours::link_up(const NodeId& node, Sponsor sponsor, double bytes_per_s,
                               std::optional<NodeId>& displaced) {
  if (table_.size() >= max_neighbours && !table_.contains(node)) {
    const auto unlinked = std::ranges::find_if(table_, [](const auto& item) { return !item.second.linked; });
    if (unlinked == table_.end()) return nullptr;
    displaced = unlinked->first;
    table_.erase(unlinked);
  }
  Neighbour& neighbour = table_[node];
  neighbour.linked = true;
  neighbour.sponsor = sponsor;
  neighbour.overdue_in_a_row = 0;
  neighbour.info.state = ReplicaState::absent;  // until it reports: its replica may have gone meanwhile
  neighbour.budget.set_rate(bytes_per_s);
  return &neighbour;
}

void Neighbours::link_down(const NodeId& node) {
  Neighbour* const neighbour = find(node);
  if (neighbour == nullptr) return;
  losses_ += goes_on(*neighbour) ? 1 : 0;
  neighbour->linked = false;
}

void Neighbours::erase(const NodeId& node) {
  link_down(node);
  table_.erase(node);
  if (layout_stranger_ == node) layout_stranger_.reset();
}

Neighbours::News Neighbours::note(const NodeId& from, Neighbour& neighbour, const JobInfo& info, TimeUs now_us) {
  const JobInfo& before = neighbour.info;
  const bool stirring = info.clock != before.clock || info.state != before.state ||
                        info.finishing != before.finishing || info.quarantined != before.quarantined ||
                        info.job != before.job;
  const bool unknown = before.state == ReplicaState::absent && before.finishing == Finishing::no;
  neighbour.over_before = (neighbour.over_before || unknown) && info.finishing == Finishing::over;
  if (info.clock != before.clock || before.state == ReplicaState::absent) neighbour.trained_us = now_us;
  const bool went_on = goes_on(neighbour);
  neighbour.info = info;
  losses_ += went_on && !is_partner(neighbour) && info.finishing != Finishing::over ? 1 : 0;
  if (info.job == job_ || info.state == ReplicaState::absent) {
    if (layout_stranger_ == from) layout_stranger_.reset();
  } else {
    layout_stranger_ = from;
  }
  return stirring ? News::stirring : News::nothing;
}

void Neighbours::begin_finish() {
  for (auto& [node, neighbour] : table_)
    neighbour.over_before = neighbour.info.finishing == Finishing::over;
}

bool Neighbours::any_over_before() const {
  return std::ranges::any_of(table_,
                             [this](const auto& item) { return is_partner(item.second) && item.second.over_before; });
}

void Neighbours::set_rates(double bytes_per_s) {
  for (auto& [node, neighbour] : table_)
    neighbour.budget.set_rate(bytes_per_s);
}

void Neighbours::set_link(const NodeId& node, const LinkLoad& load) {
  if (Neighbour* neighbour = find(node)) neighbour->load = load;
}

// --- who they are -------------------------------------------------------------------------------------------------

bool Neighbours::is_linked(const NodeId& node) const {
  const Neighbour* neighbour = find(node);
  return neighbour != nullptr && neighbour->linked;
}

bool Neighbours::is_in(const Neighbour& neighbour, ReplicaState state) const {
  return neighbour.linked && neighbour.info.job == job_ && neighbour.info.state == state;
}

bool Neighbours::is_partner(const Neighbour& neighbour) const {
  return is_in(neighbour, ReplicaState::running);
}

bool Neighbours::goes_on(const Neighbour& neighbour) const {
  return is_partner(neighbour) && neighbour.info.finishing != Finishing::over;
}

bool Neighbours::finishes(const Neighbour& neighbour) const {
  return is_sound(neighbour) && neighbour.info.finishing != Finishing::no && !neighbour.over_before;
}

bool Neighbours::is_sound(const Neighbour& neighbour) const {
  return is_partner(neighbour) && !neighbour.info.quarantined;
}

std::size_t Neighbours::partners() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(table_, [this](const auto& item) { return is_partner(item.second); }));
}

Neighbours::Holding Neighbours::holding() const {
  Holding holding;
  std::vector<TimeUs> known_us;
  for (const auto& [node, neighbour] : table_) {
    if (!is_partner(neighbour) || answers_nothing(neighbour)) continue;
    ++holding.partners;
    if (neighbour.held.usual_us() > 0) known_us.push_back(neighbour.held.usual_us());
  }
  if (known_us.empty()) return holding;
  const auto median = known_us.begin() + static_cast<std::ptrdiff_t>((known_us.size() - 1) / 2);
  std::ranges::nth_element(known_us, median);
  holding.median_us = *median;
  return holding;
}

std::size_t Neighbours::sound_partners() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(table_, [this](const auto& item) { return is_sound(item.second); }));
}

std::size_t Neighbours::trainers(ReplicaState state) const {
  return static_cast<std::size_t>(std::ranges::count_if(table_, [this, state](const auto& item) {
    const auto& [node, neighbour] = item;
    return is_in(neighbour, state) && !neighbour.info.keeps;
  }));
}

NodeId Neighbours::first_trainer() const {
  const auto first = [this](bool finishing) {
    NodeId smallest;
    smallest.bytes.fill(255);
    for (const auto& [node, neighbour] : table_) {
      if (!is_partner(neighbour) || neighbour.info.keeps || (finishing && !finishes(neighbour))) continue;
      smallest = std::min(smallest, node);
    }
    return smallest;
  };
  return finishing_partners() > 0 ? first(true) : first(false);
}

std::size_t Neighbours::finishing_partners() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(table_, [this](const auto& item) { return finishes(item.second); }));
}

std::vector<NodeId> Neighbours::idle_since(TimeUs then_us) const {
  std::vector<NodeId> idle;
  for (const auto& [node, neighbour] : table_) {
    const bool may_train = is_sound(neighbour) && !neighbour.info.keeps && neighbour.info.finishing == Finishing::no;
    if (may_train && neighbour.trained_us < then_us) idle.push_back(node);
  }
  return idle;
}

std::vector<NodeId> Neighbours::owners(bool self_keeps) const {
  const auto may_own = [this](const auto& item) { return is_sound(item.second) && !item.second.info.follows; };
  const bool only_keepers = self_keeps || std::ranges::any_of(table_, [&](const auto& item) {
                              return may_own(item) && item.second.info.keeps;
                            });
  std::vector<NodeId> owners;
  for (const auto& item : table_) {
    if (may_own(item) && (item.second.info.keeps || !only_keepers)) owners.push_back(item.first);
  }
  if (self_keeps || !only_keepers) owners.insert(std::ranges::lower_bound(owners, self_), self_);
  return owners;
}

bool Neighbours::trainers_finish() const {
  bool some = false;
  for (const auto& [node, neighbour] : table_) {
    if (!is_partner(neighbour) || neighbour.info.keeps) continue;
    if (neighbour.info.finishing == Finishing::no) return false;
    some = true;
  }
  return some;
}

const NodeId* Neighbours::only_partner() const {
  const NodeId* only = nullptr;
  for (const auto& [node, neighbour] : table_) {
    if (!is_partner(neighbour)) continue;
    if (only != nullptr) return nullptr;
    only = &node;
  }
  return only;
}

std::vector<NodeId> Neighbours::members() const {
  std::vector<NodeId> members{self_};
  for (const auto& [node, neighbour] : table_) {
    if (is_partner(neighbour)) members.push_back(node);
  }
  std::ranges::sort(members);
  return members;
}

// --- what exchanges teach about them ------------------------------------------------------------------------------

void Neighbours::note_busy(const NodeId& node, TimeUs now_us) {
  Neighbour* neighbour = find(node);
  if (neighbour == nullptr) return;
  ++neighbour->busy;
  if (neighbour->busy_in_a_row++ == 0) neighbour->busy_since_us = now_us;
  neighbour->busy_us = now_us;
}

void Neighbours::note_reply(const NodeId& node) {
  Neighbour* neighbour = find(node);
  if (neighbour == nullptr) return;
  neighbour->overdue_in_a_row = 0;
  neighbour->window = std::min(neighbour->window + 1, max_window);
}

void Neighbours::note_overdue(const NodeId& node, TimeUs now_us) {
  Neighbour* neighbour = find(node);
  if (neighbour == nullptr) return;
  ++neighbour->overdue_in_a_row;
  neighbour->overdue_us = now_us;
  neighbour->window = std::max<std::size_t>(neighbour->window / 2, 1);
}

void Neighbours::note_unanswered(const NodeId& node, TimeUs took_us, TimeUs now_us) {
  note_overdue(node, now_us);
  Neighbour* neighbour = find(node);
  if (neighbour == nullptr) return;
  neighbour->held.observe(took_us);
  if (partners() < 2) return;  // it holds up nobody else
  neighbour->overdue_in_a_row = std::max(neighbour->overdue_in_a_row, unanswered_overdue);
}

void Neighbours::note_held(const NodeId& node, TimeUs took_us) {
  if (Neighbour* neighbour = find(node)) neighbour->held.observe(took_us);
}

TimeUs Neighbours::rests_until_us(const Neighbour& neighbour, TimeUs period_us, bool hurry) {
  const int overdue = std::min(neighbour.overdue_in_a_row, max_rest_doublings);
  const TimeUs overdue_rest_us = overdue > 1 ? std::min(us_per_s << (overdue - 1), max_overdue_rest_us) : 0;
  const TimeUs answers_us = neighbour.overdue_us + overdue_rest_us;
  if (neighbour.busy_in_a_row < busy_tolerated) return std::max(neighbour.busy_us, answers_us);
  const int doublings = std::min(neighbour.busy_in_a_row - busy_tolerated, max_rest_doublings);
  const TimeUs busy_us = period_us / busy_wait_divisor;
  const TimeUs base_us = hurry ? std::min(busy_us, finish_wait_us) : busy_us;
  const TimeUs rest_us = std::max(base_us, us_per_ms) * (TimeUs{1} << doublings);
  const TimeUs busy_for_us = hurry ? 0 : neighbour.busy_us - neighbour.busy_since_us;
  const TimeUs usual_us = std::max({period_us, least_longest_rest_us, busy_for_us / rest_share});
  const TimeUs longest_us = std::min(usual_us, max_rest_us);
  return std::max(neighbour.busy_us + std::min(rest_us, std::max(base_us, longest_us)), answers_us);
}

void Neighbours::note_answer(const NodeId& node, TimeUs now_us) {
  Neighbour* neighbour = find(node);
  if (neighbour == nullptr) return;
  neighbour->answered_us = now_us;
  neighbour->waits_since_us.reset();
}

void Neighbours::note_waits(const NodeId& node, TimeUs now_us, bool for_share) {
  Neighbour* neighbour = find(node);
  if (neighbour == nullptr) return;
  if (!neighbour->waits_since_us) neighbour->waits_since_us = now_us;
  neighbour->waited_us = now_us;
  neighbour->waits_for_share = for_share;
  if (for_share) waited_for_share_us_ = now_us;
}

/// True if the node has asked in vain for longer than this, and still asks.
bool Neighbours::has_waited(const Neighbour& neighbour, TimeUs wait_us, TimeUs period_us, TimeUs now_us) const {
  return is_partner(neighbour) && neighbour.waits_since_us && now_us - *neighbour.waits_since_us > wait_us &&
         now_us - neighbour.waited_us < still_asks_us(period_us);
}

bool Neighbours::is_to_yield(const Neighbour& neighbour, TimeUs period_us, TimeUs now_us) const {
  const TimeUs wait_us = std::max(yield_factor * (now_us - neighbour.answered_us), yield_least_us);
  return std::ranges::any_of(table_, [&](const auto& item) {
    const Neighbour& other = item.second;
    return (!other.waits_for_share || have_one_sponsor(other, neighbour)) &&
           has_waited(other, wait_us, period_us, now_us);
  });
}

bool Neighbours::leaves_share(const Neighbour& neighbour, TimeUs period_us, TimeUs now_us) const {
  if (now_us - waited_for_share_us_ >= still_asks_us(period_us)) return false;
  return std::ranges::any_of(table_, [&](const auto& item) {
    const Neighbour& other = item.second;
    return other.waits_for_share && have_one_sponsor(other, neighbour) && &other != &neighbour &&
           has_waited(other, yield_least_us, period_us, now_us);
  });
}

void Neighbours::observe_answer(const NodeId& from, std::size_t bytes, TimeUs took_us) {
  Neighbour* neighbour = find(from);
  if (neighbour == nullptr || took_us <= 0) return;
  const double rate = static_cast<double>(bytes) / static_cast<double>(took_us) * us_per_s;
  neighbour->answer_us = smoothed(neighbour->answer_us, static_cast<double>(took_us));
  neighbour->goodput = smoothed(neighbour->goodput, rate);
}

void Neighbours::observe_age(const NodeId& partner, const Age& age) {
  Neighbour* neighbour = find(partner);
  if (neighbour == nullptr || age.cadence == 0) return;
  const double intervals = static_cast<double>(age.samples) / static_cast<double>(age.cadence);
  neighbour->age_intervals = smoothed(neighbour->age_intervals, intervals);
}

bool Neighbours::has_room(const Neighbour& neighbour, std::size_t fragment_bytes) {
  if (neighbour.own_count >= neighbour.window) return false;
  const LinkLoad& load = neighbour.load;
  if (load.backlog_us > begin_backlog_us) return false;
  if (load.bytes_per_s <= 0 || neighbour.own_count == 0) return true;
  // One request more than can be sent in begin_backlog_us may be under way, so that the link is never idle.
  const double fit =
      load.bytes_per_s * static_cast<double>(begin_backlog_us) / us_per_s / static_cast<double>(fragment_bytes);
  return static_cast<double>(neighbour.own_count) < 1 + fit;
}

bool Neighbours::may_answer(const Neighbour& neighbour, std::size_t debt_bytes, TimeUs now_us) {
  if (!neighbour.budget.open_in_debt(now_us, debt_bytes)) return false;
  const LinkLoad& load = neighbour.load;
  const double debt_us = load.bytes_per_s > 0 ? static_cast<double>(debt_bytes) / load.bytes_per_s * us_per_s : 0;
  return static_cast<double>(load.backlog_us) <= std::max(static_cast<double>(answer_backlog_us), debt_us);
}

TimeUs Neighbours::patience_us(const NodeId& node, TimeUs info_period_us, TimeUs lifetime_us) const {
  const Neighbour* neighbour = find(node);
  const double usual_us = neighbour == nullptr ? 0 : neighbour->answer_us;
  return std::clamp(static_cast<TimeUs>(usual_us * patience_answers), info_period_us,
                    std::max(lifetime_us / 4, info_period_us));
}

double Neighbours::goodput(const NodeId& node) const {
  const Neighbour* neighbour = find(node);
  return neighbour == nullptr ? 0 : neighbour->goodput;
}

std::vector<PartnerReport> Neighbours::reports() const {
  std::vector<PartnerReport> reports;
  for (const auto& [node, neighbour] : table_) {
    const bool stranger = neighbour.info.state != ReplicaState::absent && neighbour.info.job != job_;
    reports.push_back({.node = node,
                       .info = neighbour.info,
                       .linked = neighbour.linked,
                       // The stranger is not forgotten while a new link to it has brought no report yet.
                       .other_layout = stranger || layout_stranger_ == node,
                       .exchanges = neighbour.exchanges,
                       .busy = neighbour.busy,
                       .exchanged_us = neighbour.exchanged_us,
                       .answer_us = neighbour.answer_us,
                       .bytes_per_s = neighbour.goodput,
                       .relative_distance = neighbour.relative_distance,
                       .blocks = neighbour.blocks,
                       .wide_blocks = neighbour.wide_blocks,
                       .unresolved = neighbour.unresolved,
                       .age_intervals = neighbour.age_intervals});
  }
  return reports;
}

}  // namespace gossamer::gossip
