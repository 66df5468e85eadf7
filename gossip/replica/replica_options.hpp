// The behaviour of a replica, as its node's configuration sets it.

#pragma once

#include "gossip/codec/lattice.hpp"
#include "gossip/exchange/outer.hpp"
#include "gossip/exchange/steps.hpp"
#include "gossip/replica/job_clock.hpp"
#include "gossip/replica/partners.hpp"

namespace gossamer::gossip {

struct ReplicaOptions {
  Codec codec = Codec::q8;
  bool adapt_codec = false;            ///< instead of codec: q4 over slow links, q8 over others (Initiator::codec_for)
  TimeUs period_us = 50 * us_per_ms;   ///< shortest time between two exchanges of one fragment that the node begins
  std::size_t in_flight = 4;           ///< exchanges that the node may have under way at once
  float mixing_budget = 1.0F;          ///< see gossip/exchange/mixing.hpp
  TimeUs lifetime_us = 10 * us_per_s;  ///< how long an exchange waits for an answer, and a reply to be acknowledged
  TimeUs info_period_us = 1 * us_per_s;  ///< how often neighbours are told the clock
  float range = default_range;           ///< see gossip/exchange/steps.hpp
  bool age_damping = true;      ///< values from an old state weigh less (age_shift(), gossip/exchange/mixing.hpp)
  bool weigh_samples = false;   ///< who trains more samples a step counts for more (gossip/exchange/mixing.hpp)
  OuterOptions outer = {};      ///< see gossip/exchange/outer.hpp
  PartnerRule partners = {};    ///< see gossip/replica/partners.hpp
  double bytes_per_s = 0;       ///< most bytes that this replica sends as requests and replies; 0: no limit
  double link_bytes_per_s = 0;  ///< most bytes that it sends to one neighbour; 0: no limit
  double time_share = 0.02;     ///< largest part of the training's time that gossip takes; 0: no limit
  double network_share = 0.5;   ///< largest part of the node's network capacity, if known; 0: no limit
  /// False: nodes that train begin exchanges only at the end of the run. Their processes average by themselves
  /// (gossip/average) and so all hold one model. Nodes that keep the job take that model over.
  bool exchanges = true;
  bool crossing_rule = true;  ///< false only to test that the simulator finds the fault (tools/sim/hunt/sabotage.hpp)
  /// Distances beyond this many times the median are averaged with a smaller weight (gossip/codec/influence.hpp). A
  /// lower value limits a poisoned or far-off partner more, and slows stragglers down. From loose_clip on, a replica
  /// may always move by a part of its norm, so that one that comes late is not kept away. 0: off.
  float clip = 8;
  /// `clip` is limited to this in a cluster that asks for certificates, while this replica trains and its node is
  /// linked with most others. A minority can then be recognised by its distance, and no honest node depends on a single
  /// link (docs/explanation/learning.md, section 7).
  float dense_clip = 2;
  std::uint64_t clock_pace = default_clock_pace;  ///< see gossip/replica/job_clock.hpp
};

}  // namespace gossamer::gossip
