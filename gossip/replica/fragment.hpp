// One fragment of a replica: its memory, what is done with it, what waits for it, and what is known of it.
//
// What is done with it now is its *stage*. While that is not Idle the fragment is *held*: nothing else is decided about
// it until the result comes back. The node's own exchange of it, if there is one, is beside that, since others are
// answered while the node waits for a reply:
//
//   own exchange:  encoding → awaiting → replied → concluding → over
//                     └ abandoned          (partner busy, gone or silent: over at once)
//
// Everything that may wait for the fragment is in `waiting`; pending() is the one place that says what does. In which
// order it goes on is said once, too: Replica::go_on(). Values, owned by Fragments, on the replica's thread.

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

/// An exchange of a fragment, or a follow-up on its wide blocks.
enum class ExchangePart : std::uint8_t { proper, follow_up };

/// What is done with a fragment.
namespace stage {
struct Idle {};
struct Encoding {};    ///< a request of the node's own
struct Concluding {};  ///< its reply is committed
struct Answering {     ///< another's request
  NodeId initiator;
  std::uint32_t place;  ///< of the record of the reply
  ExchangePart part;
  std::optional<TracerValues> asked;  ///< with the request
};
struct Undoing {
  std::uint32_t place;  ///< of the record of the reply whose half it is
};
struct TakingOuterStep {};
struct Copying {};     ///< read for a joiner or for a checkpoint
struct TakingOver {};  ///< pulled or restored values are written to it
struct Providing {};   ///< lean memory: its buffers are given memory
struct Vacating {};    ///< lean memory: they lose it
struct Gathering {};   ///< several clients: y moves into the node's own memory
struct Offering {};    ///< several clients: each is handed its part of a round
struct TakingIn {};    ///< several clients: what they have published is taken into y
}  // namespace stage
using Stage = std::variant<stage::Idle, stage::Encoding, stage::Concluding, stage::Answering, stage::Undoing,
                           stage::TakingOuterStep, stage::Copying, stage::TakingOver, stage::Providing, stage::Vacating,
                           stage::Gathering, stage::Offering, stage::TakingIn>;

/// An exchange of the node's own.
struct OwnExchange {
  enum class Stage : std::uint8_t {
    encoding,
    abandoned,   ///< its partner died while the request was being encoded
    awaiting,    ///< the request was sent
    replied,     ///< `reply` is here, and waits for the fragment
    concluding,  ///< it is being committed
  };
  /// How often its request was sent.
  enum class Sent : std::uint8_t {
    once,
    repeated,     ///< on a new link, or because nothing was heard of the first
    to_be_again,  ///< the second time it could not be sent: the next tick tries
  };
  Stage stage = Stage::encoding;
  Sent sent = Sent::once;
  NodeId partner = {};
  int follow_up = 0;  ///< 0: the exchange proper; 1: wide blocks with wider steps; 2: what is left, in f32
  TimeUs begun_us = 0;
  TimeUs sent_us = 0;  ///< last
  ExchangeRequest request = {};
  std::vector<std::uint32_t> blocks = {};
  std::vector<std::int8_t> exponents = {};
  float factor = 1;
  std::optional<ExchangeReply> reply = {};
  std::optional<TracerValues> replied = {};  ///< with the reply, while it is concluded
};

/// What waits for a fragment until nothing is done with it, or until the client has published.
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
  /// An exchange of the node's own that needs a new publication first.
  enum class Start : std::uint8_t { none, with_publication, now };
  enum class Gather : std::uint8_t { no, now, with_publication };
  enum class Wish : std::uint8_t { nothing, publication };

  std::optional<Publication> publication = {};   ///< the client's, that came while the fragment was held
  std::deque<UndoTask> undo = {};                ///< halves to undo
  Gather gather = Gather::no;                    ///< its move into the node's own memory
  std::optional<Request> request = {};           ///< another's, for a publication or until the client gives it back
  std::optional<std::uint64_t> copy_clock = {};  ///< this node itself, for a publication of this clock: Replica::copy()
  std::deque<NodeId> pulls = {};                 ///< joiners
  TimeUs pulls_since_us = 0;                     ///< since when the first of them waits
  Start start = Start::none;
  Wish wish = Wish::nothing;  ///< what the client is asked for
};

/// One of the things that keep a fragment busy, or wait for it.
enum class Pending : std::uint16_t {
  work = 1U << 0U,         ///< it is held
  own = 1U << 1U,          ///< an exchange of the node's own is under way
  publication = 1U << 2U,  ///< waits to be taken
  undo = 1U << 3U,         ///< a half is to be undone
  request = 1U << 4U,      ///< another's request waits
  copy = 1U << 5U,         ///< a checkpoint waits
  pull = 1U << 6U,         ///< a joiner waits
  start = 1U << 7U,        ///< an exchange of the node's own is about to begin
  wish = 1U << 8U,         ///< the client is to publish
  correction = 1U << 9U,   ///< the client is to be given something
  client = 1U << 10U,      ///< the client has it
};
class PendingSet {
 public:
  constexpr PendingSet(std::initializer_list<Pending> items) {
    for (const Pending item : items)
      add(item);
  }
  constexpr void add(Pending item) { bits_ = static_cast<std::uint16_t>(bits_ | static_cast<std::uint16_t>(item)); }
  [[nodiscard]] constexpr bool any() const { return bits_ != 0; }
  [[nodiscard]] constexpr bool any(PendingSet of) const { return (bits_ & of.bits_) != 0; }

 private:
  std::uint16_t bits_ = 0;
};

/// How long nobody has had anything to say of a fragment: see Initiator::rest_if_quiet().
struct Quiet {
  int rounds = 0;          ///< exchanges of its own in a row that found next to no difference
  std::uint64_t stir = 0;  ///< ReplicaData::stir then
  TimeUs until_us = 0;     ///< it rests, unless something stirs
};

struct Fragment {
  enum class Health : std::uint8_t {
    sound,
    quarantined,  ///< it holds NaN or infinity, until an encode finds a publication finite again
  };
  /// Whether the publication has been exchanged.
  enum class Freshness : std::uint8_t { used, fresh };
  enum class Role : std::uint8_t { initiator, responder };

  // --- memory
  FragmentBuffers buffers;
  BlockSteps steps;
  MixingBudget budget;
  OwnHalves own_halves = {};
  OuterState outer = {};

  // --- what is done, and what waits
  Stage stage = {};
  std::optional<OwnExchange> own = {};
  Waiting waiting = {};

  // --- when, and with whom, the next exchange of its own is
  Turn turn = {};
  Quiet quiet = {};
  std::uint64_t begun = 0;                       ///< exchanges of its own: the round of a partner schedule
  std::optional<NodeId> was_busy = {};           ///< the partner of the last try; another one is rather asked next
  std::map<NodeId, TimeUs> quarantined_at = {};  ///< partners that hold NaN in it, and until when each is let rest
  Handover handover = {};                        ///< while the node leaves
  EndAgreement agreement = {};                   ///< while it finishes

  // --- what is known
  Health health = Health::sound;
  Freshness freshness = Freshness::used;
  std::uint64_t publication_clock = 0;
  double cadence = 0;                   ///< smoothed samples between publications
  float disagreement = 0;               ///< mean of `steps`, which a task may be changing while the fragment is held
  TimeUs exchanged_us = 0;              ///< when the last exchange ended
  Role exchanged_as = Role::responder;  ///< in that exchange
  std::optional<NodeId> wide_at = {};   ///< who began that one and was told of wide blocks: it may follow up
  std::uint64_t exchange_clock = 0;     ///< this node's, then
  double exchange_interval = 0;         ///< smoothed samples between exchanges
  DistanceRecord distances = {};
  std::optional<double> relative_distance = {};  ///< smoothed over exchanges; none: not measured yet
  TimeUs outer_us = 0;                           ///< when its last outer step was
  std::uint32_t outer_exchanges = 0;             ///< since then

  [[nodiscard]] PendingSet pending() const;
  [[nodiscard]] bool is_held() const { return !std::holds_alternative<stage::Idle>(stage); }
  [[nodiscard]] bool is_quarantined() const { return health == Health::quarantined; }
  /// Its own exchange is on its way, and no answer has come.
  [[nodiscard]] bool unanswered() const { return own && own->stage == OwnExchange::Stage::awaiting; }
  /// Work begins on it.
  void hold(Stage next);
  /// Work on it is over.
  void let_go();
  /// What must always hold; ends the process if it does not.
  void check_invariants() const;
};

/// The fragments of a replica, and what is known of all of them.
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

  [[nodiscard]] std::size_t quarantined() const;
  /// When the fragment that has waited longest was last exchanged, without those in quarantine; 0: never.
  [[nodiscard]] TimeUs oldest_exchange_us() const;
  /// Bytes of private memory for the clients. Only while no task runs: tasks allocate it.
  [[nodiscard]] std::size_t pending_bytes() const;
  /// Mean |difference| of an element to the others', as estimated when each fragment was last worked on.
  [[nodiscard]] double disagreement() const;
  /// ‖y_j − y_i‖ / ‖y‖ as the latest exchanges found it, smoothed, in the mean over fragments; 0 before any.
  [[nodiscard]] double consensus() const;
  /// Fragments of which at least one last exchange was done: gossip/replica/handover.hpp.
  [[nodiscard]] std::uint32_t handed_over() const;
  /// Samples that the oldest publication lags the clock.
  [[nodiscard]] std::uint64_t age_samples(std::uint64_t clock) const;
  void forget_quarantine(const NodeId& partner);

 private:
  std::vector<Fragment> fragments_;
  std::size_t block_count_ = 0;
};

}  // namespace gossamer::gossip
