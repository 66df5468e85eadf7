// The names of JSON members are those of daemon/report/status.hpp.

#include "tools/ctl/tables.hpp"

#include <fmt/format.h>

#include <cmath>

#include "tools/ctl/fields.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// Reads members of one object into cells.
struct Members {
  const json& object;

  [[nodiscard]] bool has(const char* name) const { return object.contains(name); }
  [[nodiscard]] double number(const char* name) const { return number_of(object, name); }
  [[nodiscard]] std::string string(const char* name) const { return text_of(object, name, "-"); }
  [[nodiscard]] Cell text(const char* name) const { return {string(name)}; }
  /// A number as `show` writes it.
  [[nodiscard]] Cell as(const char* name, std::string (*show)(double)) const {
    return {has(name) ? show(number(name)) : "-", true};
  }
  [[nodiscard]] Cell share(const char* part, const char* whole) const {
    const double all = number(whole);
    return {all > 0 ? fmt::format("{:.1f} %", 100 * number(part) / all) : "-", true};
  }
};

std::string milliseconds(double value) {
  return value > 0 ? fmt::format("{:.1f} ms", value) : "-";
}
std::string megabits(double value) {
  return value > 0 ? fmt::format("{:.3g} Mbit/s", value) : "-";
}
/// The halving time of a difference that shrinks by e^−rate in a second.
std::string halving_time(double rate_per_s) {
  return rate_per_s > 0 ? fmt::format("{:.2g} s", std::log(2) / rate_per_s) : "-";
}
std::string small(double value) {
  return fmt::format("{:.3g}", value);
}

Tone tone_of_count(double bad) {
  return bad > 0 ? Tone::bad : Tone::plain;
}

Tone tone_of_state(const std::string& state) {
  return state == "running" || state == "up"         ? Tone::good
         : state == "quarantined" || state == "down" ? Tone::bad
                                                     : Tone::plain;
}

std::string brief(const std::string& id) {
  return id.substr(0, 8);
}

}  // namespace

std::string status_table(const json& answer, bool colour) {
  const Members node{answer.at("node")};
  const std::string state = node.string("state");
  const double uptime_s = node.number("uptime_s");
  Table table;
  const std::pair<const char*, Cell> lines[] = {
      {"name", node.text("name")},
      {"node", node.text("node")},
      {"address", node.text("address")},
      {"state", {state, false, tone_of_state(state)}},
      {"version", node.text("version")},
      {"up for", {duration_text(uptime_s)}},
      {"CPU",
       {fmt::format("{} ({:.1f} % of a core)", duration_text(node.number("cpu_s")),
                    uptime_s > 0 ? 100 * node.number("cpu_s") / uptime_s : 0)}},
      {"neighbours", {fmt::format("{:.0f} of {:.0f} known nodes", node.number("neighbours"), node.number("peers"))}},
      {"members",
       {node.has("members")
            ? fmt::format("{:.0f} others{}", node.number("members"),
                          answer.at("node").value("partial_view", false)
                              ? fmt::format(" in the active view, {:.0f} in the passive", node.number("passive_view"))
                              : "")
            : "-"}},
      {"jobs", {count_text(node.number("jobs"))}},
      {"clients",
       {fmt::format("{:.0f}, sharing {}{}", node.number("clients"), bytes_text(node.number("memory_bytes")),
                    node.has("device_memory_bytes") && node.number("device_memory_bytes") > 0
                        ? fmt::format(", and {} on GPUs", bytes_text(node.number("device_memory_bytes")))
                        : "")}},
      {"sent",
       {fmt::format("{} in {} messages, of which {} model", bytes_text(node.number("bytes_sent")),
                    count_text(node.number("messages_sent")), bytes_text(node.number("payload_bytes_sent")))}},
      {"received",
       {fmt::format("{} in {} messages, of which {} model", bytes_text(node.number("bytes_received")),
                    count_text(node.number("messages_received")), bytes_text(node.number("payload_bytes_received")))}},
      {"turned away",
       {fmt::format(
            "{:.0f} messages, {:.0f} times a node; of connections, {:.0f} failed their handshake, and {:.0f} were "
            "closed before a node was admitted",
            node.number("messages_rejected"), node.number("admissions_refused"), node.number("handshakes_failed"),
            node.number("strangers_closed")),
        false, tone_of_count(node.number("messages_rejected") + node.number("admissions_refused"))}},
  };
  for (const auto& [name, cell] : lines)
    table.rows.push_back({{name, false, Tone::dim}, cell});
  const auto add_if_any = [&](const char* name, const std::string& text) {
    if (!text.empty() && text != "-") table.rows.push_back({{name, false, Tone::dim}, {text, false, Tone::bad}});
  };
  if (node.has("page") && !node.string("page").empty())
    table.rows.push_back({{"page", false, Tone::dim}, node.text("page")});
  add_if_any("near a limit", node.string("limits_near"));
  if (node.has("clients_awaited") && node.number("clients_awaited") > 0)
    add_if_any("awaited", fmt::format("{:.0f} clients of the last daemon", node.number("clients_awaited")));
  if (node.has("device_overflow_bytes") && node.number("device_overflow_bytes") > 0)
    add_if_any("GPUs are full", fmt::format("{} in host memory", bytes_text(node.number("device_overflow_bytes"))));
  for (const json& entry : node.object.value("findings", json::array())) {
    const Members finding{entry};
    add_if_any(finding.string("rule").c_str(), finding.string("text"));
    table.rows.push_back({{""}, {"-> " + finding.string("advice"), false, Tone::dim}});
  }
  return table.render(colour);
}

std::string peers_table(const json& answer, bool colour) {
  Table table{{"NODE", "NAME", "ADDRESS", "LINK", "DIALLED BY", "ROUND TRIP", "LEAST", "GOODPUT", "SENT", "RECEIVED",
               "UP FOR", "NOTE"},
              {},
              "no other node is known: 'gossamerctl invite' on another gives the line for 'gossamerctl join' here"};
  for (const json& entry : answer.at("peers")) {
    const Members peer{entry};
    const bool up = entry.value("up", false);
    table.rows.push_back(
        {{brief(peer.string("node"))},
         peer.text("name"),
         peer.text("address"),
         {up ? "up" : "down", false, tone_of_state(up ? "up" : "down")},
         {!up                                   ? "-"
          : entry.value("dialled_by_us", false) ? "us"
                                                : "them"},
         peer.as("round_trip_ms", milliseconds),
         peer.as("least_round_trip_ms", milliseconds),
         peer.as("goodput_mbit_s", megabits),
         peer.as("bytes_sent", bytes_text),
         peer.as("bytes_received", bytes_text),
         up ? peer.as("up_s", duration_text) : Cell{"-", true},
         {up && peer.string("bulk") == "plain" ? "models are not encrypted" : peer.string("note"), false, Tone::dim}});
  }
  return table.render(colour);
}

std::string members_table(const json& answer, bool colour) {
  Table table{
      {"NODE", "NAME", "ADDRESS", "STATE", "LINK", "HEARD", "INCARNATION"},
      {},
      "no other node is in the cluster: 'gossamerctl invite' on another gives the line for 'gossamerctl join' here"};
  for (const json& entry : answer.at("members")) {
    const Members member{entry};
    const std::string state = member.string("state");
    const std::string address = member.string("address");
    table.rows.push_back({{brief(member.string("node"))},
                          {member.string("name").empty() ? "-" : member.string("name")},
                          {address.empty() ? "only dials out" : address},
                          {state, false, state == "alive" ? Tone::good : Tone::bad},
                          {entry.value("linked", false) ? "up" : "-"},
                          {fmt::format("{} ago", duration_text(member.number("heard_s"))), true},
                          {member.has("incarnation") ? entry.at("incarnation").dump() : "-", true}});
  }
  return table.render(colour);
}

namespace {

std::string job_state(const Members& job, const std::string& state) {
  if (state == "joining") {
    const double pulled = job.number("fragments_pulled");
    const double donors = job.number("donors");
    if (pulled == 0 && donors == 0) return state;
    return fmt::format("pulling {:.0f} of {:.0f} fragments, from {:.0f} node{}", pulled, job.number("fragments"),
                       donors, donors == 1 ? "" : "s");
  }
  const double handed_over = job.number("fragments_handed_over");
  if (handed_over > 0)
    return fmt::format("handed over {:.0f} of {:.0f} fragments", handed_over, job.number("fragments"));
  const json processes = job.object.value("processes", json::array());
  const auto keeps = [](const json& process) { return process.value("keeps", false); };
  if (state == "running" && !processes.empty() && std::ranges::all_of(processes, keeps)) return "kept";
  return state;
}

std::string render_clients(const json& clients, const std::string& if_none, bool colour) {
  Table table{{"JOB", "PROCESS", "STATE", "CLOCK", "STEPS", "PUBLISHED", "BUFFERS"}, {}, if_none};
  for (const json& entry : clients) {
    const Members client{entry};
    const double others = client.number("parts") - 1;
    table.rows.push_back(
        {client.text("job"),
         {fmt::format("{:.0f}{}", client.number("pid"), others > 0 ? fmt::format(" and {:.0f} more", others) : ""),
          true},
         {client.string("state"), false, tone_of_state(client.string("state"))},
         client.as("clock", count_text),
         client.as("steps", count_text),
         {fmt::format("{} ago", duration_text(client.number("published_s"))), true},
         client.text("buffers")});
  }
  return table.render(colour);
}

/// A logged number as text. JSON has no NaN and no infinity, for which null stands.
std::string logged_number(const json& object, const char* name) {
  const json value = object.value(name, json());
  return value.is_number() ? fmt::format("{:.4g}", value.get<double>()) : "not finite";
}

/// What the job's programs have logged: "loss 0.31 (0.35 over 3 nodes), accuracy 0.9".
std::string logged_text(const json& logged) {
  std::string text;
  for (const json& one : logged) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", one.value("name", ""), logged_number(one, "value"));
    if (const auto nodes = one.value("nodes", 1); nodes > 1)
      text += fmt::format(" ({} over {} nodes)", logged_number(one, "mean"), nodes);
  }
  return text;
}

/// The jobs that several processes of this node train; empty if there are none.
std::string processes_table(const json& answer, bool colour) {
  json shared = json::array();
  for (const json& job : answer.at("jobs"))
    if (job.value("processes", json::array()).size() > 1) shared.push_back(job);
  if (shared.empty()) return "";
  return "\n" + render_clients(clients_of({{"jobs", shared}}).at("clients"), "", colour);
}

}  // namespace

std::string jobs_table(const json& answer, bool colour) {
  Table table{{"JOB", "STATE", "NEIGHBOURS", "CLOCK", "STEPS", "MODEL", "CODEC", "EXCHANGES", "IN FLIGHT", "UNRESOLVED",
               "WIDE", "SENT", "AGE", "DISAGREEMENT", "HALVES IN"},
              {},
              "no job: no training process is attached"};
  for (const json& entry : answer.at("jobs")) {
    const Members job{entry};
    const std::string state = job.string("state");
    table.rows.push_back({job.text("job"),
                          {job_state(job, state), false, tone_of_state(state)},
                          job.as("neighbours", count_text),
                          job.as("clock", count_text),
                          job.as("steps", count_text),
                          job.as("elements", count_text),
                          job.text("codec"),
                          job.as("exchanges", count_text),
                          job.as("in_flight", count_text),
                          {count_text(job.number("unresolved")), true, tone_of_count(job.number("unresolved"))},
                          job.share("wide_blocks", "blocks"),
                          job.as("payload_bytes_sent", bytes_text),
                          job.as("age_samples", count_text),
                          job.as("mean_disagreement", small),
                          job.as("mixing_per_s", halving_time)});
  }
  std::string text = table.render(colour) + processes_table(answer, colour);
  for (const json& entry : answer.at("jobs")) {
    const Members job{entry};
    const std::string settings = settings_text(entry.value("settings", json::object()).value("values", json::object()));
    if (!settings.empty()) text += fmt::format("{}: settings of all its nodes:{}\n", job.string("job"), settings);
    if (const std::string logged = logged_text(entry.value("logged", json::array())); !logged.empty())
      text += fmt::format("{}: {}\n", job.string("job"), logged);
    if (const std::string note = job.string("note"); !note.empty())
      text += fmt::format("{}: {}\n", job.string("job"), note);
  }
  return text;
}

json clients_of(const json& answer) {
  json clients = json::array();
  for (const json& job : answer.at("jobs")) {
    for (json client : job.value("processes", json::array())) {
      client["job"] = job.at("job");
      clients.push_back(std::move(client));
    }
  }
  return {{"clients", std::move(clients)}};
}

std::string clients_table(const json& answer, bool colour) {
  return render_clients(answer.at("clients"), "no training process is attached", colour);
}

std::string denials_table(const json& answer, bool colour) {
  Table table{{"NODE", "DECISION", "AT", "SIGNED", "REASON"}, {}, "no node was ever denied"};
  for (const json& entry : answer.at("denials")) {
    const Members record{entry};
    const bool denied = entry.value("denied", false);
    table.rows.push_back({record.text("node"),
                          {denied ? "denied" : "allowed", false, denied ? Tone::bad : Tone::good},
                          record.text("decided_at"),
                          {entry.value("signed", false) ? "yes" : "no"},
                          record.text("reason")});
  }
  return table.render(colour);
}

std::string audit_table(const json& answer, bool colour) {
  Table table{{"AT", "TOLD BY", "FOLLOWED", "TIMES", "WHAT"}, {}, "nothing was decided yet"};
  for (const json& entry : answer.at("records")) {
    const Members record{entry};
    const bool followed = entry.value("followed", false);
    table.rows.push_back({record.text("at"),
                          {record.string("told_by").substr(0, 8)},
                          {followed ? "yes" : "no", false, followed ? Tone::good : Tone::bad},
                          {fmt::format("{:.0f}", record.number("times")), true},
                          record.text("what")});
  }
  return table.render(colour);
}

std::string keys_table(const json& answer, bool colour) {
  Table table{{"FINGERPRINT", "MADE", "SIGNED", "USE", "NEIGHBOURS THAT HOLD IT"}, {}, "no key"};
  for (const json& entry : answer.at("keys")) {
    const Members key{entry};
    const std::string made = key.string("made_at");
    table.rows.push_back(
        {key.text("fingerprint"),
         {made.empty() ? "not known" : made},
         {entry.value("signed", false) ? "yes" : "no"},
         {entry.value("listened_with", false) ? "listened with" : "accepted"},
         {fmt::format("{:.0f} of {:.0f}", key.number("holders"), Members{answer}.number("neighbours")), true}});
  }
  return table.render(colour);
}

}  // namespace gossamer::ctl
