// The metrics: names by the conventions, the text format, bounds, the document; and the history behind the curves.

#include "daemon/report/metrics.hpp"

#include <cmath>
#include <set>

#include "daemon/report/history.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

namespace {

JobStatus job(const std::string& name, std::uint64_t exchanges = 0) {
  JobStatus status;
  status.job = name;
  status.state = "running";
  status.codec = "q8";
  status.exchanges = exchanges;
  status.payload_bytes_sent = 1'000 * exchanges;
  status.codec_error_sum = 0.25 * static_cast<double>(exchanges);
  status.ages = {3, 0, 2, 0, 0, 0, 1};
  status.age_sum = 90.5;
  return status;
}

PeerStatus peer(const std::string& node, bool up) {
  PeerStatus status;
  status.node = node;
  status.name = "a \"b\"\\";
  status.up = up;
  status.round_trip_ms = 1.5;
  return status;
}

}  // namespace

TEST_CASE("the checked-in page of metrics is the generated one") {
  // gossamerd --print-metrics > docs/reference/metrics.md
  CHECK(test::read_file(GOSSAMER_METRICS_PAGE) == metrics_document());
}

TEST_CASE("metrics are named by the conventions, and each says what to do") {
  std::set<std::string> names;
  for (const Metric& metric : metric_list()) {
    const std::string name = metric.name;
    CAPTURE(name);
    CHECK(names.insert(name).second);
    CHECK(name.starts_with("gossamer_"));
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos);
    CHECK((metric.type == MetricType::counter) == name.ends_with("_total"));
    const std::string unit = metric.unit;
    if (unit == "bytes") CHECK_THAT(name, Contains("_bytes"));
    if (unit == "seconds") CHECK_THAT(name, Contains("_seconds"));
    for (const std::string text : {metric.help, metric.advice}) {
      CHECK(text.ends_with('.'));
      CHECK(text.find_first_of("|\n\\") == std::string::npos);  // the text stands in a table, and in the text format
    }
  }
}

TEST_CASE("the text format has each metric with its description, labels escaped") {
  Observed observed;
  observed.node.state = "drained";
  observed.node.version = "9.9";
  observed.node.limits_near = "clients";
  observed.node.findings.resize(2);
  observed.node.findings[0].rule = observed.node.findings[1].rule = "drift";
  observed.jobs = {job("a", 6), job("b")};
  observed.peers = {peer("11", true), peer("", false)};
  observed.jobs[1].consensus = std::nan("");
  // The GPU has every value that a driver may tell. Missing values are left out of the text.
  gossamer::gpus::Gpu gpu;
  gpu.memory_total_bytes = gpu.memory_used_bytes = gpu.ecc_corrected = gpu.ecc_uncorrected = gpu.rows_remapped = 1;
  gpu.utilisation_ratio = gpu.temperature_c = gpu.power_w = gpu.power_limit_w = 1;
  observed.gpus.gpus = {gpu};
  observed.peers[0].address = "not \xff UTF-8";
  const std::string text = metrics_text(observed);
  for (const Metric& metric : metric_list()) {
    CHECK_THAT(text, Contains(std::string("# HELP ") + metric.name + " ") &&
                         Contains(std::string("# TYPE ") + metric.name + " " + type_name(metric.type) + "\n"));
  }
  for (const char* line :
       {"gossamer_build_info{version=\"9.9\",node=\"\",name=\"\"} 1\n", "gossamer_node_state{state=\"drained\"} 1\n",
        "gossamer_node_state{state=\"running\"} 0\n", "\ngossamer_limits_near 1\n",
        "gossamer_findings{rule=\"drift\"} 2\n", "gossamer_findings{rule=\"apart\"} 0\n",
        "gossamer_job_sent_payload_bytes_total{job_name=\"a\"} 6000\n",
        "gossamer_job_consensus_distance_ratio{job_name=\"b\"} NaN\n",
        "gossamer_job_exchange_age_intervals_bucket{job_name=\"a\",le=\"1\"} 3\n",
        "gossamer_job_exchange_age_intervals_bucket{job_name=\"a\",le=\"4\"} 5\n",
        "gossamer_job_exchange_age_intervals_bucket{job_name=\"a\",le=\"+Inf\"} 6\n",
        "gossamer_job_exchange_age_intervals_sum{job_name=\"a\"} 90.5\n",
        "gossamer_job_exchange_age_intervals_count{job_name=\"a\"} 6\n",
        "gossamer_job_codec_error_ratio_sum{job_name=\"a\"} 1.5\n",
        "gossamer_link_info{peer=\"11\",name=\"a \\\"b\\\"\\\\\",address=\"?\"} 1\n",
        "gossamer_link_round_trip_seconds{peer=\"11\"} 0.0015\n", "\ngossamer_links_left_out 0\n"}) {
    CHECK_THAT(text, Contains(line));
  }
  CHECK_THAT(text, !Contains("peer=\"\""));
}

TEST_CASE("the number of series is bounded, and links that are up are not the ones left out") {
  Observed observed;
  for (std::size_t i = 0; i < max_metric_links + 10; ++i)
    observed.peers.push_back(peer(std::to_string(i), i >= 20));
  const std::string text = metrics_text(observed);
  std::size_t shown = 0;
  for (std::size_t at = 0; (at = text.find("\ngossamer_link_up{", at)) != std::string::npos; ++at)
    ++shown;
  CHECK(shown == max_metric_links);
  CHECK_THAT(text, Contains("\ngossamer_links_left_out 10\n") && Contains("gossamer_link_up{peer=\"265\"} 1\n") &&
                       Contains("gossamer_link_up{peer=\"9\"} 0\n") && !Contains("gossamer_link_up{peer=\"10\"}"));
}

TEST_CASE("the history has rates and means between its points, and null where nothing is known") {
  History history;
  history.sample(10, std::vector{job("a", 0)});
  history.sample(12, std::vector{job("a", 8)});
  history.sample(14, std::vector{job("a", 8)});
  history.sample(16, std::vector{job("a", 2)});  // its replica has begun anew
  const nlohmann::json a = nlohmann::json::parse(history.json(17).dump()).at("jobs").at("a");
  CHECK(a.at("age_s") == nlohmann::json({7, 5, 3, 1}));
  CHECK(a.at("sent_bytes_s") == nlohmann::json({nullptr, 4'000, 0, nullptr}));
  CHECK(a.at("exchanges_s") == nlohmann::json({nullptr, 4, 0, nullptr}));
  CHECK(a.at("codec_error") == nlohmann::json({nullptr, 0.25, nullptr, nullptr}));
}

TEST_CASE("the history is bounded in time and in jobs, and keeps those seen last") {
  History history;
  for (std::size_t i = 0; i < max_history_points + 5; ++i)
    history.sample(static_cast<double>(i), std::vector{job("long")});
  for (std::size_t i = 0; i < max_history_jobs; ++i)
    history.sample(1'000 + static_cast<double>(i), std::vector{job("job-" + std::to_string(i))});
  const nlohmann::json jobs = history.json(2'000).at("jobs");
  CHECK(jobs.size() == max_history_jobs);
  CHECK_FALSE(jobs.contains("long"));
  CHECK(jobs.contains("job-0"));
  History one;
  for (std::size_t i = 0; i < max_history_points + 5; ++i)
    one.sample(static_cast<double>(i), std::vector{job("long")});
  CHECK(one.json(0).at("jobs").at("long").at("clock").size() == max_history_points);
}
