// Several clients of one job at this node: what passes between the replica, which is then in the node's own memory, and
// each of them. gossip::LocalGroup decides, gossip::LocalMeanTask computes; this carries out.

#include <algorithm>

#include "daemon/job.hpp"

namespace gossamer::daemon {

namespace {

/// Clients that were here before the daemon was restarted come back within this: they try again every 2 s.
constexpr TimeUs return_us = 3 * us_per_s;
/// Fragments of which a round is begun in one turn of the loop though no exchange asks for one.
constexpr std::size_t rounds_per_tick = 64;

}  // namespace

// --- who takes part -----------------------------------------------------------------------------------------------

void Job::begin_group() {
  group_.emplace(replica_.fragment_count(), first_->clock());
  group_->add(first_->number(), gossip::LocalGroup::Arrival::with_values, first_->memory().clock());
  for (const auto& client : clients_) {
    if (client != first_) add_to_group(*client);
  }
  host_.log().info("job {}: several clients: their mean is what is exchanged", name());
  decide([&](Actions& out) { replica_.gather(out); });
}

void Job::add_to_group(JobClient& client) {
  using Arrival = gossip::LocalGroup::Arrival;
  Arrival arrival = Arrival::without_values;
  if (!client.joins()) {
    // All come back after a restart; one that was away alone is far behind, and would draw the others back.
    const bool restarted = first_ && first_->session().resume() && host_.now_us() - started_us_ < return_us;
    arrival = restarted ? Arrival::back : Arrival::behind;
  }
  group_->add(client.number(), arrival, client.memory().clock(), client.due_fragments());
  tell_readiness(client);
}

/// What it has published is still taken in; if it had the fragment, nobody waits for it.
void Job::remove_from_group(const std::shared_ptr<JobClient>& client) {
  group_->remove(client->number());
  if (group_->needs(client->number())) departed_[client->number()] = client;
  const std::vector<std::uint32_t> rounds(group_->under_way().begin(), group_->under_way().end());
  for (const std::uint32_t f : rounds)
    end_round_if_over(f);
}

/// Runs, once it has the node's values of every fragment: its clock goes on from the node's.
void Job::tell_readiness(JobClient& client) {
  if (!client.joins()) return;
  const std::uint32_t lacking = group_->lacking(client.number());
  client.memory().set_fragments_pulled(replica_.fragment_count() - lacking);
  if (lacking > 0) return;
  client.take_cursor(cursor());
  client.set_joined();
  const std::uint64_t own = client.memory().clock();
  client.memory().set_clock_base(group_->clock() - std::min(own, group_->clock()));
  host_.log().info("job {}: process {} has the model, and takes part", name(), client.pid());
  tell_run_state(client);
}

// --- the replica's move -------------------------------------------------------------------------------------------

void Job::gather(std::uint32_t f) {
  struct Gather {
    bool run(gossip::HeldFragment fragment) && { return fragment.buffers.gather(); }
  };
  work(f, Gather{}, [f](Job& job, bool finite, Actions& out) { job.gathered(f, finite, out); });
}

void Job::gathered(std::uint32_t f, bool finite, Actions& out) {
  const bool with_client = replica_.buffers(f).parts().with_client;
  if (finite) {
    group_->gathered(f, with_client ? std::optional(first_->number()) : std::nullopt, host_.now_us());
    if (with_client && !first_->due(f)) {  // published meanwhile: the replica has that still before it
      group_->published(first_->number(), f, host_.now_us());
      group_->end(f);
    }
  }
  replica_.gathered(f, finite, host_.now_us(), out);
  if (finite && with_client) end_round_if_over(f);
}

// --- rounds -------------------------------------------------------------------------------------------------------

template <class Report>
void Job::work_mean(std::uint32_t f, gossip::LocalGroup::Work&& part, Report report) {
  struct Mean {
    gossip::LocalMeanTask task;
    Clients clients;  // keeps their memory

    std::vector<gossip::LocalMeanTask::Outcome> run(gossip::HeldFragment fragment) && {
      return task.run(fragment.buffers.values());
    }
  };
  Mean mean;
  for (const gossip::LocalGroup::Part& one : part.parts) {
    const auto attached =
        std::find_if(clients_.begin(), clients_.end(), [&](const auto& client) { return client->number() == one.id; });
    const std::shared_ptr<JobClient>& client = attached != clients_.end() ? *attached : departed_.at(one.id);
    mean.task.clients.push_back(client->part_of(f, one));
    mean.clients.push_back(client);
  }
  std::erase_if(departed_, [this](const auto& item) { return !group_->needs(item.first); });
  Clients clients = mean.clients;
  work(f, std::move(mean),
       [f, part = std::move(part), clients = std::move(clients), report](
           Job& job, std::vector<gossip::LocalMeanTask::Outcome>&& outcomes, Actions& out) {
         job.group_->done(f, part, outcomes);
         for (std::size_t i = 0; i < clients.size(); ++i) {
           if (part.parts[i].offer && job.client_of(clients[i]->session()) != nullptr) {
             clients[i]->offer(f, part.parts[i], outcomes[i]);
             clients[i]->tell_due();
           }
         }
         report(job, out);
       });
}

void Job::offer(std::uint32_t f) {
  work_mean(f, group_->begin(f, host_.now_us()), [f](Job& job, Actions& out) {
    job.replica_.offered(f, job.host_.now_us(), out);
    job.end_round_if_over(f);
  });
}

void Job::take_in(std::uint32_t f) {
  work_mean(f, group_->take_in(f), [f](Job& job, Actions& out) { job.replica_.folded(f, job.host_.now_us(), out); });
}

void Job::end_round_if_over(std::uint32_t f) {
  if (!group_->over(f, host_.now_us())) return;
  group_->end(f);
  const std::uint32_t generation = replica_.buffers(f).parts().generation + 1;
  decide([&](Actions& out) { replica_.published(f, generation, group_->clock(), host_.now_us(), out); });
}

void Job::tick_group() {
  const std::vector<std::uint32_t> rounds(group_->under_way().begin(), group_->under_way().end());
  for (const std::uint32_t f : rounds)
    end_round_if_over(f);
  if (!runs()) return;
  const TimeUs period_us = all_stopped_ ? std::min(replica_.period_us(), gossip::finish_wait_us) : replica_.period_us();
  for (const std::uint32_t f : group_->wanted(period_us, host_.now_us(), rounds_per_tick))
    decide([&](Actions& out) { replica_.want_publication(f, out); });
  if (first_ && first_.use_count() == 1 && client_of(first_->session()) == nullptr && all_gathered()) {
    first_.reset();  // gone, and its memory is not needed any more
  }
}

bool Job::all_gathered() {
  for (std::uint32_t f = 0; f < replica_.fragment_count(); ++f) {
    if (!replica_.buffers(f).gathered()) return false;
  }
  return true;
}

}  // namespace gossamer::daemon
