// Counts the stores of this process to stretches of memory, one machine instruction after the other, and kills the
// process before one of them by SIGKILL, as a power failure would. The processor decides what a store is, not the
// source: a vectorised loop makes one store for each vector.
//
// The pages are read-only, so a store faults. The handler counts it, allows writing and sets the trap flag. The next
// signal comes after this instruction, and makes the pages read-only again. This is for a forked child in which one
// thread at a time stores to the stretches. It works on x86-64 only, and not under ThreadSanitizer, which handles
// signals itself.

#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define GOSSAMER_STORE_TRAP 1

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace gossamer {

/// Every store is tried. With the address sanitizer, under which forking takes long, only a sample is tried.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kill_stride = 7;
#else
constexpr std::uint64_t kill_stride = 1;
#endif

class StoreTrap {
 public:
  /// Kills the process before its store number `kill_at` (from 1; 0: never) to `bytes` bytes from `base` (whole pages),
  /// or to a stretch that was armed before. `stores` counts the stores, where the parent can read it. From `bulk_at` on
  /// (also whole pages), all stores are alike, so only two of a run of stores count: the first, and a later one or the
  /// run's end.
  static void arm(void* base, std::size_t bytes, std::uint64_t kill_at, std::atomic<std::uint64_t>& stores,
                  std::size_t bulk_at = SIZE_MAX) {
    if (count_ == stretches_.size()) abort();
    const std::size_t single_bytes = bulk_at < bytes ? bulk_at : bytes;
    Stretch& stretch = stretches_[count_++];
    stretch = {static_cast<char*>(base), single_bytes, bytes - single_bytes};
    kill_at_ = kill_at;
    stores_ = &stores;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = &StoreTrap::before_store;
    sigaction(SIGSEGV, &action, nullptr);
    action.sa_sigaction = &StoreTrap::after_store;
    sigaction(SIGTRAP, &action, nullptr);
    protect(stretch, false, PROT_READ);
    protect(stretch, true, PROT_READ);
  }
  /// Ends a run of stores, and watches its pages again. If the run was short, its second store counts here.
  static void end_run() {
    if (step_through_ && run_ > 0) {
      stores_->fetch_sub(1);
      count();
    }
    for (std::size_t i = 0; run_ > 0 && i < count_; ++i)
      protect(stretches_[i], true, PROT_READ);
    run_ = 0;
  }
  static void disarm() {
    for (; count_ > 0; --count_) {
      protect(stretches_[count_ - 1], false, PROT_READ | PROT_WRITE);
      protect(stretches_[count_ - 1], true, PROT_READ | PROT_WRITE);
    }
  }

 private:
  static constexpr greg_t trap_flag = 0x100;       // in the register EFLAGS
  static constexpr std::uint64_t further_on = 37;  // which store of a run counts second

  struct Stretch {
    char* base;
    std::size_t single_bytes;
    std::size_t bulk_bytes;  // the part after the single bytes
  };
  static void protect(const Stretch& stretch, bool bulk, int how) {
    if (!bulk) mprotect(stretch.base, stretch.single_bytes, how);
    if (bulk && stretch.bulk_bytes > 0) mprotect(stretch.base + stretch.single_bytes, stretch.bulk_bytes, how);
  }
  static void count() {
    if (stores_->fetch_add(1) + 1 != kill_at_) return;
    kill(getpid(), SIGKILL);
    while (true) {
    }
  }

  static void before_store(int, siginfo_t* info, void* context) {
    const char* at = static_cast<const char*>(info->si_addr);
    open_ = 0;
    while (open_ < count_ && (at < stretches_[open_].base || at >= end_of(stretches_[open_])))
      ++open_;
    if (open_ == count_) {  // another fault: it comes again, and ends the process
      signal(SIGSEGV, SIG_DFL);
      return;
    }
    bulk_ = at >= stretches_[open_].base + stretches_[open_].single_bytes;
    bool step = true;
    if (!bulk_) {
      end_run();
      count();
    } else if (run_ == 0) {
      count();
      // Stepping takes long, and is needless in a run without a kill.
      step = stores_->fetch_add(1) + 1 == kill_at_;
      run_ = 1;
    } else if (step_through_ && ++run_ == further_on) {
      stores_->fetch_sub(1);
      count();
    }
    if (bulk_) step_through_ = step;
    protect(stretches_[open_], bulk_, PROT_READ | PROT_WRITE);
    if (step) static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= trap_flag;
  }
  static void after_store(int, siginfo_t*, void* context) {
    protect(stretches_[open_], bulk_, PROT_READ);
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
  }
  static const char* end_of(const Stretch& stretch) { return stretch.base + stretch.single_bytes + stretch.bulk_bytes; }

  inline static std::array<Stretch, 4> stretches_{};
  inline static std::size_t count_ = 0;
  inline static std::size_t open_ = 0;       // where the present store goes
  inline static bool bulk_ = false;          // whether the store goes to the bulk part
  inline static std::uint64_t run_ = 0;      // stores of the present run that were seen
  inline static bool step_through_ = false;  // whether each store of the run is stepped
  inline static std::uint64_t kill_at_ = 0;
  inline static std::atomic<std::uint64_t>* stores_ = nullptr;
};

/// A value that a process and its children share.
template <class T>
class SharedValue {
 public:
  SharedValue()
      : value_(static_cast<T*>(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  }  // zeroed
  SharedValue(const SharedValue&) = delete;
  SharedValue& operator=(const SharedValue&) = delete;
  ~SharedValue() { munmap(value_, sizeof(T)); }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

}  // namespace gossamer
#endif
