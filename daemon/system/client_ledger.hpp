// The resources of attached clients, in all and by user: whether one more fits, which limits are nearly used up.
//
// The client listener has one for its clients, and the exact averages have one for theirs. All calls come from the
// loop's thread. Invariant: no limit is exceeded if a client is entered only after objection() has found nothing
// against it.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gossamer::daemon {

struct ClientLimits {
  static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t clients = 64;
  std::uint64_t jobs = none;  ///< the ledger only warns of it; the node enforces it, since a job may outlive its client
  std::uint64_t memory_bytes = none;
  /// The limits for each user. Without such a limit, a user that is no owner (is_owner()) may take three quarters of
  /// what all may take, so that no user keeps the others out.
  std::uint64_t clients_per_user = none;
  std::uint64_t jobs_per_user = none;
  std::uint64_t memory_per_user_bytes = none;
  std::uint64_t memory_per_client_bytes = none;
};

/// The operator is warned when more than this share of a limit is in use.
inline constexpr double nearly_used_up = 0.8;

class ClientLedger {
 public:
  /// One attached client.
  struct Entry {
    uid_t user = 0;
    std::uint64_t job = 0;  ///< the hash of the job's name
    std::uint64_t memory_bytes = 0;
  };

  explicit ClientLedger(const ClientLimits& limits) : limits_(limits) {}
  /// Clients that were entered before stay, even if they exceed the new limits.
  void set_limits(const ClientLimits& limits) { limits_ = limits; }

  /// The limit that one more client would exceed, how much of it is used, and what to set; nothing if the client fits.
  [[nodiscard]] std::optional<std::string> objection(const Entry& entry) const;
  /// The same check before the client's memory was read, when its job is not known.
  [[nodiscard]] std::optional<std::string> objection(uid_t user, std::uint64_t memory_bytes) const;
  /// `number` identifies the client.
  void enter(std::uint64_t number, const Entry& entry) { entries_[number] = entry; }
  void leave(std::uint64_t number) { entries_.erase(number); }

  [[nodiscard]] std::uint64_t memory_bytes() const;
  /// The limits that are nearly used up, as "clients: 60 of 64, memory_per_user_mib of user 1000: ..."; empty if none.
  [[nodiscard]] std::string nearly_used() const;

 private:
  struct Use {
    std::uint64_t clients = 0;
    std::uint64_t jobs = 0;
    std::uint64_t memory_bytes = 0;
  };
  [[nodiscard]] ClientLimits limits_for(uid_t user) const;
  /// The use by one user, or by all.
  [[nodiscard]] Use use(std::optional<uid_t> user) const;

  ClientLimits limits_;
  std::map<std::uint64_t, Entry> entries_;  // at most limits_.clients
};

}  // namespace gossamer::daemon
