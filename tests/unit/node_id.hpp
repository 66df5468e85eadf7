// Node ids for tests.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::test {

/// Each number gives another id. Only the number 0 gives the zero id.
inline NodeId node_id(std::uint64_t number) {
  NodeId id;
  for (std::size_t i = 0; i < sizeof number; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
  return id;
}

}  // namespace gossamer::test
