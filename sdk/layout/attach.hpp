// The handshake between a client and the daemon, over a Unix socket of type SOCK_SEQPACKET: one datagram each way.
//
//   client → daemon: AttachRequest, with SCM_RIGHTS carrying [memfd, eventfd]; for a model in GPU memory, AttachRequest
//                    and DeviceOffer in one datagram, with [memfd, eventfd, device memory]. After these comes the
//                    descriptor that a daemon has given the client to keep, if there is one
//   daemon → client: AttachReply, with SCM_RIGHTS carrying the descriptor that the client keeps from then on
//                    (the node's memory of the job, which only the daemon uses). On failure there is no descriptor, and
//                    the daemon then closes the socket
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
  std::uint32_t flags;         ///< attach_resume, attach_device and attach_kept
  std::uint64_t memory_bytes;  ///< the size of the memfd
  std::uint64_t process_id;    ///< for messages to people; the daemon asks the kernel for the real one
};
static_assert(sizeof(AttachRequest) == 32);

/// A daemon has had the memory before: the next daemon takes over its words, corrections and clock as they are.
inline constexpr std::uint32_t attach_resume = 1;
/// The buffers are in GPU memory (Header::buffers_in), and a DeviceOffer follows.
inline constexpr std::uint32_t attach_device = 2;
/// The last descriptor is the one that came with the last reply that had one.
inline constexpr std::uint32_t attach_kept = 4;

/// The place of the buffers if they are not in the memfd. The descriptor is what the driver makes of a physical
/// allocation (cuMemExportToShareableHandle). The memory lives until both sides have released it, whichever dies first.
struct DeviceOffer {
  std::uint8_t uuid[16];  ///< the GPU's, as the driver and NVML report it
  std::uint64_t bytes;    ///< size of the allocation: at least device_bytes() of sdk/layout/shared_memory.hpp
};
static_assert(sizeof(DeviceOffer) == 24);

enum class AttachStatus : std::uint32_t {
  accepted = 0,
  version_differs = 1,  ///< the version of the handshake or of the shared memory
  bad_layout = 2,       ///< the memory does not hold what it must; `message` says which part
  job_busy = 3,         ///< the job cannot take this client now; `message` says why; try again
  limit_reached = 4,    ///< the limit on memory, jobs or clients
  stopping = 5,         ///< the daemon is going down; try again
  no_device = 6,        ///< the daemon cannot work in that GPU's memory: offer buffers in the memfd instead
  device_opening = 7,   ///< the daemon has not opened that GPU yet; try again
  not_permitted = 8,    ///< the node's certificate, or this user's rights, forbid it; `message` says what is allowed
};

struct AttachReply {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t status;  ///< an AttachStatus
  std::uint8_t node_id[16];
  char message[224];  ///< zero-terminated, for people: what is wrong and what to do
};
static_assert(sizeof(AttachReply) == 256);

/// The name of the socket's file. Unless GOSSAMER_SOCKET or the configuration says otherwise, it is in the first folder
/// that can be used of /run/gossamer, $XDG_RUNTIME_DIR/gossamer and /tmp/gossamer-UID.
inline constexpr const char* client_socket_name = "client.sock";
inline constexpr const char* control_socket_name = "control.sock";

}  // namespace gossamer::layout
