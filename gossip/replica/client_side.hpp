// Between a replica and its client: asking for publications, giving corrections, taking fragments back, and in lean
// memory which fragments have memory at all.
//
// Nothing can be committed to a fragment while the client has it. It is *recalled* first: what waits for that goes on
// at once, or with the client's publication, if the client has begun to serve the fragment already.
//
// In lean memory at most `window` fragments have memory at once. A fragment is given memory when something is to be
// done with it: an exchange of the node's own, another's request, a joiner's pull, values to take over. The client is
// asked to publish, what waited goes on, the client is given its correction, and the memory goes back. The node's own
// exchanges take half of the window at most, or two nodes that ask each other would have no room for answers. A request
// that finds no room hears busy; a pull and an exchange of the node's own wait their turn.
//
// Part of a replica (gossip/replica/replica.hpp), on its thread.

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
  /// Gives the client the fragment if it is to publish it, or has something to collect.
  void offer_if_wanted(std::uint32_t f, Actions& out);
  /// True if something can be committed to the fragment; else it is with the client, and is recalled.
  bool at_hand(std::uint32_t f, Actions& out);

  // --- several clients (gossip/group/local_group.hpp)
  /// True if the fragment begins its move into the node's own memory, and so is held.
  bool gather_if_wanted(std::uint32_t f, Actions& out);
  void gathered(std::uint32_t f, const Gathered& result);

  // --- lean memory
  void keep_lean(std::size_t window);
  [[nodiscard]] bool is_lean() const { return window_ > 0; }
  /// Most exchanges of the node's own that are under way at once.
  [[nodiscard]] std::size_t most_in_flight() const;
  /// The fragment has memory, or can be given some.
  [[nodiscard]] bool may_provide(std::uint32_t f) const;
  /// What has memory is to be used soon, and answers nobody else meanwhile: where requests come faster than that, those
  /// that wait for room would wait for ever.
  [[nodiscard]] bool is_crowded() const { return !wait_for_room_.empty(); }
  /// Fragments whose buffers have memory; none in resident memory.
  [[nodiscard]] const std::set<std::uint32_t>& provided() const { return provided_; }
  void provided(std::uint32_t f, const Provided& result);
  void vacated(std::uint32_t f) { provided_.erase(f); }
  /// Gives the memory back of a fragment that nothing is done with.
  void vacate_if_idle(std::uint32_t f, Actions& out);
  /// Those that wait for room are let in as far as there is some.
  void let_in(Actions& out);
  /// Memory that could not be had may be tried for again.
  void forgive_memory() { memory_ = Memory::there; }
  /// See Replica::begin_taking().
  [[nodiscard]] bool begin_taking(std::uint32_t f);
  void end_taking(std::uint32_t f, const Provided& result);

 private:
  enum class Memory : std::uint8_t { there, exhausted };

  /// True if the fragment's buffers have memory; else asks for it, or waits for room.
  bool has_memory(std::uint32_t f, Actions& out);
  [[nodiscard]] bool window_open() const { return provided_.size() < window_ && memory_ == Memory::there; }

  ReplicaData& data_;
  std::size_t window_ = 0;                   // 0: resident
  std::set<std::uint32_t> provided_;         // at most window_, unless they were there before
  std::deque<std::uint32_t> wait_for_room_;  // each once
  Memory memory_ = Memory::there;            // exhausted: nothing more is provided before the next look at what is old
};

}  // namespace gossamer::gossip
