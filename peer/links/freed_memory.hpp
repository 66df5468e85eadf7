// Which freed memory the C library keeps for later. New pages for each frame of a fragment would take half of an
// exchange's time (docs/explanation/measurements.md), so pieces as long as a fragment are kept, and 64 MiB at the
// heap's end. The C library would also begin to keep larger pieces once one has been freed, which fixed values prevent.
//
// Strangers make memory of it that is never used. ZeroMQ allocates the whole of a frame when the frame begins, and
// frees it with the connection. A kept piece goes to the next frame with all pages that ever held data. So after
// strangers have sent much, nothing is kept until all that they were given is free.
//
// It is about the whole process. One thread, except that memory may be allocated and freed by any.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::peer {

class FreedMemory {
 public:
  /// The usual: pieces of up to `largest_bytes` are kept. To be called before any thread begins; without it, the C
  /// library decides.
  static void keep_up_to(std::size_t largest_bytes);

  /// To be called often. `strangers_bytes`: what strangers have sent since the last call that returned true.
  /// `patience_us`: after this time, whatever they were given is free.
  [[nodiscard]] bool tend(std::uint64_t strangers_bytes, TimeUs patience_us, TimeUs now_us);
  [[nodiscard]] bool keeps_nothing() const { return keeps_nothing_; }

 private:
  bool keeps_nothing_ = false;
  /// What strangers had sent by the last time may have been in use then.
  bool is_due_ = false;
  TimeUs changed_us_ = 0;
};

}  // namespace gossamer::peer
