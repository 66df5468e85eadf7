// One datagram of the attach handshake (sdk/layout/attach.hpp): receiving a request with its descriptors, answering it.
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
#include "daemon/system/unique_fd.hpp"
#include "gossip/types.hpp"
#include "sdk/layout/attach.hpp"

namespace gossamer::daemon {

/// A well-formed request: right size, mark and version, and exactly the descriptors that belong to it.
struct AttachOffer {
  UniqueFd memory;
  UniqueFd wake;
  std::uint64_t memory_bytes = 0;
  bool resume = false;
  UniqueFd kept = {};  ///< what a daemon had given it to keep, or none

  /// Of buffers in a GPU's memory.
  struct Device {
    std::array<std::uint8_t, 16> gpu{};  ///< its UUID
    std::uint64_t bytes = 0;
    UniqueFd memory;
  };
  std::optional<Device> device = std::nullopt;
};

/// The other end closed, or the connection failed, without having asked for anything.
struct Disconnected {};
/// Nothing has arrived after all; wait again.
struct NothingYet {};

/// What a client hears when the kernel could not hand its descriptors, or its connection, to this process.
[[nodiscard]] AttachRefusal out_of_descriptors();

[[nodiscard]] std::variant<AttachOffer, AttachRefusal, Disconnected, NothingYet> receive_attach(int socket);

/// Sends the one reply, with what the client is to keep; -1: nothing. A client that does not take it loses it.
void send_reply(int socket, const NodeId& node, layout::AttachStatus status, std::string_view message,
                int to_keep = -1);

/// Empties an eventfd without ever blocking, whatever the client has done to its flags. False: nothing was in it.
[[nodiscard]] bool drain_eventfd(int eventfd);

}  // namespace gossamer::daemon
