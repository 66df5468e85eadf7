// Memory for values that are averaged, which the daemon maps as well.
//
// It stays where it is as long as the object lives. A daemon that was shown it may read it after its process has gone
// on to other things. renew() then puts other memory with the same values in its place, and leaves that to the daemon.
//
// The program's own (gossamer_average_memory()) is found by its address. One thread at a time, but for that: any.

#pragma once

#include <memory>
#include <span>

#include "sdk/c/error.hpp"
#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::client {

class AverageMemory {
 public:
  [[nodiscard]] static Result<std::shared_ptr<AverageMemory>> make(std::size_t count);
  ~AverageMemory();
  AverageMemory(const AverageMemory&) = delete;
  AverageMemory& operator=(const AverageMemory&) = delete;

  [[nodiscard]] std::span<float> values() const { return values_; }
  /// For the daemon.
  [[nodiscard]] const FileDescriptor& show() {
    shown_ = true;
    return file_;
  }
  /// Does nothing if no daemon was shown it.
  [[nodiscard]] Result<void> renew();

  // --- the program's own
  /// Kept until forget().
  static void keep(std::shared_ptr<AverageMemory> memory);
  static void forget(const float* begin);
  /// Null: there is none there.
  [[nodiscard]] static std::shared_ptr<AverageMemory> at(const float* begin);

 private:
  explicit AverageMemory(std::span<float> values, FileDescriptor file) : values_(values), file_(std::move(file)) {}

  std::span<float> values_;
  FileDescriptor file_;
  bool shown_ = false;
};

}  // namespace gossamer::client
