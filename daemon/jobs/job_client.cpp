#include "daemon/jobs/job_client.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::daemon {

gossip::FragmentParts parts_of(const layout::Word& word) {
  return {.generation = word.generation,
          .publication = word.publication,
          .correction = word.correction,
          .commits = word.commits,
          .correction_valid = word.correction_valid,
          .replace = word.replace,
          .with_client = word.with_client,
          .empty = word.empty};
}

layout::Word word_of(const gossip::FragmentParts& parts) {
  return {.generation = parts.generation,
          .publication = parts.publication,
          .correction = parts.correction,
          .correction_valid = parts.correction_valid,
          .replace = parts.replace,
          .with_client = parts.with_client,
          .empty = parts.empty,
          .commits = parts.commits};
}

JobClient::JobClient(std::shared_ptr<ClientSession> session, TimeUs now_us)
    : session_(std::move(session)),
      words_(memory().load_words()),
      was_corrected_(memory().fragment_count()),
      were_(std::min<std::uint32_t>(memory().place().count, gossip::LocalGroup::max_clients)),
      published_us_(now_us),
      time_taken_at_us_(now_us),
      serving_ns_then_(memory().serving_ns()),
      stepped_us_(now_us),
      steps_then_(memory().steps()) {
  // A model that a daemon was taking over when it died is no model.
  const bool replaces =
      std::any_of(words_.begin(), words_.end(), [](std::uint64_t bits) { return layout::Word::unpack(bits).replace; });
  joins_ = !session_->resume() || replaces || memory().state() == layout::RunState::joining;
  for (std::uint32_t f = 0; f < words_.size(); ++f) {
    const auto before = memory().receipt(f, word(f).generation - 1);
    was_corrected_[f] = before && before->mark.corrected;
  }
}

bool JobClient::is_holder(const NodeMemory& kept) const {
  if (kept.holder() == 0 || kept.holder() == memory().inode()) return true;
  for (std::uint32_t f = 0; f < memory().fragment_count(); ++f) {
    if (!kept.copy(f)) return false;
  }
  return true;
}

void JobClient::take_cursor(std::span<const std::byte> cursor) {
  own_cursor_then_ = memory().own_cursor_number();
  memory().set_job_cursor(cursor);
}

void JobClient::tell_members(const std::vector<NodeId>& members) {
  if (members == members_told_) return;
  memory().set_members(members);
  members_told_ = members;
}

bool JobClient::look_at_finishing() {
  const std::uint32_t before = std::exchange(finishing_, memory().finishing());
  if (finishing_ == 0) spoiled_ = 0;
  return before != finishing_;
}

void JobClient::answer_finishing(const layout::FinishAnswer& answer, double distance) {
  if (agreed_ == answer.number) return;
  if (answer.agreed) agreed_ = answer.number;
  if (answer.spoiled) spoiled_ = answer.number;
  memory().set_finish_answer(answer, distance);
}

std::vector<bool> JobClient::due_fragments() const {
  std::vector<bool> fragments(words_.size());
  for (std::uint32_t f = 0; f < words_.size(); ++f)
    fragments[f] = due(f);
  return fragments;
}

JobClient::Served JobClient::look(std::uint32_t f, TimeUs now_us) {
  const layout::Word before = word(f);
  const layout::Word now = memory().load_word(f);
  if (now.valid() && now.with_client) return Served::not_yet;
  const layout::Word expected{.generation = before.generation + 1,
                              .publication = before.spare(),
                              .correction = before.correction,
                              .commits = before.commits};
  if (now.pack() != expected.pack()) return Served::breach;
  words_[f] = expected.pack();
  was_corrected_[f] = before.correction_valid && !before.replace;
  published_us_ = now_us;
  return Served::yes;
}

bool JobClient::recall(std::uint32_t f) {
  const layout::Word due = word(f);
  layout::Word owned = due;
  owned.with_client = false;
  if (!memory().recall_word(f, due, owned)) return false;
  words_[f] = owned.pack();
  return true;
}

void JobClient::store(std::uint32_t f, const layout::Word& word) {
  words_[f] = word.pack();
  memory().store_word(f, word);
  due_stored_ = due_stored_ || word.with_client;
}

void JobClient::note_alone(std::uint32_t f, std::uint64_t number) {
  memory().store_receipt(f, {.number = number, .mark = {.generation = word(f).generation, .alone = true}});
}

void JobClient::note_copy(std::uint32_t f, std::uint64_t number, bool replaces, bool overwritten) {
  const layout::Word own = word(f);
  // What was written over once stays so until the client publishes anew.
  const auto before = memory().receipt(f, own.generation);
  overwritten = overwritten || (before && before->mark.overwritten && !own.with_client);
  // Copies from the first on contain its publication, and somebody may have been handed that one.
  if (before && before->number > 0 && !before->mark.alone && !own.with_client)
    number = std::min(number, before->number);
  memory().store_receipt(f, {.number = number,
                             .mark = {.generation = own.generation,
                                      .corrected = own.with_client && own.correction_valid && !own.replace,
                                      .overwritten = overwritten,
                                      .replaced = replaces}});
}

void JobClient::note_untaken(std::uint32_t f, std::uint64_t number) {
  memory().store_receipt(f, {.number = number, .mark = {.generation = word(f).generation}});
}

void JobClient::note_out_of_reach(std::uint32_t f) {
  auto noted = memory().receipt(f, word(f).generation);
  if (!noted) return;
  noted->number = 0;
  noted->mark.overwritten = noted->mark.replaced = false;
  memory().store_receipt(f, *noted);
}

std::uint64_t JobClient::last_noted(std::uint32_t f) const {
  std::uint64_t last = 0;
  for (const std::uint32_t generation : {word(f).generation, word(f).generation - 1}) {
    if (const auto receipt = memory().receipt(f, generation)) last = std::max(last, receipt->number);
  }
  return last;
}

gossip::Standing JobClient::standing(std::uint32_t f) const {
  using Kind = gossip::Standing::Kind;
  const layout::Word own = word(f);
  const auto now = memory().receipt(f, own.generation);
  const auto before = memory().receipt(f, own.generation - 1);
  if (own.with_client) return now ? gossip::Standing{.kind = Kind::holds, .number = now->number} : gossip::Standing{};
  if (now && now->mark.alone) return {.kind = Kind::alone, .number = now->number};
  if (own.correction_valid || (before && before->mark.alone)) {
    // Of a copy that its publication is only to go into, it does not have the rest.
    const bool noted = now && now->number > 0;
    return {.kind = Kind::alone, .number = noted ? now->number - 1 : before ? before->number : 0};
  }
  if (!before) return {};
  return {.kind = Kind::moved,
          .number = before->number,
          .into = before->mark.replaced ? before->number
                  : now                 ? now->number
                                        : 0,  // it published what it was given
          .overwritten = now && now->mark.overwritten};
}

gossip::FragmentView JobClient::copy(std::uint32_t f, bool publication) const {
  const layout::Word own = word(f);
  const auto buffer = [&](std::uint8_t index) { return memory().buffer(f, index); };
  if (publication) return {.publication = buffer(own.publication)};
  if (standing(f).kind == gossip::Standing::Kind::moved) {
    const auto before = memory().receipt(f, own.generation - 1);
    if (before && before->mark.replaced) return {.publication = buffer(own.publication)};  // as it was given
    const bool corrected = before && before->mark.corrected;
    return {.publication = buffer(own.spare()), .correction = corrected ? buffer(own.correction) : nullptr};
  }
  return {.publication = buffer(own.publication),
          .correction = own.correction_valid ? buffer(own.correction) : nullptr};
}

gossip::ClientFragment JobClient::progress_since(std::uint32_t f, const gossip::FragmentView& copy,
                                                 float weight) const {
  return {.snapshot = memory().buffer(f, word(f).publication),
          .base = copy.publication,
          .base_correction = copy.correction,
          .take = gossip::Take::progress,
          .weight = weight};
}

void JobClient::tell_due() {
  if (std::exchange(due_stored_, false)) memory().raise_due();
}

gossip::ClientFragment JobClient::part_of(std::uint32_t f, const gossip::LocalGroup::Part& part) const {
  const layout::Word own = word(f);
  const auto buffer = [&](std::uint8_t index) { return memory().buffer(f, index); };
  gossip::ClientFragment fragment{
      .snapshot = buffer(own.publication), .take = part.take, .weight = part.weight, .replace = part.replace};
  if (part.take == gossip::Take::progress) {
    // What it published before, and was given then, stays where it was until the next correction is written.
    fragment.base = buffer(own.spare());
    fragment.base_correction = was_corrected_[f] ? buffer(own.correction) : nullptr;
  }
  if (part.offer) fragment.correction = buffer(own.spare());
  return fragment;
}

void JobClient::offer(std::uint32_t f, const gossip::LocalGroup::Part& part,
                      const gossip::LocalMeanTask::Outcome& outcome, std::uint64_t number) {
  layout::Word next = word(f);
  const bool written = outcome.differs;
  if (written) next.correction = next.spare();
  next.correction_valid = written;
  next.replace = written && part.replace;
  next.with_client = true;
  if (auto noted = memory().receipt(f, next.generation)) {
    noted->mark.corrected = written && !part.replace;
    noted->number = outcome.finite ? number : 0;  // else it is not given the copy
    memory().store_receipt(f, *noted);
  }
  store(f, next);
}

TimeUs JobClient::take_time_taken(TimeUs now_us) {
  const TimeUs elapsed_us = now_us - std::exchange(time_taken_at_us_, now_us);
  const std::uint64_t now_ns = memory().serving_ns();
  const std::uint64_t then_ns = std::exchange(serving_ns_then_, now_ns);
  // The client may write what it likes: it can only slow its own gossip down, to the longest period.
  if (const std::uint64_t steps = memory().steps(); steps > steps_then_) {
    step_us_ = (now_us - stepped_us_) / static_cast<TimeUs>(std::min<std::uint64_t>(steps - steps_then_, us_per_s));
    stepped_us_ = now_us;
    steps_then_ = steps;
  }
  const std::uint64_t taken_us = (now_ns - std::min(now_ns, then_ns)) / 1'000;
  return static_cast<TimeUs>(std::min(taken_us, static_cast<std::uint64_t>(std::max<TimeUs>(elapsed_us, 0))));
}

}  // namespace gossamer::daemon
