#include "daemon/report/page.hpp"

#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "daemon/report/page_files.hpp"

namespace gossamer::daemon {
namespace {

double seconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

Page::Page(asio::io_context& loop, PageSources sources) : sources_(std::move(sources)), timer_(loop) {}

std::expected<std::unique_ptr<Page>, std::string> Page::open(asio::io_context& loop, const std::string& listen,
                                                             PageSources sources, spdlog::logger& log) {
  std::unique_ptr<Page> page(new Page(loop, std::move(sources)));
  auto server = HttpServer::open(
      loop, listen, [&page = *page](std::string_view path) { return page.answer(path); }, log);
  if (!server) return std::unexpected(std::move(server.error()));
  page->server_ = std::move(*server);
  page->sample();
  return page;
}

std::string Page::url() const {
  std::ostringstream text;  // its operator also prints the brackets of an IPv6 address
  text << "http://" << server_->endpoint() << "/";
  return text.str();
}

void Page::sample() {
  history_.sample(seconds(Clock::now()), sources_.observed().jobs);
  timer_.expires_after(history_period);
  timer_.async_wait([this](std::error_code error) {
    if (!error) sample();
  });
}

HttpReply Page::answer(std::string_view path) {
  if (path == "/metrics")
    return cached(path, metrics_content_type, [this] { return metrics_text(sources_.observed()); });
  if (path == "/status.json") return cached(path, "application/json", [this] { return status_json(); });
  for (const PageFile& file : page_files()) {
    if (path == file.path) return {.type = file.type, .body = std::make_shared<const std::string>(file.text)};
  }
  return text_reply(404, "there is no such page; there are /, /metrics and /status.json");
}

HttpReply Page::cached(std::string_view path, const char* type, const std::function<std::string()>& make) {
  const Clock::time_point now = Clock::now();
  auto made = made_.find(path);
  if (made == made_.end() || now - made->second.at >= page_cache_period)
    made = made_.insert_or_assign(std::string(path), Made{now, std::make_shared<const std::string>(make())}).first;
  return {.type = type, .body = made->second.body};
}

std::string Page::status_json() {
  const Observed observed = sources_.observed();
  nlohmann::json log = nlohmann::json::array();
  for (const std::string& line : sources_.log())
    log.push_back(line.size() > max_page_log_line_bytes ? line.substr(0, max_page_log_line_bytes) + "…" : line);
  nlohmann::json status = status_answer(observed.node);
  status.update(peers_answer(observed.peers));
  status.update(members_answer(sources_.members()));
  status.update(jobs_answer(observed.jobs));
  status["cluster"] = sources_.cluster();
  status["history"] = history_.json(seconds(Clock::now()));
  status["log"] = std::move(log);
  // A path in the log need not be UTF-8.
  return status.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace gossamer::daemon
