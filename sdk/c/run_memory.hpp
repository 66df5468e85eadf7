// The memory that a run shares with the daemon: a sealed memfd laid out as sdk/layout/shared_memory.hpp says.
// gossamer_open() makes it. Then the training thread writes it, and so does the daemon, which may be hostile or dying.
//
// Only words and counters are read back, and words are validated where they are read. Offsets and counts come from the
// plan made here, never from the memory.

#pragma once

#include <cstdint>
#include <string_view>

#include "sdk/c/client_replica.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

[[nodiscard]] layout::Plan plan_for(const ClientReplica& replica);

/// Takes the pages of all buffers, for a memory that was made without them.
[[nodiscard]] Result<void> take_buffers(int file, const layout::Plan& plan);

class RunMemory {
 public:
  /// Takes the memory (all of it, so that no step has to), describes the replica in it, and publishes the replica's
  /// present values in every fragment. Lean memory is only described: the daemon provides pages for each fragment when
  /// it wants it.
  [[nodiscard]] static Result<RunMemory> create(const ClientReplica& replica, const gossamer_options& options);

  /// Makes the memory for a model in GPU memory. It takes the part before the buffers, and the buffers too unless they
  /// are on the device. Nothing is published, and the memory is not complete until the caller says so.
  [[nodiscard]] static Result<RunMemory> create_for_device(const ClientReplica& replica,
                                                           const gossamer_options& options,
                                                           layout::BuffersIn buffers_in);
  /// Maps the memory that part 0 of a replica in parts has made. The caller publishes its part.
  [[nodiscard]] static Result<RunMemory> share(FileDescriptor file, const ClientReplica& replica);
  void publish_part(const ClientReplica& replica) const;
  /// Call this when all fragments have been published.
  void complete() { header().version.store(layout::version, std::memory_order_release); }

  RunMemory(RunMemory&& other) noexcept;
  RunMemory& operator=(RunMemory&&) = delete;
  ~RunMemory();

  [[nodiscard]] layout::Header& header() const { return *reinterpret_cast<layout::Header*>(base_); }
  [[nodiscard]] layout::FragmentEntry& fragment(std::uint32_t index) const {
    return reinterpret_cast<layout::FragmentEntry*>(base_ + plan_.fragments_offset)[index];
  }
  [[nodiscard]] float* buffer(std::uint32_t fragment, std::uint8_t index) const {
    return reinterpret_cast<float*>(base_ + layout::buffer_offset(plan_, fragment, index));
  }
  [[nodiscard]] layout::Logged& logged() const {
    return *reinterpret_cast<layout::Logged*>(base_ + layout::logged_offset);
  }
  [[nodiscard]] std::byte* own_cursor() const { return base_ + layout::cursors_offset; }
  [[nodiscard]] std::byte* job_cursor() const { return base_ + layout::cursors_offset + 2 * layout::slot_bytes; }
  [[nodiscard]] std::byte* members() const { return base_ + layout::members_offset; }
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] const layout::Plan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return plan_.total_bytes; }
  /// 0: the memory is resident. Otherwise it is lean, and its buffers take at most this much.
  [[nodiscard]] std::uint64_t window_bytes() const { return window_bytes_; }
  /// Maps a buffer of lean memory that is about to be read or written: one call instead of a page fault for each page.
  /// False: the daemon has not provided pages, and there is no memory for them.
  [[nodiscard]] bool prepare(std::uint32_t fragment, std::uint8_t index, std::uint64_t bytes, bool write) const;

  /// The memfd, which goes to the daemon. It can be taken once; the mapping stays.
  [[nodiscard]] FileDescriptor take_file() { return std::move(file_); }
  [[nodiscard]] int file() const { return file_.get(); }

  /// Never touches the mapping again. For a child after fork(), which does not have it.
  void abandon() { base_ = nullptr; }

 private:
  RunMemory(FileDescriptor file, std::byte* base, const layout::Plan& plan, std::uint64_t window_bytes)
      : file_(std::move(file)), base_(base), plan_(plan), window_bytes_(window_bytes) {}

  void describe(const ClientReplica& replica, const gossamer_options& options);
  void publish_all(const ClientReplica& replica, std::uint64_t clock);
  void publish_nothing(std::uint64_t clock);
  void make_entries(std::uint64_t clock, std::uint64_t word);

  FileDescriptor file_;
  std::byte* base_;
  layout::Plan plan_;
  std::uint64_t window_bytes_;
};

}  // namespace gossamer::client
