// The sums of client_ledger.hpp. There are few clients, so they are added up when asked for.

#include "daemon/system/client_ledger.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "daemon/system/accepting.hpp"

namespace gossamer::daemon {

namespace {

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{} MiB", (bytes + (1u << 20) - 1) >> 20);
}

}  // namespace

ClientLimits ClientLedger::limits_for(uid_t user) const {
  ClientLimits limits = limits_;
  if (is_owner(user)) return limits;
  const auto bound = [](std::uint64_t& for_user, std::uint64_t for_all) {
    if (for_user == ClientLimits::none && for_all != ClientLimits::none) for_user = part_for_others(for_all);
  };
  bound(limits.clients_per_user, limits.clients);
  bound(limits.jobs_per_user, limits.jobs);
  bound(limits.memory_per_user_bytes, limits.memory_bytes);
  return limits;
}

ClientLedger::Use ClientLedger::use(std::optional<uid_t> user) const {
  Use use;
  std::set<std::uint64_t> jobs;
  for (const auto& [number, entry] : entries_) {
    if (user && entry.user != *user) continue;
    ++use.clients;
    use.memory_bytes += entry.memory_bytes;
    jobs.insert(entry.job);
  }
  use.jobs = jobs.size();
  return use;
}

std::uint64_t ClientLedger::memory_bytes() const {
  return use(std::nullopt).memory_bytes;
}

std::optional<std::string> ClientLedger::objection(uid_t user, std::uint64_t memory_bytes) const {
  const ClientLimits limits = limits_for(user);
  const Use all = use(std::nullopt);
  const Use own = use(user);
  if (all.clients >= limits.clients)
    return fmt::format(
        "{} clients are attached, which is this daemon's limit: raise [limits] clients in its "
        "configuration",
        all.clients);
  if (own.clients >= limits.clients_per_user)
    return fmt::format(
        "{} clients of user {} are attached, which is the limit for one user: raise [limits] "
        "clients_per_user in the daemon's configuration",
        own.clients, user);
  const struct {
    std::uint64_t used, limit;
    const char* whose;
    const char* key;
  } memory[] = {
      {0, limits.memory_per_client_bytes, "one client", "memory_per_client_mib"},
      {own.memory_bytes, limits.memory_per_user_bytes, "one user", "memory_per_user_mib"},
      {all.memory_bytes, limits.memory_bytes, "all clients", "memory_mib"},
  };
  for (const auto& [used, limit, whose, key] : memory) {
    if (memory_bytes > limit || used > limit - memory_bytes)
      return fmt::format(
          "{} are needed; {} of the limit for {}, {}, are used: raise [limits] {} in the daemon's "
          "configuration",
          mebibytes(memory_bytes), mebibytes(used), whose, mebibytes(limit), key);
  }
  return std::nullopt;
}

std::optional<std::string> ClientLedger::objection(const Entry& entry) const {
  if (auto objection = this->objection(entry.user, entry.memory_bytes)) return objection;
  for (const auto& [number, other] : entries_)
    if (other.user == entry.user && other.job == entry.job) return std::nullopt;  // another client of the same job
  const std::uint64_t jobs = use(entry.user).jobs;
  const ClientLimits limits = limits_for(entry.user);
  if (jobs < limits.jobs_per_user) return std::nullopt;
  return fmt::format(
      "user {} has {} jobs here, which is the limit for one user: raise [limits] jobs_per_user in the "
      "daemon's configuration",
      entry.user, jobs);
}

std::string ClientLedger::nearly_used() const {
  std::vector<std::string> lines;
  const auto look = [&](const std::string& name, std::uint64_t used, std::uint64_t limit, bool is_memory) {
    if (limit == ClientLimits::none || static_cast<double>(used) < nearly_used_up * static_cast<double>(limit)) return;
    lines.push_back(is_memory ? fmt::format("{}: {} of {}", name, mebibytes(used), mebibytes(limit))
                              : fmt::format("{}: {} of {}", name, used, limit));
  };
  const Use all = use(std::nullopt);
  look("clients", all.clients, limits_.clients, false);
  look("jobs", all.jobs, limits_.jobs, false);
  look("memory_mib", all.memory_bytes, limits_.memory_bytes, true);
  std::set<uid_t> users;
  for (const auto& [number, entry] : entries_)
    users.insert(entry.user);
  for (const uid_t user : users) {
    const Use own = use(user);
    const ClientLimits limits = limits_for(user);
    look(fmt::format("clients_per_user, user {}", user), own.clients, limits.clients_per_user, false);
    look(fmt::format("jobs_per_user, user {}", user), own.jobs, limits.jobs_per_user, false);
    look(fmt::format("memory_per_user_mib, user {}", user), own.memory_bytes, limits.memory_per_user_bytes, true);
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace gossamer::daemon
