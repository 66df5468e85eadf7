// The exchanges that others begin with this node: the answers, and the end of answers whose initiator is gone.
//
//   request → answer (decode, weigh, commit) → reply sent and kept → acknowledgement
//                                                          └ never taken: undone
//
// This is a part of a replica (gossip/replica/replica.hpp) and runs on its thread. After each function that ends work
// on a fragment, the replica goes on with what waits for the fragment.

#pragma once

#include "gossip/replica/client_side.hpp"

namespace gossamer::gossip {

class Responder {
 public:
  Responder(ReplicaData& data, ClientSide& client) : data_(data), client_(client) {}

  void request(const NodeId& from, ExchangeRequest&& request, TimeUs now_us, Actions& out);
  /// Answers the request that waited for the fragment. True if the fragment is held for this now.
  bool answer_waiting(std::uint32_t f, TimeUs now_us, Actions& out);
  void answered(std::uint32_t f, const stage::Answering& at, AnswerTask::Result&& result, TimeUs now_us, Actions& out);
  /// Returns the fragment if one of its halves is now to be undone, as soon as it is not held. None: nothing to undo.
  [[nodiscard]] std::optional<std::uint32_t> acknowledged(const NodeId& from, const ExchangeAck& ack);
  /// Undoes the next half that waits for the fragment. True if the fragment is held for this now.
  bool undo_next(std::uint32_t f, Actions& out);
  void undone(std::uint32_t f, const stage::Undoing& at, const UndoTask::Result& result, Actions& out);

  /// Turns down the request that waits for the fragment, if there is one.
  void turn_down_waiting(Fragment& fragment, TimeUs now_us, Actions& out);
  /// Turns down the waiting request if it has waited too long, or can no longer be answered.
  void turn_down_in_vain(Fragment& fragment, TimeUs now_us, Actions& out);
  /// Asks initiators about replies whose acknowledgement is long overdue.
  void inquire(Actions& out) const;

 private:
  enum class Waited : std::uint8_t { no, yes };

  void take_request(const NodeId& from, ExchangeRequest&& request, Waited waited, TimeUs now_us, Actions& out);
  /// True if a request with this id was dealt with before. Any answer that is due has then been sent again.
  bool is_known(const NodeId& from, const ExchangeRequest& request, TimeUs now_us, Actions& out);
  /// The reason why a request cannot be taken at all; none if it can.
  [[nodiscard]] RefuseReason objection(const ExchangeRequest& request) const;
  /// Keeps a request for an empty fragment until the client has published. False if it cannot wait.
  bool let_wait(const NodeId& from, ExchangeRequest& request, const Neighbour& neighbour, TimeUs now_us, Actions& out);
  void publish_for_followers(Fragment& fragment, TimeUs now_us);
  [[nodiscard]] bool yields(const Neighbour& neighbour, TimeUs now_us) const;
  [[nodiscard]] std::size_t debt_bytes(const Fragment& fragment) const;
  [[nodiscard]] bool node_affords(const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] bool link_affords(const Neighbour& neighbour, const Fragment& fragment, TimeUs now_us) const;
  [[nodiscard]] bool follows_up(const Fragment& fragment, const NodeId& from, TimeUs now_us) const;
  void answer(const NodeId& from, ExchangeRequest&& request, int shift, TimeUs now_us, Actions& out);
  [[nodiscard]] bool is_asked_by_server(const Fragment& fragment, const NodeId& from, const Neighbour& neighbour) const;
  void turn_down(const NodeId& from, const ExchangeRequest& request, ReplyStatus status, RefuseReason reason,
                 TimeUs now_us, Actions& out);

  ReplicaData& data_;
  ClientSide& client_;
};

}  // namespace gossamer::gossip
