#include "daemon/cluster/permission.hpp"

#include <variant>

namespace gossamer::daemon {
namespace {

/// True for messages that cannot change the model of the node that hears them. A JobInfo cannot, since as_follower()
/// reduces it.
struct OnlyAsks {
  bool gives_only;
  /// A node that trains answers a follower's request and keeps its own values (ReplicaData::only_gives()). A push would
  /// change them.
  bool operator()(const ExchangeRequest& request) const { return gives_only && !request.pushes; }
  bool operator()(const JobInfo&) const { return true; }
  bool operator()(const ExchangeAck&) const { return true; }
  bool operator()(const ExchangeInquiry&) const { return true; }
  bool operator()(const JobQuery&) const { return true; }
  bool operator()(const LayoutQuery&) const { return true; }
  bool operator()(const PullRequest&) const { return true; }
  bool operator()(const auto&) const { return false; }
};

}  // namespace

bool may_say(const peer::Rights& rights, const Message& message, std::string_view job, bool gives_only) {
  // Any node may say that it does not run the job: it may have been asked, and the message says nothing else.
  if (const auto* info = std::get_if<JobInfo>(&message); info != nullptr && info->state == ReplicaState::absent)
    return true;
  return rights.allow_job(job) && (rights.trains || std::visit(OnlyAsks{gives_only}, message));
}

JobInfo as_follower(JobInfo info) {
  info.keeps = true;
  info.clock = 0;  // with a clock of 0 nobody takes its model
  info.trainers = 0;
  info.first_trainer = {};
  info.finishing = Finishing::no;
  info.settings = {};
  info.logged.clear();
  return info;
}

bool may_set(const JobSettings& present, const JobSettings& heard, const std::optional<peer::Deciders>& deciders,
             std::string_view job, bool joins) {
  if (!deciders || heard <= present) return true;
  // Programs that found a job together each give it the same settings.
  if (!present.signature && heard.version == present.version && heard.values == present.values) return true;
  if (joins && !present.signature) return true;
  return deciders->have_signed(peer::Power::settings, peer::settings_statement(job, heard), heard.signature);
}

}  // namespace gossamer::daemon
