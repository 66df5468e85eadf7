#include "gossip/group/member.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::gossip {

void Member::begin(std::vector<FragmentParts> words, bool joins, std::uint32_t were) {
  words_ = std::move(words);
  were_ = std::min<std::uint32_t>(were, LocalGroup::max_clients);
  // A model that a daemon was still taking over when it died is incomplete.
  joins_ = joins || std::ranges::any_of(words_, &FragmentParts::replace);
  was_corrected_.resize(words_.size());
  for (std::uint32_t f = 0; f < words_.size(); ++f) {
    const auto before = receipt(f, words_[f].generation - 1);
    was_corrected_[f] = before && before->corrected;
  }
}

// --- the end ------------------------------------------------------------------------------------------------------

bool Member::look_at_finishing() {
  const std::uint32_t before = std::exchange(finishing_, finishing_asked());
  if (finishing_ == 0) spoiled_ = 0;
  if (before == 0 && finish_agreed() == finishing_) agreed_ = finishing_;
  return before != finishing_;
}

void Member::answer_finishing(const EndAnswer& answer) {
  if (agreed_ == answer.number) return;
  if (answer.agreed) agreed_ = answer.number;
  if (answer.spoiled) spoiled_ = answer.number;
  store_finish_answer(answer);
}

// --- words --------------------------------------------------------------------------------------------------------

std::vector<bool> Member::due_fragments() const {
  std::vector<bool> fragments(words_.size());
  for (std::uint32_t f = 0; f < words_.size(); ++f)
    fragments[f] = due(f);
  return fragments;
}

FragmentParts Member::expected(std::uint32_t f) const {
  const FragmentParts& before = words_[f];
  return {.generation = before.generation + 1,
          .publication = before.spare(),
          .correction = before.correction,
          .commits = before.commits};
}

void Member::accept(std::uint32_t f) {
  was_corrected_[f] = words_[f].correction_valid && !words_[f].replace;
  words_[f] = expected(f);
}

bool Member::recall(std::uint32_t f) {
  FragmentParts owned = words_[f];
  owned.with_client = false;
  if (!recall_word(f, words_[f], owned)) return false;
  words_[f] = owned;
  return true;
}

void Member::store(std::uint32_t f, const FragmentParts& word) {
  words_[f] = word;
  store_word(f, word);
  due_stored_ = due_stored_ || word.with_client;
}

void Member::tell_due() {
  if (std::exchange(due_stored_, false)) raise_due();
}

// --- receipts -----------------------------------------------------------------------------------------------------

void Member::note_alone(std::uint32_t f, std::uint64_t number) {
  store_receipt(f, {.generation = words_[f].generation, .number = number, .alone = true});
}

void Member::note_copy(std::uint32_t f, std::uint64_t number, bool replaces) {
  const FragmentParts& own = words_[f];
  const auto before = receipt(f, own.generation);
  // If this publication was noted before with a smaller number, that number stays: copies from that number on contain
  // the publication, and a client may hold such a copy.
  if (before && before->number > 0 && !before->alone && !own.with_client) number = std::min(number, before->number);
  store_receipt(f, {.generation = own.generation,
                    .number = number,
                    .corrected = own.with_client && own.correction_valid && !own.replace,
                    .replaced = replaces});
}

void Member::note_untaken(std::uint32_t f, std::uint64_t number) {
  store_receipt(f, {.generation = words_[f].generation, .number = number});
}

void Member::note_out_of_reach(std::uint32_t f) {
  auto noted = receipt(f, words_[f].generation);
  if (!noted) return;
  noted->number = 0;
  noted->replaced = false;
  store_receipt(f, *noted);
}

std::uint64_t Member::last_noted(std::uint32_t f) const {
  std::uint64_t last = 0;
  for (const std::uint32_t generation : {words_[f].generation, words_[f].generation - 1}) {
    if (const auto noted = receipt(f, generation)) last = std::max(last, noted->number);
  }
  return last;
}

Standing Member::standing(std::uint32_t f) const {
  using Kind = Standing::Kind;
  const FragmentParts& own = words_[f];
  const auto now = receipt(f, own.generation);
  const auto before = receipt(f, own.generation - 1);
  if (own.with_client) return now ? Standing{.kind = Kind::holds, .number = now->number} : Standing{};
  if (now && now->alone) return {.kind = Kind::alone, .number = now->number};
  if (own.correction_valid || (before && before->alone)) {
    // The client has not received the copy that this publication belongs to, so only the copy before is known.
    const bool noted = now && now->number > 0;
    return {.kind = Kind::alone, .number = noted ? now->number - 1 : before ? before->number : 0};
  }
  if (!before) return {};
  // A client that was given values to take over has published those values.
  return {.kind = Kind::moved,
          .number = before->number,
          .into = before->replaced ? before->number
                  : now            ? now->number
                                   : 0};
}

// --- its part in a mean -------------------------------------------------------------------------------------------

ClientFragment Member::part_of(std::uint32_t f, const LocalGroup::Part& part) const {
  const FragmentParts& own = words_[f];
  ClientFragment fragment{.snapshot = buffer(f, own.publication),
                          .take = part.take,
                          .weight = part.weight,
                          .replace = part.replace,
                          .device = elsewhere()};
  if (part.take == Take::progress) {
    // Its earlier publication and the correction given with it stay in place until the next correction is written.
    fragment.base = buffer(f, own.spare());
    fragment.base_correction = was_corrected_[f] ? buffer(f, own.correction) : nullptr;
  }
  if (part.correct) fragment.correction = buffer(f, own.spare());
  return fragment;
}

void Member::offer(std::uint32_t f, const LocalGroup::Part& part, const LocalMeanTask::Outcome& outcome,
                   std::uint64_t number) {
  FragmentParts next = words_[f];
  const bool written = outcome.differs;
  if (written) next.correction = next.spare();
  next.correction_valid = written;
  next.replace = written && part.replace;
  next.with_client = true;
  if (auto noted = receipt(f, next.generation)) {
    noted->corrected = written && !part.replace;
    noted->number = outcome.finite ? number : 0;  // otherwise it is not given the copy
    store_receipt(f, *noted);
  }
  store(f, next);
}

}  // namespace gossamer::gossip
