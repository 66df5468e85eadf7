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

/// The most nodes that are remembered because they wait for a certificate.
inline constexpr std::size_t max_waiting = 256;
/// How long after it was turned away last; it tries again every few seconds.
inline constexpr TimeUs waiting_remembered_us = 600 * us_per_s;
/// When the cluster begins to ask for certificates, links that are up may stay this long until a certificate of their
/// other end has been heard of.
inline constexpr TimeUs certificates_due_us = 10 * us_per_s;
/// How often the node looks for decisions of its own that are dated too far ahead.
inline constexpr TimeUs ahead_look_us = 5 * us_per_s;

class Agreement {
 public:
  Agreement(OverlaySelf& self, LinkTable& table, Sender& sender, Listener& listener, KeyRing ring)
      : self_(self),
        table_(table),
        sender_(sender),
        listener_(listener),
        keys_(ring.cluster_keys()),
        spread_(std::move(ring), self.options.denials, self.options.certificates, self.identity.node),
        audit_(self.options.audit) {}

  [[nodiscard]] const ClusterKeys& keys() const { return keys_; }
  [[nodiscard]] const KeyRing& ring() const { return spread_.ring(); }
  [[nodiscard]] RingState ring_state() const { return spread_.ring().state(); }
  /// What the node is given that was invited. A key of the ring that it does not get by this is listened with later.
  [[nodiscard]] InvitationGrant grant_to(const NodeId& node) {
    spread_.given(node, self_.now());
    return {spread_.ring().state(), spread_.ring().deputy_list()};
  }
  [[nodiscard]] const Denials& denials() const { return spread_.denials(); }
  [[nodiscard]] const Audit& audit() const { return audit_; }
  [[nodiscard]] bool is_denied(const NodeId& node) const { return denied_.contains(node); }

  void start() {
    started_at_ = self_.now();
    note_rule();
  }
  void link_up(const NodeId& node) { spread_.link_up(node, self_.now()); }
  void link_down(const NodeId& node) { spread_.link_down(node); }
  /// Takes a new key into use when its time has come, and tells neighbours what they have not heard.
  void tick();
  void hear(const NodeId& from, DenialList list);
  void hear(const NodeId& from, const RingState& state);
  void hear(const NodeId& from, const DeputyList& list);
  void hear(const NodeId& from, CertificateList list);

  /// The deputies that this node shows in hello and welcome. With them others can judge its certificate, and learn of a
  /// dismissed deputy even if they turn this node away.
  [[nodiscard]] DeputyList deputies_to_show() const;
  /// Takes the deputies that another node has shown. So far the node has proven only its key.
  void take_shown(const NodeId& node, const DeputyList& list);
  /// Says, for people, why a node that shows this certificate gets no link; nothing if it gets one. The certificate is
  /// kept, and told to all.
  [[nodiscard]] std::optional<std::string> objection_to(const WaitingNode& node,
                                                        const std::optional<Certificate>& shown);
  /// Says why a claim with a certificate is refused; nothing if it is not.
  [[nodiscard]] std::optional<std::string> objection_to(const InvitationClaim& claim);
  /// The node's certificate that counts now. Null: it has none, or it has expired, or it or its invitation
  /// is denied.
  [[nodiscard]] const Certificate* certificate_of(const NodeId& node) const;
  /// Who has admitted the node: the deputy that signed its warrant, or else the invitation by the authority.
  /// no_sponsor: the node has no certificate, or this node's own has the same sponsor.
  [[nodiscard]] Sponsor sponsor_of(const NodeId& node) const;
  [[nodiscard]] Rights rights_of(const NodeId& node) const;

  /// Replaces the nodes that this node alone turns away.
  void set_denied(const std::vector<NodeId>& nodes);
  // These are described at Overlay.
  [[nodiscard]] std::optional<PublicKey> authority() const { return spread_.ring().authority(); }
  [[nodiscard]] const std::optional<Deciders>& deciders() const { return spread_.ring().deciders(); }
  [[nodiscard]] Deputy propose_deputy(const PublicKey& key, std::uint8_t powers, const std::string& name) const;
  [[nodiscard]] std::expected<void, std::string> set_deputy(const Deputy& deputy);
  [[nodiscard]] std::expected<void, std::string> set_authority(const std::optional<PublicKey>& authority,
                                                               const Signatures& signatures);
  [[nodiscard]] std::expected<Denial, std::string> propose(const NodeId& node, bool denied, const std::string& reason);
  [[nodiscard]] std::expected<void, std::string> decide(const Denial& denial);
  [[nodiscard]] std::vector<KeyStatus> key_ring() const;
  [[nodiscard]] std::expected<RingKey, std::string> propose_key();
  [[nodiscard]] std::expected<void, std::string> add_key(const RingKey& key);
  [[nodiscard]] std::expected<RetiredKey, std::string> propose_retirement(const Fingerprint& fingerprint);
  [[nodiscard]] std::expected<void, std::string> retire_key(const RetiredKey& key);
  [[nodiscard]] const Certificates& certificates() const { return spread_.certificates(); }
  [[nodiscard]] std::vector<WaitingNode> waiting() const;
  [[nodiscard]] std::optional<std::string> used_up_for(const NodeId& node) const;
  [[nodiscard]] std::expected<void, std::string> certify(const Certificate& certificate);
  [[nodiscard]] bool asks_for_certificates() const { return spread_.ring().asks_for_certificates(); }
  [[nodiscard]] AdmissionRule propose_rule(bool certificates) const;
  [[nodiscard]] std::expected<void, std::string> set_rule(const AdmissionRule& rule);
  /// `advertised`: where others are told to dial this node.
  [[nodiscard]] std::expected<Invitation, std::string> invite(TimeUs validity_us, std::vector<Address> addresses,
                                                              const std::string& advertised, bool needs_warrant) const;
  /// `ended` is called once, within a turn, unless close() comes first.
  [[nodiscard]] std::expected<void, std::string> join(const Invitation& invitation, Joined ended);
  void close();
  /// Keep for people, in Audit, what has been decided or refused. Decisions made here count as those of the operator
  /// that set_operator() has named; empty: nobody.
  void note_taken(const NodeId& by, std::string what);
  void note_refused(const NodeId& told_by, const std::string& what);
  void set_operator(std::string who) { operator_ = std::move(who); }

 private:
  [[nodiscard]] std::expected<void, std::string> change_ring(KeyRing ring);
  template <class Decision>
  [[nodiscard]] std::expected<void, std::string> check_signed(const Decision& decision) const;
  [[nodiscard]] std::expected<void, std::string> adopt(std::expected<InvitationGrant, std::string> grant,
                                                       const std::optional<Certificate>& certificate);
  void tell();
  void forget_ahead();
  void use_ring();
  void follow_change(const NodeId& from, const KeyRing& before);
  void forget_of_former(const KeyRing& before);
  template <class Decision>
  [[nodiscard]] std::string signed_words(const Decision& decision) const;
  void note_refusal(const NodeId& told_by);
  void note_changes(const NodeId& told_by, const KeyRing& ring_before);
  void listen_with_slot();
  void enforce_denials();
  void note_rule();
  [[nodiscard]] std::expected<void, std::string> take_and_tell(const Certificate& certificate);
  [[nodiscard]] Sponsor sponsor_by_certificate(const NodeId& node) const;
  /// The node's certificate, also if it does not count any more. Null: none is known.
  [[nodiscard]] const Certificate* held_by(const NodeId& node) const;
  [[nodiscard]] std::string reason_to_end(const Link& link) const;
  void enforce_certificates();

  OverlaySelf& self_;
  LinkTable& table_;
  Sender& sender_;
  Listener& listener_;
  ClusterKeys keys_;  ///< the keys of spread_'s ring
  Spread spread_;
  Audit audit_;
  std::string operator_;
  std::set<NodeId> denied_here_;  ///< nodes that only this node's configuration denies
  std::set<NodeId> denied_;       ///< all nodes denied here: by configuration, or by spread_
  /// Turned away for want of a certificate, by node; at most max_waiting.
  std::map<NodeId, WaitingNode> waiting_;
  std::optional<TimeUs> asks_since_;  ///< when this node heard that certificates are asked for
  std::shared_ptr<ClaimAttempt> claim_;
  TimeUs started_at_ = 0;
  TimeUs next_ahead_look_ = 0;
  bool cannot_change_key_ = false;  ///< the log has said so already
};

}  // namespace gossamer::peer
