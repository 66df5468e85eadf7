// Messages between the members of a collective, which averages exactly (gossip/average/averaging.hpp). These are
// values; any thread.

#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// A process that averages, from the time when it asks to be a member. If it asks anew, it is another participant.
struct Participant {
  NodeId node = {};
  std::uint64_t life = 0;  ///< in an address, 0 means all participants of the node
  friend auto operator<=>(const Participant&, const Participant&) = default;
};

/// Names a group of members that began with one founder. Where two groups meet, the one with the smaller id goes on.
struct FoundingId {
  std::int64_t at_us = 0;  ///< microseconds since 1970 at the founder; 0: the sender is no member
  Participant by = {};
  friend auto operator<=>(const FoundingId&, const FoundingId&) = default;
};

/// An attempt to decide a round. A later attempt has a larger ballot.
struct Ballot {
  std::uint64_t number = 0;
  Participant conductor = {};
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

/// One set of values that a participant wants averaged. Later contributions of a participant have larger numbers.
struct Contribution {
  Participant from = {};
  std::uint64_t number = 0;
  friend auto operator<=>(const Contribution&, const Contribution&) = default;
};

/// A round is the mean of these contributions.
struct RoundPlan {
  Ballot made_at = {};                           ///< names the plan within its round
  std::vector<Contribution> contributions = {};  ///< by participant; none: only the members change
  std::vector<Participant> members = {};         ///< of the next round, in order
  std::vector<Participant> voters = {};          ///< the members that decide the next round, in order
  friend bool operator==(const RoundPlan&, const RoundPlan&) = default;
};

/// The sender is in this round, and has this contribution. Without a contribution it leaves, or has none yet.
struct RoundReady {
  std::optional<std::uint64_t> contribution = {};
  bool leaves = false;
  std::uint16_t at_least = 0;  ///< the contribution counts only in a round of which at least so many members stay
  /// True if nobody has to wait for the sender any more.
  [[nodiscard]] bool is_ready() const { return contribution || leaves; }
};
/// Asks for a promise to accept no plan of an earlier ballot.
struct RoundPrepare {
  Ballot ballot = {};
};
struct RoundPromise {
  struct Accepted {
    Ballot ballot = {};
    RoundPlan plan = {};
  };
  Ballot ballot = {};
  std::optional<Accepted> accepted = {};
  RoundReady ready = {};
};
/// The sender has promised a later ballot.
struct RoundRefusal {
  Ballot promised = {};
};
struct RoundProposal {
  Ballot ballot = {};
  RoundPlan plan = {};
};
/// The sender has all results of the plan that was proposed at the ballot.
struct RoundAccept {
  Ballot ballot = {};
};
/// This plan is decided for the round; no other ever will be.
struct RoundCommit {
  RoundPlan plan = {};
};
/// The round was this plan. The receiver, which is no member yet, is a member in the next round.
struct RoundEnter {
  RoundPlan plan = {};
  std::vector<Contribution> taken = {};  ///< the last contribution of each participant that a round has
};
/// The sender wants to be a member.
struct RoundJoin {};
/// The sender is a member; the receiver is to wait until it is let in, if it wants to be.
struct RoundHeard {};
/// A node sends this in the name of a participant that is gone. If the sender's life is nobodys_life, no process of the
/// node averages under this name.
struct RoundNobody {};
inline constexpr std::uint64_t nobodys_life = 1;
inline constexpr std::size_t max_told_late = 8;
/// The conductor still waits for these participants, and perhaps for more.
struct RoundWaits {
  std::vector<Participant> late = {};  ///< at most max_told_late
};
/// The receiver is so far behind that it must join anew.
struct RoundGone {};
/// Names a part of the data: one fragment of a contribution or of a result.
struct RoundPart {
  enum class Kind : std::uint8_t { contribution, result };
  Kind kind = Kind::contribution;
  Ballot made_at = {};  ///< RoundPlan::made_at of the part's plan
  std::uint32_t fragment = 0;
};
struct RoundAsk {
  RoundPart part = {};
};

struct AverageMessage {
  FoundingId founding = {};  ///< of the group that the sender is a member of
  /// The round that the sender is in. For RoundCommit and RoundEnter: the round that they report.
  std::uint64_t round = 0;
  std::variant<RoundReady, RoundPrepare, RoundPromise, RoundRefusal, RoundProposal, RoundAccept, RoundCommit,
               RoundEnter, RoundJoin, RoundHeard, RoundNobody, RoundWaits, RoundGone, RoundAsk>
      body = {};
};

/// The most members of a collective, and the most that RoundEnter::taken tells of.
inline constexpr std::size_t max_average_members = 256;
inline constexpr std::size_t max_taken = 512;
inline constexpr std::uint64_t max_average_round = std::uint64_t{1} << 53;
inline constexpr std::uint8_t max_round_part_kind = 1;

/// A message with its addresses. `collective`: hashes of its name and of what is averaged.
struct AverageNote {
  JobKey collective = {};
  Participant from = {};
  Participant to = {};
  AverageMessage message = {};
};
/// A part of the data with its addresses: the fragment's values in fp32.
struct AverageValues {
  JobKey collective = {};
  Participant from = {};
  Participant to = {};
  FoundingId founding = {};
  std::uint64_t round = 0;
  RoundPart part = {};
  Bytes values = {};
};

}  // namespace gossamer::gossip
