#include "tools/ctl/run/restart_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace gossamer::ctl {

std::expected<RestartPolicy, std::string> restart_policy(const std::string& text, double first_pause_s) {
  const auto wrong = [&] {
    return std::unexpected(fmt::format(
        "--restart {}: it is never, on-failure or always; on-failure:3 gives up after 3 restarts in a row", text));
  };
  RestartPolicy policy{.first_pause_s = first_pause_s};
  const std::size_t colon = text.find(':');
  const std::string when = text.substr(0, colon);
  if (when == "on-failure") {
    policy.when = RestartPolicy::When::on_failure;
  } else if (when == "always") {
    policy.when = RestartPolicy::When::always;
  } else if (text != "never") {
    return wrong();
  }
  if (colon == std::string::npos) return policy;
  std::uint32_t most = 0;
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data() + colon + 1, end, most);
  if (error != std::errc() || behind != end) return wrong();
  policy.most_in_a_row = most;
  return policy;
}

std::optional<double> Restarts::after_end(int status, double lived_s) {
  if (lived_s >= steady_life_s) in_a_row_ = 0;
  const bool again =
      policy_.when == RestartPolicy::When::always || (policy_.when == RestartPolicy::When::on_failure && status != 0);
  if (!again || (policy_.most_in_a_row && in_a_row_ >= *policy_.most_in_a_row)) return std::nullopt;
  // The exponent is limited, because the pause has long reached its limit by then.
  const double pause_s = policy_.first_pause_s * std::exp2(std::min<std::uint32_t>(in_a_row_, 32));
  ++in_a_row_;
  ++total_;
  return std::min(pause_s, std::max(max_pause_s, policy_.first_pause_s));
}

}  // namespace gossamer::ctl
