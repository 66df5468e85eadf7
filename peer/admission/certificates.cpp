#include "peer/admission/certificates.hpp"

#include <algorithm>
#include <tuple>

#include "gossip/check.hpp"
#include "peer/admission/changes.hpp"
#include "peer/admission/words.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

bool is_named(const Certificate& certificate) {
  return certificate.warrant.node != NodeId{};
}
/// Orders certificates of different nodes, in the same way at every member.
bool was_made_before(const Certificate& a, const Certificate& b) {
  return std::tie(a.made_at, a.node) < std::tie(b.made_at, b.node);
}

}  // namespace

Hearsay Certificates::merge(const Certificate& heard, Source source, TimeUs now, TimeUs time_of_day,
                            const std::function<bool(const NodeId&)>& is_to_be_kept,
                            const std::optional<PublicKey>& signer) {
  if (knows(heard, source)) return Hearsay::known;
  if (entries_.size() == max_certificates && !entries_.contains(heard.node)) {
    const auto rank = [&](const Certificate& of, bool is_kept) {
      return std::tuple(is_kept, is_named(of), of.made_at);
    };
    const auto rank_here = [&](const auto& entry) {
      return rank(entry.second.certificate, entry.first == own_ || is_to_be_kept(entry.first));
    };
    const auto first = std::ranges::min_element(entries_, {}, rank_here);
    const bool would_go = rank(heard, false) <= rank_here(*first);
    if (would_go && source == Source::hearsay) return Hearsay::known;
    if (!make_room_in_invitation(heard, now, time_of_day)) return Hearsay::refused;
    if (entries_.size() == max_certificates) entries_.erase(first);
  } else if (!make_room_in_invitation(heard, now, time_of_day)) {
    return Hearsay::refused;
  }
  entries_[heard.node] = {heard, ++last_change_, now, signer};
  excess_.erase(heard.node);
  GOSSAMER_CHECK(entries_.size() <= max_certificates);
  return Hearsay::news;
}

/// True if the invitation has room for this certificate. In a full invitation, the latest certificate that is not
/// settled gives way to one that was made earlier.
bool Certificates::make_room_in_invitation(const Certificate& coming, TimeUs now, TimeUs time_of_day) {
  if (coming.warrant.nodes == 0) return true;
  const std::vector<NodeId> others = other_users(coming);
  if (others.size() < coming.warrant.nodes) return true;
  const Entry* last = nullptr;
  for (const NodeId& node : others) {
    const Entry& entry = entries_.at(node);
    const Certificate& known = entry.certificate;
    const bool settled =
        node == own_ || now - entry.heard_at >= settle_us || time_of_day - known.made_at >= settled_age_us;
    if (!settled && (last == nullptr || was_made_before(last->certificate, known))) last = &entry;
  }
  const bool is_earlier = last != nullptr && was_made_before(coming, last->certificate);
  const Certificate excess = is_earlier ? last->certificate : coming;
  if (is_earlier) entries_.erase(excess.node);
  note_excess(excess, now);
  return is_earlier;
}

/// The other nodes that hold a certificate by the same invitation.
std::vector<NodeId> Certificates::other_users(const Certificate& of) const {
  std::vector<NodeId> others;
  for (const auto& [node, entry] : entries_) {
    if (node != of.node && entry.certificate.warrant.invitation == of.warrant.invitation) others.push_back(node);
  }
  return others;
}

void Certificates::note_excess(const Certificate& certificate, TimeUs now) {
  if (excess_.size() == max_excess && !excess_.contains(certificate.node))
    excess_.erase(std::ranges::min_element(excess_, {}, [](const auto& item) { return item.second.heard_at; }));
  excess_.try_emplace(certificate.node, certificate, now);
}

std::optional<std::string> Certificates::used_up_for(const Certificate& certificate) const {
  constexpr std::size_t most_named = 3;  // a node that is turned away is told in max_text_bytes
  const std::vector<NodeId> others = other_users(certificate);
  if (certificate.warrant.nodes == 0 || others.size() < certificate.warrant.nodes) return std::nullopt;
  std::string text =
      "its invitation " + hex(certificate.warrant.invitation) + " has been used by as many other nodes as it is for: ";
  for (std::size_t i = 0; i < std::min(others.size(), most_named); ++i)
    text.append(i == 0 ? "" : ", ").append(others[i].brief());
  if (others.size() > most_named)
    text.append(" and ").append(std::to_string(others.size() - most_named)).append(" more");
  return text;
}

bool Certificates::knows(const Certificate& heard, Source source) const {
  const Certificate* const known = of(heard.node);
  if (known == nullptr) return false;
  if (known->warrant == heard.warrant) return true;  // else the warrant's holder could keep spreading new ones
  if (is_named(*known) != is_named(heard)) return is_named(*known);
  if (is_named(*known)) return std::tie(known->made_at, known->signature) >= std::tie(heard.made_at, heard.signature);
  return source == Source::hearsay;
}

const Certificate* Certificates::of(const NodeId& node) const {
  const auto found = entries_.find(node);
  return found == entries_.end() ? nullptr : &found->second.certificate;
}

void Certificates::settle(const Deciders& deciders, bool new_authority) {
  if (new_authority) {
    for (auto& [node, entry] : entries_)
      entry.signer = signer_of(entry.certificate, deciders);
  }
  std::erase_if(entries_, [&](const auto& item) {
    const auto& signer = item.second.signer;
    return !signer || !deciders.may_sign(*signer, Warrant::power);
  });
  excess_.clear();  // their signers may be others now; what is still in excess is heard of again
}

std::vector<Certificate> Certificates::since(std::uint64_t& change, std::size_t most) const {
  return changes_since(entries_, &Entry::certificate, change, most);
}

std::string Certificates::text() const {
  std::string text;
  for (const auto& [node, entry] : entries_)
    text.append(hex(bytes_of(entry.certificate))).append("\n");
  return text;
}

std::expected<Certificates, std::string> Certificates::parse(std::string_view text) {
  Certificates certificates;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = next_line(text);
    const auto certificate = parse_certificate_digits(line);
    if (!certificate) return std::unexpected("line " + std::to_string(number) + " is no certificate");
    if (certificates.entries_.size() == max_certificates) return std::unexpected("it holds too many certificates");
    certificates.entries_[certificate->node] = {*certificate, ++certificates.last_change_, -settle_us};
  }
  return certificates;
}

}  // namespace gossamer::peer
