#include "daemon/jobs/layout_search.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/clients/client_memory.hpp"

namespace gossamer::daemon {

namespace {

/// After this time a query without an answer is sent again, and the answers that have come suffice.
constexpr TimeUs patience_us = 1 * us_per_s;

}  // namespace

nlohmann::json LayoutSearch::as_json(const LayoutReply& reply) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const LayoutTensor& tensor : reply.tensors)
    tensors.push_back({tensor.name, tensor.dtype, tensor.role, tensor.shape});
  return {{"layout", fmt::format("{:016x}", reply.job.layout_hash)},
          {"fragment_elements", reply.fragment_elements},
          {"count", reply.tensor_count},
          {"first", reply.first_tensor},
          {"tensors", std::move(tensors)}};
}

std::string_view LayoutSearch::asked_job(std::uint64_t name_hash) const {
  const auto found = searches_.find(name_hash);
  return found == searches_.end() ? std::string_view() : found->second.job;
}

LayoutSearch::Search& LayoutSearch::search_for(const std::string& job) {
  const std::uint64_t name_hash = job_name_hash(job);
  if (searches_.size() == max_searches && !searches_.contains(name_hash))
    searches_.erase(std::ranges::min_element(searches_, {}, [](const auto& item) { return item.second.asked_us; }));
  return searches_.try_emplace(name_hash, Search{.job = job}).first->second;
}

nlohmann::json LayoutSearch::ask(const std::string& job, std::uint64_t layout, std::uint32_t first) {
  Search& search = search_for(job);
  const LayoutQuery query{.job = {job_name_hash(job), layout}, .first_tensor = first};
  const bool same = query.job == search.query.job && query.first_tensor == search.query.first_tensor;
  const bool waited = host_.now_us() - search.asked_us >= patience_us;
  const LayoutReply* told = nullptr;
  const LayoutReply* another = nullptr;
  if (same) {
    for (const auto& [node, reply] : search.replies) {
      if (reply.tensors.empty()) continue;
      if (told == nullptr) told = &reply;
      if (reply.job != told->job) another = &reply;
    }
  }
  if (another != nullptr) {
    return {{"error", fmt::format("the nodes in reach run job {} with different models (layouts {:016x} and {:016x}): "
                                  "they are two jobs under one name; give one of them another name",
                                  job, told->job.layout_hash, another->job.layout_hash)}};
  }
  if (told != nullptr && (layout != 0 || waited || search.replies.size() == search.nodes)) return as_json(*told);
  if (!same || waited) send_queries(search, query);
  return {{"asked", search.nodes}};
}

void LayoutSearch::send_queries(Search& search, const LayoutQuery& query) {
  // The parts after the first come from a node that has told the first.
  const auto teller = std::ranges::find_if(
      search.replies, [&](const auto& item) { return item.second.job == query.job && !item.second.tensors.empty(); });
  const bool goes_on = teller != search.replies.end() && query.first_tensor > 0;
  std::vector<NodeId> nodes = goes_on ? std::vector{teller->first} : host_.neighbours();
  search.query = query;
  search.asked_us = host_.now_us();
  search.replies.clear();
  std::erase_if(nodes, [&](const NodeId& node) { return !host_.send(node, query); });
  search.nodes = nodes.size();
}

void LayoutSearch::heard(const NodeId& from, LayoutReply&& reply) {
  const auto found = searches_.find(reply.job.name_hash);
  if (found == searches_.end()) return;
  Search& search = found->second;
  const LayoutQuery& query = search.query;
  const bool fits = reply.first_tensor == query.first_tensor && (query.job.layout_hash == 0 || reply.job == query.job);
  if (fits && (search.replies.size() < search.nodes || search.replies.contains(from)))
    search.replies[from] = std::move(reply);
}

}  // namespace gossamer::daemon
