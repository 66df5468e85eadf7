// gossamer-sim drive: reads from JSON what a program wants to have simulated, runs it and prints the result.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "daemon/config/replica_options.hpp"
#include "tools/sim/commands.hpp"
#include "tools/sim/drive/drive.hpp"
#include "tools/sim/learn/graph.hpp"
#include "tools/sim/learn/learn_report.hpp"
#include "tools/sim/learn/names.hpp"

namespace gossamer::sim {

namespace {

using nlohmann::json;

constexpr std::size_t max_driven_nodes = 4'096;
constexpr std::size_t max_driven_elements = std::size_t{1} << 30;
constexpr std::uint64_t max_samples = std::uint64_t{1} << 53;
constexpr std::uint64_t max_evaluations = 1'000'000;

/// Takes values out of an object. Names that are left over at the end are unknown ones.
class Wants {
 public:
  Wants(json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {
    if (!object_.is_object()) throw UsageError(where_ + " is no object with names");
  }
  template <class Value>
  requires(!std::is_integral_v<Value>)  // see whole()
      void take(const char* name, Value& value) {
    const auto found = object_.find(name);
    if (found == object_.end()) return;
    try {
      value = found->get<Value>();
    } catch (const json::exception&) {
      throw UsageError(where_ + ": " + name + " cannot be " + found->dump());
    }
    object_.erase(found);
  }
  [[nodiscard]] double number(const char* name, double otherwise, double least, double most) {
    take(name, otherwise);
    if (!(otherwise >= least && otherwise <= most))
      throw UsageError(where_ + ": " + name + " is " + json(otherwise).dump() + ", and must be from " +
                       json(least).dump() + " to " + json(most).dump());
    return otherwise;
  }
  /// A whole number. The library would cut off fractions, and make a large number of a negative one.
  [[nodiscard]] std::uint64_t whole(const char* name, std::uint64_t otherwise, std::uint64_t least,
                                    std::uint64_t most) {
    json value = otherwise;
    take(name, value);
    constexpr double most_exact = 9007199254740992;  // 2^53
    if (value.is_number_float()) {
      const double number = value.get<double>();
      if (number >= 0 && number <= most_exact && number == std::floor(number)) value = std::uint64_t(number);
    }
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < least || value.get<std::uint64_t>() > most)
      throw UsageError(fmt::format("{}: {} is {}, and must be a whole number from {} to {}", where_, name, value.dump(),
                                   least, most));
    return value.get<std::uint64_t>();
  }
  void need(const char* name) const {
    if (!object_.contains(name)) throw UsageError(where_ + ": it has no " + name);
  }
  [[nodiscard]] TimeUs time(const char* name, TimeUs otherwise, double unit_us) {
    constexpr double most = 1e9;
    return std::llround(number(name, static_cast<double>(otherwise) / unit_us, 0, most) * unit_us);
  }
  [[nodiscard]] json object(const char* name) {
    json value = json::object();
    take(name, value);
    return value;
  }
  void end() const {
    if (!object_.empty()) throw UsageError(where_ + ": there is no " + object_.begin().key());
  }

 private:
  json object_;
  std::string where_;
};

std::string as_setting(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

[[noreturn]] void refuse_with_average(const std::string& what) {
  throw UsageError("gossamer.sim does not simulate " + what + " with the method average");
}

/// The job's settings, as gossamer.attach() takes them.
void take_settings(const json& wanted, Drive& drive) {
  std::vector<JobSetting> settings;
  if (!wanted.is_object()) throw UsageError("settings is no object with names");
  for (const auto& [name, value] : wanted.items()) {
    if (name == "method" && value == "alone") {
      drive.method = DriveMethod::alone;
    } else {
      settings.push_back({name, as_setting(value)});
    }
  }
  const auto options = daemon::with_settings({}, settings);
  if (!options) throw UsageError("settings: " + options.error());
  drive.replica = daemon::replica_options(*options);
  drive.average_steps = static_cast<std::uint64_t>(options->average_steps);
  drive.average_members = static_cast<std::size_t>(options->average_members);
  if (options->method != layout::Method::average || drive.method == DriveMethod::alone) return;
  drive.method = DriveMethod::average;
  if (options->outer_momentum != 0) refuse_with_average("outer_momentum");
  if (options->average_codec != daemon::AverageCodec::f32) refuse_with_average("average_codec");
  if (drive.average_members > drive.nodes)
    throw UsageError("settings: average_members is larger than the number of nodes, and nobody would ever train");
}

void take_network(json wanted, Drive& drive) {
  Wants network(std::move(wanted), "network");
  drive.path.latency_us = network.time("latency_ms", drive.path.latency_us, us_per_ms);
  drive.path.jitter_us = network.time("jitter_ms", 0, us_per_ms);
  constexpr double most_loss = 0.99;
  constexpr double most_mbit = 1e7;
  drive.path.loss = network.number("loss", 0, 0, most_loss);
  drive.node_bytes_per_s = network.number("mbit", 0, 0, most_mbit) * daemon::bytes_per_mbit;
  network.take("topology", drive.topology);
  network.end();
  if (drive.method != DriveMethod::average) return;
  if (drive.path.loss > 0) refuse_with_average("the network's loss");
  if (drive.path.jitter_us > 0) refuse_with_average("the network's jitter_ms");
}

void take_fault(const json& wanted, Drive& drive) {
  Wants fault(wanted, "a fault");
  for (const char* name : {"at_s", "what", "node"})
    fault.need(name);
  NodeFault& added = drive.faults.emplace_back();
  added.at_us = fault.time("at_s", 0, us_per_s);
  std::string what;
  fault.take("what", what);
  added.kind = value_named("fault", what, fault_kinds);
  added.node = fault.whole("node", 0, 0, max_driven_nodes);
  if (added.kind == FaultKind::speed) fault.need("speed");
  constexpr double most_speed = 1000;
  added.speed = fault.number("speed", 1, 1 / most_speed, most_speed);
  fault.end();
  if (added.node >= drive.nodes) throw UsageError("a fault: there is no node " + std::to_string(added.node));
  if (drive.end_us != 0 && added.at_us > drive.end_us)
    throw UsageError(fmt::format("a fault: {} of node {} comes after the end", what, added.node));
}

void take_time(Wants& wants, Drive& drive) {
  constexpr double most_speed = 1000;
  drive.step_us = wants.time("step_ms", drive.step_us, us_per_ms);
  if (drive.step_us < 1) throw UsageError("step_ms is at least 0.001");
  drive.step_jitter = wants.number("step_jitter", drive.step_jitter, 0, 0.99);
  wants.take("speeds", drive.speeds);
  if (drive.speeds.size() > drive.nodes) throw UsageError("there are more speeds than nodes");
  for (const double speed : drive.speeds)
    if (!(speed >= 1 / most_speed && speed <= most_speed)) throw UsageError("speeds are from 0.001 to 1000");
  drive.end_us = wants.time("seconds", 0, us_per_s);
  drive.samples = wants.whole("samples", 0, 0, max_samples);
  if (drive.end_us == 0 && drive.samples == 0) throw UsageError("say how long: seconds, or samples of all nodes");
  drive.detection_us = wants.time("detection_s", drive.detection_us, us_per_s);
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void tell(json result, const std::string& heading, const std::vector<LearningRun>& runs) {
  std::vector<std::vector<LearningRun>> each;
  for (const LearningRun& run : runs)
    each.push_back({run});
  result["table"] = learn_table(each, {});
  result["svg"] = learn_svg(heading, runs);
  std::printf("result %s\n", result.dump().c_str());
}

json as_json(const Record& record) {
  const auto [least, most] = std::ranges::minmax(record.clocks);
  return {{"time_s", record.time_s}, {"samples", record.samples},   {"bytes_per_node", record.bytes},
          {"loss", record.loss},     {"accuracy", record.accuracy}, {"consensus_rms", record.consensus},
          {"behind", most - least},  {"clocks", record.clocks}};
}

void run(int memory, const std::string& file) {
  const Drive drive = read_drive(contents_of(file));
  const Program program(memory, drive.nodes, drive.elements);
  const auto begin = std::chrono::steady_clock::now();  // real time, for people: how long the simulation took
  LearningRun run = run_drive(drive, program);
  run.method = drive.name;
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  json records = json::array();
  for (const Record& record : run.records)
    records.push_back(as_json(record));
  const std::vector<LearningRun> runs{std::move(run)};
  tell({{"records", std::move(records)}, {"summary", json::parse(learn_json(runs, {})).front()}}, drive.name, runs);
}

/// A number, or NaN where there is none.
double number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
}

/// Draws charts that compare the results of earlier runs.
void draw(const std::string& file) {
  std::vector<LearningRun> runs;
  for (const json& one : json::parse(contents_of(file))) {
    LearningRun& run = runs.emplace_back();
    const json& summary = one.at("summary");
    run.method = one.at("name").get<std::string>();
    run.worst_accuracy = number_in(summary, "worst_accuracy");
    run.worst_loss = number_in(summary, "worst_loss");
    run.wide_share = number_in(summary, "wide_share");
    run.computing = number_in(summary, "computing_share");
    run.wall_s = number_in(summary, "wall_s");
    for (const json& record : one.at("records")) {
      run.records.push_back({.time_s = number_in(record, "time_s"),
                             .samples = record.at("samples").get<std::uint64_t>(),
                             .bytes = number_in(record, "bytes_per_node"),
                             .loss = number_in(record, "loss"),
                             .accuracy = number_in(record, "accuracy"),
                             .consensus = number_in(record, "consensus_rms"),
                             .clocks = record.at("clocks").get<std::vector<std::uint64_t>>()});
    }
  }
  tell(json::object(), "Compared", runs);
}

}  // namespace

Drive read_drive(std::string_view text) {
  json wanted = json::parse(text, nullptr, false);
  if (wanted.is_discarded()) throw UsageError("what is wanted is not JSON");
  Wants wants(std::move(wanted), "the simulation");
  Drive drive;
  wants.take("name", drive.name);
  drive.elements = wants.whole("elements", 0, 1, max_driven_elements);
  drive.nodes = wants.whole("nodes", drive.nodes, 1, max_driven_nodes);
  wants.take("buffers", drive.buffers);
  for (const auto& [first, last] : drive.buffers)
    if (first > last || last > drive.elements) throw UsageError("buffers: there are no such elements");
  take_settings(wants.object("settings"), drive);
  take_network(wants.object("network"), drive);
  take_time(wants, drive);
  constexpr double most_scale = 1e6;
  drive.byte_scale = wants.number("model_scale", 1, 1 / most_scale, most_scale);
  json faults = json::array();
  wants.take("faults", faults);
  for (const json& fault : faults)
    take_fault(fault, drive);
  std::ranges::stable_sort(drive.faults, {}, &NodeFault::at_us);
  drive.evaluations = wants.whole("evaluations", drive.evaluations, 1, max_evaluations);
  drive.seed = wants.whole("seed", drive.seed, 0, std::numeric_limits<std::uint64_t>::max());
  wants.end();
  if (drive.nodes > 1) (void)make_graph(drive.topology, drive.nodes);
  return drive;
}

void add_drive_command(CLI::App& app) {
  auto* command = app.add_subcommand("drive", "Simulates nodes that a program trains; for gossamer.sim of Python.");
  struct Options {
    int memory = -1;
    bool draw = false;
    std::string file;
  };
  const auto options = std::make_shared<Options>();
  command->add_option("file", options->file, "what is to be simulated, as JSON")->required();
  command->add_option("--memory", options->memory, "the descriptor of the models' memory");
  command->add_flag("--draw", options->draw, "only draws the results that the file has");
  command->callback([options] { options->draw ? draw(options->file) : run(options->memory, options->file); });
}

}  // namespace gossamer::sim
