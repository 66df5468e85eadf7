#include "gossip/group/ending.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::gossip {

namespace {

/// Shortest time between two looks at the clients. A program that stops and trains by turns makes its node tell the
/// neighbours no more often than this.
constexpr TimeUs finishing_period_us = 5 * us_per_ms;

}  // namespace

void Ending::look(Member& client) {
  const bool news = client.look_at_finishing();
  again_ = again_ || (news && !is_left_out(client));
}

void Ending::watch(const Group::Members& clients, TimeUs now_us) {
  if (clients.empty() || now_us - seen_us_ < finishing_period_us) return;
  seen_us_ = now_us;
  const bool again = std::exchange(again_, false);
  const bool nobody = std::ranges::all_of(clients, [this](const auto& client) { return is_left_out(*client); });
  const bool all = std::ranges::all_of(
      clients, [&](const auto& client) { return client->finishing() != 0 || (!nobody && is_left_out(*client)); });
  if (training_ == Training::finishing && (again || !all || told_ != programs(clients))) {
    saver_.reset();
    set_finishing(Programs::train, now_us);
  }
  if (training_ != Training::finishing) training_ = all ? Training::stopped : Training::go_on;
  if (training_ == Training::stopped && is_even(clients)) set_finishing(programs(clients), now_us);
  const FinishReport report = replica_.finish_report();
  const bool over = training_ == Training::finishing && report.over && is_even(clients);
  const std::uint64_t first = first_sound(clients);
  // The saver is remembered: the first client may be gone before the others have heard that all is over.
  if (over && !saver_) saver_ = first;
  for (const auto& client : clients) {
    if (client->finishing() != 0) answer(*client, report, over, client->number() == saver_.value_or(first));
  }
}

TimeUs Ending::round_period_us(TimeUs period_us) const {
  return training_ == Training::go_on ? period_us : std::min(period_us, finish_wait_us);
}

void Ending::set_finishing(Programs programs, TimeUs now_us) {
  told_ = programs;
  training_ = programs == Programs::train ? Training::stopped : Training::finishing;
  executor_.decide([&](Actions& out) { replica_.set_finishing(programs, now_us, out); });
}

/// What the programs do, if all have stopped. While the replica finishes, its clients hear one after the other that all
/// is over; that changes nothing for the replica.
Programs Ending::programs(const Group::Members& clients) const {
  if (std::ranges::all_of(clients,
                          [this](const auto& client) { return client->keeps() || group_.is_quarantined(*client); }))
    return Programs::finish_spoiled;
  const bool over =
      std::ranges::all_of(clients, [](const auto& client) { return client->keeps() || client->has_finished(); });
  return over && told_ != Programs::finish ? Programs::have_finished : Programs::finish;
}

bool Ending::is_left_out(const Member& client) const {
  return client.keeps() || (group_.is_quarantined(client) && client.waits_for_nothing());
}

std::set<std::uint64_t> Ending::left_out(const Group::Members& clients) const {
  std::set<std::uint64_t> numbers;
  for (const auto& client : clients) {
    if (is_left_out(*client) || client->has_finished()) numbers.insert(client->number());
  }
  return numbers;
}

/// All clients that are not left out hold the same model.
bool Ending::is_even(const Group::Members& clients) const {
  return !group_.is_shared() || group_.local().even(left_out(clients));
}

void Ending::answer(Member& client, FinishReport report, bool over, bool is_first) {
  // The node's copy does not contain what a quarantined client publishes.
  const bool quarantined = group_.is_quarantined(client);
  if (quarantined) {
    report = spoiled_report(report.members, report.clock);
    report.spoiled = is_left_out(client) || group_.local().even();  // even() includes all publications since
  }
  client.answer_finishing(
      {.number = client.finishing(),
       .members = static_cast<std::uint16_t>(std::min<std::size_t>(report.members, max_members_told)),
       .agreed = over && !quarantined,
       .saver = report.saver && is_first,
       .spoiled = report.spoiled,
       .distance = report.distance,
       .clock = report.clock});
}

/// The first client that has stopped training, is not quarantined, and has still to be told that all is over. If there
/// is none, the first client. One that trains on, or hangs, could not save: where time is up, the others are told
/// before it has stopped.
std::uint64_t Ending::first_sound(const Group::Members& clients) const {
  const auto sound = std::ranges::find_if(clients, [this](const auto& client) {
    return client->finishing() != 0 && !client->keeps() && !group_.is_quarantined(*client) && !client->has_finished();
  });
  return (sound == clients.end() ? clients.front() : *sound)->number();
}

}  // namespace gossamer::gossip
