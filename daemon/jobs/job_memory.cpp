#include "daemon/jobs/job_memory.hpp"

#include <algorithm>

namespace gossamer::daemon {

JobMemory::JobMemory(std::shared_ptr<JobClient> first, std::shared_ptr<NodeMemory> node, std::uint64_t number)
    : first_(std::move(first)), node_(std::move(node)), numbers_(first_->memory().fragment_count(), number) {
  advance_numbers(*first_);
}

void JobMemory::advance_numbers(const JobClient& client) {
  for (std::uint32_t f = 0; f < numbers_.size(); ++f)
    numbers_[f] = std::max(numbers_[f], client.last_noted(f));
}

}  // namespace gossamer::daemon
