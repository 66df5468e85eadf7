// Where a job's replica is, and what of it outlives the daemon. Fragments that are not gathered are in the memory of
// the job's first client; everything else is in the node's own memory (daemon/clients/node_memory.hpp).
//
// Every copy of a fragment that clients are offered has a number, and the numbers rise. A client's receipts name them;
// from these the next daemon knows which publications a copy contains (gossip/group/receipts.hpp).
//
// Owned by Job, on the loop's thread, except for the calls that gossip::ReplicaMemory allows on any thread.

#pragma once

#include <memory>
#include <vector>

#include "daemon/clients/node_memory.hpp"
#include "daemon/clients/reply_records.hpp"
#include "daemon/jobs/job_client.hpp"
#include "gossip/group/group.hpp"

namespace gossamer::daemon {

class JobMemory : public gossip::ReplicaMemory, public gossip::CopyMemory {
 public:
  /// `number` is larger than every number that an earlier daemon has used.
  JobMemory(std::shared_ptr<JobClient> first, std::shared_ptr<NodeMemory> node, std::uint64_t number);

  /// The client whose memory holds the fragments that are not gathered. Null: the client has gone, and its memory is
  /// not needed any more.
  [[nodiscard]] const std::shared_ptr<JobClient>& first() const { return first_; }
  void set_first(std::shared_ptr<JobClient> client) { first_ = std::move(client); }
  [[nodiscard]] const std::shared_ptr<NodeMemory>& node() const { return node_; }
  /// Raises each number to the largest one in the client's receipts, if that is larger.
  void advance_numbers(const JobClient& client);

  // --- gossip::CopyMemory
  [[nodiscard]] std::uint64_t& number(std::uint32_t f) override { return numbers_[f]; }
  [[nodiscard]] std::optional<Copy> copy(std::uint32_t f) const override { return node_->copy(f); }
  void store_copy(std::uint32_t f, const Copy& copy) override { node_->store_copy(f, copy); }
  [[nodiscard]] float* copy_buffer(std::uint32_t f, std::uint8_t index) const override {
    return node_->buffer(f, index);
  }
  [[nodiscard]] bool take_copy_buffers(std::uint32_t f) const override { return node_->take_buffers(f); }
  [[nodiscard]] std::vector<gossip::Gap> gaps(std::uint32_t f) const override { return node_->gaps(f); }
  void add_gap(std::uint32_t f, const gossip::Gap& gap) override { node_->add_gap(f, gap); }

  // --- gossip::ReplicaMemory
  void store_given_up(std::uint64_t counter) override { node_->store_given_up(counter); }
  void store_own_halves(std::uint32_t f, const gossip::OwnHalves& halves) override {
    node_->store_own_halves(f, halves);
  }
  bool write_record(std::uint32_t place, const NodeId& initiator, const ExchangeReply& reply,
                    const gossip::AnsweredHalf& half) override {
    return daemon::write_record(*node_, place, initiator, reply, half);
  }
  void seal_record(std::uint32_t place, std::uint32_t commits) override { daemon::seal_record(*node_, place, commits); }
  void note_undone(std::uint32_t place, std::uint32_t commits) override { daemon::note_undone(*node_, place, commits); }
  void clear_record(std::uint32_t place) override { daemon::clear_record(*node_, place); }
  void store_parts(std::uint32_t f, const gossip::FragmentBuffers& buffers) override {
    gossip::store_parts(f, buffers, *this, first_.get());
  }
  void tell_due() override {
    if (first_) first_->tell_due();
  }
  bool recall(std::uint32_t f) override { return first_->due(f) && first_->recall(f); }
  int provide(std::uint32_t f) override { return first_->memory().provide(f); }
  void vacate(std::uint32_t f) override { first_->memory().vacate(f); }

 private:
  std::shared_ptr<JobClient> first_;
  const std::shared_ptr<NodeMemory> node_;
  std::vector<std::uint64_t> numbers_;
};

}  // namespace gossamer::daemon
