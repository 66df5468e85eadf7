#include "peer/links/seal.hpp"

#include <openssl/evp.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstring>

#include "gossip/check.hpp"
#include "gossip/codec/frame_buffer.hpp"
#include "peer/keys/transcript.hpp"

namespace gossamer::peer {
namespace {

constexpr std::size_t nonce_bytes = 12;

/// Whether the processor has the instructions for AES-GCM.
bool has_fast_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
  return (::getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL);
#else
  return false;
#endif
}

const EVP_CIPHER* cipher_of(SealForm form) {
  // Looked up once, since OpenSSL's search takes longer than a small message.
  static const EVP_CIPHER* const aes = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  static const EVP_CIPHER* const chacha = EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr);
  const EVP_CIPHER* cipher = form.aes ? aes : chacha;
  GOSSAMER_CHECK(cipher != nullptr);
  return cipher;
}

/// Takes one message through OpenSSL. These calls fail only by a fault of ours, or for lack of memory.
class CipherRun {
 public:
  enum class Direction { sealing = 1, opening = 0 };

  CipherRun(SealForm form, const Secret& key, std::uint64_t number, Direction direction)
      : context_(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free), encrypts_(form.encrypts) {
    std::array<std::uint8_t, nonce_bytes> nonce{};
    for (std::size_t i = 0; i < sizeof number; ++i)
      nonce[nonce_bytes - sizeof number + i] = static_cast<std::uint8_t>(number >> (8 * i));
    GOSSAMER_CHECK(context_ != nullptr);
    GOSSAMER_CHECK(EVP_CipherInit_ex2(context_.get(), cipher_of(form), key.bytes().data(), nonce.data(),
                                      static_cast<int>(direction), nullptr) == 1);
  }

  void associate(std::span<const std::byte> bytes) { update(bytes, nullptr); }
  /// Encrypts or decrypts to `out`, which may be where `bytes` are. Without encryption `out` is not written.
  void frame(std::span<const std::byte> bytes, std::byte* out) { update(bytes, encrypts_ ? out : nullptr); }
  void finish_sealing(std::uint8_t* tag) {
    GOSSAMER_CHECK(finish());
    GOSSAMER_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, seal_tag_bytes, tag) == 1);
  }
  [[nodiscard]] bool finish_opening(std::array<std::uint8_t, seal_tag_bytes> tag) {
    GOSSAMER_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, seal_tag_bytes, tag.data()) == 1);
    return finish();
  }

 private:
  void update(std::span<const std::byte> bytes, std::byte* out) {
    int written = 0;
    if (bytes.empty()) return;
    GOSSAMER_CHECK(EVP_CipherUpdate(context_.get(), reinterpret_cast<std::uint8_t*>(out), &written,
                                    reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                    static_cast<int>(bytes.size())) == 1);
  }
  bool finish() {
    std::uint8_t none = 0;
    int written = 0;
    return EVP_CipherFinal_ex(context_.get(), &none, &written) == 1;
  }

  std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context_;
  bool encrypts_;
};

/// Collects the associated data, which are authenticated but not encrypted: generation, number of frames, and their
/// sizes.
class Associated {
 public:
  Associated(std::uint8_t generation, std::size_t frames) {
    add(std::byte{generation});
    add(static_cast<std::byte>(frames));
  }
  void add_size(std::size_t size) {
    for (std::size_t i = 0; i < 8; ++i)
      add(static_cast<std::byte>(size >> (8 * i)));
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_.data(), used_}; }

 private:
  void add(std::byte byte) { bytes_.at(used_++) = byte; }

  std::array<std::byte, 2 + 8 * (1 + max_payload_frames)> bytes_{};
  std::size_t used_ = 0;
};

Bytes sealed_frame(CipherRun& run, const Bytes& frame, SealForm form) {
  if (!form.encrypts) {
    run.frame(frame.data, nullptr);
    return frame;
  }
  gossip::FrameBuffer buffer(frame.size());
  run.frame(frame.data, buffer.bytes().data());
  return std::move(buffer).share();
}

}  // namespace

std::uint64_t features_of(BulkProtection wish) {
  if (wish == BulkProtection::curve) return 0;
  return feature_sealed_bulk | (has_fast_aes() ? feature_fast_aes : 0) |
         (wish == BulkProtection::plain ? feature_plain_bulk : 0);
}

std::optional<SealForm> seal_form(std::uint64_t features) {
  if ((features & feature_sealed_bulk) == 0) return std::nullopt;
  return SealForm{.aes = (features & feature_fast_aes) != 0, .encrypts = (features & feature_plain_bulk) == 0};
}

SealedMessage SealSlip::seal(const Frames& message) const {
  SealedMessage sealed;
  sealed.trailer[0] = generation_;
  Associated associated(generation_, 1 + message.payload_count);
  associated.add_size(message.header.size());
  for (std::size_t i = 0; i < message.payload_count; ++i)
    associated.add_size(message.payload[i].size());
  CipherRun run(form_, *key_, number_, CipherRun::Direction::sealing);
  run.associate(associated.bytes());
  sealed.frames.header = sealed_frame(run, message.header, form_);
  for (std::size_t i = 0; i < message.payload_count; ++i)
    sealed.frames.payload[i] = sealed_frame(run, message.payload[i], form_);
  sealed.frames.payload_count = message.payload_count;
  run.finish_sealing(sealed.trailer.data() + 1);
  return sealed;
}

bool SealSlip::open(std::span<zmq::message_t> frames, const SealTrailer& trailer) const {
  if (frames.empty() || frames.size() > 1 + max_payload_frames) return false;
  Associated associated(generation_, frames.size());
  for (const zmq::message_t& frame : frames)
    associated.add_size(frame.size());
  CipherRun run(form_, *key_, number_, CipherRun::Direction::opening);
  run.associate(associated.bytes());
  for (zmq::message_t& frame : frames) {
    auto* data = static_cast<std::byte*>(frame.data());
    run.frame({data, frame.size()}, data);
  }
  std::array<std::uint8_t, seal_tag_bytes> tag{};
  std::copy_n(trailer.begin() + 1, tag.size(), tag.begin());
  return run.finish_opening(tag);
}

void SealDirection::renew() {
  Transcript transcript("gossamer bulk generation 1", *key_);
  key_ = std::make_shared<const Secret>(transcript.secret());
  ++generation_;
}

SealSlip OutgoingSeal::take(std::size_t bytes, TimeUs now) {
  if (since_ == 0) since_ = now;
  if (bytes_ >= renew_after_bytes || now - since_ >= renew_after_us) {
    renew();
    bytes_ = 0;
    since_ = now;
  }
  bytes_ += bytes;
  return next();
}

std::optional<SealSlip> IncomingSeal::take(const SealTrailer& trailer) {
  if (trailer[0] == static_cast<std::uint8_t>(generation() + 1)) renew();
  if (trailer[0] != generation()) return std::nullopt;
  return next();
}

}  // namespace gossamer::peer
