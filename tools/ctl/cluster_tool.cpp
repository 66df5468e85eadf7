// The commands that change the cluster. Their requests are described in daemon/cluster/cluster_commands.hpp.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include "peer/keys/authority.hpp"
#include "peer/limits.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/signing.hpp"
#include "tools/ctl/tables.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// The daemon gives up earlier than this (peer/links/claim_attempt.hpp).
constexpr std::chrono::seconds join_timeout{90};
constexpr std::chrono::milliseconds join_poll{100};
/// No invitation is longer than this.
constexpr std::size_t max_line_bytes = 8192;

using Words = std::string (*)(const json& answer, bool colour);

/// A command that sends one request and shows the answer.
CommandAction asking(json request, Words words) {
  return
      [request = std::move(request), words](const Invocation& call) { return call.end(call.request(request), words); };
}

/// "-" means the first line of standard input, which other users cannot see as they can see an argument.
std::string line_from(const std::string& argument) {
  if (argument != "-") return argument;
  if (::isatty(STDIN_FILENO) == 1) std::cerr << "The line that 'gossamerctl invite' printed: " << std::flush;
  std::string line;
  std::getline(std::cin, line);
  return line.substr(0, max_line_bytes);
}

std::string decision_words(const json& answer, bool) {
  const json& denial = answer.at("denial");
  return fmt::format("node {} is {} from now on\n{}", text_in(denial, "node"),
                     denial.at("denied").get<bool>() ? "denied" : "allowed",
                     answer.value("known", true) || !denial.at("denied").get<bool>()
                         ? ""
                         : "(No node, and no used invitation, of this id is known here.)\n");
}

/// Denies the node, or allows it again. `node` is its id, or the first digits of the id.
JsonAnswer decide_about_node(bool denied, const std::string& node, const std::string& reason,
                             const std::string& key_file, const Invocation& call) {
  const auto is_as_asked = [&](const json& item) {
    return item.at("kind") == "denial" && item.at("denied") == denied && item.at("reason") == reason &&
           item.at("node").get<std::string>().starts_with(digits_of(node));
  };
  return decide({{"command", denied ? "deny" : "allow"}, {"node", node}, {"reason", reason}}, key_file, is_as_asked,
                call);
}

void add_denials(CLI::App& app, CommandAction& chosen) {
  struct Named {
    std::string node;
    std::string reason;
  };
  const auto named = std::make_shared<Named>();
  const auto key_file = std::make_shared<std::string>();
  CLI::App* deny = app.add_subcommand(
      "deny", "Exclude a node from the cluster: every member closes its links to it and no longer admits it");
  deny->add_option("NODE", named->node, "Its id, or the first 8 digits or more of a known one")->required();
  deny->add_option("--reason", named->reason, "Why, for the other operators")->type_name("TEXT");
  deny->add_option("--authority", *key_file, key_file_help)->type_name("FILE");
  deny->footer(
      "Keeps out an honest node that is not wanted. Whoever holds the cluster key can come back under\n"
      "another id: for a lost machine, also run 'gossamerctl key rotate' and retire the old key.");
  const auto decision = [named, key_file](bool denied) {
    return [=](const Invocation& call) {
      return call.end(decide_about_node(denied, named->node, named->reason, *key_file, call), decision_words);
    };
  };
  deny->callback([=, &chosen] { chosen = decision(true); });
  CLI::App* allow = app.add_subcommand("allow", "Take back a denial, in the whole cluster");
  allow->add_option("NODE", named->node, "The id of the denied node")->required();
  allow->add_option("--authority", *key_file, key_file_help)->type_name("FILE");
  allow->footer("A denial under [overlay] denied in a member's configuration stays in force there.");
  allow->callback([=, &chosen] { chosen = decision(false); });
  app.add_subcommand("denials", "The nodes that the cluster denies, or allowed again")->callback([&chosen] {
    chosen = asking({{"command", "denials"}}, denials_table);
  });
}

void add_audit(CLI::App& app, CommandAction& chosen) {
  CLI::App* audit = app.add_subcommand("audit", "Who has decided what for the cluster, as this node has heard it");
  audit->footer("What it has not followed as well. The journal has more, and each time.");
  audit->callback([&chosen] { chosen = asking({{"command", "audit"}}, audit_table); });
}

void add_keys(CLI::App& app, CommandAction& chosen) {
  const auto fingerprint = std::make_shared<std::string>();
  const auto key_file = std::make_shared<std::string>();
  CLI::App* key = app.add_subcommand("key", "The cluster keys: list, rotate, retire");
  key->require_subcommand(1);
  key->add_subcommand("list", "The keys that admit nodes here, by their fingerprints")->callback([&chosen] {
    chosen = asking({{"command", "key_list"}}, keys_table);
  });
  CLI::App* rotate = key->add_subcommand("rotate", "Make a new cluster key and give it to every member");
  rotate->add_option("--authority", *key_file, key_file_help)->type_name("FILE");
  rotate->footer(
      "No link goes down. The new key is listened with when all neighbours hold it, or after a minute; the\n"
      "old one still admits nodes until 'gossamerctl key retire'.");
  rotate->callback([&chosen, key_file] {
    chosen = [key_file](const Invocation& call) {
      const auto is_key = [](const json& item) { return item.at("kind") == "key"; };
      return call.end(decide({{"command", "key_rotate"}}, *key_file, is_key, call), [](const json& answer, bool) {
        return fmt::format("made key {}; 'gossamerctl key list' shows who holds it\n", text_in(answer, "fingerprint"));
      });
    };
  });
  CLI::App* retire = key->add_subcommand("retire", "Take an old key out of every member's ring, for good");
  retire->add_option("FINGERPRINT", *fingerprint, "As 'gossamerctl key list' shows it")->required();
  retire->add_option("--authority", *key_file, key_file_help)->type_name("FILE");
  retire->footer(
      "A node that was away for all of the rotation needs an invitation, or a member's key file, to come back.");
  retire->callback([fingerprint, &chosen, key_file] {
    chosen = [=](const Invocation& call) {
      const auto is_it = [&](const json& item) {
        return item.at("kind") == "retirement" && item.at("fingerprint") == digits_of(*fingerprint);
      };
      const json request{{"command", "key_retire"}, {"fingerprint", *fingerprint}};
      return call.end(decide(request, *key_file, is_it, call), [](const json& answer, bool) {
        return fmt::format("retired key {}\n", text_in(answer, "fingerprint"));
      });
    };
  });
}

std::string authority_words(const json& answer, bool) {
  const std::string authority = text_in(answer, "authority");
  if (authority.empty()) return "no authority: every member may decide for the cluster\n";
  const bool asks = answer.value("asks_for_certificates", false);
  const auto not_signed = answer.at("not_signed").get<std::size_t>();
  std::string deputies;
  for (const json& deputy : answer.value("deputies", json::array()))
    deputies += fmt::format("{} ({}) may sign in its place: {}\n", text_in(deputy, "name"), text_in(deputy, "key"),
                            text_in(deputy, "may"));
  return fmt::format("{} decides in this cluster\n{}Nodes are let in with {}.\n{}", authority, deputies,
                     asks ? "a certificate only" : "a cluster key",
                     not_signed == 0
                         ? ""
                         : fmt::format("Nobody has signed {} of the denials and keys that hold here, so others do not "
                                       "take them from this node: 'gossamerctl authority create FILE' with the "
                                       "authority's file does.\n",
                                       not_signed));
}

/// Shows what is to be signed. True if the operator agrees.
bool agrees_to(const json& items, bool yes) {
  for (const json& item : items)
    fmt::print(stderr, "To be signed: {}\n", words_of_decision(item));
  return yes || items.empty() || is_confirmed("Sign all of this, as what this authority has decided?");
}

/// Sends as many signatures at a time as a request of the control socket holds.
JsonAnswer tell_in_parts(json request, const json& signatures, const Invocation& call) {
  constexpr std::size_t most = 200;
  auto rest = signatures.begin();
  do {
    json some = json::object();
    for (; rest != signatures.end() && some.size() < most; ++rest)
      some[rest.key()] = rest.value();
    request["signatures"] = std::move(some);
    if (auto told = call.request(request); !told || rest == signatures.end()) return told;
  } while (true);
}

/// The cluster was to follow a new authority, and that has failed. Removes the file of its key if no daemon can have
/// taken it: without the file nobody could decide.
JsonAnswer forget_key(const std::string& path, const std::string& authority, ControlError error,
                      const Invocation& call) {
  const auto present = call.ask("authority");
  const bool is_unused = present && present->value("authority", authority) != authority;
  std::error_code failed;
  if (is_unused && std::filesystem::remove(path, failed)) {
    error.message += fmt::format(" ({} is removed again)", safe_text(path));
  } else {
    error.message +=
        fmt::format(" ({} is kept, since this cluster may follow its key already: see 'gossamerctl authority show')",
                    safe_text(path));
  }
  return std::unexpected(std::move(error));
}

/// Takes the key of the file, or makes one, and signs with it all denials and keys that hold at this node.
JsonAnswer found_authority(const std::string& path, bool yes, const Invocation& call) {
  const auto present = call.ask("authority");
  if (!present) return present;
  std::error_code ignored;
  const bool is_made = std::filesystem::exists(path, ignored);
  const auto key = is_made ? peer::SigningKey::read(path) : peer::SigningKey::generate();
  if (!key) return failure(key.error());
  const std::string authority = peer::hex(key->public_half());
  const std::string decides = present->at("authority").get<std::string>();
  if (!decides.empty() && decides != authority)
    return failure(
        fmt::format("{} decides in this cluster already. To follow another, first run 'gossamerctl authority "
                    "use none' on every member",
                    safe_text(decides)));
  const json request{{"command", "authority_set"}, {"authority", authority}};
  const auto asked = call.request(request);
  if (!asked) return asked;
  const json& items = asked->at("to_sign");
  const auto may_hold = [](const json& item) {
    const std::string kind = item.at("kind").get<std::string>();
    return kind == "denial" || kind == "key" || kind == "retirement";
  };
  if (!std::ranges::all_of(items, may_hold))
    return failure("the daemon asks to sign something else than denials and keys: nothing was signed");
  if (!agrees_to(items, yes))
    return failure("nothing was signed, and nothing has changed: look at this list, then add --yes");
  const auto signatures = signatures_for(items, *key);
  if (!signatures) return signatures;
  if (const auto made = is_made ? std::expected<void, std::string>() : key->create(path); !made)
    return failure(made.error());
  auto told = tell_in_parts(request, *signatures, call);
  if (told || is_made) return told;
  return forget_key(path, authority, told.error(), call);
}

/// Sets what a node must show to be let in. The operator first sees which nodes this puts out, and has to agree.
JsonAnswer ask_for(bool certificates, const std::string& key_file, bool yes, const Invocation& call) {
  const json request{{"command", "rule_set"}, {"certificates", certificates}};
  const auto asked = call.request(request);
  if (!asked) return asked;
  const json waiting = certificates ? asked->value("waiting", json::array()) : json::array();
  for (const json& node : waiting)
    fmt::print(stderr, "Has no certificate: {} {} {}\n", text_in(node, "node"), text_in(node, "name"),
               text_in(node, "why"));
  if (!waiting.empty() && !yes && !is_confirmed("Put them out?"))
    return failure("nothing has changed: first approve these nodes ('gossamerctl approve --all'), or add --yes");
  const auto is_it = [&](const json& item) {
    return item.at("kind") == "rule" && item.at("certificates") == certificates;
  };
  return decide(request, key_file, is_it, call);
}

void add_require(CLI::App& authority, CommandAction& chosen) {
  struct Wanted {
    std::string what;
    std::string key_file;
    bool yes = false;
  };
  const auto wanted = std::make_shared<Wanted>();
  CLI::App* require = authority.add_subcommand(
      "require", "What a node must show to be let in: a certificate besides the cluster key, or the key alone");
  require->add_option("WHAT", wanted->what, "certificates or key")
      ->required()
      ->check(CLI::IsMember({"certificates", "key"}));
  require->add_option("--authority", wanted->key_file, key_file_help)->type_name("FILE");
  require->add_flag("--yes", wanted->yes, "Put out without asking who has no certificate");
  require->callback([wanted, &chosen] {
    chosen = [wanted](const Invocation& call) {
      return call.end(ask_for(wanted->what == "certificates", wanted->key_file, wanted->yes, call), authority_words);
    };
  });
}

/// Returns the public half of the key in the file. Makes the file if it does not exist.
JsonAnswer own_key(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    if (const auto made = peer::SigningKey::generate().create(path); !made) return failure(made.error());
  }
  const auto key = peer::SigningKey::read(path);
  if (!key) return failure(key.error());
  return json{{"key", peer::hex(key->public_half())}};
}

std::vector<std::string> words_for_powers() {
  std::vector<std::string> words;
  for (const auto& [power, word] : peer::names_of_powers)
    words.emplace_back(word);
  return words;
}

std::uint8_t powers_of(const std::vector<std::string>& words) {
  std::uint8_t powers = 0;
  for (const auto& [power, word] : peer::names_of_powers) {
    if (std::ranges::find(words, word) != words.end()) powers |= static_cast<std::uint8_t>(power);
  }
  return powers;
}

/// A deputy, and what it may do from now on.
struct Appointment {
  std::string key;
  std::string name;
  std::vector<std::string> may;
  std::string key_file;
  bool yes = false;
};

/// If the deputy may no longer sign certificates, shows the nodes that have theirs from it, and asks the operator.
std::expected<void, ControlError> ask_about_nodes(const Appointment& wanted, const Invocation& call) {
  if (std::ranges::find(wanted.may, "invite") != wanted.may.end()) return {};
  const auto held = call.ask("certificates");
  if (!held) return std::unexpected(held.error());
  bool any = false;
  for (const json& certificate : held->at("certificates")) {
    if (certificate.value("signer", "") != digits_of(wanted.key) || !certificate.at("counts").get<bool>()) continue;
    fmt::print(stderr, "Has its certificate from this deputy: {}\n", text_in(certificate, "node"));
    any = true;
  }
  if (!any || wanted.yes || is_confirmed("Put these nodes out, if the cluster asks for certificates?")) return {};
  return failure(
      "nothing has changed: first approve these nodes with another key ('gossamerctl approve NODE'), or add "
      "--yes");
}

/// If the key is a deputy's already, shows what it was called and might sign until now.
std::expected<void, ControlError> show_former(const Appointment& wanted, const Invocation& call) {
  const auto present = call.ask("authority");
  if (!present) return std::unexpected(present.error());
  for (const json& deputy : present->value("deputies", json::array())) {
    if (deputy.at("key") != digits_of(wanted.key)) continue;
    if (deputy.at("name") == wanted.name && deputy.at("may") == peer::words_of_powers(powers_of(wanted.may))) continue;
    fmt::print(stderr, "until now {}: {}\n", text_in(deputy, "name"), text_in(deputy, "may"));
  }
  return {};
}

JsonAnswer set_deputy(const Appointment& wanted, const Invocation& call) {
  const json request{
      {"command", "deputy_set"}, {"key", wanted.key}, {"name", wanted.name}, {"powers", powers_of(wanted.may)}};
  const auto is_it = [&](const json& item) {
    return item.at("kind") == "deputy" && item.at("key") == digits_of(wanted.key) && item.at("name") == wanted.name &&
           item.at("powers") == request.at("powers");
  };
  return decide(request, wanted.key_file, is_it, call);
}

/// Signs the decisions that the deputy has made about nodes as the authority's own, if the operator wants to keep them.
std::expected<void, ControlError> take_over_denials(const Appointment& wanted, const Invocation& call) {
  const auto held = call.ask("denials");
  if (!held) return std::unexpected(held.error());
  for (const json& denial : held->at("denials")) {
    if (denial.value("signer", "") != wanted.key) continue;
    NodeId node;  // needs the whole id: the daemon could complete its first digits to any node
    if (!peer::parse_hex(denial.at("node").get<std::string>(), node.bytes))
      return failure("the daemon tells of a denial of what is no node: the deputy is not dismissed");
    json decision = denial;
    decision["kind"] = "denial";
    fmt::print(stderr, "{} has decided: {}\n", wanted.name, words_of_decision(decision));
    if (!wanted.yes && !is_confirmed("Keep this, as the authority's decision?")) continue;
    if (auto done = decide_about_node(denial.at("denied").get<bool>(), node.full(),
                                      denial.at("reason").get<std::string>(), wanted.key_file, call);
        !done) {
      return std::unexpected(done.error());
    }
  }
  return {};
}

/// Finds the deputy by its key or its name. The key may also be that of a former deputy.
std::expected<Appointment, ControlError> find_deputy(Appointment wanted, const json& deputies) {
  const auto is_named = [&](const json& deputy) {
    return deputy.at("key") == digits_of(wanted.key) || deputy.at("name") == wanted.key;
  };
  const auto found = std::ranges::find_if(deputies, is_named);
  if (std::ranges::count_if(deputies, is_named) == 1) {
    wanted.key = found->at("key").get<std::string>();
    wanted.name = found->at("name").get<std::string>();
    return wanted;
  }
  peer::PublicKey key{};
  if (found == deputies.end() && peer::parse_hex(wanted.key, key)) return wanted;
  return failure(fmt::format("{} is not the key or the name of one deputy: see 'gossamerctl authority show'",
                             safe_text(wanted.key)));
}

/// The decisions to keep are signed anew before the deputy is dismissed. All its other decisions end then.
JsonAnswer dismiss(const Appointment& named, const Invocation& call) {
  const auto present = call.ask("authority");
  if (!present) return present;
  const auto wanted = find_deputy(named, present->value("deputies", json::array()));
  if (!wanted) return std::unexpected(wanted.error());
  if (wanted->key != digits_of(named.key) && !named.yes &&
      !is_confirmed(fmt::format("Dismiss {} ({})?", safe_text(wanted->name), safe_text(wanted->key))))
    return failure("nothing has changed: give the deputy's key, or add --yes");
  if (const auto agreed = ask_about_nodes(*wanted, call); !agreed) return std::unexpected(agreed.error());
  if (auto kept = take_over_denials(*wanted, call); !kept) return std::unexpected(kept.error());
  auto done = set_deputy(*wanted, call);
  if (!done || done->at("not_signed") == 0) return done;
  auto has_signed = found_authority(wanted->key_file, wanted->yes, call);
  if (has_signed) return has_signed;
  return failure(
      fmt::format("the deputy is dismissed, and {} keys that hold here are not signed: 'gossamerctl authority "
                  "create {}' signs them. ({})",
                  done->at("not_signed").get<std::size_t>(), wanted->key_file, has_signed.error().message));
}

void add_deputies(CLI::App& authority, CommandAction& chosen) {
  const auto wanted = std::make_shared<Appointment>();
  CLI::App* key = authority.add_subcommand("key", "Make a key file of one's own, and print its public half");
  key->add_option("FILE", wanted->key_file, "Where the secret key is written, with mode 0600")->required();
  key->footer("For who is to be a deputy. If the file is there, only its public half is printed. No daemon is asked.");
  key->callback([wanted, &chosen] {
    chosen = [wanted](const Invocation& call) {
      return call.end(own_key(wanted->key_file),
                      [](const json& answer, bool) { return text_in(answer, "key") + "\n"; });
    };
  });
  CLI::App* appoint = authority.add_subcommand(
      "appoint", "Let another key sign in the authority's place, so that several people decide, each with a key");
  appoint->add_option("KEY", wanted->key, "As 'gossamerctl authority key' printed it")->required();
  appoint->add_option("--name", wanted->name, "Who has the key, for other people")->type_name("TEXT")->required();
  appoint
      ->add_option("--may", wanted->may,
                   "What it may sign, with commas between: deny (and allow nodes), keys (rotate and retire), settings\n"
                   "(of jobs), invite (and approve nodes)")
      ->type_name("WHAT")
      ->delimiter(',')
      ->check(CLI::IsMember(words_for_powers()))
      ->required();
  appoint->add_option("--authority", wanted->key_file, "The key file of the cluster's authority")
      ->type_name("FILE")
      ->required();
  appoint->add_flag("--yes", wanted->yes, "Do not ask about nodes that this puts out");
  appoint->footer(
      "Only the authority itself appoints, and asks for certificates. Update all members before: an older gossamerd\n"
      "takes nothing that a deputy has signed.");
  appoint->callback([wanted, &chosen] {
    chosen = [wanted](const Invocation& call) {
      auto agreed = show_former(*wanted, call);
      if (agreed) agreed = ask_about_nodes(*wanted, call);
      return call.end(agreed ? set_deputy(*wanted, call) : JsonAnswer(std::unexpected(agreed.error())),
                      authority_words);
    };
  });
  CLI::App* dismiss_it = authority.add_subcommand("dismiss", "Let a deputy sign nothing any more");
  dismiss_it->add_option("DEPUTY", wanted->key, "Its key or its name, as 'gossamerctl authority show' prints them")
      ->required();
  dismiss_it->add_option("--authority", wanted->key_file, "The key file of the cluster's authority")
      ->type_name("FILE")
      ->required();
  dismiss_it->add_flag("--yes", wanted->yes, "Keep all that it has decided about nodes and keys, without asking");
  dismiss_it->footer(
      "What it has signed counts no more. Of what it has decided about nodes, the authority takes over what you keep,\n"
      "and the rest is forgotten; keys that it has made stay, and are signed by the authority. Nodes that it has\n"
      "approved or invited are put out, unless they are approved again before.");
  dismiss_it->callback([wanted, &chosen] {
    chosen = [wanted](const Invocation& call) { return call.end(dismiss(*wanted, call), authority_words); };
  });
}

void add_authority(CLI::App& app, CommandAction& chosen) {
  CLI::App* authority =
      app.add_subcommand("authority", "Who decides for the cluster: show, create, key, appoint, dismiss, require, use");
  authority->require_subcommand(1);
  authority->add_subcommand("show", "The authority without whose signature nothing is decided here")
      ->callback([&chosen] {
        chosen = asking({{"command", "authority"}}, authority_words);
      });
  const auto file = std::make_shared<std::string>();
  CLI::App* create = authority->add_subcommand(
      "create",
      "Make an authority for the whole cluster: from then on only who has its key denies, allows, rotates "
      "and retires");
  create->add_option("FILE", *file, "Where its secret key is written, with mode 0600")->required();
  const auto yes = std::make_shared<bool>(false);
  create->add_flag("--yes", *yes, "Sign the denials and keys that hold here without asking");
  create->footer(
      "It signs the denials and keys that hold here, which are shown before. Every member follows within seconds.\n"
      "If the file is there, its key is taken: so it signs what it has not signed yet.\n"
      "Keep the file where only operators can read it; no daemon needs it. Without it nobody can decide: make a copy.");
  create->callback([file, yes, &chosen] {
    chosen = [=](const Invocation& call) { return call.end(found_authority(*file, *yes, call), authority_words); };
  });
  add_deputies(*authority, chosen);
  add_require(*authority, chosen);
  const auto wanted = std::make_shared<std::string>();
  CLI::App* use = authority->add_subcommand("use", "Follow this authority at this node, whatever others say");
  use->add_option("AUTHORITY", *wanted, "As 'gossamerctl authority show' prints it elsewhere, or none")->required();
  use->footer(
      "Members that follow none take it from this node. With none, this node drops its own, and takes the first\n"
      "other one that a neighbour tells of.");
  use->callback([wanted, &chosen] {
    if (wanted->empty()) throw CLI::ValidationError("AUTHORITY", "64 hexadecimal digits, or none, are expected");
    const std::string digits = *wanted == "none" ? "" : *wanted;
    chosen =
        asking({{"command", "authority_set"}, {"authority", digits}, {"signatures", json::object()}}, authority_words);
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
  add_authority(app, chosen);
  add_audit(app, chosen);
  add_join(app, chosen);
}

}  // namespace gossamer::ctl
