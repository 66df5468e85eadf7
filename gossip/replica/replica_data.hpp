// The data that the parts of a replica share. ClientSide, Initiator, Responder and Replica each decide on their own
// subject, and all of them read and write this. Owned by Replica, on its thread.

#pragma once

#include <set>

#include "gossip/random.hpp"
#include "gossip/replica/density.hpp"
#include "gossip/replica/exchange_book.hpp"
#include "gossip/replica/fragment.hpp"
#include "gossip/replica/job_clock.hpp"
#include "gossip/replica/neighbours.hpp"
#include "gossip/replica/phase.hpp"
#include "gossip/replica/tracer.hpp"
#include "gossip/replica/training_step.hpp"

namespace gossamer::gossip {

/// State while the node leaves: gossip/replica/handover.hpp.
struct Leaving {
  TimeUs deadline_us;
  TimeUs publications_until_us;  ///< after this, the publications that exist are used
  std::size_t replicas;          ///< number of replicas when it began, this one included
  std::uint32_t first = 0;       ///< all fragments before this one are done
};

/// State while the program has stopped training: gossip/replica/finishing.hpp.
struct Finish {
  enum class Health : std::uint8_t {
    sound,
    quarantined,  ///< a fragment is quarantined, but the client may have mended it since
    spoiled       ///< the program's last values were checked and hold NaN: another look would change nothing
  };

  Finishing stage = Finishing::begun;
  Health health = Health::sound;  ///< at the last look
  std::size_t partners = 0;       ///< number of partners that finish as well, at the last look
  bool awaits_training = false;   ///< at the last look a partner still trained, so values will change
  bool spoiled_programs = false;  ///< Programs::finish_spoiled
  TimeUs began_us = 0;
  double distance = 0;         ///< Fragments::end_distance() when the run was over here
  std::set<NodeId> over = {};  ///< nodes for which the run was over, whether still present or not
  bool agrees = false;  ///< this replica agrees with those that finish, or with `over`; if not, `over` does not count

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
  TrainingStep step;
  Density density;
  std::optional<Leaving> leaving;
  std::optional<Finish> finish;
  /// Counts events that may have changed a model: a clock has moved here or at a neighbour, a neighbour has come or
  /// changed its state, or models differ. Each of them ends the rest of all fragments: Initiator::rest_if_quiet().
  std::uint64_t stir = 0;

  [[nodiscard]] bool runs() const { return phase == Phase::running; }
  /// True if enough of the nodes that finish agree with this one on the fragment.
  [[nodiscard]] bool settled(const Fragment& fragment) const;
  /// True if the publication holds all that was trained. A node that keeps the job is always current: it trains
  /// nothing, and its clock follows the others'.
  [[nodiscard]] bool is_current(const Fragment& fragment) const {
    return description.keeps || fragment.publication_clock == clock;
  }
  /// True at the end of a run whose models were averaged exactly. All models then hold the same bits, and an older
  /// publication would change them. So only publications of the last step are exchanged.
  [[nodiscard]] bool exchanges_last_step_only() const { return finish && !options.exchanges; }
  /// True while finishing, if some finishing partner is not yet known to agree with the fragment.
  [[nodiscard]] bool hurries(const Fragment& fragment) const;
  /// A random time around one period (0.75 to 1.25), in periods.
  [[nodiscard]] double jitter() { return 0.75 + 0.5 * random.uniform(); }
  /// About how many bytes a request or an answer for the fragment takes.
  [[nodiscard]] std::size_t sent_bytes(const Fragment& fragment) const;
  void spend(const NodeId& to, std::size_t bytes, TimeUs now_us, ByteBudget::Spent on);

  [[nodiscard]] Age age_of(const Fragment& fragment) const;
  /// True with the method `server`: nodes that keep the job take part in exchanges. Otherwise they only follow.
  [[nodiscard]] bool has_servers() const {
    return options.partners.policy == PartnerPolicy::owner && options.exchanges;
  }
  /// True if the neighbour keeps the job and owns nothing: it takes over what is trained here, and gives nothing.
  [[nodiscard]] bool is_follower(const Neighbour& neighbour) const {
    return neighbour.info.follows || (neighbour.info.keeps && !has_servers());
  }
  /// True if exchanges change the model here. Otherwise the processes here average by themselves, and only give.
  [[nodiscard]] bool takes() const { return options.exchanges || description.keeps || finish.has_value(); }
  /// True if an exchange with this neighbour changes nothing here, since the neighbour only follows.
  [[nodiscard]] bool only_gives(const Neighbour* to) const {
    return to != nullptr && is_follower(*to) && (to->info.follows || !description.keeps);
  }
  /// The node that owns the fragment (gossip/owner.hpp), as far as this node knows; this node if there is no other.
  [[nodiscard]] NodeId owner(std::uint32_t f) const;
  /// The other node that keeps the job and owns the fragment. None: there is none, or Neighbour::over_before holds.
  [[nodiscard]] std::optional<NodeId> server_of(const Fragment& fragment) const;
  /// True if this node keeps the job and owns the fragment.
  [[nodiscard]] bool is_server_of(std::uint32_t f) const {
    return has_servers() && description.keeps && owner(f) == self;
  }
  /// True if the partner, or all partners of its sponsor together, had their part of the fragment's last exchanges.
  /// This is checked where the sponsor has admitted several partners, or where dense_clip applies.
  [[nodiscard]] bool is_over_share(const Fragment& fragment, const NodeId& partner, TimeUs now_us) const;
  [[nodiscard]] Witness witness_for(std::uint32_t f, const NodeId& partner) const;
  /// True if the fragment is exchanged with that partner only: it owns the fragment.
  [[nodiscard]] bool is_only_partner(std::uint32_t f, const NodeId& partner) const;
  /// The limit that holds now: ReplicaOptions::clip or dense_clip.
  [[nodiscard]] float clip() const;
  /// True if the clip is a guard against faults only (loose_clip).
  [[nodiscard]] bool has_loose_clip() const { return clip() >= loose_clip; }
  /// True if a partner may be found to have gone wild. Where fragments have owners, a replica that is far off has no
  /// way back but by its owner, which must not hold it off.
  [[nodiscard]] bool tells_wild() const { return has_loose_clip() && options.partners.policy != PartnerPolicy::owner; }
  /// What counts as the usual distance at least: with a loose clip a part of ‖y‖, once an exchange has told it.
  [[nodiscard]] double least_usual_distance(const Fragment& fragment) const;
  /// The usual distance to partners. Distances beyond clip() times this are clipped; 0: not known. With a tight clip it
  /// is no more than most partners find usual. Otherwise a replica that was drawn away from them, which finds all but
  /// the attacker far off, would follow the attacker ever faster.
  [[nodiscard]] double usual_distance(const Fragment& fragment) const;
  [[nodiscard]] Clip clip_for(const Fragment& fragment, const NodeId& partner) const;
  [[nodiscard]] float factor_for(const Fragment& fragment, const NodeId& partner) const;
  /// Learns from an exchange that was done. `counts`: it was not a follow-up that this node began.
  void learn(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, int shift, bool counts);
  /// Notes for the end of the run how far apart an exchange found the replicas. Each exchange is noted, since each
  /// moves the fragment. `counts`: the exchange compared all that both nodes published last.
  void note_agreement(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, bool counts);
  void count_unresolved(const NodeId& initiator);
  void quarantine(Fragment& fragment);
};

/// True if both ends hold the same values, as far as an exchange can tell.
[[nodiscard]] bool agrees(const ExchangeMeasure& measure);

}  // namespace gossamer::gossip
