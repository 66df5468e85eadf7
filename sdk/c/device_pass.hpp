// A run's tensors in a GPU's memory: passes over them on the training stream, and the memory that these work in. Made
// by gossamer_open() if the options say so; then used by the training thread only. Nothing in a step waits for the
// device.
//
// The fragments' buffers are in GPU memory that the daemon maps, or in the memory of the run, pinned. The words are in
// the memory of the run in any case, of which the part before the buffers is pinned.
//
// Invariants: a fragment is in at most one pass at a time; what a pass under way reads or writes is neither freed nor
// unmapped; after a failure of the device nothing more is asked of it.

#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sdk/c/client_memory.hpp"
#include "sdk/c/device_plugin.hpp"
#include "sdk/c/file_descriptor.hpp"
#include "sdk/c/replica.hpp"
#include "sdk/c/words_under_way.hpp"
#include "sdk/layout/attach.hpp"

namespace gossamer::client {

class DevicePass {
 public:
  /// Finds the GPU that all tensors that are mixed are on. `step_budget_bytes`: of one step, which is then one launch.
  [[nodiscard]] static Result<std::unique_ptr<DevicePass>> open(const Replica& replica, void* stream,
                                                                std::uint64_t step_budget_bytes);
  ~DevicePass();
  DevicePass(const DevicePass&) = delete;
  DevicePass& operator=(const DevicePass&) = delete;

  // --- opening
  /// Takes GPU memory for the buffers that another process can map. If that is not possible they will be in the memory
  /// of the run, and why() says why.
  [[nodiscard]] Result<void> share(std::uint64_t buffers_bytes);
  [[nodiscard]] bool shares() const { return shared_.base != nullptr; }
  [[nodiscard]] layout::DeviceOffer offer() const;
  [[nodiscard]] FileDescriptor take_descriptor() { return std::move(descriptor_); }
  [[nodiscard]] const std::string& why() const { return why_; }
  /// Pins what the passes need of it. The memory must outlive this object.
  [[nodiscard]] Result<void> use(const ClientMemory& memory);
  /// Publishes the present values in every fragment. Waits for the device, but not for ever.
  [[nodiscard]] Result<void> publish_all(const Replica& replica, std::uint64_t clock);

  // --- a step
  /// The next pass has nothing yet.
  void begin();
  /// Adds a due fragment to the next pass; its word says that it is being served.
  void add(const Replica& replica, std::uint32_t fragment, const layout::Word& due, std::uint32_t dither);
  struct Launch {
    std::uint32_t launched = 0;  ///< fragments
    std::uint32_t left = 0;      ///< that stay due
    std::optional<Error> problem;
  };
  /// Launches what was added; no more than one kernel if that is within the step's budget.
  [[nodiscard]] Launch launch();
  void set_stream(void* stream) { stream_ = stream; }
  /// Whether the values may be there: on the run's GPU.
  [[nodiscard]] Result<void> check(const Tensor& tensor, const void* data) const;
  /// Nothing is under way.
  [[nodiscard]] Result<bool> idle();
  /// Waits for that, at most as long as given: false if it is not so then.
  [[nodiscard]] Result<bool> settle(std::chrono::milliseconds limit);
  /// Time that passes took on the device since the last call, in which training could not go on there.
  [[nodiscard]] std::uint64_t take_pass_ns();
  [[nodiscard]] WordsUnderWay& words_under_way() { return under_way_; }
  [[nodiscard]] bool failed() const { return !failure_.empty(); }
  [[nodiscard]] std::unexpected<Error> failure() const { return fail(GOSSAMER_NO_DEVICE, failure_); }

  // --- from the GPU's memory to that of the run
  /// Pins the run's buffers and begins to copy all that is in the GPU's; nothing may be under way. After it, once
  /// idle(): end_move().
  [[nodiscard]] Result<void> begin_move();
  [[nodiscard]] bool moves() const { return moves_; }
  /// The passes work in the run's memory from now on.
  void end_move();

  /// Leaves everything alone for ever: something is under way that will not end, or this is a child after fork().
  void abandon();

 private:
  DevicePass(const cuda::PluginTable& plugin, std::int32_t device, std::uint32_t fragments, void* stream)
      : plugin_(plugin), device_(device), stream_(stream), under_way_(fragments) {}
  [[nodiscard]] layout::FragmentEntry& entry(std::uint32_t fragment) const {
    return reinterpret_cast<layout::FragmentEntry*>(memory_ + plan_.fragments_offset)[fragment];
  }
  [[nodiscard]] float* buffer(std::uint32_t fragment, std::uint8_t index) const;
  void add_pieces(const Replica& replica, std::uint32_t fragment, cuda::Mode mode, const float* correction,
                  float* snapshot, std::uint32_t dither);
  void add_publication(std::uint32_t fragment, const layout::Word& due, const layout::Word& published);
  [[nodiscard]] std::unexpected<Error> fail_with(const std::string& error);
  [[nodiscard]] Result<void> pin(void* memory, std::uint64_t bytes, std::byte*& device_memory);

  const cuda::PluginTable& plugin_;
  const std::int32_t device_;
  cuda::Context* context_ = nullptr;
  cuda::PassLimits limits_{};
  void* stream_;
  std::byte* memory_ = nullptr;  ///< the run's
  layout::Plan plan_{};          ///< its
  cuda::SharedMemory shared_{};  ///< null base: none
  FileDescriptor descriptor_;    ///< of it, until it is handed over
  std::string why_;
  std::vector<void*> pinned_;
  std::byte* words_ = nullptr;           ///< the run's memory before the buffers, as the device has it
  std::byte* pinned_buffers_ = nullptr;  ///< the run's buffers, as the device has them
  bool moves_ = false;
  std::string failure_;
  std::uint64_t taken_pass_ns_ = 0;

  // The next pass, and of each of its fragments which it is, the word it replaces, and how many pieces there are
  // up to its end.
  std::vector<cuda::Piece> pieces_;
  std::vector<cuda::Publication> publications_;
  struct Added {
    std::uint32_t fragment;
    std::uint64_t due;
    std::uint32_t pieces_end;
  };
  std::vector<Added> added_;
  std::vector<WordsUnderWay::Entry> news_;  ///< what launch() adds to under_way_
  WordsUnderWay under_way_;
};

}  // namespace gossamer::client
