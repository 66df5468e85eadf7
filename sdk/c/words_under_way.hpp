// Words of fragments that a step has handed to a device and that the device has not stored yet. The training thread
// adds them; the attachment's thread looks which have been stored, and rings the daemon's doorbell for them.
//
// Any thread. The mutex is held only while the words are looked at.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace gossamer::client {

class WordsUnderWay {
 public:
  struct Entry {
    const std::atomic<std::uint64_t>* word;
    std::uint64_t bits;  ///< the value until the word is stored
  };
  /// Reserves space, so that adding this many words takes no memory.
  explicit WordsUnderWay(std::size_t expected) { entries_.reserve(expected); }

  void add(std::span<const Entry> entries) {
    const std::lock_guard lock(mutex_);
    entries_.insert(entries_.end(), entries.begin(), entries.end());
  }
  struct Look {
    std::size_t stored = 0;  ///< stored since the last look
    std::size_t left = 0;
  };
  [[nodiscard]] Look look() {
    const std::lock_guard lock(mutex_);
    const std::size_t stored = std::erase_if(
        entries_, [](const Entry& entry) { return entry.word->load(std::memory_order_acquire) != entry.bits; });
    return {stored, entries_.size()};
  }
  /// Forgets all words, because the device will not store them any more.
  void forget() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace gossamer::client
