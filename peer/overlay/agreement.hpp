// Carries out inside the overlay what the members agree on: who is denied, which keys admit, and how an invited node
// gets them. peer/admission/spread.hpp decides what is told to whom.
//
// The owner stores a change of the key ring that was asked for here before it is used. Called by the overlay and its
// parts, on the loop's thread.

#pragma once

#include <set>

#include "peer/admission/spread.hpp"
#include "peer/links/claim_attempt.hpp"
#include "peer/overlay/sender.hpp"

namespace gossamer::peer {

class Agreement {
 public:
  Agreement(OverlaySelf& self, LinkTable& table, Sender& sender, Listener& listener, KeyRing ring)
      : self_(self),
        table_(table),
        sender_(sender),
        listener_(listener),
        keys_(ring.cluster_keys()),
        spread_(std::move(ring), self.options.denials),
        audit_(self.options.audit) {}

  [[nodiscard]] const ClusterKeys& keys() const { return keys_; }
  [[nodiscard]] RingState ring_state() const { return spread_.ring().state(); }
  [[nodiscard]] const Denials& denials() const { return spread_.denials(); }
  [[nodiscard]] const Audit& audit() const { return audit_; }
  [[nodiscard]] bool is_denied(const NodeId& node) const { return denied_.contains(node); }

  void start() { started_at_ = self_.now(); }
  void link_up(const NodeId& node) { spread_.link_up(node, self_.now()); }
  void link_down(const NodeId& node) { spread_.link_down(node); }
  /// Takes a new key into use when its time has come, and tells neighbours what they have not heard.
  void tick();
  void hear(const NodeId& from, DenialList list);
  void hear(const NodeId& from, const RingState& state);

  /// Replaces the nodes that this node alone turns away.
  void set_denied(const std::vector<NodeId>& nodes);
  // These are described at Overlay.
  [[nodiscard]] const std::optional<PublicKey>& authority() const { return spread_.ring().authority(); }
  [[nodiscard]] std::expected<void, std::string> set_authority(const std::optional<PublicKey>& authority,
                                                               const Signatures& signatures);
  [[nodiscard]] std::expected<Denial, std::string> propose(const NodeId& node, bool denied, const std::string& reason);
  [[nodiscard]] std::expected<void, std::string> decide(const Denial& denial);
  [[nodiscard]] std::vector<KeyStatus> key_ring() const;
  [[nodiscard]] std::expected<RingKey, std::string> propose_key();
  [[nodiscard]] std::expected<void, std::string> add_key(const RingKey& key);
  [[nodiscard]] std::expected<RetiredKey, std::string> propose_retirement(const Fingerprint& fingerprint);
  [[nodiscard]] std::expected<void, std::string> retire_key(const RetiredKey& key);
  /// `advertised`: where others are told to dial this node.
  [[nodiscard]] std::expected<std::string, std::string> invite(TimeUs validity_us, std::vector<Address> addresses,
                                                               const std::string& advertised) const;
  /// `ended` is called once, within a turn, unless close() comes first.
  [[nodiscard]] std::expected<void, std::string> join(const Invitation& invitation, Joined ended);
  void close();

 private:
  [[nodiscard]] std::expected<void, std::string> change_ring(KeyRing ring);
  template <class Decision>
  [[nodiscard]] std::expected<void, std::string> check_signed(const Decision& decision) const;
  [[nodiscard]] std::expected<void, std::string> adopt(std::expected<InvitationGrant, std::string> grant);
  void use_ring();
  void note_taken(const NodeId& told_by, std::string what);
  void note_refused(const NodeId& told_by, std::string what);
  void note_changes(const NodeId& told_by, const RingState& before);
  void listen_with_slot();
  void enforce_denials();

  OverlaySelf& self_;
  LinkTable& table_;
  Sender& sender_;
  Listener& listener_;
  ClusterKeys keys_;  ///< the keys of spread_'s ring
  Spread spread_;
  Audit audit_;
  std::set<NodeId> denied_here_;  ///< by configuration
  std::set<NodeId> denied_;       ///< by configuration, and by spread_
  std::shared_ptr<ClaimAttempt> claim_;
  TimeUs started_at_ = 0;
  bool cannot_change_key_ = false;  ///< the log has said so already
};

}  // namespace gossamer::peer
