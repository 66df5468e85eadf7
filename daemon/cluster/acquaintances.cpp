#include "daemon/cluster/acquaintances.hpp"

#include <algorithm>
#include <sstream>

#include "peer/address.hpp"

namespace gossamer::daemon {
namespace {

constexpr const char* members_name = "members";

}  // namespace

Acquaintances::Acquaintances(const StateFolder& state, Workers& disk, spdlog::logger& log)
    : state_(state), disk_(disk), log_(log) {
  const auto text = state_.load(members_name);
  if (!text) {
    log_.warn("{}; only configured peers are dialled", text.error());
    return;
  }
  std::istringstream lines(text->value_or(""));
  std::size_t unreadable = 0;
  for (std::string line; kept_.size() < max_acquaintances && std::getline(lines, line);) {
    if (peer::parse_address(line, peer::AddressUse::dial)) {
      kept_.push_back(line);
    } else {
      ++unreadable;
    }
  }
  if (unreadable > 0) {
    log_.warn("{}: {} lines are no addresses, so the file is damaged; those are not dialled",
              (state_.path() / members_name).string(), unreadable);
  }
}

void Acquaintances::keep(std::vector<std::string> addresses) {
  if (addresses.empty()) return;
  if (addresses.size() > max_acquaintances) addresses.resize(max_acquaintances);
  if (addresses == kept_ || *writing_) return;
  std::string text;
  for (const std::string& address : addresses)
    text += address + "\n";
  const bool taken = disk_.submit([&state = state_, text = std::move(text)] { return state.store(members_name, text); },
                                  [writing = writing_, &log = log_](std::expected<void, std::string>&& stored) {
                                    *writing = false;
                                    if (!stored)
                                      log.warn("{}; after a restart only configured peers are dialled", stored.error());
                                  });
  if (!taken) return;  // the daemon is stopping
  *writing_ = true;
  kept_ = std::move(addresses);
}

}  // namespace gossamer::daemon
