// The device that a test's fragments are on. Tests that include this are built twice: on the processor, and, with
// GOSSAMER_UNTOUCHABLE defined, on a device whose memory nobody but itself can touch.

#pragma once

#include <vector>

#ifdef GOSSAMER_UNTOUCHABLE
#include "gossip/untouchable_device.hpp"
#else
#include "gossip/exchange/device.hpp"
#endif

namespace gossamer::gossip {

#ifdef GOSSAMER_UNTOUCHABLE

/// One for the program, which is not to end well if something is left on it.
inline const UntouchableDevice& test_device() {
  static const UntouchableDevice device;
  return device;
}
/// The device's address of a client's memory, which does not move from now on.
inline float* there(std::vector<float>& memory) {
  return test_device().hide(memory);
}
/// The same elements, where the test can read them.
template <class Address>
Address here(const Address& on_device) {
  return test_device().look(on_device);
}

#else

inline const Device& test_device() {
  return processor();
}
inline float* there(std::vector<float>& memory) {
  return memory.data();
}
template <class Address>
Address here(const Address& on_device) {
  return on_device;
}

#endif

}  // namespace gossamer::gossip
