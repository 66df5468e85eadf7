// Hunts among nodes with several clients: runs run_group_scenario() with seed after seed.

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <memory>
#include <stdexcept>

#include "tools/sim/commands.hpp"
#include "tools/sim/hunt/group_scenario.hpp"

namespace gossamer::sim {

namespace {

constexpr std::uint64_t most_seeds_of_sabotage = 300;

struct GroupHuntOptions {
  std::uint64_t first = 1;
  std::uint64_t count = 100;
  bool sabotage = false;
};

void hunt(const GroupHuntOptions& options) {
  GroupOutcome all;
  for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
    try {
      const GroupOutcome one = run_group_scenario(seed);
      all.events += one.events;
      all.deaths += one.deaths;
      all.exchanges += one.exchanges;
      all.steps += one.steps;
      all.ends += one.ends;
      all.changes += one.changes;
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(
          fmt::format("seed {}: {}\nagain: gossamer-sim groups --first {} --count 1", seed, error.what(), seed));
    }
  }
  fmt::print(
      "{} seeds, {} events, {} deaths of daemons, {} clients that went, came or published NaN, {} steps of clients, {} "
      "exchanges of the last lives, {} ends\n",
      options.count, all.events, all.deaths, all.changes, all.steps, all.exchanges, all.ends);
}

void sabotage() {
  std::string missed;
  for (const GroupFaultRule& rule : group_faults()) {
    std::string found;
    std::uint64_t seed = 1;
    for (; seed <= most_seeds_of_sabotage && found.empty(); ++seed) {
      try {
        (void)run_group_scenario(seed, rule.fault);
      } catch (const std::runtime_error& error) {
        found = error.what();
      }
    }
    fmt::print("{:18}{}\n", rule.name,
               found.empty() ? "NOT FOUND" : fmt::format("found by seed {}: {}", seed - 1, found));
    if (found.empty()) missed += std::string(missed.empty() ? "" : ", ") + rule.name;
  }
  if (!missed.empty()) throw std::runtime_error("not found: " + missed);
}

}  // namespace

void add_groups_command(CLI::App& app) {
  const auto options = std::make_shared<GroupHuntOptions>();
  CLI::App* command = app.add_subcommand("groups", "Hunts among nodes with several clients, whose daemons die.");
  command->add_option("--first", options->first, "The first seed (default 1).");
  command->add_option("--count", options->count, "How many seeds (default 100).");
  command->add_flag("--sabotage", options->sabotage, "Breaks each rule on purpose instead; every one must be found.");
  command->callback([options] { options->sabotage ? sabotage() : hunt(*options); });
}

}  // namespace gossamer::sim
