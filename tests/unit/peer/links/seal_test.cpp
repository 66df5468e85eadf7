// Tests the seal of bulk messages: what was sealed opens, and nothing else does.

#include "peer/links/seal.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr SealForm all_forms[] = {{true, true}, {false, true}, {true, false}, {false, false}};

Secret key_of(std::uint8_t first) {
  Secret key;
  for (std::size_t i = 0; i < key_bytes; ++i)
    key.writable()[i] = static_cast<std::uint8_t>(first + i);
  return key;
}

Bytes filled(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + seed * 17) >> 3);
  return Bytes::adopt(std::move(bytes));
}

Frames message_of(const std::vector<std::size_t>& sizes) {
  Frames frames;
  frames.header = filled(sizes.at(0), 1);
  frames.payload_count = sizes.size() - 1;
  for (std::size_t i = 1; i < sizes.size(); ++i)
    frames.payload.at(i - 1) = filled(sizes[i], static_cast<unsigned>(i + 1));
  return frames;
}

std::vector<zmq::message_t> on_the_wire(const Frames& frames) {
  std::vector<zmq::message_t> wire;
  wire.emplace_back(frames.header.data.data(), frames.header.size());
  for (std::size_t i = 0; i < frames.payload_count; ++i)
    wire.emplace_back(frames.payload[i].data.data(), frames.payload[i].size());
  return wire;
}

bool same(const std::vector<zmq::message_t>& wire, const Frames& frames) {
  const auto equal = [](const zmq::message_t& a, const Bytes& b) {
    return a.size() == b.size() && (b.empty() || std::memcmp(a.data(), b.data.data(), b.size()) == 0);
  };
  if (wire.size() != 1 + frames.payload_count || !equal(wire[0], frames.header)) return false;
  for (std::size_t i = 0; i < frames.payload_count; ++i) {
    if (!equal(wire[i + 1], frames.payload[i])) return false;
  }
  return true;
}

/// Opens a message as the next one. Returns none if it does not open.
std::optional<std::vector<zmq::message_t>> opened(IncomingSeal& in, std::vector<zmq::message_t> wire,
                                                  const SealTrailer& trailer) {
  const auto slip = in.take(trailer);
  if (!slip || !slip->open(wire, trailer)) return std::nullopt;
  return wire;
}
std::optional<std::vector<zmq::message_t>> opened(IncomingSeal& in, const SealedMessage& sealed) {
  return opened(in, on_the_wire(sealed.frames), sealed.trailer);
}

SealedMessage sealed(OutgoingSeal& out, const Frames& frames, TimeUs now = 1) {
  return out.take(frames.bytes(), now).seal(frames);
}

std::string hexadecimal(std::span<const std::byte> bytes) {
  return hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

TEST_CASE("what was sealed opens to the same, in every form and size") {
  for (const SealForm form : all_forms) {
    OutgoingSeal out(form, key_of(1));
    IncomingSeal in(form, key_of(1));
    for (const auto& sizes : std::vector<std::vector<std::size_t>>{
             {8}, {136, 0}, {136, 1, 15, 16}, {17, 4096, 1, 31}, {200, 1'000'003}, {1, 65'536, 0, 262'144}}) {
      const Frames message = message_of(sizes);
      const SealedMessage secret = sealed(out, message);
      CHECK(same(on_the_wire(secret.frames), message) == !form.encrypts);
      const auto plain = opened(in, secret);
      REQUIRE(plain);
      CHECK(same(*plain, message));
    }
  }
}

TEST_CASE("the seal is as docs/explanation/security.md says, to the byte") {
  // Made from the page by another implementation: Python's `cryptography`, with AESGCM and ChaCha20Poly1305.
  const Frames message = message_of({24, 40});
  OutgoingSeal aes({true, true}, key_of(1));
  (void)sealed(aes, message);
  const SealedMessage second = sealed(aes, message);
  CHECK(hexadecimal(second.frames.header.data) + hexadecimal(second.frames.payload[0].data) ==
        "0fe390fac893579e6c36b72054a1d49bc863b7d541c2976dbddc86064d658ffa"
        "de962359824098b9954f0266ee6ec1fcc4c6ef9519921f4d3f117ad9398eb864");
  CHECK(hex(second.trailer) == "007719fdb11df449e57a1338ae5ecd286e");
  OutgoingSeal chacha({false, true}, key_of(1));
  (void)sealed(chacha, message);
  CHECK(hex(sealed(chacha, message).trailer) == "00facaab3c950de4a1c03b44fc3c60e72d");
  OutgoingSeal plain({true, false}, key_of(1));
  (void)sealed(plain, message);
  CHECK(hex(sealed(plain, message).trailer) == "0043b85b0f27e6076749f133ccdafc91ae");
}

TEST_CASE("a change of any byte, or of where frames begin and end, does not open") {
  for (const SealForm form : all_forms) {
    const Frames message = message_of({40, 64, 33});
    const auto attempt = [&](const std::function<void(std::vector<zmq::message_t>&, SealTrailer&)>& change) {
      OutgoingSeal out(form, key_of(1));
      IncomingSeal in(form, key_of(1));
      SealedMessage secret = sealed(out, message);
      auto wire = on_the_wire(secret.frames);
      change(wire, secret.trailer);
      return opened(in, std::move(wire), secret.trailer).has_value();
    };
    CHECK(attempt([](auto&, auto&) {}));
    for (std::size_t frame = 0; frame < 3; ++frame) {
      for (std::size_t at = 0; at < on_the_wire(message)[frame].size(); ++at)
        CHECK_FALSE(attempt([&](auto& wire, auto&) { static_cast<std::uint8_t*>(wire[frame].data())[at] ^= 0x10; }));
    }
    for (std::size_t at = 0; at < sizeof(SealTrailer); ++at)
      CHECK_FALSE(attempt([&](auto&, auto& trailer) { trailer[at] ^= 1; }));
    CHECK_FALSE(attempt([](auto& wire, auto&) { wire.pop_back(); }));
    CHECK_FALSE(attempt([](auto& wire, auto&) { wire.emplace_back(); }));
    CHECK_FALSE(attempt([](auto& wire, auto&) { wire.clear(); }));
    CHECK_FALSE(attempt([](auto& wire, auto&) { std::swap(wire[1], wire[2]); }));
    CHECK_FALSE(attempt([](auto& wire, auto&) {  // the same bytes in the same order, cut elsewhere
      std::string all = wire[1].to_string() + wire[2].to_string();
      wire[1] = zmq::message_t(all.substr(0, 63));
      wire[2] = zmq::message_t(all.substr(63));
    }));
    CHECK_FALSE(attempt([](auto& wire, auto&) { wire[2] = zmq::message_t(wire[2].to_string().substr(0, 32)); }));
  }
}

TEST_CASE("what is left out, said twice, in another order or in the other direction does not open") {
  const SealForm form;
  const Frames message = message_of({40, 64});
  OutgoingSeal out(form, key_of(1));
  const SealedMessage first = sealed(out, message);
  const SealedMessage second = sealed(out, message);
  CHECK(first.trailer != second.trailer);
  CHECK(hexadecimal(first.frames.payload[0].data) != hexadecimal(second.frames.payload[0].data));
  {
    IncomingSeal in(form, key_of(1));
    CHECK_FALSE(opened(in, second));  // the first message is missing
  }
  {
    IncomingSeal in(form, key_of(1));
    CHECK(opened(in, first));
    CHECK_FALSE(opened(in, first));
  }
  {
    IncomingSeal in(form, key_of(2));  // the key of the other direction, or of another link
    CHECK_FALSE(opened(in, first));
  }
  for (const SealForm other : {SealForm{true, false}, SealForm{false, true}}) {
    IncomingSeal in(other, key_of(1));
    CHECK_FALSE(opened(in, first));
  }
}

TEST_CASE("keys are renewed by bytes and by time, and receivers follow one step at a time") {
  const SealForm form;
  const Frames message = message_of({40, 64});
  OutgoingSeal out(form, key_of(1));
  IncomingSeal in(form, key_of(1));
  const TimeUs start = 5 * us_per_s;
  CHECK(opened(in, sealed(out, message, start)));
  const SealedMessage kept = sealed(out, message, start + renew_after_us - 1);
  CHECK(kept.trailer[0] == 0);
  CHECK(opened(in, kept));
  const SealedMessage later = sealed(out, message, start + renew_after_us);
  CHECK(later.trailer[0] == 1);
  CHECK(opened(in, later));

  (void)out.take(renew_after_bytes, start + renew_after_us);  // counts this many bytes as sent
  SealTrailer unread{1};
  (void)in.take(unread);
  const SealedMessage after_many = sealed(out, message, start + renew_after_us);
  CHECK(after_many.trailer[0] == 2);
  CHECK(opened(in, after_many));

  SealTrailer forged{};
  for (const int generation : {0, 1, 4, 5, 255}) {
    forged[0] = static_cast<std::uint8_t>(generation);
    CHECK_FALSE(in.take(forged));
  }
  // The receiver follows a generation that its sender has not begun. After that, no message of the sender opens.
  forged[0] = 3;
  CHECK(in.take(forged));
  CHECK_FALSE(opened(in, sealed(out, message, start + renew_after_us)));

  // One byte tells the generation, but there may be more than 256.
  OutgoingSeal long_lived(form, key_of(9));
  IncomingSeal listener(form, key_of(9));
  for (int hour = 0; hour < 600; ++hour)
    REQUIRE(opened(listener, sealed(long_lived, message, start + hour * renew_after_us)));
}

TEST_CASE("features of both ends decide how bulk is sealed") {
  using enum BulkProtection;
  CHECK_FALSE(seal_form(features_of(curve) & features_of(sealed)));
  CHECK_FALSE(seal_form(0));
  CHECK(seal_form(features_of(sealed) & features_of(sealed))->encrypts);
  CHECK(seal_form(features_of(plain) & features_of(sealed))->encrypts);  // one end alone cannot switch encryption off
  CHECK_FALSE(seal_form(features_of(plain) & features_of(plain))->encrypts);
  CHECK(seal_form(feature_sealed_bulk | feature_fast_aes)->aes);
  CHECK_FALSE(seal_form(feature_sealed_bulk)->aes);
}
