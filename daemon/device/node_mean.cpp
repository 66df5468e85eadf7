#include "daemon/device/node_mean.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gossamer::device {

using gossip::ClientFragment;
using gossip::LocalMeanOutcome;
using gossip::Take;

namespace {

void not_reached(LocalMeanOutcome& outcome) {
  outcome = {.reached = false, .written = false};
}

}  // namespace

struct NodeMean::Task {
  std::span<const ClientFragment> clients;
  std::span<LocalMeanOutcome> outcomes;
  std::size_t elements;
  Places home;
  std::map<const Device*, Places> elsewhere;

  [[nodiscard]] bool any(const Places& places, auto condition) const {
    return std::ranges::any_of(places, [&](std::size_t place) { return condition(place); });
  }
  /// Whether clients elsewhere have contributed or are to get corrections, so that y must be summed over the GPUs.
  [[nodiscard]] bool concerns_elsewhere() const {
    return std::ranges::any_of(elsewhere, [this](const auto& item) {
      return any(item.second, [this](std::size_t place) {
        return outcomes[place].reached && (outcomes[place].moved || clients[place].correction != nullptr);
      });
    });
  }
  void lose(const Places& places) const {
    for (const std::size_t place : places)
      not_reached(outcomes[place]);
  }
};

NodeMean::NodeMean(std::shared_ptr<const Device> home, std::shared_ptr<NodeSums> sums)
    : home_(std::move(home)), sums_(std::move(sums)) {}

void NodeMean::include(std::shared_ptr<const Device> device) {
  const std::scoped_lock lock(mutex_);
  if (std::ranges::find(included_, device) == included_.end()) included_.push_back(std::move(device));
}

NodeMean::Counters NodeMean::counters() const {
  const std::scoped_lock lock(mutex_);
  return counters_;
}

// --- the mean -----------------------------------------------------------------------------------------------------

std::vector<LocalMeanOutcome> NodeMean::run(const gossip::LocalMeanTask& all, std::span<float> y) const {
  std::vector<LocalMeanOutcome> outcomes(all.clients.size());
  Task task{.clients = all.clients, .outcomes = outcomes, .elements = y.size(), .home = {}, .elsewhere = {}};
  for (std::size_t place = 0; place < all.clients.size(); ++place) {
    const Device* const device = all.clients[place].device;
    (device == nullptr || device == home_.get() ? task.home : task.elsewhere[device]).push_back(place);
  }
  if (task.elsewhere.empty()) return all.run(y, *home_);
  if (!take(task, *home_, task.home, y)) {
    for (LocalMeanOutcome& outcome : outcomes)
      not_reached(outcome);
    return outcomes;
  }
  Parts parts = take_elsewhere(task);
  if (task.concerns_elsewhere() && !add_up(parts, y)) parts.clear();
  for (const auto& [device, places] : task.elsewhere) {
    if (std::ranges::find(parts, device, &NodeSums::Part::device) == parts.end()) task.lose(places);
  }
  // The clients' contributions count from here on, so the task can no longer fail as a whole.
  write(task, *home_, task.home, y.data());
  for (const NodeSums::Part& part : parts) {
    if (part.device != home_.get()) write(task, *part.device, task.elsewhere.at(part.device), part.values.get());
  }
  keep(std::move(parts));
  const bool all_reached = std::ranges::all_of(outcomes, &LocalMeanOutcome::reached);
  const std::scoped_lock lock(mutex_);
  counters_.failed += all_reached ? 0 : 1;
  return outcomes;
}

/// Adds the contributions of these clients to y. False: nothing was taken from them.
bool NodeMean::take(const Task& task, const Device& device, const Places& places, std::span<float> y) const {
  std::vector<ClientFragment> clients;
  for (const std::size_t place : places) {
    clients.push_back(task.clients[place]);
    clients.back().correction = nullptr;
    clients.back().device = nullptr;
  }
  if (std::ranges::all_of(clients, [](const ClientFragment& client) { return client.take == Take::nothing; })) {
    return true;
  }
  std::vector<LocalMeanOutcome> found(clients.size());
  if (!device.local_mean(clients, y, found)) return false;
  for (std::size_t i = 0; i < places.size(); ++i)
    task.outcomes[places[i]] = found[i];
  return true;
}

/// Writes the corrections of these clients from y, which is null if their device has no sum.
void NodeMean::write(const Task& task, const Device& device, const Places& places, float* y) const {
  std::vector<ClientFragment> clients;
  Places written;
  for (const std::size_t place : places) {
    const ClientFragment& client = task.clients[place];
    if (client.correction == nullptr || !task.outcomes[place].finite || !task.outcomes[place].reached) continue;
    clients.push_back({.snapshot = client.snapshot, .correction = client.correction, .replace = client.replace});
    written.push_back(place);
  }
  if (clients.empty()) return;
  std::vector<LocalMeanOutcome> found(clients.size());
  const bool well = y != nullptr && device.local_mean(clients, {y, task.elements}, found);
  for (std::size_t i = 0; i < written.size(); ++i) {
    task.outcomes[written[i]].differs = well && found[i].differs;
    task.outcomes[written[i]].written = well;
  }
}

/// Makes a part for each device that has clients of the task and can be reached.
NodeMean::Parts NodeMean::take_elsewhere(const Task& task) const {
  Parts parts;
  for (const auto& [device, places] : task.elsewhere) {
    NodeSums::Part part = scratch_on(*device, task.elements);
    float* const values = part.values.get();
    if (values == nullptr || !device->clear(values, task.elements) ||
        !take(task, *device, places, {values, task.elements})) {
      continue;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Sets y and every part to the sum of y and the parts. If a device fails before the sum, its part is removed; if it
/// fails afterwards, its part has no values. False: y is unchanged, and the parts must not be used any more.
bool NodeMean::add_up(Parts& parts, std::span<float> y) const {
  const std::size_t elements = y.size();
  parts.insert(parts.begin(), scratch_on(*home_, elements));
  if (parts[0].values == nullptr || !home_->copy(parts[0].values.get(), y.data(), elements)) return false;
  NodeSums::Result result = sums_ == nullptr ? NodeSums::Result::not_ready : sums_->add_up(parts, elements);
  if (result == NodeSums::Result::failed) return false;
  if (result == NodeSums::Result::not_ready) through_host(parts, elements);
  if (parts.empty() || parts[0].device != home_.get() || parts[0].values == nullptr) return false;
  const float* const total = parts[0].values.get();
  std::vector<LocalMeanOutcome> found(1);
  const ClientFragment sum{.snapshot = total, .take = Take::check};
  if (!home_->local_mean({&sum, 1}, y, found) || !found[0].finite || !home_->copy(y.data(), total, elements))
    return false;
  const std::scoped_lock lock(mutex_);
  ++counters_.summed;
  counters_.through_host += result == NodeSums::Result::not_ready ? 1 : 0;
  return true;
}

/// Adds the parts up in host memory, in their order.
void NodeMean::through_host(Parts& parts, std::size_t elements) {
  std::vector<float> total(elements, -0.0F);  // unlike +0, −0 changes no bit of a sum
  std::vector<float> one(elements);
  std::erase_if(parts, [&](const NodeSums::Part& part) {
    if (!part.device->download(one, part.values.get())) return true;
    for (std::size_t e = 0; e < elements; ++e)
      total[e] += one[e];
    return false;
  });
  for (NodeSums::Part& part : parts) {
    if (!part.device->upload(part.values.get(), total)) part.values = nullptr;
  }
}

// --- scratch memory -----------------------------------------------------------------------------------------------

/// A scratch array has room for the longest fragment so far: all fragments of a job but the last have the same length.
NodeSums::Part NodeMean::scratch_on(const Device& device, std::size_t elements) const {
  Parts outgrown;  // released without the lock
  std::size_t capacity = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (elements > kept_capacity_) {
      for (auto& [owner, kept] : kept_)
        std::ranges::move(kept, std::back_inserter(outgrown));
      kept_.clear();
      kept_capacity_ = elements;
    }
    capacity = kept_capacity_;
    Parts& kept = kept_[&device];
    if (!kept.empty()) {
      NodeSums::Part part = std::move(kept.back());
      kept.pop_back();
      return part;
    }
  }
  return {.device = &device, .values = device.allocate(capacity), .capacity = capacity};
}

void NodeMean::keep(Parts&& parts) const {
  const std::scoped_lock lock(mutex_);
  for (NodeSums::Part& part : parts) {
    Parts& kept = kept_[part.device];
    if (part.values != nullptr && part.capacity == kept_capacity_ && kept.size() < max_kept) {
      kept.push_back(std::move(part));
    }
  }
}

}  // namespace gossamer::device
