// How a link to a neighbour stands: what gossip is told of it, by whoever measures.
//
// A value, any thread.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::gossip {

struct LinkLoad {
  TimeUs backlog_us = 0;   ///< how long what waits takes to leave; 0 if no rate is known
  double bytes_per_s = 0;  ///< what it takes as measured, or lets pass as configured; 0: not known
};

}  // namespace gossamer::gossip
