#include "tools/sim/learn/experiment.hpp"

#include <algorithm>
#include <limits>

#include "gossip/check.hpp"

namespace gossamer::sim {

double stationary_loss(const LearningRun& run) {
  const std::size_t begin = run.records.size() / 3;
  double sum = 0;
  for (std::size_t n = begin; n < run.records.size(); ++n)
    sum += run.records[n].loss;
  return sum / static_cast<double>(run.records.size() - begin);
}

std::vector<float> mean_of(std::span<const std::span<const float>> models) {
  GOSSAMER_CHECK(!models.empty());
  const std::size_t elements = models.front().size();
  std::vector<double> sum(elements);
  for (const auto model : models) {
    for (std::size_t e = 0; e < elements; ++e)
      sum[e] += model[e];
  }
  std::vector<float> mean(elements);
  for (std::size_t e = 0; e < elements; ++e)
    mean[e] = static_cast<float>(sum[e] / static_cast<double>(models.size()));
  return mean;
}

Record evaluate(const Workload& workload, std::span<const std::span<const float>> models) {
  const std::vector<float> mean = mean_of(models);
  const std::size_t elements = mean.size();
  double square = 0;
  for (const auto model : models) {
    for (std::size_t e = 0; e < elements; ++e)
      square += static_cast<double>(model[e] - mean[e]) * (model[e] - mean[e]);
  }
  const Quality quality = workload.quality(mean);
  return {.loss = quality.loss,
          .accuracy = quality.accuracy,
          .consensus = std::sqrt(square / static_cast<double>(elements * models.size()))};
}

void evaluate_nodes(const Workload& workload, std::span<const std::span<const float>> models, LearningRun& run) {
  run.worst_accuracy = std::numeric_limits<double>::infinity();
  run.worst_loss = 0;
  for (const auto model : models) {
    const Quality quality = workload.quality(model);
    run.worst_accuracy = std::min(run.worst_accuracy, quality.accuracy);
    run.worst_loss = std::max(run.worst_loss, quality.loss);
  }
}

std::vector<Trainer> make_trainers(const Workload& workload, const Experiment& experiment) {
  std::vector<Trainer> trainers;
  for (std::size_t node = 0; node < experiment.nodes; ++node) {
    trainers.emplace_back(experiment.trainer,
                          workload.make_source({.node = node,
                                                .nodes = experiment.nodes,
                                                .sharding = experiment.sharding,
                                                .batch = experiment.batch,
                                                .seed = experiment.seed}),
                          workload.elements());
  }
  return trainers;
}

}  // namespace gossamer::sim
