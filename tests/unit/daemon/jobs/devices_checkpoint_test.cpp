// Checkpoints of a model in a fake GPU's memory: the model is written from there and read into it, and no part of a
// damaged checkpoint is taken over.

#include <array>
#include <fstream>

#include "daemon/jobs/checkpoints.hpp"
#include "tests/unit/daemon/jobs/played_job.hpp"
#include "tests/unit/temporary_folder.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using device::fake::fake_counts;
using device::fake::FakeGpus;
using std::chrono::microseconds;
using test::Trainer;

namespace {

/// What keeps checkpoints in a folder, with a loop of its own.
struct Disk {
  explicit Disk(const std::filesystem::path& folder)
      : checkpoints(loop, {.folder = folder, .restore = Restore::latest}) {}
  void poll() {
    loop.restart();
    loop.poll();
  }
  asio::io_context loop;
  Checkpoints checkpoints;
};

class Daemon : public test::Daemon {
 public:
  explicit Daemon(Disk& disk) : disk_(disk) {}
  template <class Condition>
  void run_until(Condition condition) {
    test::Daemon::run_until([&] {
      disk_.poll();
      return condition();
    });
  }

 private:
  [[nodiscard]] Checkpoints* checkpoints() override { return &disk_.checkpoints; }
  Disk& disk_;
};

/// Trains from `begin` on and has a checkpoint written; returns its path.
std::filesystem::path write_one(const std::filesystem::path& folder, float begin, std::optional<int> gpu) {
  Disk disk(folder);
  Trainer trainer(begin, microseconds(20), gpu);
  Daemon daemon(disk);
  daemon.attach(trainer);
  trainer.start();
  daemon.run_until([&] { return trainer.trained(); });
  REQUIRE(daemon.job().request_checkpoint());
  const CheckpointWriting& writing = *daemon.job().checkpoint_writing();
  daemon.run_until([&] { return writing.latest().number > 0; });
  CHECK(writing.latest().error.empty());
  return writing.latest().path;
}

/// Returns the value with which a trainer begins to run if its own model is `begin` and there are checkpoints.
float begun_with(const std::filesystem::path& folder, float begin, std::optional<int> gpu) {
  Disk disk(folder);
  Trainer trainer(begin, microseconds(20), gpu);
  trainer.may_train = false;
  Daemon daemon(disk);
  daemon.attach(trainer);
  trainer.start();
  daemon.run_until([&] { return trainer.running() && disk.checkpoints.disk().pending() == 0; });
  const auto word = layout::Word::unpack(trainer.memory().fragment(0).word.load());
  return trainer.memory().buffer(0, word.publication)[0];
}

}  // namespace

TEST_CASE("a model goes from one client's memory to a checkpoint and into another's, on a GPU or not") {
  const FakeGpus gpus;
  const auto [from, to] =
      GENERATE(std::pair(std::optional(0), std::optional<int>()), std::pair(std::optional<int>(), std::optional(0)),
               std::pair(std::optional(0), std::optional(0)));
  const TemporaryFolder folder;
  (void)write_one(folder.path(), 5, from);
  CHECK(begun_with(folder.path(), -3, to) == 5 + static_cast<float>(test::steps) * test::step);
  CHECK(fake_counts().allocations == 0);
  CHECK(fake_counts().mappings == 0);
}

TEST_CASE("of a checkpoint that is damaged a client on a GPU is given nothing") {
  const FakeGpus gpus;
  const TemporaryFolder folder;
  const std::filesystem::path path = write_one(folder.path(), 5, std::nullopt);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-2, std::ios::end);
    file.put('\x40');  // another finite value
    REQUIRE(file.good());
  }
  CHECK(begun_with(folder.path(), -3, 0) == -3);
  CHECK(fake_counts().allocations == 0);
  CHECK(fake_counts().mappings == 0);
}
