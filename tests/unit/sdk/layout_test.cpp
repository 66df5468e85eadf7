// The headers of sdk/layout: the bytes that are hashed, names, where sockets are, and that
// docs/reference/shared-memory.md states the offsets that the compiler uses.

#include <fcntl.h>

#include <fstream>
#include <sstream>

#include "catch.hpp"
#include "sdk/layout/hash.hpp"
#include "sdk/layout/names.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"

using namespace gossamer;
using layout::Dtype;
using layout::Role;
using layout::TensorDescription;

namespace {

/// Sets an environment variable for as long as it lives.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (old_.empty()) {
      unsetenv(name_);
    } else {
      setenv(name_, old_.c_str(), 1);
    }
  }

 private:
  const char* name_;
  std::string old_;
};

std::uint64_t hash_of(const std::vector<TensorDescription>& tensors, std::uint32_t fragment_elements = 256) {
  return layout::layout_hash(fragment_elements, tensors);
}

}  // namespace

TEST_CASE("the layout hash is of exactly the documented bytes") {
  const std::uint64_t shape[] = {3, 258};
  const std::vector<TensorDescription> tensors = {{"w", Dtype::f64, Role::buffer, shape},
                                                  {"é", Dtype::i64, Role::local, {}}};
  const std::string expected = std::string("g-layout") + std::string("\1\0\0\0", 4) + std::string("\0\1\0\0", 4) +
                               std::string("\2\0\0\0\0\0\0\0", 8) +                                       //
                               std::string("\1\0\0\0w", 5) + std::string("\0\1\2", 3) +                   //
                               std::string("\3\0\0\0\0\0\0\0", 8) + std::string("\2\1\0\0\0\0\0\0", 8) +  //
                               std::string("\2\0\0\0\xc3\xa9", 6) + std::string("\7\2\0", 3);
  CHECK(layout::layout_hash_input(256, tensors) == expected);
  CHECK(layout::layout_hash(256, tensors) == XXH3_64bits(expected.data(), expected.size()));
}

TEST_CASE("the layout hash has the values it had when it was defined") {
  CHECK(hash_of({}) == 0xaa56cc231a259342);
  const std::uint64_t shape[] = {64, 32};
  CHECK(hash_of({{"weights", Dtype::f32, Role::param, shape}}, 1u << 20) == 0xccfe3e525e3b522c);
}

TEST_CASE("replicas that keep a tensor in different precision can be averaged") {
  const std::uint64_t shape[] = {4, 6};
  CHECK(hash_of({{"a", Dtype::bf16, Role::param, shape}}) == hash_of({{"a", Dtype::f32, Role::param, shape}}));
  CHECK(hash_of({{"a", Dtype::f64, Role::buffer, shape}}) == hash_of({{"a", Dtype::f32, Role::buffer, shape}}));
}

TEST_CASE("the layout hash depends on everything that must agree") {
  const std::uint64_t shape[] = {4, 6};
  const std::uint64_t turned[] = {6, 4};
  const std::uint64_t flat[] = {24};
  const std::uint64_t original = hash_of({{"a", Dtype::f32, Role::param, shape}});
  CHECK(hash_of({{"a", Dtype::f32, Role::param, shape}}) == original);
  CHECK(hash_of({{"b", Dtype::f32, Role::param, shape}}) != original);
  CHECK(hash_of({{"a", Dtype::f32, Role::local, shape}}) != original);
  CHECK(hash_of({{"a", Dtype::i8, Role::local, shape}}) != hash_of({{"a", Dtype::u8, Role::local, shape}}));
  CHECK(hash_of({{"a", Dtype::f32, Role::buffer, shape}}) != original);
  CHECK(hash_of({{"a", Dtype::f32, Role::param, turned}}) != original);
  CHECK(hash_of({{"a", Dtype::f32, Role::param, flat}}) != original);
  CHECK(hash_of({{"a", Dtype::f32, Role::param, shape}}, 512) != original);
  const TensorDescription first{"x", Dtype::f32, Role::param, flat};
  const TensorDescription second{"y", Dtype::f32, Role::param, flat};
  CHECK(hash_of({first, second}) != hash_of({second, first}));
}

TEST_CASE("job names are letters, digits, dots, underscores and hyphens") {
  for (const char* good : {"a", "resnet-50_v1.5", "0"})
    CHECK(layout::is_job_name(good));
  for (const char* bad : {"", ".hidden", "-rf", "--help", "a/b", "a b", "a\n", "é", "\"quoted\""})
    CHECK_FALSE(layout::is_job_name(bad));
  CHECK(layout::is_job_name(std::string(63, 'x')));
  CHECK_FALSE(layout::is_job_name(std::string(64, 'x')));
}

TEST_CASE("tensor names are what other nodes may be told") {
  for (const char* good : {"layer.0.weight", "é", "€", "😀", "a b/c:d", "\xf4\x8f\xbf\xbd"}) {
    CHECK(layout::is_tensor_name(good));
  }
  for (const char* bad :
       {"", "\n", "\x7f", "\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf8\x88\x80\x80\x80", "a\xff", "\xe2\x82", "\u0085", "a\u202eb", "\xf4\x8f\xbf\xbf"}) {
    CHECK_FALSE(layout::is_tensor_name(bad));
  }
  CHECK(layout::is_tensor_name(std::string(255, 'x')));
  CHECK_FALSE(layout::is_tensor_name(std::string(256, 'x')));
}

TEST_CASE("a word survives packing, and what makes no sense is invalid") {
  for (std::uint8_t publication = 0; publication < 3; ++publication) {
    for (std::uint8_t correction = 0; correction < 3; ++correction) {
      const layout::Word word{.generation = 0xfffffffe,
                              .publication = publication,
                              .correction = correction,
                              .correction_valid = true,
                              .replace = correction == 1,
                              .with_client = publication == 1,
                              .serving = publication == 1 && correction == 2,
                              .commits = layout::commits_modulus - 1 - correction};
      const layout::Word back = layout::Word::unpack(word.pack());
      CHECK(back.pack() == word.pack());
      CHECK(back.valid() == (publication != correction));
      if (back.valid()) CHECK(back.spare() + back.publication + back.correction == 3);
    }
  }
  CHECK(layout::Word{.with_client = true, .serving = true}.valid());
  CHECK_FALSE(layout::Word{.serving = true}.valid());
  CHECK_FALSE(layout::Word{.replace = true}.valid());
}

TEST_CASE("an empty fragment has nothing to add to, and may have values to take over") {
  struct Row {
    bool correction_valid, replace, with_client, valid, vacant;
  };
  const Row rows[] = {
      {false, false, false, true, true},  {false, false, true, true, false}, {true, false, false, false, false},
      {true, false, true, false, false},  {true, true, false, true, false},  {true, true, true, true, false},
      {false, true, false, false, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.correction_valid, row.replace, row.with_client);
    const layout::Word word{.correction_valid = row.correction_valid,
                            .replace = row.replace,
                            .with_client = row.with_client,
                            .empty = true};
    const layout::Word back = layout::Word::unpack(word.pack());
    CHECK(back.empty);
    CHECK(back.pack() == word.pack());
    CHECK(back.valid() == row.valid);
    if (row.valid) CHECK(back.vacant() == row.vacant);
  }
  CHECK_FALSE(layout::Word{}.vacant());
}

TEST_CASE("the window of lean memory is eight fragments, or 64 MiB, and whole fragments") {
  const auto window = [](std::uint64_t elements, std::uint32_t fragment_elements) {
    const layout::Plan plan = layout::plan(elements, fragment_elements, 1, 1);
    CHECK(layout::is_window(plan, layout::window_for(plan)));
    CHECK(layout::is_window(plan, 0));
    CHECK_FALSE(layout::is_window(plan, layout::window_for(plan) + 4096));
    return layout::window_for(plan);
  };
  constexpr std::uint64_t mebibyte = 1 << 20;
  CHECK(window(std::uint64_t{1} << 32, 1 << 20) == 96 * mebibyte);
  CHECK(window(std::uint64_t{1} << 32, 1 << 22) == 8 * 48 * mebibyte);
  CHECK(window(std::uint64_t{1} << 32, 1 << 18) == 21 * 3 * mebibyte);
  CHECK(window(5000, 1024) == 5 * 3 * 4096);
  CHECK(window(5000, 512) == 0);
  const layout::Plan plan = layout::plan(5000, 1024, 1, 1);
  CHECK(layout::most_bytes(plan, 0) == plan.total_bytes);
  CHECK(layout::most_bytes(plan, 2 * 3 * 4096) == plan.buffers_offset + 2 * 3 * 4096);
  CHECK_FALSE(layout::is_window(plan, 6 * 3 * 4096));
  CHECK_FALSE(layout::is_window(layout::plan(5000, 512, 1, 1), 3 * 2048));
}

TEST_CASE("a slot word survives packing, and one with too long a value is not valid") {
  for (const std::uint32_t length : {0U, 1U, 4095U, 4096U}) {
    const layout::SlotWord back = layout::SlotWord::unpack(layout::SlotWord{7, length, 1}.pack());
    CHECK((back.sequence == 7 && back.length == length && back.slot == 1 && back.valid()));
  }
  CHECK_FALSE(layout::SlotWord::unpack(layout::SlotWord{7, 4097, 0}.pack()).valid());
}

TEST_CASE("a slot value is read as it was written, and is empty before the first and when the word makes no sense") {
  std::vector<std::uint64_t> slots(2 * layout::slot_bytes / 8);
  auto* bytes = reinterpret_cast<std::byte*>(slots.data());
  std::atomic<std::uint64_t> word{0};
  CHECK(layout::load_slot(word, bytes).empty());
  for (const std::size_t size : {1, 8, 13, 4096, 0, 4095}) {
    std::vector<std::byte> value(size, std::byte{static_cast<unsigned char>(size)});
    layout::store_slot(word, bytes, value);
    CHECK(layout::load_slot(word, bytes) == value);
  }
  CHECK(layout::SlotWord::unpack(word).sequence == 6);
  word = layout::SlotWord{9, 8000, 0}.pack();
  CHECK(layout::load_slot(word, bytes).empty());
}

TEST_CASE("a slot value is never read torn while it is written") {
  std::vector<std::uint64_t> slots(2 * layout::slot_bytes / 8);
  auto* bytes = reinterpret_cast<std::byte*>(slots.data());
  std::atomic<std::uint64_t> word{0};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (unsigned char i = 1; !stop; ++i)
      layout::store_slot(word, bytes, std::vector<std::byte>(512 + i, std::byte{i}));
  });
  int read = 0;
  bool torn = false;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < limit) {
    const std::vector<std::byte> value = layout::load_slot(word, bytes);
    if (value.empty()) continue;
    ++read;
    const auto fill = std::to_integer<std::size_t>(value.front());
    torn = torn || value.size() != 512 + fill || std::ranges::count(value, value.front()) != std::ssize(value);
  }
  stop = true;
  writer.join();
  CHECK(read > 0);
  CHECK_FALSE(torn);
}

TEST_CASE("a socket named in the environment is the only one tried") {
  const Environment socket("GOSSAMER_SOCKET", "/nowhere/else.sock");
  CHECK(layout::client_sockets() == std::vector<std::string>{"/nowhere/else.sock"});
  const Environment control("GOSSAMER_CONTROL_SOCKET", "/nowhere/control.sock");
  CHECK(layout::control_sockets() == std::vector<std::string>{"/nowhere/control.sock"});
}

TEST_CASE("a client finds the socket in the user's runtime folder") {
  const Environment unset("GOSSAMER_SOCKET", "");
  const test::TemporaryFolder folder;
  const Environment runtime("XDG_RUNTIME_DIR", folder.file(""));
  const std::string expected = folder.file("") + "/gossamer/client.sock";
  std::filesystem::create_directory(folder.file("gossamer"));
  CHECK(std::ranges::count(layout::client_sockets(), expected) == 0);
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  const auto address = layout::socket_address(expected);
  REQUIRE(address);
  REQUIRE(bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0);
  CHECK(std::ranges::count(layout::client_sockets(), expected) == 1);
}

TEST_CASE("a folder that others can write is not trusted when anyone could have made it") {
  const test::TemporaryFolder folder;
  const layout::detail::SocketFolder own{folder.file("own"), 0700, true};
  std::filesystem::create_directory(own.path);
  chmod(own.path.c_str(), 0700);
  CHECK(layout::detail::folder_is_trusted(own));
  chmod(own.path.c_str(), 0777);
  CHECK_FALSE(layout::detail::folder_is_trusted(own));
  std::filesystem::create_directory_symlink(own.path, folder.file("link"));
  chmod(own.path.c_str(), 0700);
  CHECK_FALSE(layout::detail::folder_is_trusted({folder.file("link"), 0700, true}));
}

TEST_CASE("socket paths that do not fit an address are refused with their length") {
  CHECK(layout::socket_address(std::string(layout::max_socket_path_bytes, 'x')));
  const auto refused = layout::socket_address(std::string(layout::max_socket_path_bytes + 1, 'x'));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().find(std::to_string(layout::max_socket_path_bytes + 1)) != std::string::npos);
  CHECK_FALSE(layout::socket_address(""));
}

TEST_CASE("docs/reference/shared-memory.md states the offsets and the version in the code") {
  std::ifstream file(GOSSAMER_SHARED_MEMORY_DOCUMENT);
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  // Rows of its tables read "| offset | size | `field` | ...".
  const auto check_row = [&](const char* structure, const char* field, std::size_t offset, std::size_t size) {
    const std::size_t section = document.find(std::string("## ") + structure + "\n");
    REQUIRE(section != std::string::npos);
    const std::string row = "| " + std::to_string(offset) + " | " + std::to_string(size) + " | `" + field + "` |";
    INFO(structure << ": " << row);
    const std::size_t end = document.find("## ", section + 3);
    CHECK(document.substr(section, end - section).find(row) != std::string::npos);
  };
#define CHECK_FIELD(structure, field) \
  check_row(#structure, #field, offsetof(layout::structure, field), sizeof(layout::structure::field))
  CHECK_FIELD(Header, magic);
  CHECK_FIELD(Header, total_bytes);
  CHECK_FIELD(Header, layout_hash);
  CHECK_FIELD(Header, elements);
  CHECK_FIELD(Header, fragment_elements);
  CHECK_FIELD(Header, fragment_count);
  CHECK_FIELD(Header, tensor_count);
  CHECK_FIELD(Header, header_bytes);
  CHECK_FIELD(Header, tensors_offset);
  CHECK_FIELD(Header, names_offset);
  CHECK_FIELD(Header, names_bytes);
  CHECK_FIELD(Header, fragments_offset);
  CHECK_FIELD(Header, buffers_offset);
  CHECK_FIELD(Header, buffer_stride);
  CHECK_FIELD(Header, job);
  CHECK_FIELD(Header, window_bytes);
  CHECK_FIELD(Header, buffers_in);
  CHECK_FIELD(Header, settings_bytes);
  CHECK_FIELD(Header, flags);
  CHECK_FIELD(Header, clock);
  CHECK_FIELD(Header, steps);
  CHECK_FIELD(Header, publications);
  CHECK_FIELD(Header, serving_ns);
  CHECK_FIELD(Header, finishing);
  CHECK_FIELD(Header, own_cursor);
  CHECK_FIELD(Header, trained_steps);
  CHECK_FIELD(Header, due_sequence);
  CHECK_FIELD(Header, state);
  CHECK_FIELD(Header, global_clock);
  CHECK_FIELD(Header, fragments_pulled);
  CHECK_FIELD(Header, neighbours);
  CHECK_FIELD(Header, exchanges);
  CHECK_FIELD(Header, clock_base);
  CHECK_FIELD(Header, version);
  CHECK(document.find("| client, once, last | " + std::to_string(layout::version) + ";") != std::string::npos);
  CHECK_FIELD(Header, job_cursor);
  CHECK_FIELD(Header, members);
  CHECK_FIELD(Header, bytes_sent);
  CHECK_FIELD(Header, bytes_received);
  CHECK_FIELD(Header, consensus);
  CHECK_FIELD(Header, age_samples);
  CHECK_FIELD(Header, unresolved);
  CHECK_FIELD(Header, quarantines);
  CHECK_FIELD(Header, period_us);
  CHECK_FIELD(Header, pulled_bytes);
  CHECK_FIELD(Header, finish_distance);
  CHECK_FIELD(Header, finish_answer);
  CHECK_FIELD(Header, place);
  CHECK_FIELD(Header, heartbeat);
  CHECK_FIELD(TensorEntry, name_offset);
  CHECK_FIELD(TensorEntry, name_bytes);
  CHECK_FIELD(TensorEntry, dtype);
  CHECK_FIELD(TensorEntry, role);
  CHECK_FIELD(TensorEntry, dimensions);
  CHECK_FIELD(TensorEntry, reserved);
  CHECK_FIELD(TensorEntry, shape);
  CHECK_FIELD(TensorEntry, first_element);
  CHECK_FIELD(TensorEntry, elements);
  CHECK_FIELD(FragmentEntry, word);
  CHECK_FIELD(FragmentEntry, publication_clock);
  CHECK_FIELD(FragmentEntry, receipts);
  CHECK_FIELD(FragmentEntry, reserved);
  CHECK_FIELD(AttachRequest, magic);
  CHECK_FIELD(AttachRequest, version);
  CHECK_FIELD(AttachRequest, flags);
  CHECK_FIELD(AttachRequest, memory_bytes);
  CHECK_FIELD(AttachRequest, process_id);
  CHECK_FIELD(AttachReply, magic);
  CHECK_FIELD(AttachReply, version);
  CHECK_FIELD(AttachReply, status);
  CHECK_FIELD(AttachReply, node_id);
  CHECK_FIELD(AttachReply, message);
  CHECK_FIELD(DeviceOffer, uuid);
  CHECK_FIELD(DeviceOffer, bytes);
#undef CHECK_FIELD
}
