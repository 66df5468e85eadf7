#include "daemon/cluster/cluster_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "peer/address.hpp"
#include "peer/limits.hpp"

namespace gossamer::daemon {
namespace {

constexpr const char* notes_name = "key_notes";
constexpr const char* denials_name = "denials";
constexpr const char* invited_by_name = "invited_by";

/// A file's content, or "" if there is no such file.
std::expected<std::string, std::string> text_of(const StateFolder& state, const char* name) {
  auto content = state.load(name);
  if (!content) return std::unexpected(content.error());
  return std::move(*content).value_or("");
}

std::string garbled(const StateFolder& state, const char* name, const std::string& what, const char* advice) {
  return fmt::format("{}: {}; {}", (state.path() / name).string(), what, advice);
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
  const bool waits = wait_to_join && !std::filesystem::exists(key_file, ignored);
  auto keys = waits ? peer::ClusterKeys({peer::ClusterKey::generate()}) : peer::load_or_create_cluster_keys(key_file);
  if (!keys) return std::unexpected(keys.error());
  const auto notes = text_of(state, notes_name);
  if (!notes) return std::unexpected(notes.error());
  auto ring = peer::KeyRing::restore(*keys, waits ? "" : *notes);
  if (!ring) {
    return std::unexpected(garbled(state, notes_name, ring.error(),
                                   "without the file the keys in the cluster key file are taken as they are"));
  }
  ClusterState loaded(state, key_file, std::move(*ring));
  loaded.waits_to_join_ = waits;
  const auto denials_text = text_of(state, denials_name);
  if (!denials_text) return std::unexpected(denials_text.error());
  auto denials = peer::Denials::parse(*denials_text);
  if (!denials) {
    return std::unexpected(garbled(state, denials_name, denials.error(),
                                   "remove the file to start without; neighbours tell who is denied"));
  }
  loaded.denials_ = std::move(*denials);
  const auto addresses_text = text_of(state, invited_by_name);
  if (!addresses_text) return std::unexpected(addresses_text.error());
  auto addresses = parse_addresses(*addresses_text);
  if (!addresses) {
    return std::unexpected(garbled(state, invited_by_name, addresses.error(),
                                   "remove the file, and list nodes to dial under [overlay] peers"));
  }
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

std::expected<void, std::string> ClusterState::keep_invited_by(std::vector<std::string> addresses) {
  std::string text;
  for (const std::string& address : addresses)
    text += address + "\n";
  invited_by_ = std::move(addresses);
  return state_->store(invited_by_name, text);
}

}  // namespace gossamer::daemon
