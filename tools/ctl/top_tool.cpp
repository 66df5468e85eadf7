// gossamerctl top: the live view in a terminal. It blocks until it is ended, and owns the terminal until then.

#include "tools/ctl/top.hpp"

#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "tools/ctl/commands.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

volatile std::sig_atomic_t asked_to_end = 0;

/// While this object lives, the terminal shows a screen of our own, and keys arrive at once and are not shown.
class Terminal {
 public:
  Terminal() {
    struct sigaction action {};
    action.sa_handler = [](int) { asked_to_end = 1; };  // the signal also makes poll() return
    for (const int number : {SIGINT, SIGTERM, SIGHUP})
      sigaction(number, &action, nullptr);
    action.sa_handler = [](int) {};
    sigaction(SIGWINCH, &action, nullptr);
    if (::tcgetattr(STDIN_FILENO, &before_) == 0) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      known_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    std::fputs("\033[?1049h\033[?25l", stdout);  // the alternate screen, without a cursor
  }
  ~Terminal() {
    std::fputs("\033[?25h\033[?1049l", stdout);
    std::fflush(stdout);
    if (known_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// Waits until this time or the space key. False: the user wants to end.
  [[nodiscard]] bool wait(std::chrono::steady_clock::time_point until) {
    while (asked_to_end == 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0) return true;
      pollfd input{.fd = known_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
      const int ready = ::poll(&input, 1, static_cast<int>(left.count()));
      if (ready < 0) return asked_to_end == 0;  // the window's size has changed, or this is the end
      if (ready == 0) return true;
      char key = 0;
      if (::read(STDIN_FILENO, &key, 1) != 1) return false;
      if (key == 'q' || key == 'Q') return false;
      if (key == ' ') return true;
    }
    return false;
  }

 private:
  termios before_{};
  bool known_ = false;
};

Screen present_screen(bool colour) {
  Screen screen{.colour = colour, .unicode = std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0};
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    screen.columns = size.ws_col;
    screen.rows = size.ws_row;
  }
  return screen;
}

struct Answers {
  json status, peers, jobs;
};

std::expected<Answers, ControlError> ask_all(const Invocation& call) {
  Answers answers;
  const std::pair<const char*, json&> wanted[] = {
      {"status", answers.status}, {"peers", answers.peers}, {"jobs", answers.jobs}};
  for (const auto& [command, answer] : wanted) {
    auto got = call.ask(command);
    if (!got) return std::unexpected(got.error());
    answer = std::move(*got);
  }
  return answers;
}

struct TopOptions {
  double interval_s = 1;
  unsigned frames = 0;
};

/// In a terminal it runs until q, Ctrl-C or a signal, and waits for a daemon that does not answer. Elsewhere, and as
/// JSON, it writes as many screens or lines as --frames says (1 by default), and a daemon that does not answer is an
/// error.
CommandResult watch(const TopOptions& options, const Invocation& call) {
  using Clock = std::chrono::steady_clock;
  std::setlocale(LC_CTYPE, "");
  const bool live = !call.as_json && ::isatty(STDOUT_FILENO) == 1;
  const unsigned frames = options.frames == 0 && !live ? 1 : options.frames;
  std::optional<Terminal> terminal;
  if (live) terminal.emplace();
  Top top;
  const auto begin = Clock::now();
  // A rate needs two looks, so outside a terminal the first is not shown.
  for (unsigned look = live || call.as_json ? 1 : 0; frames == 0 || look <= frames; ++look) {
    const auto now = Clock::now();
    auto answers = ask_all(call);
    if (!answers && !live) return std::unexpected(answers.error());
    if (call.as_json) {
      fmt::print("{}", json_line({{"node", answers->status.at("node")},
                                  {"peers", answers->peers.at("peers")},
                                  {"jobs", answers->jobs.at("jobs")}}));
    } else {
      if (answers)
        top.add(std::chrono::duration<double>(now - begin).count(), answers->status, answers->peers, answers->jobs);
      const std::string note = answers ? "q ends" : answers.error().message;
      const std::string screen = top.render(present_screen(call.colour), live ? note : "");
      if (live) {
        // Draws over the screen from its upper left corner, and clears the rest.
        fmt::print("\033[H\033[J{}", screen);
      } else if (look > 0) {
        fmt::print("{}\n", screen);
      }
    }
    std::fflush(stdout);
    if (look == frames && frames != 0) break;
    const auto next =
        now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.interval_s));
    if (terminal) {
      if (!terminal->wait(next)) break;
    } else {
      std::this_thread::sleep_until(next);  // does not wait if the answer took longer than the interval
    }
  }
  return CommandEnd{};
}

}  // namespace

void add_top_command(CLI::App& app, CommandAction& chosen) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* top =
      app.add_subcommand("top", "The node, its jobs and links, live: rates, clocks, how far replicas are apart");
  top->add_option("--interval", options->interval_s, "Seconds between two looks")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number_within(0.1, 3600.0));
  top->add_option("--frames", options->frames,
                  "End after so many screens; 0: go on until q (one if this is no terminal)")
      ->type_name("N")
      ->capture_default_str();
  top->footer(
      "Keys: q ends, the space bar looks now. Bars are the last looks, from 0 to the largest of them: of what the "
      "node\n"
      "sends and receives, of each job's clock, of each link's round trip. WITH: replicas in reach. APART: the "
      "consensus\n"
      "distance |y_j - y_i| / |y|. AGE: samples since what is gossiped was published.");
  top->callback([options, &chosen] { chosen = [options](const Invocation& call) { return watch(*options, call); }; });
}

}  // namespace gossamer::ctl
