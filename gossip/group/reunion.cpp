#include "gossip/group/reunion.hpp"

#include <algorithm>

#include "gossip/check.hpp"

namespace gossamer::gossip {

namespace {

/// The copy that it was handed is there.
bool readable(const Standing& client) {
  return client.kind != Standing::Kind::unknown && !client.overwritten;
}

/// Its memory holds exactly the copy of this number, and not what it did alone since.
bool holds_copy(const Standing& client, std::uint64_t number) {
  return readable(client) && client.kind != Standing::Kind::alone && client.number == number;
}

std::optional<CopyAt> newest_of(std::span<const Standing> clients) {
  std::optional<CopyAt> newest;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (clients[i].kind == Standing::Kind::unknown) continue;
    const std::uint64_t best = newest ? clients[newest->client].number : 0;
    const bool sooner =
        newest && (!readable(clients[newest->client]) || clients[newest->client].kind == Standing::Kind::alone);
    if (!newest || clients[i].number > best || (clients[i].number == best && sooner && holds_copy(clients[i], best))) {
      newest = CopyAt{.client = i, .publication = !readable(clients[i])};
    }
  }
  return newest;
}

/// Where what client `i` was handed can be read.
std::optional<CopyAt> base_of(std::span<const Standing> clients, std::size_t i, const CopyAt& newest) {
  if (!clients[i].overwritten) return CopyAt{.client = i};
  for (std::size_t other = 0; other < clients.size(); ++other) {
    if (holds_copy(clients[other], clients[i].number)) return CopyAt{.client = other};
  }
  // All that were handed this copy have lost it: with the newest's publication as what it begins with, it becomes the
  // mean of their publications.
  if (newest.publication && clients[newest.client].number == clients[i].number) return newest;
  return std::nullopt;
}

}  // namespace

Reunion reunite(std::span<const Standing> clients) {
  Reunion reunion{.newest = newest_of(clients), .progress_since = std::vector<std::optional<CopyAt>>(clients.size())};
  if (!reunion.newest) return reunion;
  const CopyAt& newest = *reunion.newest;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const Standing& client = clients[i];
    if (client.kind != Standing::Kind::moved || (newest.publication && newest.client == i)) continue;
    if (client.into != 0 && client.into <= clients[newest.client].number) continue;  // contains it
    reunion.progress_since[i] = base_of(clients, i, newest);
  }
  return reunion;
}

bool lacks(std::span<const Gap> gaps, const Standing& client) {
  if (client.kind != Standing::Kind::moved || client.overwritten) return false;
  return client.into == 0 || std::ranges::any_of(gaps, [&](const Gap& gap) {
           return client.into > gap.newest && client.into <= gap.begun;
         });
}

std::size_t safest_to_overwrite(std::span<const Standing> clients, std::span<const std::size_t> candidates) {
  GOSSAMER_CHECK(!candidates.empty());
  std::size_t oldest = candidates.front();
  for (const std::size_t i : candidates) {
    const Standing& client = clients[i];
    if (client.kind != Standing::Kind::moved || client.overwritten) return i;  // nobody will look for it
    for (std::size_t other = 0; other < clients.size(); ++other) {
      if (other != i && holds_copy(clients[other], client.number)) return i;
    }
    // Then its own progress may be lost, but not the copy that the others go on with.
    if (client.number < clients[oldest].number) oldest = i;
  }
  return oldest;
}

}  // namespace gossamer::gossip
