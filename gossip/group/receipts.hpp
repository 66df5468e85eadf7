// What is noted of the copies of a fragment that clients of one job at one node have been handed, and what a daemon
// that takes over from a dead one makes of it.
//
// Every copy that a daemon hands out has a number, and each client's memory says which copies contain what it has
// published: its *receipts* (docs/reference/shared-memory.md). The copy outlives the daemon, with its own number. So
// what a client has published is in the copy, or it is known that it is not, and is taken in once.
//
// Pure; any thread.

#pragma once

#include <cstdint>
#include <span>

namespace gossamer::gossip {

/// The daemon's note about one publication.
struct CopyReceipt {
  std::uint32_t generation = 0;  ///< of the publication
  std::uint64_t number = 0;      ///< copies from this one on contain it; 0: none does
  bool corrected = false;        ///< the client was given a correction with it
  bool alone = false;            ///< this client's memory is the copy: no other shares it
  bool replaced = false;         ///< what the client was given was the copy itself, to take over
};

/// How one client stands with one fragment.
struct Standing {
  enum class Kind : std::uint8_t {
    unknown,  ///< nothing is known of what it was handed
    holds,    ///< it was handed copy `number`, and has not published since
    moved,    ///< it was handed copy `number`, and has published since
    alone,    ///< its memory was the copy itself, up to `number`
  };
  Kind kind = Kind::unknown;
  std::uint64_t number = 0;
  std::uint64_t into = 0;  ///< moved: copies from this number on contain what it published; 0: none does
};

/// Numbers that no copy has: a daemon took copy `newest` over, and its own copies have numbers beyond `begun`.
struct Gap {
  std::uint64_t newest = 0;
  std::uint64_t begun = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};
/// A client has published something that the copy does not contain: it was to go into one that never was, since a
/// daemon died, or no daemon was there. `gaps`: all that are known.
[[nodiscard]] bool lacks(std::span<const Gap> gaps, const Standing& client);

}  // namespace gossamer::gossip
