// How Job serves its gossip::Group, which decides and carries out what passes between the clients and the node's copy.

#include <algorithm>
#include <utility>

#include "daemon/jobs/job.hpp"

namespace gossamer::daemon {

bool Job::awaits_clients() const {
  const auto back =
      std::ranges::count_if(clients_, [](const auto& one) { return one->session().resume() && !one->keeps(); });
  return back < awaited_clients_ && host_.now_us() - started_us_ < return_us;
}

/// A client takes part once it has the node's values of every fragment. Its clock then goes on from the node's.
void Job::lacking(gossip::Member& member, std::uint32_t fragments) {
  auto& client = static_cast<JobClient&>(member);
  client.memory().set_fragments_pulled(replica_.fragments().count() - fragments);
  if (fragments > 0) return;
  client.take_cursor(cursor());
  client.set_joined();
  const std::uint64_t own = client.memory().clock();
  client.memory().set_clock_base(clock() - std::min(own, clock()));
  host_.log().info("job {}: process {} has the model, and takes part", name(), client.pid());
  tell_run_state(client);
}

void Job::lacks_room() {
  if (std::exchange(warned_of_no_room_, true)) return;
  host_.log().warn(
      "job {}: there is no room for the copy that several clients need, in this machine's memory or a GPU's, or that "
      "does not answer: what they learn is brought together when there is; give the training processes a little less",
      name());
}

std::shared_ptr<const gossip::MeanOver> Job::mean_over() const {
  return gpus_.mean();
}

void Job::tell_of_group() {
  if (group_.is_shared()) host_.log().info("job {}: several clients: their mean is what is exchanged", name());
}

}  // namespace gossamer::daemon
