// The decisions of one job at one node: when a fragment is exchanged, with whom, what a request is answered, when the
// client is asked for a publication, and what becomes of an exchange whose other end is gone.
//
// A state machine. Messages, publications, finished tasks, time and randomness come in; what to send, which fragments
// to hand to the client and what work to run comes out in Actions. The work itself (gossip/exchange/exchange.hpp) may
// run on any thread while the fragment is *held*: nothing else is decided about that fragment until the result comes
// back.
//
// The life of a fragment's own exchange:
//   period over → (publication asked for) → encode → request sent → reply → conclude → acknowledged
//                                                          └ busy: another partner soon
// and of an answered one:
//   request → answer (decode, weigh, commit) → reply sent and kept → acknowledgement
//                                                          └ never taken: undone
//
// Nothing can be committed to a fragment while the client has it. It is recalled first: what waits for that goes on at
// once, or with the client's publication, if it has begun to serve the fragment already.
//
// Every commit, and what it takes to end an exchange after a death of either daemon, is stored where it outlives this
// one, before anything is sent on the strength of it: Actions::store.
//
// In lean memory (gossip/replica/replica_lean.cpp) a fragment has a publication only while something is done with it:
// it is asked for first, and dropped afterwards.
//
// One owner, one thread (the loop of the daemon, or of a simulation).

#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "gossip/exchange/exchange.hpp"
#include "gossip/exchange/mixing.hpp"
#include "gossip/exchange/outer.hpp"
#include "gossip/exchange/own_halves.hpp"
#include "gossip/random.hpp"
#include "gossip/replica/age_counts.hpp"
#include "gossip/replica/byte_budget.hpp"
#include "gossip/replica/cadence.hpp"
#include "gossip/replica/finishing.hpp"
#include "gossip/replica/handover.hpp"
#include "gossip/replica/job_clock.hpp"
#include "gossip/replica/link_load.hpp"
#include "gossip/replica/partners.hpp"
#include "gossip/replica/reply_cache.hpp"
#include "gossip/replica/tracer.hpp"

namespace gossamer::gossip {

struct ReplicaOptions {
  Codec codec = Codec::q8;
  bool adapt_codec = false;              ///< instead of codec: q4 over slow links, q8 over others (Replica::codec_for)
  TimeUs period_us = 50 * us_per_ms;     ///< shortest time between two exchanges that a node starts of one fragment
  std::size_t in_flight = 4;             ///< exchanges of its own that a node has under way at once
  float mixing_budget = 1.0F;            ///< see gossip/exchange/mixing.hpp
  TimeUs lifetime_us = 10 * us_per_s;    ///< of an exchange without an answer, and of a reply nobody acknowledges
  TimeUs info_period_us = 1 * us_per_s;  ///< how often neighbours are told the clock
  float range = default_range;           ///< see gossip/exchange/steps.hpp
  bool age_damping = true;      ///< values from an old state weigh less (age_shift() in gossip/exchange/mixing.hpp)
  OuterOptions outer = {};      ///< see gossip/exchange/outer.hpp
  PartnerRule partners = {};    ///< see gossip/replica/partners.hpp
  double bytes_per_s = 0;       ///< most that this replica sends of requests and replies; 0: no limit
  double link_bytes_per_s = 0;  ///< and to one neighbour
  double time_share = 0.02;     ///< most that gossip takes of the training's time; 0: no limit
  double network_share = 0.5;   ///< and of what the node's network can carry, if that is known; 0: no limit
  bool crossing_rule = true;    ///< off only to show that the simulator notices (tools/sim/hunt/sabotage.hpp)
  float clip =
      0;  ///< distances beyond this many times the median are averaged more gently (gossip/codec/influence.hpp);
          ///< 0: off. A lower one lets a poisoned or far-off partner move less, and slows stragglers down
};

/// Names exchanges. One for a node, never reset while it runs; started from the time of day so that a restart goes on.
class ExchangeCounter {
 public:
  explicit ExchangeCounter(std::uint64_t first) : next_(first) {}
  std::uint64_t take() { return next_++; }
  /// What take() will give.
  [[nodiscard]] std::uint64_t next() const { return next_; }

 private:
  std::uint64_t next_;
};

/// What has happened, since the replica began. Shown to people; nothing is decided on it.
struct ReplicaCounters {
  std::uint64_t initiated = 0;   ///< exchanges of its own that were concluded (follow-ups on wide blocks apart)
  std::uint64_t answered = 0;    ///< exchanges of others that it answered and committed
  std::uint64_t follow_ups = 0;  ///< exchanges of wide blocks, of its own
  std::uint64_t busy_sent = 0;
  std::uint64_t busy_received = 0;
  std::uint64_t refused_sent = 0;
  std::uint64_t refused_received = 0;
  std::uint64_t unresolved = 0;   ///< committed here, and nobody will ever know whether at the other end, too
  std::uint64_t undone = 0;       ///< committed here, and undone, since the initiator never will
  std::uint64_t violations = 0;   ///< replies that did not fit their request
  std::uint64_t blocks = 0;       ///< in exchanges counted by initiated and answered
  std::uint64_t wide_blocks = 0;  ///< of them
  std::uint64_t publications = 0;
  std::uint64_t outer_steps = 0;
  std::uint64_t quarantines = 0;  ///< times a fragment was found to hold NaN or infinity
  std::uint64_t repeated_requests = 0;
  std::uint64_t clipped = 0;             ///< exchanges with a partner farther off than ReplicaOptions::clip
  std::uint64_t repeats_sent = 0;        ///< requests and replies said again because nothing was heard of the first
  std::uint64_t payload_bytes_sent = 0;  ///< frames of requests and replies, pulls apart
  double shift_sum = 0;                  ///< of initiated and answered exchanges, for their mean
  double mean_abs_sum = 0;               ///< of the same: mean |y_j − y_i|
  double codec_error_sum = 0;            ///< of the same: see ExchangeMeasure
  AgeCounts ages = {};                   ///< of what this replica brought to the same
};

/// A neighbour that the job is, or could be, exchanged with, as this replica sees it. Shown to people.
struct PartnerReport {
  NodeId node;
  JobInfo info;  ///< as it has told last; absent: nothing yet
  bool linked = false;
  bool other_layout = false;      ///< it runs another model under the job's name
  std::uint64_t exchanges = 0;    ///< done with it, both roles, since the link was first seen
  std::uint64_t busy = 0;         ///< requests that it turned down because it was busy
  TimeUs exchanged_us = 0;        ///< when the last exchange with it was done; 0: none
  double answer_us = 0;           ///< smoothed, from request to reply; 0: not known
  double bytes_per_s = 0;         ///< smoothed, of the same exchanges; 0: not known
  double relative_distance = 0;   ///< ‖y_j − y_i‖ / ‖y‖, smoothed over the exchanges with it; 0: not known
  std::uint64_t blocks = 0;       ///< offered in the exchanges
  std::uint64_t wide_blocks = 0;  ///< of them
  std::uint64_t unresolved = 0;   ///< exchanges with it of which one end committed, of the other nothing is known
  double age_intervals = 0;       ///< how old what it brings is, in its publication intervals, smoothed
  std::uint32_t quarantined_fragments = 0;  ///< that it refused because its own hold NaN or infinity, and still may
};

class Replica {
 public:
  struct Send {
    NodeId to;
    Message message;
  };
  template <class Task>
  struct Run {
    std::uint32_t fragment;
    Task task;
  };
  struct Answer {
    std::uint32_t fragment;
    NodeId to;
    std::uint32_t place;  ///< of the record of its reply: what outlives the daemon
    AnswerTask task;
  };
  /// What take_given_up() gives is to be stored first. Then a commit, with what belongs to it, by one store of the
  /// fragment's word. In this order: the record of the reply in `answered`, or that the half in `undone` is undone;
  /// own_halves(fragment); its parts. Likewise before an exchange of the node's own is asked for.
  struct Store {
    std::uint32_t fragment;
    std::optional<std::uint32_t> answered = {};
    std::optional<std::uint32_t> undone = {};
  };
  struct Snapshot {  ///< sum y into a buffer and send it to a joiner, or keep it, if `to` is this node: see copy()
    std::uint32_t fragment;
    NodeId to;
  };
  struct Actions {
    std::vector<Send> send;             ///< after everything else
    std::vector<Store> store;           ///< first; then the places of take_left_places() are cleared
    std::vector<std::uint32_t> due;     ///< fragments handed over to the client: mirror their parts into the words
    std::vector<std::uint32_t> recall;  ///< take them back unless the client is serving them, then recalled()
    std::vector<std::uint32_t> fold;    ///< gathered: see gather()
    std::vector<std::uint32_t> gather;  ///< run FragmentBuffers::gather(), then gathered()
    std::vector<Run<EncodeTask>> encode;
    std::vector<Answer> answer;
    std::vector<Run<ConcludeTask>> conclude;
    std::vector<Snapshot> snapshot;
    std::vector<Run<OuterTask>> outer;
    std::vector<Run<UndoTask>> undo;
    std::vector<std::uint32_t> provide;  ///< take memory for the fragment's buffers, then provided()
    std::vector<std::uint32_t> vacate;   ///< mirror its parts, give its buffers' memory back, then vacated()
  };

  /// `description`: the job's key, name and sizes, as neighbours are told them.
  Replica(ReplicaOptions options, const NodeId& self, JobInfo description, std::vector<FragmentBuffers> fragments,
          ExchangeCounter& counter, Random random);

  // --- where the replica stands
  /// Joining, running or draining; the neighbours are told.
  void set_state(ReplicaState state, Actions& out);
  [[nodiscard]] ReplicaState state() const { return state_; }
  /// On: begins and answers no exchanges, and says that it is draining, but still gives its model to joiners that find
  /// no other. Off: runs again. Not while it joins or leaves.
  void set_drained(bool drained, Actions& out);
  [[nodiscard]] bool drained() const { return drained_; }
  /// The node is about to leave: nothing new is begun or answered but the last exchanges, by which the others keep what
  /// was learned here (gossip/replica/handover.hpp). None is begun after `deadline_us`, and a client that does not
  /// publish is waited for half of the time until then. A replica that has not joined has nothing to hand over.
  void leave(TimeUs now_us, TimeUs deadline_us, Actions& out);
  [[nodiscard]] bool leaving() const { return leaving_.has_value(); }
  /// The program has stopped training: exchanges as fast as the links allow until the replicas in reach agree, see
  /// gossip/replica/finishing.hpp. Off: it trains again.
  void set_finishing(bool on, TimeUs now_us, Actions& out);
  [[nodiscard]] FinishReport finish_report() const;
  /// Everything is handed over, or nobody is there to take it. What is under way may not have ended: see idle().
  [[nodiscard]] bool handed_over() const;
  /// Fragments of which at least one last exchange was done.
  [[nodiscard]] std::uint32_t fragments_handed_over() const;
  /// Nothing of an exchange is left under way: it may go without anyone noticing.
  [[nodiscard]] bool idle() const;
  [[nodiscard]] JobInfo own_info() const;
  /// For the next replica of this node, if its client dies and another comes: what this one may have answered.
  void add_seen(ReplyCache::Seen& seen) const { cache_.add_seen(seen); }
  void begin_after(const ReplyCache::Seen& seen) { cache_.begin_after(seen); }

  // --- what outlives the daemon
  [[nodiscard]] const OwnHalves& own_halves(std::uint32_t f) const { return fragments_[f].own_halves; }
  /// Places whose records are of no more use, since the last call.
  [[nodiscard]] std::vector<std::uint32_t> take_left_places() { return cache_.take_left(); }
  /// Replies can be recorded in so many places. Before anything else, as are the following.
  void set_record_places(std::uint32_t count) { cache_.set_capacity(count); }
  /// The client's memory has been through the hands of a former daemon, and has this. Otherwise nothing is known of
  /// exchanges before this replica's.
  void remember(const GivenUp& given_up) { given_up_ = given_up; }
  void remember(std::uint32_t f, const OwnHalves& halves);
  [[nodiscard]] const GivenUp& given_up() const { return given_up_; }
  /// Exchanges that it has given up since the last call.
  [[nodiscard]] std::vector<std::uint64_t> take_given_up() { return std::exchange(newly_given_up_, {}); }
  /// A reply of a former daemon that nobody has acknowledged, and that was committed and not undone.
  void remember(const ExchangeId& id, std::uint32_t place, ExchangeReply reply, AnsweredHalf half, TimeUs now_us) {
    cache_.restore(id, place, std::move(reply), std::move(half), now_us);
  }
  void set_options(const ReplicaOptions& options);

  // --- the client
  void set_clock(std::uint64_t clock) {
    if (clock != clock_) stir();
    clock_ = clock;
  }
  /// The client has spent so much more time on serving fragments: what the cadence keeps to time_share.
  void add_time_taken(TimeUs taken_us) { work_.taken_us += static_cast<double>(taken_us); }
  /// What the node's network can carry, in bytes per second, as configured or measured: what the cadence keeps to
  /// network_share. 0: not known.
  void set_capacity(double bytes_per_s) { capacity_ = bytes_per_s; }
  /// The client handed fragment f back with a fresh snapshot, taken at `clock`. Its word has been checked.
  void published(std::uint32_t f, std::uint32_t generation, std::uint64_t clock, TimeUs now_us, Actions& out);

  // --- several clients (gossip/group/local_group.hpp)
  /// From now on the fragments live in memory of the node's own, each as soon as nothing works on it; the replica stays
  /// so. Of a gathered fragment, Actions::due asks for a round among the clients, and offered() says that all have been
  /// handed what they need; published() ends the round, and Actions::fold asks for what they have published to be taken
  /// into the fragment. It is held in both cases.
  void gather(Actions& out);
  void gathered(std::uint32_t f, bool finite, TimeUs now_us, Actions& out);
  void offered(std::uint32_t f, TimeUs now_us, Actions& out);
  /// Asks for a round though no exchange needs one.
  void want_publication(std::uint32_t f, Actions& out);

  /// For a checkpoint: a snapshot of the fragment for this node, as soon as there is a publication of `least_clock` or
  /// later. Asks the client for one if need be, and for those of the fragments behind it, which come next. False: there
  /// is none to be had, since the replica does not run or the fragment is quarantined.
  bool copy(std::uint32_t f, std::uint64_t least_clock, TimeUs now_us, Actions& out);
  [[nodiscard]] std::uint64_t publication_clock(std::uint32_t f) const { return fragments_[f].publication_clock; }

  // --- lean memory
  /// The buffers of at most `window` fragments, 2 or more, have memory at once; those that are not empty have it
  /// already. Before anything else.
  void keep_lean(std::size_t window);
  [[nodiscard]] bool lean() const { return window_ > 0; }
  /// There is memory now, or there is none to be had.
  void provided(std::uint32_t f, bool there, TimeUs now_us, Actions& out);
  void vacated(std::uint32_t f, TimeUs now_us, Actions& out);
  /// Pulled values are about to be written to the fragment: keeps its room until end_taking(). False: there is none
  /// now. The memory is the caller's to provide; `there`: it did, or could not.
  [[nodiscard]] bool begin_taking(std::uint32_t f);
  void end_taking(std::uint32_t f, bool there);
  /// Fragments whose buffers have memory; 0 in resident memory.
  [[nodiscard]] std::size_t provided_fragments() const { return provided_.size(); }

  // --- the overlay
  void link_up(const NodeId& node, Actions& out);
  void link_down(const NodeId& node);
  void node_dead(const NodeId& node, TimeUs now_us, Actions& out);
  void info(const NodeId& from, const JobInfo& info);
  /// What is known of the link to this node. Nothing is begun that would only stand in its queue.
  void set_link(const NodeId& node, const LinkLoad& load);
  void request(const NodeId& from, ExchangeRequest&& request, TimeUs now_us, Actions& out);
  void reply(const NodeId& from, ExchangeReply&& reply, TimeUs now_us, Actions& out);
  void acknowledged(const NodeId& from, const ExchangeAck& ack, TimeUs now_us, Actions& out);
  void inquired(const NodeId& from, const ExchangeInquiry& inquiry, Actions& out);
  void pull(const NodeId& from, const PullRequest& request, TimeUs now_us, Actions& out);
  /// A message from Actions::send could not be sent (no link, or its queue is full).
  void send_failed(const NodeId& to, const Message& message, TimeUs now_us);

  // --- finished work; each releases the fragment
  void encoded(std::uint32_t f, EncodeTask::Result&& result, TimeUs now_us, Actions& out);
  /// `place`: as in the action.
  void answered(std::uint32_t f, const NodeId& initiator, std::uint32_t place, AnswerTask::Result&& result,
                TimeUs now_us, Actions& out);
  void concluded(std::uint32_t f, ConcludeTask::Result&& result, TimeUs now_us, Actions& out);
  void undone(std::uint32_t f, const UndoTask::Result& result, TimeUs now_us, Actions& out);
  void folded(std::uint32_t f, TimeUs now_us, Actions& out);
  /// `done`: the client had not begun to serve the fragment, and it is the daemon's again.
  void recalled(std::uint32_t f, bool done, TimeUs now_us, Actions& out);
  void snapshot_taken(std::uint32_t f, TimeUs now_us, Actions& out);
  void outer_done(std::uint32_t f, const OuterTask::Result& result, TimeUs now_us, Actions& out);

  /// Starts what is due and ends what has lived too long. Call at least every few milliseconds.
  void tick(TimeUs now_us, Actions& out);

  // --- for whoever runs the tasks and mirrors the words
  [[nodiscard]] HeldFragment held(std::uint32_t f) {
    return {.buffers = fragments_[f].buffers, .steps = fragments_[f].steps, .outer = &fragments_[f].outer};
  }
  [[nodiscard]] OuterState& outer_state(std::uint32_t f) { return fragments_[f].outer; }
  [[nodiscard]] FragmentBuffers& buffers(std::uint32_t f) { return fragments_[f].buffers; }
  [[nodiscard]] std::uint32_t fragment_count() const { return static_cast<std::uint32_t>(fragments_.size()); }

  // --- for people
  [[nodiscard]] const ReplicaCounters& counters() const { return counters_; }
  /// How far the job is, as far as neighbours are believed (gossip/replica/job_clock.hpp). It never goes back.
  [[nodiscard]] std::uint64_t global_clock() const { return std::max(clock_, job_clock_.value()); }
  /// A neighbour's clock that is too far ahead of all others to be believed, as of the last tick.
  [[nodiscard]] const std::optional<JobClock::Claim>& disbelieved_clock() const { return job_clock_.disbelieved(); }
  [[nodiscard]] std::size_t partners() const;
  /// This node and those that can be exchanged with, ascending.
  [[nodiscard]] std::vector<NodeId> members() const;
  [[nodiscard]] std::size_t in_flight() const { return own_count_; }
  [[nodiscard]] std::size_t kept_replies() const { return cache_.unacknowledged(); }
  /// Of which nobody has heard yet what became of them.
  [[nodiscard]] std::size_t orphaned_replies() const { return cache_.orphans(); }
  [[nodiscard]] std::size_t unsent_acks() const { return unsent_acks_.size(); }
  [[nodiscard]] std::size_t quarantined() const;
  [[nodiscard]] std::uint64_t age_samples() const;  ///< of the oldest publication
  /// When the fragment that has waited longest was last exchanged, those in quarantine here apart; 0: never.
  [[nodiscard]] TimeUs oldest_exchange_us() const;
  /// Kept here for the clients, in bytes. Once idle(): tasks allocate it.
  [[nodiscard]] std::size_t pending_bytes() const;
  /// Mean |difference| of an element to the others', as estimated when each fragment was last worked on.
  [[nodiscard]] double disagreement() const;
  /// ‖y_j − y_i‖ / ‖y‖ as the latest exchanges found it, smoothed, in the mean over fragments; 0 before any.
  [[nodiscard]] double consensus() const;
  /// Between two exchanges of a fragment that the node starts: options' period_us, or more to keep to its shares.
  [[nodiscard]] TimeUs period_us() const { return cadence_.period_us(); }
  /// Why it is more.
  [[nodiscard]] Cadence::Limit period_limit() const { return cadence_.limit(); }
  /// Bytes per second that exchanges with this neighbour have shown; 0: not known.
  [[nodiscard]] double goodput(const NodeId& node) const;
  /// How fast exchanges mix the cluster's replicas; none: not known yet, or nothing was exchanged lately.
  [[nodiscard]] std::optional<MixingEstimate> mixing(TimeUs now_us) const { return tracer_.estimate(now_us); }
  [[nodiscard]] const Tracer& tracer() const { return tracer_; }
  /// The neighbours that run the job or have linked, by id.
  [[nodiscard]] std::vector<PartnerReport> partner_reports() const;
  /// Of a neighbour with another layout under the job's name, if there is one.
  [[nodiscard]] const std::optional<NodeId>& layout_stranger() const { return layout_stranger_; }

 private:
  enum class Stage { encoding, awaiting, concluding };
  /// An exchange of the node's own.
  struct Own {
    Stage stage = Stage::encoding;
    NodeId partner = {};
    int follow_up = 0;       ///< 0: the exchange proper; 1: wide blocks with wider steps; 2: what is left, in f32
    bool repeated = false;   ///< its request was sent again, on a new link
    bool unsent = false;     ///< and that copy could not be: the next tick tries
    bool abandoned = false;  ///< its partner died while the request was being encoded
    TimeUs begun_us = 0;
    TimeUs sent_us = 0;  ///< last
    ExchangeRequest request = {};
    std::vector<std::uint32_t> blocks = {};
    std::vector<std::int8_t> exponents = {};
    float factor = 1;
    std::optional<TracerValues> replied = {};  ///< with the reply, while it is concluded
  };
  struct Leaving {
    TimeUs deadline_us;
    TimeUs publications_until_us;  ///< after this, what there is is handed over
    std::size_t replicas;          ///< when it began, this one included
    std::uint32_t first = 0;       ///< fragments before it are over
  };
  struct Finish {
    Finishing stage = Finishing::begun;
    bool sound = true;      ///< no fragment is quarantined, as of the last look
    std::set<NodeId> over;  ///< for whom the run was over, whether they are still there or not
  };
  struct Publication {
    std::uint32_t generation;
    std::uint64_t clock;
  };
  /// A request that waits for a publication (lean memory), or for the client to give the fragment back.
  struct Asked {
    NodeId from;
    ExchangeRequest request;
    TimeUs since_us;
  };
  /// How long nobody has had anything to say of a fragment: see rest_if_quiet().
  struct Quiet {
    int rounds = 0;          ///< exchanges of its own in a row that found next to no difference
    std::uint64_t stir = 0;  ///< Replica::stir_ then
    TimeUs until_us = 0;     ///< it rests, unless something stirs
  };
  struct Fragment {
    FragmentBuffers buffers;
    BlockSteps steps;
    MixingBudget budget;
    bool held = false;
    bool quarantined = false;
    bool wants_publication = false;
    bool gather = false;              ///< wanted, when nothing else works on it
    bool gather_next = false;         ///< or with the next publication: this one is not finite
    bool starting = false;            ///< its publication was asked for in order to start an exchange
    bool begins = false;              ///< it has come, and the exchange is to start
    bool taking = false;              ///< see begin_taking()
    bool wants_room = false;          ///< is among those that wait for it
    std::optional<Asked> asked = {};  ///< waits for a publication, or for the client to give it back
    std::deque<UndoTask> undo = {};   ///< halves to undo, when nothing works on the fragment
    OwnHalves own_halves = {};
    bool fresh = false;                            ///< published since the last exchange was started
    std::optional<Publication> publication = {};   ///< came while the fragment was held
    std::optional<ExchangeReply> reply = {};       ///< likewise
    std::deque<NodeId> pulls = {};                 ///< joiners that wait for it, or for a publication worth giving
    TimeUs pulls_since_us = 0;                     ///< since when the first of them waits
    std::optional<std::uint64_t> copy_clock = {};  ///< so does this node: see copy()
    std::optional<Own> own = {};
    std::uint64_t publication_clock = 0;
    double cadence = 0;         ///< smoothed samples between publications
    float disagreement = 0;     ///< mean of `steps`, which a task may be changing while the fragment is held
    double starts_at = 0;       ///< when its next own exchange is due, in periods: see Cadence::passed()
    TimeUs start_after_us = 0;  ///< nor before, whatever the period
    /// When the exchange was due that is under way, or was turned down and is tried again. Waiting for the client's
    /// publication, for this node's loop or for a partner must not make the period longer.
    std::optional<double> due_at = {};
    std::uint64_t exchange_clock = 0;
    double exchange_interval = 0;        ///< smoothed samples between exchanges
    TimeUs exchanged_us = 0;             ///< when the last one ended, its own or another's
    bool begun_here = false;             ///< that one
    std::optional<NodeId> wide_at = {};  ///< who began that one and was told of wide blocks: it may follow up
    bool answers_follow_up = false;      ///< while it is held for an answer
    OuterState outer = {};
    TimeUs outer_us = 0;                           ///< when its last outer step was
    std::uint32_t outer_exchanges = 0;             ///< since then
    std::uint64_t begun = 0;                       ///< exchanges of its own: the round of a partner schedule
    std::optional<NodeId> was_busy = {};           ///< the partner of the last try; another one is rather asked next
    std::map<NodeId, TimeUs> quarantined_at = {};  ///< partners that hold NaN in it, and until when each is let rest
    DistanceRecord distances = {};
    double relative_distance = 0;  ///< smoothed over exchanges
    bool measured = false;         ///< that is known
    Handover handover = {};        ///< while the node leaves
    Agreement agreement = {};      ///< while it finishes

    Quiet quiet = {};

    /// Its own exchange is on its way, and no answer has come.
    [[nodiscard]] bool unanswered() const { return own && own->stage == Stage::awaiting && !reply; }
  };
  struct Neighbour {
    bool linked = false;
    JobInfo info;
    LinkFactor factor;
    ByteBudget budget;
    double answer_us = 0;  ///< smoothed time from request to reply
    double goodput = 0;    ///< smoothed bytes per second of the same exchanges
    int busy_in_a_row = 0;
    TimeUs busy_us = 0;  ///< when it last turned a request down: see rests_until_us()
    LinkLoad load;
    std::size_t own_count = 0;  ///< exchanges that the node has under way with it
    ClipRecord clips;
    std::uint64_t exchanges = 0;  ///< this and the following: see PartnerReport
    std::uint64_t busy = 0;
    TimeUs exchanged_us = 0;
    double relative_distance = 0;
    std::uint64_t blocks = 0;
    std::uint64_t wide_blocks = 0;
    std::uint64_t unresolved = 0;
    double age_intervals = 0;
  };

  void hold(Fragment& fragment);
  void release(std::uint32_t f, TimeUs now_us, Actions& out);
  void go_on(std::uint32_t f, TimeUs now_us, Actions& out);
  /// True if something can be committed to the fragment; else it is with the client, and is recalled.
  bool at_hand(std::uint32_t f, Actions& out);
  bool undo_next(std::uint32_t f, Actions& out);
  void store_commit(const Store& commit, Actions& out);
  void take_publication(std::uint32_t f, Publication publication, TimeUs now_us, Actions& out);
  void hand_over_if_wanted(std::uint32_t f, Actions& out);
  bool gather_if_wanted(std::uint32_t f, Actions& out);
  /// Gives the fragment to the first joiner that waits for it, if it can; true if it did, and so holds it.
  bool serve_pull(std::uint32_t f, TimeUs now_us, Actions& out);

  /// Lean: true if the fragment's buffers have memory; else asks for it, or waits for room.
  bool has_memory(std::uint32_t f, Actions& out);
  /// Lean: gives the memory back of a fragment that nothing is done with.
  void vacate_if_idle(std::uint32_t f, Actions& out);
  [[nodiscard]] bool window_open() const { return provided_.size() < window_ && !out_of_memory_; }
  void let_in(Actions& out);
  [[nodiscard]] bool crowded() const;
  void look_after_window(TimeUs now_us, Actions& out);
  /// Keeps a request for an empty fragment until the client has published; false if it cannot wait.
  bool let_wait(const NodeId& from, ExchangeRequest& request, TimeUs now_us, Actions& out);
  /// Answers the request that waited for a publication; true if that holds the fragment.
  bool answer_asked(std::uint32_t f, TimeUs now_us, Actions& out);
  void turn_down_asked(Fragment& fragment, TimeUs now_us, Actions& out);
  void turn_down_in_vain(Fragment& fragment, TimeUs now_us, Actions& out);
  /// Starts the exchange that the fragment's publication was asked for.
  void begin_if_wanted(std::uint32_t f, TimeUs now_us, Actions& out);
  /// Most exchanges of its own that are under way at once.
  [[nodiscard]] std::size_t most_in_flight() const;

  /// Takes an outer step if one is due; true if it did, and so holds the fragment.
  bool take_outer_step(std::uint32_t f, TimeUs now_us, Actions& out);
  void start_exchanges(TimeUs now_us, Actions& out);
  void start_last_exchanges(TimeUs now_us, Actions& out);
  void start_last_exchange(std::uint32_t f, TimeUs now_us, Actions& out);
  /// Looks how far finishing has come; tells the neighbours of a change.
  void update_finishing(TimeUs now_us, Actions& out);
  [[nodiscard]] bool settled(const Fragment& fragment) const;
  /// A partner that finishes, too, and is not quarantined.
  [[nodiscard]] bool finishes(const Neighbour& neighbour) const;
  /// How many those are.
  [[nodiscard]] std::size_t finishing_partners() const;
  /// Finishing, and there is somebody who finishes that the fragment is not known to agree with.
  [[nodiscard]] bool hurries(const Fragment& fragment) const { return finish_ && finish_->sound && !settled(fragment); }
  /// What the program left was looked at, and holds NaN or infinity.
  [[nodiscard]] bool spoiled() const;
  [[nodiscard]] bool somebody_left_to_ask(const Fragment& fragment) const;
  /// Asks the client for a publication, upon which an exchange starts, if what there is is old.
  bool wait_for_publication(std::uint32_t f, Actions& out);
  [[nodiscard]] bool may_start(const Fragment& fragment, TimeUs now_us) const;
  /// An exchange that the node began has ended. Where one after the other finds next to no difference and nobody
  /// trains, the next is put off for longer and longer: replicas that agree would only prove it to each other, at the
  /// full rate. Anything that may have changed a model ends the rest of all fragments at once: stir().
  void rest_if_quiet(Fragment& fragment, const ExchangeMeasure& measure, TimeUs now_us);
  [[nodiscard]] bool rests(const Fragment& fragment, TimeUs now_us) const;
  /// A clock has moved, here or at a neighbour, or a neighbour has come or changed its state, or models differ.
  void stir() { ++stir_; }
  /// Linked, and runs this job with this layout: can be exchanged with.
  [[nodiscard]] bool is_partner(const Neighbour& neighbour) const;
  [[nodiscard]] bool may_spend(TimeUs now_us) const;
  /// Another exchange of the fragment with this neighbour would not only wait for its link.
  [[nodiscard]] bool has_room(const Neighbour& neighbour, const Fragment& fragment) const;
  /// Of the fragments that may start, the one whose last exchange is longest ago, within a bounded look.
  [[nodiscard]] std::optional<std::uint32_t> oldest_startable(TimeUs now_us) const;
  [[nodiscard]] std::optional<std::uint32_t> turn_of_only_partner() const;
  [[nodiscard]] static bool rests(const Fragment& fragment, const NodeId& partner, TimeUs now_us);
  /// Whether it holds NaN is known no more: it is gone, or another replica has taken its place.
  void forget_quarantine(const NodeId& partner);
  [[nodiscard]] std::optional<NodeId> choose_partner(const Fragment& fragment, TimeUs now_us);
  void spend(const NodeId& to, std::size_t bytes, TimeUs now_us);
  void spend_own(const Own& own, TimeUs now_us);
  void let_rest(const NodeId& node, TimeUs now_us);
  void observe_answer(const NodeId& from, const Own& own, const ExchangeReply& reply, TimeUs now_us);
  void adjust_cadence();
  /// How long nothing may be heard of a message to this node before it is said again.
  [[nodiscard]] TimeUs patience_us(const NodeId& node) const;
  void begin(std::uint32_t f, const NodeId& partner, TimeUs now_us, Actions& out);
  void start(std::uint32_t f, const NodeId& partner, int follow_up, Codec codec, std::vector<std::uint32_t> blocks,
             std::vector<std::int8_t> exponents, TimeUs now_us, Actions& out);
  void conclude(std::uint32_t f, ExchangeReply&& reply, TimeUs now_us, Actions& out);
  void quarantine(Fragment& fragment);
  /// The next exchange of the fragment may begin `rest_periods` from now.
  void end_own(Fragment& fragment, double rest_periods, TimeUs now_us);
  /// What the responder may have committed, this end never will.
  void give_up_own(Fragment& fragment, double rest_periods, TimeUs now_us);
  void give_up(std::uint64_t counter);
  void note_begun(std::uint32_t f, std::uint64_t counter, Actions& out);
  /// What has become of an exchange of the node's own; none: it is not over.
  [[nodiscard]] std::optional<Outcome> outcome_of(std::uint32_t f, std::uint64_t counter) const;
  void inquire(Actions& out);
  void learn(Fragment& fragment, const NodeId& partner, const ExchangeMeasure& measure, int shift, bool counts);
  void count_unresolved(const NodeId& initiator);
  void observe_age(const NodeId& partner, const Age& age);

  void take_request(const NodeId& from, ExchangeRequest&& request, bool has_waited, TimeUs now_us, Actions& out);
  /// Why a request cannot be taken at all; none if it can.
  [[nodiscard]] RefuseReason objection(const ExchangeRequest& request) const;
  [[nodiscard]] bool affordable(const Neighbour& neighbour, const Fragment& fragment, TimeUs now_us) const;
  /// What a request for the fragment takes, or an answer, about.
  [[nodiscard]] std::size_t sent_bytes(const Fragment& fragment) const;
  [[nodiscard]] Codec codec_for(const NodeId& partner) const;
  [[nodiscard]] bool crosses(const Fragment& fragment, const NodeId& from) const;
  /// By all that can be known here: a request does not say so.
  [[nodiscard]] bool follows_up(const Fragment& fragment, const NodeId& from, TimeUs now_us) const;
  void turn_down(const NodeId& from, const ExchangeRequest& request, ReplyStatus status, RefuseReason reason,
                 TimeUs now_us, Actions& out);

  [[nodiscard]] Age age_of(const Fragment& fragment) const;
  [[nodiscard]] Witness witness_for(const Fragment& fragment, const NodeId& partner) const;
  [[nodiscard]] Clip clip_for(const Fragment& fragment, const NodeId& partner) const;
  [[nodiscard]] float factor_for(const Fragment& fragment, const NodeId& partner);
  // When something may begin follows from the present period, so that a new one counts at once.
  /// An exchange of the fragment, by this node.
  [[nodiscard]] bool due(const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] TimeUs rests_until_us(const Neighbour& neighbour) const;
  /// From the exchange's beginning to the next, if that was due at `due_at`.
  [[nodiscard]] double rest_periods(double due_at, TimeUs now_us);
  /// Whatever the period.
  static void start_at(Fragment& fragment, TimeUs start_us);
  /// Then at the latest.
  void start_by(Fragment& fragment, TimeUs start_us) const;
  /// Exchanges that the node may begin now, whatever the fragments, so that they are spread over the period: saved up,
  /// or owed.
  [[nodiscard]] double may_begin(TimeUs now_us) const;
  void count_begins(double count, TimeUs now_us);
  /// In periods: one, more or less.
  [[nodiscard]] double jitter();
  void tell_neighbours(Actions& out) const;
  void look_at_clocks(TimeUs now_us);
  void send_again(Actions& out);
  void end_the_old(TimeUs now_us, Actions& out);
  void repeat_unanswered(TimeUs now_us, Actions& out);
  [[nodiscard]] bool linked(const NodeId& node) const;
  Fragment* own_of(const NodeId& from, std::uint32_t f, std::uint64_t counter);

  ReplicaOptions options_;
  NodeId self_;
  JobInfo description_;
  ReplicaState state_ = ReplicaState::joining;
  bool drained_ = false;
  std::optional<Leaving> leaving_;
  std::optional<Finish> finish_;
  TimeUs accompanied_us_ = 0;           ///< when it last had a partner, or did not run yet
  std::size_t finishing_partners_ = 0;  ///< while it finishes, as of the last look
  std::vector<Fragment> fragments_;
  std::size_t block_count_ = 0;  ///< of all
  ExchangeCounter& counter_;
  std::uint64_t first_counter_;  // smaller ones are of replicas of this node before this one
  GivenUp given_up_;
  std::vector<std::uint64_t> newly_given_up_;
  bool ask_at_once_ = false;  // what has become of orphaned replies
  Random random_;
  std::map<NodeId, Neighbour> neighbours_;
  ReplyCache cache_;
  std::vector<std::pair<NodeId, ExchangeAck>> unsent_acks_;
  std::uint64_t clock_ = 0;
  JobClock job_clock_;
  std::size_t own_count_ = 0;
  std::size_t starting_count_ = 0;
  std::size_t next_fragment_ = 0;
  std::size_t window_ = 0;            // 0: resident
  std::set<std::uint32_t> provided_;  // lean: at most window_ unless they were there before
  std::deque<std::uint32_t> wait_for_room_;
  bool out_of_memory_ = false;  // nothing more is provided before the next look at what is old
  TimeUs ticked_us_ = 0;
  TimeUs info_sent_us_ = 0;
  std::uint64_t stir_ = 0;  ///< counts what ends all fragments' rest
  ByteBudget budget_;
  bool answered_last_ = false;  ///< of what was spent of it
  Cadence cadence_;
  double begins_left_ = std::numeric_limits<double>::max();  ///< may_begin() at begins_left_at_
  double begins_left_at_ = 0;                                ///< in periods
  double capacity_ = 0;
  ExchangeCost::Work work_;  ///< since the cadence was adjusted
  ExchangeCost cost_;
  double request_bytes_ = 0;  ///< smoothed, of exchanges proper
  ByteBudget own_budget_;     ///< of the node's own exchanges, within its share of the network
  std::optional<NodeId> layout_stranger_;
  Tracer tracer_;
  std::optional<TracerValues> tracer_asked_;  ///< of the request for fragment 0 that is being answered
  ReplicaCounters counters_;
};

}  // namespace gossamer::gossip
