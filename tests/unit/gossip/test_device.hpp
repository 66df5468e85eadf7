// The device that a test's fragments are on. Tests that include this are run twice: on the processor, and, with
// GOSSAMER_UNTOUCHABLE in the environment, on a device whose memory nobody but itself can touch.

#pragma once

#include <cstdlib>
#include <vector>

#include "gossip/untouchable_device.hpp"

namespace gossamer::gossip {

/// The program's only untouchable device. The program fails at its end if something is left on it. Null: the tests run
/// on the processor.
inline const UntouchableDevice* untouchable_device() {
  static const bool wanted = std::getenv("GOSSAMER_UNTOUCHABLE") != nullptr;
  if (!wanted) return nullptr;
  static const UntouchableDevice device;
  return &device;
}

inline const Device& test_device() {
  if (const UntouchableDevice* const device = untouchable_device()) return *device;
  return processor();
}
/// The device's address of a client's memory, which does not move from now on.
inline float* there(std::vector<float>& memory) {
  const UntouchableDevice* const device = untouchable_device();
  return device == nullptr ? memory.data() : device->hide(memory);
}
/// Returns the same elements at an address that the test can read.
template <class Address>
Address here(const Address& on_device) {
  const UntouchableDevice* const device = untouchable_device();
  return device == nullptr ? on_device : device->look(on_device);
}

}  // namespace gossamer::gossip
