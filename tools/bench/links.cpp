// gossamer-bench links measures the rate of several links of one node together, for several numbers of I/O threads,
// beside raw ZeroMQ over one connection. It also shows how evenly the links' encryption is spread over the threads. A
// connection stays with one thread, so the busiest thread matters: with a core for each thread, its share limits the
// rate. Here sender and receivers share the machine.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/bench/commands.hpp"
#include "tools/bench/link.hpp"
#include "tools/bench/measure.hpp"

namespace gossamer::bench {
namespace {

struct LinksOptions {
  std::size_t links = 4;
  std::vector<int> io_threads = {1, 2, 3};
  peer::BulkProtection bulk = peer::BulkProtection::sealed;
  std::size_t rounds = 3;
  double seconds = 1;
  bool json = false;
};

/// One number for each round.
struct Column {
  std::vector<double> rates, ratios, busiest;
};

void report(const LinksOptions& options, const std::map<int, Column>& columns) {
  if (options.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& [threads, column] : columns) {
      rows.push_back({{"io_threads", threads},
                      {"bytes_per_s", to_json(spread_of(column.rates))},
                      {"to_raw", to_json(spread_of(column.ratios))},
                      {"busiest_share", to_json(spread_of(column.busiest))}});
    }
    fmt::print("{}\n", nlohmann::json{{"links", options.links}, {"rows", std::move(rows)}}.dump());
    return;
  }
  fmt::print("{} links of one node on loopback, q8; min / median / max of {} rounds\n", options.links, options.rounds);
  fmt::print("{:>12}{:>22}{:>22}{:>26}\n", "I/O threads", "bytes/raw, one way", "GB/s", "busiest thread's share");
  for (const auto& [threads, column] : columns) {
    std::vector<double> gigabytes = column.rates;
    for (double& rate : gigabytes)
      rate /= 1e9;
    fmt::print("{:>12}{:>22}{:>22}{:>26}\n", threads, text_of(spread_of(column.ratios), 2),
               text_of(spread_of(gigabytes), 2), text_of(spread_of(column.busiest), 2));
  }
}

void run(const LinksOptions& options) {
  std::map<int, Column> columns;
  for (std::size_t round = 0; round < options.rounds; ++round) {
    const double raw = raw_zeromq(true, raw_frame_bytes, options.seconds).bytes_per_s;
    for (const int threads : options.io_threads) {
      const LinkRun links =
          link_run({.bulk = options.bulk, .links = options.links, .io_threads = threads, .seconds = options.seconds});
      Column& column = columns[threads];
      column.rates.push_back(links.transport.bytes_per_s);
      column.ratios.push_back(links.transport.bytes_per_s / raw);
      column.busiest.push_back(links.io_shares.front());
    }
  }
  report(options, columns);
}

}  // namespace

void add_links_command(CLI::App& app) {
  auto options = std::make_shared<LinksOptions>();
  CLI::App* const command =
      app.add_subcommand("links", "What several links of one node move, by its number of I/O threads");
  add_number(command, "--links", options->links, 1, 32, "Links, each to a node of its own in this process");
  add_number(command, "--io-threads", options->io_threads, 1, 64, "Numbers of I/O threads to compare");
  add_bulk(command, options->bulk);
  add_number(command, "--rounds", options->rounds, 1, 1000, "How often each is measured, in turn");
  add_number(command, "--seconds", options->seconds, 0.1, 3600.0, "Length of a measurement");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace gossamer::bench
