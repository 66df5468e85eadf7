#include "peer/overlay/strangers.hpp"

#include <algorithm>

#include "gossip/check.hpp"
#include "peer/admission/admission.hpp"

namespace gossamer::peer {
namespace {

/// Removes the prefix from ::ffff:1.2.3.4, the form in which an IPv6 socket shows an IPv4 address.
std::string plain_host(std::string host) {
  const std::string mapped = "::ffff:";
  const bool is_mapped = host.rfind(mapped, 0) == 0 && host.find('.') != std::string::npos;
  return is_mapped ? host.substr(mapped.size()) : host;
}

}  // namespace

void Strangers::receive(Arrival&& arrival) {
  arrival.host = plain_host(std::move(arrival.host));
  const Delivery& delivery = arrival.delivery;
  if (arrival.damaged || delivery.too_many_frames || delivery.frames.payload_count != 0 ||
      delivery.bytes > max_hello_bytes) {
    ++self_.counters.strangers;
    return;
  }
  const auto packet = decode(delivery.frames);
  const auto* control = packet ? std::get_if<ControlMessage>(&*packet) : nullptr;
  const auto* hello = control ? std::get_if<Hello>(control) : nullptr;
  const auto* claim = control ? std::get_if<InvitationClaim>(control) : nullptr;
  if (hello == nullptr && claim == nullptr) {
    ++self_.counters.strangers;  // also counts the last messages of a link that has just ended
    return;
  }
  if (!key_throttle_.take(arrival.user_id, self_.now()) || !host_throttle_.take(arrival.host, self_.now())) {
    ++self_.counters.hellos_throttled;
    return;
  }
  if (listener_.form_of(arrival.routing_id) && (hello == nullptr || hello->channel != Channel::bulk)) {
    return refuse(arrival, {RejectReason::bad_proof, "all but bulk goes through CURVE"});
  }
  if (claim != nullptr) return answer_claim(*claim, arrival);
  auto refusal = refusal_of(*hello, arrival);
  if (!refusal) {
    refusal = hello->channel == Channel::control ? admit_control(*hello, arrival) : admit_bulk(*hello, arrival);
  }
  if (!refusal) return;
  refuse(arrival, *refusal);
  if (hex(hello->public_key) == arrival.user_id && !is_expected(*refusal))
    table_.note_failure({}, node_id(hello->public_key), "it is turned away here: " + refusal->text);
}

bool Strangers::is_expected(const Refusal& refusal) {
  return refusal.reason == RejectReason::self || refusal.reason == RejectReason::duplicate;
}

std::optional<Strangers::Refusal> Strangers::refusal_of(const Hello& hello, const Arrival& arrival) {
  if (hex(hello.public_key) != arrival.user_id) {
    return Refusal{RejectReason::bad_proof, "the hello's key is not the connection's"};
  }
  if (!is_hello_proven(agreement_.keys(), hello)) {
    return Refusal{RejectReason::bad_proof,
                   "the hello does not prove that its sender holds the cluster key; if the key was changed while "
                   "it was away, the node needs an invitation (gossamerctl invite)"};
  }
  if (hello.version_low > protocol_version_high || hello.version_high < protocol_version_low) {
    return Refusal{RejectReason::version, "we speak protocol " + std::to_string(protocol_version_low) + " to " +
                                              std::to_string(protocol_version_high) + ", you " +
                                              std::to_string(hello.version_low) + " to " +
                                              std::to_string(hello.version_high)};
  }
  const NodeId node = node_id(hello.public_key);
  if (node == self_.identity.node) {
    if (hello.incarnation != self_.options.incarnation) {
      self_.log->error("another process uses this node's key, from {}: give each node its own state folder",
                       arrival.host);
    }
    return Refusal{RejectReason::self, "that is this node itself"};
  }
  agreement_.take_shown(node, hello.deputies);
  if (agreement_.is_denied(node)) return Refusal{RejectReason::denied, "the node is denied"};
  if (auto objection = agreement_.objection_to({node, hello.name, arrival.host}, hello.certificate))
    return Refusal{RejectReason::certificate, std::move(*objection)};
  const NodeRecord* record = table_.find(node);
  if (record == nullptr) return std::nullopt;
  if (self_.now() < record->banned_until) {
    return Refusal{RejectReason::misbehaved, "too many malformed messages; come back later"};
  }
  if (hello.incarnation < record->incarnation && !record->dead) {
    return Refusal{RejectReason::stale, "another daemon with this node's key, started later, is here"};
  }
  return std::nullopt;
}

std::optional<Strangers::Refusal> Strangers::admit_control(const Hello& hello, const Arrival& arrival) {
  const NodeId node = node_id(hello.public_key);
  links_.end_those([&](const Link& link) {
    const bool half_done = link.node == node && !link.dialled_by_us() && !link.is_up();
    return std::string(half_done ? unfinished : "");
  });
  if (table_.links().size() >= self_.options.max_links || table_.record_of(node, self_.now()) == nullptr) {
    return Refusal{RejectReason::full, "no room for another link"};
  }
  links_.note_incarnation(node, hello.incarnation);
  auto link = std::make_shared<Link>();
  link->user_id = arrival.user_id;
  link->host = arrival.host;
  link->number = hello.link;
  link->features = hello.features & self_.options.features;
  link->node = node;
  link->opened = self_.now();
  if (!welcome(hello, arrival, link)) return Refusal{RejectReason::bad_proof, "the key cannot be used"};
  table_.add(link);
  links_.describe(node, hello.name, hello.address, link->host);
  return std::nullopt;
}

std::optional<Strangers::Refusal> Strangers::admit_bulk(const Hello& hello, const Arrival& arrival) {
  const NodeId node = node_id(hello.public_key);
  const LinkPtr link = table_.incoming_of(node, hello.link);
  if (!link || link->is_up()) return Refusal{RejectReason::duplicate, "there is no control connection of that link"};
  // A dialler that has not heard our welcome on a sealed connection comes again, through CURVE.
  if (const std::string earlier = link->routing_ids[index_of(Channel::bulk)]; !earlier.empty()) {
    table_.disconnect(earlier);
    listener_.dismiss(earlier);
  }
  // If both have dialled, the node with the smaller id decides which link stays.
  const LinkPtr present = table_.link_to(node);
  const bool young = present && present->dialled_by_us() &&
                     self_.now() - present->up_since < self_.options.attempt_timeout_ms * us_per_ms;
  if (self_.identity.node < node && (young || table_.has_introduced_outgoing(node))) {
    links_.end(link, "the other link is kept");
    return Refusal{RejectReason::duplicate, "the link that we dial is kept"};
  }
  if (!welcome(hello, arrival, link)) return Refusal{RejectReason::bad_proof, "the key cannot be used"};
  // The link comes up with the dialler's first message, which shows that the dialler has got the welcome.
  return std::nullopt;
}

bool Strangers::welcome(const Hello& hello, const Arrival& arrival, const LinkPtr& link) {
  Welcome welcome;
  welcome.version = std::min(hello.version_high, protocol_version_high);
  welcome.incarnation = self_.options.incarnation;
  welcome.address = own_address_.text();
  welcome.name = self_.options.name;
  welcome.features = self_.options.features;
  if (const Certificate* const own = agreement_.certificate_of(self_.identity.node)) welcome.certificate = *own;
  welcome.deputies = agreement_.deputies_to_show();
  if (!listener_.takes_sealed()) welcome.features &= ~feature_sealed_bulk;
  if (!prove_welcome(self_.identity.keys, hello, welcome)) return false;
  link->routing_ids[index_of(hello.channel)] = arrival.routing_id;
  if (hello.channel == Channel::bulk) link->bulk_descriptor = arrival.descriptor;
  table_.connect(arrival.routing_id, link, hello.channel);
  listener_.admit(arrival);
  (void)listener_.send(arrival.routing_id, encode(ControlMessage(welcome)), link->meter);
  const auto form = seal_form(hello.features & welcome.features);
  if (form && hello.channel == Channel::control) {
    const BulkOffer offer{random_nonce()};
    listener_.expect_sealed(*bulk_keys(self_.identity.keys, hello, welcome, offer), *form, arrival.user_id);
    (void)listener_.send(arrival.routing_id, encode(ControlMessage(offer)), link->meter);
  }
  return true;
}

void Strangers::refuse(const Arrival& arrival, const Refusal& refusal) {
  if (!is_expected(refusal)) {
    ++self_.counters.admissions_refused;
    if (told_throttle_.take(arrival.user_id + refusal.text, self_.now()) && self_.log_throttle.take(self_.now()))
      self_.log->warn("turned away a node at {}: {} (told once an hour, counted always)", arrival.host, refusal.text);
  }
  answer(arrival, Rejected{refusal.reason, refusal.text.substr(0, max_text_bytes)});  // these texts are plain ASCII
}

// --- who was invited -------------------------------------------------------------------------------------------------

std::optional<Strangers::Refusal> Strangers::refusal_of(const InvitationClaim& claim, const Arrival& arrival) {
  if (hex(claim.public_key) != arrival.user_id) {
    return Refusal{RejectReason::bad_proof, "the claim's key is not the connection's"};
  }
  if (!is_claim_proven(agreement_.keys(), claim)) {
    return Refusal{RejectReason::invitation,
                   "the invitation was made with a key that is no longer accepted here; ask for a new one (gossamerctl "
                   "invite)"};
  }
  if (const TimeUs now = self_.time_of_day(); now >= claim.expires_at) {
    const std::string ended = date_text(claim.expires_at);
    const std::string here = date_text(now) == ended ? "" : ", and here it is " + date_text(now);
    return Refusal{RejectReason::invitation,
                   "the invitation expired at " + ended + here + "; ask for a new one (gossamerctl invite)"};
  }
  const NodeId node = node_id(claim.public_key);
  if (node == self_.identity.node)
    return Refusal{RejectReason::self, "that is this node itself: it needs no invitation"};
  if (agreement_.is_denied(node)) return Refusal{RejectReason::denied, "the node is denied"};
  if (auto objection = agreement_.objection_to(claim))
    return Refusal{RejectReason::invitation, std::move(*objection) + "; ask for a new one (gossamerctl invite)"};
  return std::nullopt;
}

void Strangers::answer_claim(const InvitationClaim& claim, const Arrival& arrival) {
  if (const auto refusal = refusal_of(claim, arrival)) return refuse(arrival, *refusal);
  if (self_.log_throttle.take(self_.now())) {
    self_.log->info("gave the cluster keys to node {} at {}, which was invited", node_id(claim.public_key).brief(),
                    arrival.host);
  }
  answer(arrival, agreement_.grant_to(node_id(claim.public_key)));
}

void Strangers::answer(const Arrival& arrival, const ControlMessage& message) {
  const auto meter = std::make_shared<std::atomic<std::size_t>>(0);
  (void)listener_.send(arrival.routing_id, encode(message), meter);
}

}  // namespace gossamer::peer
