// Hunts with scenarios of their own: seed after seed, and with rules broken on purpose.

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <stdexcept>

#include "tools/sim/commands.hpp"
#include "tools/sim/hunt/average_scenario.hpp"
#include "tools/sim/hunt/group_scenario.hpp"

namespace gossamer::sim {

namespace {

constexpr std::uint64_t most_seeds_of_sabotage = 300;

struct SeededOptions {
  std::uint64_t first = 1;
  std::uint64_t count = 100;
  bool sabotage = false;
};

struct Broken {
  const char* name;
  std::function<void(std::uint64_t)> run;  // of a seed
};

struct SeededHunt {
  const char* name;
  std::function<void(std::uint64_t)> run;  // of a seed; adds to what tell() says
  std::function<std::string()> tell;
  std::vector<Broken> broken;
};

void hunt(const SeededHunt& scenario, const SeededOptions& options) {
  for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
    try {
      scenario.run(seed);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("seed {}: {}\nagain: gossamer-sim {} --first {} --count 1", seed,
                                           error.what(), scenario.name, seed));
    }
  }
  fmt::print("{} seeds, {}\n", options.count, scenario.tell());
}

void sabotage(const SeededHunt& scenario) {
  std::string missed;
  for (const Broken& broken : scenario.broken) {
    std::string found;
    std::uint64_t seed = 1;
    for (; seed <= most_seeds_of_sabotage && found.empty(); ++seed) {
      try {
        broken.run(seed);
      } catch (const std::exception& error) {
        found = error.what();
      }
    }
    fmt::print("{:18}{}\n", broken.name,
               found.empty() ? "NOT FOUND" : fmt::format("found by seed {}: {}", seed - 1, found));
    if (found.empty()) missed += std::string(missed.empty() ? "" : ", ") + broken.name;
  }
  if (!missed.empty()) throw std::runtime_error("not found: " + missed);
}

void add_scenario(CLI::App& app, SeededHunt scenario, const char* help) {
  const auto options = std::make_shared<SeededOptions>();
  CLI::App* command = app.add_subcommand(scenario.name, help);
  command->add_option("--first", options->first, "The first seed (default 1).");
  command->add_option("--count", options->count, "How many seeds (default 100).");
  command->add_flag("--sabotage", options->sabotage, "Breaks each rule on purpose instead; every one must be found.");
  command->callback(
      [options, scenario = std::move(scenario)] { options->sabotage ? sabotage(scenario) : hunt(scenario, *options); });
}

}  // namespace

void add_groups_command(CLI::App& app) {
  const auto all = std::make_shared<GroupOutcome>();
  SeededHunt scenario{
      .name = "groups",
      .run =
          [all](std::uint64_t seed) {
            const GroupOutcome one = run_group_scenario(seed);
            all->events += one.events;
            all->deaths += one.deaths;
            all->exchanges += one.exchanges;
            all->steps += one.steps;
            all->ends += one.ends;
            all->changes += one.changes;
          },
      .tell =
          [all] {
            return fmt::format(
                "{} events, {} deaths of daemons, {} clients that went, came or published NaN, {} steps "
                "of clients, {} exchanges of the last lives, {} ends",
                all->events, all->deaths, all->changes, all->steps, all->exchanges, all->ends);
          },
      .broken = {}};
  for (const GroupFaultRule& rule : group_faults())
    scenario.broken.push_back({rule.name, [&rule](std::uint64_t seed) { (void)run_group_scenario(seed, rule.fault); }});
  add_scenario(app, std::move(scenario), "Hunts among nodes with several clients, whose daemons die.");
}

void add_average_command(CLI::App& app) {
  const auto all = std::make_shared<AverageOutcome>();
  SeededHunt scenario{.name = "average",
                      .run =
                          [all](std::uint64_t seed) {
                            const AverageOutcome one = run_average_scenario(seed);
                            all->events += one.events;
                            all->rounds += one.rounds;
                            all->contributions += one.contributions;
                            all->deaths += one.deaths;
                            all->entered += one.entered;
                            all->repeated += one.repeated;
                            all->blocked += one.blocked;
                          },
                      .tell =
                          [all] {
                            return fmt::format(
                                "{} events, {} rounds of {} contributions, {} plans given up, {} deaths, {} nodes that "
                                "entered, {} runs without a quorum in the end",
                                all->events, all->rounds, all->contributions, all->repeated, all->deaths, all->entered,
                                all->blocked);
                          },
                      .broken = {}};
  for (const AverageFaultRule& rule : average_faults()) {
    scenario.broken.push_back(
        {rule.name, [&rule](std::uint64_t seed) { (void)run_average_scenario(seed, rule.fault); }});
  }
  add_scenario(app, std::move(scenario), "Hunts among members that average exactly, and die.");
}

}  // namespace gossamer::sim
