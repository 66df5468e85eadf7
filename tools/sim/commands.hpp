// The subcommands of gossamer-sim, one file each. An add_…_command() declares a subcommand with its options; the
// subcommand runs when the command line is parsed, and throws UsageError for a wrong request. Main thread.

#pragma once

#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace gossamer::sim {

/// The request cannot be simulated; the message says what to ask instead.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws UsageError if the file cannot be written.
void write_file(const std::string& path, const std::string& contents);

/// Trains small models with true gradients on simulated nodes.
void add_learn_command(CLI::App& app);

/// Simulates nodes that a program trains.
void add_drive_command(CLI::App& app);

/// Adds the program's own options: --seeds, --minutes, --fresh, --replay, --trace, --nodes. If an invariant is broken,
/// the program ends with status 1.
void add_hunt_options(CLI::App& app);

/// Simulates nodes with several clients, whose daemons die.
void add_groups_command(CLI::App& app);
void add_average_command(CLI::App& app);
void add_rate_command(CLI::App& app);
void add_membership_command(CLI::App& app);

/// Averages random vectors, without learning.
void add_consensus_command(CLI::App& app);

}  // namespace gossamer::sim
