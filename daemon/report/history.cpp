#include "daemon/report/history.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gossamer::daemon {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

/// The growth of a counter that starts again at zero with each new replica.
double growth(std::uint64_t now, std::uint64_t before) {
  return now < before ? unknown : static_cast<double>(now - before);
}

}  // namespace

void History::sample(double now_s, std::span<const JobStatus> jobs) {
  for (const JobStatus& job : jobs) {
    const auto [position, is_new] = jobs_.try_emplace(job.job);
    Curve& curve = position->second;
    const double passed_s = is_new ? unknown : now_s - curve.last_s;
    const double exchanges = growth(job.exchanges, curve.last.exchanges);
    curve.points.push_back(
        {.at_s = now_s,
         .clock = static_cast<double>(job.clock),
         .consensus = job.consensus,
         .age_samples = job.age_samples,
         .sent_bytes_s = growth(job.payload_bytes_sent, curve.last.payload_bytes_sent) / passed_s,
         .received_bytes_s = growth(job.payload_bytes_received, curve.last.payload_bytes_received) / passed_s,
         .exchanges_s = exchanges / passed_s,
         .codec_error = exchanges > 0 ? (job.codec_error_sum - curve.last.codec_error_sum) / exchanges : unknown});
    if (curve.points.size() > max_history_points) curve.points.pop_front();
    curve.last = job;
    curve.last_s = now_s;
  }
  while (jobs_.size() > max_history_jobs) {
    jobs_.erase(std::ranges::min_element(jobs_, {}, [](const auto& item) { return item.second.last_s; }));
  }
}

nlohmann::json History::json(double now_s) const {
  nlohmann::json jobs = nlohmann::json::object();
  for (const auto& [name, curve] : jobs_) {
    nlohmann::json& job = jobs[name];
    // JSON has no NaN: the library writes null.
    const auto put = [&](const char* key, double Point::*value) {
      nlohmann::json& values = job[key] = nlohmann::json::array();
      for (const Point& point : curve.points)
        values.push_back(point.*value);
    };
    put("clock", &Point::clock);
    put("consensus", &Point::consensus);
    put("age_samples", &Point::age_samples);
    put("sent_bytes_s", &Point::sent_bytes_s);
    put("received_bytes_s", &Point::received_bytes_s);
    put("exchanges_s", &Point::exchanges_s);
    put("codec_error", &Point::codec_error);
    nlohmann::json& ages = job["age_s"] = nlohmann::json::array();
    for (const Point& point : curve.points)
      ages.push_back(now_s - point.at_s);
  }
  return {{"period_s", std::chrono::duration<double>(history_period).count()}, {"jobs", std::move(jobs)}};
}

}  // namespace gossamer::daemon
