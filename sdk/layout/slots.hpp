// A value of a few bytes that one side writes and the other may read at any time: the cursors and the list of members
// in shared memory (docs/reference/shared-memory.md).
//
// It has two slots and a word that names the slot with the present value, its length and a sequence number. The writer
// fills the slot that the word does not name and then stores the word: a death in between leaves the value before. The
// reader copies the slot and reads the word again; if it has changed, the copy may be torn and is taken anew. Slots are
// copied by words of eight bytes, stored with release and loaded with acquire, so that whoever sees a part of a newer
// value also sees that the word has moved on. No lock, no system call; the reader tries a bounded number of times.
//
// One thread writes a value. Anything may be in the word and the slots if the other side is hostile: the length is
// checked, the bytes are the reader's to judge.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace gossamer::layout {

inline constexpr std::size_t slot_bytes = 4096;

/// bit 0: the slot; bits 1–13: bytes of the value, at most slot_bytes; bits 14–63: sequence, + 1 at every store.
/// 0 before the first value.
struct SlotWord {
  std::uint64_t sequence = 0;
  std::uint32_t length = 0;
  std::uint8_t slot = 0;

  [[nodiscard]] constexpr std::uint64_t pack() const {
    return sequence << 14 | std::uint64_t{length} << 1 | std::uint64_t{slot};
  }
  [[nodiscard]] static constexpr SlotWord unpack(std::uint64_t bits) {
    return {.sequence = bits >> 14,
            .length = static_cast<std::uint32_t>(bits >> 1 & 0x1fff),
            .slot = static_cast<std::uint8_t>(bits & 1)};
  }
  [[nodiscard]] constexpr bool valid() const { return length <= slot_bytes; }
};
static_assert(SlotWord::unpack(SlotWord{9, slot_bytes, 1}.pack()).length == slot_bytes);

/// How often a value that changes under the reader is read again. One try takes a microsecond; no writer is that fast
/// for long.
inline constexpr int slot_read_tries = 64;

/// `slots`: 2 × slot_bytes, aligned to 8. `value` has at most slot_bytes.
inline void store_slot(std::atomic<std::uint64_t>& word, std::byte* slots, std::span<const std::byte> value) {
  SlotWord next = SlotWord::unpack(word.load(std::memory_order_relaxed));
  next.slot ^= 1;
  ++next.sequence;
  next.length = static_cast<std::uint32_t>(value.size());
  auto* target = reinterpret_cast<std::uint64_t*>(slots + next.slot * slot_bytes);
  for (std::size_t at = 0; at < value.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t part = 0;
    std::memcpy(&part, value.data() + at, std::min(sizeof part, value.size() - at));
    std::atomic_ref(target[at / sizeof part]).store(part, std::memory_order_release);
  }
  word.store(next.pack(), std::memory_order_release);
}

/// The present value; empty before the first, and if the word makes no sense or never stands still.
[[nodiscard]] inline std::vector<std::byte> load_slot(const std::atomic<std::uint64_t>& word, std::byte* slots) {
  for (int tries = 0; tries < slot_read_tries; ++tries) {
    const std::uint64_t bits = word.load(std::memory_order_acquire);
    const SlotWord present = SlotWord::unpack(bits);
    if (!present.valid()) return {};
    std::vector<std::byte> value(present.length);
    auto* source = reinterpret_cast<std::uint64_t*>(slots + present.slot * slot_bytes);
    for (std::size_t at = 0; at < value.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t part = std::atomic_ref(source[at / sizeof part]).load(std::memory_order_acquire);
      std::memcpy(value.data() + at, &part, std::min(sizeof part, value.size() - at));
    }
    if (word.load(std::memory_order_acquire) == bits) return value;
  }
  return {};
}

}  // namespace gossamer::layout
