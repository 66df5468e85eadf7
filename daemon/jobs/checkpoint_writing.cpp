#include "daemon/jobs/checkpoint_writing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/checkpoint/folder.hpp"
#include "gossip/check.hpp"

namespace gossamer::daemon {

namespace {

/// How long a client's publication is waited for. A client that publishes nothing for so long stands still, and its
/// last publication may be much older than its clock.
constexpr TimeUs publication_patience_us = 60 * us_per_s;

}  // namespace

CheckpointWriting::CheckpointWriting(Checkpoints& checkpoints, CheckpointSource& source, spdlog::logger& log,
                                     std::string job, checkpoint::Model model, std::uint32_t fragment_elements)
    : checkpoints_(checkpoints),
      source_(source),
      log_(log),
      job_(std::move(job)),
      model_(std::move(model)),
      elements_(checkpoint::elements_of(model_)),
      fragment_elements_(fragment_elements) {}

void CheckpointWriting::tick(TimeUs now_us, bool running) {
  now_us_ = now_us;
  if (writing_ && writing_->asked != 0 && now_us - writing_->asked_us > publication_patience_us) {
    fail(fmt::format("the training process has taken no step for {} s, in which it could have published its model",
                     publication_patience_us / us_per_s));
  }
  const TimeUs period_us = checkpoints_.options().period_s * us_per_s;
  if (!running || period_us == 0) {
    next_us_ = 0;
    return;
  }
  // The first checkpoint is due one period after the job began to run, or after the option was set.
  if (next_us_ == 0 || next_us_ > now_us + period_us) next_us_ = now_us + period_us;
  if (now_us < next_us_ || writing_) return;
  next_us_ = now_us + period_us;
  begin(now_us);
}

std::uint64_t CheckpointWriting::request(TimeUs now_us) {
  now_us_ = now_us;
  if (writing_) {
    again_ = true;
    return number_ + 1;
  }
  begin(now_us);
  return number_;
}

template <class Task, class Report>
void CheckpointWriting::on_disk(Task task, Report report) {
  const bool taken = checkpoints_.disk().submit(
      std::move(task), [weak = weak_from_this(), report = std::move(report)](auto&& result) mutable {
        const auto self = weak.lock();
        if (self && !self->ended_) report(*self, std::forward<decltype(result)>(result));
      });
  if (!taken) fail("the daemon is stopping, or its disk does not keep up: try again later");
}

void CheckpointWriting::begin(TimeUs now_us) {
  ++number_;
  writing_ = Writing{.begun_us = now_us, .least_clock = source_.describe().clock};
  const std::filesystem::path folder = checkpoints_.options().folder / job_;
  on_disk(
      [root = checkpoints_.options().folder, job = job_, model = model_,
       partial = checkpoint::partial_name(source_.describe().node)]() -> File {
        const auto made = checkpoint::make_job_folder(root, job);
        if (!made) return std::unexpected(made.error());
        auto file = checkpoint::ModelWriter::begin(*made, partial, model);
        if (!file) return std::unexpected(file.error());
        return std::make_shared<checkpoint::ModelWriter>(std::move(*file));
      },
      [folder](CheckpointWriting& self, File&& file) { self.begun(std::move(file), folder); });
}

void CheckpointWriting::begun(File&& file, const std::filesystem::path& folder) {
  if (!file) return fail(file.error());
  writing_->folder = folder;
  appended(std::move(file));
}

void CheckpointWriting::appended(File&& file) {
  if (!file) return fail(file.error());
  writing_->file = std::move(*file);
  if (std::uint64_t{writing_->next} * fragment_elements_ < elements_) {
    next();
  } else {
    finish();
  }
}

void CheckpointWriting::next() {
  Writing& writing = *writing_;
  writing.asked = ++writing.next;
  writing.asked_us = now_us_;
  if (!source_.copy_fragment(writing.asked - 1, writing.least_clock))
    fail("the job does not run, or its model holds NaN or infinity: see gossamerctl jobs");
}

void CheckpointWriting::copied(std::uint32_t fragment, std::optional<std::vector<float>>&& values,
                               std::uint64_t publication_clock, TimeUs now_us) {
  now_us_ = now_us;
  if (ended_ || !writing_ || writing_->asked != fragment + 1) return;
  if (!values) return fail("the model holds NaN or infinity: see gossamerctl jobs");
  writing_->asked = 0;
  writing_->oldest_clock = std::min(writing_->oldest_clock, publication_clock);
  const std::uint64_t first = std::uint64_t{fragment} * fragment_elements_;
  values->resize(std::min<std::uint64_t>(elements_ - first, fragment_elements_));  // the padding is not written
  on_disk(
      [file = std::move(writing_->file), values = std::move(*values)]() mutable -> File {
        if (auto written = file->append(values); !written) return std::unexpected(written.error());
        return std::move(file);
      },
      [](CheckpointWriting& self, File&& file) { self.appended(std::move(file)); });
}

void CheckpointWriting::finish() {
  checkpoint::Description description = source_.describe();
  description.oldest_clock = std::min(writing_->oldest_clock, description.clock);
  const std::filesystem::path path = writing_->folder / checkpoint::file_name(description.clock, description.node);
  struct Finish {
    std::shared_ptr<checkpoint::ModelWriter> file;
    checkpoint::Description description;
    std::filesystem::path path;
    std::size_t keep;

    /// On success the text says what went wrong after the file was on the disk; empty: nothing did.
    std::expected<std::string, std::string> operator()() {
      if (auto done = file->finish(path, description); !done) return std::unexpected(done.error());
      const auto removed = checkpoint::remove_old(path.parent_path(), description.node, keep, path);
      return removed ? "" : removed.error();
    }
  };
  Finish task{.file = std::move(writing_->file),
              .description = description,
              .path = path,
              .keep = static_cast<std::size_t>(checkpoints_.options().keep)};
  on_disk(std::move(task),
          [clock = description.clock, path](CheckpointWriting& self, std::expected<std::string, std::string>&& done) {
            if (!done) return self.fail(done.error());
            if (!done->empty()) self.log_.warn("job {}: {}", self.job_, *done);
            self.finished(clock, path);
          });
}

void CheckpointWriting::finished(std::uint64_t clock, const std::filesystem::path& path) {
  log_.info("job {}: wrote checkpoint {} in {:.2f} s", job_, path.string(),
            static_cast<double>(now_us_ - writing_->begun_us) / us_per_s);
  written_clock_ = clock;
  written_us_ = now_us_;
  ++written_;
  over({.number = number_, .path = path.string(), .clock = clock});
}

void CheckpointWriting::fail(const std::string& why) {
  log_.warn("job {}: no checkpoint was written, training goes on: {}", job_, why);
  ++failed_;
  over({.number = number_, .error = why});
}

void CheckpointWriting::over(Outcome&& outcome) {
  latest_ = std::move(outcome);
  // The unfinished file is removed on the disk's thread, since removing it may block.
  if (writing_ && writing_->file) {
    const bool taken =
        checkpoints_.disk().submit(Workers::Work([file = std::move(writing_->file)] {}), Workers::Work([] {}));
    static_cast<void>(taken);  // if the pool has stopped, the file is removed here
  }
  writing_.reset();
  if (std::exchange(again_, false) && !ended_) begin(now_us_);
}

void CheckpointWriting::end() {
  if (std::exchange(ended_, true) || !writing_) return;
  again_ = false;
  over({.number = number_, .error = "the job ended before its checkpoint was written"});
}

}  // namespace gossamer::daemon
