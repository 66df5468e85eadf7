#include "tools/ctl/checkpoint_tool.hpp"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "sdk/layout/names.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/json_line.hpp"
#include "tools/ctl/model_files.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

std::unexpected<ControlError> failure(std::string message) {
  return std::unexpected(ControlError{Failure::bad_answer, std::move(message)});
}

}  // namespace

CheckpointTool::CheckpointTool(CLI::App& app) {
  add_checkpoint(app);
  add_export(app);
  add_import(app);
}

void CheckpointTool::add_checkpoint(CLI::App& app) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Write a job's model to the disk now, and say where it is");
  checkpoint->add_option("JOB", job_, "The job's name as 'gossamerctl jobs' shows it")->required();
  checkpoint->footer(
      "The daemon writes it to the folder of [checkpoints], as a safetensors file, and this command returns when it "
      "is\n"
      "there. Training goes on meanwhile.");
  checkpoint->callback([this] { action_ = [this](const Ask& ask) { return write_checkpoint(ask); }; });
}

void CheckpointTool::add_export(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export", "Write a job's model, or the mean of several, to a safetensors file");
  CLI::Option* job = command->add_option("JOB", job_, "The job whose model is written, as it is at this node");
  CLI::Option* file = command->add_option("FILE", file_, "Where to");
  CLI::Option* mean =
      command->add_option("--mean", mean_, "Write the mean of these checkpoints instead; no daemon is needed")
          ->type_name("FILE")
          ->excludes(job)
          ->excludes(file);
  CLI::Option* output = command->add_option("--output", output_, "The file to write with --mean")->type_name("FILE");
  mean->needs(output);
  output->needs(mean);
  job->needs(file);
  command->footer(
      "A job's model is written to the folder of [checkpoints] first, and copied from there. The mean of several "
      "nodes'\n"
      "checkpoints weighs each the same; its clock is the largest of theirs.");
  command->callback([this] {
    if (mean_.empty() && file_.empty()) throw CLI::RequiredError("a job and a file, or --mean and --output,");
    action_ = [this](const Ask& ask) { return mean_.empty() ? export_job(ask) : export_mean(); };
  });
}

void CheckpointTool::add_import(CLI::App& app) {
  CLI::App* command = app.add_subcommand("import", "Place a safetensors file for a job to begin with");
  command->add_option("FILE", file_, "A checkpoint, or another file with the model's tensors in float32")->required();
  command->add_option("--job", job_, "The job")->type_name("NAME")->required()->check([](const std::string& name) {
    return layout::is_job_name(name) ? std::string()
                                     : "a job's name has 1 to 63 letters, digits, '.', '_' or '-', and no '.' in front";
  });
  command
      ->add_option("--clock", clock_, "Samples that the model has been trained on (default: the file's number, or 0)")
      ->type_name("SAMPLES");
  command->footer(
      "The job takes the file over when it begins at this node while no other node runs it, once. A job that runs is "
      "not\n"
      "overwritten: end its training processes on all nodes first, and then start those of this node before the "
      "others.");
  command->callback([this] { action_ = [this](const Ask& ask) { return import_file(ask); }; });
}

std::expected<std::string, ControlError> CheckpointTool::run(const Ask& ask, bool as_json, bool) {
  const auto result = action_(ask);
  if (!result) return std::unexpected(result.error());
  if (as_json) return json_line(*result);
  return safe_text(result->at("path").get<std::string>()) + "\n";
}

/// This waits for as long as it takes: a large model on a slow disk needs its time, and the daemon itself gives up in
/// the end.
CheckpointTool::Result CheckpointTool::write_checkpoint(const Ask& ask) const {
  const auto begun = ask({{"command", "checkpoint"}, {"job", job_}});
  if (!begun) return begun;
  const auto number = begun->at("number").get<std::uint64_t>();
  bool told = false;
  while (true) {
    auto status = ask({{"command", "checkpoint_status"}, {"job", job_}});
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

CheckpointTool::Result CheckpointTool::export_job(const Ask& ask) const {
  const auto written = write_checkpoint(ask);
  if (!written) return written;
  const auto copied = copy_model(written->at("path").get<std::string>(), file_);
  if (!copied) return failure(copied.error());
  return json{{"path", file_}, {"clock", copied->clock}, {"replicas", copied->replicas}};
}

CheckpointTool::Result CheckpointTool::export_mean() const {
  const auto written = write_mean({mean_.begin(), mean_.end()}, output_);
  if (!written) return failure(written.error());
  return json{{"path", output_}, {"clock", written->clock}, {"replicas", written->replicas}};
}

CheckpointTool::Result CheckpointTool::import_file(const Ask& ask) const {
  const auto place = ask({{"command", "import"}, {"job", job_}});
  if (!place) return place;
  const auto imported = import_model(file_, place->at("folder").get<std::string>(), job_, clock_);
  if (!imported) return failure(imported.error());
  if (imported->left_out > 0) fmt::print(stderr, "Left out {} tensors that are not in float32.\n", imported->left_out);
  return json{
      {"path", imported->path.string()}, {"clock", imported->description.clock}, {"left_out", imported->left_out}};
}

}  // namespace gossamer::ctl
