// The files of the state folder, which a disk or a person may have garbled: what is accepted is written down and read
// again as the same.

#include "peer/admission/audit.hpp"
#include "peer/admission/certificates.hpp"
#include "peer/admission/denials.hpp"
#include "peer/admission/key_ring.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::peer;

template <class Records>
std::expected<Records, std::string> read_records(std::string_view text) {
  auto records = Records::parse(text);
  if (!records) return records;
  const auto again = Records::parse(records->text());
  GOSSAMER_CHECK(again && again->text() == records->text());
  return records;
}

void read_denials(std::string_view text) {
  const auto denials = read_records<Denials>(text);
  if (!denials) return;
  for (const auto& [node, entry] : denials->entries())
    (void)denials->propose(node, !entry.denial.denied, {}, now);
}

void read_ring(std::string_view text) {
  const auto ring = KeyRing::restore(ClusterKeys({cluster_key(30), cluster_key(31)}), text);
  if (!ring) return;
  const auto again = KeyRing::restore(ring->cluster_keys(), ring->notes());
  GOSSAMER_CHECK(again && again->notes() == ring->notes());
  (void)ring->propose(now);
  (void)ring->propose_rule(true, now);
  for (const RingKey& key : ring->keys())
    (void)ring->propose_retirement(key.key.fingerprint(), now);
}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = gossamer::fuzz::text_of(data, size);
  gossamer::fuzz::read_denials(text);
  (void)gossamer::fuzz::read_records<gossamer::peer::Audit>(text);
  (void)gossamer::fuzz::read_records<gossamer::peer::Certificates>(text);
  gossamer::fuzz::read_ring(text);
  (void)gossamer::peer::parse_cluster_keys(text);
  return 0;
}
