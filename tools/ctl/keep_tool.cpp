// gossamerctl keep: holds a replica of a job that nobody trains on this machine. It asks the daemon for the job's
// tensors, and the daemon asks the neighbours. Then it attaches as a client that does not train, and serves until a
// signal ends it.

#include <fmt/format.h>
#include <gossamer.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "sdk/layout/attach.hpp"
#include "sdk/layout/names.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds ask_poll{50};
constexpr std::chrono::milliseconds look_poll{500};
/// At the start, nothing is said for this long about a daemon that does not serve the job yet.
constexpr std::chrono::seconds patience{3};
constexpr std::chrono::milliseconds clock_poll{1000};
constexpr std::chrono::milliseconds least_pause{1};
constexpr std::chrono::milliseconds most_pause{16};

volatile std::sig_atomic_t ended = 0;

struct KeepOptions {
  std::string job;
  std::string client_socket;
  double patience_s = 0;  ///< 0: no limit
  gossamer_memory memory = GOSSAMER_MEMORY_AUTO;
};

struct KeptTensor {
  std::string name;
  std::uint8_t dtype = 0;
  std::uint8_t role = 0;
  std::vector<std::uint64_t> shape;

  [[nodiscard]] bool is_local() const { return role == GOSSAMER_LOCAL; }
  [[nodiscard]] std::uint64_t elements() const {
    std::uint64_t elements = 1;
    for (const std::uint64_t size : shape)
      elements *= size;
    return elements;
  }
};

struct KeptLayout {
  std::string hash;  ///< 16 hexadecimal digits
  std::uint32_t fragment_elements = 0;
  std::vector<KeptTensor> tensors;
};

void say(const KeepOptions& options, const std::string& text) {
  fmt::print(stderr, "gossamerctl keep: job {}: {}\n", options.job, text);
}

/// Asks for the tensors part by part, until some node runs the job. The layout is empty if a signal came first.
std::expected<KeptLayout, ControlError> ask_for_layout(const KeepOptions& options, const Invocation& call) {
  KeptLayout layout;
  const auto begun = Clock::now();
  bool told = false;
  while (ended == 0) {
    const std::size_t first = layout.tensors.size();
    const auto answer =
        call.request({{"command", "layout"}, {"job", options.job}, {"layout", layout.hash}, {"first", first}});
    if (!answer) return std::unexpected(answer.error());
    if (!answer->contains("tensors")) {
      const double waited_s = std::chrono::duration<double>(Clock::now() - begun).count();
      if (options.patience_s > 0 && waited_s > options.patience_s)
        return failure(
            fmt::format("no node in reach runs job {}: start its training first, or look at gossamerctl "
                        "peers for the nodes that this one is linked to",
                        options.job));
      if (!told && waited_s > 2) say(options, "no node in reach runs it yet; waiting for one");
      told = told || waited_s > 2;
      std::this_thread::sleep_for(ask_poll);
      continue;
    }
    layout.hash = answer->at("layout");
    layout.fragment_elements = answer->at("fragment_elements");
    for (const json& tensor : answer->at("tensors"))
      layout.tensors.push_back({tensor.at(0), tensor.at(1), tensor.at(2), tensor.at(3)});
    if (layout.tensors.size() == answer->at("count")) return layout;
    if (answer->at("tensors").empty()) layout = {};  // the job has ended there meanwhile: start over
  }
  return KeptLayout{};
}

/// A client that holds the model, in fp32, and never trains it.
class Keeper {
 public:
  Keeper(const KeepOptions& options, const KeptLayout& layout, std::string socket)
      : options_(options), layout_(layout), socket_(std::move(socket)) {
    std::uint64_t elements = 0;
    for (const KeptTensor& tensor : layout.tensors)
      elements += tensor.is_local() ? 0 : tensor.elements();
    model_.resize(elements);
    float* next = model_.data();
    for (const KeptTensor& tensor : layout.tensors) {
      const std::uint32_t dtype = tensor.is_local() ? tensor.dtype : std::uint32_t{GOSSAMER_F32};
      tensors_.push_back({.name = tensor.name.c_str(),
                          .dtype = dtype,
                          .role = tensor.role,
                          .dimensions = static_cast<std::uint32_t>(tensor.shape.size()),
                          .reserved = 0,
                          .shape = tensor.shape.data(),
                          .data = tensor.is_local() ? nullptr : next,
                          .slice = nullptr,
                          .reserved_more = 0});
      if (!tensor.is_local()) next += tensor.elements();
    }
  }
  ~Keeper() { gossamer_close(run_); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Attaches. `clock` is that of the model that this replica holds; 0: it holds none.
  std::expected<void, ControlError> open(std::uint64_t clock) {
    gossamer_options options;
    gossamer_options_init(&options);
    options.job = options_.job.c_str();
    options.socket_path = socket_.empty() ? nullptr : socket_.c_str();
    options.fragment_elements = layout_.fragment_elements;
    options.initial_clock_samples = clock;
    options.flags = GOSSAMER_KEEPS;
    options.memory = options_.memory;
    char error[512];
    if (gossamer_open(&options, tensors_.data(), tensors_.size(), &run_, error, sizeof error) != GOSSAMER_OK)
      return failure(fmt::format("job {} cannot be kept: {}", options_.job, error));
    if (fmt::format("{:016x}", info().layout_hash) != layout_.hash)
      return failure(
          fmt::format("job {}: a node has told other tensors than those of its layout {}: try again, and if "
                      "it stays, look for the node that misbehaves",
                      options_.job, layout_.hash));
    return {};
  }

  /// Serves until a signal comes, or the daemon refuses the job for good.
  std::expected<void, ControlError> serve() {
    auto looked_at = Clock::now();
    auto clock_at = Clock::now();
    std::chrono::milliseconds pause = least_pause;
    std::uint64_t publications = 0;
    bool attached = false;
    bool has_model = false;
    while (ended == 0) {
      gossamer_run_info now = info();
      has_model = has_model || now.state == GOSSAMER_RUNNING;
      if (std::exchange(attached, now.attached != 0) && !attached) {
        // The daemon is gone, and this replica misses what others learn meanwhile. So it attaches again as a newcomer,
        // which pulls the model of the others, if there are any.
        gossamer_close(std::exchange(run_, nullptr));
        const std::uint64_t clock = has_model ? std::max<std::uint64_t>(now.clock_samples, 1) : 0;
        if (const auto opened = open(clock); !opened) return opened;
        publications = 0;
        continue;
      }
      std::uint64_t behind = 0;
      if (now.state == GOSSAMER_RUNNING && Clock::now() - clock_at >= clock_poll) {
        behind = now.global_clock_samples - std::min(now.clock_samples, now.global_clock_samples);
        clock_at = Clock::now();
      }
      (void)gossamer_step(run_, behind);
      tell(now);
      if (now.attached == 0 && Clock::now() - looked_at >= look_poll) {
        looked_at = Clock::now();
        if (gossamer_wait_ready(run_, 0) == GOSSAMER_REJECTED)
          return failure(fmt::format("job {} cannot be kept: {}", options_.job, gossamer_last_error(run_)));
      }
      pause = now.publications != publications ? least_pause : std::min(2 * pause, most_pause);
      publications = now.publications;
      std::this_thread::sleep_for(pause);
    }
    return {};
  }

  [[nodiscard]] gossamer_run_info info() {
    gossamer_run_info info{};
    info.size = sizeof info;
    (void)gossamer_info(run_, &info);
    return info;
  }

 private:
  void tell(const gossamer_run_info& now) {
    std::string text;
    if (now.attached == 0 && now.attachments == 0 && told_.empty() && Clock::now() - begun_ < patience) {
      return;  // it has just begun
    } else if (now.attached == 0) {
      text = std::string("no daemon serves it: ") + now.message;
    } else if (now.state == GOSSAMER_JOINING && now.fragments_pulled == 0) {
      text = now.clock_samples > 0 ? "waits for a node that trains it" : "waits for a node that has the model";
    } else if (now.state == GOSSAMER_JOINING) {
      text = "takes the model over";
    } else {
      text = fmt::format("kept, {} numbers; {}", now.elements,
                         now.neighbours == 0 ? "no other node in reach runs it" : "others in reach run it");
    }
    if (text != std::exchange(told_, text)) say(options_, text);
  }

  const KeepOptions& options_;
  const KeptLayout& layout_;
  const std::string socket_;
  std::vector<float> model_;
  std::vector<gossamer_tensor> tensors_;
  gossamer_run* run_ = nullptr;
  std::string told_;
  const Clock::time_point begun_ = Clock::now();
};

CommandResult keep(const KeepOptions& options, const Invocation& call) {
  if (!layout::is_job_name(options.job))
    return wrong_usage(
        fmt::format("\"{}\" is no job's name: those are {}", safe_text(options.job), layout::job_name_form));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    std::signal(signal, [](int) { ended = 1; });
  const auto layout = ask_for_layout(options, call);
  if (!layout) return std::unexpected(layout.error());
  if (layout->tensors.empty()) return CommandEnd{};
  Keeper keeper(options, *layout, options.client_socket.empty() ? call.client_socket() : options.client_socket);
  if (const auto opened = keeper.open(0); !opened) return std::unexpected(opened.error());
  if (const auto served = keeper.serve(); !served) return std::unexpected(served.error());
  const gossamer_run_info end = keeper.info();
  return call.end(json{{"job", options.job}, {"clock", end.clock_samples}}, [&](const json& answer, bool) {
    return fmt::format("job {} is no longer kept here; its model had seen {} samples\n", options.job,
                       answer.at("clock").get<std::uint64_t>());
  });
}

}  // namespace

void add_keep_command(CLI::App& app, CommandAction& chosen) {
  const auto options = std::make_shared<KeepOptions>();
  CLI::App* command = app.add_subcommand("keep", "Hold a replica of a job that nobody trains on this machine");
  command->add_option("JOB", options->job, "The job's name, the same as at the nodes that train it")->required();
  command->add_option("--client-socket", options->client_socket, "Where the daemon accepts processes")
      ->type_name("PATH");
  command
      ->add_option("--wait", options->patience_s,
                   "How long to wait for a node that runs the job, and then fail; without it, for ever")
      ->type_name("SECONDS")
      ->check(number_within(0.1, 1e6));
  // CLI11 would describe the choices by the numbers behind them, so its description is left empty.
  const std::map<std::string, gossamer_memory> kinds{
      {"auto", GOSSAMER_MEMORY_AUTO}, {"resident", GOSSAMER_MEMORY_RESIDENT}, {"lean", GOSSAMER_MEMORY_LEAN}};
  command->add_option("--memory", options->memory, "resident, lean (little memory for large models), or auto")
      ->type_name("KIND")
      ->transform(CLI::CheckedTransformer(kinds).description(""));
  command->footer(
      "The node then follows the job, gives the model to those that join, and writes checkpoints if it is\n"
      "configured to; it counts for no mean of what is learned. With method=server the nodes that keep a job are its\n"
      "servers. It takes 16 bytes for each number of the model, and runs until SIGINT or SIGTERM:\n"
      "systemctl enable --now gossamer-keep@JOB");
  command->callback(
      [options, &chosen] { chosen = [options](const Invocation& call) { return keep(*options, call); }; });
}

}  // namespace gossamer::ctl
