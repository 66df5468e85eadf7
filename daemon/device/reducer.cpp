#include "daemon/device/reducer.hpp"

#include <algorithm>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::device {
namespace {

bool has(const std::vector<Rank>& ranks, Rank rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

}  // namespace

bool LocalReducer::add(Rank rank) {
  if (wanted_.size() == max_ranks && !wanted_.contains(rank)) return false;
  wanted_.insert(rank);
  return true;
}

void LocalReducer::remove(Rank rank) {
  if (wanted_.erase(rank) == 0) return;
  if (present_ && has(present_->ranks, rank)) {
    if (reducing()) {
      broken_off_ = true;
      end_reduction();
    }
    present_.reset();
  }
  if (next_ && has(next_->ranks, rank)) next_.reset();
}

std::span<const Rank> LocalReducer::ready() const {
  if (!present_ || reducing()) return {};
  return present_->ranks;
}

void LocalReducer::reduce(std::span<float* const> values, std::size_t elements, TimeUs now_us) {
  GOSSAMER_CHECK(present_ && !reducing() && values.size() == present_->ranks.size());
  reduce_until_us_ = now_us + limits_.reduce_us;
  ++counters_.reductions;
  // The result is ignored, because tick() asks again and reports it.
  (void)present_->collective->reduce(values, elements);
}

LocalReducer::Reduced LocalReducer::tick(TimeUs now_us) {
  const Reduced reduced = watch_reduction(now_us);
  watch_making(now_us);
  make_if_needed(now_us);
  return reduced;
}

LocalReducer::Reduced LocalReducer::watch_reduction(TimeUs now_us) {
  if (std::exchange(broken_off_, false)) {
    ++counters_.reduce_failures;
    return Reduced::failed;
  }
  if (!reducing()) return Reduced::no;
  const Collective::State state = present_->collective->progress();
  const bool late = state == Collective::State::under_way && now_us >= *reduce_until_us_;
  if (state == Collective::State::under_way && !late) return Reduced::no;
  end_reduction();
  if (state == Collective::State::done) {
    pause_us_ = 0;
    return Reduced::done;
  }
  trouble_ = late ? "a sum over the GPUs did not end in time" : present_->collective->why();
  ++counters_.reduce_failures;
  present_.reset();
  pause(now_us);
  return Reduced::failed;
}

void LocalReducer::watch_making(TimeUs now_us) {
  if (!next_) return;
  const Collective::State state = next_->collective->progress();
  if (state == Collective::State::failed) {
    make_failed(next_->collective->why(), now_us);
  } else if (state == Collective::State::under_way) {
    if (now_us >= make_until_us_) make_failed("the GPUs did not come together in time", now_us);
  } else if (!reducing()) {  // otherwise the present one first ends its reduction
    present_ = std::move(next_);
    next_.reset();
    ++counters_.made;
  }
}

void LocalReducer::make_failed(std::string why, TimeUs now_us) {
  trouble_ = std::move(why);
  ++counters_.make_failures;
  next_.reset();
  pause(now_us);
}

void LocalReducer::pause(TimeUs now_us) {
  pause_us_ = pause_us_ == 0 ? limits_.pause_us : std::min(2 * pause_us_, limits_.longest_pause_us);
  not_before_us_ = now_us + pause_us_;
}

bool LocalReducer::all_present() const {
  return present_ && std::equal(wanted_.begin(), wanted_.end(), present_->ranks.begin(), present_->ranks.end());
}

bool LocalReducer::settled() const {
  return !next_ && !reducing() && !broken_off_ && (wanted_.empty() || all_present());
}

void LocalReducer::make_if_needed(TimeUs now_us) {
  // A communicator that is being made is finished first, even if other GPUs have joined in the meantime. Otherwise GPUs
  // that keep coming would keep everybody waiting.
  if (next_ || now_us < not_before_us_ || wanted_.empty() || all_present()) return;
  std::vector<Rank> ranks(wanted_.begin(), wanted_.end());
  auto collective = collectives_.make(ranks);
  GOSSAMER_CHECK(collective != nullptr);
  next_ = Group{std::move(ranks), std::move(collective)};
  make_until_us_ = now_us + limits_.make_us;
}

}  // namespace gossamer::device
