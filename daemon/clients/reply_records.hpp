// Records of the replies that a daemon has given, in the client's memory, so that the daemon that takes over from a
// dead one knows which halves of exchanges nobody has acknowledged, and can undo those that their initiators never
// took.
//
// A record counts once the commit it belongs to has been stored: it names the number to which that commit brings the
// fragment's count of commits, and is written before the fragment's word. Likewise that it is undone. So whenever the
// daemon dies, the word alone decides (docs/shared-memory.md).
//
// A client can write anything there. What a successor reads is checked, and the worst that it does is to that client's
// own model.
//
// write() runs on a worker, for a place that is nobody else's; the rest on the loop.

#pragma once

#include <optional>
#include <vector>

#include "daemon/clients/client_memory.hpp"
#include "gossip/exchange.hpp"

namespace gossamer::daemon {

struct ReplyRecord {
  ExchangeId id;
  ExchangeReply reply;
  gossip::AnsweredHalf half;
};

/// Writes all but that it counts. False: there is no memory for it; the place holds no record then.
[[nodiscard]] bool write_record(const ClientMemory& memory, std::uint32_t place, const NodeId& initiator,
                                const ExchangeReply& reply, const gossip::AnsweredHalf& half);
/// It counts from this commit of its fragment on. Nothing if there is no record.
void seal_record(const ClientMemory& memory, std::uint32_t place, std::uint32_t commits);
/// It is undone from this commit on.
void note_undone(const ClientMemory& memory, std::uint32_t place, std::uint32_t commits);
/// It is of no more use.
void clear_record(const ClientMemory& memory, std::uint32_t place);
/// The record in this place, if it counts and is not undone; `words` are the memory's. What is none is cleared.
[[nodiscard]] std::optional<ReplyRecord> read_record(const ClientMemory& memory, std::uint32_t place,
                                                     std::span<const std::uint64_t> words);

}  // namespace gossamer::daemon
