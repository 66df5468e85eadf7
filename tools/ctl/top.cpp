// The names of JSON members are those of daemon/report/status.hpp.

#include "tools/ctl/top.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <vector>

#include "tools/ctl/fields.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

constexpr std::size_t spark_width = 10;
constexpr std::size_t wide_spark_width = 24;
constexpr std::size_t wide_columns = 110;
constexpr std::size_t most_name = 12;
/// The lines that are not rows of a table: three about the node, two headings, two empty ones, and the note.
constexpr std::size_t other_lines = 8;
constexpr std::size_t head_lines = 4;
/// At most this many lines of findings; gossamerctl status shows them whole, with what to do.
constexpr std::size_t most_finding_lines = 6;
constexpr std::array bars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

std::string name_of(const json& object) {
  const std::string name = text_of(object, "name", "-");
  return cut(name.empty() || name == "-" ? text_of(object, "node", "-").substr(0, 8) : name, most_name);
}
std::string rate_text(double bytes_per_s) {
  return bytes_text(bytes_per_s) + "/s";
}
std::string small_text(double value) {
  return value > 0 ? fmt::format("{:.2g}", value) : "-";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

/// Cuts a text between words; lines after the first are indented.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty()) {
      lines.push_back(word);
    } else if (lines.back().size() + 1 + word.size() > columns) {
      lines.push_back("  " + word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

/// The table's lines with its heading and at most `most` rows. Says how many rows are left out.
std::vector<std::string> shortened(Table table, std::size_t most, bool colour) {
  const std::size_t rows = table.rows.size();
  const bool too_many = rows > most;
  if (too_many) table.rows.resize(std::max<std::size_t>(most, 2) - 1);
  std::vector<std::string> lines = lines_of(table.render(colour));
  if (too_many) lines.push_back(fmt::format("… and {} more", rows - table.rows.size()));
  return lines;
}

}  // namespace

std::string cut(const std::string& line, std::size_t columns) {
  std::string out;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < line.size();) {
    std::size_t length = 1;
    if (line[i] == '\033') {
      length = std::min(line.find('m', i), line.size() - 1) - i + 1;
    } else {
      while (i + length < line.size() && (static_cast<unsigned char>(line[i + length]) & 0xc0) == 0x80)
        ++length;
      if (++shown > columns) {
        i += length;
        continue;  // a control sequence that ends a colour may follow
      }
    }
    out.append(line, i, length);
    i += length;
  }
  return out;
}

void Track::add(double value) {
  values_.push_back(value);
  if (values_.size() > most) values_.pop_front();
}

void Track::add_counter(double at_s, double count) {
  if (counted_ && count >= count_ && at_s > counted_at_s_) add((count - count_) / (at_s - counted_at_s_));
  counted_ = true;
  counted_at_s_ = at_s;
  count_ = count;
}

std::string Track::sparkline(std::size_t width, bool unicode) const {
  const std::size_t count = std::min(width, values_.size());
  const auto first = values_.end() - static_cast<std::ptrdiff_t>(count);
  const double largest = count == 0 ? 0 : *std::max_element(first, values_.end());
  std::string out(width - count, ' ');
  for (auto value = first; value != values_.end(); ++value) {
    const double share = largest > 0 ? std::clamp(*value / largest, 0.0, 1.0) : 0;
    const auto level = static_cast<std::size_t>(std::lround(share * (bars.size() - 1)));
    out += unicode ? bars[level] : std::string(1, static_cast<char>('0' + level));
  }
  return out;
}

Track& Top::track(const std::string& key) {
  const auto known = tracks_.find(key);
  return fresh_.emplace(key, known == tracks_.end() ? Track() : known->second).first->second;
}

void Top::add(double at_s, const json& status, const json& peers, const json& jobs) {
  fresh_.clear();
  node_ = status.at("node");
  peers_ = peers.at("peers");
  jobs_ = jobs.at("jobs");
  track("sent").add_counter(at_s, number_of(node_, "bytes_sent"));
  track("received").add_counter(at_s, number_of(node_, "bytes_received"));
  track("cpu").add_counter(at_s, number_of(node_, "cpu_s"));
  for (const json& peer : peers_) {
    const std::string node = text_of(peer, "node", "-");
    track("sent " + node).add_counter(at_s, number_of(peer, "bytes_sent"));
    track("received " + node).add_counter(at_s, number_of(peer, "bytes_received"));
    track("round trip " + node).add(number_of(peer, "last_round_trip_ms"));
  }
  for (const json& job : jobs_) {
    const std::string name = text_of(job, "job", "-");
    track("clock " + name).add_counter(at_s, number_of(job, "clock"));
    track("exchanges " + name).add_counter(at_s, number_of(job, "exchanges"));
    track("consensus " + name).add(number_of(job, "consensus"));
  }
  tracks_ = std::move(fresh_);
}

std::string Top::render(const Screen& screen, const std::string& note) const {
  const std::size_t spark = screen.columns >= wide_columns ? wide_spark_width : spark_width;
  const auto track = [&](const std::string& key) {
    const auto found = tracks_.find(key);
    return found == tracks_.end() ? Track() : found->second;
  };
  const auto sparkline = [&](const std::string& key) { return track(key).sparkline(spark, screen.unicode); };

  std::vector<std::string> lines;
  if (!node_.is_null()) {
    const std::string state = text_of(node_, "state", "-");
    const std::string near = text_of(node_, "limits_near", "-");
    lines = lines_of(
        fmt::format("{} {}  {}  up {}  CPU {:.1f} %  {:.0f} client{}, {}\nneighbours {:.0f} of {:.0f} known\n"
                    "sent {:>11} {}  received {:>11} {}\n\n",
                    text_of(node_, "name", "-"), text_of(node_, "node", "-").substr(0, 8), state,
                    duration_text(number_of(node_, "uptime_s")), 100 * track("cpu").last(), number_of(node_, "clients"),
                    number_of(node_, "clients") == 1 ? "" : "s", bytes_text(number_of(node_, "memory_bytes")),
                    number_of(node_, "neighbours"), number_of(node_, "peers"), rate_text(track("sent").last()),
                    sparkline("sent"), rate_text(track("received").last()), sparkline("received")));
    if (near != "-" && !near.empty()) lines[1] += "  near a limit: " + near;
    std::vector<std::string> found;
    for (const json& finding : node_.value("findings", json::array()))
      for (std::string& line : wrapped("! " + text_of(finding, "text", "-"), screen.columns))
        found.push_back(std::move(line));
    if (found.size() > most_finding_lines) found.resize(most_finding_lines);
    lines.insert(lines.end() - 1, found.begin(), found.end());
  }

  Table jobs{{"JOB", "STATE", "WITH", "CLOCK", "CLOCK/S", "", "APART", "EXCH/S", "AGE", "CODEC"},
             {},
             "no job: no training process is attached"};
  for (const json& job : jobs_) {
    const std::string name = text_of(job, "job", "-");
    const std::string state = text_of(job, "state", "-");
    jobs.rows.push_back({{cut(name, most_name)},
                         {state, false,
                          state == "running"       ? Tone::good
                          : state == "quarantined" ? Tone::bad
                                                   : Tone::plain},
                         {fmt::format("{:.0f}", number_of(job, "neighbours")), true},
                         {count_text(number_of(job, "clock")), true},
                         {count_text(track("clock " + name).last()), true},
                         {sparkline("clock " + name)},
                         {small_text(number_of(job, "consensus")), true},
                         {fmt::format("{:.3g}", track("exchanges " + name).last()), true},
                         {count_text(number_of(job, "age_samples")), true},
                         {text_of(job, "codec", "-")}});
  }
  Table peers{{"NODE", "LINK", "ROUND TRIP", "", "GOODPUT", "SENT", "RECEIVED"},
              {},
              "no other node is known: 'gossamerctl invite' on another gives the line for 'gossamerctl join' here"};
  for (const json& peer : peers_) {
    const std::string node = text_of(peer, "node", "-");
    const bool up = peer.value("up", false);
    const double goodput = number_of(peer, "goodput_mbit_s");
    peers.rows.push_back({{name_of(peer)},
                          {up ? "up" : "down", false, up ? Tone::good : Tone::bad},
                          {up ? fmt::format("{:.1f} ms", number_of(peer, "last_round_trip_ms")) : "-", true},
                          {up ? sparkline("round trip " + node) : std::string(spark, ' ')},
                          {goodput > 0 ? fmt::format("{:.3g} Mbit/s", goodput) : "-", true},
                          {rate_text(track("sent " + node).last()), true},
                          {rate_text(track("received " + node).last()), true}});
  }

  const std::size_t others = other_lines + (lines.size() > head_lines ? lines.size() - head_lines : 0);
  const std::size_t room = screen.rows > others + 4 ? screen.rows - others : 4;
  const std::size_t job_rows = std::min(jobs.rows.size(), std::max<std::size_t>(room / 2, 2));
  const auto append = [&](const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  append(shortened(std::move(jobs), job_rows, screen.colour));
  lines.emplace_back();
  append(shortened(std::move(peers), room - job_rows, screen.colour));

  if (lines.size() + 1 > screen.rows) lines.resize(screen.rows > 1 ? screen.rows - 1 : 0);
  lines.push_back(note);
  std::string out;
  for (const std::string& line : lines)
    out += cut(line, screen.columns) + "\n";
  out.pop_back();  // a newline in the last row would scroll the screen
  return out;
}

}  // namespace gossamer::ctl
