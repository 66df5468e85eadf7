// Makes proofs and statements: BLAKE2b-256 over a list of fields, keyed with a secret, or without a key.
//
// Used by peer/keys/, peer/admission/ and peer/links/seal.cpp only. Pure, any thread.

#pragma once

#include <sodium.h>

#include <string_view>

#include "gossip/check.hpp"
#include "peer/keys/keys.hpp"

namespace gossamer::peer {

/// BLAKE2b over a list of fields. The length of each variable field goes before it, so that no two lists give the same
/// bytes.
class Transcript {
 public:
  Transcript(std::string_view context, const Secret& key) : Transcript(context, key.bytes()) {}
  /// Without a key: for what anybody may compute.
  explicit Transcript(std::string_view context) : Transcript(context, std::span<const std::uint8_t>()) {}
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
  // Adds the length before the field even if it is fixed. Every field that an authority signs is added with its length.
  void add_field(std::span<const std::uint8_t> bytes) {
    add_number(bytes.size());
    add_bytes(bytes);
  }
  void add_field(std::int64_t number) {
    add_number(sizeof number);
    add_number(static_cast<std::uint64_t>(number));
  }
  [[nodiscard]] Proof proof() {
    Proof proof{};
    GOSSAMER_CHECK(crypto_generichash_final(&state_, proof.data(), proof.size()) == 0);
    return proof;
  }
  /// The hash as a secret, which may serve as a key.
  [[nodiscard]] Secret secret() {
    Secret secret;
    GOSSAMER_CHECK(crypto_generichash_final(&state_, secret.writable().data(), key_bytes) == 0);
    return secret;
  }

 private:
  Transcript(std::string_view context, std::span<const std::uint8_t> key) {
    GOSSAMER_CHECK(crypto_generichash_init(&state_, key.data(), key.size(), sizeof(Proof)) == 0);
    add_text(context);
  }

  crypto_generichash_state state_;
};

/// Compares in constant time.
inline bool same(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace gossamer::peer
