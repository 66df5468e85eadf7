// The data that a simulated daemon leaves to its successor: records of replies, which halves of its own exchanges are
// committed, which exchanges it has given up, and the job's settings. It does what daemon/clients/reply_records.hpp and
// daemon/clients/node_memory.hpp do in shared memory.

#pragma once

#include <map>
#include <optional>

#include "gossip/replica/executor.hpp"

namespace gossamer::sim {

struct KeptExchanges {
  /// The record of a reply.
  struct Record {
    ExchangeId id;
    ExchangeReply reply;
    gossip::AnsweredHalf half;
    std::optional<std::uint32_t> commits = {};  ///< the record counts at this count of the fragment's commits
    std::optional<std::uint32_t> undone = {};   ///< the record is undone at this count
  };
  std::map<std::uint32_t, Record> records;                ///< key: the place
  std::map<std::uint32_t, gossip::OwnHalves> own_halves;  ///< key: the fragment
  gossip::GivenUp given_up;
  JobSettings settings;

  /// Gives those of the data that count to the replica of a new daemon, which already has its fragments.
  void restore(gossip::Replica& replica, gossip::Executor& executor, TimeUs now_us);
};

/// The part of ReplicaMemory that stores these.
class ExchangeMemory : public gossip::ReplicaMemory {
 public:
  explicit ExchangeMemory(KeptExchanges& kept) : kept_(kept) {}

  void store_given_up(std::uint64_t counter) override { kept_.given_up.add(counter); }
  void store_own_halves(std::uint32_t f, const gossip::OwnHalves& halves) override { kept_.own_halves[f] = halves; }
  bool write_record(std::uint32_t place, const NodeId& initiator, const ExchangeReply& reply,
                    const gossip::AnsweredHalf& half) override {
    kept_.records[place] = {{initiator, reply.counter}, reply, half};
    return true;
  }
  void seal_record(std::uint32_t place, std::uint32_t commits) override { kept_.records.at(place).commits = commits; }
  void note_undone(std::uint32_t place, std::uint32_t commits) override { kept_.records.at(place).undone = commits; }
  void clear_record(std::uint32_t place) override { kept_.records.erase(place); }

 private:
  KeptExchanges& kept_;
};

}  // namespace gossamer::sim
