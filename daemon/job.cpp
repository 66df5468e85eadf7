#include "daemon/job.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "daemon/config_table.hpp"
#include "gossip/check.hpp"

namespace gossamer::daemon {

namespace {

constexpr TimeUs tell_client_period_us = 100 * us_per_ms;
constexpr TimeUs time_taken_period_us = 1 * us_per_s;
constexpr double bytes_per_mbit = 1e6 / 8;
/// A neighbour that was to be dialled and is neither linked nor failed after this does not hold a newcomer up.
constexpr TimeUs settle_timeout_us = 5 * us_per_s;

gossip::FragmentParts parts_of(const layout::Word& word) {
  return {.generation = word.generation,
          .publication = word.publication,
          .correction = word.correction,
          .correction_valid = word.correction_valid,
          .replace = word.replace,
          .with_client = word.with_client};
}

layout::Word word_of(const gossip::FragmentParts& parts) {
  return {.generation = parts.generation,
          .publication = parts.publication,
          .correction = parts.correction,
          .correction_valid = parts.correction_valid,
          .replace = parts.replace,
          .with_client = parts.with_client};
}

gossip::ReplicaOptions replica_options(const GossipOptions& options) {
  const bool automatic = options.codec == CodecChoice::automatic;
  return {.codec = automatic ? Codec::q8 : static_cast<Codec>(options.codec),
          .adapt_codec = automatic,
          .period_us = options.period_ms * us_per_ms,
          .in_flight = static_cast<std::size_t>(options.in_flight),
          .mixing_budget = static_cast<float>(options.mixing_budget),
          .lifetime_us = options.exchange_lifetime_ms * us_per_ms,
          .range = static_cast<float>(options.range),
          .outer = {.momentum = static_cast<float>(options.outer_momentum),
                    .period_us = options.outer_period_ms * us_per_ms},
          .partners = {.policy = options.partners},
          .bytes_per_s = options.max_mbit_s * bytes_per_mbit,
          .link_bytes_per_s = options.link_max_mbit_s * bytes_per_mbit,
          .time_share = options.time_share,
          .network_share = options.bandwidth_share,
          .clip = static_cast<float>(options.clip)};
}

JobInfo description_of(const ClientMemory& memory) {
  return {.job = memory.key(),
          .name = memory.job(),
          .elements = memory.elements(),
          .fragments = memory.fragment_count(),
          .fragment_elements = memory.fragment_elements()};
}

}  // namespace

std::expected<std::shared_ptr<Job>, AttachRefusal> Job::make(JobHost& host, std::shared_ptr<ClientSession> session,
                                                             const GossipOptions& options,
                                                             gossip::ExchangeCounter& counter, std::uint64_t seed) {
  const ClientMemory& memory = session->memory();
  std::vector<gossip::FragmentBuffers> fragments;
  fragments.reserve(memory.fragment_count());
  for (std::uint32_t f = 0; f < memory.fragment_count(); ++f) {
    const layout::Word word = memory.load_word(f);
    if (!word.valid()) {
      return std::unexpected(AttachRefusal{layout::AttachStatus::bad_layout,
                                           fmt::format("the word of fragment {} makes no sense: the shared memory was "
                                                       "overwritten, or is of another version; start the process anew",
                                                       f)});
    }
    fragments.emplace_back(std::array<float*, 3>{memory.buffer(f, 0), memory.buffer(f, 1), memory.buffer(f, 2)},
                           memory.block_count(f), parts_of(word));
  }
  return std::shared_ptr<Job>(new Job(host, std::move(session), options, counter, seed, std::move(fragments)));
}

Job::Job(JobHost& host, std::shared_ptr<ClientSession> session, const GossipOptions& options,
         gossip::ExchangeCounter& counter, std::uint64_t seed, std::vector<gossip::FragmentBuffers> fragments)
    : host_(host),
      session_(std::move(session)),
      options_(options),
      replica_(replica_options(options), host.id(), description_of(session_->memory()), std::move(fragments), counter,
               gossip::Random(seed)),
      copying_(replica_.fragment_count()),
      mirrored_(replica_.fragment_count()),
      started_us_(host.now_us()) {
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f) {
    mirrored_[f] = word_of(replica_.buffers(f).parts()).pack();
    replica_.outer_state(f).leave_out(session_->memory().statistics(f));
  }
}

void Job::start() {
  const ClientMemory& memory = session_->memory();
  replica_.set_clock(memory.clock_base() + memory.clock());
  session_->memory().set_state(layout::RunState::joining);
  if (!session_->resume()) {
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f)
      blocks.push_back(memory.block_count(f));
    joining_.emplace(gossip::JoiningOptions{}, host_.id(), memory.key(), memory.clock_base() + memory.clock(),
                     std::move(blocks));
  }
  host_.log().info("job {}: process {} {}, {} elements in {} fragments", name(), session_->pid(),
                   session_->resume() ? "is back" : "attached", memory.elements(), memory.fragment_count());
  decide([&](Actions& out) { replica_.set_state(ReplicaState::joining, out); });
  for (const NodeId& node : host_.neighbours())
    link_up(node);
  woken();
  run_if_joined();
}

void Job::set_options(const GossipOptions& options) {
  options_ = options;
  replica_.set_options(replica_options(options));
}

// --- the client ---------------------------------------------------------------------------------------------------

void Job::woken() {
  if (ended_) return;
  const ClientMemory& memory = session_->memory();
  read_clock();
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f) {
    const gossip::FragmentParts& parts = replica_.buffers(f).parts();
    if (!parts.with_client) continue;
    const layout::Word word = memory.load_word(f);
    if (word.valid() && word.with_client) continue;  // still at it
    const layout::Word expected{
        .generation = parts.generation + 1, .publication = parts.spare(), .correction = parts.correction};
    if (word.pack() != expected.pack()) {
      host_.log().error("job {}: process {} broke the shared-memory contract at fragment {}: letting it go", name(),
                        session_->pid(), f);
      session_->close();
      return;
    }
    mirrored_[f] = word.pack();
    decide([&](Actions& out) {
      replica_.published(f, word.generation, memory.clock_base() + memory.publication_clock(f), host_.now_us(), out);
    });
    mirror(f);
  }
  run_if_joined();
}

/// While joining it stands still: newcomers compare their clocks to agree who begins, and must all see the same.
void Job::read_clock() {
  const ClientMemory& memory = session_->memory();
  if (!joining_) replica_.set_clock(memory.clock_base() + memory.clock());
}

void Job::detached() {
  client_gone_ = true;
  host_.log().info("job {}: process {} is gone", name(), session_->pid());
  drain();
}

void Job::drain() {
  joining_.reset();
  session_->memory().set_state(layout::RunState::draining);
  if (replica_.state() == ReplicaState::draining && !replica_.drained()) return;
  decide([&](Actions& out) { replica_.set_state(ReplicaState::draining, out); });
}

void Job::set_drained(bool drained) {
  drained_ = drained;
  if (ended_ || client_gone_) return;
  decide([&](Actions& out) { replica_.set_drained(drained, out); });
}

void Job::leave(TimeUs deadline_us) {
  if (ended_ || leaving_) return;
  leaving_ = true;
  joining_.reset();
  if (!client_gone_) session_->memory().set_state(layout::RunState::draining);
  decide([&](Actions& out) { replica_.leave(host_.now_us(), deadline_us, out); });
}

std::string Job::handover_text() const {
  return fmt::format("handed over {} of {} fragments{}", replica_.fragments_handed_over(), replica_.fragment_count(),
                     replica_.partners() == 0 ? "; nobody else in reach runs the job" : "");
}

bool Job::done() const {
  if (leaving_ && !replica_.handed_over()) return false;
  // Corrections that the client has still to collect are in its own memory; those kept here for it are waited for.
  return replica_.idle() && (client_gone_ || replica_.pending_bytes() == 0);
}

void Job::end() {
  if (!ended_) session_->memory().set_state(layout::RunState::detached);
  ended_ = true;
}

/// Stores a fragment's word if the daemon owns it and its parts have changed, or hands it over.
void Job::mirror(std::uint32_t f) {
  const gossip::FragmentParts& parts = replica_.buffers(f).parts();
  const std::uint64_t bits = word_of(parts).pack();
  const layout::Word mirrored = layout::Word::unpack(mirrored_[f]);
  if (bits == mirrored_[f] || mirrored.with_client) return;
  if (mirrored.generation != parts.generation) return;  // a publication is known that the replica has still to take
  mirrored_[f] = bits;
  session_->memory().store_word(f, word_of(parts));
  due_raised_ = due_raised_ || parts.with_client;
}

// --- carrying out what was decided --------------------------------------------------------------------------------

template <class Feed>
void Job::decide(Feed feed) {
  Actions actions;
  feed(actions);
  perform(actions);
}

void Job::perform(Actions& actions) {
  for (const std::uint32_t f : actions.due)
    mirror(f);
  if (std::exchange(due_raised_, false)) session_->memory().raise_due();
  for (auto& run : actions.encode) {
    work(run.fragment, std::move(run.task),
         [f = run.fragment](Job& job, gossip::EncodeTask::Result&& result, Actions& out) {
           job.replica_.encoded(f, std::move(result), job.host_.now_us(), out);
         });
  }
  for (auto& run : actions.answer) {
    work(run.fragment, std::move(run.task),
         [f = run.fragment, to = run.to](Job& job, gossip::AnswerTask::Result&& result, Actions& out) {
           job.replica_.answered(f, to, std::move(result), job.host_.now_us(), out);
         });
  }
  for (auto& run : actions.conclude) {
    work(run.fragment, std::move(run.task),
         [f = run.fragment](Job& job, gossip::ConcludeTask::Result&& result, Actions& out) {
           job.replica_.concluded(f, std::move(result), job.host_.now_us(), out);
         });
  }
  for (auto& run : actions.outer) {
    work(run.fragment, run.task, [f = run.fragment](Job& job, gossip::OuterTask::Result&& result, Actions& out) {
      job.replica_.outer_done(f, result, job.host_.now_us(), out);
    });
  }
  for (const std::uint32_t f : actions.fold) {
    struct Fold {
      bool run(gossip::HeldFragment fragment) && {
        fragment.buffers.fold();
        return true;
      }
    };
    work(f, Fold{}, [f](Job& job, bool, Actions& out) { job.replica_.folded(f, job.host_.now_us(), out); });
  }
  for (const auto& snapshot : actions.snapshot)
    work_snapshot(snapshot);
  send(actions.send);
}

void Job::send(std::vector<gossip::Replica::Send>& messages) {
  for (const auto& [to, message] : messages) {
    if (!host_.send(to, message)) replica_.send_failed(to, message, host_.now_us());
  }
}

/// Runs a task over a held fragment on a worker; back on the loop, reports its result to the replica.
template <class Task, class Report>
void Job::work(std::uint32_t f, Task task, Report report) {
  const gossip::HeldFragment fragment = replica_.held(f);
  using Result = decltype(std::move(task).run(fragment));
  const bool taken = host_.workers().submit(
      [task = std::move(task), fragment, self = shared_from_this()]() mutable { return std::move(task).run(fragment); },
      [self = shared_from_this(), f, report](Result&& result) {
        if (self->ended_) return;
        self->decide([&](Actions& out) {
          report(*self, std::move(result), out);
          self->mirror(f);
        });
      });
  // At most one task a fragment is under way, and the queue has room for that many.
  GOSSAMER_CHECK(taken);
}

void Job::work_snapshot(const gossip::Replica::Snapshot& snapshot) {
  struct Sum {
    std::uint32_t f;
    JobKey key;
    PullReply run(gossip::HeldFragment fragment) && {
      PullReply reply{.job = key, .fragment = f};
      std::vector<float> values(fragment.buffers.block_count() * block_elements);
      if (!gossip::sum(fragment.buffers.y(), fragment.buffers.block_count(), values.data())) {
        reply.reason = RefuseReason::quarantined;
        return reply;
      }
      reply.hash = XXH3_64bits(values.data(), values.size() * sizeof(float));
      reply.values = Bytes::adopt(std::move(values));
      return reply;
    }
  };
  work(snapshot.fragment, Sum{snapshot.fragment, key()},
       [f = snapshot.fragment, to = snapshot.to](Job& job, PullReply&& reply, Actions& out) {
         const ClientMemory& memory = job.session_->memory();
         reply.clock = memory.clock_base() + memory.clock();
         out.send.push_back({to, std::move(reply)});
         job.replica_.snapshot_taken(f, job.host_.now_us(), out);
       });
}

// --- the overlay --------------------------------------------------------------------------------------------------

void Job::link_up(const NodeId& node) {
  linked_.insert(node);
  decide([&](Actions& out) { replica_.link_up(node, out); });
  decide_joining([&](gossip::Joining::Actions& out) { joining_->link_up(node, host_.now_us(), out); });
}

void Job::link_down(const NodeId& node) {
  linked_.erase(node);
  replica_.link_down(node);
  decide_joining([&](gossip::Joining::Actions& out) { joining_->link_down(node, host_.now_us(), out); });
}

void Job::node_dead(const NodeId& node) {
  decide([&](Actions& out) { replica_.node_dead(node, host_.now_us(), out); });
}

void Job::received(const NodeId& from, Message&& message) {
  const TimeUs now_us = host_.now_us();
  if (auto* info = std::get_if<JobInfo>(&message)) {
    replica_.info(from, *info);
    warn_of_strangers();
    decide_joining([&](gossip::Joining::Actions& out) { joining_->info(from, *info, now_us, out); });
    return;
  }
  if (auto* reply = std::get_if<PullReply>(&message)) return pulled(from, std::move(*reply));
  if (auto* ack = std::get_if<ExchangeAck>(&message)) return replica_.acknowledged(from, *ack);
  decide([&](Actions& out) {
    if (auto* request = std::get_if<ExchangeRequest>(&message)) {
      payload_bytes_received_ += payload_bytes(*request);
      replica_.request(from, std::move(*request), now_us, out);
    } else if (auto* reply = std::get_if<ExchangeReply>(&message)) {
      payload_bytes_received_ += payload_bytes(*reply);
      replica_.reply(from, std::move(*reply), now_us, out);
    } else if (const auto* pull = std::get_if<PullRequest>(&message)) {
      replica_.pull(from, *pull, now_us, out);
    }
  });
}

void Job::warn_of_strangers() {
  const auto& stranger = replica_.layout_stranger();
  if (!stranger || stranger == warned_of_) return;
  warned_of_ = stranger;
  host_.log().warn(
      "job {}: node {} runs a job of this name with another layout, so the two do not gossip: names, shapes, types and "
      "order of the tensors must be the same; start one of them with another job name, or the same model",
      name(), stranger->brief());
}

// --- joining ------------------------------------------------------------------------------------------------------

template <class Feed>
void Job::decide_joining(Feed feed) {
  if (!joining_ || ended_) return;
  gossip::Joining::Actions actions;
  feed(actions);
  for (const auto& ask : actions.ask)
    host_.send(ask.to, ask.message);  // asked again by time if it is lost
  for (const auto& take : actions.take) {
    gossip::FragmentBuffers& buffers = replica_.buffers(take.fragment);
    buffers.finish_replace();
    buffers.hand_over();
    mirror(take.fragment);
    pulled_bytes_ += take.values.size();
  }
  if (std::exchange(due_raised_, false)) session_->memory().raise_due();
  if (actions.take.empty() && !actions.finished) return;
  session_->memory().set_fragments_pulled(joining_->fragments_pulled());
  if (!actions.finished) return;
  const std::uint32_t pulled = joining_->fragments_pulled();
  if (pulled > 0) {
    session_->memory().set_clock_base(joining_->clock());
    host_.log().info("job {}: pulled the model, {} bytes, in {:.2f} s", name(), pulled_bytes_,
                     static_cast<double>(host_.now_us() - started_us_) / us_per_s);
  } else {
    host_.log().info("job {}: begins with this client's model", name());
  }
  joining_.reset();
  run_if_joined();
}

/// Copies the values to where the client will read them, on a worker, and checks them there.
void Job::pulled(const NodeId& from, PullReply&& reply) {
  const std::uint32_t f = reply.fragment;
  if (!joining_ || f >= copying_.size() || copying_[f]) return;
  gossip::FragmentBuffers& buffers = replica_.buffers(f);
  if (buffers.parts().with_client || buffers.parts().replace) return;  // has them already
  const std::size_t size_bytes = buffers.block_count() * block_elements * sizeof(float);
  if (reply.reason != RefuseReason::none || reply.values.size() != size_bytes)
    return finish_pull(from, std::move(reply));
  copying_[f] = true;
  float* target = buffers.begin_replace();
  const Bytes values = reply.values;
  const std::uint64_t hash = reply.hash;
  const bool taken = host_.workers().submit(
      [values, hash, target, blocks = buffers.block_count(), self = shared_from_this()] {
        std::memcpy(target, values.data.data(), values.size());
        const gossip::FragmentView view{.publication = target};
        return XXH3_64bits(target, values.size()) == hash && gossip::sum(view, blocks, target);
      },
      [self = shared_from_this(), from, reply = std::move(reply)](bool good) mutable {
        self->copying_[reply.fragment] = false;
        if (self->ended_) return;
        if (!good) {
          self->host_.log().warn("job {}: node {} sent fragment {} damaged or with NaN: asking another node",
                                 self->name(), from.brief(), reply.fragment);
          reply.reason = RefuseReason::not_finite;
        }
        self->finish_pull(from, std::move(reply));
      });
  GOSSAMER_CHECK(taken);
}

void Job::finish_pull(const NodeId& from, PullReply&& reply) {
  decide_joining([&](gossip::Joining::Actions& out) { joining_->pulled(from, reply, host_.now_us(), out); });
}

bool Job::replaces_pending() {
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f) {
    if (replica_.buffers(f).parts().replace) return true;
  }
  return std::find(copying_.begin(), copying_.end(), true) != copying_.end();
}

/// Runs once the model is agreed on and the client has taken all of it over.
void Job::run_if_joined() {
  if (joining_ || ended_ || replica_.state() != ReplicaState::joining || replaces_pending()) return;
  const ClientMemory& memory = session_->memory();
  replica_.set_clock(memory.clock_base() + memory.clock());
  joined_us_ = host_.now_us();
  decide([&](Actions& out) { replica_.set_state(ReplicaState::running, out); });
  tell_client();
  session_->memory().set_state(layout::RunState::running);
  if (drained_) set_drained(true);
  host_.log().info("job {}: runs, with {} other replicas in reach", name(), replica_.partners());
}

// --- time and status ----------------------------------------------------------------------------------------------

void Job::tick(bool settled) {
  if (ended_) return;
  const TimeUs now_us = host_.now_us();
  read_clock();
  if (joining_) {
    for (const auto& [node, round_trip_us] : host_.round_trips_us())
      joining_->set_round_trip(node, round_trip_us);
  }
  decide_joining([&](gossip::Joining::Actions& out) {
    joining_->tick(settled || now_us - started_us_ > settle_timeout_us, now_us, out);
  });
  measure_time_taken(now_us);
  for (const NodeId& node : linked_)
    replica_.set_link(node, host_.link_load(node));
  decide([&](Actions& out) { replica_.tick(now_us, out); });
  if (now_us - told_client_us_ >= tell_client_period_us) tell_client();
}

/// What share of its time the client says that it spent serving fragments, for the cadence.
void Job::measure_time_taken(TimeUs now_us) {
  const TimeUs elapsed_us = now_us - time_taken_at_us_;
  if (elapsed_us < time_taken_period_us) return;
  const std::uint64_t serving_ns = session_->memory().serving_ns();
  // The client may write what it likes: it can only slow its own gossip down, to the longest period.
  const auto taken_us = static_cast<double>(serving_ns - std::min(serving_ns, serving_ns_then_)) / 1e3;
  replica_.set_time_taken(std::clamp(taken_us / static_cast<double>(elapsed_us), 0.0, 1.0));
  replica_.set_capacity(host_.capacity_bytes_s());
  time_taken_at_us_ = now_us;
  serving_ns_then_ = serving_ns;
}

void Job::tell_client() {
  told_client_us_ = host_.now_us();
  ClientMemory& memory = session_->memory();
  memory.set_global_clock(replica_.global_clock());
  memory.set_neighbours(static_cast<std::uint32_t>(replica_.partners()));
  memory.set_exchanges(replica_.counters().initiated + replica_.counters().answered);
  if (replica_.state() == ReplicaState::running) {
    memory.set_state(replica_.quarantined() > 0 ? layout::RunState::quarantined : layout::RunState::running);
  }
}

JobStatus Job::status() const {
  const ClientMemory& memory = session_->memory();
  const gossip::ReplicaCounters& counters = replica_.counters();
  const std::uint64_t exchanges = counters.initiated + counters.answered;
  const auto mean = [&](double sum) { return exchanges == 0 ? 0.0 : sum / static_cast<double>(exchanges); };
  JobStatus status;
  status.job = name();
  status.state = replica_.state() == ReplicaState::joining    ? "joining"
                 : replica_.state() == ReplicaState::draining ? "draining"
                 : replica_.quarantined() > 0                 ? "quarantined"
                                                              : "running";
  status.codec = codec_names[static_cast<std::size_t>(options_.codec)];
  status.layout = fmt::format("{:016x}", memory.key().layout_hash);
  status.clients = client_gone_ ? 0 : 1;
  status.pid = static_cast<std::uint64_t>(session_->pid());
  status.clock = memory.clock_base() + memory.clock();
  status.global_clock = replica_.global_clock();
  status.steps = memory.steps();
  status.elements = memory.elements();
  status.fragments = memory.fragment_count();
  status.neighbours = static_cast<std::uint32_t>(replica_.partners());
  status.publications = counters.publications;
  status.exchanges = exchanges;
  status.exchanges_initiated = counters.initiated;
  status.exchanges_answered = counters.answered;
  status.busy = counters.busy_received;
  status.refused = counters.refused_received;
  status.unresolved = counters.unresolved;
  status.violations = counters.violations;
  status.blocks = counters.blocks;
  status.wide_blocks = counters.wide_blocks;
  status.payload_bytes_sent = counters.payload_bytes_sent;
  status.payload_bytes_received = payload_bytes_received_;
  status.age_samples = static_cast<double>(replica_.age_samples());
  status.quarantined_fragments = static_cast<std::uint32_t>(replica_.quarantined());
  status.fragments_pulled = joining_ ? joining_->fragments_pulled()
                                     : static_cast<std::uint32_t>(pulled_bytes_ > 0 ? memory.fragment_count() : 0);
  status.donors = joining_ ? joining_->donors() : 0;
  status.pulled_bytes = pulled_bytes_;
  status.join_s = joined_us_ == 0 ? 0 : static_cast<double>(joined_us_ - started_us_) / us_per_s;
  status.fragments_handed_over = replica_.fragments_handed_over();
  status.in_flight = static_cast<std::uint32_t>(replica_.in_flight());
  status.mean_shift = mean(counters.shift_sum);
  status.mean_disagreement = replica_.disagreement();
  if (const auto& stranger = replica_.layout_stranger()) {
    status.note = fmt::format("node {} runs a job of this name with another layout", stranger->brief());
  }
  return status;
}

}  // namespace gossamer::daemon
