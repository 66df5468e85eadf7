// gossamer-bench step: what gossamer_step() costs a training program, with nothing due and with one fragment due, for
// an fp32 model in memory. The daemon is played (tools/bench/played_daemon.hpp), so that nothing else runs.
//
// The floor of a due fragment is the traffic that it must cause, x += c; s = x, as a plain loop over the same kind of
// memory: the same model and the same shared buffers, another fragment, in turn with the steps.

#include <fmt/format.h>
#include <gossamer.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <stdexcept>

#include "tools/bench/client_run.hpp"
#include "tools/bench/commands.hpp"
#include "tools/bench/measure.hpp"
#include "tools/bench/memory_traffic.hpp"
#include "tools/bench/played_daemon.hpp"

namespace gossamer::bench {
namespace {

struct StepOptions {
  std::vector<std::size_t> elements{1'000'000, 25'000'000};
  std::size_t rounds = 9;
  bool json = false;
};

constexpr std::size_t idle_steps = 2'000'000;
/// Fragments served in a round, of whose times the median counts.
constexpr std::size_t fragments_a_round = 48;
constexpr std::int64_t ready_timeout_ms = 10'000;

/// What was seen for one size of model.
struct StepFigures {
  std::size_t elements;
  Spread idle_ns;   ///< a step with nothing due
  Spread due_us;    ///< a step that serves one whole fragment
  Spread floor_us;  ///< the memory traffic of that
  Spread ratio;     ///< due to floor, round by round
  double fragment_bytes;
};

void require(gossamer_status status, const char* what) {
  if (status != GOSSAMER_OK) throw std::runtime_error(fmt::format("{}: {}", what, gossamer_status_name(status)));
}

class StepBench {
 public:
  explicit StepBench(std::size_t elements) : model_(elements, 1.0F), run_(daemon_.socket_path(), model_) {
    daemon_.accept();
    require(gossamer_wait_ready(run_.get(), ready_timeout_ms), "the client does not get ready");
    gossamer_run_info info{};
    info.size = sizeof info;
    require(gossamer_info(run_.get(), &info), "gossamer_info");
    fragment_elements_ = info.fragment_elements;
    // The last fragment may be a short one; only whole ones are measured, unless it is the only one.
    whole_fragments_ = std::max<std::size_t>(1, elements / fragment_elements_);
  }
  StepBench(const StepBench&) = delete;
  StepBench& operator=(const StepBench&) = delete;

  StepFigures measure(std::size_t rounds) {
    for (std::uint32_t fragment = 0; fragment < daemon_.fragment_count(); ++fragment) {
      for (int buffer = 0; buffer < 3; ++buffer)
        serve(fragment);  // touches every page
    }
    std::vector<double> idle, due, floor, ratio;
    for (std::size_t round = 0; round < rounds; ++round) {
      idle.push_back(1e9 / idle_steps * seconds_of([&] {
                       for (std::size_t n = 0; n < idle_steps; ++n)
                         (void)gossamer_step(run_.get(), 1);
                     }));
      std::vector<double> due_us, floor_us;
      for (std::size_t n = 0; n < fragments_a_round; ++n) {
        floor_us.push_back(1e6 * seconds_of_floor(next_fragment()));
        due_us.push_back(1e6 * serve(next_fragment()));
      }
      due.push_back(spread_of(due_us).median);  // the median: others use the machine, too
      floor.push_back(spread_of(floor_us).median);
      ratio.push_back(due.back() / floor.back());
    }
    return {model_.size(),    spread_of(idle),  spread_of(due),
            spread_of(floor), spread_of(ratio), static_cast<double>(elements_of(0)) * 4 * sizeof(float)};
  }

 private:
  [[nodiscard]] std::uint32_t next_fragment() {
    fragment_ = (fragment_ + 1) % whole_fragments_;
    return static_cast<std::uint32_t>(fragment_);
  }
  [[nodiscard]] std::size_t elements_of(std::uint32_t fragment) const {
    return std::min(fragment_elements_, model_.size() - fragment * fragment_elements_);
  }

  /// Seconds of the step that serves a fragment.
  double serve(std::uint32_t fragment) {
    daemon_.make_due(fragment);
    const double seconds = seconds_of([&] { require(gossamer_step(run_.get(), 1), "gossamer_step"); });
    if (!daemon_.owns(fragment)) throw std::logic_error("a step did not serve the fragment that was due");
    return seconds;
  }

  double seconds_of_floor(std::uint32_t fragment) {
    float* const x = model_.data() + fragment * fragment_elements_;
    const float* const correction = daemon_.correction(fragment).data();
    float* const snapshot = daemon_.spare(fragment).data();
    return seconds_of([&] { add_and_copy(x, correction, snapshot, elements_of(fragment)); });
  }

  PlayedDaemon daemon_;
  std::vector<float> model_;
  ClientRun run_;
  std::size_t fragment_elements_ = 0;
  std::size_t whole_fragments_ = 0;
  std::size_t fragment_ = 0;
};

nlohmann::json to_json(const StepFigures& figures) {
  return {{"elements", figures.elements},           {"idle_step_ns", to_json(figures.idle_ns)},
          {"due_step_us", to_json(figures.due_us)}, {"floor_us", to_json(figures.floor_us)},
          {"due_to_floor", to_json(figures.ratio)}, {"fragment_traffic_bytes", figures.fragment_bytes}};
}

void print(const StepFigures& figures) {
  fmt::print("{:.1f} M parameters, fp32; min / median / max\n", static_cast<double>(figures.elements) / 1e6);
  fmt::print("  step with nothing due        {:>26} ns\n", text_of(figures.idle_ns, 1));
  fmt::print("  step that serves a fragment  {:>26} us  ({:.1f} GB/s)\n", text_of(figures.due_us, 0),
             figures.fragment_bytes / figures.due_us.median / 1e3);
  fmt::print("  its memory traffic alone     {:>26} us  ({:.1f} GB/s)\n", text_of(figures.floor_us, 0),
             figures.fragment_bytes / figures.floor_us.median / 1e3);
  fmt::print("  ratio                        {:>26}\n", text_of(figures.ratio, 2));
}

void run(const StepOptions& options) {
  nlohmann::json sizes = nlohmann::json::array();
  for (const std::size_t elements : options.elements) {
    const StepFigures figures = StepBench(elements).measure(options.rounds);
    if (options.json) {
      sizes.push_back(to_json(figures));
    } else {
      print(figures);
    }
  }
  if (options.json) fmt::print("{}\n", nlohmann::json{{"rounds", options.rounds}, {"models", sizes}}.dump());
}

}  // namespace

void add_step_command(CLI::App& app) {
  auto options = std::make_shared<StepOptions>();
  CLI::App* const command =
      app.add_subcommand("step", "gossamer_step() with nothing due and with a fragment due, beside its memory traffic");
  command->add_option("--elements", options->elements, "Sizes of the models in parameters; memory: 16 bytes each")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 32));
  command->add_option("--rounds", options->rounds, "How often each is measured, in turn")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace gossamer::bench
