// A small classifier on dense inputs: one hidden layer of rectified linear units, or none (logistic regression), and a
// softmax with cross-entropy. Gradients by back-propagation (Rumelhart, Hinton & Williams 1986), batch after batch.
//
// The model is a flat array: weights (inputs × outputs, row after row) and biases of each layer in turn. The object
// keeps scratch memory; one thread.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gossip/random.hpp"

namespace gossamer::sim {

class Classifier {
 public:
  /// hidden = 0: no hidden layer.
  Classifier(std::size_t inputs, std::size_t hidden, std::size_t classes);

  [[nodiscard]] std::size_t inputs() const { return inputs_; }
  [[nodiscard]] std::size_t elements() const { return elements_; }
  /// Draws weights uniformly with the variance of He et al. 2015 (1502.01852); biases are 0.
  void initialise(gossip::Random& random, std::span<float> x) const;

  /// Returns the mean cross-entropy (nats) of a batch of `labels.size()` inputs at x; its gradient goes to g.
  /// `input_gradient`, if not null, gets the gradient with respect to the inputs, for a layer before this one.
  double gradient(std::span<const float> x, const float* inputs, std::span<const std::uint8_t> labels,
                  std::span<float> g, float* input_gradient = nullptr);

  struct Evaluation {
    double loss_sum = 0;  ///< in nats
    std::size_t right = 0;
  };
  [[nodiscard]] Evaluation evaluate(std::span<const float> x, const float* inputs,
                                    std::span<const std::uint8_t> labels);

 private:
  void forward(std::span<const float> x, const float* inputs, std::size_t batch);
  /// Replaces scores by their probabilities, minus 1 at the label; returns the summed cross-entropy.
  double softmax(std::span<const std::uint8_t> labels);
  void backward_layer(const float* inputs, std::size_t in, const float* weights, const float* output_gradient,
                      std::size_t out, std::size_t batch, float* g, float* input_gradient);

  std::size_t inputs_;
  std::size_t hidden_;
  std::size_t classes_;
  std::size_t elements_;
  std::vector<float> activations_;
  std::vector<float> activation_gradients_;
  std::vector<float> scores_;
  std::vector<float> transposed_;
};

}  // namespace gossamer::sim
