// Records of the replies that a daemon has given, in the node's memory, so that the daemon that takes over from a dead
// one knows which halves of exchanges nobody has acknowledged, and can undo those that their initiators never
// took.
//
// A record counts once the commit it belongs to has been stored: it names the number to which that commit brings the
// fragment's count of commits, and is written before the fragment's word. Likewise that it is undone. So whenever the
// daemon dies, the word alone decides. What a successor reads is checked all the same.
//
// write() runs on a worker, for a place that is nobody else's; the rest on the loop.

#pragma once

#include <optional>
#include <vector>

#include "daemon/clients/client_memory.hpp"
#include "daemon/clients/node_memory.hpp"
#include "gossip/exchange/exchange.hpp"

namespace gossamer::daemon {

struct ReplyRecord {
  ExchangeId id;
  ExchangeReply reply;
  gossip::AnsweredHalf half;
};

/// That any record of a fragment of so many blocks can have.
[[nodiscard]] std::size_t most_record_bytes(std::uint32_t blocks);

/// Writes all but that it counts. False: there is no memory for it; the place holds no record then.
[[nodiscard]] bool write_record(const NodeMemory& memory, std::uint32_t place, const NodeId& initiator,
                                const ExchangeReply& reply, const gossip::AnsweredHalf& half);
/// It counts from this commit of its fragment on. Nothing if there is no record.
void seal_record(const NodeMemory& memory, std::uint32_t place, std::uint32_t commits);
/// It is undone from this commit on.
void note_undone(const NodeMemory& memory, std::uint32_t place, std::uint32_t commits);
/// It is of no more use.
void clear_record(const NodeMemory& memory, std::uint32_t place);
/// The record in this place, if it counts and is not undone; `commits` are the fragments' counts now, `model` a
/// client's memory of the job. What is none is cleared.
[[nodiscard]] std::optional<ReplyRecord> read_record(const NodeMemory& memory, std::uint32_t place,
                                                     const ClientMemory& model, std::span<const std::uint32_t> commits);

}  // namespace gossamer::daemon
