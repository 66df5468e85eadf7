#include "daemon/jobs/job_client.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::daemon {

namespace {

/// The parts of a word as gossip/ names them.
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

}  // namespace

JobClient::JobClient(std::shared_ptr<ClientSession> session, TimeUs now_us)
    : session_(std::move(session)),
      words_found_(memory().load_words()),
      published_us_(now_us),
      time_taken_at_us_(now_us),
      serving_ns_then_(memory().serving_ns()),
      process_serving_ns_then_(session_->process_serving_ns()),
      stepped_us_(now_us),
      steps_then_(memory().steps()),
      clock_then_(memory().clock()) {
  std::vector<gossip::FragmentParts> words;
  for (const std::uint64_t bits : words_found_)
    words.push_back(parts_of(layout::Word::unpack(bits)));
  begin(std::move(words), !session_->resume() || memory().state() == layout::RunState::joining, memory().place().count);
}

const gossip::Device* JobClient::elsewhere() const {
  return home_ == nullptr || memory().reached_by(*home_) ? nullptr : &memory().device();
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

void JobClient::store_finish_answer(const gossip::EndAnswer& answer) {
  memory().set_finish_answer({.number = answer.number,
                              .members = answer.members,
                              .agreed = answer.agreed,
                              .saver = answer.saver,
                              .spoiled = answer.spoiled},
                             answer.distance, answer.clock);
}

JobClient::Served JobClient::look(std::uint32_t f, TimeUs now_us) {
  const layout::Word now = memory().load_word(f);
  if (now.valid() && now.with_client) return Served::not_yet;
  if (now.pack() != word_of(expected(f)).pack()) return Served::breach;
  accept(f);
  published_us_ = now_us;
  return Served::yes;
}

void JobClient::store_word(std::uint32_t f, const gossip::FragmentParts& word) {
  memory().store_word(f, word_of(word));
}

bool JobClient::recall_word(std::uint32_t f, const gossip::FragmentParts& due, const gossip::FragmentParts& owned) {
  return memory().recall_word(f, word_of(due), word_of(owned));
}

void JobClient::look_at_steps(TimeUs now_us) {
  // The client may write any number: at worst its own gossip slows to the longest period.
  const ClientMemory::Steps steps = memory().steps();
  const ClientMemory::Steps then = std::exchange(steps_then_, steps);
  const std::uint64_t clock = memory().clock();
  const std::uint64_t clock_then = std::exchange(clock_then_, clock);
  if (steps.trained > then.trained && clock > clock_then)
    step_.trained(static_cast<double>(clock - clock_then), static_cast<double>(steps.trained - then.trained));
  if (steps.all > then.all) {
    step_.us = (now_us - stepped_us_) / static_cast<TimeUs>(std::min<std::uint64_t>(steps.all - then.all, us_per_s));
    stepped_us_ = now_us;
  }
}

TimeUs JobClient::take_time_taken(TimeUs now_us) {
  look_at_steps(now_us);
  const TimeUs elapsed_us = now_us - std::exchange(time_taken_at_us_, now_us);
  const std::uint64_t now_ns = memory().serving_ns();
  const std::uint64_t then_ns = std::exchange(serving_ns_then_, now_ns);
  std::uint64_t& of_process_ns = session_->process_serving_ns();
  of_process_ns += now_ns - std::min(now_ns, then_ns);
  const std::uint64_t taken_us = (of_process_ns - std::exchange(process_serving_ns_then_, of_process_ns)) / 1'000;
  return static_cast<TimeUs>(std::min(taken_us, static_cast<std::uint64_t>(std::max<TimeUs>(elapsed_us, 0))));
}

}  // namespace gossamer::daemon
