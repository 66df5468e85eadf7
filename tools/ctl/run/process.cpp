// Between fork and exec nothing is called that takes a lock or memory.

#include "tools/ctl/run/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace gossamer::ctl {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts)
    result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

struct Prepared {
  std::vector<char*> command;
  std::vector<char*> environment;
  cpu_set_t cpus;
  pid_t launcher;
  int failure;  // the pipe through which the child tells why the program could not be started
};

[[noreturn]] void become(const ProcessRequest& request, const Prepared& prepared) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.launcher) ::_exit(not_found_status);  // the launcher ended before the call above
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (request.output >= 0) ::dup2(request.output, STDOUT_FILENO);
  if (request.error >= 0) ::dup2(request.error, STDERR_FILENO);
  if (nothing > STDERR_FILENO) ::close(nothing);
  if (!request.cpus.empty()) ::sched_setaffinity(0, sizeof prepared.cpus, &prepared.cpus);
  for (const int number : {SIGPIPE, SIGXFSZ})
    ::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &request.signals, nullptr);
  ::execvpe(prepared.command.front(), prepared.command.data(), prepared.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(prepared.failure, &error, sizeof error);
  ::_exit(not_found_status);
}

std::string advice(int error, const std::string& program) {
  if (error == ENOENT) return fmt::format("there is no program {}: give its path, or look at PATH", program);
  if (error == EACCES) return fmt::format("{} may not be executed: chmod +x, or name the interpreter", program);
  return fmt::format("{} cannot be started: {}", program, std::strerror(error));
}

}  // namespace

std::expected<pid_t, StartFailure> start_process(const ProcessRequest& request) {
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0)
    return std::unexpected(
        StartFailure{not_startable_status, fmt::format("no pipe can be made: {}", std::strerror(errno))});
  Prepared prepared{.command = pointers(request.command),
                    .environment = pointers(request.environment),
                    .cpus = {},
                    .launcher = ::getpid(),
                    .failure = failure[1]};
  CPU_ZERO(&prepared.cpus);
  for (const int cpu : request.cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &prepared.cpus);
  const pid_t pid = ::fork();
  if (pid == 0) become(request, prepared);
  const int fork_error = errno;
  ::close(failure[1]);
  int error = 0;
  ssize_t got = 0;
  if (pid > 0) {
    ::setpgid(pid, pid);  // called in both processes, so that it has happened whichever runs first
    while ((got = ::read(failure[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
  }
  ::close(failure[0]);
  if (pid < 0)
    return std::unexpected(StartFailure{
        not_startable_status,
        fmt::format("no process can be started: {}; look at ulimit -u and at free memory", std::strerror(fork_error))});
  if (got != static_cast<ssize_t>(sizeof error)) return pid;
  ::waitpid(pid, nullptr, 0);
  return std::unexpected(
      StartFailure{error == ENOENT ? not_found_status : not_startable_status, advice(error, request.command.front())});
}

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=') + 1); };
  std::vector<std::string> all = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& change : changes)
      replaced = replaced || std::string(*entry).starts_with(name_of(change));
    if (!replaced) all.emplace_back(*entry);
  }
  return all;
}

}  // namespace gossamer::ctl
