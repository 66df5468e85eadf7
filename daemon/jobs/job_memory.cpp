#include "daemon/jobs/job_memory.hpp"

#include <algorithm>

#include "daemon/clients/reply_records.hpp"

namespace gossamer::daemon {

JobMemory::JobMemory(std::shared_ptr<JobClient> first, std::shared_ptr<NodeMemory> node, std::uint64_t number)
    : first_(std::move(first)), node_(std::move(node)), numbers_(first_->memory().fragment_count(), number) {
  advance_numbers(*first_);
}

void JobMemory::advance_numbers(const JobClient& client) {
  for (std::uint32_t f = 0; f < numbers_.size(); ++f)
    numbers_[f] = std::max(numbers_[f], client.last_noted(f));
}

void JobMemory::store_given_up(std::uint64_t counter) {
  node_->store_given_up(counter);
}

void JobMemory::store_own_halves(std::uint32_t f, const gossip::OwnHalves& halves) {
  node_->store_own_halves(f, halves);
}

bool JobMemory::write_record(std::uint32_t place, const NodeId& initiator, const ExchangeReply& reply,
                             const gossip::AnsweredHalf& half) {
  return daemon::write_record(*node_, place, initiator, reply, half);
}

void JobMemory::seal_record(std::uint32_t place, std::uint32_t commits) {
  daemon::seal_record(*node_, place, commits);
}

void JobMemory::note_undone(std::uint32_t place, std::uint32_t commits) {
  daemon::note_undone(*node_, place, commits);
}

void JobMemory::clear_record(std::uint32_t place) {
  daemon::clear_record(*node_, place);
}

/// For a gathered fragment, stores which buffer of the node's copy counts; else the parts go into the client's word.
void JobMemory::store_parts(std::uint32_t f, const gossip::FragmentBuffers& buffers) {
  if (buffers.gathered()) {
    auto copy = node_->copy(f);
    if (!copy) return;
    copy->buffer = buffers.copy();
    copy->commits = buffers.parts().commits;
    return node_->store_copy(f, *copy);
  }
  const gossip::FragmentParts& parts = buffers.parts();
  const gossip::FragmentParts& stored = first_->word(f);
  if (parts == stored || stored.with_client) return;
  if (stored.generation != parts.generation) return;  // the replica has yet to take a publication
  if (parts.with_client) first_->note_alone(f, ++numbers_[f]);
  first_->store(f, parts);
}

void JobMemory::tell_due() {
  if (first_) first_->tell_due();
}

bool JobMemory::recall(std::uint32_t f) {
  return first_->due(f) && first_->recall(f);
}

int JobMemory::provide(std::uint32_t f) {
  return first_->memory().provide(f);
}

void JobMemory::vacate(std::uint32_t f) {
  first_->memory().vacate(f);
}

}  // namespace gossamer::daemon
