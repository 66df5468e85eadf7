// Model files from anywhere. An input is read as a header alone, where the first 8 bytes are the size of the data, and
// as a file, where they are the header's length.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "daemon/checkpoint/model_file.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::checkpoint;

/// A header that is accepted is written down and read again as the same.
void read_header(std::string_view input) {
  if (input.size() < header_length_bytes) return;
  std::uint64_t data_bytes = 0;
  std::memcpy(&data_bytes, input.data(), sizeof data_bytes);
  const auto header = parse_header(input.substr(header_length_bytes), data_bytes);
  if (!header) return;
  const auto bytes = header_bytes(header->tensors, header->metadata);
  GOSSAMER_CHECK(bytes);
  const auto again = parse_header(std::string_view(*bytes).substr(header_length_bytes), data_bytes);
  GOSSAMER_CHECK(again && again->tensors == header->tensors && again->metadata == header->metadata);
  if (const auto description = description_in(header->metadata); description && *description)
    GOSSAMER_CHECK(description_in(metadata_of(**description)));
}

/// A file that is accepted gives as many elements as it says.
void read_file(std::string_view input) {
  const FileDescriptor file(::memfd_create("model", MFD_CLOEXEC));
  GOSSAMER_CHECK(file && ::write(file.get(), input.data(), input.size()) == static_cast<ssize_t>(input.size()));
  auto reader = ModelReader::open("/proc/self/fd/" + std::to_string(file.get()));
  if (!reader) return;
  std::size_t left_out = 0;
  const Model model = reader->model_in_float32(left_out);
  GOSSAMER_CHECK(elements_of(model) * sizeof(float) <= input.size());
  GOSSAMER_CHECK(reader->take(model));
  std::vector<float> elements(elements_of(model));
  GOSSAMER_CHECK(reader->read(elements));
  (void)reader->check();
}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = gossamer::fuzz::text_of(data, size);
  gossamer::fuzz::read_header(input);
  gossamer::fuzz::read_file(input);
  return 0;
}
