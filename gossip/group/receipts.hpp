// Notes about the copies of a fragment that clients of one job at one node were given, and what a daemon that takes
// over from a dead one concludes from them.
//
// Every copy that a daemon gives out has a number, and each client's memory says which copies contain its publications:
// these are its *receipts* (docs/reference/shared-memory.md). The copy outlives the daemon, with its own number. So it
// is always known whether the copy contains a publication; if it does not, the publication is taken in once.
//
// These functions are pure; any thread.

#pragma once

#include <cstdint>
#include <span>

namespace gossamer::gossip {

/// The daemon's note about one publication.
struct CopyReceipt {
  std::uint32_t generation = 0;  ///< of the publication
  std::uint64_t number = 0;      ///< copies from this one on contain it; 0: none does
  bool corrected = false;        ///< the client was given a correction with it
  bool alone = false;            ///< only this client's memory is the copy
  bool replaced = false;         ///< the client was given the copy itself, to take over
};

/// The relation of one client to one fragment's copy.
struct Standing {
  enum class Kind : std::uint8_t {
    unknown,  ///< it is not known what it was given
    holds,    ///< it was given copy `number`, and has not published since
    moved,    ///< it was given copy `number`, and has published since
    alone,    ///< its memory was the copy itself, up to `number`
  };
  Kind kind = Kind::unknown;
  std::uint64_t number = 0;
  std::uint64_t into = 0;  ///< moved: copies from this number on contain its publication; 0: none does
};

/// Numbers that no copy has: a daemon took over copy `newest`, and its own copies have numbers above `begun`.
struct Gap {
  std::uint64_t newest = 0;
  std::uint64_t begun = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};
/// True if a client has published something that the copy does not contain. That publication was meant for a copy that
/// was never made, because a daemon died or no daemon was running. `gaps`: all known gaps.
[[nodiscard]] bool lacks(std::span<const Gap> gaps, const Standing& client);

}  // namespace gossamer::gossip
