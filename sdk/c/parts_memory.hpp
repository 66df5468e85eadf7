// What the processes of a replica in parts share with each other, beside the memory that they share with the daemon: a
// memfd that part 0 makes and hands to the others. The daemon never sees it, so it is trusted as much as the processes
// themselves are.
//
// The memory, in this order:
//   PartsState       one page
//   slots            four of slot_bytes (sdk/layout/slots.hpp), which part 0 writes: two with its attachment's state,
//                    two with the end of finishing
//   FragmentTurn[]   one for each fragment
//   taken            one bit for each element of the replica: some part publishes it. Used only while the parts meet
//
// A fragment's turn. Part 0 sees that the daemon wants the fragment, marks its word as `serving`, and stores the turn.
// In the training step that has the turn's number, each part that holds something of the fragment makes its pass over
// what it holds. Whoever is the last of them stores the word, so that the daemon sees a publication of the whole
// fragment, from the same step of all parts. Another turn of this fragment begins only after that. Steps without
// samples do not count, because a part that waits for something may make any number of them. A part whose count of
// steps differs, or that does not train, makes its pass a few calls after it has seen the turn.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sdk/layout/shared_memory.hpp"
#include "sdk/layout/slots.hpp"

namespace gossamer::client {

inline constexpr std::uint32_t max_parts = 64;

struct PartsState {
  std::atomic<std::uint32_t> turns;         ///< grows by 1 with each turn of any fragment; stored after the turn
  std::atomic<std::uint32_t> gone;          ///< 1 + the index of the first part that has gone; 0: none has
  std::atomic<std::uint32_t> ready;         ///< 1: the daemon has been ready, and all that was due has had its turn
  std::atomic<std::uint64_t> clock;         ///< the samples of all parts
  std::atomic<std::uint64_t> serving_ns;    ///< the sum over all parts
  std::atomic<std::uint64_t> publications;  ///< whole fragments
  std::atomic<std::uint64_t> attachment;    ///< SlotWord
  std::atomic<std::uint64_t> finish;        ///< SlotWord
  std::atomic<bool> finishing[max_parts];   ///< for each part: it has called gossamer_finish(), and no step since
  /// For each part, stored at the end of finishing: 2 * PartsFinish::number, plus 1 if the values that it holds are
  /// finite.
  std::atomic<std::uint64_t> verdicts[max_parts];
};
static_assert(sizeof(PartsState) <= layout::page_bytes);

struct FragmentTurn {
  std::atomic<std::uint64_t> word;     ///< the fragment's layout::Word, as part 0 has marked it
  std::atomic<std::uint64_t> at_step;  ///< the number of the step; only steps with samples count
  std::atomic<std::uint32_t> number;   ///< grows by 1 with each turn of this fragment; stored after the above
  std::atomic<std::uint32_t> done;     ///< parts that have made their pass
  std::atomic<std::uint32_t> holders;  ///< parts that hold something of the fragment
  std::uint32_t reserved;
};

/// The offsets of all that is in the memory, for a replica of this size.
struct PartsPlan {
  std::uint64_t slots_offset, turns_offset, taken_offset, total_bytes;
  std::uint64_t taken_words;
};

[[nodiscard]] constexpr PartsPlan parts_plan(std::uint64_t elements, std::uint32_t fragments) {
  PartsPlan p{};
  p.slots_offset = layout::page_bytes;
  p.turns_offset = p.slots_offset + 4 * layout::slot_bytes;
  p.taken_offset = layout::align_to_page(p.turns_offset + std::uint64_t{fragments} * sizeof(FragmentTurn));
  p.taken_words = (elements + 63) / 64;
  p.total_bytes = layout::align_to_page(p.taken_offset + p.taken_words * sizeof(std::uint64_t));
  return p;
}

}  // namespace gossamer::client
