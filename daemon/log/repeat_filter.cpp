#include "daemon/log/repeat_filter.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::daemon {
namespace {

std::string without_numbers(std::string_view line) {
  std::string kind;
  for (const char c : line) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      kind += c;
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

}  // namespace

bool RepeatFilter::say(std::string_view line, Time now) {
  std::string name = without_numbers(line);
  auto found = kinds_.find(name);
  if (found == kinds_.end()) {
    if (kinds_.size() == max_kinds) {
      const auto oldest = std::ranges::min_element(kinds_, {}, [](const auto& item) { return item.second.begun; });
      if (oldest->second.count > burst_)
        forgotten_.push_back({std::move(oldest->second.line), oldest->second.count - burst_});
      kinds_.erase(oldest);
    }
    found = kinds_.emplace(std::move(name), Kind{.line = std::string(line), .begun = now}).first;
  }
  return ++found->second.count <= burst_;
}

std::vector<RepeatFilter::HeldBack> RepeatFilter::over(Time now) {
  std::vector<HeldBack> held_back = std::exchange(forgotten_, {});
  for (auto item = kinds_.begin(); item != kinds_.end();) {
    Kind& kind = item->second;
    // A clock that was set back also ends a window.
    if (now >= kind.begun && now - kind.begun < window) {
      ++item;
      continue;
    }
    if (kind.count > burst_) held_back.push_back({std::move(kind.line), kind.count - burst_});
    item = kinds_.erase(item);
  }
  return held_back;
}

bool LineBudget::take(Time now) {
  const std::chrono::duration<double> since = now - last_.value_or(now);
  if (since.count() > 0) lines_ = std::min(burst, lines_ + per_s * since.count());  // a clock may have been set back
  last_ = now;
  if (lines_ < 1) {
    ++left_out_;
    return false;
  }
  lines_ -= 1;
  return true;
}

}  // namespace gossamer::daemon
