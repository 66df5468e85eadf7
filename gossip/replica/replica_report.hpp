// The reports of a replica about itself and its partners, for people. No decision uses these reports.

#pragma once

#include "gossip/replica/age_counts.hpp"

namespace gossamer::gossip {

/// Counts since the replica began.
struct ReplicaCounters {
  std::uint64_t initiated = 0;   ///< own exchanges that were concluded, without follow-ups on wide blocks
  std::uint64_t answered = 0;    ///< exchanges that others began and this replica answered
  std::uint64_t follow_ups = 0;  ///< own exchanges of wide blocks
  std::uint64_t busy_sent = 0;
  std::uint64_t busy_received = 0;
  std::uint64_t refused_sent = 0;
  std::uint64_t refused_received = 0;
  std::uint64_t unresolved = 0;   ///< exchanges committed here of which nobody can tell whether the other end committed
  std::uint64_t undone = 0;       ///< exchanges committed here and undone, since the initiator will never commit
  std::uint64_t violations = 0;   ///< replies that did not fit their request
  std::uint64_t blocks = 0;       ///< blocks in the exchanges that `initiated` and `answered` count
  std::uint64_t wide_blocks = 0;  ///< how many of them were wide
  std::uint64_t publications = 0;
  std::uint64_t outer_steps = 0;
  std::uint64_t quarantines = 0;  ///< times a fragment was found to hold NaN or infinity
  std::uint64_t repeated_requests = 0;
  std::uint64_t clipped = 0;             ///< exchanges with a partner farther off than ReplicaOptions::clip
  std::uint64_t repeats_sent = 0;        ///< requests and replies sent again because no answer came
  std::uint64_t payload_bytes_sent = 0;  ///< frames of requests and replies, without pulls
  double shift_sum = 0;                  ///< sum over initiated and answered exchanges, for the mean
  double mean_abs_sum = 0;               ///< sum over the same exchanges: mean |y_j − y_i|
  double codec_error_sum = 0;            ///< sum over the same exchanges: see ExchangeMeasure
  AgeCounts ages = {};                   ///< ages of this replica's values in the same exchanges
};

/// A neighbour that runs the job, or could, as this replica sees it.
struct PartnerReport {
  NodeId node;
  JobInfo info;  ///< as last told; absent: nothing was told yet
  bool linked = false;
  bool other_layout = false;      ///< it runs another model under the job's name
  std::uint64_t exchanges = 0;    ///< exchanges done with it in both roles, since the link was first seen
  std::uint64_t busy = 0;         ///< requests that it turned down because it was busy
  TimeUs exchanged_us = 0;        ///< when the last exchange with it was done; 0: none
  double answer_us = 0;           ///< smoothed time from request to reply; 0: not known
  double bytes_per_s = 0;         ///< smoothed rate of the same requests and replies; 0: not known
  double relative_distance = 0;   ///< ‖y_j − y_i‖ / ‖y‖, smoothed over the exchanges with it; 0: not known
  std::uint64_t blocks = 0;       ///< blocks in these exchanges
  std::uint64_t wide_blocks = 0;  ///< how many of them were wide
  std::uint64_t unresolved = 0;   ///< exchanges committed here of which nobody can tell whether this partner committed
  double age_intervals = 0;       ///< smoothed age of the values it brings, in its publication intervals
  std::uint32_t quarantined_fragments = 0;  ///< fragments with NaN at that node, as last heard
};

}  // namespace gossamer::gossip
