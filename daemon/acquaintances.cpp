#include "daemon/acquaintances.hpp"

#include <algorithm>
#include <sstream>

#include "peer/address.hpp"

namespace gossamer::daemon {
namespace {

constexpr const char* file_name = "members";

}  // namespace

Acquaintances::Acquaintances(const StateFolder& state, spdlog::logger& log) : state_(state), log_(log) {
  const auto text = state_.load(file_name);
  if (!text) {
    log_.warn("{}; only configured peers are dialled", text.error());
    return;
  }
  std::istringstream lines(text->value_or(""));
  for (std::string line; kept_.size() < max_acquaintances && std::getline(lines, line);) {
    if (peer::parse_address(line, peer::AddressUse::dial)) kept_.push_back(line);
  }
}

void Acquaintances::keep(std::vector<std::string> addresses) {
  if (addresses.empty()) return;
  if (addresses.size() > max_acquaintances) addresses.resize(max_acquaintances);
  if (addresses == kept_) return;
  kept_ = std::move(addresses);
  std::string text;
  for (const std::string& address : kept_)
    text += address + "\n";
  if (const auto stored = state_.store(file_name, text); !stored) {
    log_.warn("{}; after a restart only configured peers are dialled", stored.error());
  }
}

}  // namespace gossamer::daemon
