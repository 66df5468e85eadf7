// What the parts of a replica share: ClientSide, Initiator, Responder and Replica itself each decide on their own
// subject, and all of them read and write this. Owned by Replica, on its thread.

#pragma once

#include <set>

#include "gossip/random.hpp"
#include "gossip/replica/exchange_book.hpp"
#include "gossip/replica/fragment.hpp"
#include "gossip/replica/job_clock.hpp"
#include "gossip/replica/neighbours.hpp"
#include "gossip/replica/phase.hpp"
#include "gossip/replica/tracer.hpp"

namespace gossamer::gossip {

/// While the node leaves: gossip/replica/handover.hpp.
struct Leaving {
  TimeUs deadline_us;
  TimeUs publications_until_us;  ///< after this, what there is is handed over
  std::size_t replicas;          ///< when it began, this one included
  std::uint32_t first = 0;       ///< fragments before it are over
};

/// While the program has stopped training: gossip/replica/finishing.hpp.
struct Finish {
  enum class Health : std::uint8_t { sound, quarantined };

  Finishing stage = Finishing::begun;
  Health health = Health::sound;  ///< quarantined: some fragment is, as of the last look
  std::size_t partners = 0;       ///< that finish, too, as of the last look
  std::set<NodeId> over;          ///< for whom the run was over, whether they are still there or not

  [[nodiscard]] bool is_sound() const { return health == Health::sound; }
};

struct ReplicaData {
  ReplicaData(const ReplicaOptions& with, const NodeId& node, JobInfo job, std::vector<FragmentBuffers> buffers,
              ExchangeCounter& counter, Random chance);

  ReplicaOptions options;
  NodeId self;
  JobInfo description;
  Phase phase = Phase::joining;
  Fragments fragments;
  Neighbours neighbours;
  Pace pace;
  ExchangeBook book;
  Random random;
  Tracer tracer;
  ReplicaCounters counters;
  std::uint64_t clock = 0;  ///< samples that this replica has seen
  std::optional<Leaving> leaving;
  std::optional<Finish> finish;
  /// Counts what may have changed a model: a clock has moved, here or at a neighbour, or a neighbour has come or
  /// changed its state, or models differ. It ends the rest of all fragments: Initiator::rest_if_quiet().
  std::uint64_t stir = 0;

  [[nodiscard]] bool runs() const { return phase == Phase::running; }
  [[nodiscard]] bool settled(const Fragment& fragment) const;
  /// Finishing, and there is somebody who finishes that the fragment is not known to agree with.
  [[nodiscard]] bool hurries(const Fragment& fragment) const;
  /// In periods: one, more or less.
  [[nodiscard]] double jitter() { return 0.75 + 0.5 * random.uniform(); }
  /// What a request for the fragment takes, or an answer, about.
  [[nodiscard]] std::size_t sent_bytes(const Fragment& fragment) const;
  void spend(const NodeId& to, std::size_t bytes, TimeUs now_us);

  [[nodiscard]] Age age_of(const Fragment& fragment) const;
  [[nodiscard]] Witness witness_for(const Fragment& fragment, const NodeId& partner) const;
  [[nodiscard]] Clip clip_for(const Fragment& fragment, const NodeId& partner) const;
  [[nodiscard]] float factor_for(const Fragment& fragment, const NodeId& partner) const;
  /// From an exchange that was done. `counts`: it was no follow-up of this node's own.
  void learn(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, int shift, bool counts);
  void count_unresolved(const NodeId& initiator);
  void quarantine(Fragment& fragment);
};

/// Both ends hold the same, as far as exchanges tell.
[[nodiscard]] bool agrees(const ExchangeMeasure& measure);

}  // namespace gossamer::gossip
