// The meaning of a GPU's figures and errors, and what to do about them.
//
// Pure functions, for any thread. The errors ("Xid") follow NVIDIA's catalogue, xid_catalogue. An error that only shows
// a program's fault leaves the GPU sound.

#pragma once

#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"

namespace gossamer::gpus {

inline constexpr const char* xid_catalogue = "https://docs.nvidia.com/deploy/xid-errors/";

struct Ailment {
  Health health;
  std::string text;    ///< what is wrong
  std::string advice;  ///< what to do
};

/// All problems, the worst first; empty: nothing is wrong.
[[nodiscard]] std::vector<Ailment> examine(const Gpu& gpu);

/// For instance "Xid 79: the GPU has fallen off the bus".
[[nodiscard]] std::string xid_text(std::uint32_t code);
/// Whether the error is a program's fault and not the GPU's.
[[nodiscard]] bool is_of_a_program(std::uint32_t code);

/// Sets health and note from the other figures.
void judge(Gpu& gpu);

}  // namespace gossamer::gpus
