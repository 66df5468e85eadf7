// A host for jobs that a test drives. It has no neighbours unless the test says so, and a log that nobody reads.

#pragma once

#include <spdlog/sinks/null_sink.h>

#include "daemon/jobs/job.hpp"

namespace gossamer::daemon::test {

class PlayedHost : public JobHost {
 public:
  [[nodiscard]] NodeId id() const override { return {}; }
  bool send(const NodeId&, const Message&) override { return false; }
  [[nodiscard]] std::vector<NodeId> neighbours() const override { return {}; }
  [[nodiscard]] std::map<NodeId, TimeUs> round_trips_us() const override { return {}; }
  [[nodiscard]] double capacity_bytes_s() const override { return 0; }
  [[nodiscard]] gossip::LinkLoad link_load(const NodeId&) const override { return {}; }
  [[nodiscard]] spdlog::logger& log() override { return log_; }

 private:
  spdlog::logger log_{"none", std::make_shared<spdlog::sinks::null_sink_mt>()};
};

}  // namespace gossamer::daemon::test
