#include "tools/sim/learn/learn_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/sim/plot.hpp"

namespace gossamer::sim {

namespace {

constexpr double mega = 1e6;
constexpr std::size_t nodes_with_own_line = 8;

double samples_per_node(const Record& record) {
  return static_cast<double>(record.samples) / static_cast<double>(std::max<std::size_t>(1, record.clocks.size()));
}

template <class X, class Y>
Chart chart_of(std::string title, Axis x_axis, Axis y_axis, std::span<const LearningRun> runs, X x, Y y) {
  Chart chart{std::move(title), std::move(x_axis), std::move(y_axis), {}};
  for (const LearningRun& run : runs) {
    Series& series = chart.series.emplace_back();
    series.name = run.method;
    series.colour = chart.series.size() - 1;
    for (const Record& record : run.records)
      series.points.emplace_back(x(record), y(record));
  }
  return chart;
}

/// Draws every node's line if there is one run with few nodes; otherwise each run's slowest and fastest node.
Chart clock_chart(std::span<const LearningRun> runs) {
  Chart chart{"Clocks of the nodes (slowest and fastest)", {"virtual time (s)", false}, {"samples", false}, {}};
  for (const LearningRun& run : runs) {
    const std::size_t nodes = run.records.front().clocks.size();
    const bool each = runs.size() == 1 && nodes <= nodes_with_own_line;
    for (std::size_t line = 0; line < (each ? nodes : 2); ++line) {
      Series& series = chart.series.emplace_back();
      if (each) {
        series.name = fmt::format("node {}", line);
        series.colour = line;
      } else {
        if (line == 0) series.name = run.method;
        series.colour = static_cast<std::size_t>(&run - runs.data());
      }
      for (const Record& record : run.records) {
        const auto [least, most] = std::minmax_element(record.clocks.begin(), record.clocks.end());
        const std::uint64_t clock = each ? record.clocks[line] : line == 0 ? *least : *most;
        series.points.emplace_back(record.time_s, static_cast<double>(clock));
      }
    }
  }
  return chart;
}

/// A share, or a dash if it has no meaning.
std::string share(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

struct MomentsOfRuns {
  double mean = 0;
  double deviation = 0;  ///< sample deviation; 0 for one run
};

template <class Value>
MomentsOfRuns moments(const std::vector<LearningRun>& runs, Value value) {
  MomentsOfRuns result;
  const auto count = static_cast<double>(runs.size());
  for (const LearningRun& run : runs)
    result.mean += value(run) / count;
  double square = 0;
  for (const LearningRun& run : runs)
    square += (value(run) - result.mean) * (value(run) - result.mean);
  if (runs.size() > 1) result.deviation = std::sqrt(square / (count - 1));
  return result;
}

const Record* reached(const LearningRun& run, const Targets& targets) {
  const auto found = std::ranges::find_if(run.records, [&](const Record& record) {
    return targets.accuracy > 0 ? record.accuracy >= targets.accuracy : targets.loss > 0 && record.loss <= targets.loss;
  });
  return found == run.records.end() ? nullptr : &*found;
}

}  // namespace

std::string learn_csv(std::span<const LearningRun> runs) {
  std::string out = "method,time_s,samples,bytes_per_node,loss,accuracy,consensus_rms";
  std::size_t nodes = 0;
  for (const LearningRun& run : runs)
    nodes = std::max(nodes, run.records.front().clocks.size());
  for (std::size_t node = 0; node < nodes; ++node)
    out += fmt::format(",clock_{}", node);
  out += '\n';
  for (const LearningRun& run : runs) {
    for (const Record& record : run.records) {
      out += fmt::format("{},{:.6f},{},{:.0f},{:.9g},{:.6f},{:.6g}", run.method, record.time_s, record.samples,
                         record.bytes, record.loss, record.accuracy, record.consensus);
      for (const std::uint64_t clock : record.clocks)
        out += fmt::format(",{}", clock);
      out.append(nodes - record.clocks.size(), ',');
      out += '\n';
    }
  }
  return out;
}

std::string learn_svg(const std::string& heading, std::span<const LearningRun> runs) {
  const auto time = [](const Record& record) { return record.time_s; };
  const auto loss = [](const Record& record) { return record.loss; };
  const Axis time_axis{"virtual time (s)", false};
  const Axis loss_axis{"held-out loss (nats)", true};
  std::vector<Chart> charts;
  charts.push_back(chart_of("Loss over time", time_axis, loss_axis, runs, time, loss));
  charts.push_back(chart_of("Loss over samples", {"samples a node", false}, loss_axis, runs, samples_per_node, loss));
  charts.push_back(chart_of(
      "Loss over bytes", {"sent by a node (MB)", true}, loss_axis, runs,
      [](const Record& record) { return record.bytes / mega; }, loss));
  charts.push_back(chart_of("Consensus distance", time_axis, {"rms distance from the mean", true}, runs, time,
                            [](const Record& record) { return record.consensus; }));
  charts.push_back(chart_of("Accuracy of the mean model", time_axis, {"held-out accuracy", false}, runs, time,
                            [](const Record& record) { return record.accuracy; }));
  charts.push_back(clock_chart(runs));
  return render_svg(heading, charts);
}

std::string learn_table(std::span<const std::vector<LearningRun>> runs, const Targets& targets) {
  std::size_t width = 10;
  for (const auto& of_one : runs)
    width = std::max(width, of_one.front().method.size());
  std::string out =
      fmt::format("{:<{}} {:>17} {:>15} {:>8} {:>9} {:>10} {:>9} {:>6} {:>8} {:>7}\n", "method", width, "loss",
                  "accuracy", "worst", "time (s)", "MB a node", "consensus", "wide", "training", "wall s");
  for (const auto& of_one : runs) {
    const auto last = [](const LearningRun& run) { return run.records.back(); };
    const MomentsOfRuns loss = moments(of_one, [&](const LearningRun& run) { return last(run).loss; });
    const MomentsOfRuns accuracy = moments(of_one, [&](const LearningRun& run) { return last(run).accuracy; });
    const auto mean = [&](auto value) { return moments(of_one, value).mean; };
    out += fmt::format(
        "{:<{}} {:>8.5f} ±{:>7.5f} {:>7} ±{:>6} {:>8} {:>9.2f} {:>10.4f} {:>9.2e} {:>5.1f}% {:>7.1f}% {:>7.2f}\n",
        of_one.front().method, width, loss.mean, loss.deviation, share(accuracy.mean), share(accuracy.deviation),
        share(mean([](const LearningRun& run) { return run.worst_accuracy; })),
        mean([&](const LearningRun& run) { return last(run).time_s; }),
        mean([&](const LearningRun& run) { return last(run).bytes / mega; }),
        mean([&](const LearningRun& run) { return last(run).consensus; }),
        100 * mean([](const LearningRun& run) { return run.wide_share; }),
        100 * mean([](const LearningRun& run) { return run.computing; }),
        mean([](const LearningRun& run) { return run.wall_s; }));
  }
  if (targets.stationary_loss > 0) {
    out += "\nstationary variance of the mean, times the nodes, over that of one node in theory:\n";
    for (const auto& of_one : runs) {
      const auto nodes = static_cast<double>(of_one.front().records.front().clocks.size());
      const MomentsOfRuns ratio = moments(
          of_one, [&](const LearningRun& run) { return stationary_loss(run) * nodes / targets.stationary_loss; });
      out += fmt::format("{:<{}} {:.4f} ±{:.4f}\n", of_one.front().method, width, ratio.mean, ratio.deviation);
    }
  }
  if (targets.accuracy <= 0 && targets.loss <= 0) return out;
  out += fmt::format("\nto {}:\n", targets.accuracy > 0 ? fmt::format("an accuracy of {}", targets.accuracy)
                                                        : fmt::format("a loss of {}", targets.loss));
  for (const auto& of_one : runs) {
    std::vector<LearningRun> arrived;
    std::copy_if(of_one.begin(), of_one.end(), std::back_inserter(arrived),
                 [&](const LearningRun& run) { return reached(run, targets) != nullptr; });
    if (arrived.size() < of_one.size()) {
      out += fmt::format("{:<{}} not reached by {} of {}\n", of_one.front().method, width,
                         of_one.size() - arrived.size(), of_one.size());
      continue;
    }
    const MomentsOfRuns time = moments(arrived, [&](const LearningRun& run) { return reached(run, targets)->time_s; });
    const auto mean = [&](auto value) { return moments(arrived, value).mean; };
    out +=
        fmt::format("{:<{}} {:>9.3f} ±{:>6.3f} s {:>10.0f} samples {:>11.4f} MB a node\n", of_one.front().method, width,
                    time.mean, time.deviation,
                    mean([&](const LearningRun& run) { return static_cast<double>(reached(run, targets)->samples); }),
                    mean([&](const LearningRun& run) { return reached(run, targets)->bytes / mega; }));
  }
  return out;
}

std::string learn_json(std::span<const LearningRun> runs, const Targets& targets) {
  nlohmann::json list = nlohmann::json::array();
  for (const LearningRun& run : runs) {
    const Record& last = run.records.back();
    nlohmann::json entry = {{"method", run.method},
                            {"loss", last.loss},
                            {"accuracy", last.accuracy},
                            {"worst_accuracy", run.worst_accuracy},
                            {"worst_loss", run.worst_loss},
                            {"time_s", last.time_s},
                            {"samples", last.samples},
                            {"bytes_per_node", last.bytes},
                            {"consensus_rms", last.consensus},
                            {"wide_share", run.wide_share},
                            {"computing_share", run.computing},
                            {"clocks", last.clocks},
                            {"exchanges_initiated", run.counters.initiated},
                            {"exchanges_answered", run.counters.answered},
                            {"follow_ups", run.counters.follow_ups},
                            {"busy_received", run.counters.busy_received},
                            {"publications", run.counters.publications},
                            {"repeats_sent", run.counters.repeats_sent},
                            {"outer_steps", run.counters.outer_steps},
                            {"wall_s", run.wall_s}};
    const Record* record = reached(run, targets);
    if (record != nullptr) {
      entry["target"] = {{"time_s", record->time_s}, {"samples", record->samples}, {"bytes_per_node", record->bytes}};
    } else if (targets.accuracy > 0 || targets.loss > 0) {
      entry["target"] = nullptr;
    }
    list.push_back(std::move(entry));
  }
  return list.dump(2) + "\n";
}

}  // namespace gossamer::sim
