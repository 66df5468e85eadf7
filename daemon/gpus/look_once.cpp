// look_once() of monitor.hpp. The process that looks may hang in the driver, where not even SIGKILL reaches it; it is
// then left behind.

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "daemon/gpus/health.hpp"
#include "daemon/gpus/monitor.hpp"
#include "daemon/gpus/nvml.hpp"

namespace gossamer::gpus {
namespace {

using Clock = std::chrono::steady_clock;
/// The report on 64 GPUs with 256 processes each is shorter than this.
constexpr std::size_t max_report_bytes = 8u << 20;

GpuReport look(const std::string& library) {
  auto nvml = Nvml::open(library);
  if (!nvml) return report_without("none", nvml.error());
  auto gpus = nvml->read();
  if (!gpus) return report_without("none", gpus.error());
  for (Gpu& gpu : *gpus)
    judge(gpu);
  return report_of(std::move(*gpus), nvml->driver());
}

[[noreturn]] void look_and_tell(const std::string& library, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text = nlohmann::json(look(library)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t written = ::write(to, text.data() + sent, text.size() - sent);
    if (written <= 0) break;
    sent += static_cast<std::size_t>(written);
  }
  ::_exit(0);
}

/// Reads until the other end closes. Nothing if it has not closed by the time `until`.
std::optional<std::string> read_all(int from, Clock::time_point until) {
  std::string text;
  std::array<char, 16 * 1024> part;
  while (text.size() <= max_report_bytes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd readable{from, POLLIN, 0};
    if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left)) == 0) return std::nullopt;
    const ssize_t got = ::read(from, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

GpuReport look_once(const std::string& library, std::chrono::milliseconds patience) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return report_without("none", fmt::format("no pipe: {}", std::strerror(errno)));
  const pid_t pid = ::fork();
  if (pid == 0) look_and_tell(library, ends[1]);
  ::close(ends[1]);
  const auto text = pid > 0 ? read_all(ends[0], Clock::now() + patience) : std::string();
  ::close(ends[0]);
  if (pid < 0) return report_without("none", "no process can be started to look at the GPUs; see ulimit -u");
  if (!text) ::kill(pid, SIGKILL);
  int status = 0;
  const bool ended = ::waitpid(pid, &status, text ? 0 : WNOHANG) == pid;
  if (!text) return report_without("stuck", hanging_note(patience));
  const nlohmann::json report = nlohmann::json::parse(*text, nullptr, false);
  if (!ended || !WIFEXITED(status) || !report.is_object())
    return report_without("none", "the driver's library has ended the process that looked: install the driver again");
  return report.get<GpuReport>();
}

}  // namespace gossamer::gpus
