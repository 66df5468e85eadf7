// The handshake between a client and the daemon, over a Unix socket of type SOCK_SEQPACKET: one datagram each way.
//
//   client → daemon: AttachRequest, with SCM_RIGHTS carrying [memfd, eventfd]; or, of a model in a GPU's memory,
//                    AttachRequest and DeviceOffer in one datagram, with [memfd, eventfd, device memory]; and behind
//                    these what a daemon has given it to keep, if one has
//   daemon → client: AttachReply, with SCM_RIGHTS carrying what the client is to keep from then on (the node's memory
//                    of the job, which is nobody's business but the daemon's); on failure without, and the socket is
//                    then closed by the daemon
//
// While attached the socket carries nothing else from the client; its end of file is how each side learns that the
// other is gone. The eventfd wakes the daemon: the client adds 1 after it has published fragments. Bytes are host
// order: both ends run on one machine.

#pragma once

#include <cstdint>

namespace gossamer::layout {

inline constexpr std::uint64_t attach_magic = 0x6863617474612d67;  // "g-attach"
inline constexpr std::uint32_t attach_version = 1;

struct AttachRequest {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t flags;         ///< attach_… bits
  std::uint64_t memory_bytes;  ///< size of the memfd
  std::uint64_t process_id;    ///< for messages to people; the daemon asks the kernel for the truth
};
static_assert(sizeof(AttachRequest) == 32);

/// The memory has been with a daemon before: its words, corrections and clock are to be taken over as they are.
inline constexpr std::uint32_t attach_resume = 1;
/// The buffers are in a GPU's memory (Header::buffers_in): a DeviceOffer follows.
inline constexpr std::uint32_t attach_device = 2;
/// The last descriptor is what came with the last reply that had one.
inline constexpr std::uint32_t attach_kept = 4;

/// Where the buffers are, if not in the memfd. The descriptor is what the driver makes of a physical allocation
/// (cuMemExportToShareableHandle): the memory lives until both sides have let go of it, whoever dies first.
struct DeviceOffer {
  std::uint8_t uuid[16];  ///< of the GPU, as the driver and NVML give it
  std::uint64_t bytes;    ///< of the allocation: at least device_bytes() of sdk/layout/shared_memory.hpp
};
static_assert(sizeof(DeviceOffer) == 24);

enum class AttachStatus : std::uint32_t {
  accepted = 0,
  version_differs = 1,  ///< of the handshake or of the shared memory
  bad_layout = 2,       ///< the memory does not hold what it must; `message` says what
  job_busy = 3,         ///< the job's first client has just left while it joined; try again
  limit_reached = 4,    ///< of memory, jobs or clients
  stopping = 5,         ///< the daemon is going down; try again
  no_device = 6,        ///< the daemon cannot work in that GPU's memory: offer buffers in the memfd instead
  device_opening = 7,   ///< the daemon has not opened that GPU yet; try again
};

struct AttachReply {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t status;  ///< AttachStatus
  std::uint8_t node_id[16];
  char message[224];  ///< zero-terminated, for people: what is wrong and what to do
};
static_assert(sizeof(AttachReply) == 256);

/// Where the socket is unless GOSSAMER_SOCKET or a configuration says otherwise: the first that can be used of
/// /run/gossamer, $XDG_RUNTIME_DIR/gossamer and /tmp/gossamer-UID, each with this file name.
inline constexpr const char* client_socket_name = "client.sock";
inline constexpr const char* control_socket_name = "control.sock";

}  // namespace gossamer::layout
