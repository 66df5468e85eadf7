#include "peer/overlay/own_address.hpp"

#include <algorithm>

#include "peer/links/own_addresses.hpp"

namespace gossamer::peer {
namespace {

/// The machine's addresses are looked at this often.
constexpr TimeUs look_at_addresses_us = 2 * us_per_s;
/// A new address is told at once, and may be lost in links that have just died. The node tells it again this long after
/// link_timeout_ms: by then new links have replaced the dead ones.
constexpr TimeUs tell_again_us = 5 * us_per_s;

/// The address that others are told: none, the one that the user names, or the one where the node listens.
std::expected<std::string, std::string> advertised(const std::string& wish, const Address& bound) {
  if (wish == "none") return std::string{};
  if (wish.empty()) return bound.text();
  auto address = parse_address(wish, AddressUse::listen);
  if (!address) return std::unexpected("advertised " + address.error());
  if (address->port == 0) address->port = bound.port;
  if (address->text().size() > max_member_address_bytes) return std::unexpected("advertised address: too long");
  return address->text();
}

/// True if the node listens for its own machine only and dials other machines. For those it is a node that only dials
/// out.
bool out_of_reach(const std::string& advertised, const std::vector<std::string>& peers) {
  const auto own = parse_address(advertised, AddressUse::listen);
  if (!own || !own->is_loopback()) return false;
  return std::ranges::any_of(peers, [](const std::string& text) {
    const auto peer = parse_address(text, AddressUse::dial);
    return peer && !peer->is_loopback();
  });
}

}  // namespace

std::expected<bool, std::string> OwnAddress::set(const std::string& wish, const Address& bound) {
  auto address = advertised(wish, bound);
  if (!address) return std::unexpected(address.error());
  if (out_of_reach(*address, self_.options.peers)) {
    self_.log->warn("this node listens at {} for its own machine only: nodes elsewhere cannot dial it", *address);
    address->clear();
  }
  self_.options.advertise = wish;
  const bool changed = *address != advertised_;
  advertised_ = std::move(*address);
  return changed;
}

bool OwnAddress::tick(AddressBook& book) {
  const TimeUs now = self_.now();
  bool tell = false;
  if (tell_again_at_ != 0 && now >= tell_again_at_) {
    tell_again_at_ = 0;
    tell = true;
  }
  if (now < look_at_) return tell;
  look_at_ = now + look_at_addresses_us;
  auto addresses = own_addresses(self_.options.interface);
  if (!addresses) return tell;
  const bool moved = addresses_ && *addresses_ != *addresses;
  addresses_ = std::move(addresses);
  // Without an address nobody can be told. The interface may come back.
  if (!moved || addresses_->empty()) return tell;
  self_.log->info("this machine has other addresses than before ({} now): telling the other nodes",
                  addresses_->front());
  book.hurry(now);  // addresses that were out of reach may be in reach now
  tell_again_at_ = now + self_.options.link_timeout_ms * us_per_ms + tell_again_us;
  return true;
}

}  // namespace gossamer::peer
