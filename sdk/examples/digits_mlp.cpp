// A multi-layer perceptron on handwritten digits in C++, with its own backward pass. Start it on as many machines as
// there are; what Gossamer adds is marked. digits_mlp [STEPS]
#include <cstdio>
#include <cstdlib>
#include <gossamer.hpp>  // <- Gossamer
#include <random>
#include <vector>

#include "sdk/examples/digits.hpp"
#include "sdk/examples/perceptron.hpp"

int main(int argc, char** argv) {
  const Digits digits = load_digits();
  std::mt19937 random(std::random_device{}());
  Perceptron model(random);

  using gossamer::param;  // <- Gossamer
  gossamer::Run run(
      {.job = "digits-mlp"},  // <- Gossamer
      std::vector{param("w1", model.w1), param("b1", model.b1), param("w2", model.w2), param("b2", model.b2)});
  if (run.wait_ready(std::chrono::seconds(10)) != GOSSAMER_OK)  // <- Gossamer
    std::fprintf(stderr, "alone for now: %s\n", run.last_error().c_str());

  const int steps = argc > 1 ? std::atoi(argv[1]) : 2000;
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < batch; ++i) {
      const std::size_t n = random() % digits.training;
      model.train(digits.image(n), digits.labels[n]);
    }
    run.step(batch);  // <- Gossamer
  }
  int right = 0;
  for (std::size_t n = digits.training; n < digits.labels.size(); ++n)
    right += model.forward(digits.image(n)) == digits.labels[n];
  std::printf("accuracy %.4f\n", right / static_cast<double>(digits.labels.size() - digits.training));
}
