#include "peer/admission/bulk_keys.hpp"

#include "peer/keys/transcript.hpp"

namespace gossamer::peer {
namespace {

constexpr std::size_t ticket_bytes = 16;  // the size of the name, and of the password

Secret secret_for(const Secret& master, std::string_view use) {
  Transcript transcript("gossamer bulk secret 1", master);
  transcript.add_text(use);
  return transcript.secret();
}

}  // namespace

std::optional<BulkKeys> bulk_keys(const KeyPair& own, const Hello& hello, const Welcome& welcome,
                                  const BulkOffer& offer) {
  const bool dialled = own.public_key == hello.public_key;
  const auto shared = shared_secret(own, dialled ? welcome.public_key : hello.public_key);
  if (!shared) return std::nullopt;
  Transcript transcript("gossamer bulk 1", *shared);
  transcript.add_bytes(hello.public_key);
  transcript.add_bytes(welcome.public_key);
  transcript.add_bytes(hello.nonce);
  transcript.add_bytes(offer.nonce);
  transcript.add_number(hello.link);
  transcript.add_number(hello.features);
  transcript.add_number(welcome.features);
  const Secret master = transcript.secret();
  const Secret ticket = secret_for(master, "ticket");
  return BulkKeys{.to_listener = secret_for(master, "to the listener"),
                  .to_dialler = secret_for(master, "to the dialler"),
                  .ticket_name = hex(ticket.bytes().first<ticket_bytes>()),
                  .ticket_password = hex(ticket.bytes().last<ticket_bytes>())};
}

}  // namespace gossamer::peer
