// What the members of a job that averages exactly tell each other (gossip/average/averaging.hpp). Values; any thread.

#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// A try to decide a round. A later one is larger.
struct Ballot {
  std::uint64_t number = 0;
  NodeId conductor = {};
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

/// One thing that a node has to be averaged. Its numbers grow.
struct Contribution {
  NodeId node = {};
  std::uint64_t number = 0;
  friend auto operator<=>(const Contribution&, const Contribution&) = default;
};

/// A round is the mean of these contributions.
struct RoundPlan {
  Ballot made_at = {};                           ///< names the plan within its round
  std::vector<Contribution> contributions = {};  ///< by node
  std::vector<NodeId> members = {};              ///< of the next round, in order
  friend bool operator==(const RoundPlan&, const RoundPlan&) = default;
};

/// The sender has this to be averaged; none: it has nothing, and leaves.
struct RoundReady {
  std::optional<std::uint64_t> contribution = {};
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
  std::optional<RoundReady> ready = {};
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
  std::vector<Contribution> taken = {};  ///< the last of each node that a round has
};
/// The sender wants to be a member.
struct RoundJoin {};
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
  /// The round that the sender is in; of RoundCommit and RoundEnter, the one that they are about.
  std::uint64_t round = 0;
  std::variant<RoundReady, RoundPrepare, RoundPromise, RoundRefusal, RoundProposal, RoundAccept, RoundCommit,
               RoundEnter, RoundJoin, RoundGone, RoundAsk>
      body = {};
};

}  // namespace gossamer::gossip
