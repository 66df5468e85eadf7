#include "daemon/gpus/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace gossamer::gpus {
namespace {

/// The thing to do; NVIDIA calls it "resolution".
enum class Remedy : std::uint8_t { look_at_program, reset_soon, reset_now, reboot, look_at_link, look_it_up };

struct Xid {
  std::uint32_t code;
  Health health;
  Remedy remedy;
  const char* what;
};

constexpr std::array xids = {
    Xid{13, Health::sound, Remedy::look_at_program, "a program's kernel raised an exception"},
    Xid{31, Health::sound, Remedy::look_at_program, "a program touched memory that is not its own"},
    Xid{43, Health::sound, Remedy::look_at_program, "a program's work was stopped after a fault of its own"},
    Xid{45, Health::sound, Remedy::look_at_program, "a program's work was cleaned up after its end or another error"},
    Xid{48, Health::ill, Remedy::reset_now, "a memory error that could not be corrected (double-bit ECC)"},
    Xid{61, Health::ill, Remedy::reset_now, "an internal microcontroller has met a fault"},
    Xid{62, Health::ill, Remedy::reset_now, "an internal microcontroller has halted"},
    Xid{63, Health::warning, Remedy::reset_soon, "a bad memory row or page is to be replaced by a spare"},
    Xid{64, Health::ill, Remedy::reset_now, "a bad memory row or page could not be noted down for replacement"},
    Xid{74, Health::ill, Remedy::look_at_link, "an NVLink has failed"},
    Xid{79, Health::ill, Remedy::reboot, "the GPU has fallen off the bus"},
    Xid{92, Health::warning, Remedy::reset_soon, "many memory errors, all corrected"},
    Xid{94, Health::warning, Remedy::reset_soon, "a memory error that ended one program only (contained)"},
    Xid{95, Health::ill, Remedy::reset_now, "a memory error that may have reached other programs (uncontained)"},
    Xid{119, Health::ill, Remedy::reset_now, "the GPU's system processor does not answer (GSP)"},
    Xid{120, Health::ill, Remedy::reset_now, "the GPU's system processor has met a fault (GSP)"},
    Xid{140, Health::ill, Remedy::reset_now, "a memory error that was not recovered from"},
};
static_assert(std::ranges::is_sorted(xids, {}, &Xid::code));

const Xid* known_xid(std::uint32_t code) {
  const auto found = std::ranges::find(xids, code, &Xid::code);
  return found == xids.end() ? nullptr : &*found;
}

/// The daemon itself holds the GPU open, so the advice stops it first.
std::string reset(const Gpu& gpu) {
  return fmt::format(
      "stop the training on it and gossamerd, nvidia-smi --gpu-reset -i {}, start both again; if it comes back, have "
      "the GPU looked at",
      gpu.index);
}

std::string advice(Remedy remedy, const Gpu& gpu) {
  switch (remedy) {
    case Remedy::look_at_program:
      return "look at the program that ran there, with compute-sanitizer";
    case Remedy::reset_soon:
      return "when it suits: " + reset(gpu);
    case Remedy::reset_now:
      return "results may be wrong: " + reset(gpu);
    case Remedy::reboot:
      return "restart the machine; if it comes back, look at power, cooling and how the card sits";
    case Remedy::look_at_link:
      return "nvidia-smi nvlink -s -i " + std::to_string(gpu.index) + " shows which; " + reset(gpu);
    case Remedy::look_it_up:
      break;
  }
  return fmt::format("look it up in {}", xid_catalogue);
}

Ailment of_xid(const XidSeen& seen, const Gpu& gpu) {
  const Xid* const known = known_xid(seen.code);
  return {known != nullptr ? known->health : Health::warning,
          fmt::format("{}, {} time{}", xid_text(seen.code), seen.count, seen.count == 1 ? "" : "s"),
          advice(known != nullptr ? known->remedy : Remedy::look_it_up, gpu)};
}

}  // namespace

std::string xid_text(std::uint32_t code) {
  const Xid* const known = known_xid(code);
  return fmt::format("Xid {}: {}", code, known != nullptr ? known->what : "an error of the driver's or the GPU's");
}

bool is_of_a_program(std::uint32_t code) {
  const Xid* const known = known_xid(code);
  return known != nullptr && known->health == Health::sound;
}

std::vector<Ailment> examine(const Gpu& gpu) {
  std::vector<Ailment> found;
  if (gpu.lost) {
    found.push_back({Health::ill, "has fallen off the bus", advice(Remedy::reboot, gpu)});
  } else if (!gpu.unreadable.empty()) {
    found.push_back({Health::ill, fmt::format("the driver tells nothing about it: {}", gpu.unreadable), reset(gpu)});
  }
  if (gpu.remap_failed)
    found.push_back({Health::ill, "bad memory rows could not be replaced: no spare is left", "have the GPU replaced"});
  for (const XidSeen& seen : gpu.xids)
    if (!is_of_a_program(seen.code)) found.push_back(of_xid(seen, gpu));
  if (gpu.remap_pending)
    found.push_back({Health::warning, "bad memory rows or pages wait to be replaced", advice(Remedy::reset_soon, gpu)});
  if (gpu.ecc_uncorrected.value_or(0) > 0)
    found.push_back(
        {Health::warning,
         fmt::format("{} memory errors were not corrected (ECC) since the driver was loaded or it was reset",
                     *gpu.ecc_uncorrected),
         "programs that ran then may have failed or be wrong; " + advice(Remedy::reset_soon, gpu)});
  std::ranges::stable_sort(found, std::ranges::greater{}, &Ailment::health);
  return found;
}

void judge(Gpu& gpu) {
  const std::vector<Ailment> found = examine(gpu);
  gpu.health = found.empty() ? Health::sound : found.front().health;
  gpu.note = found.empty() ? "" : found.front().text;
}

}  // namespace gossamer::gpus
