// The end of a job at this node: what its programs have asked for, how far the end agreement is, and who saves.
//
// Several clients finish as one. When all have stopped training and hold the node's copy, the replica finishes
// (gossip/replica/finishing.hpp). A quarantined client that has been told so is left out: the others do not wait for
// it. Owned by Job, on the loop's thread.

#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/jobs/job_client.hpp"
#include "gossip/group/group.hpp"

namespace gossamer::daemon {

class JobEnding {
 public:
  using Clients = std::vector<std::shared_ptr<JobClient>>;

  JobEnding(gossip::Replica& replica, gossip::Executor& executor, const gossip::Group& group)
      : replica_(replica), executor_(executor), group_(group) {}

  /// Reads what the clients have asked for. Their clocks are to be read after it: a program trains, then finishes.
  void look(const Clients& clients);
  /// Answers them.
  void watch(const Clients& clients, TimeUs now_us);
  /// No client trains.
  [[nodiscard]] bool all_stopped() const { return training_ != Training::go_on; }

 private:
  /// How far the clients are.
  enum class Training : std::uint8_t {
    go_on,     ///< some client trains
    stopped,   ///< none trains, but their models are not all equal yet
    finishing  ///< their models are equal, and the replica has been told
  };

  void answer(JobClient& client, const Clients& clients);
  [[nodiscard]] bool is_left_out(const JobClient& client) const;
  [[nodiscard]] std::set<std::uint64_t> left_out(const Clients& clients) const;
  [[nodiscard]] bool is_even(const Clients& clients) const;
  [[nodiscard]] std::uint64_t first_sound(const Clients& clients) const;
  void set_finishing(bool on, TimeUs now_us);

  gossip::Replica& replica_;
  gossip::Executor& executor_;
  const gossip::Group& group_;
  Training training_ = Training::go_on;
  bool again_ = false;  // some client has asked for another end since the last answer, or for none
  TimeUs seen_us_ = 0;
  std::optional<std::uint64_t> saver_;  // the client that saves, once all is over
};

}  // namespace gossamer::daemon
