#include "daemon/report/status.hpp"

namespace gossamer::daemon {

nlohmann::json status_answer(const NodeStatus& node) {
  return {{"node", node}};
}
nlohmann::json peers_answer(const std::vector<PeerStatus>& peers) {
  return {{"peers", peers}};
}
nlohmann::json members_answer(const std::vector<ClusterMemberStatus>& members) {
  return {{"members", members}};
}
nlohmann::json jobs_answer(const std::vector<JobStatus>& jobs) {
  return {{"jobs", jobs}};
}

}  // namespace gossamer::daemon
