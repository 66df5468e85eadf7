// Shared memory as the daemon sees it: a valid one, and every way in which the client can lie about it.

#include "daemon/clients/client_memory.hpp"

#include <functional>
#include <random>
#include <set>

#include "daemon/jobs/job_client.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using layout::AttachStatus;

namespace {

constexpr std::uint64_t no_limit = ~std::uint64_t{0};

auto map(const test::TestMemory& memory, std::uint64_t most_bytes = no_limit) {
  return ClientMemory::map(memory.fd.get(), memory.plan.total_bytes, most_bytes);
}

}  // namespace

TEST_CASE("a valid memory is mapped, and both sides see the same") {
  test::TestMemory client;
  client.seal();
  auto mapped = map(client);
  REQUIRE(mapped);
  ClientMemory memory = std::move(*mapped);
  client.fd.reset();
  CHECK(memory.job() == "digits");
  CHECK(memory.key() == JobKey{job_name_hash("digits"), client.header().layout_hash});
  CHECK(memory.elements() == 621);
  CHECK(memory.fragment_elements() == 256);
  CHECK(memory.size_bytes() == client.plan.total_bytes);
  REQUIRE(memory.fragment_count() == 3);
  CHECK(memory.padded_elements(0) == 256);
  CHECK(memory.padded_elements(2) == 256);  // 109 used
  CHECK(memory.block_count(2) == 1);
  CHECK(memory.statistics(0).empty());
  CHECK(memory.statistics(2) == std::vector<gossip::ElementRange>{{108, 109}});  // the tensor "mean"

  for (std::uint32_t f = 0; f < 3; ++f)
    for (std::uint8_t i = 0; i < 3; ++i) {
      client.buffer(f, i)[255] = static_cast<float>(10 * f + i);
      CHECK(memory.buffer(f, i)[255] == static_cast<float>(10 * f + i));
    }
  memory.store_word(1, {5, 2, 1, true, false, true});
  const layout::Word word = layout::Word::unpack(client.fragment(1).word);
  CHECK(word.generation == 5);
  CHECK(word.with_client);
  client.fragment(1).publication_clock = 77;
  client.fragment(1).word = layout::Word{6, 0, 2, false, false, false}.pack();
  CHECK(memory.load_word(1).generation == 6);
  CHECK(memory.publication_clock(1) == 77);
  client.header().clock = 99;
  client.header().steps = 4;
  client.header().publications = 3;
  client.header().serving_ns = 5;
  CHECK(memory.clock() == 99);
  CHECK(memory.steps().all == 4);
  CHECK(memory.steps().trained == 4);
  CHECK(memory.publications() == 3);
  CHECK(memory.serving_ns() == 5);

  memory.raise_due();
  memory.raise_due();
  memory.set_state(layout::RunState::joining);
  memory.set_fragments_pulled(2);
  memory.set_statistics({.global_clock = 1000, .neighbours = 3, .exchanges = 17});
  const layout::Header& header = client.header();
  CHECK(header.due_sequence == 2);
  CHECK(header.state == static_cast<std::uint32_t>(layout::RunState::joining));
  CHECK(header.global_clock == 1000);
  CHECK(header.fragments_pulled == 2);
  CHECK(header.neighbours == 3);
  CHECK(header.exchanges == 17);
}

TEST_CASE("what the client changes later does not change what was validated") {
  test::TestMemory client;
  client.seal();
  const auto memory = map(client);
  REQUIRE(memory);
  client.header().elements = 1u << 30;
  client.header().fragment_count = 1000;
  client.header().fragment_elements = 1u << 22;
  client.header().buffers_offset = 1ull << 40;
  client.header().job[0] = '/';
  CHECK(memory->elements() == 621);
  CHECK(memory->fragment_count() == 3);
  CHECK(memory->padded_elements(2) == 256);
  CHECK(memory->job() == "digits");
  client.fragment(0).word = ~std::uint64_t{0};
  CHECK_FALSE(memory->load_word(0).valid());
}

TEST_CASE("only the second moments that the SDK adds to a model may be missing in a checkpoint") {
  test::TestMemory client({{"weight", layout::Role::param, {3}},
                           {"weight.root_second_moment", layout::Role::buffer, {3}},
                           {"own.root_second_moment", layout::Role::param, {3}},
                           {"root_second_moment", layout::Role::buffer, {3}}});
  client.seal();
  const auto memory = map(client);
  REQUIRE(memory);
  std::vector<std::string> may_be_missing;
  for (const checkpoint::ModelTensor& tensor : memory->model())
    if (tensor.may_be_missing) may_be_missing.push_back(tensor.name);
  CHECK(may_be_missing == std::vector<std::string>{"weight.root_second_moment"});
}

namespace {

const std::vector<test::TestTensor> larger_model = {{"weights", layout::Role::param, {5000}}};
constexpr std::uint64_t fragment_bytes = 3 * 4096;

void make_lean(const test::TestMemory& memory, std::uint64_t window_bytes) {
  memory.header().window_bytes = window_bytes;
  const auto begin = static_cast<off_t>(memory.plan.buffers_offset);
  REQUIRE(::fallocate(memory.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin,
                      static_cast<off_t>(memory.plan.total_bytes) - begin) == 0);
  for (std::uint32_t f = 0; f < memory.plan.fragment_count; ++f)
    memory.fragment(f).word = layout::Word{.empty = true}.pack();
}

std::uint64_t taken_bytes(const test::TestMemory& memory) {
  struct stat file {};
  REQUIRE(::fstat(memory.fd.get(), &file) == 0);
  return static_cast<std::uint64_t>(file.st_blocks) * 512;
}

}  // namespace

TEST_CASE("lean memory takes pages for a fragment when they are wanted, and gives them back") {
  test::TestMemory raw(larger_model, 1024);
  make_lean(raw, 2 * fragment_bytes);
  raw.seal();
  const std::uint64_t tables_bytes = taken_bytes(raw);
  auto memory = map(raw);
  REQUIRE(memory);
  CHECK(memory->lean());
  CHECK(memory->window_fragments() == 2);
  CHECK(memory->most_bytes() == raw.plan.buffers_offset + 2 * fragment_bytes);
  CHECK(memory->size_bytes() == raw.plan.total_bytes);
  const std::uint64_t before = taken_bytes(raw);
  CHECK(before <= tables_bytes + 4096);  // at most the page of the words more

  REQUIRE(memory->provide(2) == 0);
  CHECK(taken_bytes(raw) == before + fragment_bytes);
  memory->buffer(2, 1)[1023] = 7;
  REQUIRE(memory->provide(2) == 0);  // present memory keeps its values
  CHECK(memory->buffer(2, 1)[1023] == 7);
  REQUIRE(memory->provide(4) == 0);
  CHECK(taken_bytes(raw) == before + 2 * fragment_bytes);
  memory->vacate(2);
  CHECK(taken_bytes(raw) == before + fragment_bytes);

  // A dead daemon may leave pages of a fragment whose word is empty (4). Fragment 1 has a publication.
  memory->store_word(1, {.generation = 1});
  REQUIRE(memory->provide(1) == 0);
  memory->buffer(1, 0)[0] = 3;
  memory->vacate_unused();
  CHECK(taken_bytes(raw) == before + fragment_bytes);
  CHECK(memory->buffer(1, 0)[0] == 3);
}

TEST_CASE("settings are taken as they were given, or refused") {
  test::TestMemory raw;
  raw.seal();
  raw.give_settings(" period_ms=5\tcodec=q4\n");
  const auto memory = map(raw);
  REQUIRE(memory);
  CHECK(memory->settings() == std::vector<JobSetting>{{"period_ms", "5"}, {"codec", "q4"}});
  std::string many;
  for (std::size_t i = 0; i <= max_job_settings; ++i)
    many += "s" + std::to_string(i) + "=1 ";
  for (const std::string& wrong : {std::string("codec"), std::string("=q4"), std::string("codec="),
                                   std::string("a=1 a=2"), std::string("Codec=q4"), std::string("codec=\x1b[2J"),
                                   "a=" + std::string(64, 'b'), std::string(32, 'a') + "=b", many}) {
    INFO(wrong);
    raw.give_settings(wrong);
    const auto refused = map(raw);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().message, Contains("settings: "));
  }
  raw.header().settings_bytes = layout::max_settings_bytes + 1;
  CHECK_THAT(map(raw).error().message, Contains("settings_bytes is 3073"));
  raw.give_settings("");
  raw.header().flags = layout::flag_keeps;
  CHECK(map(raw)->kind().keeps);
  CHECK(map(raw)->kind().parts == 1);
  raw.header().flags = 3 << layout::flags_parts_shift;
  CHECK_FALSE(map(raw)->kind().keeps);
  CHECK(map(raw)->kind().parts == 3);
  raw.header().flags = 2;
  CHECK_THAT(map(raw).error().message, Contains("flags is 0x2"));
}

TEST_CASE("lean memory that breaks its own rules is refused") {
  test::TestMemory raw(larger_model, 1024);
  raw.seal();
  const auto why = [&] {
    const auto memory = map(raw);
    return memory ? "" : memory.error().message;
  };
  make_lean(raw, fragment_bytes + 4096);
  CHECK_THAT(why(), Contains("window_bytes is 16384"));
  make_lean(raw, 6 * fragment_bytes);  // there are five fragments
  CHECK_THAT(why(), Contains("window_bytes is"));
  make_lean(raw, 2 * fragment_bytes);
  CHECK(why().empty());
  for (std::uint32_t f = 0; f < 3; ++f)
    raw.fragment(f).word = layout::Word{.generation = 1}.pack();
  CHECK_THAT(why(), Contains("3 fragments are not empty; window_bytes allows 2"));
  make_lean(raw, 0);
  REQUIRE(::posix_fallocate(raw.fd.get(), 0, static_cast<off_t>(raw.plan.total_bytes)) == 0);
  CHECK_THAT(why(), Contains("the word of fragment 0 says that it is empty"));
  make_lean(raw, 2 * fragment_bytes);
  raw.fragment(3).word = layout::Word{.correction_valid = true, .empty = true}.pack();
  CHECK_THAT(why(), Contains("the word of fragment 3 is not valid"));

  test::TestMemory fine(larger_model, 512);
  fine.seal();
  make_lean(fine, 2 * 3 * 2048);
  const auto memory = map(fine);
  REQUIRE_FALSE(memory);
  CHECK_THAT(memory.error().message, Contains("at least 1024 elements"));
}

TEST_CASE("a limit is for what lean memory takes, not for its size") {
  test::TestMemory raw(larger_model, 1024);
  raw.seal();
  make_lean(raw, 2 * fragment_bytes);
  const std::uint64_t most_bytes = raw.plan.buffers_offset + 2 * fragment_bytes;
  CHECK(map(raw, most_bytes));
  const auto refused = map(raw, most_bytes - 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().status == layout::AttachStatus::limit_reached);
}

TEST_CASE("descriptors that are no sealed memfd of the right size are refused") {
  const auto refused = [](int fd, std::uint64_t bytes, std::uint64_t most_bytes = no_limit) {
    const auto memory = ClientMemory::map(fd, bytes, most_bytes);
    REQUIRE_FALSE(memory);
    return memory.error();
  };
  test::TestMemory client;
  const std::uint64_t bytes = client.plan.total_bytes;
  CHECK_THAT(refused(client.fd.get(), bytes).message, Contains("not sealed"));
  client.seal(F_SEAL_GROW);
  CHECK_THAT(refused(client.fd.get(), bytes).message, Contains("not sealed"));
  client.seal(F_SEAL_SHRINK);
  CHECK_THAT(refused(client.fd.get(), bytes + 1).message, Contains("the request says"));
  const std::uint64_t most_bytes = layout::most_bytes(client.plan, 0);
  CHECK(refused(client.fd.get(), bytes, most_bytes - 1).status == AttachStatus::limit_reached);
  CHECK(map(client));

  test::TestMemory frozen;
  frozen.unmap();  // writing can be sealed only while no writable mapping exists
  frozen.seal(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  CHECK_THAT(refused(frozen.fd.get(), bytes).message, Contains("sealed against writing"));

  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "file", std::string(bytes, '\0'));
  const FileDescriptor file(::open((folder.path() / "file").c_str(), O_RDWR | O_CLOEXEC));
  CHECK_THAT(refused(file.get(), bytes).message, Contains("memfd"));
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  CHECK_THAT(refused(read_end.get(), bytes).message, Contains("not a memfd"));

  const FileDescriptor empty(::memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  CHECK_THAT(refused(empty.get(), 0).message, Contains("what precedes the model alone has"));

  FileDescriptor huge(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge && ::ftruncate(huge.get(), 2 << 20) == 0 &&
      ::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
    CHECK_THAT(refused(huge.get(), 2 << 20).message, Contains("MFD_HUGETLB"));
}

TEST_CASE("memory whose pages its client has not taken is refused, since they would be charged to the daemon") {
  test::TestMemory raw;
  raw.seal();
  REQUIRE(map(raw).has_value());
  REQUIRE(::fallocate(raw.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(raw.plan.buffers_offset), layout::page_bytes) == 0);
  CHECK_THAT(map(raw).error().message, Contains("take them with fallocate()"));
}

TEST_CASE("words that change after the memory was looked at are looked at again before a job begins with them") {
  test::TestMemory raw;
  raw.seal();
  auto mapped = map(raw);
  REQUIRE(mapped);
  const auto session = std::make_shared<ClientSession>(std::move(*mapped), Caller{1, 0, {}}, false, 1);
  const auto why = [&] {
    const auto checked = JobClient(session, 0).check();
    return checked ? "" : checked.error().message;
  };
  CHECK(why().empty());
  raw.fragment(1).word = layout::Word{.empty = true}.pack();  // only lean memory has such words
  CHECK_THAT(why(), Contains("the word of fragment 1 says that it is empty, but the memory is not lean"));
  raw.fragment(1).word = 0;
  CHECK_THAT(why(), Contains("the word of fragment 1 is not valid"));
}

TEST_CASE("every lie in the header or the tables is refused and named") {
  using Memory = test::TestMemory;
  const struct {
    const char* what;
    std::function<void(Memory&)> lie;
    const char* message;
    AttachStatus status = AttachStatus::bad_layout;
  } cases[] = {
      {"magic", [](Memory& m) { m.header().magic ^= 1; }, "mark"},
      {"version", [](Memory& m) { m.header().version = 2; }, "version 2", AttachStatus::version_differs},
      {"not ready", [](Memory& m) { m.header().version = 0; }, "version 0", AttachStatus::version_differs},
      {"header_bytes", [](Memory& m) { m.header().header_bytes = 8; }, "header has 8", AttachStatus::version_differs},
      {"total_bytes", [](Memory& m) { m.header().total_bytes += 4096; }, "total_bytes"},
      {"layout_hash", [](Memory& m) { m.header().layout_hash ^= 1; }, "layout_hash"},
      {"no elements", [](Memory& m) { m.header().elements = 0; }, "no elements"},
      {"elements", [](Memory& m) { m.header().elements = 620; }, "elements together"},
      {"more elements", [](Memory& m) { m.header().elements = 2000; }, "total_bytes is"},
      {"most elements", [](Memory& m) { m.header().elements = ~std::uint64_t{0}; }, "at most"},
      {"many fragments", [](Memory& m) { m.header().elements = 1ull << 30; }, "larger fragments"},
      {"fragment_elements 0", [](Memory& m) { m.header().fragment_elements = 0; }, "power of two"},
      {"fragment_elements 384", [](Memory& m) { m.header().fragment_elements = 384; }, "power of two"},
      {"fragment_elements 128", [](Memory& m) { m.header().fragment_elements = 128; }, "power of two"},
      {"fragment_elements 2^23", [](Memory& m) { m.header().fragment_elements = 1u << 23; }, "power of two"},
      {"fragment_elements 2^20", [](Memory& m) { m.header().fragment_elements = 1u << 20; }, "total_bytes is"},
      {"fragment_count", [](Memory& m) { m.header().fragment_count = 4; }, "fragment_count"},
      {"tensor_count 0", [](Memory& m) { m.header().tensor_count = 0; }, "tensor_count"},
      {"tensor_count", [](Memory& m) { m.header().tensor_count = ~0u; }, "tensor_count"},
      {"fewer tensors", [](Memory& m) { m.header().tensor_count = 3; }, "names_offset"},
      {"tensors_offset", [](Memory& m) { m.header().tensors_offset = 0; }, "tensors_offset"},
      {"names_offset", [](Memory& m) { m.header().names_offset += 1; }, "names_offset"},
      {"names_bytes", [](Memory& m) { m.header().names_bytes = ~std::uint64_t{0}; }, "names_bytes"},
      {"fragments_offset", [](Memory& m) { m.header().fragments_offset += 8; }, "fragments_offset"},
      {"buffers_offset", [](Memory& m) { m.header().buffers_offset += 4; }, "buffers_offset"},
      {"buffer_stride", [](Memory& m) { m.header().buffer_stride = 0; }, "buffer_stride"},
      {"job empty", [](Memory& m) { m.header().job[0] = 0; }, "job's name must"},
      {"job endless", [](Memory& m) { std::memset(m.header().job, 'a', 64); }, "does not end"},
      {"job path", [](Memory& m) { m.header().job[0] = '/'; }, "job's name must"},
      {"name before", [](Memory& m) { m.tensor(1).name_offset = 0; }, "tensor 1: its name lies outside"},
      {"name behind", [](Memory& m) { m.tensor(1).name_offset += 1000; }, "tensor 1: its name lies outside"},
      {"name far", [](Memory& m) { m.tensor(1).name_offset = ~std::uint64_t{0}; }, "tensor 1: its name lies outside"},
      {"name long", [](Memory& m) { m.tensor(3).name_bytes = ~0u; }, "tensor 3: its name lies outside"},
      {"name empty", [](Memory& m) { m.tensor(0).name_bytes = 0; }, "tensor 0: its name must"},
      {"name bytes", [](Memory& m) { m.base[m.plan.names_offset] = std::byte{0xff}; }, "tensor 0: its name must"},
      {"name other", [](Memory& m) { m.base[m.plan.names_offset] = std::byte{'W'}; }, "layout_hash"},
      {"dtype", [](Memory& m) { m.tensor(0).dtype = 10; }, "tensor 0: dtype 10"},
      {"dtype other", [](Memory& m) { m.tensor(0).dtype = 2; }, "tensor 0: dtype 2 cannot be averaged"},
      {"role", [](Memory& m) { m.tensor(2).role = 3; }, "tensor 2: role 3"},
      {"role local", [](Memory& m) { m.tensor(0).role = 2; }, "tensor 2: first_element"},
      {"dimensions", [](Memory& m) { m.tensor(0).dimensions = 9; }, "tensor 0: has 9 dimensions"},
      {"shape", [](Memory& m) { m.tensor(0).shape[0] = 31; }, "tensor 0: has 620 elements by its shape"},
      {"shape overflow", [](Memory& m) { m.tensor(0).shape[0] = ~std::uint64_t{0}; }, "tensor 0: its shape overflows"},
      {"elements of a tensor", [](Memory& m) { m.tensor(2).elements = 21; }, "tensor 2: has 20 elements"},
      {"first_element", [](Memory& m) { m.tensor(2).first_element = 599; }, "tensor 2: first_element is 599"},
      {"local first_element", [](Memory& m) { m.tensor(1).first_element = 1; }, "tensor 1: first_element is 1"},
      {"word", [](Memory& m) { m.fragment(2).word = 0; }, "the word of fragment 2"},
      {"word empty", [](Memory& m) { m.fragment(0).word |= 8; }, "the word of fragment 0"},
      {"word serving", [](Memory& m) { m.fragment(0).word |= 1 << 8; }, "the word of fragment 0"},
  };
  for (const auto& [what, lie, message, status] : cases) {
    CAPTURE(what);
    test::TestMemory client;
    client.seal();
    lie(client);
    const auto memory = map(client);
    REQUIRE_FALSE(memory);
    CHECK_THAT(memory.error().message, Contains(message));
    CHECK(memory.error().status == status);
  }
}

TEST_CASE("random damage to header and tables is refused or harmless") {
  std::mt19937_64 random(7);
  test::TestMemory client;
  client.seal();
  const std::size_t checked_bytes = client.plan.buffers_offset;
  const std::vector<std::byte> good(client.base, client.base + checked_bytes);
  std::size_t refused = 0;
  constexpr std::size_t rounds = 20'000;
  for (std::size_t round = 0; round < rounds; ++round) {
    // Half of the damage goes to the declared part of the header, the rest anywhere before the buffers.
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      const std::size_t at = random() % (random() % 2 == 0 ? offsetof(layout::Header, clock) : checked_bytes);
      client.base[at] = static_cast<std::byte>(random());
    }
    if (auto memory = map(client); !memory) {
      ++refused;
    } else {
      for (std::uint32_t f = 0; f < memory->fragment_count(); ++f) {
        for (std::uint8_t i = 0; i < 3; ++i)
          memory->buffer(f, i)[memory->padded_elements(f) - 1] = 1;
        CHECK(memory->load_word(f).valid());
      }
      CHECK(memory->size_bytes() == client.plan.total_bytes);
    }
    std::copy(good.begin(), good.end(), client.base);
  }
  CHECK(refused > rounds / 2);
  CHECK(refused < rounds);
  CHECK(map(client));
}
