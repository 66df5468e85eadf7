// What `gossamerctl explain` makes of two looks at a daemon, some seconds apart: why a node is behind, slow or silent,
// by what was measured, and what to do about it.
//
// Pure: answers in, findings out. Who asks and waits: explain_tool.cpp.

#pragma once

#include <expected>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/ctl/finding.hpp"

namespace gossamer::ctl {

/// The daemon's answers to "status", "peers", "members" and "jobs".
struct Look {
  double at_s = 0;
  nlohmann::json node, peers, members, jobs;
};

/// The id of the one node that is called so, or whose id begins so; this node's for "". An error says which there are.
[[nodiscard]] std::expected<std::string, std::string> find_node(const Look& look, const std::string& name);

/// About another node, as this one sees it, or about this node. `later` is of the same daemon; throws json's exceptions
/// if the answers are not a daemon's.
[[nodiscard]] std::vector<Finding> explain(const Look& earlier, const Look& later, const std::string& id);

}  // namespace gossamer::ctl
