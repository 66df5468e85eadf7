#include "peer/keys/cluster_keys.hpp"

#include <sodium.h>

#include <algorithm>

#include "gossip/check.hpp"
#include "peer/keys/key_file.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::size_t hex_characters = 2 * key_bytes;
constexpr std::size_t base64_characters = sodium_base64_ENCODED_LEN(key_bytes, sodium_base64_VARIANT_ORIGINAL) - 1;
constexpr const char* file_comment =
    "# Gossamer cluster key. Every node of the cluster needs this file, and nobody else: whoever holds it can join.\n";

static_assert(crypto_kdf_KEYBYTES == key_bytes && crypto_kdf_CONTEXTBYTES == 8);

Secret derive(const Secret& key, std::uint64_t number, const char (&context)[9]) {
  Secret derived;
  GOSSAMER_CHECK(
      crypto_kdf_derive_from_key(derived.writable().data(), key_bytes, number, context, key.bytes().data()) == 0);
  return derived;
}

/// The line without its comment and the spaces around it.
std::string_view entry_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return line.substr(0, line.find_last_not_of(" \t\r") + 1);
}

bool decode(std::string_view text, Secret& secret) {
  if (text.size() == hex_characters) return parse_hex(text, secret.writable());
  std::size_t filled = 0;
  return text.size() == base64_characters &&
         sodium_base642bin(secret.writable().data(), key_bytes, text.data(), text.size(), nullptr, &filled, nullptr,
                           sodium_base64_VARIANT_ORIGINAL) == 0 &&
         filled == key_bytes;
}

void append_line(std::string& text, const ClusterKey& key) {
  std::array<char, base64_characters + 1> digits{};
  sodium_bin2base64(digits.data(), digits.size(), key.key.bytes().data(), key_bytes, sodium_base64_VARIANT_ORIGINAL);
  text.append(digits.data()).append("  # ").append(hex(key.fingerprint())).append("\n");
  sodium_memzero(digits.data(), digits.size());
}

std::string file_text(std::span<const ClusterKey> keys) {
  constexpr std::size_t line_bytes = 2 * base64_characters;  // more than a line takes: growing would leave copies
  std::string text;
  text.reserve(std::string_view(file_comment).size() + keys.size() * line_bytes);
  text.append(file_comment);
  for (const ClusterKey& key : keys)
    append_line(text, key);
  return text;
}

}  // namespace

ClusterKey ClusterKey::generate() {
  GOSSAMER_CHECK(sodium_init() >= 0);
  ClusterKey key;
  randombytes_buf(key.key.writable().data(), key_bytes);
  return key;
}

KeyPair ClusterKey::listening_keys() const {
  return KeyPair::from_secret(derive(key, 1, "gsmrCURV"));
}
Secret ClusterKey::hello_key() const {
  return derive(key, 2, "gsmrHELO");
}
Secret ClusterKey::invitation_key() const {
  return derive(key, 3, "gsmrINVT");
}
Fingerprint ClusterKey::fingerprint() const {
  Fingerprint fingerprint{};
  const Secret derived = derive(key, 4, "gsmrFPRT");
  std::copy_n(derived.bytes().begin(), fingerprint.size(), fingerprint.begin());
  return fingerprint;
}
KeyDigest ClusterKey::digest() const {
  KeyDigest digest{};
  const Secret derived = derive(key, 5, "gsmrDGST");
  std::ranges::copy(derived.bytes(), digest.begin());
  return digest;
}

std::optional<Fingerprint> parse_fingerprint(std::string_view text) {
  Fingerprint fingerprint{};
  return parse_hex(text, fingerprint) ? std::optional(fingerprint) : std::nullopt;
}

ClusterKeys::ClusterKeys(std::vector<ClusterKey> keys) : keys_(std::move(keys)) {
  GOSSAMER_CHECK(!keys_.empty() && keys_.size() <= max_cluster_keys);
}

std::expected<ClusterKeys, std::string> parse_cluster_keys(std::string_view text) {
  std::vector<ClusterKey> keys;
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = entry_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    const std::string where = "line " + std::to_string(line_number);
    ClusterKey key;
    if (!decode(line, key.key)) {
      return std::unexpected(where +
                             " is no cluster key: 44 characters of base64 or 64 hexadecimal digits are expected");
    }
    if (sodium_is_zero(key.key.bytes().data(), key_bytes) == 1)
      return std::unexpected(where + ": the key is all zeros");
    if (std::ranges::any_of(keys, [&](const ClusterKey& other) { return other.key.same_as(key.key); })) {
      return std::unexpected(where + " repeats a key");
    }
    if (keys.size() == max_cluster_keys) {
      return std::unexpected(where + ": more than " + std::to_string(max_cluster_keys) + " keys");
    }
    keys.push_back(std::move(key));
  }
  if (keys.empty())
    return std::unexpected("it holds no key: copy the file from another member, or join anew by an invitation");
  return ClusterKeys(std::move(keys));
}

std::expected<ClusterKeys, std::string> read_cluster_keys(const std::filesystem::path& path) {
  const auto held = read_secret_file(path);
  if (!held) return std::unexpected(held.error());
  if (!*held) return std::unexpected("there is no cluster key file " + path.string());
  auto keys = parse_cluster_keys((*held)->view());
  if (!keys) return std::unexpected("cluster key file " + path.string() + ": " + keys.error());
  return keys;
}

std::expected<void, std::string> write_cluster_keys(const std::filesystem::path& path, const ClusterKeys& keys) {
  std::string text = file_text(keys.all());
  auto written = replace_secret_file(path, text);
  sodium_memzero(text.data(), text.size());
  return written;
}

std::expected<ClusterKeys, std::string> load_or_create_cluster_keys(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const ClusterKey key = ClusterKey::generate();
    std::string text = file_text({&key, 1});
    const auto created = create_secret_file(path, text);
    sodium_memzero(text.data(), text.size());
    if (!created) return std::unexpected(created.error());
  }
  return read_cluster_keys(path);
}

}  // namespace gossamer::peer
