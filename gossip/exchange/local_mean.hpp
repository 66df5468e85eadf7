// The arithmetic among the clients of one job at one node. It adds their mean progress to the node's copy y of a
// fragment, and gives each client the correction that brings it to y. This is the averaging step of Local SGD (Stich
// 2019, arXiv 1805.09767), on differences:
//
//   y ← y + Σ_c weight_c · progress_c            progress_c = s_c − (s_c before + the correction it was given)
//   c_c ← y − s_c
//
// So a client's progress is counted once, whenever it comes, and nobody waits for the slowest. A client whose values
// are not finite is left out of both lines.
//
// A task is a value that gossip/group/local_group.hpp decides on. run() uses only the memory that it names, on the
// device of that memory (gossip/exchange/device.hpp). It may run on any thread while the fragment is held.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gossamer::gossip {

/// The part of a client's publication that is taken into y.
enum class Take : unsigned char {
  nothing,
  check,     ///< nothing, but it is checked for NaN and infinity
  progress,  ///< its progress since the base
  values,    ///< checked, and then copied over y (gossip/group/group.cpp)
};

class Device;

/// One client's part. All arrays are as long as y. A null pointer means that there is no array.
struct ClientFragment {
  const float* snapshot = nullptr;         ///< s
  const float* base = nullptr;             ///< the snapshot before, for progress
  const float* base_correction = nullptr;  ///< the correction that it was given then
  Take take = Take::nothing;
  float weight = 1;             ///< of its progress
  float* correction = nullptr;  ///< where the client's correction is written; may be a base
  bool replace = false;         ///< y itself is written, for the client to take over
  /// The device that has the arrays in its memory, if it is not the device of y. Such a mean needs a MeanOver
  /// (gossip/group/group.hpp).
  const Device* device = nullptr;
};

/// A task's findings about one client.
struct LocalMeanOutcome {
  bool finite = true;    ///< false: no progress was taken and no correction written
  bool moved = false;    ///< progress other than zero was taken
  bool differs = false;  ///< its correction is not zero (replace: always)
  bool reached = true;   ///< false: its memory is on another device and out of reach: nothing was taken or written
  bool written = true;   ///< false: not reached, or a correction was due and could not be written
};

/// The mean on the processor. `outcomes` are as many as `clients`, and default-constructed.
void local_mean(std::span<const ClientFragment> clients, std::span<float> y, std::span<LocalMeanOutcome> outcomes);

struct LocalMeanTask {
  std::vector<ClientFragment> clients;  ///< taken in this order

  using Outcome = LocalMeanOutcome;
  /// Returns an outcome for each client, in order. If the device fails, no client counts as reached.
  [[nodiscard]] std::vector<Outcome> run(std::span<float> y, const Device& device) const;
};

}  // namespace gossamer::gossip
