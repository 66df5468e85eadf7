// What the simulated nodes learn from: gradients are those of the loss, shards are shares of the data, and missing or
// wrong files are reported.

#include "tools/sim/learn/workload.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "catch.hpp"
#include "temporary_folder.hpp"
#include "tools/sim/commands.hpp"
#include "tools/sim/draw.hpp"
#include "tools/sim/learn/classifier.hpp"
#include "tools/sim/learn/matrix.hpp"
#include "usage_error.hpp"

namespace gossamer::sim {
namespace {

using Gradient = std::function<GradientSource::Batch(GradientSource&, std::span<const float>, std::span<float>)>;

/// The largest error of the gradient, over random directions that touch all elements, relative to the slope of the loss
/// along such a direction.
double gradient_error(const Workload& workload, const Gradient& gradient) {
  constexpr int directions = 6;
  constexpr double width = 1e-4;  // small, because rectifiers have kinks that a step may cross
  // Every source has the same seed, so it begins with the same batch.
  const auto source = [&] { return workload.make_source({.nodes = 2, .batch = 8, .seed = 5}); };
  const auto x = workload.initial(3);
  std::vector<float> g(x.size());
  gradient(*source(), x, g);
  gossip::Random random(7);
  double worst = 0;
  for (int n = 0; n < directions; ++n) {
    std::vector<float> along(x.size());
    std::vector<float> ahead = x;
    std::vector<float> behind = x;
    double expected = 0;
    double square = 0;
    for (std::size_t e = 0; e < x.size(); ++e) {
      // Mostly along the gradient, so that the slope is not lost in the rounding of the loss.
      along[e] = static_cast<float>(width * normal(random)) + g[e] * static_cast<float>(width);
      ahead[e] += along[e];
      behind[e] -= along[e];
      expected += static_cast<double>(g[e]) * (static_cast<double>(ahead[e]) - behind[e]);
      square += static_cast<double>(g[e]) * g[e];
    }
    std::vector<float> unused(x.size());
    const double slope = source()->gradient(ahead, unused).loss - source()->gradient(behind, unused).loss;
    worst = std::max(worst, std::fabs(slope - expected) / (2 * width * (square + std::sqrt(square))));
  }
  return worst;
}

GradientSource::Batch as_shipped(GradientSource& source, std::span<const float> x, std::span<float> g) {
  return source.gradient(x, g);
}

/// Flips the sign of every fifth element.
GradientSource::Batch partly_flipped(GradientSource& source, std::span<const float> x, std::span<float> g) {
  const auto batch = source.gradient(x, g);
  for (std::size_t e = 0; e < g.size(); e += 5)
    g[e] = -g[e];
  return batch;
}

}  // namespace

TEST_CASE("A product of matrices is the sum of products") {
  gossip::Random random(1);
  for (const auto& [m, k, n] : {std::array<std::size_t, 3>{1, 1, 1}, {3, 5, 7}, {8, 64, 10}, {5, 33, 40}, {4, 2, 16}}) {
    std::vector<float> a(m * k);
    std::vector<float> b(k * n);
    std::vector<float> c(m * n);
    for (auto* values : {&a, &b}) {
      for (float& value : *values)
        value = static_cast<float>(random.uniform() - 0.5);
    }
    multiply(a.data(), b.data(), c.data(), m, k, n);
    for (std::size_t row = 0; row < m; ++row) {
      for (std::size_t column = 0; column < n; ++column) {
        float expected = 0;
        for (std::size_t i = 0; i < k; ++i)
          expected += a[row * k + i] * b[i * n + column];
        REQUIRE(c[row * n + column] == Approx(expected).margin(1e-6));
      }
    }
  }
}

TEST_CASE("Every workload's gradient is the slope of its loss, and a wrong one is noticed") {
  for (const char* name : {"quadratic", "logistic", "mlp", "text"}) {
    INFO(name);
    const auto workload = make_workload(name, {.hidden = 24});
    CHECK(gradient_error(*workload, as_shipped) < 0.002);
    CHECK(gradient_error(*workload, partly_flipped) > 0.1);
  }
}

TEST_CASE("Shards are shares: every example at one node, sorted by label if asked for") {
  std::vector<std::uint8_t> labels(1'000);
  for (std::size_t n = 0; n < labels.size(); ++n)
    labels[n] = static_cast<std::uint8_t>(n * 7 % 10);
  const auto labels_at = [&](const std::vector<std::uint32_t>& shard) {
    std::map<int, int> count;
    for (const auto index : shard)
      ++count[labels[index]];
    return count;
  };
  for (const Partition partition : {Partition::iid, Partition::sorted, Partition::dirichlet}) {
    for (const std::size_t nodes : {1, 3, 10, 64}) {
      const auto parts = shards(labels, nodes, {partition, 0.1}, gossip::Random(nodes));
      std::vector<int> times(labels.size());
      for (const auto& part : parts) {
        CHECK_FALSE(part.empty());
        for (const auto index : part)
          ++times[index];
      }
      CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
      if (partition == Partition::dirichlet) continue;
      for (const auto& part : parts)
        CHECK(std::fabs(static_cast<double>(part.size()) - 1'000.0 / static_cast<double>(nodes)) <= 1);
    }
  }
  for (const auto& part : shards(labels, 3, {Partition::shared}, gossip::Random(1)))
    CHECK(part.size() == labels.size());
  for (const auto& part : shards(labels, 10, {Partition::sorted}, gossip::Random(1)))
    CHECK(labels_at(part).size() == 1);
  for (const auto& part : shards(labels, 10, {Partition::iid}, gossip::Random(1)))
    CHECK(labels_at(part).size() > 7);
}

TEST_CASE("A small Dirichlet parameter gives a label to few nodes, a large one to all") {
  std::vector<std::uint8_t> labels(5'000);
  for (std::size_t n = 0; n < labels.size(); ++n)
    labels[n] = static_cast<std::uint8_t>(n % 10);
  const auto largest_share = [&](double alpha) {
    double sum = 0;
    for (const auto& part : shards(labels, 5, {Partition::dirichlet, alpha}, gossip::Random(3))) {
      std::array<double, 10> count{};
      for (const auto index : part)
        ++count[labels[index]];
      sum += *std::max_element(count.begin(), count.end()) / 500 / 5;
    }
    return sum;
  };
  CHECK(largest_share(0.05) > 0.6);
  CHECK(largest_share(100) < 0.3);
}

TEST_CASE("Data that is missing or damaged is named") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "digits.csv").string();
  CHECK(message_of([&] { (void)make_workload("mlp", {.digits_file = file}); }).find("python3-sklearn") !=
        std::string::npos);
  std::ofstream(file) << "1,2,3\n";
  CHECK(message_of([&] { (void)make_workload("mlp", {.digits_file = file}); }).find("line 1") != std::string::npos);
  CHECK(message_of([&] { (void)make_workload("text", {.text_file = file}); }).find("too short") != std::string::npos);
  CHECK(message_of([] { (void)make_workload("imagenet", {}); }).find("unknown workload") != std::string::npos);
  const auto digits = make_workload("logistic", {});
  CHECK(message_of([&] { (void)digits->make_source({.nodes = 5'000}); }).find("shared among") != std::string::npos);
}

}  // namespace gossamer::sim
