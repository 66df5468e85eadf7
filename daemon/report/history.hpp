// A record of each job's last ten minutes, so that somebody who opens the page for the first time sees curves.
//
// The status page samples it on the loop's thread every history_period. Invariants: at most max_history_jobs jobs with
// max_history_points each; if there are more jobs, those that were seen last are kept.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "daemon/report/status.hpp"

namespace gossamer::daemon {

inline constexpr std::chrono::milliseconds history_period{2'000};
inline constexpr std::size_t max_history_points = 300;
inline constexpr std::size_t max_history_jobs = 64;

class History {
 public:
  /// `now_s` is in seconds since any fixed moment, and grows.
  void sample(double now_s, std::span<const JobStatus> jobs);

  /// {"period_s": ..., "jobs": {NAME: {"age_s": [...], "clock": [...], ...}}}, the oldest point first; null where
  /// nothing was measured. `age_s` says how long ago each point was.
  [[nodiscard]] nlohmann::json json(double now_s) const;

 private:
  struct Point {
    double at_s = 0;
    double clock = 0;
    double consensus = 0;
    double age_samples = 0;
    double sent_bytes_s = 0;      // NaN at the first point
    double received_bytes_s = 0;  // NaN at the first point
    double exchanges_s = 0;       // NaN at the first point
    double codec_error = 0;       // mean over the exchanges since the point before; NaN if there was none
  };
  struct Curve {
    std::deque<Point> points;
    double last_s = 0;
    JobStatus last;
  };
  std::map<std::string, Curve> jobs_;
};

}  // namespace gossamer::daemon
