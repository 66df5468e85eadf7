// A fake daemon: as much of the daemon's side of the shared-memory contract as a measurement of the client needs. It
// accepts one client, maps its memory, and makes fragments due. There is no network and no other process, so that only
// the client is measured.
//
// Main thread. Failures are exceptions, which end the benchmark with a message.

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/shared_memory.hpp"
#include "tools/bench/bench_run.hpp"

namespace gossamer::bench {

class FakeDaemon {
 public:
  /// Listens in a temporary folder of its own.
  FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;
  ~FakeDaemon();

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }

  /// Accepts the client that is connecting, and sets its run to `running` at once.
  void accept();

  [[nodiscard]] std::uint32_t fragment_count() const { return header().fragment_count; }
  /// Whether the daemon owns the fragment.
  [[nodiscard]] bool owns(std::uint32_t fragment) const { return !word(fragment).with_client; }
  /// Hands a fragment over, with its correction buffer as it is.
  void make_due(std::uint32_t fragment);

  /// The fragment's buffer with the correction, and the buffer that its next snapshot goes to.
  [[nodiscard]] std::span<float> correction(std::uint32_t fragment) {
    return buffer(fragment, word(fragment).correction);
  }
  [[nodiscard]] std::span<float> spare(std::uint32_t fragment) { return buffer(fragment, word(fragment).spare()); }

 private:
  [[nodiscard]] layout::Header& header() const { return *reinterpret_cast<layout::Header*>(base_); }
  [[nodiscard]] layout::FragmentEntry& entry(std::uint32_t fragment) const;
  [[nodiscard]] layout::Word word(std::uint32_t fragment) const;
  [[nodiscard]] std::span<float> buffer(std::uint32_t fragment, std::uint8_t index) const;
  void map_memory(std::uint64_t bytes);

  TemporaryFolder folder_;
  std::string socket_path_;
  FileDescriptor listener_, socket_, memory_, doorbell_;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace gossamer::bench
