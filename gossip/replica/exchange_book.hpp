// A replica's memory of its exchanges, so that each counts at both ends or at neither, whatever dies. It keeps
// the replies given and the outcomes of the exchanges begun. Part of it outlives the daemon: see Actions::Store.
//
// Owned by a replica, on its thread.

#pragma once

#include <utility>
#include <vector>

#include "gossip/exchange/own_halves.hpp"
#include "gossip/replica/reply_cache.hpp"

namespace gossamer::gossip {

/// Numbers exchanges. A node has one counter and never resets it. It starts from the time of day and so rises over
/// restarts.
class ExchangeCounter {
 public:
  explicit ExchangeCounter(std::uint64_t first) : next_(first), skipped_(first), after_skipped_(first) {}
  std::uint64_t take() { return next_++; }
  /// The number that take() will give next.
  [[nodiscard]] std::uint64_t next() const { return next_; }
  /// Leaves out the numbers below `next`: an earlier life of this node may have used them.
  void skip_to(std::uint64_t next) {
    if (next <= next_) return;
    if (skipped_ == after_skipped_) skipped_ = next_;
    next_ = after_skipped_ = next;
  }
  /// False if the number may be another life's: it was left out (or lies between two that were), or comes later.
  [[nodiscard]] bool has_given(std::uint64_t number) const {
    return number < skipped_ || (number >= after_skipped_ && number < next_);
  }

 private:
  std::uint64_t next_;
  std::uint64_t skipped_;
  std::uint64_t after_skipped_;
};

class ExchangeBook {
 public:
  static constexpr std::size_t max_unsent_acks = 1024;

  ExchangeBook(ExchangeCounter& counter, TimeUs lifetime_us)
      : counter_(counter), first_counter_(counter.next()), replies_(lifetime_us) {
    given_up_.floor = counter_.take();  // no exchange has this number
  }

  /// Exchanges with smaller numbers belong to earlier replicas of this node.
  [[nodiscard]] std::uint64_t first_counter() const { return first_counter_; }
  /// No exchange of this replica has this number or a larger one.
  [[nodiscard]] std::uint64_t next_counter() const { return counter_.next(); }
  std::uint64_t take_counter() { return counter_.take(); }

  // --- replies given
  [[nodiscard]] ReplyCache& replies() { return replies_; }
  [[nodiscard]] const ReplyCache& replies() const { return replies_; }

  // --- exchanges begun
  /// Takes over the exchanges that a former daemon gave up. Nothing else is known of earlier exchanges.
  void remember(const GivenUp& given_up) { given_up_ = given_up; }
  [[nodiscard]] const GivenUp& given_up() const { return given_up_; }
  /// This end will never commit its half of the exchange. The responder may have committed the other half.
  void give_up(std::uint64_t counter) {
    if (counter <= given_up_.floor || given_up_.counters.contains(counter)) return;
    given_up_.add(counter);
    newly_given_up_.push_back(counter);
  }
  /// Exchanges given up since the last call. They are to be stored.
  [[nodiscard]] std::vector<std::uint64_t> take_given_up() { return std::exchange(newly_given_up_, {}); }
  /// The outcome of an exchange that this node began and that is no longer under way.
  [[nodiscard]] Outcome outcome_of(std::uint64_t counter) const {
    if (counter <= given_up_.floor || !counter_.has_given(counter)) return Outcome::unknown;
    return given_up_.counters.contains(counter) ? Outcome::never : Outcome::taken;
  }

  // --- acknowledgements that could not be sent
  void keep_unsent(const NodeId& to, const ExchangeAck& ack) {
    if (unsent_acks_.size() < max_unsent_acks) unsent_acks_.emplace_back(to, ack);
  }
  [[nodiscard]] std::vector<std::pair<NodeId, ExchangeAck>> take_unsent() { return std::exchange(unsent_acks_, {}); }
  [[nodiscard]] std::size_t unsent_acks() const { return unsent_acks_.size(); }

  /// True if no other node waits for an answer or an acknowledgement from this node.
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
