// A node remembers the members that it knew over a restart.

#include "daemon/cluster/acquaintances.hpp"

#include <spdlog/sinks/ostream_sink.h>

#include <future>
#include <sstream>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

struct Fixture {
  test::TemporaryFolder temporary;
  std::filesystem::path path = temporary.path() / "state";
  std::ostringstream logged;
  spdlog::logger log{"test", std::make_shared<spdlog::sinks::ostream_sink_st>(logged)};
  StateFolder state = *StateFolder::open(path);
  asio::io_context loop;
  Workers disk{loop, 1};
  Acquaintances known{state, disk, log};

  [[nodiscard]] std::vector<std::string> read() { return Acquaintances(state, disk, log).addresses(); }
  void keep(const std::vector<std::string>& addresses) {
    known.keep(addresses);
    REQUIRE(test::run_until(loop, [&] { return disk.pending() == 0; }));
    loop.restart();
    loop.poll();
  }
};

const std::vector<std::string> two{"tcp://10.0.0.1:7946", "tcp://b.example:1"};

}  // namespace

TEST_CASE("addresses are kept when they change") {
  Fixture f;
  CHECK(f.read().empty());
  f.keep(two);
  CHECK(f.read() == two);
  f.keep({two[0]});
  CHECK(f.read() == std::vector<std::string>{two[0]});
  f.keep({});  // the node is alone
  CHECK(f.read() == std::vector<std::string>{two[0]});
}

TEST_CASE("a disk that hangs holds nobody up, and is given the latest when it is back") {
  Fixture f;
  std::promise<void> back;
  REQUIRE(f.disk.submit(Workers::Work([&] { back.get_future().wait(); }), Workers::Work([] {})));
  f.known.keep(two);
  f.known.keep({two[1]});
  CHECK(f.read().empty());
  back.set_value();
  f.keep({two[1]});  // the same list comes every few seconds
  f.keep({two[1]});
  CHECK(f.read() == std::vector<std::string>{two[1]});
}

TEST_CASE("a damaged file of addresses is told and does no harm, and a long one is cut") {
  Fixture f;
  REQUIRE(f.state.store("members", "nonsense\n\ntcp://*:1\ntcp://10.0.0.1:7946\n\x01\x02"));
  CHECK(f.logged.str().empty());
  CHECK(f.read() == std::vector<std::string>{two[0]});
  CHECK_THAT(f.logged.str(), Catch::Contains("members: 4 lines are no addresses"));
  std::string many;
  for (std::size_t i = 0; i < 2 * max_acquaintances; ++i)
    many += "tcp://10.0.0.1:" + std::to_string(1000 + i) + "\n";
  REQUIRE(f.state.store("members", many));
  CHECK(f.read().size() == max_acquaintances);
}
