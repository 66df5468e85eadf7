#include "daemon/node.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <ranges>
#include <set>

#include "daemon/cluster/incarnation.hpp"
#include "gossip/job_settings.hpp"
#include "peer/admission/denials.hpp"

namespace gossamer::daemon {

namespace {

/// The jobs' tick is a quarter of the shortest period, within these bounds.
constexpr std::chrono::milliseconds shortest_tick{2};
constexpr std::chrono::milliseconds longest_tick{20};
constexpr std::chrono::milliseconds idle_tick{100};  // used while there are no jobs

/// An incarnation this far above the number of the next exchange is due to an earlier life. The refutations of one life
/// add one each.
constexpr std::uint64_t most_refutations = std::uint64_t{60} * us_per_s;

/// A stop waits for clients to collect their corrections: twice as long as their steps take, within these bounds.
constexpr TimeUs least_stop_patience_us = 2 * us_per_s;
constexpr TimeUs most_stop_patience_us = 15 * us_per_s;
constexpr std::size_t max_gone = 4096;  // names of former jobs that are remembered
/// Threads that seal beside the loop need cores of their own. On two cores they cost a fifth of the rate.
constexpr std::int64_t workers_a_seal_thread = 2;
constexpr std::int64_t least_workers_for_seal_threads = 4;
constexpr std::int64_t most_seal_threads = 4;

std::vector<std::string> addresses_to_dial(std::vector<std::string> peers, const std::vector<std::string>& invited_by) {
  for (const std::string& address : invited_by) {
    if (peers.size() < max_peers && std::ranges::find(peers, address) == peers.end()) peers.push_back(address);
  }
  return peers;
}

int seal_threads(std::int64_t workers) {
  if (workers < least_workers_for_seal_threads) return 0;
  return static_cast<int>(std::min(workers / workers_a_seal_thread, most_seal_threads));
}

/// How long before the end of the node's certificate the watch reports it.
constexpr TimeUs certificate_notice_us = 14 * 24 * 3600 * us_per_s;

std::uint64_t time_of_day_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

std::uint64_t seed_of(const Config& config) {
  if (config.gossip.seed != 0) return static_cast<std::uint64_t>(config.gossip.seed);
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

gossip::MembershipOptions membership_options(const Config& config) {
  gossip::MembershipOptions options =
      config.gossip.profile == Profile::internet ? gossip::MembershipOptions::wan() : gossip::MembershipOptions::lan();
  options.probe_interval_us = config.overlay.probe_interval_ms * us_per_ms;
  options.probe_timeout_us = config.overlay.probe_timeout_ms * us_per_ms;
  options.suspicion_mult = static_cast<unsigned>(config.overlay.suspicion_mult);
  options.full_view_limit = static_cast<std::size_t>(config.overlay.full_view_limit);
  options.active_view = static_cast<std::size_t>(config.overlay.active_view);
  options.passive_view = static_cast<std::size_t>(config.overlay.passive_view);
  return options;
}

std::vector<NodeId> denied_by(const Config& config) {
  std::vector<NodeId> nodes;
  for (const std::string& text : config.overlay.denied) {
    if (const auto node = peer::parse_node_id(text)) nodes.push_back(*node);
  }
  return nodes;
}

const JobKey* key_of(const Message& message) {
  return std::visit(
      [](const auto& m) -> const JobKey* {
        if constexpr (requires { m.job; }) {
          return &m.job;
        } else {
          return nullptr;
        }
      },
      message);
}

/// Others may remember an earlier life of this node that was numbered above this one: the clock was wrong then, and the
/// number is lost. Membership outbids what they claim of that life. They would take this life's exchanges for old ones
/// of that life unless these are numbered after them.
void number_after_earlier_lives(gossip::ExchangeCounter& counter, std::uint64_t incarnation) {
  if (incarnation > counter.next() + most_refutations) counter.skip_to(incarnation + incarnation_gap);
}

/// That this node's certificate ends soon, or has ended; and that those of others end soon, or have ended a short while
/// ago: who may sign looks at whatever member is at hand.
void add_certificate_troubles(const peer::Overlay& overlay, TimeUs own_ends_us, TimeUs now_us,
                              std::vector<FindingStatus>& troubles) {
  const auto ends_soon = [&](TimeUs ends_us) { return ends_us <= now_us + certificate_notice_us; };
  const auto add = [&](const char* rule, const char* grade, std::string text) {
    troubles.push_back({.rule = rule,
                        .grade = grade,
                        .text = std::move(text),
                        .advice = "gossamerctl approve --renew 14d --authority FILE on any member, with the key file "
                                  "that they were signed with"});
  };
  if (ends_soon(own_ends_us)) {
    const bool ended = now_us >= own_ends_us;
    add("certificate", ended ? "problem" : "warning",
        fmt::format("this node's certificate {} at {}", ended ? "ended" : "ends", peer::date_text(own_ends_us)));
  }
  std::vector<TimeUs> of_others;
  std::size_t ended = 0;
  for (const auto& [node, entry] : overlay.certificates().entries()) {
    const peer::Warrant& warrant = entry.certificate.warrant;
    const TimeUs ends_us = warrant.valid_until;
    const bool is_denied = overlay.is_denied(node) || overlay.is_denied(NodeId{warrant.invitation});
    if (node == overlay.node() || is_denied || !ends_soon(ends_us) || ends_us < now_us - certificate_notice_us)
      continue;
    of_others.push_back(ends_us);
    if (ends_us <= now_us) ++ended;
  }
  if (!of_others.empty()) {
    add("certificates", "warning",
        fmt::format("certificates of {} other {} end within two weeks{}, the first at {}", of_others.size(),
                    of_others.size() == 1 ? "node" : "nodes",
                    ended > 0 ? fmt::format(" or have ended ({})", ended) : "",
                    peer::date_text(std::ranges::min(of_others))));
  }
}

/// That a node is a member, so that others let it in, and is not let in here, because its invitation was used up.
/// Members that could not hear of each other for a while have let in different nodes.
void add_invitation_troubles(const peer::Overlay& overlay, std::vector<FindingStatus>& troubles) {
  if (!overlay.asks_for_certificates() || overlay.certificates().excess().empty()) return;
  for (const peer::KnownMember& member : overlay.members()) {
    const auto why = overlay.used_up_for(member.node);
    if (!why || overlay.certificate_of(member.node) != nullptr || overlay.is_denied(member.node)) continue;
    troubles.push_back({.rule = "certificates",
                        .grade = "problem",
                        .node = member.node.full(),
                        .name = member.name,
                        .text = fmt::format("members disagree about who is let in: node {} is in elsewhere, and not "
                                            "here, since {}",
                                            member.node.full(), *why),
                        .advice = "gossamerctl approve NODE --authority FILE on any member for each of these nodes "
                                  "that is to stay, and gossamerctl deny for the others"});
  }
}

/// The file is made anew where it is missing, which others take for a new node.
void warn_of_lost_key(const StateFolder& state, spdlog::logger& log) {
  std::error_code ignored;
  const std::filesystem::path key = state.path() / peer::node_key_file_name;
  if (std::filesystem::exists(key, ignored) || !has_lived_before(state)) return;
  log.warn(
      "{} is missing, though a node has run here before: this is a new node for all others, with another id, and "
      "without the certificate of the earlier one; to be that node again, stop this daemon and bring the file back",
      key.string());
}

}  // namespace

std::expected<std::unique_ptr<Node>, std::string> Node::open(asio::io_context& loop, const Config& config,
                                                             const StateFolder& state, Workers& workers,
                                                             Checkpoints& checkpoints, Devices& devices,
                                                             spdlog::logger& log) {
  warn_of_lost_key(state, log);
  auto identity = peer::load_or_create_identity(state.path());
  if (!identity) return std::unexpected(identity.error());
  auto cluster = ClusterState::load(state, config.overlay.cluster_key_file, !config.overlay.join.empty());
  if (!cluster) return std::unexpected(cluster.error());
  const std::uint64_t incarnation = next_incarnation(state, time_of_day_us(), log);
  std::unique_ptr<Node> node(new Node(loop, config, state, std::move(*identity), std::move(*cluster), workers,
                                      checkpoints, devices, log, seed_of(config), incarnation));
  peer::OverlaySettings options;
  options.listen = config.overlay.listen;
  options.advertise = config.overlay.advertise;
  options.interface = config.overlay.interface;
  options.bulk = config.overlay.bulk;
  options.peers = addresses_to_dial(node->config_.overlay.peers, node->cluster_.invited_by());
  options.remembered = node->acquaintances_.addresses();
  options.denied = denied_by(config);
  options.denials = node->cluster_.denials();
  options.audit = node->cluster_.audit();
  options.certificates = node->cluster_.certificates();
  options.name = config.node.name;
  options.incarnation = incarnation;
  options.ping_interval_ms = static_cast<int>(config.overlay.ping_ms);
  options.link_timeout_ms = static_cast<int>(config.overlay.link_timeout_ms);
  options.membership = membership_options(config);
  options.io_threads = static_cast<int>(config.node.io_threads);
  options.seal_threads = seal_threads(config.node.workers);
  options.bytes_per_s = config.gossip.max_mbit_s * bytes_per_mbit;
  options.link_bytes_per_s = config.gossip.link_max_mbit_s * bytes_per_mbit;
  peer::OverlayEvents& events = *node;
  // The pointer owns nothing: the logger is main's, and outlives the overlay.
  std::shared_ptr<spdlog::logger> overlay_log(std::shared_ptr<void>(), &log);
  node->overlay_ = std::make_unique<peer::Overlay>(
      loop, std::move(options), node->identity_, node->cluster_.key_ring(), events, std::move(overlay_log),
      gossip::Random(node->random_.next()), [raw = node.get()] { return raw->now_us(); },
      [] { return static_cast<TimeUs>(time_of_day_us()); });
  if (auto started = node->overlay_->start(); !started) return std::unexpected(started.error());
  node->job_rights_ = std::make_unique<JobRights>(*node->overlay_);
  node->commands_ = std::make_unique<ClusterCommands>(loop, *node->overlay_, node->cluster_, config.node.name, log);
  if (node->cluster_.waits_to_join()) node->commands_->join_until_granted(config.overlay.join);
  node->schedule_tick();
  node->cluster_view_.start();
  return node;
}

Node::Node(asio::io_context& loop, const Config& config, const StateFolder& state, peer::Identity identity,
           ClusterState cluster, Workers& workers, Checkpoints& checkpoints, Devices& devices, spdlog::logger& log,
           std::uint64_t seed, std::uint64_t incarnation)
    : config_(config),
      identity_(std::move(identity)),
      cluster_(std::move(cluster)),
      workers_(workers),
      checkpoints_(checkpoints),
      devices_(devices),
      log_(log),
      gpu_sums_(log),
      random_(seed),
      counter_(incarnation),  // larger than all counters of earlier lives of this daemon
      incarnation_(incarnation),
      acquaintances_(state, checkpoints.disk(), log),
      averages_(loop, *this, incarnation, config.limits.for_clients(), log),
      cluster_view_(loop, identity_.node, cluster_view_host(), gossip::Random(random_.next())),
      timer_(loop) {}

Node::~Node() {
  for (auto& [name, held] : jobs_)
    held.job->end();
}

TimeUs Node::now_us() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// --- clients ------------------------------------------------------------------------------------------------------

std::expected<void, AttachRefusal> Node::attach(std::shared_ptr<ClientSession> session) {
  const ClientMemory& memory = session->memory();
  if (const auto why = job_rights_->objection_to(memory.job(), memory.kind().keeps))
    return cannot_attach(layout::AttachStatus::not_permitted, *why);
  if (const auto found = jobs_.find(memory.key().name_hash); found != jobs_.end()) {
    if (Job& job = *found->second.job; !job.client_gone()) return job.add(std::move(session));
    remove(found);  // the former clients are gone; their job's work is given up
  }
  const auto limit = static_cast<std::size_t>(config_.limits.jobs);
  if (jobs_.size() >= limit) remove_oldest_without_clients();
  if (jobs_.size() >= limit) {
    return cannot_attach(layout::AttachStatus::limit_reached,
                         fmt::format("this daemon has {} jobs, which is its limit; raise [limits] jobs", jobs_.size()));
  }
  auto job = Job::make(*this, session, config_.gossip, counter_, random_.next());
  if (!job) return std::unexpected(std::move(job.error()));
  jobs_[memory.key().name_hash] = {.job = *job};
  (*job)->set_follows(job_rights_->only_follows());
  (*job)->start(seen_);
  if (drained_) (*job)->set_drained(true);
  return {};
}

const gossip::Device* Node::home_of(const ClientMemory& memory) const {
  const auto found = jobs_.find(memory.key().name_hash);
  return found == jobs_.end() || found->second.job->client_gone() ? nullptr : found->second.job->home_for(memory);
}

/// Closes the sessions that use a failed GPU: their clients attach again with buffers in the host's memory.
void Node::give_failed_gpus_up() {
  for (const gossip::Device* const gpu : devices_.failed()) {
    for (auto& [name, held] : jobs_)
      held.job->gpu_failed(*gpu);
  }
}

/// The answer about a job that has no client here. If its clients were seen to go, the answer also says that their
/// exchanges are over (`first_exchange`). Otherwise the clients may be about to come back.
JobInfo Node::absent(const JobKey& key) const {
  return {.job = key, .first_exchange = gone_.contains(key.name_hash) ? counter_.next() : 0};
}

Job* Node::job_of(const ClientSession& session) {
  return job_named(session.memory().key().name_hash);
}

Job* Node::job_named(std::uint64_t name_hash) {
  const auto found = jobs_.find(name_hash);
  return found == jobs_.end() ? nullptr : found->second.job.get();
}

void Node::woken(ClientSession& session) {
  if (Job* job = job_of(session)) job->woken(session);
}

void Node::detached(ClientSession& session) {
  Job* job = job_of(session);
  if (job == nullptr) return;
  if (job->detached(session) && job->client_gone()) jobs_[session.memory().key().name_hash].gone_us = now_us();
}

void Node::remove(std::map<std::uint64_t, Held>::iterator position) {
  const JobInfo info = position->second.job->farewell(seen_);
  for (const NodeId& node : neighbours())
    send(node, info);
  if (gone_.size() < max_gone) gone_.insert(position->first);
  position->second.job->end();
  jobs_.erase(position);
}

/// Jobs without clients only finish what is in flight. They are in nobody's way: no user's limit counts them.
void Node::remove_oldest_without_clients() {
  auto oldest = jobs_.end();
  for (auto position = jobs_.begin(); position != jobs_.end(); ++position) {
    const bool is_older = oldest == jobs_.end() || position->second.gone_us < oldest->second.gone_us;
    if (position->second.job->client_gone() && is_older) oldest = position;
  }
  if (oldest != jobs_.end()) remove(oldest);
}

void Node::remove_finished_jobs() {
  for (auto position = jobs_.begin(); position != jobs_.end();) {
    const auto next = std::next(position);
    const Held& held = position->second;
    if (held.job->client_gone() && (held.job->done() || now_us() - held.gone_us > job_grace_us)) remove(position);
    position = next;
  }
}

// --- overlay ------------------------------------------------------------------------------------------------------

bool Node::send(const NodeId& to, const Message& message) {
  return overlay_->send(to, message) == peer::SendResult::sent;
}

std::vector<NodeId> Node::neighbours() const {
  std::vector<NodeId> nodes;
  for (const peer::LinkStatus& link : overlay_->links()) {
    if (link.up) nodes.push_back(link.node);
  }
  return nodes;
}

std::map<NodeId, TimeUs> Node::round_trips_us() const {
  std::map<NodeId, TimeUs> round_trips;
  for (const peer::LinkStatus& link : overlay_->links()) {
    if (link.up && link.round_trip_ms > 0) round_trips[link.node] = static_cast<TimeUs>(link.round_trip_ms * us_per_ms);
  }
  return round_trips;
}

std::vector<std::string> Node::jobs_elsewhere() const {
  std::set<std::string> jobs;
  for (const SummaryStatus& other : cluster_view_.statuses()) {
    for (const JobSummaryStatus& job : other.jobs)
      jobs.insert(job.job);
  }
  return {jobs.begin(), jobs.end()};
}

std::string Node::called(const NodeId& node) const {
  const std::string name = overlay_->name_of(node);
  return name.empty() ? node.brief() : fmt::format("{} ({})", node.brief(), name);
}

double Node::capacity_bytes_s() const {
  return overlay_->goodput_bytes_s() / static_cast<double>(std::max<std::size_t>(jobs_.size(), 1));
}

void Node::link_up(const NodeId& node) {
  log_.info("node {} is linked", called(node));
  for (auto& [name, held] : jobs_)
    held.job->link_up(node);
  averages_.link_up(node);
}

void Node::link_down(const NodeId& node, const std::string& reason) {
  log_.info("the link to node {} is down: {}", called(node), reason);
  for (auto& [name, held] : jobs_)
    held.job->link_down(node);
  averages_.link_down(node);
}

void Node::node_dead(const NodeId& node) {
  log_.info("node {} is gone", called(node));
  for (auto& [name, held] : jobs_)
    held.job->node_dead(node);
  averages_.node_dead(node);
}

void Node::settings_followed(const std::string& job, const JobSettings& settings) {
  if (settings.version == 0) return;
  const std::string what = fmt::format("settings of the job {}, version {}: {}{}", job, settings.version,
                                       settings_text(settings.values), settings.signature ? " (signed)" : "");
  // A restarted daemon follows the same settings again. The audit notes them only once.
  const auto is_the_same = [&](const peer::AuditRecord& record) {
    return record.told_by == settings.author && record.what.starts_with(what);
  };
  if (std::ranges::none_of(overlay_->audit().records(), is_the_same)) overlay_->note_taken(settings.author, what);
}

bool Node::may_train(const NodeId& node, std::string_view job) const {
  return job_rights_->may_train(node, job);
}

/// Whether the message may be handled. A message that names no job of this node cannot change a job here.
bool Node::admits(const NodeId& from, Message& message) {
  const JobKey* const key = key_of(message);
  const Job* const job = key == nullptr ? nullptr : job_named(key->name_hash);
  return job == nullptr ||
         job_rights_->admit(from, message, {.name = job->name(), .settings = job->options().settings(), .joins = [job] {
                                              return job->info().state == ReplicaState::joining;
                                            }});
}

void Node::received(const NodeId& from, Message&& message) {
  if (!admits(from, message)) return;
  if (std::holds_alternative<ExchangeAck>(message)) {
    // The message names an exchange and no job: only the job that keeps the reply reacts.
    for (auto& [name, held] : jobs_)
      held.job->received(from, Message(message));
    return;
  }
  if (const auto* said = std::get_if<Summaries>(&message)) return cluster_view_.hear(*said);
  if (auto* note = std::get_if<gossip::AverageNote>(&message)) return averages_.received(from, std::move(*note));
  if (auto* part = std::get_if<gossip::AverageValues>(&message)) return averages_.received(from, std::move(*part));
  if (std::holds_alternative<JobQuery>(message)) {
    const JobKey key = *key_of(message);
    const Job* job = job_named(key.name_hash);
    if (job == nullptr || job->has_begun()) send(from, job != nullptr ? job->info() : absent(key));
    return;
  }
  if (const auto* query = std::get_if<LayoutQuery>(&message)) {
    const Job* job = job_named(query->job.name_hash);
    const bool fits = job != nullptr && (query->job.layout_hash == 0 || query->job == job->key());
    send(from,
         fits ? job->layout(query->first_tensor) : LayoutReply{.job = query->job, .first_tensor = query->first_tensor});
    return;
  }
  if (auto* told = std::get_if<LayoutReply>(&message)) {
    if (job_rights_->may_give(from, layouts_.asked_job(told->job.name_hash))) layouts_.heard(from, std::move(*told));
    return;
  }
  if (Job* job = job_named(key_of(message)->name_hash)) {
    job->received(from, std::move(message));
  } else {
    received_without_job(from, message);
  }
}

/// A job exchanges nothing once this node's certificate no longer lets the node train it.
void Node::drain_if_needed(Job& job) {
  const auto objection = job.client_gone() ? std::nullopt : job_rights_->objection_to(job.name(), job.info().keeps);
  if (objection) log_.warn("job {}: exchanges nothing: {}", job.name(), *objection);
  job.set_follows(job_rights_->only_follows());
  job.set_drained(drained_ || objection);
}

void Node::drain_as_needed() {
  for (auto& [name, held] : jobs_)
    drain_if_needed(*held.job);
}

void Node::received_without_job(const NodeId& from, const Message& message) {
  if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
    // A second copy of the request may arrive after a client has attached. It must be refused then, too.
    gossip::ReplyCache::add_seen({from, request->counter}, seen_);
    send(from, ExchangeReply{.counter = request->counter,
                             .job = request->job,
                             .fragment = request->fragment,
                             .status = ReplyStatus::refused,
                             .reason = RefuseReason::unknown_job,
                             .codec = request->codec});
  } else if (const auto* pull = std::get_if<PullRequest>(&message)) {
    send(from, PullReply{.job = pull->job, .fragment = pull->fragment, .reason = RefuseReason::unknown_job});
  }
}

// --- time ---------------------------------------------------------------------------------------------------------

void Node::schedule_tick() {
  const std::chrono::milliseconds quarter{config_.gossip.period_ms / 4};
  timer_.expires_after(jobs_.empty() ? idle_tick : std::clamp(quarter, shortest_tick, longest_tick));
  timer_.async_wait([this](std::error_code error) {
    if (error) return;
    tick();
    schedule_tick();
  });
}

void Node::tick() {
  const bool all_dialled = overlay_->all_dialled();
  for (auto& [name, held] : jobs_)
    held.job->tick(all_dialled);
  averages_.tick(all_dialled);
  number_after_earlier_lives(counter_, overlay_->membership().incarnation);
  give_failed_gpus_up();
  devices_.look_at_overflow();
  gpu_sums_.tick();
  remove_finished_jobs();
  decisions_.tick(*overlay_, now_us());
  if (job_rights_->own_have_changed()) drain_as_needed();
  keep_acquaintances();
  checkpoints_.watch(now_us());
  if (stopped_) finish_stop_if_idle();
}

void Node::keep_acquaintances() {
  if (now_us() < next_keep_us_) return;
  next_keep_us_ = now_us() + keep_interval_us;
  std::vector<std::string> addresses;
  for (peer::KnownMember& member : overlay_->members()) {
    if (!member.address.empty()) addresses.push_back(std::move(member.address));
  }
  acquaintances_.keep(std::move(addresses));
}

TimeUs Node::stop_patience_us() const {
  TimeUs step_us = 0;
  for (const auto& [name, held] : jobs_)
    step_us = std::max(step_us, held.job->step().us);
  return std::clamp(2 * step_us, least_stop_patience_us, most_stop_patience_us);
}

void Node::begin_stop(std::function<void()> stopped) {
  stopped_ = std::move(stopped);
  stop_at_us_ = now_us() + stop_patience_us();
  for (auto& [name, held] : jobs_)
    held.job->drain();
  next_keep_us_ = 0;  // stores the members known now, for the next start
  tick();
}

void Node::begin_leave(std::chrono::microseconds patience, std::function<void()> stopped) {
  stopped_ = std::move(stopped);
  const TimeUs deadline_us = now_us() + patience.count();
  stop_at_us_ = deadline_us + stop_patience_us();
  for (auto& [name, held] : jobs_)
    held.job->leave(deadline_us);
  next_keep_us_ = 0;
  tick();
}

void Node::set_drained(bool drained) {
  if (drained_ == drained) return;
  drained_ = drained;
  log_.info(drained ? "drained: takes part in no exchange until told otherwise" : "takes part in exchanges again");
  drain_as_needed();
}

void Node::finish_stop_if_idle() {
  const bool done = std::all_of(jobs_.begin(), jobs_.end(), [](const auto& item) { return item.second.job->done(); });
  if (!done && now_us() < stop_at_us_) return;
  for (auto& [name, held] : jobs_) {
    if (const auto text = held.job->handover_text(); !text.empty()) log_.info("job {}: {}", held.job->name(), text);
    held.job->end();
  }
  decisions_.keep_changed(*overlay_, now_us());
  commands_->stop();
  overlay_->stop();
  std::exchange(stopped_, nullptr)();
}

nlohmann::json not_kept(const std::string& why) {
  return {{"error", fmt::format("the cluster follows it, but this node forgets it with its next start, since it cannot "
                                "be written: {}; once it can, it is, within ten seconds",
                                why)}};
}

nlohmann::json not_attached(const std::string& job) {
  return {{"error", fmt::format("no training process of a job \"{}\" is attached here", job)}};
}

/// checkpoint {job} begins a checkpoint and answers its number. checkpoint_status {job} answers how the latest finished
/// attempt ended. import {job} answers the folder for a file to import, if the job does not run.
nlohmann::json Node::answer_checkpoint(const nlohmann::json& request) {
  const auto name = request.at("job").get<std::string>();
  Job* job = job_named(job_name_hash(name));
  if (request.at("command") == "import") {
    if (job == nullptr || job->client_gone()) return {{"folder", checkpoints_.options().folder.string()}};
    return {{"error", fmt::format("job {} runs here, and a running job is not overwritten: end its training processes "
                                  "on all nodes, import, and start those of this node first; or choose another job",
                                  name)}};
  }
  if (job == nullptr) return not_attached(name);
  if (request.at("command") == "checkpoint") {
    const auto number = job->request_checkpoint();
    if (!number) return {{"error", number.error()}};
    return {{"number", *number}};
  }
  const CheckpointWriting::Outcome& latest = job->checkpoint_writing()->latest();
  return {{"number", latest.number},
          {"path", latest.path},
          {"clock", latest.clock},
          {"failure", latest.error},
          {"disk", checkpoints_.trouble_text()}};
}

/// job_set {job, values: {NAME: VALUE}} changes the job's settings, and answers them all.
nlohmann::json Node::answer_job_set(const nlohmann::json& request) {
  const auto name = request.at("job").get<std::string>();
  Job* job = job_named(job_name_hash(name));
  if (job == nullptr || job->client_gone()) return not_attached(name);
  if (const auto why = job_rights_->objection_to(name, job->info().keeps)) return {{"error", *why}};
  std::vector<JobSetting> changes;
  for (const auto& [key, value] : request.at("values").items())
    changes.push_back({key, value.get<std::string>()});
  auto next = job->options().changed(changes, id());
  if (!next) return {{"error", next.error()}};
  const auto& deciders = overlay_->deciders();
  const auto is_sound = [&](const JobSettings& settings) {
    return deciders->have_signed(peer::Power::settings, peer::settings_statement(name, settings), settings.signature);
  };
  const JobSettings& present = job->options().settings();
  if (deciders && *next == present && !is_sound(present) && present.version > 0 &&
      present.version < max_settings_version) {
    // The other members do not follow settings without a sound signature, so these get a new version to be signed.
    next = JobSettings{.version = present.version + 1, .author = id(), .values = present.values};
  }
  if (!deciders || *next == present) return job->change_settings(*next);
  if (!request.contains("signatures")) return commands_->to_sign_answer(nlohmann::json::array({to_sign(name, *next)}));
  const peer::Statement statement = peer::settings_statement(name, *next);
  const peer::Signatures signatures = signatures_in(request);
  const auto found = signatures.find(statement);
  if (found != signatures.end()) next->signature = found->second;
  if (!is_sound(*next))
    return {{"error", "the settings have changed meanwhile, or nobody who may has signed them: try again"}};
  return job->change_settings(*next);
}

/// layout {job, layout, first} answers the tensors from `first` on, of a job with this layout (16 hex digits; empty:
/// any layout).
nlohmann::json Node::answer_layout(const nlohmann::json& request) {
  const auto name = request.at("job").get<std::string>();
  const auto first = number_in<std::uint32_t>(request, "first");
  const std::uint64_t layout = std::strtoull(request.at("layout").get<std::string>().c_str(), nullptr, 16);
  const Job* job = job_named(job_name_hash(name));
  const bool here = job != nullptr && !job->client_gone() && (layout == 0 || layout == job->key().layout_hash);
  return here ? LayoutSearch::as_json(job->layout(first)) : layouts_.ask(name, layout, first);
}

std::vector<ControlCommand> Node::control_commands() {
  std::vector<ControlCommand> table = commands_->control_commands();
  for (ControlCommand& command : table) {
    if (command.whom == CommandFor::everyone) continue;
    const bool only_begins = std::string_view(command.name) == "join";
    command.answer = [this, only_begins, decide = std::move(command.answer)](const nlohmann::json& request) {
      auto answer = decide(request);
      // The decision is written before the operator gets the answer. The overlay reports changes too late for that, in
      // the loop's next turn.
      const auto kept = decisions_.keep_all(*overlay_, now_us());
      if (!kept && !only_begins && !answer.contains("error") && !answer.contains("to_sign"))
        answer = not_kept(kept.error());
      return answer;
    };
  }
  const auto checkpoint = [this](const nlohmann::json& request) { return answer_checkpoint(request); };
  table.push_back({"checkpoint", CommandFor::steerers, checkpoint});
  table.push_back({"checkpoint_status", CommandFor::everyone, checkpoint});
  table.push_back({"import", CommandFor::owners, checkpoint});
  table.push_back({"layout", CommandFor::everyone, [this](const auto& request) { return answer_layout(request); }});
  table.push_back({"job_set", CommandFor::steerers, [this](const auto& request) { return answer_job_set(request); }});
  return table;
}

void Node::reconfigure(const Config& config) {
  config_ = config;
  if (auto set = overlay_->set_peers(addresses_to_dial(config_.overlay.peers, cluster_.invited_by())); !set)
    log_.error("the peers stay as they were: {}", set.error());
  if (auto set = overlay_->set_advertise(config.overlay.advertise); !set)
    log_.error("others are told to dial the same address as before: {}", set.error());
  averages_.set_limits(config.limits.for_clients());
  averages_.end_not_permitted();
  overlay_->set_denied(denied_by(config));
  overlay_->set_rates(config.gossip.max_mbit_s * bytes_per_mbit, config.gossip.link_max_mbit_s * bytes_per_mbit);
  checkpoints_.set_options(config.checkpoints);
  for (auto& [name, held] : jobs_)
    held.job->set_options(config.gossip);
}

// --- status -------------------------------------------------------------------------------------------------------

NodeStatus Node::node_status() const {
  NodeStatus status;
  status.node = id().full();
  status.name = config_.node.name;
  status.address = overlay_->address();
  status.incarnation = incarnation_;
  status.jobs = static_cast<std::uint32_t>(jobs_.size());
  for (const peer::LinkStatus& link : overlay_->links()) {
    status.peers += link.node == NodeId{} ? 0 : 1;
    status.neighbours += link.up ? 1 : 0;
  }
  const peer::MembershipStatus membership = overlay_->membership();
  status.members = static_cast<std::uint32_t>(membership.members);
  status.view = static_cast<std::uint32_t>(membership.view);
  status.passive_view = static_cast<std::uint32_t>(membership.passive);
  status.partial_view = membership.partial;
  status.health = static_cast<std::uint32_t>(membership.health);
  status.deaths = membership.counters.deaths;
  status.refutations = membership.counters.refutations;
  const peer::OverlayCounters counters = overlay_->counters();
  const peer::Traffic& traffic = counters.traffic;
  status.messages_sent = traffic.messages_sent;
  status.messages_received = traffic.messages_received;
  status.bytes_sent = traffic.bytes_sent();
  status.bytes_received = traffic.bytes_received();
  status.payload_bytes_sent = traffic.payload_bytes_sent;
  status.payload_bytes_received = traffic.payload_bytes_received;
  status.messages_rejected = counters.malformed + job_rights_->refused();
  status.links_lost = counters.links_lost;
  status.decisions_refused = counters.decisions_refused;
  status.admissions_refused = counters.admissions_refused + counters.hellos_throttled;
  status.handshakes_failed = counters.handshakes_failed;
  status.strangers_closed = counters.strangers_closed;
  status.link_attempts = counters.attempts;
  status.link_attempts_failed = counters.attempts_failed;
  status.sends_full = counters.sends_full;
  status.certificate_ends_us = certificate_ends_us();
  return status;
}

/// In microseconds since 1970; 0: it has none, or the cluster asks for none.
TimeUs Node::certificate_ends_us() const {
  const peer::Certificate* const own = overlay_->certificates().of(id());
  return own == nullptr || !overlay_->asks_for_certificates() ? 0 : own->warrant.valid_until;
}

std::vector<FindingStatus> Node::troubles() const {
  std::vector<FindingStatus> troubles;
  if (auto disk = checkpoints_.trouble()) troubles.push_back(*std::move(disk));
  if (auto unsaved = decisions_.trouble()) troubles.push_back(*std::move(unsaved));
  if (const TimeUs ends_us = certificate_ends_us(); ends_us != 0)
    add_certificate_troubles(*overlay_, ends_us, static_cast<TimeUs>(time_of_day_us()), troubles);
  add_invitation_troubles(*overlay_, troubles);
  return troubles;
}

ClusterViewHost Node::cluster_view_host() {
  return {.now_us = [this] { return now_us(); },
          .own = [this] { return own_summary(); },
          .neighbours = [this] { return neighbours(); },
          .send = [this](const NodeId& to, const Message& message) { send(to, message); }};
}

NodeSummary Node::own_summary() const {
  NodeSummary summary;
  summary.incarnation = incarnation_;
  summary.name = config_.node.name;
  const std::vector<NodeId> linked = neighbours();
  summary.neighbours = static_cast<std::uint32_t>(linked.size());
  for (const NodeId& node : linked | std::views::take(max_summary_links))
    summary.linked.push_back(node.prefix());
  summary.goodput_bytes_s = static_cast<std::uint64_t>(overlay_->goodput_bytes_s());
  for (const auto& [name, held] : jobs_) {
    if (summary.jobs.size() < max_summary_jobs) summary.jobs.push_back(summary_of(held.job->status()));
  }
  return summary;
}

std::vector<PeerStatus> Node::peer_statuses() const {
  std::vector<PeerStatus> statuses;
  for (const peer::LinkStatus& link : overlay_->links()) {
    PeerStatus status;
    status.node = link.node == NodeId{} ? "" : link.node.full();
    status.name = link.name;
    status.address = link.address;
    status.up = link.up;
    status.dialled_by_us = link.dialled_by_us;
    status.bulk = peer::name_of(link.bulk);
    status.round_trip_ms = link.round_trip_ms;
    status.last_round_trip_ms = link.last_round_trip_ms;
    status.least_round_trip_ms = link.least_round_trip_ms;
    status.goodput_mbit_s = link.goodput_bytes_s / bytes_per_mbit;
    status.queued_bytes = link.queued_bytes;
    status.under_way_bytes = link.under_way_bytes;
    status.up_s = link.up ? static_cast<double>(now_us() - link.up_since) / us_per_s : 0;
    status.messages_sent = link.traffic.messages_sent;
    status.messages_received = link.traffic.messages_received;
    status.bytes_sent = link.traffic.bytes_sent();
    status.bytes_received = link.traffic.bytes_received();
    status.note = link.up ? "" : link.passing ? "linked for a message or two: no neighbour" : link.last_error;
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<ClusterMemberStatus> Node::member_statuses() const {
  std::vector<ClusterMemberStatus> statuses;
  for (const peer::KnownMember& member : overlay_->members()) {
    ClusterMemberStatus status;
    status.node = member.node.full();
    status.name = member.name;
    status.address = member.address;
    status.state = member.suspected ? "suspected" : "alive";
    status.linked = member.linked;
    status.incarnation = member.incarnation;
    status.heard_s = static_cast<double>(now_us() - member.last_heard) / us_per_s;
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<JobStatus> Node::job_statuses() const {
  std::vector<JobStatus> statuses;
  for (const auto& [name, held] : jobs_)
    statuses.push_back(held.job->status());
  return statuses;
}

}  // namespace gossamer::daemon
