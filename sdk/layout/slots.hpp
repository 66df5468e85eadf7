// A value of a few bytes that one side writes and the other may read at any time: the cursors and the list of members
// in shared memory (docs/reference/shared-memory.md).
//
// The value has two slots, and a word that names the slot with the present value, its length and a sequence number. The
// writer fills the slot that the word does not name and then stores the word, so that a death between the two leaves
// the former value. The reader copies the slot and reads the word again. If the word has changed, the copy may be torn,
// and the reader tries again. Slots are copied by words of eight bytes, stored with release and loaded with acquire, so
// that a reader that sees a part of a newer value also sees that the word has changed. There is no lock and no system
// call, and the reader tries a bounded number of times.
//
// One thread writes a value. If the other side is hostile, anything may be in the word and the slots: the length is
// checked, and the reader judges the bytes.

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

/// Bit 0 is the slot; bits 1–13 are the bytes of the value, at most slot_bytes; bits 14–63 are a sequence number that
/// grows by 1 with every store. The word is 0 before the first value.
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

/// A value that changes under the reader is read again at most this often. One try takes a microsecond, and no writer
/// is that fast for long.
inline constexpr int slot_read_tries = 64;

/// `slots` has 2 × slot_bytes and is aligned to 8. `value` has at most slot_bytes.
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

/// The present value. It is empty before the first one, and if the word is invalid or keeps changing.
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
