// gossamer-sim consensus shows how fast random vectors agree without learning: partner schedules, CHOCO, and the
// shipped replicas.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>

#include "tools/sim/commands.hpp"
#include "tools/sim/learn/consensus_run.hpp"
#include "tools/sim/plot.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t max_consensus_nodes = 1'024;
constexpr double reached_error = 1e-6;  // the table counts the rounds to this error
constexpr double kilo = 1e3;

struct ConsensusCommandOptions {
  ConsensusOptions consensus;
  std::string methods = "schedule:ring,schedule:one-peer-exponential,schedule:base,gossip:q8,gossip:q4,choco:q8";
  std::string csv_file;
  std::string plot_file;
};

std::string csv_of(const std::vector<ConsensusCurve>& curves) {
  std::string out = "method,round,bytes_per_node,relative_error\n";
  for (const auto& curve : curves) {
    for (const auto& point : curve.points)
      out += fmt::format("{},{},{:.0f},{:.6g}\n", curve.name, point.round, point.bytes, point.error);
  }
  return out;
}

std::string svg_of(const std::vector<ConsensusCurve>& curves, const ConsensusOptions& options) {
  std::vector<Chart> charts(2);
  charts[0] = {"Consensus over rounds", {"rounds", false}, {"squared distance, relative", true}, {}};
  charts[1] = {"Consensus over bytes", {"sent by a node (kB)", true}, {"squared distance, relative", true}, {}};
  for (std::size_t n = 0; n < curves.size(); ++n) {
    Series rounds{.name = curves[n].name, .colour = n};
    Series bytes{.name = curves[n].name, .colour = n};
    for (const auto& point : curves[n].points) {
      // Smaller errors are below the rounding of fp32.
      const double error = std::max(point.error, 1e-16);
      rounds.points.emplace_back(point.round, error);
      bytes.points.emplace_back(point.bytes / kilo, error);
    }
    charts[0].series.push_back(std::move(rounds));
    charts[1].series.push_back(std::move(bytes));
  }
  return render_svg(
      fmt::format("Averaging {} vectors of {} elements, {}", options.nodes, options.elements, options.topology),
      charts);
}

void run(const ConsensusCommandOptions& options) {
  if (options.consensus.nodes > max_consensus_nodes)
    throw UsageError(fmt::format("--nodes takes 2 to {}", max_consensus_nodes));
  std::vector<ConsensusCurve> curves;
  std::istringstream stream(options.methods);
  for (std::string method; std::getline(stream, method, ',');)
    curves.push_back(run_consensus(method, options.consensus));
  if (!options.csv_file.empty()) write_file(options.csv_file, csv_of(curves));
  if (!options.plot_file.empty()) write_file(options.plot_file, svg_of(curves, options.consensus));
  fmt::print("{:<32} {:>12} {:>12} {:>20} {:>14}\n", "method", "error at end", "kB a node", "rounds to 1e-6",
             "kB to 1e-6");
  for (const auto& curve : curves) {
    const auto reached = std::find_if(curve.points.begin(), curve.points.end(),
                                      [](const ConsensusPoint& point) { return point.error <= reached_error; });
    const ConsensusPoint& last = curve.points.back();
    const bool there = reached != curve.points.end();
    fmt::print("{:<32} {:>12.3g} {:>12.1f} {:>20} {:>14}\n", curve.name, last.error, last.bytes / kilo,
               there ? fmt::format("{}", reached->round) : "-",
               there ? fmt::format("{:.1f}", reached->bytes / kilo) : "-");
  }
}

}  // namespace

void add_consensus_command(CLI::App& app) {
  auto* command = app.add_subcommand("consensus", "Averages random vectors, without learning.");
  auto options = std::make_shared<ConsensusCommandOptions>();
  command->add_option("--nodes", options->consensus.nodes, "(25)");
  command->add_option("--elements", options->consensus.elements, "of a vector (1024)");
  command->add_option("--rounds", options->consensus.rounds, "(60)");
  command->add_option("--topology", options->consensus.topology, "of mixing, choco, plain and gossip (ring)");
  command->add_option("--consensus-rate", options->consensus.consensus_rate, "of choco (1)");
  command->add_option("--seed", options->consensus.seed, "of everything (1)");
  command->add_option("--method", options->methods,
                      "with commas: schedule:RULE, mixing, choco:CODEC, plain:CODEC, gossip:CODEC");
  command->add_option("--csv", options->csv_file, "write every round here");
  command->add_option("--plot", options->plot_file, "draw the curves here (SVG)");
  command->callback([options] { run(*options); });
}

}  // namespace gossamer::sim
