// How a node hears the tensors of a job that no process here trains, so that gossamerctl can keep the job here: from
// this node's own clients if it has some, or else from its neighbours, part by part.
//
// Only what was asked for last is remembered. Owned by Node, on the loop's thread.

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/jobs/job_host.hpp"

namespace gossamer::daemon {

class LayoutSearch {
 public:
  explicit LayoutSearch(JobHost& host) : host_(host) {}

  /// A part of the layout: {"layout", "fragment_elements", "count", "first", "tensors": [[name, dtype, role,
  /// [shape]]]}. Until a neighbour has told it: {"asked": how many nodes were asked}; ask again then. {"error"} if the
  /// neighbours run the job with different layouts. `layout`: the hash; 0: any.
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
  std::map<NodeId, LayoutReply> replies_;  // to asked_, of the nodes that were asked
  std::size_t asked_nodes_ = 0;
};

}  // namespace gossamer::daemon
