// Rules for both ends of an exchange, besides "exactly once" (hunt/invariants.hpp). They are checked by the messages:
//
//   acknowledgement  An exchange is acknowledged in the turn in which it was concluded, and not before. An initiator
//                    that says it will never commit an exchange never does, nor does a later daemon of its node.
//   kept replies     A replica neither keeps nor repeats a reply that was acknowledged or whose lifetime is over.
//   crossing         If two nodes' requests for one fragment cross, one of them is refused: if both were answered,
//                    the two replicas would trade places instead of meeting.
//   mixing budget    While a replica's own request is out, the weights of that exchange and of the replica's answers
//                    sum to at most the mixing budget. One answer takes at most half of it, and no more than asked.
//
// World (hunt/scenario.cpp) runs it and passes every event to it. One thread.

#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tools/sim/hunt/invariants.hpp"

namespace gossamer::sim {

class ExchangeRules {
 public:
  /// `options` are those that the cluster's replicas should have.
  ExchangeRules(const Cluster& cluster, const gossip::ReplicaOptions& options);

  /// Throws Violation.
  void on(const Cluster::Event& event);

 private:
  struct Exchange {
    std::size_t initiator = 0;
    TimeUs begun_us = 0;
    int min_shift = 0;
    bool delivered = false;                   ///< the request has arrived
    std::optional<ExchangeId> crossing = {};  ///< the responder's own request, if open when this one came
    bool answered = false;
    bool replied = false;    ///< the answer has left, or could not leave
    bool concluded = false;  ///< the initiator has accepted the answer
    bool committed = false;  ///< the initiator's replica has changed by it
    bool denied = false;     ///< the initiator has said that it will never commit the exchange
    bool heard = false;      ///< the acknowledgement has arrived
  };
  /// A node's own request that is out.
  struct Own {
    ExchangeId id;
    std::size_t partner;
    double weight;
    double answers = 0;  ///< the sum of the weights in the node's answers since then
  };
  struct NodeState {
    std::vector<std::optional<Own>> own = {};  ///< one for each fragment
    std::set<ExchangeId> unacknowledged = {};  ///< concluded in the present turn
    std::map<ExchangeId, TimeUs> kept = {};    ///< exchanges that the node answers or has answered, and since when
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

  const Cluster& cluster_;
  gossip::ReplicaOptions options_;
  std::vector<NodeState> nodes_;
  std::map<ExchangeId, Exchange> exchanges_;
};

}  // namespace gossamer::sim
