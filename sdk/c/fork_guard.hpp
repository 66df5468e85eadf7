// A page that the kernel empties in a forked child. It has one owner; any thread may ask it.

#pragma once

#include <sys/mman.h>

#include <utility>

#include "sdk/c/error.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

/// Tells a forked child from its parent without a system call: the page reads as zero in the child.
class ForkGuard {
 public:
  [[nodiscard]] static Result<ForkGuard> create() {
    void* page = mmap(nullptr, layout::page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return fail_errno("could not map a page");
    ForkGuard guard(static_cast<volatile char*>(page));
    if (madvise(page, layout::page_bytes, MADV_WIPEONFORK) != 0)
      return fail_errno("could not mark a page (Linux 4.14)");
    *guard.page_ = 1;
    return guard;
  }
  ForkGuard(ForkGuard&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  ForkGuard& operator=(ForkGuard&&) = delete;
  ~ForkGuard() {
    if (page_ != nullptr) munmap(const_cast<char*>(page_), layout::page_bytes);
  }
  [[nodiscard]] bool in_child() const { return *page_ == 0; }

 private:
  explicit ForkGuard(volatile char* page) : page_(page) {}
  volatile char* page_;
};

}  // namespace gossamer::client
