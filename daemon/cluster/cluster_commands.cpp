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

json answer_of(const peer::Denial& denial) {
  return {{"node", denial.node.full()},
          {"denied", denial.denied},
          {"decided_at_us", denial.decided_at},
          {"decided_at", peer::date_text(denial.decided_at)},
          {"reason", denial.reason}};
}

}  // namespace

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
  const auto denial = overlay_.decide(*node, denied, text_in(request, "reason"));
  if (!denial) return failure(denial.error());
  return {{"denial", answer_of(*denial)}};
}

json ClusterCommands::denials() const {
  json records = json::array();
  for (const auto& [node, entry] : overlay_.denials().entries())
    records.push_back(answer_of(entry.denial));
  return {{"denials", std::move(records)}};
}

// --- which keys admit -----------------------------------------------------------------------------------------------

json ClusterCommands::key_list() const {
  json keys = json::array();
  for (const peer::KeyStatus& key : overlay_.key_ring()) {
    keys.push_back({{"fingerprint", peer::hex(key.fingerprint)},
                    {"made_at_us", key.made_at},
                    {"made_at", key.made_at == 0 ? "" : peer::date_text(key.made_at)},
                    {"listened_with", key.listened_with},
                    {"holders", key.holders}});
  }
  const auto links = overlay_.links();
  const auto neighbours = std::ranges::count_if(links, [](const peer::LinkStatus& link) { return link.up; });
  return {{"keys", std::move(keys)}, {"neighbours", neighbours}};
}

json ClusterCommands::key_rotate(const json&) {
  const auto fingerprint = overlay_.rotate_key();
  if (!fingerprint) return failure(fingerprint.error());
  return {{"fingerprint", peer::hex(*fingerprint)}};
}

json ClusterCommands::key_retire(const json& request) {
  const auto fingerprint = peer::parse_fingerprint(text_in(request, "fingerprint"));
  if (!fingerprint) return failure("a fingerprint has 16 hexadecimal digits: gossamerctl key list shows them");
  if (const auto retired = overlay_.retire_key(*fingerprint); !retired) return failure(retired.error());
  return {{"fingerprint", peer::hex(*fingerprint)}};
}

// --- who is invited -------------------------------------------------------------------------------------------------

json ClusterCommands::invite(const json& request) {
  const std::int64_t expires_s = request.value("expires_s", default_invitation_s);
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
  const auto line = overlay_.invite(expires_s * us_per_s, std::move(addresses));
  if (!line) return failure(line.error());
  json places = json::array();
  bool reachable = false;
  const auto invitation = peer::parse_invitation(*line);
  for (const peer::Address& address : invitation ? invitation->addresses : std::vector<peer::Address>{}) {
    places.push_back(address.text());
    reachable = reachable || !address.is_loopback();
  }
  return {{"invitation", *line},
          {"expires_at", invitation ? peer::date_text(invitation->expires_at) : ""},
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
    join_message_ = "this node holds the cluster's keys, and links come up now";
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
