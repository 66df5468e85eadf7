#include "daemon/cluster/cluster_commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "peer/limits.hpp"

namespace gossamer::daemon {
namespace {

using nlohmann::json;

json failure(std::string_view what) {
  return {{"error", what}};
}

std::string text_in(const json& request, const char* name) {
  return request.contains(name) ? request.at(name).get<std::string>() : std::string{};
}

json answer_of(const peer::Denials::Entry& entry) {
  const peer::Denial& denial = entry.denial;
  return {{"node", denial.node.full()},
          {"denied", denial.denied},
          {"decided_at_us", denial.decided_at},
          {"decided_at", peer::date_text(denial.decided_at)},
          {"reason", denial.reason},
          {"signed", denial.signature.has_value()},
          {"signer", entry.signer ? peer::hex(*entry.signer) : ""}};
}

// Each function gives the fields of a decision that is to be signed. gossamerctl shows them, and makes the statement
// from them.
json to_sign(const peer::Denial& denial) {
  return {{"kind", "denial"},
          {"node", denial.node.full()},
          {"denied", denial.denied},
          {"at_us", denial.decided_at},
          {"reason", denial.reason}};
}
json to_sign(const peer::RingKey& key) {
  return {{"kind", "key"},
          {"digest", peer::hex(key.key.digest())},
          {"fingerprint", peer::hex(key.key.fingerprint())},
          {"at_us", key.made_at}};
}
json to_sign(const peer::RetiredKey& key) {
  return {{"kind", "retirement"}, {"fingerprint", peer::hex(key.fingerprint)}, {"at_us", key.retired_at}};
}

json to_sign(const peer::AdmissionRule& rule) {
  return {{"kind", "rule"}, {"certificates", rule.certificates}, {"at_us", rule.decided_at}};
}

json to_sign(const peer::Deputy& deputy) {
  return {{"kind", "deputy"},
          {"key", peer::hex(deputy.key)},
          {"powers", deputy.powers},
          {"name", deputy.name},
          {"at_us", deputy.decided_at}};
}

json answer_of(const peer::Certificate& certificate) {
  const peer::Warrant& warrant = certificate.warrant;
  return {{"node", certificate.node.full()},
          {"invitation", peer::hex(warrant.invitation)},
          {"role", peer::word_of(warrant.rights.role)},
          {"jobs", warrant.rights.jobs},
          {"made_at_us", certificate.made_at},
          {"made_at", peer::date_text(certificate.made_at)},
          {"valid_until_us", warrant.valid_until},
          {"valid_until", peer::date_text(warrant.valid_until)}};
}

/// The decision, with its signature if the request has one.
template <class Decision>
Decision with_signature(Decision decision, const json& request) {
  const peer::Signatures signatures = signatures_in(request);
  const auto found = signatures.find(decision.statement());
  if (found != signatures.end()) decision.signature = found->second;
  return decision;
}

}  // namespace

peer::Signatures signatures_in(const json& request) {
  peer::Signatures signatures;
  if (!request.contains("signatures")) return signatures;
  for (const auto& [statement_digits, signature_digits] : request.at("signatures").items()) {
    peer::Statement statement{};
    peer::Signature signature{};
    if (peer::parse_hex(statement_digits, statement) &&
        peer::parse_hex(signature_digits.get<std::string>(), signature)) {
      signatures[statement] = signature;
    }
  }
  return signatures;
}

json to_sign(const std::string& job, const JobSettings& settings) {
  json values = json::object();
  for (const JobSetting& setting : settings.values)
    values[setting.name] = setting.value;
  return {{"kind", "job_settings"},
          {"job", job},
          {"version", settings.version},
          {"author", settings.author.full()},
          {"values", std::move(values)}};
}

std::vector<ControlCommand> ClusterCommands::control_commands() {
  const auto as_member = [this](json (ClusterCommands::*answer)(const json&)) {
    return [this, answer](const json& request) {
      if (state_.waits_to_join())
        return failure("this node has not joined a cluster yet: see gossamerctl peers and its log for why");
      return (this->*answer)(request);
    };
  };
  return {
      {"denials", CommandFor::everyone, [this](const json&) { return denials(); }},
      {"deny", CommandFor::owners, as_member(&ClusterCommands::deny)},
      {"allow", CommandFor::owners, as_member(&ClusterCommands::allow)},
      {"audit", CommandFor::everyone, [this](const json&) { return audit(); }},
      {"authority", CommandFor::everyone, [this](const json&) { return authority(); }},
      {"authority_set", CommandFor::owners, as_member(&ClusterCommands::authority_set)},
      {"deputy_set", CommandFor::owners, as_member(&ClusterCommands::deputy_set)},
      {"rule_set", CommandFor::owners, as_member(&ClusterCommands::rule_set)},
      {"certificates", CommandFor::everyone, [this](const json&) { return certificates(); }},
      {"pending", CommandFor::everyone,
       [this](const json&) -> json {
         return {{"waiting", waiting()}};
       }},
      {"certify", CommandFor::owners, as_member(&ClusterCommands::certify)},
      {"key_list", CommandFor::everyone, [this](const json&) { return key_list(); }},
      {"key_rotate", CommandFor::owners, as_member(&ClusterCommands::key_rotate)},
      {"key_retire", CommandFor::owners, as_member(&ClusterCommands::key_retire)},
      {"invite", CommandFor::owners, as_member(&ClusterCommands::invite)},
      {"join", CommandFor::owners, [this](const json& request) { return join(request); }},
      {"join_status", CommandFor::everyone,
       [this](const json&) -> json {
         return {{"state", join_state_}, {"message", join_message_}};
       }},
  };
}

// --- who is denied ------------------------------------------------------------------------------------------------

std::expected<NodeId, std::string> ClusterCommands::node_named(const std::string& text) const {
  if (const auto node = peer::parse_node_id(text)) return *node;
  std::set<NodeId> known;
  for (const peer::LinkStatus& link : overlay_.links())
    known.insert(link.node);
  for (const auto& [node, entry] : overlay_.denials().entries())
    known.insert(node);
  known.erase(NodeId{});
  std::erase_if(known, [&](const NodeId& node) { return !node.full().starts_with(text); });
  if (text.size() >= least_id_digits && known.size() == 1) return *known.begin();
  return std::unexpected(fmt::format(
      "\"{}\" names no node: give its id as gossamerctl peers --json shows it, 32 hexadecimal digits, or the first {} "
      "or more if only one known node has them",
      text, least_id_digits));
}

json ClusterCommands::decide(const json& request, bool denied) {
  const auto node = node_named(text_in(request, "node"));
  if (!node) return failure(node.error());
  auto denial = overlay_.propose(*node, denied, text_in(request, "reason"));
  if (!denial) return failure(denial.error());
  if (asks_to_sign(request)) return to_sign_answer(json::array({to_sign(*denial)}));
  if (overlay_.authority()) denial->decided_at = number_in<TimeUs>(request, "at_us", denial->decided_at);
  denial = with_signature(*std::move(denial), request);
  const bool known = is_known(*node);  // asked before the decision, which may end the node's link
  if (const auto decided = overlay_.decide(*denial); !decided) return failure(decided.error());
  return {{"denial", answer_of(overlay_.denials().entries().at(*node))}, {"known", known}};
}

/// Whether `node` is a node that this one knows, or the id of an invitation that has been used.
bool ClusterCommands::is_known(const NodeId& node) const {
  const auto is_it = [&](const auto& one) { return one.node == node; };
  const auto came_by_it = [&](const auto& entry) {
    return NodeId{entry.second.certificate.warrant.invitation} == node;
  };
  return std::ranges::any_of(overlay_.links(), is_it) || std::ranges::any_of(overlay_.members(), is_it) ||
         std::ranges::any_of(overlay_.waiting(), is_it) || overlay_.certificates().of(node) != nullptr ||
         std::ranges::any_of(overlay_.certificates().entries(), came_by_it);
}

json ClusterCommands::denials() const {
  json records = json::array();
  for (const auto& [node, entry] : overlay_.denials().entries())
    records.push_back(answer_of(entry));
  return {{"denials", std::move(records)}};
}

json ClusterCommands::audit() const {
  json records = json::array();
  for (const peer::AuditRecord& record : overlay_.audit().records())
    records.push_back({{"at_us", record.at},
                       {"at", peer::date_text(record.at)},
                       {"told_by", record.told_by.full()},
                       {"followed", record.is_taken},
                       {"times", record.times},
                       {"what", record.what}});
  return {{"records", std::move(records)}};
}

// --- which keys admit -----------------------------------------------------------------------------------------------

json ClusterCommands::key_list() const {
  json keys = json::array();
  for (const peer::KeyStatus& key : overlay_.key_ring()) {
    keys.push_back({{"fingerprint", peer::hex(key.fingerprint)},
                    {"made_at_us", key.made_at},
                    {"made_at", key.made_at == 0 ? "" : peer::date_text(key.made_at)},
                    {"listened_with", key.listened_with},
                    {"signed", key.is_signed},
                    {"holders", key.holders}});
  }
  const auto links = overlay_.links();
  const auto neighbours = std::ranges::count_if(links, [](const peer::LinkStatus& link) { return link.up; });
  return {{"keys", std::move(keys)}, {"neighbours", neighbours}};
}

json ClusterCommands::key_rotate(const json& request) {
  if (!overlay_.authority() || asks_to_sign(request)) {
    const auto proposed = overlay_.propose_key();
    if (!proposed) return failure(proposed.error());
    proposed_key_ = *proposed;
  }
  if (asks_to_sign(request)) return to_sign_answer(json::array({to_sign(*proposed_key_)}));
  const peer::RingKey key = proposed_key_ ? with_signature(*proposed_key_, request) : peer::RingKey{};
  if (!proposed_key_ || (overlay_.authority() && !key.signature))
    return failure("another key was proposed here meanwhile: try again");
  if (const auto added = overlay_.add_key(key); !added) return failure(added.error());
  proposed_key_.reset();
  return {{"fingerprint", peer::hex(key.key.fingerprint())}};
}

json ClusterCommands::key_retire(const json& request) {
  const auto fingerprint = peer::parse_fingerprint(text_in(request, "fingerprint"));
  if (!fingerprint) return failure("a fingerprint has 16 hexadecimal digits: gossamerctl key list shows them");
  auto retired = overlay_.propose_retirement(*fingerprint);
  if (!retired) return failure(retired.error());
  if (asks_to_sign(request)) return to_sign_answer(json::array({to_sign(*retired)}));
  if (overlay_.authority()) retired->retired_at = number_in<TimeUs>(request, "at_us", retired->retired_at);
  retired = with_signature(*std::move(retired), request);
  if (const auto done = overlay_.retire_key(*retired); !done) return failure(done.error());
  return {{"fingerprint", peer::hex(*fingerprint)}};
}

// --- who decides ----------------------------------------------------------------------------------------------------

bool ClusterCommands::asks_to_sign(const json& request) const {
  return overlay_.authority() && !request.contains("signatures");
}

json ClusterCommands::to_sign_answer(json items) const {
  return {{"authority", overlay_.authority() ? peer::hex(*overlay_.authority()) : ""},
          {"deputies", deputies()},
          {"to_sign", std::move(items)}};
}

/// The decisions that are to be signed. Without `all`, only those that the present authority has not signed.
json ClusterCommands::items_to_sign(bool all) const {
  json items = json::array();
  const auto add = [&](const auto& decision) {
    if (all || !decision.signature) items.push_back(to_sign(decision));
  };
  for (const auto& [node, entry] : overlay_.denials().entries())
    add(entry.denial);
  const peer::RingState ring = overlay_.ring_state();
  std::ranges::for_each(ring.keys, add);
  std::ranges::for_each(ring.retired, add);
  return items;
}

json ClusterCommands::authority() const {
  const auto authority = overlay_.authority();
  return {{"authority", authority ? peer::hex(*authority) : ""},
          {"deputies", deputies()},
          {"asks_for_certificates", overlay_.asks_for_certificates()},
          {"not_signed", authority ? items_to_sign(false).size() : 0}};
}

json ClusterCommands::authority_set(const json& request) {
  const std::string digits = text_in(request, "authority");
  peer::PublicKey wanted{};
  if (!digits.empty() && !peer::parse_hex(digits, wanted))
    return failure("an authority has 64 hexadecimal digits: gossamerctl authority show prints them on other members");
  const auto authority = digits.empty() ? std::nullopt : std::optional(wanted);
  if (!request.contains("signatures"))
    return {{"authority", digits}, {"to_sign", items_to_sign(authority != overlay_.authority())}};
  if (const auto set = overlay_.set_authority(authority, signatures_in(request)); !set) return failure(set.error());
  return this->authority();
}

/// Returns the deputies that may sign at least one kind of decision.
json ClusterCommands::deputies() const {
  json deputies = json::array();
  if (!overlay_.deciders()) return deputies;
  for (const peer::Deputy& deputy : overlay_.deciders()->deputies) {
    if (deputy.powers == 0) continue;
    deputies.push_back({{"key", peer::hex(deputy.key)},
                        {"name", deputy.name},
                        {"may", peer::words_of_powers(deputy.powers)},
                        {"appointed_at_us", deputy.decided_at},
                        {"appointed_at", peer::date_text(deputy.decided_at)}});
  }
  return deputies;
}

json ClusterCommands::deputy_set(const json& request) {
  peer::PublicKey key{};
  if (!peer::parse_hex(text_in(request, "key"), key))
    return failure("a deputy's key has 64 hexadecimal digits: gossamerctl authority key prints them");
  if (!overlay_.authority())
    return failure("this cluster has no authority: make one first (gossamerctl authority create)");
  if (key == *overlay_.authority()) return failure("that is the authority itself, which may do everything");
  const std::string name = text_in(request, "name");
  const auto powers = number_in<unsigned>(request, "powers");
  const auto has_name = [&](const peer::Deputy& deputy) {
    return deputy.powers != 0 && deputy.key != key && deputy.name == name;
  };
  if (powers != 0 && name.find_first_not_of(' ') == std::string::npos)
    return failure("a deputy has a name, for people");
  if (powers != 0 && std::ranges::any_of(overlay_.deciders()->deputies, has_name))
    return failure("another deputy has that name: give this one another");
  if (powers > peer::all_powers) return failure("a deputy has powers that this gossamerd does not know: update it");
  peer::Deputy deputy = overlay_.propose_deputy(key, static_cast<std::uint8_t>(powers), name);
  if (asks_to_sign(request)) return to_sign_answer(json::array({to_sign(deputy)}));
  deputy.decided_at = number_in<TimeUs>(request, "at_us", deputy.decided_at);
  deputy = with_signature(std::move(deputy), request);
  if (const auto set = overlay_.set_deputy(deputy); !set) return failure(set.error());
  return authority();
}

json ClusterCommands::rule_set(const json& request) {
  if (!overlay_.authority())
    return failure(
        "this cluster has no authority that could ask for certificates: make one first (gossamerctl "
        "authority create)");
  peer::AdmissionRule rule = overlay_.propose_rule(request.at("certificates").get<bool>());
  if (asks_to_sign(request)) {
    json answer = to_sign_answer(json::array({to_sign(rule)}));
    answer["waiting"] = waiting();
    return answer;
  }
  rule.decided_at = number_in<TimeUs>(request, "at_us", rule.decided_at);
  rule = with_signature(rule, request);
  if (const auto set = overlay_.set_rule(rule); !set) return failure(set.error());
  return authority();
}

/// The members without a certificate that counts, perhaps with this node among them, and the nodes that were turned
/// away because they had none.
json ClusterCommands::waiting() const {
  std::map<NodeId, json> waiting;
  const auto add = [&](const NodeId& node, std::string_view name, std::string_view host, std::string_view why) {
    if (overlay_.certificate_of(node) != nullptr) return;
    const bool denied = overlay_.is_denied(node);
    waiting[node] = {{"node", node.full()},
                     {"name", name},
                     {"host", host},
                     {"why", denied ? "it is denied (gossamerctl denials)" : why},
                     {"denied", denied}};
  };
  if (!overlay_.authority()) return json::array();
  add(overlay_.node(), node_name_, "", "this node");
  for (const peer::KnownMember& member : overlay_.members())
    add(member.node, member.name, member.address, overlay_.used_up_for(member.node).value_or("a member"));
  for (const peer::WaitingNode& turned_away : overlay_.waiting())
    add(turned_away.node, turned_away.name, turned_away.host, turned_away.why);
  // First those from where few come: somebody who invents nodes does not bury the others.
  std::vector<json> nodes;
  std::map<json, std::size_t> from;
  for (auto& [node, entry] : waiting) {
    ++from[entry.at("host")];
    nodes.push_back(std::move(entry));
  }
  std::ranges::stable_sort(nodes, {}, [&](const json& node) { return from.at(node.at("host")); });
  return nodes;
}

json ClusterCommands::certificates() const {
  json held = json::array();
  for (const auto& [node, entry] : overlay_.certificates().entries()) {
    json certificate = answer_of(entry.certificate);
    certificate["signer"] = entry.signer ? peer::hex(*entry.signer) : "";
    certificate["counts"] = overlay_.certificate_of(node) != nullptr;
    held.push_back(std::move(certificate));
  }
  return {{"asked_for", overlay_.asks_for_certificates()}, {"certificates", std::move(held)}};
}

json ClusterCommands::certify(const json& request) {
  std::vector<peer::Certificate> certificates;
  for (const json& digits : request.at("certificates")) {
    auto certificate = peer::parse_certificate_digits(digits.get<std::string>());
    if (!certificate) return failure("that is no certificate: none was taken");
    if (overlay_.is_denied(certificate->node))
      return failure(
          fmt::format("node {} is denied: first 'gossamerctl allow' it; none was taken", certificate->node.full()));
    certificates.push_back(*std::move(certificate));
  }
  json nodes = json::array();
  for (const peer::Certificate& certificate : certificates) {
    if (const auto taken = overlay_.certify(certificate); !taken) return failure(taken.error());
    nodes.push_back(certificate.node.full());
  }
  return {{"nodes", std::move(nodes)}};
}

// --- who is invited -------------------------------------------------------------------------------------------------

json ClusterCommands::invite(const json& request) {
  const auto expires_s = number_in<std::int64_t>(request, "expires_s", default_invitation_s);
  if (expires_s < least_invitation_s || expires_s > most_invitation_s)
    return failure(fmt::format("an invitation lasts from {} to {} s", least_invitation_s, most_invitation_s));
  std::vector<peer::Address> addresses;
  for (const std::string& text : request.value("addresses", std::vector<std::string>{})) {
    auto address = peer::parse_address(text, peer::AddressUse::dial);
    if (!address) return failure(address.error());
    addresses.push_back(std::move(*address));
  }
  if (addresses.size() > peer::max_invitation_addresses)
    return failure(fmt::format("an invitation names at most {} addresses", peer::max_invitation_addresses));
  const auto invitation =
      overlay_.invite(expires_s * us_per_s, std::move(addresses), request.value("needs_warrant", false));
  if (!invitation) return failure(invitation.error());
  json places = json::array();
  bool reachable = false;
  for (const peer::Address& address : invitation->addresses) {
    places.push_back(address.text());
    reachable = reachable || !address.is_loopback();
  }
  overlay_.note_taken(overlay_.node(), fmt::format("the invitation {}, until {}", peer::hex(invitation->id),
                                                   peer::date_text(invitation->expires_at)));
  return {{"invitation", peer::invitation_line(*invitation)},
          {"id", peer::hex(invitation->id)},
          {"expires_at_us", invitation->expires_at},
          {"expires_at", peer::date_text(invitation->expires_at)},
          {"addresses", std::move(places)},
          {"reachable", reachable}};
}

json ClusterCommands::join(const json& request) {
  configured_line_.clear();  // this line replaces the configured one
  timer_.cancel();
  if (const auto begun = begin_join(text_in(request, "line")); !begun) return failure(begun.error());
  return {{"joining", true}};
}

std::expected<void, std::string> ClusterCommands::begin_join(const std::string& line) {
  auto invitation = peer::parse_invitation(line);
  if (!invitation) return std::unexpected(invitation.error());
  auto begun = overlay_.join(*invitation, [this, invitation = *invitation](std::expected<void, std::string> result) {
    join_ended(invitation, result);
  });
  if (!begun) return begun;
  join_state_ = "joining";
  join_message_ = "asking the members that the invitation names";
  return {};
}

void ClusterCommands::join_ended(const peer::Invitation& invitation, const std::expected<void, std::string>& result) {
  if (result) {
    join_state_ = "joined";
    const bool waits = overlay_.asks_for_certificates() && overlay_.certificate_of(overlay_.node()) == nullptr;
    join_message_ = waits ? fmt::format(
                                "this node holds the cluster's keys, and waits until an operator approves it: "
                                "gossamerctl approve {}, on a member",
                                overlay_.node().full())
                          : "this node holds the cluster's keys, and links come up now";
    std::vector<std::string> addresses;
    for (const peer::Address& address : invitation.addresses)
      addresses.push_back(address.text());
    if (const auto kept = state_.keep_invited_by(std::move(addresses)); !kept) {
      join_message_ =
          fmt::format("this node has joined, but will not find the others after a restart: {}", kept.error());
      log_.error("{}", join_message_);
    }
    configured_line_.clear();
    return;
  }
  join_state_ = "failed";
  if (last_failure_ != result.error()) log_.warn("could not join: {}", result.error());
  last_failure_ = join_message_ = result.error();
  if (configured_line_.empty()) return;
  timer_.expires_after(join_retry);
  timer_.async_wait([this](std::error_code error) {
    if (!error && !configured_line_.empty()) join_until_granted(std::string(configured_line_));
  });
}

void ClusterCommands::join_until_granted(const std::string& line) {
  configured_line_ = line;
  if (const auto begun = begin_join(line); !begun) log_.error("[overlay] join: {}", begun.error());
}

}  // namespace gossamer::daemon
