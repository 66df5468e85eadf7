// A program in another process that trains the simulated nodes' models: gossamer.sim of the Python package. Models
// travel through a file that both map, questions and answers through standard output and input, a line each:
//
//   simulator        program
//   start NODE       ok                      makes the node's replica anew; its model goes to the node's place
//   train NODE       SAMPLES                 one step, in place on the node's model
//   stop NODE        ok                      the node has died
//   evaluate         LOSS ACCURACY           of the model in the last place; "nan" where there is none
//   result JSON                              the end
//
// The file has a place of `elements` floats for each node, and one more. One thread.

#pragma once

#include "tools/sim/learn/workload.hpp"

namespace gossamer::sim {

class Program : public Workload {
 public:
  /// Maps the file behind the descriptor. Throws UsageError if the file has the wrong size.
  Program(int memory, std::size_t nodes, std::size_t elements);
  ~Program() override;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // --- the functions of every workload
  [[nodiscard]] std::size_t elements() const override { return elements_; }
  [[nodiscard]] std::vector<float> initial(std::uint64_t) const override { return start(0); }
  [[nodiscard]] std::unique_ptr<GradientSource> make_source(const SourceOptions& options) const override;
  [[nodiscard]] Quality quality(std::span<const float> x) const override;

  /// The model with which a node's program begins.
  [[nodiscard]] std::vector<float> start(std::size_t node) const;
  /// Trains the node's model one step, in place. Returns the samples used.
  [[nodiscard]] std::uint64_t train(std::size_t node, std::span<float> model) const;
  void stop(std::size_t node) const;

 private:
  [[nodiscard]] std::span<float> place(std::size_t index) const {
    return std::span(memory_, (nodes_ + 1) * elements_).subspan(index * elements_, elements_);
  }

  std::size_t nodes_;
  std::size_t elements_;
  float* memory_;
};

}  // namespace gossamer::sim
