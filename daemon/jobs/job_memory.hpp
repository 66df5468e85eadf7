// Where a job's replica is, and what of it outlives the daemon: the memory of the job's first client, as long as the
// fragments are not gathered, and the node's own memory (daemon/clients/node_memory.hpp) for the rest.
//
// Every copy of a fragment that clients are handed has a number, which rises: what clients note of it tells a successor
// which of their publications it contains (gossip/group/receipts.hpp).
//
// Owned by Job. On the loop's thread, but for what gossip::ReplicaMemory says may be called on any.

#pragma once

#include <memory>
#include <vector>

#include "daemon/clients/node_memory.hpp"
#include "daemon/jobs/job_client.hpp"
#include "gossip/group/group.hpp"

namespace gossamer::daemon {

class JobMemory : public gossip::ReplicaMemory, public gossip::CopyMemory {
 public:
  /// `number`: above every one of an earlier life.
  JobMemory(std::shared_ptr<JobClient> first, std::shared_ptr<NodeMemory> node, std::uint64_t number);

  /// The client in whose memory the replica is, as far as it is not gathered. Null: it is gone, and nothing is in it.
  [[nodiscard]] const std::shared_ptr<JobClient>& first() const { return first_; }
  void set_first(std::shared_ptr<JobClient> client) { first_ = std::move(client); }
  [[nodiscard]] const std::shared_ptr<NodeMemory>& node() const { return node_; }
  /// A client's receipts name copies up to this one.
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
  void store_given_up(std::uint64_t counter) override;
  void store_own_halves(std::uint32_t f, const gossip::OwnHalves& halves) override;
  bool write_record(std::uint32_t place, const NodeId& initiator, const ExchangeReply& reply,
                    const gossip::AnsweredHalf& half) override;
  void seal_record(std::uint32_t place, std::uint32_t commits) override;
  void note_undone(std::uint32_t place, std::uint32_t commits) override;
  void clear_record(std::uint32_t place) override;
  void store_parts(std::uint32_t f, const gossip::FragmentBuffers& buffers) override;
  void tell_due() override;
  bool recall(std::uint32_t f) override;
  int provide(std::uint32_t f) override;
  void vacate(std::uint32_t f) override;

 private:
  std::shared_ptr<JobClient> first_;
  const std::shared_ptr<NodeMemory> node_;
  std::vector<std::uint64_t> numbers_;
};

}  // namespace gossamer::daemon
