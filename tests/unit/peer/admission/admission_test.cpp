// Tests the proofs: right ones are taken, and a change of any one field breaks them.

#include "peer/admission/admission.hpp"

#include <functional>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

Hello a_hello(const Identity& dialler) {
  Hello hello;
  hello.version_low = 1;
  hello.version_high = 2;
  hello.public_key = dialler.keys.public_key;
  hello.incarnation = 5;
  hello.nonce = random_nonce();
  hello.link = 77;
  hello.address = "tcp://10.0.0.1:7946";
  hello.name = "one";
  return hello;
}
Welcome a_welcome() {
  Welcome welcome;
  welcome.version = 1;
  welcome.incarnation = 9;
  welcome.address = "tcp://10.0.0.2:7946";
  welcome.name = "two";
  return welcome;
}

}  // namespace

TEST_CASE("a hello is proven by any key of the ring, and by no other") {
  const ClusterKey first = ClusterKey::generate();
  const ClusterKey second = ClusterKey::generate();
  const Identity dialler = Identity::generate();
  Hello hello = a_hello(dialler);
  hello.proof = hello_proof(second, hello);
  CHECK(is_hello_proven(ClusterKeys({second}), hello));
  CHECK(is_hello_proven(ClusterKeys({first, second}), hello));
  CHECK_FALSE(is_hello_proven(ClusterKeys({first}), hello));
}

TEST_CASE("tampering with any field of a hello breaks its proof") {
  const ClusterKeys keys({ClusterKey::generate()});
  const Identity dialler = Identity::generate();
  Hello sound = a_hello(dialler);
  sound.proof = hello_proof(keys.first(), sound);
  REQUIRE(is_hello_proven(keys, sound));
  const std::vector<std::function<void(Hello&)>> changes{
      [](Hello& h) { h.version_low = 0; },
      [](Hello& h) { h.version_high = 3; },
      [](Hello& h) { h.public_key[31] ^= 1; },
      [](Hello& h) { h.incarnation += 1; },
      [](Hello& h) { h.nonce[0] ^= 1; },
      [](Hello& h) { h.link ^= 1; },
      [](Hello& h) { h.channel = Channel::bulk; },
      [](Hello& h) { h.address = "tcp://10.0.0.9:7946"; },
      [](Hello& h) { h.name = "One"; },
      [](Hello& h) { h.features ^= 1ULL << 63; },
      // The same bytes, divided between the two fields at another place.
      [](Hello& h) {
        h.name = h.address.back() + h.name;
        h.address.pop_back();
      },
      [](Hello& h) { h.proof[7] ^= 0x80; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Hello changed = sound;
    changes[i](changed);
    INFO(i);
    CHECK_FALSE(is_hello_proven(keys, changed));
  }
}

TEST_CASE("a welcome is proven to the dialler alone, and a change of any field breaks it") {
  const Identity dialler = Identity::generate();
  const Identity listener = Identity::generate();
  const Identity stranger = Identity::generate();
  const Hello hello = a_hello(dialler);
  Welcome sound = a_welcome();
  REQUIRE(prove_welcome(listener.keys, hello, sound));
  CHECK(is_welcome_proven(dialler.keys, hello, sound));
  CHECK_FALSE(is_welcome_proven(stranger.keys, hello, sound));

  const std::vector<std::function<void(Hello&, Welcome&)>> changes{
      [](Hello& h, Welcome&) { h.nonce[31] ^= 1; },
      [](Hello& h, Welcome&) { h.link += 1; },
      [](Hello& h, Welcome&) { h.channel = Channel::bulk; },
      [&](Hello& h, Welcome&) { h.public_key = stranger.keys.public_key; },
      [](Hello&, Welcome& w) { w.version = 2; },
      [](Hello&, Welcome& w) { w.public_key[0] ^= 1; },
      [&](Hello&, Welcome& w) { w.public_key = stranger.keys.public_key; },
      [](Hello&, Welcome& w) { w.incarnation = 1; },
      [](Hello&, Welcome& w) { w.address.clear(); },
      [](Hello&, Welcome& w) { w.name = "too"; },
      [](Hello&, Welcome& w) { w.features = 1; },
      [](Hello&, Welcome& w) { w.proof[0] ^= 1; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Hello changed_hello = hello;
    Welcome changed = sound;
    changes[i](changed_hello, changed);
    INFO(i);
    CHECK_FALSE(is_welcome_proven(dialler.keys, changed_hello, changed));
  }
}

TEST_CASE("an insider between two nodes cannot pass one's welcome on to the other") {
  const Identity dialler = Identity::generate();
  const Identity listener = Identity::generate();
  const Identity insider = Identity::generate();
  // The attacker repeats the dialler's hello to the listener. It must put its own key there, because its connection
  // proves that key.
  const Hello hello = a_hello(dialler);
  Hello repeated = hello;
  repeated.public_key = insider.keys.public_key;
  Welcome welcome = a_welcome();
  REQUIRE(prove_welcome(listener.keys, repeated, welcome));
  CHECK_FALSE(is_welcome_proven(dialler.keys, hello, welcome));
  // A dialler's own hello, turned around, is no welcome.
  Welcome reflected = a_welcome();
  Hello turned = hello;
  turned.public_key = listener.keys.public_key;
  REQUIRE(prove_welcome(dialler.keys, turned, reflected));
  CHECK_FALSE(is_welcome_proven(listener.keys, hello, reflected));
}

TEST_CASE("keys that no secret can be shared with are refused") {
  const Identity listener = Identity::generate();
  Hello hello = a_hello(listener);
  hello.public_key = {};  // a key of small order
  Welcome welcome = a_welcome();
  CHECK_FALSE(prove_welcome(listener.keys, hello, welcome));
  welcome.public_key = {};
  CHECK_FALSE(is_welcome_proven(listener.keys, hello, welcome));
}
