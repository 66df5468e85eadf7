// The daemon's side of one client's shared memory (sdk/layout/shared_memory.hpp). It maps the memfd, checks a private
// copy of all that the client declared, and then gives typed access that cannot leave the mapping.
//
// Made by the client listener on the loop's thread. Words, clocks and progress are read and written on that thread.
// Workers may read and write the buffers. Invariants: sizes, offsets and the job's name come from the validated copy
// and never change; the seals keep the memory from shrinking, so that access cannot fault; the mapping lives as long as
// the object.

#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/checkpoint/model_file.hpp"
#include "daemon/clients/device_memory.hpp"
#include "gossip/exchange/outer.hpp"
#include "gossip/group/receipts.hpp"
#include "gossip/messages.hpp"
#include "sdk/layout/attach.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::daemon {

/// Why a client is refused: the status it gets, and a text for people with what is wrong and what to do.
struct AttachRefusal {
  layout::AttachStatus status = layout::AttachStatus::bad_layout;
  std::string message;
};

[[nodiscard]] inline std::unexpected<AttachRefusal> cannot_attach(layout::AttachStatus status, std::string why) {
  return std::unexpected(AttachRefusal{status, std::move(why)});
}

/// XXH3-64 of a job's name: JobKey::name_hash.
[[nodiscard]] std::uint64_t job_name_hash(std::string_view job);

class ClientMemory {
 public:
  /// Says why so much memory cannot be taken; nothing if it can.
  using Objection = std::function<std::optional<std::string>(std::uint64_t bytes)>;

  /// Maps and validates. `memfd` stays the caller's and may be closed afterwards. `memory_bytes` is the size that the
  /// client declared; `most_bytes` is how much the client may take.
  [[nodiscard]] static std::expected<ClientMemory, AttachRefusal> map(int memfd, std::uint64_t memory_bytes,
                                                                      std::uint64_t most_bytes);
  /// The same; `objection` decides how much the client may take.
  [[nodiscard]] static std::expected<ClientMemory, AttachRefusal> map(int memfd, std::uint64_t memory_bytes,
                                                                      const Objection& objection);

  // Values that the client declared; validated, and constant.
  [[nodiscard]] const std::string& job() const { return job_; }
  [[nodiscard]] JobKey key() const { return key_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return plan_.total_bytes; }
  /// The inode of the memfd, by which a daemon tells one memory from another; not 0.
  [[nodiscard]] std::uint64_t inode() const { return inode_; }
  /// The most that this takes of the host's memory: less than its size if it is lean, and without the buffers if they
  /// are in a GPU's memory.
  [[nodiscard]] std::uint64_t most_bytes() const {
    return on_device_ ? plan_.buffers_offset : layout::most_bytes(plan_, window_bytes_);
  }
  /// How much of a GPU's memory this takes.
  [[nodiscard]] std::uint64_t device_bytes() const { return on_device_ ? layout::device_bytes(plan_) : 0; }
  /// True if buffers have memory only while something is done with their fragment.
  [[nodiscard]] bool lean() const { return window_bytes_ > 0; }
  /// How many fragments of lean memory may have memory for their buffers at once.
  [[nodiscard]] std::uint32_t window_fragments() const;
  /// The settings with which the program wants the job to begin, in the program's order. They keep to the limits of
  /// gossip/messages.hpp.
  [[nodiscard]] const std::vector<JobSetting>& settings() const { return settings_; }
  /// Elements of the replica, before padding.
  [[nodiscard]] std::uint64_t elements() const { return elements_; }
  [[nodiscard]] std::uint32_t fragment_elements() const { return fragment_elements_; }
  [[nodiscard]] std::uint32_t fragment_count() const { return plan_.fragment_count; }
  /// What the client says of itself.
  struct Kind {
    bool keeps = false;       ///< nobody trains with it: it holds the model for other nodes
    std::uint32_t parts = 1;  ///< processes that hold the replica together
  };
  [[nodiscard]] const Kind& kind() const { return kind_; }
  [[nodiscard]] std::uint32_t tensor_count() const { return layout::tensor_count(plan_); }
  /// At most `most` tensors of the layout from `first` on, with those that are not averaged. Empty if the client has
  /// changed them since it attached.
  [[nodiscard]] std::vector<LayoutTensor> tensors(std::uint32_t first, std::size_t most) const;
  /// The tensors of the replica, in its order.
  [[nodiscard]] const checkpoint::Model& model() const { return model_; }
  /// Elements of one fragment, padded to whole blocks: how much of its buffers is used.
  [[nodiscard]] std::uint32_t padded_elements(std::uint32_t fragment) const;
  [[nodiscard]] std::uint32_t block_count(std::uint32_t fragment) const;

  /// The ranges of one fragment that outer steps leave out: tensors of role `buffer`. They ascend and do not overlap.
  [[nodiscard]] std::vector<gossip::ElementRange> statistics(std::uint32_t fragment) const;

  /// Buffer `index` (0–2) of a fragment: padded_elements(fragment) floats in the memory of device(), aligned to 1024
  /// bytes at least.
  [[nodiscard]] float* buffer(std::uint32_t fragment, std::uint8_t index) const;

  // The place of the buffers.
  /// The client says that the buffers are in a GPU's memory. Then they must not be used before share().
  [[nodiscard]] bool on_device() const { return on_device_; }
  /// Sets the GPU memory that holds the buffers, of at least device_bytes(), or the pinning of buffers in the host.
  void share(std::shared_ptr<const DeviceMemory> with);
  /// The device that computes on the buffers: the processor, unless they are in a GPU's memory.
  [[nodiscard]] const gossip::Device& device() const;
  /// The owner that keeps device() open; null for the processor.
  [[nodiscard]] std::shared_ptr<const OpenDevice> opened() const { return on_device_ ? shared_->opened() : nullptr; }
  /// Whether `device` can compute on the buffers where they are.
  [[nodiscard]] bool reached_by(const gossip::Device& device) const;
  /// The UUID of the GPU that holds the buffers; empty: they are in the host's memory.
  [[nodiscard]] std::string gpu() const { return on_device_ && shared_ ? shared_->gpu() : std::string(); }
  /// The buffers in the host's memory, in whole pages; pages() keeps them mapped.
  [[nodiscard]] std::span<std::byte> host_buffers() const;
  [[nodiscard]] std::shared_ptr<const void> pages() const { return pages_; }

  // For lean memory; any thread.
  /// Takes memory for all buffers of a fragment; new pages are zero. Returns 0, or errno, and then nothing is taken.
  [[nodiscard]] int provide(std::uint32_t fragment) const;
  /// Gives back the memory of `count` fragments from `first`. Their words must say that they are empty.
  void vacate(std::uint32_t first, std::uint32_t count = 1) const;
  /// Gives back the memory of all fragments whose words say that they are empty: a dead daemon may have left some.
  void vacate_unused() const;

  /// All words as they are now. They may be invalid: map() has checked the words of an earlier moment only.
  [[nodiscard]] std::vector<std::uint64_t> load_words() const;
  /// Checks whether this memory can have these words.
  [[nodiscard]] std::expected<void, AttachRefusal> check_words(std::span<const std::uint64_t> words) const;
  /// The client may write words at any time; a word for which valid() is false is the client's fault, not ours.
  [[nodiscard]] layout::Word load_word(std::uint32_t fragment) const;
  /// Call this only while the daemon owns the fragment's word. `word` must be valid.
  void store_word(std::uint32_t fragment, layout::Word word);
  /// Recalls a due fragment: `due` becomes `owned`. False: the client has begun to serve it.
  [[nodiscard]] bool recall_word(std::uint32_t fragment, layout::Word due, layout::Word owned);
  /// publication_clock(), clock() and clock_base() are at most layout::max_clock_samples, whatever the client wrote.
  [[nodiscard]] std::uint64_t publication_clock(std::uint32_t fragment) const;
  /// The daemon's receipt of the publication of this generation, if there is one. The client could change it, but would
  /// only misplace its own share of the model.
  [[nodiscard]] std::optional<gossip::CopyReceipt> receipt(std::uint32_t fragment, std::uint32_t generation) const;
  /// Stores the receipt in the place of the one of two generations before.
  void store_receipt(std::uint32_t fragment, const gossip::CopyReceipt& receipt);
  [[nodiscard]] std::uint64_t clock() const;
  struct Steps {
    std::uint64_t all = 0;
    std::uint64_t trained = 0;  ///< those with samples, or all where the client's library does not tell
  };
  [[nodiscard]] Steps steps() const {
    const std::uint64_t all = header().steps.load(std::memory_order_relaxed);
    const std::uint64_t trained = header().trained_steps.load(std::memory_order_relaxed);
    return {.all = all, .trained = trained > 0 ? trained : all};
  }
  [[nodiscard]] std::uint64_t publications() const { return header().publications.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t serving_ns() const { return header().serving_ns.load(std::memory_order_relaxed); }

  /// Tells the client that fragments are due. To be called after the words are stored.
  void raise_due() { header().due_sequence.fetch_add(1, std::memory_order_release); }
  void set_state(layout::RunState state) {
    header().state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
  }
  /// The state that this daemon or an earlier one has stored. It may be any number, since the client can write it, too.
  [[nodiscard]] layout::RunState state() const {
    return static_cast<layout::RunState>(header().state.load(std::memory_order_acquire));
  }
  void set_fragments_pulled(std::uint32_t count) { header().fragments_pulled.store(count, std::memory_order_relaxed); }
  /// For the program to show: how far the job is, what its exchanges cost, and how well the replicas agree.
  struct Statistics {
    std::uint64_t global_clock = 0;
    std::uint32_t neighbours = 0;
    std::uint64_t exchanges = 0;
    std::uint64_t bytes_sent = 0;
    std::uint64_t bytes_received = 0;
    double consensus = 0;
    std::uint64_t age_samples = 0;
    std::uint64_t unresolved = 0;
    std::uint64_t quarantines = 0;
    TimeUs period_us = 0;
    std::uint64_t pulled_bytes = 0;
  };
  void set_statistics(const Statistics& statistics);
  /// Tells the program which method and outer momentum the job's settings ask for.
  void set_method(const layout::MethodWord& method, double outer_momentum);
  /// The number of the program's request to finish, which awaits an answer; 0: the program trains.
  [[nodiscard]] std::uint32_t finishing() const { return header().finishing.load(std::memory_order_acquire); }
  void set_finish_answer(const layout::FinishAnswer& answer, double distance, std::uint64_t clock);
  [[nodiscard]] layout::FinishAnswer finish_answer() const {
    return layout::FinishAnswer::unpack(header().finish_answer.load(std::memory_order_relaxed));
  }
  /// Tells the client its index among the job's clients at this node, and their count.
  void set_place(std::uint32_t index, std::uint32_t count);
  /// A place as this daemon or an earlier one has stored it.
  struct Place {
    std::uint32_t index = 0;
    std::uint32_t count = 0;
  };
  [[nodiscard]] Place place() const;
  /// What the program has logged (daemon/jobs/logged_values.hpp).
  [[nodiscard]] layout::Logged& logged() const {
    return *reinterpret_cast<layout::Logged*>(base_ + layout::logged_offset);
  }
  /// Tells the client the members of its job, of which at most layout::max_members are told.
  void set_members(std::span<const NodeId> members);
  /// The cursor that the program has set, and the one that came with the model; their bytes may be anything. The number
  /// changes whenever the program sets its own; 0: it never has.
  [[nodiscard]] std::uint64_t own_cursor_number() const { return header().own_cursor.load(std::memory_order_acquire); }
  [[nodiscard]] std::vector<std::byte> own_cursor() const;
  [[nodiscard]] std::vector<std::byte> job_cursor() const;
  void set_job_cursor(std::span<const std::byte> cursor);
  /// Samples that the model had seen when the client took it over; kept in the memory, so that it survives a restart.
  [[nodiscard]] std::uint64_t clock_base() const;
  void set_clock_base(std::uint64_t samples) { header().clock_base.store(samples, std::memory_order_relaxed); }

 private:
  ClientMemory() = default;

  std::expected<void, AttachRefusal> map_pages(int memfd, std::uint64_t memory_bytes);
  std::expected<void, AttachRefusal> take_header(const Objection& objection);
  std::expected<void, AttachRefusal> take_settings(std::uint64_t bytes);
  std::expected<void, AttachRefusal> check_tensors(std::uint32_t tensor_count, std::uint64_t declared_hash);
  [[nodiscard]] layout::Header& header() const { return *reinterpret_cast<layout::Header*>(base_); }
  [[nodiscard]] layout::FragmentEntry& entry(std::uint32_t fragment) const;

  std::shared_ptr<std::byte> pages_;  // the mapping
  std::byte* base_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t inode_ = 0;
  bool on_device_ = false;
  Kind kind_;
  std::shared_ptr<const DeviceMemory> shared_;
  FileDescriptor memfd_;  // for lean memory only
  std::uint64_t window_bytes_ = 0;
  layout::Plan plan_{};
  std::uint64_t elements_ = 0;
  std::uint32_t fragment_elements_ = 0;
  std::string job_;
  std::vector<JobSetting> settings_;
  JobKey key_;
  checkpoint::Model model_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> statistics_;  // elements [first, last) of the replica
};

}  // namespace gossamer::daemon
