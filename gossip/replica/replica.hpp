// The decisions of one job at one node: when and with whom a fragment is exchanged, how a request is answered, when the
// client is asked for a publication, and how an exchange ends whose other end is gone.
//
// This is a state machine. Messages, publications, finished work, time and randomness come in. Messages to send,
// fragments to offer and work to run come out as Actions (gossip/replica/executor.hpp carries them out). Work may run
// on any thread while the fragment is *held*: nothing else is decided about it until the result comes back. A replica
// is made of parts, each of which decides on its own subject:
//
//   Initiator    exchanges that this node begins     Responder   exchanges that others begin with it
//   ClientSide   what passes between it and its client, and which fragments have memory
//   ReplicaData  what they share: the fragments with their stages, the neighbours, the pace, the book of exchanges
//
// Replica itself does what concerns all parts: phases, messages by kind, joiners' pulls and checkpoints, outer steps,
// finishing, time, and the order in which waiting work goes on.
//
// Every commit, and all that is needed to end an exchange after either daemon has died, is stored where it outlives
// this daemon. That happens before any message that relies on it is sent: Actions::store.
//
// One owner, one thread (the loop of the daemon, or of a simulation).

#pragma once

#include "gossip/replica/initiator.hpp"
#include "gossip/replica/responder.hpp"

namespace gossamer::gossip {

class Replica {
 public:
  /// `description`: the job's key, name and sizes, as neighbours are told.
  Replica(const ReplicaOptions& options, const NodeId& self, JobInfo description,
          std::vector<FragmentBuffers> fragments, ExchangeCounter& counter, Random random);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  [[nodiscard]] const NodeId& self() const { return data_.self; }

  // --- the state of the replica
  [[nodiscard]] Phase phase() const { return data_.phase; }
  /// The state that neighbours are told.
  [[nodiscard]] ReplicaState state() const { return state_of(data_.phase); }
  /// Enters a phase other than leaving, and tells the neighbours. False: that phase cannot follow the present one.
  bool enter(Phase phase, Actions& out);
  /// The node is about to leave. It begins only exchanges for handover, so that others keep its training
  /// (gossip/replica/handover.hpp), and answers nothing new. It begins no exchange after `deadline_us`, and waits for a
  /// client that does not publish until half of that time is over. A replica that has not joined hands nothing over.
  void leave(TimeUs now_us, TimeUs deadline_us, Actions& out);
  /// True if the handover is complete, or no node is left to take part in it. Answers to others may still be under way:
  /// see idle().
  [[nodiscard]] bool handed_over() const;
  /// Says whether the programs here train. Once they have stopped, the node exchanges as fast as its links allow until
  /// the replicas in reach agree: gossip/replica/finishing.hpp.
  void set_finishing(Programs programs, TimeUs now_us, Actions& out);
  [[nodiscard]] FinishReport finish_report() const;
  /// `keeps`: no process here trains the job, and the node holds the model for the others. With the method `server`
  /// such a node finishes when all partners that train have stopped, and stops finishing when one trains again.
  void set_keeps(bool keeps, TimeUs now_us, Actions& out);
  /// Says whether the others let this node follow only. Then it has the settings of those it follows.
  void set_follows(bool follows) { data_.description.follows = follows; }
  /// True if no exchange is under way in any form, so that the replica may end without an effect on others.
  [[nodiscard]] bool idle() const;
  [[nodiscard]] JobInfo own_info() const;
  /// The last report of a replica that is given up. It tells the neighbours to wait for nothing from this replica. Adds
  /// to `seen` the exchanges that the replica has answered: a later replica of this node must not answer them again.
  [[nodiscard]] JobInfo farewell(ReplyCache::Seen& seen) const;
  /// True if exchanges may change the model here: see ReplicaOptions::exchanges.
  [[nodiscard]] bool takes() const { return data_.takes(); }
  void set_options(const ReplicaOptions& options);
  /// The newest settings of the job that this replica has heard of. The caller turns them into options and calls
  /// set_options().
  [[nodiscard]] const JobSettings& settings() const { return data_.description.settings; }
  /// Sets the values that the node's programs have logged. The neighbours hear them with the next regular report.
  void set_logged(std::vector<LoggedValue> logged) { data_.description.logged = std::move(logged); }
  /// Takes these settings if they are newer, and tells the neighbours.
  void take_settings(const JobSettings& settings, Actions& out);
  /// The record of this replica's exchanges, for the code that stores that record or takes it over.
  [[nodiscard]] ExchangeBook& book() { return data_.book; }
  [[nodiscard]] const ExchangeBook& book() const { return data_.book; }
  /// Takes over the last exchanges that an earlier daemon began for a fragment. Call it after book().remember().
  void remember(std::uint32_t f, const OwnHalves& halves) { initiator_.remember(f, halves); }

  // --- the client
  void set_clock(std::uint64_t clock);
  /// The client has spent this much more time on serving fragments. The cadence keeps that time within time_share.
  void add_time_taken(TimeUs taken_us);
  void set_step(const TrainingStep& step) { data_.step = step; }
  void set_certified_members(std::size_t members) { data_.density.set_certified_members(members); }
  /// The node's network capacity in bytes per second, configured or measured. The cadence keeps gossip within
  /// network_share of it. 0: not known.
  void set_capacity(double bytes_per_s) { data_.pace.set_capacity(bytes_per_s); }
  /// The client has published fragment f, with a snapshot taken at `clock`. The caller has checked the fragment's word.
  void published(std::uint32_t f, std::uint32_t generation, std::uint64_t clock, TimeUs now_us, Actions& out);
  /// `done`: the client had not begun to serve the fragment, and the daemon owns it again.
  void recalled(std::uint32_t f, bool done, TimeUs now_us, Actions& out);
  /// Asks for a publication although no exchange needs one.
  void want_publication(std::uint32_t f, Actions& out) { client_.want_publication(f, out); }
  /// Several clients: from now on the fragments live in the node's own memory. Each moves when it is no longer held.
  /// The replica never moves back. A gathered fragment is given to the clients by Actions::Offer, published() ends the
  /// round, and Actions::TakeIn takes their publications into y.
  void gather(Actions& out);

  /// For a checkpoint: takes a snapshot of the fragment for this node, as soon as there is a publication of
  /// `least_clock` or later. If need be, the client is asked for that publication, and for publications of the next
  /// fragments. False: no snapshot is possible, since the replica has no model or the fragment is quarantined.
  bool copy(std::uint32_t f, std::uint64_t least_clock, TimeUs now_us, Actions& out);

  // --- lean memory
  /// At most `window` fragments, 2 or more, have memory at once. Fragments that are not empty have memory already. Call
  /// this first.
  void keep_lean(std::size_t window);
  /// 0: the memory is not lean.
  [[nodiscard]] std::size_t lean_window() const { return client_.window(); }

  // --- values taken over: pulled from others, or restored
  /// Holds the fragment, and keeps its room, until end_taking(). False: the fragment is held already, or there is no
  /// room now. The caller provides memory.
  [[nodiscard]] bool begin_taking(std::uint32_t f) { return client_.begin_taking(f); }
  void end_taking(std::uint32_t f, const Provided& result) { client_.end_taking(f, result); }
  /// The values are where FragmentBuffers::begin_replace() said. They are now given to the client.
  void hand_over_taken(std::uint32_t f, Actions& out);

  // --- the overlay
  void link_up(const NodeId& node, Actions& out, Sponsor sponsor = no_sponsor);
  void link_down(const NodeId& node) { data_.neighbours.link_down(node); }
  void node_dead(const NodeId& node, TimeUs now_us, Actions& out);
  /// The measured state of the link to this node. No exchange is begun that would only wait in the link's queue.
  void set_link(const NodeId& node, const LinkLoad& load) { data_.neighbours.set_link(node, load); }
  /// A message about this job. Messages that do not concern a replica are ignored.
  void received(const NodeId& from, Message&& message, TimeUs now_us, Actions& out);
  /// A message from Actions::send could not be sent (no link, or its queue is full).
  void send_failed(const NodeId& to, const Message& message, TimeUs now_us);

  /// The work that the fragment was held for is over.
  void finished(std::uint32_t f, Finished&& result, TimeUs now_us, Actions& out);
  /// Starts what is due and ends what has exceeded its lifetime. Call it at least every few milliseconds.
  /// `all_dialled`: each node to be dialled is linked or has failed once; until then partners are expected.
  void tick(TimeUs now_us, Actions& out, bool all_dialled = true);
  /// To be called after each event. Ends the process if an invariant does not hold.
  void check_invariants() const;

  // --- for the executor
  [[nodiscard]] HeldFragment held(std::uint32_t f);
  [[nodiscard]] FragmentBuffers& buffers(std::uint32_t f) { return data_.fragments[f].buffers; }
  [[nodiscard]] OuterState& outer_state(std::uint32_t f) { return data_.fragments[f].outer; }

  // --- for people
  [[nodiscard]] const ReplicaCounters& counters() const { return data_.counters; }
  [[nodiscard]] const Fragments& fragments() const { return data_.fragments; }
  [[nodiscard]] const Neighbours& neighbours() const { return data_.neighbours; }
  [[nodiscard]] const Pace& pace() const { return data_.pace; }
  [[nodiscard]] const Tracer& tracer() const { return data_.tracer; }
  /// Samples that this replica has seen.
  [[nodiscard]] std::uint64_t clock() const { return data_.clock; }
  /// The job's clock as neighbours claim it, and who is not believed. This replica's own clock may be further.
  [[nodiscard]] const JobClock& job_clock() const { return job_clock_; }
  [[nodiscard]] std::size_t in_flight() const { return initiator_.in_flight(); }
  /// Reports of the neighbours that run the job or have linked, by id.
  [[nodiscard]] std::vector<PartnerReport> partner_reports() const;

 private:
  void go_on(std::uint32_t f, TimeUs now_us, Actions& out);
  // The steps that may wait for a fragment. Each returns true if it holds the fragment now.
  bool take_publication(std::uint32_t f, TimeUs now_us, Actions& out);
  bool give_model(std::uint32_t f, TimeUs now_us, Actions& out);
  void ask_for_what_follows(std::uint32_t f, Actions& out);
  bool take_outer_step(std::uint32_t f, TimeUs now_us, Actions& out);

  void outer_done(std::uint32_t f, const OuterTask::Result& result, Actions& out);
  void follow_settings(Actions& out);
  void hear(const NodeId& from, const JobInfo& info, Actions& out);
  void pull(const NodeId& from, const PullRequest& request, TimeUs now_us, Actions& out);
  void tell_neighbours(Actions& out) const;
  void finish_with_others(TimeUs now_us, Actions& out);
  /// Checks how far finishing has come, and tells the neighbours of a change.
  void update_finishing(TimeUs now_us, Actions& out);
  void end_the_old(TimeUs now_us, Actions& out);
  void look_after_window(TimeUs now_us, Actions& out);

  ReplicaData data_;
  ClientSide client_{data_};
  Initiator initiator_{data_, client_};
  Responder responder_{data_, client_};
  JobClock job_clock_;
  /// When this replica last had a partner, expected one, or was not running. 0: no look has been taken since the
  /// beginning, or since the last new link.
  TimeUs accompanied_us_ = 0;
  /// When this replica last began to expect a partner: at the beginning, or because one had gone, perhaps for a moment.
  std::optional<TimeUs> expects_since_us_;
  std::uint64_t losses_ = 0;  ///< Neighbours::losses() at the last tick
  bool all_dialled_ = true;
  TimeUs ticked_us_ = 0;
  TimeUs info_sent_us_ = 0;
  bool ask_at_once_ = false;  ///< ask initiators about orphaned replies at the next tick
};

/// Ends the process unless each place for a reply is free, holds a reply, or is taken by an answer or an undo under
/// way. Goes through all replies.
void check_places(const Replica& replica);

}  // namespace gossamer::gossip
