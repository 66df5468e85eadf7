// The arithmetic among the clients of one job at one node: their mean progress into the node's copy y of a fragment,
// and for each the correction that brings it to y. Local SGD's averaging step (Stich 2019, arXiv 1805.09767), on
// differences:
//
//   y ← y + Σ_c weight_c · progress_c            progress_c = s_c − (s_c before + the correction it was given)
//   c_c ← y − s_c
//
// so that what a client did is counted once, whenever it comes, and nobody waits for the slowest. A client whose values
// are not finite is left out of both.
//
// A task is a value, decided on by gossip/group/local_group.hpp; run() touches only the memory that it names and may
// run on any thread while the fragment is held. It computes on the device whose memory that is
// (gossip/exchange/device.hpp).

#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gossamer::gossip {

/// What is taken of a client's publication into y.
enum class Take : unsigned char {
  nothing,
  check,     ///< nothing, but whether it is finite is to be known
  progress,  ///< what it did since its base
};

class Device;

/// One client's part. All arrays are as long as y; null: none.
struct ClientFragment {
  const float* snapshot = nullptr;         ///< s
  const float* base = nullptr;             ///< of progress: the snapshot before,
  const float* base_correction = nullptr;  ///< and what it was given then
  Take take = Take::nothing;
  float weight = 1;             ///< of what is taken
  float* correction = nullptr;  ///< where what the client is to add is written; may be a base
  bool replace = false;         ///< y itself is written, to be taken over
  /// Whose memory the arrays are, if not that of the device which has y: one that knows several (a node's) is needed.
  const Device* device = nullptr;
};

/// What was found of one client.
struct LocalMeanOutcome {
  bool finite = true;    ///< false: nothing was taken of it, and no correction written
  bool moved = false;    ///< something other than zero was taken of it
  bool differs = false;  ///< its correction is not zero (replace: always)
  bool reached = true;   ///< false: its memory is elsewhere and was out of reach: nothing was taken, nothing written
  bool written = true;   ///< false: not reached, or its correction could not be written though it was to be
};

/// The mean on the processor; `outcomes` are as many as `clients`, and begin as an outcome does.
void local_mean(std::span<const ClientFragment> clients, std::span<float> y, std::span<LocalMeanOutcome> outcomes);

struct LocalMeanTask {
  std::vector<ClientFragment> clients;  ///< taken in this order

  using Outcome = LocalMeanOutcome;
  /// For each client, in order. Where the device fails, none is reached.
  [[nodiscard]] std::vector<Outcome> run(std::span<float> y, const Device& device) const;
};

}  // namespace gossamer::gossip
