// The settings that the replicas of a job share: the daemon's own code, with its workers, beside trainers in threads of
// their own.

#include <memory>

#include "tests/unit/daemon/jobs/played_job.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using test::Daemon;
using test::Trainer;

namespace {

using Settings = std::map<std::string, std::string>;

/// Lets the daemon hear these settings from its neighbour, which has the id of a joiner's daemon.
void hear_of(Daemon& daemon, std::uint64_t version, std::vector<JobSetting> values) {
  NodeId from;
  from.bytes[0] = 2;
  JobInfo info = daemon.job().info();
  info.settings = {version, from, std::move(values)};
  daemon.job().received(from, info);
}

/// Two nodes that run the job.
struct Pair {
  Trainer first{2, std::chrono::microseconds(50)};
  Trainer second{2, std::chrono::microseconds(80)};
  Daemon founder;
  Daemon joiner{false, &founder};

  Pair() {
    founder.attach(first);
    joiner.attach(second);
    first.start();
    second.start();
    founder.run_until([&] { return first.running() && second.running(); });
  }
};

std::expected<SettingsStatus, std::string> change_settings(Job& job, const std::vector<JobSetting>& changes) {
  const auto next = job.options().changed(changes, {});
  if (!next) return std::unexpected(next.error());
  return job.change_settings(*next);
}

}  // namespace

TEST_CASE("what is set at one node holds at every node of the job, and for who comes later") {
  Trainer first(2, std::chrono::microseconds(50));
  Trainer second(2, std::chrono::microseconds(80));
  Daemon founder;
  Daemon joiner(false, &founder);
  founder.codec = joiner.codec = CodecChoice::q8;
  founder.attach(first);
  first.start();
  founder.run_until([&] { return first.running(); });
  REQUIRE(change_settings(founder.job(), {{"codec", "q4"}, {"period_ms", "7"}}));
  joiner.attach(second);
  second.start();
  founder.run_until([&] { return second.running() && joiner.status().settings.version == 1; });
  CHECK(joiner.status().settings.values == Settings{{"codec", "q4"}, {"period_ms", "7"}});
  CHECK(joiner.status().codec == "q4");
  CHECK(joiner.status().wanted_period_s == Approx(0.007));

  REQUIRE(change_settings(joiner.job(), {{"codec", "f32"}, {"period_ms", ""}}));
  founder.run_until([&] { return founder.status().settings.version == 2; });
  CHECK(founder.status().settings.values == Settings{{"codec", "f32"}});
  CHECK(founder.status().wanted_period_s == Approx(0.002));  // the node's own setting counts again
}

TEST_CASE("no neighbour uses the versions of a job's settings up") {
  Pair pair;
  auto& [first, second, founder, joiner] = pair;
  for (const std::uint64_t version : {max_settings_version, max_settings_leap + 1}) {
    hear_of(founder, version, {{"codec", "f32"}});
    CHECK(founder.status().settings.version == 0);
  }
  hear_of(founder, max_settings_leap, {{"codec", "f32"}});
  CHECK(founder.status().codec == "f32");
  REQUIRE(change_settings(founder.job(), {{"codec", "q4"}}));
  founder.run_until([&] { return joiner.status().settings.version == max_settings_leap + 1; });
}

TEST_CASE("settings outlive the daemon, and a later one's node options do not hold in their place") {
  Trainer trainer(2, std::chrono::microseconds(50));
  auto daemon = std::make_unique<Daemon>();
  daemon->attach(trainer);
  trainer.start();
  daemon->run_until([&] { return trainer.running(); });
  for (const char* codec : {"q4", "f32", "q4"})
    REQUIRE(change_settings(daemon->job(), {{"codec", codec}, {"clip", "2.5"}}));
  daemon = nullptr;
  daemon = std::make_unique<Daemon>(/*resume=*/true);
  daemon->attach(trainer);
  CHECK(daemon->status().settings.values == Settings{{"clip", "2.5"}, {"codec", "q4"}});
  CHECK(daemon->status().settings.version == 3);
  CHECK(daemon->status().codec == "q4");
}

TEST_CASE("settings in the node's memory that no daemon has written are ignored") {
  Trainer trainer(2, std::chrono::microseconds(50));
  auto daemon = std::make_unique<Daemon>();
  daemon->attach(trainer);
  daemon->run_until([&] { return trainer.running(); });
  daemon = nullptr;
  const auto [name, value] =
      GENERATE(table<std::string, std::string>({{"Codec", "q4"}, {"codec", ""}, {"", "\x1b[2J"}}));
  std::static_pointer_cast<NodeMemory>(trainer.memory().kept)
      ->store_settings({.version = 7, .values = {{name, value}}});
  Daemon successor(/*resume=*/true);
  successor.attach(trainer);
  successor.run_until([&] { return trainer.running(); });
  CHECK(successor.status().settings.version == 0);
}

TEST_CASE("a node that cannot follow a job's settings says so and keeps out, until it can") {
  const auto [name, value] = GENERATE(table<std::string, std::string>(
      {{"weather", "average"}, {"codec", "q2"}, {"period_ms", "-1"}, {"clip", "nan"}, {"in_flight", "2"}}));
  Pair pair;
  auto& [first, second, founder, joiner] = pair;
  founder.run_until([&] { return founder.status().exchanges > 0; });
  hear_of(founder, 5, {{name, value}});
  CHECK(founder.status().note.find(name) != std::string::npos);
  CHECK(founder.status().state == "draining");
  // Settings cannot be changed while one of them is not understood.
  CHECK_FALSE(change_settings(founder.job(), {{"range", "10"}}));
  // Exchanges that have begun end. The other node may hear of their end a little later.
  std::uint64_t exchanges = 0;
  int turns = 0;
  founder.run_until([&] {
    const bool quiet = founder.status().in_flight + joiner.status().in_flight == 0 &&
                       joiner.status().note == founder.status().note && founder.status().exchanges == exchanges;
    exchanges = founder.status().exchanges;
    turns = quiet ? turns + 1 : 0;
    return turns > 50;
  });
  turns = 0;
  founder.run_until([&] { return ++turns > 200; });
  CHECK(founder.status().exchanges == exchanges);

  hear_of(founder, 4, {});  // an older version that comes late
  CHECK(founder.status().settings.version == 5);
  REQUIRE(change_settings(founder.job(), {{name, ""}}));
  CHECK(founder.status().note.empty());
  founder.run_until([&] { return founder.status().exchanges > exchanges + 10; });
}

TEST_CASE("a change that this node could not follow itself is refused, and changes nothing") {
  Trainer trainer(2, std::chrono::microseconds(50));
  Daemon daemon;
  daemon.attach(trainer);
  const auto refusal = [&](std::vector<JobSetting> changes) {
    const auto settings = change_settings(daemon.job(), changes);
    REQUIRE_FALSE(settings);
    return settings.error();
  };
  CHECK(refusal({{"codecs", "q4"}}).find("a job may have method, average_steps") != std::string::npos);
  CHECK(refusal({{"max_mbit_s", "10"}}).find("no such setting: max_mbit_s") != std::string::npos);
  CHECK(refusal({{"codec", "q5"}}).find("codec: \"q5\" is not known; it must be") != std::string::npos);
  CHECK(refusal({{"period_ms", "1.5"}}).find("period_ms: \"1.5\" is not known") != std::string::npos);
  CHECK(refusal({{"period_ms", "3600001"}}).find("out of bounds") != std::string::npos);
  CHECK(refusal({{"codec", "q4"}, {"clip", "-1"}}).find("clip") != std::string::npos);
  CHECK(refusal({{"period_ms", std::string(max_setting_value_bytes + 1, '0')}}).find("at most 63 bytes") !=
        std::string::npos);
  CHECK(daemon.status().settings.version == 0);
  CHECK(daemon.status().settings.values.empty());
}

namespace {

/// A node that is drained before it has joined.
struct DrainedJoiner {
  DrainedJoiner() {
    founder.attach(donor);
    donor.start();
    founder.run_until([&] { return donor.running(); });
    joiner.attach(trainer);
    joiner.job().set_drained(true);
  }
  Trainer trainer{2, std::chrono::microseconds(50)};
  Trainer donor{7, std::chrono::microseconds(50)};
  Daemon founder;
  Daemon joiner{false, &founder};
};

}  // namespace

TEST_CASE("a drain that is taken back while a job joins does not begin it") {
  DrainedJoiner nodes;
  nodes.joiner.job().set_drained(false);
  CHECK(nodes.joiner.status().state == "joining");
  nodes.trainer.start();
  nodes.founder.run_until([&] { return nodes.trainer.running(); });
  CHECK(nodes.trainer.published() >= 7);
}

TEST_CASE("a job that joins at a drained node takes part in no exchange") {
  DrainedJoiner nodes;
  nodes.trainer.start();
  nodes.founder.run_until([&] { return nodes.trainer.running(); });
  CHECK(nodes.joiner.status().state == "draining");
  int turns = 0;
  nodes.founder.run_until([&] { return nodes.trainer.trained() && ++turns > 1000; });
  CHECK(nodes.joiner.status().exchanges == 0);
}
