// The commands that change the cluster. Their requests are described in daemon/cluster/cluster_commands.hpp.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/tables.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// This is longer than the daemon tries (peer/links/claim_attempt.hpp).
constexpr std::chrono::seconds join_timeout{90};
constexpr std::chrono::milliseconds join_poll{100};
/// No invitation is longer.
constexpr std::size_t max_line_bytes = 8192;

using Words = std::string (*)(const json& answer, bool colour);

/// A command that sends one request and shows the answer.
CommandAction asking(json request, Words words) {
  return
      [request = std::move(request), words](const Invocation& call) { return call.end(call.request(request), words); };
}

std::string text_in(const json& answer, const char* member) {
  return safe_text(answer.at(member).get<std::string>());
}

/// "-" means the first line of standard input, which other users cannot see as they can see an argument.
std::string line_from(const std::string& argument) {
  if (argument != "-") return argument;
  if (::isatty(STDIN_FILENO) == 1) std::cerr << "The line that 'gossamerctl invite' printed: " << std::flush;
  std::string line;
  std::getline(std::cin, line);
  return line.substr(0, max_line_bytes);
}

/// Converts "90s", "30m", "24h" or "7d" to seconds; nothing for any other text.
std::optional<std::int64_t> seconds_of(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::int64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86'400 : 0;
  constexpr std::int64_t most = 1'000'000;
  if (error != std::errc() || seconds == 0 || number <= 0 || number > most) return std::nullopt;
  return number * seconds;
}

std::string decision_words(const json& answer, bool) {
  const json& denial = answer.at("denial");
  return fmt::format("node {} is {} from now on\n", text_in(denial, "node"),
                     denial.at("denied").get<bool>() ? "denied" : "allowed");
}

void add_denials(CLI::App& app, CommandAction& chosen) {
  struct Named {
    std::string node;
    std::string reason;
  };
  const auto named = std::make_shared<Named>();
  CLI::App* deny = app.add_subcommand(
      "deny", "Exclude a node from the cluster: every member closes its links to it and no longer admits it");
  deny->add_option("NODE", named->node, "Its id, or the first 8 digits or more of a known one")->required();
  deny->add_option("--reason", named->reason, "Why, for the other operators")->type_name("TEXT");
  deny->footer(
      "Keeps out an honest node that is not wanted. Whoever holds the cluster key can come back under\n"
      "another id: for a lost machine, also run 'gossamerctl key rotate' and retire the old key.");
  deny->callback([named, &chosen] {
    chosen = asking({{"command", "deny"}, {"node", named->node}, {"reason", named->reason}}, decision_words);
  });
  CLI::App* allow = app.add_subcommand("allow", "Take back a denial, in the whole cluster");
  allow->add_option("NODE", named->node, "The id of the denied node")->required();
  allow->footer("A denial under [overlay] denied in a member's configuration stays in force there.");
  allow->callback([named, &chosen] { chosen = asking({{"command", "allow"}, {"node", named->node}}, decision_words); });
  app.add_subcommand("denials", "The nodes that the cluster denies, or allowed again")->callback([&chosen] {
    chosen = asking({{"command", "denials"}}, denials_table);
  });
}

void add_keys(CLI::App& app, CommandAction& chosen) {
  const auto fingerprint = std::make_shared<std::string>();
  CLI::App* key = app.add_subcommand("key", "The cluster keys: list, rotate, retire");
  key->require_subcommand(1);
  key->add_subcommand("list", "The keys that admit nodes here, by their fingerprints")->callback([&chosen] {
    chosen = asking({{"command", "key_list"}}, keys_table);
  });
  CLI::App* rotate = key->add_subcommand("rotate", "Make a new cluster key and give it to every member");
  rotate->footer(
      "No link goes down. The new key is listened with when all neighbours hold it, or after a minute; the\n"
      "old one still admits nodes until 'gossamerctl key retire'.");
  rotate->callback([&chosen] {
    chosen = asking({{"command", "key_rotate"}}, [](const json& answer, bool) {
      return fmt::format("made key {}; 'gossamerctl key list' shows who holds it\n", text_in(answer, "fingerprint"));
    });
  });
  CLI::App* retire = key->add_subcommand("retire", "Take an old key out of every member's ring, for good");
  retire->add_option("FINGERPRINT", *fingerprint, "As 'gossamerctl key list' shows it")->required();
  retire->footer(
      "A node that was away for all of the rotation needs an invitation, or a member's key file, to come back.");
  retire->callback([fingerprint, &chosen] {
    chosen = asking({{"command", "key_retire"}, {"fingerprint", *fingerprint}}, [](const json& answer, bool) {
      return fmt::format("retired key {}\n", text_in(answer, "fingerprint"));
    });
  });
}

/// Only the line goes to standard output, so that it can be piped.
std::string invitation_words(const json& answer, bool) {
  std::vector<std::string> places;
  for (const json& place : answer.at("addresses"))
    places.push_back(safe_text(place.get<std::string>()));
  fmt::print(stderr, "A secret, good until {}; members answer at {}.\n", text_in(answer, "expires_at"),
             fmt::join(places, ", "));
  if (!answer.value("reachable", true))
    fmt::print(stderr,
               "Only this machine can reach that: set [overlay] listen, or name another address with --address.\n");
  return text_in(answer, "invitation") + "\n";
}

void add_invite(CLI::App& app, CommandAction& chosen) {
  struct Wanted {
    std::string expires = "24h";
    std::vector<std::string> addresses;
  };
  const auto wanted = std::make_shared<Wanted>();
  CLI::App* invite = app.add_subcommand("invite", "Print a line with which other machines can join the cluster");
  invite->add_option("--expires", wanted->expires, "How long it can be used: 90s, 30m, 24h, 7d (default 24h)")
      ->type_name("TIME")
      ->check([](const std::string& text) {
        return seconds_of(text) ? std::string() : "a number and a unit are expected: 90s, 30m, 24h or 7d";
      });
  invite
      ->add_option("--address", wanted->addresses,
                   "An address where members answer; may be repeated (default: found automatically)")
      ->type_name("tcp://HOST:PORT");
  invite->footer(
      "The line is a secret: whoever has it can join, any number of times, until it expires. To end it before\n"
      "that, run 'gossamerctl key rotate' and retire the old key.");
  invite->callback([wanted, &chosen] {
    chosen =
        asking({{"command", "invite"}, {"expires_s", *seconds_of(wanted->expires)}, {"addresses", wanted->addresses}},
               invitation_words);
  });
}

JsonAnswer join_by(const std::string& line, const Invocation& call) {
  if (auto begun = call.request({{"command", "join"}, {"line", line_from(line)}}); !begun) return begun;
  const auto deadline = std::chrono::steady_clock::now() + join_timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    auto status = call.ask("join_status");
    if (!status) return status;
    const std::string state = status->value("state", "");
    if (state == "joined") return status;
    if (state != "joining") return failure(safe_text(status->value("message", "it failed")));
    std::this_thread::sleep_for(join_poll);
  }
  return failure("the daemon is still trying to join; 'gossamerctl peers' will show links if it does");
}

void add_join(CLI::App& app, CommandAction& chosen) {
  const auto line = std::make_shared<std::string>("-");
  CLI::App* join = app.add_subcommand("join", "Join the cluster that an invitation comes from");
  join->add_option(
      "LINE", *line,
      "The line that 'gossamerctl invite' printed on a member, where nobody else can see it; - or nothing\n"
      "reads it from standard input");
  join->footer("Takes the cluster's keys in place of this node's own. Refused while the node is linked to others.");
  join->callback([line, &chosen] {
    chosen = [line](const Invocation& call) {
      return call.end(join_by(*line, call), [](const json& answer, bool) { return text_in(answer, "message") + "\n"; });
    };
  });
}

}  // namespace

void add_cluster_commands(CLI::App& app, CommandAction& chosen) {
  add_denials(app, chosen);
  add_keys(app, chosen);
  add_invite(app, chosen);
  add_join(app, chosen);
}

}  // namespace gossamer::ctl
