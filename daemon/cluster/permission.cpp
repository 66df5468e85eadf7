#include "daemon/cluster/permission.hpp"

#include <variant>

namespace gossamer::daemon {
namespace {

/// Whether a node that may only follow may say it: messages that cannot change the model of the node that hears them. A
/// JobInfo cannot, since believed() reduces it.
struct Follower {
  /// The node that answers keeps its own values (ReplicaData::only_gives()). A push would change them.
  bool operator()(const ExchangeRequest& request) const { return !request.pushes; }
  bool operator()(const JobInfo&) const { return true; }
  bool operator()(const ExchangeAck&) const { return true; }
  bool operator()(const ExchangeInquiry&) const { return true; }
  bool operator()(const JobQuery&) const { return true; }
  bool operator()(const LayoutQuery&) const { return true; }
  bool operator()(const PullRequest&) const { return true; }
  bool operator()(const auto&) const { return false; }
};

/// Whether a node that may only keep jobs may say it.
struct Keeper {
  bool operator()(const gossip::AverageNote&) const { return false; }
  bool operator()(const gossip::AverageValues&) const { return false; }
  bool operator()(const auto&) const { return true; }
};

}  // namespace

bool may_say(const peer::Rights& rights, const Message& message, std::string_view job) {
  // Any node may say that it does not run the job: it may have been asked, and the message says nothing else.
  if (const auto* info = std::get_if<JobInfo>(&message); info != nullptr && info->state == ReplicaState::absent)
    return true;
  if (!rights.allow_job(job)) return false;
  switch (rights.role) {
    case peer::NodeRole::follows:
      return std::visit(Follower{}, message);
    case peer::NodeRole::keeps:
      return std::visit(Keeper{}, message);
    case peer::NodeRole::trains:
      return true;
  }
  return false;
}

JobInfo believed(JobInfo info, peer::NodeRole role) {
  if (role == peer::NodeRole::trains) return info;
  info.keeps = true;
  info.logged.clear();
  if (role == peer::NodeRole::keeps) return info;
  info.follows = true;
  info.clock = 0;  // with a clock of 0 nobody takes its model
  info.trainers = 0;
  info.first_trainer = {};
  info.finishing = Finishing::no;
  if (!info.settings.signature) info.settings = {};
  return info;
}

bool is_heard(const peer::Rights& rights, Message& message, std::string_view job) {
  if (!may_say(rights, message, job)) return false;
  if (auto* info = std::get_if<JobInfo>(&message)) *info = believed(std::move(*info), rights.role);
  return true;
}

bool may_set(const JobSettings& present, const JobSettings& heard, const std::optional<peer::Deciders>& deciders,
             std::string_view job, bool has_no_say) {
  if (!deciders || heard <= present) return true;
  // Programs that found a job together each give it the same settings.
  if (!present.signature && heard.version == present.version && heard.values == present.values) return true;
  if (has_no_say && !present.signature) return true;
  return deciders->have_signed(peer::Power::settings, peer::settings_statement(job, heard), heard.signature);
}

}  // namespace gossamer::daemon
