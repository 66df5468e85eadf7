#include "daemon/cluster/job_rights.hpp"

#include <fmt/format.h>

#include <utility>

namespace gossamer::daemon {

std::optional<std::string> JobRights::objection_to(std::string_view job, bool keeps) const {
  const peer::Rights rights = overlay_.rights_of(overlay_.node());
  if (rights.allow_job(job) && (keeps || rights.role == peer::NodeRole::trains)) return std::nullopt;
  if (rights.jobs.empty())
    return "this cluster asks for certificates, and this node has none that counts: an operator has to approve it "
           "(gossamerctl approve)";
  return fmt::format("this node's certificate does not let it {} the job {}: it may {} {}", keeps ? "keep" : "train",
                     job, peer::word_of(rights.role), rights.jobs);
}

bool JobRights::only_follows() const {
  return overlay_.rights_of(overlay_.node()).role == peer::NodeRole::follows;
}

bool JobRights::may_train(const NodeId& node, std::string_view job) const {
  const peer::Rights rights = overlay_.rights_of(node);
  return rights.role == peer::NodeRole::trains && rights.allow_job(job);
}

bool JobRights::may_give(const NodeId& node, std::string_view job) const {
  const peer::Rights rights = overlay_.rights_of(node);
  return rights.role != peer::NodeRole::follows && rights.allow_job(job);
}

bool JobRights::admit(const NodeId& from, Message& message, const JobHere& job) {
  const peer::Rights rights = overlay_.rights_of(from);
  if (!is_heard(rights, message, job.name)) {
    note_refused(from, fmt::format("the job {} what its certificate does not allow", job.name));
    return false;
  }
  if (auto* info = std::get_if<JobInfo>(&message)) {
    if (!overlay_.deciders()) {
      info->settings.signature.reset();  // without an authority nobody here can check it
    } else if (!may_set(job.settings, info->settings, overlay_.deciders(), job.name, job.joins() || only_follows())) {
      info->settings = job.settings;
      note_refused(from, fmt::format("settings of the job {} that nobody who may has signed", job.name));
    }
  }
  return true;
}

void JobRights::note_refused(const NodeId& from, const std::string& what) {
  ++refused_;
  overlay_.note_refused(from, what);
}

bool JobRights::own_have_changed() {
  peer::Rights now = overlay_.rights_of(overlay_.node());
  return std::exchange(own_, now) != now;
}

}  // namespace gossamer::daemon
