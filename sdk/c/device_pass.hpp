// A run's tensors in GPU memory: passes over them on the training stream, and the memory that the passes work in.
// gossamer_open() makes it if the options say so; then only the training thread uses it. Nothing in a step waits for
// the device.
//
// The fragments' buffers are in GPU memory that the daemon maps, or in the run's memory, pinned. The words are always
// in the run's memory, and the part of it before the buffers is pinned.
//
// Invariants: a fragment is in at most one pass at a time; memory that a pass under way reads or writes is neither
// freed nor unmapped; after a failure of the device nothing more is asked of it.

#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sdk/c/client_replica.hpp"
#include "sdk/c/device_plugin.hpp"
#include "sdk/c/run_memory.hpp"
#include "sdk/c/words_under_way.hpp"
#include "sdk/layout/attach.hpp"
#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::client {

class DevicePass {
 public:
  /// Finds the GPU that holds all tensors that are averaged. `step_budget_bytes` is the budget of one step, which is
  /// then one launch.
  [[nodiscard]] static Result<std::unique_ptr<DevicePass>> open(const ClientReplica& replica, void* stream,
                                                                std::uint64_t step_budget_bytes);
  ~DevicePass();
  DevicePass(const DevicePass&) = delete;
  DevicePass& operator=(const DevicePass&) = delete;

  // --- opening
  /// Takes GPU memory for the buffers that another process can map. If that is not possible, the buffers will be in the
  /// run's memory, and why() says why.
  [[nodiscard]] Result<void> share(std::uint64_t buffers_bytes);
  [[nodiscard]] bool shares() const { return shared_.base != nullptr; }
  [[nodiscard]] layout::DeviceOffer offer() const;
  [[nodiscard]] FileDescriptor take_descriptor() { return std::move(descriptor_); }
  [[nodiscard]] const std::string& why() const { return why_; }
  /// Pins the part of the memory that the passes need. The memory must outlive this object.
  [[nodiscard]] Result<void> use(const RunMemory& memory);
  /// Publishes the present values in every fragment. Waits for the device, for a limited time.
  [[nodiscard]] Result<void> publish_all(const ClientReplica& replica, std::uint64_t clock);

  // --- a step
  /// Begins the next pass, with no fragments.
  void begin();
  /// Adds a due fragment to the next pass; its word says that it is being served.
  void add(const ClientReplica& replica, std::uint32_t fragment, const layout::Word& due, std::uint32_t dither);
  struct Launch {
    std::uint32_t launched = 0;  ///< number of fragments launched
    std::uint32_t left = 0;      ///< number of fragments that stay due
    std::optional<ClientError> problem;
  };
  /// Launches the added fragments, with one kernel if they are within the step's budget.
  [[nodiscard]] Launch launch();
  void set_stream(void* stream) { stream_ = stream; }
  /// Fails unless the values are on the run's GPU.
  [[nodiscard]] Result<void> check(const ClientTensor& tensor, const void* data) const;
  /// Whether nothing is under way.
  [[nodiscard]] Result<bool> idle();
  /// Waits until nothing is under way. False if that takes longer than the limit.
  [[nodiscard]] Result<bool> settle(std::chrono::milliseconds limit);
  /// The time that passes took on the device since the last call; training could not go on there in that time.
  [[nodiscard]] std::uint64_t take_pass_ns();
  [[nodiscard]] WordsUnderWay& words_under_way() { return under_way_; }
  [[nodiscard]] bool failed() const { return !failure_.empty(); }
  [[nodiscard]] std::unexpected<ClientError> failure() const { return fail(GOSSAMER_NO_DEVICE, failure_); }

  // --- from the GPU's memory to that of the run
  /// Pins the run's buffers and begins to copy the GPU's to them. Nothing may be under way. Call end_move() once idle()
  /// is true.
  [[nodiscard]] Result<void> begin_move();
  [[nodiscard]] bool moves() const { return moves_; }
  /// The passes work in the run's memory from now on.
  void end_move();

  /// Never touches the device or its memory again: work under way will not end, or this is a child after fork().
  void abandon();

 private:
  DevicePass(const cuda::ClientPluginTable& plugin, std::int32_t device, std::uint32_t fragments, void* stream)
      : plugin_(plugin), device_(device), stream_(stream), under_way_(fragments) {}
  [[nodiscard]] layout::FragmentEntry& entry(std::uint32_t fragment) const {
    return reinterpret_cast<layout::FragmentEntry*>(memory_ + plan_.fragments_offset)[fragment];
  }
  [[nodiscard]] float* buffer(std::uint32_t fragment, std::uint8_t index) const;
  void add_pieces(const ClientReplica& replica, std::uint32_t fragment, cuda::Mode mode, const float* correction,
                  const float* before, float* snapshot, std::uint32_t dither);
  void add_publication(std::uint32_t fragment, const layout::Word& due, const layout::Word& published);
  [[nodiscard]] std::unexpected<ClientError> fail_with(const std::string& error);
  [[nodiscard]] Result<void> pin(void* memory, std::uint64_t bytes, std::byte*& device_memory);

  const cuda::ClientPluginTable& plugin_;
  const std::int32_t device_;
  cuda::Context* context_ = nullptr;
  cuda::PassLimits limits_{};
  void* stream_;
  std::byte* memory_ = nullptr;  ///< the run's memory
  layout::Plan plan_{};          ///< the plan of the run's memory
  cuda::SharedMemory shared_{};  ///< the base is null if there is none
  FileDescriptor descriptor_;    ///< descriptor of the shared memory, until it is handed over
  std::string why_;
  std::vector<void*> pinned_;
  std::byte* words_ = nullptr;           ///< the run's memory before the buffers, at the device's address
  std::byte* pinned_buffers_ = nullptr;  ///< the run's buffers, at the device's address
  bool moves_ = false;
  std::string failure_;
  std::uint64_t taken_pass_ns_ = 0;

  // The next pass. For each of its fragments: its number, the word that the pass replaces, and how many pieces there
  // are up to its end.
  std::vector<cuda::Piece> pieces_;
  std::vector<cuda::Publication> publications_;
  struct Added {
    std::uint32_t fragment;
    std::uint64_t due;
    std::uint32_t pieces_end;
  };
  std::vector<Added> added_;
  std::vector<WordsUnderWay::Entry> news_;  ///< the words that launch() adds to under_way_
  WordsUnderWay under_way_;
};

}  // namespace gossamer::client
