// What gossamerctl explain finds in two looks at a daemon: each cause by the numbers that show it, and none where all
// is well.

#include "tools/ctl/explain.hpp"

#include "daemon/report/status.hpp"
#include "daemon/report/watch.hpp"
#include "tests/unit/catch.hpp"

using namespace gossamer;
using namespace gossamer::ctl;
using Catch::Matchers::Contains;

namespace {

const std::string own_id(32, '0');
const std::string its_id(32, 'a');
const std::string third_id = "ab" + std::string(30, 'c');

/// Two nodes beside this one, with whom all is well.
struct Scene {
  Scene() {
    node.node = own_id;
    node.name = "left";
    node.state = "running";
    job.job = "digits";
    job.state = "running";
    job.neighbours = 2;
    job.fragments = 4;
    job.clock = job.global_clock = 10'000;
    job.exchanges = 500;
    job.blocks = 1000;
    job.period_s = 0.06;
    job.mixing_per_s = 5;
    job.spectral_gap = 0.2;
    job.wanted_period_s = 0.05;
    for (const std::string& id : {its_id, third_id}) {
      daemon::PeerStatus peer;
      peer.node = id;
      peer.name = id == its_id ? "right" : "third";
      peer.up = true;
      peer.round_trip_ms = 12;
      peer.least_round_trip_ms = 10;
      peer.goodput_mbit_s = 900;
      peers.push_back(peer);
      daemon::ClusterMemberStatus member;
      member.node = id;
      member.name = peer.name;
      member.state = "alive";
      members.push_back(member);
      daemon::PartnerStatus partner;
      partner.node = id;
      partner.state = "running";
      partner.linked = true;
      partner.clock = 9'900;
      partner.exchanges = 100;
      partner.busy = 10;
      partner.exchanged_s = 0.1;
      partner.consensus = 0.01;
      job.partners.push_back(partner);
    }
  }
  [[nodiscard]] Look look(double at_s) const {
    return {.at_s = at_s,
            .node = daemon::status_answer(node).at("node"),
            .peers = daemon::peers_answer(peers).at("peers"),
            .members = daemon::members_answer(members).at("members"),
            .jobs = daemon::jobs_answer({job}).at("jobs")};
  }
  /// What the daemon's watch finds in the minute before, in which all counters have grown.
  [[nodiscard]] std::vector<daemon::FindingStatus> watched() const {
    Scene before = *this;
    before.job.exchanges = before.job.unresolved = before.job.blocks = before.job.wide_blocks = 0;
    for (daemon::PartnerStatus& partner : before.job.partners) {
      partner.exchanges = std::min<std::uint64_t>(partner.exchanges, 1);
      partner.busy = 0;
    }
    return daemon::judge({.at_s = 100, .peers = before.peers, .jobs = {before.job}},
                         {.at_s = 160, .peers = peers, .jobs = {job}, .troubles = troubles});
  }
  /// Four seconds in which this node trains 400 samples a second, and the other so many.
  [[nodiscard]] std::vector<Finding> explained(const std::string& id, double its_per_s = 400) const {
    Scene earlier = *this;
    earlier.job.clock -= 1600;
    earlier.job.exchanges -= 88;
    earlier.job.partners[0].clock -= static_cast<std::uint64_t>(4 * its_per_s);
    Scene later = *this;
    later.node.findings = watched();
    return explain(earlier.look(10), later.look(14), id);
  }

  daemon::NodeStatus node;
  daemon::JobStatus job;
  std::vector<daemon::PeerStatus> peers;
  std::vector<daemon::ClusterMemberStatus> members;
  std::vector<daemon::FindingStatus> troubles;  ///< of the node itself
};

/// The one finding that is not well, as "topic: text -> advice"; all of them if there are several.
std::string trouble(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings)
    if (finding.grade != Grade::ok) text += finding.topic + ": " + finding.text + " -> " + finding.advice + "\n";
  return text;
}

}  // namespace

TEST_CASE("explain finds nothing where all is well") {
  const Scene scene;
  CHECK(trouble(scene.explained(own_id)).empty());
  const auto findings = scene.explained(its_id);
  CHECK(trouble(findings).empty());
  CHECK_THAT(as_text(findings, false),
             Contains("it trained 1600 samples in the 4 s of this look, this node 1600") && Contains("900 Mbit/s"));
  CHECK_THAT(as_text(findings, false), Contains("0.01 from this node's"));
  CHECK_THAT(as_text(scene.explained(own_id), false), Contains("halve the differences between replicas in 139 ms"));
}

TEST_CASE("explain tells why a node is behind") {
  Scene scene;
  scene.job.partners[0].clock = 5'000;
  CHECK_THAT(
      trouble(scene.explained(its_id, 100)),
      Contains("behind the job's clock by 5000 of 10000 samples (50 %), and behind this node's; its clock is 5000, "
               "this node's 10000, the job's 10000; it trained 400 samples in the 4 s of this look, this "
               "node 1600 -> its machine is slower"));
  CHECK_THAT(trouble(scene.explained(its_id, 0)),
             Contains("its steps take longer than the") && Contains("stands still"));
  CHECK(trouble(scene.explained(its_id, 390)).empty());  // nothing is wrong now
  CHECK_THAT(as_text(scene.explained(its_id, 390), false), Contains("or is a little slower than others"));
}

TEST_CASE("explain tells a node that is faster than this one, and behind the job's clock only, from a slow one") {
  Scene scene;
  scene.job.clock = 2'000;
  scene.job.global_clock = 15'000;
  scene.job.partners[0].clock = 9'300;
  scene.job.partners[1].clock = 71'000;
  const std::string faster = as_text(scene.explained(its_id, 2000), false);
  CHECK_THAT(faster,
             Contains("behind the job's clock by 5700 of 15000 samples (38 %), not behind this node's; its clock is "
                      "9300, this node's 2000, the job's 15000; it trained 8000 samples in the 4 s of this "
                      "look, this node 1600: it is faster than this node, and another is faster still"));
  CHECK_THAT(faster, !Contains("slower"));
  CHECK_THAT(as_text(scene.explained(third_id), false),
             Contains("its clock is 71000, this node's 2000, the job's 15000; it trained") && !Contains("behind"));
  // This node says how much slower it is than the fastest.
  CHECK_THAT(
      as_text(scene.explained(own_id, 2000), false),
      Contains("its clock is 2000, the job's 15000, that of right 9300; it trained 1600 samples in the 4 s of this "
               "look, right 8000: this node is 5 times slower"));
  CHECK_THAT(as_text(scene.explained(own_id, 400), false), !Contains("slower"));
}

TEST_CASE("explain tells why a node is silent") {
  Scene scene;
  scene.peers[0].up = false;
  scene.peers[0].note = "nobody answers\x1b[2J";
  scene.members[0].state = "suspected";
  scene.members[0].heard_s = 7;
  const std::string found = trouble(scene.explained(its_id));
  CHECK_THAT(found,
             Contains("link: down: nobody answers?[2J") && Contains("suspected, last heard from directly 7.0 s ago"));
  CHECK_THAT(found, !Contains("job"));  // without a link, nothing is known of its job
  scene.peers.erase(scene.peers.begin());
  scene.members.erase(scene.members.begin());
  CHECK_THAT(trouble(scene.explained(its_id)), Contains("not in the cluster that this node knows"));
}

TEST_CASE("explain tells what is wrong with a link") {
  Scene scene;
  scene.peers[0].round_trip_ms = 180;
  scene.peers[0].goodput_mbit_s = 5;
  scene.peers[0].queued_bytes = 4'000'000;
  const std::string found = trouble(scene.explained(its_id));
  CHECK_THAT(found,
             Contains("latency: heartbeats to right take 180 ms, 170 ms of it in queues") && Contains("for 0.0 s"));
  CHECK_THAT(found, Contains("queue: 4 MB wait to be sent to right, 6.4 s at the 5 Mbit/s"));
  CHECK(trouble(scene.explained(third_id)).empty());
}

TEST_CASE("explain tells what is wrong between two replicas") {
  const auto found = [](auto change) {
    Scene scene;
    change(scene.job.partners[0]);
    return trouble(scene.explained(its_id));
  };
  CHECK_THAT(found([](auto& partner) { partner.state = "absent"; }), Contains("does not run this job"));
  CHECK_THAT(found([](auto& partner) { partner.state = "other layout"; }),
             Contains("runs a job of this name with another layout") && Contains("share_second_moments"));
  CHECK(found([](auto& partner) { partner.state = "joining"; }).empty());
  CHECK_THAT(found([](auto& partner) { partner.busy = 300; }), Contains("asked more than it can answer"));
  CHECK_THAT(found([](auto& partner) { partner.consensus = 0.05; }),
             Contains("job digits: right drifts: its model is 0.05 of the norm from this node's, the others 0.01"));
  const auto sick = [](auto& partner) { partner.quarantined_fragments = 2; };
  CHECK_THAT(found(sick), Contains("job digits: it holds NaN or infinity in 2 of 4 fragments"));
  Scene with_nan;
  sick(with_nan.job.partners[0]);
  CHECK_THAT(trouble(with_nan.explained(own_id)), Contains("right holds NaN or infinity in 2 of 4 fragments"));
  CHECK(trouble(with_nan.explained(third_id)).empty());
  // The finding is shown for that node only.
  Scene scene;
  scene.job.partners[0].consensus = 0.05;
  CHECK(trouble(scene.explained(third_id)).empty());
  CHECK(trouble(scene.explained(own_id)).empty());
  // A partner that does not exchange at the moment is shown, but is no trouble.
  scene = Scene();
  scene.job.partners[0].exchanges = 0;
  CHECK_THAT(as_text(scene.explained(its_id), false), Contains("no exchange with it yet"));
}

TEST_CASE("explain takes a period that follows from long steps for what it should be") {
  Scene scene;
  scene.job.period_s = 4;
  scene.job.period_limit = "step";
  CHECK_THAT(
      as_text(scene.explained(own_id), false),
      Contains("this node begins an exchange of each fragment every 4.0 s, twice in a training step; with those that "
               "others began, it had 88 exchanges in this look"));
  CHECK_THAT(trouble(scene.explained(own_id)), !Contains("every 4.0 s"));
}

TEST_CASE("explain speaks of no exchanges where a job averages exactly") {
  Scene scene;
  scene.job.method = "average";
  const std::string found = as_text(scene.explained(own_id), false);
  CHECK_THAT(found, Contains("it averages exactly, so nothing of the model is exchanged"));
  CHECK_THAT(found, !Contains("begins an exchange"));
}

TEST_CASE("explain tells what slows this node down") {
  Scene scene;
  scene.job.period_s = 4;
  scene.job.period_limit = "bandwidth_share";
  scene.job.unresolved = 40;
  scene.job.wide_blocks = 300;
  scene.node.limits_near = "clients: 60 of 64";
  scene.node.health = 2;
  const std::string found = trouble(scene.explained(own_id));
  CHECK_THAT(found, Contains("every 4.0 s instead of 50 ms") && Contains("of 540 exchanges, 40 have an outcome"));
  CHECK_THAT(found, Contains("its share of the network: a larger [gossip] bandwidth_share"));
  CHECK_THAT(found, Contains("30 % of all blocks") && Contains("60 of 64") && Contains("3 times as patient"));
  scene.job.processes = {{.pid = 71, .state = "quarantined"}, {.pid = 72, .state = "running"}};
  CHECK_THAT(trouble(scene.explained(own_id)), Contains("the model of process 71 holds NaN") && !Contains("72"));
  scene.job.state = "quarantined";
  scene.job.neighbours = 0;
  scene.peers.clear();
  scene.troubles = {{.rule = "certificate", .grade = "problem", .text = "it has ended", .advice = "renew it"}};
  const std::string alone = trouble(scene.explained(own_id));
  CHECK_THAT(alone, Contains("NaN or infinity") && Contains("no other replica") && Contains("links: none"));
  // Probes fail because there are no links.
  CHECK_THAT(alone, Contains("certificate: it has ended") && Contains("renew it") && !Contains("processors"));
}

TEST_CASE("explain finds a node by its name or the beginning of its id") {
  const Look look = Scene().look(0);
  CHECK(find_node(look, "") == own_id);
  CHECK(find_node(look, "left") == own_id);
  CHECK(find_node(look, "right") == its_id);
  CHECK(find_node(look, "ab") == third_id);
  CHECK_THAT(find_node(look, "a").error(), Contains("say more of the id") && Contains("third") && !Contains("left"));
  CHECK_THAT(find_node(look, "nobody").error(), Contains("no node is called nobody; known are:") && Contains("left"));
}
