// One client of a job at a node: its fragments' parts as the daemon knows them, and the notes about its publications.
//
// The words, receipts and buffers are in the client's memory, behind the protected functions: shared memory for the
// daemon's clients (daemon/jobs/job_client.hpp), vectors for the simulator's. Everything runs on the replica's thread
// except the arithmetic over the floats that part_of() names. Invariants: a word is stored only while the daemon owns
// it; a word from the client is accepted only if it is the one that must follow.

#pragma once

#include <optional>
#include <vector>

#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/group/local_group.hpp"
#include "gossip/group/receipts.hpp"

namespace gossamer::gossip {

/// The answer to a client that has asked to finish.
struct EndAnswer {
  std::uint32_t number = 0;   ///< the request's number
  std::uint16_t members = 0;  ///< replicas in reach that finish, with this one
  bool agreed = false;        ///< all replicas in reach finish and agree
  bool saver = false;         ///< it is the one to save the model
  bool spoiled = false;       ///< its model holds NaN or infinity, so the others finish without it
  double distance = 0;        ///< FinishReport::distance
  std::uint64_t clock = 0;    ///< FinishReport::clock
};

class Member {
 public:
  virtual ~Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Names the client; never reused.
  [[nodiscard]] virtual LocalGroup::ClientId number() const = 0;
  /// Samples that its program has trained since its start.
  [[nodiscard]] virtual std::uint64_t own_clock() const = 0;
  /// Samples that its model has seen.
  [[nodiscard]] virtual std::uint64_t clock() const = 0;
  /// own_clock() when it last published the fragment.
  [[nodiscard]] virtual std::uint64_t published_at(std::uint32_t f) const = 0;
  /// True if nobody trains with this client: it holds the model for others.
  [[nodiscard]] virtual bool keeps() const { return false; }
  /// The device of its buffers, if the device of the node's copy cannot reach them. Null: it can.
  [[nodiscard]] virtual const Device* elsewhere() const { return nullptr; }
  /// True while its session is connected.
  [[nodiscard]] virtual bool is_attached() const = 0;
  /// True if the client has still to take its model over, under this daemon or a later one.
  [[nodiscard]] bool joins() const { return joins_; }
  void set_joined() { joins_ = false; }
  /// How many clients the job had here, this one included, when a daemon last told it; 0: no daemon has.
  [[nodiscard]] std::uint32_t were() const { return were_; }

  // --- the end
  /// Reads whether the program has stopped training; true if that has changed.
  bool look_at_finishing();
  /// The number of the request to finish; 0: the program trains.
  [[nodiscard]] std::uint32_t finishing() const { return finishing_; }
  /// Does nothing once the client has been told that all agree.
  void answer_finishing(const EndAnswer& answer);
  /// True if the client trains, or if it has stopped and been told that its model is not finite.
  [[nodiscard]] bool waits_for_nothing() const { return finishing_ == spoiled_; }
  /// True if the run is over for the client: its program may never look again.
  [[nodiscard]] bool has_finished() const { return finishing_ != 0 && finishing_ == agreed_; }

  // --- words
  /// The word as the daemon last stored or accepted it.
  [[nodiscard]] const FragmentParts& word(std::uint32_t f) const { return words_[f]; }
  [[nodiscard]] std::uint32_t fragment_count() const { return static_cast<std::uint32_t>(words_.size()); }
  /// True if the client has the fragment.
  [[nodiscard]] bool due(std::uint32_t f) const { return words_[f].with_client; }
  [[nodiscard]] std::vector<bool> due_fragments() const;
  /// Accepts that the client has served a due fragment.
  void accept(std::uint32_t f);
  /// The word that accept() will store. No other word may follow.
  [[nodiscard]] FragmentParts expected(std::uint32_t f) const;
  /// Takes a due fragment back. False: the client has begun to serve it.
  [[nodiscard]] bool recall(std::uint32_t f);
  /// Allowed only while the daemon owns the word. Call tell_due() afterwards.
  void store(std::uint32_t f, const FragmentParts& word);
  void tell_due();

  // --- receipts
  /// Notes that the client's memory is copy `number`, and from now on the only copy.
  void note_alone(std::uint32_t f, std::uint64_t number);
  /// Notes that copy `number` contains the client's publication. `replaces`: the client is to take that copy over;
  /// otherwise it is given a correction to it. If this is noted again before the client was given a copy, the first
  /// number counts.
  void note_copy(std::uint32_t f, std::uint64_t number, bool replaces);
  /// Notes that no copy contains its publication yet, and that copy `number` is to contain it.
  void note_untaken(std::uint32_t f, std::uint64_t number);
  /// Notes that its memory was out of reach, so that the copy does not contain its publication after all.
  void note_out_of_reach(std::uint32_t f);
  /// The largest number in any receipt of the fragment.
  [[nodiscard]] std::uint64_t last_noted(std::uint32_t f) const;
  [[nodiscard]] Standing standing(std::uint32_t f) const;

  // --- its part in a mean
  /// Names its part in a mean. Allowed while the daemon owns the word.
  [[nodiscard]] ClientFragment part_of(std::uint32_t f, const LocalGroup::Part& part) const;
  /// Offers the fragment, with the correction that was written where part_of() said. It belongs to copy `number`.
  void offer(std::uint32_t f, const LocalGroup::Part& part, const LocalMeanTask::Outcome& outcome,
             std::uint64_t number);

 protected:
  Member() = default;
  /// Sets the state found in the client's memory. `joins`: its model is not yet complete, whatever the words say.
  void begin(std::vector<FragmentParts> words, bool joins, std::uint32_t were);

  virtual void store_word(std::uint32_t f, const FragmentParts& word) = 0;
  /// Replaces the word `due` by `owned`. False: the client has begun to serve the fragment.
  virtual bool recall_word(std::uint32_t f, const FragmentParts& due, const FragmentParts& owned) = 0;
  /// The receipt for the publication of this generation; none: the memory has none.
  [[nodiscard]] virtual std::optional<CopyReceipt> receipt(std::uint32_t f, std::uint32_t generation) const = 0;
  /// Stores the receipt in the place of the receipt two generations before.
  virtual void store_receipt(std::uint32_t f, const CopyReceipt& receipt) = 0;
  [[nodiscard]] virtual float* buffer(std::uint32_t f, std::uint8_t index) const = 0;
  /// Tells the client that fragments have become due.
  virtual void raise_due() = 0;
  /// The number of its program's request to finish; 0: it trains.
  [[nodiscard]] virtual std::uint32_t finishing_asked() const = 0;
  virtual void store_finish_answer(const EndAnswer& answer) = 0;
  /// The number of the last request to finish, if it was answered "agreed", perhaps by an earlier daemon; 0: it was
  /// not.
  [[nodiscard]] virtual std::uint32_t finish_agreed() const = 0;

 private:
  std::vector<FragmentParts> words_;
  std::vector<bool> was_corrected_;  // fragments whose last publication came after a correction was added
  std::uint32_t were_ = 0;
  bool due_stored_ = false;
  bool joins_ = true;
  std::uint32_t finishing_ = 0;
  std::uint32_t agreed_ = 0;   // the request that was answered "agreed"
  std::uint32_t spoiled_ = 0;  // the request that was answered "spoiled"
};

}  // namespace gossamer::gossip
