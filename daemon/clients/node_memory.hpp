// A job's memory at a node that outlives the daemon. It holds the exchanges that may not have ended, and the job's
// settings. If several clients train the job, it also holds the node's copy of the model.
//
// It is a memfd that the daemon makes and every client of the job keeps. A client gets a read-only descriptor when it
// attaches, and gives it to the next daemon that it attaches to. The memory therefore lives as long as the daemon or
// one of the clients does. Only daemons read and write it. A daemon accepts such a descriptor only if a daemon of the
// same user made the memory for the same job and model.
//
// The copy of a fragment has two buffers. A change is written to the buffer that does not count, and then one store of
// the copy's word makes that buffer count: a death in between loses the whole change or nothing. The word says how many
// commits the copy contains, as a client's word does (sdk/layout/shared_memory.hpp). Each buffer has a number: the copy
// contains the publications that were noted for copies up to that number (gossip/group/receipts.hpp).
//
// Buffers and records take memory when they are first used. Workers may write the floats, and a record in a place that
// nobody else uses. Everything else is read and written on the loop only.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/clients/client_memory.hpp"
#include "gossip/exchange/own_halves.hpp"
#include "gossip/group/group.hpp"
#include "gossip/messages.hpp"
#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

class NodeMemory {
 public:
  struct Shape {
    JobKey job = {};
    std::uint32_t fragment_elements = 0;
    std::uint32_t fragment_count = 0;
  };
  [[nodiscard]] static Shape shape_of(const ClientMemory& memory);
  /// Makes an empty memory. An error says what is lacking.
  [[nodiscard]] static std::expected<std::shared_ptr<NodeMemory>, std::string> make(const Shape& shape);
  /// Maps what a client has kept. Null if no daemon of this user made it, or if it has another shape.
  [[nodiscard]] static std::shared_ptr<NodeMemory> take_back(FileDescriptor kept, const Shape& shape);
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;
  ~NodeMemory();

  /// The descriptor for clients to keep: read-only, unless /proc is missing.
  [[nodiscard]] int to_keep() const { return to_keep_.get(); }
  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, plan_.total_bytes}; }
  /// The tables are at the front of bytes(); records and buffers follow.
  [[nodiscard]] std::size_t tables_bytes() const { return plan_.records_offset; }

  /// The inode of the client's memory that holds the fragments that are not gathered; 0: none yet.
  [[nodiscard]] std::uint64_t holder() const;
  void set_holder(std::uint64_t inode);

  // --- exchanges
  /// The last exchanges of a fragment that this node began. They are stored before the word whose commits they name.
  [[nodiscard]] gossip::OwnHalves own_halves(std::uint32_t f) const;
  void store_own_halves(std::uint32_t f, const gossip::OwnHalves& halves);
  /// The exchanges that this node has given up. None: no daemon has begun any.
  [[nodiscard]] std::optional<gossip::GivenUp> given_up() const;
  void store_given_up(std::uint64_t counter);
  /// Called by a daemon that begins, with what it knows. What is stored stays if it has the same floor; otherwise it is
  /// replaced by this floor alone.
  void begin_given_up(const gossip::GivenUp& given_up);

  /// The newest settings of the job that this node knew; with version 0 if there are none, or a client has spoiled
  /// them.
  [[nodiscard]] JobSettings settings() const;
  void store_settings(const JobSettings& settings);

  /// Records of replies, in numbered places (daemon/clients/reply_records.hpp).
  [[nodiscard]] std::uint32_t record_places() const { return plan_.record_places; }
  /// All bytes of one place: an entry, and room for the data that follow it.
  [[nodiscard]] std::span<std::byte> record(std::uint32_t place) const;

  // --- the copy
  using Copy = gossip::CopyMemory::Copy;
  /// None: the fragment is not gathered.
  [[nodiscard]] std::optional<Copy> copy(std::uint32_t f) const;
  /// Makes `copy.buffer` the buffer that counts, with this number and these commits.
  void store_copy(std::uint32_t f, const Copy& copy);
  /// The fragment is no longer gathered.
  void clear_copy(std::uint32_t f);
  /// Ranges of numbers that no copy of the fragment has. The last few daemons left them.
  [[nodiscard]] std::vector<gossip::Gap> gaps(std::uint32_t f) const;
  /// Adds a gap; the oldest one is dropped.
  void add_gap(std::uint32_t f, const gossip::Gap& gap);
  /// One of the copy's two buffers.
  [[nodiscard]] float* buffer(std::uint32_t f, std::uint8_t index) const;
  /// Takes memory for both buffers. False: there is none.
  [[nodiscard]] bool take_buffers(std::uint32_t f) const;

 private:
  struct Plan {
    std::uint64_t given_up_offset, settings_offset, records_offset, record_stride, buffers_offset, buffer_stride,
        total_bytes;
    std::uint32_t record_places;
  };
  struct Header;
  struct Entry;
  struct GivenUpPage;
  struct SettingsPages;

  explicit NodeMemory(const Shape& shape) : shape_(shape), plan_(plan(shape)) {}
  [[nodiscard]] static Plan plan(const Shape& shape);
  [[nodiscard]] bool map(int memfd);
  [[nodiscard]] Header& header() const;
  [[nodiscard]] Entry& entry(std::uint32_t f) const;
  [[nodiscard]] GivenUpPage& given_up_page() const;
  [[nodiscard]] SettingsPages& settings_pages() const;

  const Shape shape_;
  const Plan plan_;
  FileDescriptor to_keep_;
  std::byte* base_ = nullptr;
};

/// Takes memory for these bytes of a mapping. False: there is none. Writing without this could end the process.
[[nodiscard]] bool take_pages(std::span<std::byte> bytes);

}  // namespace gossamer::daemon
