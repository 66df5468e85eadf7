// The node's pages over HTTP: /metrics for Prometheus, /status.json, and the status page, which draws status.json.
//
// Made by the shell; everything runs on the loop's thread. Samples the jobs every history_period. An answer is made at
// most once every page_cache_period, so that many readers cost no more than one.

#pragma once

#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/report/history.hpp"
#include "daemon/report/metrics.hpp"
#include "daemon/system/http_server.hpp"

namespace gossamer::daemon {

inline constexpr std::chrono::milliseconds page_cache_period{500};
/// Lines of the log are cut after this many bytes.
inline constexpr std::size_t max_page_log_line_bytes = 500;

/// Where the page gets what it shows; called from the loop.
struct PageSources {
  std::function<Observed()> observed;
  std::function<std::vector<ClusterMemberStatus>()> members;
  std::function<std::vector<SummaryStatus>()> cluster;
  std::function<std::vector<std::string>()> log;  ///< oldest first
};

class Page {
 public:
  /// All references outlive the page, and so does everything that the sources use.
  [[nodiscard]] static std::expected<std::unique_ptr<Page>, std::string> open(asio::io_context& loop,
                                                                              const std::string& listen,
                                                                              PageSources sources, spdlog::logger& log);
  /// http://host:port/
  [[nodiscard]] std::string url() const;
  /// The answer to a path.
  [[nodiscard]] HttpReply answer(std::string_view path);

 private:
  using Clock = std::chrono::steady_clock;
  Page(asio::io_context& loop, PageSources sources);
  void sample();
  [[nodiscard]] std::string status_json();
  [[nodiscard]] HttpReply cached(std::string_view path, const char* type, const std::function<std::string()>& make);

  const PageSources sources_;
  History history_;
  struct Made {
    Clock::time_point at;
    std::shared_ptr<const std::string> body;
  };
  std::map<std::string, Made, std::less<>> made_;  // by path; only paths that exist
  asio::steady_timer timer_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace gossamer::daemon
