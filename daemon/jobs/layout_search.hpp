// Asks the neighbours for the tensors of a job that no process here trains, part by part, so that gossamerctl can keep
// the job here. If this node has clients of the job, Node answers from their memory instead.
//
// Of each job the answers to the last query are remembered, for the max_searches jobs that were asked for last. Owned
// by Node, on the loop's thread.

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "daemon/jobs/job_host.hpp"

namespace gossamer::daemon {

class LayoutSearch {
 public:
  explicit LayoutSearch(JobHost& host) : host_(host) {}

  /// Gives a part of the layout: {"layout", "fragment_elements", "count", "first", "tensors": [[name, dtype, role,
  /// [shape]]]}. Until a neighbour has told it, gives {"asked": how many nodes were asked}, and the caller has to ask
  /// again. Gives {"error"} if the neighbours run the job with different layouts. `layout`: the hash; 0: any.
  [[nodiscard]] nlohmann::json ask(const std::string& job, std::uint64_t layout, std::uint32_t first);
  /// The name of the job that is searched for; empty: none with this hash is.
  [[nodiscard]] std::string_view asked_job(std::uint64_t name_hash) const;
  void heard(const NodeId& from, LayoutReply&& reply);
  [[nodiscard]] static nlohmann::json as_json(const LayoutReply& reply);

 private:
  static constexpr std::size_t max_searches = 64;
  struct Search {
    std::string job;
    LayoutQuery query{};
    TimeUs asked_us = 0;
    std::map<NodeId, LayoutReply> replies = {};  ///< the answers to `query`
    std::size_t nodes = 0;                       ///< how many were asked
  };

  [[nodiscard]] Search& search_for(const std::string& job);
  void send_queries(Search& search, const LayoutQuery& query);

  JobHost& host_;
  std::map<std::uint64_t, Search> searches_;  // by the hash of the job's name; at most max_searches
};

}  // namespace gossamer::daemon
