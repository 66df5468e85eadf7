// One client of a job: its words as the daemon knows them, and what its memory has to do with a fragment.
//
// Owned by Job; tasks under way hold it too, so that its memory outlives them. Everything runs on the loop's thread but
// the arithmetic over the floats that part_of() names. Invariants: a word is stored only while the daemon owns it; a
// word from the client is taken only if it is the one that must follow.

#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <vector>

#include "daemon/clients/client_listener.hpp"
#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/group/local_group.hpp"
#include "gossip/group/reunion.hpp"
#include "gossip/replica/job_clock.hpp"

namespace gossamer::daemon {

class JobClient {
 public:
  JobClient(std::shared_ptr<ClientSession> session, TimeUs now_us);
  JobClient(const JobClient&) = delete;
  JobClient& operator=(const JobClient&) = delete;

  [[nodiscard]] ClientSession& session() { return *session_; }
  [[nodiscard]] ClientMemory& memory() { return session_->memory(); }
  [[nodiscard]] const ClientMemory& memory() const { return session_->memory(); }
  [[nodiscard]] std::uint64_t number() const { return session_->number(); }
  [[nodiscard]] pid_t pid() const { return session_->pid(); }
  /// Samples that its model has seen.
  [[nodiscard]] std::uint64_t clock() const { return gossip::later_clock(memory().clock_base(), memory().clock()); }

  // --- beside the model
  /// Its program has set a cursor since the model was taken over.
  [[nodiscard]] bool has_own_cursor() const { return memory().own_cursor_number() != own_cursor_then_; }
  /// The model has been taken over, and this came with it.
  void take_cursor(std::span<const std::byte> cursor);
  void tell_members(const std::vector<NodeId>& members);
  /// Looks whether the program has stopped training; true if that is news.
  bool look_at_finishing();
  /// 0: it trains.
  [[nodiscard]] std::uint32_t finishing() const { return finishing_; }
  /// Not after it has been told that all agree.
  void answer_finishing(const layout::FinishAnswer& answer, double distance);
  /// It trains, or has stopped and been told that its model is not finite.
  [[nodiscard]] bool waits_for_nothing() const { return finishing_ == spoiled_; }

  // --- words
  /// As the daemon stored or accepted it.
  [[nodiscard]] layout::Word word(std::uint32_t f) const { return layout::Word::unpack(words_[f]); }
  /// The client has the fragment.
  [[nodiscard]] bool due(std::uint32_t f) const { return word(f).with_client; }
  [[nodiscard]] std::vector<bool> due_fragments() const;
  /// Refused if the words that it came with make no sense: nothing else may be asked of it then.
  [[nodiscard]] std::expected<void, AttachRefusal> check() const { return memory().check_words(words_); }
  /// Its model has still to be taken over, here or by a later daemon.
  [[nodiscard]] bool joins() const { return joins_; }
  void set_joined() { joins_ = false; }
  /// Clients of the job that there were here, itself included, when a daemon last told it; 0: none has.
  [[nodiscard]] std::uint32_t were() const { return were_; }
  /// What of the replica is in a client's memory, and not gathered, is in this one's; or nothing is.
  [[nodiscard]] bool is_holder(const NodeMemory& kept) const;
  enum class Served { not_yet, yes, breach };
  /// Looks whether it has served a fragment that is due.
  [[nodiscard]] Served look(std::uint32_t f, TimeUs now_us);
  /// Takes a fragment back that is due. False: the client has begun to serve it.
  [[nodiscard]] bool recall(std::uint32_t f);
  /// Only while the daemon owns the word. tell_due() afterwards.
  void store(std::uint32_t f, const layout::Word& word);

  // --- receipts, for a daemon that takes over (gossip/group/reunion.hpp)
  /// Its memory is the node's copy `number`, and goes on alone.
  void note_alone(std::uint32_t f, std::uint64_t number);
  /// Its publication is in copy `number`, which it is to be handed, or to take over: `replaces`. `overwritten`: what it
  /// was handed before is about to be written over. Noted again before it was handed any, it is the first that counts.
  void note_copy(std::uint32_t f, std::uint64_t number, bool replaces, bool overwritten);
  /// Its publication is in no copy yet, and is to go into copy `number`.
  void note_untaken(std::uint32_t f, std::uint64_t number);
  /// Nothing of it could be read or written: its publication is not in that copy after all.
  void note_out_of_reach(std::uint32_t f);
  /// The largest number in any receipt of the fragment.
  [[nodiscard]] std::uint64_t last_noted(std::uint32_t f) const;
  [[nodiscard]] gossip::Standing standing(std::uint32_t f) const;
  /// The copy that it was handed last, as standing() says; or its publication itself.
  [[nodiscard]] gossip::FragmentView copy(std::uint32_t f, bool publication) const;
  /// Its progress since a copy, to be taken with this weight.
  [[nodiscard]] gossip::ClientFragment progress_since(std::uint32_t f, const gossip::FragmentView& copy,
                                                      float weight) const;
  void tell_due();

  // --- among several
  /// Where its part in a mean is: the daemon owns the word.
  [[nodiscard]] gossip::ClientFragment part_of(std::uint32_t f, const gossip::LocalGroup::Part& part) const;
  /// Hands the fragment over, with the correction that was written where part_of() said: copy `number`.
  void offer(std::uint32_t f, const gossip::LocalGroup::Part& part, const gossip::LocalMeanTask::Outcome& outcome,
             std::uint64_t number);

  /// How much of the time since the last call it says it has spent serving fragments.
  [[nodiscard]] TimeUs take_time_taken(TimeUs now_us);
  /// How long its steps took lately, as of the last call of take_time_taken(); 0: it has done none.
  [[nodiscard]] TimeUs step_us() const { return step_us_; }
  /// When it last published; when it came, if it never has.
  [[nodiscard]] TimeUs published_us() const { return published_us_; }

 private:
  std::shared_ptr<ClientSession> session_;
  std::vector<std::uint64_t> words_;
  std::vector<bool> was_corrected_;  // fragments whose last publication came after a correction was added
  std::uint32_t were_;
  bool due_stored_ = false;
  std::uint64_t own_cursor_then_ = 0;  // when the model was taken over
  std::vector<NodeId> members_told_;
  std::uint32_t finishing_ = 0;
  std::uint32_t agreed_ = 0;   // the number that was answered so
  std::uint32_t spoiled_ = 0;  // likewise
  bool joins_ = true;
  TimeUs published_us_;
  TimeUs time_taken_at_us_;
  std::uint64_t serving_ns_then_;
  TimeUs stepped_us_;  // when it was last seen to have taken steps
  std::uint64_t steps_then_;
  TimeUs step_us_ = 0;
};

/// The same facts, as the two sides of the daemon call them.
[[nodiscard]] gossip::FragmentParts parts_of(const layout::Word& word);
[[nodiscard]] layout::Word word_of(const gossip::FragmentParts& parts);

}  // namespace gossamer::daemon
