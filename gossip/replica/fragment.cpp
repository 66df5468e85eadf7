#include "gossip/replica/fragment.hpp"

#include <algorithm>
#include <limits>

#include "gossip/check.hpp"

namespace gossamer::gossip {

void Fragment::hold(const Stage& next) {
  GOSSAMER_CHECK(!is_held());
  stage = next;
}

void Fragment::let_go() {
  GOSSAMER_CHECK(is_held());
  stage = stage::Idle{};
}

void Fragment::check_invariants() const {
  using Own = OwnExchange::Stage;
  const bool encoding = std::holds_alternative<stage::Encoding>(stage);
  const bool concluding = std::holds_alternative<stage::Concluding>(stage);
  GOSSAMER_CHECK(encoding == (own && (own->stage == Own::encoding || own->stage == Own::abandoned)));
  GOSSAMER_CHECK(concluding == (own && own->stage == Own::concluding));
  GOSSAMER_CHECK(!own || own->reply.has_value() == (own->stage == Own::replied));
  GOSSAMER_CHECK(!waiting.publication || is_held());  // otherwise it is taken at once
  GOSSAMER_CHECK(!own || waiting.start == Waiting::Start::none);
  // Work that reads a publication needs one.
  const bool reads = encoding || concluding || std::holds_alternative<stage::Answering>(stage) ||
                     std::holds_alternative<stage::Undoing>(stage) || std::holds_alternative<stage::Copying>(stage);
  GOSSAMER_CHECK(!reads || !buffers.empty());
}

Fragments::Fragments(std::vector<FragmentBuffers> buffers, float mixing_budget) {
  fragments_.reserve(buffers.size());
  for (FragmentBuffers& one : buffers) {
    BlockSteps steps(one.block_count());
    block_count_ += one.block_count();
    fragments_.push_back({.buffers = std::move(one), .steps = std::move(steps), .budget = MixingBudget(mixing_budget)});
  }
}

double Fragments::end_distance(bool over) const {
  double largest = 0;
  for (const Fragment& fragment : fragments_)
    largest = std::max(largest, over ? fragment.agreement.agreed_distance() : fragment.agreement.distance());
  return largest;
}

std::size_t Fragments::quarantined() const {
  return static_cast<std::size_t>(std::ranges::count_if(fragments_, &Fragment::is_quarantined));
}

TimeUs Fragments::oldest_exchange_us() const {
  TimeUs oldest_us = std::numeric_limits<TimeUs>::max();
  for (const Fragment& fragment : fragments_) {
    if (!fragment.is_quarantined()) oldest_us = std::min(oldest_us, fragment.last_exchange.at_us);
  }
  return oldest_us == std::numeric_limits<TimeUs>::max() ? 0 : oldest_us;
}

std::size_t Fragments::pending_bytes() const {
  std::size_t bytes = 0;
  for (const Fragment& fragment : fragments_)
    bytes += fragment.buffers.pending_bytes();
  return bytes;
}

double Fragments::disagreement() const {
  double sum = 0;
  for (const Fragment& fragment : fragments_)
    sum += fragment.disagreement;
  return fragments_.empty() ? 0 : sum / static_cast<double>(fragments_.size());
}

double Fragments::root_mean_square() const {
  double square = 0;
  std::size_t blocks = 0;
  for (const Fragment& fragment : fragments_) {
    if (!fragment.relative_distance) continue;
    square += fragment.norm * fragment.norm;
    blocks += fragment.buffers.block_count();
  }
  return blocks == 0 ? 0 : std::sqrt(square / static_cast<double>(blocks * block_elements));
}

double Fragments::consensus() const {
  double sum = 0;
  std::size_t measured = 0;
  for (const Fragment& fragment : fragments_) {
    if (!fragment.relative_distance) continue;
    sum += *fragment.relative_distance;
    ++measured;
  }
  return measured == 0 ? 0 : sum / static_cast<double>(measured);
}

std::uint32_t Fragments::handed_over() const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(fragments_, [](const Fragment& f) { return f.handover.exchanges() > 0; }));
}

std::uint64_t Fragments::age_samples(std::uint64_t clock) const {
  std::uint64_t oldest = 0;
  for (const Fragment& fragment : fragments_)
    oldest = std::max(oldest, clock - std::min(clock, fragment.publication_clock));
  return oldest;
}

void Fragments::forget_quarantine(const NodeId& partner) {
  for (Fragment& fragment : fragments_)
    fragment.quarantined_at.erase(partner);
}

}  // namespace gossamer::gossip
