// Headers of safetensors files: a header that is written is read again as the same, and one that breaks a rule of the
// format is refused with a reason.

#include "daemon/checkpoint/safetensors.hpp"

#include <fstream>

#include "tests/unit/catch.hpp"
#include "tests/unit/temporary_folder.hpp"

using namespace gossamer;
using namespace gossamer::checkpoint;
using Catch::Matchers::Contains;

namespace {

std::string problem_of(std::string_view json, std::uint64_t data_bytes) {
  const auto header = parse_header(json, data_bytes);
  return header ? "" : header.error();
}

std::string tensor(const std::string& name, const std::string& shape, std::uint64_t begin, std::uint64_t end) {
  return "\"" + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

/// A file with these bytes before its data.
std::string problem_of_file(const std::string& content) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("x"), std::ios::binary) << content;
  const auto file = OldFile::open(folder.file("x"));
  REQUIRE(file);
  const auto header = read_header(*file);
  return header ? "" : header.error();
}

std::string length_of(std::uint64_t bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i)
    text.push_back(static_cast<char>(bytes >> (8 * i) & 0xff));
  return text;
}

}  // namespace

TEST_CASE("a header is read as it was written") {
  const std::vector<SafetensorsTensor> tensors{{"a.weight", "F32", {2, 3}, 0, 24},
                                               {"b \"quoted\" \\ é", "F32", {}, 24, 28},
                                               {"none", "F32", {0, 7}, 28, 28},
                                               {"c", "BF16", {5}, 28, 38}};
  const Metadata metadata{{"format", "pt"}, {"note", "a \"b\"\n"}};
  const auto bytes = header_bytes(tensors, metadata);
  REQUIRE(bytes);
  CHECK(bytes->size() % 8 == 0);
  CHECK(bytes->substr(0, 8) == length_of(bytes->size() - 8));
  CHECK((*bytes)[8] == '{');
  const auto header = parse_header(std::string_view(*bytes).substr(8), 38);
  REQUIRE(header);
  CHECK(header->tensors == tensors);
  CHECK(header->metadata == metadata);
  CHECK(header->data_at == bytes->size());
  CHECK(header->data_bytes == 38);
}

TEST_CASE("a header has the size that was asked for") {
  const auto bytes = header_bytes({{"a", "F32", {1}, 0, 4}}, {}, 1000);
  REQUIRE(bytes);
  CHECK(bytes->size() == 1000);
  CHECK(bytes->back() == ' ');
  CHECK(parse_header(std::string_view(*bytes).substr(8), 4));
}

TEST_CASE("tensors may stand in any order in the header") {
  const auto header = parse_header("{" + tensor("b", "[1]", 4, 8) + "," + tensor("a", "[1]", 0, 4) + "}", 8);
  REQUIRE(header);
  CHECK(header->tensors.front().name == "a");
}

TEST_CASE("a header that breaks a rule is refused") {
  struct Case {
    std::string json;
    std::uint64_t data_bytes;
    const char* problem;
  };
  const std::string one = tensor("a", "[1]", 0, 4);
  const Case cases[] = {
      {"", 0, "not valid JSON"},
      {"{", 0, "not valid JSON"},
      {"[]", 0, "a list where"},
      {"7", 0, "a number where"},
      {"{} x", 0, "not valid JSON"},
      {R"({"a": 1})", 0, "a number where"},
      {R"({"a": {}})", 0, "must have dtype"},
      {R"({"": {}})", 0, "without a name"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "must have dtype"},
      {R"({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}})", 4, "F33"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "negative"},
      {R"({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4, "fraction"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}})", 4, "more than two"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", 4, "must have dtype"},
      {R"({"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4, "dtype twice"},
      {R"({"a": {"dtype": "F32", "shape": [1], "shape": [1], "data_offsets": [0, 4]}})", 4, "shape twice"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "data_offsets": [0, 4]}})", 4, "offsets twice"},
      {R"({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}})", 4, "a list where"},
      {R"({"a": {"dtype": "F32", "shape": {}, "data_offsets": [0, 4]}})", 4, "an object where"},
      {R"({"a": {"dtype": "F32", "shape": [1], "more": "x", "data_offsets": [0, 4]}})", 4, "a text where"},
      {R"({"a": {"dtype": "F32", "shape": [18446744073709551615, 2], "data_offsets": [0, 4]}})", 4, "overflows"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})", 0, "overflows"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "data_offsets are 4 and 0"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4, "8 bytes by its shape"},
      {R"({"__metadata__": {"a": 1}})", 0, "a number where"},
      {R"({"__metadata__": "x"})", 0, "a text where"},
      {R"({"__metadata__": {"a": "1", "a": "2"}})", 0, "\"a\" twice"},
      {R"({"__metadata__": {}, "__metadata__": {}})", 0, "__metadata__ twice"},
      {"{" + one + "," + one + "}", 4, "twice"},
      {"{" + one + "," + tensor("b", "[1]", 0, 4) + "}", 4, "overlap"},
      {"{" + one + "," + tensor("b", "[1]", 5, 9) + "}", 9, "gaps"},
      {"{" + tensor("b", "[1]", 4, 8) + "}", 8, "gaps"},
      {"{" + one + "}", 5, "4 bytes together, but the file holds 5"},
      {"{" + one + "}", 3, "cut off"},
      {std::string(100'000, '['), 0, "a list where"},
      {R"({"a":)" + std::string(100'000, '['), 0, "a list where"},
      {"{\"\xff\xfe\": {}}", 0, "not valid JSON"},
  };
  for (const Case& one_case : cases) {
    CAPTURE(one_case.json.substr(0, 200));
    CHECK_THAT(problem_of(one_case.json, one_case.data_bytes), Contains(one_case.problem));
  }
}

TEST_CASE("a file that is none of the format is refused by its first bytes") {
  CHECK_THAT(problem_of_file(""), Contains("it has 0 bytes"));
  CHECK_THAT(problem_of_file("1234567"), Contains("it has 7 bytes"));
  CHECK_THAT(problem_of_file(length_of(3) + "{}"), Contains("would have 3 bytes"));
  CHECK_THAT(problem_of_file(length_of(~0ull) + "{}"), Contains("would have 18446744073709551615 bytes"));
  CHECK_THAT(problem_of_file("{\"json\": \"without a length\"}"), Contains("would have"));
  CHECK(problem_of_file(length_of(2) + "{}") == "");
}

TEST_CASE("a header that no reader would take is not written") {
  const std::vector<SafetensorsTensor> tensors(2'000,
                                               SafetensorsTensor{std::string(60'000, 'a'), "F32", {1, 2, 3, 4}, 0, 96});
  const auto bytes = header_bytes(tensors, {});
  REQUIRE_FALSE(bytes);
  CHECK_THAT(bytes.error(), Contains("2000 tensors"));
}
