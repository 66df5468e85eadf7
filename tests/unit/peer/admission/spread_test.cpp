// Tests what neighbours are told: everything at first, then news, in bounded parts, and again if it could not be sent.
// Also tests when a node begins to listen with a new key.

#include "peer/admission/spread.hpp"

#include <algorithm>

#include "catch.hpp"
#include "node_id.hpp"
#include "peer/limits.hpp"
#include "tests/unit/peer/rotate.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

using gossamer::test::node_id;
constexpr TimeUs begun_at = 1'800'000'000 * us_per_s;

KeyRing a_ring() {
  return KeyRing(ClusterKeys({ClusterKey::generate()}));
}

Hearsay hear_denial(Spread& to, const NodeId& from, const Denial& denial, TimeUs now) {
  DenialList list{{denial}};
  return to.heard(from, list, begun_at, now);
}

/// Sends everything that `from` has to tell `to`.
std::size_t tell(Spread& from, const NodeId& from_id, Spread& to, const NodeId& to_id, TimeUs now = 0) {
  std::size_t told = 0;
  while (const auto message = from.next_for(to_id, now)) {
    from.said(to_id);
    ++told;
    if (const auto* ring = std::get_if<RingState>(&*message)) (void)to.heard(from_id, *ring, begun_at, now);
    if (const auto* list = std::get_if<DenialList>(&*message)) {
      DenialList heard = *list;
      (void)to.heard(from_id, heard, begun_at, now);
    }
  }
  return told;
}

}  // namespace

TEST_CASE("a neighbour is told everything once, then what is new") {
  Spread a(a_ring(), {});
  CHECK_FALSE(a.next_for(node_id(2), 0));  // no link
  a.link_up(node_id(2), 0);
  const auto first = a.next_for(node_id(2), 0);
  REQUIRE(first);
  CHECK(std::holds_alternative<RingState>(*first));
  CHECK(a.next_for(node_id(2), 0));  // it has not been sent, so it comes again
  a.said(node_id(2));
  CHECK_FALSE(a.next_for(node_id(2), 0));
  for (std::uint64_t i = 0; i < 3 * max_denials_in_message - 1; ++i)
    CHECK(a.decide({node_id(100 + i), true, begun_at, ""}));
  for (int part = 0; part < 3; ++part) {
    const auto message = a.next_for(node_id(2), 0);
    REQUIRE(message);
    CHECK(std::get<DenialList>(*message).records.size() == max_denials_in_message - (part == 2 ? 1 : 0));
    a.said(node_id(2));
  }
  CHECK_FALSE(a.next_for(node_id(2), 0));
  CHECK(a.decide({node_id(100), false, begun_at + 1, ""}));
  CHECK(std::get<DenialList>(*a.next_for(node_id(2), 0)).records.size() == 1);
  a.said(node_id(2));
  // Everything is told again on a new link, and after a long time.
  CHECK_FALSE(a.next_for(node_id(2), retell_us - 1));
  CHECK(a.next_for(node_id(2), retell_us));
  a.link_down(node_id(2));
  CHECK_FALSE(a.next_for(node_id(2), 0));
}

TEST_CASE("news goes through a chain of nodes, and comes to rest") {
  std::vector<Spread> nodes;
  const KeyRing ring = a_ring();
  for (int i = 0; i < 5; ++i)
    nodes.emplace_back(ring, Denials{});
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
    nodes[i].link_up(node_id(i + 1), 0);
    nodes[i + 1].link_up(node_id(i), 0);
  }
  CHECK(nodes[0].decide({node_id(77), true, begun_at, "why"}));
  KeyRing rotated = nodes[4].ring();
  REQUIRE(rotate(rotated, begun_at));
  nodes[4].set_ring(rotated, 0);
  std::size_t told = 0;
  std::size_t last_round = 1;
  for (int round = 0; round < 20 && last_round != 0; ++round) {
    last_round = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (i > 0) last_round += tell(nodes[i], node_id(i), nodes[i - 1], node_id(i - 1));
      if (i + 1 < nodes.size()) last_round += tell(nodes[i], node_id(i), nodes[i + 1], node_id(i + 1));
    }
    told += last_round;
  }
  CHECK(last_round == 0);
  CHECK(told <= 40);
  for (const Spread& each : nodes) {
    CHECK(each.denials().is_denied(node_id(77)));
    CHECK(each.ring().keys().size() == 2);
  }
}

TEST_CASE("what is refused is named, with the one cause") {
  const KeyRing ring = a_ring();
  Spread node(ring, {});
  node.link_up(node_id(1), 0);
  const TimeUs far = begun_at + 25 * 3600 * us_per_s;
  CHECK(hear_denial(node, node_id(1), {node_id(77), true, far, "lost"}, 0) == Hearsay::refused);
  CHECK_THAT(node.refusal(), Catch::StartsWith("denials: node " + node_id(77).full() +
                                               " is denied: lost, "
                                               "dated " +
                                               date_text(far)));
  CHECK_THAT(node.refusal(), Catch::Contains("more than a day ahead") && Catch::Contains("correct the clock"));
  KeyRing rotated = ring;
  const auto made = rotate(rotated, far);
  CHECK(node.heard(node_id(1), rotated.state(), begun_at, 0) == Hearsay::refused);
  CHECK_THAT(node.refusal(),
             Catch::StartsWith("keys and rules: cluster key " + hex(*made) + ", dated " + date_text(far)));
  CHECK(node.heard(node_id(1), ring.state(), begun_at, 0) == Hearsay::known);
  CHECK(node.refusal().empty());
  // Where there is an authority, what is not signed is told from what is dated ahead.
  KeyRing with_authority = ring;
  with_authority.set_authority(SigningKey::generate().public_half());
  node.set_ring(with_authority, 0);
  CHECK(hear_denial(node, node_id(1), {node_id(77), true, begun_at, "lost"}, 0) == Hearsay::refused);
  CHECK_THAT(node.refusal(), Catch::Contains("not signed by whoever decides") && !Catch::Contains("clock"));
}

TEST_CASE("what was decided while the clock was ahead is forgotten when it is right, if nobody else has it") {
  const TimeUs far = begun_at + 25 * 3600 * us_per_s;
  const KeyRing ring(ClusterKeys({ClusterKey::generate(), ClusterKey::generate()}));
  const Fingerprint ended = ring.keys()[0].key.fingerprint();
  const Fingerprint old = ring.keys()[1].key.fingerprint();
  KeyRing rotated = ring;
  const auto made = rotate(rotated, far);
  rotated.promote(*made);
  REQUIRE(rotated.retire({ended, far}));
  // Its own clock was ahead: it denied a node, ended a key, and listens with one that nobody else has taken.
  Spread a(rotated, {});
  CHECK(a.decide({node_id(77), true, far, "lost"}));
  CHECK(a.decide({node_id(78), true, begun_at, "in time"}));
  CHECK(a.forget_ahead(far, 0).empty());  // the clock is still ahead
  CHECK(a.forget_ahead(begun_at, 0).empty());
  CHECK(a.forget_ahead(begun_at, 2 * forget_ahead_after_us).empty());  // nobody is linked
  Spread b(ring, {});
  a.link_up(node_id(2), 0);
  b.link_up(node_id(1), 0);
  const auto talk = [&](TimeUs now) {
    return tell(a, node_id(1), b, node_id(2), now) + tell(b, node_id(2), a, node_id(1), now);
  };
  CHECK(talk(0) > 0);
  CHECK(a.forget_ahead(begun_at, forget_ahead_after_us - 1).empty());
  CHECK(a.forget_ahead(begun_at, forget_ahead_after_us).size() == 3);
  CHECK_FALSE(a.denials().is_denied(node_id(77)));
  CHECK(a.denials().is_denied(node_id(78)));
  CHECK(a.ring().first().key.fingerprint() == old);
  CHECK(a.ring().keys().size() == 1);
  // It is told again of the key that it had ended, and nothing strikes when the date comes near.
  while (talk(2 * forget_ahead_after_us) > 0) {
  }
  CHECK(a.forget_ahead(begun_at, 2 * forget_ahead_after_us).empty());
  CHECK(a.ring().holds(ended));
  CHECK(b.ring().holds(ended));
  CHECK_FALSE(b.ring().holds(*made));
  CHECK_FALSE(b.denials().is_denied(node_id(77)));
}

TEST_CASE("what others hold is not forgotten where the clock is behind") {
  const TimeUs far = begun_at + 25 * 3600 * us_per_s;
  KeyRing ring = a_ring();
  const auto made = rotate(ring, far);
  const bool is_shared = GENERATE(true, false);
  Spread behind(ring, {});
  CHECK(behind.decide({node_id(77), true, far, "lost"}));
  behind.link_up(node_id(2), 0);
  CHECK(behind.forget_ahead(begun_at, 0).empty());
  DenialList list{{{node_id(77), true, far, "lost"}}};
  if (!is_shared) list.records.front().reason = "another decision";
  (void)behind.heard(node_id(2), list, begun_at, us_per_s);
  (void)behind.heard(node_id(2), is_shared ? ring.state() : a_ring().state(), begun_at, us_per_s);
  CHECK(behind.forget_ahead(begun_at, 2 * forget_ahead_after_us).size() == (is_shared ? 0 : 2));
  CHECK(behind.denials().is_denied(node_id(77)) == is_shared);
  CHECK(behind.ring().holds(*made) == is_shared);
}

TEST_CASE("a new key is listened with when all neighbours hold it, or after a while") {
  const KeyRing ring = a_ring();
  Spread a(ring, {});
  Spread b(ring, {});
  a.link_up(node_id(2), 0);
  a.link_up(node_id(3), 0);  // an older version, which says nothing
  b.link_up(node_id(1), 0);
  KeyRing rotated = ring;
  const auto made = rotate(rotated, begun_at);
  a.set_ring(rotated, 1000);
  CHECK_FALSE(a.promotion(1000));
  tell(a, node_id(1), b, node_id(2));
  CHECK(b.ring().keys().size() == 2);
  CHECK(a.holders(*made) == 0);
  tell(b, node_id(2), a, node_id(1));
  CHECK(a.holders(*made) == 1);
  CHECK_FALSE(a.promotion(1000 + promote_after_us - 1));
  CHECK(a.promotion(1000 + promote_after_us) == *made);
  a.link_down(node_id(3));
  CHECK(a.promotion(1000) == *made);
  CHECK(b.promotion(0) == *made);
}

TEST_CASE("a new key waits for a newcomer that knows the present one only, but not for long") {
  KeyRing ring = a_ring();
  Spread a(ring, {});
  const auto made = rotate(ring, begun_at);
  a.given(node_id(2), 500);
  a.given(node_id(3), 500);
  a.set_ring(ring, 1000);
  CHECK_FALSE(a.promotion(1000));
  CHECK_FALSE(a.promotion(500 + newcomer_patience_us - 1));
  CHECK(a.promotion(500 + newcomer_patience_us) == *made);
  // Linked nodes tell what they hold, and are no newcomers.
  a.link_up(node_id(2), 1000);
  a.link_up(node_id(3), 1000);
  a.given(node_id(3), 1000);
  a.link_down(node_id(2));
  a.link_down(node_id(3));
  CHECK(a.promotion(1000) == *made);
  // Who comes again and again holds it up no longer than neighbours that say nothing.
  for (TimeUs now = 1000; now < promote_after_us; now += us_per_s) {
    for (std::size_t n = 0; n < 2 * max_newcomers; ++n)
      a.given(node_id(n), now);
    CHECK_FALSE(a.promotion(now));
  }
  CHECK(a.promotion(1000 + promote_after_us) == *made);
}

TEST_CASE("the first key is listened with most of the time, and each other one some of it") {
  KeyRing ring = a_ring();
  CHECK(Spread(ring, {}).key_slot(12345678) == 0);
  REQUIRE(rotate(ring, begun_at));
  REQUIRE(rotate(ring, begun_at));
  const Spread spread(ring, {});
  std::array<TimeUs, 3> shares{};
  for (TimeUs t = 0; t < 120 * us_per_s; t += us_per_s / 10)
    shares[spread.key_slot(t)] += us_per_s / 10;
  CHECK(spread.key_slot(0) == 0);
  CHECK(shares[0] == 80 * us_per_s);
  CHECK(shares[1] == 20 * us_per_s);
  CHECK(shares[2] == 20 * us_per_s);
}

TEST_CASE("a member that changes its mind all the time is not listened to for ever") {
  Spread a(a_ring(), {});
  a.link_up(node_id(2), 0);
  std::uint32_t rings = 0;
  std::uint32_t denials = 0;
  for (std::uint32_t i = 0; i < 2 * denial_change_burst; ++i) {
    Fingerprint fingerprint{};
    fingerprint[0] = static_cast<std::uint8_t>(i);
    fingerprint[1] = static_cast<std::uint8_t>(i >> 8);
    const RingState state{{a.ring().keys().begin(), a.ring().keys().end()}, {{fingerprint, begun_at + i}}};
    rings += a.heard(node_id(2), state, begun_at, 0) == Hearsay::news;
    denials += hear_denial(a, node_id(2), {node_id(9), i % 2 == 0, begun_at + i, ""}, 0) == Hearsay::news;
  }
  CHECK(rings == ring_change_burst);
  CHECK(denials == denial_change_burst);
  CHECK_THAT(a.refusal(), Catch::Contains("more changes in a short time"));
  // A refused decision is told again, and accepted later.
  CHECK(hear_denial(a, node_id(2), {node_id(9), true, begun_at + 90'000, ""}, us_per_s) == Hearsay::news);
  // Decisions from a node without a link are ignored.
  CHECK(hear_denial(a, node_id(3), {node_id(9), false, begun_at + 99'000, ""}, us_per_s) == Hearsay::known);
  CHECK(a.denials().is_denied(node_id(9)));
}

TEST_CASE("a member that floods with what is not signed, or badly, keeps nobody from hearing the authority") {
  const SigningKey authority = SigningKey::generate();
  KeyRing ring = a_ring();
  ring.set_authority(authority.public_half());
  Spread node(ring, {});
  const NodeId hostile = node_id(1);
  const NodeId honest = node_id(2);
  node.link_up(hostile, 0);
  node.link_up(honest, 0);
  for (std::uint64_t i = 0; i < 2 * denial_change_burst; ++i) {
    Denial denial{node_id(1000 + i), true, begun_at, ""};
    if (i % 2 == 0) denial.signature = SigningKey::generate().sign(denial.statement());
    CHECK(hear_denial(node, hostile, denial, 0) == Hearsay::refused);
    if (i % 64 == 0) CHECK(node.heard(hostile, a_ring().state(), begun_at, 0) == Hearsay::refused);
  }
  CHECK(node.denials().entries().empty());
  Denial sound{hostile, true, begun_at, "it means harm"};
  sound.signature = authority.sign(sound.statement());
  // For a while it accepts nothing from this neighbour.
  CHECK(hear_denial(node, hostile, sound, 0) == Hearsay::refused);
  CHECK_THAT(node.refusal(), Catch::Contains("after too many forged ones"));
  CHECK(hear_denial(node, honest, sound, 0) == Hearsay::news);
  RingState state = a_ring().state();
  state.keys[0].signature = authority.sign(state.keys[0].statement());
  CHECK(node.heard(honest, state, begun_at, 0) == Hearsay::news);
  CHECK(node.ring().keys().size() == 2);
}

namespace {

/// A spread that follows the authority.
Spread following(const SigningKey& authority) {
  KeyRing ring = a_ring();
  ring.set_authority(authority.public_half());
  return {ring, {}};
}
Certificate certificate_of(std::uint64_t node, const SigningKey& authority, std::uint32_t nodes = 1) {
  Warrant warrant;
  warrant.invitation.fill(static_cast<std::uint8_t>(node));
  warrant.nodes = nodes;
  warrant.usable_until = begun_at;
  warrant.valid_until = begun_at + us_per_s;
  return UsableWarrant::make(warrant, authority).certify(node_id(node), begun_at);
}

}  // namespace

TEST_CASE("certificates go from neighbour to neighbour, and only those behind which the authority stands") {
  const SigningKey authority = SigningKey::generate();
  Spread a = following(authority);
  Spread b = following(authority);
  a.link_up(node_id(2), 0);
  b.link_up(node_id(1), 0);
  (void)tell(a, node_id(1), b, node_id(2));
  const std::uint64_t many = 3 * max_certificates_in_message;
  for (std::uint64_t node = 10; node < 10 + many; ++node)
    CHECK(a.take(certificate_of(node, authority), begun_at, 0) == Hearsay::news);
  CHECK(a.take(certificate_of(5, authority), begun_at + us_per_s, 0).error().find("expired") != std::string::npos);
  CHECK_FALSE(a.take(certificate_of(9, SigningKey::generate()), begun_at, 0));
  for (std::uint64_t part = 0; part < many / max_certificates_in_message; ++part) {
    const auto message = a.next_for(node_id(2), 0);
    REQUIRE(message);
    CertificateList list = std::get<CertificateList>(*message);
    CHECK(list.records.size() == max_certificates_in_message);
    a.said(node_id(2));
    CHECK(b.heard(node_id(1), list, begun_at, 0) == Hearsay::news);
    CHECK(b.heard(node_id(1), list, begun_at, 0) == Hearsay::known);
  }
  CHECK_FALSE(a.next_for(node_id(2), 0));
  CHECK(b.certificates().entries().size() == many);
  // A neighbour that tells several certificates which the authority has not signed is ignored for a while.
  for (std::uint32_t i = 0; i < forgery_burst + 1; ++i) {
    CertificateList forged{{certificate_of(9, SigningKey::generate()), certificate_of(8, authority)}};
    CHECK(b.heard(node_id(1), forged, begun_at, 0) == Hearsay::refused);
    CHECK(forged.records.empty());
  }
  CertificateList sound{{certificate_of(8, authority)}};
  CHECK(b.heard(node_id(1), sound, begun_at, 1) == Hearsay::known);
  sound = {{certificate_of(8, authority)}};
  CHECK(b.heard(node_id(1), sound, begun_at, forgery_ban_us + 1) == Hearsay::news);
  // Expired ones are no forgeries, and are not taken.
  CertificateList late{{certificate_of(7, authority)}};
  CHECK(b.heard(node_id(1), late, begun_at + us_per_s, forgery_ban_us + 1) == Hearsay::known);
}

TEST_CASE("deputies are told before what they have signed, also to whoever knows no authority yet") {
  const SigningKey authority = SigningKey::generate();
  const SigningKey anna = SigningKey::generate();
  const KeyRing unled = a_ring();
  KeyRing led = unled;
  led.set_authority(authority.public_half());
  Spread a(led, {});
  Deputy deputy{.key = anna.public_half(), .powers = all_powers, .decided_at = begun_at, .name = "anna"};
  deputy.signature = authority.sign(deputy.statement());
  KeyRing ring = a.ring();
  REQUIRE(ring.set_deputy(deputy));
  a.set_ring(ring, 0);
  Denial denial{node_id(9), true, begun_at, ""};
  denial.signature = anna.sign(denial.statement());
  CHECK(a.decide(denial));
  CHECK(a.take(certificate_of(8, anna), begun_at, 0) == Hearsay::news);
  for (const KeyRing& ring_of_b : {led, unled}) {
    Spread b(ring_of_b, {});
    a.link_up(node_id(2), 0);
    b.link_up(node_id(1), 0);
    while (const auto message = a.next_for(node_id(2), 0)) {
      std::visit(
          [&]<class Told>(Told told) {
            if constexpr (requires { b.heard(node_id(1), told, begun_at, 0); })
              CHECK(b.heard(node_id(1), told, begun_at, 0) != Hearsay::refused);
          },
          *message);
      a.said(node_id(2));
    }
    CHECK(b.ring().deciders() == a.ring().deciders());
    CHECK(b.denials().entries().at(node_id(9)).denial.signature);
    CHECK(b.certificates().of(node_id(8)) != nullptr);
    // When the deputy is dismissed, its decisions are forgotten. A neighbour that still tells them is no forger.
    Deputy dismissed{.key = deputy.key, .powers = 0, .decided_at = begun_at + 1, .name = "anna"};
    dismissed.signature = authority.sign(dismissed.statement());
    CHECK(b.heard(node_id(1), DeputyList{authority.public_half(), {dismissed}}, begun_at, 0) == Hearsay::news);
    CHECK_FALSE(b.denials().is_denied(node_id(9)));
    CHECK(b.certificates().of(node_id(8)) == nullptr);
    Denial sound{node_id(7), true, begun_at, ""};
    sound.signature = authority.sign(sound.statement());
    for (std::uint32_t i = 0; i < 2 * forgery_burst; ++i) {
      DenialList told{{denial}};
      CHECK(b.heard(node_id(1), told, begun_at, 0) == Hearsay::refused);
      CertificateList certificates{{certificate_of(8, anna)}};
      CHECK(b.heard(node_id(1), certificates, begun_at, 0) == Hearsay::known);
    }
    DenialList both{{denial, sound}};
    CHECK(b.heard(node_id(1), both, begun_at, 0) == Hearsay::news);
    CHECK(b.denials().is_denied(node_id(7)));
    // Everything is told again, since the neighbour may have refused what it would accept now.
    b.said(node_id(1));
    const auto first = b.next_for(node_id(1), 0);
    REQUIRE(first);
    CHECK(std::holds_alternative<DeputyList>(*first));
  }
}

TEST_CASE("without an authority no certificate is taken or told") {
  const SigningKey authority = SigningKey::generate();
  Spread a(a_ring(), {});
  a.link_up(node_id(2), 0);
  CertificateList list{{certificate_of(8, authority)}};
  CHECK(a.heard(node_id(2), list, begun_at, 0) == Hearsay::known);
  CHECK(a.take(certificate_of(8, authority), begun_at, 0) == Hearsay::known);
  CHECK(a.certificates().entries().empty());
  // Certificates outlive a time without authority, but not a change to another authority.
  Spread b = following(authority);
  CHECK(b.take(certificate_of(8, authority), begun_at, 0) == Hearsay::news);
  KeyRing ring = b.ring();
  ring.set_authority({});
  b.set_ring(ring, 0);
  CHECK(b.certificates().entries().size() == 1);
  ring.set_authority(SigningKey::generate().public_half());
  b.set_ring(ring, 0);
  CHECK(b.certificates().entries().empty());
}
