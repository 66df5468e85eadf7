// A node remembers over a restart whom it knew.

#include "daemon/acquaintances.hpp"

#include <spdlog/sinks/null_sink.h>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

struct Fixture {
  test::TemporaryFolder temporary;
  std::filesystem::path path = temporary.path() / "state";
  spdlog::logger log{"test", std::make_shared<spdlog::sinks::null_sink_st>()};
  StateFolder state = *StateFolder::open(path);

  [[nodiscard]] std::vector<std::string> read() { return Acquaintances(state, log).addresses(); }
};

const std::vector<std::string> two{"tcp://10.0.0.1:7946", "tcp://b.example:1"};

}  // namespace

TEST_CASE("addresses are kept when they change") {
  Fixture f;
  CHECK(f.read().empty());
  Acquaintances known(f.state, f.log);
  known.keep(two);
  CHECK(f.read() == two);
  known.keep({two[0]});
  CHECK(f.read() == std::vector<std::string>{two[0]});
  known.keep({});  // alone
  CHECK(f.read() == std::vector<std::string>{two[0]});
}

TEST_CASE("a damaged file of addresses does no harm, and a long one is cut") {
  Fixture f;
  REQUIRE(f.state.store("members", "nonsense\n\ntcp://*:1\ntcp://10.0.0.1:7946\n\x01\x02"));
  CHECK(f.read() == std::vector<std::string>{two[0]});
  std::string many;
  for (std::size_t i = 0; i < 2 * max_acquaintances; ++i)
    many += "tcp://10.0.0.1:" + std::to_string(1000 + i) + "\n";
  REQUIRE(f.state.store("members", many));
  CHECK(f.read().size() == max_acquaintances);
}
