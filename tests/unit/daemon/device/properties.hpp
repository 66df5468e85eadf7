// What every device of gossip/exchange/device.hpp must do, checked against the scalar definitions bit for bit on values
// of every kind. The unit tests run the checks on the processor and on the CUDA kernels' arithmetic on the host, and
// tests/gpu/run runs them on a GPU.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gossip/exchange/device.hpp"

namespace properties {

/// Arrays in a device's memory. Throws if the device will not have them.
class Memory {
 public:
  explicit Memory(const gossamer::gossip::Device& device) : device_(device) {}

  /// New memory with these values in it.
  [[nodiscard]] std::shared_ptr<float> with(const std::vector<float>& values);
  [[nodiscard]] std::vector<float> read(const float* from, std::size_t elements);

 private:
  const gossamer::gossip::Device& device_;
};

struct Property {
  std::string name;
  /// Returns a description of the fault; empty: none.
  std::function<std::string(const gossamer::gossip::Device&, Memory&)> check;
};

[[nodiscard]] const std::vector<Property>& all();

}  // namespace properties
