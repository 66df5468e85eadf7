#include "tools/ctl/run/launcher.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "sdk/layout/file_descriptor.hpp"
#include "tools/ctl/run/guard.hpp"
#include "tools/ctl/run/lines.hpp"
#include "tools/ctl/run/output_queue.hpp"
#include "tools/ctl/run/process.hpp"

namespace gossamer::ctl {
namespace {

static_assert(max_run_clients <= max_guarded);

constexpr int stop_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int passed_signals[] = {SIGUSR1, SIGUSR2, SIGCONT};
constexpr const char* prefix_colours[] = {"\033[36m", "\033[33m", "\033[32m", "\033[35m", "\033[34m", "\033[31m"};
/// At most this much is read from one pipe in one turn.
constexpr std::size_t read_bytes = 64 * 1024;
constexpr double forever_s = std::numeric_limits<double>::infinity();

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// One of the two outputs of a client.
struct Stream {
  FileDescriptor reading;  // open while more output may come
  Lines lines;
  OutputQueue* queue = nullptr;
};

struct Client {
  Client(ClientSpec its_spec, const RestartPolicy& policy) : spec(std::move(its_spec)), restarts(policy) {}

  ClientSpec spec;
  Restarts restarts;
  std::size_t rank = 0;
  pid_t pid = 0;  // 0: the client does not run
  double started_s = 0;
  double start_at_s = 0;  // set while it does not run; forever_s: it has ended for good
  std::array<Stream, 2> streams;

  [[nodiscard]] bool is_over() const { return pid == 0 && start_at_s == forever_s; }
  [[nodiscard]] std::string name() const {
    return spec.where.empty() ? fmt::format("client {}", rank) : fmt::format("client {} ({})", rank, spec.where);
  }
};

class Launcher {
 public:
  Launcher(LaunchOptions options, Guard guard, int signals, sigset_t mask_before);

  int run();

 private:
  void turn();
  void take_signals();
  void take_signal(int signal);
  void stop(int signal);
  void kill_all();
  void pass_on(int signal);
  void start_due();
  void start(Client& client);
  [[nodiscard]] std::expected<ProcessRequest, std::string> request_for(Client& client);
  void reap();
  void ended(Client& client, int wait_status);
  void fail_for_good(int status);
  void read(Client& client, Stream& stream);
  void drain(Client& client);
  void print(const Client& client, OutputQueue& queue, std::string_view line);
  void note(const std::string& text);
  [[nodiscard]] double next_due_s() const;
  [[nodiscard]] bool is_over() const;

  LaunchOptions options_;
  Guard guard_;
  FileDescriptor signals_;
  const sigset_t mask_before_;
  OutputQueue out_{STDOUT_FILENO};
  // Both outputs share one queue if they go to the same place, so that the order is kept.
  std::unique_ptr<OutputQueue> separate_error_;
  OutputQueue& error_;
  std::vector<Client> clients_;
  double now_s_ = 0;
  std::optional<int> failure_;  // status of the first client that failed for good
  int stopping_ = 0;            // how many signals have asked the launcher to stop
  double kill_at_s_ = forever_s;
};

Launcher::Launcher(LaunchOptions options, Guard guard, int signals, sigset_t mask_before)
    : options_(std::move(options)),
      guard_(std::move(guard)),
      signals_(signals),
      mask_before_(mask_before),
      separate_error_(OutputQueue::same_file(STDOUT_FILENO, STDERR_FILENO)
                          ? nullptr
                          : std::make_unique<OutputQueue>(STDERR_FILENO)),
      error_(separate_error_ ? *separate_error_ : out_) {
  for (ClientSpec& spec : options_.clients) {
    clients_.emplace_back(std::move(spec), options_.restart);
    Client& client = clients_.back();
    client.rank = clients_.size() - 1;
    client.streams[0].queue = &out_;
    client.streams[1].queue = &error_;
  }
}

void Launcher::note(const std::string& text) {
  error_.add(fmt::format("gossamerctl run: {}\n", text));
}

void Launcher::print(const Client& client, OutputQueue& queue, std::string_view line) {
  const int width = clients_.size() > 100 ? 3 : clients_.size() > 10 ? 2 : 1;
  const std::string prefix = fmt::format("[{:{}}]", client.rank, width);
  const char* const colour = prefix_colours[client.rank % std::size(prefix_colours)];
  queue.add(options_.colour && ::isatty(queue.fd()) == 1 ? fmt::format("{}{}\033[0m ", colour, prefix) : prefix + " ");
  queue.add(line);
  queue.add("\n");
}

// --- signals ------------------------------------------------------------------------------------------------------

void Launcher::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
    take_signal(static_cast<int>(info.ssi_signo));
}

void Launcher::take_signal(int signal) {
  if (signal == SIGCHLD) return;  // reap() looks for ended clients in every turn
  if (std::ranges::find(stop_signals, signal) != std::end(stop_signals)) return stop(signal);
  pass_on(signal);
  // Ctrl-Z stops the clients first and then this process; SIGCONT to this process continues them.
  if (signal == SIGTSTP) ::raise(SIGSTOP);
}

void Launcher::pass_on(int signal) {
  for (const Client& client : clients_)
    if (client.pid > 0) ::kill(-client.pid, signal);
}

void Launcher::stop(int signal) {
  if (++stopping_ > 1) return kill_all();
  kill_at_s_ = now_s_ + options_.grace_s;
  pass_on(signal);
  pass_on(SIGCONT);  // a stopped client would not notice the signal
  for (Client& client : clients_)
    if (client.pid == 0) client.start_at_s = forever_s;
}

void Launcher::kill_all() {
  kill_at_s_ = forever_s;
  if (!is_over()) note("clients that still run are killed");
  pass_on(SIGKILL);
}

// --- clients ------------------------------------------------------------------------------------------------------

void Launcher::start_due() {
  for (Client& client : clients_)
    if (client.pid == 0 && client.start_at_s <= now_s_) start(client);
}

std::expected<ProcessRequest, std::string> Launcher::request_for(Client& client) {
  std::vector<std::string> changes = client.spec.environment;
  changes.push_back(fmt::format("GOSSAMER_LOCAL_RANK={}", client.rank));
  changes.push_back(fmt::format("GOSSAMER_LOCAL_WORLD_SIZE={}", clients_.size()));
  changes.push_back(fmt::format("GOSSAMER_RESTARTS={}", client.restarts.total()));
  ProcessRequest request{.command = options_.command,
                         .environment = environment_with(changes),
                         .cpus = client.spec.cpus,
                         .signals = mask_before_};
  if (options_.output == OutputMode::folder) {
    const std::filesystem::path file = options_.folder / fmt::format("{}.log", client.rank);
    request.output = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (request.output < 0)
      return std::unexpected(fmt::format("{} cannot be written: {}", file.string(), std::strerror(errno)));
    request.error = request.output;
  } else if (options_.output == OutputMode::prefix) {
    for (Stream& stream : client.streams) {
      std::array<int, 2> ends{};
      if (::pipe2(ends.data(), O_CLOEXEC) != 0)
        return std::unexpected(fmt::format("no pipe can be made: {}; raise ulimit -n", std::strerror(errno)));
      ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
      stream.reading = FileDescriptor(ends[0]);
      (&stream == client.streams.data() ? request.output : request.error) = ends[1];
    }
  }
  return request;
}

void Launcher::start(Client& client) {
  client.start_at_s = forever_s;
  auto request = request_for(client);
  std::expected<pid_t, StartFailure> pid = std::unexpected(StartFailure{not_startable_status, ""});
  if (request) {
    pid = start_process(*request);
    if (request->error >= 0 && request->error != request->output) ::close(request->error);
    if (request->output >= 0) ::close(request->output);
  } else {
    pid.error().message = request.error();
  }
  if (!pid) {
    for (Stream& stream : client.streams)
      stream.reading.reset();
    // The other clients could not be started either, so all are stopped.
    note(fmt::format("{}: {}", client.name(), pid.error().message));
    if (!failure_) failure_ = pid.error().status;
    if (stopping_ == 0) stop(SIGTERM);
    return;
  }
  guard_.add(*pid);
  client.pid = *pid;
  client.started_s = now_s_;
}

void Launcher::reap() {
  while (true) {
    // The group is killed before its leader is reaped. Until then no other process can get the numbers of the two.
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto client = std::ranges::find(clients_, info.si_pid, &Client::pid);
    if (client != clients_.end()) ::kill(-info.si_pid, SIGKILL);
    int status = 0;
    if (::waitpid(info.si_pid, &status, 0) != info.si_pid) return;
    if (client != clients_.end()) ended(*client, status);
  }
}

void Launcher::ended(Client& client, int wait_status) {
  drain(client);
  guard_.take_off(client.pid);
  const pid_t pid = std::exchange(client.pid, 0);
  const int signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  const int status = signal != 0 ? killed_status + signal : WEXITSTATUS(wait_status);
  const auto pause_s = client.restarts.after_end(status, now_s_ - client.started_s);
  const bool again = pause_s && stopping_ == 0;
  if (again) client.start_at_s = now_s_ + *pause_s;
  if (status != 0 || again) {
    const std::string how = signal != 0 ? fmt::format("was ended by signal {} ({})", signal, ::strsignal(signal))
                                        : fmt::format("ended with status {}", status);
    const std::string next = again ? fmt::format("; starts again in {:.1f} s", *pause_s) : "";
    note(fmt::format("{}, process {}, {}{}", client.name(), pid, how, next));
  }
  if (!again && status != 0) fail_for_good(status);
}

void Launcher::fail_for_good(int status) {
  if (!failure_) failure_ = status;
  if (!options_.fail_fast || stopping_ > 0) return;
  note("the other clients are stopped (--fail-fast)");
  stop(SIGTERM);
}

// --- output -------------------------------------------------------------------------------------------------------

void Launcher::read(Client& client, Stream& stream) {
  std::array<char, read_bytes> part;
  const ssize_t got = ::read(stream.reading.get(), part.data(), part.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const auto tell = [&](std::string_view line) { print(client, *stream.queue, line); };
  if (got > 0) return stream.lines.add({part.data(), static_cast<std::size_t>(got)}, now_s_, tell);
  stream.lines.end(tell);
  stream.reading.reset();
}

/// Reads what a client has written before its end, which is no more than the pipe holds. Does not wait for the pipe's
/// end, because a process that left the client's group may keep the pipe open.
void Launcher::drain(Client& client) {
  for (Stream& stream : client.streams) {
    while (stream.reading) {
      pollfd readable{stream.reading.get(), POLLIN, 0};
      if (::poll(&readable, 1, 0) <= 0) break;
      read(client, stream);
    }
    stream.lines.end([&](std::string_view line) { print(client, *stream.queue, line); });
    stream.reading.reset();
  }
}

// --- the loop -----------------------------------------------------------------------------------------------------

double Launcher::next_due_s() const {
  double due_s = kill_at_s_;
  for (const Client& client : clients_)
    if (client.pid == 0) due_s = std::min(due_s, client.start_at_s);
  return due_s;
}

bool Launcher::is_over() const {
  return std::ranges::all_of(clients_, &Client::is_over);
}

void Launcher::turn() {
  std::vector<pollfd> polled{{signals_.get(), POLLIN, 0}};
  for (OutputQueue* queue : {&out_, separate_error_.get()})
    if (queue != nullptr && !queue->is_empty()) polled.push_back({queue->fd(), POLLOUT, 0});
  for (Client& client : clients_) {
    for (Stream& stream : client.streams) {
      if (stream.queue->is_broken()) stream.reading.reset();  // the client notices that nobody reads
      if (stream.reading && !stream.queue->is_full()) polled.push_back({stream.reading.get(), POLLIN, 0});
    }
  }
  const double wait_s = next_due_s() - now();
  const int wait_ms = wait_s == forever_s ? -1 : static_cast<int>(std::ceil(std::clamp(wait_s, 0.0, 3600.0) * 1e3));
  ::poll(polled.data(), polled.size(), wait_ms);
  now_s_ = now();
  const auto is_ready = [&](int fd) {
    return std::ranges::any_of(polled, [&](const pollfd& one) { return one.fd == fd && one.revents != 0; });
  };
  for (OutputQueue* queue : {&out_, separate_error_.get()})
    if (queue != nullptr && !queue->is_empty() && is_ready(queue->fd())) queue->write_some();
  for (Client& client : clients_)
    for (Stream& stream : client.streams)
      if (stream.reading && is_ready(stream.reading.get())) read(client, stream);
  take_signals();
  reap();
  if (now_s_ >= kill_at_s_) {
    ++stopping_;
    kill_all();
  }
  start_due();
}

int Launcher::run() {
  now_s_ = now();
  start_due();
  // A second signal, or the end of the grace period, ends the wait for a reader of the remaining output.
  while (!is_over() || (stopping_ < 2 && !(out_.is_empty() && error_.is_empty())))
    turn();
  return failure_.value_or(0);
}

}  // namespace

std::expected<int, std::string> launch(LaunchOptions options) {
  // The guard is started before signals are blocked here, because it would inherit that. It blocks signals itself.
  auto guard = Guard::start();
  if (!guard) return std::unexpected(guard.error());
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t mine;
  ::sigemptyset(&mine);
  ::sigaddset(&mine, SIGCHLD);
  ::sigaddset(&mine, SIGTSTP);
  const auto take = [&](int signal) {
    if (!is_ignored(signal)) ::sigaddset(&mine, signal);  // a signal ignored before, as by nohup, stays ignored
  };
  std::ranges::for_each(stop_signals, take);
  std::ranges::for_each(passed_signals, take);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &mine, &before);
  const int signals = ::signalfd(-1, &mine, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals < 0) return std::unexpected(fmt::format("signals cannot be received: {}", std::strerror(errno)));
  return Launcher(std::move(options), std::move(*guard), signals, before).run();
}

}  // namespace gossamer::ctl
