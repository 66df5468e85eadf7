// gossamerctl's commands for checkpoints. checkpoint and export of a job wait until the daemon has written its model to
// the disk; export --mean reads and writes files and needs no daemon.

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "sdk/layout/names.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/model_files.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds checkpoint_poll{50};

/// The output of all commands in this file: the path of the model file.
std::string path_words(const json& answer, bool) {
  return safe_text(answer.at("path").get<std::string>()) + "\n";
}

/// Waits until the checkpoint is written, without a limit: a large model on a slow disk needs its time, and the daemon
/// itself gives up in the end.
JsonAnswer write_checkpoint(const std::string& job, const Invocation& call) {
  const auto begun = call.request({{"command", "checkpoint"}, {"job", job}});
  if (!begun) return begun;
  const auto number = begun->at("number").get<std::uint64_t>();
  bool told = false;
  while (true) {
    auto status = call.request({{"command", "checkpoint_status"}, {"job", job}});
    if (!status) return status;
    if (status->at("number").get<std::uint64_t>() >= number) {
      const auto why = status->at("failure").get<std::string>();
      if (!why.empty()) return failure(fmt::format("no checkpoint was written: {}", safe_text(why)));
      return json{{"path", status->at("path")}, {"clock", status->at("clock")}};
    }
    const std::string trouble = status->value("disk", "");
    if (!trouble.empty() && !std::exchange(told, true))
      fmt::print(stderr,
                 "Still waiting: {}. Ctrl-C ends this command; the checkpoint is written when the disk is back.\n",
                 safe_text(trouble));
    std::this_thread::sleep_for(checkpoint_poll);
  }
}

JsonAnswer export_job(const std::string& job, const std::string& file, const Invocation& call) {
  const auto written = write_checkpoint(job, call);
  if (!written) return written;
  const auto copied = copy_model(written->at("path").get<std::string>(), file);
  if (!copied) return failure(copied.error());
  return json{{"path", file}, {"clock", copied->clock}, {"replicas", copied->replicas}};
}

JsonAnswer export_mean(const std::vector<std::string>& files, const std::string& output) {
  const auto written = write_mean({files.begin(), files.end()}, output);
  if (!written) return failure(written.error());
  return json{{"path", output}, {"clock", written->clock}, {"replicas", written->replicas}};
}

struct ImportOptions {
  std::string file;
  std::string job;
  std::optional<std::uint64_t> clock;
};

JsonAnswer import_file(const ImportOptions& options, const Invocation& call) {
  const auto place = call.request({{"command", "import"}, {"job", options.job}});
  if (!place) return place;
  const auto imported = import_model(options.file, place->at("folder").get<std::string>(), options.job, options.clock);
  if (!imported) return failure(imported.error());
  if (imported->left_out > 0) fmt::print(stderr, "Left out {} tensors that are not in float32.\n", imported->left_out);
  return json{
      {"path", imported->path.string()}, {"clock", imported->description.clock}, {"left_out", imported->left_out}};
}

void add_checkpoint(CLI::App& app, CommandAction& chosen) {
  const auto job = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("checkpoint", "Write a job's model to the disk now, and say where it is");
  command->add_option("JOB", *job, "The job's name as 'gossamerctl jobs' shows it")->required();
  command->footer(
      "The daemon writes it to the folder of [checkpoints], as a safetensors file, and this command returns when it "
      "is\n"
      "there. Training goes on meanwhile.");
  command->callback([job, &chosen] {
    chosen = [job](const Invocation& call) { return call.end(write_checkpoint(*job, call), path_words); };
  });
}

void add_export(CLI::App& app, CommandAction& chosen) {
  struct ExportOptions {
    std::string job;
    std::string file;
    std::vector<std::string> mean;
    std::string output;
  };
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      app.add_subcommand("export", "Write a job's model, or the mean of several, to a safetensors file");
  CLI::Option* job = command->add_option("JOB", options->job, "The job whose model is written, as it is at this node");
  CLI::Option* file = command->add_option("FILE", options->file, "Where to");
  CLI::Option* mean =
      command->add_option("--mean", options->mean, "Write the mean of these checkpoints instead; no daemon is needed")
          ->type_name("FILE")
          ->excludes(job)
          ->excludes(file);
  CLI::Option* output =
      command->add_option("--output", options->output, "The file to write with --mean")->type_name("FILE");
  mean->needs(output);
  output->needs(mean);
  job->needs(file);
  command->footer(
      "A job's model is written to the folder of [checkpoints] first, and copied from there. The mean of several "
      "nodes'\n"
      "checkpoints weighs each the same; its clock is the largest of theirs.");
  command->callback([options, &chosen] {
    if (options->mean.empty() && options->file.empty())
      throw CLI::RequiredError("a job and a file, or --mean and --output,");
    chosen = [options](const Invocation& call) {
      return call.end(options->mean.empty() ? export_job(options->job, options->file, call)
                                            : export_mean(options->mean, options->output),
                      path_words);
    };
  });
}

void add_import(CLI::App& app, CommandAction& chosen) {
  const auto options = std::make_shared<ImportOptions>();
  CLI::App* command = app.add_subcommand("import", "Place a safetensors file for a job to begin with");
  command->add_option("FILE", options->file, "A checkpoint, or another file with the model's tensors in float32")
      ->required();
  command->add_option("--job", options->job, "The job")
      ->type_name("NAME")
      ->required()
      ->check([](const std::string& name) {
        return layout::is_job_name(name) ? std::string() : fmt::format("a job's name is {}", layout::job_name_form);
      });
  command
      ->add_option("--clock", options->clock,
                   "Samples that the model has been trained on (default: the file's number, or 0)")
      ->type_name("SAMPLES");
  command->footer(
      "The job takes the file over when it begins at this node while no other node runs it, once. A job that runs is "
      "not\n"
      "overwritten: end its training processes on all nodes first, and then start those of this node before the "
      "others.");
  command->callback([options, &chosen] {
    chosen = [options](const Invocation& call) { return call.end(import_file(*options, call), path_words); };
  });
}

}  // namespace

void add_checkpoint_commands(CLI::App& app, CommandAction& chosen) {
  add_checkpoint(app, chosen);
  add_export(app, chosen);
  add_import(app, chosen);
}

}  // namespace gossamer::ctl
