// Carries out what a replica decides. The daemon and the simulator use this same executor.
//
// The order is: store what must outlive the daemon; give the client its fragments; begin work; send messages; recall
// fragments. When work is over, its result goes to the replica, and everything that this stores is stored before any
// other effect. So at every moment a successor of the daemon finds what counts.
//
// Memory and machine are behind two interfaces. ReplicaMemory is what outlives the daemon and what the client sees.
// ReplicaHost sends messages, runs work on other threads, and knows the time. Everything runs on the replica's thread
// unless it is marked "any thread". A host that drops a task without finishing it must drop the replica as well.

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
  /// The record counts once the fragment's count of commits has reached `commits`.
  virtual void seal_record(std::uint32_t place, std::uint32_t commits) = 0;
  /// The record's half is undone once the fragment's count of commits has reached `commits`.
  virtual void note_undone(std::uint32_t place, std::uint32_t commits) = 0;
  virtual void clear_record(std::uint32_t place) = 0;

  // --- what the client sees
  /// Stores which buffers of the fragment are publication and correction, if this daemon owns the fragment's word.
  virtual void store_parts(std::uint32_t f, const FragmentBuffers& buffers) = 0;
  /// Tells the client that it may have been given fragments since the last call.
  virtual void tell_due() = 0;
  /// Takes a due fragment back. False: the client has begun to serve it, or does not have it.
  virtual bool recall(std::uint32_t f) = 0;

  // --- lean memory
  /// Takes memory for the fragment's buffers. Any thread. Returns 0 or an errno value.
  virtual int provide(std::uint32_t f) = 0;
  /// Gives the memory of the fragment's buffers back. Any thread.
  virtual void vacate(std::uint32_t f) = 0;
};

/// Work that runs on a held fragment.
class Task {
 public:
  virtual ~Task() = default;
  /// The arithmetic. Any thread.
  virtual void run(HeldFragment fragment) = 0;
  /// Reports the result. It is called once, after run().
  virtual void finish() = 0;
};

class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;

  [[nodiscard]] virtual TimeUs replica_now_us() const = 0;
  /// False if the message cannot be sent now: there is no link, or its queue is full.
  virtual bool send_message(const NodeId& to, const Message& message) = 0;
  /// Runs the task over the fragment, then finishes it.
  virtual void run(std::uint32_t f, std::unique_ptr<Task> task) = 0;

  // --- the model for others
  /// The hash of the values that a PullReply carries. Any thread.
  [[nodiscard]] virtual std::uint64_t hash_of(std::span<const float> values) const = 0;
  /// Adds the clock and the other data that go with the fragment.
  virtual void complete(PullReply& reply) = 0;
  /// Gives a checkpoint the values of y, from a publication with this clock. None: y is not finite, or its device
  /// failed.
  virtual void copied(std::uint32_t f, std::optional<std::vector<float>>&& values, std::uint64_t publication_clock) = 0;

  // --- observation
  /// In lean memory, a fragment got no memory; `error` is an errno value.
  virtual void lacks_memory(int error) = 0;
  /// Work begins.
  virtual void begun(const Actions::Run&) {}
  /// Work on the fragment is over, and its results are stored. `done`: an exchange took place. `commit`: something was
  /// committed.
  virtual void over(std::uint32_t /*f*/, bool /*done*/, bool /*commit*/) {}
  /// Everything that followed from one event has been carried out, except recalls.
  virtual void turned() {}
};

/// The work of a replica in the node's own memory (gossip/group/group.hpp). Each piece holds the fragment until it
/// reports Replica::finished().
class GroupWork {
 public:
  virtual ~GroupWork() = default;
  virtual void gather(std::uint32_t f) = 0;
  virtual void offer(std::uint32_t f) = 0;
  virtual void take_in(std::uint32_t f) = 0;
};

class Executor {
 public:
  Executor(Replica& replica, ReplicaMemory& memory, ReplicaHost& host)
      : replica_(replica), memory_(memory), host_(host) {}

  /// Reports an event to the replica by `feed(actions)`, and carries out what it decides.
  template <class Feed>
  void decide(Feed feed) {
    Actions actions;
    feed(actions);
    perform(actions);
  }
  /// Runs `arithmetic(held)` over a held fragment, then reports to the replica by `report(result, actions)`.
  template <class Arithmetic, class Report>
  void work(std::uint32_t f, Arithmetic arithmetic, Report report);
  /// Stores what the replica wants stored. It is called before any other action.
  void store(Actions& actions);
  /// `group` must outlive all work. Without a group, the replica must not be asked to gather.
  void set_group(GroupWork& group) { group_ = &group; }
  /// The memory holds a record at `place` that an earlier daemon wrote.
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
  GroupWork* group_ = nullptr;
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
