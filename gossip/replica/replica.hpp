// The decisions of one job at one node: when a fragment is exchanged, with whom, what a request is answered, when the
// client is asked for a publication, and what becomes of an exchange whose other end is gone.
//
// A state machine. Messages, publications, finished work, time and randomness come in; what to send, which fragments
// to hand to the client and what work to run comes out in Actions (gossip/replica/executor.hpp carries them out). Work
// may run on any thread while the fragment is *held*: nothing else is decided about that fragment until the result
// comes back. A replica is made of parts, each of which decides on its own subject:
//
//   Initiator    exchanges that this node begins     Responder   exchanges that others begin with it
//   ClientSide   what passes between it and its client, and which fragments have memory
//   ReplicaData  what they share: the fragments with their stages, the neighbours, the pace, the book of exchanges
//
// What is left here is what concerns all of them: the phases, messages by kind, joiners' pulls and checkpoints, outer
// steps, finishing, time, and the order in which what waits for a fragment goes on.
//
// Every commit, and what it takes to end an exchange after a death of either daemon, is stored where it outlives this
// one, before anything is sent on the strength of it: Actions::store.
//
// One owner, one thread (the loop of the daemon, or of a simulation).

#pragma once

#include "gossip/replica/initiator.hpp"
#include "gossip/replica/responder.hpp"

namespace gossamer::gossip {

class Replica {
 public:
  /// `description`: the job's key, name and sizes, as neighbours are told them.
  Replica(const ReplicaOptions& options, const NodeId& self, JobInfo description,
          std::vector<FragmentBuffers> fragments, ExchangeCounter& counter, Random random);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  [[nodiscard]] const NodeId& self() const { return data_.self; }

  // --- where the replica stands
  [[nodiscard]] Phase phase() const { return data_.phase; }
  /// What the neighbours are told of it.
  [[nodiscard]] ReplicaState state() const { return state_of(data_.phase); }
  /// Enters a phase other than leaving, and tells the neighbours. False: it cannot follow the present one.
  bool enter(Phase phase, Actions& out);
  /// The node is about to leave: nothing new is begun or answered but the last exchanges, by which the others keep what
  /// was learned here (gossip/replica/handover.hpp). None is begun after `deadline_us`, and a client that does not
  /// publish is waited for half of the time until then. A replica that has not joined has nothing to hand over.
  void leave(TimeUs now_us, TimeUs deadline_us, Actions& out);
  /// Everything is handed over, or nobody is there to take it. What is under way may not have ended: see idle().
  [[nodiscard]] bool handed_over() const;
  /// The program has stopped training: exchanges as fast as the links allow until the replicas in reach agree, see
  /// gossip/replica/finishing.hpp. Off: it trains again.
  void set_finishing(bool on, TimeUs now_us, Actions& out);
  [[nodiscard]] FinishReport finish_report() const;
  /// Nothing of an exchange is left under way: it may go without anyone noticing.
  [[nodiscard]] bool idle() const;
  [[nodiscard]] JobInfo own_info() const;
  void set_options(const ReplicaOptions& options);
  /// What it remembers of exchanges, for whoever stores that or takes it over.
  [[nodiscard]] ExchangeBook& book() { return data_.book; }
  [[nodiscard]] const ExchangeBook& book() const { return data_.book; }
  /// The last exchanges of a fragment that a daemon before this one began: after book().remember().
  void remember(std::uint32_t f, const OwnHalves& halves) { initiator_.remember(f, halves); }

  // --- the client
  void set_clock(std::uint64_t clock);
  /// The client has spent so much more time on serving fragments: what the cadence keeps to time_share.
  void add_time_taken(TimeUs taken_us);
  /// What the node's network can carry, in bytes per second, as configured or measured: what the cadence keeps to
  /// network_share. 0: not known.
  void set_capacity(double bytes_per_s) { data_.pace.set_capacity(bytes_per_s); }
  /// The client handed fragment f back with a fresh snapshot, taken at `clock`. Its word has been checked.
  void published(std::uint32_t f, std::uint32_t generation, std::uint64_t clock, TimeUs now_us, Actions& out);
  /// `done`: the client had not begun to serve the fragment, and it is the daemon's again.
  void recalled(std::uint32_t f, bool done, TimeUs now_us, Actions& out);
  /// Asks for a publication though no exchange needs one.
  void want_publication(std::uint32_t f, Actions& out) { client_.want_publication(f, out); }
  /// Several clients: from now on the fragments live in memory of the node's own, each as soon as nothing works on it.
  /// The replica stays so. A fragment that is gathered is handed to the clients by Actions::Offer, published() ends the
  /// round, and Actions::TakeIn takes what they have published into it.
  void gather(Actions& out);

  /// For a checkpoint: a snapshot of the fragment for this node, as soon as there is a publication of `least_clock` or
  /// later. Asks the client for one if need be, and for those of the fragments behind it, which come next. False: there
  /// is none to be had, since the replica does not run or the fragment is quarantined.
  bool copy(std::uint32_t f, std::uint64_t least_clock, TimeUs now_us, Actions& out);

  // --- lean memory
  /// The buffers of at most `window` fragments, 2 or more, have memory at once; those that are not empty have it
  /// already. Before anything else.
  void keep_lean(std::size_t window);
  [[nodiscard]] bool lean() const { return client_.is_lean(); }
  /// Fragments whose buffers have memory; 0 in resident memory.
  [[nodiscard]] std::size_t provided_fragments() const { return client_.provided().size(); }

  // --- values that are taken over: pulled from others, or restored
  /// Holds the fragment, and keeps its room, until end_taking(). False: there is none now. The memory is the caller's
  /// to provide.
  [[nodiscard]] bool begin_taking(std::uint32_t f) { return client_.begin_taking(f); }
  void end_taking(std::uint32_t f, const Provided& result) { client_.end_taking(f, result); }
  /// The values stand where FragmentBuffers::begin_replace() said, and are given to the client.
  void hand_over_taken(std::uint32_t f, Actions& out);

  // --- the overlay
  void link_up(const NodeId& node, Actions& out);
  void link_down(const NodeId& node) { data_.neighbours.link_down(node); }
  void node_dead(const NodeId& node, TimeUs now_us, Actions& out);
  /// What is known of the link to this node. Nothing is begun that would only stand in its queue.
  void set_link(const NodeId& node, const LinkLoad& load) { data_.neighbours.set_link(node, load); }
  /// A message about this job; one that is no replica's business is ignored.
  void received(const NodeId& from, Message&& message, TimeUs now_us, Actions& out);
  /// A message from Actions::send could not be sent (no link, or its queue is full).
  void send_failed(const NodeId& to, const Message& message, TimeUs now_us);

  /// Work on the fragment is over, which it was held for.
  void finished(std::uint32_t f, Finished&& result, TimeUs now_us, Actions& out);
  /// Starts what is due and ends what has lived too long. Call at least every few milliseconds.
  void tick(TimeUs now_us, Actions& out);
  /// What must always hold, after each event; ends the process if it does not.
  void check_invariants() const;

  // --- for whoever runs the work
  [[nodiscard]] HeldFragment held(std::uint32_t f);
  [[nodiscard]] FragmentBuffers& buffers(std::uint32_t f) { return data_.fragments[f].buffers; }
  [[nodiscard]] OuterState& outer_state(std::uint32_t f) { return data_.fragments[f].outer; }
  [[nodiscard]] std::uint32_t fragment_count() const { return data_.fragments.count(); }

  // --- for people
  [[nodiscard]] const ReplicaCounters& counters() const { return data_.counters; }
  [[nodiscard]] const Fragments& fragments() const { return data_.fragments; }
  [[nodiscard]] const Neighbours& neighbours() const { return data_.neighbours; }
  [[nodiscard]] const Pace& pace() const { return data_.pace; }
  [[nodiscard]] const Tracer& tracer() const { return data_.tracer; }
  /// How far the job is, as far as neighbours are believed (gossip/replica/job_clock.hpp). It never goes back.
  [[nodiscard]] std::uint64_t global_clock() const { return std::max(data_.clock, job_clock_.value()); }
  /// A neighbour's clock that is too far ahead of all others to be believed, as of the last tick.
  [[nodiscard]] const std::optional<JobClock::Claim>& disbelieved_clock() const { return job_clock_.disbelieved(); }
  [[nodiscard]] std::size_t in_flight() const { return initiator_.in_flight(); }
  /// Samples that the oldest publication lags the clock.
  [[nodiscard]] std::uint64_t age_samples() const { return data_.fragments.age_samples(data_.clock); }
  /// The neighbours that run the job or have linked, by id.
  [[nodiscard]] std::vector<PartnerReport> partner_reports() const;

 private:
  void go_on(std::uint32_t f, TimeUs now_us, Actions& out);
  // What may wait for a fragment. Each is true if it holds the fragment now.
  bool take_publication(std::uint32_t f, TimeUs now_us, Actions& out);
  bool undo(std::uint32_t f, TimeUs, Actions& out) { return responder_.undo_next(f, out); }
  bool conclude(std::uint32_t f, TimeUs, Actions& out) { return initiator_.conclude_next(f, out); }
  bool gather_one(std::uint32_t f, TimeUs, Actions& out) { return client_.gather_if_wanted(f, out); }
  bool answer(std::uint32_t f, TimeUs now_us, Actions& out) { return responder_.answer_waiting(f, now_us, out); }
  bool give_model(std::uint32_t f, TimeUs now_us, Actions& out);
  bool take_outer_step(std::uint32_t f, TimeUs now_us, Actions& out);

  void outer_done(std::uint32_t f, const OuterTask::Result& result, Actions& out);
  void hear(const NodeId& from, const JobInfo& info);
  void pull(const NodeId& from, const PullRequest& request, TimeUs now_us, Actions& out);
  void acknowledged(const NodeId& from, const ExchangeAck& ack, TimeUs now_us, Actions& out);
  void tell_neighbours(Actions& out) const;
  /// Looks how far finishing has come; tells the neighbours of a change.
  void update_finishing(TimeUs now_us, Actions& out);
  /// What the program left was looked at, and holds NaN or infinity.
  [[nodiscard]] bool spoiled() const;
  void end_the_old(TimeUs now_us, Actions& out);
  void look_at_clocks(TimeUs now_us);
  void look_after_window(TimeUs now_us, Actions& out);

  ReplicaData data_;
  ClientSide client_{data_};
  Initiator initiator_{data_, client_};
  Responder responder_{data_, client_};
  JobClock job_clock_;
  TimeUs accompanied_us_ = 0;  ///< when it last had a partner, or did not run yet
  TimeUs ticked_us_ = 0;
  TimeUs info_sent_us_ = 0;
  bool ask_at_once_ = false;  ///< what has become of orphaned replies
};

}  // namespace gossamer::gossip
