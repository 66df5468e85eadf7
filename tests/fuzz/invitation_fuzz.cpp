// Invitations that somebody pastes. An input is read as a line, and as the bytes inside a line with a correct check,
// which the fuzzer would not find by chance. Accepted input is written down and read again as the same.

#include <sodium.h>

#include "peer/admission/invitation.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::peer;

std::string line_of(std::span<const std::uint8_t> content) {
  std::array<std::uint8_t, 32> hash{};
  crypto_generichash(hash.data(), hash.size(), content.data(), content.size(), nullptr, 0);
  std::vector<std::uint8_t> bytes(content.begin(), content.end());
  bytes.insert(bytes.end(), hash.begin(), hash.begin() + 4);
  constexpr int form = sodium_base64_VARIANT_URLSAFE_NO_PADDING;
  std::string text(sodium_base64_encoded_len(bytes.size(), form), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), form);
  text.pop_back();  // the final zero
  return std::string(invitation_prefix) + text;
}

void read(std::string_view line) {
  const auto invitation = parse_invitation(line);
  if (!invitation) return;
  const std::string again = invitation_line(*invitation);
  const auto second = parse_invitation(again);
  GOSSAMER_CHECK(second && invitation_line(*second) == again);
  (void)date_text(invitation->expires_at);
}

/// Reads the bytes of a certificate. Nobody checks its signatures here. A certificate has only one form in bytes.
void read_certificate(std::span<const std::uint8_t> bytes) {
  const auto certificate = parse_certificate(bytes);
  if (!certificate) return;
  GOSSAMER_CHECK(std::ranges::equal(bytes_of(*certificate), bytes));
  (void)certificate->warrant.rights.allow_job("job");
  (void)flaw_of(*certificate, certificate->node, certificate->warrant.key, now);
}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gossamer::fuzz::read(gossamer::fuzz::text_of(data, size));
  gossamer::fuzz::read(gossamer::fuzz::line_of({data, size}));
  gossamer::fuzz::read_certificate({data, size});
  return 0;
}
