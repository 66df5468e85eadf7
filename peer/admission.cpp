#include "peer/admission.hpp"

#include <sodium.h>

#include <algorithm>
#include <optional>

#include "gossip/check.hpp"

namespace gossamer::peer {
namespace {

/// BLAKE2b over fields, each variable one with its length before it, so that no two lists of fields give the same
/// bytes.
class Transcript {
 public:
  Transcript(std::string_view context, const Secret& key) {
    GOSSAMER_CHECK(crypto_generichash_init(&state_, key.bytes().data(), key_bytes, sizeof(Proof)) == 0);
    add_text(context);
  }
  Transcript(const Transcript&) = delete;
  Transcript& operator=(const Transcript&) = delete;
  ~Transcript() { sodium_memzero(&state_, sizeof state_); }

  void add_number(std::uint64_t number) {
    std::array<std::uint8_t, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
    add_bytes(bytes);
  }
  void add_bytes(std::span<const std::uint8_t> bytes) {
    GOSSAMER_CHECK(crypto_generichash_update(&state_, bytes.data(), bytes.size()) == 0);
  }
  void add_text(std::string_view text) {
    add_number(text.size());
    add_bytes({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }
  [[nodiscard]] Proof proof() {
    Proof proof{};
    GOSSAMER_CHECK(crypto_generichash_final(&state_, proof.data(), proof.size()) == 0);
    return proof;
  }

 private:
  crypto_generichash_state state_;
};

bool same(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<Secret> shared_secret(const KeyPair& own, const PublicKey& other) {
  Secret shared;
  if (crypto_box_beforenm(shared.writable().data(), other.data(), own.secret_key.bytes().data()) != 0) {
    return std::nullopt;
  }
  return shared;
}

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
  transcript.add_number(welcome.members.size());
  for (const Member& member : welcome.members) {
    transcript.add_bytes(member.node.bytes);
    transcript.add_text(member.address);
  }
  transcript.add_number(welcome.features);
  return transcript.proof();
}

}  // namespace

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
