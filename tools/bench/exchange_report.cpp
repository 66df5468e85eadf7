#include "tools/bench/exchange_report.hpp"

#include <fmt/format.h>

#include <functional>

#include "tools/bench/measure.hpp"

namespace gossamer::bench {
namespace {

/// Returns one number of each round.
template <class Round, class Part>
std::vector<double> each(const std::vector<Round>& rounds, Part part) {
  std::vector<double> numbers;
  for (const Round& round : rounds)
    numbers.push_back(std::invoke(part, round));
  return numbers;
}

template <class Round, class Part>
double median(const std::vector<Round>& rounds, Part part) {
  return spread_of(each(rounds, part)).median;
}

std::vector<double> ratios(const std::vector<double>& numbers, const std::vector<double>& references) {
  std::vector<double> quotients;
  for (std::size_t n = 0; n < numbers.size(); ++n)
    quotients.push_back(numbers[n] / references[n]);
  return quotients;
}

double rate_of(const LinkRun& link) {
  return link.transport.bytes_per_s;
}

/// A stage of an exchange: the thread that runs it, and the cost there of each byte that passes through.
struct MeasuredStage {
  const char* name;
  const char* thread;
  double ns_per_byte;
  double plain_ns_per_byte = 0;  ///< of raw ZeroMQ without CURVE; 0: it has no such stage
};

std::vector<MeasuredStage> stages_of(const ExchangeResults& results) {
  const auto link = [&](auto part) { return median(results.links, part); };
  const auto plain = [&](auto part) { return median(results.raw_plain, part); };
  return {
      {"encode", "worker", results.kernels.encode_ns_per_byte},
      {"frame, seal, hand over to ZeroMQ", "loop", link(&LinkRun::hand_over_ns_per_byte)},
      {"send", "I/O", link([](const LinkRun& run) { return run.transport.send_ns_per_byte; }),
       plain(&Transport::send_ns_per_byte)},
      {"receive", "I/O", link([](const LinkRun& run) { return run.transport.receive_ns_per_byte; }),
       plain(&Transport::receive_ns_per_byte)},
      {"take from ZeroMQ, open, check", "loop", link(&LinkRun::take_ns_per_byte)},
      {"answer: decode, compare, commit", "worker", results.kernels.answer_ns_per_byte},
      {"conclude: decode, commit", "worker", results.kernels.conclude_ns_per_byte},
  };
}

std::string rates_line(const char* name, std::vector<double> rates) {
  for (double& rate : rates)
    rate /= 1e9;
  return fmt::format("  {:<32}{:>22} GB/s\n", name, text_of(spread_of(std::move(rates)), 2));
}

std::string ratio_line(const char* name, const std::vector<double>& numbers, const std::vector<double>& references) {
  return fmt::format("  {:<32}{:>22}\n", name, text_of(spread_of(ratios(numbers, references)), 2));
}

std::string stages_text(const ExchangeResults& results) {
  const auto cost = [](double ns_per_byte) {
    return fmt::format("{:>9.0f} {:>8.1f}", ns_per_byte * 1024, 1 / ns_per_byte);
  };
  std::string text =
      fmt::format("\nCPU of each stage, for messages of {} KiB of payload; medians\n", results.message_bytes() / 1024);
  text += fmt::format("  {:<33}{:<8}{:>18}   {:>18}\n", "", "", "a link", "raw ZeroMQ");
  text += fmt::format("  {:<33}{:<8}{:>9} {:>8}   {:>9} {:>8}\n", "stage", "thread", "ns a KiB", "GB/s", "ns a KiB",
                      "GB/s");
  for (const MeasuredStage& stage : stages_of(results)) {
    text += fmt::format("  {:<33}{:<8}{}   {}\n", stage.name, stage.thread, cost(stage.ns_per_byte),
                        stage.plain_ns_per_byte > 0 ? cost(stage.plain_ns_per_byte) : std::string());
  }
  return text;
}

std::string daemons_text(const ExchangeResults& results) {
  const auto cost = [&](double DaemonTime::*part) { return median(results.daemon_ns_per_byte, part) * 1024; };
  return fmt::format(
      "\nCPU of both daemons while they exchanged, ns a KiB of payload: loops {:.0f}, workers {:.0f}, I/O {:.0f}\n",
      cost(&DaemonTime::loop), cost(&DaemonTime::workers), cost(&DaemonTime::io));
}

}  // namespace

nlohmann::json to_json(const ExchangeResults& results) {
  const std::vector<double> raw = each(results.raw, &Transport::bytes_per_s);
  const std::vector<double> links = each(results.links, rate_of);
  nlohmann::json stages = nlohmann::json::array();
  for (const MeasuredStage& stage : stages_of(results)) {
    stages.push_back({{"stage", stage.name}, {"thread", stage.thread}, {"ns_per_byte", stage.ns_per_byte}});
    if (stage.plain_ns_per_byte > 0) stages.back()["without_curve_ns_per_byte"] = stage.plain_ns_per_byte;
  }
  return {
      {"elements", results.elements},
      {"codec", codec_name(results.codec)},
      {"message_bytes", results.message_bytes()},
      {"model_bytes_per_s", to_json(spread_of(results.model_rates))},
      {"payload_bytes_per_s", to_json(spread_of(results.payload_rates))},
      {"link_bytes_per_s", to_json(spread_of(links))},
      {"raw_zeromq_bytes_per_s", to_json(spread_of(raw))},
      {"raw_zeromq_without_curve_bytes_per_s", to_json(spread_of(each(results.raw_plain, &Transport::bytes_per_s)))},
      {"link_to_raw", to_json(spread_of(ratios(links, raw)))},
      {"model_to_raw", to_json(spread_of(ratios(results.model_rates, raw)))},
      {"stages", std::move(stages)},
      {"daemons_ns_per_byte",
       {{"loop", median(results.daemon_ns_per_byte, &DaemonTime::loop)},
        {"workers", median(results.daemon_ns_per_byte, &DaemonTime::workers)},
        {"io", median(results.daemon_ns_per_byte, &DaemonTime::io)}}},
      {"wide_blocks_fraction", results.wide_fraction},
      {"busy_fraction", results.busy_fraction},
      {"unresolved", results.unresolved}};
}

std::string text_of(const ExchangeResults& results) {
  const std::vector<double> raw = each(results.raw, &Transport::bytes_per_s);
  const std::vector<double> links = each(results.links, rate_of);
  std::string text = fmt::format("{:.1f} M parameters, {}, on loopback; min / median / max of {} rounds\n",
                                 static_cast<double>(results.elements) / 1e6, codec_name(results.codec), raw.size());
  text += rates_line("two daemons: model averaged", results.model_rates);
  text += rates_line("  payload, both directions", results.payload_rates);
  text += rates_line("one link, one way", links);
  text += rates_line("raw ZeroMQ, CURVE, one way", raw);
  text += rates_line("raw ZeroMQ without CURVE", each(results.raw_plain, &Transport::bytes_per_s));
  text += ratio_line("link to raw with CURVE", links, raw);
  text += ratio_line("model to raw with CURVE", results.model_rates, raw);
  text += fmt::format("  {:<32}{:>22.2f} %\n", "wide blocks", 100 * results.wide_fraction);
  text += fmt::format("  {:<32}{:>22.2f} %\n", "requests turned down", 100 * results.busy_fraction);
  text += fmt::format("  {:<32}{:>22.0f}\n", "unresolved exchanges", results.unresolved);
  return text + stages_text(results) + daemons_text(results);
}

}  // namespace gossamer::bench
