// What several clients of one job hold of a fragment when they come back to a daemon that took over from a dead one,
// and what the node's copy of it is, now that the dead one's is lost.
//
// Every copy that a daemon hands out has a number, and each client's memory says which number it was brought to
// (docs/reference/shared-memory.md). The newest of those is where the node goes on. What a client has done since it was
// handed a copy, and which that newest one does not contain, is added by its share. So an exchange, or another client's
// progress, that any client was handed counts whole, and what none was handed is lost whole.
//
// A client's progress is its publication minus what it was handed, the snapshot before and its correction. The daemon
// writes the next correction over that snapshot. It does so for one client of a round before the others, and once that
// one has been handed the new copy the others' progress is known to be in it; so at most one such snapshot is
// overwritten with nothing to show for it, and whoever else was handed the same copy can stand in for it. If nobody
// was, that client's progress since its last publication but one is lost.
//
// Pure; any thread.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace gossamer::gossip {

/// How one client stands with one fragment.
struct Standing {
  enum class Kind : std::uint8_t {
    unknown,  ///< nothing is known of what it was handed
    holds,    ///< it was handed copy `number`, and has not published since: its snapshot plus correction
    moved,    ///< it was handed copy `number`, the snapshot before plus correction, and has published since
    alone,    ///< its memory was the copy itself, up to `number`: its snapshot plus correction, if there is one
  };
  Kind kind = Kind::unknown;
  std::uint64_t number = 0;
  std::uint64_t into = 0;    ///< moved: copies from this number on contain what it published; 0: none does
  bool overwritten = false;  ///< moved: the snapshot before may be written over
};

/// Where a copy can be read.
struct CopyAt {
  std::size_t client = 0;
  bool publication = false;  ///< what the client published itself, for want of the copy that it was handed
};

struct Reunion {
  /// What the node's copy begins with; none: nothing is known of any.
  std::optional<CopyAt> newest;
  /// For each client, in order: the copy that its publication minus this is to be added by its share; none: nothing.
  std::vector<std::optional<CopyAt>> progress_since;
};

[[nodiscard]] Reunion reunite(std::span<const Standing> clients);

/// Numbers that no copy has: a daemon took copy `newest` over, and its own copies have numbers beyond `begun`.
struct Gap {
  std::uint64_t newest = 0;
  std::uint64_t begun = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};
/// A client has published something that the copy does not contain: it was to go into one that never was, since a
/// daemon died, or no daemon was there. `gaps`: all that are known.
[[nodiscard]] bool lacks(std::span<const Gap> gaps, const Standing& client);

/// Of `candidates`, the client whose snapshot before can best be done without.
[[nodiscard]] std::size_t safest_to_overwrite(std::span<const Standing> clients,
                                              std::span<const std::size_t> candidates);

}  // namespace gossamer::gossip
