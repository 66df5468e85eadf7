// Holds what every part of the overlay shares about this node: its options, its identity, its log, its counters, and
// the turns of the loop. Made by the overlay, which outlives its parts. One thread, the loop's.

#pragma once

#include <spdlog/logger.h>

#include <zmq.hpp>

#include "peer/links/seal_threads.hpp"
#include "peer/overlay/turns.hpp"
#include "peer/throttle.hpp"

namespace gossamer::peer {

struct OverlaySelf {
  [[nodiscard]] TimeUs now() const { return turns->now(); }

  asio::io_context& loop;
  OverlaySettings options;
  const Identity identity;
  OverlayEvents& owner;
  std::shared_ptr<spdlog::logger> log;
  gossip::Random random;
  OverlayClock time_of_day;
  std::shared_ptr<Turns> turns;
  zmq::context_t zmq;
  std::shared_ptr<SealThreads> seal_threads;  ///< none: the loop seals
  OverlayCounters counters = {};
  Throttle log_throttle{20, 2};  ///< for log lines that others can cause
};

}  // namespace gossamer::peer
