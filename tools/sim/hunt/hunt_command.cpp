// Hunts: runs run_scenario() with seed after seed, until an invariant breaks, or the seeds or the time are used up.

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>

#include <unistd.h>

#include "tools/sim/commands.hpp"
#include "tools/sim/hunt/sabotage.hpp"
#include "tools/sim/hunt/seeded_scenario.hpp"

namespace gossamer::sim {

namespace {

struct HuntOptions {
  std::string seeds;
  std::string replay;
  std::string sabotage;
  double minutes = 0;
  std::size_t nodes = 0;
  bool trace = false;
  bool fresh = false;
};

struct Tally {
  std::uint64_t seeds = 0;
  std::uint64_t events = 0;
  std::uint64_t faults = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t halves = 0;
  TimeUs virtual_us = 0;
  double waited = 0;

  void add(const HuntOutcome& outcome) {
    ++seeds;
    events += outcome.events;
    faults += outcome.faults;
    exchanges += outcome.exchanges;
    halves += outcome.halves;
    virtual_us += outcome.virtual_us;
    waited = std::max(waited, outcome.waited);
  }
};

/// "gossamer-sim --replay 123", for the reader of a broken GOSSAMER_CHECK. Written before each seed.
char replay_hint[96] = "";

extern "C" void say_replay_hint(int) {
  if (write(STDERR_FILENO, replay_hint, std::strlen(replay_hint)) < 0) return;
}

std::uint64_t seed_of(const std::string& text, const std::string& option) {
  const bool digits =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  try {
    if (digits) return std::stoull(text);
  } catch (const std::out_of_range&) {
  }
  throw UsageError(fmt::format("{}: '{}' is not a seed; give a number from 0 to 2^64 - 1", option, text));
}

/// Reads "A..B", or one seed.
std::pair<std::uint64_t, std::uint64_t> range_of(const std::string& text) {
  const auto dots = text.find("..");
  if (dots == std::string::npos) {
    const std::uint64_t seed = seed_of(text, "--seeds");
    return {seed, seed};
  }
  const std::pair range(seed_of(text.substr(0, dots), "--seeds"), seed_of(text.substr(dots + 2), "--seeds"));
  if (range.first > range.second) {
    throw UsageError(fmt::format("--seeds {}: the first seed is larger than the last; give A..B with A <= B", text));
  }
  return range;
}

Swarm swarm_of(std::uint64_t seed, const HuntOptions& options) {
  Swarm swarm = draw_swarm(seed);
  if (options.nodes != 0) swarm.nodes = options.nodes;
  return swarm;
}

HuntOutcome run_seed(std::uint64_t seed, const HuntOptions& options, std::FILE* story) {
  const Swarm swarm = swarm_of(seed, options);
  const std::string replay = fmt::format("gossamer-sim --replay {}{}", seed,
                                         options.nodes != 0 ? fmt::format(" --nodes {}", options.nodes) : "");
  std::snprintf(replay_hint, sizeof replay_hint, "replay: %s --trace\n", replay.c_str());
  const HuntOutcome outcome = run_scenario(swarm, story);
  if (!outcome.violation.empty()) {
    fmt::print("seed {}: VIOLATION {}\n{}\nthe events that led there:\n{}replay: {} --trace\n", seed, outcome.violation,
               describe(swarm), outcome.explanation, replay);
  }
  return outcome;
}

void report(const Tally& tally, double seconds) {
  fmt::print(
      "{} seeds, {} events, {} faults, {} exchanges ({} more at one end only, each for a reason), {:.0f} s of virtual "
      "time in {:.1f} s: {:.0f} faults/s, {:.0f} events/s, {:.1f} x real time; longest wait for an exchange: {:.0f} % "
      "of what is allowed\n",
      tally.seeds, tally.events, tally.faults, tally.exchanges, tally.halves,
      static_cast<double>(tally.virtual_us) / us_per_s, seconds, static_cast<double>(tally.faults) / seconds,
      static_cast<double>(tally.events) / seconds, static_cast<double>(tally.virtual_us) / us_per_s / seconds,
      100 * tally.waited);
}

int hunt(const HuntOptions& options) {
  auto [seed, last] = std::pair<std::uint64_t, std::uint64_t>(1, UINT64_MAX);
  if (!options.seeds.empty()) std::tie(seed, last) = range_of(options.seeds);
  if (options.fresh) {
    seed = fresh_seed();
    last = UINT64_MAX;
  }
  fmt::print("first seed {}\n", seed);
  std::fflush(stdout);
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  Tally tally;
  bool sound = true;
  while (sound) {
    const HuntOutcome outcome = run_seed(seed, options, nullptr);
    tally.add(outcome);
    sound = outcome.violation.empty();
    if (seed == last || (options.minutes > 0 && seconds() >= 60 * options.minutes)) break;
    ++seed;
  }
  report(tally, seconds());
  return sound ? 0 : 1;
}

int replay(const HuntOptions& options) {
  const std::uint64_t seed = seed_of(options.replay, "--replay");
  fmt::print("seed {}: {}\n", seed, describe(swarm_of(seed, options)));
  const HuntOutcome outcome = run_seed(seed, options, options.trace ? stdout : nullptr);
  fmt::print("{} events, {} faults, {} exchanges, {:.3f} s of virtual time, trace hash {:016x}\n", outcome.events,
             outcome.faults, outcome.exchanges, static_cast<double>(outcome.virtual_us) / us_per_s, outcome.hash);
  return outcome.violation.empty() ? 0 : 1;
}

/// Hunts with the rule broken until its oracle notices. False if that takes longer than a minute of a processor.
bool finds(const SabotageRule& rule) {
  constexpr double patience_s = 60;
  const std::clock_t begin = std::clock();
  const auto seconds = [&] { return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC; };
  HuntOutcome outcome;
  while (!found_by_its_oracle(rule, outcome) && seconds() < patience_s) {
    outcome = run_sabotage(rule, outcome.seed + 1);
    if (outcome.violation.empty() || found_by_its_oracle(rule, outcome)) continue;
    fmt::print("{:15} seed {}: by another oracle, {}\n", rule.name, outcome.seed, outcome.violation);
  }
  const bool found = found_by_its_oracle(rule, outcome);
  fmt::print("{:15} {} ({}): {} seeds, {:.1f} s\n", rule.name, found ? "found" : "NOT FOUND", rule.broken, outcome.seed,
             seconds());
  if (found) fmt::print("{:15} {}\n", "", outcome.violation);
  std::fflush(stdout);
  return found;
}

int sabotage(const std::string& name) {
  if (name == "all") {
    const auto rules = sabotage_rules();
    return static_cast<int>(std::count_if(rules.begin(), rules.end(), [](const auto& rule) { return !finds(rule); }));
  }
  const SabotageRule* rule = sabotage_called(name);
  if (rule != nullptr) return finds(*rule) ? 0 : 1;
  std::string names;
  for (const SabotageRule& known : sabotage_rules())
    names += fmt::format("\n  {:15} {}", known.name, known.broken);
  if (name == "list") {
    fmt::print("{}\n", names.substr(1));
    return 0;
  }
  throw UsageError(fmt::format("--sabotage: no rule is called '{}'; give all, list, or one of{}", name, names));
}

}  // namespace

void add_hunt_options(CLI::App& app) {
  auto options = std::make_shared<HuntOptions>();
  app.add_option("--seeds", options->seeds, "hunt through seeds A..B (or one seed)");
  app.add_option("--minutes", options->minutes, "hunt for at most this long (default: until the seeds are through)");
  app.add_flag("--fresh", options->fresh, "hunt from a first seed that nobody knows yet; it is printed");
  app.add_option("--replay", options->replay, "run this seed once");
  app.add_option(
      "--sabotage", options->sabotage,
      "break this rule on purpose, and fail if the hunt does not see it within a minute; all: one by one; list: "
      "print them");
  app.add_flag("--trace", options->trace, "with --replay: tell every event");
  app.add_option("--nodes", options->nodes, "nodes at the beginning, 2 to 64 (default: drawn from the seed)");
  app.callback([options, &app] {
    const bool hunts = !options->seeds.empty() || options->fresh || options->minutes != 0;
    if (!options->sabotage.empty()) {
      if (hunts || !options->replay.empty() || options->trace || options->nodes != 0)
        throw UsageError("--sabotage chooses its runs itself; leave the other options out");
      if (const int status = sabotage(options->sabotage); status != 0) throw CLI::RuntimeError(status);
      return;
    }
    if (!hunts && options->replay.empty() && !options->trace && options->nodes == 0) {
      if (app.get_subcommands().empty()) throw CLI::CallForHelp();
      return;
    }
    if (options->nodes == 1 || options->nodes > 64) throw UsageError("--nodes: give 2 to 64");
    if (!(options->minutes >= 0)) throw UsageError("--minutes: give a time above 0");
    if (options->fresh && !options->seeds.empty()) {
      throw UsageError(
          "--fresh draws the first seed itself; leave --seeds out, or name the seeds and leave --fresh out");
    }
    if (options->fresh && options->minutes == 0)
      throw UsageError("--fresh goes on for ever; say how long with --minutes");
    if (!options->replay.empty() && hunts)
      throw UsageError("--replay runs one seed; leave --seeds, --minutes and --fresh out");
    if (options->nodes != 0 && !hunts && options->replay.empty())
      throw UsageError("--nodes belongs to --seeds, --fresh, --minutes or --replay");
    if (options->trace && options->replay.empty())
      throw UsageError("--trace tells one seed's story; name it with --replay");
    std::signal(SIGABRT, say_replay_hint);
    const int status = options->replay.empty() ? hunt(*options) : replay(*options);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace gossamer::sim
