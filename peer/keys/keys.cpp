#include "peer/keys/keys.hpp"

#include <sodium.h>

#include <algorithm>

#include "gossip/check.hpp"
#include "peer/keys/key_file.hpp"

namespace gossamer::peer {
namespace {

constexpr std::string_view file_title = "gossamer node key 1\n";

std::string secret_file_text(const Secret& secret) {
  std::array<char, 2 * key_bytes + 1> digits{};
  sodium_bin2hex(digits.data(), digits.size(), secret.bytes().data(), key_bytes);
  std::string text;
  text.reserve(file_title.size() + digits.size());
  text.append(file_title).append(digits.data()).append("\n");
  sodium_memzero(digits.data(), digits.size());
  return text;
}

std::expected<Identity, std::string> identity_from(std::string_view text, const std::string& name) {
  const auto wrong = [&] {
    return std::unexpected(name +
                           " does not hold a node key: restore it from a backup, or remove it to start as a new node");
  };
  if (!text.starts_with(file_title)) return wrong();
  text.remove_prefix(file_title.size());
  if (text.size() != 2 * key_bytes + 1 || text.back() != '\n') return wrong();
  text.remove_suffix(1);
  Secret secret;
  if (!parse_hex(text, secret.writable()) || sodium_is_zero(secret.bytes().data(), key_bytes) == 1) return wrong();
  Identity identity{KeyPair::from_secret(secret), {}};
  identity.node = node_id(identity.keys.public_key);
  return identity;
}

}  // namespace

Secret::Secret(std::span<const std::uint8_t, key_bytes> bytes) {
  std::ranges::copy(bytes, bytes_.begin());
}
Secret::~Secret() {
  sodium_memzero(bytes_.data(), bytes_.size());
}
bool Secret::same_as(const Secret& other) const {
  return sodium_memcmp(bytes_.data(), other.bytes_.data(), bytes_.size()) == 0;
}

KeyPair KeyPair::generate() {
  GOSSAMER_CHECK(sodium_init() >= 0);
  KeyPair pair;
  GOSSAMER_CHECK(crypto_box_keypair(pair.public_key.data(), pair.secret_key.writable().data()) == 0);
  return pair;
}

KeyPair KeyPair::from_secret(const Secret& secret) {
  GOSSAMER_CHECK(sodium_init() >= 0);
  KeyPair pair{{}, secret};
  GOSSAMER_CHECK(crypto_scalarmult_base(pair.public_key.data(), secret.bytes().data()) == 0);
  return pair;
}

NodeId node_id(const PublicKey& public_key) {
  std::array<std::uint8_t, 32> hash{};
  GOSSAMER_CHECK(crypto_generichash(hash.data(), hash.size(), public_key.data(), public_key.size(), nullptr, 0) == 0);
  NodeId id;
  std::copy_n(hash.begin(), id.bytes.size(), id.bytes.begin());
  return id;
}

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}
bool parse_hex(std::string_view text, std::span<std::uint8_t> bytes) {
  if (bytes.empty()) return text.empty();  // an empty span has no place that libsodium could write to
  std::size_t filled = 0;
  return text.size() == 2 * bytes.size() &&
         sodium_hex2bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &filled, nullptr) == 0 &&
         filled == bytes.size();
}

Identity Identity::generate() {
  Identity identity{KeyPair::generate(), {}};
  identity.node = node_id(identity.keys.public_key);
  return identity;
}

std::expected<Identity, std::string> load_or_create_identity(const std::filesystem::path& state_dir) {
  const std::filesystem::path path = state_dir / node_key_file_name;
  {
    const auto held = read_secret_file(path);
    if (!held) return std::unexpected(held.error());
    if (*held) return identity_from((*held)->view(), path.string());
  }
  std::string text = secret_file_text(KeyPair::generate().secret_key);
  const auto created = create_secret_file(path, text);
  sodium_memzero(text.data(), text.size());
  if (!created) return std::unexpected(created.error());
  // Read back whichever file is there now: ours, or that of a program that was faster.
  const auto held = read_secret_file(path);
  if (!held) return std::unexpected(held.error());
  if (!*held) return std::unexpected(path.string() + " disappeared as soon as it was written");
  return identity_from((*held)->view(), path.string());
}

}  // namespace gossamer::peer
