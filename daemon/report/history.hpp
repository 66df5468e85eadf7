// What each job did in the last ten minutes, so that curves are there when somebody looks for the first time.
//
// Fed by the status page on the loop's thread, once a history_period; reads only what it is given. Invariants: at most
// max_history_jobs jobs with max_history_points each; of more jobs, those that were seen last are kept.

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
  /// `now_s`: seconds since any fixed moment, growing.
  void sample(double now_s, std::span<const JobStatus> jobs);

  /// {"period_s": ..., "jobs": {NAME: {"age_s": [...], "clock": [...], ...}}}, the oldest first; null where nothing was
  /// measured. `age_s` is how long ago each was.
  [[nodiscard]] nlohmann::json json(double now_s) const;

 private:
  struct Point {
    double at_s = 0;
    double clock = 0;
    double consensus = 0;
    double age_samples = 0;
    double sent_bytes_s = 0;      // NaN for the first
    double received_bytes_s = 0;  // likewise
    double exchanges_s = 0;       // likewise
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
