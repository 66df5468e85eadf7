// Messages of other nodes, one after the other on one link. An accepted message can be encoded again. The key ring and
// the denials take accepted messages without checks of their own, and must stay sound.

#include "peer/admission/denials.hpp"
#include "peer/admission/key_ring.hpp"
#include "peer/wire/bulk_parts.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::peer;

bool same(const Frames& a, const Frames& b) {
  return std::ranges::equal(a.header.data, b.header.data) &&
         std::ranges::equal(std::span(a.payload).first(a.payload_count), std::span(b.payload).first(b.payload_count),
                            [](const Bytes& x, const Bytes& y) { return std::ranges::equal(x.data, y.data); });
}

/// Does with a ring what an operator and a restart do.
void use(const KeyRing& ring) {
  GOSSAMER_CHECK(!ring.keys().empty() && ring.keys().size() <= max_cluster_keys);
  const auto restored = KeyRing::restore(ring.cluster_keys(), ring.notes());
  GOSSAMER_CHECK(restored && restored->notes() == ring.notes());
  for (const RingKey& key : ring.keys())
    (void)ring.propose_retirement(key.key.fingerprint(), now);
  const auto next = ring.propose(now);
  KeyRing longer = ring;
  GOSSAMER_CHECK(!next || longer.add(*next));
}

void hear(const InvitationGrant& grant) {
  if (const auto adopted = KeyRing::adopt(grant.ring, grant.deputies)) use(*adopted);
}

void hear(const DeputyList& heard) {
  KeyRing ring(ClusterKeys({cluster_key(30)}));
  (void)ring.merge(heard, now);
  for (const Deputy& deputy : heard.records) {
    if (ring.deciders()) (void)ring.set_deputy(deputy);  // as if the authority had signed it
  }
  GOSSAMER_CHECK(ring.deputy_list().records.size() <= max_deputies);
  (void)ring.notes();
}

void hear(const RingState& heard) {
  KeyRing ring(ClusterKeys({cluster_key(30)}));
  (void)ring.merge(heard, now);
  use(ring);
}

void hear(const DenialList& heard) {
  Denials denials;
  for (const Denial& denial : heard.records) {
    (void)denials.merge(denial, now);
    (void)denials.propose(denial.node, true, {}, now);
  }
  const auto restored = Denials::parse(denials.text());
  GOSSAMER_CHECK(restored && restored->text() == denials.text());
}

void hear(const auto&) {}

void receive(const Frames& frames, BulkAssembly* assembly) {
  const auto packet = decode(frames);
  if (!packet) return;
  const Frames again = encoded(*packet);
  const auto second = decode(again);
  GOSSAMER_CHECK(second && same(encoded(*second), again));
  if (const auto* control = std::get_if<ControlMessage>(&*packet))
    std::visit([](const auto& message) { hear(message); }, *control);
  if (const auto* part = std::get_if<BulkPart>(&*packet); part != nullptr && assembly != nullptr) {
    const auto joined = assembly->add(*part);
    if (joined && *joined) receive(**joined, nullptr);
  }
}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gossamer::peer::BulkAssembly assembly;
  for (gossamer::fuzz::Messages messages(data, size); !messages.ended();)
    gossamer::fuzz::receive(messages.next(), &assembly);
  return 0;
}
