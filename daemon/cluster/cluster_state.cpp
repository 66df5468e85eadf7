#include "daemon/cluster/cluster_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "peer/address.hpp"
#include "peer/limits.hpp"

namespace gossamer::daemon {
namespace {

constexpr const char* notes_name = "key_notes";
constexpr const char* denials_name = "denials";
constexpr const char* audit_name = "audit";
constexpr const char* certificates_name = "certificates";
constexpr const char* invited_by_name = "invited_by";

std::string bad_file(const StateFolder& state, const char* name, const std::string& why, const char* advice) {
  return fmt::format("{}: {}; {}", (state.path() / name).string(), why, advice);
}

/// Reads a file and parses its content, or "" if there is no such file.
template <class Parse>
std::invoke_result_t<Parse, std::string> read_as(const StateFolder& state, const char* name, Parse parse,
                                                 const char* advice) {
  const auto content = state.load(name);
  if (!content) return std::unexpected(content.error());
  const std::string text = content->value_or("");
  if (!text.empty() && !text.ends_with('\n'))
    return std::unexpected(bad_file(state, name, "the end of its last line is missing", advice));
  auto parsed = parse(text);
  if (parsed) return parsed;
  return std::unexpected(bad_file(state, name, parsed.error(), advice));
}

/// Whether the notes of the keys are lost: they are never empty, and there are no certificates without them. Without
/// notes the node would follow no authority, and let in anybody who has the cluster key, until a neighbour names the
/// authority.
bool are_lost(const std::optional<std::string>& notes, const peer::Certificates& certificates) {
  return notes ? notes->empty() : !certificates.entries().empty();
}

/// What the node has kept of a cluster whose key it does not have any more. Decisions are the cluster's: another one
/// would take these for its own.
std::vector<std::string> left_of_a_cluster(const StateFolder& state) {
  std::vector<std::string> left;
  for (const char* name : {notes_name, denials_name, certificates_name, invited_by_name}) {
    std::error_code ignored;
    if (std::filesystem::exists(state.path() / name, ignored)) left.emplace_back(name);
  }
  return left;
}

std::expected<std::vector<std::string>, std::string> parse_addresses(std::string_view text) {
  std::vector<std::string> addresses;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto address = peer::parse_address(line, peer::AddressUse::dial);
    if (!address) return std::unexpected(address.error());
    if (addresses.size() == peer::max_invitation_addresses) return std::unexpected("it holds too many addresses");
    addresses.push_back(address->text());
  }
  return addresses;
}

}  // namespace

std::expected<ClusterState, std::string> ClusterState::load(const StateFolder& state,
                                                            const std::filesystem::path& key_file, bool wait_to_join) {
  std::error_code ignored;
  const bool has_key = std::filesystem::exists(key_file, ignored);
  if (const auto left = has_key ? std::vector<std::string>() : left_of_a_cluster(state); !left.empty()) {
    return std::unexpected(fmt::format(
        "the cluster key {} is missing, and {} still has what the cluster decided; bring the key back from a copy or "
        "from a member, or, for another cluster, move {} away from there",
        key_file.string(), state.path().string(), fmt::join(left, ", ")));
  }
  const bool waits = wait_to_join && !has_key;
  auto keys = waits ? peer::ClusterKeys({peer::ClusterKey::generate()}) : peer::load_or_create_cluster_keys(key_file);
  if (!keys) return std::unexpected(keys.error());
  const auto notes = state.load(notes_name);
  if (!notes) return std::unexpected(notes.error());
  auto ring = peer::KeyRing::restore(*keys, waits ? "" : notes->value_or(""));
  if (!ring)
    return std::unexpected(
        bad_file(state, notes_name, ring.error(),
                 "without the file and certificates beside it, the keys in the cluster key file are taken as "
                 "they are, and no authority is followed (gossamerctl authority use)"));
  ClusterState loaded(state, key_file, std::move(*ring));
  loaded.waits_to_join_ = waits;
  auto denials = read_as(state, denials_name, peer::Denials::parse,
                         "remove the file to start without; neighbours tell who is denied");
  if (!denials) return std::unexpected(denials.error());
  loaded.denials_ = std::move(*denials);
  auto audit = read_as(state, audit_name, peer::Audit::parse, "move the file away to start without");
  if (!audit) return std::unexpected(audit.error());
  loaded.audit_ = std::move(*audit);
  auto certificates = read_as(state, certificates_name, peer::Certificates::parse,
                              "move the file away to start without; neighbours tell what they know");
  if (!certificates) return std::unexpected(certificates.error());
  if (are_lost(*notes, *certificates)) {
    return std::unexpected(
        bad_file(state, notes_name, "it is missing or empty, and with it whose signature this node asks for",
                 "bring it back from a copy of the state folder. To start without, remove it and the file certificates "
                 "beside it, and then run 'gossamerctl authority use' with what 'gossamerctl authority show' prints on "
                 "another member"));
  }
  loaded.certificates_ = std::move(*certificates);
  auto addresses =
      read_as(state, invited_by_name, parse_addresses, "remove the file, and list nodes to dial under [overlay] peers");
  if (!addresses) return std::unexpected(addresses.error());
  loaded.invited_by_ = std::move(*addresses);
  return loaded;
}

std::expected<void, std::string> ClusterState::keep(const peer::KeyRing& ring) {
  if (auto noted = state_->store(notes_name, ring.notes()); !noted) return noted;
  if (auto written = peer::write_cluster_keys(key_file_, ring.cluster_keys()); !written) return written;
  waits_to_join_ = false;
  return {};
}

std::expected<void, std::string> ClusterState::keep(const peer::Denials& denials) const {
  return state_->store(denials_name, denials.text());
}

std::expected<void, std::string> ClusterState::keep(const peer::Audit& audit) const {
  return state_->store(audit_name, audit.text());
}

std::expected<void, std::string> ClusterState::keep(const peer::Certificates& certificates) const {
  return state_->store(certificates_name, certificates.text());
}

std::expected<void, std::string> ClusterState::keep_invited_by(std::vector<std::string> addresses) {
  std::string text;
  for (const std::string& address : addresses)
    text += address + "\n";
  invited_by_ = std::move(addresses);
  return state_->store(invited_by_name, text);
}

}  // namespace gossamer::daemon
