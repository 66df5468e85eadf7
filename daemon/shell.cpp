#include "daemon/shell.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <asio/post.hpp>
#include <csignal>
#include <iterator>
#include <utility>

#include "daemon/report/self_report.hpp"
#include "sdk/layout/average.hpp"
#include "sdk/layout/names.hpp"
#include "sdk/layout/socket_path.hpp"

namespace gossamer::daemon {
namespace {

double process_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t heap_bytes() {
  const struct mallinfo2 heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

std::string count(std::size_t number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace

std::expected<std::filesystem::path, std::string> socket_folder(const Config& config) {
  if (config.node.socket_dir.empty()) return layout::make_socket_folder();
  std::error_code error;
  std::filesystem::create_directories(config.node.socket_dir, error);
  if (error)
    return std::unexpected(
        fmt::format("{}: the folder for the sockets cannot be made: {}; set [node] socket_dir to "
                    "another",
                    config.node.socket_dir.string(), error.message()));
  return config.node.socket_dir;
}

Shell::Shell(asio::io_context& loop, Config config, ConfigSource source, Core& core, Log& log)
    : loop_(loop),
      config_(std::move(config)),
      rights_(config_.rights.train, config_.rights.steer),
      source_(std::move(source)),
      core_(core),
      log_(log),
      started_(std::chrono::steady_clock::now()),
      service_manager_(loop),
      kept_(loop, service_manager_, log.logger()),
      gpus_(loop, config_.gpus.library, log.logger()),
      signals_(loop, SIGTERM, SIGINT, SIGHUP),
      status_timer_(loop),
      grace_timer_(loop),
      watch_timer_(loop),
      commands_(control_commands()) {}

double Shell::uptime_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

std::expected<std::unique_ptr<Shell>, std::string> Shell::open(asio::io_context& loop, Config config,
                                                               ConfigSource source,
                                                               const std::filesystem::path& socket_folder, Core& core,
                                                               Log& log) {
  std::unique_ptr<Shell> shell(new Shell(loop, std::move(config), std::move(source), core, log));
  ClientListenerOptions options;
  options.socket = socket_folder / layout::client_socket_name;
  options.node = core.id();
  options.limits = shell->config_.limits.for_clients();
  options.rights = &shell->rights_;
  options.kept = &shell->kept_;
  options.devices = core.devices();
  auto clients = ClientListener::open(loop, std::move(options), core, log.logger());
  if (!clients) return std::unexpected(std::move(clients.error()));
  shell->clients_ = std::move(*clients);
  if (auto averages = core.open_averages(socket_folder / layout::average_socket_name, shell->rights_); !averages)
    return std::unexpected(std::move(averages.error()));
  auto control = ControlServer::open(
      loop, socket_folder / layout::control_socket_name,
      [&shell = *shell](const nlohmann::json& request, const Caller& caller) { return shell.answer(request, caller); },
      log.logger());
  if (!control) return std::unexpected(std::move(control.error()));
  shell->control_ = std::move(*control);
  shell->warn_of_unknown_users();
  shell->open_page();
  return shell;
}

/// Training does not depend on the page: if its address is taken, the daemon goes on without it.
void Shell::open_page() {
  if (config_.metrics.listen.empty()) return;
  PageSources sources{.observed =
                          [this] {
                            std::vector<JobStatus> jobs = core_.job_statuses();
                            gpus::GpuReport gpus = gpus_.report(jobs);
                            return Observed{node_status(), core_.peer_statuses(), std::move(jobs), std::move(gpus)};
                          },
                      .members = [this] { return core_.member_statuses(); },
                      .cluster = [this] { return core_.summary_statuses(); },
                      .log = [this] { return log_.recent(); }};
  auto page = Page::open(loop_, config_.metrics.listen, std::move(sources), log_.logger());
  if (page) {
    page_ = std::move(*page);
  } else {
    log_.logger().warn("no status page and no metrics: {}", page.error());
  }
}

void Shell::run() {
  expect_signal();
  service_manager_.ready();
  report_status();
  watch();
  loop_.run();
}

void Shell::expect_signal() {
  signals_.async_wait([this](std::error_code error, int signal) {
    if (error) return;
    expect_signal();
    if (signal == SIGHUP) return reload_config();
    log_.logger().info("{}: {}", signal == SIGINT ? "interrupted" : "told to stop",
                       stopping_ ? "stopping at once" : "finishing the exchanges in flight");
    stop();
  });
}

void Shell::stop() {
  if (stopping_) return loop_.stop();
  stopping_ = true;
  service_manager_.stopping();
  clients_->refuse_new();
  end_after(stop_grace);
  core_.begin_stop([this] { loop_.stop(); });
}

void Shell::leave(std::chrono::milliseconds patience) {
  if (stopping_ || std::exchange(leaving_, true)) return;
  log_.logger().info("leaving on request: what was learned here is handed over, for at most {:.0f} s",
                     std::chrono::duration<double>(patience).count());
  clients_->refuse_new();
  end_after(patience + stop_grace);
  // systemd is not told, because it would then allow no more time than for any stop.
  core_.begin_leave(patience, [this] { loop_.stop(); });
}

void Shell::end_after(std::chrono::milliseconds patience) {
  grace_timer_.expires_after(patience);
  grace_timer_.async_wait([this](std::error_code error) {
    if (error) return;
    log_.logger().warn("exchanges are still in flight: stopping without them");
    loop_.stop();
  });
}

void Shell::reload_config() {
  service_manager_.reloading();
  spdlog::logger& log = log_.logger();
  if (auto reopened = log_.reopen(); !reopened) log.error("the log goes on in the old file: {}", reopened.error());
  clients_->look_at_socket();
  const std::expected<Config, std::string> next = source_();
  if (!next) {
    log.error("the new configuration is wrong, so the old one stays in use:\n{}", next.error());
    config_error_ = next.error();
  } else {
    config_error_.clear();
    const Reload reloaded = reload(config_, *next);
    config_ = reloaded.config;
    log_.set_level(config_.log.level);
    rights_ = UserRights(config_.rights.train, config_.rights.steer);
    warn_of_unknown_users();
    core_.reconfigure(config_);
    clients_->end_not_permitted();
    log.info("reloaded: {}", reloaded.changed.empty() ? "nothing that can change while running has changed"
                                                      : fmt::format("{}", fmt::join(reloaded.changed, ", ")));
    if (!reloaded.need_restart.empty())
      log.warn("these changes need a restart: {}", fmt::join(reloaded.need_restart, ", "));
  }
  service_manager_.ready();
}

NodeStatus Shell::node_status() const {
  NodeStatus status = core_.node_status();
  status.version = GOSSAMER_VERSION;
  status.state = stopping_ ? "stopping" : leaving_ ? "leaving" : core_.drained() ? "drained" : "running";
  status.uptime_s = uptime_s();
  status.cpu_s = process_cpu_s();
  status.heap_bytes = heap_bytes();
  status.clients = static_cast<std::uint32_t>(clients_->sessions());
  status.memory_bytes = clients_->memory_bytes();
  if (const Devices* const devices = core_.devices()) {
    status.device_memory_bytes = devices->mapped_bytes();
    status.device_overflow_bytes = devices->overflow_bytes();
  }
  status.clients_awaited = static_cast<std::uint32_t>(kept_.awaited());
  status.limits_near = clients_->limits_near();
  if (page_) status.page = page_->url();
  status.findings = watch_.findings(status.uptime_s);
  return status;
}

nlohmann::json Shell::answer_leave(const nlohmann::json& request) {
  const double patience_s = request.value("timeout_s", default_leave_s);
  if (!(patience_s >= 0 && patience_s <= max_leave_s))
    return {{"error", fmt::format("timeout_s is a number of seconds from 0 to {}", max_leave_s)}};
  // The leave is posted, so that the answer is sent before it begins.
  asio::post(loop_,
             [this, patience_s] { leave(std::chrono::milliseconds{static_cast<std::int64_t>(patience_s * 1e3)}); });
  return {{"leaving", true}, {"timeout_s", patience_s}};
}

nlohmann::json Shell::answer_drain(const nlohmann::json& request) {
  core_.set_drained(!request.value("off", false));
  return {{"drained", core_.drained()}};
}

nlohmann::json Shell::answer(const nlohmann::json& request, const Caller& caller) const {
  struct Operator {
    Core& core;
    ~Operator() { core.set_operator({}); }
  };
  core_.set_operator(caller.user == 0 ? "root" : fmt::format("user {}", caller.user));
  const Operator until_answered{core_};
  return answer_from(commands_, request, [&](CommandFor whom) {
    return whom == CommandFor::everyone || is_owner(caller.user) ||
           (whom == CommandFor::steerers && layout::is_job_name(request.value("job", "")) &&
            rights_.may_steer(caller, request.value("job", "")));
  });
}

void Shell::warn_of_unknown_users() const {
  for (const std::string& name : rights_.unknown())
    log_.logger().warn(
        "[rights] names {}, whom this machine does not have: nobody gets a right by it. If it is there "
        "now, reload gossamerd",
        name);
}

std::vector<ControlCommand> Shell::control_commands() {
  using nlohmann::json;
  std::vector<ControlCommand> table = {
      {"status", CommandFor::everyone, [this](const json&) { return status_answer(node_status()); }},
      {"peers", CommandFor::everyone, [this](const json&) { return peers_answer(core_.peer_statuses()); }},
      {"members", CommandFor::everyone, [this](const json&) { return members_answer(core_.member_statuses()); }},
      {"jobs", CommandFor::everyone, [this](const json&) { return jobs_answer(core_.job_statuses()); }},
      {"gpus", CommandFor::everyone, [this](const json&) -> json { return gpus_.report(core_.job_statuses()); }},
      {"doctor", CommandFor::everyone, [this](const json&) { return self_report(config_); }},
      {"drain", CommandFor::owners, [this](const json& request) { return answer_drain(request); }},
      {"leave", CommandFor::owners, [this](const json& request) { return answer_leave(request); }},
  };
  std::ranges::move(core_.control_commands(), std::back_inserter(table));
  return table;
}

void Shell::watch() {
  const gossip::PartnerPolicy partners = config_.gossip.partners;
  std::vector<FindingStatus> troubles = core_.troubles();
  if (!config_error_.empty()) {
    troubles.push_back({.rule = "config",
                        .grade = "warning",
                        .text = fmt::format("the configuration file is wrong, and the one before it is in use: {}",
                                            config_error_.substr(0, config_error_.find('\n'))),
                        .advice = "correct it (gossamerd --check-config says more), and reload gossamerd"});
  }
  const Watch::News news = watch_.look(
      {.at_s = uptime_s(),
       .link_max_mbit_s = config_.gossip.link_max_mbit_s,
       .max_mbit_s = config_.gossip.max_mbit_s,
       .scheduled = partners != gossip::PartnerPolicy::random && partners != gossip::PartnerPolicy::weighted,
       .peers = core_.peer_statuses(),
       .jobs = core_.job_statuses(),
       .cluster = core_.summary_statuses(),
       .troubles = std::move(troubles)});
  for (const FindingStatus& finding : news.begun)
    log_.logger().warn("{}", sentence(finding));
  for (const FindingStatus& finding : news.ended)
    log_.logger().info("no longer so: {}", finding.text);
  log_.logger().flush();  // tells how many lines were held back lately
  watch_timer_.expires_after(watch_period);
  watch_timer_.async_wait([this](std::error_code error) {
    if (!error) watch();
  });
}

void Shell::report_status() {
  const NodeStatus status = core_.node_status();
  service_manager_.status(fmt::format("{}, {}, {}", count(status.neighbours, "neighbour"), count(status.jobs, "job"),
                                      count(clients_->sessions(), "client")));
  status_timer_.expires_after(status_period);
  status_timer_.async_wait([this](std::error_code error) {
    if (!error) report_status();
  });
}

}  // namespace gossamer::daemon
