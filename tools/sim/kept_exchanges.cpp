#include "tools/sim/kept_exchanges.hpp"

namespace gossamer::sim {

namespace {

/// The value of docs/reference/shared-memory.md.
constexpr std::uint32_t record_places = 16;  // the smallest number of places that clients have

}  // namespace

void KeptExchanges::restore(gossip::Replica& replica, gossip::Executor& executor, TimeUs now_us) {
  gossip::ReplyCache& replies = replica.book().replies();
  replies.set_capacity(record_places);
  if (given_up.floor > 0) replica.book().remember(given_up);
  for (const auto& [f, halves] : own_halves)
    replica.remember(f, halves);
  given_up = replica.book().given_up();
  executor.decide([&](gossip::Actions& out) { replica.take_settings(settings, out); });
  std::erase_if(records, [&](const auto& item) {
    const Record& record = item.second;
    const std::uint32_t commits = replica.buffers(record.reply.fragment).parts().commits;
    return !record.commits || !gossip::reached(commits, *record.commits) ||
           (record.undone && gossip::reached(commits, *record.undone));
  });
  for (const auto& [place, record] : records) {
    executor.note_record(place);
    replies.restore(record.id, place, record.reply, record.half, now_us);
  }
}

}  // namespace gossamer::sim
