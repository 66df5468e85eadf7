// What every device of gossip/device.hpp must do, checked against the scalar definitions bit for bit on values of every
// kind. Run on the processor and on the CUDA kernels' arithmetic on the host by the unit tests, and on a GPU by
// tests/gpu/run.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gossip/device.hpp"

namespace properties {

/// A device's memory.
class Memory {
 public:
  Memory() = default;
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// New memory with these values in it.
  [[nodiscard]] virtual std::shared_ptr<float> with(const std::vector<float>& values) = 0;
  [[nodiscard]] virtual std::vector<float> read(const float* from, std::size_t elements) = 0;
};

class HostMemory final : public Memory {
 public:
  std::shared_ptr<float> with(const std::vector<float>& values) override {
    auto held = std::make_shared<std::vector<float>>(values);
    return {held, held->data()};
  }
  std::vector<float> read(const float* from, std::size_t elements) override { return {from, from + elements}; }
};

struct Property {
  std::string name;
  /// What is wrong; empty: nothing.
  std::function<std::string(const gossamer::gossip::Device&, Memory&)> check;
};

[[nodiscard]] const std::vector<Property>& all();

}  // namespace properties
