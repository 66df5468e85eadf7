// One datagram of the attach handshake (sdk/layout/attach.hpp): a request with its descriptors, and the answer.
//
// Called by the client listener on the loop's thread; nothing here blocks or keeps anything. Every descriptor that
// arrives is owned by the result or closed.

#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <optional>
#include <string_view>
#include <variant>

#include "daemon/clients/client_memory.hpp"
#include "gossip/types.hpp"
#include "sdk/layout/attach.hpp"
#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

/// A well-formed request: its size, mark and version are right, and it has exactly the descriptors that it needs.
struct AttachOffer {
  FileDescriptor memory;
  FileDescriptor wake;
  std::uint64_t memory_bytes = 0;
  bool resume = false;
  FileDescriptor kept = {};  ///< the memory that a daemon gave the client to keep; may be empty

  /// The GPU memory with the buffers, if they are not in `memory`.
  struct Device {
    std::array<std::uint8_t, 16> gpu{};  ///< the GPU's UUID
    std::uint64_t bytes = 0;
    FileDescriptor memory;
  };
  std::optional<Device> device = std::nullopt;
};

/// The client closed its end, or the connection failed, before a request came.
struct Disconnected {};
/// Nothing has arrived after all: wait again.
struct NothingYet {};

/// The answer to a client when this process has no descriptor left for the client's connection or memory.
[[nodiscard]] AttachRefusal out_of_descriptors();

[[nodiscard]] std::variant<AttachOffer, AttachRefusal, Disconnected, NothingYet> receive_attach(int socket);

/// Sends a reply, with the descriptor that the client is to keep; -1: none. The reply is lost if the socket cannot take
/// it at once.
void send_reply(int socket, const NodeId& node, layout::AttachStatus status, std::string_view message,
                int to_keep = -1);

enum class Rung : std::uint8_t { no, yes, without_end };
/// Empties an eventfd without ever blocking, whatever flags the client has set.
[[nodiscard]] Rung drain_eventfd(int eventfd);

}  // namespace gossamer::daemon
