// The options of gossamerd, their defaults and bounds, and reading them from a TOML file.
//
// Every option is declared once: its default is the member's initialiser below; its unit, bounds and trade-off are in
// its row in config_table.cpp. The sample daemon/gossamer.toml is what commented_defaults() prints, and a test compares
// them. Called from main at start-up and on SIGHUP. These are values only, for any thread. Nothing here logs or keeps
// anything.

#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/system/client_ledger.hpp"
#include "gossip/messages.hpp"
#include "gossip/replica/partners.hpp"
#include "gossip/types.hpp"
#include "peer/address.hpp"
#include "peer/limits.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::daemon {

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error };
enum class LogFormat : std::uint8_t { text, keyvalue, json };

struct NodeOptions {
  std::string name;                  ///< empty until resolved(): then the host's name
  std::filesystem::path state_dir;   ///< empty until resolved()
  std::filesystem::path socket_dir;  ///< empty: the rule of sdk/layout/socket_path.hpp
  std::int64_t workers = 0;          ///< 0 until resolved(): then the number of cores, at most default_max_workers
  std::int64_t io_threads = 0;       ///< ZeroMQ's threads; 0 until resolved(): then 1, or 3 with many_cores and more
};

struct OverlayConfig {
  std::string listen = peer::default_listen;
  peer::BulkProtection bulk = peer::BulkProtection::sealed;
  std::string advertise;                   ///< empty: others see the address listened on
  std::string interface;                   ///< empty: the machine's routes decide
  std::vector<std::string> peers;          ///< tcp://host:port
  std::filesystem::path cluster_key_file;  ///< empty until resolved(): then state_dir/cluster.key
  std::string join;                        ///< an invitation, which is a secret
  std::vector<std::string> denied;         ///< ids of nodes
  std::int64_t ping_ms = 500;
  std::int64_t link_timeout_ms = 3000;
  std::int64_t probe_interval_ms = 1000;  ///< see gossip::MembershipOptions, also for the options below
  std::int64_t probe_timeout_ms = 500;
  std::int64_t suspicion_mult = 4;
  std::int64_t full_view_limit = 64;
  std::int64_t active_view = 8;
  std::int64_t passive_view = 32;
};

/// A codec, or the codec that suits each link (gossip::ReplicaOptions::adapt_codec). The first three have the numbers
/// of Codec.
enum class CodecChoice : std::uint8_t { f32, q8, q4, automatic };

/// A profile sets the defaults of [gossip] (docs/explanation/learning.md) and the timing of membership.
enum class Profile : std::uint8_t { lan, internet };

/// Bytes per second in 1 Mbit/s, which is the unit of the options for rates.
inline constexpr double bytes_per_mbit = 1e6 / 8;

/// The codec of exact averages of gradients.
enum class AverageCodec : std::uint8_t { f32, q8 };

/// How much a training step counts in exchanges. equal: each step counts alike. samples: a step counts by its samples.
enum class Weights : std::uint8_t { equal, samples };

struct GossipOptions {
  Profile profile = Profile::lan;
  layout::Method method = layout::Method::gossip;
  std::int64_t average_steps = 1;
  std::int64_t average_members = 1;
  AverageCodec average_codec = AverageCodec::f32;
  CodecChoice codec = CodecChoice::q8;
  std::int64_t period_ms = 50;
  std::int64_t in_flight = 4;
  double mixing_budget = 1.0;
  std::int64_t exchange_lifetime_ms = 10'000;
  double range = 12.0;
  gossip::PartnerPolicy partners = gossip::PartnerPolicy::random;
  Weights weights = Weights::equal;
  double time_share = 0.02;
  double bandwidth_share = 0.5;  ///< share of the fastest link's measured goodput; 0: no limit
  double max_mbit_s = 0;         ///< over all jobs and links; 0: no limit
  double link_max_mbit_s = 0;    ///< to one neighbour; 0: no limit
  double outer_momentum = 0;     ///< see gossip/exchange/outer.hpp; 0: off
  std::int64_t outer_period_ms = 5'000;
  double clip = 8;  ///< see gossip/codec/influence.hpp; 0: off
  double dense_clip = 2;
  std::int64_t clock_pace = 2;
  std::int64_t seed = 0;  ///< 0: the system chooses

  friend bool operator==(const GossipOptions&, const GossipOptions&) = default;
};

struct LimitOptions {
  std::int64_t clients = 64;
  std::int64_t jobs = 64;
  std::int64_t memory_mib = 0;  ///< 0: see memory_bytes()
  std::int64_t clients_per_user = 0;
  std::int64_t jobs_per_user = 0;
  std::int64_t memory_per_user_mib = 0;
  std::int64_t memory_per_client_mib = 0;

  /// What `memory_mib` says, or four fifths of the machine's memory.
  [[nodiscard]] std::uint64_t memory_bytes() const;
  [[nodiscard]] ClientLimits for_clients() const;
};

/// Entries "WHO: JOBS" (daemon/system/user_rights.hpp).
struct RightsOptions {
  std::vector<std::string> train = {"*: *"};
  std::vector<std::string> steer;
};

struct MetricsOptions {
  std::string listen = "127.0.0.1:9746";  ///< host:port on this machine; empty: no metrics and no status page
};

/// Where the first node to run a job gets the model from, while nobody else runs the job
/// (daemon/jobs/checkpoint_search.hpp).
enum class Restore : std::uint8_t { imported, latest };

struct CheckpointOptions {
  std::filesystem::path folder;  ///< empty until resolved(): then state_dir/checkpoints
  std::int64_t period_s = 0;     ///< 0: checkpoints are written only on request
  std::int64_t keep = 3;         ///< files kept of each job
  Restore restore = Restore::imported;
};

struct GpuOptions {
  std::string library = "libnvidia-ml.so.1";  ///< a name or a path; empty: GPUs are not watched
  bool clients = true;                        ///< whether models in GPU memory are averaged there
  std::filesystem::path plugin;               ///< empty: device::Plugin::usual_path()
  std::filesystem::path nccl = {};            ///< empty: libnccl.so.2, as the loader finds it
};

struct LogOptions {
  LogLevel level = LogLevel::info;
  std::filesystem::path file;  ///< empty: stderr
  LogFormat format = LogFormat::text;
};

struct Config {
  NodeOptions node;
  OverlayConfig overlay;
  GossipOptions gossip;
  LimitOptions limits;
  RightsOptions rights;
  MetricsOptions metrics;
  CheckpointOptions checkpoints;
  GpuOptions gpus;
  LogOptions log;
};

inline constexpr std::int64_t default_max_workers = 8;
/// From this number of cores on, links get more than one I/O thread: an odd number (see peer::OverlaySettings).
inline constexpr std::int64_t many_cores = 8;
inline constexpr std::int64_t io_threads_of_many_cores = 3;
inline constexpr std::size_t max_node_name_bytes = 63;
inline constexpr std::size_t max_config_bytes = 1u << 20;
inline constexpr std::size_t max_config_problems = 20;  ///< this many are reported at once
inline constexpr std::size_t max_peers = 1024;
inline constexpr const char* default_config_file = "/etc/gossamer/gossamer.toml";

/// Reads the options in a file. Each problem is one line, "FILE:LINE: [section] key: ...".
[[nodiscard]] std::expected<Config, std::string> load(const std::filesystem::path& file);
/// Does the same for text in memory; `source` stands for the file's name in messages.
[[nodiscard]] std::expected<Config, std::string> parse(std::string_view text, std::string_view source);

/// The machine's values for what the options leave open.
struct Surroundings {
  std::string host_name;
  std::filesystem::path home;        ///< $HOME, or empty
  std::filesystem::path state_home;  ///< $XDG_STATE_HOME, or empty
  bool system_state_usable = false;  ///< whether /var/lib/gossamer exists or can be made, and can be written
  unsigned cores = 1;
};
/// Reads the machine's values: environment, host name, rights.
[[nodiscard]] Surroundings surroundings();

/// Fills in every empty or zero "decide for me" option of `config`, except socket_dir and seed. An error says what
/// cannot be decided and which option to set.
[[nodiscard]] std::expected<Config, std::string> resolved(Config config, const Surroundings& machine);

/// The result of a reload. `config` is `running` with those options of `next` that can change at run time. The two
/// lists name ("section.key") the options that changed, and the options that differ but need a restart.
struct Reload {
  Config config;
  std::vector<std::string> changed;
  std::vector<std::string> need_restart;
};
[[nodiscard]] Reload reload(const Config& running, const Config& next);

/// The node's own options, with a job's settings in their place. An error says which setting this node does not know or
/// cannot have.
[[nodiscard]] std::expected<GossipOptions, std::string> with_settings(const GossipOptions& own,
                                                                      const std::vector<JobSetting>& settings);

/// A complete configuration file: every option with its default, unit, bounds and trade-off. Parses to Config{}.
[[nodiscard]] std::string commented_defaults();

}  // namespace gossamer::daemon
