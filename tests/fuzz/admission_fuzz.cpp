// Hellos, welcomes and claims of somebody who holds the cluster key, and certificates that the authority has signed:
// the fuzzer would find neither proofs nor signatures by chance, so they are made here over whatever it says. They
// hold, and those of the input do not. The tables take what is signed, and stay sound.

#include "peer/admission/admission.hpp"
#include "peer/admission/certificates.hpp"
#include "peer/admission/invitation.hpp"
#include "peer/admission/key_ring.hpp"
#include "peer/keys/keys.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::peer;

const ClusterKeys& keys() {
  static const ClusterKeys keys({cluster_key(30), cluster_key(31)});
  return keys;
}
const SigningKey& authority() {
  static const SigningKey key(cluster_key(7).key);
  return key;
}

void take(const std::optional<Certificate>& heard) {
  if (!heard) return;
  const Deciders deciders(authority().public_half());
  GOSSAMER_CHECK(!signer_of(*heard, deciders));
  const Certificate made = UsableWarrant::make(heard->warrant, authority()).certify(heard->node, heard->made_at);
  const std::optional<PublicKey> signer = signer_of(made, deciders);
  GOSSAMER_CHECK(signer == authority().public_half());
  GOSSAMER_CHECK(flaw_of(made, made.node, deciders, now) == misfit_of(made, made.node, now));
  const auto is_nobody = [](const NodeId&) { return false; };
  Certificates certificates;
  for (const Certificates::Source source : {Certificates::Source::hearsay, Certificates::Source::itself})
    (void)certificates.merge(made, source, 0, now, is_nobody, signer);
  const auto again = Certificates::parse(certificates.text());
  GOSSAMER_CHECK(again && again->text() == certificates.text());
  certificates.settle(deciders, false);
  GOSSAMER_CHECK(certificates.entries().size() <= 1);
}

void hear(const Hello& heard) {
  GOSSAMER_CHECK(!is_hello_proven(keys(), heard));
  Hello hello = heard;
  hello.proof = hello_proof(keys().all().back(), hello);
  GOSSAMER_CHECK(is_hello_proven(keys(), hello));
  static const Identity listener = Identity::generate();
  Welcome welcome;
  (void)prove_welcome(listener.keys, hello, welcome);
  KeyRing ring(keys());
  (void)ring.merge(hello.deputies, now);
  take(hello.certificate);
}

void hear(const Welcome& heard) {
  static const Identity dialler = Identity::generate();
  Hello hello;
  hello.public_key = dialler.keys.public_key;
  GOSSAMER_CHECK(!is_welcome_proven(dialler.keys, hello, heard));
  take(heard.certificate);
}

void hear(const InvitationClaim& heard) {
  GOSSAMER_CHECK(!is_claim_proven(keys(), heard));
  InvitationClaim claim = heard;
  claim.proof = claim_proof(
      invitation_secret(keys().first(), claim.invitation, claim.expires_at, claim.certificate.has_value()), claim);
  GOSSAMER_CHECK(is_claim_proven(keys(), claim));
  (void)date_text(claim.expires_at);
  take(claim.certificate);
}

void hear(const CertificateList& heard) {
  for (const Certificate& certificate : heard.records)
    take(certificate);
}

void hear(const auto&) {}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gossamer;
  for (fuzz::Messages messages(data, size); !messages.ended();) {
    const auto packet = peer::decode(messages.next());
    if (const auto* control = packet ? std::get_if<peer::ControlMessage>(&*packet) : nullptr; control != nullptr)
      std::visit([](const auto& message) { fuzz::hear(message); }, *control);
  }
  return 0;
}
