// One client of a job: a member of the job's group in shared memory, with what belongs to the client and not to its
// model: the program's cursor, what the client is told, and how long its steps take.
//
// Owned by Job; tasks under way hold it too, so that its memory lives as long as they do. Everything runs on the loop's
// thread except the arithmetic over the floats that part_of() names.

#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/clients/client_listener.hpp"
#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/group/member.hpp"
#include "gossip/replica/job_clock.hpp"
#include "gossip/replica/training_step.hpp"

namespace gossamer::daemon {

class JobClient : public gossip::Member {
 public:
  JobClient(std::shared_ptr<ClientSession> session, TimeUs now_us);
  [[nodiscard]] ClientSession& session() { return *session_; }
  [[nodiscard]] ClientMemory& memory() { return session_->memory(); }
  [[nodiscard]] const ClientMemory& memory() const { return session_->memory(); }
  [[nodiscard]] std::uint64_t number() const override { return session_->number(); }
  [[nodiscard]] std::uint64_t own_clock() const override { return memory().clock(); }
  [[nodiscard]] std::uint64_t published_at(std::uint32_t f) const override { return memory().publication_clock(f); }
  /// The client's clock() when it last published the fragment.
  [[nodiscard]] std::uint64_t publication_clock(std::uint32_t f) const {
    return gossip::later_clock(memory().clock_base(), memory().publication_clock(f));
  }
  [[nodiscard]] bool keeps() const override { return memory().kind().keeps; }
  [[nodiscard]] const gossip::Device* elsewhere() const override;
  [[nodiscard]] bool is_attached() const override { return attached_; }
  void set_detached() { attached_ = false; }
  /// The device that computes on the node's copy.
  void set_home(const gossip::Device& home) { home_ = &home; }
  [[nodiscard]] pid_t pid() const { return session_->pid(); }
  [[nodiscard]] std::uint64_t clock() const override {
    return gossip::later_clock(memory().clock_base(), memory().clock());
  }

  // --- beside the model
  /// The program has set a cursor since the model was taken over.
  [[nodiscard]] bool has_own_cursor() const { return memory().own_cursor_number() != own_cursor_then_; }
  /// Call this when the client has taken the model over; the cursor came with the model.
  void take_cursor(std::span<const std::byte> cursor);
  void tell_members(const std::vector<NodeId>& members);
  /// Tells the program what keeps it apart from other nodes, if that has changed.
  void tell(const std::string& message) {
    if (std::exchange(told_, message) != message) session_->tell(message);
  }

  // --- words
  /// Checks the words that the client came with. If they are refused, nothing else may be called.
  [[nodiscard]] std::expected<void, AttachRefusal> check() const { return memory().check_words(words_found_); }
  /// True if this client's memory holds the fragments that are not gathered, or if there are no such fragments.
  [[nodiscard]] bool is_holder(const NodeMemory& kept) const;
  enum class Served { not_yet, yes, breach };
  /// Reads whether the client has served a fragment that is due.
  [[nodiscard]] Served look(std::uint32_t f, TimeUs now_us);

  /// How much of the time since the last call the runs of the client's process have spent serving fragments, of this
  /// job and others, as they say.
  [[nodiscard]] TimeUs take_time_taken(TimeUs now_us);
  /// As of the last take_time_taken().
  [[nodiscard]] const gossip::TrainingStep& step() const { return step_; }
  /// When the client's count of steps was last seen to rise; before that, when it attached.
  [[nodiscard]] TimeUs stepped_us() const { return stepped_us_; }
  /// When the client last published; before its first publication, when it attached.
  [[nodiscard]] TimeUs published_us() const { return published_us_; }

 private:
  void store_word(std::uint32_t f, const gossip::FragmentParts& word) override;
  bool recall_word(std::uint32_t f, const gossip::FragmentParts& due, const gossip::FragmentParts& owned) override;
  [[nodiscard]] std::optional<gossip::CopyReceipt> receipt(std::uint32_t f, std::uint32_t generation) const override {
    return memory().receipt(f, generation);
  }
  void store_receipt(std::uint32_t f, const gossip::CopyReceipt& receipt) override {
    memory().store_receipt(f, receipt);
  }
  [[nodiscard]] float* buffer(std::uint32_t f, std::uint8_t index) const override { return memory().buffer(f, index); }
  void raise_due() override { memory().raise_due(); }
  [[nodiscard]] std::uint32_t finishing_asked() const override { return memory().finishing(); }
  void store_finish_answer(const gossip::EndAnswer& answer) override;
  [[nodiscard]] std::uint32_t finish_agreed() const override {
    const layout::FinishAnswer answer = memory().finish_answer();
    return answer.agreed ? answer.number : 0;
  }

  void look_at_steps(TimeUs now_us);

  std::shared_ptr<ClientSession> session_;
  const std::vector<std::uint64_t> words_found_;  // as they were when the client attached
  const gossip::Device* home_ = nullptr;
  bool attached_ = true;
  std::uint64_t own_cursor_then_ = 0;  // the number of its own cursor when it took the model over
  std::vector<NodeId> members_told_;
  std::string told_;
  TimeUs published_us_;
  TimeUs time_taken_at_us_;
  std::uint64_t serving_ns_then_;
  std::uint64_t process_serving_ns_then_;
  TimeUs stepped_us_;  // see stepped_us()
  ClientMemory::Steps steps_then_;
  std::uint64_t clock_then_;
  gossip::TrainingStep step_;
};

}  // namespace gossamer::daemon
