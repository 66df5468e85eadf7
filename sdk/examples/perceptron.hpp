// The model of digits_mlp.cpp: one hidden layer, its forward and its backward pass, one example at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

constexpr int inputs = 64, hidden = 32, classes = 10, batch = 32;
constexpr float rate = 0.2f / batch;

struct Perceptron {
  std::vector<float> w1 = std::vector<float>(hidden * inputs), b1 = std::vector<float>(hidden);
  std::vector<float> w2 = std::vector<float>(classes * hidden), b2 = std::vector<float>(classes);
  float h[hidden] = {}, p[classes] = {};

  explicit Perceptron(std::mt19937& random) {
    for (float& w : w1)
      w = std::normal_distribution<float>(0, std::sqrt(2.0f / inputs))(random);
    for (float& w : w2)
      w = std::normal_distribution<float>(0, std::sqrt(2.0f / hidden))(random);
  }
  /// Returns the class that fits best.
  int forward(const float* x) {
    for (int i = 0; i < hidden; ++i) {
      h[i] = b1[i];
      for (int k = 0; k < inputs; ++k)
        h[i] += w1[i * inputs + k] * x[k];
      h[i] = std::max(h[i], 0.0f);
    }
    for (int c = 0; c < classes; ++c) {
      p[c] = b2[c];
      for (int i = 0; i < hidden; ++i)
        p[c] += w2[c * hidden + i] * h[i];
    }
    return static_cast<int>(std::max_element(p, p + classes) - p);
  }
  /// Adds this example's part of a step of stochastic gradient descent on the cross entropy.
  void train(const float* x, int label) {
    const float largest = p[forward(x)];
    float sum = 0, dh[hidden] = {};
    for (float& value : p)
      sum += value = std::exp(value - largest);
    for (int c = 0; c < classes; ++c) {
      const float d = p[c] / sum - (c == label);
      b2[c] -= rate * d;
      for (int i = 0; i < hidden; ++i) {
        dh[i] += d * w2[c * hidden + i];
        w2[c * hidden + i] -= rate * d * h[i];
      }
    }
    for (int i = 0; i < hidden; ++i) {
      if (h[i] == 0) continue;
      b1[i] -= rate * dh[i];
      for (int k = 0; k < inputs; ++k)
        w1[i * inputs + k] -= rate * dh[i] * x[k];
    }
  }
};
