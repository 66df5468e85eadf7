#include "gossip/membership/suspicion.hpp"

#include <cmath>

namespace gossamer::gossip {

SuspicionBounds suspicion_bounds(unsigned mult, unsigned max_mult, std::size_t nodes, TimeUs probe_interval_us) {
  const double scale = std::max(1.0, std::log10(static_cast<double>(std::max<std::size_t>(nodes, 1))));
  SuspicionBounds bounds;
  bounds.min_us = static_cast<TimeUs>(static_cast<double>(mult) * scale * static_cast<double>(probe_interval_us));
  bounds.max_us = bounds.min_us * max_mult;
  const std::size_t wanted = mult > 2 ? mult - 2 : 0;
  bounds.confirmations = nodes >= wanted + 2 ? std::min(wanted, max_confirmations) : 0;
  return bounds;
}

TimeUs suspicion_timeout_us(const SuspicionBounds& bounds, std::size_t confirmations) {
  if (bounds.confirmations == 0) return bounds.min_us;
  const double part =
      std::log(static_cast<double>(confirmations) + 1) / std::log(static_cast<double>(bounds.confirmations) + 1);
  const auto range_us = static_cast<double>(bounds.max_us - bounds.min_us);
  return std::max(bounds.min_us, bounds.max_us - static_cast<TimeUs>(range_us * part));
}

unsigned retransmission_limit(unsigned mult, std::size_t nodes) {
  unsigned digits = 0;  // ⌈log10(n + 1)⌉ in integers: the number of decimal digits of n
  for (std::size_t rest = nodes; rest > 0; rest /= 10)
    ++digits;
  return mult * digits;
}

Suspicion::Suspicion(const SuspicionBounds& bounds, const NodeId& accuser, TimeUs now_us)
    : bounds_(bounds), begun_us_(now_us), accusers_{accuser} {}

bool Suspicion::confirm(const NodeId& accuser) {
  if (accusers_.size() > bounds_.confirmations || accusers_.size() > max_confirmations) return false;
  if (std::ranges::find(accusers_, accuser) != accusers_.end()) return false;
  accusers_.push_back(accuser);
  return true;
}

}  // namespace gossamer::gossip
