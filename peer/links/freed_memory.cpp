#include "peer/links/freed_memory.hpp"

#include <malloc.h>

namespace gossamer::peer {

namespace {

/// So much of strangers may be in pages that are kept.
constexpr std::uint64_t strangers_most = 4 << 20;
/// Pieces of this size and more are given back when nothing is to be kept.
constexpr int small_bytes = 64 << 10;
constexpr int at_the_end_bytes = 64 << 20;

int usual_bytes = 0;  // 0: the C library decides

}  // namespace

void FreedMemory::keep_up_to(std::size_t largest_bytes) {
  usual_bytes = static_cast<int>(largest_bytes);
  ::mallopt(M_MMAP_THRESHOLD, usual_bytes);
  ::mallopt(M_TRIM_THRESHOLD, at_the_end_bytes);
}

bool FreedMemory::tend(std::uint64_t strangers_bytes, TimeUs patience_us, TimeUs now_us) {
  const bool much = strangers_bytes > strangers_most;
  const bool over = now_us - changed_us_ >= patience_us && (is_due_ || strangers_bytes > 0);
  if (!over && (keeps_nothing_ || !much)) return false;
  keeps_nothing_ = much;
  is_due_ = strangers_bytes > 0;
  changed_us_ = now_us;
  if (usual_bytes != 0) ::mallopt(M_MMAP_THRESHOLD, keeps_nothing_ ? small_bytes : usual_bytes);
  ::malloc_trim(0);
  return true;
}

}  // namespace gossamer::peer
