#include "peer/links/stranger_gate.hpp"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

/// ZeroMQ is not woken before so much has come on a connection that nobody has seen: more than a greeting.
constexpr int unseen_bytes = 128;

/// Where in a TCP header the number of the first byte is, and in which byte's upper half the header's length is, in
/// words of four bytes.
constexpr std::uint32_t sequence_at = 4;
constexpr std::uint32_t length_at = 12;
constexpr std::uint32_t length_mask = 0xf0;
constexpr std::uint32_t length_shift = 2;
constexpr std::uint32_t sign = 0x80000000;
/// What comes of each segment if the first number is not known. Each cut costs an honest end a fifth of a second, in
/// which its kernel waits before it sends the rest.
constexpr std::uint32_t little_bytes = 512;
/// The headers of IP and TCP have at most 60 bytes each without extensions of IPv6.
constexpr std::size_t most_syn_bytes = 1024;

void set(int descriptor, int level, int name, int value) {
  (void)::setsockopt(descriptor, level, name, &value, sizeof value);
}

/// Each segment goes through the program, which returns how many bytes of it to keep. It begins at TCP's header.
void filter(int descriptor, std::span<sock_filter> code) {
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  (void)::setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/// TCP's number of the first byte that the other end sends, from the headers of its SYN.
std::optional<std::uint32_t> first_sequence(std::span<const std::uint8_t> syn) {
  constexpr std::size_t header_v6 = 40;
  constexpr std::size_t next_header_at = 6;
  std::size_t at = std::size_t{4} * (syn[0] & 0xf);
  if (syn[0] >> 4 == 6) {
    std::uint8_t kind = syn[next_header_at];
    at = header_v6;
    // Extensions may stand before TCP's header, each of eight bytes and as many more times eight as it says.
    const auto is_extension = [&] {
      return kind == IPPROTO_HOPOPTS || kind == IPPROTO_ROUTING || kind == IPPROTO_DSTOPTS;
    };
    while (is_extension() && at + 2 <= syn.size()) {
      kind = syn[at];
      at += std::size_t{8} * (syn[at + 1] + 1U);
    }
    if (kind != IPPROTO_TCP) return std::nullopt;
  }
  at += sequence_at;
  if (at + 4 > syn.size()) return std::nullopt;
  std::uint32_t number = 0;
  for (const std::uint8_t byte : syn.subspan(at, 4))
    number = number << 8 | byte;
  return number + 1;  // the SYN itself has the number before
}

/// Loads how long TCP's header is.
constexpr std::array<sock_filter, 3> load_header_bytes = {{
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, length_at),
    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, length_mask),
    BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, length_shift),
}};

/// Cuts off what each segment has beyond so many bytes.
void keep_of_each(int descriptor, std::uint32_t bytes) {
  std::vector<sock_filter> code(load_header_bytes.begin(), load_header_bytes.end());
  code.push_back(BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, bytes));
  code.push_back(BPF_STMT(BPF_RET | BPF_A, 0));
  filter(descriptor, code);
}

/// Drops each segment that is not a part of a greeting as ZeroMQ sends it: the signature, the major version, and the
/// minor version with the mechanism and zeros, each by itself or with its neighbours.
void keep_greetings(int descriptor) {
  constexpr std::uint32_t signature_bytes = 10;
  constexpr std::uint32_t major_bytes = 1;
  constexpr std::uint32_t rest_bytes = 53;
  constexpr std::uint32_t mechanism_bytes = 52;  // with the zeros
  std::vector<sock_filter> code(load_header_bytes.begin(), load_header_bytes.end());
  const auto put = [&code](sock_filter instruction) { code.push_back(instruction); };
  const auto keep_all = [&] { put(BPF_STMT(BPF_RET | BPF_K, 0xffffffff)); };
  const auto drop = [&] { put(BPF_STMT(BPF_RET | BPF_K, 0)); };
  const auto require_one_of = [&](std::initializer_list<std::uint32_t> values) {
    for (auto to_pass = static_cast<std::uint8_t>(values.size()); const std::uint32_t value : values)
      put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, to_pass--, 0));
    drop();
  };
  const auto require = [&](std::uint16_t size, std::uint32_t at, std::initializer_list<std::uint32_t> values) {
    put(BPF_STMT(static_cast<std::uint16_t>(BPF_LD | BPF_IND) | size, at));  // counted from X
    require_one_of(values);
  };
  const auto load_payload_bytes = [&] {
    put(BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0));
    put(BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0));
  };
  put(BPF_STMT(BPF_MISC | BPF_TAX, 0));  // X is where the payload begins
  load_payload_bytes();
  put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1));
  keep_all();
  require_one_of({major_bytes, signature_bytes, signature_bytes + major_bytes, rest_bytes, major_bytes + rest_bytes,
                  unasked_bytes});
  put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, major_bytes, 0, 4));
  require(BPF_B, 0, {3});
  keep_all();
  const std::size_t to_mechanism = code.size();  // two jumps, made once it is known how far
  put({});
  put({});
  require(BPF_B, 0, {0xff});
  require(BPF_W, 1, {0});
  put(BPF_STMT(BPF_LD | BPF_W | BPF_IND, 5));
  put(BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 256, 0, 1));
  drop();
  require(BPF_B, signature_bytes - 1, {0x7f});
  load_payload_bytes();
  put(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, unasked_bytes, 1, 0));
  keep_all();
  const auto skipped = static_cast<std::uint8_t>(code.size() - to_mechanism - 2);
  code[to_mechanism] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rest_bytes, static_cast<std::uint8_t>(skipped + 1), 0);
  code[to_mechanism + 1] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, major_bytes + rest_bytes, skipped, 0);
  put(BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0));
  put(BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, mechanism_bytes));
  put(BPF_STMT(BPF_MISC | BPF_TAX, 0));
  require(BPF_W, 0, {0x43555256 /* CURV */, 0x504c4149 /* PLAI */});
  require(BPF_W, 4, {0x45000000 /* E */, 0x4e000000 /* N */});
  for (std::uint32_t at = 8; at < mechanism_bytes; at += 4)
    require(BPF_W, at, {0});
  keep_all();
  filter(descriptor, code);
}

/// Cuts off what comes after the byte with the number before this one.
void keep_until(int descriptor, std::uint32_t end) {
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, sequence_at),
      BPF_STMT(BPF_MISC | BPF_TAX, 0),
      BPF_STMT(BPF_LD | BPF_IMM, end),
      BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, sign, 0, 1),  // numbers wrap: the segment begins beyond the end
      BPF_STMT(BPF_LD | BPF_IMM, 0),
      BPF_STMT(BPF_MISC | BPF_TAX, 0),
  };
  code.insert(code.end(), load_header_bytes.begin(), load_header_bytes.end());
  code.push_back(BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0));
  code.push_back(BPF_STMT(BPF_RET | BPF_A, 0));
  filter(descriptor, code);
}

}  // namespace

void guard_connections_of(int listening) {
  set(listening, SOL_SOCKET, SO_RCVLOWAT, unseen_bytes);
  set(listening, IPPROTO_TCP, TCP_SAVE_SYN, 1);
  keep_greetings(listening);
}

void let_handshake(int descriptor) {
  int least = 0;
  socklen_t size = sizeof least;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &least, &size) != 0 || least <= 1) return;
  std::array<std::uint8_t, most_syn_bytes> syn{};
  size = syn.size();
  // No honest end has headers as long or of such kinds: it stays unseen until its time is over.
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_SAVED_SYN, syn.data(), &size) != 0) return;
  if (size == 0) {
    keep_of_each(descriptor, little_bytes);
  } else if (const auto first = first_sequence(std::span(syn).first(size))) {
    keep_until(descriptor, static_cast<std::uint32_t>(*first + max_stranger_bytes + 1));
  } else {
    return;
  }
  set(descriptor, SOL_SOCKET, SO_RCVLOWAT, 1);
}

void let_all(int descriptor) {
  set(descriptor, SOL_SOCKET, SO_DETACH_FILTER, 0);
  set(descriptor, SOL_SOCKET, SO_RCVLOWAT, 1);
}

}  // namespace gossamer::peer
