// Records a simulation: a hash over all events, by which a replay is verified, and the last events, which explain a
// violation.
//
// The hash covers time, kind, nodes, fragment, exchange and the bits of the values behind each event; nothing in it
// depends on addresses. One thread.

#pragma once

#include <cstdio>
#include <deque>
#include <optional>
#include <string>

#include "tools/sim/cluster.hpp"

namespace gossamer::sim {

class Trace {
 public:
  static constexpr std::size_t max_records = 100'000;
  static constexpr std::size_t max_lines = 60;    ///< of one explanation
  static constexpr std::size_t lines_before = 8;  ///< lines before the exchange that the violation is about

  /// Every event is written to `story` as it happens, unless it is null.
  explicit Trace(std::FILE* story = nullptr) : story_(story) {}

  /// `value` is a number that depends on everything at the node.
  void add(TimeUs time_us, const Cluster::Event& event, double value);
  /// Adds a deed of the scenario, in words.
  void add(TimeUs time_us, const std::string& deed);

  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  [[nodiscard]] std::uint64_t events() const { return events_; }

  /// The node, fragment and exchange of a violation.
  struct Concern {
    std::optional<std::size_t> node = {};
    std::optional<std::size_t> other = {};
    std::optional<std::uint32_t> fragment = {};
    std::optional<ExchangeId> exchange = {};
  };
  /// The last events that touch the concern, one on each line.
  [[nodiscard]] std::string explain(const Concern& concern) const;

 private:
  struct Record {
    TimeUs time_us = 0;
    std::uint64_t number = 0;
    Cluster::Event event = {};
    std::size_t message_kind = std::variant_npos;
    std::string deed = {};  ///< a deed of the scenario; the other members then have no meaning
  };
  [[nodiscard]] static std::string line(const Record& record);
  [[nodiscard]] static bool touches(const Record& record, const Concern& concern);
  void mix(std::uint64_t word);
  void keep(Record record);

  std::FILE* story_;
  std::uint64_t hash_ = 0;
  std::uint64_t events_ = 0;
  std::deque<Record> records_;
};

}  // namespace gossamer::sim
