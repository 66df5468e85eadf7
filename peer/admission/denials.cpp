#include "peer/admission/denials.hpp"

#include <algorithm>
#include <tuple>

#include "gossip/check.hpp"
#include "gossip/plain_text.hpp"
#include "peer/admission/changes.hpp"
#include "peer/admission/words.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::string_view denied_word = "denied";
constexpr std::string_view allowed_word = "allowed";
constexpr std::string_view signed_word = "signed";

auto rank(const Denial& denial) {
  return std::tuple(denial.decided_at, denial.denied, std::string_view(denial.reason), denial.signature.has_value());
}

std::optional<Denial> parse_record(std::string_view line) {
  Denial denial;
  std::string_view decision = next_word(line);
  if (decision == signed_word) {
    if (!parse_hex(next_word(line), denial.signature.emplace())) return std::nullopt;
    decision = next_word(line);
  }
  const auto node = parse_node_id(next_word(line));
  const bool time_sound = parse_number(next_word(line), denial.decided_at);
  if ((decision != denied_word && decision != allowed_word) || !node || !time_sound) return std::nullopt;
  if (!is_plain_text(line, max_text_bytes)) return std::nullopt;
  denial.denied = decision == denied_word;
  denial.node = *node;
  denial.reason = line;
  return denial;
}

}  // namespace

std::string words_of(const Denial& denial) {
  return "node " + denial.node.full() + (denial.denied ? " is denied" : " is allowed") +
         (denial.reason.empty() ? "" : ": " + denial.reason);
}

std::optional<NodeId> parse_node_id(std::string_view text) {
  NodeId node;
  return parse_hex(text, node.bytes) ? std::optional(node) : std::nullopt;
}

bool Denials::knows(const Denial& heard, bool has_authority) const {
  const auto found = entries_.find(heard.node);
  if (found == entries_.end()) return false;
  const Denial& known = found->second.denial;
  const bool overruled = has_authority && !known.signature && heard.signature;
  return !overruled && rank(known) >= rank(heard);
}

std::expected<Hearsay, Refusal> Denials::merge(const Denial& heard, TimeUs time_of_day, bool linked,
                                               const std::optional<Deciders>& deciders) {
  if (knows(heard, deciders.has_value())) return Hearsay::known;
  if (is_too_far_ahead(heard.decided_at, time_of_day)) return std::unexpected(Refusal::ahead);
  const auto signer = deciders ? deciders->signer_of(heard.statement(), heard.signature) : std::nullopt;
  if (deciders && !signer) return std::unexpected(Refusal::not_signed);
  if (deciders && !deciders->may_sign(*signer, Denial::power)) return std::unexpected(Refusal::no_right);
  if (!entries_.contains(heard.node) && !make_room(heard, heard.denied && linked, deciders.has_value()))
    return std::unexpected(Refusal::no_room);
  put(heard, signer);
  return Hearsay::news;
}

Denial Denials::propose(const NodeId& node, bool denied, std::string reason, TimeUs time_of_day,
                        bool has_authority) const {
  const auto found = entries_.find(node);
  const bool counts = found != entries_.end() && (!has_authority || found->second.denial.signature);
  const TimeUs after = counts ? just_after(found->second.denial.decided_at) : time_of_day;
  return {node, denied, std::max(time_of_day, after), std::move(reason)};
}

bool Denials::decide(const Denial& denial, const std::optional<Deciders>& deciders) {
  if (knows(denial, deciders.has_value())) return false;
  if (!entries_.contains(denial.node)) make_room(denial, true, deciders.has_value());
  put(denial, deciders ? deciders->signer_of(denial.statement(), denial.signature) : std::nullopt);
  return true;
}

void Denials::settle(const Deciders& deciders, bool new_authority) {
  for (auto& [node, entry] : entries_) {
    if (new_authority) entry.signer = deciders.signer_of(entry.denial.statement(), entry.denial.signature);
    if (!entry.signer) entry.denial.signature.reset();
  }
  std::erase_if(entries_, [&](const auto& item) {
    const auto& signer = item.second.signer;
    return signer && !deciders.may_sign(*signer, Denial::power);
  });
}

bool Denials::is_denied(const NodeId& node) const {
  const auto known = entries_.find(node);
  return known != entries_.end() && known->second.denial.denied;
}

/// Makes room for one more record; false if none may go. Where there is an authority, an unsigned record gives way to a
/// signed one. Else the oldest record of an allowed node goes or, if there `must` be room, the denial with the latest
/// date: whoever fills the table with denials dates them after all others.
bool Denials::make_room(const Denial& coming, bool must, bool has_authority) {
  if (entries_.size() < max_denials) return true;
  const bool overrules = has_authority && coming.signature;
  const auto is_overruled = [&](const Denial& record) { return overrules && !record.signature; };
  const auto goes_before = [&](const auto& a, const auto& b) {
    const Denial& one = a.second.denial;
    const Denial& other = b.second.denial;
    if (is_overruled(one) != is_overruled(other)) return is_overruled(one);
    if (one.denied != other.denied) return other.denied;
    return one.denied ? one.decided_at > other.decided_at : one.decided_at < other.decided_at;
  };
  const auto first = std::ranges::min_element(entries_, goes_before);
  const bool may_go = is_overruled(first->second.denial) || (coming.denied && !first->second.denial.denied);
  if (!may_go && !must) return false;
  entries_.erase(first);
  return true;
}

void Denials::put(Denial denial, const std::optional<PublicKey>& signer) {
  const NodeId node = denial.node;
  entries_[node] = {std::move(denial), ++last_change_, signer};
  GOSSAMER_CHECK(entries_.size() <= max_denials);
}

std::vector<Denial> Denials::since(std::uint64_t& change, std::size_t most) const {
  return changes_since(entries_, &Entry::denial, change, most);
}

std::string Denials::text() const {
  std::string text;
  for (const auto& [node, entry] : entries_) {
    const Denial& denial = entry.denial;
    if (denial.signature) text.append(signed_word).append(" ").append(hex(*denial.signature)).append(" ");
    text.append(denial.denied ? denied_word : allowed_word).append(" ").append(node.full()).append(" ");
    text.append(std::to_string(denial.decided_at)).append(" ").append(denial.reason).append("\n");
  }
  return text;
}

std::expected<Denials, std::string> Denials::parse(std::string_view text) {
  Denials denials;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = next_line(text);
    const auto record = parse_record(line);
    if (!record) return std::unexpected("line " + std::to_string(number) + " is no record of a denial");
    if (denials.entries_.size() == max_denials) return std::unexpected("it holds too many records");
    denials.put(*record);
  }
  return denials;
}

}  // namespace gossamer::peer
