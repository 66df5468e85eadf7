// The data of digits_mlp.cpp: 1,797 images of handwritten digits, 8 × 8, from Debian's python3-sklearn (UCI's "Optical
// Recognition of Handwritten Digits", test part), in an order that is the same everywhere.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

struct Digits {
  static constexpr std::size_t pixels = 64;
  std::size_t training = 1437;  ///< the other images are held out
  std::vector<float> pixel;     ///< 64 for each image, 0 to 1
  std::vector<int> labels;
  [[nodiscard]] const float* image(std::size_t n) const { return &pixel[n * pixels]; }
};

inline Digits load_digits() {
  constexpr const char* command = "zcat /usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz";
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command, "r"), close);
  Digits read;
  float value = 0;
  while (pipe && std::fscanf(pipe.get(), "%f,", &value) == 1) {
    // A line has 64 pixels of 0 to 16, and then the digit.
    if (read.pixel.size() % Digits::pixels == 0 && read.pixel.size() / Digits::pixels > read.labels.size()) {
      read.labels.push_back(static_cast<int>(value));
    } else {
      read.pixel.push_back(value / 16);
    }
  }
  if (read.labels.size() != 1797) throw std::runtime_error("no digits: apt install python3-sklearn");
  std::vector<std::size_t> order(read.labels.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(0));
  Digits shuffled;
  for (const std::size_t n : order) {
    shuffled.pixel.insert(shuffled.pixel.end(), read.image(n), read.image(n) + Digits::pixels);
    shuffled.labels.push_back(read.labels[n]);
  }
  return shuffled;
}
