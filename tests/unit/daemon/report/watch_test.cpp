// What the watch finds: each rule by the numbers that show it and not without them, nothing where all is well, and
// nothing that comes and goes.

#include "daemon/report/watch.hpp"

#include <algorithm>
#include <functional>

#include "tests/unit/catch.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

namespace {

constexpr double window_s = 60;
const std::vector<std::string> names = {"a", "b", "c"};

/// A job with three healthy partners that has run for `at_s` seconds.
WatchLook healthy(double at_s) {
  WatchLook look{.at_s = at_s};
  const auto count = [&](double per_s) { return static_cast<std::uint64_t>(per_s * at_s); };
  JobStatus job;
  job.job = "digits";
  job.state = "running";
  job.neighbours = 3;
  job.fragments = 4;
  job.period_s = 0.05;
  job.fragment_idle_s = 0.2;
  job.clock = count(400);
  job.exchanges = count(30);
  job.blocks = count(3000);
  job.wide_blocks = count(60);
  job.age_sum = 30 * at_s;
  job.consensus = 0.02;
  job.mixing_per_s = 5;
  job.spectral_gap = 0.2;
  job.tracer_rounds = {11, 12, 13};
  for (const std::string& name : names) {
    PeerStatus peer;
    peer.node = std::string(32, name[0]);
    peer.name = "node-" + name;
    peer.up = true;
    peer.up_s = at_s;
    peer.round_trip_ms = 12;
    peer.least_round_trip_ms = 10;
    peer.goodput_mbit_s = 900;
    peer.bytes_sent = count(4e5);
    look.peers.push_back(peer);
    PartnerStatus partner;
    partner.node = peer.node;
    partner.state = "running";
    partner.linked = true;
    partner.clock = count(380);
    partner.exchanges = count(10);
    partner.busy = count(1);
    partner.exchanged_s = 0.1;
    partner.consensus = 0.02;
    partner.blocks = count(1000);
    partner.wide_blocks = count(20);
    partner.age_intervals = 1;
    job.partners.push_back(partner);
    SummaryStatus summary;
    summary.node = peer.node;
    summary.name = peer.name;
    summary.age_s = 3;
    summary.jobs = {{"digits", "running", 1, 0.02, 12, 5}};
    look.cluster.push_back(summary);
  }
  look.jobs.push_back(job);
  return look;
}

/// Changes the look now, and the one a minute before.
using Change = std::function<void(WatchLook& before, WatchLook& now)>;

std::vector<FindingStatus> found_with(const Change& change) {
  WatchLook before = healthy(100);
  WatchLook now = healthy(100 + window_s);
  change(before, now);
  return judge(before, now);
}

PartnerStatus& partner_c(WatchLook& look) {
  return look.jobs[0].partners[2];
}
PeerStatus& peer_c(WatchLook& look) {
  return look.peers[2];
}

/// Partner c has neither asked nor been asked since the look before. Before that it did this many exchanges.
void rests(WatchLook& before, WatchLook& now, std::uint64_t exchanges = 1000) {
  partner_c(now).exchanges = partner_c(before).exchanges = exchanges;
  partner_c(now).busy = partner_c(before).busy;
}

}  // namespace

TEST_CASE("the watch finds nothing where all is well") {
  CHECK(found_with([](WatchLook&, WatchLook&) {}).empty());
  // Nor in a node that has just begun, is alone, or has no job.
  CHECK(judge(healthy(0), healthy(5)).empty());
  CHECK(judge(WatchLook{}, WatchLook{.at_s = window_s}).empty());
  CHECK(judge(WatchLook{}, healthy(window_s)).empty());
  CHECK(found_with([](WatchLook& before, WatchLook& now) {
          before.jobs[0].partners.clear();
          now.jobs[0].partners.clear();
        }).empty());
}

TEST_CASE("replicas that agree while nobody trains may be silent") {
  CHECK(found_with([](WatchLook& before, WatchLook& now) {
          rests(before, now);
          partner_c(now).exchanged_s = 61;
          now.jobs[0].clock = before.jobs[0].clock;
        }).empty());
}

TEST_CASE("each rule of the watch finds what it is for, says why, and what to do") {
  struct Case {
    const char* rule;
    const char* node;  // "c", or "" for this one
    Change change;
    std::vector<const char*> said;  // every text that must be in the finding
  };
  const auto drifts = [](WatchLook&, WatchLook& now) { partner_c(now).consensus = 0.1; };
  const auto has = [](const FindingStatus& trouble) {
    return [trouble](WatchLook&, WatchLook& now) { now.troubles = {trouble}; };
  };
  const std::vector<Case> cases = {
      {"drift",
       "c",
       [&](WatchLook& before, WatchLook& now) {
         drifts(before, now);
         now.link_max_mbit_s = 3;
       },
       {"node-c drifts: its model is 0.1 of the norm from this node's, the others 0.02, and it moves away",
        "capped at 3 Mbit/s", "raise [gossip] link_max_mbit_s"}},
      {"drift",
       "c",
       [&](WatchLook& before, WatchLook& now) {
         drifts(before, now);
         now.max_mbit_s = 10;
       },
       {"this node is capped at 10 Mbit/s", "raise [gossip] max_mbit_s"}},
      {"drift",
       "c",
       [&](WatchLook& before, WatchLook& now) {
         drifts(before, now);
         peer_c(now).goodput_mbit_s = 5;
       },
       {"its link carries 5 Mbit/s, the others 900", "codec = \"auto\""}},
      {"drift",
       "c",
       [&](WatchLook& before, WatchLook& now) {
         drifts(before, now);
         partner_c(now).exchanges = partner_c(before).exchanges + 60;
       },
       {"averaged with 60 times in 60 s, the others 600 times", "gossamerctl explain"}},
      {"drift",
       "c",
       [&](WatchLook& before, WatchLook& now) {
         drifts(before, now);
         partner_c(now).clock = partner_c(before).clock + 60'000;
       },
       {"it trains 1000 samples/s, this node 400", "shorter period_ms there"}},
      {"drift",
       "c",
       [](WatchLook& before, WatchLook& now) {
         partner_c(before).consensus = 1e30;  // coming closer is no excuse
         partner_c(now).consensus = 1e9;
       },
       {"node-c has gone wild: its model is 1e+09 times the norm of this node's away, the others 0.02",
        "resume it from a checkpoint", "hardly moves the others"}},
      {"drift", "c", drifts, {"averaged as often as the others", "its data and its learning rate"}},
      {"apart",
       "c",
       [](WatchLook&, WatchLook& now) { now.cluster[2].jobs[0].tracer_round = 99; },
       {"what node-c learns does not arrive here", "parts that do not exchange"}},
      {"sparse",
       "",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].spectral_gap = 0.004;
         now.jobs[0].mixing_per_s = 0.1;
       },
       {"mix 4 replicas slowly", "halves in 6.9 s", "spectral gap 0.004", "few or slow links"}},
      {"sparse",
       "",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].spectral_gap = 0.004;
         now.jobs[0].mixing_per_s = 0.1;
         now.scheduled = true;
       },
       {"partners = \"random\""}},
      {"spread",
       "",
       [](WatchLook& before, WatchLook& now) {
         before.jobs[0].consensus = 0.04;
         now.jobs[0].consensus = 0.2;
       },
       {"from 0.04 to 0.2 of the model's norm in 60 s", "smaller learning rate"}},
      {"diverge",
       "",
       [](WatchLook& before, WatchLook& now) {
         before.jobs[0].consensus = now.jobs[0].consensus = 0.01;
         before.jobs[0].mean_disagreement = 0.001;
         now.jobs[0].mean_disagreement = 1;
       },
       {"grows without bound", "1e+03 times as large as 60 s before", "same model twice"}},
      {"wide",
       "",
       [](WatchLook&, WatchLook& now) { now.jobs[0].wide_blocks += 90'000; },
       {"52 % of all blocks", "shorter period_ms"}},
      {"wide",
       "c",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].wide_blocks += 40'000;
         partner_c(now).wide_blocks += 40'000;
       },
       {"69 % of the blocks exchanged with node-c", "of the others' 2 %"}},
      {"unresolved",
       "c",
       [](WatchLook&, WatchLook& now) {
         partner_c(now).unresolved = 20;
         now.jobs[0].unresolved = 20;
       },
       {"of 620 exchanges with node-c, 20 have an outcome that cannot be known", "its log"}},
      {"unresolved",
       "",
       [](WatchLook&, WatchLook& now) { now.jobs[0].unresolved = 40; },
       {"40 have an outcome that cannot be known any more, because one end is gone", "gossamerctl members"}},
      {"stale",
       "c",
       [](WatchLook&, WatchLook& now) { partner_c(now).age_intervals = 20; },
       {"the values of node-c are 20 of its publication intervals old", "step_budget"}},
      {"stale",
       "",
       [](WatchLook&, WatchLook& now) { now.jobs[0].age_sum += 20 * 1800; },
       {"the values of this node are 21 of", "step_budget"}},
      {"silent",
       "c",
       [](WatchLook& before, WatchLook& now) {
         rests(before, now);
         partner_c(now).exchanged_s = 61;
       },
       {"node-c has exchanged nothing with this node for 61 s", "gossamerctl explain node-c"}},
      {"silent",
       "c",
       [](WatchLook& before, WatchLook& now) { rests(before, now, 0); },
       {"nothing was exchanged with it"}},
      {"busy",
       "c",
       [](WatchLook&, WatchLook& now) { partner_c(now).busy += 2000; },
       {"node-c turned 2060 of 2660 requests down", "raise period_ms"}},
      {"rare",
       "",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].period_s = 98;
         now.jobs[0].wanted_period_s = 0.05;
         now.jobs[0].period_limit = "time_share";
       },
       {"every 98 s, not every 0.05 s", "over time_share of the training's time", "a larger [gossip] time_share"}},
      {"rare",
       "",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].period_s = 55;
         now.jobs[0].wanted_period_s = 1;
         now.jobs[0].period_limit = "bandwidth_share";
       },
       {"every 55 s, not every 1 s", "over bandwidth_share of what the fastest link carries", "codec = \"q4\""}},
      {"slow-link",
       "c",
       [](WatchLook& before, WatchLook& now) {
         peer_c(now).goodput_mbit_s = 5;
         partner_c(now).exchanges = partner_c(before).exchanges + 60;
       },
       {"the link to node-c carries 5 Mbit/s, the others 900", "60 times in 60 s, the others 600", "faster line"}},
      {"queue",
       "c",
       [](WatchLook&, WatchLook& now) {
         peer_c(now).goodput_mbit_s = 300;
         peer_c(now).queued_bytes = 80'000'000;
       },
       {"80 MB wait to be sent to node-c, 2.1 s", "link_max_mbit_s"}},
      {"latency",
       "c",
       [](WatchLook&, WatchLook& now) { peer_c(now).round_trip_ms = 180; },
       {"heartbeats to node-c take 180 ms, 170 ms of it in queues", "link_max_mbit_s"}},
      {"quarantined",
       "c",
       [](WatchLook& before, WatchLook& now) {
         rests(before, now);
         partner_c(now).exchanged_s = 70;
         partner_c(now).quarantined_fragments = 2;
       },
       {"node-c holds NaN or infinity in 2 of 4 fragments, which are not averaged with it",
        "the training's loss there"}},
      {"quarantined",
       "",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].state = "quarantined";
         now.jobs[0].quarantined_fragments = 3;
       },
       {"this replica holds NaN or infinity in 3 of 4 fragments", "the training's loss"}},
      {"quarantined",
       "",
       [](WatchLook&, WatchLook& now) { now.jobs[0].processes = {{.pid = 71, .state = "quarantined"}}; },
       {"the model of process 71 holds NaN or infinity", "that training's loss"}},
      {"starved",
       "",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].fragment_idle_s = 75;
         partner_c(now).quarantined_fragments = 0;
       },
       {"a part of the model was exchanged with nobody for 75 s", "node-a, node-b, node-c", "gossamerctl explain"}},
      {"disk",
       "",
       has({.rule = "disk", .text = "the disk of /a has not answered for 12 s", .advice = "look at it"}),
       {"the disk of /a has not answered for 12 s; look at it"}},
      {"state",
       "",
       has({.rule = "state", .grade = "problem", .text = "not saved", .advice = "make room"}),
       {"not saved; make room"}},
      {"config",
       "",
       has({.rule = "config", .grade = "warning", .text = "it is wrong", .advice = "correct it"}),
       {"it is wrong; correct it"}},
      {"certificate",
       "",
       has({.rule = "certificate", .grade = "warning", .text = "it ends soon", .advice = "renew it"}),
       {"it ends soon; renew it"}},
      {"certificates",
       "",
       has({.rule = "certificates", .grade = "warning", .text = "some end", .advice = "renew them"}),
       {"some end; renew them"}},
  };
  std::vector<std::string> covered;
  for (const Case& one : cases) {
    const auto found = found_with(one.change);
    INFO(one.rule << " " << one.node << " " << one.said.front());
    REQUIRE(found.size() == 1);
    CHECK(found[0].rule == one.rule);
    CHECK(found[0].node == (*one.node == 0 ? std::string() : std::string(32, *one.node)));
    CHECK(found[0].name == (*one.node == 0 ? "" : "node-c"));
    for (const char* part : one.said)
      CHECK_THAT(sentence(found[0]), Contains(part));
    CHECK_FALSE(found[0].advice.empty());
    covered.emplace_back(one.rule);
  }
  for (const WatchRule& rule : watch_rules)
    CHECK(std::ranges::find(covered, rule.name) != covered.end());
}

TEST_CASE("a trouble of the node itself is told at the first look") {
  Watch watch;
  const FindingStatus trouble{.rule = "state", .grade = "problem", .text = "not saved", .advice = "make room"};
  CHECK(watch.look({.at_s = 1, .troubles = {trouble}}).begun.size() == 1);
  CHECK(watch.findings(4).at(0).since_s == 3);
}

TEST_CASE("the watch takes what is usual, or is being mended, for no finding") {
  const std::vector<std::pair<const char*, Change>> cases = {
      {"it comes closer",
       [](WatchLook& before, WatchLook& now) {
         partner_c(before).consensus = 0.5;
         partner_c(now).consensus = 0.1;
       }},
      {"all are as close as noise",
       [](WatchLook& before, WatchLook& now) {
         for (WatchLook* look : {&before, &now})
           for (PartnerStatus& partner : look->jobs[0].partners)
             partner.consensus = 1e-5;
         partner_c(now).consensus = 1e-4;
       }},
      {"a word that is old",
       [](WatchLook&, WatchLook& now) {
         now.cluster[2].jobs[0].tracer_round = 99;
         now.cluster[2].age_s = 40;
       }},
      {"one that only joins",
       [](WatchLook&, WatchLook& now) {
         now.cluster[2].jobs[0].tracer_round = 99;
         now.cluster[2].jobs[0].state = "joining";
       }},
      {"one that has no tracer, or another job",
       [](WatchLook&, WatchLook& now) {
         now.cluster[1].jobs[0].tracer_round = 0;
         now.cluster[2].jobs[0] = {"words", "running", 1, 0.02, 99, 5};
       }},
      {"slow mixing of what agrees",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].spectral_gap = 0.004;
         now.jobs[0].consensus = 1e-4;
       }},
      {"growth from next to nothing",
       [](WatchLook& before, WatchLook& now) {
         before.jobs[0].consensus = 1e-4;
         now.jobs[0].consensus = 0.02;
       }},
      {"a period that is longer than asked for, and short",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].period_s = 9;
         now.jobs[0].wanted_period_s = 0.05;
         now.jobs[0].period_limit = "time_share";
       }},
      {"a long period that is asked for",
       [](WatchLook&, WatchLook& now) { now.jobs[0].period_s = now.jobs[0].wanted_period_s = 600; }},
      {"a few unresolved ones when a node dies", [](WatchLook&, WatchLook& now) { now.jobs[0].unresolved = 5; }},
      {"a slow link that is averaged over as often as others",
       [](WatchLook&, WatchLook& now) { peer_c(now).goodput_mbit_s = 5; }},
      {"a schedule that asks others",
       [](WatchLook& before, WatchLook& now) {
         rests(before, now, 0);
         now.scheduled = true;
       }},
      {"a rare partner that comes in its own time",
       [](WatchLook& before, WatchLook& now) {
         rests(before, now, 3);
         partner_c(now).exchanged_s = 70;
       }},
      {"a large model over a slow link, of which each part waits for its turn",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].fragments = 10'000;
         now.jobs[0].fragment_idle_s = 100;
       }},
      {"a long period",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].period_s = 60;
         now.jobs[0].fragment_idle_s = 100;
       }},
      {"a training that stands still",
       [](WatchLook& before, WatchLook& now) {
         now.jobs[0].fragment_idle_s = 75;
         before.jobs[0].clock = now.jobs[0].clock;
       }},
      {"partners that stand still",
       [](WatchLook& before, WatchLook& now) {
         now.jobs[0].fragment_idle_s = 75;
         for (std::size_t i = 0; i < names.size(); ++i)
           before.jobs[0].partners[i].clock = now.jobs[0].partners[i].clock;
       }},
      {"one that drains",
       [](WatchLook&, WatchLook& now) {
         partner_c(now).state = "draining";
         partner_c(now).consensus = 1;
       }},
      {"a link that was down",
       [](WatchLook& before, WatchLook& now) {
         partner_c(before).linked = false;
         partner_c(now).consensus = 1;
       }},
      {"counters that have begun anew",
       [](WatchLook& before, WatchLook& now) {
         partner_c(before).busy = 100'000;
         partner_c(now).busy = 5;
         before.jobs[0].unresolved = 1000;
         now.jobs[0].unresolved = 0;
       }},
      {"a job that joins",
       [](WatchLook&, WatchLook& now) {
         now.jobs[0].state = "joining";
         now.jobs[0].wide_blocks += 90'000;
       }},
      {"a high round trip on a long line",
       [](WatchLook&, WatchLook& now) {
         peer_c(now).round_trip_ms = 250;
         peer_c(now).least_round_trip_ms = 200;
       }},
      {"a link that is down",
       [](WatchLook&, WatchLook& now) {
         peer_c(now).up = false;
         peer_c(now).round_trip_ms = 180;
       }},
  };
  for (const auto& [what, change] : cases) {
    const auto found = found_with(change);
    INFO(what << ": " << (found.empty() ? "" : sentence(found[0])));
    CHECK(found.empty());
  }
}

TEST_CASE("where replicas that train exchange nothing at all, the watch says who with whom") {
  const auto nothing = [](WatchLook& before, WatchLook& now) {
    now.jobs[0].exchanges = before.jobs[0].exchanges;
    now.jobs[0].blocks = before.jobs[0].blocks;
    now.jobs[0].wide_blocks = before.jobs[0].wide_blocks;
    now.jobs[0].age_sum = before.jobs[0].age_sum;
    now.jobs[0].fragment_idle_s = 70;
    for (std::size_t i = 0; i < names.size(); ++i) {
      PartnerStatus& partner = now.jobs[0].partners[i];
      partner.exchanges = before.jobs[0].partners[i].exchanges;
      partner.busy = before.jobs[0].partners[i].busy;
      partner.exchanged_s = 70;
    }
    partner_c(now).quarantined_fragments = 4;
  };
  std::vector<std::string> said;
  for (const FindingStatus& finding : found_with(nothing))
    said.push_back(finding.rule + " " + finding.name);
  CHECK(said == std::vector<std::string>{"silent node-a", "silent node-b", "quarantined node-c", "starved "});
  for (const FindingStatus& finding : found_with(nothing)) {
    if (finding.rule == "starved")
      CHECK_THAT(finding.text,
                 Contains("nothing of the model was exchanged with anybody") && Contains("node-a, node-b"));
  }
  // With exact averages the model is not exchanged.
  for (const FindingStatus& finding : found_with([&](WatchLook&before, WatchLook&now) {
         nothing(before, now);
         now.jobs[0].method = "average";
       }))
    CHECK(finding.rule != "starved");
  // A job that trains at none of its nodes has nothing to exchange.
  CHECK(found_with([&](WatchLook& before, WatchLook& now) {
          nothing(before, now);
          partner_c(now).quarantined_fragments = 0;
          now.jobs[0].clock = before.jobs[0].clock;
        }).empty());
}

TEST_CASE("a finding is said once it has held, once, and taken back when it is over") {
  Watch watch;
  int begun = 0;
  int ended = 0;
  double at_s = 0;
  const auto look = [&](bool slow, int times) {
    for (int i = 0; i < times; ++i) {
      at_s += 5;
      WatchLook now = healthy(at_s);
      if (slow) peer_c(now).round_trip_ms = 180;
      const Watch::News news = watch.look(std::move(now));
      begun += static_cast<int>(news.begun.size());
      ended += static_cast<int>(news.ended.size());
    }
  };
  look(false, 20);
  CHECK((begun == 0 && watch.findings(at_s).empty()));
  look(true, 2);  // the problem comes and goes
  look(false, 3);
  look(true, 2);
  CHECK((begun == 0 && watch.findings(at_s).empty()));
  look(true, 1);
  CHECK(begun == 1);
  look(true, 30);
  CHECK((begun == 1 && ended == 0));
  const auto findings = watch.findings(at_s);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].rule == "latency");
  CHECK(findings[0].since_s == Approx(32 * 5));
  look(false, 2);
  CHECK((ended == 0 && watch.findings(at_s).size() == 1));
  look(true, 1);  // the problem was not over
  look(false, 3);
  CHECK((begun == 1 && ended == 1 && watch.findings(at_s).empty()));
}

TEST_CASE("rules that take longer are said later") {
  Watch watch;
  double at_s = 0;
  int looks = 0;
  while (watch.findings(at_s).empty() && looks < 100) {
    at_s += 5;
    ++looks;
    WatchLook now = healthy(at_s);
    now.cluster[2].jobs[0].tracer_round = 99;
    (void)watch.look(std::move(now));
  }
  CHECK(looks == 12 + 2);  // the first two looks have nothing to be compared with
  CHECK(watch.findings(at_s)[0].grade == "problem");
}
