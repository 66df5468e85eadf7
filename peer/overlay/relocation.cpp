// Where this node is to be dialled, and that it may change while the node runs: because its owner says so, or because
// the machine has moved to another network. Links go on if they can; those that cannot are ended by their silence and
// made anew. What must not get lost is that others find the node by its id: they are told under a larger incarnation
// (gossip::Membership::relocate).

#include "gossip/check.hpp"
#include "peer/links/own_addresses.hpp"
#include "peer/overlay/links.hpp"

namespace gossamer::peer {
namespace {

/// The machine's addresses are looked at this often.
constexpr TimeUs look_at_addresses_us = 2 * us_per_s;
/// What is told at once may go into links that have just died, so it is told again when they must have been made anew:
/// this long after link_timeout_ms.
constexpr TimeUs tell_again_us = 5 * us_per_s;

/// What others are told: nothing, what the user says, or where the node listens.
std::expected<std::string, std::string> advertised(const std::string& wish, const Address& bound) {
  if (wish == "none") return std::string{};
  if (wish.empty()) return bound.text();
  auto address = parse_address(wish, AddressUse::listen);
  if (!address) return std::unexpected("advertised " + address.error());
  if (address->port == 0) address->port = bound.port;
  if (address->text().size() > max_member_address_bytes) return std::unexpected("advertised address: too long");
  return address->text();
}

/// It listens for its own machine, and dials others: to those it is a node that only dials out.
bool out_of_reach(const std::string& advertised, const std::vector<std::string>& peers) {
  const auto own = parse_address(advertised, AddressUse::listen);
  if (!own || !own->is_loopback()) return false;
  return std::ranges::any_of(peers, [](const std::string& text) {
    const auto peer = parse_address(text, AddressUse::dial);
    return peer && !peer->is_loopback();
  });
}

}  // namespace

std::expected<std::string, std::string> Overlay::Core::address_to_tell(const std::string& wish) const {
  auto address = advertised(wish, listener_.address());
  if (!address || !out_of_reach(*address, options_.peers)) return address;
  log_->warn("this node listens at {} for its own machine only: nodes elsewhere cannot dial it", *address);
  return std::string{};
}

std::expected<void, std::string> Overlay::Core::set_advertise(const std::string& wish) {
  GOSSAMER_CHECK(roster_.has_value());
  auto address = address_to_tell(wish);
  if (!address) return std::unexpected(address.error());
  options_.advertise = wish;
  if (*address == advertised_) return {};
  advertised_ = std::move(*address);
  log_->info("others are told to dial this node at {}", advertised_.empty() ? "no address" : advertised_);
  roster_->relocate(advertised_);
  return {};
}

/// Where a machine has another address, whoever sees this node sees it elsewhere; what was out of reach may be in it.
void Overlay::Core::tend_address() {
  if (tell_again_at_ != 0 && now() >= tell_again_at_) {
    tell_again_at_ = 0;
    roster_->relocate(advertised_);
  }
  if (now() < look_at_addresses_) return;
  look_at_addresses_ = now() + look_at_addresses_us;
  auto addresses = own_addresses(options_.interface);
  if (!addresses) return;
  const bool moved = own_addresses_ && *own_addresses_ != *addresses;
  own_addresses_ = std::move(addresses);
  // An interface that goes may come back; nobody can be told before it does.
  if (!moved || own_addresses_->empty()) return;
  log_->info("this machine has other addresses than before ({} now): telling the other nodes", own_addresses_->front());
  book_.hurry(now());
  roster_->relocate(advertised_);
  tell_again_at_ = now() + options_.link_timeout_ms * us_per_ms + tell_again_us;
}

}  // namespace gossamer::peer
