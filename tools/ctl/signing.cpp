#include "tools/ctl/signing.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <iostream>
#include <optional>

#include "peer/limits.hpp"
#include "tools/ctl/fields.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

std::optional<peer::Statement> settings_statement_of(const json& item) {
  JobSettings settings{.version = item.at("version").get<std::uint64_t>()};
  if (!peer::parse_hex(item.at("author").get<std::string>(), settings.author.bytes)) return std::nullopt;
  for (const auto& [name, value] : item.at("values").items())
    settings.values.push_back({name, value.get<std::string>()});
  return peer::settings_statement(item.at("job").get<std::string>(), settings);
}

/// The statement to sign for this item. Nothing if the item is no decision that this program knows.
std::optional<peer::Statement> statement_of(const json& item) {
  const std::string kind = item.at("kind").get<std::string>();
  if (kind == "job_settings") return settings_statement_of(item);
  const auto at_us = item.at("at_us").get<TimeUs>();
  const auto holds = [&](const char* member, std::span<std::uint8_t> bytes) {
    return peer::parse_hex(item.at(member).get<std::string>(), bytes);
  };
  NodeId node;
  peer::KeyDigest digest{};
  peer::Fingerprint fingerprint{};
  if (kind == "denial" && holds("node", node.bytes))
    return peer::denial_statement(node, item.at("denied").get<bool>(), at_us, item.at("reason").get<std::string>());
  if (kind == "key" && holds("digest", digest)) return peer::key_statement(digest, at_us);
  if (kind == "deputy") {
    peer::Deputy deputy{.powers = item.at("powers").get<std::uint8_t>(),
                        .decided_at = at_us,
                        .name = item.at("name").get<std::string>()};
    return holds("key", deputy.key) ? std::optional(deputy.statement()) : std::nullopt;
  }
  if (kind == "rule") return peer::rule_statement(item.at("certificates").get<bool>(), at_us);
  if (kind == "retirement" && holds("fingerprint", fingerprint)) return peer::retirement_statement(fingerprint, at_us);
  return std::nullopt;
}

/// False for a date so far ahead of this machine's clock that no later decision would count.
bool is_dated_soundly(const json& item) {
  if (!item.contains("at_us")) return item.value("version", std::uint64_t{0}) < max_settings_version;
  return item.at("at_us").get<TimeUs>() <= time_of_day() + peer::max_ahead_us;
}

/// Names the power that a deputy needs to sign these items, in the daemon's words. Empty: the daemon decides.
std::string power_for(const json& items) {
  const std::string kind = items.empty() ? "" : items.front().at("kind").get<std::string>();
  if (kind == "denial") return "deny";
  if (kind == "key" || kind == "retirement") return "keys";
  return kind == "job_settings" ? "settings" : "";
}

}  // namespace

TimeUs time_of_day() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::string words_of_decision(const json& item) {
  const std::string kind = item.at("kind").get<std::string>();
  if (kind == "denial") {
    const std::string reason = text_in(item, "reason");
    return fmt::format("{} node {}{}", item.at("denied").get<bool>() ? "deny" : "allow", text_in(item, "node"),
                       reason.empty() ? "" : ": " + reason);
  }
  if (kind == "job_settings")
    return fmt::format("settings of the job {}:{}", text_in(item, "job"), settings_text(item.at("values")));
  if (kind == "deputy")
    return fmt::format("{} ({}) may sign {} in the authority's place", text_in(item, "name"), text_in(item, "key"),
                       peer::words_of_powers(item.at("powers").get<std::uint8_t>()));
  if (kind == "rule")
    return item.at("certificates").get<bool>() ? "let nodes in with a certificate only"
                                               : "let nodes in with a cluster key";
  return fmt::format("{} cluster key {}", kind == "key" ? "accept" : "retire", text_in(item, "fingerprint"));
}

JsonAnswer signatures_for(const json& items, const peer::SigningKey& key) {
  json signatures = json::object();
  for (const json& item : items) {
    const auto statement = statement_of(item);
    if (!statement || !is_dated_soundly(item))
      return failure(
          "the daemon asks to sign what is no decision, or is dated more than a day ahead of the clock here: "
          "nothing was signed. See 'gossamerctl denials' and 'gossamerctl key list'");
    signatures[peer::hex(*statement)] = peer::hex(key.sign(*statement));
  }
  for (const json& item : items)
    fmt::print(stderr, "Signed: {}\n", words_of_decision(item));
  return signatures;
}

std::string digits_of(std::string typed) {
  std::ranges::transform(typed, typed.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return typed;
}

std::expected<peer::SigningKey, ControlError> signing_key(const std::string& key_file, const json& answer,
                                                          const std::string& what) {
  const std::string authority = answer.at("authority").get<std::string>();
  if (authority.empty()) return failure("this cluster has no authority: make one first (gossamerctl authority create)");
  if (key_file.empty())
    return failure(
        "this cluster has an authority, without whose signature no member follows: add --authority FILE, "
        "the file that 'gossamerctl authority create' made, or a deputy's");
  const auto key = peer::SigningKey::read(key_file);
  if (!key) return failure(key.error());
  const std::string own = peer::hex(key->public_half());
  const auto is_own = [&](const json& deputy) { return deputy.at("key") == own; };
  const json deputies = answer.value("deputies", json::array());
  const auto deputy = std::ranges::find_if(deputies, is_own);
  if (own != authority && deputy != deputies.end() && deputy->value("may", "").find(what) == std::string::npos)
    return failure(fmt::format("{} is the key of a deputy who may not sign that: it may sign {}", key_file,
                               text_in(*deputy, "may")));
  if (own != authority && deputy == deputies.end())
    return failure(fmt::format("{} is the key of {}, and in this cluster {} decides, of whom that is no deputy",
                               key_file, own, safe_text(authority)));
  return *key;
}

JsonAnswer decide(json request, const std::string& key_file, const IsAsAsked& is_as_asked, const Invocation& call) {
  auto answer = call.request(request);
  if (!answer || !answer->contains("to_sign")) return answer;
  const json& items = answer->at("to_sign");
  const auto key = signing_key(key_file, *answer, power_for(items));
  if (!key) return std::unexpected(key.error());
  if (items.size() != 1 || !is_as_asked(items.front()))
    return failure(
        "the daemon asks to sign something else than was asked for, or nobody has confirmed the rest (--yes does): "
        "nothing was signed");
  auto signatures = signatures_for(items, *key);
  if (!signatures) return signatures;
  if (items.front().contains("at_us")) request["at_us"] = items.front().at("at_us");
  request["signatures"] = *std::move(signatures);
  return call.request(request);
}

bool is_confirmed(const std::string& question) {
  if (::isatty(STDIN_FILENO) == 0) return false;
  std::cerr << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace gossamer::ctl
