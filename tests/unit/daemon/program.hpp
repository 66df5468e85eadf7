// A program that a test starts and ends, and a folder of its own for a gossamerd. GOSSAMER_DAEMON and GOSSAMER_CTL are
// the paths of the programs.

#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

extern char** environ;

namespace gossamer::daemon::test {

/// A running program whose output goes to files. It ends with the object.
class Program {
 public:
  Program(const TemporaryFolder& folder, const std::string& file, std::vector<std::string> arguments) {
    static int count = 0;
    output_file_ = folder.path() / ("output" + std::to_string(++count));
    error_file_ = folder.path() / ("error" + std::to_string(count));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_file_.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, error_file_.c_str(), O_WRONLY | O_CREAT, 0600);
    arguments.insert(arguments.begin(), file);
    std::vector<char*> pointers;
    for (std::string& argument : arguments)
      pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    REQUIRE(::posix_spawn(&pid_, file.c_str(), &actions, nullptr, pointers.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }
  [[nodiscard]] std::string output() const { return read_file(output_file_); }
  [[nodiscard]] std::string errors() const { return read_file(error_file_); }
  [[nodiscard]] pid_t pid() const { return pid_; }

  /// Waits for its end; -1 if it did not end by itself.
  int exit_status() {
    int status = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -1;
  }
  /// Waits until the program's log contains the text.
  [[nodiscard]] bool says(const std::string& text) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (errors().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  pid_t pid_ = -1;
  std::filesystem::path output_file_;
  std::filesystem::path error_file_;
};

inline std::string config_text(const std::filesystem::path& folder, const std::string& more = "") {
  return "[metrics]\nlisten = \"\"\n[node]\nname = \"tested\"\nstate_dir = \"" + (folder / "state").string() +
         "\"\nsocket_dir = \"" + (folder / "sockets").string() +
         "\"\nworkers = 1\n[overlay]\nlisten = \"tcp://127.0.0.1:0\"\n" + more;
}

struct Place {
  TemporaryFolder folder;
  std::string config = (folder.path() / "gossamer.toml").string();
  std::string control = (folder.path() / "sockets" / "control.sock").string();

  Place() { write_file(config, config_text(folder.path())); }
  [[nodiscard]] Program daemon(std::vector<std::string> arguments) const {
    return {folder, GOSSAMER_DAEMON, std::move(arguments)};
  }
  [[nodiscard]] Program ctl(std::vector<std::string> arguments) const {
    return {folder, GOSSAMER_CTL, std::move(arguments)};
  }
};

}  // namespace gossamer::daemon::test
