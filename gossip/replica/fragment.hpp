// One fragment of a replica: its memory, the work on it, what waits for it, and what is known of it.
//
// The present work on a fragment is its *stage*. While the stage is not Idle, the fragment is *held*: nothing else is
// decided about it until the result comes back. The node's own exchange is kept apart from the stage, since other nodes
// are answered while this node waits for a reply:
//
//   own exchange:  encoding → awaiting → replied → concluding → over
//                     └ abandoned          (partner busy, gone or silent: over at once)
//
// Work that waits for the fragment is in `waiting`. Only is_pending() says what the fragment is busy with, and only
// Replica::go_on() says in which order waiting work goes on. Fragments owns these values, on the replica's thread.

#pragma once

#include <deque>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "gossip/exchange/mixing.hpp"
#include "gossip/replica/actions.hpp"
#include "gossip/replica/finishing.hpp"
#include "gossip/replica/handover.hpp"
#include "gossip/replica/pace.hpp"

namespace gossamer::gossip {

/// The exchange itself, or a follow-up on its wide blocks.
enum class ExchangePart : std::uint8_t { proper, follow_up };

/// The work that a fragment can be held for.
namespace stage {
struct Idle {};
struct Encoding {};    ///< this node's own request is encoded
struct Concluding {};  ///< the reply to this node's own request is committed
struct Answering {     ///< another node's request is answered
  NodeId initiator;
  std::uint32_t place;         ///< place of the reply's record
  std::uint64_t values_clock;  ///< clock of the publication that the initiator has sent
  ExchangePart part;
  std::optional<TracerValues> asked;  ///< tracer numbers that came with the request
};
struct Undoing {
  std::uint32_t place;  ///< place of the record of the reply whose half is undone
};
struct TakingOuterStep {};
struct Looking {};     ///< a publication is checked for NaN: in quarantine, or while the node is alone
struct Copying {};     ///< the fragment is read for a joiner or for a checkpoint
struct TakingOver {};  ///< values pulled from others, or restored, are written to it
struct Providing {};   ///< lean memory: its buffers are given memory
struct Vacating {};    ///< lean memory: the memory of its buffers is given back
struct Gathering {};   ///< several clients: y moves into the node's own memory
struct Offering {};    ///< several clients: each client is given its part of a round
struct TakingIn {};    ///< several clients: their publications are taken into y
}  // namespace stage
using Stage = std::variant<stage::Idle, stage::Encoding, stage::Concluding, stage::Answering, stage::Undoing,
                           stage::TakingOuterStep, stage::Looking, stage::Copying, stage::TakingOver, stage::Providing,
                           stage::Vacating, stage::Gathering, stage::Offering, stage::TakingIn>;

/// An exchange that this node began.
struct OwnExchange {
  enum class Stage : std::uint8_t {
    encoding,
    abandoned,   ///< its partner died while the request was being encoded
    awaiting,    ///< the request was sent
    replied,     ///< `reply` has come, and waits for the fragment
    concluding,  ///< it is being committed
  };
  /// How often the request was sent.
  enum class Sent : std::uint8_t {
    once,
    repeated,     ///< on a new link, or because no answer came
    to_be_again,  ///< the repeat could not be sent: the next tick tries again
  };
  Stage stage = Stage::encoding;
  Sent sent = Sent::once;
  NodeId partner = {};
  bool hands_over = false;  ///< it was begun while the node leaves, and may count for the handover
  int follow_up = 0;        ///< 0: the exchange proper; 1: wide blocks with wider steps; 2: still wide blocks, in f32
  TimeUs begun_us = 0;
  TimeUs sent_us = 0;  ///< when the request was last sent
  TimeUs rest_us = 0;  ///< how long the partner was expected to rest for it (HeldPart)
  ExchangeRequest request = {};
  std::vector<std::uint32_t> blocks = {};
  std::vector<std::int8_t> exponents = {};
  float factor = 1;
  std::optional<PushRule> push = {};  ///< rule of a push; none: an ordinary exchange. See Initiator::push_rule_for()
  /// Clock of the publication that it sends. None: an earlier part of the exchange left some of that publication over.
  std::optional<std::uint64_t> publication_clock = {};
  std::optional<ExchangeReply> reply = {};
  std::optional<TracerValues> replied = {};  ///< tracer numbers that came with the reply
};

/// The server of a fragment has all the training that this publication of this node's client holds.
struct HandedIn {
  NodeId server;
  std::uint64_t publication_clock;

  bool operator==(const HandedIn&) const = default;
};

/// Work that waits until the fragment is no longer held, or until the client has published.
struct Waiting {
  struct Publication {
    std::uint32_t generation;
    std::uint64_t clock;
  };
  struct Request {
    NodeId from;
    ExchangeRequest request;
    TimeUs since_us;
  };
  /// An exchange of this node's own that first needs a new publication.
  enum class Start : std::uint8_t { none, with_publication, now };
  enum class Gather : std::uint8_t { no, now, with_publication };
  enum class Wish : std::uint8_t {
    nothing,
    publication,
    look,  ///< a publication, to see whether it is finite
  };

  std::optional<Publication> publication = {};   ///< the client published while the fragment was held
  std::deque<UndoTask> undo = {};                ///< halves to undo
  Gather gather = Gather::no;                    ///< whether the fragment is to move into the node's own memory
  std::optional<Request> request = {};           ///< another node's request; waits for a publication or for a recall
  std::optional<std::uint64_t> copy_clock = {};  ///< least clock that a checkpoint waits for: Replica::copy()
  std::deque<NodeId> pulls = {};                 ///< joiners that wait for the fragment
  TimeUs pulls_since_us = 0;                     ///< since when joiners have waited
  Start start = Start::none;
  Wish wish = Wish::nothing;  ///< what the client is asked for
};

/// A reason why a fragment is busy, or a thing that waits for it.
enum class Pending : std::uint16_t {
  work = 1U << 0U,         ///< the fragment is held
  own = 1U << 1U,          ///< an exchange of the node's own is under way
  publication = 1U << 2U,  ///< a publication waits to be taken
  undo = 1U << 3U,         ///< a half is to be undone
  request = 1U << 4U,      ///< another node's request waits
  copy = 1U << 5U,         ///< a checkpoint waits
  pull = 1U << 6U,         ///< a joiner waits
  start = 1U << 7U,        ///< an exchange of the node's own is about to begin
  wish = 1U << 8U,         ///< the client is to publish
  correction = 1U << 9U,   ///< a correction or values wait for the client
  client = 1U << 10U,      ///< the client has the fragment
};
class PendingSet {
 public:
  constexpr PendingSet(std::initializer_list<Pending> items) {
    for (const Pending item : items)
      bits_ = static_cast<std::uint16_t>(bits_ | static_cast<std::uint16_t>(item));
  }
  [[nodiscard]] static constexpr PendingSet all() { return PendingSet(0xFFFF); }
  [[nodiscard]] constexpr bool contains(Pending item) const { return (bits_ & static_cast<std::uint16_t>(item)) != 0; }

 private:
  constexpr explicit PendingSet(std::uint16_t bits) : bits_(bits) {}

  std::uint16_t bits_ = 0;
};

/// How long a fragment's exchanges have found hardly any difference: see Initiator::rest_if_quiet().
struct Quiet {
  int rounds = 0;          ///< own exchanges in a row that found hardly any difference
  std::uint64_t stir = 0;  ///< ReplicaData::stir during these exchanges
  TimeUs until_us = 0;     ///< the fragment rests until then, unless something stirs
};

struct LastExchange {
  enum class Role : std::uint8_t { initiator, responder };
  TimeUs at_us = 0;                 ///< when it ended
  std::optional<NodeId> with = {};  ///< none: there was none
  Role role = Role::responder;
  std::uint64_t clock = 0;  ///< this node's clock when an exchange last counted in ReplicaData::learn()
};

struct LastOuterStep {
  TimeUs at_us = 0;
  std::uint32_t exchanges = 0;  ///< exchanges of the fragment since then
};

struct Fragment {
  enum class Health : std::uint8_t {
    sound,
    quarantined,  ///< it holds NaN or infinity; the next publication that is found finite ends this
  };
  /// Whether the publication has been exchanged.
  enum class Freshness : std::uint8_t { used, fresh };

  // --- memory
  FragmentBuffers buffers;
  BlockSteps steps;
  MixingBudget budget;
  OwnHalves own_halves = {};
  OuterState outer = {};
  PushState push = {};

  // --- what is done, and what waits
  Stage stage = {};
  std::optional<OwnExchange> own = {};
  Waiting waiting = {};

  // --- the next exchange that this node begins: when, and with whom
  Turn turn = {};
  Quiet quiet = {};
  std::uint64_t begun = 0;              ///< exchanges that this node began: the round of a partner schedule
  std::optional<NodeId> was_busy = {};  ///< partner that was busy at the last try; the next try prefers another
  std::map<NodeId, TimeUs> quarantined_at = {};  ///< partners with NaN in the fragment, and until when each rests
  Handover handover = {};                        ///< used while the node leaves
  EndAgreement agreement = {};                   ///< used while the node finishes
  std::optional<HandedIn> handed_in = {};        ///< method `server`; none: some training is not handed in yet

  // --- what is known
  Health health = Health::sound;
  Freshness freshness = Freshness::used;
  std::uint64_t publication_clock = 0;
  double cadence = 0;  ///< smoothed samples between publications
  LastExchange last_exchange = {};
  std::optional<NodeId> wide_at = {};  ///< initiator of the last exchange, if it had wide blocks: it may follow up
  double exchange_interval = 0;        ///< smoothed samples between exchanges
  DistanceRecord distances = {};
  VoiceTurns turns = {};
  double norm = 0;          ///< ‖y‖ at the last exchange that told the distance
  double disagreement = 0;  ///< mean |y_j − y_i|, smoothed over exchanges with partners that have not gone wild
  std::optional<double> relative_distance = {};  ///< ‖y_j − y_i‖ / ‖y‖, alike; none: not measured yet
  LastOuterStep last_outer = {};

  /// True if at least one of these applies to the fragment.
  [[nodiscard]] bool is_pending(PendingSet of) const;
  [[nodiscard]] bool is_held() const { return !std::holds_alternative<stage::Idle>(stage); }
  [[nodiscard]] bool is_quarantined() const { return health == Health::quarantined; }
  /// The request of its own exchange was sent, and no answer has come.
  [[nodiscard]] bool unanswered() const { return own && own->stage == OwnExchange::Stage::awaiting; }
  /// Marks the beginning of work on the fragment.
  void hold(const Stage& next);
  /// Marks the end of work on the fragment.
  void let_go();
  /// Ends the process if an invariant does not hold.
  void check_invariants() const;
};

/// This is inline, since a search through all fragments asks for few of these and then reads little of each fragment.
inline bool Fragment::is_pending(PendingSet of) const {
  return (of.contains(Pending::work) && is_held()) || (of.contains(Pending::own) && own) ||
         (of.contains(Pending::publication) && waiting.publication) ||
         (of.contains(Pending::undo) && !waiting.undo.empty()) || (of.contains(Pending::request) && waiting.request) ||
         (of.contains(Pending::copy) && waiting.copy_clock) || (of.contains(Pending::pull) && !waiting.pulls.empty()) ||
         (of.contains(Pending::start) && waiting.start != Waiting::Start::none) ||
         (of.contains(Pending::wish) && waiting.wish != Waiting::Wish::nothing) ||
         (of.contains(Pending::correction) && buffers.has_correction()) ||
         (of.contains(Pending::client) && buffers.parts().with_client);
}

/// All fragments of a replica, and figures about all of them.
class Fragments {
 public:
  Fragments(std::vector<FragmentBuffers> buffers, float mixing_budget);

  [[nodiscard]] Fragment& operator[](std::uint32_t f) { return fragments_[f]; }
  [[nodiscard]] const Fragment& operator[](std::uint32_t f) const { return fragments_[f]; }
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(fragments_.size()); }
  [[nodiscard]] auto begin() { return fragments_.begin(); }
  [[nodiscard]] auto end() { return fragments_.end(); }
  [[nodiscard]] auto begin() const { return fragments_.begin(); }
  [[nodiscard]] auto end() const { return fragments_.end(); }
  [[nodiscard]] std::size_t block_count() const { return block_count_; }
  [[nodiscard]] std::uint32_t index_of(const Fragment& fragment) const {
    return static_cast<std::uint32_t>(&fragment - fragments_.data());
  }

  [[nodiscard]] std::size_t quarantined() const;
  /// The time of the last exchange of the fragment that has waited longest. Fragments in quarantine do not count. 0:
  /// one was never exchanged, or all are in quarantine.
  [[nodiscard]] TimeUs oldest_exchange_us() const;
  /// Bytes of private memory with changes for the clients. Call it only while no task runs: tasks allocate this memory.
  [[nodiscard]] std::size_t pending_bytes() const;
  /// Estimated mean |difference| of an element to the other replicas, as of the last work on each fragment.
  [[nodiscard]] double disagreement() const;
  /// The mean over fragments of ‖y_j − y_i‖ / ‖y‖, smoothed over exchanges; 0 before any exchange.
  [[nodiscard]] double consensus() const;
  /// The root mean square of the model's numbers, as the latest exchanges found them; 0 before any.
  [[nodiscard]] double root_mean_square() const;
  /// The largest distance of any fragment: that of its last exchange or, with `over`, that of its last exchange that
  /// agreed. 0 before any exchange. See EndAgreement.
  [[nodiscard]] double end_distance(bool over) const;
  /// Number of fragments with at least one exchange for handover: gossip/replica/handover.hpp.
  [[nodiscard]] std::uint32_t handed_over() const;
  /// By how many samples the oldest publication is behind `clock`.
  [[nodiscard]] std::uint64_t age_samples(std::uint64_t clock) const;
  void forget_quarantine(const NodeId& partner);

 private:
  std::vector<Fragment> fragments_;
  std::size_t block_count_ = 0;
};

}  // namespace gossamer::gossip
