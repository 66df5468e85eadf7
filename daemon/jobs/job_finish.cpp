// What the programs of a job share beside the model: their place in the data, who takes part, and the end of the run.
//
// Several clients of a node are one replica: it finishes once all of them have stopped training and hold the same
// model, and of them the one that came first is the saver, if the node has it. One that is quarantined is left out of
// all that once it has been told so, or while it trains on.

#include <algorithm>

#include "daemon/jobs/job.hpp"

namespace gossamer::daemon {

namespace {

/// A program that stops and trains in turns makes its node say so to the neighbours no more often than this.
constexpr TimeUs finishing_period_us = 5 * us_per_ms;

}  // namespace

/// A program's own, unless all are from before the model was taken over: of several, that of the client which has
/// trained most.
std::vector<std::byte> Job::cursor() const {
  const JobClient* furthest = nullptr;
  for (const auto& client : clients_) {
    if (!client->has_own_cursor()) continue;
    if (furthest == nullptr || client->clock() > furthest->clock()) furthest = client.get();
  }
  if (furthest != nullptr) return furthest->memory().own_cursor();
  return clients_.empty() ? std::vector<std::byte>{} : clients_.front()->memory().job_cursor();
}

void Job::tell_place(JobClient& client) {
  const auto index = static_cast<std::uint32_t>(
      std::find_if(clients_.begin(), clients_.end(), [&](const auto& one) { return one.get() == &client; }) -
      clients_.begin());
  // Those that are waited for count: this daemon may die before they are back.
  client.memory().set_place(index, std::max(static_cast<std::uint32_t>(clients_.size()), awaited_clients_));
  client.tell_members(replica_.neighbours().members());
}

void Job::tell_places() {
  for (const auto& client : clients_)
    tell_place(*client);
}

/// What the clients have asked for, and how far it has come.
void Job::watch_finishing() {
  if (ended_ || clients_.empty() || host_.now_us() - finishing_seen_us_ < finishing_period_us) return;
  finishing_seen_us_ = host_.now_us();
  bool again = false;
  for (const auto& client : clients_) {
    const bool news = client->look_at_finishing();
    again = again || (news && !is_left_out(*client));
  }
  const bool nobody = left_out().size() == clients_.size();
  const bool all = std::ranges::all_of(
      clients_, [&](const auto& client) { return client->finishing() != 0 || (!nobody && is_left_out(*client)); });
  all_stopped_ = all;
  if (finishing_ && (again || !all)) {
    finishing_ = false;
    saver_.reset();
    decide([&](Actions& out) { replica_.set_finishing(false, host_.now_us(), out); });
  }
  if (!finishing_ && all && is_even()) {
    finishing_ = true;
    decide([&](Actions& out) { replica_.set_finishing(true, host_.now_us(), out); });
  }
  for (const auto& client : clients_) {
    if (client->finishing() != 0) answer_finishing(*client);
  }
}

bool Job::is_left_out(const JobClient& client) const {
  return group_.is_quarantined(client) && client.waits_for_nothing();
}

std::set<std::uint64_t> Job::left_out() const {
  std::set<std::uint64_t> numbers;
  for (const auto& client : clients_) {
    if (is_left_out(*client)) numbers.insert(client->number());
  }
  return numbers;
}

/// All clients that are not left out hold the same.
bool Job::is_even() const {
  return !group_.is_shared() || group_.local().even(left_out());
}

void Job::answer_finishing(JobClient& client) {
  gossip::FinishReport report = replica_.finish_report();
  const bool over = finishing_ && report.over && is_even();
  // Once it is over the first client may be gone before the others have heard.
  if (over && !saver_) saver_ = first_sound_client();
  const bool first = client.number() == saver_.value_or(first_sound_client());
  // The node's copy is without what a quarantined client publishes.
  const bool quarantined = group_.is_quarantined(client);
  if (quarantined) {
    report = gossip::spoiled_report(report.members);
    report.spoiled = is_left_out(client) || group_.local().even();  // with all that the clients have published since
  }
  client.answer_finishing(
      {.number = client.finishing(),
       .members = static_cast<std::uint16_t>(std::min<std::size_t>(report.members, gossip::max_members_told)),
       .agreed = over && !quarantined,
       .saver = report.saver && first,
       .spoiled = report.spoiled},
      report.distance);
}

/// Of several clients, the first that is not quarantined; else the first.
std::uint64_t Job::first_sound_client() const {
  const auto sound =
      std::ranges::find_if(clients_, [this](const auto& client) { return !group_.is_quarantined(*client); });
  return (sound == clients_.end() ? clients_.front() : *sound)->number();
}

}  // namespace gossamer::daemon
