#include "gossip/replica/executor.hpp"

#include "gossip/overloaded.hpp"

namespace gossamer::gossip {

namespace {

/// Arguments for ReplicaHost::over(). `done`: an exchange took place. `commit`: something was committed.
struct Outcomes {
  bool done = false;
  bool commit = false;
};
Outcomes outcomes_of(const Finished& result) {
  if (const auto* answered = std::get_if<AnswerTask::Result>(&result))
    return {answered->reply.status == ReplyStatus::done, answered->commit};
  if (const auto* concluded = std::get_if<ConcludeTask::Result>(&result))
    return {concluded->accepted, concluded->commit};
  if (const auto* undone = std::get_if<UndoTask::Result>(&result)) return {undone->commit, undone->commit};
  if (const auto* outer = std::get_if<OuterTask::Result>(&result)) return {outer->commit, outer->commit};
  return {};
}

/// Reads y into the host's memory. None: y is not finite, or its device failed.
std::optional<std::vector<float>> read(const HeldFragment& fragment) {
  std::vector<float> values(fragment.buffers.block_count() * block_elements);
  if (!fragment.device.read(fragment.buffers.y(), fragment.buffers.block_count(), values)) return std::nullopt;
  return values;
}

}  // namespace

void Executor::perform(Actions& actions) {
  store(actions);
  for (const std::uint32_t f : actions.due)
    memory_.store_parts(f, replica_.buffers(f));
  memory_.tell_due();
  for (Actions::Run& run : actions.run)
    begin(std::move(run));
  for (const Actions::Send& send : actions.send) {
    if (!host_.send_message(send.to, send.message)) replica_.send_failed(send.to, send.message, host_.replica_now_us());
  }
#ifndef NDEBUG
  replica_.check_invariants();
#endif
  host_.turned();
  for (const std::uint32_t f : actions.recall)
    recall(f);
}

/// Thanks to the order of the stores, a successor can tell what counts, at whatever moment this daemon dies.
void Executor::store(Actions& actions) {
  for (const std::uint64_t counter : replica_.book().take_given_up())
    memory_.store_given_up(counter);
  for (const Actions::Store& commit : std::exchange(actions.store, {})) {
    const FragmentBuffers& buffers = replica_.buffers(commit.fragment);
    const std::uint32_t commits = buffers.parts().commits;
    if (commit.answered && records_.contains(*commit.answered)) memory_.seal_record(*commit.answered, commits);
    if (commit.undone && records_.contains(*commit.undone)) memory_.note_undone(*commit.undone, commits);
    memory_.store_own_halves(commit.fragment, replica_.fragments()[commit.fragment].own_halves);
    memory_.store_parts(commit.fragment, buffers);
  }
  for (const std::uint32_t place : replica_.book().replies().take_left()) {
    if (records_.erase(place) > 0) memory_.clear_record(place);
  }
}

void Executor::recall(std::uint32_t f) {
  if (!replica_.buffers(f).out_of_hand()) return;
  const bool done = memory_.recall(f);
  decide([&](Actions& out) { replica_.recalled(f, done, host_.replica_now_us(), out); });
}

void Executor::finish(std::uint32_t f, Finished&& result, Actions& out) {
  const Outcomes outcomes = outcomes_of(result);
  replica_.finished(f, std::move(result), host_.replica_now_us(), out);
  store(out);
  host_.over(f, outcomes.done, outcomes.commit);
}

// --- work ---------------------------------------------------------------------------------------------------------

void Executor::begin(Actions::Run&& run) {
  host_.begun(run);
  const std::uint32_t f = run.fragment;
  std::visit(Overloaded{
                 [&](EncodeTask& task) { compute(f, std::move(task)); },
                 [&](ConcludeTask& task) { compute(f, std::move(task)); },
                 [&](UndoTask& task) { compute(f, std::move(task)); },
                 [&](const OuterTask& task) { compute(f, task); },
                 [&](LookTask task) { compute(f, task); },
                 [&](Actions::Answer& answered) { answer(f, std::move(answered)); },
                 [&](const Actions::Snapshot& snapshot) { give(f, snapshot.to); },
                 [&](Actions::Provide) { provide(f); },
                 [&](Actions::Vacate) { vacate(f); },
                 [&](Actions::Gather) { group_->gather(f); },
                 [&](Actions::Offer) { group_->offer(f); },
                 [&](Actions::TakeIn) { group_->take_in(f); },
             },
             run.work);
}

template <class Computed>
void Executor::compute(std::uint32_t f, Computed task) {
  work(
      f, [task = std::move(task)](HeldFragment fragment) mutable { return std::move(task).run(fragment); },
      [this, f](typename Computed::Result&& result, Actions& out) { finish(f, std::move(result), out); });
}

void Executor::answer(std::uint32_t f, Actions::Answer&& answer) {
  struct Answered {
    AnswerTask::Result result;
    bool recorded = false;
  };
  const std::uint32_t place = answer.place;
  work(
      f,
      [answer = std::move(answer), &memory = memory_](HeldFragment fragment) mutable {
        Answered answered{.result = std::move(answer.task).run(fragment)};
        const AnswerTask::Result& result = answered.result;
        if (result.commit) answered.recorded = memory.write_record(answer.place, answer.to, result.reply, result.half);
        return answered;
      },
      [this, f, place](Answered&& answered, Actions& out) {
        if (answered.recorded) records_.insert(place);
        finish(f, std::move(answered.result), out);
      });
}

void Executor::give(std::uint32_t f, const NodeId& to) {
  if (to == replica_.self()) return keep_copy(f);
  work(
      f,
      [f, job = replica_.own_info().job, &host = host_](HeldFragment fragment) {
        PullReply reply{.job = job, .fragment = f};
        auto values = read(fragment);
        if (!values) {
          reply.reason = RefuseReason::quarantined;
          return reply;
        }
        reply.hash = host.hash_of(*values);
        reply.values = Bytes::adopt(*std::move(values));
        return reply;
      },
      [this, f, to](PullReply&& reply, Actions& out) {
        host_.complete(reply);
        out.send.push_back({to, std::move(reply)});
        finish(f, Done{}, out);
      });
}

void Executor::keep_copy(std::uint32_t f) {
  const std::uint64_t clock = replica_.fragments()[f].publication_clock;
  work(f, read, [this, f, clock](std::optional<std::vector<float>>&& values, Actions& out) {
    finish(f, Done{}, out);
    host_.copied(f, std::move(values), clock);
  });
}

// --- lean memory --------------------------------------------------------------------------------------------------

void Executor::provide(std::uint32_t f) {
  work(
      f, [f, &memory = memory_](HeldFragment) { return memory.provide(f); },
      [this, f](int error, Actions& out) {
        if (error != 0) host_.lacks_memory(error);
        finish(f, Provided{.there = error == 0}, out);
      });
}

/// The parts are stored first. If the daemon dies in between, the next one gives the memory back.
void Executor::vacate(std::uint32_t f) {
  memory_.store_parts(f, replica_.buffers(f));
  work(
      f,
      [f, &memory = memory_](HeldFragment) {
        memory.vacate(f);
        return Done{};
      },
      [this, f](Done done, Actions& out) { finish(f, done, out); });
}

}  // namespace gossamer::gossip
