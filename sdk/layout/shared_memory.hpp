// The shared-memory contract between a training process (the client) and gossamerd. The contract is owned here and
// obeyed by the daemon.
//
// The client makes one memfd per run, sized for its model and sealed against resizing, and hands it to the daemon over
// the Unix socket (sdk/layout/attach.hpp). The model moves only through this memory. The memory has no locks: each
// 64-bit word has one writer at a time (except that either side may take a fragment that is due). If either side dies
// at any instruction, the words tell the survivor what is valid. Everything read from the other side is validated.
// docs/reference/shared-memory.md describes the same for readers.
//
// The memory, in this order, every part aligned to 4096 bytes:
//   Header           one page, in which logged values stand at logged_offset, and the text of the settings at
//                    settings_offset
//   cursors          four slots of 4096 bytes: two of the client's, then two of the daemon's (sdk/layout/slots.hpp)
//   members          two slots of 4096 bytes, the daemon's
//   TensorEntry[]    `tensor_count`, followed by the tensors' names, UTF-8, without terminators
//   FragmentEntry[]  `fragment_count`
//   buffers          `fragment_count` × 3 × `buffer_stride` bytes: fp32, fragment_elements each (the last fragment is
//                    padded to whole blocks with zeros but has the same stride)
//
// The replica is the concatenation, in the table's order, of the tensors whose role is not `local`. Fragment f holds
// elements [f · fragment_elements, (f+1) · fragment_elements) of it.
//
// Life of a fragment. Its three buffers play three parts: `publication` (the last snapshot s that the client
// published), `correction` (what the client is to add, if the word says it is valid), and the spare. y = s + correction
// is the daemon's best copy of the live fragment.
//   1. The daemon owns the word. It may write a new correction into the spare and then store a word in which that
//      buffer is the correction: a commit is one store.
//   2. To offer it, it stores the word with `owner = client` (the fragment is *due*) and raises Header::due_sequence.
//   3. At its next step the client marks the word as `serving` and does one pass: x += correction (or x = correction if
//      `replace`), s = x into the spare. It stores the word with owner = daemon, publication = that spare, correction
//      invalid, generation + 1.
//   4. Until the client has begun to serve it, the daemon may recall the fragment, to commit another correction.
//      Each of the two, the mark and the recall, is one compare-and-exchange of the word, so that only one of them
//      succeeds.
//
// Where the model is in a GPU's memory, its buffers may be there, too (Header::buffers_in): everything else stays here.
// The client's pass is then a kernel on the training stream, whose last thread stores the word when the pass is done;
// until then the fragment is due.
//
// In *lean* memory (Header::window_bytes is not 0) a fragment that is not in use is `empty`: there is no publication,
// and its buffers have no pages. Before the daemon offers an empty fragment, it provides pages for all three buffers,
// so that the client's pass never takes memory; when the fragment is not in use any more, it stores an empty word and
// gives the pages back.

#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sdk/layout/slots.hpp"

namespace gossamer::layout {

inline constexpr std::uint64_t magic = 0x31726d6173736f67;  // "gossamr1", little endian
inline constexpr std::uint32_t version = 4;
inline constexpr std::size_t page_bytes = 4096;
inline constexpr std::size_t buffers_per_fragment = 3;
inline constexpr std::uint32_t block_elements = 256;
/// If the program chooses none: an eighth of the model, rounded up to a power of two, and between these limits.
inline constexpr std::uint32_t default_fragment_elements = 1u << 20;
inline constexpr std::uint32_t small_fragment_elements = 1u << 12;  ///< a model of less than this is one fragment
inline constexpr std::uint32_t min_fragment_elements = block_elements;
inline constexpr std::uint32_t max_fragment_elements = 1u << 22;
/// How large the fragments of a model are unless the program says so. An exchange takes a round trip, and each fragment
/// has one at a time. So a small model on a slow link needs several.
[[nodiscard]] constexpr std::uint32_t usual_fragment_elements(std::uint64_t elements) {
  const std::uint64_t whole = std::max<std::uint64_t>(elements, min_fragment_elements);
  const std::uint64_t least = std::min<std::uint64_t>(whole, small_fragment_elements);
  return static_cast<std::uint32_t>(
      std::bit_ceil(std::clamp<std::uint64_t>((elements + 7) / 8, least, default_fragment_elements)));
}
inline constexpr std::uint32_t max_tensors = 1u << 20;
inline constexpr std::uint32_t max_fragments = 1u << 16;
inline constexpr std::size_t max_name_bytes = 255;
inline constexpr std::size_t max_job_bytes = 63;
/// The most bytes of the settings that the program gives the job: NAME=VALUE each, separated by white space.
inline constexpr std::size_t max_settings_bytes = 3072;
/// No clock is larger, in samples. Whole numbers up to this one are exact as doubles.
inline constexpr std::uint64_t max_clock_samples = std::uint64_t{1} << 53;
inline constexpr std::size_t max_dimensions = 8;
/// The most bytes of a cursor, in which the program keeps its place in its data.
inline constexpr std::size_t max_cursor_bytes = slot_bytes;
/// A client is told of at most this many members of its job, 16 bytes each.
inline constexpr std::size_t max_members = slot_bytes / 16;

/// Element type of a tensor in the client's own memory. In shared memory everything is fp32.
enum class Dtype : std::uint8_t {
  f32 = 0,
  f64 = 1,
  f16 = 2,
  bf16 = 3,
  i8 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  u8 = 8,
  boolean = 9
};

/// Whether tensors of this type can be averaged.
[[nodiscard]] constexpr bool is_mixable(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::f64 || dtype == Dtype::bf16;
}

/// The role of a tensor in gossip.
enum class Role : std::uint8_t {
  param = 0,   ///< averaged
  buffer = 1,  ///< averaged, but never touched by an outer optimiser
  local = 2,   ///< never leaves the node: it is in the table, so that layouts can be compared, but not in the replica
};

struct TensorEntry {
  std::uint64_t name_offset;  ///< in bytes from the start of the mapping
  std::uint32_t name_bytes;
  std::uint8_t dtype;
  std::uint8_t role;
  std::uint8_t dimensions;
  std::uint8_t reserved;
  std::uint64_t shape[max_dimensions];
  std::uint64_t first_element;  ///< index in the replica; 0 for a local tensor
  std::uint64_t elements;
};
static_assert(sizeof(TensorEntry) == 96 && alignof(TensorEntry) == 8);

inline constexpr std::uint32_t commits_modulus = 1U << 23;

/// A fragment's word. Only its owner stores it, with release; readers load it with acquire.
struct Word {
  std::uint32_t generation = 0;   ///< grows by 1 with every publication
  std::uint8_t publication = 0;   ///< buffer index 0–2
  std::uint8_t correction = 1;    ///< buffer index 0–2, never equal to publication
  bool correction_valid = false;  ///< otherwise the correction is zero
  bool replace = false;           ///< the correction holds values that replace the fragment's
  bool with_client = false;       ///< owner: false the daemon, true the client (due)
  bool empty = false;             ///< only in lean memory: no publication, and no correction but one that replaces
  bool serving = false;           ///< the client has begun its pass over a fragment that is due
  std::uint32_t commits = 0;      ///< corrections that the daemon has committed, modulo 2^23

  [[nodiscard]] constexpr std::uint8_t spare() const { return static_cast<std::uint8_t>(3 - publication - correction); }

  [[nodiscard]] constexpr std::uint64_t pack() const {
    return std::uint64_t{generation} << 32 | std::uint64_t{publication} << 4 | std::uint64_t{correction} << 6 |
           std::uint64_t{correction_valid} << 1 | std::uint64_t{replace} << 2 | std::uint64_t{empty} << 3 |
           std::uint64_t{with_client} | std::uint64_t{serving} << 8 | std::uint64_t{commits} << 9;
  }
  /// Unpacks `bits`. If they are not a proper word, valid() is false for the result.
  [[nodiscard]] static constexpr Word unpack(std::uint64_t bits) {
    Word word;
    word.generation = static_cast<std::uint32_t>(bits >> 32);
    word.publication = static_cast<std::uint8_t>(bits >> 4 & 3);
    word.correction = static_cast<std::uint8_t>(bits >> 6 & 3);
    word.correction_valid = bits >> 1 & 1;
    word.replace = bits >> 2 & 1;
    word.empty = bits >> 3 & 1;
    word.with_client = bits & 1;
    word.serving = bits >> 8 & 1;
    word.commits = static_cast<std::uint32_t>(bits >> 9 & (commits_modulus - 1));
    return word;
  }
  [[nodiscard]] constexpr bool valid() const {
    return publication < 3 && correction < 3 && publication != correction && (!replace || correction_valid) &&
           (!empty || correction_valid == replace) && (!serving || with_client);
  }
  /// The fragment's buffers hold nothing of use.
  [[nodiscard]] constexpr bool vacant() const { return empty && !with_client && !correction_valid; }
};
static_assert(Word::unpack(Word{7, 2, 0, true, true, true}.pack()).generation == 7);
static_assert(Word::unpack(Word{.serving = true, .commits = 5}.pack()).commits == 5);
static_assert(!Word::unpack(0).valid() && Word::unpack(Word{}.pack()).valid());

/// The content of a receipt, without the copy's number.
struct ReceiptMark {
  std::uint32_t generation = 0;  ///< generation of the publication that the receipt is about
  bool corrected = false;        ///< the client was given a correction with the publication
  bool alone = false;            ///< this client's memory is the copy: no other client shares it
  bool replaced = false;         ///< the client was given the copy itself, to replace its own values

  [[nodiscard]] constexpr std::uint64_t pack() const {
    return std::uint64_t{generation} | std::uint64_t{corrected} << 32 | std::uint64_t{alone} << 33 |
           std::uint64_t{replaced} << 35;
  }
  [[nodiscard]] static constexpr ReceiptMark unpack(std::uint64_t bits) {
    return {.generation = static_cast<std::uint32_t>(bits),
            .corrected = (bits >> 32 & 1) != 0,
            .alone = (bits >> 33 & 1) != 0,
            .replaced = (bits >> 35 & 1) != 0};
  }
};

static_assert(ReceiptMark::unpack(ReceiptMark{7, false, false, true}.pack()).replaced);

/// A daemon that takes over from a dead one reads here which of the dead daemon's copies of a fragment contains a
/// publication, and was or will be given to the client for it. The number is stored before the mark, and both before
/// the word.
struct Receipt {
  std::atomic<std::uint64_t> number;  ///< the copy's number; 0: none
  std::atomic<std::uint64_t> mark;    ///< a ReceiptMark
};

/// One cache line for each fragment.
struct alignas(64) FragmentEntry {
  std::atomic<std::uint64_t> word;
  /// written by the client: Header::clock when it published; stored before the word
  std::atomic<std::uint64_t> publication_clock;
  Receipt receipts[2];  ///< by the daemon: for publications with even and odd generations
  std::uint64_t reserved[2];
};
static_assert(sizeof(FragmentEntry) == 64);

/// The state of a run, which the daemon tells the client.
enum class RunState : std::uint32_t {
  detached = 0,  ///< no daemon works on this memory; the client writes this until a daemon takes over
  joining = 1,   ///< the model is being agreed on or pulled; due fragments carry `replace`
  running = 2,
  draining = 3,     ///< the daemon is stopping; due fragments are still to be served
  quarantined = 4,  ///< a publication held NaN or infinity and is kept out of gossip; recovers by itself
};

/// What the processes of a job do with each other.
enum class Method : std::uint8_t {
  gossip = 0,   ///< the daemons exchange the model, and no step waits
  average = 1,  ///< the daemons exchange nothing; the processes call for exact means (sdk/layout/average.hpp)
  server = 2,   ///< the daemons exchange each part of the model with the node that owns it, and no step waits
};

/// What the job's settings ask of its programs, beside the outer momentum.
struct MethodWord {
  Method method = Method::gossip;
  std::uint8_t codec = 0;     ///< with `average`: how gradients travel: 0 in fp32, 1 rounded to 8 bits
  std::uint16_t members = 1;  ///< with `average`: at least this many processes take part in a mean
  std::uint32_t steps = 1;    ///< with `average`: steps between two means. 1: means of gradients; more: of models

  [[nodiscard]] constexpr std::uint64_t pack() const {
    return std::uint64_t{steps} << 32 | std::uint64_t{members} << 16 | std::uint64_t{codec} << 8 |
           static_cast<std::uint64_t>(method);
  }
  [[nodiscard]] static constexpr MethodWord unpack(std::uint64_t bits) {
    return {.method = static_cast<Method>(bits & 0xff),
            .codec = static_cast<std::uint8_t>(bits >> 8),
            .members = static_cast<std::uint16_t>(bits >> 16),
            .steps = static_cast<std::uint32_t>(bits >> 32)};
  }
};

/// The daemon's answer to Header::finishing.
struct FinishAnswer {
  std::uint32_t number = 0;   ///< the number of the request that it answers
  std::uint16_t members = 0;  ///< replicas in reach that finish, with this one
  bool agreed = false;        ///< all replicas in reach finish and agree; their mean is in the tensors
  bool saver = false;         ///< this client's node has the smallest id of all these replicas' nodes
  bool spoiled = false;       ///< the model holds NaN or infinity, so the others finish without it and it never agrees

  [[nodiscard]] constexpr std::uint64_t pack() const {
    return std::uint64_t{number} << 32 | std::uint64_t{members} << 16 | std::uint64_t{spoiled} << 2 |
           std::uint64_t{saver} << 1 | std::uint64_t{agreed};
  }
  [[nodiscard]] static constexpr FinishAnswer unpack(std::uint64_t bits) {
    return {.number = static_cast<std::uint32_t>(bits >> 32),
            .members = static_cast<std::uint16_t>(bits >> 16 & 0xffff),
            .agreed = (bits & 1) != 0,
            .saver = (bits >> 1 & 1) != 0,
            .spoiled = (bits >> 2 & 1) != 0};
  }
};

/// The place of a fragment's three buffers.
enum class BuffersIn : std::uint64_t {
  memory = 0,  ///< in this memory
  device = 1,  ///< in GPU memory that is handed over beside this one (sdk/layout/attach.hpp); those here have no pages
};

/// Header::flags: nobody trains with the run, which holds the model for the other nodes.
inline constexpr std::uint64_t flag_keeps = 1;
/// Header::flags: these bits are the number of processes that hold the replica together; 0 means 1. The daemon only
/// shows the number: the processes attach as one client, and agree among themselves.
inline constexpr std::uint64_t flags_parts = 0xff00;
inline constexpr int flags_parts_shift = 8;

struct Header {
  // The client writes these once before the memory is handed over. The daemon copies and validates them, and then uses
  // its copy.
  std::uint64_t magic;
  std::uint64_t total_bytes;
  std::uint64_t layout_hash;        ///< layout_hash() of sdk/layout/hash.hpp
  std::uint64_t elements;           ///< elements of the replica before padding
  std::uint32_t fragment_elements;  ///< a power of two
  std::uint32_t fragment_count;
  std::uint32_t tensor_count;
  std::uint32_t header_bytes;  ///< sizeof(Header)
  std::uint64_t tensors_offset;
  std::uint64_t names_offset;
  std::uint64_t names_bytes;
  std::uint64_t fragments_offset;
  std::uint64_t buffers_offset;
  std::uint64_t buffer_stride;   ///< in bytes: fragment_elements · 4
  char job[64];                  ///< zero-terminated
  std::uint64_t window_bytes;    ///< 0: all buffers have pages. Otherwise lean: at most this much has pages
  std::uint64_t buffers_in;      ///< a BuffersIn
  std::uint64_t settings_bytes;  ///< length of the settings' text; 0: the program gives none
  std::uint64_t flags;           ///< flag_keeps, and the bits of flags_parts

  // The client writes these while it trains.
  alignas(64) std::atomic<std::uint64_t> clock;  ///< samples trained
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint64_t> publications;
  std::atomic<std::uint64_t> serving_ns;  ///< the total time that steps have spent serving due fragments
  std::atomic<std::uint32_t> finishing;   ///< not 0: the program has stopped training; a new number each time it does
  std::atomic<std::uint64_t> own_cursor;  ///< SlotWord of cursors 0 and 1
  std::atomic<std::uint64_t> trained_steps;  ///< those of `steps` with samples; 0: an older library may not count them

  // The daemon writes these.
  alignas(64) std::atomic<std::uint32_t> due_sequence;  ///< raised after fragments become due
  std::atomic<std::uint32_t> state;                     ///< a RunState
  std::atomic<std::uint64_t> global_clock;              ///< the largest known clock of the job, in samples
  std::atomic<std::uint32_t> fragments_pulled;          ///< progress of joining
  std::atomic<std::uint32_t> neighbours;                ///< replicas of this job in reach
  std::atomic<std::uint64_t> exchanges;                 ///< exchanges that this node has done for this job
  /// While joining: the samples that the model had been trained on when it was taken over. The replica's clock is
  /// clock_base + clock.
  std::atomic<std::uint64_t> clock_base;

  // The client stores this last, with release. The rest is complete once it reads as `version`.
  alignas(64) std::atomic<std::uint32_t> version;

  // The daemon writes these, for the program to read. Distances are the bits of doubles.
  alignas(64) std::atomic<std::uint64_t> job_cursor;  ///< SlotWord of cursors 2 and 3, which came with the model
  std::atomic<std::uint64_t> members;                 ///< SlotWord of the members' slots
  std::atomic<std::uint64_t> bytes_sent;              ///< payload of the job's exchanges that this daemon has sent
  std::atomic<std::uint64_t> bytes_received;          ///< payload of the job's exchanges that this daemon has received
  std::atomic<std::uint64_t> consensus;               ///< a double: see gossip::Replica::consensus()
  std::atomic<std::uint64_t> age_samples;             ///< samples trained since the oldest publication
  std::atomic<std::uint64_t> unresolved;              ///< exchanges whose outcome at the other end is unknown for good
  std::atomic<std::uint64_t> quarantines;             ///< times a fragment was found to hold NaN or infinity
  std::atomic<std::uint64_t> period_us;               ///< time between two exchanges of a fragment that the node begins
  std::atomic<std::uint64_t> pulled_bytes;            ///< bytes of the model that were pulled while joining
  std::atomic<std::uint64_t> finish_distance;         ///< a double; stored before finish_answer
  std::atomic<std::uint64_t> finish_answer;           ///< a FinishAnswer to the number in `finishing`
  std::atomic<std::uint64_t> place;   ///< low half: this client's index among the job's here; high: their number
  std::atomic<std::uint64_t> method;  ///< a MethodWord
  std::atomic<std::uint64_t> outer_momentum;  ///< a double: momentum of outer steps after means of models; 0: none
  std::atomic<std::uint64_t> heartbeat;       ///< raised several times a second; 0: the daemon is too old to raise it
};
static_assert(sizeof(Header) <= page_bytes);
static_assert(offsetof(Header, window_bytes) == 160 && offsetof(Header, buffers_in) == 168 &&
              offsetof(Header, clock) == 192 && offsetof(Header, serving_ns) == 216 &&
              offsetof(Header, own_cursor) == 232 && offsetof(Header, trained_steps) == 240 &&
              offsetof(Header, due_sequence) == 256 && offsetof(Header, version) == 320 &&
              offsetof(Header, job_cursor) == 384 && sizeof(Header) == 512);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

/// Numbers that the program reports (gossamer_log()). The client writes a name once, and then raises `count` with
/// release; it may store values at any time. The daemon answers with their means over the nodes that it knows of.
inline constexpr std::size_t max_logged = 8;
inline constexpr std::size_t max_logged_name_bytes = 31;
struct LoggedEntry {
  char name[max_logged_name_bytes + 1];  ///< zero-terminated
  std::atomic<std::uint64_t> value;      ///< a double
  std::atomic<std::uint64_t> mean;       ///< a double: the mean over `nodes` nodes
  std::atomic<std::uint64_t> nodes;
};
struct Logged {
  std::atomic<std::uint32_t> count;
  std::uint32_t reserved;
  LoggedEntry entries[max_logged];

  /// The entries that are in use. A count that is too large, which only a faulty client writes, means all entries.
  [[nodiscard]] std::span<LoggedEntry> known() {
    return std::span(entries).first(std::min<std::size_t>(count.load(std::memory_order_acquire), max_logged));
  }
};

inline constexpr std::uint64_t settings_offset = page_bytes - max_settings_bytes;
inline constexpr std::uint64_t logged_offset = sizeof(Header);
static_assert(logged_offset + sizeof(Logged) <= settings_offset);
inline constexpr std::uint64_t cursors_offset = page_bytes;
inline constexpr std::uint64_t members_offset = cursors_offset + 4 * slot_bytes;
inline constexpr std::uint64_t tensors_at = members_offset + 2 * slot_bytes;

/// The offsets of all parts for a model of this size. Both sides compute them, and the daemon refuses a header that
/// differs.
struct Plan {
  std::uint64_t tensors_offset, names_offset, names_bytes, fragments_offset, buffers_offset, buffer_stride, total_bytes;
  std::uint32_t fragment_count;
};

[[nodiscard]] constexpr std::uint64_t align_to_page(std::uint64_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}
[[nodiscard]] constexpr Plan plan(std::uint64_t elements, std::uint32_t fragment_elements, std::uint32_t tensor_count,
                                  std::uint64_t names_bytes) {
  Plan p{};
  p.fragment_count = static_cast<std::uint32_t>((elements + fragment_elements - 1) / fragment_elements);
  p.buffer_stride = std::uint64_t{fragment_elements} * sizeof(float);
  p.tensors_offset = tensors_at;
  p.names_offset = p.tensors_offset + std::uint64_t{tensor_count} * sizeof(TensorEntry);
  p.names_bytes = names_bytes;
  p.fragments_offset = align_to_page(p.names_offset + names_bytes);
  p.buffers_offset = align_to_page(p.fragments_offset + std::uint64_t{p.fragment_count} * sizeof(FragmentEntry));
  p.total_bytes =
      align_to_page(p.buffers_offset + std::uint64_t{p.fragment_count} * buffers_per_fragment * p.buffer_stride);
  return p;
}
[[nodiscard]] constexpr std::uint32_t tensor_count(const Plan& p) {
  return static_cast<std::uint32_t>((p.names_offset - p.tensors_offset) / sizeof(TensorEntry));
}
/// The offset of buffer `index` (0–2) of a fragment.
[[nodiscard]] constexpr std::uint64_t buffer_offset(const Plan& p, std::uint32_t fragment, std::uint8_t index) {
  return p.buffers_offset + (std::uint64_t{fragment} * buffers_per_fragment + index) * p.buffer_stride;
}
/// The bytes of all three buffers of a fragment.
[[nodiscard]] constexpr std::uint64_t fragment_bytes(const Plan& p) {
  return buffers_per_fragment * p.buffer_stride;
}

/// In GPU memory the buffers of all fragments follow each other as they do here, from the beginning of the allocation.
[[nodiscard]] constexpr std::uint64_t device_bytes(const Plan& p) {
  return p.fragment_count * fragment_bytes(p);
}
[[nodiscard]] constexpr std::uint64_t device_offset(const Plan& p, std::uint32_t fragment, std::uint8_t index) {
  return buffer_offset(p, fragment, index) - p.buffers_offset;
}

/// In lean memory this many bytes of buffers may have pages at once, and in any case the buffers of this many
/// fragments.
inline constexpr std::uint64_t window_least_bytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t window_least_fragments = 8;
/// The value of Header::window_bytes for lean memory; 0 if such a model cannot be lean because two buffers would share
/// a page.
[[nodiscard]] constexpr std::uint64_t window_for(const Plan& p) {
  if (p.buffer_stride < page_bytes) return 0;
  const std::uint64_t fragments = std::max(window_least_bytes / fragment_bytes(p), window_least_fragments);
  return std::min<std::uint64_t>(fragments, p.fragment_count) * fragment_bytes(p);
}
/// Whether a client may store this value in Header::window_bytes.
[[nodiscard]] constexpr bool is_window(const Plan& p, std::uint64_t bytes) {
  return bytes == 0 || (p.buffer_stride >= page_bytes && bytes % fragment_bytes(p) == 0 &&
                        bytes / fragment_bytes(p) <= p.fragment_count);
}
/// The most memory that a client and its daemon share.
[[nodiscard]] constexpr std::uint64_t most_bytes(const Plan& p, std::uint64_t window_bytes) {
  return p.buffers_offset + (window_bytes == 0 ? device_bytes(p) : window_bytes);
}

}  // namespace gossamer::layout
