// Knows where this node is to be dialled. That may change while the node runs, because its owner says so or because the
// machine has moved to another network. Links go on if they can; those that cannot are ended by their silence and made
// anew. Others must still find the node by its id, so they are told under a larger incarnation
// (gossip::Membership::relocate).
//
// Called by the overlay, on the loop's thread.

#pragma once

#include "peer/overlay/address_book.hpp"
#include "peer/overlay/self.hpp"

namespace gossamer::peer {

class OwnAddress {
 public:
  explicit OwnAddress(OverlaySelf& self) : self_(self) {}

  /// The address that others are told; empty: this node only dials out.
  [[nodiscard]] const std::string& text() const { return advertised_; }
  /// Takes a new OverlaySettings::advertise for a node that listens at `bound`. True if the address has changed.
  [[nodiscard]] std::expected<bool, std::string> set(const std::string& wish, const Address& bound);
  /// True if others are to be told again. If the machine has moved, all addresses in the book become due.
  [[nodiscard]] bool tick(AddressBook& book);

 private:
  OverlaySelf& self_;
  std::string advertised_;
  std::optional<std::vector<std::string>> addresses_;  ///< the machine's, when last looked at
  TimeUs look_at_ = 0;
  TimeUs tell_again_at_ = 0;  ///< 0: no need to
};

}  // namespace gossamer::peer
