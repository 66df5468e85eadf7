#include "peer/admission/admission.hpp"

#include <sodium.h>

#include <algorithm>

#include "peer/keys/transcript.hpp"

namespace gossamer::peer {
namespace {

Proof welcome_proof(const Secret& shared, const Hello& hello, const Welcome& welcome) {
  Transcript transcript("gossamer welcome 1", shared);
  transcript.add_bytes(hello.public_key);
  transcript.add_bytes(welcome.public_key);
  transcript.add_bytes(hello.nonce);
  transcript.add_number(hello.link);
  transcript.add_number(static_cast<std::uint64_t>(hello.channel));
  transcript.add_number(welcome.version);
  transcript.add_number(welcome.incarnation);
  transcript.add_text(welcome.address);
  transcript.add_text(welcome.name);
  transcript.add_number(0);  // the number of members in a welcome, a reserved field that is always empty
  transcript.add_number(welcome.features);
  return transcript.proof();
}

}  // namespace

std::optional<Secret> shared_secret(const KeyPair& own, const PublicKey& other) {
  Secret shared;
  if (crypto_box_beforenm(shared.writable().data(), other.data(), own.secret_key.bytes().data()) != 0) {
    return std::nullopt;
  }
  return shared;
}

Nonce random_nonce() {
  GOSSAMER_CHECK(sodium_init() >= 0);
  Nonce nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof hello_proof(const ClusterKey& key, const Hello& hello) {
  Transcript transcript("gossamer hello 1", key.hello_key());
  transcript.add_number(hello.version_low);
  transcript.add_number(hello.version_high);
  transcript.add_bytes(hello.public_key);
  transcript.add_number(hello.incarnation);
  transcript.add_bytes(hello.nonce);
  transcript.add_number(hello.link);
  transcript.add_number(static_cast<std::uint64_t>(hello.channel));
  transcript.add_text(hello.address);
  transcript.add_text(hello.name);
  transcript.add_number(hello.features);
  return transcript.proof();
}

bool is_hello_proven(const ClusterKeys& keys, const Hello& hello) {
  return std::ranges::any_of(keys.all(),
                             [&](const ClusterKey& key) { return same(hello_proof(key, hello), hello.proof); });
}

bool prove_welcome(const KeyPair& own, const Hello& hello, Welcome& welcome) {
  const auto shared = shared_secret(own, hello.public_key);
  if (!shared) return false;
  welcome.public_key = own.public_key;
  welcome.proof = welcome_proof(*shared, hello, welcome);
  return true;
}

bool is_welcome_proven(const KeyPair& own, const Hello& hello, const Welcome& welcome) {
  const auto shared = shared_secret(own, welcome.public_key);
  return shared && same(welcome_proof(*shared, hello, welcome), welcome.proof);
}

}  // namespace gossamer::peer
