// The convergence watch. It compares how jobs and links stand now with how they stood a minute ago, and finds what
// keeps replicas from averaging well. Each finding is in plain words, with the cause where the numbers show one, and
// the next step. The rules are only here: the log, `gossamerctl status`, `explain` and `top`, the status page and the
// metrics show the findings.
//
// A finding appears once it has held in several looks in a row, and ends in the same way, so that one late exchange is
// not reported. Pure: no clock, no I/O; the shell looks every watch_period and logs the news. Bounded by the jobs and
// links of the node.

#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/report/status.hpp"

namespace gossamer::daemon {

inline constexpr std::chrono::seconds watch_period{5};
/// Rates and shares are taken over this many seconds.
inline constexpr double watch_window_s = 60;

/// A rule, by the name that FindingStatus::rule has.
struct WatchRule {
  const char* name;
  const char* what;  ///< for docs/reference/metrics.md
  int looks;         ///< looks in a row until the finding is reported
};
inline constexpr std::array watch_rules = {
    WatchRule{"drift", "a replica is much farther from this one than the others are", 3},
    WatchRule{"apart", "no chain of exchanges leads from a node that runs the job to this one", 12},
    WatchRule{"sparse", "exchanges mix the cluster slowly", 3},
    WatchRule{"spread", "replicas move apart", 3},
    WatchRule{"rare", "exchanges are far rarer than asked for, to keep to a share of time or network", 24},
    WatchRule{"diverge", "the model grows without bound", 3},
    WatchRule{"wide", "many blocks differ by more than the codec's range", 3},
    WatchRule{"unresolved", "many exchanges have an outcome that cannot be known any more", 3},
    WatchRule{"stale", "the values that are averaged are old", 3},
    WatchRule{"quarantined", "a replica, this one or a neighbour's, holds NaN or infinity", 3},
    WatchRule{"starved", "a part of the model is exchanged with nobody, though replicas that train are linked", 3},
    WatchRule{"silent", "exchanges with a neighbour have stopped", 3},
    WatchRule{"busy", "a neighbour turns most requests down", 3},
    WatchRule{"slow-link", "exchanges with a neighbour are rare because its link is slow", 3},
    WatchRule{"queue", "more data wait for a link than it carries in a second", 3},
    WatchRule{"latency", "heartbeats wait in queues", 3},
    WatchRule{"disk", "the disk that holds state and checkpoints does not answer", 1},
    WatchRule{"state", "what the cluster has decided cannot be saved", 1},
    WatchRule{"config", "the configuration file is wrong, and the one before it is in use", 1},
    WatchRule{"certificate", "this node's certificate ends within fourteen days, or has ended", 1},
    WatchRule{
        "certificates",
        "certificates of other nodes end within fourteen days, or have ended, or members disagree about who is let in",
        1},
};

/// One look at the daemon.
struct WatchLook {
  double at_s = 0;             ///< seconds since any fixed moment, growing
  double link_max_mbit_s = 0;  ///< [gossip] link_max_mbit_s; 0: none
  double max_mbit_s = 0;       ///< [gossip] max_mbit_s; 0: none
  bool scheduled = false;      ///< [gossip] partners is a fixed schedule: some neighbours are never asked
  std::vector<PeerStatus> peers = {};
  std::vector<JobStatus> jobs = {};
  std::vector<SummaryStatus> cluster = {};
  std::vector<FindingStatus> troubles = {};  ///< findings about the node itself, which are reported as they are
};

/// The findings of the rules now, given an earlier look, and the troubles; `since_s` is left at 0.
[[nodiscard]] std::vector<FindingStatus> judge(const WatchLook& before, const WatchLook& now);

/// For the log: "job digits: c drifts: ...; raise ...".
[[nodiscard]] std::string sentence(const FindingStatus& finding);

class Watch {
 public:
  struct News {
    std::vector<FindingStatus> begun;
    std::vector<FindingStatus> ended;
  };
  /// Looks are taken in the order of their times.
  [[nodiscard]] News look(WatchLook look);
  [[nodiscard]] std::vector<FindingStatus> findings(double now_s) const;

 private:
  struct Held {
    FindingStatus finding;
    double first_s = 0;
    int seen = 0;    ///< looks in a row that found it, counted up to the number that reports it
    int missed = 0;  ///< looks in a row that did not find it, counted up to the number that ends it
    bool said = false;
  };
  std::deque<WatchLook> looks_;
  std::map<std::tuple<std::string, std::string, std::string>, Held> held_;  // by rule, job and node
};

}  // namespace gossamer::daemon
