// What gossamer_open() refuses, and that its messages name the tensor and say what to do.

#include <gossamer.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <gossamer.hpp>
#include <optional>

#include "catch.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;

namespace {

/// The status and message of opening a run with these tensors and options; the run is closed again.
struct Outcome {
  gossamer_status status;
  std::string message;
};

[[nodiscard]] Outcome open(const std::vector<Tensor>& tensors, const Options& options) {
  try {
    const Run run(options, tensors);
    return {GOSSAMER_OK, ""};
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
}
[[nodiscard]] Outcome open(const std::vector<Tensor>& tensors) {
  return open(tensors, {.job = "test", .socket_path = "/nonexistent/socket"});
}

std::array<float, 300> values{};

[[nodiscard]] Tensor good() {
  return param("good", values);
}

void check_refused(const Outcome& outcome, gossamer_status status, const std::vector<std::string>& parts) {
  CHECK(outcome.status == status);
  for (const std::string& part : parts) {
    INFO(outcome.message << " should contain " << part);
    CHECK(outcome.message.find(part) != std::string::npos);
  }
}

/// The arguments of a program in C: one tensor, and the present options.
struct CProgram {
  CProgram() {
    tensor.name = "weights";
    tensor.dimensions = 1;
    tensor.shape = &shape;
    tensor.data = weights.data();
    gossamer_options_init(&options);
    options.job = "test";
    options.socket_path = "/nonexistent/socket";
  }
  CProgram(const CProgram&) = delete;
  CProgram& operator=(const CProgram&) = delete;

  std::vector<float> weights = std::vector<float>(300);
  std::uint64_t shape = 300;
  gossamer_tensor tensor{};
  gossamer_options options;
};

}  // namespace

TEST_CASE("a plain model opens") {
  CHECK(open({good()}).status == GOSSAMER_OK);
}

TEST_CASE("memory in an open run is refused to a second one, whatever its job, until that run is closed") {
  std::vector<float> shared(100);
  std::vector<float> other(100);
  const Options options{.job = "first", .socket_path = "/nonexistent/socket"};
  std::optional<Run> first(std::in_place, options, std::vector<Tensor>{param("weights", shared)});
  const std::vector<std::string> says = {"'again'", "job 'first'", "Close that run first"};
  check_refused(open({param("again", shared)}), GOSSAMER_BAD_ARGUMENT, says);
  check_refused(open({param("fine", other), param("again", std::span(shared).last(1))}), GOSSAMER_BAD_ARGUMENT, says);
  CHECK(open({param("fine", other), local("again", GOSSAMER_F32, {100})}).status == GOSSAMER_OK);

  Run second(options, std::vector<Tensor>{param("weights", other)});
  CHECK(gossamer_set_tensor_data(second.handle(), 0, shared.data()) == GOSSAMER_BAD_ARGUMENT);
  CHECK(second.last_error().find("Close that run first") != std::string::npos);
  CHECK(open({param("weights", other)}).status == GOSSAMER_BAD_ARGUMENT);  // the second run still has this memory
  std::vector<float> elsewhere(100);
  CHECK(gossamer_set_tensor_data(second.handle(), 0, elsewhere.data()) == GOSSAMER_OK);
  CHECK(open({param("weights", other)}).status == GOSSAMER_OK);
  CHECK(open({param("weights", elsewhere)}).status == GOSSAMER_BAD_ARGUMENT);
  first.reset();
  CHECK(open({param("weights", shared)}).status == GOSSAMER_OK);
}

#ifndef __SANITIZE_THREAD__  // which ends children that start threads
TEST_CASE("a child may open the memory of its parent's runs") {
  std::vector<float> shared(100);
  Run parents({.job = "test", .socket_path = "/nonexistent/socket"}, std::vector<Tensor>{param("weights", shared)});
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(open({param("weights", shared)}).status == GOSSAMER_OK ? 0 : 1);
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(open({param("weights", shared)}).status == GOSSAMER_BAD_ARGUMENT);
}
#endif

/// Addresses for half of the machine's memory, without pages. Three times as much is more than the machine has.
class LargeModel {
 public:
  LargeModel()
      : bytes_(static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(getpagesize()) / 2),
        data_(mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  LargeModel(const LargeModel&) = delete;
  LargeModel& operator=(const LargeModel&) = delete;
  ~LargeModel() { munmap(data_, bytes_); }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] Tensor tensor() const {
    return param("large", std::span(static_cast<float*>(data_), bytes_ / sizeof(float)));
  }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST_CASE("a model that does not fit into memory is refused before anything is taken, if it is to be resident") {
  const LargeModel model;
  const Outcome outcome =
      open({model.tensor()}, {.job = "test", .socket_path = "/nonexistent/socket", .memory = GOSSAMER_MEMORY_RESIDENT});
  const std::string needed = std::to_string(3 * (model.bytes() >> 20)).substr(0, 2);
  check_refused(outcome, GOSSAMER_NO_MEMORY, {"takes " + needed, "three times", "are available", "auto or lean"});
}

TEST_CASE("a model that does not fit is opened lean, and takes nothing but its tables") {
  const LargeModel model;
  test::ContractDaemon daemon;
  const Tensor tensors[] = {model.tensor()};
  const Run run({.job = "test", .socket_path = daemon.path()}, tensors);
  const auto client = daemon.accept();
  CHECK(run.info().window_bytes == 8 * 3 * 4 << 20);
  CHECK(client->header().window_bytes == run.info().window_bytes);
  CHECK(client->request.memory_bytes > 3 * (model.bytes() - 4096));
  struct stat file {};
  REQUIRE(fstat(client->memory_file(), &file) == 0);
  CHECK(static_cast<std::uint64_t>(file.st_blocks) * 512 <= client->header().buffers_offset);
  for (std::uint32_t f = 0; f < client->header().fragment_count; ++f)
    REQUIRE(client->word(f).vacant());
}

TEST_CASE("a model that fits is resident unless it is to be lean") {
  std::vector<float> weights(5000);
  const Tensor tensors[] = {param("weights", weights)};
  const Options options{.job = "test", .socket_path = "/nonexistent/socket", .fragment_elements = 1024};
  CHECK(Run(options, tensors).info().window_bytes == 0);
  Options lean = options;
  lean.memory = GOSSAMER_MEMORY_LEAN;
  CHECK(Run(lean, tensors).info().window_bytes == 5 * 3 * 4096);
  lean.fragment_elements = 512;
  check_refused(open({param("weights", weights)}, lean), GOSSAMER_BAD_ARGUMENT,
                {"at least 1024 elements", "have 512", "choose larger fragment_elements"});
  lean.memory = static_cast<gossamer_memory>(3);
  check_refused(open({param("weights", weights)}, lean), GOSSAMER_BAD_ARGUMENT, {"none of gossamer_memory"});
}

TEST_CASE("a program that was built before there was lean memory opens a run as before") {
  CProgram program;
  gossamer_options& options = program.options;
  options.size = offsetof(gossamer_options, memory);
  options.memory = 77;  // beyond the options that such a program has
  gossamer_run* run = nullptr;
  CHECK(gossamer_open(&options, &program.tensor, 1, &run, nullptr, 0) == GOSSAMER_OK);
  gossamer_close(run);
  options.size = sizeof options + 8;
  CHECK(gossamer_open(&options, &program.tensor, 1, &run, nullptr, 0) == GOSSAMER_BAD_ARGUMENT);
  CHECK(run == nullptr);
}

TEST_CASE("a program that was built before there were GPUs has its tensors in host memory") {
  CProgram program;
  gossamer_options& options = program.options;
  options.size = offsetof(gossamer_options, stream);
  options.stream = &program;  // beyond the options that such a program has
  gossamer_run* run = nullptr;
  REQUIRE(gossamer_open(&options, &program.tensor, 1, &run, nullptr, 0) == GOSSAMER_OK);
  gossamer_run_info info{};
  info.size = offsetof(gossamer_run_info, path);
  info.path = 77;
  CHECK(gossamer_info(run, &info) == GOSSAMER_OK);
  CHECK(info.path == 77);
  info.size = sizeof info;
  CHECK(gossamer_info(run, &info) == GOSSAMER_OK);
  CHECK(info.path == GOSSAMER_PATH_HOST);
  CHECK(gossamer_set_stream(run, nullptr) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(gossamer_last_error(run)).find("host memory") != std::string::npos);
  gossamer_close(run);
}

TEST_CASE("tensors that cannot be averaged are refused by name") {
  Tensor half = good();
  half.name = "layer.1.half";
  half.dtype = GOSSAMER_F16;
  check_refused(open({half}), GOSSAMER_UNSUPPORTED, {"'layer.1.half'", "float16", "float32", "mixed precision"});
  Tensor counter = good();
  counter.name = "steps";
  counter.dtype = GOSSAMER_I64;
  check_refused(open({counter}), GOSSAMER_UNSUPPORTED, {"'steps'", "int64", "local"});
  counter.role = GOSSAMER_LOCAL;
  CHECK(open({good(), counter}).status == GOSSAMER_OK);
  half.role = GOSSAMER_LOCAL;
  CHECK(open({good(), half}).status == GOSSAMER_OK);
}

TEST_CASE("bad descriptions of tensors are refused") {
  const auto changed = [](auto change) {
    Tensor tensor = good();
    change(tensor);
    return open({tensor});
  };
  check_refused(changed([](Tensor& t) { t.name = ""; }), GOSSAMER_BAD_ARGUMENT, {"number 0", "name"});
  check_refused(changed([](Tensor& t) { t.name = "\xff"; }), GOSSAMER_BAD_ARGUMENT, {"number 0", "UTF-8"});
  check_refused(changed([](Tensor& t) { t.name.assign(256, 'n'); }), GOSSAMER_BAD_ARGUMENT, {"255"});
  check_refused(changed([](Tensor& t) { t.shape.assign(9, 1); }), GOSSAMER_BAD_ARGUMENT, {"'good'", "8 dimensions"});
  check_refused(changed([](Tensor& t) { t.shape = {1u << 30, 1u << 30}; }), GOSSAMER_BAD_ARGUMENT, {"'good'"});
  check_refused(changed([](Tensor& t) { t.data = nullptr; }), GOSSAMER_BAD_ARGUMENT, {"'good'", "no data"});
  check_refused(changed([](Tensor& t) { t.data = reinterpret_cast<char*>(t.data) + 2; }), GOSSAMER_BAD_ARGUMENT,
                {"'good'", "aligned"});
  check_refused(open({good(), good()}), GOSSAMER_BAD_ARGUMENT, {"two tensors", "'good'"});
  check_refused(open({}), GOSSAMER_BAD_ARGUMENT, {"no tensors"});
  check_refused(open({local("counter", GOSSAMER_I64, {3})}), GOSSAMER_BAD_ARGUMENT, {"nothing to train"});
}

TEST_CASE("tensors that share memory are refused, as corrections would be added twice") {
  const std::span all(values);
  check_refused(open({param("tied", all.first(200)), param("whole", all)}), GOSSAMER_BAD_ARGUMENT,
                {"'tied'", "'whole'", "share memory"});
  CHECK(open({param("front", all.first(200)), param("back", all.subspan(200))}).status == GOSSAMER_OK);
}

TEST_CASE("bad options are refused") {
  const auto with = [](const Options& options) { return open({good()}, options); };
  check_refused(with({.job = ""}), GOSSAMER_BAD_ARGUMENT, {"job", "63"});
  check_refused(with({.job = "a/b"}), GOSSAMER_BAD_ARGUMENT, {"job"});
  check_refused(with({.job = "test", .fragment_elements = 300}), GOSSAMER_BAD_ARGUMENT, {"300", "power of two"});
  check_refused(with({.job = "test", .fragment_elements = 128}), GOSSAMER_BAD_ARGUMENT, {"128", "256"});
  check_refused(with({.job = "test", .fragment_elements = 1u << 23}), GOSSAMER_BAD_ARGUMENT, {"4194304"});

  int a_stream = 0;
  check_refused(with({.job = "test", .stream = &a_stream}), GOSSAMER_BAD_ARGUMENT, {"stream", "host memory"});

  CProgram program;
  gossamer_options& options = program.options;
  gossamer_tensor& tensor = program.tensor;
  gossamer_run* run = nullptr;
  char message[200];
  options.device = 2;
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(message).find("gossamer_device") != std::string::npos);
  options.device = GOSSAMER_HOST;
  options.flags = 2;
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(message).find("flags") != std::string::npos);
  options.flags = 0;
  options.size = 3;
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(message).find("gossamer_options_init") != std::string::npos);
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, 5) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(message).size() == 4);
  CHECK(gossamer_open(&options, &tensor, 1, nullptr, nullptr, 0) == GOSSAMER_BAD_ARGUMENT);
  options.size = sizeof options;
  tensor.dtype = 77;
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(message).find("'weights' has the unknown dtype 77") != std::string::npos);
  tensor.dtype = GOSSAMER_F32;
  tensor.role = 5;
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(message).find("'weights' has the unknown role 5") != std::string::npos);
  tensor.role = GOSSAMER_PARAM;
  tensor.reserved = 1;
  CHECK(gossamer_open(&options, &tensor, 1, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT);
  CHECK(run == nullptr);
}

TEST_CASE("a socket path that is too long is reported, and training goes on") {
  const std::vector<Tensor> tensors = {good()};
  Run run({.job = "test", .socket_path = "/" + std::string(200, 'x')}, tensors);
  CHECK(run.wait_ready(std::chrono::milliseconds(10)) == GOSSAMER_NO_DAEMON);
  REQUIRE(test::eventually([&] { return std::string(run.info().message).find("201 bytes") != std::string::npos; }));
}

TEST_CASE("small models get one small fragment, large ones fragments of a million elements, others eight") {
  const auto fragments_of = [](std::size_t elements) {
    std::vector<float> memory(elements);
    const std::vector<Tensor> tensors = {param("w", memory)};
    const Run run({.job = "test", .socket_path = "/nonexistent/socket"}, tensors);
    return std::pair(run.info().fragment_elements, run.info().fragments);
  };
  CHECK(fragments_of(1) == std::pair(256u, 1u));
  CHECK(fragments_of(257) == std::pair(512u, 1u));
  CHECK(fragments_of(4096) == std::pair(4096u, 1u));
  CHECK(fragments_of(4097) == std::pair(4096u, 2u));
  CHECK(fragments_of(8 * 4096) == std::pair(4096u, 8u));
  CHECK(fragments_of(8 * 4096 + 1) == std::pair(8192u, 5u));
  CHECK(fragments_of(1u << 20) == std::pair(1u << 17, 8u));
  CHECK(fragments_of((8u << 20) + 1) == std::pair(1u << 20, 9u));
}

TEST_CASE("a run continued from a checkpoint starts at its clock") {
  const std::vector<Tensor> tensors = {good()};
  Run run({.job = "test", .socket_path = "/nonexistent/socket", .initial_clock_samples = 1'000}, tensors);
  run.step(24);
  CHECK(run.info().clock_samples == 1'024);
  CHECK(run.info().steps == 1);
}

TEST_CASE("calls without a run are refused") {
  CHECK(gossamer_step(nullptr, 1) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_wait_ready(nullptr, 0) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_info(nullptr, nullptr) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_set_tensor_data(nullptr, 0, nullptr) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(gossamer_last_error(nullptr)).empty());
  gossamer_close(nullptr);
  const std::vector<Tensor> tensors = {good()};
  const Run run({.job = "test", .socket_path = "/nonexistent/socket"}, tensors);
  CHECK(gossamer_info(run.handle(), nullptr) == GOSSAMER_BAD_ARGUMENT);
  gossamer_run_info info{};
  CHECK(gossamer_info(run.handle(), &info) == GOSSAMER_BAD_ARGUMENT);
  CHECK(std::string(gossamer_last_error(run.handle())).find("info.size") != std::string::npos);
}
