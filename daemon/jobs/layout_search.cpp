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

nlohmann::json LayoutSearch::ask(const std::string& job, std::uint64_t layout, std::uint32_t first) {
  asked_job_ = job;
  const LayoutQuery query{.job = {job_name_hash(job), layout}, .first_tensor = first};
  const bool same = query.job == asked_.job && query.first_tensor == asked_.first_tensor;
  const bool waited = host_.now_us() - asked_us_ >= patience_us;
  const LayoutReply* told = nullptr;
  const LayoutReply* another = nullptr;
  if (same) {
    for (const auto& [node, reply] : replies_) {
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
  if (told != nullptr && (layout != 0 || waited || replies_.size() == asked_nodes_)) return as_json(*told);
  if (!same || waited) send_queries(query);
  return {{"asked", asked_nodes_}};
}

void LayoutSearch::send_queries(const LayoutQuery& query) {
  // The parts after the first come from a node that has told the first.
  const auto teller = std::ranges::find_if(
      replies_, [&](const auto& item) { return item.second.job == query.job && !item.second.tensors.empty(); });
  const bool goes_on = teller != replies_.end() && query.first_tensor > 0;
  std::vector<NodeId> nodes = goes_on ? std::vector{teller->first} : host_.neighbours();
  asked_ = query;
  asked_us_ = host_.now_us();
  replies_.clear();
  std::erase_if(nodes, [&](const NodeId& node) { return !host_.send(node, query); });
  asked_nodes_ = nodes.size();
}

void LayoutSearch::heard(const NodeId& from, LayoutReply&& reply) {
  const bool fits = reply.job.name_hash == asked_.job.name_hash && reply.first_tensor == asked_.first_tensor &&
                    (asked_.job.layout_hash == 0 || reply.job == asked_.job);
  if (fits && (replies_.size() < asked_nodes_ || replies_.contains(from))) replies_[from] = std::move(reply);
}

}  // namespace gossamer::daemon
