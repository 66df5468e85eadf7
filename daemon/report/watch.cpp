#include "daemon/report/watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace gossamer::daemon {
namespace {

/// A look is compared with a look that is at least this long ago.
constexpr double least_window_s = 10;
constexpr int looks_to_end = 3;

constexpr double drift_factor = 3;  // times the median distance of the other partners
// of the norm: a smaller distance is no drift, even if the other partners are much closer
constexpr double drift_least = 1e-3;
// of the norm: models of equal norms are at most 2 apart. Such a partner hardly counts (gossip::loose_excess_log2).
constexpr double wild_apart = 4;
constexpr double comes_closer = 0.8;     // of the distance before: below it the partner comes closer
constexpr double moves_away = 1.25;      // of the distance before: above it the partner moves away
constexpr double capped_share = 0.7;     // share of a cap that counts as reaching it
constexpr double slow_link_share = 0.2;  // of the median of the other links
constexpr double rare_share = 0.5;       // of the median number of exchanges with the other partners
constexpr double pace_factor = 2;        // times this node's samples a second
// spectral gap for one exchange: pairs chosen at random have 0.2, a ring of 32 nodes has 0.01
constexpr double sparse_gap = 0.01;
constexpr std::size_t sparse_nodes = 4;  // a smaller cluster is never sparse
constexpr double spread_factor = 3;      // times the distance before
constexpr double spread_least = 0.05;    // of the norm
constexpr double rare_factor = 50;       // times the configured period
constexpr double rare_least_s = 10;      // a shorter period counts as often enough
constexpr double diverge_factor = 100;   // times the size before
// of the norm: the distance of closer replicas does not tell the size of their numbers
constexpr double diverge_least = 1e-4;
constexpr double wide_share = 0.2;         // of the blocks
constexpr double others_wide_share = 0.1;  // if all other partners are below this share, the one partner is the problem
constexpr double least_blocks = 100;       // with fewer blocks a share means nothing
constexpr double unresolved_share = 0.01;  // of the exchanges
constexpr double least_unresolved = 3;     // exchanges with one partner
constexpr double least_unresolved_gone = 10;  // exchanges with nodes that died: each death leaves a few
// in publication intervals; values from 4 on are already given less weight
constexpr double stale_intervals = 8;
constexpr double starved_s = 30;
// times the time in which every fragment has its turn, as planned or as measured, whichever is longer
constexpr double starved_rounds = 8;
constexpr double silent_s = 30;
constexpr double silent_intervals = 20;  // of the usual time between two exchanges with it
// mean number of exchanges with each partner in the window, with none to the partner that was never asked
constexpr double never_asked_rounds = 50;
constexpr double busy_share = 0.5;  // of the requests
constexpr double least_busy = 20;
constexpr double queue_s = 1;         // the time to send the queue at the link's rate
constexpr double latency_factor = 3;  // times the least round trip
constexpr double latency_ms = 20;     // a smaller latency matters to nobody
constexpr double fresh_s = 20;        // a report of another node older than this is not used

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// The growth of a counter. A counter that has started again counts from 0.
template <class Number>
double grown(Number before, Number now) {
  return static_cast<double>(now >= before ? now - before : now);
}

template <class Status>
const Status* with_node(const std::vector<Status>& list, const std::string& node) {
  const auto found = std::ranges::find(list, node, &Status::node);
  return found == list.end() ? nullptr : &*found;
}
const JobStatus* job_called(const std::vector<JobStatus>& jobs, const std::string& name) {
  const auto found = std::ranges::find(jobs, name, &JobStatus::job);
  return found == jobs.end() ? nullptr : &*found;
}

/// One partner of a job, now and before.
struct Partner {
  const PartnerStatus& now;
  const PartnerStatus& before;
  const PeerStatus* peer;         ///< its link; null if that is not known
  const PeerStatus* peer_before;  ///< its link before; null if that is not known
  double exchanges;               ///< exchanges with it in the window
};

/// All that the rules look at: one job at two moments.
struct Scene {
  const WatchLook& before_all;
  const WatchLook& all;
  const JobStatus& before;
  const JobStatus& job;
  double window_s;
  std::vector<Partner> partners;  ///< partners that run the job and are linked, both then and now
  std::vector<FindingStatus>& found;

  [[nodiscard]] std::string name_of(const std::string& node) const {
    for (const PeerStatus& peer : all.peers)
      if (peer.node == node && !peer.name.empty()) return peer.name;
    for (const SummaryStatus& summary : all.cluster)
      if (summary.node == node && !summary.name.empty()) return summary.name;
    return node.substr(0, 8);
  }
  /// The median of the values above zero of all partners but this one.
  template <class Value>
  [[nodiscard]] double usual(const Partner& but, Value value) const {
    std::vector<double> values;
    for (const Partner& partner : partners)
      if (&partner != &but && value(partner) > 0) values.push_back(value(partner));
    return median(std::move(values));
  }
  void find(const char* rule, const std::string& node, std::string text, std::string advice,
            const char* grade = "warning") const {
    found.push_back({.rule = rule,
                     .grade = grade,
                     .job = job.job,
                     .node = node,
                     .name = node.empty() ? "" : name_of(node),
                     .text = std::move(text),
                     .advice = std::move(advice)});
  }
};

double goodput_of(const Partner& partner) {
  return partner.peer == nullptr ? 0 : partner.peer->goodput_mbit_s;
}
double exchanges_of(const Partner& partner) {
  return partner.exchanges;
}
/// Mbit/s sent within the window.
double sent_mbit_s(const PeerStatus& before, const PeerStatus& now, double window_s) {
  return grown(before.bytes_sent, now.bytes_sent) * 8 / 1e6 / window_s;
}

// --- one partner --------------------------------------------------------------------------------------------------

struct Cause {
  std::string text;
  std::string advice;
};

/// Why a partner is farther away than the others: the first cause that the numbers show.
Cause cause_of_drift(const Scene& scene, const Partner& partner) {
  const double cap = scene.all.link_max_mbit_s;
  const bool known = partner.peer != nullptr && partner.peer_before != nullptr;
  if (cap > 0 && known && sent_mbit_s(*partner.peer_before, *partner.peer, scene.window_s) >= capped_share * cap)
    return {fmt::format("this node's link to it is capped at {:.3g} Mbit/s, and full", cap),
            "raise [gossip] link_max_mbit_s; or codec = \"q4\", which averages twice as often within it"};
  const double node_cap = scene.all.max_mbit_s;
  double sent = 0;
  for (const PeerStatus& peer : scene.all.peers) {
    const PeerStatus* before = with_node(scene.before_all.peers, peer.node);
    if (before != nullptr) sent += sent_mbit_s(*before, peer, scene.window_s);
  }
  if (node_cap > 0 && sent >= capped_share * node_cap)
    return {fmt::format("this node is capped at {:.3g} Mbit/s, and sends as much", node_cap),
            "raise [gossip] max_mbit_s; or codec = \"q4\", which averages twice as often within it"};
  const double goodput = goodput_of(partner);
  const double usual_goodput = scene.usual(partner, goodput_of);
  if (goodput > 0 && goodput < slow_link_share * usual_goodput)
    return {fmt::format("its link carries {:.3g} Mbit/s, the others {:.3g}", goodput, usual_goodput),
            "a faster line; or codec = \"auto\", which takes 4 bits over slow links"};
  if (const double busy = grown(partner.before.busy, partner.now.busy);
      busy >= least_busy && busy > busy_share * (busy + partner.exchanges))
    return {"it turns most requests down because it is busy", "raise period_ms there, or give its daemon more workers"};
  if (partner.now.age_intervals > stale_intervals)
    return {
        fmt::format("its values are {:.0f} of its publication intervals old", partner.now.age_intervals),
        "its training process takes corrections late: raise its step_budget, or find out why its steps take so long"};
  if (const double usual = scene.usual(partner, exchanges_of); partner.exchanges < rare_share * usual)
    return {fmt::format("it was averaged with {:.0f} times in {:.0f} s, the others {:.0f} times", partner.exchanges,
                        scene.window_s, usual),
            "'gossamerctl explain' there says what holds it back"};
  const double its_pace = grown(partner.before.clock, partner.now.clock);
  const double own_pace = grown(scene.before.clock, scene.job.clock);
  if (own_pace > 0 && its_pace > pace_factor * own_pace)
    return {fmt::format("it trains {:.0f} samples/s, this node {:.0f}, and is averaged as often",
                        its_pace / scene.window_s, own_pace / scene.window_s),
            "a shorter period_ms there"};
  return {"it is averaged as often as the others",
          "compare its data and its learning rate with theirs, or shorten "
          "period_ms there"};
}

void look_for_drift(const Scene& scene, const Partner& partner) {
  const double apart = partner.now.consensus;
  const double before = partner.before.consensus;
  const double usual = scene.usual(partner, [](const Partner& other) { return other.now.consensus; });
  if (usual <= 0 || apart < drift_least || apart < drift_factor * usual) return;
  if (apart > wild_apart)
    return scene.find(
        "drift", partner.now.node,
        fmt::format("{} has gone wild: its model is {:.2g} times the norm of this node's away, the others "
                    "{:.2g}",
                    scene.name_of(partner.now.node), apart, usual),
        "look at the training's loss there; end it, or resume it from a checkpoint. Among four nodes or "
        "more it hardly moves the others, unless [gossip] clip is 0",
        "problem");
  if (before > 0 && apart < comes_closer * before) return;
  const Cause cause = cause_of_drift(scene, partner);
  scene.find("drift", partner.now.node,
             fmt::format("{} drifts: its model is {:.2g} of the norm from this node's, the others {:.2g}{}; {}",
                         scene.name_of(partner.now.node), apart, usual,
                         before > 0 && apart > moves_away * before ? ", and it moves away" : "", cause.text),
             cause.advice);
}

bool trains(std::uint64_t clock_before, std::uint64_t clock) {
  return grown(clock_before, clock) > 0;
}
bool is_well(const Partner& partner) {
  return trains(partner.before.clock, partner.now.clock) && partner.now.quarantined_fragments == 0;
}

/// A partner refuses exchanges of the fragments that it has in quarantine.
void look_for_quarantine(const Scene& scene, const Partner& partner) {
  if (partner.now.quarantined_fragments == 0) return;
  scene.find("quarantined", partner.now.node,
             fmt::format("{} holds NaN or infinity in {} of {} fragments, which are not averaged with it",
                         scene.name_of(partner.now.node), partner.now.quarantined_fragments, scene.job.fragments),
             "look at the training's loss there; they are averaged again when they are finite", "problem");
}

void look_for_silence(const Scene& scene, const Partner& partner) {
  // Replicas that agree exchange rarely where nobody trains.
  if (scene.job.clock == scene.before.clock) return;
  const double all = grown(scene.before.exchanges, scene.job.exchanges);
  if (all == 0 && !(trains(scene.before.clock, scene.job.clock) && is_well(partner))) return;
  // A partner that answers "busy" is not silent; a partner with NaN has a rule of its own.
  if (partner.exchanges > 0 || partner.now.busy != partner.before.busy || partner.now.quarantined_fragments > 0) return;
  const std::string name = scene.name_of(partner.now.node);
  if (partner.now.exchanges == 0) {
    if (scene.all.scheduled || scene.job.method == "server" ||
        all < never_asked_rounds * static_cast<double>(scene.partners.size()))
      return;
    scene.find("silent", partner.now.node,
               fmt::format("{} runs the job and is linked, and nothing was exchanged with it", name),
               fmt::format("'gossamerctl explain {}' here and there", name));
    return;
  }
  const double up_s = partner.peer == nullptr ? 0 : partner.peer->up_s;
  const double usual_s = up_s / static_cast<double>(partner.now.exchanges);
  if (partner.now.exchanged_s < std::max(silent_s, silent_intervals * usual_s)) return;
  scene.find("silent", partner.now.node,
             fmt::format("{} has exchanged nothing with this node for {:.0f} s, before every {:.2g} s", name,
                         partner.now.exchanged_s, usual_s),
             fmt::format("'gossamerctl explain {}' here and there: its training process stands still, or the link "
                         "carries nothing big",
                         name));
}

void look_for_busy(const Scene& scene, const Partner& partner) {
  const double busy = grown(partner.before.busy, partner.now.busy);
  if (busy < least_busy || busy <= busy_share * (busy + partner.exchanges)) return;
  scene.find("busy", partner.now.node,
             fmt::format("{} turned {:.0f} of {:.0f} requests down because it was busy",
                         scene.name_of(partner.now.node), busy, busy + partner.exchanges),
             "it is asked more than it can answer: raise period_ms, or give its daemon more workers");
}

void look_for_unresolved(const Scene& scene, const Partner& partner) {
  const double unresolved = grown(partner.before.unresolved, partner.now.unresolved);
  if (unresolved < least_unresolved || unresolved <= unresolved_share * (unresolved + partner.exchanges)) return;
  scene.find("unresolved", partner.now.node,
             fmt::format("of {:.0f} exchanges with {}, {:.0f} have an outcome that cannot be known any more",
                         unresolved + partner.exchanges, scene.name_of(partner.now.node), unresolved),
             "its training process dies in the middle of exchanges, or it is away for ten minutes: see its log");
}

void look_for_age(const Scene& scene, const Partner& partner) {
  if (partner.exchanges == 0 || partner.now.age_intervals <= stale_intervals) return;
  scene.find(
      "stale", partner.now.node,
      fmt::format("the values of {} are {:.0f} of its publication intervals old, and so get less weight",
                  scene.name_of(partner.now.node), partner.now.age_intervals),
      "its training process publishes its model late: raise its step_budget, or look why its steps take so long");
}

void look_for_slow_link(const Scene& scene, const Partner& partner) {
  const double goodput = goodput_of(partner);
  const double usual = scene.usual(partner, goodput_of);
  const double usual_exchanges = scene.usual(partner, exchanges_of);
  if (goodput <= 0 || goodput >= slow_link_share * usual || partner.exchanges >= rare_share * usual_exchanges) return;
  scene.find(
      "slow-link", partner.now.node,
      fmt::format("the link to {} carries {:.3g} Mbit/s, the others {:.3g}, and it is averaged with {:.0f} times "
                  "in {:.0f} s, the others {:.0f} times",
                  scene.name_of(partner.now.node), goodput, usual, partner.exchanges, scene.window_s, usual_exchanges),
      "a faster line, or codec = \"auto\", which takes 4 bits over slow links");
}

// --- a job --------------------------------------------------------------------------------------------------------

void look_for_wide_blocks(const Scene& scene) {
  const double blocks = grown(scene.before.blocks, scene.job.blocks);
  const double wide = grown(scene.before.wide_blocks, scene.job.wide_blocks);
  if (blocks < least_blocks || wide <= wide_share * blocks) return;
  const char* const advice =
      "they move apart faster than they are averaged: a shorter period_ms, or a smaller learning rate";
  for (const Partner& partner : scene.partners) {
    const double its_blocks = grown(partner.before.blocks, partner.now.blocks);
    const double its_wide = grown(partner.before.wide_blocks, partner.now.wide_blocks);
    if (its_blocks < least_blocks || its_wide <= wide_share * its_blocks) continue;
    if (blocks - its_blocks < least_blocks || wide - its_wide > others_wide_share * (blocks - its_blocks)) continue;
    scene.find(
        "wide", partner.now.node,
        fmt::format("{:.0f} % of the blocks exchanged with {} differ by more than the codec's range, of the others' "
                    "{:.0f} %",
                    100 * its_wide / its_blocks, scene.name_of(partner.now.node),
                    100 * (wide - its_wide) / (blocks - its_blocks)),
        advice);
    return;
  }
  scene.find(
      "wide", "",
      fmt::format("{:.0f} % of all blocks differ between replicas by more than the codec's range", 100 * wide / blocks),
      advice);
}

void look_for_spread(const Scene& scene) {
  const double before = scene.before.consensus;
  const double now = scene.job.consensus;
  if (before <= 0 || now < spread_least || now < spread_factor * before) return;
  scene.find(
      "spread", "",
      fmt::format("replicas move apart: their distance went from {:.2g} to {:.2g} of the model's norm in {:.0f} s",
                  before, now, scene.window_s),
      "a smaller learning rate, or a shorter period_ms; if one node alone is far off, look there");
}

/// The size of the model's numbers: the difference divided by the relative distance.
double size_of(const JobStatus& job) {
  return job.consensus < diverge_least ? 0 : job.mean_disagreement / job.consensus;
}

/// Replicas that diverge together keep their distance relative to the norm. Only the size of their numbers shows it.
void look_for_divergence(const Scene& scene) {
  const double before = size_of(scene.before);
  const double now = size_of(scene.job);
  if (before <= 0 || now < diverge_factor * before) return;
  scene.find(
      "diverge", "",
      fmt::format("the model grows without bound: its numbers are about {:.1g} times as large as {:.0f} s before",
                  now / before, scene.window_s),
      "a smaller learning rate; also check whether a program attaches the same model twice, or adds the corrections to "
      "its model a second time",
      "problem");
}

void look_for_sparse_mixing(const Scene& scene) {
  const JobStatus& job = scene.job;
  // Replicas that agree need no further mixing.
  if (job.mixing_per_s <= 0 || job.spectral_gap >= sparse_gap || job.consensus < drift_least) return;
  std::set<std::string> nodes;
  for (const Partner& partner : scene.partners)
    nodes.insert(partner.now.node);
  for (const SummaryStatus& summary : scene.all.cluster)
    if (std::ranges::find(summary.jobs, job.job, &JobSummaryStatus::job) != summary.jobs.end())
      nodes.insert(summary.node);
  if (nodes.size() + 1 < sparse_nodes) return;
  scene.find("sparse", "",
             fmt::format("exchanges mix {} replicas slowly: a difference halves in {:.2g} s (spectral gap {:.2g} an "
                         "exchange; pairs by chance have 0.2)",
                         nodes.size() + 1, std::log(2) / job.mixing_per_s, job.spectral_gap),
             scene.all.scheduled ? "[gossip] partners = \"random\", or another schedule, joins distant replicas sooner"
                                 : "parts of the cluster are joined by few or slow links: look for low goodput in "
                                   "'gossamerctl peers', and raise caps there");
}

/// Without a fault, no fragment waits much longer than a full turn of all fragments, even in a large model and over
/// slow links.
void look_for_starvation(const Scene& scene) {
  const JobStatus& job = scene.job;
  if (job.method == "average") return;  // the model is not exchanged
  if (job.fragment_idle_s < starved_s || scene.window_s < starved_s || !trains(scene.before.clock, job.clock)) return;
  const double exchanges = grown(scene.before.exchanges, job.exchanges);
  const double round_s = exchanges > 0 ? job.fragments * scene.window_s / exchanges : 0;
  if (job.fragment_idle_s < starved_rounds * std::max(round_s, job.period_s)) return;
  std::string names;
  for (const Partner& partner : scene.partners) {
    if (is_well(partner)) names += (names.empty() ? "" : ", ") + scene.name_of(partner.now.node);
  }
  if (names.empty()) return;
  scene.find("starved", "",
             fmt::format("{} for {:.0f} s, though there are links to replicas that train: {}",
                         exchanges > 0 ? "a part of the model was exchanged with nobody"
                                       : "nothing of the model was exchanged with anybody",
                         job.fragment_idle_s, names),
             "'gossamerctl explain' of each, here and there, says how it stands; if all are well, please report it",
             "problem");
}

FindingStatus own_quarantine(const JobStatus& job, std::string text, std::string advice) {
  return {.rule = "quarantined",
          .grade = "problem",
          .job = job.job,
          .node = {},
          .name = {},
          .text = std::move(text),
          .advice = std::move(advice)};
}

void look_for_own_quarantine(const JobStatus& job, std::vector<FindingStatus>& found) {
  if (job.state == "quarantined") {
    found.push_back(
        own_quarantine(job,
                       fmt::format("this replica holds NaN or infinity in {} of {} fragments, which are kept "
                                   "out of gossip",
                                   job.quarantined_fragments, job.fragments),
                       "look at the training's loss; they take part again when they are finite"));
    return;
  }
  // The node's copy lacks the publications of a client that is in quarantine.
  for (const ClientStatus& client : job.processes) {
    if (client.state != "quarantined") continue;
    found.push_back(own_quarantine(job,
                                   fmt::format("the model of process {} holds NaN or infinity: what it learns is left "
                                               "out, and this node's other clients go on without it",
                                               client.pid),
                                   "look at that training's loss; it takes part again when its values are finite"));
  }
}

void look_for_own_age(const Scene& scene) {
  const double exchanges = grown(scene.before.exchanges, scene.job.exchanges);
  const double age = scene.job.age_sum - scene.before.age_sum;
  if (exchanges == 0 || age <= stale_intervals * exchanges) return;
  scene.find(
      "stale", "",
      fmt::format("the values of this node are {:.0f} of its publication intervals old, and so get less weight",
                  age / exchanges),
      "the training process publishes its model late: raise its step_budget, or look why its steps take so long");
}

void look_for_rarity(const Scene& scene) {
  const JobStatus& job = scene.job;
  if (job.period_limit.empty() || job.period_limit == "step") return;
  if (job.period_s < std::max(rare_least_s, rare_factor * job.wanted_period_s)) return;
  const bool of_network = job.period_limit == "bandwidth_share";
  scene.find("rare", "",
             fmt::format(
                 "this node begins an exchange of each fragment every {:.0f} s, not every {:.2g} s, because more would "
                 "take over {} of {}",
                 job.period_s, job.wanted_period_s, job.period_limit,
                 of_network ? "what the fastest link carries" : "the training's time"),
             of_network ? "a faster line, codec = \"q4\", or a larger [gossip] bandwidth_share"
                        : "a larger [gossip] time_share, or longer training steps between two calls of step()");
}

void look_for_unresolved_elsewhere(const Scene& scene) {
  double unresolved = grown(scene.before.unresolved, scene.job.unresolved);
  for (const Partner& partner : scene.partners)
    unresolved -= grown(partner.before.unresolved, partner.now.unresolved);
  const double exchanges = grown(scene.before.exchanges, scene.job.exchanges);
  if (unresolved < least_unresolved_gone || unresolved <= unresolved_share * (unresolved + exchanges)) return;
  scene.find(
      "unresolved", "",
      fmt::format("of {:.0f} exchanges, {:.0f} have an outcome that cannot be known any more, because one end is gone",
                  unresolved + exchanges, unresolved),
      "nodes die in the middle of exchanges: 'gossamerctl members', and their machines' logs");
}

/// The tracer's rounds travel with exchanges, and reports of them travel over links. If a node's report is fresh and
/// its round never arrived here by an exchange, this node does not mix with that one.
void look_for_parts(const Scene& scene) {
  const JobStatus& job = scene.job;
  if (job.tracer_rounds.empty() || scene.partners.empty()) return;
  if (grown(scene.before.exchanges, job.exchanges) == 0) return;
  for (const SummaryStatus& summary : scene.all.cluster) {
    if (summary.age_s > fresh_s) continue;
    for (const JobSummaryStatus& theirs : summary.jobs) {
      if (theirs.job != job.job || theirs.state != "running" || theirs.tracer_round == 0) continue;
      if (std::ranges::find(job.tracer_rounds, theirs.tracer_round) != job.tracer_rounds.end()) continue;
      scene.find(
          "apart", summary.node,
          fmt::format("what {} learns does not arrive here: no chain of exchanges leads from it to this node",
                      scene.name_of(summary.node)),
          "the replicas are in parts that do not exchange: look with 'gossamerctl jobs' for partners in both, and "
          "with 'gossamerctl peers' for the link between them",
          "problem");
    }
  }
}

std::vector<Partner> partners_of(const WatchLook& before_all, const WatchLook& all, const JobStatus& before,
                                 const JobStatus& job) {
  std::vector<Partner> partners;
  for (const PartnerStatus& now : job.partners) {
    const PartnerStatus* earlier = with_node(before.partners, now.node);
    if (earlier == nullptr || !now.linked || !earlier->linked || now.state != "running" || earlier->state != "running")
      continue;
    partners.push_back({.now = now,
                        .before = *earlier,
                        .peer = with_node(all.peers, now.node),
                        .peer_before = with_node(before_all.peers, now.node),
                        .exchanges = grown(earlier->exchanges, now.exchanges)});
  }
  return partners;
}

// --- a link -------------------------------------------------------------------------------------------------------

void look_at_link(const PeerStatus& peer, std::vector<FindingStatus>& found) {
  const std::string name = peer.name.empty() ? peer.node.substr(0, 8) : peer.name;
  const auto find = [&](const char* rule, std::string text, const char* advice) {
    found.push_back({.rule = rule,
                     .grade = "warning",
                     .job = "",
                     .node = peer.node,
                     .name = name,
                     .text = std::move(text),
                     .advice = advice});
  };
  const double waits_s =
      peer.goodput_mbit_s > 0 ? static_cast<double>(peer.queued_bytes) * 8 / (peer.goodput_mbit_s * 1e6) : 0;
  if (waits_s > queue_s)
    find("queue",
         fmt::format("{:.3g} MB wait to be sent to {}, {:.2g} s at the {:.3g} Mbit/s that the link carries",
                     static_cast<double>(peer.queued_bytes) / 1e6, name, waits_s, peer.goodput_mbit_s),
         "the link carries less than is asked of it: lower [gossip] link_max_mbit_s, or raise period_ms");
  const double excess_ms = peer.round_trip_ms - peer.least_round_trip_ms;
  if (peer.least_round_trip_ms > 0 && peer.round_trip_ms > latency_factor * peer.least_round_trip_ms &&
      excess_ms > latency_ms)
    find("latency",
         fmt::format("heartbeats to {} take {:.0f} ms, {:.0f} ms of it in queues", name, peer.round_trip_ms, excess_ms),
         "something else fills the line, or a processor on the way is busy; [gossip] link_max_mbit_s keeps gossip off "
         "it");
}

const WatchRule& rule_called(const std::string& name) {
  return *std::ranges::find(watch_rules, name, [](const WatchRule& rule) { return std::string(rule.name); });
}

}  // namespace

std::vector<FindingStatus> judge(const WatchLook& before, const WatchLook& now) {
  std::vector<FindingStatus> found = now.troubles;
  const double window_s = now.at_s - before.at_s;
  if (window_s < least_window_s) return found;
  for (const JobStatus& job : now.jobs) {
    const JobStatus* earlier = job_called(before.jobs, job.job);
    look_for_own_quarantine(job, found);
    if (earlier == nullptr || job.state != "running" || earlier->state != "running") continue;
    const Scene scene{.before_all = before,
                      .all = now,
                      .before = *earlier,
                      .job = job,
                      .window_s = window_s,
                      .partners = partners_of(before, now, *earlier, job),
                      .found = found};
    for (const Partner& partner : scene.partners) {
      look_for_drift(scene, partner);
      look_for_quarantine(scene, partner);
      look_for_silence(scene, partner);
      look_for_busy(scene, partner);
      look_for_unresolved(scene, partner);
      look_for_age(scene, partner);
      look_for_slow_link(scene, partner);
    }
    look_for_wide_blocks(scene);
    look_for_spread(scene);
    look_for_divergence(scene);
    look_for_sparse_mixing(scene);
    look_for_own_age(scene);
    look_for_starvation(scene);
    look_for_rarity(scene);
    look_for_unresolved_elsewhere(scene);
    look_for_parts(scene);
  }
  for (const PeerStatus& peer : now.peers)
    if (peer.up) look_at_link(peer, found);
  return found;
}

std::string sentence(const FindingStatus& finding) {
  return fmt::format("{}{}; {}", finding.job.empty() ? "" : "job " + finding.job + ": ", finding.text, finding.advice);
}

Watch::News Watch::look(WatchLook look) {
  News news;
  while (!looks_.empty() && look.at_s - looks_.front().at_s > watch_window_s)
    looks_.pop_front();
  std::vector<FindingStatus> found = judge(looks_.empty() ? look : looks_.front(), look);
  const double now_s = look.at_s;
  looks_.push_back(std::move(look));
  for (auto& [key, held] : held_)
    ++held.missed;
  for (FindingStatus& finding : found) {
    Held& held = held_[{finding.rule, finding.job, finding.node}];
    if (held.seen == 0) held.first_s = now_s;
    held.missed = 0;
    held.finding = std::move(finding);
    if (held.said || ++held.seen < rule_called(held.finding.rule).looks) continue;
    held.said = true;
    news.begun.push_back(held.finding);
  }
  std::erase_if(held_, [&](const auto& item) {
    const Held& held = item.second;
    if (held.missed == 0 || (held.said && held.missed < looks_to_end)) return false;
    if (held.said) news.ended.push_back(held.finding);
    return true;
  });
  return news;
}

std::vector<FindingStatus> Watch::findings(double now_s) const {
  std::vector<FindingStatus> all;
  for (const auto& [key, held] : held_) {
    if (!held.said) continue;
    all.push_back(held.finding);
    all.back().since_s = now_s - held.first_s;
  }
  return all;
}

}  // namespace gossamer::daemon
