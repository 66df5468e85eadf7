// Several clients of one job at one node, and the copy of the model that they share: everything that passes between
// each client and the replica, which is then in the node's own memory.
//
// LocalGroup decides when each client is asked for a fragment, and what of it is taken into the copy. Group carries
// this out: it notes receipts, runs the arithmetic over held fragments, and offers fragments. The order lets a later
// daemon continue exactly:
//
//   receipts are noted → the clients' progress is taken into y → the copy with it counts (one store) →
//   corrections are written, over the data that shows the progress → each client is offered its own
//
// The daemon's jobs and the simulator's nodes use it over their own memory. One owner, one thread.

#pragma once

#include <map>
#include <memory>

#include "gossip/group/member.hpp"
#include "gossip/replica/executor.hpp"

namespace gossamer::gossip {

/// The memory of the node's copy. It outlives the daemon.
class CopyMemory {
 public:
  struct Copy {
    std::uint8_t buffer = 0;
    std::uint32_t commits = 0;  ///< modulo commits_modulus
    std::uint64_t number = 0;   ///< the copy contains all publications noted for copies up to this number
  };
  virtual ~CopyMemory() = default;
  /// The last copy number that was given out for a fragment.
  [[nodiscard]] virtual std::uint64_t& number(std::uint32_t f) = 0;
  /// The copy of the fragment that counts. None: the fragment is not gathered.
  [[nodiscard]] virtual std::optional<Copy> copy(std::uint32_t f) const = 0;
  /// From now on `copy.buffer` counts, with this number.
  virtual void store_copy(std::uint32_t f, const Copy& copy) = 0;
  /// One of the copy's two buffers.
  [[nodiscard]] virtual float* copy_buffer(std::uint32_t f, std::uint8_t index) const = 0;
  /// Takes memory for both buffers. Any thread. False: there is none.
  [[nodiscard]] virtual bool take_copy_buffers(std::uint32_t f) const = 0;
  /// Ranges of numbers that no copy of the fragment has. Each of the last few daemons may have left one.
  [[nodiscard]] virtual std::vector<Gap> gaps(std::uint32_t f) const = 0;
  virtual void add_gap(std::uint32_t f, const Gap& gap) = 0;
};

/// Stores the parts of a fragment. If it is gathered, that is which buffer of the node's copy counts. Otherwise the
/// parts go into the word of `first`, the client whose memory holds the replica (null: no client's memory does).
void store_parts(std::uint32_t f, const FragmentBuffers& buffers, CopyMemory& copies, Member* first);

/// Computes a mean among clients on several devices. Otherwise it is like LocalMeanTask::run().
class MeanOver {
 public:
  virtual ~MeanOver() = default;
  [[nodiscard]] virtual std::vector<LocalMeanOutcome> run(const LocalMeanTask& task, std::span<float> y) const = 0;
};

class GroupHost {
 public:
  virtual ~GroupHost() = default;
  [[nodiscard]] virtual TimeUs replica_now_us() const = 0;
  /// A client that joins lacks the node's values of this many fragments. 0: it has them all, and is to take part.
  virtual void lacking(Member& member, std::uint32_t fragments) = 0;
  /// There is no room for the copy. Gathering is tried again later.
  virtual void lacks_room() = 0;
  /// Null: all clients are where the copy is.
  [[nodiscard]] virtual std::shared_ptr<const MeanOver> mean_over() const { return nullptr; }
};

class Group : private GroupWork {
 public:
  using Members = std::vector<std::shared_ptr<Member>>;

  /// The arguments outlive the group.
  Group(Replica& replica, Executor& executor, CopyMemory& copies, GroupHost& host)
      : replica_(replica), executor_(executor), copies_(copies), host_(host) {
    executor.set_group(*this);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // --- the beginning
  /// Takes over the copies that a former daemon made. `clock`: the node's clock. False: the device has no room.
  [[nodiscard]] bool take_copies_over(std::uint64_t clock);
  /// The client whose memory holds the replica, as far as it is not gathered. Call it before anything is published.
  void set_first(std::shared_ptr<Member> member) { first_ = std::move(member); }
  /// The clock with which a node that has these clients goes on: the mean of those clients that train and have the
  /// model. None: there is no such client.
  [[nodiscard]] static std::optional<std::uint64_t> clock_of(const Members& members);
  /// The replica has just joined, with these clients. Copies made from now on have numbers that were never used before.
  /// `clock`: the node's clock.
  void begin(const Members& members, std::uint64_t clock);

  /// Sets what the node's copy is made from, from now on.
  void follow(Follows follows);

  // --- who takes part, after begin()
  /// True once the node's copy is the replica because of several clients, now or under an earlier daemon.
  [[nodiscard]] bool is_shared() const { return local_.has_value(); }
  /// One more client has come.
  void add(const std::shared_ptr<Member>& member, std::uint64_t clock);
  /// A client has gone. Its last publication is still taken in. Rounds no longer wait for fragments that it had.
  void remove(const Member& member);
  /// A client has published, and its word is accepted. True: the fragment is in its memory, so tell the replica.
  bool published(Member& member, std::uint32_t f);
  void observe_clock(const Member& member);
  /// True if the last publication of a client that has gone is still to be taken in.
  [[nodiscard]] bool awaits_departed() const;
  /// Allowed only if is_shared().
  [[nodiscard]] LocalGroup& local() { return *local_; }
  [[nodiscard]] const LocalGroup& local() const { return *local_; }
  [[nodiscard]] bool is_quarantined(const Member& member) const;
  /// True if no fragment is in the first client's memory any more.
  [[nodiscard]] bool all_gathered() const;

  void tick(TimeUs period_us, bool runs);

  /// Ends the process if what must always hold does not.
  void check_invariants() const;

 private:
  struct Mean;

  // --- GroupWork
  void gather(std::uint32_t f) override;
  void offer(std::uint32_t f) override;
  void take_in(std::uint32_t f) override;

  void make_local(std::uint64_t clock);
  void begin_sharing(const Members& members, std::uint64_t clock);
  void add_with_standing(const std::shared_ptr<Member>& member);
  void tell_readiness(Member& member);
  template <class Work, class Report>
  void work(std::uint32_t f, Work work, Report report);
  void gathered(std::uint32_t f, bool was_due, std::uint64_t number, bool finite, Actions& out);
  void gather_again();
  [[nodiscard]] Mean mean_of(std::uint32_t f, const LocalGroup::Work& work);
  [[nodiscard]] bool has_begun() const { return !gaps_.empty(); }
  [[nodiscard]] std::uint64_t number_of_change(std::uint32_t f) const;
  void note_copy(std::uint32_t f, const LocalGroup::Work& work);
  void mean_done(std::uint32_t f, bool kept, const LocalGroup::Work& work,
                 const std::vector<LocalMeanOutcome>& outcomes, std::uint64_t number);
  void offer_rest(std::uint32_t f, Mean&& rest, LocalGroup::Work&& round, std::vector<LocalMeanOutcome>&& taken);
  void offer_to(std::uint32_t f, Member& member, const LocalGroup::Part& part, const LocalMeanOutcome& outcome);
  void end_round_if_over(std::uint32_t f);
  void store_copy(std::uint32_t f, std::uint64_t number);

  Replica& replica_;
  Executor& executor_;
  CopyMemory& copies_;
  GroupHost& host_;
  std::optional<LocalGroup> local_;
  Follows follows_ = Follows::mean;
  std::shared_ptr<Member> first_;  // null: it is gone, and its memory holds nothing of the replica
  std::map<LocalGroup::ClientId, std::shared_ptr<Member>> members_;  // also clients that are gone but still needed
  std::vector<std::vector<Gap>> gaps_;                               // for each fragment, after begin()
  enum class Room : std::uint8_t { there, lacking } room_ = Room::there;
  TimeUs gather_again_at_us_ = 0;
};

}  // namespace gossamer::gossip
