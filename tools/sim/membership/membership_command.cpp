// gossamer-sim membership prints a table of what membership costs and how soon it notices, by size of the cluster.

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <cstdio>

#include "tools/sim/commands.hpp"
#include "tools/sim/membership/membership_measure.hpp"

namespace gossamer::sim {

namespace {

struct Asked {
  std::vector<std::size_t> nodes = {10, 100, 1'000};
  MembershipPlan plan = {};
  std::size_t active_view = 0;
  std::size_t passive_view = 0;
  std::size_t full_view_limit = 0;
  std::string csv;
  std::string json;
};

constexpr const char* not_measured = "not measured";

std::string time_text(double value) {
  if (value < -1) return not_measured;
  return value < 0 ? "never" : fmt::format("{:.1f}", value);
}
std::string pair_text(const double (&value)[2]) {
  return fmt::format("{} / {}", time_text(value[0]), time_text(value[1]));
}

struct Row {
  const char* name;
  std::string (*text)(const MembershipFigures&);
};

const Row rows[] = {
    {"views", [](const MembershipFigures& f) -> std::string { return f.partial ? "partial" : "full"; }},
    {"neighbours, least / mean / most",
     [](const MembershipFigures& f) {
       return fmt::format("{:.0f} / {:.1f} / {:.0f}", f.degree[0], f.degree[1], f.degree[2]);
     }},
    {"lazy walk's second eigenvalue", [](const MembershipFigures& f) { return fmt::format("{:.3f}", f.eigenvalue); }},
    {"views complete after the last start, s", [](const MembershipFigures& f) { return time_text(f.settle_s); }},
    {"crash first suspected, s, median / worst", [](const MembershipFigures& f) { return pair_text(f.suspected_s); }},
    {"crash first declared, s", [](const MembershipFigures& f) { return pair_text(f.declared_s); }},
    {"crash known at every node, s", [](const MembershipFigures& f) { return pair_text(f.known_s); }},
    {"nodes that know, least, %",
     [](const MembershipFigures& f) { return fmt::format("{:.2f}", 100 * f.known_share); }},
    {"live nodes suspected / declared dead, at rest",
     [](const MembershipFigures& f) { return fmt::format("{} / {}", f.suspected_rest, f.died_rest); }},
    {"the same under loss",
     [](const MembershipFigures& f) -> std::string {
       return f.bytes_per_s_loss < 0 ? not_measured : fmt::format("{} / {}", f.suspected_loss, f.died_loss);
     }},
    {"nodes paused together", [](const MembershipFigures& f) { return fmt::format("{}", f.paused); }},
    {"10 s pause: paused / others declared dead",
     [](const MembershipFigures& f) -> std::string {
       return f.paused == 0 ? not_measured : fmt::format("{} / {}", f.paused_died[0], f.healthy_died[0]);
     }},
    {"60 s pause: paused / others declared dead",
     [](const MembershipFigures& f) -> std::string {
       return f.paused == 0 ? not_measured : fmt::format("{} / {}", f.paused_died[1], f.healthy_died[1]);
     }},
    {"bytes/s per node at rest, mean / most",
     [](const MembershipFigures& f) { return fmt::format("{:.0f} / {:.0f}", f.bytes_per_s, f.bytes_per_s_most); }},
    {"messages/s per node at rest", [](const MembershipFigures& f) { return fmt::format("{:.2f}", f.messages_per_s); }},
    {"bytes/s per node under loss",
     [](const MembershipFigures& f) -> std::string {
       return f.bytes_per_s_loss < 0 ? not_measured : fmt::format("{:.0f}", f.bytes_per_s_loss);
     }},
    {"halves linked again, s", [](const MembershipFigures& f) { return time_text(f.joined_s); }},
    {"halves converged, s", [](const MembershipFigures& f) { return time_text(f.converged_s); }},
    {"nodes wrongly held dead then, ppm",
     [](const MembershipFigures& f) -> std::string {
       return f.joined_s < -1 ? not_measured : fmt::format("{:.0f}", 1e6 * f.wrong_share);
     }},
    {"virtual seconds per second of one core",
     [](const MembershipFigures& f) { return fmt::format("{:.1f}", f.speed); }},
    {"memory of the simulation, MiB", [](const MembershipFigures& f) { return fmt::format("{:.0f}", f.memory_mib); }},
};

/// Prints Markdown with a column for each size.
void print(const std::vector<MembershipFigures>& all) {
  std::string head = "| nodes |";
  std::string line = "| --- |";
  for (const MembershipFigures& figures : all) {
    head += fmt::format(" {} |", figures.nodes);
    line += " --- |";
  }
  std::printf("%s\n%s\n", head.c_str(), line.c_str());
  for (const Row& row : rows) {
    std::string text = fmt::format("| {} |", row.name);
    for (const MembershipFigures& figures : all)
      text += fmt::format(" {} |", row.text(figures));
    std::printf("%s\n", text.c_str());
  }
}

struct Field {
  const char* name;
  double (*value)(const MembershipFigures&);
};

const Field fields[] = {
    {"nodes", [](const MembershipFigures& f) { return static_cast<double>(f.nodes); }},
    {"partial", [](const MembershipFigures& f) { return f.partial ? 1.0 : 0.0; }},
    {"settle_s", [](const MembershipFigures& f) { return f.settle_s; }},
    {"suspected_median_s", [](const MembershipFigures& f) { return f.suspected_s[0]; }},
    {"suspected_worst_s", [](const MembershipFigures& f) { return f.suspected_s[1]; }},
    {"declared_median_s", [](const MembershipFigures& f) { return f.declared_s[0]; }},
    {"declared_worst_s", [](const MembershipFigures& f) { return f.declared_s[1]; }},
    {"known_median_s", [](const MembershipFigures& f) { return f.known_s[0]; }},
    {"known_worst_s", [](const MembershipFigures& f) { return f.known_s[1]; }},
    {"known_share", [](const MembershipFigures& f) { return f.known_share; }},
    {"suspected_rest", [](const MembershipFigures& f) { return static_cast<double>(f.suspected_rest); }},
    {"died_rest", [](const MembershipFigures& f) { return static_cast<double>(f.died_rest); }},
    {"suspected_loss", [](const MembershipFigures& f) { return static_cast<double>(f.suspected_loss); }},
    {"died_loss", [](const MembershipFigures& f) { return static_cast<double>(f.died_loss); }},
    {"paused", [](const MembershipFigures& f) { return static_cast<double>(f.paused); }},
    {"paused_died_10s", [](const MembershipFigures& f) { return static_cast<double>(f.paused_died[0]); }},
    {"healthy_died_10s", [](const MembershipFigures& f) { return static_cast<double>(f.healthy_died[0]); }},
    {"paused_died_60s", [](const MembershipFigures& f) { return static_cast<double>(f.paused_died[1]); }},
    {"healthy_died_60s", [](const MembershipFigures& f) { return static_cast<double>(f.healthy_died[1]); }},
    {"bytes_per_s", [](const MembershipFigures& f) { return f.bytes_per_s; }},
    {"bytes_per_s_most", [](const MembershipFigures& f) { return f.bytes_per_s_most; }},
    {"messages_per_s", [](const MembershipFigures& f) { return f.messages_per_s; }},
    {"bytes_per_s_loss", [](const MembershipFigures& f) { return f.bytes_per_s_loss; }},
    {"joined_s", [](const MembershipFigures& f) { return f.joined_s; }},
    {"converged_s", [](const MembershipFigures& f) { return f.converged_s; }},
    {"wrong_share", [](const MembershipFigures& f) { return f.wrong_share; }},
    {"eigenvalue", [](const MembershipFigures& f) { return f.eigenvalue; }},
    {"degree_mean", [](const MembershipFigures& f) { return f.degree[1]; }},
    {"virtual_seconds_per_second", [](const MembershipFigures& f) { return f.speed; }},
    {"memory_mib", [](const MembershipFigures& f) { return f.memory_mib; }},
};

std::string csv(const std::vector<MembershipFigures>& all, const std::string& profile) {
  std::string text = "profile";
  for (const Field& field : fields)
    text += fmt::format(",{}", field.name);
  text += "\n";
  for (const MembershipFigures& figures : all) {
    text += profile;
    for (const Field& field : fields)
      text += fmt::format(",{}", field.value(figures));
    text += "\n";
  }
  return text;
}

std::string json(const std::vector<MembershipFigures>& all, const std::string& profile) {
  std::string text = "[";
  for (const MembershipFigures& figures : all) {
    text += fmt::format("{}\n  {{\"profile\": \"{}\"", text.size() > 1 ? "," : "", profile);
    for (const Field& field : fields)
      text += fmt::format(", \"{}\": {}", field.name, field.value(figures));
    text += "}";
  }
  return text + "\n]\n";
}

void run(Asked asked) {
  asked.plan.options = membership_profile(asked.plan.profile);
  gossip::MembershipOptions& options = asked.plan.options;
  if (asked.active_view > gossip::max_active_view || asked.passive_view > gossip::max_passive_view ||
      asked.full_view_limit > gossip::max_full_view) {
    throw UsageError(fmt::format("views hold at most {} active, {} passive, {} members if full",
                                 gossip::max_active_view, gossip::max_passive_view, gossip::max_full_view));
  }
  if (asked.active_view > 0) options.active_view = asked.active_view;
  if (asked.passive_view > 0) options.passive_view = asked.passive_view;
  if (asked.full_view_limit > 0) options.full_view_limit = asked.full_view_limit;
  if (asked.nodes.empty()) throw UsageError("how many nodes?");
  std::vector<MembershipFigures> all;
  for (const std::size_t nodes : asked.nodes) {
    MembershipPlan plan = asked.plan;
    plan.nodes = nodes;
    all.push_back(measure_membership(plan));
  }
  print(all);
  if (!asked.csv.empty()) write_file(asked.csv, csv(all, asked.plan.profile));
  if (!asked.json.empty()) write_file(asked.json, json(all, asked.plan.profile));
}

}  // namespace

void add_membership_command(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  CLI::App* command = app.add_subcommand("membership", "how soon a crash is known, how often wrongly, at what cost");
  command->add_option("--nodes", asked->nodes, "sizes of clusters")->delimiter(',')->capture_default_str();
  command->add_option("--profile", asked->plan.profile, "lan or wan")->capture_default_str();
  command->add_option("--loss", asked->plan.loss, "probability that a message is lost")->capture_default_str();
  command->add_option("--seconds", asked->plan.seconds, "virtual time at rest, and under loss")->capture_default_str();
  command->add_option("--crashes", asked->plan.crashes, "crashes to take the median of")->capture_default_str();
  command->add_option("--seed", asked->plan.seed, "decides everything")->capture_default_str();
  command->add_flag("!--no-loss", asked->plan.with_loss, "leaves out the time under loss");
  command->add_flag("!--no-pauses", asked->plan.with_pauses, "leaves out nodes that pause");
  command->add_flag("!--no-partition", asked->plan.with_partition, "leaves out the division into halves");
  command->add_option("--active-view", asked->active_view, "neighbours in a partial view; 0: as by default");
  command->add_option("--passive-view", asked->passive_view, "others remembered; 0: as by default");
  command->add_option("--full-view-limit", asked->full_view_limit, "members that all know all; 0: as by default");
  command->add_option("--csv", asked->csv, "file for the figures");
  command->add_option("--json", asked->json, "file for the figures");
  command->callback([asked] { run(*asked); });
}

}  // namespace gossamer::sim
