// How a replica works with its client: it asks for publications, gives corrections and recalls fragments. In
// lean memory it also decides which fragments have memory.
//
// Nothing can be committed to a fragment while the client has it, so it is *recalled* first. Work that waits for the
// fragment goes on at once, or with the client's publication if the client has already begun to serve the fragment.
//
// In lean memory at most `window` fragments have memory at once. A fragment is given memory when it is needed: for an
// exchange of the node's own, another node's request, a joiner's pull, or values to take over. The client publishes,
// the waiting work goes on, the client is given its correction, and the memory is given back. The node's own exchanges
// take at most half of the window; otherwise two nodes that ask each other would have no room for answers. A request
// that finds no room is answered busy; a pull and an exchange of the node's own wait.
//
// This is a part of a replica (gossip/replica/replica.hpp) and runs on its thread.

#pragma once

#include <deque>
#include <set>

#include "gossip/replica/replica_data.hpp"

namespace gossamer::gossip {

class ClientSide {
 public:
  explicit ClientSide(ReplicaData& data) : data_(data) {}

  /// Asks the client to publish the fragment.
  void want_publication(std::uint32_t f, Actions& out);
  /// Asks the client for the fragments in quarantine, so that they are checked again. The program may have mended them,
  /// and there may be no exchange that would find that out.
  void look_at_quarantined(Actions& out);
  /// Checks a few fragments that have been trained, different ones at each call. While there is nobody to exchange
  /// with, nothing else would find NaN in the model.
  void look_while_alone(Actions& out);
  /// Gives the fragment to the client if the client is to publish it or to take a correction.
  void offer_if_wanted(std::uint32_t f, Actions& out);
  /// True if something can be committed to the fragment. If the client has it, it is recalled, and the answer is false.
  bool at_hand(std::uint32_t f, Actions& out);

  // --- several clients (gossip/group/local_group.hpp)
  /// True if the fragment begins its move into the node's own memory. It is held then.
  bool gather_if_wanted(std::uint32_t f, Actions& out);
  void gathered(std::uint32_t f, const Gathered& result);

  // --- lean memory
  void keep_lean(std::size_t window);
  [[nodiscard]] bool is_lean() const { return window_ > 0; }
  [[nodiscard]] std::size_t window() const { return window_; }
  /// Most exchanges that the node may have under way at once.
  [[nodiscard]] std::size_t most_in_flight() const;
  /// True if the fragment has memory, or can be given some.
  [[nodiscard]] bool may_provide(std::uint32_t f) const { return provided_.contains(f) || window_open(); }
  /// True if something waits for room. Fragments with memory then answer no further requests. Otherwise a steady stream
  /// of requests could keep the memory from those that wait.
  [[nodiscard]] bool is_crowded() const { return !wait_for_room_.empty(); }
  /// Fragments whose buffers have memory; none in resident memory.
  [[nodiscard]] const std::set<std::uint32_t>& provided() const { return provided_; }
  void provided(std::uint32_t f, const Provided& result);
  void vacated(std::uint32_t f) { provided_.erase(f); }
  /// Gives the fragment's memory back if no work on the fragment is under way or waits.
  void vacate_if_idle(std::uint32_t f, Actions& out);
  /// Gives memory to waiting fragments, as far as there is room.
  void let_in(Actions& out);
  /// Allows new attempts to take memory after one has failed.
  void forgive_memory() { memory_ = Memory::there; }
  /// See Replica::begin_taking().
  [[nodiscard]] bool begin_taking(std::uint32_t f);
  void end_taking(std::uint32_t f, const Provided& result);

 private:
  enum class Memory : std::uint8_t { there, exhausted };

  /// True if the fragment's buffers have memory. Otherwise memory is asked for, or the fragment waits for room.
  bool has_memory(std::uint32_t f, Actions& out);
  [[nodiscard]] bool window_open() const { return provided_.size() < window_ && memory_ == Memory::there; }

  ReplicaData& data_;
  std::uint32_t next_look_ = 0;              // the fragment that look_while_alone() begins with
  std::size_t window_ = 0;                   // 0: memory is resident, not lean
  std::set<std::uint32_t> provided_;         // at most window_, unless there were more at the beginning
  std::deque<std::uint32_t> wait_for_room_;  // each fragment at most once
  Memory memory_ = Memory::there;            // exhausted: nothing more is provided before the next expiry check
};

}  // namespace gossamer::gossip
