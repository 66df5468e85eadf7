// One client of a job at a node: its fragments' parts as the daemon knows them, and what is noted about its
// publications.
//
// The words, receipts and buffers themselves are in the client's memory, behind the protected functions: the daemon's
// clients have shared memory (daemon/jobs/job_client.hpp), the simulator's have vectors. Everything runs on the
// replica's thread but the arithmetic over the floats that part_of() names. Invariants: a word is stored only while the
// daemon owns it; a word from the client is taken only if it is the one that must follow.

#pragma once

#include <optional>
#include <vector>

#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/group/local_group.hpp"
#include "gossip/group/receipts.hpp"

namespace gossamer::gossip {

class Member {
 public:
  virtual ~Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Names the client; never reused.
  [[nodiscard]] virtual LocalGroup::ClientId number() const = 0;
  /// Samples that its program has trained since it was started.
  [[nodiscard]] virtual std::uint64_t own_clock() const = 0;
  /// Whose memory its buffers are, if the device of the node's copy cannot reach it; null: it can.
  [[nodiscard]] virtual const Device* elsewhere() const { return nullptr; }
  /// Its session stands.
  [[nodiscard]] virtual bool is_attached() const = 0;
  /// Its model has still to be taken over, here or by a later daemon.
  [[nodiscard]] bool joins() const { return joins_; }
  void set_joined() { joins_ = false; }
  /// Clients of the job that there were here, itself included, when a daemon last told it; 0: none has.
  [[nodiscard]] std::uint32_t were() const { return were_; }

  // --- words
  /// As the daemon stored or accepted it.
  [[nodiscard]] const FragmentParts& word(std::uint32_t f) const { return words_[f]; }
  [[nodiscard]] std::uint32_t fragment_count() const { return static_cast<std::uint32_t>(words_.size()); }
  /// The client has the fragment.
  [[nodiscard]] bool due(std::uint32_t f) const { return words_[f].with_client; }
  [[nodiscard]] std::vector<bool> due_fragments() const;
  /// The client has served a fragment that was due.
  void accept(std::uint32_t f);
  /// What accept() will make of the word: nothing else may follow it.
  [[nodiscard]] FragmentParts expected(std::uint32_t f) const;
  /// Takes a fragment back that is due. False: the client has begun to serve it.
  [[nodiscard]] bool recall(std::uint32_t f);
  /// Only while the daemon owns the word. tell_due() afterwards.
  void store(std::uint32_t f, const FragmentParts& word);
  void tell_due();

  // --- receipts
  /// Its memory is the node's copy `number`, and goes on alone.
  void note_alone(std::uint32_t f, std::uint64_t number);
  /// Its publication is in copy `number`, which it is to be handed, or to take over: `replaces`. Noted again before it
  /// was handed any, it is the first that counts.
  void note_copy(std::uint32_t f, std::uint64_t number, bool replaces);
  /// Its publication is in no copy yet, and is to go into copy `number`.
  void note_untaken(std::uint32_t f, std::uint64_t number);
  /// Nothing of it could be read or written: its publication is not in that copy after all.
  void note_out_of_reach(std::uint32_t f);
  /// The largest number in any receipt of the fragment.
  [[nodiscard]] std::uint64_t last_noted(std::uint32_t f) const;
  [[nodiscard]] Standing standing(std::uint32_t f) const;

  // --- its part in a mean
  /// Where its part is: the daemon owns the word.
  [[nodiscard]] ClientFragment part_of(std::uint32_t f, const LocalGroup::Part& part) const;
  /// Hands the fragment over, with the correction that was written where part_of() said: copy `number`.
  void offer(std::uint32_t f, const LocalGroup::Part& part, const LocalMeanTask::Outcome& outcome,
             std::uint64_t number);

 protected:
  Member() = default;
  /// As the client's memory is found. `joins`: its model is none yet, whatever the words say.
  void begin(std::vector<FragmentParts> words, bool joins, std::uint32_t were);

  virtual void store_word(std::uint32_t f, const FragmentParts& word) = 0;
  /// Makes `owned` of a word that is `due`. False: the client has begun to serve the fragment.
  virtual bool recall_word(std::uint32_t f, const FragmentParts& due, const FragmentParts& owned) = 0;
  /// None: the memory has none about the publication of this generation.
  [[nodiscard]] virtual std::optional<CopyReceipt> receipt(std::uint32_t f, std::uint32_t generation) const = 0;
  /// It takes the place of that two generations before.
  virtual void store_receipt(std::uint32_t f, const CopyReceipt& receipt) = 0;
  [[nodiscard]] virtual float* buffer(std::uint32_t f, std::uint8_t index) const = 0;
  /// Tells the client that fragments have become due.
  virtual void raise_due() = 0;

 private:
  std::vector<FragmentParts> words_;
  std::vector<bool> was_corrected_;  // fragments whose last publication came after a correction was added
  std::uint32_t were_ = 0;
  bool due_stored_ = false;
  bool joins_ = true;
};

}  // namespace gossamer::gossip
