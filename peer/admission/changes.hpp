// Lists the numbered changes of a table, so that each neighbour is told only what it has not been told yet.
//
// Used by peer/admission/ only. Pure, any thread.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gossamer::peer {

/// Up to `most` records of the table that are newer than `change`, oldest change first; `change` becomes the number of
/// the last one given. `record` says which member of the table's entries is given.
template <class Record, class Table, class Entry>
[[nodiscard]] std::vector<Record> changes_since(const Table& table, Record Entry::*record, std::uint64_t& change,
                                                std::size_t most) {
  std::vector<const Entry*> newer;
  for (const auto& [node, entry] : table) {
    if (entry.change > change) newer.push_back(&entry);
  }
  std::ranges::sort(newer, {}, &Entry::change);
  newer.resize(std::min(newer.size(), most));
  std::vector<Record> records;
  for (const Entry* entry : newer) {
    records.push_back(entry->*record);
    change = entry->change;
  }
  return records;
}

}  // namespace gossamer::peer
