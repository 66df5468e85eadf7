// Configuration: every kind of error by line and name, the sample, what a reload changes.

#include "daemon/config/config.hpp"

#include "daemon/config/config_table.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

std::string problem(const std::string& text) {
  const auto config = parse(text, "f");
  REQUIRE_FALSE(config);
  return config.error();
}

bool same(const Config& a, const Config& b) {
  const Reload difference = reload(a, b);
  return difference.changed.empty() && difference.need_restart.empty();
}

}  // namespace

TEST_CASE("the checked-in sample is the generated one, and holds the defaults") {
  const std::string sample = test::read_file(GOSSAMER_SAMPLE_CONFIG);
  CHECK(sample == commented_defaults());  // gossamerd --print-config > daemon/gossamer.toml
  const auto config = parse(sample, "sample");
  REQUIRE(config);
  CHECK(same(*config, Config{}));
}

TEST_CASE("an empty configuration is the defaults") {
  const auto config = parse("", "f");
  REQUIRE(config);
  CHECK(same(*config, Config{}));
}

TEST_CASE("a configuration that names the port of Serf is read as it stands") {
  const auto config = parse("[overlay]\nlisten = \"tcp://*:7946\"\npeers = [\"tcp://a:7946\"]", "f");
  REQUIRE(config);
  CHECK(config->overlay.listen == "tcp://*:7946");
  CHECK(config->overlay.peers == std::vector<std::string>{"tcp://a:7946"});
  CHECK(Config{}.overlay.listen == "tcp://127.0.0.1:26746");
}

TEST_CASE("addresses may do without tcp://, and not without a port") {
  const auto config = parse("[overlay]\nlisten = \"*:26746\"\nadvertise = \"a.example:1\"\npeers = [\"[::1]:2\"]", "f");
  REQUIRE(config);
  CHECK(config->overlay.listen == "*:26746");
  CHECK_THAT(problem("[overlay]\nlisten = \"*\""),
             Catch::Matchers::Contains("f:2: [overlay] listen: address '*': there is no port, which is 26746"));
}

TEST_CASE("a node may advertise no address at all") {
  const auto config = parse("[overlay]\nadvertise = \"none\"", "f");
  REQUIRE(config);
  CHECK(config->overlay.advertise == "none");
}

TEST_CASE("every option is read") {
  const auto config = parse(R"(
    [node]
    name = "left"
    state_dir = "/s"
    socket_dir = "/k"
    workers = 3
    io_threads = 2
    [overlay]
    listen = "tcp://*:0"
    advertise = "tcp://left.example:26746"
    interface = "eth1"
    bulk = "plain"
    peers = ["tcp://10.0.0.2:26746", "tcp://[::1]:7947", "tcp://10.0.0.2:26746"]
    cluster_key_file = "/c"
join = "gossamer-invite-1:AQEBAQEBAQEBAQEBAQEBAQCAmCgXZQYAAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwEJAHRjcDovL2E6MVCxkUc"
denied = ["000102030405060708090a0b0c0d0e0f"]
    ping_ms = 100
    link_timeout_ms = 200
    probe_interval_ms = 300
    probe_timeout_ms = 150
    suspicion_mult = 5
    full_view_limit = 20
    active_view = 6
    passive_view = 40
    [gossip]
    method = "average"
    average_steps = 16
    average_members = 4
    average_codec = "q8"
    weights = "samples"
    codec = "q4"
    partners = "one-peer-exponential"
    time_share = 0.1
    bandwidth_share = 0.25
    max_mbit_s = 100.0
    link_max_mbit_s = 12.5
    clip = 2.0
    dense_clip = 3.5
    clock_pace = 3
    outer_momentum = 0.5
    outer_period_ms = 20000
    profile = "internet"
    period_ms = 0
    in_flight = 8
    mixing_budget = 0.5
    exchange_lifetime_ms = 600
    range = 10
    seed = 7
    [limits]
    clients = 1
    jobs = 2
    memory_mib = 3
    clients_per_user = 4
    jobs_per_user = 5
    memory_per_user_mib = 6
    memory_per_client_mib = 7
    [rights]
    train = ["anna: *"]
    steer = ["@vision: a,b"]
    [metrics]
    listen = "[::1]:0"
    [checkpoints]
    folder = "/d"
    period_s = 600
    keep = 2
    restore = "latest"
    [gpus]
    library = "/n"
    clients = false
    plugin = "/p"
    nccl = "/n"
    [log]
    level = "debug"
    file = "/l"
    format = "json"
  )",
                            "f");
  REQUIRE(config);
  CHECK(config->node.name == "left");
  CHECK(config->node.state_dir == "/s");
  CHECK(config->node.socket_dir == "/k");
  CHECK(config->node.workers == 3);
  CHECK(config->node.io_threads == 2);
  CHECK(config->overlay.listen == "tcp://*:0");
  CHECK(config->overlay.advertise == "tcp://left.example:26746");
  CHECK(config->overlay.interface == "eth1");
  CHECK(config->overlay.bulk == peer::BulkProtection::plain);
  CHECK(config->overlay.peers == std::vector<std::string>{"tcp://10.0.0.2:26746", "tcp://[::1]:7947"});
  CHECK(config->overlay.cluster_key_file == "/c");
  CHECK(config->overlay.join.starts_with("gossamer-invite-1:"));
  CHECK(config->overlay.denied == std::vector<std::string>{"000102030405060708090a0b0c0d0e0f"});
  CHECK(config->overlay.ping_ms == 100);
  CHECK(config->overlay.link_timeout_ms == 200);
  CHECK(config->overlay.probe_interval_ms == 300);
  CHECK(config->overlay.probe_timeout_ms == 150);
  CHECK(config->overlay.suspicion_mult == 5);
  CHECK(config->overlay.full_view_limit == 20);
  CHECK(config->overlay.active_view == 6);
  CHECK(config->overlay.passive_view == 40);
  CHECK(config->gossip.method == layout::Method::average);
  CHECK(config->gossip.average_steps == 16);
  CHECK(config->gossip.average_members == 4);
  CHECK(config->gossip.average_codec == AverageCodec::q8);
  CHECK(config->gossip.weights == Weights::samples);
  CHECK(config->gossip.codec == CodecChoice::q4);
  CHECK(config->gossip.partners == gossip::PartnerPolicy::one_peer_exponential);
  CHECK(config->gossip.time_share == 0.1);
  CHECK(config->gossip.bandwidth_share == 0.25);
  CHECK(config->gossip.max_mbit_s == 100);
  CHECK(config->gossip.link_max_mbit_s == 12.5);
  CHECK(config->gossip.clip == 2);
  CHECK(config->gossip.dense_clip == 3.5);
  CHECK(config->gossip.clock_pace == 3);
  CHECK(config->gossip.outer_momentum == 0.5);
  CHECK(config->gossip.outer_period_ms == 20'000);
  CHECK(config->gossip.profile == Profile::internet);
  CHECK(config->gossip.period_ms == 0);
  CHECK(config->gossip.in_flight == 8);
  CHECK(config->gossip.mixing_budget == 0.5);
  CHECK(config->gossip.exchange_lifetime_ms == 600);
  CHECK(config->gossip.range == 10.0);
  CHECK(config->gossip.seed == 7);
  CHECK(config->limits.clients == 1);
  CHECK(config->limits.jobs == 2);
  CHECK(config->limits.memory_mib == 3);
  CHECK(config->limits.clients_per_user == 4);
  CHECK(config->limits.jobs_per_user == 5);
  CHECK(config->limits.memory_per_user_mib == 6);
  CHECK(config->limits.memory_per_client_mib == 7);
  CHECK(config->rights.train == std::vector<std::string>{"anna: *"});
  CHECK(config->rights.steer == std::vector<std::string>{"@vision: a,b"});
  CHECK(config->metrics.listen == "[::1]:0");
  CHECK(config->checkpoints.folder == "/d");
  CHECK(config->checkpoints.period_s == 600);
  CHECK(config->checkpoints.keep == 2);
  CHECK(config->checkpoints.restore == Restore::latest);
  CHECK(config->gpus.library == "/n");
  CHECK_FALSE(config->gpus.clients);
  CHECK(config->gpus.plugin == "/p");
  CHECK(config->gpus.nccl == "/n");
  CHECK(config->log.level == LogLevel::debug);
  CHECK(config->log.file == "/l");
  CHECK(config->log.format == LogFormat::json);
  // Nothing was forgotten above: every row of the table differs from its default.
  std::size_t options = 0;
  for (const OptionSection& section : option_sections())
    options += section.options.size();
  CHECK(reload(Config{}, *config).changed.size() + reload(Config{}, *config).need_restart.size() == options);
}

TEST_CASE("a profile changes the defaults of its section, wherever it stands in it") {
  const auto internet = parse("[gossip]\ncodec = \"q8\"\nprofile = \"internet\"", "f");
  REQUIRE(internet);
  CHECK(internet->gossip.codec == CodecChoice::q8);  // set in the file
  CHECK(internet->gossip.period_ms == 1'000);
  CHECK(internet->gossip.partners == gossip::PartnerPolicy::weighted);
  const auto lan = parse("[gossip]\nprofile = \"lan\"", "f");
  REQUIRE(lan);
  CHECK(lan->gossip == GossipOptions{});
}

TEST_CASE("what is wrong is said with line, name and what is allowed") {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"[gossip]\n\nperiod_msec = 5", "f:3: [gossip] period_msec: no such option; did you mean period_ms?"},
      {"[log]\nverbose = true", "f:2: [log] verbose: no such option; there are level, file, format"},
      {"[gossip]\npeers = []", "f:2: [gossip] peers: no such option here; it belongs under [overlay]"},
      {"[gosip]\nseed = 1", "f:1: gosip: no such section; did you mean [gossip]?"},
      {"[quantum]\nx = 1",
       "f:1: quantum: no such section; there are [node], [overlay], [gossip], [limits], [rights], [metrics], "
       "[checkpoints], [gpus], [log]"},
      {"[rights]\ntrain = [\"anna\"]", "f:2: [rights] train: \"anna\" names no jobs; an entry is \"WHO: JOBS\""},
      {"[rights]\nsteer = [\"anna: a b\"]", "f:2: [rights] steer: \"anna: a b\": names of jobs are expected"},
      {"[rights]\ntrain = \"*: *\"", "f:2: [rights] train: is a string; it must be a list of strings like \"@group"},
      {"[metrics]\nlisten = \"0.0.0.0:9746\"", "f:2: [metrics] listen: \"0.0.0.0:9746\" is not of this machine alone"},
      {"[metrics]\nlisten = \"9746\"", "f:2: [metrics] listen: \"9746\" is no address"},
      {"listen = \"x\"", "f:1: listen: stands outside a section; it belongs under [overlay]"},
      {"node = 3", "f:1: node: is a whole number; it must be a section, written [node]"},
      {"[[node]]\nname = \"a\"", "f:1: node: is a list; it must be a section, written [node]"},
      {"[gpus]\nclients = \"no\"", "f:2: [gpus] clients: is a string; it must be true or false"},
      {"[overlay]\nping_ms = \"500\"",
       "f:2: [overlay] ping_ms: is a string; it must be a whole number from 20 to 60000 ms"},
      {"[overlay]\nping_ms = 500.0", "f:2: [overlay] ping_ms: is a number with a fraction; it must be a whole number"},
      {"[overlay]\nping_ms = 19", "f:2: [overlay] ping_ms: 19 is out of bounds; it must be a whole number from 20"},
      {"[overlay]\nping_ms = 9223372036854775807", "is out of bounds"},
      {"[overlay]\nping_ms = 1979-05-27", "f:2: [overlay] ping_ms: is a date or time; it must be"},
      {"[overlay]\nping_ms = {}", "f:2: [overlay] ping_ms: is a table; it must be"},
      {"[gossip]\nrange = nan", "f:2: [gossip] range: nan is out of bounds; it must be a number from 2 to 64"},
      {"[gossip]\nrange = inf", "f:2: [gossip] range: inf is out of bounds"},
      {"[gossip]\nrange = true", "f:2: [gossip] range: is true or false; it must be a number"},
      {"[gossip]\nmixing_budget = 1.5", "f:2: [gossip] mixing_budget: 1.5 is out of bounds"},
      {"[gossip]\nmixing_budget = 0", "f:2: [gossip] mixing_budget: 0 is out of bounds"},
      {"[gossip]\ncodec = \"q9\"",
       "f:2: [gossip] codec: \"q9\" is not known; it must be \"f32\", \"q8\", \"q4\" or \"auto\""},
      {"[gossip]\ncodec = 8", "f:2: [gossip] codec: is a whole number; it must be \"f32\", \"q8\", \"q4\" or \"auto\""},
      {"[log]\nlevel = \"loud\"", "f:2: [log] level: \"loud\" is not known"},
      {"[overlay]\npeers = \"tcp://a:1\"", "f:2: [overlay] peers: is a string; it must be a list of strings"},
      {"[overlay]\npeers = [1]", "f:2: [overlay] peers: holds a whole number"},
      {"[overlay]\npeers = [\"tcp://a:1\", \"tcp://a\"]", "f:2: [overlay] peers: address 'tcp://a'"},
      {"[overlay]\npeers = [\"tcp://*:26746\"]", "f:2: [overlay] peers: address 'tcp://*:26746'"},
      {"[overlay]\npeers = [\"tcp://a:0\"]", "f:2: [overlay] peers: address 'tcp://a:0'"},
      {"[overlay]\nlisten = \"tcp://a:70000\"", "f:2: [overlay] listen: address 'tcp://a:70000'"},
      {"[overlay]\nlisten = \"\"", "f:2: [overlay] listen: address ''"},
      {"[overlay]\nadvertise = \"tcp://0.0.0.0:1\"", "f:2: [overlay] advertise: address 'tcp://0.0.0.0:1'"},
      {"[node]\nstate_dir = \"here\"",
       "f:2: [node] state_dir: \"here\" is no absolute path; it must be an absolute path"},
      {"[node]\nname = \"a\\u0007b\"", "f:2: [node] name: must be UTF-8 without control or invisible characters"},
      {"[node]\nname = \"0123456789012345678901234567890123456789012345678901234567890123\"",
       "f:2: [node] name: has 64 bytes"},
      {"[overlay]\nping_ms = 2000",
       "f:2: [overlay] link_timeout_ms: 3000 is too short; it must be at least twice [overlay] ping_ms, that is 4000 "
       "ms"},
      {"[overlay]\nping_ms = 100\nlink_timeout_ms = 100", "f:3: [overlay] link_timeout_ms: 100 is too short"},
      {"[gossip]\nexchange_lifetime_ms = 1000",
       "f:2: [gossip] exchange_lifetime_ms: 1000 is too short; it must be at least twice [overlay] "
       "link_timeout_ms, that is 6000 ms"},
      {"[overlay]\nprobe_timeout_ms = 1000",
       "f:2: [overlay] probe_interval_ms: 1000 is too short; it must be at least one more than"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text);
    CHECK_THAT(problem(text), Catch::Matchers::Contains(message));
  }
}

TEST_CASE("what is no TOML is said with line and column, and in plain words") {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"[node\nname = 1", "the name of a section stands between [ and ], alone on its line: [overlay]"},
      {"[gossip]\ncodec = ", "there is no value behind codec ="},
      {"[gossip]\ncodec = # q4", "there is no value behind codec ="},
      {"[overlay]\nlisten = tcp://*:1", "a text stands in quotes: listen = \"tcp://*:1\""},
      {"listen = 10.0.0.1:26746", "a text stands in quotes: listen = \"10.0.0.1:26746\""},
      {"file = /var/log/x  # here", "a text stands in quotes: file = \"/var/log/x\""},
      {"name = \"x", "the text that begins with \" has no \" at its end"},
      {"name = 'x", "the text that begins with ' has no ' at its end"},
      {"name = \"x\" \"y\"", "there is something behind the text in quotes"},
      {"name = \u201cx\u201d", "\u201c is no quote that TOML knows: write \""},
      {"folder = \"C:\\q\"", "write \\\\, or single quotes"},
      {"clients = yes", "write clients = true or clients = false"},
      {"clients = True", "write clients = true or clients = false"},
      {"period_ms = 50 ms", "a number stands alone, without a unit: period_ms = 50"},
      {"period_ms = 500;", "a number stands alone, without a unit: period_ms = 500"},
      {"period_ms = 050", "a number does not begin with 0"},
      {"period_ms = 99999999999999999999999", "no number here may be so large"},
      {"\xef\xbb\xbfname = x", "the file begins with a byte order mark: save it as UTF-8 without one"},
      {"peers = [\"a\" \"b\"]", "the entries of a list have commas between"},
      {"peers = [\n  \"a\"\n  \"b\"\n]", "the entries of a list have commas between"},
      {"peers = [\"a\",\n", "a list that begins with [ has no ] at its end"},
      {"name: x", "a line is NAME = VALUE, a section such as [overlay], or a comment behind #; here is: name: x"},
      {"= 3", "a line is NAME = VALUE"},
      {"[log]\n[log]", "[log] stands in the file twice"},
      {"[log]\nlevel = \"info\"\nlevel = \"debug\"", "level stands in the file twice"},
      {"\xff\xfe", "the file is not plain text in UTF-8"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text);
    CHECK_THAT(problem(text), Catch::Matchers::Contains(message));
    CHECK_THAT(problem(text), Catch::Matchers::Matches("f:[0-9]+:[0-9]+: [^\n]+"));
  }
  CHECK_THAT(problem("[log]\nlevel = info\n"), Catch::Matchers::StartsWith("f:2:"));
  CHECK_THAT(problem("peers = [\n  \"a\"\n  \"b\"\n]"), Catch::Matchers::StartsWith("f:3:3: "));
  CHECK_THAT(problem(std::string("[log]\nlevel = \0", 15)), Catch::Matchers::Contains("not plain text"));
  // Bytes that could disturb a terminal are not repeated.
  CHECK(problem("a\x1b[2J").find('\x1b') == std::string::npos);
}

TEST_CASE("all problems of a file are said, up to a bound") {
  CHECK(problem("[log]\na = 1\nb = 2") ==
        "f:2: [log] a: no such option; there are level, file, format\nf:3: [log] b: no such option; there are level, "
        "file, format");
  std::string many = "[log]\n";
  for (std::size_t i = 0; i < max_config_problems + 5; ++i)
    many += "option" + std::to_string(i) + " = 1\n";
  CHECK_THAT(problem(many), Catch::Matchers::EndsWith("f: and 5 more problems"));
}

TEST_CASE("a configuration has bounds") {
  CHECK_THAT(problem(std::string(max_config_bytes + 1, '#')), Catch::Matchers::Contains("has at most"));
  std::string peers = "[overlay]\npeers = [";
  for (std::size_t i = 0; i <= max_peers; ++i)
    peers += "\"tcp://a:" + std::to_string(i + 1) + "\",";
  CHECK_THAT(problem(peers + "]"), Catch::Matchers::Contains("at most 1024 are allowed"));
}

TEST_CASE("every beginning of a configuration is read or refused") {
  const std::string sample = commented_defaults();
  for (std::size_t size = 0; size < sample.size(); size += 7) {
    const auto config = parse(sample.substr(0, size), "f");
    if (!config) CHECK_THAT(config.error(), Catch::Matchers::StartsWith("f:"));
  }
}

TEST_CASE("files that cannot be read are named") {
  const test::TemporaryFolder folder;
  CHECK_THAT(load(folder.path() / "none.toml").error(),
             Catch::Matchers::Contains("none.toml: cannot be read: No such"));
  CHECK_THAT(load(folder.path()).error(), Catch::Matchers::Contains("is a folder"));
  test::write_file(folder.path() / "a.toml", "[gossip]\nseed = -1\n");
  CHECK_THAT(load(folder.path() / "a.toml").error(), Catch::Matchers::Contains("a.toml:2: [gossip] seed: -1"));
  test::write_file(folder.path() / "b.toml", "[gossip]\nseed = 1\n");
  CHECK(load(folder.path() / "b.toml")->gossip.seed == 1);
}

TEST_CASE("what is left open follows from the machine") {
  Surroundings machine{"host", "/home/a", "/home/a/state", true, 32};
  Config config = *resolved({}, machine);
  CHECK(config.node.name == "host");
  CHECK(config.node.state_dir == "/var/lib/gossamer");
  CHECK(config.overlay.cluster_key_file == "/var/lib/gossamer/cluster.key");
  CHECK(config.node.workers == default_max_workers);
  CHECK(config.node.io_threads == 3);

  machine.system_state_usable = false;
  machine.cores = 2;
  config = *resolved({}, machine);
  CHECK(config.node.state_dir == "/home/a/state/gossamer");
  CHECK(config.node.workers == 2);
  CHECK(config.node.io_threads == 1);
  machine.state_home.clear();
  CHECK(resolved({}, machine)->node.state_dir == "/home/a/.local/state/gossamer");
  machine.home.clear();
  CHECK_THAT(resolved({}, machine).error(), Catch::Matchers::Contains("Set [node] state_dir"));

  Config given;
  given.node.state_dir = "/given";
  given.node.io_threads = 5;
  CHECK(resolved(given, machine)->overlay.cluster_key_file == "/given/cluster.key");
  CHECK(resolved(given, machine)->node.io_threads == 5);
  CHECK_FALSE(surroundings().host_name.empty());
}

TEST_CASE("a reload changes what can change while running, and names the rest") {
  Config running;
  running.node.name = "old";
  Config next = running;
  next.node.name = "new";
  next.overlay.peers = {"tcp://a:1"};
  next.gossip.codec = CodecChoice::f32;
  next.gossip.seed = 9;
  next.log.level = LogLevel::trace;
  const Reload result = reload(running, next);
  CHECK(result.changed == std::vector<std::string>{"overlay.peers", "gossip.codec", "log.level"});
  CHECK(result.need_restart == std::vector<std::string>{"node.name", "gossip.seed"});
  CHECK(result.config.overlay.peers == next.overlay.peers);
  CHECK(result.config.gossip.codec == CodecChoice::f32);
  CHECK(result.config.log.level == LogLevel::trace);
  CHECK(result.config.node.name == "old");
  CHECK(result.config.gossip.seed == 0);
}
