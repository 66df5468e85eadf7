#include "daemon/system/user_rights.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "peer/keys/certificate.hpp"

namespace gossamer::daemon {
namespace {

/// A longer record of a user or group is not read. Groups with many members have long records.
constexpr std::size_t most_record_bytes = 1u << 20;

struct Entry {
  std::string who;
  std::string jobs;
};

std::string trimmed(std::string_view text) {
  while (text.starts_with(' '))
    text.remove_prefix(1);
  while (text.ends_with(' '))
    text.remove_suffix(1);
  return std::string(text);
}

/// The first colon ends the name, since names of users and groups have none.
Entry entry_of(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  return {trimmed(std::string_view(text).substr(0, colon)),
          trimmed(std::string_view(text).substr(std::min(colon + 1, text.size())))};
}

std::optional<unsigned> number_in(std::string_view text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Looks a name up with getpwnam_r() or getgrnam_r(), which want room for the texts of the record.
template <class Record>
bool look_up(const std::string& name, int (*get)(const char*, Record*, char*, std::size_t, Record**), Record& record) {
  std::vector<char> room(1024);
  for (Record* found = nullptr;;) {
    const int problem = get(name.c_str(), &record, room.data(), room.size(), &found);
    if (problem != ERANGE || room.size() >= most_record_bytes) return found != nullptr;
    room.resize(2 * room.size());
  }
}

std::optional<uid_t> user_named(const std::string& name) {
  if (const auto number = number_in(name)) return number;
  passwd record{};
  return look_up(name, ::getpwnam_r, record) ? std::optional(record.pw_uid) : std::nullopt;
}

std::optional<gid_t> group_named(const std::string& name) {
  if (const auto number = number_in(name)) return number;
  group record{};
  return look_up(name, ::getgrnam_r, record) ? std::optional(record.gr_gid) : std::nullopt;
}

}  // namespace

std::string grant_problem(const std::string& text) {
  const Entry entry = entry_of(text);
  const bool has_jobs = text.find(':') != std::string::npos;
  if (entry.who.empty() || entry.who == "@" || !has_jobs)
    return fmt::format("\"{}\" names no {}; an entry is \"WHO: JOBS\", like \"anna: *\" or \"@vision: vision-*\"", text,
                       has_jobs ? "user" : "jobs");
  const std::string problem = peer::jobs_problem(entry.jobs);
  return problem.empty() ? "" : fmt::format("\"{}\": {}", text, problem);
}

UserRights::UserRights(const std::vector<std::string>& train, const std::vector<std::string>& steer)
    : train_(resolve(train)), steer_(resolve(steer)) {}

std::vector<UserRights::Grant> UserRights::resolve(const std::vector<std::string>& entries) {
  std::vector<Grant> grants;
  for (const std::string& text : entries) {
    const auto& [who, jobs] = entry_of(text);
    Grant grant{.user = {}, .group = {}, .jobs = jobs};
    if (who.starts_with('@')) {
      grant.group = group_named(who.substr(1));
    } else if (who != "*") {
      grant.user = user_named(who);
    }
    if (who == "*" || grant.user || grant.group) {
      grants.push_back(std::move(grant));
    } else {
      unknown_.push_back(who);
    }
  }
  return grants;
}

bool UserRights::allow(const std::vector<Grant>& grants, const Caller& caller, std::string_view job) {
  const auto covers = [&](const Grant& grant) {
    const bool named = grant.group ? std::ranges::find(caller.groups, *grant.group) != caller.groups.end()
                                   : grant.user.value_or(caller.user) == caller.user;
    return named && peer::Rights{.jobs = grant.jobs}.allow_job(job);
  };
  return is_owner(caller.user) || std::ranges::any_of(grants, covers);
}

std::optional<std::string> UserRights::objection_to_training(const Caller& caller, std::string_view job) const {
  if (allow(train_, caller, job)) return std::nullopt;
  return fmt::format(
      "user {} may not train the job {} on this machine: who may is in its gossamer.toml, [rights] train", caller.user,
      job);
}

bool UserRights::may_steer(const Caller& caller, std::string_view job) const {
  return allow(steer_, caller, job);
}

}  // namespace gossamer::daemon
