#include "daemon/device/kept_arrays.hpp"

#include <algorithm>
#include <utility>

#include "gossip/check.hpp"

namespace gossamer::device {

void KeptArrays::use(Array& array) {
  array.idle = array.stale = false;
  idle_bytes_ -= array.bytes;
}

float* KeptArrays::take(std::size_t bytes) {
  const auto found =
      std::ranges::find_if(arrays_, [&](const auto& item) { return item.second.idle && item.second.bytes == bytes; });
  if (found == arrays_.end()) return nullptr;
  use(found->second);
  return const_cast<float*>(found->first);
}

bool KeptArrays::keep(float* array) {
  Array& given = arrays_.at(array);
  GOSSAMER_CHECK(!given.idle);
  if (idle_bytes_ + given.bytes > max_idle_bytes) return false;
  given.idle = true;
  idle_bytes_ += given.bytes;
  return true;
}

std::size_t KeptArrays::end(const float* array) {
  const auto found = arrays_.find(array);
  GOSSAMER_CHECK(found != arrays_.end() && !found->second.idle);
  const std::size_t bytes = found->second.bytes;
  arrays_.erase(found);
  return bytes;
}

std::vector<float*> KeptArrays::take_back(Idle which) {
  std::vector<float*> taken;
  for (auto& [array, kept] : arrays_) {
    if (!kept.idle || (which == Idle::stale && !std::exchange(kept.stale, true))) continue;
    use(kept);
    taken.push_back(const_cast<float*>(array));
  }
  return taken;
}

}  // namespace gossamer::device
