// The hunts with the group and average scenarios: seed after seed, and with rules broken on purpose.

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <stdexcept>

#include "tools/sim/commands.hpp"
#include "tools/sim/hunt/average_scenario.hpp"
#include "tools/sim/hunt/group_scenario.hpp"
#include "tools/sim/hunt/rate_scenario.hpp"

namespace gossamer::sim {

namespace {

constexpr std::uint64_t most_seeds_of_sabotage = 300;

struct SeededOptions {
  std::uint64_t first = 1;
  std::uint64_t count = 100;
  bool fresh = false;
  bool sabotage = false;
};

template <class Outcome, class Fault>
struct SeededScenario {
  const char* name;
  Outcome (*run)(std::uint64_t seed, Fault fault);
  std::span<const FaultRule<Fault>> faults;

  void hunt(const SeededOptions& options) const {
    auto totals = Outcome{}.counts();
    const std::uint64_t first = options.fresh ? fresh_seed() : options.first;
    for (std::uint64_t seed = first; seed < first + options.count; ++seed) {
      try {
        const auto counts = run(seed, Fault::none).counts();
        for (std::size_t i = 0; i < totals.size(); ++i)
          totals[i].value += counts[i].value;
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(
            fmt::format("seed {}: {}\nagain: gossamer-sim {} --first {} --count 1", seed, error.what(), name, seed));
      }
    }
    fmt::print("{} seeds from {}", options.count, first);
    for (const ScenarioCount& total : totals)
      fmt::print(", {} {}", total.value, total.what);
    fmt::print("\n");
  }

  void sabotage() const {
    std::string missed;
    for (const FaultRule<Fault>& rule : faults) {
      std::string found;
      std::uint64_t seed = 1;
      for (; seed <= most_seeds_of_sabotage && found.empty(); ++seed) {
        try {
          (void)run(seed, rule.fault);
        } catch (const std::exception& error) {
          found = error.what();
        }
      }
      fmt::print("{:18}{}\n", rule.name,
                 found.empty() ? "NOT FOUND" : fmt::format("found by seed {}: {}", seed - 1, found));
      if (found.empty()) missed += std::string(missed.empty() ? "" : ", ") + rule.name;
    }
    if (!missed.empty()) throw std::runtime_error("not found: " + missed);
  }

  void add_to(CLI::App& app, const char* help) const {
    const auto options = std::make_shared<SeededOptions>();
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("--first", options->first, "The first seed (default 1).");
    command->add_flag("--fresh", options->fresh, "Begins with a seed that nobody knows yet.")->excludes("--first");
    command->add_option("--count", options->count, "How many seeds (default 100).");
    command->add_flag("--sabotage", options->sabotage, "Breaks each rule on purpose instead; every one must be found.");
    command->callback(
        [options, scenario = *this] { options->sabotage ? scenario.sabotage() : scenario.hunt(*options); });
  }
};

}  // namespace

void add_groups_command(CLI::App& app) {
  SeededScenario<GroupOutcome, GroupFault>{.name = "groups", .run = run_group_scenario, .faults = group_faults}.add_to(
      app, "Hunts among nodes with several clients, whose daemons die.");
}

void add_average_command(CLI::App& app) {
  SeededScenario<AverageOutcome, AverageFault>{.name = "average", .run = run_average_scenario, .faults = average_faults}
      .add_to(app, "Hunts among members that average exactly, and die.");
}

void add_rate_command(CLI::App& app) {
  SeededScenario<RateOutcome, RateFault>{.name = "rate", .run = run_rate_scenario, .faults = rate_faults}.add_to(
      app, "Hunts for companions that slow replicas which train together.");
}

}  // namespace gossamer::sim
