// Memory for values that are averaged, which the daemon maps as well.
//
// The address of the values stays the same as long as the object lives. A daemon that has received the memory may read
// it even after the client has left it. renew() then maps new memory with the same values at the same address, and
// leaves the old memory to the daemon.
//
// Memory that the program got from gossamer_average_memory() is found by its address, from any thread. An object is
// used by one thread at a time.

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
  /// The descriptor to send to the daemon.
  [[nodiscard]] const FileDescriptor& show() {
    shown_ = true;
    return file_;
  }
  /// Does nothing if show() was not called since the last renewal.
  [[nodiscard]] Result<void> renew();

  // --- memory of the program's own
  /// Keeps the memory until forget().
  static void keep(std::shared_ptr<AverageMemory> memory);
  static void forget(const float* begin);
  /// Null: no kept memory begins at this address.
  [[nodiscard]] static std::shared_ptr<AverageMemory> at(const float* begin);

 private:
  explicit AverageMemory(std::span<float> values, FileDescriptor file) : values_(values), file_(std::move(file)) {}

  std::span<float> values_;
  FileDescriptor file_;
  bool shown_ = false;
};

}  // namespace gossamer::client
