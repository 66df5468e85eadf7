// A responder's memory of the exchanges it has answered, so that each request is committed exactly once.
//
// A reply is kept until the initiator says what has become of it. A repeated request gets the same reply, and nothing
// is committed a second time. After that only a floor of the counters is kept for each initiator. Counters rise, so a
// request at or below the floor is too old and is not taken.
//
// If no acknowledgement comes, because the reply's lifetime is over or the initiator's daemon is dead, the reply is
// *orphaned*. The initiator, or its successor, is then asked about it whenever it is in reach. If it has not committed
// its half and never will, take_back() gives the half to undo.
//
// Bounds: an initiator has at most `max_unacknowledged` replies (then it is answered busy) and `max_remembered`
// counters. In all there are at most `max_orphans` orphaned replies, none older than `orphan_life_us`. One initiator,
// and all orphans together, take at most half of the places for replies, so that a silent or dead node does not stop
// others from being answered. One owner, one thread.

#pragma once

#include <map>

#include "gossip/exchange/exchange.hpp"
#include "gossip/messages.hpp"

namespace gossamer::gossip {

class ReplyCache {
 public:
  static constexpr std::size_t max_unacknowledged = 32;
  static constexpr std::size_t max_remembered = 1024;
  static constexpr std::size_t max_initiators = 4096;
  static constexpr std::size_t max_orphans = 16;
  static constexpr std::uint32_t default_capacity = 1024;
  static constexpr TimeUs orphan_life_us = 600 * us_per_s;

  explicit ReplyCache(TimeUs lifetime_us) : lifetime_us_(lifetime_us) { set_capacity(default_capacity); }

  enum class Standing {
    fresh,         ///< never seen: answer it
    working,       ///< being answered: the reply will be sent
    answered,      ///< reply() has the reply: send it again
    acknowledged,  ///< the initiator has acknowledged: nothing to do
    declined,      ///< turned down for good: if a copy were accepted later, only one end would commit
    expired,       ///< older than what is remembered
    full,          ///< too many replies are unacknowledged, for this initiator or in all
  };
  [[nodiscard]] Standing standing(const ExchangeId& id) const;
  /// The reply kept for an `answered` exchange.
  [[nodiscard]] const ExchangeReply& reply(const ExchangeId& id) const;
  /// The half that is kept beside it.
  [[nodiscard]] const AnsweredHalf& half(const ExchangeId& id) const;

  /// Replies are kept in `capacity` numbered places, one each, so that a record of each can outlive the daemon. When no
  /// place is left, standing() is `full`. Call it before anything else.
  void set_capacity(std::uint32_t capacity);
  /// Begins the answer to a fresh request. Returns the place of its reply.
  std::uint32_t begin(const ExchangeId& id, TimeUs now_us);
  /// The answer is committed: keeps the reply, and the half for an undo. False if the initiator was dropped meanwhile:
  /// nobody will acknowledge the reply, and the caller calls leave_place().
  bool store(const ExchangeId& id, ExchangeReply reply, AnsweredHalf half, TimeUs now_us);
  /// Stores a reply that a former daemon of this node gave. It is an orphan at once.
  void restore(const ExchangeId& id, std::uint32_t place, ExchangeReply reply, AnsweredHalf half, TimeUs now_us);
  /// Frees the place: no reply is kept there any more, and no worker writes there.
  void leave_place(std::uint32_t place);
  /// Places freed since the last call.
  [[nodiscard]] std::vector<std::uint32_t> take_left() { return std::exchange(left_, {}); }
  /// The request is turned down (busy, refused), whether the answer was begun or not. A copy of the request must get
  /// the same answer. If the answer was begun, the caller calls leave_place().
  void decline(const ExchangeId& id, TimeUs now_us);
  /// True if this acknowledged a kept reply.
  bool acknowledge(const ExchangeId& id);
  /// The initiator has not committed its half and never will. Returns the half to undo, if there is one. Its place
  /// stays taken until leave_place().
  std::optional<UndoTask> take_back(const ExchangeId& id);

  /// Orphans replies beyond their lifetime, and drops the oldest orphans. Returns the exchanges of dropped replies:
  /// nobody will know what has become of them.
  std::vector<ExchangeId> expire(TimeUs now_us);
  /// The initiator's daemon is dead, or counters below `before` belong to an earlier replica of it: orphans them.
  void orphan(const NodeId& initiator, std::uint64_t before);
  /// The initiator's replica is gone for good, so nobody can say what became of exchanges with counters below `before`.
  /// Returns the exchanges whose replies are dropped.
  std::vector<ExchangeId> drop(const NodeId& initiator, std::uint64_t before);
  /// The inquiries about orphaned replies, and the initiators to send them to.
  [[nodiscard]] std::vector<std::pair<NodeId, ExchangeInquiry>> inquiries() const;
  [[nodiscard]] std::size_t orphans() const { return orphans_; }
  /// This reply, whether it accepts or declines, could not be sent. take_unsent() will return it again.
  void mark_unsent(const NodeId& initiator, const ExchangeReply& reply);
  /// Marks all replies to this initiator that it has not acknowledged: they may not have arrived.
  void mark_unsent(const NodeId& initiator);
  /// Marks replies to this initiator that were sent `patience_us` ago or more and are not acknowledged. take_unsent()
  /// will return them again. Returns how many there are.
  std::size_t mark_overdue(const NodeId& initiator, TimeUs now_us, TimeUs patience_us);
  [[nodiscard]] std::vector<std::pair<NodeId, ExchangeReply>> take_unsent();

  /// The last exchange seen of each initiator. It must outlive a replica whose node lives on; otherwise the node's next
  /// replica would answer the same requests again.
  using Seen = std::map<NodeId, std::uint64_t>;
  /// Adds what this cache has seen; at most max_initiators are kept.
  void add_seen(Seen& seen) const;
  /// Adds one exchange that the node turned down while it had no replica of the job. That answer is final as well.
  static void add_seen(const ExchangeId& id, Seen& seen);
  /// From now on, takes no exchange that a predecessor may have seen.
  void begin_after(const Seen& seen);

  /// Number of replies kept for all initiators, without orphans.
  [[nodiscard]] std::size_t unacknowledged() const;
  /// Number of places that are not free and have no reply: those of answers and undos under way.
  [[nodiscard]] std::size_t places_in_work() const;

  /// Ends the process if an invariant does not hold.
  void check_invariants() const;

 private:
  enum class Stage { working, answered, acknowledged, declined };
  struct Entry {
    Stage stage = Stage::working;
    TimeUs begun_us = 0;
    TimeUs given_us = 0;  ///< when the reply was last sent
    bool unsent = false;
    std::uint32_t place = 0;
    bool orphaned = false;
    ExchangeReply reply = {};
    AnsweredHalf half = {};

    [[nodiscard]] bool takes_place() const { return stage == Stage::working || stage == Stage::answered; }
    /// True while the answer or its acknowledgement is awaited. Orphans do not count.
    [[nodiscard]] bool open() const { return takes_place() && !orphaned; }
    [[nodiscard]] bool orphan() const { return stage == Stage::answered && orphaned; }
  };
  struct Initiator {
    std::map<std::uint64_t, Entry> entries;  // by counter
    std::uint64_t floor = 0;                 // counters up to here are forgotten
    std::size_t unacknowledged = 0;
  };
  static void bound(Seen& seen);
  Initiator& initiator_of(const NodeId& id);
  void make_room(Initiator& initiator);
  /// Null if nothing is remembered of the exchange.
  [[nodiscard]] const Entry* find(const ExchangeId& id) const;
  [[nodiscard]] Entry* find(const ExchangeId& id);
  [[nodiscard]] Entry* answered(const ExchangeId& id);
  /// Calls visit(counter, entry) for those of this initiator's entries that take a place.
  template <class Visit>
  void visit_taken(const NodeId& initiator, Visit visit);
  void orphan(Initiator& initiator, Entry& entry);
  /// To be called when the entry's answer is no longer worked on, and its reply no longer kept.
  void close(Initiator& initiator, const Entry& entry);
  void settle(Initiator& initiator, Entry& entry);

  TimeUs lifetime_us_;
  bool any_unsent_ = false;
  std::size_t orphans_ = 0;
  std::size_t most_unacknowledged_ = max_unacknowledged;  // most unacknowledged replies of one initiator
  std::size_t most_orphans_ = max_orphans;
  std::size_t capacity_ = 0;
  std::vector<std::uint32_t> free_places_;
  std::vector<std::uint32_t> left_;
  std::map<NodeId, Initiator> initiators_;
  std::map<std::uint32_t, ExchangeId> taken_;  ///< the exchange that takes each taken place; few entries take one
};

}  // namespace gossamer::gossip
