// The key ring: merging converges, a retired key stays retired, a node never loses its last key, and no liar can make a
// decision final.

#include "peer/admission/key_ring.hpp"

#include <algorithm>
#include <limits>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "peer/limits.hpp"
#include "tests/unit/peer/rotate.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr TimeUs today = 1'800'000'000 * us_per_s;

ClusterKey key_of(std::uint8_t value) {
  ClusterKey key;
  std::ranges::fill(key.key.writable(), value);
  return key;
}
KeyRing ring_of(std::vector<ClusterKey> keys) {
  return KeyRing(ClusterKeys(std::move(keys)));
}
std::vector<std::string> fingerprints(const KeyRing& ring) {
  std::vector<std::string> texts;
  for (const RingKey& key : ring.keys())
    texts.push_back(hex(key.key.fingerprint()));
  std::ranges::sort(texts);
  return texts;
}

}  // namespace

TEST_CASE("a fingerprint names a key and is derived as written down") {
  // crypto_kdf (BLAKE2b) of 32 bytes of 7, number 4, context gsmrFPRT: computed with Python's hashlib.
  CHECK(hex(key_of(7).fingerprint()) == "6408ac2ec11fafaa");
  CHECK(key_of(7).fingerprint() != key_of(8).fingerprint());
  CHECK(parse_fingerprint(hex(key_of(7).fingerprint())) == key_of(7).fingerprint());
  for (const char* bad : {"", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeg", "0123456789abcd  "})
    CHECK_FALSE(parse_fingerprint(bad));
}

TEST_CASE("a new key is accepted at once, listened with when it is promoted") {
  KeyRing ring = ring_of({key_of(1)});
  CHECK_FALSE(ring.successor());
  const auto made = rotate(ring, today);
  REQUIRE(made);
  CHECK(ring.keys().size() == 2);
  CHECK(ring.first().key.fingerprint() == key_of(1).fingerprint());
  CHECK(ring.successor() == *made);
  ring.promote(*made);
  CHECK(ring.first().key.fingerprint() == *made);
  CHECK(ring.cluster_keys().first().fingerprint() == *made);
  CHECK_FALSE(ring.successor());
  // A clock that was set back does not make the new key older than the last one.
  const auto next = rotate(ring, today - 1000);
  CHECK(ring.successor() == *next);
}

TEST_CASE("keys of which nothing is known keep the order of their file") {
  CHECK_FALSE(ring_of({key_of(1), key_of(2), key_of(3)}).successor());
}

TEST_CASE("a ring is bounded") {
  KeyRing ring = ring_of({key_of(1)});
  while (ring.keys().size() < max_cluster_keys)
    REQUIRE(rotate(ring, today));
  const auto full = rotate(ring, today);
  REQUIRE_FALSE(full);
  CHECK(full.error().find("key retire") != std::string::npos);
  const auto merge = ring.merge({{{key_of(99), today}}, {}}, today);
  CHECK(merge.refused);
  CHECK_FALSE(merge.changed);
  // A retired key makes room for its successor in the same message.
  const auto both = ring.merge({{{key_of(99), today}}, {{key_of(1).fingerprint(), today}}}, today);
  CHECK(both.changed);
  CHECK(ring.holds(key_of(99).fingerprint()));
  CHECK_FALSE(ring.holds(key_of(1).fingerprint()));
}

TEST_CASE("retiring is refused where it would lock the node out") {
  KeyRing ring = ring_of({key_of(1)});
  CHECK(retire(ring, key_of(9).fingerprint(), today).error().find("no key") == 0);
  CHECK(retire(ring, key_of(1).fingerprint(), today).error().find("only key") != std::string::npos);
  const auto made = rotate(ring, today);
  CHECK(retire(ring, key_of(1).fingerprint(), today).error().find("listens") != std::string::npos);
  ring.promote(*made);
  REQUIRE(retire(ring, key_of(1).fingerprint(), today));
  CHECK(ring.keys().size() == 1);
  // A retired key does not come back by hearsay.
  CHECK_FALSE(ring.merge({{{key_of(1), today + 5}}, {}}, today).changed);
  CHECK(ring.keys().size() == 1);
}

TEST_CASE("a node that hears that its listening key is retired takes the successor") {
  KeyRing teller = ring_of({key_of(1)});
  const auto made = rotate(teller, today);
  teller.promote(*made);
  REQUIRE(retire(teller, key_of(1).fingerprint(), today));
  KeyRing hearer = ring_of({key_of(1)});
  CHECK(hearer.merge(teller.state(), today).changed);
  CHECK(fingerprints(hearer) == fingerprints(teller));
  CHECK(hearer.first().key.fingerprint() == *made);
  CHECK_FALSE(hearer.merge(teller.state(), today).changed);
}

TEST_CASE("the last key stays, whatever is said about it") {
  KeyRing ring = ring_of({key_of(1)});
  const RingState liar{{{key_of(1), 0}}, {{key_of(1).fingerprint(), today}}};
  CHECK_FALSE(ring.merge(liar, today).changed);
  CHECK(ring.keys().size() == 1);
  KeyRing two = ring_of({key_of(1), key_of(2)});
  (void)two.merge({{{key_of(1), 0}}, {{key_of(1).fingerprint(), today}, {key_of(2).fingerprint(), today}}}, today);
  CHECK(two.keys().size() == 1);
}

TEST_CASE("what is dated too far ahead is refused") {
  KeyRing ring = ring_of({key_of(1), key_of(2)});
  const TimeUs far = today + max_ahead_us + 1;
  CHECK(ring.merge({{{key_of(3), far}}, {}}, today).refused);
  CHECK(ring.merge({{{key_of(1), 0}}, {{key_of(2).fingerprint(), far}}}, today).refused);
  CHECK(ring.keys().size() == 2);
  // An old key is not made young again.
  (void)ring.merge({{{key_of(1), today - 9}}, {}}, today);
  CHECK_FALSE(ring.merge({{{key_of(1), today}}, {}}, today).changed);
}

TEST_CASE("keys that are dated at the end of time are held, and nothing later is made of them") {
  constexpr TimeUs last = std::numeric_limits<TimeUs>::max();
  const auto ring = KeyRing::adopt({{{key_of(1), last}, {key_of(2), 0}}, {{key_of(3).fingerprint(), last}}});
  REQUIRE(ring);
  CHECK(ring->propose(today)->made_at == last);
  CHECK(ring->propose_retirement(key_of(2).fingerprint(), today)->retired_at == last);
}

TEST_CASE("members that tell each other come to hold the same ring, whatever was done where") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::size_t made = 1;
    gossip::Random random(seed);
    std::vector<KeyRing> rings(4, ring_of({key_of(1)}));
    TimeUs now = today;
    for (int event = 0; event < 60; ++event) {
      now += static_cast<TimeUs>(random.below(1000));
      KeyRing& ring = rings[random.below(rings.size())];
      const auto key = ring.keys()[random.below(ring.keys().size())].key.fingerprint();
      switch (random.below(6)) {
        case 0:
          if (made < max_cluster_keys && rotate(ring, now)) ++made;
          break;
        case 1:
          (void)retire(ring, key, now);
          break;
        case 2:
          if (const auto next = ring.successor()) ring.promote(*next);
          break;
        default:
          (void)ring.merge(rings[random.below(rings.size())].state(), now);
      }
      CHECK(ring.keys().size() >= 1);
      CHECK(ring.keys().size() <= max_cluster_keys);
    }
    for (int round = 0; round < 3; ++round) {
      for (KeyRing& ring : rings) {
        for (const KeyRing& other : rings)
          (void)ring.merge(other.state(), now);
      }
    }
    for (KeyRing& ring : rings) {
      CAPTURE(seed);
      CHECK(fingerprints(ring) == fingerprints(rings[0]));
      if (const auto next = ring.successor()) ring.promote(*next);
      CHECK(ring.first().key.fingerprint() == rings[0].first().key.fingerprint());
    }
  }
}

TEST_CASE("retired keys are remembered up to a bound, the latest ones") {
  KeyRing ring = ring_of({key_of(1)});
  for (std::size_t i = 0; i < 3 * max_retired_keys; ++i) {
    Fingerprint fingerprint{};
    fingerprint[0] = static_cast<std::uint8_t>(i);
    (void)ring.merge({{{key_of(1), 0}}, {{fingerprint, today + static_cast<TimeUs>(i)}}}, today);
  }
  CHECK(ring.state().retired.size() == max_retired_keys);
  CHECK(ring.state().retired.front().retired_at == today + 2 * static_cast<TimeUs>(max_retired_keys));
}

TEST_CASE("a ring survives a restart, and what was retired does not come back with an old file") {
  KeyRing ring = ring_of({key_of(1)});
  const auto made = rotate(ring, today);
  ring.promote(*made);
  const auto before = KeyRing::restore(ring.cluster_keys(), ring.notes());
  REQUIRE(before);
  CHECK(before->notes() == ring.notes());
  const ClusterKeys old_file = ring.cluster_keys();
  REQUIRE(retire(ring, key_of(1).fingerprint(), today));
  const auto after = KeyRing::restore(old_file, ring.notes());
  REQUIRE(after);
  CHECK(fingerprints(*after) == fingerprints(ring));
  const auto none = KeyRing::restore(ClusterKeys({key_of(1)}), ring.notes());
  REQUIRE_FALSE(none);
  CHECK(none.error().find("invitation") != std::string::npos);
}

TEST_CASE("garbled notes are refused") {
  const ClusterKeys keys({key_of(1)});
  const std::string name = hex(key_of(2).fingerprint());
  REQUIRE(KeyRing::restore(keys, "made " + name + " 5\nretired " + name + " 6\n"));
  for (const std::string& bad : {std::string("x"), "made " + name, "made " + name + " ", "made " + name + " 5 6",
                                 "retired " + name.substr(1) + " 5", "forgot " + name + " 5", std::string("\n")}) {
    CAPTURE(bad);
    CHECK_FALSE(KeyRing::restore(keys, bad));
  }
}

TEST_CASE("a ring that is given is checked") {
  REQUIRE(KeyRing::adopt({{{key_of(1), 0}}, {}}));
  CHECK_FALSE(KeyRing::adopt({{}, {}}));
  CHECK_FALSE(KeyRing::adopt({{{key_of(1), 0}}, {{key_of(1).fingerprint(), 0}}}));
  CHECK(KeyRing::adopt({{{key_of(1), 0}, {key_of(1), 0}}, {}})->keys().size() == 1);
}

TEST_CASE("where the cluster has an authority, members add and retire only keys that it has signed") {
  const SigningKey authority = SigningKey::generate();
  const auto sign = [&](auto item, const SigningKey& key) {
    item.signature = key.sign(item.statement());
    return item;
  };
  const RingKey key{key_of(2), today};
  const RetiredKey retired{key_of(1).fingerprint(), today};
  KeyRing ring = ring_of({key_of(1)});
  const RingState announcing{{{key_of(1), 0}}, {}, authority.public_half()};
  CHECK_FALSE(ring.knows(announcing));
  CHECK(ring.merge(announcing, today).changed);  // the first that is heard of
  CHECK(ring.authority() == authority.public_half());
  CHECK(ring.knows(announcing));
  const RingState other{{{key_of(1), 0}}, {}, SigningKey::generate().public_half()};
  CHECK(ring.merge(other, today).refused);
  CHECK(ring.authority() == authority.public_half());
  const auto refused = [&](const RingState& state) {
    const KeyRing::Merge merge = ring.merge(state, today);
    return merge.refused && !merge.changed;
  };
  CHECK(refused({{key}, {}}));
  CHECK(refused({{sign(key, SigningKey::generate())}, {}}));
  CHECK(refused({{{key_of(1), 0}}, {retired}}));
  CHECK(fingerprints(ring) == fingerprints(ring_of({key_of(1)})));
  CHECK(ring.merge({{sign(key, authority)}, {}}, today).changed);
  CHECK(ring.merge({{{key_of(1), 0}}, {sign(retired, authority)}}, today).changed);
  CHECK(fingerprints(ring) == fingerprints(ring_of({key_of(2)})));
  const auto restored = KeyRing::restore(ring.cluster_keys(), ring.notes());
  REQUIRE(restored);
  CHECK(restored->notes() == ring.notes());
  CHECK(restored->authority() == authority.public_half());
}

TEST_CASE("an authority that the operator has dropped is not taken again from others") {
  const PublicKey first = SigningKey::generate().public_half();
  const PublicKey second = SigningKey::generate().public_half();
  KeyRing ring = ring_of({key_of(1)});
  const auto announced = [](const PublicKey& authority) { return RingState{{{key_of(1), 0}}, {}, authority}; };
  ring.set_authority(first);
  ring.set_authority(std::nullopt);
  ring.set_authority(std::nullopt);  // this drops no other authority
  const auto check_that_it_is_not_followed = [&](KeyRing& by) {
    CHECK_FALSE(by.merge(announced(first), today).changed);
    CHECK(by.knows(DeputyList{first, {}}));
    CHECK_FALSE(by.merge(DeputyList{first, {}}, today).changed);
    CHECK_FALSE(by.authority());
  };
  check_that_it_is_not_followed(ring);
  auto restored = KeyRing::restore(ring.cluster_keys(), ring.notes());
  REQUIRE(restored);
  check_that_it_is_not_followed(*restored);
  CHECK(restored->merge(announced(second), today).changed);
  CHECK(restored->authority() == second);
  restored->set_authority(std::nullopt);  // now it has dropped both
  check_that_it_is_not_followed(*restored);
  ring.set_authority(first);  // the operator names it
  CHECK(ring.authority() == first);
}

TEST_CASE("what holds when an authority is made is signed by it, and members that hold the same take its signatures") {
  const SigningKey authority = SigningKey::generate();
  KeyRing ring = ring_of({key_of(1), key_of(2)});
  KeyRing other = ring;
  REQUIRE(retire(ring, key_of(2).fingerprint(), today));
  CHECK(other.merge(ring.state(), today).changed);
  Signatures signatures;
  for (const RingKey& key : ring.keys())
    signatures[key.statement()] = authority.sign(key.statement());
  for (const RetiredKey& key : ring.state().retired)
    signatures[key.statement()] = authority.sign(key.statement());
  signatures[key_statement(key_of(3).digest(), 0)] = Signature{};
  ring.set_authority(authority.public_half());
  ring.take_signatures(signatures);
  CHECK(other.merge(ring.state(), today).changed);
  CHECK(other.notes() == ring.notes());
  CHECK(std::ranges::all_of(other.keys(), [](const RingKey& key) { return key.signature.has_value(); }));
  // A ring that is told to follow another authority forgets the signatures of the first.
  other.set_authority(SigningKey::generate().public_half());
  CHECK(std::ranges::none_of(other.keys(), [](const RingKey& key) { return key.signature.has_value(); }));
}

TEST_CASE("a key that the authority has retired does not come back by a later date that nobody has signed") {
  const SigningKey authority = SigningKey::generate();
  const auto sign = [&](auto item) {
    item.signature = authority.sign(item.statement());
    return item;
  };
  KeyRing ring = ring_of({key_of(1)});
  ring.set_authority(authority.public_half());
  CHECK(ring.merge({{sign(RingKey{key_of(1), today})}, {sign(RetiredKey{key_of(0x50).fingerprint(), today})}}, today)
            .changed);
  const RingKey stolen = sign(RingKey{key_of(0x50), today - 10});
  const RingKey dated_later{key_of(0x50), today + 10};
  (void)ring.merge({{dated_later, stolen}, {sign(RetiredKey{key_of(1).fingerprint(), today + 1})}}, today);
  CHECK(fingerprints(ring) == fingerprints(ring_of({key_of(1)})));
}

TEST_CASE("keys that nobody has signed make room for one that the authority has") {
  const SigningKey authority = SigningKey::generate();
  KeyRing ring = ring_of({key_of(1)});
  for (std::uint8_t i = 2; i <= max_cluster_keys; ++i)
    CHECK(ring.merge({{{key_of(i), today}}, {}}, today).changed);
  ring.set_authority(authority.public_half());
  RingKey fresh{key_of(99), today};
  CHECK(ring.merge({{fresh}, {}}, today).refused);
  fresh.signature = authority.sign(fresh.statement());
  CHECK(ring.merge({{fresh}, {}}, today).changed);
  CHECK(ring.holds(key_of(99).fingerprint()));
  CHECK(ring.first().key.fingerprint() == key_of(1).fingerprint());
}

TEST_CASE("signatures that are not the authority's are forgotten when a ring is read or given") {
  const SigningKey authority = SigningKey::generate();
  KeyRing ring = ring_of({key_of(1)});
  RingState given = ring.state();
  given.authority = authority.public_half();
  given.keys[0].signature = SigningKey::generate().sign(given.keys[0].statement());
  const auto adopted = KeyRing::adopt(given);
  REQUIRE(adopted);
  CHECK_FALSE(adopted->first().signature);
  const std::string notes = "authority " + hex(authority.public_half()) + "\nmade " + hex(key_of(1).fingerprint()) +
                            " 0 " + hex(*given.keys[0].signature) + "\n";
  const auto restored = KeyRing::restore(ring.cluster_keys(), notes);
  REQUIRE(restored);
  CHECK_FALSE(restored->first().signature);
}

TEST_CASE("only the authority rules that nodes need certificates, and the later of two rules holds") {
  const SigningKey authority = SigningKey::generate();
  const auto rule = [&](bool certificates, TimeUs at, const SigningKey& by) {
    AdmissionRule made{certificates, at, {}};
    made.signature = by.sign(made.statement());
    return made;
  };
  const auto told = [&](const AdmissionRule& of) { return RingState{{{key_of(1), 0}}, {}, {}, of}; };
  KeyRing ring(ClusterKeys({key_of(1)}));
  CHECK(ring.merge(told(rule(true, today, authority)), today).refused);  // no authority is known
  ring.set_authority(authority.public_half());
  CHECK(ring.merge(told(rule(true, today, SigningKey::generate())), today).forged);
  AdmissionRule changed = rule(false, today, authority);
  changed.certificates = true;
  CHECK(ring.merge(told(changed), today).forged);
  CHECK(ring.merge(told(rule(true, today + max_ahead_us + 1, authority)), today).refused);
  CHECK_FALSE(ring.asks_for_certificates());
  const RingState asks = told(rule(true, today, authority));
  CHECK_FALSE(ring.knows(asks));
  CHECK(ring.merge(asks, today).changed);
  CHECK(ring.asks_for_certificates());
  CHECK(ring.knows(asks));
  CHECK(ring.knows(told(rule(false, today - 1, authority))));
  CHECK_FALSE(ring.merge(told(rule(false, today - 1, authority)), today).changed);
  CHECK(ring.propose_rule(false, today).decided_at == today + 1);
  const auto restored = KeyRing::restore(ClusterKeys({key_of(1)}), ring.notes());
  REQUIRE(restored);
  CHECK(restored->asks_for_certificates());
  const auto adopted = KeyRing::adopt(ring.state());
  REQUIRE(adopted);
  CHECK(adopted->asks_for_certificates());
  CHECK(ring.merge(told(rule(false, today + 1, authority)), today).changed);
  CHECK_FALSE(ring.asks_for_certificates());
  // Another authority's rule is not followed.
  CHECK(ring.merge(told(rule(true, today + 2, authority)), today).changed);
  ring.set_authority(SigningKey::generate().public_half());
  CHECK_FALSE(ring.asks_for_certificates());
}

namespace {

Deputy appointed(const SigningKey& key, std::uint8_t powers, const SigningKey& by, gossamer::TimeUs at = today) {
  Deputy deputy{.key = key.public_half(), .powers = powers, .decided_at = at, .name = "anna"};
  deputy.signature = by.sign(deputy.statement());
  return deputy;
}
constexpr auto keys_power = static_cast<std::uint8_t>(Power::keys);
constexpr auto deny_power = static_cast<std::uint8_t>(Power::deny);

}  // namespace

TEST_CASE("a deputy signs what it may in the authority's place, until it is dismissed") {
  const SigningKey authority = SigningKey::generate();
  const SigningKey anna = SigningKey::generate();
  const SigningKey bert = SigningKey::generate();
  KeyRing ring = ring_of({key_of(1)});
  ring.set_authority(authority.public_half());
  const auto hear = [&](const Deputy& deputy) { return ring.merge({authority.public_half(), {deputy}}, today); };
  RingKey key{key_of(2), today};
  key.signature = anna.sign(key.statement());
  CHECK(ring.merge({{key}, {}}, today).forged);
  // Only the authority appoints deputies, and a deputy decides only what it may.
  CHECK(hear(appointed(anna, keys_power, anna)).forged);
  CHECK(hear(appointed(bert, deny_power, authority)).changed);
  const KeyRing::Merge by_deputy = hear(appointed(anna, keys_power, bert));
  CHECK((by_deputy.refused && !by_deputy.forged));  // the deputy is known, but may not appoint
  key.signature = bert.sign(key.statement());
  const KeyRing::Merge without_power = ring.merge({{key}, {}}, today);
  CHECK((without_power.refused && !without_power.forged));
  CHECK(hear(appointed(anna, keys_power, authority)).changed);
  CHECK_FALSE(hear(appointed(anna, keys_power, authority)).changed);
  key.signature = anna.sign(key.statement());
  CHECK(ring.merge({{key}, {}}, today).changed);
  AdmissionRule rule = ring.propose_rule(true, today);
  rule.signature = anna.sign(rule.statement());
  CHECK(ring.merge({{{key_of(1), 0}}, {}, {}, rule}, today).refused);
  const auto restored = KeyRing::restore(ring.cluster_keys(), ring.notes());
  REQUIRE(restored);
  CHECK(restored->notes() == ring.notes());
  CHECK(restored->deciders() == ring.deciders());
  CHECK(restored->keys().back().signature);
  CHECK(KeyRing::adopt(ring.state(), ring.deputy_list())->notes() == ring.notes());
  // What it has signed no longer counts, and an old record cannot appoint it again.
  CHECK(hear(appointed(anna, 0, authority, today + 1)).changed);
  CHECK_FALSE(ring.keys().back().signature);
  CHECK_FALSE(hear(appointed(anna, keys_power, authority)).changed);
  CHECK_FALSE(KeyRing::adopt({{key}, {}, authority.public_half()}, ring.deputy_list())->keys().front().signature);
  CHECK(ring.propose_deputy(anna.public_half(), keys_power, "anna", today).decided_at > today + 1);
  // Another authority has other deputies.
  ring.set_authority(bert.public_half());
  CHECK(ring.deputy_list().records.empty());
}

TEST_CASE("deputies are told with their authority, and there are so many at most") {
  const SigningKey authority = SigningKey::generate();
  KeyRing ring = ring_of({key_of(1)});
  const SigningKey anna = SigningKey::generate();
  CHECK(ring.merge({authority.public_half(), {appointed(anna, keys_power, authority)}}, today).changed);
  CHECK(ring.authority() == authority.public_half());
  CHECK_FALSE(ring.merge({SigningKey::generate().public_half(), {appointed(anna, 0, authority)}}, today).changed);
  CHECK(
      ring.merge({authority.public_half(), {appointed(anna, 0, authority, today + 2 * max_ahead_us)}}, today).refused);
  while (ring.deputy_list().records.size() < max_deputies)
    REQUIRE(ring.set_deputy(appointed(SigningKey::generate(), keys_power, authority)));
  CHECK_THAT(ring.set_deputy(appointed(SigningKey::generate(), keys_power, authority)).error(),
             Catch::Contains("which is the most"));
  CHECK(ring.set_deputy(appointed(anna, deny_power, authority, today + 1)));
  CHECK_THAT(ring.set_deputy(appointed(anna, deny_power, authority, today)).error(), Catch::Contains("try again"));
  // A record that is refused does not stop the others, and powers that this version does not know are kept.
  const Deputy ahead = appointed(SigningKey::generate(), keys_power, authority, today + 2 * max_ahead_us);
  const Deputy later = appointed(anna, 128, authority, today + 2);
  const KeyRing::Merge merge = ring.merge({authority.public_half(), {ahead, later}}, today);
  CHECK((merge.refused && merge.changed));
  CHECK(KeyRing::restore(ring.cluster_keys(), ring.notes())->deciders() == ring.deciders());
}

TEST_CASE("notes about deputies that make no sense are no notes") {
  const SigningKey authority = SigningKey::generate();
  KeyRing ring = ring_of({key_of(1)});
  ring.set_authority(authority.public_half());
  REQUIRE(ring.set_deputy(appointed(SigningKey::generate(), keys_power, SigningKey::generate())));
  CHECK_FALSE(KeyRing::restore(ring.cluster_keys(), ring.notes()));  // the authority has not signed it
  CHECK_FALSE(KeyRing::restore(ring.cluster_keys(), "deputy\n"));
  CHECK_FALSE(KeyRing::restore(ring.cluster_keys(), "authority " + hex(authority.public_half()) + "\ndeputy ab 1\n"));
}
