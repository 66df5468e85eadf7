// What the first bytes from a port tell of its program.

#include "peer/links/greeting.hpp"

#include "catch.hpp"

using namespace gossamer::peer;
using Speaker = Greeting::Speaker;
using Catch::Matchers::Contains;

namespace {

Greeting greeting(const std::string& text) {
  return greeting_of({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

const std::string signature = std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10);

}  // namespace

TEST_CASE("ZeroMQ's signature is known, however much of it has come") {
  CHECK(greeting(signature).speaker == Speaker::zeromq);
  CHECK(greeting(signature + "\3").speaker == Speaker::zeromq);
  for (std::size_t size = 1; size < signature.size(); ++size)
    CHECK(greeting(signature.substr(0, size)).speaker == Speaker::unknown);
}

TEST_CASE("what another program says is shown, without what could trouble a terminal") {
  CHECK(greeting("").speaker == Speaker::silent);
  const Greeting ssh = greeting("SSH-2.0-x\r\nmore");
  CHECK((ssh.speaker == Speaker::other && ssh.beginning == "SSH-2.0-x"));
  CHECK(greeting("\x1b[2J").beginning == ".[2J");
  CHECK(greeting(std::string(60, 'x')).beginning.size() == 24);
  // A 0xff at the beginning is not enough.
  CHECK(greeting(std::string(10, '\xfe')).speaker == Speaker::other);
  CHECK(greeting("\xff" + std::string(9, '\0')).speaker == Speaker::other);
}

TEST_CASE("only what shows another program is told as one") {
  const Address address{"host", 7946};
  CHECK(not_a_node({.speaker = Speaker::zeromq}, address).empty());
  CHECK(not_a_node({.speaker = Speaker::unknown}, address).empty());
  CHECK_THAT(not_a_node({.speaker = Speaker::other, .beginning = "SSH"}, address),
             Contains("tcp://host:7946") && Contains("\"SSH\"") && Contains("26746"));
  CHECK_THAT(not_a_node({.speaker = Speaker::silent}, address), Contains("tcp://host:7946") && Contains("Serf"));
}
