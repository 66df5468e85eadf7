// gossamer-bench: what Gossamer's parts cost on this machine, as ratios to references measured in the same run.
//
// Every subcommand interleaves what it measures with its references, several rounds over, and reports the spread:
// figures of one machine at one moment, not tests.

#include <CLI/CLI.hpp>

#include "tools/bench/commands.hpp"

int main(int argc, char** argv) {
  CLI::App app("Measures Gossamer on this machine, beside references measured in the same run.");
  app.require_subcommand(1);
  gossamer::bench::add_codec_command(app);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
