// The memory a run shares with the daemon: a sealed memfd laid out as sdk/layout/shared_memory.hpp says. Made by
// gossamer_open(); then the training thread writes it and the daemon, which may be hostile or dying, too.
//
// Only words and counters are read back, and words are validated where they are read. Offsets and counts come from the
// plan made here, never from the memory.

#pragma once

#include <cstdint>
#include <string_view>

#include "sdk/c/file_descriptor.hpp"
#include "sdk/c/replica.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

[[nodiscard]] layout::Plan plan_for(const Replica& replica);

/// Takes the pages of all buffers, in a memory that was made without them.
[[nodiscard]] Result<void> take_buffers(int file, const layout::Plan& plan);

class ClientMemory {
 public:
  /// Takes the memory (all of it, so that no step has to), describes the replica in it and publishes its present values
  /// in every fragment. Lean memory is only described: the daemon provides for each fragment when it wants it.
  [[nodiscard]] static Result<ClientMemory> create(const Replica& replica, std::string_view job, std::uint64_t clock,
                                                   gossamer_memory memory);

  /// Of a model in a GPU's memory. Takes the part before the buffers, and these too unless they are on the device.
  /// Nothing is published, and the memory is not complete, until the caller says so.
  [[nodiscard]] static Result<ClientMemory> create_for_device(const Replica& replica, std::string_view job,
                                                              std::uint64_t clock, layout::BuffersIn buffers_in);
  /// All fragments have been published.
  void complete() { header().version.store(layout::version, std::memory_order_release); }

  ClientMemory(ClientMemory&& other) noexcept;
  ClientMemory& operator=(ClientMemory&&) = delete;
  ~ClientMemory();

  [[nodiscard]] layout::Header& header() const { return *reinterpret_cast<layout::Header*>(base_); }
  [[nodiscard]] layout::FragmentEntry& fragment(std::uint32_t index) const {
    return reinterpret_cast<layout::FragmentEntry*>(base_ + plan_.fragments_offset)[index];
  }
  [[nodiscard]] float* buffer(std::uint32_t fragment, std::uint8_t index) const {
    return reinterpret_cast<float*>(base_ + layout::buffer_offset(plan_, fragment, index));
  }
  [[nodiscard]] std::byte* own_cursor() const { return base_ + layout::cursors_offset; }
  [[nodiscard]] std::byte* job_cursor() const { return base_ + layout::cursors_offset + 2 * layout::slot_bytes; }
  [[nodiscard]] std::byte* members() const { return base_ + layout::members_offset; }
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] const layout::Plan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return plan_.total_bytes; }
  /// 0: resident. Else the most that the buffers of lean memory take.
  [[nodiscard]] std::uint64_t window_bytes() const { return window_bytes_; }
  /// Maps a buffer of lean memory that is about to be read or written: one call instead of a fault for each page.
  /// False: the daemon has not provided for it, and there is no memory.
  [[nodiscard]] bool prepare(std::uint32_t fragment, std::uint8_t index, std::uint64_t bytes, bool write) const;

  /// The memfd, to be handed to the daemon. May be given away once: the mapping stays.
  [[nodiscard]] FileDescriptor take_file() { return std::move(file_); }

  /// Leaves the mapping alone for ever: for a child after fork(), which does not have it.
  void abandon() { base_ = nullptr; }

 private:
  ClientMemory(FileDescriptor file, std::byte* base, const layout::Plan& plan, std::uint64_t window_bytes)
      : file_(std::move(file)), base_(base), plan_(plan), window_bytes_(window_bytes) {}

  void describe(const Replica& replica, std::string_view job, std::uint64_t clock);
  void publish_all(const Replica& replica, std::uint64_t clock);
  void publish_nothing(std::uint64_t clock);
  void make_entries(std::uint64_t clock, std::uint64_t word);

  FileDescriptor file_;
  std::byte* base_;
  layout::Plan plan_;
  std::uint64_t window_bytes_;
};

}  // namespace gossamer::client
