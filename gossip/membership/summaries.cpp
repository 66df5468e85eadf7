
#include "gossip/membership/summaries.hpp"

#include <algorithm>
#include <tuple>

namespace gossamer::gossip {
namespace {

/// Compares the lives of a node first, then the numbers within a life.
bool is_newer(const NodeSummary& a, const NodeSummary& b) {
  return std::tie(a.incarnation, a.number) > std::tie(b.incarnation, b.number);
}

}  // namespace

void SummaryTable::hear(const Summaries& said, TimeUs now_us) {
  for (const NodeSummary& summary : said.nodes) {
    const TimeUs age_us = TimeUs{summary.age_ms} * us_per_ms;
    if (summary.node == self_ || age_us >= summary_lifetime_us) continue;
    const auto known = heard_.find(summary.node);
    if (known != heard_.end()) {
      if (is_newer(summary, known->second.summary)) known->second = {summary, now_us - age_us};
      continue;
    }
    if (heard_.size() >= max_kept_summaries) {
      heard_.erase(std::ranges::min_element(heard_, {}, [](const auto& item) { return item.second.made_us; }));
    }
    heard_.emplace(summary.node, Heard{summary, now_us - age_us});
  }
}

void SummaryTable::forget_old(TimeUs now_us) {
  std::erase_if(heard_, [&](const auto& item) { return now_us - item.second.made_us >= summary_lifetime_us; });
}

Summaries SummaryTable::say(NodeSummary own, TimeUs now_us, Random& random) {
  forget_old(now_us);
  own.node = self_;
  own.number = ++number_;
  own.age_ms = 0;
  std::vector<NodeSummary> known = others(now_us);
  Summaries said;
  said.nodes.push_back(std::move(own));
  // As many as fit beside the node's own summary.
  std::ranges::move(random.draw(known, max_summaries - 1), std::back_inserter(said.nodes));
  return said;
}

std::vector<NodeSummary> SummaryTable::others(TimeUs now_us) const {
  std::vector<NodeSummary> summaries;
  for (const auto& [node, heard] : heard_) {
    const TimeUs age_us = now_us - heard.made_us;
    if (age_us >= summary_lifetime_us) continue;
    summaries.push_back(heard.summary);
    summaries.back().age_ms = static_cast<std::uint32_t>(std::max<TimeUs>(age_us, 0) / us_per_ms);
  }
  return summaries;
}

}  // namespace gossamer::gossip
