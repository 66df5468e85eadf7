#include "tools/sim/hunt/trace.hpp"

#include <fmt/format.h>
#include <array>
#include <bit>

namespace gossamer::sim {

namespace {

using Kind = Cluster::Event::Kind;

/// What each kind of event is called, in the order of the kinds.
constexpr std::array kind_names = {
    "trains",                                       // training
    "has trained",                                  // trained
    "client collects and publishes",                // collected
    "client takes the joined model over",           // replaced
    "answered",                                     // answered
    "concluded",                                    // concluded
    "undone",                                       // undone
    "takes an outer step",                          // outer
    "turned",                                       // turned
    "receives",                                     // delivered
    "is told dead:",                                // dead
    "DAEMON DIED",                                  // daemon_died
    "daemon began",                                 // daemon_began
    "CLIENT DIED",                                  // client_died
    "client began",                                 // client_began
    "sends",                                        // sent
    "cannot send",                                  // blocked
    "begins to answer",                             // answering
    "adopts pulled values",                         // adopted
    "is linked to",                                 // linked
    "loses its link to",                            // unlinked
    "PAUSED",                                       // paused
    "resumed",                                      // resumed
    "daemon lets the replica go",                   // let_go
    "runs with the model that it has joined with",  // ran
};
static_assert(kind_names.size() == static_cast<std::size_t>(Kind::ran) + 1);

constexpr const char* message_names[] = {"request", "reply", "ack",  "inquiry",
                                         "info",    "query", "pull", "pulled values"};
static_assert(std::size(message_names) + 5 == std::variant_size_v<Message>);  // the simulation sends no other kinds

bool about_other(Kind kind) {
  return kind == Kind::delivered || kind == Kind::dead || kind == Kind::sent || kind == Kind::blocked ||
         kind == Kind::linked || kind == Kind::unlinked;
}

/// Fills in the fragment and the exchange that a message is about, as seen from the event's nodes.
void complete(Cluster::Event& event) {
  if (event.message == nullptr) return;
  const std::size_t from = event.kind == Kind::delivered ? event.other : event.node;
  const std::size_t to = event.kind == Kind::delivered ? event.node : event.other;
  if (const auto* request = std::get_if<ExchangeRequest>(event.message)) {
    event.fragment = request->fragment;
    event.exchange = {id_of(from), request->counter};
  } else if (const auto* reply = std::get_if<ExchangeReply>(event.message)) {
    event.fragment = reply->fragment;
    event.exchange = {id_of(to), reply->counter};
    event.done = reply->status == ReplyStatus::done;
  } else if (const auto* ack = std::get_if<ExchangeAck>(event.message)) {
    event.exchange = {id_of(from), ack->counter};
    event.done = ack->outcome != gossamer::Outcome::unknown;
    event.commit = ack->outcome == gossamer::Outcome::taken;
  } else if (const auto* inquiry = std::get_if<ExchangeInquiry>(event.message)) {
    event.fragment = inquiry->fragment;
    event.exchange = {id_of(to), inquiry->counter};
  } else if (const auto* pull = std::get_if<PullRequest>(event.message)) {
    event.fragment = pull->fragment;
  } else if (const auto* pulled = std::get_if<PullReply>(event.message)) {
    event.fragment = pulled->fragment;
  }
}

}  // namespace

void Trace::mix(std::uint64_t word) {
  // Each step is a bijection of the hash so far (Steele, Lea & Flood 2014, mix64variant13).
  std::uint64_t z = (hash_ ^ word) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
  hash_ = z ^ z >> 31;
}

void Trace::keep(Record record) {
  if (story_ != nullptr && record.event.kind != Kind::turned && record.event.kind != Kind::training) {
    std::fprintf(story_, "%s\n", line(record).c_str());
  }
  if (records_.size() >= max_records) records_.pop_front();
  records_.push_back(std::move(record));
}

void Trace::add(TimeUs time_us, const Cluster::Event& event, double value) {
  Record record{.time_us = time_us, .number = ++events_, .event = event};
  if (event.message != nullptr) record.message_kind = event.message->index();
  complete(record.event);
  record.event.message = nullptr;  // the message no longer exists when this is read
  mix(static_cast<std::uint64_t>(time_us));
  mix(static_cast<std::uint64_t>(event.kind) << 48 ^ event.node << 32 ^ event.other << 16 ^ record.event.fragment);
  mix(number_of(record.event.exchange.initiator) << 48 ^ record.event.exchange.counter);
  mix(record.message_kind << 8 ^ static_cast<std::uint64_t>(event.arrivals) << 2 ^ (event.done ? 2U : 0U) ^
      (event.commit ? 1U : 0U));
  mix(std::bit_cast<std::uint64_t>(value));
  // Turns and steps are not kept: they would push out the events that explain something.
  if (event.kind != Kind::turned && event.kind != Kind::training && event.kind != Kind::trained)
    keep(std::move(record));
}

void Trace::add(TimeUs time_us, const std::string& deed) {
  mix(static_cast<std::uint64_t>(time_us));
  for (const char character : deed)
    mix(static_cast<unsigned char>(character));
  keep({.time_us = time_us, .number = ++events_, .event = {.kind = Kind::dead, .node = 0}, .deed = deed});
}

std::string Trace::line(const Record& record) {
  const std::string head =
      fmt::format("{:12.6f} s #{:<8}", static_cast<double>(record.time_us) / us_per_s, record.number);
  if (!record.deed.empty()) return head + "-- " + record.deed;
  const auto& event = record.event;
  std::string text = head + fmt::format("node {:<2} {}", event.node, kind_names[static_cast<std::size_t>(event.kind)]);
  if (record.message_kind != std::variant_npos) text += fmt::format(" {}", message_names[record.message_kind]);
  if (event.exchange.counter != 0) {
    text +=
        fmt::format("{} exchange {}", record.message_kind != std::variant_npos ? " of" : "", name_of(event.exchange));
  }
  if (about_other(event.kind)) {
    text += fmt::format("{} node {}",
                        event.kind == Kind::delivered                                          ? " from"
                        : event.message != nullptr || record.message_kind != std::variant_npos ? " to"
                                                                                               : "",
                        event.other);
  }
  const bool with_fragment = event.exchange.counter != 0 || event.kind == Kind::collected ||
                             event.kind == Kind::replaced || event.kind == Kind::adopted;
  if (with_fragment && record.message_kind != 2) text += fmt::format(", fragment {}", event.fragment);
  if (event.kind == Kind::sent && event.arrivals == 0) text += ": LOST";
  if (event.kind == Kind::sent && event.arrivals > 1) text += ": twice";
  if (record.message_kind == 1) text += event.done ? " (done)" : " (turned down)";
  if (record.message_kind == 2) text += event.commit ? " (taken)" : event.done ? " (never)" : " (unknown)";
  if (event.kind == Kind::answered || event.kind == Kind::concluded || event.kind == Kind::undone) {
    text += event.commit ? ": commits" : event.done ? ": nothing to commit" : ": declines";
  }
  return text;
}

bool Trace::touches(const Record& record, const Concern& concern) {
  if (!record.deed.empty()) return true;
  const auto& event = record.event;
  if (concern.exchange && event.exchange == *concern.exchange) return true;
  const bool of_nodes = event.kind == Kind::linked || event.kind == Kind::unlinked || event.kind == Kind::dead ||
                        event.kind == Kind::paused || event.kind == Kind::resumed || event.kind == Kind::daemon_died ||
                        event.kind == Kind::daemon_began || event.kind == Kind::client_died ||
                        event.kind == Kind::client_began;
  if (concern.exchange && !of_nodes) return false;
  if (record.message_kind > 1 && record.message_kind != std::variant_npos) return false;  // neither request nor reply
  const bool ours = (concern.node && event.node == *concern.node) || (concern.other && event.node == *concern.other);
  if (!ours) return false;
  if (about_other(event.kind) && concern.other && event.other != *concern.node && event.other != *concern.other) {
    return false;
  }
  return !concern.fragment || about_other(event.kind) || event.fragment == *concern.fragment;
}

std::string Trace::explain(const Concern& concern) const {
  std::deque<const Record*> chosen;
  std::size_t since_exchange = 0;  // chosen records that are no older than the exchange
  for (auto record = records_.rbegin(); record != records_.rend() && chosen.size() < max_lines; ++record) {
    if (!touches(*record, concern)) continue;
    chosen.push_front(&*record);
    if (concern.exchange && record->deed.empty() && record->event.exchange == *concern.exchange) {
      since_exchange = chosen.size();
    }
  }
  while (since_exchange > 0 && chosen.size() > since_exchange + lines_before)
    chosen.pop_front();
  std::string text;
  for (const Record* record : chosen)
    text += line(*record) + "\n";
  return text;
}

}  // namespace gossamer::sim
