// Decides whether and when `gossamerctl run` restarts a client that has ended.
//
// Pure: the client's status and lifetime come in, a pause goes out.

#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>

namespace gossamer::ctl {

/// A client that lived this long was well, and its restarts are counted from 0 again.
inline constexpr double steady_life_s = 60;
/// The pauses double with each restart up to this.
inline constexpr double max_pause_s = 60;

struct RestartPolicy {
  enum class When : std::uint8_t { never, on_failure, always };
  When when = When::never;
  std::optional<std::uint32_t> most_in_a_row = {};  ///< none: no limit
  double first_pause_s = 1;
};

/// Parses "never", "on-failure", "on-failure:3", "always" or "always:3". An error lists these.
[[nodiscard]] std::expected<RestartPolicy, std::string> restart_policy(const std::string& text, double first_pause_s);

/// The restarts of one client.
class Restarts {
 public:
  explicit Restarts(const RestartPolicy& policy) : policy_(policy) {}

  /// The client ended with `status`; 0 is success. Returns in how many seconds it is to be started again, or nothing if
  /// not at all.
  [[nodiscard]] std::optional<double> after_end(int status, double lived_s);
  [[nodiscard]] std::uint32_t in_a_row() const { return in_a_row_; }
  [[nodiscard]] std::uint32_t total() const { return total_; }

 private:
  RestartPolicy policy_;
  std::uint32_t in_a_row_ = 0;  // restarts without a steady life between them
  std::uint32_t total_ = 0;
};

}  // namespace gossamer::ctl
