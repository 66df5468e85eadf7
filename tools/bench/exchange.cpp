// gossamer-bench exchange: two real daemons on loopback under CURVE, a client at each with its own copy of a model, and
// how many bytes of model they average per second. Beside it, in turn and with the daemons stopped in their tracks,
// what raw ZeroMQ moves over one connection with CURVE.
//
// A block that an exchange averages between the two counts once, as its fp32 bytes; wide blocks do not count. The
// daemons are children of this process and end with it; everything is in a temporary folder.

#include <fmt/format.h>
#include <gossamer.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "gossip/types.hpp"
#include "tools/bench/client_run.hpp"
#include "tools/bench/commands.hpp"
#include "tools/bench/daemon_process.hpp"
#include "tools/bench/measure.hpp"
#include "tools/bench/raw_zeromq.hpp"

namespace gossamer::bench {
namespace {

struct ExchangeOptions {
  std::size_t elements = 25'000'000;
  std::string codec = "q8";
  std::size_t rounds = 5;
  double seconds = 2;
  std::size_t in_flight = 4;
  std::string daemon;
  bool json = false;
};

constexpr std::int64_t ready_timeout_ms = 60'000;
constexpr double raw_seconds = 1;
constexpr double warm_up_seconds = 2;
/// Pause of a client between two steps: a training step that leaves the cores alone.
constexpr std::chrono::microseconds step_interval{500};
/// Elements that a step changes, so that the two models stay apart.
constexpr std::size_t trained_elements = 16 * 1024;

/// A training process's part: a model, a run, and a thread that steps.
class Client {
 public:
  Client(const std::string& socket, std::size_t elements, float value)
      : model_(elements, value), run_(socket, model_), thread_([this](const std::stop_token& stop) { train(stop); }) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Waits until the run takes part; throws if it does not in time.
  void wait_ready() const {
    state_.wait(gossamer_status_pending);
    if (state_ != GOSSAMER_OK) {
      throw std::runtime_error(fmt::format("a client does not get ready: {}",
                                           gossamer_status_name(static_cast<gossamer_status>(state_.load()))));
    }
  }

 private:
  static constexpr int gossamer_status_pending = -1;

  void train(const std::stop_token& stop) {
    const gossamer_status ready = gossamer_wait_ready(run_.get(), ready_timeout_ms);
    state_ = ready;
    state_.notify_all();
    std::size_t at = 0;
    while (ready == GOSSAMER_OK && !stop.stop_requested()) {
      const std::size_t count = std::min(trained_elements, model_.size() - at);
      for (std::size_t n = at; n < at + count; ++n)
        model_[n] += static_cast<float>(n % 7) * 1e-4F - 3e-4F;
      at = at + count < model_.size() ? at + count : 0;
      (void)gossamer_step(run_.get(), 1);
      std::this_thread::sleep_for(step_interval);
    }
  }

  std::vector<float> model_;
  ClientRun run_;
  std::atomic<int> state_{gossamer_status_pending};
  std::jthread thread_;  ///< last: uses the members above, and stops before they go
};

std::string configuration(const ExchangeOptions& options, const std::filesystem::path& folder,
                          const std::string& cluster_key, const std::string& peer) {
  // The time-outs outlast the pauses in which the reference is measured.
  return fmt::format(
      "[node]\nstate_dir = \"{0}/state\"\nsocket_dir = \"{0}\"\n"
      "[overlay]\nlisten = \"tcp://127.0.0.1:0\"\ncluster_key_file = \"{1}\"\npeers = [{2}]\n"
      "link_timeout_ms = 30000\nsuspicion_mult = 30\n"
      "[gossip]\ncodec = \"{3}\"\nperiod_ms = 0\ntime_share = 0.0\nbandwidth_share = 0.0\nin_flight = "
      "{4}\nexchange_lifetime_ms = 60000\n"
      "[log]\nlevel = \"warning\"\n",
      folder.string(), cluster_key, peer.empty() ? "" : '"' + peer + '"', options.codec, options.in_flight);
}

/// Where the two stand, from the first's point of view, who has a part in every exchange.
struct Count {
  double payload_bytes = 0, blocks = 0, wide_blocks = 0, unresolved = 0;
};

class ExchangeBench {
 public:
  explicit ExchangeBench(const ExchangeOptions& options) : options_(options) {
    const std::filesystem::path program =
        options.daemon.empty() ? std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gossamerd"
                               : std::filesystem::path(options.daemon);
    if (!std::filesystem::exists(program)) {
      throw std::runtime_error(program.string() + " does not exist; name it with --daemon");
    }
    const std::filesystem::path folder = folder_.path();
    first_.emplace(program, folder / "a", configuration(options, folder / "a", "", ""));
    const std::string address = first_->ask("status").at("node").at("address");
    second_.emplace(program, folder / "b",
                    configuration(options, folder / "b", folder / "a" / "state" / "cluster.key", address));
    first_client_.emplace(first_->client_socket(), options.elements, 0.5F);
    second_client_.emplace(second_->client_socket(), options.elements, 0.25F);
    first_client_->wait_ready();
    second_client_->wait_ready();
    std::this_thread::sleep_for(std::chrono::duration<double>(warm_up_seconds));
  }

  void run() {
    const Count begin = count();
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      measure_exchanges();
      measure_raw();
      ratios_.push_back(model_rates_.back() / raw_rates_.back());
    }
    const Count end = count();
    report(end.wide_blocks - begin.wide_blocks, end.blocks - begin.blocks, end.unresolved);
  }

 private:
  [[nodiscard]] Count count() const {
    const nlohmann::json answer = first_->ask("jobs");
    for (const nlohmann::json& job : answer.at("jobs")) {
      if (job.at("job").get<std::string>() != ClientRun::job_name) continue;
      return {job.at("payload_bytes_sent").get<double>() + job.at("payload_bytes_received").get<double>(),
              job.at("blocks"), job.at("wide_blocks"), job.at("unresolved")};
    }
    throw std::runtime_error("gossamerd lost the job");
  }

  void measure_exchanges() {
    const Count before = count();
    const double seconds =
        seconds_of([&] { std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds)); });
    const Count after = count();
    const double averaged_blocks = (after.blocks - after.wide_blocks) - (before.blocks - before.wide_blocks);
    model_rates_.push_back(averaged_blocks * block_elements * sizeof(float) / seconds);
    payload_rates_.push_back((after.payload_bytes - before.payload_bytes) / seconds);
  }

  void measure_raw() {
    first_->pause();
    second_->pause();
    raw_rates_.push_back(raw_zeromq_bytes_per_s(raw_seconds));
    first_->resume();
    second_->resume();
    // What piled up meanwhile is worked off first.
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds / 4));
  }

  void report(double wide_blocks, double blocks, double unresolved) const {
    const double wide = blocks > 0 ? wide_blocks / blocks : 0;
    if (options_.json) {
      fmt::print("{}\n", nlohmann::json{{"elements", options_.elements},
                                        {"codec", options_.codec},
                                        {"model_bytes_per_s", to_json(spread_of(model_rates_))},
                                        {"payload_bytes_per_s", to_json(spread_of(payload_rates_))},
                                        {"raw_zeromq_bytes_per_s", to_json(spread_of(raw_rates_))},
                                        {"model_to_raw", to_json(spread_of(ratios_))},
                                        {"wide_blocks_fraction", wide},
                                        {"unresolved", unresolved}}
                             .dump());
      return;
    }
    const auto gigabytes = [](std::vector<double> rates) {
      for (double& rate : rates)
        rate /= 1e9;
      return text_of(spread_of(std::move(rates)), 2);
    };
    fmt::print("{:.1f} M parameters, {}, two daemons on loopback under CURVE; min / median / max of {} rounds\n",
               static_cast<double>(options_.elements) / 1e6, options_.codec, options_.rounds);
    fmt::print("  model averaged               {:>22} GB/s\n", gigabytes(model_rates_));
    fmt::print("  payload, both directions     {:>22} GB/s\n", gigabytes(payload_rates_));
    fmt::print("  raw ZeroMQ, CURVE, one way   {:>22} GB/s\n", gigabytes(raw_rates_));
    fmt::print("  model to raw                 {:>22}\n", text_of(spread_of(ratios_), 2));
    fmt::print("  wide blocks                  {:>22.2f} %\n", 100 * wide);
    fmt::print("  unresolved exchanges         {:>22.0f}\n", unresolved);
  }

  ExchangeOptions options_;
  TemporaryFolder folder_;
  std::optional<DaemonProcess> first_, second_;
  std::optional<Client> first_client_, second_client_;
  std::vector<double> model_rates_, payload_rates_, raw_rates_, ratios_;
};

}  // namespace

void add_exchange_command(CLI::App& app) {
  auto options = std::make_shared<ExchangeOptions>();
  CLI::App* const command = app.add_subcommand(
      "exchange", "Model bytes that two daemons on loopback average per second, beside raw ZeroMQ with CURVE");
  command->add_option("--elements", options->elements, "Size of the model in parameters; memory: 32 bytes each")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 32));
  command->add_option("--codec", options->codec, "How values travel")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "q8", "q4"}));
  command->add_option("--rounds", options->rounds, "How often each is measured, in turn")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--seconds", options->seconds, "Length of a measurement of the daemons")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  command->add_option("--in-flight", options->in_flight, "Exchanges that each daemon has under way at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--daemon", options->daemon, "The gossamerd to measure (default: the one beside this program)");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { ExchangeBench(*options).run(); });
}

}  // namespace gossamer::bench
