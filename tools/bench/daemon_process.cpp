#include "tools/bench/daemon_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/local/stream_protocol.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "sdk/layout/attach.hpp"

namespace gossamer::bench {
namespace {

constexpr int start_timeout_ms = 15'000;
constexpr int stop_timeout_ms = 10'000;
constexpr int poll_interval_ms = 10;
constexpr std::chrono::seconds answer_timeout{5};

}  // namespace

DaemonProcess::DaemonProcess(const std::filesystem::path& program, const std::filesystem::path& folder,
                             const std::string& toml)
    : folder_(folder) {
  std::filesystem::create_directories(folder_);
  const std::filesystem::path configuration = folder_ / "gossamer.toml";
  std::ofstream(configuration) << toml;
  start(program, configuration);
  try {
    wait_for_start();
  } catch (...) {
    signal_process(SIGKILL);
    (void)wait_for_end(stop_timeout_ms);
    throw;
  }
}

DaemonProcess::~DaemonProcess() {
  signal_process(SIGCONT);
  signal_process(SIGTERM);
  if (wait_for_end(stop_timeout_ms)) return;
  signal_process(SIGKILL);
  (void)wait_for_end(stop_timeout_ms);
}

void DaemonProcess::signal_process(int number) const {
  if (process_ > 0) kill(process_, number);  // a number of 0 or below would signal other processes
}

void DaemonProcess::start(const std::filesystem::path& program, const std::filesystem::path& configuration) {
  const std::string log_file = folder_ / "gossamerd.log";
  process_ = fork();
  if (process_ < 0) throw std::runtime_error(std::string("cannot start a process: ") + std::strerror(errno));
  if (process_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the daemon never outlives the benchmark
  const int log = open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execl(program.c_str(), program.c_str(), "--config", configuration.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

void DaemonProcess::wait_for_start() {
  for (int waited_ms = 0; waited_ms < start_timeout_ms; waited_ms += poll_interval_ms) {
    if (wait_for_end(0)) throw std::runtime_error("gossamerd ended at once:\n" + log());
    if (std::filesystem::exists(folder_ / layout::control_socket_name)) {
      try {
        (void)ask("status");
        return;
      } catch (const std::runtime_error&) {  // it does not listen yet
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(poll_interval_ms));
  }
  throw std::runtime_error("gossamerd does not answer:\n" + log());
}

bool DaemonProcess::wait_for_end(int timeout_ms) {
  for (int waited_ms = 0;; waited_ms += poll_interval_ms) {
    if (process_ <= 0) return true;
    if (waitpid(process_, nullptr, WNOHANG) == process_) {
      process_ = -1;
      return true;
    }
    if (waited_ms >= timeout_ms) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(poll_interval_ms));
  }
}

std::string DaemonProcess::client_socket() const {
  return folder_ / layout::client_socket_name;
}

nlohmann::json DaemonProcess::ask(const std::string& command) const {
  asio::local::stream_protocol::iostream connection;
  connection.expires_after(answer_timeout);
  connection.connect(asio::local::stream_protocol::endpoint((folder_ / layout::control_socket_name).string()));
  connection << nlohmann::json{{"command", command}}.dump() << '\n' << std::flush;
  std::string line;
  if (!std::getline(connection, line)) throw std::runtime_error("gossamerd does not answer at its control socket");
  const nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object() || answer.contains("error")) throw std::runtime_error("gossamerd answers " + line);
  return answer;
}

std::string DaemonProcess::log() const {
  std::ostringstream text;
  text << std::ifstream(folder_ / "gossamerd.log").rdbuf();
  return text.str();
}

}  // namespace gossamer::bench
