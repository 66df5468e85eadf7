// What the members of a collective, which averages exactly, tell each other (gossip/average/averaging.hpp). Values; any
// thread.

#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// One who averages: a process of a node, from when it asks to be a member. If it asks anew it is another one.
struct Participant {
  NodeId node = {};
  std::uint64_t life = 0;  ///< in an address, 0 means all that the node has
  friend auto operator<=>(const Participant&, const Participant&) = default;
};

/// Names the members that follow from one founder. Where two such groups meet, the smaller one of these goes on.
struct FoundingId {
  std::int64_t at_us = 0;  ///< microseconds since 1970 at the founder; 0: the sender is no member
  Participant by = {};
  friend auto operator<=>(const FoundingId&, const FoundingId&) = default;
};

/// A try to decide a round. A later one is larger.
struct Ballot {
  std::uint64_t number = 0;
  Participant conductor = {};
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

/// One thing that a participant has to be averaged. Its numbers grow.
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
  std::vector<Participant> voters = {};          ///< those of them that decide the next round, in order
  friend bool operator==(const RoundPlan&, const RoundPlan&) = default;
};

/// The sender is in this round, and has this to be averaged. Without a contribution it leaves, or has none yet.
struct RoundReady {
  std::optional<std::uint64_t> contribution = {};
  bool leaves = false;
  std::uint16_t at_least = 0;  ///< the contribution is in no round after which fewer of its members are left
  /// Nobody has to wait for it any more.
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
/// A later ballot has been promised.
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
/// The round is this plan, for ever.
struct RoundCommit {
  RoundPlan plan = {};
};
/// The round was this plan, and the receiver, which is no member yet, is one of the next round's.
struct RoundEnter {
  RoundPlan plan = {};
  std::vector<Contribution> taken = {};  ///< the last of each that a round has
};
/// The sender wants to be a member.
struct RoundJoin {};
/// The sender is a member; the receiver is to wait until it is let in, if it wants to be.
struct RoundHeard {};
/// The participant that sends this, by its node, is gone. With nobodys_life: nobody there averages under this name.
struct RoundNobody {};
inline constexpr std::uint64_t nobodys_life = 1;
/// The conductor still waits for these, or some of them.
inline constexpr std::size_t max_told_late = 8;
struct RoundWaits {
  std::vector<Participant> late = {};
};
/// The receiver is so far behind that it must join anew.
struct RoundGone {};
/// A part of the data, which travels with this.
struct RoundPart {
  enum class Kind : std::uint8_t { contribution, result };
  Kind kind = Kind::contribution;
  Ballot made_at = {};  ///< the plan's
  std::uint32_t fragment = 0;
};
struct RoundAsk {
  RoundPart part = {};
};

struct AverageMessage {
  FoundingId founding = {};  ///< of the group that the sender is a member of
  /// The round that the sender is in; of RoundCommit and RoundEnter, the one that they are about.
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

/// A message on its way. `collective`: hashes of its name and of what is averaged.
struct AverageNote {
  JobKey collective = {};
  Participant from = {};
  Participant to = {};
  AverageMessage message = {};
};
/// A part of the data on its way: the fragment's values in fp32.
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
