#include "peer/keys/authority.hpp"

#include <sodium.h>

#include <algorithm>

#include "gossip/check.hpp"
#include "peer/keys/key_file.hpp"
#include "peer/keys/transcript.hpp"

namespace gossamer::peer {
namespace {

static_assert(crypto_sign_SEEDBYTES == key_bytes && crypto_sign_PUBLICKEYBYTES == key_bytes);
static_assert(crypto_sign_BYTES == std::tuple_size_v<Signature>);

constexpr std::string_view first_word = "gossamer-authority ";
constexpr std::string_view authority_comment =
    "# Decides for a Gossamer cluster: as its authority, or as a deputy that the authority has appointed.\n"
    "# Keep it where only operators can read it, off the machines that train if you can. gossamerd never reads it.\n";

/// libsodium's form of the secret key: the seed and the public key. Wiped on destruction.
class ExpandedKey {
 public:
  explicit ExpandedKey(const Secret& seed) {
    GOSSAMER_CHECK(crypto_sign_seed_keypair(public_.data(), secret_.data(), seed.bytes().data()) == 0);
  }
  ExpandedKey(const ExpandedKey&) = delete;
  ExpandedKey& operator=(const ExpandedKey&) = delete;
  ~ExpandedKey() { sodium_memzero(secret_.data(), secret_.size()); }

  [[nodiscard]] const PublicKey& public_half() const { return public_; }
  [[nodiscard]] const std::uint8_t* secret_half() const { return secret_.data(); }

 private:
  PublicKey public_{};
  std::array<std::uint8_t, crypto_sign_SECRETKEYBYTES> secret_{};
};

/// The text after the leading comment lines, without spaces and line ends behind it.
std::string_view last_line(std::string_view text) {
  while (text.starts_with('#'))
    text.remove_prefix(
        std::min(text.size(), text.find('\n') == std::string_view::npos ? text.size() : text.find('\n') + 1));
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

}  // namespace

Statement denial_statement(const NodeId& node, bool denied, TimeUs decided_at, std::string_view reason) {
  Transcript transcript("gossamer denial 1");
  transcript.add_field(node.bytes);
  transcript.add_field(std::int64_t{denied ? 1 : 0});
  transcript.add_field(decided_at);
  transcript.add_text(reason);
  return transcript.proof();
}

Statement key_statement(const KeyDigest& key, TimeUs made_at) {
  Transcript transcript("gossamer cluster key 1");
  transcript.add_field(key);
  transcript.add_field(made_at);
  return transcript.proof();
}

Statement retirement_statement(const Fingerprint& key, TimeUs retired_at) {
  Transcript transcript("gossamer retirement 1");
  transcript.add_field(key);
  transcript.add_field(retired_at);
  return transcript.proof();
}

Statement rule_statement(bool certificates, TimeUs decided_at) {
  Transcript transcript("gossamer admission rule 1");
  transcript.add_field(std::int64_t{certificates ? 1 : 0});
  transcript.add_field(decided_at);
  return transcript.proof();
}

Statement settings_statement(std::string_view job, const JobSettings& settings) {
  Transcript transcript("gossamer job settings 1");
  transcript.add_text(job);
  transcript.add_field(static_cast<std::int64_t>(settings.version));
  transcript.add_field(settings.author.bytes);
  for (const JobSetting& setting : settings.values) {
    transcript.add_text(setting.name);
    transcript.add_text(setting.value);
  }
  return transcript.proof();
}

bool is_signed(const PublicKey& signer, const Statement& statement, const std::optional<Signature>& signature) {
  return signature &&
         crypto_sign_verify_detached(signature->data(), statement.data(), statement.size(), signer.data()) == 0;
}

Statement Deputy::statement() const {
  Transcript transcript("gossamer deputy 1");
  transcript.add_field(key);
  transcript.add_field(std::int64_t{powers});
  transcript.add_field(decided_at);
  transcript.add_text(name);
  return transcript.proof();
}

std::string words_of_powers(std::uint8_t powers) {
  std::string words;
  for (const auto& [power, word] : names_of_powers) {
    if ((powers & static_cast<std::uint8_t>(power)) != 0) words.append(words.empty() ? "" : ", ").append(word);
  }
  return words.empty() ? "nothing" : words;
}

std::optional<PublicKey> Deciders::signer_of(const Statement& statement,
                                             const std::optional<Signature>& signature) const {
  if (is_signed(authority, statement, signature)) return authority;
  for (const Deputy& deputy : deputies) {
    if (is_signed(deputy.key, statement, signature)) return deputy.key;
  }
  return std::nullopt;
}

bool Deciders::may_sign(const PublicKey& signer, Power power) const {
  const auto may = [&](const Deputy& deputy) {
    return deputy.key == signer && (deputy.powers & static_cast<std::uint8_t>(power)) != 0;
  };
  return signer == authority || std::ranges::any_of(deputies, may);
}

std::string Deciders::name_of(const PublicKey& signer) const {
  const auto deputy = std::ranges::find(deputies, signer, &Deputy::key);
  return deputy == deputies.end() ? "authority" : deputy->name;
}

bool Deciders::have_signed(Power power, const Statement& statement, const std::optional<Signature>& signature) const {
  const auto signer = signer_of(statement, signature);
  return signer && may_sign(*signer, power);
}

SigningKey SigningKey::generate() {
  GOSSAMER_CHECK(sodium_init() >= 0);
  SigningKey key;
  randombytes_buf(key.seed_.writable().data(), key_bytes);
  return key;
}

std::expected<SigningKey, std::string> SigningKey::read(const std::filesystem::path& path) {
  const auto held = read_secret_file(path);
  if (!held) return std::unexpected(held.error());
  if (!*held) return std::unexpected("there is no authority's key file " + path.string());
  const std::string_view line = last_line((*held)->view());
  SigningKey key;
  if (!line.starts_with(first_word) || !parse_hex(line.substr(first_word.size()), key.seed_.writable())) {
    return std::unexpected(path.string() + " is no authority's key file as gossamerctl authority create makes it");
  }
  return key;
}

std::expected<void, std::string> SigningKey::create(const std::filesystem::path& path) const {
  const std::filesystem::path folder = path.parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    return std::unexpected("there is no folder " + folder.string() + ": make it, or name another file");
  std::string digits = hex(seed_.bytes());
  std::string text;
  text.reserve(authority_comment.size() + first_word.size() + digits.size() + 1);  // growing would leave copies
  text.append(authority_comment).append(first_word).append(digits).append("\n");
  const auto created = create_secret_file(path, text);
  sodium_memzero(digits.data(), digits.size());
  sodium_memzero(text.data(), text.size());
  if (!created) return std::unexpected(created.error());
  if (!*created) return std::unexpected(path.string() + " is there already: it is not replaced, name another file");
  return {};
}

PublicKey SigningKey::public_half() const {
  return ExpandedKey(seed_).public_half();
}

Signature SigningKey::sign(const Statement& statement) const {
  Signature signature{};
  const ExpandedKey key(seed_);
  GOSSAMER_CHECK(
      crypto_sign_detached(signature.data(), nullptr, statement.data(), statement.size(), key.secret_half()) == 0);
  return signature;
}

}  // namespace gossamer::peer
