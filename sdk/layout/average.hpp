// How a training process averages exactly with others: run.average() and its daemon.
//
// The process connects to average_socket_name in the folder of the client socket (SOCK_SEQPACKET) and sends:
//
//   AverageOpen      with one descriptor: a memfd of 4 * elements bytes, sealed against shrinking and growing
//   AverageCall      once for each average: its contribution, fp32, is in the memory
//
// Each call is answered by an AverageReply, before which the client leaves the memory alone. If the status is `done`,
// the mean is in the memory. If the status is `refused`, the daemon then closes the connection. While a call waits the
// daemon says from time to time whom it waits for (`waiting`). A process that closes the connection is no longer a
// member. Bytes are in host order: both ends run on one machine. Nothing here is used by gossip.

#pragma once

#include <cstddef>
#include <cstdint>

namespace gossamer::layout {

inline constexpr std::uint64_t average_magic = 0x6761726576612d67;  // "g-averag"
/// Version 1 has no `layout`. Daemons take it, too.
inline constexpr std::uint32_t average_version = 2;
inline constexpr std::size_t average_open_bytes_1 = 152;
/// The name of the socket's file, in the folder of client_socket_name (sdk/layout/attach.hpp).
inline constexpr const char* average_socket_name = "average.sock";
/// The most values that one call averages.
inline constexpr std::uint64_t max_average_elements = std::uint64_t{1} << 34;

/// How the values travel between daemons; the same at all processes that average. The packed word is 0 for fp32.
/// Otherwise all but the first `exact` values are rounded to 8 bits, and the word is `exact` + 1.
struct AverageFormWord {
  bool eight_bits = false;
  std::uint32_t exact = 0;
  static constexpr std::uint32_t most_exact = 0xffff'fffe;

  [[nodiscard]] constexpr std::uint32_t pack() const { return eight_bits ? exact + 1 : 0; }
  [[nodiscard]] static constexpr AverageFormWord unpack(std::uint32_t bits) {
    return {.eight_bits = bits != 0, .exact = bits == 0 ? 0 : bits - 1};
  }
};

struct AverageOpen {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t form;      ///< an AverageFormWord
  std::uint64_t elements;  ///< at least 1
  char job[64];            ///< as in the header of the shared memory; zero-terminated
  char name[64];           ///< what is averaged, with the rules for a job's name
  std::uint32_t layout;    ///< what the values are, such as a hash of their names; the same at all processes
  std::uint32_t reserved;
};
static_assert(sizeof(AverageOpen) == average_open_bytes_1 + 8);

struct AverageCall {
  std::uint64_t number;    ///< larger than the number of the call before
  std::uint32_t at_least;  ///< the call waits until there are this many members; at least 1
  std::uint32_t grace_ms;  ///< the wait for the others once more than half have contributed; 0: without limit
};
static_assert(sizeof(AverageCall) == 16);

enum class AverageStatus : std::uint32_t {
  done = 0,     ///< the mean is in the memory
  missed = 1,   ///< others have, or may have, averaged with this contribution without this process: contribute again
  waiting = 2,  ///< the call goes on; the message says whom it waits for
  refused = 3,  ///< the call can never succeed; the message says why
};

/// The reason why a call is not answered yet.
enum class AverageWait : std::uint8_t {
  not_told = 0,
  entry = 1,          ///< to become a member
  members = 2,        ///< for as many members as the call wants
  contributions = 3,  ///< for members, and it is not known for which
  late = 4,           ///< for members that are known
  values = 5,         ///< for values that are on their way
};

/// AverageReply::waits while a call waits. Its bits: 0-7 what for; 8 whether a node averages something else under the
/// name, which is no member then.
struct AverageWaitWord {
  AverageWait what = AverageWait::not_told;
  bool differs = false;

  [[nodiscard]] constexpr std::uint32_t pack() const {
    return static_cast<std::uint32_t>(what) | (differs ? 0x100 : 0);
  }
  [[nodiscard]] static constexpr AverageWaitWord unpack(std::uint32_t bits) {
    const std::uint32_t what = bits & 0xff;
    return {.what = what <= static_cast<std::uint32_t>(AverageWait::values) ? static_cast<AverageWait>(what)
                                                                            : AverageWait::not_told,
            .differs = (bits & 0x100) != 0};
  }
};

struct AverageReply {
  std::uint64_t number;  ///< the call's
  std::uint64_t round;   ///< the members' common count of rounds; with `done`: the same at all of them
  std::uint32_t status;  ///< an AverageStatus
  std::uint32_t of;      ///< contributions in the mean; waiting: members, this process included
  std::uint32_t joined;  ///< 1: the process has become a member since its last reply
  std::uint32_t waits;   ///< an AverageWaitWord; done: it waits for nothing
  char message[224];     ///< zero-terminated, for people
};
static_assert(sizeof(AverageReply) == 256);

}  // namespace gossamer::layout
