// The commands for invitations and certificates. An invitation gets its warrant here, and certificates are made here,
// so that no daemon needs the authority's key. Requests are described in daemon/cluster/cluster_commands.hpp.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "peer/keys/certificate.hpp"
#include "peer/limits.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/signing.hpp"
#include "tools/ctl/tables.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// What is to be in a certificate, as it was typed.
struct Granted {
  std::string key_file;
  std::string jobs = "*";
  std::string valid = "365d";
  peer::NodeRole role = peer::NodeRole::trains;
};

void add_granted(CLI::App& command, Granted& granted) {
  CLI::Option* const signs = command.add_option("--authority", granted.key_file,
                                                "The key file of the cluster's authority, or of a deputy, which signs");
  signs->type_name("FILE");
  command
      .add_option("--jobs", granted.jobs,
                  "The jobs that it may take part in: names with * and ?, commas between them (default: all)")
      ->type_name("NAMES")
      ->check(peer::jobs_problem)
      ->needs(signs);
  const auto add_role = [&](const char* flag, peer::NodeRole role, const char* what) {
    return command
        .add_flag_callback(
            flag, [&granted, role] { granted.role = role; }, what)
        ->needs(signs);
  };
  CLI::Option* const keeps =
      add_role("--only-keeps", peer::NodeRole::keeps, "It may keep jobs, also as their server, and train none");
  add_role("--only-follows", peer::NodeRole::follows, "It may follow jobs, and gives nothing to others")
      ->excludes(keeps);
  command
      .add_option("--valid", granted.valid,
                  "How long the certificate counts, after the invitation has expired (default 365d)")
      ->type_name("TIME")
      ->check(time_complaint)
      ->needs(signs);
}

std::string rights_in(const Granted& granted) {
  return fmt::format("{} {}", peer::word_of(granted.role), granted.jobs);
}

std::string rights_in(const json& certificate) {
  return fmt::format("{} {}", text_in(certificate, "role"), text_in(certificate, "jobs"));
}

/// Certificates count for `granted.valid` after the last moment at which one can be made.
peer::Warrant warrant_of(const Granted& granted, std::uint32_t nodes, TimeUs usable_until) {
  return {.nodes = nodes,
          .rights = {.role = granted.role, .jobs = granted.jobs},
          .usable_until = usable_until,
          .valid_until = usable_until + *seconds_of(granted.valid) * us_per_s};
}

// --- invitations ----------------------------------------------------------------------------------------------------

constexpr const char* not_asked_for =
    "No member asks for certificates yet, so nobody needs one: see 'gossamerctl authority require'.\n";

/// Only the invitation goes to standard output, so that it can be piped. The rest goes to standard error.
std::string invitation_words(const json& answer, bool) {
  std::vector<std::string> places;
  for (const json& place : answer.at("addresses"))
    places.push_back(safe_text(place.get<std::string>()));
  fmt::print(stderr, "A secret, good until {}; members answer at {}.\n", text_in(answer, "expires_at"),
             fmt::join(places, ", "));
  if (answer.at("has_warrant").get<bool>()) {
    const auto nodes = answer.at("nodes").get<std::uint64_t>();
    fmt::print(stderr, "For {}.\n",
               nodes == 0   ? "any number of nodes"
               : nodes == 1 ? "one node"
                            : fmt::format("{} nodes", nodes));
    fmt::print(stderr, "'gossamerctl deny {}' with --authority ends it, and the certificates that come of it.\n",
               text_in(answer, "id"));
  }
  if (answer.at("needs_approval").get<bool>())
    fmt::print(stderr, "Nodes that join by it wait until they are approved: see 'gossamerctl pending'.\n");
  if (!answer.value("reachable", true))
    fmt::print(stderr,
               "Only this machine can reach that: set [overlay] listen, or name another address with --address.\n");
  return text_in(answer, "invitation") + "\n";
}

/// Members can count as many uses of an invitation as their tables have places (peer::max_certificates).
constexpr std::uint32_t most_nodes = 1000;

struct Invited {
  std::string expires = "24h";
  std::vector<std::string> addresses;
  std::uint32_t nodes = 1;
  Granted granted;
};

/// Makes an invitation. With the authority's key, it gets a warrant.
JsonAnswer invite(const Invited& wanted, const Invocation& call) {
  const auto authority = call.ask("authority");
  if (!authority) return authority;
  std::optional<peer::SigningKey> key;
  if (!wanted.granted.key_file.empty()) {
    auto read = signing_key(wanted.granted.key_file, *authority, "invite");
    if (!read) return std::unexpected(read.error());
    key = *read;
  }
  auto answer = call.request({{"command", "invite"},
                              {"expires_s", *seconds_of(wanted.expires)},
                              {"addresses", wanted.addresses},
                              {"needs_warrant", key.has_value()}});
  if (!answer) return answer;
  (*answer)["has_warrant"] = key.has_value();
  (*answer)["nodes"] = key ? wanted.nodes : 0;
  const bool asked_for = authority->value("asks_for_certificates", false);
  (*answer)["needs_approval"] = !key && asked_for;
  if (!key) return answer;
  if (!asked_for && !call.as_json) fmt::print(stderr, "{}", not_asked_for);
  const auto expires_at = answer->at("expires_at_us").get<TimeUs>();
  if (expires_at > time_of_day() + *seconds_of(wanted.expires) * us_per_s + peer::max_ahead_us)
    return failure("the daemon makes the invitation last much longer than was asked for: nothing was signed");
  if (!call.as_json) fmt::print(stderr, "Who joins by it may {}.\n", rights_in(wanted.granted));
  peer::Warrant warrant = warrant_of(wanted.granted, wanted.nodes, expires_at);
  if (!peer::parse_hex(answer->at("id").get<std::string>(), warrant.invitation))
    return failure("the daemon's answer names no invitation");
  const std::string line = answer->at("invitation").get<std::string>();
  (*answer)["invitation"] = line + "." + peer::UsableWarrant::make(std::move(warrant), *key).text();
  return answer;
}

void add_invite(CLI::App& app, CommandAction& chosen) {
  const auto wanted = std::make_shared<Invited>();
  CLI::App* invite_command =
      app.add_subcommand("invite", "Print a line with which other machines can join the cluster");
  invite_command->add_option("--expires", wanted->expires, "How long it can be used: 90s, 30m, 24h, 7d (default 24h)")
      ->type_name("TIME")
      ->check(time_complaint);
  invite_command
      ->add_option("--address", wanted->addresses,
                   "An address where members answer; may be repeated (default: found automatically)")
      ->type_name("tcp://HOST:PORT");
  invite_command
      ->add_option("--nodes", wanted->nodes,
                   "With --authority: how many nodes can join by it (default 1); 0: any number")
      ->type_name("N")
      ->check(CLI::Range(0U, static_cast<unsigned>(most_nodes)));
  add_granted(*invite_command, wanted->granted);
  invite_command->get_option("--nodes")->needs(invite_command->get_option("--authority"));
  invite_command->footer(
      "The line is a secret: whoever has it can join until it expires. With --authority so many nodes as it is for,\n"
      "each with a certificate; without, any number, and to end it before, run 'gossamerctl key rotate' and retire\n"
      "the old key.");
  invite_command->callback([wanted, &chosen] {
    chosen = [wanted](const Invocation& call) { return call.end(invite(*wanted, call), invitation_words); };
  });
}

// --- who waits, and who is approved ----------------------------------------------------------------------------------

std::string pending_table(const json& answer, bool colour) {
  Table table{{"NODE", "NAME", "AT", "WHY"}, {}, "no node waits for a certificate"};
  for (const json& node : answer.at("waiting"))
    table.rows.push_back(
        {{text_in(node, "node")}, {text_in(node, "name")}, {text_in(node, "host")}, {text_in(node, "why")}});
  return table.render(colour);
}

std::string certificates_table(const json& answer, bool colour) {
  Table table{{"NODE", "COUNTS", "MAY", "JOBS", "UNTIL", "INVITATION"}, {}, "this node knows of no certificate"};
  for (const json& held : answer.at("certificates")) {
    const bool counts = held.at("counts").get<bool>();
    table.rows.push_back({{text_in(held, "node")},
                          {counts ? "yes" : "no", false, counts ? Tone::good : Tone::bad},
                          {text_in(held, "role")},
                          {text_in(held, "jobs")},
                          {text_in(held, "valid_until")},
                          {text_in(held, "invitation")}});
  }
  return table.render(colour);
}

struct Approved {
  std::vector<std::string> nodes;
  bool all = false;
  std::string renew_before;  ///< certificates that end within this time; empty: this is no renewal
  bool yes = false;
  Granted granted;
};

/// A certificate to be made.
struct Approval {
  std::string node;
  json held;  ///< the certificate to be renewed, as `certificates` answers it; else null
};

bool is_denied(const json& denials, const json& id) {
  return std::ranges::any_of(denials,
                             [&](const json& denial) { return denial.at("node") == id && denial.at("denied"); });
}

/// A node that neither waits nor has a certificate must be named by its whole id. Denied nodes must be allowed first.
std::expected<std::vector<Approval>, ControlError> nodes_to_approve(const Approved& wanted, const json& waiting,
                                                                    const json& known, const json& denials) {
  constexpr std::size_t id_digits = 32;
  constexpr std::size_t least_digits = 8;  // whoever waits can choose the first few digits by trying keys
  std::vector<std::string> ids;
  std::vector<Approval> chosen;
  const auto choose = [&](const std::string& id) { chosen.push_back({id, nullptr}); };
  for (const json& node : waiting) {
    const auto& id = ids.emplace_back(node.at("node").get<std::string>());
    if (!wanted.all) continue;
    if (is_denied(denials, id)) {
      fmt::print(stderr, "Left out, since it is denied: {} {}\n", safe_text(id), text_in(node, "name"));
    } else {
      choose(id);
    }
  }
  for (const json& held : known)
    ids.push_back(held.at("node").get<std::string>());
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  for (const std::string& typed : wanted.nodes) {
    const std::string digits = digits_of(typed);
    const auto fits = [&](const std::string& id) { return id.starts_with(digits); };
    NodeId node;
    if (digits.size() == id_digits && peer::parse_hex(digits, node.bytes)) {
      choose(digits);
    } else if (digits.size() >= least_digits && std::ranges::count_if(ids, fits) == 1) {
      choose(*std::ranges::find_if(ids, fits));
    } else {
      return failure(
          fmt::format("\"{}\" names no node: give the 32 digits of its id, or the first {} or more of one that "
                      "'gossamerctl pending' or 'gossamerctl certificates' shows",
                      safe_text(typed), least_digits));
    }
    if (const std::string& id = chosen.back().node; is_denied(denials, id))
      return failure(fmt::format("node {} is denied: first 'gossamerctl allow' it; nothing was signed", safe_text(id)));
  }
  return chosen;
}

/// Certificates that end soon or have ended, that nobody has denied, and that were signed with the same key.
std::expected<std::vector<Approval>, ControlError> certificates_to_renew(const Approved& wanted,
                                                                         const peer::SigningKey& key, const json& known,
                                                                         const json& denials) {
  const TimeUs before = time_of_day() + *seconds_of(wanted.renew_before) * us_per_s;
  const std::string signer = peer::hex(key.public_half());
  std::vector<Approval> renewals;
  std::size_t of_others = 0;
  for (const json& held : known) {
    if (held.at("valid_until_us").get<TimeUs>() > before || is_denied(denials, held.at("node")) ||
        is_denied(denials, held.at("invitation")))
      continue;
    if (held.at("signer") == signer)
      renewals.push_back({held.at("node").get<std::string>(), held});
    else
      ++of_others;
  }
  if (of_others > 0)
    fmt::print(stderr, "{} that end until then were signed with other keys: 'gossamerctl --json certificates'.\n",
               of_others);
  return renewals;
}

/// Shows which nodes are to be approved. Unless he has typed their names, the operator has to agree.
bool agrees_to(const Approved& wanted, const std::vector<Approval>& approvals, const json& waiting, const json& known) {
  for (const Approval& approval : approvals) {
    const auto of_it = [&](const json& node) { return node.at("node") == approval.node; };
    std::string more;
    if (const auto waits = std::ranges::find_if(waiting, of_it); waits != waiting.end())
      more = text_in(*waits, "name") + " " + text_in(*waits, "why");
    if (const auto held = std::ranges::find_if(known, of_it); held != known.end())
      more += fmt::format("{}has one to {}, until {}", more.empty() ? "" : "; ", rights_in(*held),
                          text_in(*held, "valid_until"));
    if (more.empty()) more = "neither waits here nor has a certificate";
    const std::string rights = approval.held.is_null() ? rights_in(wanted.granted) : rights_in(approval.held);
    fmt::print(stderr, "To be approved: {} {}; it may then {}, until {}\n", safe_text(approval.node), more, rights,
               peer::date_text(time_of_day() + *seconds_of(wanted.granted.valid) * us_per_s));
  }
  return !wanted.nodes.empty() || wanted.yes || approvals.empty() || is_confirmed("Give all of these a certificate?");
}

/// Makes a certificate for this node that is newer than each of its certificates known so far. What is renewed keeps
/// its rights and its invitation: so whoever denies the invitation still ends it, and the nodes of one invitation still
/// count as one.
std::expected<peer::Certificate, ControlError> certificate_for(const Approval& approval, const Approved& wanted,
                                                               const peer::SigningKey& key, const json& known) {
  NodeId node;
  if (!peer::parse_hex(approval.node, node.bytes)) return failure("the daemon names a node by no id");
  TimeUs made_at = time_of_day();
  for (const json& held : known) {
    if (held.at("node") == node.full()) made_at = std::max(made_at, just_after(held.at("made_at_us").get<TimeUs>()));
  }
  peer::Warrant warrant = warrant_of(wanted.granted, 1, made_at);
  warrant.node = node;
  if (approval.held.is_null()) {
    warrant.invitation = peer::random_invitation_id();
  } else {
    warrant.nodes = 0;  // it is for this node, however many others have the invitation
    const auto role = peer::role_named(approval.held.at("role").get<std::string>());
    if (!role) return failure("the daemon names a role that this gossamerctl does not know: update it");
    warrant.rights = {.role = *role, .jobs = approval.held.at("jobs").get<std::string>()};
    if (!peer::parse_hex(approval.held.at("invitation").get<std::string>(), warrant.invitation))
      return failure("the daemon's answer names no invitation");
  }
  return peer::UsableWarrant::make(std::move(warrant), key).certify(node, made_at);
}

/// Gives each of the nodes a certificate, by a warrant for this node alone that is used at once.
JsonAnswer approve(const Approved& wanted, const Invocation& call) {
  const auto authority = call.ask("authority");
  if (!authority) return authority;
  const auto key = signing_key(wanted.granted.key_file, *authority, "invite");
  if (!key) return std::unexpected(key.error());
  const auto pending = call.ask("pending");
  if (!pending) return pending;
  const auto known = call.ask("certificates");
  if (!known) return known;
  const auto denied = call.ask("denials");
  if (!denied) return denied;
  const json& denials = denied->at("denials");
  const auto approvals = wanted.renew_before.empty()
                             ? nodes_to_approve(wanted, pending->at("waiting"), known->at("certificates"), denials)
                             : certificates_to_renew(wanted, *key, known->at("certificates"), denials);
  if (!approvals) return std::unexpected(approvals.error());
  if (!agrees_to(wanted, *approvals, pending->at("waiting"), known->at("certificates")))
    return failure("nothing was signed: look at this list, then add --yes, or name the nodes");
  constexpr std::size_t most_at_once = 50;  // a request of the control socket has room for them
  json told{{"nodes", json::array()}};
  for (auto next = approvals->begin(); next != approvals->end();) {
    json digits = json::array();
    for (; next != approvals->end() && digits.size() < most_at_once; ++next) {
      const auto certificate = certificate_for(*next, wanted, *key, known->at("certificates"));
      if (!certificate) return std::unexpected(certificate.error());
      digits.push_back(peer::hex(bytes_of(*certificate)));
    }
    const auto taken = call.request({{"command", "certify"}, {"certificates", std::move(digits)}});
    if (!taken) return taken;
    for (const json& node : taken->at("nodes"))
      told["nodes"].push_back(node);
  }
  if (!authority->value("asks_for_certificates", false) && !call.as_json) fmt::print(stderr, "{}", not_asked_for);
  return told;
}

void add_approve(CLI::App& app, CommandAction& chosen) {
  app.add_subcommand("pending", "The nodes that have no certificate: members, and those that were turned away here")
      ->callback(
          [&chosen] { chosen = [](const Invocation& call) { return call.end(call.ask("pending"), pending_table); }; });
  app.add_subcommand("certificates", "The certificates that this node knows of")->callback([&chosen] {
    chosen = [](const Invocation& call) { return call.end(call.ask("certificates"), certificates_table); };
  });
  const auto wanted = std::make_shared<Approved>();
  CLI::App* approve_command =
      app.add_subcommand("approve", "Give nodes a certificate, or another one with other rights or a later end");
  approve_command->add_option("NODE", wanted->nodes,
                              "Ids, or the first digits of those that 'gossamerctl pending' shows");
  approve_command->add_flag("--all", wanted->all,
                            "All that 'gossamerctl pending' shows here and nobody has denied; asks first");
  approve_command
      ->add_option(
          "--renew", wanted->renew_before,
          "All whose certificates end within this time and were signed with the same key, with the rights that "
          "they have; asks first")
      ->type_name("TIME")
      ->check(time_complaint);
  approve_command->add_flag("--yes", wanted->yes, "With --all or --renew: does not ask");
  add_granted(*approve_command, wanted->granted);
  for (const char* option : {"NODE", "--all", "--jobs", "--only-keeps", "--only-follows"})
    approve_command->get_option("--renew")->excludes(approve_command->get_option(option));
  approve_command->footer("On any member. The certificates travel to all, and so to the nodes themselves.");
  approve_command->callback([wanted, &chosen] {
    if (wanted->renew_before.empty() && wanted->nodes.empty() == !wanted->all)
      throw CLI::ValidationError("approve", "name the nodes, or give --all or --renew");
    chosen = [wanted](const Invocation& call) {
      return call.end(approve(*wanted, call), [](const json& answer, bool) {
        return fmt::format("approved {} nodes; 'gossamerctl certificates' shows them\n", answer.at("nodes").size());
      });
    };
  });
}

}  // namespace

void add_certificate_commands(CLI::App& app, CommandAction& chosen) {
  add_invite(app, chosen);
  add_approve(app, chosen);
}

}  // namespace gossamer::ctl
