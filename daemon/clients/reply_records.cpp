#include "daemon/clients/reply_records.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gossamer::daemon {

namespace {

struct RecordEntry {
  std::atomic<std::uint64_t> committed;  ///< mark_of() the commit from which it counts; 0: no record. Stored last
  std::atomic<std::uint64_t> undone;     ///< mark_of() the commit that undoes the record; 0: not undone
  std::uint64_t counter;                 ///< the exchange's counter
  std::uint8_t initiator[16];
  std::uint32_t fragment;
  std::uint32_t block_count;
  std::uint32_t bitmap_bytes;  ///< 0: the exchange was of all blocks
  std::uint8_t codec;
  std::uint8_t shift;
  std::uint8_t own_shift;  ///< AnsweredHalf::shift; 0, from older builds: the reply's
};

/// How a count of commits is stored: never as 0, which means that there is none.
constexpr std::uint64_t mark_of(std::uint32_t commits) {
  return std::uint64_t{1} << 32 | commits;
}

RecordEntry& entry_of(const NodeMemory& memory, std::uint32_t place) {
  return *reinterpret_cast<RecordEntry*>(memory.record(place).data());
}

/// The sizes of a record's parts, which follow its entry.
struct Parts {
  std::size_t bitmap_bytes, exponent_bytes, difference_bytes;

  [[nodiscard]] std::size_t total() const {
    return sizeof(RecordEntry) + bitmap_bytes + exponent_bytes + difference_bytes;
  }
};

/// Whether a daemon can have written this record of a fragment of so many blocks.
bool sound(const ReplyRecord& record, std::uint32_t blocks) {
  const ExchangeReply& reply = record.reply;
  const auto allowed = [](int shift) { return shift >= min_shift_bound && shift <= max_shift_bound; };
  if (!allowed(reply.shift) || !allowed(record.half.shift)) return false;
  if (gossip::blocks_of(record.half.blocks.data, blocks).size() != reply.block_count) return false;
  return std::ranges::all_of(record.half.exponents,
                             [](std::int8_t e) { return e >= min_step_exponent && e <= max_step_exponent; });
}

}  // namespace

std::size_t most_record_bytes(std::uint32_t blocks) {
  return Parts{bitmap_bytes(blocks), blocks, blocks * codec_block_bytes(Codec::f32)}.total();
}

bool write_record(const NodeMemory& memory, std::uint32_t place, const NodeId& initiator, const ExchangeReply& reply,
                  const gossip::AnsweredHalf& half) {
  const std::span<std::byte> room = memory.record(place);
  const Parts parts{half.blocks.size(), half.exponents.size(), reply.differences.size()};
  if (parts.total() > room.size() || !take_pages(room.first(parts.total()))) return false;
  RecordEntry& entry = entry_of(memory, place);
  entry.committed.store(0, std::memory_order_release);
  entry.undone.store(0, std::memory_order_release);
  entry.counter = reply.counter;
  std::memcpy(entry.initiator, initiator.bytes.data(), sizeof entry.initiator);
  entry.fragment = reply.fragment;
  entry.block_count = reply.block_count;
  entry.bitmap_bytes = static_cast<std::uint32_t>(parts.bitmap_bytes);
  entry.codec = static_cast<std::uint8_t>(reply.codec);
  entry.shift = reply.shift;
  entry.own_shift = static_cast<std::uint8_t>(half.shift);
  std::byte* to = room.data() + sizeof(RecordEntry);
  const auto append = [&](const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  append(half.blocks.data.data(), parts.bitmap_bytes);
  append(half.exponents.data(), parts.exponent_bytes);
  append(reply.differences.data.data(), parts.difference_bytes);
  return true;
}

void seal_record(const NodeMemory& memory, std::uint32_t place, std::uint32_t commits) {
  entry_of(memory, place).committed.store(mark_of(commits), std::memory_order_release);
}

void note_undone(const NodeMemory& memory, std::uint32_t place, std::uint32_t commits) {
  entry_of(memory, place).undone.store(mark_of(commits), std::memory_order_release);
}

void clear_record(const NodeMemory& memory, std::uint32_t place) {
  entry_of(memory, place).committed.store(0, std::memory_order_release);
}

std::optional<ReplyRecord> read_record(const NodeMemory& memory, std::uint32_t place, const ClientMemory& model,
                                       std::span<const std::uint32_t> commits) {
  RecordEntry& entry = entry_of(memory, place);
  const std::uint64_t committed = entry.committed.load(std::memory_order_acquire);
  if (committed == 0) return std::nullopt;
  const auto nothing = [&]() -> std::optional<ReplyRecord> {
    clear_record(memory, place);
    return std::nullopt;
  };
  const std::uint64_t undone = entry.undone.load(std::memory_order_acquire);
  ReplyRecord record;
  std::memcpy(record.id.initiator.bytes.data(), entry.initiator, sizeof entry.initiator);
  record.id.counter = record.reply.counter = entry.counter;
  record.reply.job = model.key();
  record.reply.fragment = entry.fragment;
  record.reply.status = ReplyStatus::done;
  record.reply.codec = static_cast<Codec>(entry.codec);
  record.reply.shift = entry.shift;
  record.half.shift = entry.own_shift == 0 ? entry.shift : entry.own_shift;
  record.reply.block_count = entry.block_count;
  const std::uint32_t bitmap_bytes = entry.bitmap_bytes;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the checks below read the copy
  if (record.reply.fragment >= commits.size() || record.reply.codec > Codec::q4) return nothing();
  const auto has_come_to = [&](std::uint64_t mark) {
    return gossip::reached(commits[record.reply.fragment], static_cast<std::uint32_t>(mark) % gossip::commits_modulus);
  };
  if (!has_come_to(committed) || (undone != 0 && has_come_to(undone))) return nothing();
  const std::uint32_t blocks = model.block_count(record.reply.fragment);
  const Parts parts{bitmap_bytes, record.reply.block_count,
                    record.reply.block_count * codec_block_bytes(record.reply.codec)};
  const std::span<const std::byte> room = memory.record(place);
  if (record.reply.block_count == 0 || record.reply.block_count > blocks || parts.total() > room.size())
    return nothing();
  if (bitmap_bytes != 0 && bitmap_bytes != gossamer::bitmap_bytes(blocks)) return nothing();
  const std::byte* from = room.data() + sizeof(RecordEntry);
  const auto copy = [&](std::size_t bytes) {
    std::vector<std::byte> copied(from, from + bytes);
    from += bytes;
    return copied;
  };
  if (bitmap_bytes > 0) record.half.blocks = Bytes::adopt(copy(parts.bitmap_bytes));
  record.half.exponents.resize(parts.exponent_bytes);
  std::memcpy(record.half.exponents.data(), from, parts.exponent_bytes);
  from += parts.exponent_bytes;
  record.reply.differences = Bytes::adopt(copy(parts.difference_bytes));
  return sound(record, blocks) ? std::optional(std::move(record)) : nothing();
}

}  // namespace gossamer::daemon
