// The cursor, the members, the job's clock, and the end of a run, from the client's side of the contract.

#include <gossamer.h>

#include <array>
#include <bit>
#include <cmath>
#include <gossamer.hpp>
#include <limits>
#include <string>
#include <thread>

#include "catch.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;
using gossamer::test::ContractClient;
using gossamer::test::ContractDaemon;
using gossamer::test::eventually;

namespace {

[[nodiscard]] Run open(std::vector<float>& values, const std::string& socket) {
  const Tensor tensors[] = {param("w", values)};
  return Run({.job = "test", .socket_path = socket, .fragment_elements = 256}, tensors);
}
constexpr const char* nowhere = "/nonexistent/socket";

std::string cursor_of(const Run& run) {
  const std::vector<std::byte> cursor = run.cursor();
  return {reinterpret_cast<const char*>(cursor.data()), cursor.size()};
}
void set_cursor(Run& run, const std::string& text) {
  run.set_cursor(std::as_bytes(std::span(text)));
}
std::byte* at(const ContractClient& client, std::uint64_t offset) {
  return const_cast<std::byte*>(client.bytes().data()) + offset;
}
void set_job_cursor(const ContractClient& client, const std::string& text) {
  layout::store_slot(client.header().job_cursor, at(client, layout::cursors_offset + 2 * layout::slot_bytes),
                     std::as_bytes(std::span(text)));
}
void answer(const ContractClient& client, layout::FinishAnswer answer, double distance) {
  client.header().finish_distance = std::bit_cast<std::uint64_t>(distance);
  answer.number = client.header().finishing;
  client.header().finish_answer = answer.pack();
}
struct Attached {
  ContractDaemon daemon;
  std::vector<float> values = std::vector<float>(10, 1.0F);
  Run run = open(values, daemon.path());
  std::unique_ptr<ContractClient> client = daemon.accept();
  Attached() {
    client->accept();
    REQUIRE(eventually([&] { return run.info().attached == 1; }));
  }
};

}  // namespace

TEST_CASE("a cursor is what was set last, up to its limit") {
  std::vector<float> values(10);
  Run run = open(values, nowhere);
  CHECK(cursor_of(run).empty());
  for (const std::string& text : {std::string("a"), std::string(4096, 'x'), std::string(), std::string("b")}) {
    set_cursor(run, text);
    CHECK(cursor_of(run) == text);
  }
  CHECK_THROWS_WITH(set_cursor(run, std::string(4097, 'x')), Catch::Contains("4097") && Catch::Contains("4096"));
  CHECK(cursor_of(run) == "b");
  char one[1];
  std::size_t length = 0;
  set_cursor(run, "two");
  CHECK(gossamer_get_cursor(run.handle(), one, 1, &length) == GOSSAMER_BAD_ARGUMENT);
  CHECK(length == 3);
  CHECK(gossamer_get_cursor(run.handle(), nullptr, 0, nullptr) == GOSSAMER_BAD_ARGUMENT);
  CHECK(gossamer_set_cursor(run.handle(), nullptr, 1) == GOSSAMER_BAD_ARGUMENT);
}

TEST_CASE("the cursor that came with the model replaces one from before, until the program sets its own") {
  Attached here;
  set_cursor(here.run, "before");
  CHECK(cursor_of(here.run) == "before");
  set_job_cursor(*here.client, "the job's");
  CHECK(cursor_of(here.run) == "the job's");
  set_cursor(here.run, "own");
  CHECK(cursor_of(here.run) == "own");
  // A word with impossible bits gives no cursor.
  here.client->header().job_cursor = ~std::uint64_t{0};
  CHECK(cursor_of(here.run).empty());
}

TEST_CASE("members are those the daemon tells of, or this node alone") {
  std::vector<float> values(10);
  CHECK(open(values, nowhere).members().empty());
  Attached here;
  REQUIRE(here.run.members().size() == 1);
  CHECK(here.run.members()[0][0] == 0xab);
  std::vector<std::byte> told(3 * 16, std::byte{7});
  layout::store_slot(here.client->header().members, at(*here.client, layout::members_offset), told);
  CHECK(here.run.members().size() == 3);
  std::uint8_t ids[2][16];
  std::size_t count = 0;
  CHECK(gossamer_members(here.run.handle(), ids, 2, &count) == GOSSAMER_OK);
  CHECK(count == 3);
  CHECK(ids[1][15] == 7);
  told.resize(17);  // not a whole number of ids
  layout::store_slot(here.client->header().members, at(*here.client, layout::members_offset), told);
  CHECK(here.run.members().size() == 1);
}

TEST_CASE("the job's clock never goes back") {
  Attached here;
  here.client->header().global_clock = 1000;
  CHECK(here.run.info().global_clock_samples == 1000);
  here.client->header().global_clock = 10;
  CHECK(here.run.info().global_clock_samples == 1000);
  here.run.step(2000);
  CHECK(here.run.info().global_clock_samples == 2000);
}

TEST_CASE("the clock has what a model that was taken over had seen, and counts on from there") {
  Attached here;
  here.run.step(100);
  CHECK(here.run.info().clock_samples == 100);
  here.client->header().clock_base = 85'184;
  here.run.step(3200);
  const gossamer_run_info info = here.run.info();
  CHECK(info.clock_samples == 88'484);
  CHECK(info.trained_samples == 3300);
  CHECK(info.global_clock_samples == 88'484);
  CHECK(here.client->header().clock == 3300);  // the daemon adds the base itself
  CHECK(here.run.finish(std::chrono::milliseconds(0)).clock_samples == 88'484);
}

TEST_CASE("statistics are what the daemon counts, and a distance that is none is 0") {
  Attached here;
  here.client->header().bytes_sent = 7;
  here.client->header().consensus = std::bit_cast<std::uint64_t>(0.25);
  CHECK(here.run.info().bytes_sent == 7);
  CHECK(here.run.info().consensus == 0.25);
  here.client->header().consensus = ~std::uint64_t{0};  // NaN
  CHECK(here.run.info().consensus == 0);
}

TEST_CASE("a run without a daemon is finished at once") {
  using Clock = std::chrono::steady_clock;
  std::vector<float> values(10);
  Run run = open(values, nowhere);
  const Clock::time_point begin = Clock::now();
  const gossamer_finish_info found = run.finish();
  CHECK((found.agreed == 1 && found.saver == 1 && found.members == 1));
  CHECK(Clock::now() - begin < std::chrono::seconds(9));
}

TEST_CASE("a run whose daemon has not answered yet, or refuses it for now, is not finished alone") {
  ContractDaemon daemon;
  std::vector<float> values(10);
  Run run = open(values, daemon.path());
  std::unique_ptr<ContractClient> client = daemon.accept();
  CHECK(run.finish(std::chrono::milliseconds(50)).agreed == 0);
  client->reply(layout::AttachStatus::limit_reached);
  CHECK(run.finish(std::chrono::milliseconds(50)).agreed == 0);
  client = daemon.accept();  // it asks again
  client->accept();
  REQUIRE(eventually([&] { return client->header().finishing != 0; }));
  answer(*client, {.members = 2, .agreed = true, .saver = false}, 0);
  CHECK(run.finish().members == 2);
}

TEST_CASE("finishing serves what is due until the daemon says that the replicas agree") {
  Attached here;
  std::thread daemon([&] {
    (void)eventually([&] { return here.client->header().finishing != 0; });
    here.client->make_due(0, std::vector<float>(256, 2.0F));
    here.client->announce();
    (void)eventually([&] { return !here.client->word(0).with_client; });
    answer(*here.client, {.members = 3, .agreed = true, .saver = false}, 1e-5);
  });
  const gossamer_finish_info found = here.run.finish();
  daemon.join();
  CHECK((found.agreed == 1 && found.saver == 0 && found.members == 3 && found.distance == 1e-5));
  CHECK(here.values[0] == 3.0F);
  // A second call continues the same finish. A step ends it, and the next call begins another.
  const std::uint32_t first = here.client->header().finishing;
  CHECK(here.run.finish().agreed == 1);
  CHECK(here.client->header().finishing == first);
  here.run.step(1);
  CHECK(here.client->header().finishing == 0);
  CHECK(here.run.finish(std::chrono::milliseconds(1)).agreed == 0);  // the answer belongs to the earlier finish
  CHECK(here.client->header().finishing != first);
  CHECK(here.client->header().finishing != 0);
}

TEST_CASE("finishing ends with its time, and says how things stand") {
  Attached here;
  gossamer_finish_info info{};
  CHECK(gossamer_finish(here.run.handle(), 0, &info) == GOSSAMER_BAD_ARGUMENT);
  info.size = sizeof info;
  CHECK(gossamer_finish(here.run.handle(), 1, &info) == GOSSAMER_TIMEOUT);
  CHECK((info.agreed == 0 && info.members == 1 && info.size == sizeof info));
  answer(*here.client, {.members = 5}, 0.5);
  CHECK(gossamer_finish(here.run.handle(), 1, &info) == GOSSAMER_TIMEOUT);
  CHECK((info.agreed == 0 && info.members == 5 && info.saver == 0 && info.distance == 0.5));
  CHECK(gossamer_finish(here.run.handle(), 1, nullptr) == GOSSAMER_TIMEOUT);
}

TEST_CASE("a model with NaN is never said to be the one to save") {
  Attached here;
  gossamer_finish_info info{};
  info.size = sizeof info;
  std::thread daemon([&] {
    (void)eventually([&] { return here.client->header().finishing != 0; });
    answer(*here.client, {.members = 2, .spoiled = true}, std::numeric_limits<double>::infinity());
  });
  CHECK(gossamer_finish(here.run.handle(), -1, &info) == GOSSAMER_NOT_FINITE);  // it returns at once
  daemon.join();
  CHECK((info.agreed == 0 && info.saver == 0 && info.members == 2 && std::isinf(info.distance)));
  // The daemon has checked no publication, because there is nobody to exchange with.
  answer(*here.client, {.members = 1, .agreed = true, .saver = true}, 0);
  CHECK(gossamer_finish(here.run.handle(), -1, &info) == GOSSAMER_OK);
  here.values[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(gossamer_finish(here.run.handle(), -1, &info) == GOSSAMER_NOT_FINITE);
  CHECK((info.agreed == 0 && info.saver == 0 && std::isinf(info.distance)));
}

TEST_CASE("no element of any type may be infinite in a model that is saved") {
  std::vector<double> wide(3, 1.0);
  std::vector<std::uint16_t> half(3, 0x3f80);  // 1 in bfloat16
  const std::uint64_t shape[] = {3};
  gossamer_tensor tensors[2] = {};
  tensors[0].name = "wide";
  tensors[0].dtype = GOSSAMER_F64;
  tensors[0].data = wide.data();
  tensors[1].name = "half";
  tensors[1].dtype = GOSSAMER_BF16;
  tensors[1].data = half.data();
  for (gossamer_tensor& tensor : tensors) {
    tensor.dimensions = 1;
    tensor.shape = shape;
  }
  gossamer_options options;
  gossamer_options_init(&options);
  options.job = "test";
  options.socket_path = nowhere;
  gossamer_run* run = nullptr;
  REQUIRE(gossamer_open(&options, tensors, 2, &run, nullptr, 0) == GOSSAMER_OK);
  CHECK(gossamer_finish(run, -1, nullptr) == GOSSAMER_OK);
  wide[2] = 1e300;  // becomes infinite when it is published
  CHECK(gossamer_finish(run, -1, nullptr) == GOSSAMER_NOT_FINITE);
  wide[2] = 1;
  half[1] = 0x7f80;
  CHECK(gossamer_finish(run, -1, nullptr) == GOSSAMER_NOT_FINITE);
  gossamer_close(run);
}

TEST_CASE("a run whose daemon is away waits for it before it is finished") {
  Attached here;
  here.client.reset();
  here.daemon.die();
  REQUIRE(eventually([&] { return here.run.info().attached == 0; }));
  CHECK(here.run.finish(std::chrono::milliseconds(10)).agreed == 0);
}

TEST_CASE("a run whose daemon has gone away for good is finished ten seconds later, whatever the time-out") {
  using Clock = std::chrono::steady_clock;
  Attached here;
  const Clock::time_point gone = Clock::now();
  here.client.reset();
  here.daemon.die();
  REQUIRE(eventually([&] { return here.run.info().attached == 0; }));
  const Clock::time_point noticed = Clock::now();
  for (int slice = 0; slice < 3; ++slice)  // waits in slices, as the Python package does
    CHECK(here.run.finish(std::chrono::milliseconds(100)).agreed == 0);
  gossamer_finish_info found = here.run.finish();
  CHECK((found.agreed == 1 && found.saver == 1 && found.members == 1));
  CHECK(Clock::now() - gone >= std::chrono::seconds(10));
  CHECK(Clock::now() - noticed < std::chrono::seconds(15));
  // The daemon has been gone for long, so finish() does not wait any more.
  here.run.step(1);
  found = here.run.finish(std::chrono::milliseconds(0));
  CHECK((found.agreed == 1 && found.saver == 1));
}

TEST_CASE("a daemon that is back in time goes on with the end of the run") {
  Attached here;
  here.client.reset();
  here.daemon.die();
  REQUIRE(eventually([&] { return here.run.info().attached == 0; }));
  std::thread daemon([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    here.daemon.listen();
    here.client = here.daemon.accept();
    here.client->accept();
    (void)eventually([&] { return here.client->header().finishing != 0; });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    answer(*here.client, {.members = 3, .agreed = true, .saver = false}, 1e-5);
  });
  const gossamer_finish_info found = here.run.finish();
  daemon.join();
  CHECK((found.agreed == 1 && found.saver == 0 && found.members == 3));
}
