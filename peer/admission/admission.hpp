// Makes and checks the proofs that open a link: the dialler proves that it holds the cluster key, and the listener that
// it is the node it says it is. docs/explanation/security.md has the reasons.
//
// Pure but for the nonce; any thread.
//
//   hello proof    BLAKE2b-256, keyed with the cluster key's hello key, over every other field of the hello
//   welcome proof  BLAKE2b-256, keyed with the X25519 secret that dialler and listener share (crypto_box_beforenm of
//                  their node keys), over both keys, the hello's nonce, link and channel, and every other field of the
//                  welcome

#pragma once

#include <optional>

#include "peer/keys/cluster_keys.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

[[nodiscard]] Nonce random_nonce();
/// The X25519 secret of two node keys (crypto_box_beforenm). Nothing if no secret can be shared with the other key.
[[nodiscard]] std::optional<Secret> shared_secret(const KeyPair& own, const PublicKey& other);

[[nodiscard]] Proof hello_proof(const ClusterKey& key, const Hello& hello);
/// True if some key of the ring gives the hello's proof.
[[nodiscard]] bool is_hello_proven(const ClusterKeys& keys, const Hello& hello);

/// Adds the listener's key and the proof to the welcome. `own` is the listener's node key. False if no secret can be
/// shared with the key in the hello.
[[nodiscard]] bool prove_welcome(const KeyPair& own, const Hello& hello, Welcome& welcome);
/// `own` is the node key of the dialler, which has sent the hello.
[[nodiscard]] bool is_welcome_proven(const KeyPair& own, const Hello& hello, const Welcome& welcome);

}  // namespace gossamer::peer
