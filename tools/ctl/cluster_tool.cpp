// The subcommands of cluster_tool.hpp. The requests are described in daemon/cluster/cluster_commands.hpp.

#include "tools/ctl/cluster_tool.hpp"

#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <thread>

#include "tools/ctl/format.hpp"
#include "tools/ctl/json_line.hpp"
#include "tools/ctl/tables.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

ControlError failure(std::string message) {
  return {Failure::bad_answer, std::move(message)};
}

/// "-" means the first line of standard input, which other users cannot see as they can see an argument.
std::string line_from(const std::string& argument) {
  if (argument != "-") return argument;
  std::string line;
  std::getline(std::cin, line);
  return line.substr(0, max_line_bytes);
}

}  // namespace

std::optional<std::int64_t> seconds_of(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::int64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86'400 : 0;
  constexpr std::int64_t most = 1'000'000;
  if (error != std::errc() || seconds == 0 || number <= 0 || number > most) return std::nullopt;
  return number * seconds;
}

ClusterTool::ClusterTool(CLI::App& app) {
  add_denials(app);
  add_keys(app);
  add_invitations(app);
}

void ClusterTool::add_denials(CLI::App& app) {
  CLI::App* deny = app.add_subcommand(
      "deny", "Exclude a node from the cluster: every member closes its links to it and no longer admits it");
  deny->add_option("NODE", node_, "Its id, or the first 8 digits or more of a known one")->required();
  deny->add_option("--reason", reason_, "Why, for the other operators")->type_name("TEXT");
  deny->footer(
      "Keeps out an honest node that is not wanted. Whoever holds the cluster key can come back under\n"
      "another id: for a lost machine, also run 'gossamerctl key rotate' and retire the old key.");
  deny->callback([this] { request_ = {{"command", "deny"}, {"node", node_}, {"reason", reason_}}; });
  CLI::App* allow = app.add_subcommand("allow", "Take back a denial, in the whole cluster");
  allow->add_option("NODE", node_, "The id of the denied node")->required();
  allow->footer("A denial under [overlay] denied in a member's configuration stays in force there.");
  allow->callback([this] { request_ = {{"command", "allow"}, {"node", node_}}; });
  app.add_subcommand("denials", "The nodes that the cluster denies, or allowed again")->callback([this] {
    request_ = {{"command", "denials"}};
  });
}

void ClusterTool::add_keys(CLI::App& app) {
  CLI::App* key = app.add_subcommand("key", "The cluster keys: list, rotate, retire");
  key->require_subcommand(1);
  key->add_subcommand("list", "The keys that admit nodes here, by their fingerprints")->callback([this] {
    request_ = {{"command", "key_list"}};
  });
  CLI::App* rotate = key->add_subcommand("rotate", "Make a new cluster key and give it to every member");
  rotate->footer(
      "No link goes down. The new key is listened with when all neighbours hold it, or after a minute; the\n"
      "old one still admits nodes until 'gossamerctl key retire'.");
  rotate->callback([this] { request_ = {{"command", "key_rotate"}}; });
  CLI::App* retire = key->add_subcommand("retire", "Take an old key out of every member's ring, for good");
  retire->add_option("FINGERPRINT", fingerprint_, "As 'gossamerctl key list' shows it")->required();
  retire->footer(
      "A node that was away for all of the rotation needs an invitation, or a member's key file, to come back.");
  retire->callback([this] { request_ = {{"command", "key_retire"}, {"fingerprint", fingerprint_}}; });
}

void ClusterTool::add_invitations(CLI::App& app) {
  CLI::App* invite = app.add_subcommand("invite", "Print a line with which other machines can join the cluster");
  invite->add_option("--expires", expires_, "How long it can be used: 90s, 30m, 24h, 7d (default 24h)")
      ->type_name("TIME")
      ->check([](const std::string& text) {
        return seconds_of(text) ? std::string() : "a number and a unit are expected: 90s, 30m, 24h or 7d";
      });
  invite
      ->add_option("--address", addresses_,
                   "An address where members answer; may be repeated (default: found automatically)")
      ->type_name("tcp://HOST:PORT");
  invite->footer(
      "The line is a secret: whoever has it can join, any number of times, until it expires. To end it before\n"
      "that, run 'gossamerctl key rotate' and retire the old key.");
  invite->callback([this] {
    request_ = {{"command", "invite"}, {"expires_s", *seconds_of(expires_)}, {"addresses", addresses_}};
  });
  CLI::App* join = app.add_subcommand("join", "Join the cluster that an invitation comes from");
  join->add_option("LINE", line_,
                   "The line that 'gossamerctl invite' printed on a member; - reads it from standard input")
      ->required();
  join->footer("Takes the cluster's keys in place of this node's own. Refused while the node is linked to others.");
  join->callback([this] { request_ = {{"command", "join"}, {"line", line_}}; });
}

std::expected<std::string, ControlError> ClusterTool::run(const Ask& ask, bool as_json, bool colour) {
  if (request_.at("command") == "join") request_["line"] = line_from(line_);
  auto answer = ask(request_);
  if (answer && request_.at("command") == "join") answer = wait_for_join(ask);
  if (!answer) return std::unexpected(answer.error());
  return as_json ? json_line(*std::move(answer)) : words(*answer, colour);
}

std::expected<json, ControlError> ClusterTool::wait_for_join(const Ask& ask) const {
  const auto deadline = std::chrono::steady_clock::now() + join_timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    auto status = ask({{"command", "join_status"}});
    if (!status) return status;
    const std::string state = status->value("state", "");
    if (state == "joined") return status;
    if (state != "joining") return std::unexpected(failure(safe_text(status->value("message", "it failed"))));
    std::this_thread::sleep_for(join_poll);
  }
  return std::unexpected(failure("the daemon is still trying to join; 'gossamerctl peers' will show links if it does"));
}

std::string ClusterTool::words(const json& answer, bool colour) const {
  const std::string command = request_.at("command");
  if (command == "denials") return denials_table(answer, colour);
  if (command == "key_list") return keys_table(answer, colour);
  if (command == "key_rotate")
    return fmt::format("made key {}; 'gossamerctl key list' shows who holds it\n",
                       safe_text(answer.at("fingerprint").get<std::string>()));
  if (command == "key_retire")
    return fmt::format("retired key {}\n", safe_text(answer.at("fingerprint").get<std::string>()));
  if (command == "join") return safe_text(answer.at("message").get<std::string>()) + "\n";
  if (command == "invite") {
    // Only the line goes to standard output, so that it can be piped.
    std::string places;
    for (const json& place : answer.at("addresses"))
      places += (places.empty() ? "" : ", ") + safe_text(place.get<std::string>());
    fmt::print(stderr, "A secret, good until {}; members answer at {}.\n",
               safe_text(answer.at("expires_at").get<std::string>()), places);
    if (!answer.value("reachable", true))
      fmt::print(stderr,
                 "Only this machine can reach that: set [overlay] listen, or name another address with --address.\n");
    return safe_text(answer.at("invitation").get<std::string>()) + "\n";
  }
  const json& denial = answer.at("denial");
  return fmt::format("node {} is {} from now on\n", safe_text(denial.at("node").get<std::string>()),
                     denial.at("denied").get<bool>() ? "denied" : "allowed");
}

}  // namespace gossamer::ctl
