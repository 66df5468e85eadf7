#include "peer/keys/certificate.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include "gossip/plain_text.hpp"
#include "peer/keys/fields.hpp"
#include "peer/keys/transcript.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::uint8_t form_of_warrants = 1;

/// True for characters of job names (sdk/layout), for the wildcards * and ?, and for the comma between patterns.
bool is_pattern(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("._-*?,").find(c) != std::string_view::npos;
}

/// The bytes of the warrant that are signed: all its fields but the signature.
std::vector<std::uint8_t> signed_part(const Warrant& warrant) {
  std::vector<std::uint8_t> record;
  append_number(record, form_of_warrants, 1);
  append(record, warrant.invitation);
  append(record, warrant.key);
  append_number(record, warrant.nodes, 4);
  append(record, warrant.node.bytes);
  append_number(record, static_cast<std::uint64_t>(warrant.rights.role), 1);
  append_number(record, static_cast<std::uint64_t>(warrant.usable_until), 8);
  append_number(record, static_cast<std::uint64_t>(warrant.valid_until), 8);
  append_number(record, warrant.rights.jobs.size(), 1);
  append(record, warrant.rights.jobs);
  return record;
}

/// False if the fields are no warrant.
bool read_warrant(Fields& fields, Warrant& warrant) {
  const bool known_form = fields.number(1) == form_of_warrants;
  fields.take(warrant.invitation);
  fields.take(warrant.key);
  warrant.nodes = static_cast<std::uint32_t>(fields.number(4));
  fields.take(warrant.node.bytes);
  const std::uint64_t role = fields.number(1);
  warrant.rights.role = static_cast<NodeRole>(role);
  warrant.usable_until = static_cast<TimeUs>(fields.number(8));
  warrant.valid_until = static_cast<TimeUs>(fields.number(8));
  warrant.rights.jobs = fields.text(fields.number(1));
  fields.take(warrant.signature);
  return fields.sound() && known_form && role < role_words.size() &&
         is_plain_text(warrant.rights.jobs, max_jobs_text_bytes);
}

std::vector<std::uint8_t> bytes_of(const Warrant& warrant) {
  std::vector<std::uint8_t> record = signed_part(warrant);
  append(record, warrant.signature);
  return record;
}

}  // namespace

InvitationId random_invitation_id() {
  GOSSAMER_CHECK(sodium_init() >= 0);
  InvitationId id{};
  randombytes_buf(id.data(), id.size());
  return id;
}

std::optional<NodeRole> role_named(std::string_view word) {
  const auto found = std::ranges::find(role_words, word);
  if (found == role_words.end()) return std::nullopt;
  return static_cast<NodeRole>(found - role_words.begin());
}

bool Rights::allow_job(std::string_view name) const {
  if (jobs == "*") return true;  // the usual case; this function runs for each message
  const std::string whole_name(name);
  std::string_view rest = jobs;
  while (!rest.empty()) {
    const std::string pattern(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), pattern.size() + 1));
    if (::fnmatch(pattern.c_str(), whole_name.c_str(), 0) == 0) return true;
  }
  return false;
}

std::string date_text(TimeUs time_of_day) {
  const std::time_t seconds = static_cast<std::time_t>(time_of_day / us_per_s);
  std::tm parts{};
  std::array<char, 64> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts) == 0) {
    return "an unknown time";
  }
  return text.data();
}

std::string jobs_problem(std::string_view patterns) {
  if (patterns.size() > max_jobs_text_bytes)
    return "names of jobs take more than " + std::to_string(max_jobs_text_bytes) + " bytes: use * and ?";
  const std::string between_commas = "," + std::string(patterns) + ",";
  if (std::ranges::all_of(patterns, is_pattern) && !between_commas.contains(",,")) return "";
  return "names of jobs are expected, with * and ?, and commas between them, without spaces: 'vision-*,speech'";
}

Statement Warrant::statement() const {
  Transcript transcript("gossamer warrant 1");
  const std::vector<std::uint8_t> record = signed_part(*this);
  transcript.add_field(record);
  return transcript.proof();
}

Statement Certificate::statement() const {
  Transcript transcript("gossamer certificate 1");
  transcript.add_field(warrant.statement());
  transcript.add_field(node.bytes);
  transcript.add_field(made_at);
  return transcript.proof();
}

std::vector<std::uint8_t> bytes_of(const Certificate& certificate) {
  std::vector<std::uint8_t> record = bytes_of(certificate.warrant);
  append(record, certificate.node.bytes);
  append_number(record, static_cast<std::uint64_t>(certificate.made_at), 8);
  append(record, certificate.signature);
  return record;
}

std::optional<Certificate> parse_certificate(std::span<const std::uint8_t> bytes) {
  Certificate certificate;
  Fields fields(bytes);
  if (bytes.size() > max_certificate_bytes || !read_warrant(fields, certificate.warrant)) return std::nullopt;
  fields.take(certificate.node.bytes);
  certificate.made_at = static_cast<TimeUs>(fields.number(8));
  fields.take(certificate.signature);
  return fields.ended() ? std::optional(certificate) : std::nullopt;
}

std::optional<Certificate> parse_certificate_digits(std::string_view digits) {
  std::vector<std::uint8_t> bytes(std::min(digits.size() / 2, max_certificate_bytes));
  return parse_hex(digits, bytes) ? parse_certificate(bytes) : std::nullopt;
}

std::optional<PublicKey> signer_of(const Certificate& certificate, const Deciders& deciders) {
  if (!is_signed(certificate.warrant.key, certificate.statement(), certificate.signature)) return std::nullopt;
  return deciders.signer_of(certificate.warrant.statement(), certificate.warrant.signature);
}

std::optional<std::string> misfit_of(const Certificate& certificate, const NodeId& node, TimeUs time_of_day) {
  const Warrant& warrant = certificate.warrant;
  if (certificate.node != node || (warrant.node != NodeId{} && warrant.node != node))
    return "the certificate is of another node";
  if (time_of_day >= warrant.valid_until) return "the certificate has expired";
  if (certificate.made_at > warrant.usable_until) return "the certificate was made when its invitation had expired";
  if (certificate.made_at > time_of_day + max_ahead_us)
    return "the certificate is dated more than a day ahead of the clock here";
  return std::nullopt;
}

std::optional<std::string> flaw_of(const Certificate& certificate, const NodeId& node, const Deciders& deciders,
                                   TimeUs time_of_day) {
  if (auto misfit = misfit_of(certificate, node, time_of_day)) return misfit;
  const auto signer = signer_of(certificate, deciders);
  if (signer && deciders.may_sign(*signer, Warrant::power)) return std::nullopt;
  return "nobody who decides in the cluster stands behind the certificate";
}

UsableWarrant UsableWarrant::make(Warrant warrant, const SigningKey& signer) {
  UsableWarrant usable{std::move(warrant), SigningKey::generate()};
  usable.warrant.key = usable.key.public_half();
  usable.warrant.signature = signer.sign(usable.warrant.statement());
  return usable;
}

Certificate UsableWarrant::certify(const NodeId& node, TimeUs made_at) const {
  Certificate certificate{warrant, node, made_at, {}};
  certificate.signature = key.sign(certificate.statement());
  return certificate;
}

std::string UsableWarrant::text() const {
  std::vector<std::uint8_t> record = bytes_of(warrant);
  record.reserve(record.size() + key_bytes);  // growing would leave a copy of the secret
  append(record, key.seed().bytes());
  return to_base64url(std::move(record));
}

std::optional<UsableWarrant> UsableWarrant::parse(std::string_view text) {
  auto record = from_base64url(text);
  if (!record) return std::nullopt;
  Fields fields(*record);
  Warrant warrant;
  Secret seed;
  const bool is_warrant = read_warrant(fields, warrant);
  fields.take(seed.writable());
  wipe(*record);
  if (!is_warrant || !fields.ended() || record->size() > max_certificate_bytes) return std::nullopt;
  UsableWarrant usable{std::move(warrant), SigningKey(seed)};
  return usable.key.public_half() == usable.warrant.key ? std::optional(std::move(usable)) : std::nullopt;
}

}  // namespace gossamer::peer
