// gossamer-bench measures the cost of Gossamer's parts on this machine, as ratios to references measured in the same
// run.
//
// Every subcommand interleaves its measurements with its references over several rounds, and reports the spread. The
// figures belong to one machine at one moment; they are not tests.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "tools/bench/commands.hpp"

int main(int argc, char** argv) {
  CLI::App app("Measures Gossamer on this machine, beside references measured in the same run.");
  app.set_version_flag("--version", std::string("gossamer-bench ") + GOSSAMER_VERSION);
  app.require_subcommand(1);
  gossamer::bench::add_codec_command(app);
  gossamer::bench::add_step_command(app);
  gossamer::bench::add_exchange_command(app);
  gossamer::bench::add_links_command(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gossamer-bench: %s\n", error.what());
    return 1;
  }
}
