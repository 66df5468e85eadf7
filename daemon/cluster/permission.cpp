#include "daemon/cluster/permission.hpp"

#include <variant>

namespace gossamer::daemon {
namespace {

/// Nothing of this changes the model of who hears it, or what it knows of the job.
struct OnlyAsks {
  bool operator()(const ExchangeRequest& request) const { return request.pushes; }
  bool operator()(const ExchangeAck&) const { return true; }
  bool operator()(const ExchangeInquiry&) const { return true; }
  bool operator()(const JobQuery&) const { return true; }
  bool operator()(const LayoutQuery&) const { return true; }
  bool operator()(const PullRequest&) const { return true; }
  bool operator()(const auto&) const { return false; }
};

}  // namespace

bool may_say(const peer::Rights& rights, const Message& message, std::string_view job) {
  return rights.allow_job(job) && (rights.trains || std::visit(OnlyAsks{}, message));
}

}  // namespace gossamer::daemon
