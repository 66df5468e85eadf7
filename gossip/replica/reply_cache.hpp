// Exactly once: what a responder remembers of the exchanges it has answered.
//
// A reply is kept until the initiator says what has become of it, and a repeated request gets the same reply and no
// second commit. After that only the counters are remembered, as one floor for each initiator: counters rise, so a
// request at or under the floor is too old to be taken.
//
// Where an answer to a reply is overdue, because its lifetime is over or the initiator's daemon is dead, the reply is
// *orphaned*: the initiator, or its successor, is asked what has become of it, whenever that is in reach. If it has not
// taken it and never will, take_back() gives what there is to undo.
//
// Bounded: `max_unacknowledged` replies an initiator (then it hears busy), `max_remembered` counters in all an
// initiator, `max_orphans` orphaned replies in all, none older than `orphan_life_us`; and of the places for replies one
// initiator, and all orphans together, take half at most, so that nobody who is silent or gone keeps others from being
// answered. One owner, one thread.

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
    working,       ///< being answered: the reply will go out
    answered,      ///< reply() has it: send it again
    acknowledged,  ///< the initiator has had it: nothing to do
    declined,      ///< was turned down, and that is final: a copy accepted later would be committed at one end only
    expired,       ///< older than what is remembered
    full,          ///< too many replies are unacknowledged, of this initiator or in all
  };
  [[nodiscard]] Standing standing(const ExchangeId& id) const;
  /// The reply kept for an `answered` exchange.
  [[nodiscard]] const ExchangeReply& reply(const ExchangeId& id) const;

  /// Replies are kept in `capacity` numbered places, one each, so that a record of them can be kept where it outlives
  /// the daemon; with none left, standing() is `full`. Before anything else.
  void set_capacity(std::uint32_t capacity);
  /// A fresh request is being answered. Returns the place of its reply.
  std::uint32_t begin(const ExchangeId& id, TimeUs now_us);
  /// It has been committed: keep the reply, and what it takes to undo this half. False if the initiator was dropped
  /// meanwhile: nobody will acknowledge it, and its place is to be left.
  bool store(const ExchangeId& id, ExchangeReply reply, AnsweredHalf half, TimeUs now_us);
  /// The same of a reply that a former daemon of this node has given: it is an orphan.
  void restore(const ExchangeId& id, std::uint32_t place, ExchangeReply reply, AnsweredHalf half, TimeUs now_us);
  /// Nothing is kept there any more, and no worker writes there.
  void leave_place(std::uint32_t place);
  /// Places that have been left since the last call.
  [[nodiscard]] std::vector<std::uint32_t> take_left() { return std::exchange(left_, {}); }
  /// It is turned down (busy, refused), whether begun or not: a copy of the request must hear the same. The place of
  /// one that was begun is to be left.
  void decline(const ExchangeId& id, TimeUs now_us);
  /// True if a kept reply was acknowledged by this.
  bool acknowledge(const ExchangeId& id);
  /// The initiator has not taken the reply and never will: what is to be undone, if there is anything. Its place stays
  /// taken until leave_place().
  std::optional<UndoTask> take_back(const ExchangeId& id);

  /// Orphans what is past its lifetime, and drops the oldest orphans; returns whose the dropped replies are: nobody
  /// will know what has become of them.
  std::vector<ExchangeId> expire(TimeUs now_us);
  /// The initiator's daemon is dead, or its exchanges with smaller counters than `before` are a former one's: orphans
  /// their replies.
  void orphan(const NodeId& initiator, std::uint64_t before);
  /// Its replica is gone for good, and with it what has become of its exchanges with smaller counters than `before`.
  /// Returns the replies that are dropped.
  std::vector<ExchangeId> drop(const NodeId& initiator, std::uint64_t before);
  /// What is to be asked of the initiators.
  [[nodiscard]] std::vector<std::pair<NodeId, ExchangeInquiry>> inquiries() const;
  [[nodiscard]] std::size_t orphans() const { return orphans_; }
  /// This reply, given or declining, could not be sent: take_unsent() will give it again.
  void mark_unsent(const NodeId& initiator, const ExchangeReply& reply);
  /// Nor may any of this initiator's have arrived that it has not acknowledged.
  void mark_unsent(const NodeId& initiator);
  /// Replies to this initiator that were given `patience_us` ago or more and not acknowledged, since they were last
  /// given: take_unsent() will give them again. Returns how many.
  std::size_t mark_overdue(const NodeId& initiator, TimeUs now_us, TimeUs patience_us);
  [[nodiscard]] std::vector<std::pair<NodeId, ExchangeReply>> take_unsent();

  /// The last exchange seen of each initiator. It must outlive a replica whose node lives on: the node's next replica
  /// would answer again what this one has answered.
  using Seen = std::map<NodeId, std::uint64_t>;
  /// Adds what this cache has seen; at most max_initiators are kept.
  void add_seen(Seen& seen) const;
  /// The same of one exchange, which was turned down where there was no replica: that is final, too.
  static void add_seen(const ExchangeId& id, Seen& seen);
  /// Takes nothing that a predecessor may have seen.
  void begin_after(const Seen& seen);

  /// Replies kept, of all initiators, but for orphans.
  [[nodiscard]] std::size_t unacknowledged() const;

 private:
  enum class Stage { working, answered, acknowledged, declined };
  struct Entry {
    Stage stage = Stage::working;
    TimeUs begun_us = 0;
    TimeUs given_us = 0;  ///< the reply, last
    bool unsent = false;
    std::uint32_t place = 0;
    bool orphaned = false;
    ExchangeReply reply = {};
    AnsweredHalf half = {};

    /// Somebody waits for its end.
    [[nodiscard]] bool open() const { return (stage == Stage::working || stage == Stage::answered) && !orphaned; }
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
  [[nodiscard]] Entry* answered(const ExchangeId& id);
  void orphan(Initiator& initiator, Entry& entry);
  /// It is neither worked on nor kept any more.
  void close(Initiator& initiator, const Entry& entry);
  void settle(Initiator& initiator, Entry& entry);

  TimeUs lifetime_us_;
  bool any_unsent_ = false;
  std::size_t orphans_ = 0;
  std::size_t most_unacknowledged_ = max_unacknowledged;  // of an initiator
  std::size_t most_orphans_ = max_orphans;
  std::vector<std::uint32_t> free_places_;
  std::vector<std::uint32_t> left_;
  std::map<NodeId, Initiator> initiators_;
};

}  // namespace gossamer::gossip
