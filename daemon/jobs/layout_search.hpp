// Asks the neighbours for the tensors of a job that no process here trains, part by part, so that gossamerctl can keep
// the job here. If this node has clients of the job, Node answers from their memory instead.
//
// Only the answers to the last query are remembered. Owned by Node, on the loop's thread.

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/jobs/job_host.hpp"

namespace gossamer::daemon {

class LayoutSearch {
 public:
  explicit LayoutSearch(JobHost& host) : host_(host) {}

  /// Gives a part of the layout: {"layout", "fragment_elements", "count", "first", "tensors": [[name, dtype, role,
  /// [shape]]]}. Until a neighbour has told it, gives {"asked": how many nodes were asked}, and the caller has to ask
  /// again. Gives {"error"} if the neighbours run the job with different layouts. `layout`: the hash; 0: any.
  [[nodiscard]] nlohmann::json ask(const std::string& job, std::uint64_t layout, std::uint32_t first);
  [[nodiscard]] const std::string& asked_job() const { return asked_job_; }
  void heard(const NodeId& from, LayoutReply&& reply);
  [[nodiscard]] static nlohmann::json as_json(const LayoutReply& reply);

 private:
  void send_queries(const LayoutQuery& query);

  JobHost& host_;
  LayoutQuery asked_{};
  std::string asked_job_;
  TimeUs asked_us_ = 0;
  std::map<NodeId, LayoutReply> replies_;  // the answers to asked_
  std::size_t asked_nodes_ = 0;
};

}  // namespace gossamer::daemon
