#include "daemon/jobs/job.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "daemon/config/config_table.hpp"
#include "daemon/jobs/logged_values.hpp"
#include "daemon/report/state_name.hpp"
#include "gossip/check.hpp"
#include "gossip/job_settings.hpp"

namespace gossamer::daemon {

namespace {

/// A job without other replicas for this long may have a mistyped name.
constexpr TimeUs alone_us = 10 * us_per_s;
/// How long a program is told that joining has replaced a model that had seen more.
constexpr TimeUs dropped_us = 30 * us_per_s;
constexpr TimeUs tell_clients_period_us = 100 * us_per_ms;
constexpr TimeUs time_taken_period_us = 1 * us_per_s;
/// A node that keeps the job, and was without others for this long, takes their model over anew.
constexpr TimeUs left_behind_us = 2 * us_per_s;
constexpr TimeUs no_memory_warning_period_us = 60 * us_per_s;

/// The name, in the configuration, of the option that keeps the period from being shorter, or "step"; empty: nothing
/// does.
const char* period_limit_name(gossip::Cadence::Limit limit) {
  using enum gossip::Cadence::Limit;
  return limit == time ? "time_share" : limit == network ? "bandwidth_share" : limit == step ? "step" : "";
}

JobInfo description_of(const ClientMemory& memory) {
  return {.job = memory.key(),
          .name = memory.job(),
          .elements = memory.elements(),
          .fragments = memory.fragment_count(),
          .fragment_elements = memory.fragment_elements(),
          .keeps = memory.kind().keeps};
}

/// Warns if a client gave other settings than the job has. The job's settings hold.
void compare_settings(spdlog::logger& log, const std::string& job, const JobSettings& settings,
                      const JobClient& client) {
  const std::vector<JobSetting>& given = client.memory().settings();
  const auto holds = [&](const JobSetting& one) {
    return std::ranges::find(settings.values, one) != settings.values.end();
  };
  if (std::ranges::all_of(given, holds)) return;
  log.warn(
      "job {}: runs already, and not with all settings that process {} gave ({}); `gossamerctl job set` changes "
      "them for all",
      job, client.pid(), settings_text(given));
}

/// The settings of a job that begins here: those that its program gave and, where the program gave none, those of the
/// checkpoint that the job begins with (`saved`, as text). They have version 0 if there are none.
JobSettings first_settings(const JobOptions& options, const std::string& saved, const JobClient& client,
                           const NodeId& author, spdlog::logger& log) {
  const std::vector<JobSetting>& given = client.memory().settings();
  std::vector<JobSetting> values = settings_in(saved);
  values.insert(values.end(), given.begin(), given.end());
  JobSettings settings = options.with(values, author);
  if (const auto fault = fault_of(settings)) {
    log.warn("job {}: the checkpoint's settings make no sense ({}): they are passed over", client.memory().job(),
             *fault);
    settings = options.with(given, author);
  }
  return settings.values.empty() ? JobSettings{} : settings;
}

SettingsStatus status_of(const JobSettings& settings) {
  SettingsStatus status{.version = settings.version};
  for (const JobSetting& setting : settings.values)
    status.values[setting.name] = setting.value;
  return status;
}

template <class Clients>
std::vector<LoggedStatus> logged_means(const Clients& clients, const gossip::Neighbours& neighbours) {
  std::vector<layout::Logged*> here;
  for (const auto& client : clients)
    here.push_back(&client->memory().logged());
  std::vector<std::vector<LoggedValue>> others;
  for (const auto& [node, neighbour] : neighbours) {
    if (neighbour.info.state != ReplicaState::absent) others.push_back(neighbour.info.logged);
  }
  return means_of_logged(here, others);
}

PartnerStatus partner_status(const gossip::PartnerReport& report, TimeUs now_us) {
  const double exchanged_s = static_cast<double>(now_us - report.exchanged_us) / us_per_s;
  return {.node = report.node.full(),
          .state = report.other_layout ? "other layout" : state_name(report.info.state),
          .linked = report.linked,
          .keeps = report.info.keeps,
          .clock = report.info.clock,
          .exchanges = report.exchanges,
          .busy = report.busy,
          .exchanged_s = report.exchanges == 0 ? 0 : exchanged_s,
          .answer_ms = report.answer_us / us_per_ms,
          .goodput_mbit_s = report.bytes_per_s * 8 / 1e6,
          .consensus = report.relative_distance,
          .blocks = report.blocks,
          .wide_blocks = report.wide_blocks,
          .unresolved = report.unresolved,
          .age_intervals = report.age_intervals,
          .quarantined_fragments = report.quarantined_fragments};
}

/// Adds the replica's counters.
void add_counters(JobStatus& status, const gossip::ReplicaCounters& counters) {
  status.exchanges = counters.initiated + counters.answered;
  status.publications = counters.publications;
  status.exchanges_initiated = counters.initiated;
  status.exchanges_answered = counters.answered;
  status.busy = counters.busy_received;
  status.busy_sent = counters.busy_sent;
  status.refused = counters.refused_received;
  status.refused_sent = counters.refused_sent;
  status.follow_ups = counters.follow_ups;
  status.repeats_sent = counters.repeats_sent;
  status.unresolved = counters.unresolved;
  status.undone = counters.undone;
  status.violations = counters.violations;
  status.clipped = counters.clipped;
  status.outer_steps = counters.outer_steps;
  status.quarantines = counters.quarantines;
  status.blocks = counters.blocks;
  status.wide_blocks = counters.wide_blocks;
  status.payload_bytes_sent = counters.payload_bytes_sent;
  status.mean_shift = status.exchanges == 0 ? 0 : counters.shift_sum / static_cast<double>(status.exchanges);
  status.codec_error_sum = counters.codec_error_sum;
  status.age_sum = counters.ages.sum;
  status.ages.assign(counters.ages.counts.begin(), counters.ages.counts.end());
}

/// Adds the state of the replica and of its partners.
void add_replica(JobStatus& status, const gossip::Replica& replica, TimeUs now_us) {
  const gossip::Fragments& fragments = replica.fragments();
  status.neighbours = static_cast<std::uint32_t>(replica.neighbours().partners());
  status.asked_after = replica.book().replies().orphans();
  status.in_flight = static_cast<std::uint32_t>(replica.in_flight());
  status.quarantined_fragments = static_cast<std::uint32_t>(fragments.quarantined());
  status.fragments_handed_over = fragments.handed_over();
  status.mean_disagreement = fragments.disagreement();
  status.consensus = fragments.consensus();
  if (const auto mixing = replica.tracer().estimate(now_us)) {
    status.mixing_per_s = mixing->per_s;
    status.spectral_gap = mixing->spectral_gap();
  }
  const auto& rounds = replica.tracer().rounds();
  status.tracer_rounds.assign(rounds.begin(), rounds.end());
  status.period_s = static_cast<double>(replica.pace().period_us()) / us_per_s;
  status.period_limit = period_limit_name(replica.pace().period_limit());
  for (const gossip::PartnerReport& report : replica.partner_reports())
    status.partners.push_back(partner_status(report, now_us));
}

void add_gpus(JobStatus& status, const device::NodeMean::Counters& means) {
  status.gpu_means = means.summed;
  status.gpu_means_through_host = means.through_host;
  status.gpu_means_failed = means.failed;
}

void add_checkpoints(JobStatus& status, const CheckpointWriting& writing, TimeUs now_us) {
  status.checkpoints_written = writing.written();
  status.checkpoints_failed = writing.failed();
  status.checkpoint_clock = writing.written_clock();
  status.checkpoint_s = writing.written() == 0 ? 0 : static_cast<double>(now_us - writing.written_us()) / us_per_s;
}

/// `trouble`: why the disk does not do what is asked of it now; empty: it does.
std::string note_of(const CheckpointWriting& writing, const std::string& trouble) {
  if (!trouble.empty()) return trouble;
  const std::string& error = writing.latest().error;
  return error.empty() ? "" : "no checkpoint was written: " + error;
}

}  // namespace

std::expected<std::shared_ptr<Job>, AttachRefusal> Job::make(JobHost& host, std::shared_ptr<ClientSession> session,
                                                             const GossipOptions& options,
                                                             gossip::ExchangeCounter& counter, std::uint64_t seed) {
  auto client = std::make_shared<JobClient>(std::move(session), host.now_us());
  if (auto checked = client->check(); !checked) return std::unexpected(std::move(checked.error()));
  const ClientMemory& memory = client->memory();
  if (auto settings = JobOptions(options).check(memory); client->joins() && !settings)
    return std::unexpected(settings.error());
  const bool others_may_come = host.now_us() - host.began_us() < return_us;
  const auto wait_for = [](const char* whom) { return cannot_attach(layout::AttachStatus::job_busy, whom); };
  if (client->joins() && memory.place().index > 0 && others_may_come)
    return wait_for("the job's other process here may have the model, and is waited for");
  std::shared_ptr<NodeMemory> kept = client->joins() ? nullptr : client->session().kept();
  if (!kept && !client->joins() && client->were() > 1 && others_may_come)
    return wait_for("another process of the job has what this one should have kept, and is waited for");
  if (kept && !client->is_holder(*kept) && others_may_come)
    return wait_for("the job's model is in the memory of another process here, which is waited for");
  if (!kept) {
    auto made = NodeMemory::make(NodeMemory::shape_of(memory));
    if (!made) return cannot_attach(layout::AttachStatus::limit_reached, std::move(made.error()));
    kept = std::move(*made);
  }
  client->session().keep(std::move(kept));
  std::vector<gossip::FragmentBuffers> fragments;
  fragments.reserve(memory.fragment_count());
  for (std::uint32_t f = 0; f < memory.fragment_count(); ++f) {
    fragments.emplace_back(std::array<float*, 3>{memory.buffer(f, 0), memory.buffer(f, 1), memory.buffer(f, 2)},
                           memory.block_count(f), client->word(f), memory.device());
  }
  if (memory.lean()) memory.vacate_unused();
  const std::shared_ptr<Job> job(new Job(host, std::move(client), options, counter, seed, std::move(fragments)));
  if (!job->group_.take_copies_over(job->memory_.first()->clock()))
    return wait_for("the GPU has no room for the node's copy of the model: give the training processes a little less");
  job->remember();
  job->apply_options();
  return job;
}

Job::Job(JobHost& host, std::shared_ptr<JobClient> client, const GossipOptions& options,
         gossip::ExchangeCounter& counter, std::uint64_t seed, std::vector<gossip::FragmentBuffers> fragments)
    : host_(host),
      description_(description_of(client->memory())),
      options_(options),
      gpus_(client->memory(), host.gpu_sums()),
      clients_{client},
      memory_(client, client->session().kept(), counter.next()),
      replica_(replica_options(options), host.id(), description_, std::move(fragments), counter, gossip::Random(seed)),
      started_us_(host.now_us()) {
  group_.set_first(memory_.first());
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f)
    replica_.outer_state(f).leave_out(memory_.first()->memory().statistics(f));
  if (Checkpoints* checkpoints = host.checkpoints()) {
    CheckpointSource& source = *this;
    checkpoint_writing_ =
        std::make_shared<CheckpointWriting>(*checkpoints, source, host.log(), name(), memory_.first()->memory().model(),
                                            memory_.first()->memory().fragment_elements());
  }
  if (memory_.first()->memory().lean()) replica_.keep_lean(memory_.first()->memory().window_fragments());
}

/// Takes over the exchanges that a former daemon has stored in the node's memory, and that may not have ended.
void Job::remember() {
  replica_.book().replies().set_capacity(memory_.node()->record_places());
  std::vector<std::uint32_t> commits;
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f)
    commits.push_back(replica_.buffers(f).parts().commits);
  // The stored exchanges name counts of commits in the holder's memory, so they mean nothing for another client's.
  const bool known = memory_.first()->is_holder(*memory_.node());
  for (std::uint32_t place = 0; place < memory_.node()->record_places(); ++place) {
    if (!known) {
      clear_record(*memory_.node(), place);
    } else if (auto record = read_record(*memory_.node(), place, memory_.first()->memory(), commits)) {
      executor_.note_record(place);
      replica_.book().replies().restore(record->id, place, std::move(record->reply), std::move(record->half),
                                        host_.now_us());
    }
  }
  // Exchange counters begin with the time of day. If the clock was set back, new ones could repeat former ones, so the
  // former exchanges are not taken over.
  const auto given_up = known ? memory_.node()->given_up() : std::nullopt;
  if (given_up && given_up->floor < replica_.book().given_up().floor) {
    replica_.book().remember(*given_up);
    for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f)
      replica_.remember(f, memory_.node()->own_halves(f));
  }
  memory_.node()->begin_given_up(replica_.book().given_up());
  decide([&](Actions& out) { replica_.take_settings(memory_.node()->settings(), out); });
  memory_.node()->set_holder(memory_.first()->memory().inode());
}

void Job::start(const gossip::ReplyCache::Seen& seen) {
  replica_.book().replies().begin_after(seen);
  const ClientMemory& memory = memory_.first()->memory();
  host_.log().info("job {}: process {} {}, {} elements in {} fragments{}", name(), memory_.first()->pid(),
                   memory_.first()->session().resume() ? "is back" : "attached", memory.elements(),
                   memory.fragment_count(),
                   memory.lean()        ? fmt::format(", in lean memory: at most {} MiB", memory.most_bytes() >> 20)
                   : memory.on_device() ? fmt::format(", in the memory of {}", memory.gpu())
                                        : "");
  // A client whose model a dead daemon was still replacing has no whole model: it joins again. A client that was
  // running goes on, and its state stays `running`; otherwise the next daemon would take it for a newcomer.
  if (memory_.first()->joins()) {
    memory_.first()->memory().set_state(layout::RunState::joining);
    return beginning_.search();
  }
  begin();
}

/// From here on the other nodes are told of the job. Neighbours that are linked already are met here.
void Job::begin() {
  // Newcomers compare the clocks of the models with which they would begin. That decides which of them begins.
  const std::uint64_t clock = std::max(memory_.first()->clock(), beginning_.candidate_clock());
  replica_.set_clock(clock);
  if (memory_.first()->joins()) {
    beginning_.join(clock);
  } else {
    awaited_clients_ = std::max(awaited_clients_, memory_.first()->were());
  }
  decide([&](Actions& out) { replica_.enter(gossip::Phase::joining, out); });
  for (const NodeId& node : host_.neighbours())
    link_up(node);
  woken(memory_.first()->session());
}

void Job::set_options(const GossipOptions& options) {
  options_.set_own(options);
  apply_options();
}

SettingsStatus Job::change_settings(const JobSettings& next) {
  decide([&](Actions& out) { replica_.take_settings(next, out); });
  apply_options();
  return status_of(next);
}

void Job::apply_options() {
  const bool newer = options_.settings() != replica_.settings();
  options_.follow(replica_.settings());
  replica_.set_options(replica_options(options_.get()));
  if (!newer) return;
  memory_.node()->store_settings(options_.settings());
  host_.settings_followed(name(), options_.settings());
  if (options_.settings().version == 0) {
    host_.log().info("job {}: follows nodes that have no settings, so it has none either", name());
  } else if (options_.objection().empty()) {
    host_.log().info("job {}: follows settings of version {}, from node {}", name(), options_.settings().version,
                     host_.called(options_.settings().author));
  } else {
    host_.log().warn("job {}: {}", name(), cannot_follow(options_));
  }
  set_drained(drained_);
}

// --- the clients --------------------------------------------------------------------------------------------------

/// Whether one more client with this memory can be added.
std::expected<void, AttachRefusal> Job::check(const ClientMemory& memory) const {
  using layout::AttachStatus;
  if (memory.key() != key()) {
    const Caller owner = clients_.empty() ? Caller{} : clients_.front()->session().caller();
    return cannot_attach(
        AttachStatus::bad_layout,
        fmt::format("job {} has clients here (process {} of user {}) whose tensors differ from this one's in names, "
                    "shapes, types or order: train the same model, or rename this job",
                    name(), owner.process, owner.user));
  }
  if (ended_ || leaving_ ||
      (replica_.state() == ReplicaState::draining && !(replica_.phase() == gossip::Phase::drained)))
    return cannot_attach(AttachStatus::stopping, "this daemon is stopping");
  if (memory.lean() || replica_.lean_window() > 0) {
    return cannot_attach(
        AttachStatus::limit_reached,
        fmt::format("job {} has another client here, and lean memory is for one client of a job and node: "
                    "give both the memory resident, or start one process a node",
                    name()));
  }
  if (!home().failure().empty())
    return cannot_attach(AttachStatus::job_busy, "the job's GPU here has just failed: try again");
  if (gpus_.is_elsewhere(memory) && !memory.on_device())
    return cannot_attach(AttachStatus::job_busy, "the job has just begun on a GPU here: try again");
  if (gpus_.is_elsewhere(memory) && !gpus_.home_is_gpu()) {
    return cannot_attach(
        AttachStatus::no_device,
        fmt::format("job {} is averaged on the processor here: this process takes part through host memory", name()));
  }
  if (joined_us_ == 0 && client_of(memory_.first()->session()) == nullptr)
    return cannot_attach(AttachStatus::job_busy, "the job's first client left while it joined: try again");
  if (clients_.size() >= gossip::LocalGroup::max_clients) {
    return cannot_attach(AttachStatus::limit_reached,
                         fmt::format("job {} has {} clients here, which is the most", name(), clients_.size()));
  }
  return {};
}

std::expected<void, AttachRefusal> Job::add(std::shared_ptr<ClientSession> session) {
  if (auto checked = check(session->memory()); !checked) return checked;
  if (session->resume() && group_.awaits_departed()) {
    return cannot_attach(layout::AttachStatus::job_busy,
                         "what a process of the job had published when it broke off is taken in first");
  }
  auto client = std::make_shared<JobClient>(std::move(session), host_.now_us());
  if (auto checked = client->check(); !checked) return std::unexpected(std::move(checked.error()));
  if (auto settings = options_.check(client->memory()); client->joins() && !settings) return settings;
  host_.log().info("job {}: process {} {} as client {} of this node", name(), client->pid(),
                   client->session().resume() ? "is back" : "attached", clients_.size() + 1);
  if (client->joins()) client->memory().set_state(layout::RunState::joining);
  if (!client->joins() && joined_us_ == 0) awaited_clients_ = std::max(awaited_clients_, client->were());
  memory_.advance_numbers(*client);
  gpus_.include(client->memory());
  client->session().keep(memory_.node());
  client->set_home(home());
  clients_.push_back(client);
  tell_places();
  if (joined_us_ == 0) return {};  // the clients take part when the node itself has joined
  if (client->joins()) compare_settings(host_.log(), name(), replica_.settings(), *client);
  const bool shared = group_.is_shared();
  group_.add(client, clock());
  if (!shared) tell_of_group();
  return {};
}

const gossip::Device* Job::home_for(const ClientMemory& memory) const {
  if (!gpus_.home_is_gpu() || !home().failure().empty()) return nullptr;
  return memory.lean() || memory.key() != key() ? nullptr : &home();
}

void Job::gpu_failed(const gossip::Device& gpu) {
  for (const auto& client : clients_) {
    if (&gpu == &home() || &gpu == &client->memory().device()) client->session().close();
  }
}

JobClient* Job::client_of(const ClientSession& session) const {
  const auto found = std::ranges::find(clients_, session.number(), &JobClient::number);
  return found == clients_.end() ? nullptr : found->get();
}

void Job::woken(const ClientSession& session) {
  JobClient* client = client_of(session);
  if (ended_ || client == nullptr) return;
  read_clock();
  for (std::uint32_t f = 0; f < replica_.fragments().count(); ++f) {
    if (!client->due(f)) continue;
    switch (client->look(f, host_.now_us())) {
      case JobClient::Served::not_yet:
        break;
      case JobClient::Served::yes:
        if (!group_.published(*client, f)) break;
        decide([&, now_us = host_.now_us()](Actions& out) {
          replica_.published(f, client->word(f).generation, client->publication_clock(f), now_us, out);
        });
        break;
      case JobClient::Served::breach:
        host_.log().error(
            "job {}: process {} broke the shared-memory contract at fragment {}: letting it go; something "
            "overwrites its memory, or its client library is not the one that came with this daemon",
            name(), client->pid(), f);
        client->session().close();
        return;
    }
  }
  run_if_joined();
  ending_.watch({clients_.begin(), clients_.end()}, host_.now_us());
}

/// The clock stands still while joining: newcomers decide by their clocks who begins, and must all see the same ones.
void Job::read_clock() {
  for (const auto& client : clients_) {
    ending_.look(*client);
    group_.observe_clock(*client);
  }
  if (!beginning_.is_under_way()) replica_.set_clock(clock());
}

std::uint64_t Job::clock() const {
  return group_.is_shared() ? group_.local().clock() : memory_.first()->clock();
}

bool Job::detached(const ClientSession& session) {
  const auto found = std::ranges::find(clients_, session.number(), &JobClient::number);
  if (found == clients_.end()) return false;
  woken(session);  // takes in the client's last publications
  host_.log().info("job {}: process {} is gone", name(), (*found)->pid());
  if (clients_.size() == 1) {
    drain();
    if (checkpoint_writing_) checkpoint_writing_->end();
  }
  const std::shared_ptr<JobClient> client = std::move(*found);
  clients_.erase(found);
  gpus_.leave(client->memory());
  tell_places();
  client->set_detached();
  if (group_.is_shared() && joined_us_ > 0) {
    group_.remove(*client);
  } else if (client == memory_.first() && !clients_.empty() && group_.all_gathered()) {
    group_.set_first(clients_.front());  // all of the model is in the node's memory
    memory_.set_first(clients_.front());
  } else if (client == memory_.first()) {
    // The model was being pulled into this client's memory: the clients that wait for it begin again.
    for (const auto& waiting : clients_)
      waiting->session().close();
  }
  return true;
}

void Job::drain() {
  beginning_.stop();
  tell_state(layout::RunState::draining);
  if (replica_.state() == ReplicaState::draining && !(replica_.phase() == gossip::Phase::drained)) return;
  decide([&](Actions& out) { replica_.enter(gossip::Phase::stopping, out); });
}

void Job::set_drained(bool drained) {
  drained_ = drained;
  if (ended_ || client_gone() || !runs()) return;  // a job that joins calls this again once it has its model
  const bool out_of_exchanges = drained || !options_.objection().empty();
  decide(
      [&](Actions& out) { replica_.enter(out_of_exchanges ? gossip::Phase::drained : gossip::Phase::running, out); });
}

void Job::leave(TimeUs deadline_us) {
  if (ended_ || leaving_) return;
  leaving_ = true;
  beginning_.stop();
  tell_state(layout::RunState::draining);
  read_clock();  // what has been trained since the last look is to be published first
  decide([&](Actions& out) { replica_.leave(host_.now_us(), deadline_us, out); });
}

/// The longest step of the clients. The node's replica is the mean of their models, so the samples of all are in it.
gossip::TrainingStep Job::step() const {
  gossip::TrainingStep whole;
  for (const auto& client : clients_) {
    whole.us = std::max(whole.us, client->step().us);
    whole.samples += client->keeps() ? 0 : client->step().samples;
  }
  return whole;
}

std::string Job::handover_text() const {
  if (!leaving_) return {};
  return fmt::format("handed over {} of {} fragments{}", replica_.fragments().handed_over(),
                     replica_.fragments().count(),
                     replica_.neighbours().partners() == 0 ? "; nobody else in reach runs the job" : "");
}

bool Job::done() const {
  if (leaving_ && !replica_.handed_over()) return false;
  // Uncollected corrections in the client's own memory are safe; those kept here for it must be collected first.
  return replica_.idle() && (client_gone() || replica_.fragments().pending_bytes() == 0);
}

void Job::end() {
  if (!ended_) tell_state(layout::RunState::detached);
  if (checkpoint_writing_) checkpoint_writing_->end();
  ended_ = true;
}

/// A client that has not taken the whole model over keeps its state `joining`: it joins again at the next daemon.
void Job::tell_state(layout::RunState state) {
  for (const auto& client : clients_) {
    if (!client->joins()) client->memory().set_state(state);
  }
}

// --- what the replica's decisions need ----------------------------------------------------------------------------

/// Runs the task on a worker. Its result is reported on the loop, unless the job has ended.
void Job::run(std::uint32_t f, std::unique_ptr<gossip::Task> task) {
  const std::shared_ptr<gossip::Task> shared = std::move(task);
  const bool taken = host_.workers().submit(
      Workers::Work([shared, fragment = replica_.held(f), self = shared_from_this()] { shared->run(fragment); }),
      Workers::Work([shared, self = shared_from_this()] {
        if (!self->ended_) shared->finish();
      }));
  // The queue has room: each fragment has at most one task under way.
  GOSSAMER_CHECK(taken);
}

std::uint64_t Job::hash_of(std::span<const float> values) const {
  return XXH3_64bits(values.data(), values.size_bytes());
}

void Job::complete(PullReply& reply) {
  reply.clock = clock();
  if (reply.fragment == 0 && reply.reason == RefuseReason::none) reply.cursor = cursor();
}

void Job::lacks_memory(int error) {
  const TimeUs now_us = host_.now_us();
  if (warned_of_memory_us_ && now_us - *warned_of_memory_us_ < no_memory_warning_period_us) return;
  warned_of_memory_us_ = now_us;
  host_.log().warn("job {}: no memory for a fragment that is to be exchanged: {}; it is tried again once a second",
                   name(), std::strerror(error));
}

// --- the overlay --------------------------------------------------------------------------------------------------

void Job::link_up(const NodeId& node) {
  linked_.insert(node);
  if (beginning_.is_searching()) return;  // begin() will call this for all neighbours
  decide([&](Actions& out) { replica_.link_up(node, out, host_.sponsor_of(node)); });
  beginning_.link_up(node);
}

void Job::link_down(const NodeId& node) {
  linked_.erase(node);
  replica_.link_down(node);
  beginning_.link_down(node);
}

void Job::node_dead(const NodeId& node) {
  decide([&](Actions& out) { replica_.node_dead(node, host_.now_us(), out); });
}

void Job::received(const NodeId& from, Message&& message) {
  const TimeUs now_us = host_.now_us();
  look_whether_left_behind(now_us);  // must come before any answer
  if (auto* reply = std::get_if<PullReply>(&message)) return beginning_.pulled(from, std::move(*reply));
  const auto* told = std::get_if<JobInfo>(&message);
  const std::optional<JobInfo> info = told == nullptr ? std::nullopt : std::optional(*told);
  if (const auto* request = std::get_if<ExchangeRequest>(&message)) payload_bytes_received_ += payload_bytes(*request);
  if (const auto* reply = std::get_if<ExchangeReply>(&message)) payload_bytes_received_ += payload_bytes(*reply);
  decide([&](Actions& out) { replica_.received(from, std::move(message), now_us, out); });
  if (!info) return;
  if (options_.settings() != replica_.settings()) apply_options();
  trouble_.warn(name(), options_, replica_, host_);
  beginning_.info(from, *info);
}

/// Enters the running state once the model is decided on and the client has taken all of it over.
void Job::run_if_joined() {
  if (beginning_.is_under_way() || ended_) return;
  if (replica_.state() != ReplicaState::joining || beginning_.replaces_pending()) return;
  if (awaits_clients()) return;
  const JobClient& first = *memory_.first();
  const gossip::Group::Members clients(clients_.begin(), clients_.end());
  const std::uint64_t clock = gossip::Group::clock_of(clients).value_or(first.clock());
  replica_.set_clock(clock);
  if (first.joins() && beginning_.begins_job()) {
    // A checkpoint's settings may be of a newer version than this node. It then says so and keeps out of exchanges, as
    // with any settings that it cannot follow.
    const auto settings = first_settings(options_, beginning_work_.settings(), first, host_.id(), host_.log());
    decide([&](Actions& out) { replica_.take_settings(settings, out); });
    apply_options();
  }
  if (first.joins()) compare_settings(host_.log(), name(), replica_.settings(), first);
  joined_us_ = host_.now_us();
  awaited_clients_ = 0;
  group_.follow(ending_.follows());
  group_.begin(clients, clock);
  tell_of_group();
  decide([&](Actions& out) { replica_.enter(gossip::Phase::running, out); });
  memory_.first()->set_joined();
  beginning_work_.settle_import();
  tell_clients();
  memory_.first()->memory().set_state(layout::RunState::running);
  set_drained(drained_);
  host_.log().info("job {}: runs, with {} other replicas in reach", name(), replica_.neighbours().partners());
}

// --- what the clients are told -----------------------------------------------------------------------------------

/// The cursor of the client that has trained most, among those that set one since the model was taken over. If none
/// has, the cursor that came with the model.
std::vector<std::byte> Job::cursor() const {
  const JobClient* furthest = nullptr;
  for (const auto& client : clients_) {
    if (!client->has_own_cursor()) continue;
    if (furthest == nullptr || client->clock() > furthest->clock()) furthest = client.get();
  }
  if (furthest != nullptr) return furthest->memory().own_cursor();
  return clients_.empty() ? std::vector<std::byte>{} : clients_.front()->memory().job_cursor();
}

void Job::tell_places() {
  // The count includes clients that are still awaited, since this daemon may die before they are back. The clients
  // divide the data by these numbers. Keepers get no data, so they come last and are not counted.
  const auto trainers =
      static_cast<std::uint32_t>(std::ranges::count_if(clients_, [](const auto& client) { return !client->keeps(); }));
  const std::uint32_t count = std::max(trainers, awaited_clients_);
  std::uint32_t index = 0;
  std::uint32_t keeper = trainers;
  for (const auto& client : clients_) {
    client->memory().set_place(client->keeps() ? keeper++ : index++, count);
    client->tell_members(replica_.neighbours().members());
  }
  // A node whose last client has gone is about to leave, so what it says of itself does not change.
  const bool keeps = trainers == 0;
  if (clients_.empty() || keeps == info().keeps) return;
  decide([&](Actions& out) { replica_.set_keeps(keeps, host_.now_us(), out); });
}

/// Ends the sessions of a node that only keeps the job, if it was away or stood still. Its model lacks what the others
/// have learned meanwhile, and as a server it would draw them back. The clients attach again, and pull the model.
void Job::look_whether_left_behind(TimeUs now_us) {
  if (!runs() || replica_.phase() == gossip::Phase::drained || replica_.neighbours().trainers() == 0) return;
  const TimeUs before_us = std::exchange(accompanied_us_, now_us);
  const TimeUs away_us = now_us - before_us;
  if (before_us == 0 || away_us < left_behind_us || !info().keeps) return;
  host_.log().info("job {}: was away from the others for {:.1f} s, and takes their model over", name(),
                   static_cast<double>(away_us) / us_per_s);
  drain();  // so that nothing more is answered
  for (const auto& client : clients_)
    client->session().close();
}

LayoutReply Job::layout(std::uint32_t first) const {
  LayoutReply reply{.job = key(), .first_tensor = first};
  if (clients_.empty() || first >= clients_.front()->memory().tensor_count()) return {.job = key()};
  const ClientMemory& memory = clients_.front()->memory();
  reply.fragment_elements = memory.fragment_elements();
  reply.tensor_count = memory.tensor_count();
  reply.tensors = memory.tensors(first, max_told_tensors);
  return reply;
}

// --- time and status ----------------------------------------------------------------------------------------------

void Job::tick(bool all_dialled) {
  if (ended_) return;
  const TimeUs now_us = host_.now_us();
  read_clock();
  if (beginning_.is_under_way()) {
    for (const auto& [node, round_trip_us] : host_.round_trips_us())
      beginning_.set_round_trip(node, round_trip_us);
  }
  beginning_.tick(all_dialled);
  if (awaited_clients_ > 0) run_if_joined();
  if (now_us - time_taken_at_us_ >= time_taken_period_us) {
    measure_time_taken(now_us);
    look_for_trouble(now_us);
  }
  for (const NodeId& node : linked_)
    replica_.set_link(node, host_.link_load(node));
  decide([&](Actions& out) { replica_.tick(now_us, out, all_dialled); });
  tick_group();
  look_whether_left_behind(now_us);
  if (now_us - told_clients_us_ >= tell_clients_period_us) {
    tell_clients();
    const std::vector<LoggedStatus> means = logged_means(clients_, replica_.neighbours());
    std::vector<LoggedValue> own;
    for (const LoggedStatus& one : means)
      own.push_back({one.name, one.value});
    replica_.set_logged(std::move(own));
    for (const auto& client : clients_)
      tell_means(client->memory().logged(), means);
  }
  ending_.watch({clients_.begin(), clients_.end()}, host_.now_us());
  if (checkpoint_writing_) checkpoint_writing_->tick(now_us, runs());
}

void Job::look_for_trouble(TimeUs now_us) {
  std::vector<JobTrouble::Program> programs;
  for (const auto& client : clients_) {
    if (!client->keeps()) programs.push_back({client->pid(), client->finishing() != 0, client->stepped_us()});
  }
  trouble_.look({.job = name(),
                 .options = options_,
                 .replica = replica_,
                 .host = host_,
                 .now_us = now_us,
                 .step_us = step().us,
                 .alone = joined_us_ > 0 && now_us - std::max(joined_us_, accompanied_us_) >= alone_us,
                 .trains = runs() && !info().keeps,
                 .programs = std::move(programs),
                 .dropped = now_us - joined_us_ < dropped_us ? beginning_work_.dropped() : std::string()});
  for (const auto& client : clients_)
    client->tell(trouble_.for_programs().empty() ? beginning_work_.import_refused() : trouble_.for_programs());
}

void Job::tick_group() {
  group_.follow(ending_.follows());
  group_.tick(ending_.round_period_us(replica_.pace().period_us()), runs());
  const auto& first = memory_.first();
  if (first && !first->is_attached() && first.use_count() == 1 && group_.all_gathered())
    memory_.set_first(nullptr);  // the client is gone, and its memory is not needed any more
}

/// Gives the cadence the time that gossip took: the time that the process which lost most says it spent serving
/// fragments, of this job and others, and the time for which the node's own work has kept the GPU from training.
void Job::measure_time_taken(TimeUs now_us) {
  TimeUs taken_us = 0;
  for (const auto& client : clients_)
    taken_us = std::max(taken_us, client->take_time_taken(now_us));
  const double device_us = home().taken_us();
  taken_us += static_cast<TimeUs>(device_us - std::exchange(device_taken_us_, device_us));
  replica_.add_time_taken(taken_us);
  replica_.set_step(step());
  replica_.set_capacity(host_.capacity_bytes_s());
  replica_.set_certified_members(host_.certified_members());
  time_taken_at_us_ = now_us;
}

void Job::tell_clients() {
  told_clients_us_ = host_.now_us();
  const gossip::ReplicaCounters& counters = replica_.counters();
  trouble_.warn(name(), options_, replica_, host_);
  const ClientMemory::Statistics statistics{
      .global_clock = std::max(clock(), replica_.job_clock().value()),
      .neighbours = static_cast<std::uint32_t>(replica_.neighbours().partners()),
      .exchanges = counters.initiated + counters.answered,
      .bytes_sent = counters.payload_bytes_sent,
      .bytes_received = payload_bytes_received_,
      .consensus = replica_.fragments().consensus(),
      .age_samples = replica_.fragments().age_samples(clock()),
      .unresolved = counters.unresolved,
      .quarantines = counters.quarantines + (group_.is_shared() ? group_.local().quarantines() : 0),
      .period_us = replica_.pace().period_us(),
      .pulled_bytes = beginning_.pulled_bytes()};
  trouble_.warn_of_quarantines(name(), statistics.quarantines, host_);
  tell_places();
  for (const auto& client : clients_) {
    client->memory().set_statistics(statistics);
    tell_run_state(*client);
  }
}

/// True if the model is decided on and clients have it, whether it is exchanged or not.
bool Job::runs() const {
  return replica_.state() == ReplicaState::running || (replica_.phase() == gossip::Phase::drained);
}

void Job::tell_run_state(JobClient& client) {
  if (!runs() || client.joins()) return;
  const GossipOptions& options = options_.get();
  client.memory().set_method({.method = options.method,
                              .codec = static_cast<std::uint8_t>(options.average_codec),
                              .members = static_cast<std::uint16_t>(options.average_members),
                              .steps = static_cast<std::uint32_t>(options.average_steps)},
                             options.outer_momentum);
  const bool quarantined = replica_.fragments().quarantined() > 0 || group_.is_quarantined(client);
  client.memory().set_state(quarantined ? layout::RunState::quarantined : layout::RunState::running);
}

JobStatus Job::status() const {
  const TimeUs now_us = host_.now_us();
  const gossip::Fragments& fragments = replica_.fragments();
  const bool quarantined = fragments.quarantined() > 0;
  const auto state = [&](bool joins, bool is_quarantined) {
    return joins                                        ? "joining"
           : replica_.state() == ReplicaState::draining ? "draining"
           : is_quarantined                             ? "quarantined"
                                                        : "running";
  };
  JobStatus status;
  status.job = name();
  status.state = state(replica_.state() == ReplicaState::joining, quarantined);
  status.codec = codec_names[static_cast<std::size_t>(options_.get().codec)];
  status.method = method_names[static_cast<std::size_t>(options_.get().method)];
  status.layout = fmt::format("{:016x}", key().layout_hash);
  status.elements = description_.elements;
  status.fragments = description_.fragments;
  status.clock = clock();
  status.global_clock = std::max(clock(), replica_.job_clock().value());
  status.clients = static_cast<std::uint32_t>(clients_.size());
  for (const auto& client : clients_) {
    const bool sick = (quarantined && !group_.is_shared()) || group_.is_quarantined(*client);
    status.processes.push_back({.pid = static_cast<std::uint64_t>(client->pid()),
                                .state = state(client->joins(), sick),
                                .clock = client->clock(),
                                .steps = client->memory().steps().all,
                                .published_s = static_cast<double>(now_us - client->published_us()) / us_per_s,
                                .buffers = client->memory().on_device() ? client->memory().gpu() : "host",
                                .keeps = client->keeps(),
                                .parts = client->memory().kind().parts});
    status.steps += client->memory().steps().all;
  }
  status.logged = logged_means(clients_, replica_.neighbours());
  status.fragments_pulled = beginning_.fragments_pulled();
  status.donors = beginning_.donors();
  status.pulled_bytes = beginning_.pulled_bytes();
  if (joined_us_ > 0) {
    status.join_s = static_cast<double>(joined_us_ - started_us_) / us_per_s;
    const TimeUs since_us = std::max(joined_us_, fragments.oldest_exchange_us());
    status.fragment_idle_s = static_cast<double>(now_us - since_us) / us_per_s;
  }
  status.age_samples = static_cast<double>(fragments.age_samples(clock()));
  status.payload_bytes_received = payload_bytes_received_;
  status.wanted_period_s = static_cast<double>(options_.get().period_ms) * us_per_ms / us_per_s;
  status.settings = status_of(options_.settings());
  add_counters(status, replica_.counters());
  add_replica(status, replica_, now_us);
  if (gpus_.mean()) add_gpus(status, gpus_.mean()->counters());
  if (checkpoint_writing_) add_checkpoints(status, *checkpoint_writing_, now_us);
  // Only the most important thing that people should know is told.
  if (!options_.objection().empty()) {
    status.note = cannot_follow(options_);
  } else if (!trouble_.for_people().empty()) {
    status.note = trouble_.for_people();
  } else if (const auto& stranger = replica_.neighbours().layout_stranger()) {
    status.note = fmt::format("node {} runs a job of this name with another layout", host_.called(*stranger));
  } else if (checkpoint_writing_) {
    const bool waits = checkpoint_writing_->under_way() || beginning_.is_restoring();
    status.note = note_of(*checkpoint_writing_, waits ? host_.checkpoints()->trouble_text() : "");
  }
  if (status.note.empty()) status.note = beginning_work_.import_refused();
  return status;
}

}  // namespace gossamer::daemon
