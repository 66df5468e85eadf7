// What a replica remembers of its exchanges so that each counts at both ends or at neither, whatever dies: the replies
// it has given, and what has become of the exchanges it began. Some of it outlives the daemon: see Actions::Store.
//
// Owned by a replica, on its thread.

#pragma once

#include <utility>
#include <vector>

#include "gossip/exchange/own_halves.hpp"
#include "gossip/replica/reply_cache.hpp"

namespace gossamer::gossip {

/// Names exchanges. One for a node, never reset while it runs; started from the time of day so that a restart goes on.
class ExchangeCounter {
 public:
  explicit ExchangeCounter(std::uint64_t first) : next_(first) {}
  std::uint64_t take() { return next_++; }
  /// What take() will give.
  [[nodiscard]] std::uint64_t next() const { return next_; }

 private:
  std::uint64_t next_;
};

class ExchangeBook {
 public:
  static constexpr std::size_t max_unsent_acks = 1024;

  ExchangeBook(ExchangeCounter& counter, TimeUs lifetime_us)
      : counter_(counter), first_counter_(counter.next()), replies_(lifetime_us) {
    given_up_.floor = counter_.take();  // a number that no exchange has
  }

  /// Exchanges with smaller numbers are of replicas of this node before this one.
  [[nodiscard]] std::uint64_t first_counter() const { return first_counter_; }
  std::uint64_t take_counter() { return counter_.take(); }

  // --- replies given
  [[nodiscard]] ReplyCache& replies() { return replies_; }
  [[nodiscard]] const ReplyCache& replies() const { return replies_; }

  // --- exchanges begun
  /// A former daemon of this node has given these up. Otherwise nothing is known of exchanges before this replica's.
  void remember(const GivenUp& given_up) { given_up_ = given_up; }
  [[nodiscard]] const GivenUp& given_up() const { return given_up_; }
  /// What the responder may have committed, this end never will.
  void give_up(std::uint64_t counter) {
    if (counter <= given_up_.floor || given_up_.counters.contains(counter)) return;
    given_up_.add(counter);
    newly_given_up_.push_back(counter);
  }
  /// Exchanges that were given up since the last call: to be stored.
  [[nodiscard]] std::vector<std::uint64_t> take_given_up() { return std::exchange(newly_given_up_, {}); }
  /// What has become of an exchange of the node's own that is not under way.
  [[nodiscard]] Outcome outcome_of(std::uint64_t counter) const {
    if (counter <= given_up_.floor || counter >= counter_.next()) return Outcome::unknown;
    return given_up_.counters.contains(counter) ? Outcome::never : Outcome::taken;
  }

  // --- acknowledgements that could not be sent
  void keep_unsent(const NodeId& to, const ExchangeAck& ack) {
    if (unsent_acks_.size() < max_unsent_acks) unsent_acks_.emplace_back(to, ack);
  }
  [[nodiscard]] std::vector<std::pair<NodeId, ExchangeAck>> take_unsent() { return std::exchange(unsent_acks_, {}); }
  [[nodiscard]] std::size_t unsent_acks() const { return unsent_acks_.size(); }

  /// Nobody waits for an answer of this node, or for its acknowledgement.
  [[nodiscard]] bool idle() const { return replies_.unacknowledged() == 0 && unsent_acks_.empty(); }

 private:
  ExchangeCounter& counter_;
  std::uint64_t first_counter_;
  ReplyCache replies_;
  GivenUp given_up_;
  std::vector<std::uint64_t> newly_given_up_;
  std::vector<std::pair<NodeId, ExchangeAck>> unsent_acks_;
};

}  // namespace gossamer::gossip
