// gossamer-bench step measures the cost of gossamer_step() for a training program, for models in fp32 and in bfloat16.
//
// It measures steps with nothing due and with one fragment due, with a fake daemon (tools/bench/fake_daemon.hpp), so
// that nothing else runs. The floor of a due fragment is a plain loop (x += c; s = x) that causes only the memory
// traffic needed. In turn with the steps, the loop works on another fragment of the same model and the same shared
// buffers. Then the benchmark measures the steps' share of a training's time with real daemons
// (tools/bench/training.hpp).

#include <fmt/format.h>
#include <gossamer.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "tools/bench/bench_run.hpp"
#include "tools/bench/commands.hpp"
#include "tools/bench/fake_daemon.hpp"
#include "tools/bench/measure.hpp"
#include "tools/bench/memory_traffic.hpp"
#include "tools/bench/training.hpp"

namespace gossamer::bench {
namespace {

struct StepOptions {
  std::vector<std::size_t> elements{1'000'000, 25'000'000, 350'000'000};
  std::vector<std::string> dtypes{"f32", "bf16"};
  std::size_t rounds = 9;
  TrainingOptions training;
  bool json = false;
};

constexpr std::size_t idle_steps = 2'000'000;
/// Fragments served in each round; the median of their times counts.
constexpr std::size_t fragments_a_round = 48;
constexpr std::int64_t step_ready_timeout_ms = 10'000;

/// The figures for one size of model.
struct StepFigures {
  std::size_t elements;
  std::string dtype;
  RepeatSpread idle_ns;   ///< a step with nothing due
  RepeatSpread due_us;    ///< a step that serves one whole fragment
  RepeatSpread floor_us;  ///< the memory traffic of such a step
  RepeatSpread ratio;     ///< due to floor, round by round
  double fragment_bytes;  ///< bytes of memory traffic
  std::optional<TrainingFigures> training;
};

/// The share of a machine's memory that may be used; the rest is for other programs.
constexpr double usable_memory = 0.9;

double available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  double kib = 0;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<double>::infinity();
}

bool fits(double bytes, const std::string& what) {
  const double available = usable_memory * available_memory_bytes();
  if (bytes <= available) return true;
  fmt::print(stderr, "{} left out: it takes {:.1f} GB of memory, and {:.1f} GB are free\n", what, bytes / 1e9,
             available / 1e9);
  return false;
}

void require(gossamer_status status, const char* what) {
  if (status != GOSSAMER_OK) throw std::runtime_error(fmt::format("{}: {}", what, gossamer_status_name(status)));
}

class StepBench {
 public:
  StepBench(gossamer_dtype dtype, std::size_t elements)
      : dtype_(dtype),
        elements_(elements),
        model_(elements * element_bytes()),
        run_(daemon_.socket_path(), dtype, model_.data(), elements) {
    daemon_.accept();
    require(gossamer_wait_ready(run_.get(), step_ready_timeout_ms), "the client does not get ready");
    gossamer_run_info info{};
    info.size = sizeof info;
    require(gossamer_info(run_.get(), &info), "gossamer_info");
    fragment_elements_ = info.fragment_elements;
    // The last fragment may be short. Only whole fragments are measured, unless there is only a short one.
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
      due.push_back(spread_of(due_us).median);  // the median, because other programs use the machine, too
      floor.push_back(spread_of(floor_us).median);
      ratio.push_back(due.back() / floor.back());
    }
    return {.elements = elements_,
            .dtype = dtype_ == GOSSAMER_BF16 ? "bf16" : "f32",
            .idle_ns = spread_of(idle),
            .due_us = spread_of(due),
            .floor_us = spread_of(floor),
            .ratio = spread_of(ratio),
            .fragment_bytes = static_cast<double>(elements_of(0) * 2 * (element_bytes() + sizeof(float))),
            .training = std::nullopt};
  }

 private:
  [[nodiscard]] std::uint32_t next_fragment() {
    fragment_ = (fragment_ + 1) % whole_fragments_;
    return static_cast<std::uint32_t>(fragment_);
  }
  [[nodiscard]] std::size_t elements_of(std::uint32_t fragment) const {
    return std::min(fragment_elements_, elements_ - fragment * fragment_elements_);
  }

  /// The seconds of a step that serves this fragment.
  double serve(std::uint32_t fragment) {
    daemon_.make_due(fragment);
    const double seconds = seconds_of([&] { require(gossamer_step(run_.get(), 1), "gossamer_step"); });
    if (!daemon_.owns(fragment)) throw std::logic_error("a step did not serve the fragment that was due");
    return seconds;
  }

  double seconds_of_floor(std::uint32_t fragment) {
    std::byte* const x = model_.data() + fragment * fragment_elements_ * element_bytes();
    const float* const correction = daemon_.correction(fragment).data();
    float* const snapshot = daemon_.spare(fragment).data();
    const std::size_t count = elements_of(fragment);
    return seconds_of([&] {
      if (dtype_ == GOSSAMER_BF16) {
        add_and_copy_bfloat16(reinterpret_cast<std::uint16_t*>(x), correction, snapshot, count);
      } else {
        add_and_copy(reinterpret_cast<float*>(x), correction, snapshot, count);
      }
    });
  }

  [[nodiscard]] std::size_t element_bytes() const { return dtype_ == GOSSAMER_BF16 ? 2 : 4; }

  const gossamer_dtype dtype_;
  const std::size_t elements_;
  FakeDaemon daemon_;
  std::vector<std::byte> model_;
  BenchRun run_;
  std::size_t fragment_elements_ = 0;
  std::size_t whole_fragments_ = 0;
  std::size_t fragment_ = 0;
};

nlohmann::json to_json(const StepFigures& figures) {
  nlohmann::json json = {{"elements", figures.elements},
                         {"dtype", figures.dtype},
                         {"idle_step_ns", to_json(figures.idle_ns)},
                         {"due_step_us", to_json(figures.due_us)},
                         {"floor_us", to_json(figures.floor_us)},
                         {"due_to_floor", to_json(figures.ratio)},
                         {"fragment_traffic_bytes", figures.fragment_bytes}};
  if (const auto& training = figures.training) {
    json["training"] = {{"share", training->share},
                        {"longest_step_ms", training->longest_step_ms},
                        {"most_bytes_in_a_step", training->most_bytes},
                        {"steps", training->steps},
                        {"fragments", training->fragments},
                        {"exchanges", training->exchanges}};
  }
  return json;
}

void print(const StepFigures& figures, const StepOptions& options) {
  fmt::print("{:.1f} M parameters, {}; min / median / max\n", static_cast<double>(figures.elements) / 1e6,
             figures.dtype);
  fmt::print("  step with nothing due        {:>26} ns\n", text_of(figures.idle_ns, 1));
  fmt::print("  step that serves a fragment  {:>26} us  ({:.1f} GB/s)\n", text_of(figures.due_us, 0),
             figures.fragment_bytes / figures.due_us.median / 1e3);
  fmt::print("  its memory traffic alone     {:>26} us  ({:.1f} GB/s)\n", text_of(figures.floor_us, 0),
             figures.fragment_bytes / figures.floor_us.median / 1e3);
  fmt::print("  ratio                        {:>26}\n", text_of(figures.ratio, 2));
  if (const auto& training = figures.training) {
    fmt::print(
        "  beside two daemons, with {:g} ms of training a step, {:g} s: {:.2f} % of the time in step();\n"
        "  the longest took {:.1f} ms; at most {:.1f} MB of fragments in one; {} fragments in {} steps, {} exchanges\n",
        options.training.step_ms, options.training.seconds, 100 * training->share, training->longest_step_ms,
        static_cast<double>(training->most_bytes) / 1e6, training->fragments, training->steps, training->exchanges);
  }
  std::fflush(stdout);
}

std::optional<StepFigures> measure(const StepOptions& options, const std::string& dtype, std::size_t elements) {
  TrainingOptions training = options.training;
  training.dtype = dtype == "bf16" ? GOSSAMER_BF16 : GOSSAMER_F32;
  training.elements = elements;
  const std::string model = fmt::format("{:.1f} M parameters, {}", static_cast<double>(elements) / 1e6, dtype);
  if (!fits(training_bytes(training) / 2, model)) return std::nullopt;
  StepFigures figures = StepBench(training.dtype, elements).measure(options.rounds);
  if (training.seconds > 0 && fits(training_bytes(training), model + ", with daemons"))
    figures.training = measure_training(training);
  return figures;
}

void run(const StepOptions& options) {
  nlohmann::json models = nlohmann::json::array();
  for (const std::size_t elements : options.elements) {
    for (const std::string& dtype : options.dtypes) {
      const std::optional<StepFigures> figures = measure(options, dtype, elements);
      if (!figures) continue;
      if (options.json) {
        models.push_back(to_json(*figures));
      } else {
        print(*figures, options);
      }
    }
  }
  if (options.json) fmt::print("{}\n", nlohmann::json{{"rounds", options.rounds}, {"models", models}}.dump());
}

}  // namespace

void add_step_command(CLI::App& app) {
  auto options = std::make_shared<StepOptions>();
  CLI::App* const command =
      app.add_subcommand("step", "gossamer_step() with nothing due, with a fragment due, and beside real daemons");
  add_number(command, "--elements", options->elements, std::size_t{1}, std::size_t{1} << 32,
             "Sizes of the models in parameters; memory: 16 bytes each, and 32 beside daemons");
  add_number(command, "--rounds", options->rounds, 1, 1000, "How often each is measured, in turn");
  command->add_option("--dtype", options->dtypes, "How the models are kept")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  add_number(command, "--step-ms", options->training.step_ms, 0.0, 60'000.0,
             "A training step beside the daemons, without gossip");
  add_number(command, "--seconds", options->training.seconds, 0.0, 3600.0,
             "Length of the training beside the daemons; 0: none");
  command->add_option("--daemon", options->training.daemon,
                      "The gossamerd to run (default: the one beside this program)");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace gossamer::bench
