#include "peer/address.hpp"

#include "catch.hpp"

using namespace gossamer::peer;

TEST_CASE("addresses that are taken") {
  struct Case {
    const char* text;
    const char* host;
    std::uint16_t port;
    const char* back;
  };
  for (const Case& c :
       {Case{"tcp://127.0.0.1:7946", "127.0.0.1", 7946, "tcp://127.0.0.1:7946"},
        Case{"node-1.example.org:1", "node-1.example.org", 1, "tcp://node-1.example.org:1"},
        Case{"tcp://[::1]:65535", "::1", 65535, "tcp://[::1]:65535"},
        Case{"tcp://*:7", "0.0.0.0", 7, "tcp://0.0.0.0:7"}, Case{"localhost:0", "localhost", 0, "tcp://localhost:0"}}) {
    INFO(c.text);
    const auto address = parse_address(c.text, AddressUse::listen);
    REQUIRE(address);
    CHECK(address->host == c.host);
    CHECK(address->port == c.port);
    CHECK(address->text() == c.back);
  }
  CHECK(parse_address("127.3.2.1:1", AddressUse::dial)->is_loopback());
  CHECK(parse_address("[::1]:1", AddressUse::dial)->is_loopback());
  CHECK_FALSE(parse_address("10.0.0.1:1", AddressUse::dial)->is_loopback());
}

TEST_CASE("the usual port is told where one is missing") {
  CHECK(parse_address(default_listen, AddressUse::listen)->port == default_port);
  CHECK(parse_address("tcp://host", AddressUse::dial).error() ==
        "address 'tcp://host': there is no port, which is 26746 unless the node is told otherwise; tcp://HOST:PORT is "
        "expected");
}

TEST_CASE("addresses that are refused") {
  for (const char* text : {"", "tcp://", "host", "host:", ":1", "host:65536", "host:-1", "host:1x", "udp://h:1",
                           "a b:1", "tcp://[::1:1", "[zz]:1", "host:1/", "tcp://tcp://h:1", "h\n:1", "inproc://x"}) {
    INFO(text);
    CHECK_FALSE(parse_address(text, AddressUse::listen));
  }
  CHECK_FALSE(parse_address(std::string(300, 'a') + ":1", AddressUse::listen));
  CHECK_FALSE(parse_address("host:0", AddressUse::dial));
  CHECK_FALSE(parse_address("*:1", AddressUse::dial));
  CHECK_FALSE(parse_address("[::]:1", AddressUse::dial));
  // A refusal shows the address, but nothing that could disturb a terminal.
  CHECK(parse_address("a\x1b[2J:1", AddressUse::dial).error().find('\x1b') == std::string::npos);
}
