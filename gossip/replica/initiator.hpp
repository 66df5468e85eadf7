// The exchanges that a node begins: the choice of fragment and partner, and the course of each exchange.
//
//   period over → (publication asked for) → encode → request sent → reply → conclude → acknowledged
//                                                          └ busy: another partner soon
//
// This is a part of a replica (gossip/replica/replica.hpp) and runs on its thread. After each function that ends work
// on a fragment, the replica goes on with what waits for the fragment.

#pragma once

#include "gossip/replica/client_side.hpp"

namespace gossamer::gossip {

class Initiator {
 public:
  Initiator(ReplicaData& data, ClientSide& client) : data_(data), client_(client) {}

  /// Begins exchanges that are due, as far as limits allow.
  void start_exchanges(TimeUs now_us, Actions& out);
  /// The client has published, so an exchange that waited for this may begin.
  void note_publication(Fragment& fragment);
  /// Begins the exchange that the fragment's publication was asked for.
  void begin_waiting(std::uint32_t f, TimeUs now_us, Actions& out);
  [[nodiscard]] std::size_t in_flight() const { return own_count_; }

  // --- one exchange
  void encoded(std::uint32_t f, EncodeTask::Result&& result, TimeUs now_us, Actions& out);
  /// True if the reply is valid. It is concluded when the fragment is no longer held.
  bool reply(const NodeId& from, ExchangeReply&& reply, TimeUs now_us, Actions& out);
  /// True if a waiting reply is now being concluded. The fragment is held then.
  bool conclude_next(std::uint32_t f, Actions& out);
  void concluded(std::uint32_t f, ConcludeTask::Result&& result, TimeUs now_us, Actions& out);
  /// The request could not be sent.
  void send_failed(const NodeId& to, const ExchangeRequest& request, TimeUs now_us);

  // --- what may be lost
  void link_up(const NodeId& node, Actions& out);
  void node_dead(const NodeId& node, TimeUs now_us);
  /// Gives up exchanges that have exceeded their lifetime.
  void expire(TimeUs now_us);
  /// Sends a request again if it was sent over a link that stands and no answer has come.
  void repeat_unanswered(TimeUs now_us, Actions& out);
  /// Sends again what a full queue or a broken link stopped.
  void send_again(Actions& out);
  /// Takes over the halves that an earlier daemon of this node noted.
  void remember(std::uint32_t f, const OwnHalves& halves);
  /// Answers an inquiry about an exchange, unless the exchange is still under way.
  void inquired(const NodeId& from, const ExchangeInquiry& inquiry, Actions& out) const;

 private:
  void start_last_exchanges(TimeUs now_us, Actions& out);
  void start_last_exchange(std::uint32_t f, TimeUs now_us, Actions& out);
  [[nodiscard]] bool somebody_left_to_ask(const Fragment& fragment) const;
  /// Asks the client for a publication if the present one is old. The publication then starts the exchange.
  bool wait_for_publication(std::uint32_t f, Actions& out);
  void begin(std::uint32_t f, const NodeId& partner, TimeUs now_us, Actions& out);
  void start(std::uint32_t f, const NodeId& partner, int follow_up, Codec codec, std::vector<std::uint32_t> blocks,
             std::vector<std::int8_t> exponents, TimeUs now_us, Actions& out);

  /// Fragments that wait for the client's next step take places as well. As many may wait as would begin within a step.
  [[nodiscard]] bool has_room() const {
    const std::size_t most = client_.most_in_flight();
    const std::size_t waiting = client_.is_lean() ? 0 : data_.pace.begins_within(data_.step.us);
    return own_count_ < most && own_count_ + starting_count_ < std::max(most, waiting);
  }
  [[nodiscard]] bool may_spend(TimeUs now_us) const;
  /// True if the rates allow an exchange with the partner on top of those that wait for publications.
  [[nodiscard]] bool affords(const NodeId& partner, const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] bool may_start(const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] bool has_ended(const Fragment& fragment) const;
  /// The startable fragment whose last exchange is longest ago, among a bounded number of fragments.
  [[nodiscard]] std::optional<std::uint32_t> oldest_startable(TimeUs now_us) const;
  [[nodiscard]] double waited(const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] std::optional<std::uint32_t> turn_of_only_partner() const;
  [[nodiscard]] TimeUs rest_us(TimeUs took_us) const;
  struct Choice;
  [[nodiscard]] Choice choice(const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] bool is_candidate(const NodeId& node, const Neighbour& neighbour, const Fragment& fragment,
                                  const Choice& how) const;
  [[nodiscard]] std::optional<NodeId> choose_partner(std::uint32_t f, TimeUs now_us);
  /// True if an exchange of the fragment with this neighbour may begin now.
  [[nodiscard]] bool is_in_reach(const NodeId& node, const Neighbour& neighbour, const Fragment& fragment,
                                 TimeUs now_us) const;
  /// True if the fragment is only exchanged with its owner now.
  [[nodiscard]] bool goes_to_owner(const Fragment& fragment) const;
  /// The rule by which the fragment is pushed to this partner. None: the exchange is an ordinary one, which moves both
  /// ends alike.
  [[nodiscard]] std::optional<PushRule> push_rule_for(const Fragment& fragment, const NodeId& partner) const;
  [[nodiscard]] Codec codec_for(const Fragment& fragment, const NodeId& partner) const;
  /// Call it when an exchange of this node's own has ended. While such exchanges in a row find hardly any difference
  /// and nobody trains, the next one is put off for longer and longer: it would only show again that the replicas
  /// agree. Any event that may have changed a model ends the rest of all fragments at once: ReplicaData::stir.
  void rest_if_quiet(Fragment& fragment, const ExchangeMeasure& measure, TimeUs now_us);
  [[nodiscard]] bool rests(const Fragment& fragment, TimeUs now_us) const;

  void learn_from(const OwnExchange& own, const ConcludeTask::Result& result, TimeUs now_us);
  [[nodiscard]] bool may_follow_up(const OwnExchange& own, const ConcludeTask::Result& result) const;
  OwnExchange* own_of(const NodeId& from, std::uint32_t f, std::uint64_t counter);
  void turned_down(Fragment& fragment, const NodeId& from, const ExchangeReply& reply, TimeUs now_us);
  void send_request(OwnExchange& own, TimeUs now_us, Actions& out);
  /// Ends the own exchange. The fragment's next one may begin after `rest_periods` periods.
  void end_own(Fragment& fragment, double rest_periods, TimeUs now_us);
  /// Like end_own(), for an exchange of which the responder may have committed its half. This end will never commit.
  void give_up_own(Fragment& fragment, double rest_periods, TimeUs now_us);
  void note_begun(std::uint32_t f, std::uint64_t counter, Actions& out);

  ReplicaData& data_;
  ClientSide& client_;
  std::size_t own_count_ = 0;       // own exchanges under way
  std::size_t starting_count_ = 0;  // fragments that wait for a publication to start an own exchange
  std::size_t encoding_count_ = 0;  // own exchanges whose request is being encoded
  std::size_t next_fragment_ = 0;
};

}  // namespace gossamer::gossip
