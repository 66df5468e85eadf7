#include "tools/sim/drive/program.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "tools/sim/commands.hpp"

namespace gossamer::sim {

namespace {

/// Writes a line to the program and returns its answer.
std::string ask(const std::string& question) {
  std::fputs((question + "\n").c_str(), stdout);
  std::fflush(stdout);
  std::string answer;
  if (!std::getline(std::cin, answer)) throw UsageError("the program that trains has gone");
  return answer;
}

[[noreturn]] void refuse(const std::string& question, const std::string& answer) {
  throw UsageError(fmt::format("the program that trains answers '{}' to '{}'", answer, question));
}

}  // namespace

Program::Program(int memory, std::size_t nodes, std::size_t elements) : nodes_(nodes), elements_(elements) {
  struct stat file {};
  const std::size_t bytes = (nodes + 1) * elements * sizeof(float);
  if (::fstat(memory, &file) != 0 || static_cast<std::size_t>(file.st_size) != bytes)
    throw UsageError(fmt::format("descriptor {} is no file of {} bytes for the models", memory, bytes));
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) throw UsageError("the models cannot be mapped");
  memory_ = static_cast<float*>(mapped);
}

Program::~Program() {
  ::munmap(memory_, (nodes_ + 1) * elements_ * sizeof(float));
}

std::unique_ptr<GradientSource> Program::make_source(const SourceOptions&) const {
  throw UsageError("a program trains by itself, and tells no gradients");
}

Quality Program::quality(std::span<const float> x) const {
  std::ranges::copy(x, place(nodes_).begin());
  const std::string question = "evaluate";
  const std::string answer = ask(question);
  std::istringstream numbers(answer);
  std::string loss;
  std::string accuracy;
  if (!(numbers >> loss >> accuracy)) refuse(question, answer);
  return {std::strtod(loss.c_str(), nullptr), std::strtod(accuracy.c_str(), nullptr)};
}

std::vector<float> Program::start(std::size_t node) const {
  (void)ask(fmt::format("start {}", node));
  const auto model = place(node);
  return {model.begin(), model.end()};
}

std::uint64_t Program::train(std::size_t node, std::span<float> model) const {
  std::ranges::copy(model, place(node).begin());
  const std::string question = fmt::format("train {}", node);
  const std::string answer = ask(question);
  std::uint64_t samples = 0;
  if (!(std::istringstream(answer) >> samples)) refuse(question, answer);
  std::ranges::copy(place(node), model.begin());
  return samples;
}

void Program::stop(std::size_t node) const {
  (void)ask(fmt::format("stop {}", node));
}

}  // namespace gossamer::sim
