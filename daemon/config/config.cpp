// Reads configuration files against the table of options (config_table.hpp). toml++'s exceptions stop here.

#include "daemon/config/config.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "daemon/config/config_table.hpp"
#include "daemon/config/syntax_error.hpp"
#include "gossip/membership/membership.hpp"
#include "gossip/resembles.hpp"

namespace gossamer::daemon {
namespace {

const char* type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    default:
      return "a date or time";
  }
}

/// Reads one file once. Collects problems, and the lines on which options were set.
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {}

  Config read(const toml::table& root);
  [[nodiscard]] std::string problems() const;

 private:
  void read_profile(const toml::table& root);
  void read_key(const OptionSection& section, const toml::key& key, const toml::node& node);
  void check_together();
  void unknown_section(std::string_view name, std::uint32_t line);
  void unknown_key(const OptionSection& section, std::string_view key, std::uint32_t line);

  void problem(std::uint32_t line, std::string_view name, std::string_view what) {
    ++problem_count_;
    if (problem_count_ <= max_config_problems) text_ += fmt::format("{}:{}: {}: {}\n", source_, line, name, what);
  }

  std::string source_;
  Config config_;
  std::map<std::string, std::uint32_t, std::less<>> lines_;  // by "[section] key"; at most the table's rows
  std::string text_;
  std::size_t problem_count_ = 0;
};

/// The defaults of the options are those of the LAN profile.
void apply_profile(Config& config) {
  if (config.gossip.profile != Profile::internet) return;
  config.gossip.codec = CodecChoice::q4;
  config.gossip.period_ms = 1'000;
  config.gossip.partners = gossip::PartnerPolicy::weighted;
  const gossip::MembershipOptions patient = gossip::MembershipOptions::wan();
  config.overlay.probe_interval_ms = patient.probe_interval_us / us_per_ms;
  config.overlay.probe_timeout_ms = patient.probe_timeout_us / us_per_ms;
  config.overlay.suspicion_mult = patient.suspicion_mult;
}

// Each take() stores the value of an option, or says what is wrong with it.

std::string wrong_type(const Option& option, const toml::node& node) {
  return fmt::format("is {}; it must be {}", type_name(node), allowed_values(option));
}

std::string take(std::string* value, const Option& option, const toml::node& node) {
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (!text) return wrong_type(option, node);
  if (const std::string what = text_problem(option.form, *text); !what.empty()) return what;
  *value = *text;
  return {};
}

std::string take(std::filesystem::path* value, const Option& option, const toml::node& node) {
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (!text) return wrong_type(option, node);
  if (!text->empty() && (text->front() != '/' || text->find('\0') != std::string::npos))
    return fmt::format("\"{}\" is no absolute path; it must be {}", *text, allowed_values(option));
  *value = *text;
  return {};
}

std::string take(std::int64_t* value, const Option& option, const toml::node& node) {
  const std::optional<std::int64_t> number = node.value_exact<std::int64_t>();
  if (!number) return wrong_type(option, node);
  const auto& [least, most, unit] = option.bounds;
  if (*number < static_cast<std::int64_t>(least) || *number > static_cast<std::int64_t>(most))
    return fmt::format("{} is out of bounds; it must be {}", *number, allowed_values(option));
  *value = *number;
  return {};
}

std::string take(double* value, const Option& option, const toml::node& node) {
  if (!node.is_number()) return wrong_type(option, node);
  const double number = node.value<double>().value_or(std::numeric_limits<double>::quiet_NaN());
  if (!(number >= option.bounds.least && number <= option.bounds.most))  // written so that NaN is refused
    return fmt::format("{} is out of bounds; it must be {}", number, allowed_values(option));
  *value = number;
  return {};
}

std::string take(bool* value, const Option& option, const toml::node& node) {
  const std::optional<bool> yes = node.value_exact<bool>();
  if (!yes) return wrong_type(option, node);
  *value = *yes;
  return {};
}

std::string take(std::vector<std::string>* value, const Option& option, const toml::node& node) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return wrong_type(option, node);
  if (list->size() > max_peers) return fmt::format("has {} entries; at most {} are allowed", list->size(), max_peers);
  std::vector<std::string> taken;
  for (const toml::node& entry : *list) {
    const std::optional<std::string> text = entry.value_exact<std::string>();
    if (!text) return fmt::format("holds {}; it must be {}", type_name(entry), allowed_values(option));
    if (const std::string what = text_problem(option.form, *text); !what.empty()) return what;
    if (std::ranges::find(taken, *text) == taken.end()) taken.push_back(*text);
  }
  *value = std::move(taken);
  return {};
}

template <class Choice>
requires std::is_enum_v<Choice> std::string take(Choice* value, const Option& option, const toml::node& node) {
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (!text) return wrong_type(option, node);
  const auto names = names_of(Choice{});
  const auto named = std::ranges::find(names, *text);
  if (named == names.end()) return fmt::format("\"{}\" is not known; it must be {}", *text, allowed_values(option));
  *value = static_cast<Choice>(named - names.begin());
  return {};
}

/// Takes a value given as text as if the file had it: as a number if the option is a number, else as a string.
template <class Field>
std::string take_text(Field* field, const Option& option, const std::string& text) {
  if constexpr (std::is_arithmetic_v<Field> && !std::is_same_v<Field, bool>) {
    Field number{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end)
      return fmt::format("\"{}\" is not known; it must be {}", text, allowed_values(option));
    return take(field, option, toml::value<Field>(number));
  } else {
    return take(field, option, toml::value<std::string>(text));
  }
}

void Reader::unknown_section(std::string_view name, std::uint32_t line) {
  for (const OptionSection& section : option_sections()) {
    if (resembles(name, section.name))
      return problem(line, name, fmt::format("no such section; did you mean [{}]?", section.name));
  }
  for (const OptionSection& section : option_sections()) {
    if (std::ranges::find(section.options, name, &Option::key) != section.options.end())
      return problem(line, name, fmt::format("stands outside a section; it belongs under [{}]", section.name));
  }
  std::string known;
  for (const OptionSection& section : option_sections())
    known += fmt::format("{}[{}]", known.empty() ? "" : ", ", section.name);
  problem(line, name, fmt::format("no such section; there are {}", known));
}

void Reader::unknown_key(const OptionSection& section, std::string_view key, std::uint32_t line) {
  const std::string name = fmt::format("[{}] {}", section.name, key);
  for (const OptionSection& other : option_sections()) {
    if (std::ranges::find(other.options, key, &Option::key) != other.options.end())
      return problem(line, name, fmt::format("no such option here; it belongs under [{}]", other.name));
  }
  const Option* nearest = nullptr;
  std::string known;
  for (const Option& option : section.options) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", option.key);
    if (resembles(key, option.key) &&
        (nearest == nullptr || edit_distance(key, option.key) < edit_distance(key, nearest->key)))
      nearest = &option;
  }
  if (nearest != nullptr) return problem(line, name, fmt::format("no such option; did you mean {}?", nearest->key));
  problem(line, name, fmt::format("no such option; there are {}", known));
}

const OptionSection& gossip_section() {
  return *std::ranges::find(option_sections(), std::string_view("gossip"), &OptionSection::name);
}

/// The profile is read before everything else, wherever it stands in the file.
void Reader::read_profile(const toml::table& root) {
  const toml::table* table = root["gossip"].as_table();
  if (table == nullptr) return;
  const OptionSection& gossip = gossip_section();
  for (const auto& [key, node] : *table) {
    if (key.str() == "profile") read_key(gossip, key, node);
  }
  apply_profile(config_);
}

void Reader::read_key(const OptionSection& section, const toml::key& key, const toml::node& node) {
  const std::uint32_t line = key.source().begin.line;
  const auto option = std::ranges::find(section.options, key.str(), &Option::key);
  if (option == section.options.end()) return unknown_key(section, key.str(), line);
  const std::string name = fmt::format("[{}] {}", section.name, option->key);
  lines_.emplace(name, line);
  const std::string what = std::visit([&](auto* value) { return take(value, *option, node); }, option->field(config_));
  if (!what.empty()) problem(line, name, what);
}

/// Checks options that make sense only together. A problem is reported at the option that was set.
void Reader::check_together() {
  const auto at_least = [&](const char* name, std::int64_t value, const char* relation, const char* other,
                            std::int64_t bound) {
    if (value >= bound) return;
    auto set = lines_.find(name);
    if (set == lines_.end()) set = lines_.find(other);
    problem(set == lines_.end() ? 1 : set->second, name,
            fmt::format("{} is too short; it must be at least {} {}, that is {} ms", value, relation, other, bound));
  };
  const OverlayConfig& overlay = config_.overlay;
  at_least("[overlay] link_timeout_ms", overlay.link_timeout_ms, "twice", "[overlay] ping_ms", 2 * overlay.ping_ms);
  at_least("[overlay] probe_interval_ms", overlay.probe_interval_ms, "one more than", "[overlay] probe_timeout_ms",
           overlay.probe_timeout_ms + 1);
  at_least("[gossip] exchange_lifetime_ms", config_.gossip.exchange_lifetime_ms, "twice", "[overlay] link_timeout_ms",
           2 * overlay.link_timeout_ms);
}

Config Reader::read(const toml::table& root) {
  read_profile(root);
  for (const auto& [key, node] : root) {
    const std::uint32_t line = key.source().begin.line;
    const auto sections = option_sections();
    const auto section = std::ranges::find(sections, key.str(), &OptionSection::name);
    if (section == sections.end()) {
      unknown_section(key.str(), line);
    } else if (const toml::table* table = node.as_table()) {
      for (const auto& [option, value] : *table) {
        // read_profile() has already read the profile.
        if (section->name != std::string_view("gossip") || option.str() != "profile") read_key(*section, option, value);
      }
    } else {
      problem(line, key.str(),
              fmt::format("is {}; it must be a section, written [{}]", type_name(node), section->name));
    }
  }
  if (problem_count_ == 0) check_together();
  return config_;
}

std::string Reader::problems() const {
  std::string text = text_;
  if (problem_count_ > max_config_problems)
    text += fmt::format("{}: and {} more problems\n", source_, problem_count_ - max_config_problems);
  if (!text.empty()) text.pop_back();
  return text;
}

bool can_write(const std::filesystem::path& folder) {
  return ::access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

std::uint64_t LimitOptions::memory_bytes() const {
  if (memory_mib > 0) return static_cast<std::uint64_t>(memory_mib) << 20;
  const auto pages = static_cast<std::uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L));
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 5 * 4;
}

ClientLimits LimitOptions::for_clients() const {
  const auto bytes = [](std::int64_t mebibytes) {
    return mebibytes == 0 ? ClientLimits::none : static_cast<std::uint64_t>(mebibytes) << 20;
  };
  const auto number = [](std::int64_t limit) {
    return limit == 0 ? ClientLimits::none : static_cast<std::uint64_t>(limit);
  };
  return {.clients = number(clients),
          .jobs = number(jobs),
          .memory_bytes = memory_bytes(),
          .clients_per_user = number(clients_per_user),
          .jobs_per_user = number(jobs_per_user),
          .memory_per_user_bytes = bytes(memory_per_user_mib),
          .memory_per_client_bytes = bytes(memory_per_client_mib)};
}

std::expected<Config, std::string> parse(std::string_view text, std::string_view source) {
  if (text.size() > max_config_bytes)
    return std::unexpected(
        fmt::format("{}: has {} bytes; a configuration has at most {}", source, text.size(), max_config_bytes));
  try {
    const toml::table root = toml::parse(text);
    Reader reader(source);
    Config config = reader.read(root);
    if (std::string problems = reader.problems(); !problems.empty()) return std::unexpected(std::move(problems));
    return config;
  } catch (const toml::parse_error& error) {
    const auto& [line, column] = error.source().begin;
    return std::unexpected(
        fmt::format("{}:{}:{}: {}", source, line, column, explain({line, column, error.description()}, text)));
  }
}

std::expected<Config, std::string> load(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    return std::unexpected(fmt::format("{}: is a folder, not a configuration file", file.string()));
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return std::unexpected(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
  std::string text(max_config_bytes + 1, '\0');  // one more than allowed, so that parse() sees a larger file
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (stream.bad()) return std::unexpected(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
  return parse(text, file.string());
}

Surroundings surroundings() {
  Surroundings machine;
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) == 0) machine.host_name = name;
  const auto environment = [](const char* variable) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  machine.home = environment("HOME");
  machine.state_home = environment("XDG_STATE_HOME");
  std::error_code error;
  const std::filesystem::path system_state = "/var/lib/gossamer";
  machine.system_state_usable = can_write(std::filesystem::exists(system_state, error) ? system_state : "/var/lib");
  machine.cores = std::max(1u, std::thread::hardware_concurrency());
  return machine;
}

std::expected<Config, std::string> resolved(Config config, const Surroundings& machine) {
  if (config.node.name.empty()) config.node.name = machine.host_name.substr(0, max_node_name_bytes);
  if (config.node.name.empty()) config.node.name = "unnamed";
  if (config.node.state_dir.empty()) {
    if (machine.system_state_usable) {
      config.node.state_dir = "/var/lib/gossamer";
    } else if (!machine.state_home.empty()) {
      config.node.state_dir = machine.state_home / "gossamer";
    } else if (!machine.home.empty()) {
      config.node.state_dir = machine.home / ".local/state/gossamer";
    } else {
      return std::unexpected(
          "there is no folder for the node's state: /var/lib/gossamer cannot be written, and neither XDG_STATE_HOME "
          "nor HOME is set. Set [node] state_dir.");
    }
  }
  if (config.node.workers == 0) config.node.workers = std::min<std::int64_t>(machine.cores, default_max_workers);
  if (config.node.io_threads == 0) config.node.io_threads = machine.cores < many_cores ? 1 : io_threads_of_many_cores;
  if (config.overlay.cluster_key_file.empty()) config.overlay.cluster_key_file = config.node.state_dir / "cluster.key";
  if (config.checkpoints.folder.empty()) config.checkpoints.folder = config.node.state_dir / "checkpoints";
  return config;
}

std::expected<GossipOptions, std::string> with_settings(const GossipOptions& own,
                                                        const std::vector<JobSetting>& settings) {
  Config config;
  config.gossip = own;
  for (const JobSetting& setting : settings) {
    const auto options = gossip_section().options;
    const auto option = std::ranges::find(options, std::string_view(setting.name), &Option::key);
    if (option == options.end() || !option->shared) {
      std::string known;
      for (const Option& each : options)
        if (each.shared) known += fmt::format("{}{}", known.empty() ? "" : ", ", each.key);
      return std::unexpected(fmt::format("no such setting: {}; a job may have {}", setting.name, known));
    }
    const std::string what =
        std::visit([&](auto* field) { return take_text(field, *option, setting.value); }, option->field(config));
    if (!what.empty()) return std::unexpected(fmt::format("{}: {}", setting.name, what));
  }
  return config.gossip;
}

Reload reload(const Config& running, const Config& next) {
  Reload result{running, {}, {}};
  Config wanted = next;
  for (const OptionSection& section : option_sections()) {
    for (const Option& option : section.options) {
      if (toml_value(option, running) == toml_value(option, next)) continue;
      (option.reloads ? result.changed : result.need_restart).push_back(fmt::format("{}.{}", section.name, option.key));
      if (!option.reloads) continue;
      std::visit([&]<class Value>(Value* to) { *to = *std::get<Value*>(option.field(wanted)); },
                 option.field(result.config));
    }
  }
  return result;
}

}  // namespace gossamer::daemon
