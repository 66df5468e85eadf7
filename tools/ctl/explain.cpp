// The names of JSON members are those of daemon/report/status.hpp.

#include "tools/ctl/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tools/ctl/fields.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// As a share of the job's clock. A node with a smaller lag is not behind.
constexpr double behind_share = 0.05;
/// As a share of the samples that this node trains meanwhile. A node that trains more slowly than this is behind for
/// that reason.
constexpr double slow_share = 0.8;
constexpr double slowed_factor = 2;

std::string period_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.0f} ms", seconds * 1e3) : duration_text(seconds);
}
const json* with(const json& list, const char* member, const std::string& value) {
  const auto found = std::ranges::find_if(list, [&](const json& entry) { return entry.value(member, "") == value; });
  return found == list.end() ? nullptr : &*found;
}
void add_watched(const Look& look, const std::string& about, const std::string& job, std::vector<Finding>& findings) {
  std::ranges::move(watched(look.node, about, job), std::back_inserter(findings));
}

// --- another node -------------------------------------------------------------------------------------------------

void explain_membership(const Look& look, const std::string& id, std::vector<Finding>& findings) {
  const json* member = with(look.members, "node", id);
  if (member == nullptr) {
    findings.push_back(
        warning("member", "it is not in the cluster that this node knows",
                "it is dead, or has left; or the cluster is so large that this node knows a part of it"));
    return;
  }
  const std::string heard =
      fmt::format("last heard from directly {} ago", duration_text(number_of(*member, "heard_s")));
  if (text_of(*member, "state") == "alive") {
    findings.push_back(ok("member", "alive, " + heard));
  } else {
    findings.push_back(problem("member", fmt::format("{}, {}", text_of(*member, "state"), heard),
                               "nobody reaches it: check its machine, its gossamerd and its network"));
  }
}

/// Returns false if there is no link, so that no measured figure means anything.
bool explain_link(const Look& look, const std::string& id, std::vector<Finding>& findings) {
  const json* peer = with(look.peers, "node", id);
  if (peer == nullptr) {
    findings.push_back(ok("link", "none is kept: this node exchanges with others of its view"));
    return false;
  }
  if (!peer->value("up", false)) {
    const std::string note = text_of(*peer, "note");
    findings.push_back(problem("link", "down" + (note.empty() ? "" : ": " + note),
                               "'gossamerctl doctor' at both ends says what keeps them apart"));
    return false;
  }
  findings.push_back(ok("link", fmt::format("up for {}, dialled by {}", duration_text(number_of(*peer, "up_s")),
                                            peer->value("dialled_by_us", false) ? "us" : "them")));
  const std::string bulk = text_of(*peer, "bulk");
  if (bulk == "plain") {
    findings.push_back(warning("models", "cross the network unencrypted, as both ends want it",
                               "set [overlay] bulk = \"sealed\" at either, unless nobody else can listen in"));
  } else if (bulk == "curve") {
    findings.push_back(ok("models",
                          "are encrypted by CURVE: the other end is older or wants it so, or the network takes "
                          "the mark of sealed connections away"));
  }
  const double least_ms = number_of(*peer, "least_round_trip_ms");
  const double last_ms = number_of(*peer, "round_trip_ms");
  findings.push_back(ok("round trip", fmt::format("{:.1f} ms, at least {:.1f} ms", last_ms, least_ms)));
  if (const double goodput = number_of(*peer, "goodput_mbit_s"); goodput > 0)
    findings.push_back(ok("goodput", fmt::format("{:.3g} Mbit/s", goodput)));
  add_watched(look, id, "", findings);
  return true;
}

/// What grew between the two looks.
struct PaceOfNode {
  double elapsed_s = 0;  ///< between the two looks
  double own_samples = 0;
  double its_samples = 0;
  double own_exchanges = 0;  ///< in both roles
  std::string fastest = {};  ///< the id of the other node that trained most samples; empty: none trained
  double fastest_samples = 0;
};

/// A node may be ahead of the job's clock, which does not follow one that is much faster than all others at once.
void explain_clock(const json& job, const json& partner, const PaceOfNode& pace, std::vector<Finding>& findings) {
  const std::string topic = "job " + text_of(job, "job");
  const double all = number_of(job, "global_clock");
  const double its = number_of(partner, "clock");
  const double own = number_of(job, "clock");
  const bool faster = pace.own_samples < slow_share * pace.its_samples;
  const std::string paces = fmt::format(
      "its clock is {}, this node's {}, the job's {}; it trained {} samples in the {:.3g} s of this look, "
      "this node {}",
      count_text(its), count_text(own), count_text(all), count_text(pace.its_samples), pace.elapsed_s,
      count_text(pace.own_samples));
  const double behind = all - its;
  if (behind <= behind_share * all) {
    findings.push_back(ok(topic, paces));
    return;
  }
  const std::string found =
      fmt::format("behind the job's clock by {} of {} samples ({:.0f} %), {} this node's; {}", count_text(behind),
                  count_text(all), 100 * behind / all, its >= own ? "not behind" : "and behind", paces);
  if (pace.its_samples == 0) {
    findings.push_back(warning(topic, found,
                               fmt::format("its steps take longer than the {:.0f} s of this look, or its training "
                                           "stands still: look at the training process there",
                                           pace.elapsed_s)));
  } else if (pace.its_samples < slow_share * pace.own_samples) {
    findings.push_back(warning(
        topic, found,
        "its machine is slower, or shared: it still learns, and its training counts by the number of its samples"));
  } else {
    findings.push_back(ok(topic, fmt::format("{}: {}; its training counts by the number of its samples", found,
                                             faster ? "it is faster than this node, and another is faster still, or it "
                                                      "came later or stood still for a while"
                                                    : "it came later, stood still for a while, or is a little "
                                                      "slower than others")));
  }
}

std::string quarantine_text(const std::string& who, double fragments, const json& job) {
  return fmt::format("{} holds NaN or infinity in {:.0f} of {:.0f} fragments, which are not averaged with it", who,
                     fragments, number_of(job, "fragments"));
}

void explain_partner(const json& job, const json* partner, const PaceOfNode& pace, std::vector<Finding>& findings) {
  const std::string topic = "job " + text_of(job, "job");
  const std::string state = partner == nullptr ? "absent" : text_of(*partner, "state");
  if (state == "absent") {
    findings.push_back(warning(topic, "it does not run this job", "start a training process there, if it should"));
    return;
  }
  if (state == "other layout") {
    findings.push_back(problem(topic, "it runs a job of this name with another layout",
                               "run the same program in the same version everywhere, with the same options "
                               "(share_second_moments, correct_drift), or give the job another name"));
    return;
  }
  if (state != "running") {
    findings.push_back(ok(topic, state == "joining" ? "it is taking the model over" : "it is draining, or leaving"));
    return;
  }
  if (const double sick = number_of(*partner, "quarantined_fragments"); sick > 0)
    findings.push_back(problem(topic, quarantine_text("it", sick, job),
                               "look at the training's loss there; they are averaged again when they are finite"));
  explain_clock(job, *partner, pace, findings);
  const double exchanges = number_of(*partner, "exchanges");
  const std::string answers = fmt::format("{:.0f} of its answers were busy", number_of(*partner, "busy"));
  findings.push_back(ok(topic, exchanges == 0
                                   ? "no exchange with it yet; " + answers
                                   : fmt::format("{} exchanges, the last {} ago; {}", count_text(exchanges),
                                                 duration_text(number_of(*partner, "exchanged_s")), answers)));
  if (const double apart = number_of(*partner, "consensus"); apart > 0)
    findings.push_back(ok(topic, fmt::format("its model is {:.2g} from this node's (|y_j - y_i| / |y|)", apart)));
}

// --- this node ----------------------------------------------------------------------------------------------------

std::string name_of(const Look& look, const std::string& id) {
  const json* peer = with(look.peers, "node", id);
  const std::string name = peer == nullptr ? "" : text_of(*peer, "name");
  return name.empty() ? id.substr(0, 8) : name;
}

/// This node's clock and speed beside those of the job and of the fastest other node.
std::string own_pace_text(const Look& look, const json& job, const PaceOfNode& pace) {
  std::string clocks = fmt::format("its clock is {}, the job's {}", count_text(number_of(job, "clock")),
                                   count_text(number_of(job, "global_clock")));
  std::string paces =
      fmt::format("it trained {} samples in the {:.3g} s of this look", count_text(pace.own_samples), pace.elapsed_s);
  if (pace.own_samples < slow_share * pace.fastest_samples) {
    const std::string name = name_of(look, pace.fastest);
    clocks += fmt::format(", that of {} {}", name,
                          count_text(number_of(*with(job.at("partners"), "node", pace.fastest), "clock")));
    paces += fmt::format(", {} {}", name, count_text(pace.fastest_samples));
    if (pace.own_samples > 0)
      paces += fmt::format(": this node is {:.2g} times slower", pace.fastest_samples / pace.own_samples);
  }
  return clocks + "; " + paces;
}

void explain_own_job(const Look& look, const json& job, const PaceOfNode& pace, std::vector<Finding>& findings) {
  const std::string topic = "job " + text_of(job, "job");
  const std::string state = text_of(job, "state");
  if (state == "quarantined") {
    findings.push_back(problem(topic,
                               fmt::format("{:.0f} fragments hold NaN or infinity and are kept out of gossip",
                                           number_of(job, "quarantined_fragments")),
                               "look at the training's loss; it takes part again when its values are finite"));
  } else if (state != "running") {
    findings.push_back(ok(topic, state));
  }
  for (const json& process : job.value("processes", json::array())) {
    if (state == "quarantined" || text_of(process, "state") != "quarantined") continue;
    findings.push_back(
        problem(topic,
                fmt::format("the model of process {:.0f} holds NaN or infinity: what it learns is left out",
                            number_of(process, "pid")),
                "look at that training's loss; it takes part again when its values are finite"));
  }
  if (const std::string note = text_of(job, "note"); !note.empty()) findings.push_back(warning(topic, note, ""));
  for (const json& partner : job.value("partners", json::array())) {
    if (const double sick = number_of(partner, "quarantined_fragments"); sick > 0)
      findings.push_back(warning(topic, quarantine_text(name_of(look, partner.at("node")), sick, job),
                                 "look at the training's loss there; the others go on without it"));
  }
  if (number_of(job, "neighbours") == 0)
    findings.push_back(warning(topic, "it has no other replica in reach", "training goes on alone; see the links"));
  if (text_of(job, "method") == "average") {
    findings.push_back(ok(topic, "it averages exactly, so nothing of the model is exchanged"));
    return;
  }
  const double period_s = number_of(job, "period_s");
  const double wanted_s = number_of(job, "wanted_period_s");
  const std::string limit = text_of(job, "period_limit");
  const bool of_network = limit == "bandwidth_share";
  const std::string paced =
      fmt::format("this node begins an exchange of each fragment every {}", period_text(period_s));
  const std::string all_exchanges =
      fmt::format("; with those that others began, it had {} exchanges in this look", count_text(pace.own_exchanges));
  if (limit == "step") {
    findings.push_back(ok(topic, paced + ", twice in a training step" + all_exchanges));
  } else if (wanted_s > 0 && period_s > slowed_factor * wanted_s) {
    findings.push_back(warning(topic, fmt::format("{} instead of {}{}", paced, period_text(wanted_s), all_exchanges),
                               fmt::format("gossip keeps to its share of {}: a larger [gossip] {} allows it more",
                                           of_network ? "the network" : "the training's time",
                                           of_network ? "bandwidth_share" : "time_share")));
  } else {
    findings.push_back(ok(topic, paced + all_exchanges));
  }
  findings.push_back(ok(topic, own_pace_text(look, job, pace)));
  if (const double per_s = number_of(job, "mixing_per_s"); per_s > 0)
    findings.push_back(
        ok(topic, fmt::format("exchanges halve the differences between replicas in {}; spectral gap {:.2g} "
                              "an exchange",
                              period_text(std::log(2) / per_s), number_of(job, "spectral_gap"))));
}

void explain_this_node(const Look& look, std::vector<Finding>& findings) {
  const std::string state = text_of(look.node, "state");
  findings.push_back(
      state == "running"
          ? ok("node", "running")
          : warning("node", state, state == "drained" ? "'gossamerctl drain --off' ends it" : "it is about to end"));
  if (const std::string near = text_of(look.node, "limits_near"); !near.empty())
    findings.push_back(warning("limits", near, "raise it under [limits]; more training processes will be refused"));
  std::size_t up = 0;
  for (const json& peer : look.peers)
    up += peer.value("up", false) ? 1 : 0;
  if (up == 0) {
    findings.push_back(warning("links", "none", "'gossamerctl peers' says why"));
  } else {
    findings.push_back(ok("links", fmt::format("{} of {} known nodes", up, look.peers.size())));
  }
  add_watched(look, "", "", findings);
  // Without links, probes fail for another reason.
  if (up > 0 && number_of(look.node, "health") > 0)
    findings.push_back(warning("health",
                               fmt::format("this node answers late, and is {:.0f} times as patient with others",
                                           number_of(look.node, "health") + 1),
                               "its processors are busy: leave the daemon a core, or raise its CPUWeight"));
}

}  // namespace

std::expected<std::string, std::string> find_node(const Look& look, const std::string& name) {
  const std::string own = look.node.at("node").get<std::string>();
  if (name.empty() || name == look.node.value("name", "")) return own;
  std::map<std::string, std::string> names{{own, look.node.value("name", "")}};
  for (const json* list : {&look.members, &look.peers})
    for (const json& entry : *list)
      if (std::string& known = names[entry.at("node").get<std::string>()]; known.empty())
        known = entry.value("name", "");
  std::set<std::string> found;
  for (const auto& [id, known] : names)
    if (known == name || id.starts_with(name)) found.insert(id);
  if (found.size() == 1) return *found.begin();
  std::string list;
  for (const auto& [id, known] : names)
    if (found.empty() || found.contains(id))
      list += fmt::format("\n  {}  {}", id.substr(0, 8), known.empty() ? "-" : safe_text(known));
  return std::unexpected(found.empty() ? fmt::format("no node is called {}; known are:{}", name, list)
                                       : fmt::format("several nodes are called {}: say more of the id:{}", name, list));
}

std::vector<Finding> explain(const Look& earlier, const Look& later, const std::string& id) {
  std::vector<Finding> findings;
  const bool own = id == later.node.at("node").get<std::string>();
  const double elapsed_s = later.at_s - earlier.at_s;
  const auto growth = [](const json* before, const json* now, const char* member) {
    if (before == nullptr || now == nullptr) return 0.0;
    return std::max(0.0, number_of(*now, member) - number_of(*before, member));
  };
  bool linked = false;
  if (own) {
    explain_this_node(later, findings);
  } else {
    explain_membership(later, id, findings);
    linked = explain_link(later, id, findings);
  }
  for (const json& job : later.jobs) {
    const json* before = with(earlier.jobs, "job", job.value("job", ""));
    const json partners = job.value("partners", json::array());
    const json partners_before = before == nullptr ? json::array() : before->value("partners", json::array());
    const auto trained = [&](const std::string& node) {
      return growth(with(partners_before, "node", node), with(partners, "node", node), "clock");
    };
    PaceOfNode pace{.elapsed_s = elapsed_s,
                    .own_samples = growth(before, &job, "clock"),
                    .own_exchanges = growth(before, &job, "exchanges")};
    if (own) {
      for (const json& partner : partners) {
        const double samples = text_of(partner, "state") == "running" ? trained(partner.at("node")) : 0;
        if (samples <= pace.fastest_samples) continue;
        pace.fastest = partner.at("node");
        pace.fastest_samples = samples;
      }
      explain_own_job(later, job, pace, findings);
      add_watched(later, "", job.value("job", ""), findings);
    } else if (linked) {
      pace.its_samples = trained(id);
      explain_partner(job, with(partners, "node", id), pace, findings);
    }
    if (!own) add_watched(later, id, job.value("job", ""), findings);
  }
  return findings;
}

}  // namespace gossamer::ctl
