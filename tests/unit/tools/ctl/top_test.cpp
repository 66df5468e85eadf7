// The live view of gossamerctl top: rates, bars, and a screen that nothing overflows.

#include "tools/ctl/top.hpp"
#include "daemon/report/status.hpp"
#include "tests/unit/catch.hpp"

using namespace gossamer;
using Catch::Matchers::Contains;

namespace {

constexpr std::size_t many = 40;

/// A node whose counters have grown for so many seconds.
struct Seen {
  explicit Seen(double seconds, std::size_t links = 2) {
    node.node = "00112233445566778899aabbccddeeff";
    node.name = "left";
    node.state = "running";
    node.uptime_s = seconds;
    node.cpu_s = 0.02 * seconds;
    node.bytes_sent = static_cast<std::uint64_t>(3e6 * seconds);
    job.job = "digits";
    job.state = "running";
    job.codec = "q8";
    job.clock = static_cast<std::uint64_t>(640 * seconds);
    job.exchanges = static_cast<std::uint64_t>(20 * seconds);
    job.consensus = 0.012;
    for (std::size_t i = 0; i < links; ++i) {
      daemon::PeerStatus peer;
      peer.node = std::string(32, static_cast<char>('a' + i % 6)) + std::to_string(i);
      peer.name = "peer-with-a-long-name-" + std::to_string(i) + "\x1b[2J";
      peer.up = i > 0;
      peer.last_round_trip_ms = 12.5;
      peer.goodput_mbit_s = 830;
      peers.push_back(peer);
    }
  }
  void add_to(ctl::Top& top) const {
    top.add(node.uptime_s, daemon::status_answer(node), daemon::peers_answer(peers), daemon::jobs_answer({job}));
  }

  daemon::NodeStatus node;
  daemon::JobStatus job;
  std::vector<daemon::PeerStatus> peers;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

std::size_t shown_columns(const std::string& line) {
  std::size_t count = 0;
  bool steering = false;
  for (const char c : line) {
    if (c == '\033') steering = true;
    if (!steering && (static_cast<unsigned char>(c) & 0xc0) != 0x80) ++count;
    if (c == 'm') steering = false;
  }
  return count;
}

}  // namespace

TEST_CASE("top shows rates between two looks") {
  ctl::Top top;
  Seen(10).add_to(top);
  CHECK_THAT(top.render({}, ""), Contains("0 B/s"));  // one look gives no rate
  Seen(12).add_to(top);
  const std::string screen = top.render({.columns = 100}, "");
  CHECK_THAT(screen, Contains("left 00112233  running") && Contains("3.00 MB/s") && Contains("CPU 2.0 %"));
  CHECK_THAT(screen, Contains("digits") && Contains("640") && Contains("0.012") && Contains("  20  "));
  CHECK_THAT(screen, Contains("down") && Contains("12.5 ms") && Contains("830 Mbit/s"));
  Seen(1).add_to(top);  // a new daemon counts from the beginning: no rate can be told
  CHECK_THAT(top.render({.columns = 100}, ""), Contains("3.00 MB/s") && !Contains("-" + std::string("3")));
}

TEST_CASE("bars go from nothing to the largest value, the newest at the right") {
  ctl::Track track;
  CHECK(track.sparkline(4, true) == "    ");
  for (const double value : {9.0, 0.0, 3.5, 7.0})
    track.add(value);
  CHECK(track.sparkline(3, true) == "▁▅█");
  CHECK(track.sparkline(3, false) == "047");
  CHECK(track.sparkline(6, false) == "  7035");
  ctl::Track flat;
  flat.add(0);
  CHECK(flat.sparkline(1, true) == "▁");
  for (std::size_t i = 0; i < 10 * ctl::Track::most; ++i)
    flat.add(1);
  CHECK(flat.sparkline(2 * ctl::Track::most, false) ==
        std::string(ctl::Track::most, ' ') + std::string(ctl::Track::most, '7'));
}

TEST_CASE("top stays within the screen, whatever there is to show") {
  ctl::Top top;
  Seen(10, many).add_to(top);
  Seen(11, many).add_to(top);
  for (const std::size_t columns : {20u, 80u, 200u}) {
    for (const std::size_t rows : {5u, 12u, 24u, 80u}) {
      const std::vector<std::string> lines =
          lines_of(top.render({.columns = columns, .rows = rows, .colour = true}, "q ends"));
      CHECK(lines.size() <= rows);
      CHECK(lines.back() == "q ends");
      for (const std::string& line : lines) {
        CHECK(shown_columns(line) <= columns);
        CHECK_THAT(line, !Contains("\x1b[2J"));
      }
    }
  }
  const std::string usual = top.render({}, "q ends");
  CHECK_THAT(usual, Contains("digits") && Contains("more"));
  CHECK(lines_of(usual).size() == 24);
}

TEST_CASE("top shows what the watch finds, cut between words, and no more than there is room for") {
  ctl::Top top;
  Seen seen(10, many);
  seen.node.findings.resize(many);
  for (daemon::FindingStatus& finding : seen.node.findings)
    finding.text =
        "node-3 drifts: its model is 0.1 of the norm from this node's, the others 0.02; its link is slow \x1b[2J";
  seen.add_to(top);
  const std::vector<std::string> lines = lines_of(top.render({}, "q ends"));
  CHECK(lines.size() == 24);
  CHECK(lines[3] == "! node-3 drifts: its model is 0.1 of the norm from this node's, the others 0.02;");
  CHECK(lines[4] == "  its link is slow ?[2J");
  CHECK_THAT(top.render({}, ""), Contains("digits"));
  Seen well(11);
  well.add_to(top);
  CHECK_THAT(top.render({}, ""), !Contains("!"));
}

TEST_CASE("top has room for everything in 80 columns") {
  ctl::Top top;
  for (const double seconds : {10.0, 20.0}) {
    Seen seen(seconds);
    seen.node.clients = 1;
    seen.node.memory_bytes = 123'456'789;
    seen.add_to(top);
  }
  const std::string screen = top.render({}, "");
  for (const char* end : {"CODEC", "q8", "RECEIVED", "0 B/s", "123 MB"})
    CHECK_THAT(screen, Contains(std::string(end) + "\n"));
}

TEST_CASE("a line is cut by what is seen of it") {
  CHECK(ctl::cut("abc", 2) == "ab");
  CHECK(ctl::cut("\033[31mabc\033[0md", 2) == "\033[31mab\033[0m");
  CHECK(ctl::cut("ä€x", 2) == "ä€");
  CHECK(ctl::cut("ab\033[", 9) == "ab\033[");
  CHECK(ctl::cut("", 3).empty());
}
