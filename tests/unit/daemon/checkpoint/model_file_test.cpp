// Models in files: they are written whole or not at all, read as they were written, and refused if they are damaged.

#include "daemon/checkpoint/model_file.hpp"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <numeric>

#include "tests/unit/catch.hpp"
#include "tests/unit/temporary_folder.hpp"

using namespace gossamer;
using namespace gossamer::checkpoint;
using Catch::Matchers::Contains;

namespace {

const Model model{{"a", {2, 3}, 6}, {"nothing", {0}, 0}, {"b", {}, 1}, {"c", {4}, 4}};
constexpr const char* partial = ".1234abcd.partial";

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

Description description() {
  Description one;
  one.job = "digits";
  one.layout = 0xfedcba9876543210;
  one.clock = 9'007'199'254'740'992u;  // the largest there is
  one.oldest_clock = 17;
  one.cursor = {std::byte{0}, std::byte{255}, std::byte{'"'}, std::byte{'\n'}};
  one.node = std::string(32, '7');
  one.node_name = "näme";
  one.written_at = date_text(1'769'860'800);
  one.version = "0.1.0";
  return one;
}

void write(const TemporaryFolder& folder, const std::string& name, const Model& tensors,
           const std::vector<float>& values) {
  auto writer = ModelWriter::begin(folder.path(), partial, tensors);
  REQUIRE(writer);
  const std::span<const float> all(values);
  REQUIRE(writer->append(all.first(all.size() / 2)));
  REQUIRE(writer->append(all.subspan(all.size() / 2)));
  CHECK(std::filesystem::exists(folder.path() / partial));
  CHECK_FALSE(std::filesystem::exists(folder.path() / name));
  REQUIRE(writer->finish(folder.path() / name, description()));
  CHECK_FALSE(std::filesystem::exists(folder.path() / partial));
}

/// The first problem with taking and reading the model; empty: none.
std::string problem_of(const std::string& path, const Model& wanted) {
  auto reader = ModelReader::open(path);
  if (!reader) return reader.error();
  if (auto taken = reader->take(wanted); !taken) return taken.error();
  std::vector<float> values(elements_of(wanted));
  if (auto read = reader->read(values); !read) return read.error();
  const auto checked = reader->check();
  return checked ? "" : checked.error();
}

}  // namespace

TEST_CASE("a model is read as it was written, with all that is known of it") {
  const TemporaryFolder folder;
  const std::vector<float> values = counted(11);
  write(folder, "x.safetensors", model, values);
  auto reader = ModelReader::open(folder.file("x.safetensors"));
  REQUIRE(reader);
  CHECK(*reader->model() == model);
  const Description& read = reader->description().value();
  const Description expected = description();
  CHECK(read.job == expected.job);
  CHECK(read.layout == expected.layout);
  CHECK(read.clock == expected.clock);
  CHECK(read.oldest_clock == expected.oldest_clock);
  CHECK(read.cursor == expected.cursor);
  CHECK(read.node == expected.node);
  CHECK(read.node_name == expected.node_name);
  CHECK(read.written_at == "2026-01-31T12:00:00Z");
  CHECK(read.version == expected.version);
  CHECK(read.replicas == 1);
  REQUIRE(reader->take(model));
  std::vector<float> got(11);
  REQUIRE(reader->read(std::span(got).first(4)));
  REQUIRE(reader->read(std::span(got).subspan(4)));
  CHECK(got == values);
  CHECK(reader->check());
  float more = 0;
  CHECK_FALSE(reader->read(std::span(&more, 1)));
}

TEST_CASE("a large cursor and long names fit the header") {
  const TemporaryFolder folder;
  auto writer = ModelWriter::begin(folder.path(), partial, model);
  REQUIRE(writer);
  REQUIRE(writer->append(counted(11)));
  Description long_one = description();
  long_one.cursor.assign(4096, std::byte{0xff});
  long_one.job = std::string(63, 'j');
  long_one.node_name = std::string(63, '"');
  REQUIRE(writer->finish(folder.path() / "x", long_one));
  CHECK(ModelReader::open(folder.file("x"))->description()->cursor == long_one.cursor);
}

TEST_CASE("tensors are found by their names, whatever their order, and others are passed over") {
  const TemporaryFolder folder;
  write(folder, "x", model, counted(11));
  const Model other_order{{"c", {4}, 4}, {"a", {2, 3}, 6}};
  auto reader = ModelReader::open(folder.file("x"));
  REQUIRE(reader->take(other_order));
  std::vector<float> got(10);
  REQUIRE(reader->read(got));
  CHECK(got == std::vector<float>{8, 9, 10, 11, 1, 2, 3, 4, 5, 6});
  CHECK(reader->check());
}

TEST_CASE("a tensor that may be missing is read as zeros, and the rest is still checked") {
  const TemporaryFolder folder;
  write(folder, "x", model, counted(11));
  Model wanted = model;
  const ModelTensor moments{.name = "moments", .shape = {2}, .elements = 2, .may_be_missing = true};
  wanted.insert(wanted.begin() + 1, moments);
  wanted.push_back(moments);
  auto reader = ModelReader::open(folder.file("x"));
  REQUIRE(reader->take(wanted));
  CHECK(reader->missing() == 2);
  std::vector<float> got(15, -1);
  REQUIRE(reader->read(std::span(got).first(7)));  // ends within the missing tensor
  REQUIRE(reader->read(std::span(got).subspan(7)));
  CHECK(got == std::vector<float>{1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 11, 0, 0});
  CHECK(reader->check());
  REQUIRE(reader->take(model));
  CHECK(reader->missing() == 0);

  std::fstream file(folder.file("x"), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end).put('!');
  file.close();
  CHECK_THAT(problem_of(folder.file("x"), wanted), Contains("is damaged"));
  wanted.back().may_be_missing = false;
  CHECK_THAT(problem_of(folder.file("x"), wanted), Contains("has no tensor moments"));
  // A file that has the tensor gives its values.
  wanted = model;
  wanted[2].may_be_missing = true;
  REQUIRE(reader->take(wanted));
  REQUIRE(reader->read(std::span(got).first(7)));
  CHECK(got[6] == 7);
}

TEST_CASE("a model that does not fit is refused") {
  const TemporaryFolder folder;
  write(folder, "x", model, counted(11));
  CHECK_THAT(problem_of(folder.file("x"), {{"d", {1}, 1}}), Contains("has no tensor d"));
  CHECK_THAT(problem_of(folder.file("x"), {{"a", {3, 2}, 6}}), Contains("a is 2 x 3, in the model it is 3 x 2"));
  const auto header = header_bytes({{"a", "BF16", {2}, 0, 4}}, {});
  std::ofstream(folder.file("half"), std::ios::binary) << *header << "1234";
  CHECK_THAT(problem_of(folder.file("half"), {{"a", {2}, 2}}), Contains("a is BF16"));
  CHECK_THAT(ModelReader::open(folder.file("half"))->model().error(), Contains("float32"));
  CHECK_FALSE(ModelReader::open(folder.file("half"))->description().has_value());
}

TEST_CASE("a file in which one bit has changed is refused") {
  const TemporaryFolder folder;
  write(folder, "x", model, counted(11));
  std::string content;
  {
    std::ifstream file(folder.file("x"), std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(file), {});
  }
  CHECK(problem_of(folder.file("x"), model) == "");
  for (std::size_t at = content.size() - 11 * sizeof(float); at < content.size(); ++at) {
    std::string damaged = content;
    damaged[at] ^= 0x10;
    std::ofstream(folder.file("y"), std::ios::binary) << damaged;
    CHECK_THAT(problem_of(folder.file("y"), model), Contains("is damaged"));
  }
  std::ofstream(folder.file("y"), std::ios::binary) << content.substr(0, content.size() - 1);
  CHECK_THAT(problem_of(folder.file("y"), model), Contains("cut off"));
}

TEST_CASE("metadata that make no sense are refused") {
  const TemporaryFolder folder;
  const auto problem = [&](const std::string& key, const std::string& value) {
    Metadata metadata = metadata_of(description());
    metadata["gossamer." + key] = value;
    const auto header = header_bytes({}, metadata);
    std::ofstream(folder.file("x"), std::ios::binary) << *header;
    const auto reader = ModelReader::open(folder.file("x"));
    return reader ? "" : reader.error();
  };
  CHECK(problem("clock", "12") == "");
  CHECK_THAT(problem("clock", "-1"), Contains("gossamer.clock"));
  CHECK_THAT(problem("clock", "1e9"), Contains("gossamer.clock"));
  CHECK_THAT(problem("clock", "18446744073709551616"), Contains("gossamer.clock"));
  CHECK_THAT(problem("clock", "9007199254740993"), Contains("gossamer.clock"));
  CHECK_THAT(problem("layout", "xyz"), Contains("gossamer.layout"));
  CHECK_THAT(problem("job", "../etc"), Contains("gossamer.job"));
  CHECK_THAT(problem("cursor", "?"), Contains("gossamer.cursor"));
  CHECK_THAT(problem("cursor", std::string(8192, 'A')), Contains("gossamer.cursor"));
}

TEST_CASE("what is not finished leaves nothing, and what a killed process left is overwritten") {
  const TemporaryFolder folder;
  std::ofstream(folder.file(partial)) << std::string(100'000, 'x');
  {
    auto writer = ModelWriter::begin(folder.path(), partial, model);
    REQUIRE(writer);
    REQUIRE(writer->append(counted(5)));
    CHECK_THAT(writer->finish(folder.path() / "x", description()).error(), Contains("not complete"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  std::ofstream(folder.file(partial)) << std::string(100'000, 'x');
  write(folder, "x", model, counted(11));
  CHECK(problem_of(folder.file("x"), model) == "");
}

TEST_CASE("a disk that takes no more is told of, and nothing is left on it") {
  // A limit on the size of the process's files acts like a full disk, apart from the signal.
  const TemporaryFolder folder;
  const Model large{{"a", {1u << 20}, 1u << 20}};
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1u << 20, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto writer = ModelWriter::begin(folder.path(), partial, large);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(writer);
  CHECK_THAT(writer.error(), Contains("File too large"));
  CHECK_THAT(writer.error(), Contains("LimitFSIZE"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a model for which the disk has no room is not begun") {
  const TemporaryFolder folder;
  const Model huge{{"a", {1ull << 58}, 1ull << 58}};
  const auto writer = ModelWriter::begin(folder.path(), partial, huge);
  REQUIRE_FALSE(writer);
  CHECK_THAT(writer.error(), Contains("MiB are free"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("what cannot be read or written says why") {
  const TemporaryFolder folder;
  CHECK_THAT(ModelReader::open(folder.file("none")).error(), Contains("No such file"));
  CHECK_THAT(ModelReader::open(folder.path()).error(), Contains("no ordinary file"));
  CHECK_THAT(ModelWriter::begin(folder.path() / "none", partial, model).error(), Contains("No such file"));
  std::filesystem::create_directory(folder.path() / partial);
  CHECK_THAT(ModelWriter::begin(folder.path(), partial, model).error(), Contains(partial));
}
