// The findings of `gossamerctl explain` from two looks at a daemon, some seconds apart: why a node is behind, slow or
// silent, by measured figures, and what to do about it.
//
// Pure: answers go in, findings come out. explain_tool.cpp asks and waits.

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

/// The id of the only node that has this name, or an id that begins with it. "" means this node. An error lists the
/// nodes.
[[nodiscard]] std::expected<std::string, std::string> find_node(const Look& look, const std::string& name);

/// Findings about another node as this one sees it, or about this node. `later` is from the same daemon. Throws json's
/// exceptions if the answers are not a daemon's.
[[nodiscard]] std::vector<Finding> explain(const Look& earlier, const Look& later, const std::string& id);

}  // namespace gossamer::ctl
