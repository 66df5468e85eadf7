// Exactly once: what a responder remembers of the exchanges it has answered.
//
// A reply is kept until the initiator acknowledges it or its lifetime ends, and a repeated request gets the same reply
// and no second commit. After that only the counters are remembered, as one floor for each initiator: counters rise, so
// a request at or under the floor is too old to be taken.
//
// Bounded: `max_unacknowledged` replies an initiator (then it hears busy), `max_remembered` counters in all an
// initiator. One owner, one thread.

#pragma once

#include <map>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

class ReplyCache {
 public:
  static constexpr std::size_t max_unacknowledged = 32;
  static constexpr std::size_t max_remembered = 1024;
  static constexpr std::size_t max_initiators = 4096;

  explicit ReplyCache(TimeUs lifetime_us) : lifetime_us_(lifetime_us) {}

  enum class Standing {
    fresh,         ///< never seen: answer it
    working,       ///< being answered: the reply will go out
    answered,      ///< reply() has it: send it again
    acknowledged,  ///< the initiator has had it: nothing to do
    declined,      ///< was turned down, and that is final: a copy accepted later would be committed at one end only
    expired,       ///< older than what is remembered
    full,          ///< too many replies of this initiator are unacknowledged
  };
  [[nodiscard]] Standing standing(const ExchangeId& id) const;
  /// The reply kept for an `answered` exchange.
  [[nodiscard]] const ExchangeReply& reply(const ExchangeId& id) const;

  /// A fresh request is being answered.
  void begin(const ExchangeId& id, TimeUs now_us);
  /// It has been committed: keep the reply. False if the initiator was dropped meanwhile: nobody will acknowledge it.
  bool store(const ExchangeId& id, ExchangeReply reply, TimeUs now_us);
  /// It is turned down (busy, refused), whether begun or not: a copy of the request must hear the same.
  void decline(const ExchangeId& id, TimeUs now_us);
  /// True if a kept reply was acknowledged by this.
  bool acknowledge(const ExchangeId& id);

  /// Drops what is past its lifetime; returns the initiators of replies that nobody acknowledged, each reply's.
  std::vector<NodeId> expire(TimeUs now_us);
  /// The initiator is dead: drops its replies; returns how many it never acknowledged.
  std::size_t drop(const NodeId& initiator);
  /// The same of its exchanges with smaller counters than `before`: those of a replica that is gone.
  std::size_t drop(const NodeId& initiator, std::uint64_t before);
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

  /// Replies kept, of all initiators.
  [[nodiscard]] std::size_t unacknowledged() const;

 private:
  enum class Stage { working, answered, acknowledged, declined };
  struct Entry {
    Stage stage = Stage::working;
    TimeUs begun_us = 0;
    TimeUs given_us = 0;  ///< the reply, last
    bool unsent = false;
    ExchangeReply reply = {};
  };
  struct Initiator {
    std::map<std::uint64_t, Entry> entries;  // by counter
    std::uint64_t floor = 0;                 // counters up to here are forgotten
    std::size_t unacknowledged = 0;
  };
  static void bound(Seen& seen);
  Initiator& initiator_of(const NodeId& id);
  void make_room(Initiator& initiator);

  TimeUs lifetime_us_;
  bool any_unsent_ = false;
  std::map<NodeId, Initiator> initiators_;
};

}  // namespace gossamer::gossip
