#include "peer/links/connections.hpp"

#include <algorithm>

namespace gossamer::peer {
namespace {

/// More than a handshake without properties of its own.
constexpr std::uint64_t handshake_bytes = 1024;

}  // namespace

std::optional<Connections::Closing> Connections::opened(int descriptor, End end, TimeUs now) {
  const auto known = connections_.find(descriptor);
  if (is_admitted(descriptor, end)) return std::nullopt;
  const bool spoke = known != connections_.end() && known->second.end == end && known->second.spoke;
  put(descriptor, {.end = std::move(end), .routing_id = {}, .since = now, .order = ++opened_, .spoke = spoke});
  if (strangers_ <= max_strangers_) return std::nullopt;
  const auto found = one_too_many();
  Closing closing{found->first, found->second.end, Closing::Why::too_many};
  take_out(found);
  return closing;
}

/// A stranger's connection, in the place of what had this descriptor.
void Connections::put(int descriptor, Connection connection) {
  if (const auto known = connections_.find(descriptor); known != connections_.end()) discount(known->second);
  count(descriptor, connection);
  connections_[descriptor] = std::move(connection);
}

void Connections::count(int descriptor, const Connection& connection) {
  if (connection.routing_id.empty())
    strangers_ += of_host_[connection.end.host].emplace(connection.order, descriptor).second;
}

void Connections::discount(const Connection& connection) {
  const auto host = of_host_.find(connection.end.host);
  if (!connection.routing_id.empty() || host == of_host_.end()) return;
  strangers_ -= host->second.erase(connection.order);
  if (host->second.empty()) of_host_.erase(host);
}

/// Chooses the oldest stranger of the host that has the most, and between such hosts the oldest stranger of all.
Connections::Table::iterator Connections::one_too_many() {
  const auto rank = [](const auto& host) { return std::pair(host.second.size(), ~host.second.begin()->first); };
  return connections_.find(std::ranges::max_element(of_host_, {}, rank)->second.begin()->second);
}

Connections::Table::iterator Connections::take_out(Table::iterator which) {
  const Connection& connection = which->second;
  discount(connection);
  if (connection.routing_id.empty() && connection.bytes > handshake_bytes) bytes_of_greedy_ += connection.bytes;
  return connections_.erase(which);
}

std::optional<Connections::Ended> Connections::closed(int descriptor) {
  const auto found = connections_.find(descriptor);
  if (found == connections_.end()) return std::nullopt;
  Ended ended{found->second.end, !found->second.routing_id.empty(), found->second.spoke};
  take_out(found);
  return ended;
}

bool Connections::has_spoken(int descriptor) const {
  const auto found = connections_.find(descriptor);
  return found != connections_.end() && found->second.spoke;
}

bool Connections::is_admitted(int descriptor, const End& end) const {
  const auto found = connections_.find(descriptor);
  return found != connections_.end() && found->second.end == end && !found->second.routing_id.empty();
}

void Connections::spoke(int descriptor, const End& end, TimeUs now) {
  const auto known = connections_.find(descriptor);
  if (known == connections_.end() || known->second.end != end)
    put(descriptor, {.end = end, .routing_id = {}, .since = now, .order = ++opened_});
  connections_[descriptor].spoke = true;
}

void Connections::admit(int descriptor, const End& end, const std::string& routing_id) {
  const auto [which, is_new] = connections_.try_emplace(descriptor);
  Connection& connection = which->second;
  if (!is_new) discount(connection);
  connection.end = end;
  connection.routing_id = routing_id;
}

void Connections::dismiss(const std::string& routing_id, TimeUs now) {
  const auto found =
      std::ranges::find_if(connections_, [&](const auto& item) { return item.second.routing_id == routing_id; });
  if (routing_id.empty() || found == connections_.end()) return;
  found->second.routing_id.clear();
  found->second.since = now;
  found->second.bytes_then.reset();
  found->second.bytes = 0;
  found->second.order = ++opened_;
  count(found->first, found->second);
}

std::vector<Connections::Closing> Connections::take(Closing::Why why,
                                                    const std::function<bool(int, Connection&)>& is_over) {
  std::vector<Closing> taken;
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = it->second;
    if (connection.routing_id.empty() && is_over(it->first, connection)) {
      taken.push_back({it->first, connection.end, why});
      it = take_out(it);
    } else {
      ++it;
    }
  }
  return taken;
}

std::vector<Connections::Closing> Connections::take_late(TimeUs now) {
  return take(Closing::Why::late, [&](int, const Connection& stranger) { return now - stranger.since >= patience_; });
}

std::vector<Connections::Closing> Connections::take_greedy(const std::function<std::uint64_t(int)>& received) {
  return take(Closing::Why::too_much, [&](int descriptor, Connection& stranger) {
    const std::uint64_t bytes = received(descriptor);
    if (!stranger.bytes_then) stranger.bytes_then = bytes;
    stranger.bytes = bytes - *stranger.bytes_then;
    return stranger.bytes > max_stranger_bytes;
  });
}

}  // namespace gossamer::peer
