// Records of the replies that a daemon has given, in the node's memory. From them the next daemon knows which halves of
// exchanges nobody has acknowledged, and can undo those that their initiators never took.
//
// A record names the number of commits that its own commit brings the fragment to, and is written before the fragment's
// word. It counts once the word has that number. An undone record is marked in the same way. So the word alone decides,
// whenever the daemon dies. The next daemon still checks all that it reads, since clients could spoil it.
//
// write_record() runs on a worker, for a place that nobody else uses; everything else runs on the loop.

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

/// The most bytes that a record of a fragment of so many blocks can have.
[[nodiscard]] std::size_t most_record_bytes(std::uint32_t blocks);

/// Writes the record; it does not count yet. False: there is no memory for it, and nothing is written.
[[nodiscard]] bool write_record(const NodeMemory& memory, std::uint32_t place, const NodeId& initiator,
                                const ExchangeReply& reply, const gossip::AnsweredHalf& half);
/// The record counts from this commit of its fragment on. Call this only if write_record() has written the record.
void seal_record(const NodeMemory& memory, std::uint32_t place, std::uint32_t commits);
/// The record is undone from this commit on.
void note_undone(const NodeMemory& memory, std::uint32_t place, std::uint32_t commits);
/// Removes the record, which is not needed any more.
void clear_record(const NodeMemory& memory, std::uint32_t place);
/// The record in this place, if it counts and is not undone; an invalid one is removed. `commits` are the fragments'
/// counts now, `model` a client's memory of the job.
[[nodiscard]] std::optional<ReplyRecord> read_record(const NodeMemory& memory, std::uint32_t place,
                                                     const ClientMemory& model, std::span<const std::uint32_t> commits);

}  // namespace gossamer::daemon
