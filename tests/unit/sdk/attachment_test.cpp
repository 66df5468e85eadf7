// How a run finds a daemon, loses it and finds it again, and what it says when it is refused.

#include <gossamer.h>
#include <signal.h>
#include <sys/wait.h>

#include <gossamer.hpp>

#include "catch.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;
using gossamer::test::ContractDaemon;
using layout::AttachStatus;
using layout::RunState;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds patience{test::patience_ms};

struct Model {
  std::vector<float> weights = std::vector<float>(600, 1.0f);
  [[nodiscard]] std::vector<Tensor> tensors() { return {param("weights", weights)}; }
};

[[nodiscard]] Run open(Model& model, const ContractDaemon& daemon) {
  return Run({.job = "test", .socket_path = daemon.path(), .fragment_elements = 256}, model.tensors());
}

}  // namespace

TEST_CASE("without a daemon training goes on and waiting says so") {
  Model model;
  Run run({.job = "test", .socket_path = "/nonexistent/gossamer.sock"}, model.tensors());
  CHECK(run.wait_ready(milliseconds(20)) == GOSSAMER_NO_DAEMON);
  CHECK(run.last_error().find("/nonexistent/gossamer.sock") != std::string::npos);
  run.step(8);
  CHECK(run.info().clock_samples == 8);
  CHECK(run.info().state == GOSSAMER_DETACHED);
  CHECK(std::string(run.info().message).find("/nonexistent/gossamer.sock") != std::string::npos);
}

TEST_CASE("a daemon that starts later is found") {
  Model model;
  ContractDaemon daemon;
  daemon.die();
  Run run = open(model, daemon);
  CHECK(run.wait_ready(milliseconds(150)) == GOSSAMER_NO_DAEMON);
  daemon.listen();
  const auto client = daemon.accept();
  client->accept();
  CHECK(run.wait_ready(patience) == GOSSAMER_OK);
  const gossamer_run_info info = run.info();
  CHECK(info.attached == 1);
  CHECK(info.state == GOSSAMER_RUNNING);
  CHECK(info.attachments == 1);
  CHECK(info.node_id[0] == 0xab);
  CHECK(std::string(info.message).empty());
}

TEST_CASE("a joiner takes over the model that the daemon pulls, whatever the step budget") {
  Model model;
  ContractDaemon daemon;
  Run run({.job = "test", .socket_path = daemon.path(), .fragment_elements = 256, .step_budget_bytes = 1},
          model.tensors());
  const auto client = daemon.accept();
  client->accept(RunState::joining);
  CHECK(run.wait_ready(milliseconds(20)) == GOSSAMER_TIMEOUT);
  CHECK(run.info().state == GOSSAMER_JOINING);
  std::thread pulling([&] {
    for (std::uint32_t f = 0; f < 3; ++f) {
      client->make_due(f, std::vector<float>(256, 10.0f + static_cast<float>(f)), true);
      client->announce();
      if (!test::eventually([&] { return !client->word(f).with_client; })) return;
      client->header().fragments_pulled.store(f + 1);
    }
    client->header().state.store(static_cast<std::uint32_t>(RunState::running), std::memory_order_release);
  });
  CHECK(run.wait_ready(patience) == GOSSAMER_OK);
  pulling.join();
  CHECK(model.weights[0] == 10.0f);
  CHECK(model.weights[256] == 11.0f);
  CHECK(model.weights[599] == 12.0f);
  CHECK(run.info().fragments_pulled == 3);
}

TEST_CASE("what is due when the run becomes ready is served before waiting ends") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = daemon.accept();
  for (std::uint32_t f = 0; f < 3; ++f)
    client->make_due(f, std::vector<float>(256, 5.0f), true);
  client->announce();
  client->accept(RunState::running);
  CHECK(run.wait_ready(patience) == GOSSAMER_OK);
  CHECK(model.weights == std::vector<float>(600, 5.0f));
}

TEST_CASE("a refused layout is reported at once in the daemon's words") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  daemon.accept()->reply(AttachStatus::bad_layout, "tensor 'weights' has 600 elements here and 512 elsewhere");
  CHECK(run.wait_ready(patience) == GOSSAMER_REJECTED);
  CHECK(run.last_error().find("tensor 'weights' has 600 elements here and 512 elsewhere") != std::string::npos);
  run.step(1);
  CHECK(run.info().clock_samples == 1);
  gossamer_finish_info end{};
  end.size = sizeof end;
  CHECK(gossamer_finish(run.handle(), -1, &end) == GOSSAMER_REJECTED);
  CHECK(end.agreed + end.saver == 0);
  CHECK(run.last_error().starts_with("this model is no part of the job, and not the one to save"));
}

TEST_CASE("a daemon of another version is reported, and tried again in case it is upgraded") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  daemon.accept()->reply(AttachStatus::version_differs, "");
  CHECK(run.wait_ready(patience) == GOSSAMER_REJECTED);
  CHECK(run.last_error().find("version") != std::string::npos);
  daemon.accept()->accept();
  CHECK(test::eventually([&] { return run.info().attachments == 1; }));
}

TEST_CASE("a busy job is waited for") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  daemon.accept()->reply(AttachStatus::job_busy, "process 17 trains 'test' already");
  REQUIRE(test::eventually([&] { return std::string(run.info().message).find("process 17") != std::string::npos; }));
  CHECK(run.wait_ready(milliseconds(0)) == GOSSAMER_BUSY);
  const auto client = daemon.accept();
  CHECK(client->request.flags == 0);  // no daemon has had the memory yet
  client->accept();
  CHECK(run.wait_ready(patience) == GOSSAMER_OK);
}

TEST_CASE("answers that are not a daemon's are refused with a reason") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto message_becomes = [&](const std::string& part) {
    return test::eventually([&] { return std::string(run.info().message).find(part) != std::string::npos; });
  };
  const auto garbage = daemon.accept();
  REQUIRE(send(garbage->socket(), "hello", 5, MSG_NOSIGNAL) == 5);
  CHECK(message_becomes("not gossamerd"));
  {
    const auto large = daemon.accept();
    const std::vector<char> bytes(100'000, 'x');
    REQUIRE(send(large->socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    REQUIRE(test::eventually([&] { return daemon.has_caller(0); }));
  }
  daemon.accept().reset();
  CHECK(message_becomes("closed the connection"));
  const auto unterminated = daemon.accept();
  layout::AttachReply reply{};
  reply.magic = layout::attach_magic;
  reply.version = layout::attach_version;
  reply.status = 99;
  std::memset(reply.message, 'y', sizeof reply.message);
  REQUIRE(send(unterminated->socket(), &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply);
  CHECK(message_becomes("unknown reason: yyyy"));
  const auto genuine = daemon.accept();
  genuine->accept();
  CHECK(run.wait_ready(patience) == GOSSAMER_OK);
}

TEST_CASE("a daemon that dies and returns finds the same memory, and nothing is applied twice") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  auto client = daemon.accept();
  client->accept();
  REQUIRE(run.wait_ready(patience) == GOSSAMER_OK);
  const std::uint64_t inode = client->memory_inode();
  client->make_due(0, std::vector<float>(256, 1.0f));
  client->announce();
  run.step(1);
  CHECK(model.weights[0] == 2.0f);

  const layout::MethodWord averages{.method = layout::Method::average, .codec = 0, .members = 3, .steps = 8};
  client->header().method.store(averages.pack());
  const auto knows_the_method = [&] {
    return run.info().method == GOSSAMER_AVERAGE && run.info().average_steps == 8 && run.info().average_members == 3;
  };
  CHECK(knows_the_method());
  // The client serves one fragment after the daemon's death. Another, not yet announced, stays due for the next daemon.
  client->make_due(1, std::vector<float>(256, 1.0f));
  client->announce();
  daemon.die();
  client.reset();
  REQUIRE(test::eventually([&] { return run.info().attached == 0; }));
  CHECK(run.info().state == GOSSAMER_DETACHED);
  CHECK(knows_the_method());  // programs follow it, and the job is the same
  run.step(1);
  CHECK(model.weights[256] == 2.0f);

  daemon.listen();
  client = daemon.accept();
  CHECK(client->request.flags == layout::attach_resume);
  CHECK(client->memory_inode() == inode);
  CHECK(client->header().clock.load() == 2);
  CHECK(client->word(0).generation == 2);
  CHECK(client->word(1).generation == 2);
  CHECK_FALSE(client->word(1).correction_valid);
  // The header still has the dead daemon's state.
  CHECK(client->header().state.load() == static_cast<std::uint32_t>(RunState::running));
  client->accept();
  REQUIRE(test::eventually([&] { return run.info().attachments == 2; }));
  CHECK(knows_the_method());
  for (int i = 0; i < 3; ++i)
    run.step(1);
  CHECK(model.weights[0] == 2.0f);
  CHECK(model.weights[256] == 2.0f);
}

TEST_CASE("a fragment that a dying daemon made due but did not announce is served for its successor") {
  Model model;
  ContractDaemon daemon;
  Run run = open(model, daemon);
  auto client = daemon.accept();
  client->accept();
  REQUIRE(run.wait_ready(patience) == GOSSAMER_OK);
  client->make_due(2, std::vector<float>(256, 1.0f));
  run.step(1);
  CHECK(model.weights[599] == 1.0f);
  client.reset();
  client = daemon.accept();
  client->accept();
  REQUIRE(test::eventually([&] { return run.info().attachments == 2; }));
  run.step(1);
  CHECK(model.weights[599] == 2.0f);
}

#ifndef __SANITIZE_THREAD__  // its thread shares the process's descriptors
TEST_CASE("the socket closes with the process, whatever children it has forked") {
  ContractDaemon daemon;
  int keep_alive[2];
  int loader_runs[2];
  REQUIRE(pipe(keep_alive) == 0);
  REQUIRE(pipe(loader_runs) == 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    Model model;
    const Run run = open(model, daemon);
    while (run.info().attached == 0)
      std::this_thread::sleep_for(milliseconds(1));
    if (fork() == 0) {  // a data loader that outlives the trainer, until the test closes the pipe
      close(keep_alive[1]);
      char byte = 0;
      const bool told = write(loader_runs[1], &byte, 1) == 1;
      _exit(told && read(keep_alive[0], &byte, 1) == 0 ? 0 : 1);
    }
    while (true)
      pause();
  }
  const auto client = daemon.accept();
  client->accept();
  CHECK(test::readable(loader_runs[0]));
  CHECK_FALSE(test::readable(client->socket(), 0));
  kill(trainer, SIGKILL);
  waitpid(trainer, nullptr, 0);
  REQUIRE(test::readable(client->socket()));
  char end;
  CHECK(recv(client->socket(), &end, 1, 0) == 0);
  for (const int descriptor : {keep_alive[0], keep_alive[1], loader_runs[0], loader_runs[1]})
    close(descriptor);
}
#endif

TEST_CASE("a run does not hold the program's own files open") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  Model model;
  const Run run({.job = "test", .socket_path = "/nonexistent/socket"}, model.tensors());
  close(ends[1]);
  REQUIRE(test::readable(ends[0]));  // end of file: no other process has the writing end
  char end;
  CHECK(read(ends[0], &end, 1) == 0);
  close(ends[0]);
}

TEST_CASE("several runs in one process are independent") {
  Model first_model, second_model;
  ContractDaemon daemon;
  Run first({.job = "first", .socket_path = daemon.path()}, first_model.tensors());
  const auto first_client = daemon.accept();
  Run second({.job = "second", .socket_path = daemon.path()}, second_model.tensors());
  const auto second_client = daemon.accept();
  CHECK(std::string(first_client->header().job) == "first");
  CHECK(std::string(second_client->header().job) == "second");
  first_client->accept();
  second_client->accept();
  first_client->make_due(0, std::vector<float>(1'024, 1.0f));
  first_client->announce();
  first.step(1);
  second.step(1);
  CHECK(first_model.weights[0] == 2.0f);
  CHECK(second_model.weights[0] == 1.0f);
}
