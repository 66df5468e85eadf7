// What a GPU's figures and errors mean, and what to do about them.
//
// Pure: any thread. The errors ("Xid") follow NVIDIA's catalogue, xid_catalogue; those that only tell of a program's
// fault leave the GPU sound.

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

/// The worst first; empty: nothing is wrong.
[[nodiscard]] std::vector<Ailment> examine(const Gpu& gpu);

/// "Xid 79: the GPU has fallen off the bus".
[[nodiscard]] std::string xid_text(std::uint32_t code);
/// A fault of a program, not of the GPU.
[[nodiscard]] bool is_of_a_program(std::uint32_t code);

/// Sets health and note from the rest.
void judge(Gpu& gpu);

}  // namespace gossamer::gpus
