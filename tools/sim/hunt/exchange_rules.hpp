// What both ends of an exchange keep to besides "exactly once" (hunt/invariants.hpp), seen by the messages they send:
//
//   acknowledgement  an exchange is acknowledged in the turn in which it was concluded, and not before; what its
//                    initiator says will never be committed there is not, also by a later daemon.
//   kept replies     a replica keeps no reply that was acknowledged, or whose lifetime is over, and repeats none such.
//   crossing         of two requests for one fragment that cross between two nodes, one is turned down: with both
//                    answered, the two replicas would trade places instead of meeting.
//   mixing budget    while a replica's own request is out, the weights of that exchange and of the answers meanwhile
//                    sum to at most the mixing budget; an answer alone takes at most half, and no more than is asked.
//
// Who runs it: World (hunt/scenario.cpp), which tells it every event. One thread.

#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tools/sim/hunt/invariants.hpp"

namespace gossamer::sim {

class ExchangeRules {
 public:
  /// `options`: those that the replicas of the cluster should have.
  ExchangeRules(const Cluster& cluster, const gossip::ReplicaOptions& options);

  /// Throws Violation.
  void on(const Cluster::Event& event);

 private:
  struct Exchange {
    std::size_t initiator = 0;
    TimeUs begun_us = 0;
    int min_shift = 0;
    bool delivered = false;                   ///< the request
    std::optional<ExchangeId> crossing = {};  ///< the responder's own, which was out to the initiator at that time
    bool answered = false;
    bool replied = false;    ///< the answer has left, or could not
    bool concluded = false;  ///< and accepted
    bool committed = false;  ///< so that it changed the initiator's replica
    bool denied = false;     ///< its initiator has said that it never will be
    bool heard = false;      ///< the acknowledgement has arrived
  };
  /// A node's request that is out.
  struct Own {
    ExchangeId id;
    std::size_t partner;
    double weight;
    double answers = 0;  ///< weights of those given since
  };
  struct NodeState {
    std::vector<std::optional<Own>> own = {};  ///< of each fragment
    std::set<ExchangeId> unacknowledged = {};  ///< concluded in the present turn
    std::map<ExchangeId, TimeUs> kept = {};    ///< being answered, or answered: since when
    TimeUs resumed_us = 0;
  };

  NodeState& state_of(std::size_t i);
  void forget(std::size_t i);
  void left(const Cluster::Event& event);
  void left(const Cluster::Event& event, const ExchangeRequest& request);
  void left(const Cluster::Event& event, const ExchangeReply& reply);
  void left(const Cluster::Event& event, const ExchangeAck& ack);
  void delivered(const Cluster::Event& event);
  void answered(const Cluster::Event& event);
  void concluded(const Cluster::Event& event);
  void turned(std::size_t i);
  /// Node i's own exchange of the fragment, if it is still under way.
  [[nodiscard]] Own* open(std::size_t i, std::uint32_t f);
  [[noreturn]] void fail(const std::string& what, std::size_t node, std::uint32_t fragment, const ExchangeId& id,
                         std::size_t other) const;

  const Cluster& cluster_;
  gossip::ReplicaOptions options_;
  std::vector<NodeState> nodes_;
  std::map<ExchangeId, Exchange> exchanges_;
};

}  // namespace gossamer::sim
