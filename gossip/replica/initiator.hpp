// The exchanges that a node begins: of which fragment, with whom, and what becomes of each.
//
//   period over → (publication asked for) → encode → request sent → reply → conclude → acknowledged
//                                                          └ busy: another partner soon
//
// Part of a replica (gossip/replica/replica.hpp), on its thread. Every function that ends work on a fragment leaves it
// to the replica to go on with what waits for the fragment.

#pragma once

#include "gossip/replica/client_side.hpp"

namespace gossamer::gossip {

class Initiator {
 public:
  Initiator(ReplicaData& data, ClientSide& client) : data_(data), client_(client) {}

  /// Begins what is due, as far as limits allow.
  void start_exchanges(TimeUs now_us, Actions& out);
  /// The client has published: an exchange that needs it may begin.
  void note_publication(Fragment& fragment);
  /// Begins the exchange that the fragment's publication was asked for.
  void begin_waiting(std::uint32_t f, TimeUs now_us, Actions& out);
  [[nodiscard]] std::size_t in_flight() const { return own_count_; }

  // --- one exchange
  void encoded(std::uint32_t f, EncodeTask::Result&& result, TimeUs now_us, Actions& out);
  /// True if the reply is good, and is to be concluded when nothing else is done with the fragment.
  bool reply(const NodeId& from, ExchangeReply&& reply, TimeUs now_us, Actions& out);
  /// True if a reply was waiting and is being concluded, so that the fragment is held.
  bool conclude_next(std::uint32_t f, Actions& out);
  void concluded(std::uint32_t f, ConcludeTask::Result&& result, TimeUs now_us, Actions& out);
  /// The request could not be sent.
  void send_failed(const NodeId& to, const ExchangeRequest& request, TimeUs now_us);

  // --- what may be lost
  void link_up(const NodeId& node, Actions& out);
  void node_dead(const NodeId& node, TimeUs now_us);
  /// Gives up what has lived too long.
  void expire(TimeUs now_us);
  /// Says again what was sent over a link that stands, and not answered.
  void repeat_unanswered(TimeUs now_us, Actions& out);
  /// Says what a full queue or a broken link kept from being sent.
  void send_again(Actions& out);
  /// A daemon of this node before this one noted these halves.
  void remember(std::uint32_t f, const OwnHalves& halves);
  /// Answers what has become of an exchange, unless it is under way.
  void inquired(const NodeId& from, const ExchangeInquiry& inquiry, Actions& out) const;

 private:
  void start_last_exchanges(TimeUs now_us, Actions& out);
  void start_last_exchange(std::uint32_t f, TimeUs now_us, Actions& out);
  [[nodiscard]] bool somebody_left_to_ask(const Fragment& fragment) const;
  /// Asks the client for a publication, upon which an exchange starts, if what there is is old.
  bool wait_for_publication(std::uint32_t f, Actions& out);
  void begin(std::uint32_t f, const NodeId& partner, TimeUs now_us, Actions& out);
  void start(std::uint32_t f, const NodeId& partner, int follow_up, Codec codec, std::vector<std::uint32_t> blocks,
             std::vector<std::int8_t> exponents, TimeUs now_us, Actions& out);

  [[nodiscard]] bool has_room() const { return own_count_ + starting_count_ < client_.most_in_flight(); }
  [[nodiscard]] bool may_spend(TimeUs now_us) const;
  [[nodiscard]] bool may_start(const Fragment& fragment, TimeUs now_us) const;
  /// Of the fragments that may start, the one whose last exchange is longest ago, within a bounded look.
  [[nodiscard]] std::optional<std::uint32_t> oldest_startable(TimeUs now_us) const;
  [[nodiscard]] std::optional<std::uint32_t> turn_of_only_partner() const;
  [[nodiscard]] std::optional<NodeId> choose_partner(const Fragment& fragment, TimeUs now_us);
  [[nodiscard]] Codec codec_for(const NodeId& partner) const;
  /// An exchange that the node began has ended. Where one after the other finds next to no difference and nobody
  /// trains, the next is put off for longer and longer: replicas that agree would only prove it to each other, at the
  /// full rate. Anything that may have changed a model ends the rest of all fragments at once: ReplicaData::stir.
  void rest_if_quiet(Fragment& fragment, const ExchangeMeasure& measure, TimeUs now_us);
  [[nodiscard]] bool rests(const Fragment& fragment, TimeUs now_us) const;

  OwnExchange* own_of(const NodeId& from, std::uint32_t f, std::uint64_t counter);
  void turned_down(Fragment& fragment, const NodeId& from, const ExchangeReply& reply, TimeUs now_us);
  void send_request(OwnExchange& own, TimeUs now_us, Actions& out);
  /// The next exchange of the fragment may begin `rest_periods` from now.
  void end_own(Fragment& fragment, double rest_periods, TimeUs now_us);
  /// What the responder may have committed, this end never will.
  void give_up_own(Fragment& fragment, double rest_periods, TimeUs now_us);
  void note_begun(std::uint32_t f, std::uint64_t counter, Actions& out);

  ReplicaData& data_;
  ClientSide& client_;
  std::size_t own_count_ = 0;       // exchanges under way
  std::size_t starting_count_ = 0;  // fragments that wait for a publication to start one
  std::size_t next_fragment_ = 0;
};

}  // namespace gossamer::gossip
