// The metrics that Prometheus collects: one list that names, describes and reads each of them, the text format, and the
// page docs/reference/metrics.md, which is made from the list.
//
// Pure functions, for any thread. Names follow Prometheus' conventions: base units, and _total for counters. The number
// of series is bounded: jobs by [limits] jobs, links by max_metric_links, GPUs by gpus::max_gpus. Names are a contract
// with dashboards and alert rules: add names, and never rename one.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"
#include "daemon/report/status.hpp"

namespace gossamer::daemon {

/// This many links are shown, those that are up first.
inline constexpr std::size_t max_metric_links = 256;

enum class MetricType : std::uint8_t { gauge, counter, summary, histogram };
[[nodiscard]] const char* type_name(MetricType type);

struct Metric {
  const char* name;
  MetricType type;
  const char* unit;    ///< for people; "" for a plain number
  const char* help;    ///< describes the metric in one line
  const char* advice;  ///< what to do about it, or with it
};

/// All that the metrics are read from, at one moment.
struct Observed {
  NodeStatus node;
  std::vector<PeerStatus> peers;
  std::vector<JobStatus> jobs;
  gpus::GpuReport gpus = {};
};

/// The metrics in the order in which they are written: the node's, each job's (label `job_name`, because Prometheus has
/// a `job` of its own), each link's (label `peer`), each GPU's (label `gpu`).
[[nodiscard]] std::vector<Metric> metric_list();

/// The answer in the text format, version 0.0.4.
[[nodiscard]] std::string metrics_text(const Observed& observed);
inline constexpr const char* metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";

/// The whole of docs/reference/metrics.md.
[[nodiscard]] std::string metrics_document();

}  // namespace gossamer::daemon
