// Carries out what a replica decides: the one executor, of the daemon and of the simulator.
//
// In this order: what must outlive the daemon is stored; the client is given what is its; work begins; messages leave;
// fragments are recalled. When work is over its result goes to the replica, and what that stores is stored before
// anything else comes of it. So at every moment a successor of the daemon finds what counts.
//
// Memory and machine are behind two interfaces. ReplicaMemory is what outlives the daemon, and what the client sees.
// ReplicaHost sends, runs work on other threads, and knows the time. Everything but what is marked "any thread" runs on
// the replica's thread. A host that drops a task without finishing it drops the replica, too.

#pragma once

#include <memory>

#include "gossip/replica/replica.hpp"

namespace gossamer::gossip {

class ReplicaMemory {
 public:
  virtual ~ReplicaMemory() = default;

  // --- what is known of exchanges
  virtual void store_given_up(std::uint64_t counter) = 0;
  virtual void store_own_halves(std::uint32_t f, const OwnHalves& halves) = 0;
  /// Writes a record of a reply, which counts once it is sealed. Any thread. False: there is no place for it.
  virtual bool write_record(std::uint32_t place, const NodeId& initiator, const ExchangeReply& reply,
                            const AnsweredHalf& half) = 0;
  /// The record counts when the fragment's count of commits has come to this.
  virtual void seal_record(std::uint32_t place, std::uint32_t commits) = 0;
  /// From this count on the record's half is undone.
  virtual void note_undone(std::uint32_t place, std::uint32_t commits) = 0;
  virtual void clear_record(std::uint32_t place) = 0;

  // --- what the client sees
  /// Stores which buffers of the fragment play which part, if this daemon owns the fragment's word.
  virtual void store_parts(std::uint32_t f, const FragmentBuffers& buffers) = 0;
  /// Fragments may have been given to the client since the last call.
  virtual void tell_due() = 0;
  /// Takes a fragment back that is due. False: the client has begun to serve it, or has it not.
  virtual bool recall(std::uint32_t f) = 0;

  // --- lean memory
  /// Takes memory for the fragment's buffers. Any thread. 0, or an errno value.
  virtual int provide(std::uint32_t f) = 0;
  /// Gives it back. Any thread.
  virtual void vacate(std::uint32_t f) = 0;
};

/// Work on a fragment that is held for it.
class Task {
 public:
  virtual ~Task() = default;
  /// The arithmetic. Any thread.
  virtual void run(HeldFragment fragment) = 0;
  /// Reports the result. After run(), once.
  virtual void finish() = 0;
};

class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;

  [[nodiscard]] virtual TimeUs replica_now_us() const = 0;
  /// False if it cannot be sent now: no link, or its queue is full.
  virtual bool send_message(const NodeId& to, const Message& message) = 0;
  /// Runs the task over the fragment, then finishes it.
  virtual void run(std::uint32_t f, std::unique_ptr<Task> task) = 0;

  // --- the model for others
  /// The hash that a PullReply carries of its values. Any thread.
  [[nodiscard]] virtual std::uint64_t hash_of(std::span<const float> values) const = 0;
  /// Adds the clock, and what else goes with the fragment.
  virtual void complete(PullReply& reply) = 0;
  /// For a checkpoint: y of a publication of this clock; none: it is not finite, or its device failed.
  virtual void copied(std::uint32_t f, std::optional<std::vector<float>>&& values, std::uint64_t publication_clock) = 0;

  // --- several clients: each ends with Executor::finished()
  virtual void gather(std::uint32_t f) = 0;
  virtual void offer(std::uint32_t f) = 0;
  virtual void take_in(std::uint32_t f) = 0;

  // --- for whoever watches
  /// There was no memory for a fragment in lean memory: an errno value.
  virtual void lacks_memory(int error) = 0;
  /// Work begins.
  virtual void begun(const Actions::Run&) {}
  /// Work on the fragment is over, and what came of it is stored. `done`: an exchange took place, and `commit`: there
  /// was something to commit.
  virtual void over(std::uint32_t /*f*/, bool /*done*/, bool /*commit*/) {}
  /// Everything that followed from one event has been carried out, but for recalls.
  virtual void turned() {}
};

class Executor {
 public:
  Executor(Replica& replica, ReplicaMemory& memory, ReplicaHost& host)
      : replica_(replica), memory_(memory), host_(host) {}

  /// Lets the replica hear of something, by `feed(actions)`, and carries out what it decides.
  template <class Feed>
  void decide(Feed feed) {
    Actions actions;
    feed(actions);
    perform(actions);
  }
  /// Runs `arithmetic(held)` over a held fragment, then lets the replica hear of it by `report(result, actions)`.
  template <class Arithmetic, class Report>
  void work(std::uint32_t f, Arithmetic arithmetic, Report report);
  /// Stores what the replica wants stored, before anything else is done.
  void store(Actions& actions);
  /// The memory has a record there that a daemon before this one wrote.
  void note_record(std::uint32_t place) { records_.insert(place); }

 private:
  void perform(Actions& actions);
  void begin(Actions::Run&& run);
  template <class Computed>
  void compute(std::uint32_t f, Computed task);
  void answer(std::uint32_t f, Actions::Answer&& answer);
  void give(std::uint32_t f, const NodeId& to);
  void keep_copy(std::uint32_t f);
  void provide(std::uint32_t f);
  void vacate(std::uint32_t f);
  void finish(std::uint32_t f, Finished&& result, Actions& out);
  void recall(std::uint32_t f);

  Replica& replica_;
  ReplicaMemory& memory_;
  ReplicaHost& host_;
  std::set<std::uint32_t> records_;  // places with a record
};

template <class Arithmetic, class Report>
void Executor::work(std::uint32_t f, Arithmetic arithmetic, Report report) {
  using Result = std::invoke_result_t<Arithmetic&, HeldFragment>;
  class Work : public Task {
   public:
    Work(Executor& executor, Arithmetic arithmetic, Report report)
        : executor_(executor), arithmetic_(std::move(arithmetic)), report_(std::move(report)) {}
    void run(HeldFragment fragment) override { result_.emplace(arithmetic_(fragment)); }
    void finish() override {
      executor_.decide([&](Actions& out) {
        report_(std::move(*result_), out);
        executor_.store(out);
      });
    }

   private:
    Executor& executor_;
    Arithmetic arithmetic_;
    Report report_;
    std::optional<Result> result_;
  };
  host_.run(f, std::make_unique<Work>(*this, std::move(arithmetic), std::move(report)));
}

}  // namespace gossamer::gossip
