// The state of a link to a neighbour, as measured outside gossip.
//
// This is a value; any thread.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::gossip {

struct LinkLoad {
  TimeUs backlog_us = 0;   ///< how long it takes to send the link's queue; 0 if no rate is known
  double bytes_per_s = 0;  ///< measured or configured rate; 0: not known
};

}  // namespace gossamer::gossip
