// How the other nodes stand, as they and others report it (gossip/membership/summaries.hpp), for the status page.
//
// Owned by Node; everything runs on the loop's thread. The node sends its own summary to one neighbour every
// summary_period_us.

#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <vector>

#include "daemon/report/status.hpp"
#include "gossip/membership/summaries.hpp"

namespace gossamer::daemon {

/// The functions by which the view asks its node.
struct ClusterViewHost {
  std::function<TimeUs()> now_us;
  std::function<NodeSummary()> own;
  std::function<std::vector<NodeId>()> neighbours;
  std::function<void(const NodeId& to, const Message& message)> send;  ///< a message that cannot be sent is dropped
};

class ClusterView {
 public:
  ClusterView(asio::io_context& loop, const NodeId& self, ClusterViewHost host, gossip::Random random);

  void start();
  void hear(const Summaries& said) { table_.hear(said, host_.now_us()); }
  /// The other nodes, in the order of their ids.
  [[nodiscard]] std::vector<SummaryStatus> statuses() const;

 private:
  void speak();

  const ClusterViewHost host_;
  gossip::SummaryTable table_;
  gossip::Random random_;
  asio::steady_timer timer_;
};

/// The summary of one job, within the bounds of a message.
[[nodiscard]] JobSummary summary_of(const JobStatus& job);

}  // namespace gossamer::daemon
