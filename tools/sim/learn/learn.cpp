// gossamer-sim learn trains a small model with true gradients on simulated nodes, by gossip on the shipped replicas and
// by the methods it is compared with, and writes reports.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <sstream>

#include "tools/sim/commands.hpp"
#include "tools/sim/learn/baseline.hpp"
#include "tools/sim/learn/gossip_run.hpp"
#include "tools/sim/learn/learn_report.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t max_learning_nodes = 4'096;

struct LearnOptions {
  std::string workload = "mlp";
  std::string methods = "gossip";
  WorkloadOptions data;
  Experiment experiment;
  std::string partition = "iid";
  std::string codec = "q8";
  std::string rule = "sgd";
  std::string speeds;
  std::string schedule = "constant";
  std::string attack = "none";
  double straggler = 1;
  std::string partners = "random";
  std::uint32_t degree = 4;
  std::string outer = "none";
  double outer_period_steps = 50;
  double memory_gb_s = 10;
  double period_steps = 1;
  double step_ms = 10;
  double latency_ms = 0.5;
  double jitter_ms = 0;
  double mbit = 0;
  double seconds = 0;
  std::uint64_t steps = 1'000;
  std::uint64_t samples = 0;
  double learning_rate = 0;
  double momentum = -1;
  Targets targets;
  std::string csv_file;
  std::string plot_file;
  std::size_t seeds = 1;
  bool json = false;
};

void declare_options(CLI::App& command, LearnOptions& options);

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');)
    parts.push_back(part);
  return parts;
}

std::vector<double> parse_speeds(const LearnOptions& options) {
  if (options.straggler < 1) throw UsageError("--straggler takes how many times slower the first node is, at least 1");
  std::vector<double> speeds;
  for (const std::string& part : split(options.speeds)) {
    char* end = nullptr;
    speeds.push_back(std::strtod(part.c_str(), &end));
    if (part.empty() || *end != '\0' || !(speeds.back() > 0) || speeds.back() > 1000)
      throw UsageError("--speeds takes positive numbers, as 1,1,0.25");
  }
  if (speeds.size() > options.experiment.nodes) throw UsageError("more --speeds than nodes");
  if (options.straggler > 1) {
    if (!speeds.empty()) throw UsageError("--straggler and --speeds exclude each other");
    speeds = {1 / options.straggler};
  }
  return speeds;
}

TimeUs to_us(double milliseconds) {
  return static_cast<TimeUs>(std::llround(milliseconds * us_per_ms));
}

/// Learning rates that suit the workload: found by hand for one node with batches of 16.
double default_rate(const std::string& workload) {
  if (workload == "quadratic") return 0.05;
  if (workload == "logistic") return 0.2;
  return workload == "mlp" ? 0.05 : 0.1;
}

void complete_learning(const LearnOptions& options, Experiment& experiment) {
  constexpr Named<bool> schedules[] = {{"constant", false}, {"cosine", true}};
  experiment.sharding.partition = value_named("partition", options.partition, partitions);
  experiment.trainer.rule = value_named("local rule", options.rule, local_rules);
  experiment.cosine = value_named("schedule", options.schedule, schedules);
  const bool quadratic = options.workload == "quadratic";
  experiment.trainer.momentum = options.momentum >= 0 ? options.momentum : quadratic ? 0.0 : 0.9;
  if (experiment.trainer.momentum >= 1) throw UsageError("--momentum is less than 1");
  experiment.learning_rate = options.learning_rate > 0 ? options.learning_rate : default_rate(options.workload);
}

/// Sets the options that only the shipped replicas have.
void complete_gossip(const LearnOptions& options, Experiment& experiment) {
  gossip::ReplicaOptions& replica = experiment.replica;
  replica.codec = value_named("codec", options.codec, codecs);
  replica.period_us = std::max<TimeUs>(1, to_us(options.period_steps * options.step_ms));
  const auto policy = gossip::policy_of(options.partners);
  if (!policy) throw UsageError("unknown partner rule '" + options.partners + "'");
  replica.partners = {*policy, options.degree};
  const auto objection = gossip::objection(replica.partners, experiment.nodes + experiment.keepers);
  if (objection && experiment.nodes > 1) throw UsageError(*objection);
  experiment.outer_rule = value_named("outer optimiser", options.outer, outer_rules);
  if (experiment.outer_rule == OuterRule::delayed) {
    replica.outer.rate = static_cast<float>(experiment.outer_rate);
    replica.outer.momentum = static_cast<float>(experiment.outer_momentum);
  }
  replica.outer.period_us = to_us(options.outer_period_steps * options.step_ms);
  experiment.memory_bytes_per_s = options.memory_gb_s * 1e9;
  experiment.attack = value_named("attack", options.attack, attacks);
  if (experiment.attack != AttackKind::none &&
      (experiment.attackers == 0 || experiment.nodes < 2 + experiment.attackers))
    throw UsageError("an attack takes attackers, and at least 2 nodes beside them");
  if (experiment.replica.clip < 0) throw UsageError("--clip is not negative");
}

/// Makes an experiment from the options; throws UsageError for one that cannot be run.
Experiment complete(const LearnOptions& options) {
  Experiment experiment = options.experiment;
  if (experiment.nodes == 0 || experiment.nodes > max_learning_nodes)
    throw UsageError(fmt::format("--nodes takes 1 to {}", max_learning_nodes));
  if (experiment.batch == 0 || options.steps == 0 || !(options.step_ms > 0) || !(options.period_steps > 0) ||
      experiment.fragments == 0 || experiment.evaluations == 0)
    throw UsageError("--batch, --steps, --step-ms, --period-steps, --fragments and --evaluations are positive");
  if (options.latency_ms < 0 || options.jitter_ms < 0 || options.mbit < 0 || !(experiment.byte_scale > 0))
    throw UsageError("--latency-ms, --jitter-ms and --mbit are not negative, --model-scale is positive");
  if (experiment.path.loss < 0 || experiment.path.loss >= 1) throw UsageError("--drop is a probability below 1");
  complete_learning(options, experiment);
  experiment.speeds = parse_speeds(options);
  experiment.step_us = std::max<TimeUs>(1, to_us(options.step_ms));
  experiment.path.latency_us = to_us(options.latency_ms);
  experiment.path.jitter_us = to_us(options.jitter_ms);
  experiment.node_bytes_per_s = options.mbit * 1e6 / 8;
  complete_gossip(options, experiment);
  experiment.period_steps = std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(options.period_steps)));
  const std::uint64_t a_step = options.workload == "quadratic" ? 1 : experiment.batch;
  std::uint64_t steps = options.steps;
  if (options.seconds > 0) steps = static_cast<std::uint64_t>(options.seconds * 1e3 / options.step_ms) + 1;
  experiment.samples = options.samples > 0 ? options.samples : steps * a_step * experiment.nodes;
  return experiment;
}

/// "gossip:codec=q4:period-steps=16": a method with its own options, written as on the command line.
struct Variant {
  std::string name;
  std::string method;
  LearnOptions options;
};

Variant variant(const LearnOptions& options, const std::string& text) {
  std::istringstream stream(text);
  Variant result{text, {}, options};
  std::getline(stream, result.method, ':');
  std::string line = options.workload;
  for (std::string part; std::getline(stream, part, ':');)
    line += " --" + part;
  CLI::App again;
  declare_options(again, result.options);
  try {
    again.parse(line);
  } catch (const CLI::ParseError& error) {
    throw UsageError("in '" + text + "': " + error.what());
  }
  return result;
}

/// Makes one run for each seed.
std::vector<LearningRun> run_variant(const Variant& variant, const Workload& workload) {
  Experiment experiment = complete(variant.options);
  std::vector<LearningRun> runs;
  if (variant.method == "gossip" && experiment.outer_rule == OuterRule::nesterov)
    throw UsageError("gossip's outer optimiser is none or delayed");
  for (std::size_t n = 0; n < variant.options.seeds; ++n, ++experiment.seed) {
    const auto begin = std::chrono::steady_clock::now();  // real time, for people: how long the simulation took
    runs.push_back(variant.method == "gossip" ? run_gossip(workload, experiment)
                                              : run_baseline(variant.method, workload, experiment));
    runs.back().method = variant.name;
    runs.back().wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return runs;
}

void run_learn(const LearnOptions& options) {
  if (options.seeds == 0) throw UsageError("--seeds is at least 1");
  const Experiment experiment = complete(options);
  Targets targets = options.targets;
  if (options.workload == "quadratic" && experiment.trainer.momentum == 0) {
    const QuadraticOptions& quadratic = options.data.quadratic;
    const double rate = experiment.learning_rate;
    targets.stationary_loss = 0.5 * rate * quadratic.sigma * quadratic.sigma / (2 - rate * quadratic.curvature);
  }
  const auto workload = make_workload(options.workload, options.data);
  std::vector<Variant> variants;
  for (const std::string& method : split(options.methods))
    variants.push_back(variant(options, method));
  if (variants.empty()) throw UsageError("--method names at least one method");
  std::vector<std::vector<LearningRun>> runs;
  std::vector<LearningRun> first;  // each variant's first run, for the charts and the CSV
  for (const Variant& one : variants) {
    runs.push_back(run_variant(one, *workload));
    first.push_back(runs.back().front());
  }
  const std::string heading = fmt::format("{} on {} nodes, {} shards, {} every {:g} steps", options.workload,
                                          experiment.nodes, options.partition, options.codec, options.period_steps);
  if (!options.csv_file.empty()) write_file(options.csv_file, learn_csv(first));
  if (!options.plot_file.empty()) write_file(options.plot_file, learn_svg(heading, first));
  if (options.json) {
    std::vector<LearningRun> all;
    for (const auto& of_one : runs)
      all.insert(all.end(), of_one.begin(), of_one.end());
    std::fputs(learn_json(all, targets).c_str(), stdout);
    return;
  }
  fmt::print("{} ({} elements), {} samples, seeds {} to {}\n{}", heading, workload->elements(), experiment.samples,
             experiment.seed, experiment.seed + options.seeds - 1, learn_table(runs, targets));
}

void add_learning_options(CLI::App& command, LearnOptions& options) {
  Experiment& experiment = options.experiment;
  command.add_option("workload", options.workload, "quadratic, logistic, mlp or text")->required();
  command.add_option("--nodes", experiment.nodes, "nodes (8)");
  command.add_option("--partition", options.partition, "who has which data: iid, shared, sorted or dirichlet (iid)");
  command.add_option("--alpha", experiment.sharding.alpha, "of dirichlet (0.5)");
  command.add_option(
      "--method", options.methods,
      "gossip, allreduce, local, dpsgd, scclip, choco, diloco, async-local, server, tracking, pushsum; several "
      "with commas, each with options of its own after colons, as gossip:codec=q4:period-steps=16 (gossip)");
  command.add_option("--steps", options.steps, "training steps a node, on average (1000)");
  command.add_option("--samples", options.samples, "samples of all nodes together, instead of --steps");
  command.add_option("--seconds", options.seconds, "virtual time at speed 1, instead of --steps");
  command.add_option("--batch", experiment.batch, "samples a step (16)");
  command.add_option("--learning-rate", options.learning_rate, "constant, or at the beginning; by workload");
  command.add_option("--schedule", options.schedule, "of the learning rate: constant or cosine (constant)");
  command.add_option("--momentum", options.momentum, "of local SGD (0.9; quadratic 0)");
  command.add_option("--weight-decay", experiment.trainer.weight_decay, "(0)");
  command.add_option("--rule", options.rule, "local optimiser: sgd, qgm, gap-aware or dc (sgd)");
  command.add_option("--seed", experiment.seed, "of everything (1)");
  command.add_option("--seeds", options.seeds, "as many runs, with this seed and the following (1)");
  command.add_option("--digits", options.data.digits_file, "another digits.csv.gz than Debian's");
  command.add_option("--text", options.data.text_file, "another text than Debian's licences");
  command.add_option("--hidden", options.data.hidden, "units of the hidden layer (mlp 64, text 128)");
  command.add_option("--elements", options.data.quadratic.elements, "of the quadratic (256)");
  command.add_option("--curvature", options.data.quadratic.curvature, "of the quadratic (1)");
  command.add_option("--sigma", options.data.quadratic.sigma, "noise of the quadratic's gradients (1)");
  command.add_option("--spread", options.data.quadratic.spread, "of the quadratics' optima, unless iid (0)");
}

void add_cluster_options(CLI::App& command, LearnOptions& options) {
  Experiment& experiment = options.experiment;
  command.add_option("--topology", experiment.topology,
                     "overlay: complete, ring, chain, torus, hypercube, star, dumbbell, bridged (a dumbbell whose "
                     "bridge has the last node beside it), regular-K (complete)");
  command.add_option("--codec", options.codec, "f32, q8 or q4 (q8)");
  command.add_option("--period-steps", options.period_steps,
                     "steps at speed 1 between two exchanges that a node starts of a fragment (1)");
  command.add_option("--fragments", experiment.fragments, "the model is exchanged in so many parts (4)");
  command.add_option("--in-flight", experiment.replica.in_flight, "exchanges that a node has under way at once (4)");
  command.add_option("--mixing-budget", experiment.replica.mixing_budget, "1 for a LAN, 0.5 for a WAN (1)");
  command.add_option("--clip", experiment.replica.clip,
                     "average more gently with whom is farther off than so many times the median; 0: off (8)");
  command.add_flag("--certified", experiment.certified, "nodes have certificates, so that dense_clip counts");
  command.add_option("--dense-clip", experiment.replica.dense_clip, "at most this where all meet most (2)");
  command.add_option("--attack", options.attack,
                     "the last node means harm: silent, extremes, wild, flipped, ascent, old, nan, pull or dissensus "
                     "(none)");
  command.add_option("--wild-value", experiment.wild_value, "of the attack wild (1e30)");
  command.add_option("--attackers", experiment.attackers, "so many of the last nodes mean harm (1)");
  command.add_flag("--one-sponsor", experiment.one_sponsor, "they count as one where the median is taken");
  command.add_option("--step-ms", options.step_ms, "virtual time of a step at speed 1 (10)");
  command.add_option("--step-jitter", experiment.step_jitter, "a step takes its time times 1 ± this (0.05)");
  command.add_option("--speeds", options.speeds, "of the first nodes, as 1,1,0.25");
  command.add_option("--straggler", options.straggler, "node 0 is so many times slower");
  command.add_option("--latency-ms", options.latency_ms, "of a message (0.5)");
  command.add_option("--jitter-ms", options.jitter_ms, "added to it, uniformly (0)");
  command.add_option("--drop", experiment.path.loss, "probability that a message is lost (0)");
  command.add_option("--mbit", options.mbit, "a node's bandwidth each way in Mbit/s; 0: not limited (0)");
  command.add_option("--model-scale", experiment.byte_scale, "messages count as so many times their size (1)");
  command.add_option("--outer-rate", experiment.outer_rate, "of diloco, async-local, server and --outer (0.7)");
  command.add_option("--outer-momentum", experiment.outer_momentum, "of diloco, async-local and --outer (0.9)");
  command.add_option("--age-damping", experiment.replica.age_damping, "old values weigh less: 1 or 0 (1)");
  command.add_option(
      "--outer", options.outer,
      "outer optimiser of gossip and async-local: none, delayed or, of async-local alone, nesterov (none)");
  command.add_option("--outer-period-steps", options.outer_period_steps, "of --outer (50)");
  command.add_option("--partners", options.partners,
                     "whom gossip chooses among its neighbours: random, ring, torus, hypercube, one-peer-exponential, "
                     "base, regular, hub, weighted, or owner as with the method server (random)");
  command.add_option("--keepers", experiment.keepers,
                     "so many further nodes hold a replica without training it, and own all parts of the model (0)");
  command.add_option("--degree", options.degree, "of --partners regular (4)");
  command.add_option("--time-share", experiment.replica.time_share,
                     "most that gossip may take of the training's time; 0: no limit (0.02)");
  command.add_option("--network-share", experiment.replica.network_share, "and of --mbit; 0: no limit (0.5)");
  command.add_option("--memory-gb-s", options.memory_gb_s,
                     "of a client's step that serves fragments; 0: no limit (10)");
  command.add_option("--consensus-rate", experiment.consensus_rate, "of choco (1)");
}

void add_output_options(CLI::App& command, LearnOptions& options) {
  command.add_option("--evaluations", options.experiment.evaluations, "in a run (100)");
  command.add_option("--target-accuracy", options.targets.accuracy, "tell when it was reached");
  command.add_option("--target-loss", options.targets.loss, "tell when it was reached");
  command.add_option("--csv", options.csv_file, "write every evaluation here");
  command.add_option("--plot", options.plot_file, "draw the runs here (SVG)");
  command.add_flag("--json", options.json, "the summary as JSON");
}

void declare_options(CLI::App& command, LearnOptions& options) {
  add_learning_options(command, options);
  add_cluster_options(command, options);
  add_output_options(command, options);
}

}  // namespace

void add_learn_command(CLI::App& app) {
  auto* command = app.add_subcommand("learn", "Trains with true gradients on simulated nodes.");
  auto options = std::make_shared<LearnOptions>();
  declare_options(*command, *options);
  command->callback([options] { run_learn(*options); });
}

}  // namespace gossamer::sim
