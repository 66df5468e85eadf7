// The learning tasks of the simulated nodes: a model as a flat array, true gradients from a node's share of the data,
// and the quality of a model on data that no node has.
//
// All nodes of a run share a workload; each node has a GradientSource of its own. Both keep scratch memory: one thread.
// All draws come from the seeds given.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/sim/learn/sharding.hpp"

namespace gossamer::sim {

/// One node's data.
class GradientSource {
 public:
  struct Batch {
    std::size_t samples;
    double loss;  ///< mean over the batch at x; g is its gradient
  };
  virtual ~GradientSource() = default;
  /// Writes the mean gradient at x over the next mini-batch into g; both have `elements()` elements.
  virtual Batch gradient(std::span<const float> x, std::span<float> g) = 0;
};

struct SourceOptions {
  std::size_t node = 0;
  std::size_t nodes = 1;
  Sharding sharding = {};
  std::size_t batch = 16;  ///< samples in a mini-batch, drawn with replacement from the node's share
  std::uint64_t seed = 1;
};

/// The quality of a model on held-out data.
struct Quality {
  double loss = 0;      ///< mean, in nats for a classifier
  double accuracy = 0;  ///< the share that is predicted rightly; NaN where it has no meaning
};

class Workload {
 public:
  virtual ~Workload() = default;
  [[nodiscard]] virtual std::size_t elements() const = 0;
  /// A model to start from; every node starts from the same one.
  [[nodiscard]] virtual std::vector<float> initial(std::uint64_t seed) const = 0;
  /// Throws UsageError if the data cannot be shared among so many nodes.
  [[nodiscard]] virtual std::unique_ptr<GradientSource> make_source(const SourceOptions& options) const = 0;
  [[nodiscard]] virtual Quality quality(std::span<const float> x) const = 0;
};

/// f_i(x) = h/2 · ‖x − b_i‖², with normal noise of deviation sigma on every element of every gradient.
struct QuadraticOptions {
  std::size_t elements = 256;
  double curvature = 1;  ///< h
  double sigma = 1;
  double spread = 0;  ///< deviation of the b_i, whose mean is 0; used if the data are not shared IID
};

struct WorkloadOptions {
  QuadraticOptions quadratic = {};
  std::string digits_file = {};  ///< empty: the digits.csv.gz of Debian's python3-sklearn
  std::string text_file = {};    ///< empty: the licences of Debian's base-files
  std::size_t hidden = 0;        ///< units of the hidden layer of mlp and text; 0: 64 and 128
};

/// `name` is "quadratic", "logistic" or "mlp" (both on scikit-learn's digits), or "text". Throws UsageError for another
/// name, and for missing or damaged data; the message names the package that has them.
[[nodiscard]] std::unique_ptr<Workload> make_workload(std::string_view name, const WorkloadOptions& options);

// The workloads, one file each; called by make_workload().
[[nodiscard]] std::unique_ptr<Workload> make_quadratic(const QuadraticOptions& options);
/// hidden = 0: logistic regression.
[[nodiscard]] std::unique_ptr<Workload> make_digits(const std::string& file, std::size_t hidden);
[[nodiscard]] std::unique_ptr<Workload> make_text(const std::string& file, std::size_t hidden);

}  // namespace gossamer::sim
