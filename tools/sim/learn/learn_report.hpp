// Reports on learning runs: a table for people, CSV for programs, charts.
//
// Pure; any thread.

#pragma once

#include <span>
#include <string>

#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

/// A summary says when these values were reached; 0: not asked for.
struct Targets {
  double accuracy = 0;
  double loss = 0;
  double stationary_loss = 0;  ///< that of one node; compared with stationary_loss() times the number of nodes
};

/// Writes a line for each record: method, virtual time, samples and bytes, loss and accuracy of the mean model,
/// consensus distance, and each node's clock (samples; empty for nodes that a run does not have).
[[nodiscard]] std::string learn_csv(std::span<const LearningRun> runs);
[[nodiscard]] std::string learn_svg(const std::string& heading, std::span<const LearningRun> runs);
/// Each entry of `runs` has one method's runs with different seeds. The table gives means and deviations.
[[nodiscard]] std::string learn_table(std::span<const std::vector<LearningRun>> runs, const Targets& targets);
[[nodiscard]] std::string learn_json(std::span<const LearningRun> runs, const Targets& targets);

}  // namespace gossamer::sim
