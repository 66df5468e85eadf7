#include "peer/links/connections.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "peer/links/stranger_gate.hpp"

namespace gossamer::peer {
namespace {

/// The connections of hosts are counted for one to two such windows.
constexpr TimeUs arrivals_window_us = 5 * us_per_s;
/// A host may come so often before it counts as one that comes more often than others.
constexpr std::uint32_t usual_arrivals = 64;
constexpr std::size_t network_bytes = 8;  // of an IPv6 address: whoever has one address has its whole network

/// Whose the connection is: the address; of an IPv6 address the network.
std::string host_of(const std::string& address) {
  in6_addr parsed{};
  if (::inet_pton(AF_INET6, address.c_str(), &parsed) != 1 || IN6_IS_ADDR_V4MAPPED(&parsed)) return address;
  std::memset(parsed.s6_addr + network_bytes, 0, sizeof parsed.s6_addr - network_bytes);
  char text[INET6_ADDRSTRLEN] = {};
  return ::inet_ntop(AF_INET6, &parsed, text, sizeof text);
}

}  // namespace

std::optional<Connections::Closing> Connections::opened(int descriptor, End end, TimeUs now) {
  const auto known = connections_.find(descriptor);
  if (is_admitted(descriptor, end)) return std::nullopt;
  const bool spoke = known != connections_.end() && known->second.end == end && known->second.spoke;
  const std::string host = host_of(end.host);
  put(descriptor, {.end = std::move(end), .routing_id = {}, .since = now, .order = ++opened_, .spoke = spoke});
  note_arrival(host, now);
  if (strangers_ <= max_strangers_) return std::nullopt;
  const auto found = one_too_many();
  Closing closing{found->first, found->second.end, Closing::Why::too_many};
  take_out(found);
  return closing;
}

void Connections::had_ended(int descriptor, TimeUs now) {
  if (!connections_.contains(descriptor))  // a message of it may have come before
    put(descriptor, {.end = {}, .routing_id = {}, .since = now, .order = ++opened_});
}

/// A stranger's connection, in the place of what had this descriptor.
void Connections::put(int descriptor, Connection connection) {
  if (const auto known = connections_.find(descriptor); known != connections_.end()) discount(known->second);
  count(descriptor, connection);
  connections_[descriptor] = std::move(connection);
}

void Connections::count(int descriptor, const Connection& connection) {
  if (connection.routing_id.empty())
    strangers_ += of_host_[host_of(connection.end.host)].strangers.emplace(connection.order, descriptor).second;
}

void Connections::discount(const Connection& connection) {
  const auto host = of_host_.find(host_of(connection.end.host));
  if (!connection.routing_id.empty() || host == of_host_.end()) return;
  strangers_ -= host->second.strangers.erase(connection.order);
  if (host->second.strangers.empty()) of_host_.erase(host);
}

/// A stranger of this host has just been put.
void Connections::note_arrival(const std::string& host, TimeUs now) {
  if (now - recent_since_ >= arrivals_window_us) {
    earlier_ = now - recent_since_ < 2 * arrivals_window_us ? std::move(recent_) : decltype(recent_){};
    recent_.clear();
    recent_since_ = now;
  }
  std::uint32_t arrivals = 1;
  if (const auto known = recent_.find(host); known != recent_.end()) {
    arrivals = ++known->second;
  } else if (recent_.size() < max_throttled) {
    recent_.emplace(host, arrivals);
  }
  if (const auto known = earlier_.find(host); known != earlier_.end()) arrivals += known->second;
  of_host_[host].excess = arrivals - std::min(arrivals, usual_arrivals);
}

/// The hosts that have most strangers, and of these the ones that have come most often.
std::vector<const Connections::Host*> Connections::crowded_hosts() const {
  std::size_t most = 0;
  for (const auto& [_, host] : of_host_)
    most = std::max(most, host.strangers.size());
  std::vector<const Host*> crowded;
  for (const auto& [_, host] : of_host_) {
    if (host.strangers.size() == most && (most > 1 || !host.strangers.contains(opened_))) crowded.push_back(&host);
  }
  const std::uint32_t excess = std::ranges::max(crowded, {}, &Host::excess)->excess;
  std::erase_if(crowded, [excess](const Host* host) { return host->excess < excess; });
  return crowded;
}

/// Chooses the connection that has to go; never the one that has just come, unless its host has more.
Connections::Table::iterator Connections::one_too_many() {
  const auto progress_of = [this](int descriptor) { return connections_.at(descriptor).progress; };
  std::vector<int> candidates;  // of each such host the one that has got least far, the oldest of such
  for (const Host* host : crowded_hosts()) {
    const auto progress = [&](const auto& item) { return progress_of(item.second); };
    candidates.push_back(std::ranges::min_element(host->strangers, {}, progress)->second);
  }
  const auto least = progress_of(std::ranges::min(candidates, {}, progress_of));
  std::erase_if(candidates, [&](int descriptor) { return progress_of(descriptor) > least; });
  return connections_.find(candidates[random_.below(candidates.size())]);
}

Connections::Table::iterator Connections::take_out(Table::iterator which) {
  discount(which->second);
  return connections_.erase(which);
}

std::optional<Connections::Ended> Connections::closed(int descriptor) {
  const auto found = connections_.find(descriptor);
  if (found == connections_.end()) return std::nullopt;
  Ended ended{found->second.end, !found->second.routing_id.empty(), found->second.spoke, found->second.order};
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

std::vector<Connections::Closing> Connections::take_greedy(const std::function<TcpBytes(int)>& bytes_on) {
  return take(Closing::Why::too_much, [&](int descriptor, Connection& stranger) {
    const TcpBytes bytes = bytes_on(descriptor);
    stranger.progress = bytes.sent > unasked_bytes ? Progress::is_heard
                        : bytes.received > 0       ? Progress::greets
                                                   : Progress::silent;
    if (!stranger.bytes_then) stranger.bytes_then = bytes.received;
    return bytes.received - *stranger.bytes_then > max_stranger_bytes;
  });
}

}  // namespace gossamer::peer
