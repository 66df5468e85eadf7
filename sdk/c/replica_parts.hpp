// One process's side of a replica that several processes of a machine hold together (gossamer_options.parts). Part 0
// has the attachment to the daemon, which sees one client with the whole model; the others share its memory, and take
// turns with it as parts_memory.hpp says.
//
// The parts meet at an abstract Unix socket, which only processes of the same user may use, and keep the connections.
// A part that ends or closes is noticed by its connection and by its process. The replica is then out of gossip for
// good, because what this part held is missing. One thread, the training thread, uses an object; missing() is for the
// attachment's thread.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sdk/c/attachment.hpp"
#include "sdk/c/client_replica.hpp"
#include "sdk/c/error.hpp"
#include "sdk/c/parts_memory.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

/// How finishing has ended, for all parts.
struct PartsFinish {
  std::uint32_t number = 0;  ///< part 0's Header::finishing
  bool spoiled = false;
  gossamer_finish_info info{};
};

class ReplicaParts {
 public:
  /// Checks the options of a replica in parts.
  [[nodiscard]] static Result<void> check(const gossamer_options& options);

  /// For part 0, which takes the elements that it holds before the others can.
  [[nodiscard]] static Result<std::unique_ptr<ReplicaParts>> found(const gossamer_options& options,
                                                                   ClientReplica& replica);
  /// Waits for the other parts, which map the run's memory, publish what they hold in it, and get the doorbell.
  [[nodiscard]] Result<void> gather(const ClientReplica& replica, int memory, int doorbell);

  struct Joined {
    std::unique_ptr<ReplicaParts> parts;
    FileDescriptor memory;
    FileDescriptor doorbell;
  };
  /// For the other parts. Waits for part 0, and takes those of its elements that no part has taken. The caller then
  /// publishes them, and calls all_met().
  [[nodiscard]] static Result<Joined> join(const gossamer_options& options, ClientReplica& replica);
  /// Call this once what this part publishes is in the memory. Waits until the replica is whole.
  [[nodiscard]] Result<void> all_met();

  ReplicaParts(const ReplicaParts&) = delete;
  ReplicaParts& operator=(const ReplicaParts&) = delete;
  ~ReplicaParts();

  [[nodiscard]] bool leads() const { return part_ == 0; }
  [[nodiscard]] std::uint32_t count() const { return parts_; }
  [[nodiscard]] std::uint32_t part() const { return part_; }

  // --- turns
  /// For part 0: begins the fragment's turn, which all parts make at this step.
  void begin_turn(std::uint32_t fragment, const layout::Word& marked, std::uint64_t at_step);
  /// Whether there may be a turn that this part has to make now or later.
  [[nodiscard]] bool has_turns() const {
    return !to_make_.empty() || state().turns.load(std::memory_order_acquire) != seen_turns_;
  }
  /// Calls `pass(fragment, word)` for each turn that is due at this step, or for all turns if the caller waits for
  /// something. `step` counts the steps with samples. If `pass` returns false, the turn stays.
  void make_turns(std::uint64_t step, bool waits, const std::function<bool(std::uint32_t, layout::Word)>& pass);
  /// Call this after this part's pass over the fragment. True: all other parts have made theirs.
  [[nodiscard]] bool is_last(std::uint32_t fragment);
  /// For part 0: whether no turn is under way.
  [[nodiscard]] bool quiet();

  // --- what the parts know together
  void add_samples(std::uint64_t samples) { state().clock.fetch_add(samples, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t clock() const { return state().clock.load(std::memory_order_relaxed); }
  std::uint64_t add_publication() { return state().publications.fetch_add(1) + 1; }
  void add_serving(std::uint64_t ns) { state().serving_ns.fetch_add(ns, std::memory_order_relaxed); }
  /// The mean over all parts.
  [[nodiscard]] std::uint64_t serving_ns() const { return state().serving_ns.load(std::memory_order_relaxed) / parts_; }
  void set_ready() { state().ready.store(1, std::memory_order_release); }
  [[nodiscard]] bool ready() const { return state().ready.load(std::memory_order_acquire) != 0; }
  /// Returns the former value.
  bool set_finishing(bool finishing) { return state().finishing[part_].exchange(finishing); }
  [[nodiscard]] bool all_finish() const;
  void set_verdict(std::uint32_t finish, bool finite) {
    state().verdicts[part_].store(2 * std::uint64_t{finish} + (finite ? 1 : 0), std::memory_order_release);
  }
  /// Whether all that the parts hold at the end of this finish is finite. None: some have not said so yet.
  [[nodiscard]] std::optional<bool> verdict(std::uint32_t finish) const;
  /// Part 0 tells the others.
  void tell_attachment(const AttachmentStatus& status);
  void tell_finish(const PartsFinish& finish);
  [[nodiscard]] AttachmentStatus attachment() const;
  [[nodiscard]] PartsFinish finish() const;

  /// A message that says which part has gone; empty: none. The parts share what one of them has found out. This part
  /// itself looks at most every tenth of a second, or at every call that is urgent.
  [[nodiscard]] std::string gone(bool urgent);
  /// A descriptor that becomes readable when a part goes.
  [[nodiscard]] int watch() const { return watch_.get(); }
  /// Looks at watch(). Says which part has gone first; empty: none. Any thread.
  [[nodiscard]] std::string missing() const;

  /// For a forked child, which does not have the memory.
  void abandon() { base_ = nullptr; }

 private:
  struct Other {
    std::uint32_t part = 0;
    FileDescriptor socket;
    FileDescriptor process;  ///< pidfd; none: the kernel has refused
  };

  ReplicaParts(const gossamer_options& options, const ClientReplica& replica);
  [[nodiscard]] Result<void> make_memory();
  [[nodiscard]] Result<void> map_memory(FileDescriptor file);
  [[nodiscard]] Result<void> listen();
  void take(ClientReplica& replica);
  [[nodiscard]] Result<void> meet(const ClientReplica& replica, int memory, int doorbell);
  [[nodiscard]] Result<void> accept_one(FileDescriptor socket, int memory, int doorbell);
  [[nodiscard]] Result<void> look_for_gone() const;
  void refuse_the_rest(const ClientError& error);
  [[nodiscard]] Result<void> check_cover(const ClientReplica& replica) const;
  [[nodiscard]] std::string absent() const;
  [[nodiscard]] Result<void> keep(Other other);
  [[nodiscard]] std::string called(std::uint32_t part) const;

  [[nodiscard]] PartsState& state() const { return *reinterpret_cast<PartsState*>(base_); }
  [[nodiscard]] FragmentTurn& turn(std::uint32_t fragment) const {
    return reinterpret_cast<FragmentTurn*>(base_ + plan_.turns_offset)[fragment];
  }
  [[nodiscard]] std::span<std::uint64_t> taken() const {
    return {reinterpret_cast<std::uint64_t*>(base_ + plan_.taken_offset), plan_.taken_words};
  }

  const std::uint32_t parts_;
  const std::uint32_t part_;
  const std::string replica_;
  const std::string job_;
  const std::uint64_t layout_hash_;
  const PartsPlan plan_;
  std::chrono::steady_clock::time_point deadline_;  ///< the parts must have met by then
  FileDescriptor listener_;
  FileDescriptor file_;
  std::byte* base_ = nullptr;
  std::vector<Other> others_;
  FileDescriptor watch_;
  AttachmentStatus told_;  ///< in part 0: the status that the others were told last
  std::chrono::steady_clock::time_point looked_{};

  std::vector<bool> held_;           ///< for each fragment, whether this part holds something of it
  std::vector<std::uint32_t> made_;  ///< for each fragment, the number of the last turn that is in to_make_ or over
  struct Seen {
    std::uint32_t fragment = 0;
    std::uint64_t step = 0;  ///< when the turn was seen
    std::uint32_t idle = 0;  ///< calls without samples since then
  };
  std::vector<Seen> to_make_;
  std::uint64_t last_step_ = 0;
  std::vector<std::uint32_t> begun_;  ///< part 0: fragments whose turns may be under way
  std::uint32_t seen_turns_ = 0;
};

}  // namespace gossamer::client
