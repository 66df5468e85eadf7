// Counts the stores of this process to a stretch of memory, one machine instruction after the other, and kills the
// process in front of one of them: SIGKILL, as if somebody had pulled the plug. What a store is, the processor says,
// not the source: a vectorised loop has one for each of its vectors.
//
// How: the pages are read-only. A store faults; the handler counts it, allows writing and sets the trap flag, so that
// the next signal comes after this one instruction, when the pages become read-only again. For a forked child in which
// one thread at a time stores there. x86-64 only; not under ThreadSanitizer, which has signal handling of its own.

#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define GOSSAMER_STORE_TRAP 1

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gossamer {

/// Every store is tried; with the address sanitizer, under which a process takes long to fork, a sample of them.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kill_stride = 7;
#else
constexpr std::uint64_t kill_stride = 1;
#endif

class StoreTrap {
 public:
  /// Kills the process before its store number `kill_at` (from 1; 0: never) to `bytes` bytes from `base` (whole pages).
  /// `stores` counts them where the parent can read it.
  static void arm(void* base, std::size_t bytes, std::uint64_t kill_at, std::atomic<std::uint64_t>& stores) {
    base_ = static_cast<char*>(base);
    bytes_ = bytes;
    kill_at_ = kill_at;
    stores_ = &stores;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = &StoreTrap::before_store;
    sigaction(SIGSEGV, &action, nullptr);
    action.sa_sigaction = &StoreTrap::after_store;
    sigaction(SIGTRAP, &action, nullptr);
    mprotect(base_, bytes_, PROT_READ);
  }
  static void disarm() { mprotect(base_, bytes_, PROT_READ | PROT_WRITE); }

 private:
  static constexpr greg_t trap_flag = 0x100;  // of EFLAGS

  static void before_store(int, siginfo_t* info, void* context) {
    const char* at = static_cast<const char*>(info->si_addr);
    if (at < base_ || at >= base_ + bytes_) {  // a fault of its own: it comes again, and ends the process
      signal(SIGSEGV, SIG_DFL);
      return;
    }
    if (stores_->fetch_add(1) + 1 == kill_at_) {
      kill(getpid(), SIGKILL);
      while (true) {
      }
    }
    mprotect(base_, bytes_, PROT_READ | PROT_WRITE);
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= trap_flag;
  }
  static void after_store(int, siginfo_t*, void* context) {
    mprotect(base_, bytes_, PROT_READ);
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
  }

  inline static char* base_ = nullptr;
  inline static std::size_t bytes_ = 0;
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
