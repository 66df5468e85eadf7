// One of a run's averages: its memory, and the connection to the daemon (sdk/layout/average.hpp).
//
// The client connects in the first call, and again if the daemon goes away. One thread at a time, the caller's.

#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "sdk/c/average_memory.hpp"
#include "sdk/c/error.hpp"
#include "sdk/layout/average.hpp"
#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::client {

class AverageClient {
 public:
  /// `socket_path` is the daemon's client socket; if it is empty, the usual places are tried.
  AverageClient(std::string job, std::string name, std::string socket_path)
      : job_(std::move(job)), name_(std::move(name)), socket_path_(std::move(socket_path)) {}
  ~AverageClient() { disconnect(); }
  AverageClient(const AverageClient&) = delete;
  AverageClient& operator=(const AverageClient&) = delete;

  /// Contributes the values, unless a call is under way, and waits for the mean.
  [[nodiscard]] Result<void> average(std::span<float> values, const gossamer_average_options& options,
                                     gossamer_average_info& info);

 private:
  using Time = std::chrono::steady_clock::time_point;

  [[nodiscard]] Result<void> choose_memory(std::span<float> values);
  [[nodiscard]] Result<void> connect(Time until);
  [[nodiscard]] Result<FileDescriptor> connect_once() const;
  [[nodiscard]] Result<void> begin();
  void call(std::span<const float> values, const gossamer_average_options& options);
  [[nodiscard]] std::string why_not() const;
  /// Returns false if the connection has ended.
  [[nodiscard]] Result<bool> receive(layout::AverageReply& reply, Time until);
  void tell_wait(gossamer_average_info& info) const;
  [[nodiscard]] bool is_silent() const;
  void disconnect();

  std::string job_;
  std::string name_;
  std::string socket_path_;
  FileDescriptor socket_;
  std::shared_ptr<AverageMemory> memory_;  ///< null: none yet
  std::size_t count_ = 0;                  ///< number of values; 0: not known yet
  layout::AverageFormWord form_;
  std::uint32_t layout_ = 0;
  std::uint64_t number_ = 0;
  bool called_ = false;
  bool joined_ = false;
  layout::AverageReply last_wait_{};  ///< while a call waits, the last reply that says what for; empty: none
  Time heard_at_{};                   ///< when the call began, or the daemon said whom it waits for
};

}  // namespace gossamer::client
