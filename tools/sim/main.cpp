// gossamer-sim runs the shipped decisions of gossip/ under virtual time, to hunt for faults and to measure learning.
//
// One seed decides everything. Results go to standard output and to the files that options name.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "tools/sim/commands.hpp"

int main(int argc, char** argv) {
  CLI::App app("Runs Gossamer's decisions under virtual time, from one seed.");
  app.set_version_flag("--version", std::string("gossamer-sim ") + GOSSAMER_VERSION);
  gossamer::sim::add_hunt_options(app);
  gossamer::sim::add_groups_command(app);
  gossamer::sim::add_average_command(app);
  gossamer::sim::add_rate_command(app);
  gossamer::sim::add_learn_command(app);
  gossamer::sim::add_drive_command(app);
  gossamer::sim::add_membership_command(app);
  gossamer::sim::add_consensus_command(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const gossamer::sim::UsageError& error) {
    std::fprintf(stderr, "gossamer-sim: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gossamer-sim: %s\n", error.what());
    return 1;
  }
}
