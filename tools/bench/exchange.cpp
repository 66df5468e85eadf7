// gossamer-bench exchange runs two real daemons on loopback, each with a client that has its own copy of a model, and
// measures how many bytes of model they average per second. Between these measurements, while the daemons are paused,
// it measures the rate of one link without computation, and the rate of raw ZeroMQ over one connection with and without
// CURVE. It also measures the CPU time of each stage of an exchange (tools/bench/exchange_report.hpp).
//
// A block that an exchange averages between the two counts once, as its fp32 bytes; wide blocks do not count. The
// daemons are children of this process and end with it. Everything is in a temporary folder.

#include <fmt/format.h>
#include <gossamer.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "gossip/types.hpp"
#include "tools/bench/bench_run.hpp"
#include "tools/bench/commands.hpp"
#include "tools/bench/daemon_pair.hpp"
#include "tools/bench/exchange_report.hpp"
#include "tools/bench/measure.hpp"
#include "tools/bench/thread_time.hpp"

namespace gossamer::bench {
namespace {

struct ExchangeOptions {
  std::size_t elements = 25'000'000;
  std::string codec = "q8";
  peer::BulkProtection bulk = peer::BulkProtection::sealed;
  std::size_t rounds = 5;
  double seconds = 2;
  std::size_t in_flight = 4;
  std::string daemon;
  bool json = false;
};

constexpr std::int64_t exchange_ready_timeout_ms = 60'000;
constexpr double reference_seconds = 1;
constexpr double warm_up_seconds = 2;
/// A client pauses this long between two steps, like a training step that leaves the cores alone.
constexpr std::chrono::microseconds step_interval{500};
/// A step changes this many elements, so that the two models stay apart.
constexpr std::size_t trained_elements = 16 * 1024;

/// The client of a training process: a model, a run, and a thread that steps.
class Client {
 public:
  Client(const std::string& socket, std::size_t elements, float value)
      : model_(elements, value),
        run_(socket, GOSSAMER_F32, model_.data(), model_.size()),
        thread_(run_, exchange_ready_timeout_ms, [this] { step(); }) {}

  void wait_ready() const { thread_.wait_ready(); }

 private:
  void step() {
    const std::size_t count = std::min(trained_elements, model_.size() - at_);
    for (std::size_t n = at_; n < at_ + count; ++n)
      model_[n] += static_cast<float>(n % 7) * 1e-4F - 3e-4F;
    at_ = at_ + count < model_.size() ? at_ + count : 0;
    (void)gossamer_step(run_.get(), 1);
    std::this_thread::sleep_for(step_interval);
  }

  std::vector<float> model_;
  std::size_t at_ = 0;  ///< the element that is trained next
  BenchRun run_;
  TrainingThread thread_;  ///< last, so that it stops before the members that it uses are destroyed
};

/// The time-outs are longer than the pauses of the daemons in which the references are measured.
std::string overlay_settings(peer::BulkProtection bulk) {
  return fmt::format("link_timeout_ms = 30000\nsuspicion_mult = 30\nbulk = \"{}\"\n", peer::name_of(bulk));
}

std::string gossip_settings(const ExchangeOptions& options) {
  return fmt::format(
      "[gossip]\ncodec = \"{}\"\nperiod_ms = 0\ntime_share = 0.0\nbandwidth_share = 0.0\nin_flight = {}\n"
      "exchange_lifetime_ms = 60000\n",
      options.codec, options.in_flight);
}

/// The counters of the first daemon, which has a part in every exchange.
struct Count {
  double payload_bytes = 0, blocks = 0, wide_blocks = 0, unresolved = 0;
  double exchanges = 0, busy = 0;  ///< `busy` counts both daemons
  DaemonTime used_s = {};          ///< of both daemons
};

class ExchangeBench {
 public:
  explicit ExchangeBench(const ExchangeOptions& options)
      : options_(options),
        daemons_(options.daemon, overlay_settings(options.bulk), gossip_settings(options)),
        first_client_(daemons_.first().client_socket(), options.elements, 0.5F),
        second_client_(daemons_.second().client_socket(), options.elements, 0.25F) {
    results_.elements = options.elements;
    results_.codec = options.codec == "f32" ? Codec::f32 : options.codec == "q4" ? Codec::q4 : Codec::q8;
    first_client_.wait_ready();
    second_client_.wait_ready();
    std::this_thread::sleep_for(std::chrono::duration<double>(warm_up_seconds));
  }

  void run() {
    const Count begin = count();
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      measure_exchanges();
      measure_references();
    }
    const Count end = count();
    results_.wide_fraction = ratio(end.wide_blocks - begin.wide_blocks, end.blocks - begin.blocks);
    const double busy = end.busy - begin.busy;
    results_.busy_fraction = ratio(busy, busy + end.exchanges - begin.exchanges);
    results_.unresolved = end.unresolved;
    results_.kernels = kernel_costs(results_.codec);
    if (options_.json) {
      fmt::print("{}\n", to_json(results_).dump());
    } else {
      fmt::print("{}", text_of(results_));
    }
  }

 private:
  static double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

  static nlohmann::json job_at(const DaemonProcess& daemon) {
    const nlohmann::json answer = daemon.ask("jobs");
    for (const nlohmann::json& job : answer.at("jobs")) {
      if (job.at("job").get<std::string>() == BenchRun::job_name) return job;
    }
    throw std::runtime_error("gossamerd lost the job");
  }

  [[nodiscard]] Count count() {
    const nlohmann::json job = job_at(daemons_.first());
    Count count{
        .payload_bytes = job.at("payload_bytes_sent").get<double>() + job.at("payload_bytes_received").get<double>(),
        .blocks = job.at("blocks"),
        .wide_blocks = job.at("wide_blocks"),
        .unresolved = job.at("unresolved"),
        .exchanges = job.at("exchanges"),
        .busy = job.at("busy").get<double>() + job_at(daemons_.second()).at("busy").get<double>()};
    for (const auto* daemon : {&daemons_.first(), &daemons_.second()}) {
      count.used_s.loop += cpu_s(daemon->process(), "gossamerd");
      count.used_s.workers += cpu_s(daemon->process(), "worker");
      count.used_s.io += cpu_s(daemon->process(), "ZMQbg");
    }
    return count;
  }

  void measure_exchanges() {
    const Count before = count();
    const double seconds =
        seconds_of([&] { std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds)); });
    const Count after = count();
    const double averaged_blocks = (after.blocks - after.wide_blocks) - (before.blocks - before.wide_blocks);
    const double payload_bytes = after.payload_bytes - before.payload_bytes;
    results_.model_rates.push_back(averaged_blocks * block_elements * sizeof(float) / seconds);
    results_.payload_rates.push_back(payload_bytes / seconds);
    const auto ns_per_byte = [&](double DaemonTime::*used_s) {
      return ratio((after.used_s.*used_s - before.used_s.*used_s) * 1e9, payload_bytes);
    };
    results_.daemon_ns_per_byte.push_back(
        {ns_per_byte(&DaemonTime::loop), ns_per_byte(&DaemonTime::workers), ns_per_byte(&DaemonTime::io)});
  }

  void measure_references() {
    daemons_.first().pause();
    daemons_.second().pause();
    results_.links.push_back(link_run({.codec = results_.codec, .bulk = options_.bulk, .seconds = reference_seconds}));
    results_.raw.push_back(raw_zeromq(true, results_.message_bytes(), reference_seconds));
    results_.raw_plain.push_back(raw_zeromq(false, results_.message_bytes(), reference_seconds));
    daemons_.first().resume();
    daemons_.second().resume();
    // The next measurement begins after the daemons have done the work that has piled up during the pause.
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds / 4));
  }

  ExchangeOptions options_;
  DaemonPair daemons_;
  Client first_client_, second_client_;
  ExchangeResults results_;
};

}  // namespace

void add_exchange_command(CLI::App& app) {
  auto options = std::make_shared<ExchangeOptions>();
  CLI::App* const command = app.add_subcommand(
      "exchange", "Model bytes that two daemons on loopback average per second, beside raw ZeroMQ with CURVE");
  add_number(command, "--elements", options->elements, std::size_t{1}, std::size_t{1} << 32,
             "Size of the model in parameters; memory: 32 bytes each");
  command->add_option("--codec", options->codec, "How values travel")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "q8", "q4"}));
  add_bulk(command, options->bulk);
  add_number(command, "--rounds", options->rounds, 1, 1000, "How often each is measured, in turn");
  add_number(command, "--seconds", options->seconds, 0.1, 3600.0, "Length of a measurement of the daemons");
  add_number(command, "--in-flight", options->in_flight, 1, 1024, "Exchanges that each daemon has under way at once");
  command->add_option("--daemon", options->daemon, "The gossamerd to measure (default: the one beside this program)");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { ExchangeBench(*options).run(); });
}

}  // namespace gossamer::bench
