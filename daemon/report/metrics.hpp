// The metrics that Prometheus collects: one list that names, describes and reads each of them, the text format, and the
// page docs/reference/metrics.md, which is made from the list.
//
// Pure: any thread. Names follow Prometheus' conventions: base units, _total for what only grows. The series of a node
// are bounded: jobs by [limits] jobs, links by max_metric_links, GPUs by gpus::max_gpus. Names are a contract with
// dashboards and alert rules: add, do not rename.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"
#include "daemon/report/status.hpp"

namespace gossamer::daemon {

/// Links that are shown; those that are up come first.
inline constexpr std::size_t max_metric_links = 256;

enum class MetricType : std::uint8_t { gauge, counter, summary, histogram };
[[nodiscard]] const char* type_name(MetricType type);

struct Metric {
  const char* name;
  MetricType type;
  const char* unit;    ///< for people; "" if it is a plain number
  const char* help;    ///< what it is, in a line
  const char* advice;  ///< what to do about it, or with it
};

/// What is read at one moment.
struct Observed {
  NodeStatus node;
  std::vector<PeerStatus> peers;
  std::vector<JobStatus> jobs;
  gpus::GpuReport gpus = {};
};

/// In the order in which they are written: of the node, of each job (label `job_name`, since Prometheus has a `job` of
/// its own), of each link (label `peer`), of each GPU (label `gpu`).
[[nodiscard]] std::vector<Metric> metric_list();

/// The text format, version 0.0.4.
[[nodiscard]] std::string metrics_text(const Observed& observed);
inline constexpr const char* metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";

/// docs/reference/metrics.md, whole.
[[nodiscard]] std::string metrics_document();

}  // namespace gossamer::daemon
