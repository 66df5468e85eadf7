// gossamerctl's commands that change a job at all of its nodes.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tools/ctl/commands.hpp"
#include "tools/ctl/fields.hpp"
#include "tools/ctl/signing.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// Converts texts NAME=VALUE to the changes in a request.
JsonAnswer change_of(const std::vector<std::string>& assignments) {
  json values = json::object();
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0)
      return wrong_usage(
          fmt::format("\"{}\" is no setting: write NAME=VALUE, such as codec=q4", safe_text(assignment)));
    values[assignment.substr(0, equals)] = assignment.substr(equals + 1);
  }
  return values;
}

/// Whether the settings to sign contain what was asked for. A setting that was given no value must not be among them.
bool are_as_asked(const json& settings, const json& changes) {
  return std::ranges::all_of(changes.items(), [&](const auto& change) {
    const std::string value = change.value().template get<std::string>();
    return value.empty() ? !settings.contains(change.key()) : settings.value(change.key(), "") == value;
  });
}

/// Whether the settings to sign contain nothing but what was asked for.
bool are_all_typed(const json& settings, const json& changes) {
  return std::ranges::all_of(settings.items(), [&](const auto& one) { return changes.contains(one.key()); });
}

/// Asks the operator to confirm all settings to sign, because some of them come from the daemon and were not typed.
bool is_confirmed_whole(const json& item) {
  fmt::print(stderr, "To be signed: {}\n", words_of_decision(item));
  return is_confirmed("Sign these, with what was there before?");
}

std::string settings_words(const json& answer, bool) {
  const std::string settings = settings_text(answer.at("values"));
  return fmt::format("version {}:{}\n", answer.at("version").get<std::uint64_t>(),
                     settings.empty() ? " no settings, each node's own options hold" : settings);
}

}  // namespace

void add_job_commands(CLI::App& app, CommandAction& chosen) {
  struct SetOptions {
    std::string job;
    std::vector<std::string> assignments;
    std::string key_file;
    bool yes = false;
  };
  CLI::App* job = app.add_subcommand("job", "Change a job at all of its nodes");
  job->require_subcommand(1);
  const auto options = std::make_shared<SetOptions>();
  CLI::App* set = job->add_subcommand("set", "Change the job's settings, which all of its replicas share");
  set->add_option("JOB", options->job, "The job's name as 'gossamerctl jobs' shows it")->required();
  set->add_option("NAME=VALUE", options->assignments, "A setting and its value; no value takes the setting away")
      ->required();
  set->add_option("--authority", options->key_file, key_file_help)->type_name("FILE");
  set->add_flag("--yes", options->yes, "Do not ask before signing settings that were not typed");
  set->footer(
      "A job's settings are options of [gossip]: codec, period_ms, mixing_budget, range, partners, clip,\n"
      "outer_momentum and outer_period_ms. They hold at every node that runs the job, within seconds, and take the\n"
      "place of what is in the nodes' files. Of changes made at the same time one wins, the same everywhere.");
  set->callback([options, &chosen] {
    chosen = [options](const Invocation& call) {
      const auto values = change_of(options->assignments);
      if (!values) return call.end(values, settings_words);
      const auto is_as_asked = [&](const json& item) {
        return item.at("kind") == "job_settings" && item.at("job") == options->job &&
               are_as_asked(item.at("values"), *values) &&
               (options->yes || are_all_typed(item.at("values"), *values) || is_confirmed_whole(item));
      };
      const json request{{"command", "job_set"}, {"job", options->job}, {"values", *values}};
      return call.end(decide(request, options->key_file, is_as_asked, call), settings_words);
    };
  });
}

}  // namespace gossamer::ctl
