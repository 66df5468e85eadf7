// How the other nodes stand, as they and others tell (gossip/membership/summaries.hpp), for the status page.
//
// Owned by Node; everything runs on the loop's thread. Says its own word to a neighbour once a summary_period_us.

#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <vector>

#include "daemon/report/status.hpp"
#include "gossip/membership/summaries.hpp"

namespace gossamer::daemon {

/// What the view asks of its node.
struct ClusterViewHost {
  std::function<TimeUs()> now_us;
  std::function<NodeSummary()> own;
  std::function<std::vector<NodeId>()> neighbours;
  std::function<void(const NodeId& to, const Message& message)> send;  ///< what cannot be sent is left out
};

class ClusterView {
 public:
  ClusterView(asio::io_context& loop, const NodeId& self, ClusterViewHost host, gossip::Random random);

  void start();
  void hear(const Summaries& said) { table_.hear(said, host_.now_us()); }
  /// Of the others, by id.
  [[nodiscard]] std::vector<SummaryStatus> statuses() const;

 private:
  void speak();

  const ClusterViewHost host_;
  gossip::SummaryTable table_;
  gossip::Random random_;
  asio::steady_timer timer_;
};

/// One of a job, within the bounds of a message.
[[nodiscard]] JobSummary summary_of(const JobStatus& job);

}  // namespace gossamer::daemon
